"""Self-play, as the plan has it: members from elsewhere, evaluations against a judge, a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.errors import ConfigError
from flowrl.plans import DQN, SelfPlay
from flowrl.policies.line_players import OnePly
from flowrl.rollout import payoffs
from flowrl.testing import same
from tests.plans.small import SMALL


def trained(out: Path, **settings: Any) -> SelfPlay:
    return SelfPlay(config={**SMALL["self_play"], **settings}, out=out)


def test_saved_and_scripted_players_are_members_from_the_start(tmp_path: Path) -> None:
    """They play with their own weights and networks, and never leave; a file of the learner is one policy."""
    with trained(tmp_path / "first", hidden=(8,)) as trainer:
        trainer.train(env_steps=60)
    first = str(tmp_path / "first")
    with trained(tmp_path / "second", opponents=[first, "random"], snapshot_every=10, self_play=0.0) as trainer:
        trainer.train(env_steps=200)
        league = trainer.workers.league
        assert same(league.policies[first].weights(), flowrl.load(first).policy.weights())
        assert {each.name for each in league.pool("*")} >= {first, "random"}
        assert len(league.pool("*")) == 2 + 2
        assert {("main", first), ("main", "random")} <= league.records.keys()
    players = {"learned": flowrl.load(tmp_path / "second").players, "one_ply": OnePly}
    assert payoffs(players, "flowrl:tic_tac_toe", episodes=2).ranked


def test_evaluations_meet_a_judge_from_either_side(tmp_path: Path) -> None:
    """S6: `eval_return/main` is what the learner gains from it, and a goal may name the learner."""
    with trained(tmp_path / "run", eval_opponent="one_ply", eval_every=40, eval_episodes=30) as trainer:
        result = trainer.train(env_steps=50)
        assert result["eval_return/main"] == -result["eval_return/judge"] < -0.5
        assert result["eval_win_rate/judge"] > 0.5
    with trained(tmp_path / "other", eval_every=40, eval_episodes=4) as trainer:
        trainer.train(env_steps=200, goal={"main": -1.0})
        assert trainer.result["confirmed_return/main"] >= -1.0
    with trained(tmp_path / "third", eval_opponent=None, eval_every=40) as trainer:
        assert "eval_return/main" not in trainer.train(env_steps=60)


def test_a_run_goes_on_with_its_pool(tmp_path: Path) -> None:
    """D3, L2: resumed by its directory, with members of the pool in the middle of matches."""
    settings = {"seed": 2, "checkpoint_every": 60}
    with trained(tmp_path / "whole", **settings) as trainer:
        trainer.train(env_steps=120)
        whole = trainer.run.state_dict()["resources"]
    with trained(tmp_path / "parted", **settings) as trainer:
        trainer.train(env_steps=60)
    with flowrl.resume(tmp_path / "parted") as trainer:
        trainer.train(env_steps=120)
        found = trainer.run.state_dict()["resources"]
    for name in ("League", "PPOPolicy"):
        assert same(found[name], whole[name])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"opponents": ["nobody"]}, "nobody"),
        ({"env": "CartPole-v1"}, "has one agent: self-play and leagues take games of two agents"),
        ({"agents": {"x": "main"}}, "the league draws who plays whom; leave agents out"),
        ({"opponents": ["main"]}, "opponents: the name 'main' is that of a learner"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SelfPlay(config={**SMALL["self_play"], **settings})


def test_a_player_of_other_spaces_is_refused(tmp_path: Path) -> None:
    with DQN("CartPole-v1", config=SMALL["dqn"], out=tmp_path / "run") as trainer:
        trainer.train(env_steps=80)
    with pytest.raises(ConfigError, match=r"has the observation space .*, but the game has"):
        SelfPlay(config={**SMALL["self_play"], "opponents": [str(tmp_path / "run")]})

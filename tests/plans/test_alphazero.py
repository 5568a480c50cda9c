"""AlphaZero, as the plan has it: rows with the outcome of their game, players that search, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.data import Batch, ReplayBuffer
from flowrl.engine.run import resources_of
from flowrl.errors import ConfigError
from flowrl.plans import AlphaZero
from flowrl.policies import RandomPolicy
from flowrl.policies.line_players import OnePly
from flowrl.rollout import payoffs
from flowrl.testing import same
from tests.plans.small import SMALL


def small(out: Path | None = None, **settings: Any) -> AlphaZero:
    return AlphaZero(config={**SMALL["alphazero"], **settings}, out=out)


def test_each_row_has_the_outcome_of_its_game_from_its_seat() -> None:
    """Of whole games: seats take turns from the empty board on, and who wins is who makes the last move, if anybody."""
    with small(envs_per_worker=6, buffer_size=1000, replay_ratio=0.5, seed=3) as trainer:
        trainer.train(env_steps=240)
        (buffer,) = [each for each in resources_of(trainer.plan).values() if isinstance(each, ReplayBuffer)]
        rows, model = buffer[np.arange(len(buffer))], trainer.workers.policy.game
    games: dict[tuple[int, int], list[int]] = {}
    for row, game in enumerate(zip(rows.env_id.tolist(), rows.episode_id.tolist())):
        games.setdefault(game, []).append(row)
    outcomes = set()
    order = model.moves(model.states(rows.obs)).tolist()
    for found in games.values():
        moves = rows[sorted(found, key=order.__getitem__)]
        states = np.zeros((1, 2), np.uint64)
        for at in range(len(moves)):
            assert (model.states(moves.obs[[at]]) == states).all()
            states, gain, over = model.play(states, moves.action[[at]])
            assert over == (at == len(moves) - 1)
        signs = (-1.0) ** np.arange(len(moves))[::-1]
        assert moves.reward.tolist() == (gain * signs).tolist()
        assert not moves.discount.any()
        outcomes.add(float(moves.reward[0]))
    assert len(games) > 20
    assert outcomes >= {1.0, -1.0}
    assert (rows.visits.sum(1) == trainer.config.simulations).all()


@pytest.mark.slow
def test_a_saved_run_plays_by_search(tmp_path: Path) -> None:
    """D3: against scripted players; and resumed by its directory it goes on as an uninterrupted one."""
    settings = {"checkpoint_every": 60, "eval_every": 60, "eval_episodes": 4, "eval_opponent": "one_ply", "seed": 2}
    with small(tmp_path / "whole", **settings) as trainer:
        result = trainer.train(env_steps=240)
        whole = trainer.run.state_dict()["resources"]
    assert result["eval_return/main"] == -result["eval_return/judge"]
    with small(tmp_path / "parted", **settings) as trainer:
        trainer.train(env_steps=120)
    with flowrl.resume(tmp_path / "parted") as trainer:
        trainer.train(env_steps=240)
        assert same(trainer.run.state_dict()["resources"]["AlphaZeroPolicy"], whole["AlphaZeroPolicy"])
    loaded = flowrl.load(tmp_path / "whole")
    players = {"learned": loaded.players, "one_ply": OnePly, "random": RandomPolicy}
    assert payoffs(players, "flowrl:tic_tac_toe", episodes=2).ranked
    board = Batch(board=np.float32([[1, 1, 0, -1, -1, 0, 0, 0, 0]]), action_mask=np.int8([[0, 0, 1, 0, 0, 1, 1, 1, 1]]))
    row = loaded.policy.eval_mode.act(board, np.empty((1, 0)), 0)
    assert row["visits"].sum() == SMALL["alphazero"]["simulations"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": "CartPole-v1"}, "has one agent: self-play and leagues take games of two agents"),
        ({"env": "flowrl:kuhn_poker"}, "a search needs a model of the game, and the game has none"),
        ({"wrappers": ["AgentId"]}, "a search needs a model of the game, and the game has none"),
        ({"simulations": 0}, "simulations=0"),
        ({"eval_opponent": "perfect", "env": "flowrl:connect_four"}, "Perfect plays TicTacToe, not a game"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small(**settings)

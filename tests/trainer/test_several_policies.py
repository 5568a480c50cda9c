"""A Trainer whose game several policies play: `agents` names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.errors import CheckpointError, ConfigError, PlanError
from flowrl.operators import TrainOneStep, UpdateTargetNetwork
from flowrl.plans import DQN, IPPO, PPO
from flowrl.policies import DQNPolicy, Policies, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import Trainer
from tests.cli.parts import flowrl as command
from tests.plans.small import SMALL

GAME = "flowrl:two_cartpoles"
APART = {"left": "a", "right": "b"}


def small(**settings: Any) -> IPPO:
    return IPPO(config={**SMALL["ippo"], **settings})


@pytest.mark.parametrize("plan", [PPO, DQN])
def test_a_plan_of_one_policy_says_which_plan_has_several(plan: type[Trainer]) -> None:
    with pytest.raises(PlanError, match=r"'a' and 'b': .*workers\.of\('a'\); the plan ippo"):
        plan(GAME, agents=APART)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": {"left": "a"}}, "agent 'right' has no policy"),
        ({"agents": {"left": "a", "middle": "b", "*": "a"}}, "policy 'b' has no agent"),
        ({"env": "CartPole-v1"}, "CartPole-v1 has one agent"),
        ({"agents": {"left": 3}}, "agents="),
    ],
)
def test_agents_that_do_not_fit_the_game_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**settings)


def test_operators_learn_one_of_the_policies() -> None:
    with WorkerSet(GAME, policies={"a": PPOPolicy, "b": DQNPolicy}, agents=APART) as workers:
        assert isinstance(workers.policy, Policies)
        for op in (TrainOneStep, UpdateTargetNetwork):
            with pytest.raises(PlanError, match=f"{op.__name__} learns one policy"):
                op(workers)
        UpdateTargetNetwork(workers.of("b"))


def test_the_weights_of_several_policies_are_those_of_each() -> None:
    """D7: weights of others are refused, and nothing has changed."""
    with WorkerSet(GAME, policies={"a": PPOPolicy, "b": DQNPolicy}, agents=APART) as workers:
        policies, other = workers.policy, workers.new_policy()
        weights, before = policies.weights(), policies.stamp
        assert {key.partition("/")[0] for key in weights} == {"a", "b"}
        with pytest.raises(CheckpointError, match="policies a, here they are a, b"):
            other.load_weights({key: value for key, value in weights.items() if key.startswith("a/")})
        state = policies.state_dict()
        with pytest.raises(CheckpointError):
            policies.load_state_dict({"a": state["a"], "b": state["a"]})
        assert len(before) == 2
        loaded = policies.weights()
        assert all((loaded[key] == value).all() for key, value in weights.items())


def test_policies_of_one_configuration_begin_apart_and_learn_from_their_own_agents() -> None:
    """And share what one plays for both."""
    with small(agents=APART) as apart, small(agents={}) as shared:
        a, b = (policy.weights() for policy in apart.workers.policy.values())
        assert any((a[name] != b[name]).any() for name in a)
        result = apart.train(until={"env_steps": 80})
        assert {"loss/a", "loss/b", "updates/a", "updates/b", "episode_return/left"} <= result.keys()
        assert shared.train(until={"env_steps": 60})["updates"] > 0


def test_a_run_of_several_policies_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    """D3: parameters and results equal those of an uninterrupted run."""
    with small() as whole, small() as half, small() as rest:
        expected = [whole.train() for _ in range(6)]
        for _ in range(3):
            half.train()
        rest.restore(half.save(tmp_path / "half"))
        found = [rest.train() for _ in range(3)]
        clock = {"seconds", "steps_per_second"}
        for one, other in zip(expected[3:], found, strict=True):
            assert {**one, **dict.fromkeys(clock)} == {**other, **dict.fromkeys(clock)}
        ours, theirs = whole.workers.policy.weights(), rest.workers.policy.weights()
        assert all((ours[name] == theirs[name]).all() for name in ours)


def test_a_kept_run_is_evaluated_loaded_and_played(tmp_path: Path) -> None:
    """S3: best policy and checkpoint play as all agents; of one policy only `act` makes sense."""
    run = tmp_path / "run"
    with IPPO(
        config={**SMALL["ippo"], "eval_every": 40, "eval_episodes": 2, "checkpoint_every": 40}, out=run
    ) as trainer:
        result = trainer.train(env_steps=80, progress=False)
        newest = trainer.workers.policy.weights()
    assert {"eval_return/left", "eval_return/right"} <= result.keys()
    last = flowrl.load(run, last=True)
    assert all((newest[name] == value).all() for name, value in last.policy.weights().items())
    scores = last.evaluate(2, seed=1)
    sides = scores["agents"]
    assert scores["return_mean"] == sides["left"]["return_mean"] + sides["right"]["return_mean"]
    saved = flowrl.load(sorted((run / "checkpoints").iterdir())[-1])
    assert saved.evaluate(2, seed=1) == scores

    assert last.of("left").act(np.zeros(4, np.float32)) in (0, 1)
    for refused in (lambda: last.act(np.zeros(4)), lambda: last.policy.export("x.pt2")):
        with pytest.raises(ConfigError, match="of"):
            refused()
    with pytest.raises(PlanError, match="play together"):
        last.of("left").evaluate(1)
    with pytest.raises(ConfigError, match="begin fresh"):
        IPPO(config=SMALL["ippo"], init_from=run)

    told = command("evaluate", run, "--episodes", 2)
    assert told.exit_code == 0, told.output
    assert [line.split()[:2] for line in told.output.splitlines()[-2:]] == [["left", "return"], ["right", "return"]]
    refused = command("record", run, "--episodes", 1, "--out", tmp_path / "data")
    assert refused.exit_code != 0
    assert "policies left, right" in refused.output

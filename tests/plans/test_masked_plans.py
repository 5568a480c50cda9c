"""Every plan in an environment where an action that is not valid is an error."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from flowrl.errors import ConfigError
from flowrl.trainer.plan_file import load_plan_file
from tests.demonstrations import random_steps
from tests.offline_data import offline_data
from tests.plans.small import KINDS, SMALL, final, first, make

DOORS = "tests.masked_envs:Doors"

#: One plan for each way to choose an action.
QUICK = ("dqn", "rainbow", "apex_dqn", "r2d2", "dqfd", "ppo", "ppo recurrent", "impala", "sac", "cql")


#: What models say that predict no masks.
WITHOUT_MASKS = ("predicts observations that are a Box of floats", "Dreamer imagines no action_mask")


@pytest.mark.parametrize("name", [*first(KINDS, of=QUICK, rest="slow"), *first(sorted({*SMALL} - {*KINDS}), of=())])
def test_no_plan_ever_takes_an_action_that_is_not_valid(name: str) -> None:
    """Q1, Q3, G6: while it learns, and where it is evaluated; the environment would raise."""
    from flowrl.operators import Evaluate

    config = load_plan_file(name.split()[0]).Config
    known = {"demonstrations", "data"} & {field.name for field in attrs.fields(config)}
    shown = dict.fromkeys(known, random_steps(DOORS))
    try:
        workers, plan = make(name, env=DOORS, **shown)
    except ConfigError as error:  # it is not for discrete actions at all, or its model predicts no masks
        if any(words in str(error) for words in WITHOUT_MASKS):
            return
        with pytest.raises(ConfigError):
            make(name, env="CartPole-v1", **{key: offline_data("CartPole-v1") for key in known & {"data"}})
        return
    with workers, plan.for_each(Evaluate(workers, every=100, episodes=2)).run(seed=0) as run:
        results = [next(run)]
        while results[-1][config.clock] < 200:
            results.append(next(run))
    assert results[-1]["updates"] > 0
    assert any("eval_return" in result for result in results)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("ppo", {"env_args": {"kind": kind}}) for kind in ("shifted", "multi", "binary")),
        ("ppo in torch", {"env_args": {"kind": "multi"}}),
        ("dqn", {"act_backend": "numpy"}),
        ("dqn", {"env_manager": "thread"}),
        ("dqn", {"env_manager": "vector"}),
        ("dqn", {"env_manager": "vector", "env_manager_args": {"autoreset_mode": "same_step"}}),
    ],
)
@pytest.mark.parametrize("where", ["obs", "info"])
def test_other_actions_backends_and_managers(name: str, settings: dict[str, Any], where: str) -> None:
    """G6: masks of several choices side by side; those of `info` through the wrapper ActionMask."""
    settings = {**settings, "env_args": {**settings.get("env_args", {}), "where": where}}
    wrappers = ["ActionMask"] if where == "info" else []
    results, _ = final(name, 6, env=DOORS, wrappers=wrappers, **settings)
    assert results[-1]["updates"] > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "steps", "settings"),
    [
        ("dqn", 1_500, {"epsilon_steps": 1_000, "learning_starts": 200, "replay_ratio": 16.0, "gamma": 0.5}),
        ("ppo", 4_000, {"learning_rate": 0.005, "gamma": 0.5}),
    ],
)
def test_what_is_best_among_the_valid_actions_is_learned(name: str, steps: int, settings: dict[str, Any]) -> None:
    """The best return is 0; that of random valid actions is about -3."""
    trainer = load_plan_file(name).trainer(env=DOORS, device="cpu", seed=1, **settings)
    with trainer:
        trainer.train(until={"env_steps": steps})
        assert trainer.evaluate(episodes=40)["return_mean"] > -0.1

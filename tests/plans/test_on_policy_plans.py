"""What is PPO's and A2C's own; what every plan must do is in test_every_plan.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.errors import ConfigError
from tests.plans.small import SMALL, final, first, make, weights


@pytest.mark.parametrize(("name", "updates"), [("ppo", 2 * 3), ("a2c", 1)])
def test_every_unit_is_counted_once(name: str, updates: int) -> None:
    """F12: 20 env steps a batch; PPO trains on them in 2 epochs of 3 minibatches, A2C in one step."""
    workers, plan = make(name)
    with workers, plan.run(seed=0) as run:
        for _ in range(5):
            result = next(run)
        epochs = 2 if name == "ppo" else 1
        expected = {"env_steps": 100, "trained": 100 * epochs, "updates": 5 * updates, "episodes": result["episodes"]}
        assert run.counters == expected
        assert workers.policy.version == 5 * updates
        assert {"policy_loss", "value_loss", "entropy", "explained_variance"} <= result.keys()


def test_the_epochs_end_at_the_target_divergence() -> None:
    """G5: after the first minibatch that is beyond it."""
    results, _ = final("ppo", 5, target_kl=1e-9)
    assert results[-1]["updates"] < 5 * 6
    results, _ = final("ppo", 5, target_kl=100.0)
    assert results[-1]["updates"] == 5 * 6


@pytest.mark.parametrize(("name", "part"), [("ippo", "left"), ("hierarchy", "worker")])
def test_no_policy_waits_with_old_rows_for_the_batch_of_another(name: str, part: str) -> None:
    """M12: half of its rows at least are of the weights that learn from them, however rarely the others learn."""
    rarely = {} if name == "ippo" else {"manager": {"train_batch_size": 64, "num_sgd_iter": 1}}
    results, _ = final(name, 12, schedule_steps=10_000, **rarely)
    lags = [result[f"policy_lag_p50/{part}"] for result in results if f"policy_lag_p50/{part}" in result]
    assert len(lags) >= 6
    assert set(lags) == {0.0}


def test_a_part_with_a_memory_acts_in_torch() -> None:
    """A hierarchy says so before anything is made, and the other part may act in numpy all the same."""
    remembers = SMALL["hierarchy recurrent"]["manager"]
    with pytest.raises(
        ConfigError, match=r"manager: act_backend='numpy' has no memory: set \"act_backend\": \"torch\""
    ):
        make("hierarchy", act_backend="numpy", manager=remembers)
    results, _ = final("hierarchy", 6, act_backend="numpy", manager={**remembers, "act_backend": "torch"})
    assert results[-1]["updates/manager"]


@pytest.mark.parametrize(("name", "learners"), [("ppo", [""]), ("self_play", [""]), ("ippo", ["/left", "/right"])])
def test_the_weight_of_the_penalty_adapts_for_each_policy_or_is_fixed(name: str, learners: list[str]) -> None:
    """G5: it is halved while the divergence is below half of `kl_target`, and stays without one."""
    adapted, _ = final(name, 4, kl_coef=4.0, kl_target=1e6)
    for of in learners:
        halved = [result[f"kl_coef{of}"] for result in adapted if f"kl_coef{of}" in result]
        assert 4.0 > halved[0] > halved[1] > 0
    fixed, _ = final(name, 4, kl_coef=400.0, kl_target=None)
    free, _ = final(name, 4)
    assert not any("kl_coef" in key for result in fixed for key in result)
    for of in learners:
        near, far = (next(each[f"kl{of}"] for each in results if f"kl{of}" in each) for results in (fixed, free))
        assert 0 < near < far


def test_microbatches_give_the_step_of_the_whole_batch() -> None:
    """F13: as many updates of as many rows, and the same weights up to rounding."""
    results, whole = final("a2c", 5)
    in_parts, parts = final("a2c", 5, microbatches=3)
    assert [result["updates"] for result in in_parts] == [result["updates"] for result in results]
    assert [result["trained"] for result in in_parts] == [result["trained"] for result in results]
    for name, value in weights(whole)["modules"]["model"].items():
        torch.testing.assert_close(weights(parts)["modules"]["model"][name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", first(["ppo", "a2c", "a3c", "impala", "appo"], of=["ppo", "impala"]))
@pytest.mark.parametrize(
    "settings",
    [
        {"env": "Pendulum-v1"},
        {"env": "Pendulum-v1", "squash": True},
        {"env": "tests.spaces_envs:Pictures"},
        {"env": "tests.spaces_envs:Dictionary"},
        {"env": "tests.spaces_envs:Choices"},
        {"env": "tests.spaces_envs:Switches"},
    ],
    ids=lambda settings: "-".join(str(value).rpartition(":")[2] for value in settings.values()),
)
def test_kinds_of_observations_and_actions(name: str, settings: dict[str, Any]) -> None:
    """Continuous, squashed, images, dictionaries, several discrete actions, switches."""
    results, _ = final(name, 3, **settings)
    assert np.isfinite(results[-1]["loss"])

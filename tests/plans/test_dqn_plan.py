"""What is DQN's own; what every plan must do is in test_every_plan.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.errors import ConfigError
from tests.plans.small import final, make


def test_every_unit_is_counted_once() -> None:
    """F12, F11: env_steps are rows collected; trained = sampled = updates x batch size; the ratio is kept."""
    workers, plan = make("dqn")
    with workers, plan.run(seed=0) as run:
        for _ in range(10):
            result = next(run)
        counters = run.counters
        buffer = run.resources["ReplayBuffer"]
        assert counters["env_steps"] == workers.local.env_steps
        assert counters["trained"] == counters["sampled"] == buffer.samples == counters["updates"] * 8
        assert counters["inserted"] == buffer.inserts <= counters["env_steps"]
        assert counters["updates"] == workers.policy.version
        assert abs(buffer.samples - 2.0 * (buffer.inserts - 50)) <= buffer.limiter.slack
        assert result["ratio"] == pytest.approx(2.0, rel=0.5)


@pytest.mark.parametrize(
    "settings", [{"double": False}, {"dueling": False}, {"n_step": 1}, {"tau": 0.01, "target_every": 1}]
)
def test_its_variants_run(settings: dict[str, Any]) -> None:
    results, _ = final("dqn", 4, **settings)
    assert np.isfinite(results[-1]["loss"])


def test_the_plan_says_what_it_does() -> None:
    workers, plan = make("dqn")
    text = plan.explain()
    for name in (
        "store:",
        "train:",
        "NStep(n=3",
        "Replay(",
        "TrainOneStep",
        "Concurrently(round_robin 1:*",
    ):
        assert name in text
    assert "dqn.py:" in text
    workers.close()


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        ("dqn", "DQN"),
        ("c51", "C51"),
        ("qrdqn", "QR-DQN"),
        ("rainbow", "Rainbow"),
        ("r2d2", "R2D2"),
        ("apex_dqn", "Ape-X"),
        ("sqil", "soft Q-learning"),
        ("dqfd", "DQfD"),
    ],
)
def test_actions_that_it_cannot_take_are_refused_in_its_own_name(plan: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} chooses among discrete actions"):
        make(plan, env="Pendulum-v1")

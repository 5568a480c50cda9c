"""Fitting a model to a buffer and imagining with it: what flows, when, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl import operators as ops
from flowrl.data import Batch, ReplayBuffer
from flowrl.data.columns import TRANSITION
from flowrl.engine.protocols import BLOCKED
from flowrl.errors import ConfigError, PlanError
from flowrl.models import Dynamics
from flowrl.operators.models import AllRows, Imagined
from flowrl.plans import MBPO
from flowrl.policies import SACPolicy
from flowrl.rollout import WorkerSet
from tests.plans.small import SMALL

LINE = spaces.Box(-np.inf, np.inf, (3,), np.float32)


class Clock(Dynamics):
    """Observations count steps, each step is worth its observation, and episodes end at 3."""

    def imagine(self, obs: Any, action: Any, normal: Any, elite: Any) -> tuple[Any, Any, Any]:
        assert len(obs) == len(action) == len(normal) == len(elite)
        assert np.isin(elite, [0, 1]).all()
        return obs[:, 0], obs + np.float32(1), obs[:, 0] + 1 >= 3


@pytest.fixture
def workers() -> Iterator[WorkerSet]:
    with WorkerSet("Pendulum-v1", lambda *found: SACPolicy(*found, hidden=(4,), device="cpu")) as made:
        yield made


def clock(fitted: bool = True) -> Clock:
    model = Clock(LINE, spaces.Box(-1, 1, (1,)), elites=2, device="cpu")
    model.elites = [3, 1] if fitted else []
    return model


def real(*numbers: int) -> ReplayBuffer:
    """A buffer of rows that begin at these numbers."""
    buffer = ReplayBuffer(100, gamma=0.5, seed=0)
    obs = np.repeat(np.array(numbers, np.float32)[:, None], 3, 1)
    none, zero = np.zeros(len(numbers), bool), np.zeros(len(numbers))
    action = np.zeros((len(numbers), 1), np.float32)
    buffer.add(Batch(dict(zip(TRANSITION, (obs, action, zero, obs + 1, none, none)))))
    return buffer


def test_branches_end_where_the_model_ends_them_or_at_the_horizon(workers: WorkerSet) -> None:
    """Z2: from real states; no row after an end, none beyond the horizon, none truncated; then T6: the discount."""
    imagine = Imagined(workers, clock(), real(0, 1, 2, -5), branches=40, horizon=4)
    rows = imagine.pull()
    at = rows.obs[:, 0].astype(int)
    begun = at[:40]
    assert set(begun) == {0, 1, 2, -5}
    expected: list[int] = []
    going = begun.tolist()
    for _ in range(4):
        expected += going
        going = [number + 1 for number in going if number + 1 < 3]
    assert at.tolist() == expected
    np.testing.assert_array_equal(rows.next_obs, rows.obs + 1)
    np.testing.assert_array_equal(rows.reward, at)
    np.testing.assert_array_equal(rows.terminated, at + 1 == 3)
    assert not rows.truncated.any()
    imagined = ReplayBuffer(500, gamma=0.5, seed=0)
    imagined.add(rows)
    drawn = imagined.sample(200)
    np.testing.assert_array_equal(drawn.discount, np.where(drawn.obs[:, 0] == 2, 0, 0.5))


def test_imagined_rows_look_like_real_ones(workers: WorkerSet) -> None:
    """Z2: the same names, dtypes and shapes, so that a mixture takes both; they count as imagined, never as steps."""
    buffer = real(0, 1)
    imagine = Imagined(workers, clock(), buffer, branches=5, horizon=2)
    rows, held = imagine.pull(), buffer[:]
    assert list(rows) == list(TRANSITION)
    for name in TRANSITION:
        assert (rows[name].dtype, rows[name].shape[1:]) == (held[name].dtype, held[name].shape[1:])
    assert imagine.context.counters == {"imagined": len(rows)}
    assert buffer.samples == 0  # Z3


def test_nothing_is_imagined_before_the_first_fit(workers: WorkerSet) -> None:
    """Z3: and the reason is said."""
    imagine = Imagined(workers, clock(fitted=False), real(0), branches=5, horizon=2)
    assert imagine.pull() is BLOCKED
    assert "is fitted" in imagine.why()


def test_all_rows_each_time_that_some_were_added() -> None:
    """Z3: first as many as are asked for; none is counted as drawn."""
    buffer = real(0, 1, 2)
    source = AllRows(buffer, every=2, first=4)
    assert source.pull() is BLOCKED
    assert source.why() == "waits for rows: 3 of 4 stored"
    counts = []
    for number in range(5):
        buffer.add(real(number)[:])
        while (rows := source.pull()) is not BLOCKED:
            counts.append(len(rows))
    assert counts == [4, 6, 8]
    assert buffer.samples == 0


def test_what_does_not_fit_is_refused(workers: WorkerSet) -> None:
    buffer, model = real(0), clock()
    with pytest.raises(PlanError, match="needs a model of the dynamics"):
        ops.FitModel(None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="reads rows of a ReplayBuffer"):
        ops.ImaginedRollouts(workers, model, [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="horizon"):
        ops.ImaginedRollouts(workers, model, buffer, horizon=0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"horizon": 0}, "horizon=0: .* must be > 0"),
        ({"model_elites": 4}, r"elites is 4, expected 1 \.\. 3"),
        ({"real_fraction": 1.0}, "real_fraction=1"),
        ({"env": "FrozenLake-v1"}, "predicts observations that are a Box of floats"),
        ({"imagined_size": 10}, "imagined_size is 10"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_settings_of_the_plan_that_cannot_work(settings: dict[str, Any], said: str) -> None:
    """E1: one line, before anything acts."""
    with pytest.raises((ConfigError, PlanError), match=said):
        MBPO(**{**SMALL["mbpo"], **settings})

"""From step times to a manager."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from flowrl.envs import EnvFactory
from flowrl.tools.doctor import Times, probe, suggest
from flowrl.tools.doctor.probe import Probe, measured
from tests.clock_envs import ClockEnv
from tests.timed_envs import heavy_tailed


def times(steps: float | np.ndarray, waiting: float, **other: float) -> Times:
    return Times(np.atleast_1d(steps), np.array([other.get("reset", 0.0)]), other.get("episode"), waiting)


@pytest.mark.parametrize(
    ("measured", "kind", "args"),
    [
        (times(1e-5, 0.0), "local", {}),
        (times(1e-2, 0.0), "subprocess", {"envs_per_process": 4}),
        (times(1e-3, 1.0), "subprocess", {"envs_per_process": 1}),
        (times(heavy_tailed(0), 1.0), "async", {}),
    ],
)
def test_a_manager_follows_from_step_times(measured: Times, kind: str, args: dict[str, int]) -> None:
    """Short steps stay here; work is shared by the cores; waiting is done by all at once; tails by whoever has them."""
    found = suggest(measured, num_envs=8, cores=2)
    assert (found.env_manager, found.env_manager_args) == (kind, args)
    assert found.expected[kind] >= 0.8 * max(found.expected.values()), "the simplest of those that are nearly as fast"
    assert found.reason


def test_one_core_and_one_environment_gain_nothing_from_processes() -> None:
    assert suggest(times(1e-2, 0.0), num_envs=8, cores=1).env_manager == "local"
    assert suggest(times(1e-2, 1.0), num_envs=1, cores=8).env_manager == "local"


def test_an_implementation_of_its_own_is_the_fastest() -> None:
    native = Times(np.array([4e-5]), np.zeros(1), None, 0.0, num_envs=8)
    found = suggest(times(1e-5, 0.0), num_envs=8, cores=2, native=native)
    assert found.env_manager == "vector"
    assert found.expected["vector"] == pytest.approx(8 / 4e-5)


def test_slow_resets_count() -> None:
    """A reset of 1 s every 10 steps is a step of 0.1 s more."""
    measured = times(1e-5, 0.0, reset=1.0, episode=10)
    assert measured.mean == pytest.approx(0.1, rel=1e-3)
    assert suggest(measured, num_envs=8, cores=4).env_manager == "subprocess"


def test_the_slowest_of_some() -> None:
    """Against the sum over all pairs."""
    assert times(0.5, 0.0).slowest(8, 3) == pytest.approx(1.5)
    steps = np.array([1.0, 2.0, 5.0])
    expected = np.mean([max(a, b) for a in steps for b in steps])
    assert times(steps, 0.0).slowest(2) == pytest.approx(expected, rel=0.05)


class TimedEnv(ClockEnv):
    """Its steps take 10 ms of a clock of its own: 5 ms of work, then 5 ms of work, waiting, or of other processes."""

    def __init__(self, clock: dict[str, float], rest: str) -> None:
        super().__init__(0, [(4, "terminated")])
        self.times, self.rest = clock, rest

    def step(self, action: Any) -> Any:
        self.times["passed"] += 10e-3
        for name in ("worked", self.rest):
            self.times[name] += 5e-3
        return super().step(action)


@pytest.mark.parametrize(
    ("rest", "seconds", "waiting"), [("worked", 10e-3, 0.0), ("waited", 10e-3, 0.5), ("queued", 5e-3, 0.0)]
)
def test_waiting_is_told_from_working(
    rest: str, seconds: float, waiting: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other processes do meanwhile does not count."""
    clock = dict.fromkeys(("passed", "worked", "waited", "queued"), 0.0)
    for function, name in (("perf_counter", "passed"), ("process_time", "worked"), ("_queued", "queued")):
        monkeypatch.setattr(probe, function, partial(clock.__getitem__, name))
    factory = EnvFactory(lambda: TimedEnv(clock, rest))  # a partial would copy the clock (R1)
    found = measured(Probe(factory, steps=10, seconds=1).episodes(factory()))
    assert found.steps.tolist() == pytest.approx([seconds] * 10)
    assert (found.episode, found.resets.tolist()) == (10 / 3, [0.0] * 3)
    assert found.waiting == pytest.approx(waiting)

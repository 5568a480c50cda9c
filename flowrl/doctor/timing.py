"""How long steps and resets take, and how much of that is waiting."""

from __future__ import annotations

import copy
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from flowrl.doctor.findings import Times
from flowrl.doctor.patient import Patient

#: Steps before the clock counts.
WARM_UP = 20


class _Clock:
    """Times calls; what other processes kept from this one is not counted, where the system tells."""

    def __init__(self) -> None:
        self._seconds = self._worked = 0.0

    def __call__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
        """What the call gave, and its seconds."""
        queued, worked, begun = _queued(), process_time(), perf_counter()
        found = call(*args, **kwargs)
        seconds, worked = perf_counter() - begun, process_time() - worked
        seconds = max(seconds - (_queued() - queued), worked)
        self._seconds, self._worked = self._seconds + seconds, self._worked + worked
        return found, seconds

    @property
    def waiting(self) -> float:
        """The share of all time in which no processor was used."""
        return max(0.0, 1 - self._worked / self._seconds)


def measure(patient: Patient) -> Times:
    """Steps a single environment with random actions."""
    env, clock = patient.env, _Clock()
    actions = copy.deepcopy(env.action_space)
    actions.seed(0)
    steps, resets = list[float](), list[float]()
    over, until = True, perf_counter() + patient.seconds
    while len(steps) < patient.steps + WARM_UP and (perf_counter() < until or len(steps) < 2):
        if over:
            resets.append(clock(env.reset, seed=len(resets))[1])
        (_, _, terminated, truncated, _), seconds = clock(env.step, actions.sample())
        steps.append(seconds)
        over = bool(terminated or truncated)
    return Times(
        steps=np.array(steps[WARM_UP:] or steps),
        resets=np.array(resets),
        episode=len(steps) / len(resets) if over or len(resets) > 1 else None,
        waiting=clock.waiting,
    )


def measure_vector(env: VectorEnv[Any, Any, Any], steps: int, seconds: float) -> Times:
    """Steps a vector environment with random actions."""
    env.action_space.seed(0)
    clock = _Clock()
    _, reset = clock(env.reset, seed=0)
    times, until = list[float](), perf_counter() + seconds
    while len(times) < steps + WARM_UP and (perf_counter() < until or len(times) < 2):
        times.append(clock(env.step, env.action_space.sample())[1])
    return Times(
        steps=np.array(times[WARM_UP:] or times),
        resets=np.array([reset]),
        episode=None,
        waiting=clock.waiting,
        num_envs=env.num_envs,
    )


def _queued() -> float:
    """Seconds that this process could have run and others did, as Linux counts them."""
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0

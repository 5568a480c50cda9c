"""How long steps and resets take, and how much of that is waiting."""

from __future__ import annotations

import copy
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np
from gymnasium.spaces import Dict
from gymnasium.vector import VectorEnv

from flowrl.cli.doctor.findings import Times
from flowrl.cli.doctor.patient import Patient
from flowrl.envs.masks import valid_sample
from flowrl.envs.spaces import row_of

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
            (obs, _), seconds = clock(env.reset, seed=len(resets))
            resets.append(seconds)
        (obs, _, terminated, truncated, _), seconds = clock(env.step, valid_sample(actions, obs))
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
    (obs, _), reset = clock(env.reset, seed=0)
    times, until = list[float](), perf_counter() + seconds
    while len(times) < steps + WARM_UP and (perf_counter() < until or len(times) < 2):
        (obs, *_), seconds_of_step = clock(env.step, _sampled(env, obs))
        times.append(seconds_of_step)
    return Times(
        steps=np.array(times[WARM_UP:] or times),
        resets=np.array([reset]),
        episode=None,
        waiting=clock.waiting,
        num_envs=env.num_envs,
    )


def _sampled(env: VectorEnv[Any, Any, Any], obs: Any) -> Any:
    if not isinstance(env.single_observation_space, Dict):
        return env.action_space.sample()
    rows = (row_of(obs, env_id) for env_id in range(env.num_envs))
    return np.stack([valid_sample(env.single_action_space, row) for row in rows])


def _queued() -> float:
    """Seconds that this process could have run and others did, as Linux counts them."""
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0

"""How long steps and resets take, and how much of that is waiting."""

from __future__ import annotations

import copy
from time import perf_counter, process_time
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from flowrl.doctor.findings import Times
from flowrl.doctor.patient import Patient

#: Steps before the clock counts.
WARM_UP = 20


def measure(patient: Patient) -> Times:
    """Steps a single environment with random actions."""
    env = patient.env
    actions = copy.deepcopy(env.action_space)
    actions.seed(0)
    steps, resets = list[float](), list[float]()
    seed, over, until = 0, True, perf_counter() + patient.seconds
    wall = cpu = 0.0
    while len(steps) < patient.steps + WARM_UP and (perf_counter() < until or len(steps) < 2):
        begun, begun_cpu = perf_counter(), _worked()
        if over:
            env.reset(seed=seed)
            seed += 1
            resets.append(perf_counter() - begun)
        action = actions.sample()
        before = perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        now = perf_counter()
        over = bool(terminated or truncated)
        steps.append(now - before)
        wall, cpu = wall + now - begun, cpu + _worked() - begun_cpu
    return Times(
        steps=np.array(steps[WARM_UP:] or steps),
        resets=np.array(resets),
        episode=len(steps) / seed if over or seed > 1 else None,
        waiting=max(0.0, 1 - cpu / wall),
    )


def measure_vector(env: VectorEnv[Any, Any, Any], steps: int, seconds: float) -> Times:
    """Steps a vector environment with random actions."""
    env.action_space.seed(0)
    begun = perf_counter()
    env.reset(seed=0)
    reset = perf_counter() - begun
    times, until = list[float](), perf_counter() + seconds
    wall, cpu = perf_counter(), _worked()
    while len(times) < steps + WARM_UP and (perf_counter() < until or len(times) < 2):
        actions = env.action_space.sample()
        before = perf_counter()
        env.step(actions)
        times.append(perf_counter() - before)
    return Times(
        steps=np.array(times[WARM_UP:] or times),
        resets=np.array([reset]),
        episode=None,
        waiting=max(0.0, 1 - (_worked() - cpu) / (perf_counter() - wall)),
        num_envs=env.num_envs,
    )


def _worked() -> float:
    """Seconds that this process used a processor or, where the system tells, waited for others to leave one."""
    try:
        with open("/proc/self/schedstat") as file:
            return process_time() + int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return process_time()

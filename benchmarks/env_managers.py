"""How fast do environments step, beside the vector environments of other libraries?

8 environments, fixed random actions, no policy. Each row is one kind of environment: CartPole-v1; one that sleeps 1 ms;
step times with a heavy tail (lognormal, mean 1 ms, sigma 1.5), sleeping and working. Each row begins with what
`flowrl doctor` suggests for it. Ratios above 1 mean that flowrl is faster, in the same rounds.

    PYTHONPATH=. python benchmarks/env_managers.py [--rounds 11] [--scale 1] [--rows cartpole sleep tail busy]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import gymnasium
import numpy as np
from common import Pair, Row, compare, installed, interleaved, print_machine
from env_manager_peers import ACTIONS, Factories, Gymnasium, GymnasiumNative, StableBaselines3, Tianshou

from flowrl import envs
from flowrl.tools.doctor import diagnose
from tests.timed_envs import TimedEnv, heavy_tailed

ENVS = ACTIONS.shape[1]
SYNC, ASYNC = gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv


class Flowrl:
    """A manager, stepped as a rollout worker steps it."""

    def __init__(self, manager: str, environments: Any, **options: Any) -> None:
        self.manager: envs.Manager = getattr(envs, manager)(environments, **options)
        self.manager.launch(seed=0)
        self.close = self.manager.close

    def __call__(self, steps: int) -> None:
        manager = self.manager
        taken = turn = 0
        while taken < steps:
            acted = manager.step(ACTIONS[turn % len(ACTIONS)]).acted
            taken, turn = taken + (ENVS if acted is None else int(np.count_nonzero(acted))), turn + 1
        manager.drain()


class FlowrlNative(Flowrl):
    """A native vector environment; rows that only reset count as steps."""

    def __init__(self, env: str) -> None:
        super().__init__("VectorEnvManager", gymnasium.make_vec(env, ENVS, "vector_entry_point"))

    def __call__(self, steps: int) -> None:
        for turn in range(-(-steps // ENVS)):
            self.manager.step(ACTIONS[turn % len(ACTIONS)])
        self.manager.drain()


@attrs.frozen
class Case:
    """One kind of environment, what the doctor is shown of it, who steps it, and which two are compared: the aim."""

    about: str
    examined: Any
    steps: int
    factories: Factories
    contestants: dict[str, Callable[[Factories], Any]]
    compared: list[Pair]


def made(factories: Factories) -> list[Any]:
    return [factory() for factory in factories]


PROCESSES: dict[str, Callable[[Factories], Any]] = {
    "gymnasium Async": partial(Gymnasium, kind=ASYNC, shared_memory=True),
    "SB3 Subproc": StableBaselines3,
    "Tianshou Shmem": Tianshou,
}
ONE_EACH = {"subprocess envs_per_process=1": partial(Flowrl, "SubprocessEnvManager", envs_per_process=1)}
THREADS = {"thread": partial(Flowrl, "ThreadEnvManager")}
ANSWERS = {
    "Tianshou Shmem wait_num=1": partial(Tianshou, wait_num=1),
    "Tianshou Shmem wait_num=4": partial(Tianshou, wait_num=4),
    "async": partial(Flowrl, "AsyncSubprocessEnvManager"),
}

CASES = {
    "cartpole": Case(
        "CartPole-v1",
        "CartPole-v1",
        16_000,
        [lambda: gymnasium.make("CartPole-v1", disable_env_checker=True)] * ENVS,
        {
            "gymnasium Sync": partial(Gymnasium, kind=SYNC),
            "local": lambda factories: Flowrl("EnvManager", made(factories)),
            "gymnasium native": lambda _: GymnasiumNative("CartPole-v1"),
            "vector": lambda _: FlowrlNative("CartPole-v1"),
            **PROCESSES,
            "subprocess": partial(Flowrl, "SubprocessEnvManager"),
        },
        [
            Pair("local", "gymnasium Sync", 1.0),
            Pair("vector", "gymnasium native", 1.0),
            Pair("subprocess", "gymnasium Async", 2.5),
            Pair("subprocess", "SB3 Subproc", 1.0),
            Pair("subprocess", "Tianshou Shmem", 1.0),
        ],
    ),
    "sleep": Case(
        "sleeps 1 ms",
        partial(TimedEnv, 1e-3),
        1_600,
        [partial(TimedEnv, 1e-3)] * ENVS,
        {**PROCESSES, **ONE_EACH, **THREADS},
        [
            Pair("subprocess envs_per_process=1", "gymnasium Async", 1.0),
            Pair("thread", "gymnasium Async", 1.0),
            Pair("subprocess envs_per_process=1", "SB3 Subproc", 1.0),
            Pair("subprocess envs_per_process=1", "Tianshou Shmem", 1.0),
        ],
    ),
    "tail": Case(
        "heavy-tailed, sleeps",
        partial(TimedEnv, heavy_tailed(0)),
        2_400,
        [partial(TimedEnv, heavy_tailed(index)) for index in range(ENVS)],
        {**PROCESSES, **ONE_EACH, **THREADS, **ANSWERS},
        [
            Pair("async", "gymnasium Async", 1.0),
            Pair("async", "Tianshou Shmem wait_num=1", 1.0),
            Pair("async", "Tianshou Shmem wait_num=4", 1.0),
            Pair("subprocess envs_per_process=1", "gymnasium Async", 1.0),
            Pair("thread", "gymnasium Async", 1.0),
        ],
    ),
    "busy": Case(
        "heavy-tailed, works",
        partial(TimedEnv, heavy_tailed(0), busy=True),
        800,
        [partial(TimedEnv, heavy_tailed(index), busy=True) for index in range(ENVS)],
        {**PROCESSES, **ONE_EACH, **ANSWERS},
        [
            Pair("async", "gymnasium Async", 1.0),
            Pair("async", "Tianshou Shmem wait_num=1", 1.0),
            Pair("async", "Tianshou Shmem wait_num=4", 1.0),
            Pair("subprocess envs_per_process=1", "gymnasium Async", 1.0),
        ],
    ),
}


def measure(case: Case, rounds: int, scale: float) -> list[Row]:
    steps = max(ENVS, int(case.steps * scale))
    print(f"\n{case.about}: {ENVS} environments, {steps} steps in a round, {rounds} rounds")
    suggested = diagnose(case.examined, num_envs=ENVS, steps=steps).suggestion
    assert suggested is not None
    expected = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in suggested.expected.items())
    settings = ", ".join(f"{name}={value}" for name, value in suggested.env_manager_args.items())
    print(f"  flowrl doctor suggests {suggested.env_manager}({settings}); it expects {expected} steps/s", flush=True)
    contestants = installed({name: partial(launch, case.factories) for name, launch in case.contestants.items()})
    try:
        for contestant in contestants.values():
            contestant(ENVS)  # warm up
        seconds = interleaved({name: partial(each, steps) for name, each in contestants.items()}, rounds)
    finally:
        for contestant in contestants.values():
            contestant.close()
    return compare(case.about, {name: taken / steps for name, taken in seconds.items()}, case.compared, "env steps/s")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps in a round")
    parser.add_argument("--rows", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", module="gym")
    print_machine("gymnasium", "stable-baselines3", "tianshou", "numpy")
    return [row for name in options.rows for row in measure(CASES[name], options.rounds, options.scale)]


if __name__ == "__main__":
    main()

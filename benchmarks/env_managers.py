"""How fast do environments step, beside the vector environments of other libraries?

8 environments, fixed random actions, no policy. Each row is one kind of environment: CartPole-v1; one that sleeps 1 ms;
step times with a heavy tail (lognormal, mean 1 ms, sigma 1.5), sleeping and working. Each row begins with what
`flowrl doctor` suggests for it. Ratios above 1 mean that flowrl is faster, in the same rounds.

    PYTHONPATH=. python benchmarks/env_managers.py [--rounds 11] [--scale 1] [--rows cartpole sleep tail busy]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import gymnasium
import numpy as np
from common import interleaved, print_machine, ratio_with_interval
from env_manager_peers import ACTIONS, Factories, Gymnasium, GymnasiumNative, StableBaselines3, Tianshou

from flowrl import envs
from flowrl.cli.doctor import diagnose
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
class Row:
    """One kind of environment, what the doctor is shown of it, who steps it, and which two are compared: the aim."""

    about: str
    examined: Any
    steps: int
    factories: Factories
    contestants: dict[str, Callable[[Factories], Any]]
    compared: list[tuple[str, str, float]]


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

ROWS = {
    "cartpole": Row(
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
            ("local", "gymnasium Sync", 1.0),
            ("vector", "gymnasium native", 1.0),
            ("subprocess", "gymnasium Async", 2.5),
            ("subprocess", "SB3 Subproc", 1.0),
            ("subprocess", "Tianshou Shmem", 1.0),
        ],
    ),
    "sleep": Row(
        "sleeps 1 ms",
        partial(TimedEnv, 1e-3),
        1_600,
        [partial(TimedEnv, 1e-3)] * ENVS,
        {**PROCESSES, **ONE_EACH, **THREADS},
        [
            ("subprocess envs_per_process=1", "gymnasium Async", 1.0),
            ("thread", "gymnasium Async", 1.0),
            ("subprocess envs_per_process=1", "SB3 Subproc", 1.0),
            ("subprocess envs_per_process=1", "Tianshou Shmem", 1.0),
        ],
    ),
    "tail": Row(
        "heavy-tailed, sleeps",
        partial(TimedEnv, heavy_tailed(0)),
        2_400,
        [partial(TimedEnv, heavy_tailed(index)) for index in range(ENVS)],
        {**PROCESSES, **ONE_EACH, **THREADS, **ANSWERS},
        [
            ("async", "gymnasium Async", 1.0),
            ("async", "Tianshou Shmem wait_num=1", 1.0),
            ("async", "Tianshou Shmem wait_num=4", 1.0),
            ("subprocess envs_per_process=1", "gymnasium Async", 1.0),
            ("thread", "gymnasium Async", 1.0),
        ],
    ),
    "busy": Row(
        "heavy-tailed, works",
        partial(TimedEnv, heavy_tailed(0), busy=True),
        800,
        [partial(TimedEnv, heavy_tailed(index), busy=True) for index in range(ENVS)],
        {**PROCESSES, **ONE_EACH, **ANSWERS},
        [
            ("async", "gymnasium Async", 1.0),
            ("async", "Tianshou Shmem wait_num=1", 1.0),
            ("async", "Tianshou Shmem wait_num=4", 1.0),
            ("subprocess envs_per_process=1", "gymnasium Async", 1.0),
        ],
    ),
}


def launched(row: Row) -> dict[str, Any]:
    """The contestants that are here."""
    found: dict[str, Any] = {}
    for name, launch in row.contestants.items():
        try:
            found[name] = launch(row.factories)
        except ImportError as error:
            print(f"  {name}: missing ({error})")
    return found


def measure(row: Row, rounds: int, scale: float) -> None:
    steps = max(ENVS, int(row.steps * scale))
    print(f"\n{row.about}: {ENVS} environments, {steps} steps in a round, {rounds} rounds")
    suggested = diagnose(row.examined, num_envs=ENVS, steps=steps).suggestion
    assert suggested is not None
    expected = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in suggested.expected.items())
    settings = ", ".join(f"{name}={value}" for name, value in suggested.env_manager_args.items())
    print(f"  flowrl doctor suggests {suggested.env_manager}({settings}); it expects {expected} steps/s", flush=True)
    contestants = launched(row)
    try:
        for contestant in contestants.values():
            contestant(ENVS)  # warm up
        seconds = interleaved({name: partial(each, steps) for name, each in contestants.items()}, rounds)
    finally:
        for contestant in contestants.values():
            contestant.close()
    for name, values in seconds.items():
        who = f"flowrl {name}" if isinstance(contestants[name], Flowrl) else name
        rate = steps / values
        print(f"  {who:<36} {np.median(rate):>9,.0f} steps/s   (min {rate.min():,.0f}, max {rate.max():,.0f})")
    for ours, theirs, aim in row.compared:
        if {ours, theirs} <= seconds.keys():
            median, low, high = ratio_with_interval(seconds[theirs], seconds[ours])
            ratio = f"{median:.2f}  (95 % interval {low:.2f} to {high:.2f})"
            print(f"  flowrl {ours} / {theirs}: {ratio}; aim {aim:g}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps in a round")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="gym")
    print_machine("gymnasium", "stable-baselines3", "tianshou", "numpy")
    for name in options.rows:
        measure(ROWS[name], options.rounds, options.scale)


if __name__ == "__main__":
    main()

"""What does the driver do while its workers sleep?

2 workers on Ray are asked for one item each and sleep as long as a round takes. The share of a core
that the driver's process takes meanwhile, beside a driver that waits for the same two answers with Ray alone. Aim:
under 1 % of a core above it.

    python benchmarks/ray_idle.py [--seconds 5] [--rounds 5]
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from time import perf_counter, process_time

import numpy as np
from common import local_ray, print_machine

from flowrl import from_workers, operator
from flowrl.policies import RandomPolicy
from flowrl.rollout import WorkerSet

WORKERS = 2


@operator
class Sleep:
    """Source on a worker whose items take some seconds."""

    seconds: float

    def pull(self) -> int:
        threading.Event().wait(self.seconds)
        return 0


def share(wait: Callable[[], object]) -> tuple[float, float]:
    """Seconds that something takes, and its share of a core in them."""
    start, used = perf_counter(), process_time()
    wait()
    seconds = perf_counter() - start
    return seconds, (process_time() - used) / seconds


def report(name: str, wait: Callable[[], object], rounds: int) -> float:
    measured = [share(wait) for _ in range(rounds)]
    shares = np.array([one for _, one in measured]) * 100
    print(
        f"{name:<12}{np.median(shares):>7.2f} % of a core   (min {shares.min():.2f}, max {shares.max():.2f}; "
        f"{np.median([seconds for seconds, _ in measured]):.1f} s a round)",
        flush=True,
    )
    return float(np.median(shares))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print_machine("ray", "torch")
    with local_ray(2 * WORKERS):
        import ray

        with WorkerSet("CartPole-v1", RandomPolicy, num_workers=WORKERS, envs_per_worker=1) as workers:
            sleeper = ray.remote(Sleep)
            others = [sleeper.remote(options.seconds) for _ in range(WORKERS)]
            ray.get([other.__ray_ready__.remote() for other in others])
            with from_workers(workers, Sleep(options.seconds)).gather_sync().run() as run:
                # A round of items is asked for when the last one has been taken.
                ours = report("flowrl", lambda: [next(run) for _ in range(WORKERS)], options.rounds)
                woken = run.wakeups / (options.rounds * WORKERS)
            bare = report("Ray alone", lambda: ray.get([other.pull.remote() for other in others]), options.rounds)
    print(f"flowrl above Ray alone: {ours - bare:.2f} % of a core; {woken:.1f} wake-ups an item")


if __name__ == "__main__":
    main()

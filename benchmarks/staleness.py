"""What does the age of rows cost in learning, and is its bound kept?

The age of a row is the number of updates between the weights that made it and those that train on it first. The table
sets it: IMPALA in one process asks for so many fragments ahead that all rows are as old as `max_weight_lag` admits, so
runs differ in nothing else. "corrected" learns by V-trace, "naive" as if the learner's own weights had made the rows.
Shown are the return of 100 evaluation episodes at the end, the interquartile mean over seeds with its interval, and the
mean age.

With `--bound`, the bound over Ray: four workers, each slower than the one before it, one learner, a million rows.
Counted are rows that were older than the bound when trained on, and fragments that were dropped.

    python benchmarks/staleness.py [--seeds 5] [--steps 50000] [--lags 0 2 8 32]
    python benchmarks/staleness.py --bound [--rows 1000000] [--lags 0 2 8]
"""

from __future__ import annotations

import argparse
from time import perf_counter, sleep
from typing import Any

import numpy as np
from common import local_ray, print_machine

from flowrl import Plan, operator
from flowrl.data import Batch
from flowrl.engine.context import Context
from flowrl.engine.operator import context
from flowrl.operators import ParallelRollouts, TrainOneStep
from flowrl.plans import IMPALA, impala
from flowrl.policies import IMPALAPolicy
from flowrl.rollout import WorkerSet
from flowrl.tools.statistics import interquartile_mean, interval

WORKERS = 4


class Naive(IMPALA):
    """IMPALA that takes every row for one of the learner's own weights."""

    @staticmethod
    def execution_plan(workers: WorkerSet, config: impala.Config) -> Plan:
        """See `Trainer.execution_plan`."""
        policy: Any = workers.policy

        def as_own(batch: Batch) -> Batch:
            rows = batch.flat()
            own = policy.learn_mode.logp_of(Batch(obs=rows["obs"], action=rows["action"]))
            return batch.replace(logp=own.reshape(batch["logp"].shape))

        return impala.execution_plan(workers, config).insert_before("TrainOneStep", as_own)


def learned(kind: type[IMPALA], lag: int, seed: int, steps: int) -> tuple[float, float]:
    """The return at the end, and the mean age of the rows."""
    ages: list[float] = []
    asked = {"in_flight": lag + 1, "max_weight_lag": lag}
    with kind(env="CartPole-v1", seed=seed, eval_every=0, schedule_steps=steps, **asked) as trainer:
        result: dict[str, Any] = {}
        while result.get("env_steps", 0) < steps:
            result = trainer.train()
            ages.append(result["policy_lag"])
        return trainer.evaluate(100)["return_mean"], float(np.mean(ages))


def table(options: argparse.Namespace) -> None:
    """Print what age costs."""
    print(f"{'age':>5}  {'':<10}{'return':>8}  {'95 % interval':<17}{'mean age':>9}")
    for lag in options.lags or (0, 2, 8, 32):
        for name, kind in (("corrected", IMPALA), ("naive", Naive)):
            found = np.array([learned(kind, lag, seed, options.steps) for seed in range(options.seeds)])
            low, high = interval([found[:, 0]])
            mean = interquartile_mean(found[:, 0])
            print(
                f"{lag:>5}  {name:<10}{mean:>8.1f}  {low:>6.1f} .. {high:<6.1f}{found[:, 1].mean():>9.2f}", flush=True
            )


@operator
class Slower:
    """Each worker takes 5 ms more for a fragment than the one before it."""

    context: Context = context()

    def __call__(self, batch: Batch) -> Batch:
        sleep(0.005 * self.context.worker.index)
        return batch


def bound(options: argparse.Namespace) -> None:
    """Print whether the bound is kept."""
    print(f"{'bound':>6}{'rows':>11}{'too old':>9}{'oldest':>8}{'dropped':>9}{'mean age':>10}{'rows/s':>9}")
    with local_ray(WORKERS):
        for lag in [*(options.lags or (0, 2, 8)), None]:
            print(measured(lag, options.rows), flush=True)


def measured(lag: int | None, goal: int) -> str:
    """A line of the table of bounds."""
    ages = np.zeros(1_000, np.int64)
    with WorkerSet("CartPole-v1", IMPALAPolicy, num_workers=WORKERS, envs_per_worker=32, seed=0) as workers:

        def count(batch: Batch) -> Batch:
            np.add.at(ages, workers.policy.version - batch["policy_version"].ravel(), 1)
            return batch

        fragments = ParallelRollouts(workers, "raw", steps=32).for_each(Slower())
        batches = fragments.gather_async(in_flight=4, max_weight_lag=lag, pace=(1, 1)).for_each(count)
        with batches.for_each(TrainOneStep(workers)).run(seed=0) as run:
            start = perf_counter()
            while run.counters.get("env_steps", 0) < goal:
                next(run)
            seconds, dropped = perf_counter() - start, run.counters.get("discarded_items", 0)
    rows, oldest = int(ages.sum()), int(np.flatnonzero(ages).max())
    too_old = 0 if lag is None else int(ages[lag + 1 :].sum())
    mean = ages @ np.arange(len(ages)) / rows
    name = "none" if lag is None else lag
    return f"{name:>6}{rows:>11,}{too_old:>9,}{oldest:>8}{dropped:>9}{mean:>10.2f}{rows / seconds:>9,.0f}"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--lags", type=int, nargs="*")
    parser.add_argument("--bound", action="store_true")
    options = parser.parse_args()
    print_machine("torch", "numpy", "ray")
    (bound if options.bound else table)(options)


if __name__ == "__main__":
    main()

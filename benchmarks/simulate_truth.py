"""Does `flowrl simulate` foresee the pace of sizes that are there?

Plans of operators that sleep, over workers in threads (see profile_truth.py): each is profiled with one worker, and the
pace foreseen for 2, 4 and 8 is compared with the pace of a run with so many. `--ray` does the same for plans of
flowrl, measured in one process without Ray, with 1, 2 and 3 workers on Ray and environments that wait; their lag too.

    PYTHONPATH=benchmarks:. python benchmarks/simulate_truth.py [--seconds 1.5] [--ray]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import attrs
from common import print_machine
from profile_truth import CASES, Case, measured

from flowrl.runs.config import build_config
from flowrl.tools.simulate import measured as measured_here
from flowrl.tools.simulate import simulate
from flowrl.trainer.plan_file import PlanFile, load_plan_file

#: Cases of profile_truth.py whose workers do all the same.
NAMES = ("sync, workers", "sync, driver", "sync, 2 operators", "async, workers", "async, driver", "workers and learner")
PLANS: dict[str, dict[str, Any]] = {
    "impala": {"env": "autotune_truth:slow", "envs_per_worker": 2, "fragment_steps": 8, "train_batch_size": 16},
    "ppo": {"env": "autotune_truth:slow", "envs_per_worker": 2, "fragment_steps": 16, "num_sgd_iter": 2},
}


def threads(case: Case, seconds: float) -> Iterator[tuple[int, float, float]]:
    """Workers, with the paces foreseen and made, in items per second."""
    profile, _, _ = measured(case, {**case.costs, "workers": 1}, seconds)
    (path,) = [path for path, about in profile.ledger.stages.items() if about.get("part")]
    items = sum(each.calls for each in profile.ledger.accounts if each.stage == path)
    for workers in (2, 4, 8):
        foreseen = items / simulate(profile, workers).profile.seconds
        yield workers, foreseen, measured(case, {**case.costs, "workers": workers}, seconds)[1]


def on_ray(plan_file: PlanFile, settings: dict[str, Any], seconds: float) -> Iterator[tuple[int, float, float]]:
    """The same for a plan, in env steps per second."""
    config = build_config(plan_file.Config, settings)
    profile = measured_here(plan_file, config, seconds)
    for workers in (1, 2, 3):
        there = simulate(profile, workers)
        trained = plan_file.trainer(config=attrs.evolve(config, num_workers=workers, report_every=64))
        with trained:
            trained.train(until={"updates": 8})
            begun, steps = time.perf_counter(), trained.counters["env_steps"]
            lags = []
            while time.perf_counter() < begun + 2 * seconds:
                lags.append(trained.train().get("policy_lag", 0.0))
            made = (trained.counters["env_steps"] - steps) / (time.perf_counter() - begun)
        print(f"    lag foreseen {there.lag or 0:.1f}, made {sum(lags) / len(lags):.1f}")
        yield workers, there.pace, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    print_machine("flowrl-engine")
    errors = []
    cases = {case.name: threads(case, options.seconds) for case in CASES if case.name in NAMES}
    if options.ray:
        cases = {name: on_ray(load_plan_file(name), more, options.seconds) for name, more in PLANS.items()}
    print(f"{'plan':<22} {'workers':>7} {'foreseen':>9} {'made':>9} {'error':>7}")
    for name, rows in cases.items():
        for workers, foreseen, made in rows:
            errors.append(foreseen / made - 1)
            print(f"{name:<22} {workers:>7} {foreseen:>9.1f} {made:>9.1f} {errors[-1]:>+7.0%}", flush=True)
    near = sum(abs(each) <= 0.15 for each in errors)
    print(f"{near} of {len(errors)} paces within 15 %, the worst {max(errors, key=abs):+.0%}")


if __name__ == "__main__":
    main()

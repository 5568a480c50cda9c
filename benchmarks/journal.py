"""What a journal costs: processor seconds of a run with it over those without, and bytes for each item in it.

    python benchmarks/journal.py [PLAN ...] [--pairs 5] [--steps 20000]

A pair is one run without and one with a journal, of the plan with its own settings and four groups of environments in
this process, each after the other; the order alternates. An item is one that left an operator, here or on a worker.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time as clock  # other processes of the machine do not count
from typing import Any

import flowrl.plans
from flowrl.engine.journal import Replay
from flowrl.storage.journal import StoredJournal

PLANS = {"impala": "IMPALA", "appo": "APPO", "apex_dqn": "ApexDQN", "a3c": "A3C", "impala async": "IMPALA"}
#: Environments that answer when they are ready.
ASYNC = {"env_manager": "async", "env_groups": None, "envs_per_worker": 8}


def seconds_of(name: str, steps: int, out: Path, *, journal: bool) -> float:
    """Processor seconds of this process in training, without its first steps."""
    settings: dict[str, Any] = {"envs_per_worker": 16, "env_groups": 4, "eval_every": 0, "report_every": 1_000}
    settings |= {} if name == "apex_dqn" else {"schedule_steps": 2_000 + steps}
    settings |= ASYNC if name.endswith("async") else {}
    with getattr(flowrl.plans, PLANS[name])(**settings, journal=journal, out=out) as trainer:
        trainer.train(env_steps=2_000, progress=False)
        began = clock()
        trainer.train(env_steps=2_000 + steps, progress=False)
        return clock() - began


def measure(name: str, pairs: int, steps: int) -> None:
    """Print a plan's ratio and bytes."""
    ratios, size, items = list[float](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            found = {}
            for journal in (False, True) if pair % 2 else (True, False):
                out = Path(folder, f"{pair}-{journal}")
                found[journal] = seconds_of(name, steps, out, journal=journal)
            ratios.append(found[True] / found[False])
            file = Path(folder, f"{pair}-True", "journal")
            size, items = file.stat().st_size, Replay(StoredJournal.read(file).parts).num_items
    cost = f"{statistics.median(ratios):.3f} (median of {pairs} pairs, {min(ratios):.3f} .. {max(ratios):.3f})"
    print(f"{name:12}  {cost}  {size / items:5.1f} bytes an item, {size:,} bytes for {items:,}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plans", nargs="*", default=list(PLANS), metavar="PLAN")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args(arguments)
    for name in options.plans:
        measure(name, options.pairs, options.steps)


if __name__ == "__main__":
    main()

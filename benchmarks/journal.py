"""What a journal costs: its share of a run's processor seconds, and bytes for each item in it.

    python benchmarks/journal.py [PLAN ...] [--pairs 5] [--steps 20000]

A pair is one run without and one with a journal, of the plan with its own settings and four groups of environments in
this process, each after the other; the order alternates. Their ratio varies by a third where other programs run too, so
the share is also measured where it arises: seconds in the calls that note and write, clocks included. An item is one
that left an operator, here or on a worker.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from time import perf_counter  # reading the clock of a thread takes microseconds
from time import process_time as clock  # other processes of the machine do not count
from typing import Any

import numpy as np
from common import Pair, Row, compare, print_machine

import flowrl.plans
from flowrl.engine.recording.journal import Recording, Replay
from flowrl.engine.recording.noted import JournalTap
from flowrl.storage.journal import JournalFile, StoredJournal

PLANS = {"impala": "IMPALA", "appo": "APPO", "apex_dqn": "ApexDQN", "a3c": "A3C", "impala async": "IMPALA"}
#: Environments that answer when they are ready.
ASYNC = {"env_manager": "async", "env_groups": None, "envs_per_worker": 8}
#: What notes and writes; none calls another one.
CALLS = (
    (JournalTap, "__call__"),
    (Recording, "decide"),
    (Recording, "heard"),
    (Recording, "answer"),
    (JournalFile, "write"),
)
spent = [0.0]
#: Of the speed without the calls, which is measured well, and of that without a journal, which varies too much for one.
AIMS = {"less its calls": 0.98, "without": None}


def timed(kind: type, name: str) -> None:
    """From now on the seconds in a method add up in `spent`."""
    method = getattr(kind, name)

    @wraps(method)
    def call(*args: Any) -> Any:
        began = perf_counter()
        try:
            return method(*args)
        finally:
            spent[0] += perf_counter() - began

    setattr(kind, name, call)


def seconds_of(name: str, steps: int, out: Path, *, journal: bool) -> tuple[float, float]:
    """Processor seconds of this process in training, without its first steps, and what of them is the journal's."""
    settings: dict[str, Any] = {"envs_per_worker": 16, "env_groups": 4, "eval_every": 0, "report_every": 1_000}
    settings |= {} if name == "apex_dqn" else {"schedule_steps": 2_000 + steps}
    settings |= ASYNC if name.endswith("async") else {}
    with getattr(flowrl.plans, PLANS[name])(**settings, journal=journal, out=out) as trainer:
        trainer.train(env_steps=2_000, progress=False)
        began, spent[0] = clock(), 0.0
        trainer.train(env_steps=2_000 + steps, progress=False)
        return clock() - began, spent[0]


def measure(name: str, pairs: int, steps: int) -> list[Row]:
    """Print a plan's share and bytes; return what it costs, without and with the journal."""
    shares, size, items = list[float](), 0, 0
    taken: dict[str, list[float]] = {"with a journal": [], "less its calls": [], "without": []}
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            found = {}
            for journal in (False, True) if pair % 2 else (True, False):
                out = Path(folder, f"{pair}-{journal}")
                found[journal] = seconds_of(name, steps, out, journal=journal)
            seconds, noting = found[True]
            for who, cost in zip(taken, (seconds, seconds - noting, found[False][0])):
                taken[who].append(cost / steps)
            shares.append(noting / seconds)
            file = Path(folder, f"{pair}-True", "journal")
            size, items = file.stat().st_size, Replay(StoredJournal.read(file).parts).num_items
    share = f"{np.median(shares):.2%} ({min(shares):.2%} .. {max(shares):.2%})"
    print(f"{name:12}  {share}  {size / items:.1f} bytes an item, {size:,} for {items:,}")
    costs = {who: np.array(seconds) for who, seconds in taken.items()}
    return compare(
        name, costs, [Pair("with a journal", who, aim, bound=True) for who, aim in AIMS.items()], "env steps/s"
    )


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plans", nargs="*", default=list(PLANS), metavar="PLAN")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args(arguments)
    print_machine("torch")
    for kind, name in CALLS:
        timed(kind, name)
    return [row for name in options.plans for row in measure(name, options.pairs, options.steps)]


if __name__ == "__main__":
    main()

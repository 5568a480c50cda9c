"""Runs the benchmarks of speed, start and memory, and writes their figures as the page docs/performance.md.

Each runs in a process of its own, one after the other, with settings that together take less than an hour. The page
says with which command each repeats, and what is slower or larger than a peer, or misses its aim. Exits with 1 if one
of them failed.

    PYTHONPATH=. python benchmarks/performance.py [NAME ...] [--options "--rounds 2 ..."] [--out docs/performance.md]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib import import_module
from multiprocessing import get_context, set_start_method
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from common import Row, machine

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

PACKAGES = ("numpy", "numba", "torch", "gymnasium", "ray", "stable-baselines3", "tianshou", "cpprb", "torchrl")

HEAD = """# Performance

Figures of speed, start and memory, those that flowrl loses among them. One command measures them, in 24 minutes on this
machine, and writes this page: `PYTHONPATH=. python benchmarks/performance.py`, with the extras `bench`, `compiled` and
`envs`, and mpe2. [Benchmarks](benchmarks.md) has more of them, which answer other questions.

- **Machine.** {machine}. {day}, with a load of {load:.1f} beside the benchmarks. Nothing was measured on a GPU.
- **Ratio.** How many times as fast flowrl is as the other one, or as small: above 1, flowrl is better. Contestants take
  turns; a ratio is the median of such rounds, with its 95 % interval. Both do the same work in one thread of torch,
  unless the benchmark says otherwise.
- **Bound.** Not a library, but the same work without one: a bare loop, or what every library has to do. Nobody gets far
  beyond a ratio of 1 there.
"""


class Measured(NamedTuple):
    """A part of the page: what a benchmark is asked, with which options, in a run for the page."""

    title: str
    name: str
    options: str = ""

    @property
    def command(self) -> str:
        return f"PYTHONPATH=. python benchmarks/{self.name}.py {self.options}".strip()


PARTS = [
    Measured("Start", "start_and_memory", "start"),
    Measured("Memory", "start_and_memory", "memory --rounds 1"),
    Measured("The engine, beside generators and other graphs of operators", "engine_overhead"),
    Measured("A plan, beside a loop written by hand", "loop_overhead"),
    Measured("Acting, beside bare loops", "sampling", "--steps 5000 --rounds 11"),
    Measured("Environments, beside vector environments", "env_managers", "--rounds 5 --scale 0.5"),
    Measured("Games, beside environments with one agent", "games", "--copies 8 --network balancing"),
    Measured("Games, beside RLlib", "games", "--rllib --copies 8 --rounds 7"),
    Measured("Workers on Ray, beside RLlib", "ray_sampling", "--fragments 10 --rounds 7"),
    Measured("Small items from actors, beside Ray alone", "ray_gather", "--seconds 0.5"),
    Measured("Updates, beside other learners and matrix products", "learner", "--rounds 11 --updates 100"),
    Measured("Where the time of an update goes, as shares", "learner", "--parts --rounds 11 --updates 100"),
    Measured("Learning CartPole-v1", "ppo_cartpole", "--quick --seeds 110 111 112 113 114"),
    Measured("Replay buffers", "replay", "--rounds 9 --capacity 200000 --pixels 4000"),
    Measured("Replay by priority", "prioritized", "--rounds 9 --capacity 200000"),
    Measured("Tree search, beside a loop over one tree at a time", "search"),
    Measured("The pause of a checkpoint", "checkpoint_pause", "dqn sac"),
    Measured("What a journal costs", "journal", "impala apex_dqn --pairs 3 --steps 5000"),
]


def rows_of(name: str, options: str) -> list[Row]:
    """What a benchmark finds; to be called in a process of its own."""
    set_start_method(None, force=True)  # how this process was started is not how those of the benchmark are to be
    found: list[Row] = import_module(name).main(shlex.split(options))
    return found


def measured(part: Measured) -> list[Row] | str:
    """The rows of a benchmark, or why there are none."""
    print(f"\n{part.command}", flush=True)
    began = perf_counter()
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        try:
            return process.submit(rows_of, part.name, part.options).result()
        except Exception as error:
            print(f"failed: {error!r}", flush=True)
            return f"{type(error).__name__}: {error}"
        finally:
            print(f"{perf_counter() - began:.0f} s", flush=True)


def processor() -> str:
    """Its name, where Linux knows it."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.processor()


def table(rows: list[Row]) -> Iterator[str]:
    """The lines of a table of those that were measured."""
    yield "| | flowrl | beside | ratio | aim |"
    yield "|---|---|---|---|---|"
    for row in rows:
        kind = "bound: " if row.pair.bound else ""
        aim = "" if row.pair.aim is None else f"{row.pair.aim:g}"
        yield f"| {row.what} | {row.pair.ours}: {row.ours} | {kind}{row.pair.other}: {row.other} | {row} | {aim} |"


def page(found: dict[Measured, list[Row] | str], load: float) -> str:
    """The page in Markdown; `load` is that of the machine before the first benchmark."""
    lines = [HEAD.format(machine=f"{processor()}, {machine(*PACKAGES)}", day=date.today().isoformat(), load=load)]
    rows = [row for each in found.values() if isinstance(each, list) for row in each if not row.missing]
    slower = [row for row in rows if not row.pair.bound and row.ratio < 1]
    missed = [row for row in rows if row not in slower and row.pair.aim is not None and row.ratio < row.pair.aim]
    lines += ["## What flowrl loses", ""]
    lines += [*table(slower), ""] if slower else ["Nothing of what was measured is slower or larger than a peer.", ""]
    if missed:
        lines += ["Not slower than a peer, but short of what was aimed at:", "", *table(missed), ""]
    for part, each in found.items():
        lines += [f"## {part.title}", "", f"`{part.command}`", ""]
        if isinstance(each, str):
            lines += [f"It failed: {each}", ""]
            continue
        lines += [*table([row for row in each if not row.missing]), ""]
        if missing := sorted({row.pair.other for row in each if row.missing}):
            lines += [f"Not installed: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(sorted({p.name for p in PARTS}))}")
    parser.add_argument("--options", help="of the benchmarks that are named, instead of the page's own")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    parts = [part for part in PARTS if not options.names or part.name in options.names]
    if options.options is not None:
        parts = [part._replace(options=options.options) for part in parts]
    found, load = dict[Measured, list[Row] | str](), os.getloadavg()[0]
    for part in parts:
        found[part] = measured(part)
        options.out.write_text(page(found, load))  # so that what is there by then is not lost
    return int(any(isinstance(each, str) for each in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())

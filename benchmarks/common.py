"""Common parts of the benchmarks: machine and versions, interleaved timing, rows of figures with their interval."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Pair(NamedTuple):
    """A contestant of flowrl, and what it is compared with: a peer, or a `bound`, which only does what must be done.

    `aim` is the ratio that was aimed at.
    """

    ours: str
    other: str
    aim: float | None = None
    bound: bool = False


class Row(NamedTuple):
    """A figure of flowrl beside another one.

    `ratio` is how many times as fast flowrl is, or as small: the median of paired rounds, with its 95 % interval. It is
    nan where the peer is not installed.
    """

    what: str
    pair: Pair
    ours: str
    other: str
    ratio: float
    low: float
    high: float

    @property
    def missing(self) -> bool:
        return math.isnan(self.ratio)

    def __str__(self) -> str:
        digits = 3 if 0.9 < self.ratio < 1.1 else 2  # what is near 1 is judged by its third digit
        return f"{self.ratio:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def machine(*packages: str) -> str:
    """The machine and the versions that figures belong to."""
    words = [platform.machine(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    for package in packages:
        try:
            words.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            words.append(f"{package} missing")
    return ", ".join(words)


def print_machine(*packages: str) -> None:
    print(machine(*packages), flush=True)


def installed(makers: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Make the contestants; those whose package is not here are left out, and named."""
    found: dict[str, T] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError as error:
            print(f"{name}: missing ({error})", flush=True)
    return found


def interleaved(
    contestants: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = perf_counter
) -> dict[str, np.ndarray]:
    """Seconds of each contestant in each round; the order within a round turns, so that drift hits all alike."""
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = clock()
            contestants[name]()
            seconds[name].append(clock() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def ratio_with_interval(numerator: np.ndarray, denominator: np.ndarray) -> tuple[float, float, float]:
    """Median of the paired ratios and its 95 % bootstrap interval."""
    finite = np.isfinite(numerator) & np.isfinite(denominator)
    ratios = numerator[finite] / denominator[finite]
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)


def compare(what: str, costs: Mapping[str, np.ndarray], pairs: Iterable[Pair], unit: str) -> list[Row]:
    """Print what each contestant costs, and each pair with its ratio; return the pairs.

    Args:
        costs: Of each contestant, in each round. If `unit` is so much a second, they are seconds for one. Rounds of
            infinite cost count in no ratio.
    """

    def figure(cost: float) -> str:
        value = 1 / cost if unit.endswith("/s") else cost
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

    for name, taken in costs.items():
        best, median, worst = (figure(float(cost)) for cost in (taken.min(), np.median(taken), taken.max()))
        print(f"{what:<20}  {name:<28} {median:>9} {unit}   (best {best}, worst {worst})")
    rows = []
    for pair in pairs:
        if pair.ours not in costs:
            continue
        ours = f"{figure(float(np.median(costs[pair.ours])))} {unit}"
        if pair.other in costs:
            other = f"{figure(float(np.median(costs[pair.other])))} {unit}"
            row = Row(what, pair, ours, other, *ratio_with_interval(costs[pair.other], costs[pair.ours]))
            aimed = "" if pair.aim is None else f"; aim {pair.aim:g}"
            print(f"{what:<20}  {pair.ours} beside {pair.other}: {row}{aimed}")
        else:
            row = Row(what, pair, ours, "", math.nan, math.nan, math.nan)
        rows.append(row)
    print(end="", flush=True)
    return rows


@contextmanager
def local_ray(actors: int, store: int = 200 * 2**20) -> Iterator[None]:
    """A Ray of this machine for so many actors, which is nobody else's and says nothing; ended afterwards.

    `store` is the size of its object store in bytes.
    """
    import logging

    import ray

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address="local", num_cpus=actors, object_store_memory=store, **quiet)
    try:
        yield
    finally:
        ray.shutdown()

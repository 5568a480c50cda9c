"""Common parts of the benchmarks: machine and versions, interleaved timing, ratios with an interval."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

import numpy as np


def print_machine(*packages: str) -> None:
    """The machine and the versions that the figures belong to."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", end="")
    for package in packages:
        try:
            print(f", {package} {version(package)}", end="")
        except PackageNotFoundError:
            print(f", {package} missing", end="")
    print(flush=True)


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
    ratios = numerator / denominator
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)


@contextmanager
def local_ray(actors: int) -> Iterator[None]:
    """A Ray of this machine for so many actors, which is nobody else's and says nothing; ended afterwards."""
    import logging

    import ray

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address="local", num_cpus=actors, object_store_memory=200 * 2**20, **quiet)
    try:
        yield
    finally:
        ray.shutdown()

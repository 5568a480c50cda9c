"""What all tests need, before anything imports ray or torch."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["tests.shards", "tests.tiers"]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # of a job in the background: tests of Ctrl-C need it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small networks only wait for further threads
# What is compiled is kept: every process that a test starts imports it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples of a property: few and always the same ones, but many and fresh ones in the exhaustive tests.
settings.register_profile("quick", max_examples=20, derandomize=True, database=None, deadline=None)
settings.register_profile("exhaustive", max_examples=100, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    exhaustive = "exhaustive" in config.option.markexpr.replace("not exhaustive", "")
    settings.load_profile("exhaustive" if exhaustive else "quick")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests over Ray share one, so they run in one process, one after the other."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    over_ray = any(isinstance(value, str) and value == "ray" for value in values)
    if over_ray or {"ray_cluster", "ray_for_module"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def _ray_at_the_end():
    yield
    from flowrl.actors.ray_backend import end

    end()


def _begin_ray():
    import ray

    if not ray.is_initialized():
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "warning"}
        ray.init(address="local", num_cpus=16, object_store_memory=80 * 2**20, **quiet)


@pytest.fixture
def ray_cluster(_ray_at_the_end):
    """A small Ray for all tests of this process, which never joins one of somebody else's: actors use it as it is."""
    _begin_ray()


@pytest.fixture(scope="module")
def ray_for_module(_ray_at_the_end):
    """The same for what several tests of a module share."""
    _begin_ray()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """What is imported stays, so it is not searched for garbage meanwhile, nor later: many tests collect garbage."""
    gc.disable()
    found = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return found

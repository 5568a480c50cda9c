"""What all tests need, before anything imports ray or torch."""

import os
import signal

import pytest

pytest_plugins = ["tests.shards", "tests.tiers"]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # of a job in the background: tests of Ctrl-C need it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small networks only wait for further threads


@pytest.fixture(scope="session")
def _ray_at_the_end():
    yield
    from flowrl.actors.ray_backend import end

    end()


def _begin_ray():
    import ray

    if not ray.is_initialized():
        settings = {"include_dashboard": False, "log_to_driver": False, "logging_level": "warning"}
        ray.init(address="local", num_cpus=16, object_store_memory=80 * 2**20, **settings)


@pytest.fixture
def ray_cluster(_ray_at_the_end):
    """A small Ray for all tests of this process, which never joins one of somebody else's: actors use it as it is."""
    _begin_ray()


@pytest.fixture(scope="module")
def ray_for_module(_ray_at_the_end):
    """The same for what several tests of a module share."""
    _begin_ray()

"""Several machines: Ray's nodes, each with a raylet of its own, on this one."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import numpy as np
import pytest

from flowrl.data import Batch
from flowrl.errors import ConfigError, WorkerDied
from flowrl.rollout import ray_workers
from flowrl.rollout.actors import Actors, Resources

pytestmark = pytest.mark.slow
SECONDS = 60
SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


class Guest:
    def node(self):
        import ray

        return ray.get_runtime_context().get_node_id()

    def fragment(self):
        return "receipt", Batch(reward=np.ones(50_000))


@pytest.fixture
def cluster():
    """A machine of one core and one of two, which has an arena."""
    import ray
    from ray.cluster_utils import Cluster

    assert not ray.is_initialized(), "these tests need a process without a Ray of its own"
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **SMALL})
    machines.arena = machines.add_node(num_cpus=2, resources={"arena": 1}, **SMALL)
    yield machines
    ray_workers.end()
    machines.shutdown()


def _guests(cluster, count=1, **settings):
    return Actors([Guest] * count, kind="guest", remote=True, address=cluster.address, **settings)


def _ask(worker, method):
    return worker.submit(method).result(SECONDS)


def test_a_machine_may_go(cluster, capfd):
    """F10: they are spread over machines; one that is lost takes what it held, and its actors come again elsewhere."""
    with _guests(cluster, 2) as actors:
        nodes = [_ask(worker, "node") for worker in actors.members]
        assert len(set(nodes)) == 2
        lost = nodes.index(cluster.arena.node_id)
        there, gone = actors.members[1 - lost], actors.members[lost]
        _, kept = there.submit_apart("fragment").result(SECONDS)
        _, item = gone.submit_apart("fragment").result(SECONDS)
        cluster.remove_node(cluster.arena, allow_graceful=False)
        died = gone.submit("node").exception(SECONDS)
        assert type(died) is WorkerDied
        assert died.what == f"guest {lost}"
        with pytest.raises(WorkerDied, match="lost with the machine that held it"):
            item.fetch()
        assert kept.fetch().rows == 50_000
        another = cluster.add_node(num_cpus=2, **SMALL)
        actors.restart(lost, died)
        assert _ask(actors.members[lost], "node") == another.node_id
        assert _ask(there, "node") == nodes[1 - lost]
    assert capfd.readouterr().out == ""  # Ray would print every death


REFUSED = [
    (
        1,
        Resources(cpus=8),
        "guest 0 .. guest 0: 1 x 8 CPU are asked for, the largest machine has 2; there are 3 CPU, 1 ",
    ),
    (3, Resources(cpus=2), "guest 0 .. guest 2: 3 x 2 CPU are asked for, the cluster has 3$"),
    (1, Resources(custom={"tpu": 1}), "1 x 1 tpu are asked for, the largest machine has 0; there are 3 CPU, 1 arena"),
    (2, Resources(cpus=1, custom={"arena": 1}), "2 x 1 arena are asked for, the cluster has 1$"),
]


def test_what_cannot_be_had_is_named(cluster, monkeypatch):
    """At once where it never can; after a deadline where others have it."""
    for count, resources, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            _guests(cluster, count, resources=resources).start()
    monkeypatch.setattr(ray_workers, "START_SECONDS", 2)
    with _guests(cluster, resources=Resources(custom={"arena": 1})):
        with pytest.raises(ConfigError, match=r"guest 0: not there after 2 s; the cluster has 2 CPU, 4.*memory free"):
            _guests(cluster, resources=Resources(custom={"arena": 1})).start()


def test_a_driver_that_is_killed_leaves_the_cluster_as_it_was(cluster):
    """F15: its actors end, the cluster goes on."""
    script = (
        "import os, sys; from flowrl.rollout.actors import Actors\n"
        "actors = Actors([lambda: os], kind='os', remote=True, address=sys.argv[1]); actors.start()\n"
        "print(actors.members[0].submit('getpid').result(60), flush=True); input()"
    )
    words = [sys.executable, "-c", script, cluster.address]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        process = os.pidfd_open(int(driver.stdout.readline()))
        driver.kill()
    assert select.select([process], [], [], SECONDS)[0] == [process]
    os.close(process)
    with _guests(cluster) as actors:
        assert _ask(actors.members[0], "node")

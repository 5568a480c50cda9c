"""Several machines: Ray's nodes, each with a raylet of its own, on this one."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from flowrl.actors import ray_backend
from flowrl.actors.actors import Actors
from flowrl.actors.resources import Resources
from flowrl.data import Batch
from flowrl.errors import ConfigError, WorkerDied

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # Ray leaves its logs open
SECONDS = 60
SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


class Guest:
    def wait(self):
        signal.pause()

    def node(self):
        import ray

        return ray.get_runtime_context().get_node_id()

    def rows(self, batch):
        return batch.rows

    def die(self):
        os._exit(1)

    def fragment(self):
        return "answer", Batch(reward=np.ones(50_000))


@pytest.fixture
def cluster(monkeypatch):
    """A machine of one core and one of two, which has an arena."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # with it what the client's server forks may die, when busy
    ray_backend.end()  # that of other tests
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    head = {"num_cpus": 1, "ray_client_server_port": port, **SMALL}
    machines = Cluster(initialize_head=True, head_node_args=head)
    machines.client_address = f"ray://127.0.0.1:{port}"
    machines.arena = machines.add_node(num_cpus=2, resources={"arena": 1}, **SMALL)
    yield machines
    ray_backend.end()  # nobody may be connected to it any more
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
        busy = gone.submit("wait")
        cluster.remove_node(cluster.arena, allow_graceful=False)
        died = busy.exception(SECONDS)
        assert type(died) is WorkerDied
        assert died.what == f"guest {lost}"
        assert type(gone.submit("node").exception(SECONDS)) is WorkerDied
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
        "guest 0 .. guest 0: 1 x 8 CPU requested, the largest machine has 2; there are 3 CPU",
    ),
    (3, Resources(cpus=2), "guest 0 .. guest 2: 3 x 2 CPU requested, the cluster has 3$"),
    (1, Resources(custom={"tpu": 1}), "1 x 1 tpu requested, the largest machine has 0; there are 3 CPU, 1 arena"),
    (2, Resources(cpus=1, custom={"arena": 1}), "2 x 1 arena requested, the cluster has 1$"),
]


def test_what_cannot_be_had_is_named(cluster, monkeypatch):
    """At once where it never can; after a deadline where others have it."""
    for count, resources, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            _guests(cluster, count, resources=resources).start()
    arena = Resources(custom={"arena": 1})
    with _guests(cluster, resources=arena):
        monkeypatch.setattr(ray_backend, "START_SECONDS", 2)
        with pytest.raises(ConfigError, match=r"guest 0: not started after 2 s; free are 2 CPU, .*memory"):
            _guests(cluster, resources=arena).start()


def test_a_machine_outside_asks_as_one_inside(cluster):
    """By the Ray client: values, references, errors and deaths."""
    with Actors([Guest] * 2, kind="guest", remote=True, address=cluster.client_address) as actors:
        first, second = actors.members
        _, item = first.submit_apart("fragment").result(SECONDS)
        assert item.rows == 50_000
        for batch in (item, actors.put(item.fetch())):
            assert second.submit("rows", batch).result(SECONDS) == 50_000
        assert type(first.submit("rows", 3).exception(SECONDS)) is AttributeError
        assert type(first.submit("die").exception(SECONDS)) is WorkerDied
        with pytest.raises(ConfigError, match="other actors of this process are on a Ray at ray://"):
            _guests(cluster).start()
    with _guests(cluster) as actors:
        assert _ask(actors.members[0], "node")


def test_who_was_on_a_ray_that_ended_does_not_hold_the_next(cluster):
    """Actors that nobody closed are gone with it."""
    forgotten = _guests(cluster)
    forgotten.start()
    ray_backend.end()
    with Actors([Guest], kind="guest", remote=True, address=cluster.client_address) as actors:
        assert _ask(actors.members[0], "node")
    assert forgotten.members
    with _guests(cluster) as actors:
        assert _ask(actors.members[0], "node")


def test_a_driver_that_is_killed_leaves_the_cluster_as_it_was(cluster):
    """F15: its actors end, the cluster goes on."""
    script = (
        "import os, sys; from flowrl.actors.actors import Actors\n"
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

"""The private interfaces of Ray that flowrl uses; where one of these fails, a new Ray has another one."""

import logging
import os
import queue
import subprocess
import threading

import pytest
import ray

from flowrl.actors import ray_backend


def test_a_cluster_says_whether_it_grows(ray_cluster):
    """Without it actors that a growing cluster would find room for are refused, as too large for what it is now."""
    assert ray_backend._grows() is False  # a Ray of this machine does not


def test_a_value_that_is_there_is_told_with_the_error_that_is_in_its_place(ray_cluster):
    """Without it no answer arrives."""
    told = queue.SimpleQueue()
    for function in (lambda: b"an answer", lambda: 1 / 0):
        reference = ray.remote(function).remote()
        ray_backend._when_done(reference, told.put)
        found = told.get(timeout=60)
        assert found == b"an answer" or isinstance(found, ray.exceptions.RayTaskError)


def test_what_a_thread_of_ray_keeps_between_two_values(ray_cluster):
    """Without it Python's state of the thread is made and deleted for each answer, which takes a sixth of the time."""
    told, of_thread = queue.SimpleQueue(), threading.local()

    def tell(_value):
        ray_backend._keep_thread_state()
        of_thread.values = getattr(of_thread, "values", 0) + 1
        told.put((threading.get_ident(), of_thread.values))

    found = []
    for _ in range(3):
        ray_backend._when_done(ray.remote(lambda: b"an answer").remote(), tell)
        found.append(told.get(timeout=60))
    thread, _ = found[0]
    assert found == [(thread, 1), (thread, 2), (thread, 3)]
    assert thread != threading.get_ident()


def test_what_ray_prints_of_deaths_goes_through_one_function(monkeypatch, caplog):
    """Without it Ray prints every death of a worker into what a run shows."""
    assert callable(ray._private.worker.print_to_stdstream)
    monkeypatch.setattr(ray._private.worker, "print_to_stdstream", None)
    ray_backend._silence()
    with caplog.at_level(logging.DEBUG, "flowrl"):
        ray._private.worker.print_to_stdstream({"lines": ["a worker died", "of this"]}, ignore_prefix=False)
    assert caplog.messages == ["Ray: a worker died of this"]


def test_ray_knows_the_processes_that_it_has_started(ray_cluster):
    """Without it the end of a run does not wait until the processes of its Ray are gone."""
    assert ray_backend._started()
    assert all(process.poll() is None for process in ray_backend._started())


@pytest.mark.parametrize(("at", "told"), [("local", True), (None, False)])
def test_the_death_of_the_raylet_is_told_unless_it_was_ended(at, told, monkeypatch, capfd):
    """F9: by a thread, since Ray ends the process without a word."""
    monkeypatch.setattr(ray_backend.Cluster, "_at", at)
    with subprocess.Popen(["sleep", "75"]) as raylet:
        file = os.pidfd_open(raylet.pid)
        raylet.kill()
        ray_backend._tell_of_death(file)
    assert ("goes on from its newest checkpoint" in capfd.readouterr().err) == told

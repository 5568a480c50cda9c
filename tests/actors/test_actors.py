"""Actors: objects as workers, here and on Ray, with one meaning."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading

import numpy as np
import pytest

from flowrl.actors import actor_process
from flowrl.actors.actors import Actors
from flowrl.actors.resources import Resources
from flowrl.data import Batch
from flowrl.engine.workers.remote import Remote
from flowrl.errors import ConfigError, PlanError, WorkerDied

SECONDS = 60


class Account:
    """Something to ask."""

    def __init__(self, balance=0):
        self.balance = balance

    def add(self, amount):
        self.balance += amount
        return self.balance

    def total(self, batch):
        return float(batch.reward.sum())

    def fragment(self, rows):
        return {"rows": rows}, Batch(reward=np.ones(rows))

    def fail(self):
        raise Overdrawn("by 3") from KeyError("cause")

    def odd(self):
        error = ValueError("holds a lock")
        error.lock = threading.Lock()
        raise error

    def leave(self):
        sys.exit("no licence")

    def warn(self, text):
        logging.getLogger("flowrl").warning("%s now", text)

    def say(self, *lines):
        print(*lines, sep="\n")

    def heavy(self):
        return Heavy()

    def process(self):
        return os.getpid()

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def wait(self):
        signal.pause()


class Heavy:
    """Takes 7 s to pickle and 3 s to unpickle, by the clock that times answers."""

    def __reduce__(self):
        _pass(7)
        return _pass, (3,)


def _pass(seconds):
    before = actor_process.clock
    actor_process.clock = lambda: before() + seconds


class Overdrawn(Exception):
    """An error of the user's."""


@pytest.fixture(params=["here", pytest.param("ray", marks=pytest.mark.slow)])
def remote(request):
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param == "ray"


def _ask(worker, method, *args):
    return worker.submit(method, *args).result(SECONDS)


def _some(count=1, **settings):
    return Actors([Account] * count, kind="account", remote=True, **settings)


@pytest.mark.parametrize("remote", ["here", "ray"], indirect=True)
def test_each_is_asked_on_its_own_and_in_order(remote):
    with Actors([Account, lambda: Account(10)], kind="account", remote=remote) as actors:
        first, second = actors.members
        assert [f.result(SECONDS) for f in [first.submit("add", n) for n in (1, 2, 3)]] == [1, 3, 6]
        assert _ask(second, "add", 1) == 11
        assert (_ask(first, "process") != os.getpid()) == remote
    assert actors.members == []


def test_a_request_like_the_one_before_is_repeated(ray_cluster):
    """F2: the same one, also if garbage collection sends another one meanwhile, as it closes an abandoned run."""
    with _some() as actors:
        worker = actors.members[0]
        assert [_ask(worker, "add", n) for n in (1, 1, 2, 1, 1)] == [1, 2, 4, 5, 6]
        (do, ask, again), others = worker._calls
        meanwhile = []

        class Again:
            @staticmethod
            def remote():
                meanwhile.append(worker.submit("add", 100))
                return again.remote()

        worker._calls = (do, ask, Again), others
        assert [_ask(worker, "add", n) for n in (1, 1, 2)] == [107, 208, 210]
        assert [future.result(SECONDS) for future in meanwhile] == [106, 207]


def test_a_value_is_put_once_and_given_to_many(remote):
    with Actors([Account] * 2, kind="account", remote=remote) as actors:
        batch = actors.put(Batch(reward=np.ones(40_000)))
        assert [_ask(worker, "total", batch) for worker in actors.members] == [40_000] * 2


def test_an_error_arrives_as_itself(remote):
    """F9: type, arguments and a note of where it was raised."""
    with Actors([Account], kind="account", remote=remote) as actors:
        error = actors.members[0].submit("fail").exception(SECONDS)
        assert type(error) is Overdrawn
        assert error.args == ("by 3",)
        if remote:
            (note,) = error.__notes__
            assert note.startswith("raised in account 0, process ")
            assert "raise Overdrawn" in note
            assert "KeyError: 'cause'" in note
        assert _ask(actors.members[0], "add", 1) == 1


def test_one_is_made_again_with_the_others_as_they_were(remote):
    """F10: as often as it may."""
    with Actors([Account] * 2, kind="account", remote=remote, max_restarts=1) as actors:
        for worker in actors.members:
            _ask(worker, "add", 5)
        actors.restart(0)
        assert [_ask(worker, "add", 1) for worker in actors.members] == [1, 6]
        with pytest.raises(WorkerDied, match="account 0 died: it is gone; it was restarted 1 times already"):
            actors.restart(0)


def test_they_come_and_go_and_keep_their_indices(remote):
    with Actors([Account] * 2, kind="account", remote=remote) as actors:
        actors.remove(0)
        assert actors.add(lambda: Account(7)) == 2
        assert actors.members[0] is None
        assert [_ask(worker, "add", 1) for worker in actors.members[1:]] == [1, 8]


def test_one_that_cannot_be_made_says_why(remote):
    with pytest.raises(ZeroDivisionError), Actors([Account, lambda: 1 / 0], kind="account", remote=remote):
        pass


@pytest.mark.slow
def test_what_is_apart_stays_where_it_was_made(ray_cluster):
    """Only the answer travels; as an argument the item arrives as itself."""
    with _some(2) as actors:
        answer, item = actors.members[0].submit_apart("fragment", 50_000).result(SECONDS)
        assert answer == {"rows": 50_000}
        assert isinstance(item, Remote)
        assert (item.rows, item.nbytes) == (50_000, 400_000)
        assert _ask(actors.members[1], "total", item) == 50_000
        assert item.fetch().rows == 50_000
        assert type(actors.members[0].submit_apart("fail").exception(SECONDS)) is Overdrawn


@pytest.mark.parametrize("before", [pytest.param("add", marks=pytest.mark.slow), "wait"])
def test_a_death_is_noticed_whatever_it_was_doing(ray_cluster, before):
    """F10: idle or busy; what is asked of it later fails as well, the other one works on."""
    with _some(2) as actors:
        doomed, other = actors.members
        process = _ask(doomed, "process")
        busy = doomed.submit("wait") if before == "wait" else None
        os.kill(process, signal.SIGKILL)
        for future in [*([busy] if busy else []), doomed.submit("add", 1)]:
            error = future.exception(SECONDS)
            assert type(error) is WorkerDied
            assert str(error) == "account 0 died: its process was killed or crashed"
        assert _ask(other, "add", 1) == 1
        actors.restart(0, error)
        assert _ask(actors.members[0], "process") != process


@pytest.mark.slow
def test_an_item_outlives_the_process_that_made_it(ray_cluster):
    with _some() as actors:
        _, item = actors.members[0].submit_apart("fragment", 50_000).result(SECONDS)
        assert type(actors.members[0].submit("die").exception(SECONDS)) is WorkerDied
        assert item.fetch().rows == 50_000


@pytest.mark.slow
def test_it_is_timed_how_long_an_answer_is_pickled(ray_cluster, monkeypatch):
    """E11: in its own pickle, so nothing is pickled twice; those between two timed ones count like the newest."""
    monkeypatch.setattr(actor_process, "clock", actor_process.clock)  # which the answer changes
    with Actors([Account], kind="account", remote=True) as accounts:
        futures = [accounts.members[0].submit(method) for method in ("heavy", "process", "heavy")]
        for future in futures:
            future.result(SECONDS)
    assert [round(future.pickling) for future in futures] == [10, 0, 10]
    assert futures[2].pickling == futures[0].pickling


def test_an_error_that_cannot_travel_is_told(ray_cluster):
    with _some() as actors, pytest.raises(RuntimeError, match="ValueError: holds a lock"):
        _ask(actors.members[0], "odd")


@pytest.mark.slow
def test_an_exit_is_an_error_and_no_death(ray_cluster):
    """F10: else it would be started again and again, and nobody would learn why."""
    with _some() as actors:
        with pytest.raises(RuntimeError, match="SystemExit: no licence"):
            _ask(actors.members[0], "leave")
        assert _ask(actors.members[0], "add", 1) == 1


def test_an_interrupt_waits_for_ray_to_be_there(monkeypatch):
    """While Ray forks its processes Python would drop it."""
    from flowrl.actors import ray_backend as ray_workers

    done = []

    def init(**_):
        signal.raise_signal(signal.SIGINT)
        done.append(True)

    monkeypatch.setattr(ray_workers.ray, "init", init)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        ray_workers._init("local")
    assert done
    assert signal.getsignal(signal.SIGINT) == before


def test_what_cannot_be_sent_is_named(ray_cluster):
    """Which part of it, and why; before anything is asked."""
    lock = threading.Lock()
    with pytest.raises(PlanError, match="account 0 cannot be sent to another process: variable lock, a lock: cannot p"):
        Actors([lambda: lock], kind="account", remote=True).start()
    with _some() as actors:
        with pytest.raises(PlanError, match=r"the request 'add' to account 0 cannot .*: \[0\]\['a'\], a lock"):
            _ask(actors.members[0], "add", {"a": lock})
        with pytest.raises(PlanError, match=r"a value cannot be sent .*: \['a'\], a lock"):
            actors.put({"a": lock})


@pytest.mark.slow
def test_warnings_come_home(ray_cluster, caplog):
    with _some() as actors:
        _ask(actors.members[0], "warn", "careful")
    assert [record.getMessage() for record in caplog.records] == ["account 0: careful now"]


@pytest.mark.slow
def test_what_is_printed_comes_home_with_the_name_of_who_did(ray_cluster, capsys):
    """Else a tap on a worker would show nothing; here it is printed before the answer is there."""
    with _some() as actors:
        _ask(actors.members[0], "say", "once", "twice")
        assert capsys.readouterr().out == "account 0: once\naccount 0: twice\n"


def test_another_flowrl_is_refused(ray_cluster, monkeypatch):
    monkeypatch.setattr("flowrl._version.__version__", "9.9")
    with pytest.raises(ConfigError, match=r"account 0 on \S+ has flowrl \d\S+, its caller has 9.9: install"):
        _some().start()


@pytest.mark.slow
def test_torch_has_the_threads_it_is_given(ray_cluster):
    with Actors([_torch] * 2, kind="net", remote=True, resources=Resources(threads=2)) as actors:
        assert _ask(actors.members[0], "get_num_threads") == 2


def _torch():
    import torch

    return torch


@pytest.mark.slow
def test_a_ray_of_ours_ends_with_the_last_who_needs_it(monkeypatch):
    """F15: the cores of this machine do not limit it; signals and the environment's variables stay as they were."""
    import ray

    from flowrl.actors.ray_backend import Cluster, end

    end()  # that of other tests
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb._driver_set_trace")  # Ray sets it for good
    before = dict(os.environ)
    heard = signal.signal(signal.SIGTERM, lambda *_: None)
    ours = signal.getsignal(signal.SIGTERM)
    more = Resources(cpus=2 * (os.cpu_count() or 1))
    with _some(resources=more) as first:
        with _some() as second:
            assert _ask(first.members[0], "add", 1) == _ask(second.members[0], "add", 1) == 1
        assert ray.is_initialized()
        with pytest.raises(ConfigError, match="other actors of this process are on a Ray at local"):
            _some(address="localhost:6379").start()
        assert _ask(first.members[0], "add", 1) == 2
    assert not ray.is_initialized()
    with pytest.raises(WorkerDied, match="Ray has ended"):
        Cluster.put(first, 1)  # as a run does that is open when its process ends
    assert not ray.is_initialized()
    assert dict(os.environ) == before
    assert signal.signal(signal.SIGTERM, heard) is ours


@pytest.mark.slow
def test_one_that_hangs_counts_as_dead(ray_cluster):
    """F10: stopped, as in an endless call of C; the other works on."""
    from flowrl.actors.ray_backend import FIRST_REQUESTS

    with _some(2, worker_timeout=1.0) as actors:
        hanging, other = actors.members
        for _ in range(FIRST_REQUESTS):
            process = _ask(hanging, "process")
        os.kill(process, signal.SIGSTOP)
        died = hanging.submit("process").exception(SECONDS)
        assert re.fullmatch(r"account 0 died: it has not answered for \d+ s \(worker_timeout=1\)", str(died))
        actors.restart(0, died)
        assert [_ask(worker, "add", 1) for worker in (actors.members[0], other)] == [1, 1]

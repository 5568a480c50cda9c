"""Futures: answers that are not there yet."""

from __future__ import annotations

import concurrent.futures
import logging
import threading

import pytest

from flowrl import from_items
from flowrl.engine.workers.futures import Future, following, wait

KINDS = [Future, concurrent.futures.Future]


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_told_to_everyone_who_asked(kind):
    """Before it is there, and after: as with the futures of the standard library."""
    future, told = kind(), []
    future.add_done_callback(lambda done: told.append(("before", done.result())))
    assert not future.done()
    future.set_result(7)
    future.add_done_callback(lambda done: told.append(("after", done.result())))
    assert future.done()
    assert (future.result(), future.exception()) == (7, None)
    assert told == [("before", 7), ("after", 7)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_given_and_raised(kind):
    future, error = kind(), ValueError("no")
    future.set_exception(error)
    assert future.exception() is error
    with pytest.raises(ValueError, match="no"):
        future.result()


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_told_first_may_fail(kind, caplog):
    """The others are told nevertheless, and the log says what failed."""
    future, told = kind(), []
    future.add_done_callback(lambda done: 1 / 0)
    future.add_done_callback(told.append)
    with caplog.at_level(logging.ERROR):
        future.set_result(None)
    assert told == [future]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_ends_with_the_answer_or_its_deadline(kind):
    future = kind()
    for ask in (future.result, future.exception):
        with pytest.raises(TimeoutError):
            ask(0.01)
    thread = threading.Thread(target=future.set_result, args=(3,))
    thread.start()
    assert future.result(60) == 3
    thread.join()


def test_it_is_completed_once():
    future = Future()
    future.set_result(1)
    with pytest.raises(AssertionError, match="once"):
        future.set_exception(ValueError())
    assert future.result() == 1


def test_everyone_is_told_once_whichever_thread_is_faster():
    """Callbacks are added in one thread while another one completes the future."""
    for _ in range(200):
        future, told, ready = Future(), [], threading.Barrier(2)

        def complete(future=future, ready=ready):
            ready.wait(60)
            future.set_result(None)

        thread = threading.Thread(target=complete)
        thread.start()
        ready.wait(60)
        for number in range(20):
            future.add_done_callback(lambda _, number=number, told=told: told.append(number))
        thread.join()
        assert sorted(told) == list(range(20))


def test_waiting_for_several_says_which_are_late():
    """Of both kinds: a worker may give either."""
    done, failed, cancelled, late, late_too = (
        Future(),
        Future(),
        concurrent.futures.Future(),
        *(kind() for kind in KINDS),
    )
    done.set_result(None)
    failed.set_exception(TimeoutError())
    cancelled.cancel()
    assert wait([late, done, failed, cancelled, late_too], 0.01) == [late, late_too]
    assert wait([done, failed, cancelled], 0) == []


def test_one_future_follows_another():
    """What was cancelled has failed: nobody waits for it."""
    theirs = [concurrent.futures.Future() for _ in range(3)]
    ours = [following(each) for each in theirs]
    assert not any(future.done() for future in ours)
    theirs[0].set_result(1)
    theirs[1].set_exception(ValueError("no"))
    theirs[2].cancel()
    assert ours[0].result(0) == 1
    assert [type(future.exception(0)) for future in ours[1:]] == [ValueError, concurrent.futures.CancelledError]


class Pooled:
    """A user's own worker: a pool of the standard library, with its futures."""

    def __init__(self, pool):
        self.pool = pool

    def submit(self, method, *args):
        return self.pool.submit(getattr(self, method), *args)

    def double(self, number):
        return 2 * number


def test_a_worker_may_give_the_futures_of_the_standard_library():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        run = from_items(range(5)).call(Pooled(pool), "double", in_flight=2).run()
        assert list(run) == [0, 2, 4, 6, 8]
        run.close()

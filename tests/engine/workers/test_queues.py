"""Queues between branches and from other threads."""

from __future__ import annotations

import threading

import pytest

from flowrl import Plan, Queue, from_items
from flowrl.errors import Deadlock, Stalled
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue


def through(queue: Queue, items: list[int], *, first: str) -> Plan:
    put, take = from_items(items).for_each(Enqueue(queue)), Dequeue(queue)
    branches = {"put": put, "take": take} if first == "put" else {"take": take, "put": put}
    return Concurrently(branches, output_indexes=["take"])


@pytest.mark.parametrize("first", ["put", "take"])
def test_a_queue_joins_two_branches_and_ends_with_its_producer(first: str) -> None:
    """F8: the last item and the end come through, whichever branch has the first turn, in every run."""
    queue = Queue(1)
    plan = through(queue, [1, 2, 3], first=first)
    assert list(plan) == [1, 2, 3]
    assert list(plan) == [1, 2, 3]
    assert len(queue) == 0


def test_a_queue_is_bounded() -> None:
    """F7: a full queue blocks who puts, in the plan or in a thread."""
    queue = Queue(2)
    fullest = 0

    def look(_: int) -> None:
        nonlocal fullest
        fullest = max(fullest, len(queue))

    store = from_items(range(9)).for_each(Enqueue(queue)).for_each(look)
    plan = Concurrently([store, Dequeue(queue)], output_indexes=[1], round_robin_weights=["*", 1])
    assert list(plan) == list(range(9))
    assert fullest == 2
    queue.put(1)
    queue.put(2)
    with pytest.raises(Stalled, match=r"stayed full \(2 items\) for 0 s: is its plan pulled"):
        queue.put(3, seconds=0)


def test_an_empty_queue_that_nobody_fills_is_a_deadlock() -> None:
    """F8: and so is a full one that nobody empties."""
    with pytest.raises(Deadlock, match="Dequeue: the queue is empty"):
        list(Dequeue(Queue(1)))
    with pytest.raises(Deadlock, match=r"Enqueue: the queue is full \(2 items\)"):
        list(from_items([1, 2, 3]).for_each(Enqueue(Queue(2))))


def test_a_queue_fed_by_a_thread() -> None:
    """F2: the run sleeps until something is put; what is put before the end is not lost."""
    queue = Queue(3, external=True)

    def feed() -> None:
        for i in range(50):
            queue.put(i)
        queue.close()

    with Dequeue(queue).for_each(lambda i: 2 * i).run() as run:
        thread = threading.Thread(target=feed)
        thread.start()
        assert list(run) == [2 * i for i in range(50)]
        thread.join()
        assert run.wakeups <= 51


def test_an_end_between_two_looks_loses_no_item() -> None:
    """F2: the queue is looked at after its end is."""

    class Late(Queue):
        """Something is put, and it ends, just after it was found empty."""

        def __len__(self) -> int:
            found = super().__len__()
            if not found and not self.closed:
                self.put("last")
                self.close()
            return found

    assert list(Dequeue(Late(1, external=True))) == ["last"]


def test_several_producers() -> None:
    queue = Queue(2, producers=2)
    branches = [from_items([1, 2]).for_each(Enqueue(queue)), from_items([3]).for_each(Enqueue(queue)), Dequeue(queue)]
    assert list(Concurrently(branches, output_indexes=[2])) == [1, 3, 2]


def test_what_is_in_a_queue_is_in_the_state() -> None:
    queue, other = Queue(5), Queue(5)
    plan = lambda q: Concurrently([from_items([1, 2, 3, 4]).for_each(Enqueue(q)), Dequeue(q)], "async")  # noqa: E731
    with plan(queue).run() as run, plan(other).run() as resumed:
        next(run)
        saved = run.state_dict()
        assert saved["resources"]["Queue"] == {"items": [1], "ended": 0}
        resumed.load_state_dict(saved)
        assert list(resumed) == list(run) == [1, 2, 2, 3, 3, 4, 4]

"""Journals (J1, J2): a run that follows what another one noted is the same run, and says where it is not."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import Plan, Queue, context, from_items, from_workers, operator, state
from flowrl.engine.context import Context
from flowrl.engine.recording.journal import ANSWER, ITEM, PART, Departed, JournalEnds, Recording, Replay, entries
from flowrl.engine.recording.noted import digest
from flowrl.engine.workers.gather import Gather
from flowrl.engine.workers.local import InlineWorker
from flowrl.engine.workers.subplan import SubplanWorker
from flowrl.errors import PlanError, WorkerDied
from flowrl.operators import Dequeue
from flowrl.testing import ManualWorkers

ITEMS = 60
WRITTEN = Path(__file__).parents[2] / "storage" / "written_before"


class InlineWorkers:
    """The same workers in this process, which answer at once and never die by themselves."""

    def __init__(self, count: int) -> None:
        self.members: list[Any] = [InlineWorker(SubplanWorker()) for _ in range(count)]
        self.version = 0

    def restart(self, index: int, _died: WorkerDied | None = None) -> None:
        self.members[index] = InlineWorker(SubplanWorker())


@operator
class Numbered:
    """Pairs of a random number and how many items it has seen."""

    seen: int = state(default=0)
    context: Context = context()

    def __call__(self, item: int) -> tuple[float, int]:
        self.seen += 1
        return float(self.context.generator().random()), self.seen


def plan_of(workers: Any, size: int = 2, **how: Any) -> Plan:
    return from_workers(workers, range(1_000)).for_each(Numbered()).gather_async(**how).batch(size).take(ITEMS)


def record(count: int, choices: random.Random, deaths: int, saves: bool = False, **how: Any) -> tuple[Any, Recording]:
    """The items of a run whose workers answer and die in random order, and its journal."""
    workers, recording, items = ManualWorkers(count), Recording(), list[Any]()
    killed = Counter[int]()
    with plan_of(workers, **how).run(seed=3, decisions=recording) as run:
        while len(items) < ITEMS:
            if workers.requests and choices.random() < 0.7:
                workers.answer(choices.choice(workers.requests).worker)
            elif deaths and workers.requests and choices.random() < 0.1:
                deaths -= 1
                workers.kill(worker := choices.randrange(count))
                killed[worker] += 1
            elif saves and not workers.requests and choices.random() < 0.3:
                run.state_dict()
            item = run.step()
            if not hasattr(item, "name"):
                items.append(item)
        counters = dict(run.counters)
    return (items, counters), recording


def replay(noted: bytes, count: int, edit: Any = None, **how: Any) -> tuple[Any, Replay]:
    """The items of a run in this process that follows a journal."""
    plan, follows, items = plan_of(InlineWorkers(count), **how), Replay([noted]), list[Any]()
    plan = plan if edit is None else edit(plan)
    with plan.run(seed=3, decisions=follows) as run:
        with suppress(JournalEnds):
            items.extend(run)
        return (items, dict(run.counters)), follows


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("deaths", [0, 4])
def test_what_arrived_and_who_died_comes_again_in_one_process(in_flight: int, deaths: int) -> None:
    """J1."""
    for seed in range(3):
        result, recording = record(3, random.Random(seed), deaths, in_flight=in_flight, saves=True)
        assert bool(deaths) == bool(result[1].get("worker_restarts"))
        again, follows = replay(recording.drain(), 3, in_flight=in_flight)
        assert again == result
        assert not follows.departed()


def test_a_resumed_run_comes_again_in_one_process() -> None:
    """J1, D3: also where answers were there that nobody had taken when the state was saved, twice."""
    parts, items, state, loads = [], list[Any](), None, 0
    for _ in range(3):
        workers, noted, choices = ManualWorkers(3), Recording(), random.Random(len(parts))
        with plan_of(workers, in_flight=2).run(seed=3, decisions=noted) as run:
            if state is not None:
                noted.begin(loads)
                while workers.requests:
                    workers.answer(workers.requests[0].worker)
                run.load_state_dict(state)
            for _ in range(40):
                while len(workers.requests) > 2:
                    workers.answer(choices.choice(workers.requests).worker)
                item = run.step()
                if not hasattr(item, "name"):
                    items.append(item)
            while workers.requests:
                workers.answer(workers.requests[0].worker)
            state = run.state_dict()
        noted.settle()
        parts.append(noted.drain())
        loads = noted.loads
    plan, follows, again = plan_of(InlineWorkers(3), in_flight=2), Replay(parts), list[Any]()
    with plan.run(seed=3, decisions=follows) as run, suppress(JournalEnds):
        again.extend(run)
    assert not follows.departed()
    assert again == items


def test_two_orders_of_arrivals_are_two_runs() -> None:
    """J1: without the journal the items would be others."""
    assert record(3, random.Random(0), 0)[0] != record(3, random.Random(1), 0)[0]


def test_a_journal_that_was_cut_off_is_followed_up_to_its_last_whole_entry() -> None:
    """J3."""
    (items, _), recording = record(2, random.Random(0), 0)
    noted = recording.drain()
    whole = list(entries(noted))
    for size in range(0, len(noted), 7):
        assert list(entries(noted[:size])) == whole[: len(list(entries(noted[:size])))]
    (first, _), follows = replay(noted[: len(noted) // 2], 2)
    assert 0 < len(first) < ITEMS
    assert first == items[: len(first)]
    assert not follows.departed()


@operator
class Careless:
    """Adds what no seed determines to one of the items."""

    number: int
    seen: int = state(default=0)

    def __call__(self, item: Any) -> Any:
        self.seen += 1
        return [item, random.SystemRandom().random()] if self.seen == self.number else [item]


def test_the_operator_that_no_seed_determines_is_named_with_its_item() -> None:
    """J2: here and on the workers."""
    choices = random.Random(0)
    for place in ("batch", "Numbered"):
        for _ in range(10):
            number = choices.randrange(1, 15)

            def careless(plan: Plan, place: str = place, number: int = number) -> Plan:
                return plan.insert_after(place, Careless(number))

            noted = Recording()
            workers, taken = ManualWorkers(2), 0
            with careless(plan_of(workers)).run(seed=3, decisions=noted) as run:
                while taken < 40:
                    while workers.requests:
                        workers.answer(choices.choice(workers.requests).worker)
                    taken += not hasattr(run.step(), "name")
            with pytest.raises(Departed, match=rf"at Careless( on worker \d)?: item {number} differs"):
                replay(noted.drain(), 2, careless)


def test_what_emits_no_item_where_there_was_one_is_named() -> None:
    """J2."""
    _, recording = record(2, random.Random(0), 0)
    noted = recording.drain()
    with pytest.raises(Departed, match="at batch: emits nothing where the journal has its item 1"):
        replay(noted, 2, size=3)
    with pytest.raises(Departed, match="at batch: emits item 1, and the journal has none there"):
        replay(noted, 2, size=1)


def test_a_digest_is_of_all_that_an_item_says_but_times() -> None:
    """J2: also of an array so large that only values at equal distances are looked at."""
    large = np.zeros(100_000)
    item = {"large": large, "rows": [np.arange(3)], "seconds": 1.0}
    said = digest(item, ("seconds",))
    assert digest({**item, "seconds": 2.0}, ("seconds",)) == said
    others = ({"large": large + 1}, {"large": large.astype(np.float32)}, {"rows": [np.arange(4)]}, {"rows": []})
    assert said not in [digest({**item, **other}, ("seconds",)) for other in others]


def test_entries_are_as_documented() -> None:
    """J1, J3: numbers of any size, as masks of environments are, empty answers, digests, what a worker noted."""
    worker, noted = Recording("gather/0.0.0"), Recording()
    worker.item("op", 0x1FFFF)
    for _ in range(300):
        noted.decide("here", ())
    noted.decide("here", [1, 2, 1_000_000, 2**200])
    noted.heard(worker.name, sent := worker.answer())
    noted.item("op", 0x10203)
    noted.decide("here", ())
    noted.settle()
    assert list(entries(noted.drain())) == [
        (ANSWER, "here", (300, [1, 2, 1_000_000, 2**200])),
        (PART, "gather/0.0.0", sent),
        (ITEM, "op", 0x0203),
        (ANSWER, "here", (0, [])),
    ]


def test_a_thread_with_a_pace_of_its_own_is_refused() -> None:
    plan = from_items(range(3)).prefetch(2, thread=True)
    with pytest.raises(PlanError, match=r"prefetch .* runs its input in a thread.*leave thread=True out"):
        plan.run(decisions=Recording())


def test_a_queue_that_a_thread_fills_is_refused() -> None:
    with pytest.raises(PlanError, match=r"Dequeue .* takes what a thread outside the plan puts.*external=False"):
        Dequeue(Queue(2, external=True)).run(decisions=Recording())


def test_a_run_without_a_journal_notes_nothing() -> None:
    workers = ManualWorkers(1)
    with plan_of(workers).run() as run:
        assert not any(meter.verb == "tap" for meter in run.meters())
        assert any(isinstance(stage, Gather) for stage in run.stages)


def test_a_journal_that_was_written_before_is_followed() -> None:
    """J1: format 2, of the engine of 2026-11-29; its points are asked as often, also where nothing is there."""
    noted = zlib.decompress((WRITTEN / "journal_2.bin").read_bytes())
    (items, counters), follows = replay(noted, 2, in_flight=2)
    assert counters == {"lost_requests": 1, "worker_restarts": 1}
    assert [pair[1] for batch in items for pair in batch][-3:] == [61, 62, 50]
    assert follows.taken == follows.size

"""A trace: the events of a run on the tracks of its threads and workers, in the format that Perfetto opens."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from flowrl import from_items, from_workers
from flowrl.engine import run, stages
from flowrl.engine.recording import trace
from flowrl.engine.recording.ledger import ledger
from flowrl.engine.recording.trace import Trace
from flowrl.engine.workers import accounts, calls, gather, subplan
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import InlineWorkers, hosts, settle
from tests.engine.recording.test_ledger import Clock, Slow, costs, sleeping


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    planned = Clock()
    for module in (calls, gather, accounts, run, stages, subplan, trace):
        monkeypatch.setattr(module, "clock", planned)
    return planned


def spans(text: str) -> list[tuple[Any, ...]]:
    """Track, name, beginning and seconds of each event, by name of the track."""
    events = json.loads(text)["traceEvents"]
    named = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"
    }

    def track(event: dict[str, Any]) -> str:
        return f"{named['process_name', event['pid'], 0]}, {named['thread_name', event['pid'], event['tid']]}"

    assert {event["ph"] for event in events} <= {"M", "X", "i"}
    return [
        (track(event), event["name"], event["ts"] / 1e6, event["dur"] / 1e6) for event in events if event["ph"] == "X"
    ]


def test_operators_are_events_of_their_thread(clock: Clock) -> None:
    """E4: it changes no result."""
    plan = from_items([1, 2]).for_each(costs(clock, 2), name="a").filter(costs(clock, 1), name="b")
    with plan.run(observer=(traced := Trace())) as running:
        clock.now += 4
        assert list(running) == list(plan)
        assert ledger(running).driver.busy["a"] == 4
        found = [span for span in spans(traced.text(running)) if span[3]]
    driver = "flowrl, driver"
    assert found == [(driver, "a", 4, 2), (driver, "b", 6, 1), (driver, "a", 7, 2), (driver, "b", 9, 1)]


def test_sleeps_and_requests_are_events(clock: Clock) -> None:
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Slow(clock, 9)).gather_async(2).run(observer=(traced := Trace())) as running:
        sleeping(running, clock, lambda: workers.answer(1))
        settle(running)
        workers.answer(1)
        settle(running)
        found = [span for span in spans(traced.text(running)) if span[3]]
    assert sorted(found) == [
        ("flowrl, driver", "waits for gather_async", 0, 5),
        ("workers of gather_async, worker 1", "Slow", 0, 5),
        ("workers of gather_async, worker 1", "Slow", 5, 5),
        ("workers of gather_async, worker 1", "gather_async", 0, 5),
        ("workers of gather_async, worker 1", "gather_async", 5, 5),
    ]
    assert running.context.metrics.records == {}


def test_what_a_worker_did_lies_within_its_request(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """E12: though its clock is 1000 s ahead; how far becomes known better with each request."""
    monkeypatch.setattr(subplan, "clock", lambda: clock() + 1000)
    workers = ManualWorkers(1, hosts())
    part = from_workers(workers, Slow(clock, 9)).for_each(costs(clock, 1), name="encode")
    with part.gather_async().run(observer=(traced := Trace())) as running:
        for way in (2, 0, 4):
            settle(running)
            clock.now += way
            workers.answer()
        settle(running)
        found = [span[1:] for span in spans(traced.text(running)) if span[3]]
    assert sorted(found, key=lambda span: (span[1], span[0])) == [
        ("gather_async", 0, 8),
        ("Slow", 1, 5),  # it was asked at 0 and answered at 8, so it began at 2 or up to 2 s earlier
        ("encode", 6, 1),
        ("Slow", 8, 5),
        ("gather_async", 8, 6),
        ("encode", 13, 1),
        ("gather_async", 14, 10),
        ("Slow", 18, 5),
        ("encode", 23, 1),
    ]


def test_a_worker_sends_the_newest_of_what_it_did(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """E12, F7."""
    monkeypatch.setattr(trace, "MOST_SPANS", 2)
    workers = ManualWorkers(1, hosts())
    with from_workers(workers, Slow(clock, 9)).batch(3).gather_sync().run(observer=(traced := Trace())) as running:
        settle(running)
        workers.answer()
        settle(running)
        found = [span[1:] for span in spans(traced.text(running)) if span[1] == "Slow"]
    assert found == [("Slow", 10, 5)]


def test_parts_in_this_process_are_events_within_their_gather(clock: Clock) -> None:
    with from_workers(InlineWorkers(1), Slow(clock, 9)).gather_sync().run(observer=(traced := Trace())) as running:
        next(running)
        found = [span for span in spans(traced.text(running)) if span[3]]
    assert found == [("flowrl, driver", "Slow", 0, 5), ("flowrl, driver", "gather_sync", 0, 5)]


def test_new_weights_are_instants(clock: Clock) -> None:
    workers = ManualWorkers(1, hosts())
    with from_workers(workers, Slow(clock, 9)).gather_async().run(observer=(traced := Trace())) as running:
        for version in (3, 3, 4):
            workers.version = version
            settle(running)
            workers.answer()
        settle(running)
        events = [event for event in json.loads(traced.text(running))["traceEvents"] if event["ph"] == "i"]
    assert [(event["name"], event["ts"] / 1e6) for event in events] == [("weights 3", 5), ("weights 4", 10)]


def test_only_the_newest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """F7."""
    monkeypatch.setattr(trace, "MOST", 5)
    with from_items(range(99)).run(observer=(traced := Trace())) as running:
        list(islice(running, 50))
        assert len(spans(traced.text(running))) == 5

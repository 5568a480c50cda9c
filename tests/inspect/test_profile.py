"""The profile of a run: what its model foresees, and what it names, for ledgers whose truth is known."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from flowrl.engine.recording.ledger import Ledger
from flowrl.engine.workers.accounts import DRIVER, FULL, NO_REQUEST, OUTSIDE, Account
from flowrl.errors import ConfigError
from flowrl.inspect.profile import Change, Profile


def profile(*accounts: Account, counters: dict[str, int] | None = None, **stages: Any) -> Profile:
    about = {path: {"kind": kind, "in_flight": n, "workers": k} for path, (kind, n, k) in stages.items()}
    return Profile(Ledger(list(accounts), counters or {"env_steps": 500}, about))


def driver(wall: float, waits: dict[str, float] | None = None, **busy: float) -> Account:
    return Account(DRIVER, "driver", wall, busy, waits or {})


def worker(number: int, wall: float, calls: int, path: str = "g", **busy: float) -> Account:
    """A worker that is idle when it is not busy."""
    waits = {NO_REQUEST: wall - sum(busy.values())}
    trips = sum(busy.values())
    return Account(f"worker {number} of {path}", "worker", wall, busy, waits, path, DRIVER, calls, trips)


#: What it is, the profile of 10 s in which 100 items passed, the bottleneck, and the paces after changes.
CASES: list[tuple[str, Profile, str, dict[Change, float]]] = [
    (
        "one thread: the sum of all",
        profile(driver(10, act=4, learn=5, report=1)),
        "learn",
        {Change("learn"): 10 / 7.5, Change("act", 4): 10 / 7, Change("report"): 10 / 9.5},
    ),
    (
        "gather_sync: the slowest worker in turn with the driver",
        profile(
            driver(10, {"g": 6}, learn=4),
            worker(0, 10, 50, act=6),
            worker(1, 10, 50, act=3),
            g=("gather_sync", 1, 2),
        ),
        "act",
        {Change("act"): 10 / 7, Change("learn"): 10 / 8, Change("g", workers=1): 10 / (4 + 6 * 2 / 3)},
    ),
    (
        "gather_async: workers that are never idle",
        profile(
            driver(10, {"g": 8}, use=2),
            worker(0, 10, 50, act=9),
            worker(1, 10, 50, act=9),
            g=("gather_async", 2, 2),
        ),
        "act",
        {Change("act"): 2.0, Change("use"): 1.0, Change("g", workers=1): 1.5},
    ),
    (
        "gather_async: one worker and the driver in turn",
        profile(driver(10, {"g": 6}, use=4), worker(0, 10, 100, act=6), g=("gather_async", 1, 1)),
        "act",
        {Change("act"): 10 / 7, Change("use"): 10 / 8},
    ),
    (
        "gather_async: a driver that is never idle",
        profile(
            driver(10, use=10),
            *(worker(i, 10, 25, act=2) for i in range(4)),
            g=("gather_async", 1, 4),
        ),
        "use",
        {Change("act"): 1.0, Change("g", workers=1): 1.0, Change("use", 1.25): 1.25},
    ),
    (
        "gather_async: the way is long",
        profile(
            driver(10, {"g": 9}, use=1),
            attrs.evolve(worker(0, 10, 100, act=3), trips=9),
            g=("gather_async", 1, 1),
        ),
        "the way to the workers of g",
        {Change("act"): 10 / 8.5, Change("the way to the workers of g"): 10 / 7},
    ),
    (
        "gather_sync: the way is long",
        profile(driver(10, {"g": 9}, use=1), worker(0, 10, 100, act=3), g=("gather_sync", 1, 1)),
        "the way to the workers of g",
        {Change("act"): 10 / 8.5, Change("the way to the workers of g"): 10 / 7},
    ),
    (
        "a thread: the slower of both",
        profile(
            driver(10, use=10),
            Account("thread of p", "thread", 10, {"make": 6}, {FULL: 4}, "p", DRIVER, 100),
            p=("prefetch", 2, 1),
        ),
        "use",
        {Change("use"): 10 / 6, Change("make"): 1.0},
    ),
    (
        "a learner with one request: in turn with the driver",
        profile(
            driver(10, {"train": 7}, act=3),
            Account("worker of train", "callee", 10, {"train": 6}, {NO_REQUEST: 4}, "train", DRIVER, 100),
            train=("call", 1, 1),
        ),
        "train",
        {Change("train"): 10 / 7, Change("act"): 10 / 8.5},
    ),
    (
        "a learner with two requests: beside the driver",
        profile(
            driver(10, {"train": 4}, act=6),
            Account("worker of train", "callee", 10, {"train": 10}, {NO_REQUEST: 0}, "train", DRIVER, 100),
            train=("call", 2, 1),
        ),
        "train",
        {Change("train"): 10 / 6, Change("act"): 1.0},
    ),
    (
        "a source of others: its pace is theirs",
        profile(driver(10, {"queue": 5}, use=5), queue=("source", 1, 0)),
        "queue",
        {Change("use"): 1.0},
    ),
    ("the caller", profile(driver(10, {OUTSIDE: 8}, act=2)), OUTSIDE, {Change("act"): 10 / 9}),
]


@pytest.mark.parametrize(("_", "given", "cause", "gains"), CASES, ids=[case[0] for case in CASES])
def test_what_a_change_gives(_: str, given: Profile, cause: str, gains: dict[Change, float]) -> None:
    """E5: the pace follows from the slowest chain of work that cannot overlap."""
    assert {change: 1 + given.gain(change) for change in gains} == pytest.approx(gains)
    assert given.cause()[0] == cause


def test_what_is_named_is_what_is_never_idle() -> None:
    """E5, Flink's rule."""
    given = CASES[4][1]
    assert given.sentence() == (
        "Bottleneck: use. It takes 100% of the time of the run's own thread, which is never idle (0%)."
    )
    assert CASES[1][1].sentence() == (
        "Bottleneck: act. It takes 60% of the time of the worker 0 of g, which is idle 40%, and the run's own thread "
        "waits 60% of the time: they take turns."
    )


def test_a_source_of_others_is_named() -> None:
    (given,) = [case[1] for case in CASES if case[2] == "queue"]
    assert given.sentence() == "Bottleneck: queue. Others fill it, and the run waits for it 50% of the time."


def test_a_model_that_explains_little_says_so() -> None:
    given = profile(driver(10, {"g": 8}, use=2), worker(0, 10, 100, act=1), g=("gather_async", 2, 1))
    assert given.lines()[-1] == "The model explains 20% of the time only, so these are rough."
    assert "rough" not in CASES[1][1].lines()[-1]


def test_a_long_way_is_named_with_its_share() -> None:
    assert CASES[5][1].sentence() == (
        "Bottleneck: the way to the workers of g. Of the 90 ms from a request to its answer the worker works 30 ms; "
        "the rest is pickling, transport and waiting for a processor."
    )


def test_pickling_is_told_apart_from_the_rest_of_the_way() -> None:
    """E11: for each edge, with what passes it."""
    book = CASES[5][1].ledger
    pickled = attrs.evolve(book.accounts[1], pickling=0.5, nbytes=2_000_000)
    given = Profile(attrs.evolve(book, accounts=[attrs.evolve(book.driver, items={"g": 100}), pickled]))
    assert "  100 answers, 2.0 MB: 30 ms of work each, 90 ms with latency, 5 ms of it pickling" in given.lines()
    assert given.sentence().endswith("5 ms are pickling, and the rest is transport and waiting for a processor.")
    edge = {"items": 100, "calls": 100, "bytes": 2_000_000, "seconds": 9, "work": 3, "pickling": 0.5}
    assert given.summary()["edges"] == {"g": pytest.approx(edge)}


def test_an_account_that_is_old_counts_by_its_shares() -> None:
    """A worker's newest account may be from before the end."""
    old = profile(driver(10, {"g": 6}, use=4), worker(0, 5, 50, act=3), g=("gather_async", 1, 1))
    assert old.gain(Change("act")) == pytest.approx(10 / 7 - 1)


def test_the_report_sums_to_the_wall_time() -> None:
    """E1."""
    lines = CASES[1][1].lines()
    assert lines[0] == "10.0 s, 50 env_steps per second"
    assert [line.split()[-1] for line in lines if line.split()[:1] == ["sum"]] == ["100.0%"] * 3
    assert lines[-1] == "What if: act twice as fast: +43%; learn twice as fast: +25%; one more worker of g: +25%."


def test_a_straggler_is_named() -> None:
    """E10: in the table, in the sentence and for programs; workers that are waited for alike are not."""
    waits = {"g": {"worker 0": 0.6, "worker 1": 5.4}}
    book = CASES[1][1].ledger
    book = attrs.evolve(book, accounts=[attrs.evolve(book.driver, by_worker=waits), *book.accounts[1:]])
    given = Profile(book)
    assert "    of which worker 1  54.0%" in given.lines()
    assert given.sentence().endswith("waits 60% of the time, 90% of that for worker 1: they take turns.")
    of_each = given.summary()["accounts"][DRIVER]["waits_by_worker"]["g"]
    assert of_each == {"worker 0": pytest.approx(0.06), "worker 1": pytest.approx(0.54)}
    assert Profile.of(json.loads(json.dumps(given.values()))) == given
    waits["g"]["worker 0"] = 4.0
    assert not any("of which" in line for line in given.lines())


def test_a_profile_in_a_file() -> None:
    given = CASES[2][1]
    values = json.loads(json.dumps(given.values()))

    def wall(seconds: Any) -> dict[str, Any]:
        first, *others = values["ledger"]["accounts"]
        return {**values, "ledger": {**values["ledger"], "accounts": [{**first, "wall": seconds}, *others]}}

    assert Profile.of(values) == given
    for wrong in ({**values, "layout": 9}, {"layout": 1}, [], {**values, "ledger": {"accounts": []}}, wall("long")):
        with pytest.raises(ConfigError, match="profile"):
            Profile.of(wrong)

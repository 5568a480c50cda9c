"""explain(): a plan as text before it runs, and with what was measured during and after."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl import Plan, Queue, from_items, from_workers, operator
from flowrl.engine.protocols import BLOCKED, WAITING
from flowrl.inspect.explain import HOME, config_of, explain, relative
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import InlineWorkers, Numbers, Total, hosts

FILE = __file__.removeprefix(os.getcwd() + os.sep)


def numbers() -> Iterator[int]:
    yield from range(3)


def test_explain_shows_operators_configuration_places_bounds_and_lines() -> None:
    here = sys._getframe().f_lineno
    rollouts = from_workers(InlineWorkers(2), Numbers(3)).for_each(Total(scale=2)).gather_async(4)
    r1, r2 = rollouts.duplicate(2, max_lag=8)
    plan = Concurrently(
        {"store": r1.batch(4).prefetch(2, thread=True), "train": r2, "more": from_items(numbers)},
        round_robin_weights=[1, 0.5, "*"],
        output_indexes=["train"],
    )
    rows = [re.split(r"  +", line.replace("│  ", "│ ")) for line in plan.explain().splitlines()]
    assert [(row[0], *(cell.replace(f"{FILE}:", "") for cell in row[1:])) for row in rows] == [
        ("├─ store:",),
        ("│ Numbers(n=3)", "2 inline workers", f"{here + 1}"),
        ("│ Total(scale=2)", "2 inline workers", f"{here + 1}"),
        ("│ gather_async(in_flight=4)", f"{here + 1}"),
        ("│ duplicate(readers=2, max_lag=8)", "at most 8 items apart", f"{here + 2}"),
        ("│ reader(index=0)", f"{here + 2}"),
        ("│ batch(size=4)", f"{here + 4}"),
        ("│ prefetch(n=2, thread=True)", "in a thread: not bit-exact", f"{here + 4}"),
        ("├─ train:",),
        ("│ (duplicate, as above)",),
        ("│ reader(index=1)", f"{here + 2}"),
        ("├─ more:",),
        ("│ numbers(function=numbers)", "a resume skips the consumed", f"{here + 4}"),
        ("Concurrently(round_robin 1:0.5:*, emits train)", f"{here + 3}"),
    ]


def test_a_narrow_terminal_has_the_place_below() -> None:
    plan = Concurrently({"one": from_items([1]).batch(2), "two": from_items(numbers)}, mode="async")
    wide = plan.explain()
    assert explain(plan, columns=400) == wide
    narrow = explain(plan, columns=40)
    assert len(wide.splitlines()) < len(narrow.splitlines())
    words = [[word for word in text.split() if word != "│"] for text in (narrow, wide)]
    assert words[0] == words[1]
    assert "│  batch(size=2)\n│       " in narrow
    finished = plan.run()
    list(finished)
    assert "waiting" not in finished.explain()
    finished.close()


def test_explain_of_a_run_shows_what_was_measured() -> None:
    with from_items(range(4)).for_each(Total()).filter(lambda i: i % 2).run() as run:
        rows = {line.split()[0]: line.split() for line in run.explain().splitlines()[1:]}
        assert rows["Total"][1:] == ["0", "0.0%", "0.0%", "0.0%"]
        list(run)
        head, *lines = run.explain().splitlines()
    assert head.split() == ["items", "busy", "starved", "blocked"]
    rows = {re.split(r"[ (]", line)[0]: line.split()[-4:] for line in lines}
    assert {name: row[0] for name, row in rows.items()} == {"Items": "4", "Total": "4", "lambda": "4"}
    for row in rows.values():
        shares = [float(share.rstrip("%")) for share in row[1:]]
        assert all(0 <= share <= 100 for share in shares)
        assert shares[2] == 0


def test_explain_of_a_run_says_why_it_is_blocked_and_for_how_long() -> None:
    queue = Queue(1)
    store = from_items(range(9)).for_each(Enqueue(queue))
    with store.run() as run:
        next(run)
        assert run.step() is BLOCKED
        lines = run.explain().splitlines()
        assert lines[-1] == "waiting: Enqueue: the queue is full (1 items)"
        assert float(next(line for line in lines if line.startswith("Enqueue")).split()[-1].rstrip("%")) > 0


def test_explain_of_a_run_says_what_it_waits_for() -> None:
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(3)).gather_async().for_each(Total()).run() as run:
        assert run.step() is WAITING
        assert run.explain().splitlines()[-1] == "waiting: gather_async: no answer yet from worker 0, 1"
        assert "2 manual workers" in run.explain()


def test_explain_works_after_the_run_was_closed() -> None:
    with Dequeue(Queue(1)).take(0).run() as run:
        list(run)
    assert "Dequeue" in run.explain()


def test_configuration_of_any_kind_can_be_shown() -> None:
    import numpy as np

    @operator
    class Holds:
        """Has an array among its fields."""

        array: object
        other: object = None
        function: object = numbers
        long: object = "x" * 99

        def __call__(self, item: object) -> object:
            return item

    shown = config_of(Holds(np.zeros(3), list(range(99)), max, ["y" * 99]))
    assert shown == "array=array([0., 0., 0.]), other=list of 99, function=max, long=list(...)"
    assert config_of(lambda item: item) == ""


@pytest.mark.parametrize("length", [1, 3, 200])
def test_long_heads_are_cut(length: int) -> None:
    plan: Plan = from_items([1]).for_each(Total(), name="n" * length)
    assert all(len(line) < 300 for line in plan.explain().splitlines())


def test_places_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin at the folder that holds flowrl; the file of a notebook's cell, named anew each time, is "cell"."""
    names: dict[str, Any] = {"from_items": from_items}
    exec(compile("\nplan = from_items([1])", "/tmp/ipykernel_12/345.py", "exec"), names)
    assert names["plan"].site == "cell:2"
    monkeypatch.chdir(tmp_path)
    assert relative(f"{HOME}{os.sep}plans{os.sep}dqn.py:41") == os.path.join("plans", "dqn.py:41")
    assert relative("/elsewhere/dqn.py:41") == "/elsewhere/dqn.py:41"

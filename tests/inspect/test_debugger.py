"""Breakpoints: where a run stops, what the prompt shows, and that looking changes nothing."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from flowrl import Plan, from_items, from_workers, operator, state
from flowrl.data import Batch
from flowrl.errors import PlanError
from flowrl.inspect.debugger import provenance
from flowrl.operators.concurrency import Concurrently
from flowrl.testing import same
from tests.engine.engine_parts import InlineWorkers, Noise, Numbers, Total

Drive = Callable[..., list[str]]


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drive:
    """Run a plan with these commands for input; the lines that the prompts showed."""

    def driven(plan: Plan, *commands: str, items: list[Any] | None = None) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{command}\n" for command in commands)))
        got = list(plan)
        assert items is None or got == items
        return capsys.readouterr().out.splitlines()

    return driven


def numbers() -> Plan:
    return from_items([1, 2, 3, 4]).for_each(Total(scale=10)).filter(lambda total: total > 10)


def stops(lines: list[str]) -> list[str]:
    """Which operator and item each prompt stood at."""
    return [" ".join(line.split("  ")[:2]) for line in lines if "  item " in line]


def test_a_run_stops_at_every_item_that_leaves_the_operator(drive: Drive) -> None:
    lines = drive(numbers().breakpoint("Total"), *4 * ["continue"], items=[30, 60, 100])
    assert stops(lines) == [f"Total item {n}" for n in (1, 2, 3, 4)]


def test_when_chooses_the_items(drive: Drive) -> None:
    lines = drive(numbers().breakpoint("Total", when=lambda item: item > 30), *2 * ["continue"], items=[30, 60, 100])
    assert stops(lines) == ["Total item 3", "Total item 4"]


def test_step_goes_from_operator_to_operator_and_an_empty_line_repeats(drive: Drive) -> None:
    plan = numbers().breakpoint("Total", when=lambda item: item == 30)
    lines = drive(plan, "step", "", "", "continue", items=[30, 60, 100])
    assert stops(lines) == ["Total item 2", "lambda item 2", "Items item 3", "Total item 3"]


def test_next_stops_at_the_same_operator_again(drive: Drive) -> None:
    plan = numbers().breakpoint("Total", when=lambda item: item == 10)
    assert stops(drive(plan, "next", "next", "continue")) == ["Total item 1", "Total item 2", "Total item 3"]


@pytest.mark.parametrize("commands", [["leave"], []], ids=["leave", "the end of the input"])
def test_leave_ends_the_run_after_this_step(drive: Drive, commands: list[str]) -> None:
    assert stops(drive(numbers().breakpoint("Total"), *commands, items=[])) == ["Total item 1"]


def test_a_run_that_was_left_may_go_on_without_prompts(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: no item is lost."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("leave\n"))
    with numbers().breakpoint("Total").run() as run:
        assert list(run) == []
        assert run.interrupted
        assert list(run) == [30, 60, 100]


def test_ctrl_c_at_the_prompt_leaves(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def readline(self, *_: Any) -> str:
            signal.raise_signal(signal.SIGINT)
            return "continue\n"

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert list(numbers().breakpoint("Total")) == []
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_prompt_shows_the_item_its_origin_and_the_state(drive: Drive) -> None:
    batch = Batch(
        obs=[[0.25, 1.0]] * 3,
        worker=[0, 0, 0],
        env_id=[0, 1, 2],
        episode_id=[4, 4, 5],
        t=[7, 0, 3],
        policy_version=[2, 2, 2],
        info={"x": [1, 2, 3]},
    )
    plan = from_items([batch]).for_each(lambda batch: batch, name="keep").breakpoint("keep")
    lines = drive(plan, "item", "item t", "item info.x", "item nothing", "p item.t.sum()", "continue")
    assert "worker 0, env_id 0..2, episode_id 4..5, t 0..7, policy_version 2" in lines
    text = "\n".join(lines)
    assert "obs             float64[3, 2]  [0.25, 1, 0.25, 1, 0.25, 1]" in text
    assert "(flowrl) array([7, 0, 3])" in text
    assert "(flowrl) array([1, 2, 3])" in text
    assert "(flowrl) there is no 'nothing' in Batch(obs: float64[3, 2]" in text
    assert "(flowrl) np.int64(10)" in text


def test_state_where_and_counters(drive: Drive) -> None:
    plan = from_items([5, 6]).for_each(Noise()).for_each(Total(scale=2)).breakpoint("Total", lambda item: item > 14)
    text = "\n".join(drive(plan, "state", "where", "counters", "p op.total == item", "continue"))
    assert "Total(scale=2)\ntotal = " in text
    assert "-> Total(scale=2)" in text
    assert "   Noise" in text
    assert "look" not in text
    assert "draws  2" in text
    assert "(flowrl) True" in text


def test_mistakes_at_the_prompt_do_not_end_the_run(drive: Drive) -> None:
    commands = ["p 1 / 0", "p )", "zork", "item zork", "help", "help step", "p exit()", "leave"]
    text = "\n".join(drive(from_items([1]).breakpoint("Items"), *commands[:6], "continue", items=[1]))
    assert "ZeroDivisionError" in text
    assert "SyntaxError" in text
    assert "no command 'zork'" in text
    assert "continue  counters  help  item  leave  list  next  p  state  step  where" in text
    assert "EOF" not in text
    assert "step: go on to the next item that leaves any operator" in text


def test_words_of_pdb_work_too(drive: Drive) -> None:
    plan = numbers().breakpoint("Total", when=lambda item: item == 10)
    text = "\n".join(lines := drive(plan, "n", "s", "w", "h n", "l", "pp item + 1", "c", items=[30, 60, 100]))
    assert stops(lines)[:3] == ["Total item 1", "Total item 2", "lambda item 2"]
    assert "-> filter" in text or "-> lambda" in text
    assert "next: go on to the next item that leaves this operator" in text
    assert re.search(r"^\(flowrl\) +\d+ .*\n( +\d+ .*\n)* +\d+ -> .*from_items\(\[1, 2, 3, 4\]\)", text, re.MULTILINE)
    assert "(flowrl) 31" in text
    assert drive(numbers().breakpoint("Total"), "q", items=[])[-1].startswith("(flowrl)")


def test_long_keys_of_the_state_are_shortened(drive: Drive) -> None:
    @operator
    class Keyed:
        rows: dict[str, dict[str, int]] = state(factory=dict)

        def __call__(self, item: int) -> int:
            self.rows = {f"{n:0>200}": {"x": item} for n in (1, 2)}
            return item

    text = "\n".join(drive(from_items([1]).for_each(Keyed()).breakpoint("Keyed"), "state", "c"))
    assert "'0000000000000000...0000000000000001': {'x': 1}" in text


def branches() -> Plan:
    workers = InlineWorkers(2)
    a, b = from_workers(workers, Numbers(3)).for_each(Total()).gather_sync().duplicate(2)
    noisy = from_items(range(5)).for_each(Noise()).batch(2).flatten().for_each(Noise())
    return Concurrently({"a": a.prefetch(2), "b": b.for_each(lambda item: item), "noisy": noisy}).tap("a.reader", id)


@pytest.mark.parametrize("where", ["Numbers", "Total", "duplicate", "a.reader", "noisy.batch", "Concurrently"])
def test_breakpoints_change_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: items and state are those of the run without; on workers of this process too."""
    with branches().run(seed=3) as run:
        expected, state = list(run), run.state_dict()
    monkeypatch.setattr(sys, "stdin", io.StringIO("step\n" * 500))
    with branches().breakpoint(where).run(seed=3) as run:
        assert same(list(run), expected)
        assert same(run.state_dict(), state)
        shown = run.explain()
    assert "look" not in shown


def test_an_operator_on_a_worker_of_this_process_shows_its_state(drive: Drive) -> None:
    plan = from_workers(InlineWorkers(2), Numbers(3)).for_each(Total()).gather_sync()
    text = "\n".join(drive(plan.breakpoint("Total"), "state", "leave"))
    assert "Total  item 1" in text
    assert "total = 0" in text


def test_a_breakpoint_in_another_process_is_refused() -> None:
    class Elsewhere(InlineWorkers):
        num_elsewhere = 2

    plan = from_workers(Elsewhere(2), Numbers(3)).for_each(Total()).gather_sync().breakpoint("Total")
    with pytest.raises(PlanError, match=r"breakpoint at Total: it runs in other processes"):
        plan.run()


def test_another_debugger_is_honoured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """PYTHONBREAKPOINT=0 is Python's way to switch breakpoints off."""
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    assert list(numbers().breakpoint("Total")) == [30, 60, 100]
    assert capsys.readouterr().out == ""


def test_an_open_pipe_that_says_nothing_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait has a deadline; here it is over at once."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as silent, os.fdopen(writing, "w") as talk:
        monkeypatch.setattr(sys, "stdin", silent)
        monkeypatch.setattr("flowrl.inspect.debugger.PIPE_SECONDS", 0.0)
        print("next", file=talk, flush=True)
        with numbers().breakpoint("Total").run() as run:
            assert list(run) == [30]
            assert run.interrupted


def test_provenance_of_what_has_none_is_empty() -> None:
    assert provenance([1]) == provenance({"t": 3}) == provenance(Batch(t=[])) == ""


def test_a_breakpoint_is_a_tap(drive: Drive) -> None:
    """It has neither ordinal nor seed, and is removed like one."""
    plan = numbers().breakpoint("Total")
    assert list(plan.remove("breakpoint")) == [30, 60, 100]


@pytest.fixture(autouse=True)
def _no_other_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest brings a debugger of its own."""
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)

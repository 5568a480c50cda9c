"""What a run shows: plain lines, the live display, the summary."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from flowrl import from_items
from flowrl.cli.output import complain, echo
from flowrl.engine.recording.ledger import Ledger
from flowrl.engine.workers.accounts import Account
from flowrl.errors import ConfigError
from flowrl.inspect.profile import Profile
from flowrl.operators import Concurrently
from flowrl.runs.progress import Budget, Lines, Live, Quiet, duration, progress, summary


def lines_of(budget, results):
    said = []
    with Lines(budget, say=said.append) as lines:
        for result in results:
            lines.report(result)
    return said


def test_what_a_file_holds_is_shown_and_not_obeyed(capsys):
    """D7: the escape sequences in a name of a dataset, say."""
    echo("one\x1b[2J\ntwo")
    for error in (ConfigError("three\x1b[2J"), ValueError("three\x1b[2J")):
        complain(error)
    shown = capsys.readouterr()
    assert shown.out == "one\\x1b[2J\ntwo\n"
    assert shown.err.count("three\\x1b[2J\n") == 2
    assert "\x1b" not in shown.err


def test_without_a_budget_every_result_is_a_line():
    assert len(lines_of(Budget(), [{"env_steps": i} for i in range(30)])) == 30


def test_with_a_budget_there_is_a_line_per_twentieth():
    said = lines_of(Budget(steps=1000), [{"env_steps": i} for i in range(1, 1001)])
    assert said == [f"{i:,} steps" for i in (1, *range(50, 1001, 50))]


def test_every_evaluation_is_a_line_and_the_best_is_marked():
    results = [
        {"env_steps": 1},
        {"env_steps": 2, "eval_return": 9.04, "best_eval_return": 9.04},
        {"env_steps": 3, "eval_return": 8, "best_eval_return": 9.04},
        {"env_steps": 3, "eval_return": 9.04, "best_eval_return": 9.04},
        {"env_steps": 4, "eval_return": 480.0, "best_eval_return": 480.0, "confirmed_return": 477.25},
        {"env_steps": 5, "eval_return": 0.947, "best_eval_return": 480.0},  # where 0.95 is asked for, say
    ]
    assert lines_of(Budget(steps=1000), results) == [
        "1 steps",
        "2 steps  eval 9.0 (best)",
        "3 steps  eval 8.0",
        "3 steps  eval 9.0",
        "4 steps  eval 480.0 (best)  confirmed 477.2",
        "5 steps  eval 0.947",
    ]


def test_a_line_has_the_usual_numbers_and_leaves_out_what_is_not_there():
    result = {
        "env_steps": 12345, "episode_return": 57.123, "steps_per_second": 2100.4, "updates": 3000, "ratio": 63.96,
        "loss": 1.0,
    }  # fmt: skip
    assert lines_of(Budget(), [result]) == ["12,345 steps  return 57.1  2,100 steps/s  updates 3,000  ratio 64"]
    assert lines_of(Budget(), [{"episode_return": None, "updates": "many"}]) == ["0 steps"]


def test_the_nearer_bound_counts():
    assert Budget().share(10, 10) is None
    assert Budget(steps=100).share(25, 1e9) == 0.25
    assert Budget(steps=100, seconds=10).share(25, 9) == 0.9
    assert Budget(seconds=10).share(0, 99) == 1.0


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A context in which standard output is a terminal: pytest puts its own one back for the test's call."""
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return contextlib.redirect_stdout(Terminal())


def test_the_display_suits_the_output(terminal, monkeypatch):
    with terminal:
        assert isinstance(progress("", Budget()), Live)
        assert isinstance(progress("", Budget(), quiet=True), Quiet)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(progress("", Budget()), Lines)
    monkeypatch.setenv("TERM", "xterm")
    with contextlib.redirect_stdout(io.StringIO()):
        assert isinstance(progress("", Budget()), Lines)


def test_the_live_display_shows_the_newest_numbers_and_keeps_evaluations(terminal):
    with terminal as screen, progress("dqn CartPole-v1 seed 0", Budget(goal=475, steps=50_000)) as display:
        display.report({"env_steps": 1000, "eval_return": 21.5, "best_eval_return": 21.5})
        display.report({"env_steps": 1500, "episode_return": 30.5, "steps_per_second": 2000.0})
        display.live.refresh()
        print("a tap prints above it")
    shown = screen.getvalue()
    for words in (
        "1,000 steps  eval 21.5 (best)\n",
        "dqn CartPole-v1 seed 0",
        "1,500 of 50,000 steps",
        "eval 21.5 of 475  return 30.5  2,000 steps/s",
        "a tap prints above it\n",
    ):
        assert words in shown


def test_the_live_display_needs_no_budget_and_no_results(terminal):
    with terminal as screen, progress("title", Budget()) as display:
        display.live.refresh()
    assert "waiting for the first result" in screen.getvalue()


def a_profile(*stalls):
    """Of a plan in whose second branch an operator waits."""
    ledger = Ledger(
        [
            Account(
                "driver", "driver", 10.0, {"train.learn": 7.5}, items={"store.Items": 50, "train.learn": 20},
                blocked={"store.Items": 6.0},
            )
        ],
        {}, {}, fill={"store.Items": (2, 4)},
    )  # fmt: skip
    return Profile(ledger, stalls=stalls)


PLAN = Concurrently({"store": from_items([1]), "train": from_items([2], name="draw").for_each(str, name="learn")})


def shown_in(terminal, monkeypatch, lines, profile):
    """What a window of so many lines shows of a profile."""
    monkeypatch.setenv("LINES", str(lines))
    with terminal as screen, progress("title", Budget(), plan=PLAN) as display:
        display.look(profile)
        display.live.refresh()
    return screen.getvalue()


def test_a_tall_window_shows_the_plan_with_what_its_operators_do(terminal, monkeypatch):
    shown = re.sub(r"\x1b\[[0-9;?]*\w", "", shown_in(terminal, monkeypatch, 40, a_profile()))
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    for row in ("├─ store:", "│ Items blocked 60% 5/s 2 of 4", "│ learn busy 75% 2/s", "Concurrently"):
        assert row in rows


def test_a_low_window_shows_the_stalls_alone(terminal, monkeypatch):
    """The first three, as text."""
    stalls = [f"{i}.Replay: waits for rows\x1b[2J [red]" for i in range(5)]
    shown = shown_in(terminal, monkeypatch, 16, a_profile(*stalls))
    assert shown.count("waits: ") >= 3
    assert "waits: 2.Replay: waits for rows" in shown
    assert "[red]" in shown
    assert "waits: 3" not in shown
    assert "learn" not in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("done", {"env_steps": 10, "episode_return": 3.0}, None, None), "done: return 3.0, 10 env steps, 5.0 s, in d"),
        (("done", {}, None, None), "done: 0 env steps, 5.0 s, in d"),
        (("budget", {"env_steps": 10}, 7.0, None), "ended before the goal: best eval return 7.0, 10 env steps"),
        (("interrupted", {"env_steps": 10}, None, None), "interrupted: 10 env steps"),
        (("failed", {"env_steps": 10}, None, None), "failed: 10 env steps"),
    ],
)
def test_the_summary_is_one_line(arguments, expected):
    text = summary(*arguments, 5.0, "d")
    assert text.startswith(expected)
    assert "\n" not in text


def test_durations():
    assert [duration(s) for s in (0, 9.99, 10, 59.6, 3599.4, 3600)] == [
        "0.0 s", "10.0 s", "0:10", "1:00", "59:59", "1:00:00"
    ]  # fmt: skip

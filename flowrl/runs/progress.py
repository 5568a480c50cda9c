"""Progress of a run: a live display on a terminal, plain lines elsewhere, only the end if quiet."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import click

from flowrl.errors import printable

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan
    from flowrl.inspect.profile import Profile
    from flowrl.rollout.evaluation import Goal

#: Approximate number of plain lines per budget, besides one for each evaluation.
LINES_PER_BUDGET = 20

#: The counters that a run may follow, in words.
CLOCKS = {"env_steps": "steps", "updates": "updates"}

#: The outcomes of runs that stopped before their time.
STOPPED = ("interrupted", "failed")

#: The most stalls that a live display shows, and the lines of the window that it leaves to what was printed before.
MOST_STALLS, LINES_ABOVE = 3, 8

#: The styles of a terminal for what an operator mostly is.
STYLES = {"busy": "blue", "starved": "yellow", "blocked": "red", "idle": "dim"}

#: The most agents of a game that a line shows apart.
MOST_AGENTS = 4

#: The result keys that a line shows after the return, in order, with their format.
SHOWN: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("steps_per_second", "{:,.0f} steps/s".format),
    ("updates", "updates {:,}".format),
    ("ratio", "ratio {:.3g}".format),
)

Result = Mapping[str, Any]


@attrs.frozen
class Budget:
    """The goal of a run and its limits; None: no limit.

    `steps` counts the run's clock: env steps, or updates of an offline plan.
    """

    goal: Goal | None = None
    steps: int | None = None
    seconds: float | None = None
    updates: int | None = None

    @property
    def wanted(self) -> dict[str, float]:
        """The entries of a result, with their least values, that say together that the goal is confirmed."""
        from flowrl.rollout.evaluation import bounds_of

        return {} if self.goal is None else bounds_of(self.goal, "confirmed_return")

    def counts(self, clock: str) -> set[tuple[str, float]]:
        """The limits that are counts, as pairs of counter and number; `clock` is the counter of `steps`.

        >>> Budget(steps=100, seconds=5).counts("env_steps")
        {('env_steps', 100)}
        """
        limits = (clock, self.steps), ("updates", self.updates)
        return {(name, limit) for name, limit in limits if limit is not None}

    def share(self, steps: int, seconds: float, updates: int = 0) -> float | None:
        """The used share of the nearest limit, 0 to 1; None without limits."""
        parts = [steps / self.steps] if self.steps else []
        parts += [seconds / self.seconds] if self.seconds else []
        parts += [updates / self.updates] if self.updates else []
        return min(1.0, max(parts)) if parts else None


class Progress(Protocol):
    """Shows results as they come, and profiles now and then; a context manager around the run."""

    def report(self, result: Result) -> None: ...
    def look(self, profile: Profile) -> None: ...
    def __enter__(self) -> Progress: ...
    def __exit__(self, *_: object) -> None: ...


def progress(
    title: str,
    budget: Budget,
    *,
    quiet: bool = False,
    live: bool = True,
    earlier: float = 0.0,
    counter: str = "env_steps",
    plan: Plan | None = None,
) -> Progress:
    """The display that suits standard output; rich is imported for a terminal only.

    `earlier` is the seconds of a resumed run before this process; `counter` is the clock of its budget. `plan` is shown
    where there is room.
    """
    if quiet:
        return Quiet()
    if live and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return Live(title, budget, earlier, counter, plan)
    rest = TimeLeft(None if earlier > ETA_SECONDS else (0.0, clock()))
    return Lines(budget, started=clock() - earlier, counter=counter, rest=rest)


class Quiet:
    """Shows nothing."""

    def report(self, result: Result) -> None:
        pass

    def look(self, profile: Profile) -> None:
        pass

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        pass


#: Seconds after which the time left is estimated.
ETA_SECONDS = 3.0


@attrs.define
class TimeLeft:
    """The rest of a run's time, if its budget is used up as fast as since `begun`, its share and seconds then.

    >>> rest = TimeLeft((0.0, 10.0))
    >>> rest.text(0.25, 12.0), rest.text(0.25, 110.0), rest.text(None, 110.0)
    ('', '5:00 left', '')
    """

    begun: tuple[float, float] | None

    def text(self, share: float | None, now: float) -> str:
        """In words; "" where it is not known yet."""
        if share is None:
            return ""
        if self.begun is None:  # a resumed run, whose share is known from now on
            self.begun = share, now
        before, since = self.begun
        if now - since < ETA_SECONDS or not before < share < 1:
            return ""
        return f"{duration((1 - share) * (now - since) / (share - before))} left"


@attrs.define
class Lines:
    """A plain line for every evaluation and every 5 % of the budget, or for every result without a budget.

    >>> lines = Lines(Budget(steps=1000), say=print)
    >>> for steps in (10, 20, 60):
    ...     lines.report({"env_steps": steps, "episode_return": 9.5})
    10 steps  return 9.5
    60 steps  return 9.5
    """

    budget: Budget
    say: Callable[[str], None] = click.echo
    _next: int = attrs.field(default=0, init=False)
    _started: float = attrs.field(factory=clock)
    counter: str = "env_steps"
    rest: TimeLeft = attrs.field(default=attrs.Factory(lambda self: TimeLeft((0.0, self._started)), takes_self=True))
    _best: float | None = attrs.field(default=None, init=False)

    def report(self, result: Result) -> None:
        steps, updates = _number(result, self.counter), _number(result, "updates")
        share = self.budget.share(steps, clock() - self._started, updates)
        left = self.rest.text(share, clock())
        due = share is None or int(share * LINES_PER_BUDGET) >= self._next
        evaluated = result.get("eval_return") is not None
        if not (due or evaluated):
            return
        if share is not None:
            self._next = int(share * LINES_PER_BUDGET) + 1
        evaluations = evaluation_texts(result, self._best)
        self._best = result.get("best_eval_return", self._best)
        texts = [steps_text(result, self.counter), *evaluations, *shown_texts(result, self.counter), left]
        self.say("  ".join(filter(None, texts)))

    def look(self, profile: Profile) -> None:
        pass

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Live:
    """Two lines that follow the newest result, and above them a line for every evaluation.

    Below them a line for each of the first stalls and, if the window is tall enough, the plan with what its operators
    do.
    """

    def __init__(
        self,
        title: str,
        budget: Budget,
        earlier: float = 0.0,
        counter: str = "env_steps",
        plan: Plan | None = None,
    ) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.title, self.budget, self.counter = title, budget, counter
        self.started = clock() - earlier
        self.rest = TimeLeft(None if earlier > ETA_SECONDS else (0.0, clock()))
        self.result: Result = {}
        self.evaluation: Result = {}
        self.profile: Profile | None = None
        self.tree = [] if plan is None else tree_of(plan)
        self.console = Console(highlight=False)
        # Rich draws in its own thread, so that the clock goes on during an evaluation.
        self.live = RichLive(get_renderable=self.draw, console=self.console, refresh_per_second=4, transient=True)
        self.lines = Lines(
            Budget(), say=lambda text: self.console.print(text, markup=False, soft_wrap=True), counter=counter
        )

    def report(self, result: Result) -> None:
        self.result = result
        if result.get("eval_return") is not None:
            self.evaluation = result
            self.lines.report(result)

    def look(self, profile: Profile) -> None:
        self.profile = profile

    def draw(self) -> Any:
        """The display of the newest result."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        elapsed = clock() - self.started
        share = self.budget.share(_number(self.result, self.counter), elapsed, _number(self.result, "updates"))
        head = Table.grid(padding=(0, 2))
        cells: list[Any] = [Text(self.title, style="bold")]
        if share is not None:
            cells.append(ProgressBar(total=1.0, completed=share, width=24))
        limit = "" if self.budget.steps is None else f" of {self.budget.steps:,}"
        cells.append(Text(f"{_number(self.result, self.counter):,}{limit} {CLOCKS[self.counter]}"))
        cells.append(Text("  ".join(filter(None, [duration(elapsed), self.rest.text(share, clock())])), style="dim"))
        head.add_row(*cells)
        texts = shown_texts(self.result, self.counter) or ["waiting for the first result"]
        if "eval_return" in self.evaluation:
            goal = "" if self.budget.goal is None else f" of {goal_text(self.budget.goal)}"
            texts.insert(0, f"eval {return_text(self.evaluation, 'eval_return')}{goal}")
        body = Table.grid()
        body.add_row(head)
        body.add_row(Text("  ".join(texts)))
        if self.profile is not None:
            for line in self.profile.stalls[:MOST_STALLS]:
                body.add_row(Text(printable(f"waits: {line}"), style="yellow", no_wrap=True, overflow="ellipsis"))
            if self.tree and self.console.size.height >= body.row_count + len(self.tree) + LINES_ABOVE:
                body.add_row(self._operators(self.profile))
        return body

    def _operators(self, profile: Profile) -> Any:
        """The plan as a tree, with what each operator did lately."""
        from rich.table import Table
        from rich.text import Text

        table, activity = Table.grid(padding=(0, 2)), profile.activity()
        for justify in ("left", "left", "right", "right"):
            table.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
        for name, path in self.tree:
            if (each := activity.get(path)) is None:
                table.add_row(Text(name, style="dim"))
                continue
            words = "idle" if each.state == "idle" else f"{each.state} {each.shares[each.state]:.0%}"
            holds = "" if each.fill is None else "{:,} of {:,}".format(*each.fill)
            rate = f"{each.rate:,.3g}/s" if each.rate < 1000 else f"{each.rate:,.0f}/s"
            table.add_row(*map(Text, (name, words, rate, holds), ("", STYLES[each.state], "", "dim")))
        return table

    def __enter__(self) -> Live:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()


def tree_of(plan: Plan) -> list[tuple[str, str]]:
    """The lines of a plan's tree, with the path of the operator in each: "" for the name of a branch.

    >>> from flowrl import from_items
    >>> tree_of(from_items([1, 2]).batch(2))
    [('Items', 'Items'), ('batch', 'batch')]
    """
    from flowrl.engine.graph import paths
    from flowrl.inspect.explain import rows_of

    by_id = paths(plan)
    of_rows = [(row, "" if row.node is None else by_id[id(row.node)]) for row in rows_of(plan, by_id)]
    return [(printable(row.bars + (path.rpartition(".")[2] or row.text)), path) for row, path in of_rows]


def summary(
    outcome: str,
    result: Result,
    best: float | None,
    confirmed: float | None,
    seconds: float,
    where: object,
    counter: str = "env_steps",
    evaluation: float = 0.0,
) -> str:
    """The last line of a run, in words; `evaluation` is those of `seconds` that evaluation took.

    >>> summary("goal", {"env_steps": 23456}, 486.25, 491.0, 61.23, "runs/x", evaluation=4.5)
    'goal reached: best eval return 486.2 (confirmed 491.0), 23,456 env steps, 1:01 (evaluation 7 %), in runs/x'
    """
    words = {"goal": "goal reached", "budget": "ended before the goal"}
    parts = []
    if best is not None:
        also = "" if confirmed is None else f" (confirmed {score_text(confirmed)})"
        parts.append(f"best eval return {score_text(best)}{also}")
    elif isinstance(result.get("episode_return"), (int, float)):
        parts.append(f"return {score_text(result['episode_return'])}")
    parts.append(f"{_number(result, counter):,} {counter.replace('_', ' ')}")
    evaluated = f" ({share_text(evaluation / seconds)})" if evaluation else ""
    return f"{words.get(outcome, outcome)}: {', '.join([*parts, duration(seconds)])}{evaluated}, in {where}"


def score_text(score: float) -> str:
    """A return in enough digits to tell it from a goal, which may be a share.

    >>> score_text(1474.66), score_text(-152), score_text(0.9467)
    ('1,474.7', '-152.0', '0.947')
    """
    return f"{score:,.1f}" if abs(score) >= 2 else f"{score:.3f}"


def return_text(result: Result, key: str) -> str:
    """The return under a key; of a game with few agents also what each of them has.

    >>> return_text({"eval_return": 0.0, "eval_return/first": 0.25, "eval_return/second": -0.25}, "eval_return")
    '0.000 (first 0.250, second -0.250)'
    """
    named = {name.removeprefix(f"{key}/"): value for name, value in result.items() if name.startswith(f"{key}/")}
    each = [f"{agent} {score_text(score)}" for agent, score in named.items() if isinstance(score, (int, float))]
    parts = f" ({', '.join(each)})" if 0 < len(each) <= MOST_AGENTS else ""
    return f"{score_text(result[key])}{parts}"


def goal_text(goal: Goal) -> str:
    """A goal as `--stop-return` takes it.

    >>> goal_text(1500.0), goal_text({"left": 475.0, "right": 400.0})
    ('1500', 'left=475 right=400')
    """
    from flowrl.rollout.evaluation import by_agent

    named = by_agent(goal).items()
    return " ".join(f"{name}={least:g}" if name else f"{least:g}" for name, least in named)


def share_text(share: float) -> str:
    """The share of a run's time that evaluation has taken.

    >>> share_text(0.073)
    'evaluation 7 %'
    """
    return f"evaluation {100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Seconds as text.

    >>> duration(4.21), duration(61.23), duration(3723)
    ('4.2 s', '1:01', '1:02:03')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def steps_text(result: Result, counter: str = "env_steps") -> str:
    """The position of the run on its clock."""
    return f"{_number(result, counter):,} {CLOCKS[counter]}"


def evaluation_texts(result: Result, before: float | None = None) -> list[str]:
    """The evaluation scores in a result, if it has any, and the time that evaluation has taken.

    `before` is the best score so far, which a tie does not beat.
    """
    texts = []
    if result.get("eval_return") is not None:
        best = result["eval_return"] == result.get("best_eval_return") != before
        drawn = " stochastic" if result.get("eval_deterministic") is False else ""
        texts.append(f"eval{drawn} {return_text(result, 'eval_return')}" + (" (best)" if best else ""))
    if result.get("confirmed_return") is not None:
        texts.append(f"confirmed {score_text(result['confirmed_return'])}")
    if isinstance(result.get("eval_share"), (int, float)):
        texts.append(f"{share_text(result['eval_share'])} of the time")
    return texts


def shown_texts(result: Result, counter: str = "env_steps") -> list[str]:
    """The usual numbers of a result, as far as it has them."""
    there = [(key, words) for key, words in SHOWN if key != counter and isinstance(result.get(key), (int, float))]
    known = isinstance(result.get("episode_return"), (int, float))
    texts = [f"return {return_text(result, 'episode_return')}"] if known else []
    return texts + [words(result[key]).replace("steps/s", f"{CLOCKS[counter]}/s") for key, words in there]


def _number(result: Result, key: str) -> int:
    value = result.get(key)
    return int(value) if isinstance(value, (int, float)) else 0

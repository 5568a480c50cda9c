"""Breakpoints: a prompt at an operator, with the item that left it, the item's origin, and the operator's state.

A run with breakpoints has a `Look` after every operator, so that one can step from operator to operator. Like
taps, these change nothing (D4). If `PYTHONBREAKPOINT` or `sys.breakpointhook` names another debugger, that
one opens instead, in `Breakpoint.__call__`.
"""

from __future__ import annotations

import cmd
import linecache
import os
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from pprint import pformat
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowrl.engine.graph import graph, paths, rebuilt
from flowrl.engine.operator import describe, operator, operator_state, summarize
from flowrl.engine.protocols import Array, Columns, WorkerContract, WorkersContract
from flowrl.engine.transforms import Breakpoint, Tap
from flowrl.engine.workers.gather import Gather
from flowrl.engine.workers.subplan import SubplanWorker
from flowrl.errors import PlanError
from flowrl.inspect.explain import config_of, explain, relative
from flowrl.interrupts import handling

if TYPE_CHECKING:
    from flowrl.engine.meter import Meter
    from flowrl.engine.plan import Plan
    from flowrl.engine.run import Run

#: Seconds to wait for a command from a pipe; there is no limit at a terminal.
PIPE_SECONDS = 10.0
#: Most lines to show of a value.
LINES = 24
#: Columns with the origin of rows.
PROVENANCE = ("worker", "env_id", "agent", "episode_id", "t", "policy_version")


@operator
class Look:
    """A tap that shows the debugger each item that leaves an operator."""

    hidden: ClassVar[bool] = True  # in explain and in pictures
    debugger: Debugger = attrs.field(repr=False)
    path: str
    site: str
    breakpoints: tuple[Breakpoint, ...]

    def __call__(self, item: Any) -> Any:
        self.debugger.look(self, item)
        return item


def with_looks(plan: Plan) -> tuple[Plan, Callable[[Run], None] | None]:
    """The plan with a `Look` after every operator, if it has breakpoints and no other debugger is set; and what to call
    with the run once it has opened.

    Raises:
        PlanError: a breakpoint is in a part of the plan that runs in other processes, which have no terminal.
    """
    if not any(is_breakpoint(node) for node in graph(plan)) or _another_debugger():
        return plan, None
    by_id, debugger, after = paths(plan), Debugger(plan), _breakpoints(plan)

    def with_look(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        if is_breakpoint(node):
            return inputs[0]  # the `Look` of the operator before it
        here = attrs.evolve(node, inputs=inputs)
        breakpoints = tuple(after.get(id(node), ()))
        elsewhere = bool(WorkersContract(node.on).num_elsewhere)
        if breakpoints and elsewhere:
            raise PlanError(
                f"breakpoint at {by_id[id(node)]}: it runs in other processes, which have no terminal; "
                "use num_workers=0 (flowrl run does so with --break)"
            )
        if elsewhere or node.kind in ("fork", "tap"):  # the readers of a fork show its items
            return here
        return here.then(Look(debugger, by_id[id(node)], node.site, breakpoints), "tap", default="look", site=node.site)

    return rebuilt(plan, with_look), debugger.opened


def is_breakpoint(node: Plan) -> bool:
    """Whether an operator of a plan is a breakpoint."""
    return node.kind == "tap" and isinstance(node.op, Tap) and isinstance(node.op.function, Breakpoint)


def _breakpoints(plan: Plan) -> dict[int, list[Breakpoint]]:
    """The breakpoints after each operator, by `id`; only taps may be in between."""
    after: dict[int, list[Breakpoint]] = {}
    for node in graph(plan):
        if is_breakpoint(node):
            watched = node.inputs[0]
            after.setdefault(id(watched), []).append(node.op.function)
            while watched.kind == "tap":
                watched = watched.inputs[0]
                after.setdefault(id(watched), []).append(node.op.function)
    return after


def _another_debugger() -> bool:
    return "PYTHONBREAKPOINT" in os.environ or sys.breakpointhook is not sys.__breakpointhook__


class Debugger:
    """Decides where a run stops, and opens a prompt there.

    Args:
        plan: The plan without `Look`s.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run: Callable[[], Run | None] = lambda: None
        self._stop_at: str | None = None  # "*": at the next operator, whichever it is
        self._left = False
        self._one_at_a_time = threading.Lock()  # a prefetch may have a separate thread
        self._input = _Lines()
        self._last = ""  # the command that an empty line repeats

    def opened(self, run: Run) -> None:
        """Called when the run has opened; without it there is nothing to inspect."""
        self.run = weakref.ref(run)

    def look(self, look: Look, item: Any) -> None:
        """Open a prompt for an item that has left an operator, if the run stops there."""
        if self._left or not (
            self._stop_at in ("*", look.path) or any(b.when is None or b.when(item) for b in look.breakpoints)
        ):
            return
        run = self.run()
        if run is None:
            return
        # Ctrl-C at the prompt raises KeyboardInterrupt there, whatever the run's handler does.
        with self._one_at_a_time, handling([signal.SIGINT], signal.default_int_handler):
            prompt = Prompt(self.plan, run, look.path, look.site, item, self._input)
            prompt.lastcmd = self._last
            try:
                prompt.cmdloop()
            except KeyboardInterrupt:
                prompt.onecmd("leave")
        self._last = prompt.lastcmd
        self._stop_at = {"step": "*", "next": look.path}.get(prompt.chosen)
        self._left = prompt.chosen == "leave"


#: pdb's short words, and what they stand for here.
PDB = {
    **{"c": "continue", "cont": "continue", "n": "next", "s": "step", "q": "leave", "quit": "leave", "exit": "leave"},
    **{"l": "list", "w": "where", "bt": "where", "pp": "p", "h": "help"},
}


class Prompt(cmd.Cmd):
    """The prompt at one item of one operator."""

    prompt = "(flowrl) "
    doc_header = "Commands (help COMMAND); pdb's c, n, s, q, l, w, p, h work too:"

    def __init__(self, plan: Plan, run: Run, path: str, site: str, item: Any, lines: _Lines) -> None:
        super().__init__()
        self.use_rawinput = lines.terminal
        if not lines.terminal:
            self.stdin = lines  # type: ignore[assignment]
        self.plan, self.run, self.path, self.site, self.item = plan, run, path, site, item
        self.meter = meter_at(run, path)
        self.chosen = "continue"

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        command, argument, line = super().parseline(line)
        command = PDB.get(command or "", command)
        return command, PDB.get(argument or "", argument) if command == "help" else argument, line

    def preloop(self) -> None:
        number = f"item {self.meter.items}" if self.meter is not None else "an item"
        self._say(f"\n{self.path}  {number}  {relative(self.site)}")
        self._say(_shortened(summarize(self.item), 4000))
        if origin := provenance(self.item):
            self._say(origin)

    # -- going on

    def do_step(self, _: str) -> bool:
        """step: go on to the next item that leaves any operator."""
        return self._go("step")

    def do_next(self, _: str) -> bool:
        """next: go on to the next item that leaves this operator."""
        return self._go("next")

    def do_continue(self, _: str) -> bool:
        """continue: go on to the next breakpoint."""
        return self._go("continue")

    def do_leave(self, _: str) -> bool:
        """leave: end the run after this step, as Ctrl-C does; so does the end of the input."""
        self.run.interrupt()
        return self._go("leave")

    def do_EOF(self, _: str) -> bool:
        self._say("leave")
        return self.do_leave("")

    # -- inspecting

    def do_item(self, column: str) -> None:
        """item [COLUMN]: the item with its values, or one column of it."""
        value = self.item
        for name in column.split(".") if column else ():
            try:
                value = value[name]
            except (KeyError, TypeError, IndexError, AttributeError):
                self._say(f"there is no {name!r} in {_shortened(describe(value), 400)}")
                return
        if isinstance(value, Columns):
            width = max((len(str(name)) for name, _ in value.items()), default=0)
            for name, part in value.items():
                self._say(f"{name!s:<{width}}  {describe(part)}  {_in_one_line(part)}")
        else:
            self._say(_in_lines(value))

    def do_state(self, _: str) -> None:
        """state: the operator's configuration, and its state in a checkpoint."""
        if self.meter is None:
            self._say("the operator is not in this process")
            return
        self._say(f"{type(self.meter.op).__name__}({config_of(self.meter.op)})")
        for name, value in operator_state(self.meter.op).items():
            self._say(f"{name} = {_in_lines(_with_short_keys(value))}")

    def do_list(self, _: str) -> None:
        """list: the lines of the plan around the one that added this operator."""
        file, _, number = self.site.rpartition(":")
        at = int(number) if number.isdigit() else 0
        lines = [(n, linecache.getline(file, n)) for n in range(max(1, at - 5), at + 6)]
        shown = [f"{n:>4} {'->' if n == at else '  '} {text.rstrip()}" for n, text in lines if text]
        self._say("\n".join(shown) or f"the source of {self.site} is not there")

    def do_where(self, _: str) -> None:
        """where: the plan, with this operator marked."""
        self._say(explain(self.plan, mark=self.path))

    def do_counters(self, _: str) -> None:
        """counters: the run's counters so far."""
        counters = self.run.counters
        width = max(map(len, counters), default=0)
        self._say("\n".join(f"{unit:<{width}}  {n:,}" for unit, n in sorted(counters.items())) or "nothing yet")

    def do_p(self, expression: str) -> None:
        """p EXPR: the value of a Python expression of `item`, `op` (the operator), `run` and `counters`."""
        names = {"item": self.item, "op": self.meter and self.meter.op, "run": self.run, "counters": self.run.counters}
        try:
            self._say(_in_lines(eval(expression, names)))
        except Exception as error:  # a mistyped expression must not end the run
            self._say(f"{type(error).__name__}: {error}")

    def default(self, line: str) -> None:
        self._say(f"no command {line.split()[0]!r}; help lists them, p EXPR evaluates Python")

    def _go(self, how: str) -> bool:
        self.chosen = how
        return True

    def _say(self, text: str) -> None:
        self.stdout.write(text + "\n")
        self.stdout.flush()

    def completenames(self, text: str, *_: Any) -> list[str]:
        return [name for name in super().completenames(text) if name != "EOF"]

    def get_names(self) -> list[str]:
        return [name for name in super().get_names() if name != "do_EOF"]


class _Lines:
    """Commands that do not come from a terminal. A pause of `PIPE_SECONDS` counts as the end of the input."""

    def __init__(self) -> None:
        self.terminal = sys.stdin is not None and sys.stdin.isatty()
        self._read = b""

    def readline(self) -> str:
        try:
            number = sys.stdin.fileno()
        except (AttributeError, OSError, ValueError):  # no stdin, closed, or not a file
            number = -1
        if number < 0 or sys.platform == "win32":  # where select() takes sockets only
            try:
                return sys.stdin.readline()
            except (AttributeError, OSError, ValueError):
                return ""
        while b"\n" not in self._read:
            if not select.select([number], [], [], PIPE_SECONDS)[0] or not (more := os.read(number, 4096)):
                break
            self._read += more
        line, newline, self._read = self._read.partition(b"\n")
        return (line + newline).decode(errors="replace")


def provenance(item: Any) -> str:
    """The origin of an item's rows, as ranges; "" if it has no such columns."""
    if not isinstance(item, Columns):
        return ""
    found, columns = [], dict(item.items())
    for name in PROVENANCE:
        column: Any = columns.get(name)
        if isinstance(column, Array) and 0 not in column.shape:
            low, high = int(column.min()), int(column.max())
            found.append(f"{name} {low}" if low == high else f"{name} {low}..{high}")
    return ", ".join(found)


def meter_at(run: Run, path: str, worker: int | None = None) -> Meter | None:
    """The running operator at a path, in this run or in the part that a worker in this process runs.

    Args:
        worker: The index of that worker; None: the first.
    """
    for stage in run.stages:
        for meter in stage.meters():
            if meter.path == path:
                return meter
        members = stage.workers.members if isinstance(stage, Gather) else []
        for member in members if worker is None else members[worker : worker + 1]:
            target = WorkerContract(member).target
            part = target.parts.get(stage.meter.path) if isinstance(target, SubplanWorker) else None
            found = None if part is None else meter_at(part, path)
            if found is not None:
                return found
    return None


def _with_short_keys(value: Any) -> Any:
    """The value, with long keys of tables shortened in the middle."""
    if not isinstance(value, dict):
        return value
    keys = {key: f"{key[:16]}...{key[-16:]}" if isinstance(key, str) and len(key) > 40 else key for key in value}
    distinct = len(set(keys.values())) == len(keys)
    return {keys[key] if distinct else key: _with_short_keys(inner) for key, inner in value.items()}


def _in_lines(value: Any) -> str:
    lines = (repr(value) if isinstance(value, Array) else pformat(value, width=100, compact=True)).splitlines()
    return "\n".join(lines if len(lines) <= LINES else [*lines[:LINES], f"... {len(lines) - LINES} more lines"])


def _in_one_line(value: Any) -> str:
    if not isinstance(value, Array):
        return _shortened(repr(value), 80)
    flat = value.reshape(-1)[:6].tolist()
    more = ", ..." if int(value.reshape(-1).shape[0]) > len(flat) else ""
    return f"[{', '.join(f'{v:.4g}' if isinstance(v, float) else str(v) for v in flat)}{more}]"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."

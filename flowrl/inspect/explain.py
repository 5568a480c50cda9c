"""A plan as text: operators in the order of the flow of items, branches before the operator that joins them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.graph import is_hidden, paths
from flowrl.engine.merge import Concurrent, Fork, Sequential
from flowrl.engine.operator import is_operator, name_of
from flowrl.engine.protocols import ResourceContract, Saveable
from flowrl.engine.stages import Generated, Stage
from flowrl.engine.workers.gather import Gather

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan
    from flowrl.engine.run import Run
    from flowrl.engine.schema import Schema

_WIDEST = 72


#: The folder that holds flowrl.
HOME = str(Path(__file__).parents[2])


@attrs.frozen
class Row:
    """A line of the tree: an operator, the name of a branch, or a reference to an operator above."""

    bars: str
    text: str
    node: Plan | None = None
    note: str = ""


def explain(
    plan: Plan,
    mark: str | None = None,
    columns: int | None = None,
    schemas: Callable[[Plan], Mapping[str, Schema]] | None = None,
) -> str:
    """The text tree of a plan: names, configurations, places, the user's lines; an arrow at the path `mark`.

    Where a line has more than `columns` characters, its place and its line in the source follow below it. `schemas`
    finds the items on every edge, by which operators that store them say what they keep once.
    """
    by_id = paths(plan)
    rows = rows_of(plan, by_id)
    if schemas is not None and any(row.node is not None and row.node.contract.into is not None for row in rows):
        found = schemas(plan)
        rows = [_with_what_is_kept_once(row, by_id, found) for row in rows]
    heads = [_head(row) for row in rows]
    if mark is not None:
        marked = [row.node is not None and by_id[id(row.node)] == mark for row in rows]
        heads = [f"{'->' if here else '  '} {head}" for here, head in zip(marked, heads)]
    width, note_width = max(map(len, heads)), max(len(row.note) for row in rows)
    lines = []
    for row, head in zip(rows, heads):
        details = [] if row.node is None else [row.note, relative(row.node.site)]
        line = "  ".join(
            [f"{head:<{width}}", *(f"{each:<{note_width}}" for each in details[:-1]), *details[-1:]]
        ).rstrip()
        if columns is None or len(line) <= columns or not details:
            lines.append(line)
        else:
            lines += [head, "   " * (mark is not None) + row.bars + "     " + "  ".join(filter(None, details))]
    return "\n".join(lines)


def _with_what_is_kept_once(row: Row, by_id: Mapping[int, str], schemas: Mapping[str, Schema]) -> Row:
    if row.node is None or row.node.contract.into is None:
        return row
    kept = ResourceContract(row.node.contract.into).kept_once(schemas[by_id[id(row.node)]])
    return attrs.evolve(row, note=", ".join(filter(None, (row.note, kept))))


def explain_run(run: Run) -> str:
    """The tree with items and shares of the time since the run opened; items per worker, and waiting operators."""
    for stage in run.stages:
        stage.settle(clock())
    meters = {meter.path: meter for meter in run.meters()}
    elapsed = max(clock() - run.started, 1e-9)
    rows = rows_of(run.plan, run.paths)
    heads = [_head(row) for row in rows]
    width = max(len(head) for head in heads)
    lines = [f"{'':<{width}}  {'items':>9}  {'busy':>6}  {'starved':>7}  {'blocked':>7}"]
    for row, head in zip(rows, heads):
        meter = None if row.node is None else meters.get(run.paths[id(row.node)])
        if meter is None:
            lines.append(f"{head:<{width}}  {row.note}".rstrip())
            continue
        shares = (meter.busy / elapsed, meter.starved / elapsed, meter.blocked / elapsed)
        lines.append(
            f"{head:<{width}}  {meter.items:>9}  {shares[0]:>6.1%}  {shares[1]:>7.1%}  {shares[2]:>7.1%}"
            + (f"  skipped {meter.skipped}" if meter.skipped else "")
        )
    lines += [f"workers of {stage.meter.path}: {stage.report()}" for stage in run.stages if isinstance(stage, Gather)]
    told = dict.fromkeys(line for each in run.waits().values() for line in each)
    return "\n".join(lines + [f"waiting: {line}" for line in told])


def config_of(op: Any, without: Any = None) -> str:
    """The configuration of an operator in one line, `without` a resource.

    >>> from flowrl.engine.transforms import Batches
    >>> config_of(Batches(3))
    'size=3'
    """
    if isinstance(op, Concurrent | Sequential):
        emits = "emits " + ", ".join(op.names[i] for i in op.output_indexes)
        ways = [] if isinstance(op, Sequential) else [_ways(op)]
        return ", ".join(ways if len(op.output_indexes) == len(op.names) else [*ways, emits])
    if not is_operator(op):
        return ""
    # Several operators hold the workers; the source shows them.
    fields = [
        field
        for field in attrs.fields(type(op))
        if field.init and field.repr and field.name not in ("names", "workers")
    ]
    values = [(field, vars(op)[field.name]) for field in fields]
    return ", ".join(
        f"{f.name}={_short(v)}" for f, v in values if v is not None and v is not without and not _is_default(f, v)
    )


def _ways(op: Concurrent) -> str:
    weights = ":".join(w if isinstance(w, str) else f"{w:g}" for w in op.weights)
    return f"round_robin {weights}" if op.mode == "round_robin" else op.mode


def _head(row: Row) -> str:
    text = row.bars + row.text
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def rows_of(plan: Plan, by_id: dict[int, str]) -> list[Row]:
    """The lines of a plan's tree; `by_id` maps its nodes to paths."""
    rows: list[Row] = []
    seen: set[int] = set()
    ahead: list[Row | tuple[Plan, str]] = [(plan, "")]  # rows, and operators with those before them; the next one last
    while ahead:
        each = ahead.pop()
        if isinstance(each, Row):
            rows.append(each)
            continue
        node, bars = each
        if id(node) in seen:
            rows.append(Row(bars, f"({by_id[id(node)]}, as above)"))
            continue
        seen.add(id(node))
        if not is_hidden(node):
            config = config_of(node.op)
            name = by_id[id(node)].rpartition(".")[2]
            ahead.append(Row(bars, f"{name}({config})" if config else name, node, note_of(node)))
        if not node.branches:
            ahead += [(upstream, bars) for upstream in node.inputs]
        for name, upstream in reversed(list(zip(node.branches, node.inputs))):
            ahead += [(upstream, bars + "│  "), Row(bars, f"├─ {name}:")]
    return rows


def note_of(node: Plan) -> str:
    """Where an operator runs, or a caveat on it."""
    if node.on is not None:
        return repr(node.on)
    if isinstance(node.op, Stage) and node.op.thread:
        return "in a thread: not bit-exact"
    if isinstance(node.op, Generated):
        return "a resume skips the consumed"
    if isinstance(node.op, Fork):
        return f"at most {node.op.max_lag} item{'s' * (node.op.max_lag > 1)} apart"
    return ResourceContract(node.contract.learns).caveat


def relative(site: str) -> str:
    """file:line, from the current folder, or from the one that holds flowrl, if the file is below it."""
    for folder in (os.getcwd(), HOME):
        if site.startswith(folder + os.sep):
            return site[len(folder) + 1 :]
    return site


def _is_default(field: attrs.Attribute[Any], value: Any) -> bool:
    return type(value) is type(field.default) and bool(value == field.default)


def _short(value: Any) -> str:
    if isinstance(value, type) or (callable(value) and not isinstance(value, Saveable)):
        return name_of(value)
    if isinstance(value, (list, tuple, range)) and len(value) > 6:
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__}(...)"

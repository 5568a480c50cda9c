"""The layout of a plan's picture: boxes, the arrows between them, areas of workers.

Items flow downwards. Consecutive operators form one column of boxes, which ends at the join that reads it or at a
fork. Columns that feed one join stand side by side, and a column that several share is centred above them.
So the columns form a tree. All text is monospaced, so its width is known without a font.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.graph import graph, is_hidden, paths, rebuilt
from flowrl.engine.merge import Concurrent, Fork, Sequential
from flowrl.engine.protocols import ResourceContract
from flowrl.inspect.explain import config_of, note_of

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan

#: Pixels between boxes of a column, between columns, between a column and the join or fork beside it.
STEP, GUTTER, JOIN = 24, 48, 52
#: Pixels around an area of workers, and above it for its title.
PAD, TITLE = 11, 25
#: Pixels per letter of a name, which is bold, and of other text.
NAME, TEXT = 8.2, 6.65
#: Most letters per line, and most lines, of a configuration.
WIDEST, MOST = 34, 4


@attrs.define(eq=False)
class Box:
    """An operator, or a store that operators share; `x` is its center and `y` its upper edge.

    `path` is that of the operator, or of the first one that draws from the store.
    """

    name: str
    look: str  # source, transform, join, tap or store
    lines: list[str]
    note: str = ""
    path: str = ""
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(92.0, 30 + max(NAME * letters(self.name), *(TEXT * letters(t) for t in (*self.lines, self.note))))

    @property
    def height(self) -> float:
        details = len(self.lines) + bool(self.note)
        return 29 + 15 * details + (3 if details else 0) + (14 if self.look == "store" else 0)


@attrs.define(eq=False)
class Arrow:
    """A stream from box to box; `faint` if the join does not emit its items, `hidden` if a store carries it."""

    start: Box
    end: Box
    label: str = ""
    faint: bool = False
    hidden: bool = False


@attrs.define(eq=False)
class Area:
    """Boxes of one column that run on workers."""

    title: str
    boxes: list[Box]

    @property
    def half(self) -> float:
        """Half its width."""
        return PAD + max(*(box.width / 2 for box in self.boxes), TEXT / 2 * letters(self.title))

    @property
    def top(self) -> float:
        return self.boxes[0].y - TITLE

    @property
    def bottom(self) -> float:
        return self.boxes[-1].y + self.boxes[-1].height + PAD


@attrs.define
class PlanPicture:
    """Boxes, arrows and areas with their positions; the upper left corner is 0, 0."""

    boxes: list[Box]
    arrows: list[Arrow]
    areas: list[Area]
    width: float
    height: float


@attrs.define(eq=False)
class _Column:
    """`low` is the distance of its lower edge from the picture's; it reserves the space above it up to `reach`."""

    nodes: list[Plan]
    boxes: list[Box]
    width: float
    height: float
    reads: list[_Column] = attrs.field(factory=list)
    read_by: list[_Column] = attrs.field(factory=list)
    low: float = 0.0
    reach: float = 0.0
    x: float = 0.0

    @property
    def high(self) -> float:
        return self.low + self.height


def layout(plan: Plan) -> PlanPicture:
    """Compute the positions of a plan's boxes, and the arrows between them."""
    plan = rebuilt(plan, lambda node, inputs: inputs[0] if is_hidden(node) else attrs.evolve(node, inputs=inputs))
    by_id, nodes = paths(plan), graph(plan)
    boxes = {id(node): _box(node, by_id[id(node)]) for node in nodes}
    arrows = [
        Arrow(boxes[id(upstream)], boxes[id(node)], *_branch(node, i))
        for node in nodes
        for i, upstream in enumerate(node.inputs)
    ]
    stores, hidden = _stores(nodes, boxes)
    rows = _rows_of(nodes)
    on_workers = [[node for node in row if node.on is not None] for row in rows]
    areas = [Area(repr(row[0].on), [boxes[id(node)] for node in row]) for row in on_workers if row]
    columns = [_column(row, boxes, stores, areas) for row in rows]
    _connect(columns)
    root = next(column for column in columns if column.nodes[-1] is plan)
    _place_tree(root, _owners(root, columns))
    left = min(column.x - column.width / 2 for column in columns)
    high = max(column.high for column in columns)
    for column in columns:
        for box in column.boxes:
            box.x, box.y = column.x - left, box.y + high - column.high
    width = max(column.x + column.width / 2 for column in columns) - left
    return PlanPicture([*boxes.values(), *stores.values()], arrows + hidden, areas, width, high)


def letters(text: str) -> int:
    """The width of a text in letters of a monospaced font.

    >>> letters("store"), letters("保存")
    (5, 4)
    """
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


# -- boxes, stores and columns


def _box(node: Plan, path: str) -> Box:
    joins = node.branches or isinstance(node.op, Fork)
    look = "tap" if node.kind == "tap" else "source" if not node.inputs else "join" if joins else "transform"
    note = "" if node.on is not None or joins else note_of(node)
    return Box(path.rpartition(".")[2], look, _wrapped(config_of(node.op)), note, path)


def _branch(node: Plan, branch: int) -> tuple[str, bool]:
    """The name of a branch of a join, and whether the join drops its items."""
    if not node.branches:
        return "", False
    silent = isinstance(node.op, Concurrent | Sequential) and branch not in node.op.output_indexes
    return node.branches[branch], silent


def _stores(nodes: list[Plan], boxes: dict[int, Box]) -> tuple[dict[int, Box], list[Arrow]]:
    """The stores of a plan, by the first source that draws from each, and the arrows to and from them."""
    stores: dict[int, Box] = {}
    arrows: list[Arrow] = []
    seen: list[Any] = []
    for source in nodes:
        resource = source.contract.out_of
        if resource is None or any(resource is other for other in seen):
            continue
        seen.append(resource)
        kind, _, config = repr(resource).partition("(")
        store = stores[id(source)] = Box(kind, "store", _wrapped(config.removesuffix(")")), path=boxes[id(source)].path)
        for node in nodes:
            into, out_of = node.contract.into, node.contract.out_of
            fills = any(into is store for store in (resource, *ResourceContract(resource).parts))
            if fills or out_of is resource:
                box = boxes[id(node)]
                box.lines = _wrapped(config_of(node.op, without=into if fills else resource))
                arrows.append(Arrow(box, store, hidden=True) if fills else Arrow(store, box, hidden=True))
    return stores, arrows


def _wrapped(config: str) -> list[str]:
    """A configuration in lines, broken after commas."""
    lines: list[str] = []
    for part in config.split(", ") if config else []:
        part = part if letters(part) <= WIDEST else part[: WIDEST - 3] + "..."
        if lines and letters(lines[-1]) + letters(part) + 2 <= WIDEST:
            lines[-1] += f", {part}"
        else:
            lines = [*lines[:-1], f"{lines[-1]},", part] if lines else [part]
    return lines if len(lines) <= MOST else [*lines[: MOST - 1], "..."]


def _rows_of(nodes: list[Plan]) -> list[list[Plan]]:
    """The operators of each column, from first to last."""
    row_of: dict[int, list[Plan]] = {}
    for node in nodes:
        alone = len(node.inputs) != 1 or bool(node.branches) or isinstance(node.inputs[0].op, Fork)
        row = [] if alone else row_of[id(node.inputs[0])]
        row.append(node)
        row_of[id(node)] = row
    return list({id(row): row for row in row_of.values()}.values())


def _column(row: list[Plan], boxes: dict[int, Box], stores: dict[int, Box], areas: list[Area]) -> _Column:
    """A column with the positions of its boxes in it."""
    stack = [stores[id(row[0])]] if id(row[0]) in stores else []
    stack += [boxes[id(node)] for node in row]
    inside = [area for area in areas if area.boxes[0] in stack]
    y = -float(STEP)
    for box in stack:
        y += STEP + (TITLE if any(box is area.boxes[0] for area in inside) else 0)
        box.y = y
        y += box.height + (PAD if any(box is area.boxes[-1] for area in inside) else 0)
    return _Column(row, stack, max([box.width for box in stack] + [2 * area.half for area in inside]), y)


# -- positions


def _connect(columns: list[_Column]) -> None:
    """Link columns to their readers, make room for the names of branches, and compute the heights of columns."""
    by_end = {id(column.nodes[-1]): column for column in columns}
    for column in columns:
        first = column.nodes[0]
        for i, upstream in enumerate(first.inputs):
            above = by_end[id(upstream)]
            column.reads.append(above)
            above.read_by.append(column)
            above.width = max(above.width, 2 * (12 + TEXT * letters(_branch(first, i)[0])))
    for column in reversed(columns):  # the readers of a column come after it
        column.low = max((reader.high + JOIN for reader in column.read_by), default=0.0)
    for column in columns:
        column.reach = column.reads[0].low if len(column.reads) == 1 else column.high + STEP


def _owners(root: _Column, columns: list[_Column]) -> dict[int, list[_Column]]:
    """The columns above each one in the tree; a column with several readers is above the join that they all reach."""
    owner: dict[int, _Column] = {}
    level = {id(root): 0}
    above: dict[int, list[_Column]] = {id(column): [] for column in columns}
    for column in sorted(columns, key=lambda column: column.low):  # readers first
        for reader in column.read_by:
            reached = owner.setdefault(id(column), reader)
            while reached is not reader:
                if level[id(reached)] < level[id(reader)]:
                    reader = owner[id(reader)]
                else:
                    reached = owner[id(reached)]
            owner[id(column)] = reached
        if column is not root:
            level[id(column)] = level[id(owner[id(column)])] + 1
            above[id(owner[id(column)])].append(column)
    return above


def _place_tree(root: _Column, above: dict[int, list[_Column]]) -> None:
    """Place a column at x = 0 and the columns above it around it, and so on."""
    order = [root]
    for column in order:
        order += above[id(column)]
    subtrees: dict[int, list[_Column]] = {}
    for column in reversed(order):
        subtrees[id(column)] = _place_subtree(column, above[id(column)], subtrees)


def _place_subtree(root: _Column, above: list[_Column], subtrees: dict[int, list[_Column]]) -> list[_Column]:
    """Place the subtrees above a column around it; returns all of these columns."""
    branches = [column for column in root.reads if column in above]
    placed: list[_Column] = []
    for column in branches:
        _put_beside(placed, subtrees.pop(id(column)))
    if branches:  # the column is below the middle branch, or between the middle two
        count = len(branches)
        middle = (branches[(count - 1) // 2].x + branches[count // 2].x) / 2
        for column in placed:
            column.x -= middle
    for column in above:
        if column not in branches:
            _put_over(placed, subtrees.pop(id(column)), column)
    return [*placed, root]


def _put_beside(placed: list[_Column], columns: list[_Column]) -> None:
    """Move columns, together, to the right of those at the same height."""
    shift = max(
        (
            a.x + (a.width + b.width) / 2 + GUTTER - b.x
            for a in placed
            for b in columns
            if a.low < b.reach + STEP and b.low < a.reach + STEP
        ),
        default=0.0,
    )
    for column in columns:
        column.x += shift
    placed += columns


def _put_over(placed: list[_Column], columns: list[_Column], shared: _Column) -> None:
    """Move columns, together, over the readers of a shared one, and above all columns between these readers."""
    readers = [reader.x for reader in shared.read_by]
    shift = (min(readers) + max(readers)) / 2
    for column in columns:
        column.x += shift
    left = min(min(readers), *(column.x - column.width / 2 for column in columns))
    right = max(max(readers), *(column.x + column.width / 2 for column in columns))
    between = [p.high for p in placed if p.x - p.width / 2 < right and p.x + p.width / 2 > left]
    raised = max(0.0, max(between) + JOIN - shared.low)
    for column in columns:
        column.low += raised
        column.reach += raised
    placed += columns

"""A plan as a picture: SVG or Mermaid text, written without another program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from flowrl.errors import PlanError, did_you_mean
from flowrl.inspect.layout import NAME, TEXT, Area, Arrow, Box, PlanPicture, layout, letters

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan

MARGIN = 24
#: Half the height of the upper and lower ellipse of a store.
LID = 7

_FONT = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
#: By name: light, dark.
_COLORS = {
    "paper": ("#ffffff", "#16191f"),
    "ink": ("#1c2430", "#e8ecf2"),
    "soft": ("#566173", "#a3afc0"),
    "line": ("#7b8798", "#8592a5"),
    "source": ("#e2f4e8", "#1c3a2a"),
    "source-edge": ("#3f9a63", "#57b980"),
    "transform": ("#eaf1fc", "#1f2e47"),
    "transform-edge": ("#5b86c9", "#6f9ae0"),
    "join": ("#f1eafb", "#33284a"),
    "join-edge": ("#8d68c4", "#a686db"),
    "tap": ("#fdf6e0", "#3a331c"),
    "tap-edge": ("#b8932f", "#cda944"),
    "store": ("#fdeede", "#40301f"),
    "store-edge": ("#c77f35", "#dd9a53"),
    "area": ("#f5f7fa", "#1d222b"),
    "area-edge": ("#c3cbd8", "#3b4555"),
}


def draw(plan: Plan, path: str | Path) -> None:
    """Write a plan as a picture: ".svg", or ".mmd" for Mermaid text.

    Raises:
        PlanError: another suffix, or the file cannot be written.
    """
    path = Path(path)
    formats: dict[str, Callable[[PlanPicture], str]] = {".svg": svg, ".mmd": mermaid}
    if path.suffix not in formats:
        raise PlanError(f"draw: {str(path)!r} must end with .svg or .mmd; {did_you_mean(path.suffix, formats)}")
    try:
        path.write_text(formats[path.suffix](layout(plan)), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"draw: cannot write {path}: {error.strerror or error}") from error


def svg(picture: PlanPicture) -> str:
    """The picture as a self-contained SVG file: no scripts, no fonts, light and dark.

    A program finds an operator by the attribute `data-path`, and a store by the `data-store` of what draws from it.
    """
    width, height = picture.width + 2 * MARGIN, picture.height + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-MARGIN} {-MARGIN} {width:.0f} {height:.0f}" role="img">',
        f"<title>a plan of {sum(box.look != 'store' for box in picture.boxes)} operators</title>",
        f"<style>{_style()}</style>",
        f"<defs>{_marker('head')}{_marker('store-head')}</defs>",
        f'<rect class="paper" x="{-MARGIN}" y="{-MARGIN}" width="{width:.0f}" height="{height:.0f}" rx="8"/>',
        *map(_svg_area, picture.areas),
        *map(_svg_arrow, picture.arrows),  # before the boxes, so that lines pass behind them
        *map(_svg_box, picture.boxes),
        *map(_svg_label, (arrow for arrow in picture.arrows if arrow.label)),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def mermaid(picture: PlanPicture) -> str:
    """The picture as Mermaid text, without positions: Mermaid computes the layout."""
    names = {id(box): f"n{i}" for i, box in enumerate(picture.boxes)}
    shapes = {"source": ("([", "])"), "store": ("[(", ")]"), "join": ("{{", "}}")}
    lines = ["flowchart TB"]

    def add(box: Box, indent: str) -> None:
        opening, closing = shapes.get(box.look, ("[", "]"))
        details = [f"<small>{_entities(text)}</small>" for text in (*box.lines, box.note) if text]
        text = "<br/>".join([f"<b>{_entities(box.name)}</b>", *details])
        lines.append(f'{indent}{names[id(box)]}{opening}"{text}"{closing}')

    inside = {id(box) for area in picture.areas for box in area.boxes}
    for number, area in enumerate(picture.areas):
        lines.append(f'  subgraph w{number} ["{_entities(area.title)}"]')
        for box in area.boxes:
            add(box, "    ")
        lines.append("  end")
    for box in picture.boxes:
        if id(box) not in inside:
            add(box, "  ")
    for arrow in picture.arrows:
        line = "-.->" if arrow.faint or arrow.hidden else "-->"
        label = f'|"{_entities(arrow.label)}"|' if arrow.label else ""
        lines.append(f"  {names[id(arrow.start)]} {line}{label} {names[id(arrow.end)]}")
    return "\n".join(lines) + "\n"


def _style() -> str:
    rules = [
        f"text{{font-family:{_FONT};font-size:11px;fill:var(--soft)}}",
        "text.name{font-size:13.5px;font-weight:700;fill:var(--ink)}",
        "text.note{font-style:italic}",
        "path.arrow{fill:none;stroke:var(--line);stroke-width:1.5}",
        "path.faint{stroke-dasharray:2 4}",
        "path.hidden{stroke:var(--store-edge);stroke-dasharray:6 4}",
        "path.head{fill:var(--line)}",
        "path.store-head{fill:var(--store-edge)}",
        ".paper{fill:var(--paper)}",
        ".area{fill:var(--area);stroke:var(--area-edge);stroke-dasharray:4 3}",
        *(
            f".{look}{{fill:var(--{look});stroke:var(--{look}-edge);stroke-width:1.3}}"
            for look in ("source", "transform", "join", "tap", "store")
        ),
    ]
    text = "".join(rules)
    light = {f"var(--{name})": colors[0] for name, colors in _COLORS.items()}
    dark = {f"var(--{name})": colors[1] for name, colors in _COLORS.items()}
    # Plain colors, since not every viewer supports CSS variables.
    return f"{_with(text, light)}@media(prefers-color-scheme:dark){{{_with(text, dark)}}}"


def _with(text: str, colors: dict[str, str]) -> str:
    for name, color in colors.items():
        text = text.replace(name, color)
    return text


def _marker(name: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path class="{name}" d="M0 0.5 L8 4 L0 7.5 Z"/></marker>'
    )


def _svg_box(box: Box) -> str:
    left, top, width, height = box.x - box.width / 2, box.y, box.width, box.height
    if box.look == "store":
        right, low, half = left + width, top + height - LID, width / 2
        shape = (
            f'<path class="store" d="M{left:.1f} {top + LID:.1f} A{half:.1f} {LID} 0 0 1 {right:.1f} {top + LID:.1f} '
            f'V{low:.1f} A{half:.1f} {LID} 0 0 1 {left:.1f} {low:.1f} Z"/>'
            f'<path class="store" d="M{left:.1f} {top + LID:.1f} A{half:.1f} {LID} 0 0 0 {right:.1f} {top + LID:.1f}"/>'
        )
    else:
        radius = height / 2 if box.look == "source" and height < 40 else 16 if box.look == "source" else 5
        shape = (
            f'<rect class="{box.look}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{radius:.1f}"/>'
        )
    y = top + 19 + (11 if box.look == "store" else 0)
    texts = [_svg_text("name", box.x, y, box.name)]
    details = [("", line) for line in box.lines] + ([("note", box.note)] if box.note else [])
    texts += [_svg_text(kind, box.x, y + 17 + 15 * i, text) for i, (kind, text) in enumerate(details)]
    key = "store" if box.look == "store" else "path"
    return f"<g data-{key}={quoteattr(box.path)}>{shape}{''.join(texts)}</g>"


def _svg_text(kind: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    # The browser keeps to this length even with a wider font.
    length = (NAME if kind == "name" else TEXT) * letters(text)
    css_class = f' class="{kind}"' if kind else ""
    return (
        f'<text{css_class} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" textLength="{length:.1f}" '
        f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{escape(text)}</text>'
    )


def _svg_area(area: Area) -> str:
    left, x = area.boxes[0].x - area.half, area.boxes[0].x
    return (
        f'<rect class="area" x="{left:.1f}" y="{area.top:.1f}" width="{2 * area.half:.1f}" '
        f'height="{area.bottom - area.top:.1f}" rx="9"/>' + _svg_text("", x, area.top + 16, area.title)
    )


def _svg_arrow(arrow: Arrow) -> str:
    kind = "arrow" + (" faint" if arrow.faint else "") + (" hidden" if arrow.hidden else "")
    head = "store-head" if arrow.hidden else "head"
    return f'<path class="{kind}" d="{_way(arrow)}" marker-end="url(#{head})"/>'


def _way(arrow: Arrow) -> str:
    a, b = arrow.start, arrow.end
    x, y, end_x, end_y = a.x, a.y + a.height, b.x, b.y
    if arrow.hidden and (a.look != "store" or abs(x - end_x) > 1 or end_y < y):
        return _curve(a, b)
    if abs(x - end_x) < 1:
        return f"M{x:.1f} {y:.1f} V{end_y:.1f}"
    # The arrow runs sideways just above a join, or just below a fork.
    turn = end_y - 20 if arrow.label else y + 20
    side = 1 if end_x > x else -1
    bend = min(9.0, abs(end_x - x) / 2)
    return (
        f"M{x:.1f} {y:.1f} V{turn - bend:.1f} q0 {bend:.1f} {side * bend:.1f} {bend:.1f} "
        f"H{end_x - side * bend:.1f} q{side * bend:.1f} 0 {side * bend:.1f} {bend:.1f} V{end_y:.1f}"
    )


def _curve(a: Box, b: Box) -> str:
    """From the side of one box to the facing side of the other, within the space between them."""
    side = 1 if b.x > a.x else -1
    x, end_x = a.x + side * a.width / 2, b.x - side * b.width / 2
    y, end_y = a.y + a.height / 2, b.y + b.height / 2
    if side * (end_x - x) < 10:  # one box is above the other: go around both
        x, end_x = a.x + a.width / 2, b.x + b.width / 2
        out = max(x, end_x) + 36
        return f"M{x:.1f} {y:.1f} C{out:.1f} {y:.1f} {out:.1f} {end_y:.1f} {end_x:.1f} {end_y:.1f}"
    middle = (x + end_x) / 2
    return f"M{x:.1f} {y:.1f} C{middle:.1f} {y:.1f} {middle:.1f} {end_y:.1f} {end_x:.1f} {end_y:.1f}"


def _svg_label(arrow: Arrow) -> str:
    start = arrow.start
    return _svg_text("", start.x + 8, start.y + start.height + 18, arrow.label, "start")


def _entities(text: str) -> str:
    """Escape the characters of Mermaid's syntax."""
    special = '"#<>&;|[](){}`'
    return "".join(f"#{ord(letter)};" if letter in special else letter for letter in text)

"""draw(): pictures that can be read: every operator in its place, nothing over anything else, valid and escaped."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from flowrl import Plan, Queue, from_items, from_workers, operator
from flowrl.errors import PlanError
from flowrl.inspect.layout import Box, layout
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue
from tests.engine.engine_parts import InlineWorkers, Numbers, Total

SVG = "{http://www.w3.org/2000/svg}"


def linear() -> Plan:
    return from_items([1, 2, 3]).for_each(Total(2)).batch(2).flatten().filter(bool).take(3)


def on_workers() -> Plan:
    return from_workers(InlineWorkers(3), Numbers(3)).for_each(Total()).gather_async(2).prefetch(2, thread=True)


def through_a_queue() -> Plan:
    queue = Queue(4)
    put = from_items(range(9)).for_each(Enqueue(queue))
    return Concurrently({"put": put, "get": Dequeue(queue)}, output_indexes=["get"])


def nested() -> Plan:
    a, b, c = from_items(range(9), name="numbers").for_each(Total(), name="scale").duplicate(3, max_lag=8)
    inner = Concurrently({"fast": a.batch(2), "slow": from_items(range(5)).for_each(str).for_each(len).for_each(abs)})
    return Concurrently({"inner": inner, "zipped": b.zip(through_a_queue()), "all": c.union(from_items([1]))}).tap(
        "scale", repr
    )


def forks_of_forks() -> Plan:
    a, b = from_items([1]).duplicate(2)
    c, d = a.for_each(Total()).duplicate(2)
    tall = from_items([2]).batch(2).batch(2).batch(2).batch(2)
    return Concurrently({"c": c, "tall": tall, "d": d.zip(b)})


def long() -> Plan:
    plan = from_items(range(3))
    for i in range(25):
        plan = plan.for_each(str, name=f"operator_{i}")
    return plan


def any_plan(draw: random.Random, depth: int) -> Plan:
    """Joins of forks of joins, with columns of any length."""

    def column(plan: Plan) -> Plan:
        for _ in range(draw.randint(0, 3)):
            plan = plan.batch(draw.randint(2, 99_999)) if draw.random() < 0.5 else plan.flatten()
        return plan

    choice = draw.random() if depth else 0.0
    if choice < 0.25:
        return column(from_items([1] * draw.randint(1, 9)))
    count = draw.randint(2, 4)
    if choice < 0.5:
        branches = [column(reader) for reader in any_plan(draw, depth - 1).duplicate(count)]
        branches += [any_plan(draw, depth - 1)] if draw.random() < 0.5 else []
        draw.shuffle(branches)
    else:
        branches = [any_plan(draw, depth - 1) for _ in range(count)]
    if draw.random() < 0.3:
        return column(branches[0].zip(*branches[1:]))
    return column(Concurrently({"b" * draw.randint(1, 30) + str(i): branch for i, branch in enumerate(branches)}))


PLANS: dict[str, Callable[[], Plan]] = {
    each.__name__: each for each in (linear, on_workers, through_a_queue, nested, forks_of_forks, long)
}


PLANS |= {f"any-{seed}": partial(lambda seed: any_plan(random.Random(seed), 3), seed) for seed in range(20)}
NAMES = [name for name in PLANS if not name.startswith("any-")]


def sides(box: Box) -> tuple[float, float, float, float]:
    return box.x - box.width / 2, box.y, box.x + box.width / 2, box.y + box.height


def drawn(plan: Plan, folder: Path) -> ET.Element:
    plan.draw(folder / "plan.svg")
    return ET.parse(folder / "plan.svg").getroot()


@pytest.mark.parametrize("name", PLANS)
def test_no_box_lies_on_another_and_all_are_inside_the_picture(name: str) -> None:
    shown = layout(PLANS[name]())
    for a, b in combinations(shown.boxes, 2):
        (left, top, right, bottom), (left_b, top_b, right_b, bottom_b) = sides(a), sides(b)
        apart = right <= left_b or right_b <= left or bottom <= top_b or bottom_b <= top
        assert apart, f"{a.name} lies on {b.name}"
    for box in shown.boxes:
        left, top, right, bottom = sides(box)
        assert left >= -1e-6
        assert top >= -1e-6
        assert right <= shown.width + 1e-6
        assert bottom <= shown.height + 1e-6


@pytest.mark.parametrize("name", PLANS)
def test_items_flow_downwards_and_areas_hold_their_boxes_alone(name: str) -> None:
    shown = layout(PLANS[name]())
    for arrow in shown.arrows:
        if not arrow.hidden:
            assert arrow.start.y + arrow.start.height < arrow.end.y
    for area in shown.areas:
        x = area.boxes[0].x
        for box in shown.boxes:
            left, top, right, bottom = sides(box)
            if box in area.boxes:
                assert x - area.half <= left
                assert right <= x + area.half
                assert area.top <= top
                assert bottom <= area.bottom
            else:
                assert right <= x - area.half or left >= x + area.half or bottom <= area.top or top >= area.bottom


@pytest.mark.parametrize("name", NAMES)
def test_every_text_fits_its_box(name: str, tmp_path: Path) -> None:
    """The width of a text is stated in the file, so that it holds with every font."""
    root = drawn(PLANS[name](), tmp_path)
    left, _, width, _ = map(float, root.get("viewBox", "").split())
    boxes = layout(PLANS[name]()).boxes
    checked = 0
    for text in root.iter(f"{SVG}text"):
        x, half = float(text.get("x", "")), float(text.get("textLength", "")) / 2
        y = float(text.get("y", ""))
        for box in (box for box in boxes if abs(box.x - x) < 0.1 and box.y < y < box.y + box.height):
            checked += 1
            assert text.text in (box.name, *box.lines, box.note)
            assert x - half >= box.x - box.width / 2 + 6, text.text
            assert x + half <= box.x + box.width / 2 - 6, text.text
            assert box.y + 10 < y < box.y + box.height - 3
        assert left <= x - half
        assert x + half <= left + width
    assert checked == sum(1 + len(box.lines) + bool(box.note) for box in boxes)


def test_a_picture_shows_names_configuration_places_branches_and_bounds(tmp_path: Path) -> None:
    texts = [text.text for text in drawn(nested(), tmp_path).iter(f"{SVG}text")]
    assert {"numbers", "scale", "duplicate", "readers=3, max_lag=8", "tap(repr)", "Queue", "0 of 4"} <= set(texts)
    assert {"inner", "zipped", "all", "fast", "slow"} <= set(texts)
    texts = [text.text for text in drawn(on_workers(), tmp_path).iter(f"{SVG}text")]
    assert {"3 inline workers", "n=3", "in_flight=2", "n=2, thread=True", "in a thread: not bit-exact"} <= set(texts)


def test_what_a_store_hides_is_a_dashed_arrow_through_it() -> None:
    shown = layout(through_a_queue())
    hidden = [(arrow.start.name, arrow.end.name) for arrow in shown.arrows if arrow.hidden]
    assert hidden == [("Enqueue", "Queue"), ("Queue", "Dequeue")]
    faint = {arrow.label: arrow.faint for arrow in shown.arrows if arrow.label}
    assert faint == {"put": True, "get": False}, "items of a branch that do not come out"


def test_the_file_stands_alone_in_light_and_dark(tmp_path: Path) -> None:
    root = drawn(nested(), tmp_path)
    text = (tmp_path / "plan.svg").read_text()
    assert "prefers-color-scheme:dark" in text
    assert "var(" not in text
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"], "nothing is fetched"
    assert not list(root.iter(f"{SVG}script"))


def test_names_and_configuration_are_escaped(tmp_path: Path) -> None:
    @operator
    class Holds:
        """Has text that XML and Mermaid would take for syntax."""

        text: str

        def __call__(self, item: object) -> object:
            return item

    plan = from_items([1]).for_each(Holds('<b>&"]--> %% 保存'), name='a<b & "c"')
    texts = [text.text for text in drawn(plan, tmp_path).iter(f"{SVG}text")]
    assert 'a<b & "c"' in texts
    assert "text='<b>&\"]--> %% 保存'" in texts
    plan.draw(tmp_path / "plan.mmd")
    line = next(line for line in (tmp_path / "plan.mmd").read_text().splitlines() if "保存" in line)
    assert re.fullmatch(r'  n1\["<b>[^"<>]*</b><br/><small>[^"<>]*</small>"\]', line)


def test_mermaid_has_the_same_boxes_and_arrows(tmp_path: Path) -> None:
    on_workers().draw(tmp_path / "plan.mmd")
    assert (tmp_path / "plan.mmd").read_text() == (
        "flowchart TB\n"
        '  subgraph w0 ["3 inline workers"]\n'
        '    n0(["<b>Numbers</b><br/><small>n=3</small>"])\n'
        '    n1["<b>Total</b>"]\n'
        "  end\n"
        '  n2["<b>gather_async</b><br/><small>in_flight=2</small>"]\n'
        '  n3["<b>prefetch</b><br/><small>n=2, thread=True</small><br/><small>in a thread: not bit-exact</small>"]\n'
        "  n0 --> n1\n  n1 --> n2\n  n2 --> n3\n"
    )
    through_a_queue().draw(tmp_path / "plan.mmd")
    arrows = [line.strip() for line in (tmp_path / "plan.mmd").read_text().splitlines() if ">" in line.split('"')[0]]
    text = (tmp_path / "plan.mmd").read_text()
    assert 'n4[("<b>Queue</b>' in text
    assert {"n0 --> n1", "n1 -.-> n4", "n4 -.-> n2"} <= set(arrows)
    assert 'n1 -.->|"put"| n3' in text
    assert 'n2 -->|"get"| n3' in text


def test_long_configuration_is_wrapped_and_cut() -> None:
    plan = from_items([1]).for_each(Total(), name="n" * 90)
    assert layout(plan).boxes[1].width > 90 * 8
    many = Concurrently([from_items([i]) for i in range(30)], round_robin_weights=[1.25] * 30, output_indexes=[0, 1])
    (box,) = [box for box in layout(many).boxes if box.look == "join"]
    assert max(map(len, box.lines)) <= 35


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"must end with .svg or .mmd; did you mean '.svg'"):
        linear().draw(tmp_path / "plan.sv")
    with pytest.raises(PlanError, match="No such file or directory"):
        linear().draw(tmp_path / "nowhere" / "plan.svg")

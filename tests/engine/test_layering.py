"""Who may import whom: the lines of `MAY_IMPORT` are the architecture."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LINKED = {"operators", "plans"}  # folders beside flowrl that are linked into it

#: Rooms from the ground up, and what each may import of those below it. Every room may import the single files of
#: `flowrl/` that are listed in `GROUND`.
MAY_IMPORT = {
    "engine": "",
    "inspect": "engine",
    "storage": "",
    "actors": "engine",
    "data": "engine storage actors",
    "envs": "engine storage data",
    "networks": "data envs",
    "models": "engine data networks",
    "policies": "storage data envs networks",
    "learners": "engine actors data networks policies",
    "rollout": "engine actors data envs networks policies learners",
    "operators": "engine data envs networks models policies learners rollout",
    "runs": "engine inspect storage data envs networks policies rollout operators",
    "trainer": "engine inspect storage actors data envs networks policies rollout operators runs",
    "plans": "engine data networks models policies rollout operators runs trainer",
    "tools": "engine inspect storage actors data envs networks policies rollout operators runs trainer",
    "cli": "engine inspect storage rollout runs tools trainer",
}
GROUND = {
    "_lazy",
    "_version",
    "blas",
    "errors",
    "frames",
    "interrupts",
    "returns",
    "saved",
    "schedules",
    "settings",
    "testing",
}
#: Files that have the names of a room, for imports of users; no room imports them.
DOORS = {"rewards": "models"}

#: The arrows that point up, each in a function and by name.
UP = {
    ("engine", "inspect"),  # Plan's and Run's explain, draw, check, breakpoint
    ("trainer", "plans"),  # a plan file by its name
}


#: Imports that close a circle of files: all but that of Ray are for annotations. No line comes.
CIRCLES = {
    "flowrl.engine.context": "flowrl.engine.stages",
    "flowrl.engine.failure": "flowrl.engine.meter",
    "flowrl.engine.graph": "flowrl.engine.plan",
    "flowrl.engine.labels": "flowrl.engine.plan",
    "flowrl.engine.protocols": "flowrl.engine.context flowrl.engine.plan flowrl.engine.schema",
    "flowrl.engine.run": "flowrl.engine.plan",
    "flowrl.engine.workers.accounts": "flowrl.engine.run",
    "flowrl.engine.workers.gather": "flowrl.engine.plan",
    "flowrl.engine.workers.members": "flowrl.engine.plan",
}

#: Call sites of `hasattr` and `getattr` are fewer. They look at what others have written.
MOST_PROBES = 50


class Import(NamedTuple):
    """One imported module; `late` where it is in a function, `typed` for annotations only."""

    file: str
    module: str
    late: bool
    typed: bool


@functools.cache
def _nodes(file: Path) -> list[ast.AST]:
    """A file's syntax, node by node."""
    return list(ast.walk(ast.parse(file.read_text())))


def _imports(file: Path) -> Iterator[Import]:
    name = file.relative_to(ROOT).as_posix()
    asks = re.search(r"import_module|lazy\(", file.read_text())  # for modules by name
    late, typed = set(), set()
    for node in _nodes(file):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node not in late:
            late |= set(ast.walk(node))
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            typed |= set(ast.walk(node))
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif asks and isinstance(node, ast.Constant) and re.fullmatch(r"flowrl\.[\w.]+", str(node.value)):
            yield Import(name, str(node.value).rstrip("."), True, False)
            continue
        else:
            continue
        yield from (Import(name, module, node in late, node in typed) for module in modules)


def _files(folder: str) -> list[Path]:
    found = [file for file in (ROOT / folder).rglob("*.py") if "__pycache__" not in file.parts]
    return sorted(
        file for file in found if folder != "flowrl" or file.relative_to(ROOT / folder).parts[0] not in LINKED
    )


FILES = [file for folder in ("flowrl", "operators", "plans") for file in _files(folder)]


@functools.cache
def imports() -> list[Import]:
    """All of flowrl."""
    return [each for file in FILES for each in _imports(file)]


def _module(file: str) -> str:
    """The name of a file's module."""
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("flowrl") else f"flowrl.{name}"


MODULES = {_module(file.relative_to(ROOT).as_posix()) for file in FILES}


def _imported(name: str) -> str:
    """The module of flowrl that holds an imported name; empty for one of others."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def _room(module: str) -> str:
    """The folder or single file that a module is in."""
    return module.split(".")[1] if "." in module else ""


def _is(each: Import, *packages: str) -> bool:
    return any(each.module == package or each.module.startswith(f"{package}.") for package in packages)


def test_every_room_has_its_line() -> None:
    folders = {path.parent.name for path in (ROOT / "flowrl").glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)
    singles = {path.stem for path in (ROOT / "flowrl").glob("*.py")} - {"__init__", "__main__"}
    assert singles == GROUND | DOORS.keys()
    assert len(folders) < 18


@pytest.mark.parametrize("door", DOORS)
def test_a_door_has_the_names_of_its_room(door: str) -> None:
    names, room = (vars(import_module(f"flowrl.{module}")) for module in (door, DOORS[door]))
    assert {name: names.get(name) for name in room["__all__"]} == {name: room[name] for name in room["__all__"]}


def test_rooms_import_those_below_them() -> None:
    """The matrix; an arrow that points up is one of two, and never taken while a module is imported."""
    for each in imports():
        room, other = _room(_module(each.file)), _room(_imported(each.module))
        if not room or room == "__main__" or not other or room == other or other in GROUND:
            continue
        assert room not in GROUND or each.typed or room in ("testing", "interrupts"), (
            f"{each.file} imports {each.module}"
        )
        if room in GROUND:
            continue
        below = (MAY_IMPORT | DOORS)[room]
        allowed = other in below.split() or ((room, other) in UP and (each.late or each.typed))
        assert allowed, f"{each.file} imports {each.module}: {room} may import {below or 'nothing'}"


def test_no_line_of_the_matrix_is_idle() -> None:
    """What a room may import, it does."""
    used: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for each in imports():
        room, other = _room(_module(each.file)), _room(_imported(each.module))
        if room in MAY_IMPORT and other in MAY_IMPORT and room != other:
            used[room].add(other)
    ups = {room: {other for up, other in UP if up == room} for room in MAY_IMPORT}
    assert used == {room: set(below.split()) | ups[room] for room, below in MAY_IMPORT.items()}


def test_no_file_imports_itself_by_others() -> None:
    """No cycle between files, imports in functions aside, and none between rooms."""
    graph: dict[str, set[str]] = {}
    for each in imports():
        module, other = _module(each.file), _imported(each.module)
        if other and other != module and not each.late and not each.typed:
            graph.setdefault(module, set()).add(other)
    for wanted in (graph, {room: set(below.split()) for room, below in MAY_IMPORT.items()}):
        try:
            TopologicalSorter(wanted).prepare()
        except CycleError as error:
            pytest.fail(f"a cycle: {' -> '.join(error.args[1])}")


def _aside(each: Import) -> bool:
    """Whether a function imports what a door shows, or a room above."""
    rooms = (_room(_module(each.file)), _room(_imported(each.module)))
    return each.late and ((ROOT / each.file).name == "__init__.py" or rooms in UP)


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    reached, ahead = {start}, [start]
    while ahead:
        new = graph.get(ahead.pop(), set()) - reached
        reached |= new
        ahead += new
    return reached


def test_no_import_in_a_function_hides_a_cycle() -> None:
    """It is there so that something heavy, or a room above, is loaded when it is asked for."""
    graph: dict[str, set[str]] = {}
    for each in imports():
        if not each.late and not each.typed:
            graph.setdefault(_module(each.file), set()).add(_imported(each.module))
    hidden = []
    for each in imports():
        module, other = _module(each.file), _imported(each.module)
        if each.late and other and other != module and not _aside(each) and module in _reached(other, graph):
            hidden.append((module, other))
    assert hidden == []


def test_no_annotation_closes_a_circle() -> None:
    """Who reads a file reads the types that it names; those of `CIRCLES` are left to open."""
    graph: dict[str, set[str]] = {}
    for each in imports():
        module, other = _module(each.file), _imported(each.module)
        if other and other != module and not _aside(each):
            graph.setdefault(module, set()).add(other)
    for module, others in CIRCLES.items():
        assert set(others.split()) <= graph.get(module, set()), f"{module} names no longer all of {others}"
        graph[module] -= set(others.split())
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")
    for module, others in CIRCLES.items():
        assert all(module in _reached(other, graph) for other in others.split()), f"{module}: {others} is open"


def test_what_an_object_has_is_asked_in_its_contract() -> None:
    """Nobody else probes objects of flowrl's own, see `flowrl.engine.protocols`."""
    sites = [
        f"{file.relative_to(ROOT).as_posix()}:{node.lineno}"
        for file in FILES
        for node in _nodes(file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr")
    ]
    assert 5 < len(sites) < MOST_PROBES, "\n".join(sites)


def test_a_name_says_what_it_is_of() -> None:
    """No two rooms have a public class of one name."""
    rooms = dict[str, set[str]]()
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                rooms.setdefault(node.name, set()).add(_room(_module(file.relative_to(ROOT).as_posix())))
    assert len(rooms) > 500
    assert {name: of for name, of in rooms.items() if len(of) > 1} == {}


def test_the_drawer_of_a_file_of_the_engine_says_what_it_knows() -> None:
    """What watches a run is known to nobody who runs it, not even by the names of types."""
    engine = [each for each in imports() if _room(_module(each.file)) == "engine"]
    inside = [each for each in engine if "/recording/" not in each.file]
    assert {each.file.count("/") for each in inside} == {2, 3}, "the kernel, and what leaves its thread"
    assert [each for each in inside if _is(each, "flowrl.engine.recording")] == []


def test_who_reads_the_engine_is_told_of_each_of_its_files() -> None:
    """In the reading order of its `__init__`, in CONTRIBUTING and on its page; of each once, and of no other."""
    engine, by_drawer = ROOT / "flowrl/engine", dict[str, list[str]]()
    for file in sorted(engine.rglob("[!_]*.py")):
        by_drawer.setdefault(file.relative_to(engine).parent.name or "engine", []).append(file.stem)
    assert set(by_drawer) == {"engine", "workers", "recording"}
    door = re.split(r"`(workers|recording)/`", (engine / "__init__.py").read_text())
    parts = dict(zip(["engine", *door[1::2]], door[::2]))
    assert {name: sorted(re.findall(r"^    (\w+)  ", part, re.M)) for name, part in parts.items()} == by_drawer
    page = re.split(r"\| file in `flowrl/(?:engine/)?(\w+)/` ", (ROOT / "docs/engine.md").read_text())
    rows = {name: "".join(re.findall(r"^\| (`.*?) \|", part, re.M)) for name, part in zip(page[1::2], page[2::2])}
    assert {name: sorted(re.findall(r"(\w+)\.py", row)) for name, row in rows.items()} == by_drawer
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("  inspect/  ")[0]
    lists = re.findall(r"^  +(engine|workers|recording)/ [^:]*:([\w\s]*)$", tree, re.M)
    assert {name: sorted(words.split()) for name, words in lists} == by_drawer


def test_nobody_imports_a_second_copy() -> None:
    assert [each for each in imports() if _is(each, *LINKED)] == []


def test_the_engine_knows_no_arrays_and_no_environments() -> None:
    """Nor does what looks at plans: no torch, Ray or gymnasium at all; numpy only inside functions (random streams)."""
    engine = [each for each in imports() if _room(_module(each.file)) in ("engine", "inspect", "testing")]
    assert len(engine) > 100
    assert [each for each in engine if _is(each, "torch", "ray", "gymnasium", "gym")] == []
    assert [each for each in engine if _is(each, "numpy") and not (each.late or each.typed)] == []


def test_one_file_imports_ray() -> None:
    """With Tune's, and nobody loads them but a function that needs them."""
    allowed = {"flowrl/actors/ray_backend.py", "flowrl/trainer/tune.py"}
    assert [each for each in imports() if _is(each, "ray") and each.file not in allowed] == []
    theirs = [_module(file) for file in allowed]
    assert [each for each in imports() if _is(each, *theirs) and not each.late] == []


@pytest.mark.parametrize("module", ["flowrl", "flowrl.operators.concurrency", "flowrl.testing"])
def test_importing_the_engine_is_quick(module: str) -> None:
    """It loads neither torch nor Ray nor environments."""
    assert _loaded(module, "torch", "ray", "gymnasium") == []


@pytest.mark.parametrize("module", ["flowrl.envs", "flowrl.tools.doctor", "flowrl.data", "flowrl.actors.actors"])
def test_environments_need_no_torch(module: str) -> None:
    """Every process of environments would wait for it, and keep it in memory."""
    assert _loaded(module, "torch", "ray") == []


def _loaded(module: str, *packages: str) -> list[str]:
    """Which of them are there after an import."""
    code = f"import {module}, sys; print(*(name for name in {packages} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()

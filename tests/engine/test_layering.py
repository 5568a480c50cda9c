"""Who may import whom: core <- operators <- plans, and what the engine does not know of."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LINKED = {"operators", "plans"}  # folders beside flowrl that are linked into it

ENGINE = [
    f"flowrl/{file}.py"
    for part in (
        ("plan", "paths", "operator", "context", "seeds", "errors", "queues", "transforms"),
        (
            "stages",
            "meter",
            "merge",
            "calls",
            "futures",
            "workers",
            "host",
            "scheduler",
            "mapped",
            "explain",
            "testing",
        ),
        ("remote", "pickling", "gather", "hosting", "pace"),
        ("schema", "check", "phases", "picture", "draw", "debug", "debugger", "signals"),
    )
    for file in part
]
#: Who loads plans for a user: the arrows that point back.
FRONT = {"flowrl/cli/main.py", "flowrl/trainer/plan_file.py", "flowrl/trainer/trainer.py", "flowrl/trainer/tune.py"}


class Import(NamedTuple):
    """One imported module; `late` where it is in a function or for annotations only."""

    file: str
    module: str
    late: bool


def _imports(file: Path) -> Iterator[Import]:
    name = file.relative_to(ROOT).as_posix()
    source = file.read_text()
    tree = ast.parse(source)
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(name, alias.name, id(node) in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            yield from (Import(name, f"{node.module}.{alias.name}", id(node) in late) for alias in node.names)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("flowrl.") and "import_module" in source:
            yield Import(name, node.value.rstrip("."), True)


def _files(folder: str) -> list[Path]:
    found = [file for file in (ROOT / folder).rglob("*.py") if "__pycache__" not in file.parts]
    return sorted(
        file for file in found if folder != "flowrl" or file.relative_to(ROOT / folder).parts[0] not in LINKED
    )


IMPORTS = [each for folder in ("flowrl", "operators", "plans") for file in _files(folder) for each in _imports(file)]


def _is(each: Import, *packages: str) -> bool:
    return any(each.module == package or each.module.startswith(f"{package}.") for package in packages)


def test_every_file_was_read() -> None:
    read = {each.file for each in IMPORTS}
    assert read >= set(ENGINE) - {"flowrl/errors.py"}
    assert {"operators/concurrency.py", "flowrl/__init__.py"} <= read
    assert Import("flowrl/__init__.py", "flowrl.trainer", late=True) in IMPORTS, "what import_module is asked for"


def test_no_arrow_points_back() -> None:
    """Core <- operators <- plans; the command line, trainer and tune load plans for a user."""
    back = [each for each in IMPORTS if each.file.startswith("flowrl/") and each.file not in FRONT]
    assert [each for each in back if _is(each, "flowrl.operators", "flowrl.plans")] == []
    operators = [each for each in IMPORTS if each.file.startswith("operators/")]
    assert [each for each in operators if _is(each, "flowrl.plans")] == []
    assert [each for each in operators if _is(each, *(name[:-3].replace("/", ".") for name in FRONT))] == []


def test_nobody_imports_a_second_copy() -> None:
    assert [each for each in IMPORTS if _is(each, *LINKED)] == []


def test_the_engine_knows_no_arrays_and_no_environments() -> None:
    """No torch, Ray or gymnasium at all; numpy only inside functions (random streams)."""
    engine = [each for each in IMPORTS if each.file in ENGINE]
    assert [each for each in engine if _is(each, "torch", "ray", "gymnasium", "gym")] == []
    assert [each for each in engine if _is(each, "numpy") and not each.late] == []
    ours = {name[:-3].replace("/", ".") for name in ENGINE}
    others = [each for each in engine if _is(each, "flowrl") and not _is(each, *(ours - {"flowrl"}))]
    assert others == [], "the engine imports what is not the engine"


def test_one_file_imports_ray() -> None:
    """With tune.py, and nobody loads them but a function that needs them."""
    allowed = {"flowrl/actors/ray_backend.py", "flowrl/trainer/tune.py"}
    assert [each for each in IMPORTS if _is(each, "ray") and each.file not in allowed] == []
    theirs = [file[:-3].replace("/", ".") for file in allowed]
    assert [each for each in IMPORTS if _is(each, *theirs) and not each.late] == []


@pytest.mark.parametrize("module", ["flowrl", "flowrl.operators.concurrency", "flowrl.testing"])
def test_importing_the_engine_is_quick(module: str) -> None:
    """It loads neither torch nor Ray nor environments."""
    assert _loaded(module, "torch", "ray", "gymnasium") == []


@pytest.mark.parametrize("module", ["flowrl.envs", "flowrl.doctor", "flowrl.data", "flowrl.actors.actors"])
def test_environments_need_no_torch(module: str) -> None:
    """Every process of environments would wait for it, and keep it in memory."""
    assert _loaded(module, "torch", "ray") == []


def _loaded(module: str, *packages: str) -> list[str]:
    """Which of them are there after an import."""
    code = f"import {module}, sys; print(*(name for name in {packages} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()

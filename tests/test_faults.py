"""The tests tested: every planted fault is noticed by the test that guards its rule."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]
IDS = [f"{fault.rule}-{fault.test.rpartition('::')[2]}" for fault in FAULTS]


def _docstrings(file: Path) -> dict[str, str]:
    tree = ast.parse(file.read_text())
    return {node.name: ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_a_fault_is_up_to_date(fault: Fault) -> None:
    """Its place is there exactly once, and the test that must fail names the rule."""
    assert (ROOT / fault.file).read_text().count(fault.old) == 1, f"{fault.file} has changed: {fault.old!r}"
    file, _, name = fault.test.partition("::")
    docstrings = _docstrings(ROOT / file)
    assert name in docstrings, f"{file} has no test {name}"
    assert re.search(rf"\b{fault.rule}\b", docstrings[name]), (
        f"the docstring of {fault.test} does not name {fault.rule}"
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source, in which all tests of the table pass."""
    folder = tmp_path_factory.mktemp("planted")
    for name in ("flowrl", "operators", "plans", "tests"):  # the links in flowrl stay links, so they lead to the copy
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", folder)
    where = _python(folder, "-c", "import flowrl, flowrl.operators; print(flowrl.__file__, flowrl.operators.__file__)")
    assert all(path.startswith(str(folder)) for path in where.stdout.split()), where.stdout + where.stderr
    tests = sorted({fault.test for fault in FAULTS})
    sound = _python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, timeout=900)
    assert sound.returncode == 0, sound.stdout
    return folder


def _python(folder: Path, *args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_a_planted_fault_is_noticed(fault: Fault, copy: Path) -> None:
    file = copy / fault.file
    sound = file.read_text()
    file.write_text(sound.replace(fault.old, fault.new))
    try:
        done = _python(copy, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", fault.test)
    finally:
        file.write_text(sound)
    assert done.returncode == 1, f"{fault.test} does not notice:\n{done.stdout}"
    assert "error" not in done.stdout.splitlines()[-1], f"it did not run:\n{done.stdout}"

"""The tests tested: every planted fault is noticed by the test that guards its rule."""

from __future__ import annotations

import ast
import compileall
import gc
import multiprocessing
import os
import re
import shutil
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest
from hypothesis import Phase, settings

from tests.faults import FAULTS, Fault

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
    """A copy of the source, compiled; a file that changes is seen by its content, since its time may be the same."""
    folder = tmp_path_factory.mktemp("planted")
    for name in ("flowrl", "operators", "plans", "tests"):  # the links in flowrl stay links, so they lead to the copy
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", folder)
    compileall.compile_dir(folder, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


@pytest.fixture(scope="module")
def server() -> ForkServerContext:
    """Makes processes that have imported what most tests wait for longest, and nothing of flowrl."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gymnasium", "hypothesis", "pytest", "scipy.special", "torch", "torch._dynamo"])
    return context


def _tested(server: ForkServerContext, folder: Path, tests: list[str], seconds: float = 120) -> tuple[int, str]:
    """How pytest ends in a new process over the source in a folder, and what it prints."""
    answer, theirs = server.Pipe(duplex=False)
    process = server.Process(target=_test, args=(theirs, folder, tests))
    process.start()
    theirs.close()
    try:
        assert answer.poll(seconds), f"{tests} took longer than {seconds:g} s"
        code = answer.recv()
    except EOFError:
        pytest.fail(f"{tests}: the process ended\n{(folder / 'printed').read_text()}")
    finally:
        process.kill()
        process.join()
    return code, (folder / "printed").read_text()


def _test(answer: Connection, folder: Path, tests: list[str]) -> None:
    """What the new process does."""
    with open(folder / "printed", "wb") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}  # for the processes that tests start
    sys.path[:] = [str(folder), *(path for path in sys.path if _is_installed(path))]
    sys.dont_write_bytecode = True
    gc.freeze()  # what is there already need not be searched for garbage
    # The same examples every time, and the first that fails will do.
    settings.register_profile("planted", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("planted")
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *tests])
    for name in [name for name in sys.modules if name.partition(".")[0] == "flowrl"]:
        assert str(sys.modules[name].__file__).startswith(str(folder)), f"{name} is not the one in {folder}"
    answer.send(int(code))


def _is_installed(path: str) -> bool:
    """Not the source itself; the environment of what is installed may be in a folder of it."""
    return not Path(path).is_relative_to(ROOT) or Path(path).is_relative_to(sys.prefix)


@pytest.mark.slow
def test_without_a_fault_all_pass(copy: Path, server: ForkServerContext) -> None:
    code, printed = _tested(server, copy, sorted({fault.test for fault in FAULTS}), seconds=900)
    assert code == 0, printed


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_a_planted_fault_is_noticed(fault: Fault, copy: Path, server: ForkServerContext) -> None:
    file = copy / fault.file
    sound = file.read_text()
    file.write_text(sound.replace(fault.old, fault.new))
    try:
        code, printed = _tested(server, copy, [fault.test])
    finally:
        file.write_text(sound)
    assert code == 1, f"{fault.test} does not notice:\n{printed}"
    assert "error" not in printed.splitlines()[-1], f"it did not run:\n{printed}"

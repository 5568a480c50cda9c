"""The tests tested: every planted fault is noticed by the test that guards its rule."""

from __future__ import annotations

import ast
import compileall
import functools
import gc
import os
import re
import shutil
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest
from hypothesis import Phase, settings

from tests.faults import FAULTS, Fault
from tests.faults.changed import concerned
from tests.forked import SERVER

ROOT = Path(__file__).parents[1]
IDS = [f"{fault.rule}-{fault.test.rpartition('::')[2]}" for fault in FAULTS]


def test_every_fault_is_up_to_date() -> None:
    """Its place is there exactly once, and the test that must fail names the rule."""
    read = functools.cache(lambda file: (ROOT / file).read_text())
    tests = functools.cache(lambda file: _docstrings(read(file)))
    stale = []
    for rule, file, old, _, test in FAULTS:
        guard, _, name = test.partition("::")
        if read(file).count(old) != 1:
            stale.append(f"{rule}: {file} has {old!r} {read(file).count(old)} times")
        if not re.search(rf"\b{rule}\b", tests(guard).get(name, "")):
            stale.append(f"{rule}: {guard} has no test {name} whose docstring names it")
    assert not stale, "\n".join(stale)


def _docstrings(source: str) -> dict[str, str]:
    body = ast.parse(source).body
    return {node.name: ast.get_docstring(node) or "" for node in body if isinstance(node, ast.FunctionDef)}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source, compiled; a file that changes is seen by its content, since its time may be the same."""
    folder = tmp_path_factory.mktemp("planted")
    for name in ("flowrl", "operators", "plans", "tests"):  # the links in flowrl stay links, so they lead to the copy
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", folder)
    compileall.compile_dir(folder, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


def _tested(folder: Path, words: list[str], seconds: float = 120) -> tuple[int, str]:
    """How pytest with these words ends in a new process over the source in a folder, and what it prints."""
    answer, theirs = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_test, args=(theirs, folder, words))
    process.start()
    theirs.close()
    try:
        assert answer.poll(seconds), f"{words} took longer than {seconds:g} s"
        code = answer.recv()
    except EOFError:
        pytest.fail(f"{words}: the process ended\n{(folder / 'printed').read_text()}")
    finally:
        process.kill()
        process.join()
    return code, (folder / "printed").read_text()


def _test(answer: Connection, folder: Path, words: list[str]) -> None:
    """What the new process does."""
    with open(folder / "printed", "wb") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)  # for the processes that tests start
    sys.path[:] = [str(folder), *(path for path in sys.path if _is_installed(path))]
    gc.freeze()  # what is there already need not be searched for garbage
    # The same examples every time, and the first that fails will do.
    few = (Phase.explicit, Phase.generate)
    settings.register_profile("planted", derandomize=True, database=None, deadline=None, phases=few)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--hypothesis-profile=planted"]
    code = pytest.main([*options, *words])
    for name in [name for name in sys.modules if name.partition(".")[0] == "flowrl"]:
        assert str(sys.modules[name].__file__).startswith(str(folder)), f"{name} is not the one in {folder}"
    answer.send(int(code))


def _is_installed(path: str) -> bool:
    """Not the source itself; the environment of what is installed may be in a folder of it."""
    return not Path(path).is_relative_to(ROOT) or Path(path).is_relative_to(sys.prefix)


@pytest.mark.exhaustive
@pytest.mark.parametrize("guard", sorted({fault.guard for fault in FAULTS}))
def test_guards_pass_without_a_fault(guard: str, copy: Path) -> None:
    """In the copy too, so that it is the fault that makes one fail there."""
    tests = sorted({fault.test for fault in FAULTS if fault.guard == guard})
    code, printed = _tested(copy, tests, seconds=600)
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), printed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Those that a change concerns are slow tests too."""
    if "fault" in metafunc.fixturenames:
        chosen, _ = concerned(FAULTS)
        faults = [pytest.param(fault, marks=pytest.mark.slow if fault in chosen else ()) for fault in FAULTS]
        metafunc.parametrize("fault", faults, ids=IDS)


@pytest.mark.exhaustive
def test_a_planted_fault_is_noticed(fault: Fault, copy: Path) -> None:
    """By a quick test, or by one of the other tiers."""
    file = copy / fault.file
    sound = file.read_text()
    file.write_text(sound.replace(fault.old, fault.new))
    try:
        code, printed = _tested(copy, [fault.test])
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            code, printed = _tested(copy, ["-m", "exhaustive", fault.test])
    finally:
        file.write_text(sound)
    assert code == pytest.ExitCode.TESTS_FAILED, f"{fault.test} does not notice:\n{printed}"
    assert "failed" in printed.splitlines()[-1], f"it did not run:\n{printed}"

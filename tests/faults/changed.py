"""Which planted faults a change concerns: those whose source, guard or self is not as in a commit that noticed all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.faults.fault import Fault

ROOT = Path(__file__).parents[2]
#: Holds the last commit whose exhaustive tests passed; `tests/exhaustive.py` writes it.
BASE = "tests/exhaustive_base"
SHAPE = "tests/faults/fault.py"


def concerned(faults: Iterable[Fault], root: Path = ROOT) -> tuple[set[Fault], str]:
    """The faults, and why these: all of them where the base is unknown."""
    try:
        base = (root / BASE).read_text().strip()
        changed = set(git(root, "diff", "--name-only", "--no-renames", base, tree(root)).splitlines())
        before = set() if SHAPE in changed else _planted(root, base)
    except (OSError, subprocess.CalledProcessError):
        return set(faults), f"{BASE} names no commit that is here"
    chosen = {fault for fault in faults if fault not in before or changed & {fault.file, fault.guard}}
    return chosen, f"changed since {base[:9]}"


def tree(root: Path = ROOT) -> str:
    """Git's hash of the files as they are, with what is not committed but for what git ignores."""
    with TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        git(root, "add", "--all", **index)
        return git(root, "write-tree", **index).strip()


def git(root: Path, *words: str, **settings: str) -> str:
    """What a command of git prints."""
    env = os.environ | settings
    return subprocess.run(["git", *words], cwd=root, env=env, capture_output=True, text=True, check=True).stdout


def _planted(root: Path, commit: str) -> set[Fault]:
    """The faults of a commit, which are lists in files that need nothing else."""
    faults: set[Fault] = set()
    for name in git(root, "ls-tree", "--name-only", commit, "tests/faults/").splitlines():
        text = git(root, "show", f"{commit}:{name}")
        if "\nFAULTS = [\n" in text:
            found: dict[str, Any] = {}
            exec(text, found)
            faults |= set(found["FAULTS"])
    return faults

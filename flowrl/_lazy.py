"""Packages that load their names on first use, so that an import of one does not wait for all."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that exports `names`, a mapping from name to module.

    `dir` and completion list what is not loaded yet, too.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(names[name]), name)

    return get, lambda: sorted({*vars(sys.modules[package]), *names})


def classes(package: str, door: str, pattern: str) -> dict[str, str]:
    """The classes in a package whose definition matches `pattern`, by name, each with its module; imports nothing.

    Type checkers read the same from `__init__.pyi` beside the `door`; `python tests/derived.py` writes it.
    """
    modules = {}
    for path in sorted(Path(door).parent.glob("[!_]*.py")):
        for name in re.findall(rf"^class {pattern}", path.read_text(encoding="utf-8"), re.MULTILINE):
            modules[name] = f"{package}.{path.stem}"
    return modules

"""Doors of folders whose names are loaded when they are asked for: who needs one of them should not wait for all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from flowrl import _moved


def lazy(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package that has these names of these modules, and those that it had before."""

    def get(name: str) -> Any:
        if name in names:
            return getattr(import_module(names[name]), name)
        return _moved.attribute(package, name)

    return get


def classes(package: str, door: str, pattern: str) -> dict[str, str]:
    """The classes of a package whose line begins like this, by name, each with its module; nothing is imported.

    Type checkers read the same from `__init__.pyi` beside the door, which `python tests/derived.py` writes.
    """
    found = {}
    for path in sorted(Path(door).parent.glob("[!_]*.py")):
        for name in re.findall(rf"^class {pattern}", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[name] = f"{package}.{path.stem}"
    return found

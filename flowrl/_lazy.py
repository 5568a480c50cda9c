"""Doors of folders whose names are loaded when they are asked for: who needs one of them should not wait for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from flowrl import _moved


def lazy(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package that has these names of these modules, and those that it had before."""

    def get(name: str) -> Any:
        if name in names:
            return getattr(import_module(names[name]), name)
        return _moved.attribute(package, name)

    return get

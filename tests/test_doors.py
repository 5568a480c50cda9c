"""Doors whose lists derive from files."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.doors import DERIVED, stub


@pytest.mark.parametrize("package", DERIVED)
def test_type_checkers_read_the_names_that_there_are(package: str) -> None:
    text = (DERIVED[package] / "__init__.pyi").read_text()
    assert text == stub(package), "run `python tests/doors.py`"


@pytest.mark.parametrize("package", DERIVED)
def test_every_name_is_there_when_it_is_asked_for(package: str) -> None:
    door = import_module(package)
    assert len(door.__all__) > 25
    assert [name for name in door.__all__ if getattr(door, name).__name__ != name] == []
    assert not hasattr(door, "none_such")

"""Lists that derive from files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.derived import DERIVED, DOORS, derived


@pytest.mark.parametrize("file", DERIVED, ids=lambda file: file.name)
def test_what_derives_from_the_source_is_up_to_date(file: Path) -> None:
    assert file.read_text() == derived(file), "run `python tests/derived.py`"


@pytest.mark.parametrize("package", DOORS)
def test_every_name_is_there_when_it_is_asked_for(package: str) -> None:
    door = import_module(package)
    assert len(door.__all__) > 25
    assert [name for name in door.__all__ if getattr(door, name).__name__ != name] == []
    assert not hasattr(door, "none_such")

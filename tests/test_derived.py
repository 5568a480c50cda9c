"""Lists that derive from files."""

from __future__ import annotations

import subprocess
import sys
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
    assert set(door.__all__) <= set(dir(door))


def test_dir_names_what_is_not_loaded_yet() -> None:
    code = "import flowrl, flowrl.plans, sys; print(*dir(flowrl), *dir(flowrl.plans), 'torch' in sys.modules)"
    *names, torch_is_there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"Batch", "Trainer", "load", "DQN", "PPO"} <= set(names)
    assert torch_is_there == "False"

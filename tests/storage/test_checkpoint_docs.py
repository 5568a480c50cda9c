"""The page on checkpoints: what it says of commands and settings. Its snippets run in tests/test_docs.py."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_its_commands_and_settings_exist() -> None:
    from flowrl.cli.main import cli
    from flowrl.runs.config import Configuration
    from flowrl.settings import resumable

    known = {name for option in cli.commands["run"].params for name in option.opts}
    text = PAGE.read_text()
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", text.replace("--stop-...", ""))) <= known
    assert all(f"`{key}`" in text for key in resumable(Configuration, "free", "rounding"))

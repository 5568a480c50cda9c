"""The documentation's snippets run, and its commands show what it says they show."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowrl.cli import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
PROMPT = "(flowrl) "


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of its own, with the plans where the page has them."""
    shutil.copytree(ROOT / "plans", tmp_path / "plans", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.breakpointhook", __import__("sys").__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_run(page):
    """In order, in one namespace."""
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_show_what_the_page_shows(page):
    """Line by line, but for the places of files and the time; what was typed at a prompt is typed."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        command, _, shown = block.partition("\n")
        typed = re.findall(rf"^{re.escape(PROMPT)}(.*)$", shown, re.MULTILINE)
        words = shlex.split(command.removeprefix("$ flowrl "))
        printed = CliRunner().invoke(cli, words, input="\n".join(typed) + "\n").stdout
        assert _plain(printed) == _plain(re.sub(rf"^{re.escape(PROMPT)}.*\n", PROMPT, shown, flags=re.MULTILINE))


def test_the_picture_is_what_draw_writes():
    """If this fails: `flowrl draw dqn docs/dqn.svg`."""
    assert CliRunner().invoke(cli, ["draw", "dqn", "new.svg"]).exit_code == 0
    assert Path("new.svg").read_text() == (ROOT / "docs" / "dqn.svg").read_text()


def _plain(text):
    return re.sub(r"\S*plans/(\w+\.py:)\d+", r"plans/\1", re.sub(r"\d+\.\d s", "0.0 s", text)).splitlines()

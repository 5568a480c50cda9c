"""The README: short, and what it shows of plans and commands is what there is; its snippets run in test_docs.py."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from flowrl.cli.main import cli
from flowrl.trainer.plan_file import builtin_plans

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 200


def test_the_plan_shown_is_the_plan_that_runs() -> None:
    """Line by line, but for line breaks."""
    (shown,) = re.findall(r"```py\n(.*?)```", TEXT, re.DOTALL)
    assert _words(shown) in _words((ROOT / "plans" / "apex_dqn.py").read_text())


def test_every_algorithm_is_in_the_table() -> None:
    table = TEXT.partition("## Algorithms\n")[2].partition("\n## ")[0]
    assert set(builtin_plans()) == set(re.findall(r"\]\(docs/(\w+)\.md\)", table)) - {"results", "algorithms", "games"}


def test_the_first_command_can_be_given() -> None:
    known = {name for option in cli.commands["run"].params for name in option.opts}
    job = TEXT.split("```sh\n")[1].splitlines()[0].split("flowrl run ")[1]
    assert {word for word in shlex.split(job) if word.startswith("--")} <= known


def test_the_commands_listed_exist() -> None:
    """Every option that the page of the command line names is one of the command above it."""
    page = (ROOT / "docs" / "command-line.md").read_text()
    block = next(block for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "flowrl list" in block)
    told = re.findall(r"^flowrl ([a-z-]+)(.*?)(?=^flowrl|\Z)", block, re.DOTALL | re.MULTILINE)
    assert {name for name, _ in told} <= set(cli.commands)
    for name, text in told:
        known = {opt for option in cli.commands[name].params for opt in [*option.opts, *option.secondary_opts]}
        assert set(re.findall(r"--[a-z-]+", text)) <= known, name


def _words(code: str) -> str:
    return re.sub(r"\s+", "", code)

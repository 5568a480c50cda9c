"""What the README shows of plans, options and commands is what there is; its snippets run in test_docs.py."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from flowrl.cli.main import cli

TEXT = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_plan_shown_is_the_plan_that_runs() -> None:
    """Line by line, but for line breaks."""
    (shown,) = re.findall(r"```py\n(.*?)```", TEXT, re.DOTALL)
    source = (Path(__file__).parent.parent / "plans" / "dqn.py").read_text()
    assert _words(shown) in _words(source)


def test_the_tree_shown_is_what_explain_prints() -> None:
    """But for the file:line at the end, which moves."""
    from flowrl.trainer.plan_file import load_plan_file

    plan_file = load_plan_file("dqn")
    workers, plan = plan_file.build(plan_file.Config())
    workers.close()
    (shown,) = re.findall(r"```text\n(├─.*?)```", TEXT, re.DOTALL)
    tree = [re.sub(r"\S+dqn.py:\d+", "", text).split() for text in (*shown.splitlines(), *plan.explain().splitlines())]
    assert tree[: len(tree) // 2] == tree[len(tree) // 2 :]


def test_the_commands_exist() -> None:
    """Every option that the README names is one of the command above it."""
    block = next(block for block in re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL) if "flowrl list" in block)
    told = re.findall(r"^flowrl ([a-z]+)(.*?)(?=^flowrl|\Z)", block, re.DOTALL | re.MULTILINE)
    assert {name for name, _ in told} <= set(cli.commands)
    for name, text in told:
        known = {opt for option in cli.commands[name].params for opt in option.opts}
        assert set(re.findall(r"--[a-z-]+", text)) <= known, name
    known = {name for option in cli.commands["run"].params for name in option.opts}
    job = TEXT.split("```sh\n")[1].splitlines()[0].split("flowrl run ")[1]
    assert {word for word in shlex.split(job) if word.startswith("--")} <= known


def _words(code: str) -> str:
    return re.sub(r"\s+", "", code)

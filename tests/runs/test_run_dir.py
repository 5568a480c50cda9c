"""Run directories: chosen without a trace, whole files, a configuration that runs again."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import subprocess
from types import ModuleType

import attrs
import numpy as np
import pytest
import torch

from flowrl.errors import ConfigError
from flowrl.runs.config import Configuration, build_config, load_config_file
from flowrl.runs.directory import RunDirectory, git_state
from flowrl.trainer.plan_file import PlanFile


@attrs.define(kw_only=True)
class Config(Configuration):
    hidden: tuple[int, ...] = (8, 8)
    clip: float = float("inf")
    shape: object = None


@pytest.fixture
def plan_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return PlanFile("tiny", tmp_path / "elsewhere" / "tiny.py", ModuleType("tiny"), Config, "# the plan\n")


def test_the_default_name_tells_plan_environment_seed_and_time(plan_file, tmp_path):
    directory = RunDirectory.choose(plan_file, Config(env="ALE/Pong-v5", seed=7))
    assert re.fullmatch(r"runs/tiny-ALE_Pong-v5-7-\d{8}-\d{6}", str(directory.path))
    assert list(tmp_path.iterdir()) == []  # choosing leaves no trace


def test_names_are_unique(plan_file, monkeypatch):
    class Frozen:
        @staticmethod
        def now():
            return moment

    from flowrl.runs import directory as directory_module

    moment = directory_module.datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setattr(directory_module, "datetime", Frozen)
    names = []
    for _ in range(3):
        directory = RunDirectory.choose(plan_file, Config())
        directory.path.mkdir(parents=True)
        names.append(directory.path.name)
    base = "tiny-CartPole-v1-0-20260102-030405"
    assert names == [base, f"{base}-2", f"{base}-3"]


def test_two_that_chose_one_directory_get_one_each(plan_file, monkeypatch):
    """Begun in the same second: neither looks at what the other is about to make."""
    chosen = [RunDirectory.choose(plan_file, Config()) for _ in range(2)]
    chosen[1].path = chosen[0].path
    for directory in chosen:
        directory.create("", [])
        directory.close()
    assert chosen[1].path.name == f"{chosen[0].path.name}-2"
    named = [RunDirectory.choose(plan_file, Config(), "run") for _ in range(3)]
    named[0].create("", [])
    with pytest.raises(ConfigError, match="run is in use"):
        named[1].create("", [])
    named[0].close()
    with pytest.raises(ConfigError, match="run is not empty: another run has begun there meanwhile"):
        named[2].create("", [])
    assert (named[0].path / "run.json").exists()


def test_what_is_claimed_and_not_used_leaves_no_trace(plan_file, tmp_path):
    for out in (None, "run"):
        directory = RunDirectory.choose(plan_file, Config(), out)
        directory.claim()
        assert directory.path.is_dir()
        directory.close()
    assert list(tmp_path.iterdir()) == []


def test_a_given_directory_is_taken_exactly_and_must_be_empty(plan_file, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    assert RunDirectory.choose(plan_file, Config(), tmp_path / "empty").path == tmp_path / "empty"
    assert RunDirectory.choose(plan_file, Config(), tmp_path / "a" / "b").path == tmp_path / "a" / "b"
    for name, message in [("full", "is not empty"), ("file", "is a file")]:
        with pytest.raises(ConfigError, match=message):
            RunDirectory.choose(plan_file, Config(), tmp_path / name)


def test_it_holds_what_was_run_and_how_it_ended(plan_file, tmp_path):
    config = Config(hidden=(4,), seed=3)
    directory = RunDirectory.choose(plan_file, config, tmp_path / "run")
    directory.create("the tree", ["flowrl", "run", "tiny"])
    directory.record({"env_steps": 1, "loss": float("nan"), "best": np.float32(0.5)})
    # On disk at once, a whole line each, before the run has ended.
    assert [json.loads(line) for line in (directory.path / "metrics.jsonl").read_text().splitlines()] == [
        {"env_steps": 1, "loss": None, "best": 0.5}
    ]
    directory.finish({"outcome": "done", "last": {"loss": float("inf")}}, "the shares")
    assert {path.name for path in directory.path.iterdir()} == {
        "config.json", "run.json", "plan.txt", "plan.py", "metrics.jsonl", "summary.json", "explain_run.txt"
    }  # fmt: skip
    assert (directory.path / "plan.txt").read_text() == "the tree\n"
    assert (directory.path / "plan.py").read_text() == "# the plan\n"
    assert (directory.path / "explain_run.txt").read_text() == "the shares\n"
    assert json.loads((directory.path / "summary.json").read_text()) == {"outcome": "done", "last": {"loss": None}}
    assert build_config(Config, load_config_file(directory.path / "config.json")) == config
    about = json.loads((directory.path / "run.json").read_text())
    assert about["command"] == ["flowrl", "run", "tiny"]
    assert about["plan"] == "tiny"
    assert torch.__version__.startswith(about["versions"]["torch"])  # which may add the kind of build
    assert set(about["versions"]) == {"python", "flowrl", "torch", "numpy", "gymnasium"}


def test_a_process_that_the_run_began_does_not_keep_its_directory(plan_file, tmp_path):
    """An environment's process, forked meanwhile, has all open files of the run, and lives on between two trainings."""
    directory = RunDirectory.choose(plan_file, Config(), tmp_path / "run")
    directory.create("", [])
    ended = multiprocessing.get_context("fork").Event()
    child = multiprocessing.get_context("fork").Process(target=ended.wait, args=(60,))
    child.start()
    try:
        directory.close()
        RunDirectory(directory.path, plan_file, "").lock()
    finally:
        ended.set()
        child.join(60)


def test_what_is_deleted_while_the_run_goes_on_is_written_again(plan_file, tmp_path, caplog):
    """With every result, at the next checkpoint and at the end; but not into the run of somebody else."""
    directory = RunDirectory.choose(plan_file, Config(), tmp_path / "run", ["csv"])
    directory.create("the tree", ["flowrl"])
    written = {path.name: path.read_text() for path in directory.path.iterdir()}
    directory.record({"x": 1})
    shutil.rmtree(directory.path)
    directory.record({"x": 2})
    directory.flush()
    assert "run was deleted while the run goes on: it is written again" in caplog.text
    with pytest.raises(ConfigError, match="run is in use"):
        RunDirectory(directory.path, plan_file, "").lock()
    directory.record({"x": 3})
    (directory.path / "metrics.jsonl").unlink()
    directory.finish({"outcome": "done"})
    there = {path.name: path.read_text() for path in directory.path.iterdir()}
    assert there.pop("metrics.jsonl") == '{"x": 1}\n{"x": 2}\n{"x": 3}\n'
    assert there.pop("metrics.csv") == "x\n1\n2\n3\n"
    assert json.loads(there.pop("summary.json")) == {"outcome": "done"}
    assert there == {name: text for name, text in written.items() if "metrics" not in name}

    directory = RunDirectory.choose(plan_file, Config(), tmp_path / "other")
    directory.create("", ["mine"])
    shutil.rmtree(directory.path)
    another = RunDirectory.choose(plan_file, Config(), directory.path)
    another.create("", ["another"])
    with pytest.raises(ConfigError, match="other was deleted while the run goes on, and another run has begun there"):
        directory.flush()
    for each in (directory, another):
        each.close()


def test_a_configuration_that_cannot_be_saved_is_refused(plan_file):
    with pytest.raises(ConfigError, match=r"shape=.*cannot be saved with the run"):
        RunDirectory.choose(plan_file, Config(shape=object()))


def test_a_directory_that_cannot_be_made_is_bad_input(plan_file, tmp_path):
    directory = RunDirectory.choose(plan_file, Config(), tmp_path / "file" / "run")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot write the run directory"):
        directory.create("", [])


def test_the_working_tree_is_named_with_its_changes(tmp_path):
    assert git_state(tmp_path / "nowhere") is None
    tree = tmp_path / "tree"
    tree.mkdir()

    def git(*arguments):
        settings = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", "-C", str(tree), *settings, *arguments], check=True, capture_output=True)

    git("init")
    assert git_state(tree) is None  # no commit yet
    git("commit", "--allow-empty", "-m", "first")
    state = git_state(tree)
    assert re.fullmatch("[0-9a-f]{40}", state["commit"])
    assert state["dirty"] is False
    (tree / "new").write_text("x")
    assert git_state(tree)["dirty"] is True

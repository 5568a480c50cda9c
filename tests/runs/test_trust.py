"""A stranger's files run no code: what they name is imported only if somebody trusts it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

import flowrl
import flowrl.plans
from flowrl.cli.main import cli
from flowrl.errors import ConfigError, FlowError
from flowrl.runs.config import default_of
from flowrl.runs.trust import code_in
from flowrl.trainer.plan_file import BUILTIN, builtin_plans, load_plan_file
from tests.cli.parts import DEADLINE, SMALL, TINY
from tests.cli.parts import flowrl as command
from tests.forked import PIPE, Python

#: Says that it was imported.
THEIRS = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a module in it that strangers may name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "theirs.py").write_text(THEIRS)
    yield tmp_path
    sys.modules.pop("theirs", None)


def ran(folder: Path) -> bool:
    return (folder / "ran").exists()


def run_of(
    folder: Path, config: Mapping[str, Any], about: Mapping[str, Any] | None = None, plan: str = "dqn", more: str = ""
) -> Path:
    """A run directory as a stranger may write it."""
    run = folder / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(config))
    (run / "run.json").write_text(json.dumps({"plan": plan, "path": "theirs", **(about or {})}))
    (run / "plan.py").write_text((BUILTIN / f"{plan}.py").read_text() + more)
    torch.save({}, run / "policy.pt")  # as in earlier versions: the spaces are those of an environment
    return run


#: What a stranger writes, and what is said of it.
CODE: dict[str, tuple[dict[str, Any], str]] = {
    "environment": ({"config": {"env": "theirs:make"}}, "env='theirs:make'"),
    "a module of gym": ({"config": {"env": "gym:theirs:CartPole-v1"}}, "env='gym:theirs:CartPole-v1'"),
    "evaluation": ({"config": {"eval_env": "theirs:make"}}, "eval_env='theirs:make'"),
    "wrapper": ({"config": {"wrappers": ["TimeLimit(9)", "theirs:W(1)"]}}, r"wrappers='theirs:W\(1\)'"),
    "evaluation's wrapper": ({"config": {"eval_wrappers": ["theirs:W"]}}, "eval_wrappers='theirs:W'"),
    "agents": ({"config": {"agents": "theirs:who", "policies": ["a", "b"]}, "plan": "ippo"}, "agents='theirs:who'"),
    "network": ({"config": {"network": "theirs:Net"}}, "network='theirs:Net'"),
    "a part's network": (
        {"config": {"manager": {"network": "theirs:Net"}}, "plan": "hierarchy"},
        r"manager\.network='theirs:Net'",
    ),
    "plan": ({"config": {}, "more": "import theirs\n"}, r"the plan .*run/plan\.py"),
    "plan beside the plans": ({"config": {}, "about": {"plan": "../../../theirs"}, "more": THEIRS}, "the plan "),
    "dataset": ({"config": {}, "plan": "bc", "about": {"dataset": {"env": "theirs:make"}}}, "env='theirs:make'"),
    "dataset's wrapper": (
        {"config": {}, "plan": "bc", "about": {"dataset": {"env": "CartPole-v1", "wrappers": ["theirs:W"]}}},
        "wrappers='theirs:W'",
    ),
}


@pytest.mark.parametrize("case", CODE)
def test_a_strangers_run_runs_no_code_unless_it_is_trusted(folder: Path, case: str) -> None:
    """D10: the error says which setting names the code, and how to trust it."""
    written, said = CODE[case]
    run, told = run_of(folder, **written), list[str]()
    with pytest.raises(ConfigError, match=rf"does not come with flowrl: .*{said}.*flowrl.load\(.*trusted=True"):
        flowrl.load(run)
    with pytest.raises(ConfigError, match="does not come with flowrl"):
        flowrl.load(run, trusted=told.append)  # type: ignore[arg-type]  # answers None
    assert said.replace("\\", "").partition(".*")[0] in told[0]
    assert not ran(folder)
    with pytest.raises(FlowError) as refused:  # there are no weights in it
        flowrl.load(run, trusted=True)
    assert ran(folder) or "theirs" in str(refused.value) or "policy.pt" in str(refused.value)


def test_a_policy_acts_without_its_environment_which_runs_only_if_it_is_trusted(folder: Path) -> None:
    """D10: its file has the spaces; `evaluate` needs the environment."""
    from flowrl.plans import PPO

    run = run_of(folder, {"env": "theirs:make", "hidden": [4]}, plan="ppo")
    with PPO("CartPole-v1", hidden=(4,)) as trainer:
        trainer.save_policy(run / "policy.pt")
    policy = flowrl.load(run)
    assert policy.act([0.0] * 4) in (0, 1)
    for ask in (policy.evaluate, lambda: policy.environments):
        with pytest.raises(ConfigError, match=r"flowrl: env='theirs:make'; .*flowrl.load\(.*trusted=True"):
            ask()
    assert not ran(folder)
    with pytest.raises(ConfigError, match="module 'theirs' has no environment 'make'"):
        flowrl.load(run, trusted=True).evaluate()


def planted(value: Any, name: str, kind: str) -> Iterator[Any]:
    """Copies of the value of a setting, each with a name in one more place that its type has."""
    table = "dict" in kind or isinstance(value, dict)
    if table:
        keys = {*value, "network", "env", "anything"} if isinstance(value, dict) else {"network"}
        yield from ({**(value or {}), key: name} for key in keys)
        yield {"anything": {"network": [name]}}
    if "list" in kind or "tuple" in kind or isinstance(value, (list, tuple)):
        yield [name]
    if not table or "str" in kind:
        yield name


def settings_with(name: str, plan: str) -> Iterator[dict[str, Any]]:
    """Settings of a plan, each time with the name at another leaf of the schema."""
    for field in attrs.fields(load_plan_file(plan).Config):
        if field.name not in ("data", "opponents", "eval_opponent"):  # files
            yield from ({field.name: value} for value in planted(default_of(field), name, str(field.type)))


@pytest.mark.parametrize("plan", ["dqn", "ippo", "hierarchy", "two_trainers", "league", "bc", "muzero"])
def test_every_leaf_of_a_configuration_passes_the_gate(plan: str) -> None:
    """D17: by its schema, so that a new setting is covered."""
    for settings in settings_with("theirs:thing", plan):
        assert len(code_in(settings)) == 1, settings
        assert code_in(settings)[0].endswith("='theirs:thing'")


#: How each command opens a stranger's run; what the user names to it is his word.
COMMANDS: dict[str, list[tuple[Any, ...]]] = {
    "evaluate": [("run", "--episodes", 1)],
    "record": [("run", "--episodes", 1, "--out", "data")],
    "export": [("run", "--out", "policy.pt2")],
    "show": [("run",), ("run", "--row", 0, "--again"), ("run", "--account")],
    **{name: [("PLAN", "--config", "run/config.json")] for name in ("explain", "check")},
    "draw": [("PLAN", "plan.svg", "--config", "run/config.json")],
    "run": [("PLAN", "--config", "run/config.json", "--stop-steps", 9), ("PLAN", "--from", "run", "--stop-steps", 9)],
    "autotune": [("PLAN", "--config", "run/config.json", "--seconds", 1)],
    "profile": [("run",), ("PLAN", "--config", "run/config.json", "--seconds", 1)],
    "simulate": [("run", "--workers", 2), ("PLAN", "--config", "run/config.json", "--workers", 2)],
    "plot": [("run",)],
}
#: Those that run what a directory names, as their help says; and those that open no run, but for the page's own tests.
TRUSTING, WITHOUT = ("rerun", "verify", "replay-item"), ("doctor", "settings", "list", "ui")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of plans, with a checkpoint and a policy that knows its spaces."""
    runs, folder = {}, tmp_path_factory.mktemp("trained")
    for plan, more in {"dqn": SMALL, "hierarchy": (), "two_trainers": ()}.items():
        runs[plan] = folder / plan
        words = ("--stop-steps", 300, "--set", "eval_every=0", "--quiet", "--out", runs[plan])
        done = command("run", plan, *more, *words)
        assert done.exit_code == 0, done.output
    return runs


def test_there_is_no_other_command() -> None:
    """D17: a new one says how it opens a stranger's run."""
    assert {*COMMANDS, *TRUSTING, *WITHOUT} == {*cli.commands}


@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        ("dqn", {"env": "theirs:make"}),
        ("hierarchy", {"manager": {"network": "theirs:Net"}}),
        pytest.param("dqn", None, marks=pytest.mark.exhaustive),
        pytest.param("hierarchy", None, marks=pytest.mark.exhaustive),
        pytest.param("two_trainers", None, marks=pytest.mark.exhaustive),
    ],
)
def test_no_command_imports_what_a_strangers_run_names(
    folder: Path, trained: Mapping[str, Path], plan: str, settings: dict[str, Any] | None
) -> None:
    """D17: wherever it is named, and in all files of a run that has been trained."""
    shutil.copytree(trained[plan], folder / "run")
    file = folder / "run" / "config.json"
    before = json.loads(file.read_text())
    for change in settings_with("theirs:thing", plan) if settings is None else [settings]:
        file.write_text(json.dumps({**before, **change}))
        for name, given in COMMANDS.items():
            for words in given:
                if settings is not None or name in ("evaluate", "export", "show", "explain"):
                    command(name, *(plan if word == "PLAN" else word for word in words))
                    assert not ran(folder), (name, words, change)


def test_a_dataset_names_code_in_vain_unless_the_user_names_it_too(folder: Path) -> None:
    """D17: training reads it; evaluation refuses."""
    (folder / "theirs.py").write_text(THEIRS + "import gymnasium\nmake = lambda: gymnasium.make('CartPole-v1')\n")
    record = ("record", "--policy", "random", "--env", "theirs:make", "--episodes", 2, "--out", "data")
    assert command(*record).exit_code == 0
    (folder / "ran").unlink()
    sys.modules.pop("theirs")
    with flowrl.plans.BC(data="data") as bc:
        bc.train(updates=1)
        with pytest.raises(ConfigError, match=r"the dataset data names code .*: env='theirs:make'; .*name it yourself"):
            bc.evaluate(1)
    assert not ran(folder)
    with flowrl.plans.BC("theirs:make", data="data") as bc:
        bc.evaluate(1)
    assert ran(folder)


def test_no_plan_of_ours_needs_trust() -> None:
    """By its defaults."""
    for name in builtin_plans():
        assert code_in(load_plan_file(name).Config().to_dict()) == []


def test_what_the_caller_names_himself_is_his_word(folder: Path) -> None:
    """And what the run names in its place is not made."""
    run = run_of(folder, {"env": "theirs:make", "eval_env": "theirs:make", "env_args": {"x": 1}})
    for env in ("CartPole-v1", "tests.clock_envs:make", lambda: None):
        with pytest.raises(FlowError) as refused:
            flowrl.load(run, env=env)
        assert "does not come with flowrl" not in str(refused.value)
    assert not ran(folder)


@pytest.mark.parametrize(
    "harmless",
    [
        *("CartPole-v1", "gym:CartPole-v1", "pettingzoo:classic/rps-v2", "envpool:Pong-v5", "ale_py:ALE/Pong-v5"),
        "openspiel:kuhn_poker",
        *("minigrid:MiniGrid-Empty-8x8-v0", "minigrid.wrappers:ImgObsWrapper", "FrameStackObservation(4)"),
        *("flowrl.envs.cartpole:without_velocities", "flowrl.envs.goals:bit_flipping", "flowrl:tic_tac_toe"),
    ],
)
def test_names_of_gymnasium_flowrl_and_its_extras_need_no_trust(harmless: str) -> None:
    assert code_in({"env": harmless, "eval_env": harmless, "wrappers": [harmless], "eval_wrappers": None}) == []


@pytest.mark.parametrize(
    "name",
    [
        *("os:system", "os:system-v0", "minigrid:register_minigrid_envs", "ale_py:roms.utils-v0:x", "my.minigrid:E-v0"),
        *(
            "flowrl.storage.files:write",
            "flowrl.envs.cartpole:gymnasium",
            "gymnasium.utils.play:play",
            "subprocess:run(1)",
            5,
        ),
    ],
)
def test_other_names_do(name: object) -> None:
    """Functions of these libraries too: they may write files."""
    assert code_in({"env": name}) == [f"env={name!r}"]
    assert code_in({"eval_wrappers": name}) == [f"eval_wrappers={name!r}"]


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "run"),
        ("record", "run", "--episodes", 1, "--out", "data"),
        ("export", "run", "--out", "policy.pt2"),
        ("run", "dqn", "--config", "run/config.json"),
        pytest.param(("run", "dqn", "--config", "run/config.json", "--seeds", 2), marks=pytest.mark.slow),
        ("explain", "dqn", "--config", "run/config.json"),
    ],
)
def test_commands_name_the_flag_where_there_is_no_terminal(folder: Path, words: tuple[Any, ...]) -> None:
    run_of(folder, {"env": "theirs:make"})
    done = command(*words)
    assert done.exit_code == 2, done.output
    assert "runs code that does not come with flowrl: env='theirs:make'; if you trust it, add --trust" in done.stderr
    assert not ran(folder)
    assert "module 'theirs' has no environment 'make'" in command(*words, "--trust").output or "--seeds" in words
    assert ran(folder)


def test_values_of_a_file_that_the_user_replaces_are_not_used(folder: Path) -> None:
    (folder / "file.json").write_text(json.dumps({"env": "theirs:make", "wrappers": ["theirs:W"], "seed": 3}))
    done = command("explain", "dqn", "--config", "file.json", "--env", "CartPole-v1", "--set", "wrappers=[]")
    assert done.exit_code == 0, done.output
    assert not ran(folder)


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_at_a_terminal_it_asks(folder: Path, answer: str, code: int) -> None:
    (folder / "theirs.py").write_text(THEIRS + "import gymnasium\nmake = lambda: gymnasium.make('CartPole-v1')\n")
    (folder / "file.json").write_text(json.dumps({"env": "theirs:make"}))
    (folder / "tiny.py").write_text(TINY)
    master, slave = os.openpty()
    os.write(master, answer.encode())
    words = ["-m", "flowrl", "explain", "tiny.py", "--config", "file.json"]
    with Python(words, stdin=slave, stdout=PIPE, stderr=PIPE) as process:
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == code, err
    os.close(master)
    os.close(slave)
    assert "file.json runs code that does not come with flowrl: env='theirs:make'. Run it? [y/N]: " in err
    assert ran(folder) == (code == 0)

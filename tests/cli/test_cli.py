"""The command: what each ends with, what it leaves behind, and every bad input before any work."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import torch
from click.shell_completion import BashComplete

from flowrl.cli.main import cli
from flowrl.interrupts import Interrupts
from flowrl.runs import kept
from flowrl.storage.checkpoint import load_checkpoint
from tests.cli.parts import DEADLINE, SMALL, STUCK, TINY, flowrl, metrics, results_of, summary_of
from tests.full_disk import full_disk

#: The name of no file.
LONG = 300 * "x"

#: Never ends, so that something has to stop it.
ENDLESS = (
    TINY.replace("from_items(list(results(config)))", "from_items(count)")
    + """

def count():
    n = 0
    while True:
        n += 1
        yield {"env_steps": n}
"""
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with tiny.py in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY)
    return tmp_path


def run_of(folder):
    (run,) = (folder / "runs").iterdir()
    return run


# -- how a run ends


def test_a_plan_that_ends_without_a_goal_is_done(folder):
    done = flowrl("run", "tiny.py", "--seed", 3)
    assert done.exit_code == 0, done.output
    run = run_of(folder)
    assert run.name.startswith("tiny-CartPole-v1-3-")
    lines = done.stdout.splitlines()
    assert lines[:-1] == [f"{10 * i} steps  return {30 + i}.0" for i in range(1, 5)]
    assert lines[-1].startswith("done: ")
    assert lines[-1].endswith(f"in runs/{run.name}")
    assert [result["env_steps"] for result in results_of(run)] == [10, 20, 30, 40]
    assert results_of(run)[1] == {
        "env_steps": 20, "episode_return": 32.0, "unknown": None, "loss": 0.5, "shape": [2, 2]
    }  # fmt: skip
    assert {path.name for path in run.iterdir()} == {
        "config.json", "run.json", "plan.txt", "plan.svg", "plan.py", "metrics.jsonl", "summary.json",
        "explain_run.txt", "profile.json", "policy.pt", "policy_last.pt", "checkpoints", "log.txt",
    }  # fmt: skip
    assert (run / "plan.py").read_text() == TINY
    assert "keep" in (run / "plan.txt").read_text()
    summary = summary_of(run)
    assert (summary["outcome"], summary["exit_code"]) == ("done", 0)
    assert summary["last"] == results_of(run)[-1]
    about = json.loads((run / "run.json").read_text())
    assert about["command"] == ["flowrl", "run", "tiny.py", "--seed", "3"]


def test_a_goal_that_is_reached_and_confirmed_ends_with_0(folder):
    """S6: the score of the saved checkpoint on fresh seeds counts."""
    done = flowrl("run", "tiny.py", "--stop-return", 5, "--stop-steps", 100, "--set", "eval_episodes=4", "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("goal reached: best eval return")
    assert done.stdout.count("\n") == 1
    run = run_of(folder)
    (result,) = results_of(run)  # and it ends there
    assert result["confirmed_return"] >= 5
    assert summary_of(run)["outcome"] == "goal"
    assert json.loads((run / "config.json").read_text())["eval_every"] == 10  # 1/10 of the budget


def test_a_budget_that_ends_before_the_goal_ends_with_3(folder):
    done = flowrl("run", "tiny.py", "--stop-return", 400, "--stop-steps", "2e1", "--set", "eval_episodes=2")
    assert done.exit_code == 3, done.output
    run = run_of(folder)
    assert [result["env_steps"] for result in results_of(run)] == [10, 20]
    assert summary_of(run)["outcome"] == "budget"
    assert "ended before the goal" in done.stdout


def test_a_plan_that_ends_itself_before_the_goal_ends_with_3(folder):
    arguments = ("--stop-return", 400, "--set", "eval_every=10", "--set", "eval_episodes=1", "--quiet")
    assert flowrl("run", "tiny.py", *arguments).exit_code == 3


def test_a_budget_without_a_goal_ends_with_0(folder):
    assert flowrl("run", "tiny.py", "--stop-steps", 20, "--set", "eval_episodes=1").exit_code == 0
    assert summary_of(run_of(folder))["last"]["env_steps"] == 20
    (folder / "endless.py").write_text(ENDLESS)
    assert flowrl("run", "endless.py", "--stop-seconds", 1e-6, "--out", "short").exit_code == 0
    assert len(results_of(folder / "short")) == 1


def test_a_budget_of_seconds_ends_a_run_without_results(folder, monkeypatch, caplog):
    """F10: such as one whose worker hangs; its state is saved."""
    monkeypatch.setattr(kept, "LAST_RESULT_SECONDS", 0.0)
    (folder / "mute.py").write_text(ENDLESS.replace(".for_each(keep)", ".filter(lambda item: False)"))
    assert flowrl("run", "mute.py", "--stop-seconds", 0.01, "--out", "mute").exit_code == 0
    assert "no result since 0.01 s were over: the run ends without" in caplog.text
    assert summary_of(folder / "mute")["outcome"] == "done"
    assert list((folder / "mute" / "checkpoints").iterdir())


def test_results_come_often_enough_for_evaluations_and_the_end(folder):
    """S6: eval_every is tested at results; report_every alone would come too late."""
    more = (*SMALL, "--set", "eval_every=40", "--set", "eval_episodes=1", "--quiet", "--envs", 4)
    done = flowrl("run", "dqn", *more, "--stop-steps", 120, "--out", "run")
    assert done.exit_code == 0, done.output
    results = results_of(folder / "run")
    assert [result["env_steps"] for result in results] == [48, 80, 128], "after 40, 80 and 120 the next batch of 16"
    assert ["eval_return" in result for result in results] == [False, False, True], "learning begins with row 100"
    assert json.loads((folder / "run" / "config.json").read_text())["report_every"] == 40


@pytest.mark.parametrize(
    ("bound", "counter", "least"), [("--stop-updates", "updates", 7), ("--stop-steps", "env_steps", 140)]
)
def test_a_run_ends_with_the_first_item_that_reaches_a_budget(folder, bound, counter, least):
    """F12: not with the next result that `report_every` asks for; and a verification comes to the same results."""
    more = (*SMALL, "--set", "eval_every=0", "--set", "report_every=100", "--quiet", "--envs", 4)
    assert flowrl("run", "dqn", *more, bound, least, "--out", "run").exit_code == 0
    last = summary_of(folder / "run")["last"]
    assert least <= last[counter] < least + 16, "an item is an update, or a batch of 16"
    assert (counter == "env_steps") or last[counter] == least
    assert flowrl("verify", "run").exit_code == 0
    assert flowrl("run", "--resume", "run", bound, 2 * least, "--quiet").exit_code == 0
    assert 2 * least <= summary_of(folder / "run")["last"][counter] < 2 * least + 16
    assert flowrl("verify", "run").exit_code == 0, "it knows of both budgets"


def test_without_a_stop_there_is_no_evaluation_unless_asked_for(folder):
    flowrl("run", "tiny.py", "--out", "a")
    assert all("eval_return" not in result for result in results_of(folder / "a"))
    flowrl("run", "tiny.py", "--out", "none", "--stop-steps", 40, "--set", "eval_every=0")
    assert all("eval_return" not in result for result in results_of(folder / "none"))
    flowrl("run", "tiny.py", "--out", "b", "--set", "eval_every=20", "--set", "eval_episodes=1")
    assert ["eval_return" in result for result in results_of(folder / "b")] == [False, True, False, True]


def test_a_run_that_fails_ends_with_1_and_says_where(folder):
    """F9"""
    text = TINY.replace(
        "    return item\n", "    return {'env_steps': item['env_steps'], 'x': 1 / (20 - item['env_steps'])}\n"
    )
    (folder / "bad.py").write_text(text)
    done = flowrl("run", "bad.py")
    assert done.exit_code == 1
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "keep" in done.stderr
    assert "bad.py" in done.stderr
    run = run_of(folder)
    assert len(results_of(run)) == 1
    assert summary_of(run)["outcome"] == "failed"
    assert summary_of(run)["error"].startswith("ZeroDivisionError: division by zero\n")
    assert done.stdout.splitlines()[-1].startswith("failed: ")


def test_items_that_are_no_results_fail_the_run(folder):
    (folder / "bad.py").write_text(TINY.replace("    return item\n", "    return [item]\n"))
    done = flowrl("run", "bad.py")
    assert done.exit_code == 1
    assert "a plan's items must be result dicts, got list of 1 from keep" in done.stderr
    done = flowrl("run", "bad.py", "--stop-steps", 100, "--stop-return", 5, "--out", "with an end")
    assert done.exit_code == 1
    assert "a plan's items must be result dicts, got list of 1 from keep" in done.stderr


def test_what_was_learnt_until_a_run_failed_is_kept(folder):
    """F9: before its first checkpoint too; and how far it got is said."""
    (folder / "bad.py").write_text(
        "from flowrl.plans.dqn import *\nfrom flowrl.plans import dqn\n\n\n"
        "def execution_plan(workers, config):\n"
        "    return dqn.execution_plan(workers, config).insert_before('Report', fails)\n\n\n"
        "def fails(item):\n    assert not isinstance(item, dict)\n    return item\n"
    )
    done = flowrl("run", "bad.py", *SMALL, "--out", "run")
    assert done.exit_code == 1, done.output
    assert "failed: 128 env steps" in done.stdout.splitlines()[-1]
    assert "to go on" not in done.stdout
    assert (folder / "run" / "policy.pt").read_bytes() == (folder / "run" / "policy_last.pt").read_bytes()
    assert flowrl("evaluate", "run", "--episodes", 2, "--trust").exit_code == 0
    assert flowrl("run", "--resume", "run").exit_code == 2, "it has no checkpoint, and a policy"


def test_the_rows_of_a_loss_that_is_not_finite_are_saved(folder, monkeypatch):
    """X1: and the error says how to look at them; the weights are those before."""
    monkeypatch.syspath_prepend(folder)
    (folder / "far.py").write_text(
        "import gymnasium\n\n\nclass Far(gymnasium.Wrapper):\n    def step(self, action):\n"
        "        obs, reward, *rest = self.env.step(action)\n        return obs, 3e38, *rest\n\n\n"
        "def make():\n    return Far(gymnasium.make('Pendulum-v1'))\n"
    )
    done = flowrl("run", "sac", "--env", "far:make", *SMALL, "--out", "run")
    assert done.exit_code == 1, done.output
    error = summary_of(folder / "run")["error"]
    assert error.startswith("NotFinite: the loss is inf; the largest number in its rows is reward[")
    assert "its rows are saved; to look at them: flowrl.storage.checkpoint.load_checkpoint('run/not_finite')" in error
    (batch,) = load_checkpoint("run/not_finite")["batches"]
    assert (len(batch.reward), batch.reward.max()) == (16, 3e38)
    weights = torch.load("run/policy.pt", weights_only=True)
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_a_bug_in_building_the_plan_is_shown_with_its_traceback(folder):
    (folder / "bad.py").write_text(
        TINY.replace("def execution_plan(workers, config):", "def execution_plan(workers, config):\n    return 1 / 0\n")
    )
    with pytest.raises(ZeroDivisionError):
        flowrl("run", "bad.py")
    assert not (folder / "runs").exists()


# -- configuration


def test_options_and_settings_override_files(folder):
    (folder / "values.toml").write_text("seed = 1\nrate = 2\nn = 2\nhidden = [5]\nenv_args = {max_episode_steps = 7}")
    arguments = ("--set", "n=1", "--seed", 3, "--envs", 2, "--env-arg", "render_mode=null")
    done = flowrl("run", "tiny.py", "--config", "values.toml", *arguments, "--out", "run")
    assert done.exit_code == 0, done.output
    values = json.loads((folder / "run" / "config.json").read_text())
    expected = {"seed": 3, "n": 1, "rate": 2.0, "hidden": [5], "envs_per_worker": 2}
    assert {key: values[key] for key in expected} == expected
    assert values["env_args"] == {"max_episode_steps": 7, "render_mode": None}


def test_a_run_can_be_run_again_from_its_directory(folder):
    flowrl("run", "tiny.py", "--set", "n=2", "--set", "hidden=(3,)", "--out", "first")
    done = flowrl("run", "first/plan.py", "--config", "first/config.json", "--out", "second")
    assert done.exit_code == 0, done.output
    for name in ("config.json", "metrics.jsonl", "plan.py"):
        assert (folder / "first" / name).read_text() == (folder / "second" / name).read_text()


# -- dqn, and taps


SHORT = (*SMALL, "--stop-steps", 400, "--set", "report_every=100", "--set", "eval_episodes=2", "--quiet")


def test_dqn_runs_and_a_tap_changes_nothing(folder):
    """D1, D4, S3"""
    assert flowrl("run", "dqn", *SHORT, "--out", "a").exit_code == 0
    tapped = flowrl("run", "dqn", *SHORT, "--out", "b", "--tap", "NStep", "--tap", "train.TrainOneStep")
    assert tapped.exit_code == 0, tapped.output
    taps = tapped.stdout.splitlines()
    assert "NStep: Batch" in taps
    assert any(re.match(r"  obs +float32\[\d+, 4\] +min -\d", line) for line in taps)
    assert any(re.match(r"train.TrainOneStep: .*loss=\d", line) for line in taps)
    plain, with_taps = (metrics(folder / name) for name in "ab")
    assert plain == with_taps
    assert {"env_steps", "updates", "episode_return", "ratio"} <= set(plain[-1])
    assert "flowrl run --tap" in (folder / "b" / "plan.txt").read_text()


# -- the other commands


def test_explain_shows_the_plan_and_runs_nothing(folder):
    done = flowrl("explain", "dqn", "--set", "n_step=5")
    assert done.exit_code == 0, done.output
    assert "NStep(n=5" in done.stdout
    assert "TrainOneStep" in done.stdout
    # 4 numbers, two hidden layers of 128, the dueling heads of two actions and of the state.
    assert done.stdout.splitlines()[-1] == f"network: 4 numbers, dense, {5 * 128 + 129 * 128 + 129 * 3:,} weights"
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("command", ["run", "check"])
def test_help_of_a_plan_has_its_settings(command):
    for words in (("ppo", "--help"), ("--help", "ppo")):
        done = flowrl(command, *words)
        assert done.exit_code == 0
        assert "--set KEY=VALUE" in done.stdout
        assert done.stdout.endswith(flowrl("settings", "ppo").stdout)
        assert re.search(r"^clip +number or schedule +0.2 +>= 0 +clip range", done.stdout, re.MULTILINE)
    assert "PLAN --help shows the settings of PLAN" in flowrl(command, "--help").stdout
    assert "did you mean 'ppo'" in flowrl(command, "pppo", "--help").stderr


COMPLETED = {
    "flowrl run rnd_": ["plain,rnd_dqn", "plain,rnd_ppo"],
    "flowrl explain ti": ["file,ti"],
    "flowrl run ppo --sink t": ["plain,tensorboard"],
    "flowrl run --resume ru": ["dir,ru"],
    "flowrl evaluate ru": ["file,ru"],
    "flowrl plot ru": ["dir,ru"],
    "flowrl ex": ["plain,explain", "plain,export"],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_the_shell_completes_plans_sinks_and_folders(line, monkeypatch):
    """As click does for bash."""
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert BashComplete(cli, {}, "flowrl", "_FLOWRL_COMPLETE").complete().splitlines() == COMPLETED[line]


# -- operators from outside


INSERTED = "def doubled(result):\n    return {**result, 'rate': 2 * result.get('rate', 1)}\n\n\n" + (
    "class Scaled:\n    verb = 'combine'\n    def __init__(self, by): self.by = by\n"
    "    def __call__(self, result): return [{**result, 'scaled': self.by * result['env_steps']}]\n"
)


def test_operators_are_inserted_in_order_and_a_resume_keeps_them(folder, monkeypatch):
    """D3"""
    (folder / "extra.py").write_text(INSERTED)
    monkeypatch.syspath_prepend(str(folder))
    inserts = (
        "--insert",
        "keep=extra:doubled",
        "--insert",
        "keep=extra:Scaled(0.5)",
        "--insert",
        "doubled=extra:doubled",
    )
    arguments = ("run", "tiny.py", "--set", "n=4", "--set", "checkpoint_every=20", *inserts)
    assert flowrl(*arguments, "--out", "run").exit_code == 0
    found = [(each["rate"], each["scaled"]) for each in metrics(folder / "run")]
    assert found == [(4, 5.0), (4, 10.0), (4, 15.0), (4, 20.0)]
    tree = (folder / "run" / "plan.txt").read_text()
    assert tree.index("keep") < tree.index("Scaled") < tree.index("doubled") < tree.index("doubled-2")
    assert "Scaled" in flowrl("explain", "tiny.py", *inserts).stdout
    first, whole = min((folder / "run" / "checkpoints").iterdir()), metrics(folder / "run")
    refused = flowrl("run", "--resume", first, "--insert", "keep=extra:doubled")
    assert refused.exit_code == 2
    assert "a resumed run keeps its plan, which has --insert keep=extra:doubled --insert" in refused.stderr
    assert flowrl("run", "--resume", first, "--quiet").exit_code == 0
    assert metrics(folder / "run") == whole


def test_operators_of_flowrl_need_no_module(folder):
    done = flowrl("explain", "ppo", "--insert", "ParallelRollouts=ScaleRewards(scale=0.1)")
    assert "ScaleRewards(scale=0.1)" in done.stdout


def test_a_budget_in_updates_ends_the_run(folder):
    done = flowrl("run", "dqn", *SMALL, "--stop-updates", 30, "--set", "report_every=50", "--set", "eval_episodes=1")
    assert done.exit_code == 0, done.output
    results = metrics(folder / next((folder / "runs").iterdir()))
    assert results[-1]["updates"] >= 30
    assert all(result.get("updates", 0) < 30 for result in results[:-1])
    assert json.loads((next((folder / "runs").iterdir()) / "run.json").read_text())["stop"]["updates"] == 30


def test_list_names_the_plans():
    assert any(line.startswith("dqn ") for line in flowrl("list").stdout.splitlines())


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from flowrl.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "print('loaded', [m for m in ('torch', 'numpy', 'gymnasium', 'ray', 'rich', 'typeguard') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert "Commands:" in done.stdout
    assert done.stdout.endswith("loaded []\n")


# -- bad input: one clear message, code 2, nothing written

BAD = {
    "plan": (("run", "dqnn"), "no plan 'dqnn'; did you mean 'dqn'"),
    "plan file": (("run", "tny.py"), "no plan file tny.py"),
    "command": (("rnu", "dqn"), "No such command 'rnu'. Did you mean 'run'?"),
    "environment": (("run", "tiny.py", "--env", "CartPol-v1"), "did you mean 'CartPole-v1'"),
    "environment's argument": (("run", "tiny.py", "--env-arg", "sutton=1"), "env_args 'sutton'"),
    "wrapper": (("run", "tiny.py", "--wrapper", "TimLimit(3)"), "no wrapper 'TimLimit' in gymnasium.wrappers: did you"),
    "wrapper's argument": (("run", "tiny.py", "--wrapper", "TimeLimit(x=3)"), "'TimeLimit(x=3)' cannot wrap"),
    "manager": (("run", "tiny.py", "--env-manager", "proces"), "unknown env_manager 'proces': did you mean 'subproces"),
    "manager's argument": (
        ("run", "tiny.py", "--env-manager", "thread", "--set", 'env_manager_args={"step_time": 1}'),
        "env_manager='thread' has no argument 'step_time': did you mean 'step_timeout'",
    ),
    "manager's value": (
        ("run", "dqn", "--env-manager", "subprocess", "--set", 'env_manager_args={"step_timeout": -1}'),
        "step_timeout=-1",
    ),
    "library": (("run", "tiny.py", "--env", "pettingzoo:classic/rps-v9"), "did you mean 'classic/rps-v2'"),
    "option": (("run", "tiny.py", "--stop-step", "1"), "--stop-steps"),
    "key": (("run", "tiny.py", "--set", "rat=1"), "unknown configuration key 'rat'; did you mean 'rate'"),
    "key of a file": (
        ("run", "tiny.py", "--config", "bad.json"),
        "bad.json: unknown configuration key 'sed'; did you mean 'seed'",
    ),
    "key, not of the file": (
        ("run", "tiny.py", "--config", "good.json", "--set", "rat=1"),
        "Error: unknown configuration",
    ),
    "file": (("run", "tiny.py", "--config", "no.json"), "no.json: No such file"),
    "type": (("run", "tiny.py", "--set", "rate=fast"), "rate='fast': expected float, got str"),
    "type in a tuple": (("run", "tiny.py", "--set", "hidden=[1,true]"), "hidden=[1, True]: expected tuple[int, ...]"),
    "type of an option": (("run", "tiny.py", "--seed", "one"), "'one' is not a valid integer"),
    "value": (("run", "tiny.py", "--seed", "-1"), "seed=-1"),
    "value that no generator takes": (
        ("run", "tiny.py", "--seed", 2**64),
        f"seed={2**64}: expected at most {2**64 - 1:,}",
    ),
    "value beyond another": (
        ("run", "dqn", "--set", "n_step=1e9"),
        "n_step=1000000000: expected at most buffer_size, which is 50000",
    ),
    "value that no memory holds": (
        ("run", "dqn", "--set", "hidden=[65_536, 2_000_000_000]"),
        "there is not enough memory for the networks",
    ),
    "setting without =": (("run", "tiny.py", "--set", "rate"), "--set 'rate': expected KEY=VALUE"),
    "budget": (("run", "tiny.py", "--stop-steps", "1.5"), "'1.5' is not a whole number"),
    "seconds": (("run", "tiny.py", "--stop-seconds", "0"), "'0' is not a finite number above 0"),
    "goal": (("run", "tiny.py", "--stop-return", "nan"), "'nan' is not a finite number"),
    "goal of an agent, and of none": (
        ("run", "ippo", "--stop-return", "left=475", "--stop-return", "475", "--stop-steps", "9"),
        "--stop-return left=475 475: expected one number, or AGENT=NUMBER once for each agent",
    ),
    "goals of one agent": (
        ("run", "ippo", "--stop-return", "left=475", "--stop-return", "left=9", "--stop-steps", "9"),
        "--stop-return left=475 left=9: expected one number, or AGENT=NUMBER once for each agent",
    ),
    "goal of nobody": (
        ("run", "ippo", "--stop-return", "lift=475", "--stop-steps", "9"),
        "--stop-return lift=475: no such agent: did you mean 'left'",
    ),
    "goal of an agent where there is one": (
        ("run", "tiny.py", "--stop-return", "left=475", "--stop-steps", "9"),
        "has one agent: give the number alone",
    ),
    "goal out of sight": (
        ("run", "tiny.py", "--stop-return", "1", "--stop-steps", "9", "--set", "eval_every=10"),
        "the goal would never be tested",
    ),
    "goal without evaluations": (
        ("run", "tiny.py", "--stop-return", "1", "--set", "eval_every=0"),
        "eval_every=0: --stop-return 1 needs evaluations; leave eval_every out",
    ),
    "no plan in it": (("run", "empty.py"), "has no Config and no policy and no execution_plan"),
    "syntax": (("run", "syntax.py"), "SyntaxError"),
    "import": (("run", "import.py"), "line 1: ModuleNotFoundError: No module named 'nowhere'"),
    "continuous actions": (("run", "dqn", "--env", "Pendulum-v1"), "discrete"),
    "refused by an operator": (("run", "refuses.py"), "refuses.py: line 49: n is 0"),
    "tap": (
        ("run", "dqn", "--tap", "TrainOneStp"),
        "no operator is named 'TrainOneStp'; did you mean 'train.TrainOneStep'",
    ),
    "inserted where": (
        ("run", "dqn", "--insert", "NStp=ScaleRewards(1.0)"),
        "no operator is named 'NStp'; did you mean 'store.NStep'",
    ),
    "inserted what": (("run", "dqn", "--insert", "NStep=ScaleReward(1.0)"), "did you mean 'ScaleRewards'"),
    "inserted from where": (("run", "tiny.py", "--insert", "keep=nowhere:f"), "No module named 'nowhere'"),
    "inserted with what": (("run", "dqn", "--insert", "NStep=ScaleRewards(rate=1)"), "argument 'rate'"),
    "inserted by a variable": (("run", "dqn", "--insert", "NStep=ScaleRewards(x)"), "and other Python literals"),
    "inserted nothing": (("run", "tiny.py", "--insert", "keep"), "expected NODE=module:op"),
    "tap of several": (("run", "tiny.py", "--tap", "*e*"), "names "),
    "explained plan": (("explain", "dqnn"), "did you mean 'dqn'"),
    "explained environment": (("explain", "dqn", "--env", "CartPol-v1"), "did you mean 'CartPole-v1'"),
    "directory": (("run", "tiny.py", "--out", "."), "is not empty"),
    "end on the workers": (("run", "workers.py"), "gather_sync"),
}


def test_debugging_is_in_this_process(folder):
    assert flowrl("run", "dqn", *SMALL, "--stop-steps", 50, "--workers", 1, "--debug", "--out", "run").exit_code == 0
    assert json.loads((folder / "run" / "config.json").read_text())["num_workers"] == 0


def test_a_plan_with_a_problem_is_refused_before_there_is_a_directory(folder):
    done = flowrl("run", "dqn", *SMALL, "--insert", "NStep=GAE(0.9, 0.9)", "--out", "run")
    assert done.exit_code == 2
    assert "needs 'value', 'next_value', which is not in the output of store.NStep" in done.stderr
    assert not (folder / "run").exists()


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, folder):
    (folder / "bad.json").write_text('{"sed": 1}')
    (folder / "good.json").write_text('{"seed": 1}')
    (folder / "empty.py").write_text('"""No plan."""\n')
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "import.py").write_text("import nowhere\n")
    refuses = TINY.replace("import flowrl\n", "import flowrl\nfrom flowrl.operators import NStep\n")
    (folder / "refuses.py").write_text(refuses.replace(".for_each(keep)", ".for_each(NStep(0, 0.9))"))
    (folder / "workers.py").write_text(
        TINY.replace("from_items(list(results(config)))", "from_workers(workers, list(results(config)))")
    )
    before = sorted(folder.rglob("*"))
    arguments, message = BAD[case]
    done = flowrl(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert sorted(folder.rglob("*")) == before


# -- interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_ends_the_run_with_everything_saved(number, folder, child):
    """F15"""
    (folder / "endless.py").write_text(ENDLESS)
    process = child("run", "endless.py", "--out", "run", "--stop-steps", "1_000_000_000")
    assert process.stdout.readline() == "1 steps\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, err
    assert "stopping after this step" in err
    assert "Traceback" not in err
    assert out.splitlines()[-1].startswith("interrupted: ")
    summary = summary_of(folder / "run")
    assert summary["outcome"] == "interrupted"
    assert summary["last"]["env_steps"] == len(results_of(folder / "run"))
    assert (folder / "run" / "policy_last.pt").exists()
    assert not list((folder / "run").glob(".*"))


def no_errors():
    """As Python has it after `2>&-`."""
    os.close(2)
    sys.stderr = None


def no_reader_of_errors():
    """As after `2> >(exec true)`."""
    leads_nowhere(2)


def leads_nowhere(number):
    """The stream becomes a pipe whose reader has left."""
    reader, writer = os.pipe()
    os.dup2(writer, number)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("begin", [no_errors, no_reader_of_errors])
def test_an_interrupt_that_cannot_be_answered_ends_the_run_as_well(begin, folder, child):
    """F15: standard error is closed, or its reader has left."""
    (folder / "endless.py").write_text(ENDLESS)
    process = child("run", "endless.py", "--out", "run", "--stop-steps", "1_000_000_000", begin=begin)
    assert process.stdout.readline() == "1 steps\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert summary_of(folder / "run")["outcome"] == "interrupted"
    assert list((folder / "run" / "checkpoints").iterdir())
    assert "stopping" not in (folder / "run" / "metrics.jsonl").read_text()


def test_a_failure_that_cannot_be_told_is_recorded(folder, child):
    """F9: the reader of standard error has left."""
    (folder / "bad.py").write_text(TINY.replace("    return item\n", "    return 1 / 0\n"))
    process = child("run", "bad.py", "--out", "run", begin=no_reader_of_errors)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert summary_of(folder / "run")["outcome"] == "failed"
    assert (folder / "run" / "policy.pt").exists()


def test_a_second_interrupt_ends_what_is_stuck(folder, child):
    (folder / "stuck.py").write_text(STUCK)
    process = child("run", "stuck.py", "--out", "run")
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert "once more to stop at once" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert summary_of(folder / "run")["outcome"] == "interrupted"


def test_an_interrupt_while_the_plan_is_built_leaves_nothing(folder):
    (folder / "slow.py").write_text(TINY.replace("    return Left()", "    raise KeyboardInterrupt"))
    done = flowrl("run", "slow.py")
    assert done.exit_code == 130
    assert "interrupted" in done.stderr
    assert not (folder / "runs").exists()


class FakeRun:
    def __init__(self):
        self.interrupted = threading.Event()

    def interrupt(self):
        self.interrupted.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handlers_and_threads_are_as_before(number):
    """F15"""
    before, threads = signal.getsignal(number), threading.active_count()
    run = FakeRun()
    with Interrupts(run) as interrupts:
        assert not interrupts.asked
        signal.raise_signal(number)
        assert interrupts.asked
        assert run.interrupted.wait(DEADLINE)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
    assert threading.active_count() == threads


def test_a_run_in_another_thread_leaves_signals_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Interrupts(FakeRun()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(DEADLINE)
    assert seen == [before]


# -- output that nobody gets


def no_output():
    """As after `>&-`."""
    os.close(1)
    sys.stdout = None


def no_reader():
    """As in `| head -0`."""
    leads_nowhere(1)


def full():
    """As after `> log` on a disk that is full."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


FULL = "standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(("begin", "said"), [(no_output, ""), (no_reader, ""), (full, FULL)])
def test_what_a_run_cannot_print_is_dropped_and_it_goes_on(begin, said, folder, child):
    process = child("run", "tiny.py", "--set", "n=200", "--tap", "keep", "--out", "r", begin=begin)
    _, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, said)
    assert len(results_of(folder / "r")) == 200


@pytest.mark.parametrize(("begin", "code", "said"), [(no_output, 0, ""), (no_reader, 1, ""), (full, 1, FULL)])
def test_a_command_whose_answer_is_lost_ends_with_1(begin, code, said, child):
    """Unless nobody wanted it."""
    process = child("list", begin=begin)
    _, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (code, said)


# -- what the machine refuses


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", LONG),
        ("run", "tiny.py", "--out", LONG),
        ("run", "--resume", LONG),
        ("run", "bc", "--set", f"data={LONG}"),
        ("evaluate", LONG),
        ("plot", LONG),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_in_a_line(arguments, folder):
    done = flowrl(*arguments)
    assert done.exit_code in (1, 2)
    assert re.fullmatch(r"Error: .*xxx\.\.\.xxx.*: File name too long\n", done.stderr), done.stderr


def test_a_disk_that_is_full_fails_the_run_in_a_line_and_keeps_the_newest_checkpoint(folder):
    """F9: it can be resumed once there is room."""
    with full_disk(60_000):
        done = flowrl("run", "tiny.py", "--set", "n=2000", "--set", "checkpoint_every=1000", "--out", "r", "--quiet")
    assert done.exit_code == 1
    assert "Error: cannot write the run directory r: File too large\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert summary_of(folder / "r")["outcome"] == "failed"
    with full_disk(10):
        done = flowrl("run", "--resume", "r")
    assert (done.exit_code, done.stderr) == (2, "Error: cannot write the run directory r: File too large\n")
    assert flowrl("run", "--resume", "r").exit_code == 0
    assert [result["env_steps"] for result in results_of(folder / "r")] == [10 * i for i in range(1, 2001)]

"""Which environments, and who steps them, from the command line: run, saved, resumed, loaded, recorded."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flowrl as package
from flowrl.errors import ConfigError, EnvFault
from tests.cli.parts import flowrl, metrics
from tests.cli.resume_parts import SMALL

ENVS = (
    *("--env-manager", "subprocess", "--set", 'env_manager_args={"envs_per_process": 1}', "--envs", 2),
    *("--wrapper", "FrameStackObservation(2)", "--wrapper", "FlattenObservation", "--wrapper", "ClipReward(0, 0.5)"),
)


@pytest.mark.slow
def test_environments_in_processes_with_wrappers_go_on_exactly(folder):
    """D3, S1: the resumed run is the uninterrupted one; returns are raw though the policy sees half of each reward."""
    for name, steps in (("whole", 600), ("run", 400)):
        done = flowrl("run", "dqn", *SMALL, *ENVS, "--stop-steps", steps, "--out", name, "--quiet")
        assert done.exit_code == 0, done.output
    done = flowrl("run", "--resume", "run", "--stop-steps", 600, "--quiet")
    assert done.exit_code == 0, done.output
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["last"]["env_steps"] == 600
    run, whole = folder / "run", folder / "whole"
    assert metrics(run) == metrics(whole)
    for policy in ("policy.pt", "policy_last.pt"):
        assert (run / policy).read_bytes() == (whole / policy).read_bytes()
    config = json.loads((run / "config.json").read_text())
    assert config["wrappers"] == ["FrameStackObservation(2)", "FlattenObservation", "ClipReward(0, 0.5)"]
    assert (config["env_manager"], config["env_manager_args"]) == ("subprocess", {"envs_per_process": 1})
    last = summary["last"]
    assert last["episode_return"] == last["episode_length"], "CartPole pays 1 for every step"

    trained = package.load(run)
    assert trained.act(np.zeros(8, np.float32)) in (0, 1)
    assert trained.evaluate(episodes=2)["return_mean"] >= 1
    done = flowrl("record", run, "--out", "data", "--episodes", 2)
    assert done.exit_code == 0, done.output
    assert "2 episodes" in done.stdout


def test_a_resumed_run_keeps_its_environments(folder):
    done = flowrl("run", "dqn", *SMALL, "--stop-steps", 200, "--out", "run", "--quiet")
    assert done.exit_code == 0, done.output
    for option, value in (("--env-manager", "thread"), ("--wrapper", "TimeLimit(9)")):
        done = flowrl("run", "--resume", "run", option, value)
        assert done.exit_code == 2
        assert "a resumed run keeps its settings" in done.output


def test_wrappers_of_the_command_take_the_place_of_the_files(folder):
    (folder / "own.toml").write_text('wrappers = ["TimeLimit(5)"]\nenv_manager = "thread"\n')
    for options, wrappers in (((), ["TimeLimit(5)"]), (("--wrapper", "TimeLimit(7)"), ["TimeLimit(7)"])):
        out = f"run{len(options)}"
        more = ("--config", "own.toml", *options, "--stop-steps", 30, "--out", out, "--quiet")
        done = flowrl("run", "a2c", "--envs", 2, "--set", "eval_episodes=1", *more)
        assert done.exit_code == 0, done.output
        config = json.loads((folder / out / "config.json").read_text())
        assert (config["wrappers"], config["env_manager"]) == (wrappers, "thread")


def test_evaluation_in_another_environment(folder):
    """S3: every episode there is as long as its time limit says."""
    more = ("--set", "eval_env=CartPole-v1", "--set", 'eval_env_args={"max_episode_steps": 3}')
    done = flowrl("run", "dqn", *SMALL, *more, "--stop-steps", 200, "--out", "run", "--quiet")
    assert done.exit_code == 0, done.output
    results = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [result["eval_return"] for result in results if "eval_return" in result] == [3.0]


def test_bad_observations_name_their_environment(folder, monkeypatch):
    """Also at the first reset, before there is a run."""
    monkeypatch.syspath_prepend(folder)
    (folder / "wide.py").write_text(
        "import gymnasium, numpy as np\n\n\nclass Wide(gymnasium.ObservationWrapper):\n"
        "    def __init__(self):\n        super().__init__(gymnasium.make('CartPole-v1'))\n\n"
        "    def observation(self, obs):\n        return np.zeros(5, np.float32)\n"
    )
    done = flowrl("run", "dqn", "--env", "wide:Wide", "--envs", 2, "--stop-steps", 30)
    assert done.exit_code == 2
    assert "the observation has shape (5,), but its space says (4,)\nin environment 0, episode 0" in done.output


def test_an_error_of_an_environment_is_three_lines(folder, monkeypatch):
    """F10: what, where in the user's code, which environment and how to examine it; all of it is in log.txt."""
    monkeypatch.syspath_prepend(folder)
    (folder / "boom.py").write_text(
        "import gymnasium\n\n\nclass Boom(gymnasium.Wrapper):\n"
        "    def __init__(self, at=7):\n        super().__init__(gymnasium.make('CartPole-v1'))\n"
        "        self.left = at\n\n"
        "    def step(self, action):\n        self.left -= 1\n        if not self.left:\n"
        "            raise ValueError('boom in the simulator')\n        return super().step(action)\n"
    )
    run = ("run", "dqn", "--env", "boom:Boom", "--env-arg", "at=9", "--envs", 2, "--stop-steps", 99)
    done = flowrl(*run, "--out", "mine")
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "Error: ValueError: boom in the simulator",
        f"  File \"{folder / 'boom.py'}\", line 12, in step: raise ValueError('boom in the simulator')",
        "in environment 0, episode 0, step 8; to examine it alone: flowrl doctor boom:Boom --env-arg=at=9",
    ]
    assert "flowrl/envs/managers/local.py" in (folder / "mine" / "log.txt").read_text()
    assert "flowrl/envs/managers/local.py" in flowrl(*run, "--debug", "--out", "whole").stderr


@pytest.mark.parametrize(("kind", "told"), [(EnvFault, []), (ConfigError, ["raised in worker 0"])])
def test_tracebacks_of_workers_are_not_told(kind, told, monkeypatch):
    """Where a run does not begin because environments of its workers do not."""

    def failing(*_, **__):
        error = kind("it does not begin")
        error.add_note("raised in worker 0:\nTraceback (most recent call last):\n  ...")
        raise error

    monkeypatch.setattr("flowrl.tools.doctor.diagnose", failing)
    done = flowrl("doctor", "CartPole-v1")
    assert (done.exit_code, done.stderr.splitlines()) == (2, ["Error: it does not begin", *told])


FAULTY = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Faulty(gymnasium.Env):
    observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(2))
    action_space = spaces.Discrete(2)

    def __init__(self, fault, when):
        self.fault, self.when = fault, when
        self.at("made")

    def at(self, when):
        if when == self.when and self.fault == "raises":
            raise RuntimeError("no licence")
        obs = {"a": np.zeros(2, np.float32), "b": 1}
        return {"a": obs["a"]} if when == self.when else obs

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.at("reset"), {}

    def step(self, action):
        return self.at("step"), 1.0, False, False, {}
"""


@pytest.mark.parametrize(
    ("fault", "when", "code"),
    [("raises", "made", 2), ("raises", "reset", 2), ("lacks", "reset", 2), ("raises", "step", 1), ("lacks", "step", 1)],
)
def test_when_an_environment_fails_decides_the_exit_code_and_not_how(fault, when, code, folder, monkeypatch):
    """F10: 2 before the run, which then leaves no directory, 1 in it; with the way to examine it and no frames."""
    monkeypatch.syspath_prepend(folder)
    (folder / "faulty.py").write_text(FAULTY)
    how = ("--env", "faulty:Faulty", "--env-arg", f"fault={fault}", "--env-arg", f"when={when}")
    done = flowrl("run", "dqn", *how, "--envs", 1, "--stop-steps", 30, "--out", "mine")
    assert done.exit_code == code, done.output
    assert (folder / "mine").exists() == (code == 1)
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        f"; to examine it alone: flowrl doctor faulty:Faulty --env-arg=fault={fault} --env-arg=when={when}"
    )


@pytest.mark.parametrize("fault", ["raises", "lacks"])
def test_an_environment_that_fails_in_an_evaluation_fails_the_command(fault, folder, monkeypatch):
    """F10: whatever it raises."""
    monkeypatch.syspath_prepend(folder)
    (folder / "faulty.py").write_text(FAULTY)
    how = ("--env", "faulty:Faulty", "--env-arg", "fault=none")
    assert (
        flowrl(
            "run", "dqn", *how, "--env-arg", "when=never", *SMALL, "--stop-steps", 30, "--quiet", "--out", "mine"
        ).exit_code
        == 0
    )
    how = ("--env", "faulty:Faulty", "--env-arg", f"fault={fault}", "--env-arg", "when=step")
    assert flowrl("evaluate", "mine", *how, "--episodes", 1).exit_code == 1


def test_a_setting_given_twice_is_refused(folder):
    done = flowrl("explain", "dqn", "--env", "Acrobot-v1", "--set", "env=CartPole-v1")
    assert done.exit_code == 2
    assert "env is given twice, as 'Acrobot-v1' and by --set as 'CartPole-v1'" in done.stderr
    assert flowrl("explain", "dqn", "--seed", 3, "--set", "seed=3").exit_code == 0

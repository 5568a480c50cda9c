"""Which environments, and who steps them, from the command line: run, saved, resumed, loaded, recorded."""

from __future__ import annotations

import json

import numpy as np

import flowrl as package
from tests.cli.parts import flowrl, metrics
from tests.cli.resume_parts import SMALL

ENVS = (
    *("--env-manager", "subprocess", "--set", 'env_manager_args={"envs_per_process": 1}', "--envs", 2),
    *("--wrapper", "FrameStackObservation(2)", "--wrapper", "FlattenObservation", "--wrapper", "ClipReward(0, 0.5)"),
)


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


def test_a_setting_given_twice_is_refused(folder):
    done = flowrl("explain", "dqn", "--env", "Acrobot-v1", "--set", "env=CartPole-v1")
    assert done.exit_code == 2
    assert "env is given twice, as 'Acrobot-v1' and by --set as 'CartPole-v1'" in done.stderr
    assert flowrl("explain", "dqn", "--seed", 3, "--set", "seed=3").exit_code == 0

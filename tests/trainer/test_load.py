"""flowrl.load: from a run directory to actions."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import flowrl
from flowrl.cli.main import cli
from flowrl.engine.seeds import SeedTree
from flowrl.errors import CheckpointError, ConfigError, SchemaError
from flowrl.testing import same
from tests.cli.parts import flowrl as command
from tests.forked import PIPE, Python

PLAN = '''"""Steers a pendulum by chance: continuous actions, clipped for the environment."""

import numpy as np
import torch

from flowrl import Trainer
from flowrl.policies import policy_from


class gaussian:
    draws = 2

    def __call__(self, mean, noise, env_steps):
        normal = np.sqrt(-2 * np.log1p(-noise[:, :1])) * np.cos(2 * np.pi * noise[:, 1:])
        action = (mean + 5 * normal).astype(np.float32)
        return {"action": action, "env_action": action.clip(-2, 2)}


class mean_action:
    draws = 0

    def __call__(self, mean, noise, env_steps):
        return mean


class Steer(Trainer):
    policy = policy_from(
        lambda observation_space, action_space: torch.nn.Linear(3, 1),
        lambda model, batch: model(batch.obs).pow(2).mean(),
        collect=gaussian(),
        eval=mean_action(),
    )
'''


def run(plan: str, out: Path, *options: str) -> Path:
    done = CliRunner().invoke(cli, ["run", plan, "--out", str(out), "--stop-steps", "300", "--quiet", *options])
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def dqn_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DQN on CartPole, for a moment."""
    settings = {"hidden": "[8]", "learning_starts": 50, "replay_ratio": 4, "eval_episodes": 5, "device": "cpu"}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    more = ("--set", "report_every=50", "--set", "eval_every=100", "--set", "learning_rate=0.03", "--seed", "3")
    return run("dqn", tmp_path_factory.mktemp("runs") / "dqn", *options, *more)


@pytest.fixture
def copy(dqn_run: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may damage."""
    return Path(shutil.copytree(dqn_run, tmp_path / "copy"))


def test_two_lines(dqn_run: Path) -> None:
    """In a process that knows nothing but the directory."""
    code = f"import flowrl\nprint(repr(flowrl.load({str(dqn_run)!r}).act([0.1, 0.0, 0.0, 0.0])))"
    with Python(["-c", code], stdout=PIPE) as process:
        printed, _ = process.communicate()
    assert printed.strip() == repr(flowrl.load(dqn_run).act([0.1, 0.0, 0.0, 0.0]))


def test_it_is_the_policy_that_was_best(dqn_run: Path) -> None:
    """It plays the episodes of the run's own evaluation exactly as then; with `last`, it is the one at the end."""
    best, last = flowrl.load(dqn_run), flowrl.load(dqn_run, last=True)
    summary = json.loads((dqn_run / "summary.json").read_text())
    results = map(json.loads, (dqn_run / "metrics.jsonl").read_text().splitlines())
    returns = [result["eval_return"] for result in results if "eval_return" in result]
    number = 1 + returns.index(summary["best_eval_return"])
    starts = SeedTree(best.config.seed).integer(f"evaluation/{number}")
    assert best.play(5, starts)[""].return_mean == summary["best_eval_return"]
    for loaded, file in ((best, "policy.pt"), (last, "policy_last.pt")):
        assert same(loaded.policy.weights(), dict(torch.load(dqn_run / file, weights_only=True)))
    assert (best.config.seed, best.config.hidden) == (3, (8,))
    assert best.evaluate(episodes=2)["episodes"] == 2


def test_it_acts_in_the_environment_until_the_episode_ends(dqn_run: Path) -> None:
    policy, env = flowrl.load(dqn_run), gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    over = False
    while not over:
        action = policy.act(obs)
        assert env.action_space.contains(action)
        obs, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    env.close()


def test_a_batch_is_acted_on_row_by_row(dqn_run: Path) -> None:
    policy = flowrl.load(dqn_run)
    obs = np.random.default_rng(0).normal(size=(20, 4))
    assert policy.act(obs).tolist() == [int(policy.act(row)) for row in obs]
    assert policy.act(obs[:0]).shape == (0,)
    with pytest.raises(SchemaError, match=r"float64\[5\], expected float32\[4\]"):
        policy.act(np.zeros(5))


def test_a_policy_of_masked_actions_takes_valid_ones(tmp_path: Path) -> None:
    """Evaluated, loaded, greedy and not; without a valid action it says so."""
    from tests.masked_envs import Doors

    small = ("--set", "hidden=[8]", "--set", "learning_starts=50", "--set", "device=cpu", "--set", "eval_episodes=3")
    policy = flowrl.load(run("dqn", tmp_path / "run", "--env", "tests.masked_envs:Doors", *small), trusted=True)
    env = Doors(length=30)
    obs, _ = env.reset(seed=0)
    for step in range(28):
        obs, *_ = env.step(policy.act(obs, deterministic=step % 2 == 0))
    with pytest.raises(SchemaError, match="leaves no valid action in observation 1"):
        policy.act([obs, {**obs, "action_mask": np.zeros(5, np.int8)}])


def test_stochastic_acting_is_that_of_the_end_of_the_run_and_repeats(dqn_run: Path) -> None:
    """Exploration as when it was saved; loaded again, it draws the same."""
    obs = np.zeros((400, 4))
    policy, again = flowrl.load(dqn_run), flowrl.load(dqn_run)
    assert policy.env_steps > 0
    drawn = [policy.act(obs, deterministic=False) for _ in range(2)]
    assert same(drawn, [again.act(obs, deterministic=False) for _ in range(2)])
    assert not same(drawn[0], drawn[1])
    assert 0.3 < (drawn[0] != policy.act(obs)).mean() < 0.7


# -- a plan of one's own


@pytest.fixture
def steer(tmp_path: Path) -> tuple[Path, Path]:
    """A user's plan file, and the directory of its run."""
    (tmp_path / "steer.py").write_text(PLAN)
    options = ("--env", "Pendulum-v1", "--set", "eval_episodes=2", "--set", "device=cpu")
    return tmp_path / "steer.py", run(str(tmp_path / "steer.py"), tmp_path / "run", *options)


def test_continuous_actions_fit_the_environment(steer: tuple[Path, Path]) -> None:
    """What the policy drew may lie outside of the space; what the environment gets does not (G6)."""
    policy = flowrl.load(steer[1], trusted=True)
    space = gymnasium.make("Pendulum-v1").action_space
    drawn = [policy.act(np.zeros(3), deterministic=False) for _ in range(20)]
    assert all(space.contains(action) for action in drawn)
    assert {-2.0, 2.0} <= {float(action[0]) for action in drawn}
    assert policy.act(np.ones((5, 3))).shape == (5, 1)
    assert policy.act(np.ones(3)).shape == (1,)


def test_what_ran_is_loaded_when_the_plan_file_is_gone_or_changed(steer: tuple[Path, Path]) -> None:
    file, directory = steer
    before = flowrl.load(directory, trusted=True).act(np.ones(3))
    file.write_text(PLAN.replace("Linear(3, 1)", "Linear(3, 1, bias=False)"))
    assert same(flowrl.load(directory, trusted=True).act(np.ones(3)), before)
    file.unlink()
    assert same(flowrl.load(directory, trusted=True).act(np.ones(3)), before)


# -- what cannot be loaded


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is not there; give the directory that a run printed at its end"):
        flowrl.load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        flowrl.load(tmp_path)
    for spoil, message in (
        (lambda file: file.write_text("[" * 10**5), "is malformed: .*nested too deeply"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "it is no regular file"),
        (lambda file: file.unlink(), "does not say which plan it ran"),
    ):
        spoil(copy / "run.json")
        with pytest.raises(ConfigError, match=message):
            flowrl.load(copy)


def test_a_run_without_a_policy_yet_is_refused(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    (copy / "policy.pt").unlink()
    with pytest.raises(ConfigError, match=r"no policy\.pt \(saved policies: policy_last\.pt\) and no checkpoint"):
        flowrl.load(copy)
    (copy / "policy_last.pt").unlink()
    with pytest.raises(ConfigError, match=r"no policy_last\.pt \(saved policies: none\)"):
        flowrl.load(copy, last=True)


def test_damaged_or_foreign_weights_are_refused(copy: Path) -> None:
    change(copy, hidden=[9])
    with pytest.raises(CheckpointError, match=r"(?s)policy\.pt does not fit DQNPolicy: .*size mismatch"):
        flowrl.load(copy)
    change(copy, hidden=[8])
    (copy / "policy.pt").write_bytes((copy / "policy.pt").read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"policy\.pt holds no readable weights"):
        flowrl.load(copy)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *((name, data) for name in ("config.json", "run.json") for data in (b"[" * 100_000, b"\xff", b"[1]")),
        *(("metrics.jsonl", data + b"\n") for data in (b"[" * 100_000, b"\xff", b"1")),
    ],
)
def test_malformed_files_are_refused_in_a_line(copy: Path, name: str, data: bytes) -> None:
    (copy / name).write_bytes(data)
    needed = name != "metrics.jsonl"  # a policy acts without it
    for words in (("evaluate", copy), ("plot", copy), ("run", "--resume", copy, "--stop-steps", 10**6))[not needed :]:
        done = command(*words)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
        assert re.search(rf"{name}.*(malformed|expected a table)", done.stderr)
    if not needed:
        assert flowrl.load(copy).act(np.zeros(4)) in (0, 1)


class Bomb:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_file_of_weights_cannot_run_code(copy: Path, tmp_path: Path) -> None:
    for write in (lambda path: torch.save(Bomb(tmp_path / "ran"), path), lambda path: path.write_bytes(bomb(tmp_path))):
        write(copy / "policy.pt")
        with pytest.raises(CheckpointError, match="holds no readable weights"):
            flowrl.load(copy)
    assert not (tmp_path / "ran").exists()


def bomb(folder: Path) -> bytes:
    return pickle.dumps(Bomb(folder / "ran"), protocol=2)


def test_another_environment_may_stand_for_one_that_is_not_here(copy: Path) -> None:
    change(copy, env="nowhere_at_all:Env")
    assert flowrl.load(copy, trusted=True).act(np.zeros(4)) in (0, 1)
    with pytest.raises(ConfigError, match="nowhere_at_all"):
        flowrl.load(copy, trusted=True).evaluate(episodes=1)
    policy = flowrl.load(copy, env=lambda: gymnasium.make("CartPole-v1"))
    assert policy.act(np.zeros(4)) in (0, 1)
    assert policy.evaluate(episodes=2)["episodes"] == 2


def test_arguments_of_the_environment_and_the_device_may_be_others(dqn_run: Path) -> None:
    short = flowrl.load(dqn_run, env_args={"max_episode_steps": 3}, device="cpu")
    assert short.evaluate(episodes=2)["length_mean"] == 3
    with pytest.raises(ConfigError, match="cannot be loaded here: device='tpu' is not a device"):
        flowrl.load(dqn_run, device="tpu")


def change(directory: Path, **values: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

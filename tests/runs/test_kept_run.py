"""Training from Python with `out`: the directory is that of `flowrl run`, and each goes on with the other's runs."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import flowrl
from flowrl.errors import CheckpointError, ConfigError, PlanError
from flowrl.plans import DQN, PPO
from flowrl.runs.resume import step_of
from flowrl.storage.checkpoint import Checkpoints, load_checkpoint
from flowrl.testing import same
from flowrl.trainer.plan_file import load_plan_file
from tests.cli import parts
from tests.plans.small import SMALL as MODELS

SMALL: dict[str, Any] = {
    **{"hidden": (8,), "learning_starts": 100, "replay_ratio": 4, "batch_size": 16, "torch_threads": 1},
    **{"report_every": 100, "eval_every": 200, "eval_episodes": 2, "device": "cpu"},
}


class Grid(gymnasium.Env[Any, Any]):
    """Observations of several kinds; the episode ends after a few steps."""

    observation_space = gymnasium.spaces.Dict(
        at=gymnasium.spaces.Box(0, 4, (2,), np.float32), key=gymnasium.spaces.Discrete(2)
    )
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), float(action == 1), self.t == 5, False, {}

    def _obs(self) -> Any:
        return {"at": np.full(2, self.t % 5, np.float32), "key": self.t % 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with DQN("CartPole-v1", out=out, **SMALL) as trainer:
        trainer.train(env_steps=600, progress=False)
    return out


def test_the_directory_is_that_of_the_command(whole: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "hidden": [8]}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = parts.flowrl("run", "dqn", *options, "--stop-steps", 600, "--out", tmp_path / "run", "--quiet")
    assert done.exit_code == 0, done.output
    assert {path.name for path in whole.iterdir()} == {path.name for path in (tmp_path / "run").iterdir()}
    assert parts.metrics(whole) == parts.metrics(tmp_path / "run")
    for name in ("policy.pt", "policy_last.pt", "config.json", "plan.py"):
        assert (whole / name).read_bytes() == (tmp_path / "run" / name).read_bytes(), name
    ours, theirs = (parts.summary_of(run) for run in (whole, tmp_path / "run"))
    assert (ours["outcome"], ours["stop"]) == (theirs["outcome"], theirs["stop"])


def test_a_longer_call_goes_on_and_so_does_a_resume(whole: Path, tmp_path: Path) -> None:
    """D3: in one process or in two."""
    with DQN("CartPole-v1", out=tmp_path / "run", **SMALL) as trainer:
        trainer.train(env_steps=300, progress=False)
        assert parts.summary_of(tmp_path / "run")["outcome"] == "done"
        trainer.train(env_steps=400, progress=False)
    with flowrl.resume(tmp_path / "run") as trainer:
        assert isinstance(trainer, DQN)
        assert trainer.result["env_steps"] >= 400
        result = trainer.train(env_steps=600, progress=False)
    assert result["env_steps"] >= 600
    assert parts.metrics(tmp_path / "run") == parts.metrics(whole)
    for name in ("policy.pt", "policy_last.pt"):
        ours, theirs = (torch.load(run / name, weights_only=True) for run in (tmp_path / "run", whole))
        assert same(dict(ours), dict(theirs)), name


def test_what_a_call_returns_and_the_summary_have_the_newest_evaluation(tmp_path: Path) -> None:
    """S8: whatever the last result has; also after a resume."""
    with DQN("CartPole-v1", out=tmp_path / "run", **SMALL) as trainer:
        found = trainer.train(env_steps=310, progress=False)
        assert "eval_return" not in trainer.result
        assert parts.summary_of(tmp_path / "run")["last"]["env_steps"] == found["env_steps"] == 320
    evaluated = [result for result in parts.metrics(tmp_path / "run") if "eval_return" in result][-1]
    summary = parts.summary_of(tmp_path / "run")["evaluation"]
    assert summary == {name: value for name, value in evaluated.items() if "eval" in name}
    assert summary["eval_deterministic"] is True
    assert {**found, **summary} == found
    with flowrl.resume(tmp_path / "run") as trainer:
        assert {**trainer.train(env_steps=320, progress=False), **summary} == found


def test_the_command_goes_on_with_it_and_the_other_way_round(whole: Path, tmp_path: Path) -> None:
    """D3"""
    for name in ("a", "b"):
        shutil.copytree(whole, tmp_path / name)
    done = parts.flowrl("run", "--resume", tmp_path / "a", "--stop-steps", 800, "--quiet")
    assert done.exit_code == 0, done.output
    with flowrl.resume(tmp_path / "b") as trainer:
        trainer.train(env_steps=800, progress=False)
    assert parts.metrics(tmp_path / "a") == parts.metrics(tmp_path / "b")
    with flowrl.resume(tmp_path / "a") as trainer:  # it ended at a --stop-steps
        assert trainer.train(env_steps=900, progress=False)["env_steps"] >= 900


def test_a_plan_that_evaluates_itself_is_evaluated_once(tmp_path: Path) -> None:
    """From Python and by the command; for a goal the command adds an evaluation, which keeps the best policy."""
    plan = tmp_path / "own.py"
    plan.write_text(
        '"""DQN."""\nfrom flowrl.operators import Evaluate\nfrom flowrl.plans import DQN\n\n\nclass Own(DQN):\n'
        "    @classmethod\n    def execution_plan(cls, workers, config):\n"
        "        plan = super().execution_plan(workers, config)\n"
        "        return plan.for_each(Evaluate(workers, every=200, episodes=2))\n"
    )
    with load_plan_file(plan).trainer("CartPole-v1", out=tmp_path / "python", **SMALL) as trainer:
        trainer.train(env_steps=300, progress=False)
    words = [
        word for key, value in SMALL.items() for word in ("--set", f"{key}={[*value] if key == 'hidden' else value}")
    ]
    for name, more in {"command": [], "goal": ["--stop-return", 999]}.items():
        done = parts.flowrl("run", plan, *words, "--stop-steps", 300, *more, "--out", tmp_path / name, "--quiet")
        assert done.exit_code == (3 if more else 0), done.output
    counted = {
        name: (tmp_path / name / "plan.txt").read_text().count("Evaluate") for name in ("python", "command", "goal")
    }
    assert counted == {"python": 1, "command": 1, "goal": 2}


def test_an_environment_object_is_not_evaluated_unless_somebody_asks(tmp_path: Path) -> None:
    """It cannot be made again."""
    unasked = {name: value for name, value in SMALL.items() if name != "eval_every"}
    with DQN(Grid(), out=tmp_path / "run", envs_per_worker=1, **unasked) as trainer:
        assert "eval_return" not in trainer.train(env_steps=200, progress=False)
    with DQN(Grid(), out=tmp_path / "asked", envs_per_worker=1, **SMALL) as trainer, pytest.raises(PlanError):
        trainer.train(env_steps=200, progress=False)


def test_progress_tells_how_it_goes_and_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DQN("CartPole-v1", out=tmp_path / "run", **SMALL) as trainer:
        trainer.train(env_steps=250)
        trainer.train()
    lines = capsys.readouterr().out.splitlines()
    assert any(" eval " in line for line in lines[:-1])
    assert lines[-1].startswith("done: ")
    assert lines[-1].endswith(f"in {tmp_path / 'run'}")
    with DQN("CartPole-v1", **SMALL) as trainer:
        trainer.train(env_steps=150)
        assert capsys.readouterr().out == ""
        trainer.train(env_steps=250, progress=True)
        assert "steps" in capsys.readouterr().out


def test_ctrl_c_saves_and_it_goes_on(whole: Path, tmp_path: Path) -> None:
    """D3: in the same trainer, too."""

    def interrupt(result: dict[str, Any]) -> bool:
        if 150 < result["env_steps"] < 350:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    trainer = DQN("CartPole-v1", out=tmp_path / "run", **SMALL)
    with trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.train(interrupt, env_steps=600, progress=False)
        summary = parts.summary_of(tmp_path / "run")
        assert summary["outcome"] == "interrupted"
        assert summary["last"]["env_steps"] < 600
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        trainer.train(env_steps=600, progress=False)
    with flowrl.resume(tmp_path / "copy") as trainer:
        trainer.train(env_steps=600, progress=False)
    for name in ("run", "copy"):
        assert parts.metrics(tmp_path / name) == parts.metrics(whole)
        assert parts.summary_of(tmp_path / name)["outcome"] == "done"


def test_an_error_is_raised_and_what_there_is_stays(tmp_path: Path) -> None:
    def fail(result: dict[str, Any]) -> bool:
        raise RuntimeError("of the user's")

    with pytest.raises(RuntimeError, match="of the user's"), DQN(out=tmp_path / "run", **SMALL) as trainer:
        trainer.train(fail)
    summary = parts.summary_of(tmp_path / "run")
    assert summary["outcome"] == "failed"
    assert "RuntimeError: of the user's" in summary["error"]
    assert (tmp_path / "run" / "policy_last.pt").exists()


def test_single_results_are_recorded_and_stopping_completes_the_directory(tmp_path: Path) -> None:
    with DQN(out=tmp_path / "run", sinks=["csv"], **SMALL) as trainer:
        results = [trainer.train(), trainer.train()]
        assert not (tmp_path / "run" / "summary.json").exists()
    assert [line["env_steps"] for line in parts.results_of(tmp_path / "run")] == [each["env_steps"] for each in results]
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 3
    assert parts.summary_of(tmp_path / "run")["outcome"] == "done"
    assert flowrl.load(tmp_path / "run", last=True).act(np.zeros(4)) in (0, 1)


def test_a_goal_is_confirmed(tmp_path: Path) -> None:
    """S6"""
    few = {"goal_episodes": 2} if hasattr(DQN.Config(), "goal_episodes") else {}
    with DQN(out=tmp_path / "run", **SMALL, **few) as trainer:
        result = trainer.train(env_steps=600, goal=1.0, progress=False)
    assert result["confirmed_return"] >= 1.0
    assert parts.summary_of(tmp_path / "run")["outcome"] == "goal"
    with DQN(**SMALL) as trainer, pytest.raises(ConfigError, match="'seconds' is nan, expected a number above 0"):
        trainer.train(seconds=float("nan"))
    with DQN(**SMALL) as trainer, pytest.raises(ConfigError, match=r"goal=1\.0 is confirmed with the saved policy"):
        trainer.train(goal=1.0)


def test_a_goal_of_agents_is_confirmed_for_each_of_them(tmp_path: Path) -> None:
    """S6: also where the run goes on with another goal, whatever the first one had confirmed."""
    small: dict[str, Any] = {
        "env": "flowrl:two_cartpoles",
        "hidden": (4,),
        "goal_episodes": 2,
        "report_every": 64,
        "eval_every": 64,
    }
    with PPO(out=tmp_path / "run", device="cpu", **small) as trainer:
        result = trainer.train(env_steps=10_000, goal={"left": 1.0, "right": 1.0}, progress=False)
    assert result["confirmed_return"] == result["confirmed_return/left"] + result["confirmed_return/right"]
    assert parts.summary_of(tmp_path / "run")["outcome"] == "goal"
    later = ("--stop-return", "left=1e6", "--stop-return", "right=-1e6", "--stop-steps", result["env_steps"] + 512)
    assert parts.flowrl("run", "--resume", tmp_path / "run", *later, "--quiet").exit_code == 3
    summary = parts.summary_of(tmp_path / "run")
    assert summary["outcome"] == "budget"
    assert summary["best_eval_return"] > result["best_eval_return"]
    assert summary["confirmed_return"] is None  # which the policy before had
    with PPO(out=tmp_path / "no run", **small) as trainer, pytest.raises(ConfigError, match="expected a number"):
        trainer.train(env_steps=512, goal={"left": "far"})  # type: ignore[dict-item]


def test_what_does_not_go_is_refused_before_any_work(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not empty; a run needs a new directory, .*flowrl\.resume"):
        DQN(out=whole, **SMALL)
    with pytest.raises(ConfigError, match=r"give out='runs/\.\.\.' too"):
        DQN(sinks=["csv"], **SMALL)
    with pytest.raises(ConfigError, match="no sink 'cvs'; did you mean 'csv'"):
        DQN(out=tmp_path / "run", sinks=["cvs"], **SMALL)
    with pytest.raises(ConfigError, match="is a run of dqn, not of ppo"):
        PPO.resume(whole)
    with pytest.raises(ConfigError, match="batch_size=99"):
        flowrl.resume(whole, batch_size=99)
    with pytest.raises(ConfigError, match="is a run in CartPole-v1"):
        flowrl.resume(whole, env=Grid)
    assert list(tmp_path.iterdir()) == []


def test_a_resume_that_is_refused_leaves_the_directory_to_the_next_one(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    *_, before, newest = Checkpoints(run / "checkpoints").paths()
    for part in newest.glob("*.json"):
        part.write_text("{")
    with pytest.raises(CheckpointError):
        flowrl.resume(newest)
    with flowrl.resume(before) as trainer:
        assert trainer.counters["env_steps"] == step_of(before)


def test_a_resume_with_another_learning_rate_is_a_fork_that_it_lists(whole: Path, tmp_path: Path) -> None:
    """D9: with those before, the command's too. A Trainer of its own cannot restore the run, and says what can."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (*_, newest) = sorted((run / "checkpoints").iterdir())
    with (
        DQN("CartPole-v1", out=tmp_path / "new", **SMALL) as trainer,
        pytest.raises(CheckpointError, match=rf"flowrl\.resume\('{newest}'\).*DQN\(\.\.\., init_from='{newest}'\)"),
    ):
        trainer.restore(newest)
    assert not (tmp_path / "new").exists()
    assert parts.flowrl("run", "--resume", run, "--set", "epsilon_end=0.1", "--quiet").exit_code == 0
    with flowrl.resume(run, learning_rate=1e-4) as trainer:
        steps, settings = trainer.result["env_steps"], {"learning_rate": {"from": 1e-3, "to": 1e-4}}
        assert trainer.forks[1:] == [{"env_steps": steps, "settings": settings}]
        assert [*trainer.forks[0]["settings"]] == ["epsilon_end"]
        assert trainer.workers.policy.optimizer.param_groups[0]["lr"] == 1e-4


def test_a_longer_run_says_at_its_start_that_the_learning_rate_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Q9: and with which setting it learns, once, where the rate ends at 0 before the run does."""
    small: dict[str, Any] = {**MODELS["ppo"], "schedule_steps": None, "out": tmp_path / "run"}
    with PPO("CartPole-v1", **small) as trainer:
        trainer.train(env_steps=60, progress=False)
    with flowrl.resume(tmp_path / "run") as trainer:
        trainer.train(env_steps=60, progress=False)
        assert caplog.messages == []
        trainer.train(env_steps=80, progress=False)
        trainer.train(env_steps=120, progress=False)
    ends = "the learning rate ends at 0 after 60 env steps, so from there to 80 the policy learns nothing; to learn on"
    call = f"flowrl.resume('{tmp_path / 'run'}', schedule_steps=80)"
    assert [each for each in caplog.messages if "to learn on" in each] == [f"{ends}, give {call}"]
    caplog.clear()
    with flowrl.resume(tmp_path / "run", schedule_steps=160) as trainer:
        trainer.train(env_steps=140, progress=False)
        assert trainer.workers.policy.optimizer.param_groups[0]["lr"] > 0
    assert caplog.messages == []
    with flowrl.resume(tmp_path / "run", learning_rate="linear(1e-3, 0, 160)") as trainer:  # with a length of its own
        trainer.train(env_steps=180, progress=False)
    assert not any("schedule_steps=" in each for each in caplog.messages)


# -- a class and an environment of a script


class Mine(DQN):
    """An algorithm of one's own."""


def test_an_environment_and_an_algorithm_of_a_script(tmp_path: Path) -> None:
    """Trained, resumed, loaded and evaluated from Python alone; only `evaluate` makes the environment."""

    def make() -> Grid:
        return Grid()

    with Mine(make, out=tmp_path / "run", **SMALL) as trainer:
        trainer.train(env_steps=250, progress=False)
    with pytest.raises(ConfigError, match="<locals>"):
        Mine.resume(tmp_path / "run")
    with Mine.resume(tmp_path / "run", make) as trainer:
        trainer.train(env_steps=400, progress=False)
    with pytest.raises(ConfigError, match="runs code that does not come with flowrl: the plan"):
        flowrl.load(tmp_path / "run")
    policy = flowrl.load(tmp_path / "run", plan=Mine)
    assert policy.act({"at": np.zeros(2), "key": 1}) in range(4)
    with pytest.raises(ConfigError, match="runs code that does not come with flowrl: env="):
        policy.evaluate(episodes=1)
    assert flowrl.load(tmp_path / "run", plan=Mine, env=make).evaluate(episodes=2)["length_mean"] == 5.0


# -- policies


def test_a_policy_file_needs_nothing_else(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / "policy.pt", tmp_path / "mine.pt")
    policy, of_run = flowrl.load(tmp_path / "mine.pt"), flowrl.load(whole)
    obs = np.random.default_rng(0).normal(size=(50, 4))
    assert policy.act(obs).tolist() == of_run.act(obs).tolist()
    assert policy.source == tmp_path / "mine.pt"
    assert policy.evaluate(episodes=2, seed=1) == of_run.evaluate(episodes=2, seed=1)
    with pytest.raises(ConfigError, match="the policy cannot act in both"):
        flowrl.load(whole, env="Acrobot-v1").evaluate(episodes=1)
    assert parts.flowrl("evaluate", tmp_path / "mine.pt", "--episodes", 2).exit_code == 0


def test_loading_makes_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D10: for dictionaries too, which the file describes."""
    made = []
    monkeypatch.setattr(Grid, "__init__", lambda self: made.append(self))
    with PPO(Grid, hidden=(8,), device="cpu") as trainer:
        file = trainer.save_policy(tmp_path / "policy.pt")
        saved = trainer.save(tmp_path / "checkpoint")
    made.clear()
    for path in (file, saved):
        assert flowrl.load(path).act([{"at": np.zeros(2), "key": 1}] * 3).shape == (3,)
    assert made == []
    assert flowrl.load(file, trusted=True).evaluate(episodes=1)["episodes"] == 1
    assert made


def test_a_killed_run_has_the_policy_of_its_newest_checkpoint(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "policy.pt").unlink()
    (run / "policy_last.pt").unlink()
    newest = sorted((run / "checkpoints").iterdir())[-1]
    obs = np.random.default_rng(0).normal(size=(50, 4))
    policy = flowrl.load(run)
    assert policy.source == newest
    assert f"loading the policy of its newest checkpoint, {newest}" in caplog.text
    assert policy.act(obs).tolist() == flowrl.load(whole, last=True).act(obs).tolist()
    done = parts.flowrl("evaluate", run, "--episodes", 2)
    assert done.stdout.startswith(f"{newest} on CartPole-v1: 2 episodes")
    (newest / "manifest.json").write_text("{}")
    assert flowrl.load(run).source != newest
    assert f"{newest} is no checkpoint" in caplog.text
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ConfigError, match=r"no policy\.pt .* and no checkpoint to take it from"):
        flowrl.load(run)


def test_a_run_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D12: what is written is the state when it was taken, and the run ends with the newest one on the disk."""
    save, may_write = Checkpoints.save, threading.Event()

    def written_late(checkpoints: Checkpoints, state: Any, about: Any = None, *, step: int) -> Path:
        assert step < 300 or may_write.wait(60), "the run waits for its checkpoint"
        return save(checkpoints, state, about, step=step)

    monkeypatch.setattr(Checkpoints, "save", written_late)
    run, settings = tmp_path / "run", {**SMALL, "eval_every": 0, "checkpoint_every": 300}
    with DQN("CartPole-v1", settings, out=run) as trainer:
        steps = [trainer.train()["env_steps"] for _ in range(5)]
        assert [each.name for each in (run / "checkpoints").iterdir()] == [f"step-{steps[0]:09}"]
        may_write.set()
    found = Checkpoints(run / "checkpoints").paths()
    counted = [load_checkpoint(path, trusted=True)["ledger"]["counters"]["env_steps"] for path in found]
    assert counted == [steps[0], steps[2], steps[4]]


def test_a_run_can_be_killed_from_its_first_result_on(tmp_path: Path) -> None:
    """F9: however far the first checkpoint of its settings is."""
    policies = []

    def two_results(_: dict[str, Any]) -> bool:
        policies.append(flowrl.load(tmp_path / "run").source)
        return len(policies) == 2

    with DQN("CartPole-v1", {**SMALL, "eval_every": 0}, out=tmp_path / "run") as trainer:
        trainer.train(until=two_results, progress=False)
    assert len({*policies}) == 1
    assert policies[0].parent == tmp_path / "run" / "checkpoints"


def test_a_file_of_another_version_or_plan_says_so(whole: Path, tmp_path: Path) -> None:
    from flowrl.policies.weights import policy_about, save_weights

    with DQN(**SMALL) as trainer:
        policy = trainer.workers.policy
    about = policy_about(whole / "policy.pt")
    assert about is not None
    for changed, error, message in (
        ({"version": 99}, CheckpointError, "has version 99, this flowrl reads up to 1"),
        (
            {"plan": "Theirs", "builtin": False},
            ConfigError,
            "trained by 'Theirs', which is no plan of flowrl: .*plan=",
        ),
        ({"observation_space": {"kind": "Cube"}}, CheckpointError, "is malformed: .*Cube"),
        ({"config": {"hidden": [9]}}, CheckpointError, "does not fit DQNPolicy"),
    ):
        save_weights(policy, tmp_path / "policy.pt", {**about, **changed})
        with pytest.raises(error, match=message):
            flowrl.load(tmp_path / "policy.pt")
    save_weights(policy, tmp_path / "old.pt")
    with pytest.raises(ConfigError, match="is of an earlier version, which needs the directory of its run"):
        flowrl.load(tmp_path / "old.pt")

"""Rollouts in a plan: what they count and say of environments that fail, and rows of whichever environments."""

from __future__ import annotations

import functools
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.data import ReplayBuffer
from flowrl.errors import EnvFault, PlanError
from flowrl.operators import Concurrently, ParallelRollouts, Replay, StandardMetricsReporting, StoreToReplay
from flowrl.rollout import WorkerSet
from tests.cli.parts import flowrl, metrics
from tests.clock_envs import TERMINATED, EchoEnv
from tests.scripted import ScriptedPolicy


class Breaking(EchoEnv):
    """Fails in every `nth` step of its life; a made-up client's error."""

    def __init__(self, nth: int = 7, length: int = 4) -> None:
        super().__init__(0, [(length, TERMINATED)])
        self.nth = nth

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        if self.clock % 1000 % self.nth == 0:
            raise ConnectionError("the client has gone")
        return obs, *rest


def by_clock(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> np.ndarray:
    return obs[:, 2].astype(np.int64) % 1000


def workers(env: Any, kind: str = "thread", **options: Any) -> WorkerSet:
    def policy(*spaces: Any) -> Any:
        return ScriptedPolicy(by_clock)

    return WorkerSet(env, policy, envs_per_worker=2, env_manager=kind, env_manager_args=options)


def scalars(batch: Any) -> dict[str, float]:
    return {"rows": batch.rows}


def test_faults_are_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """F12, T10: in the results beside the other counters; the first with its traceback, the others in one line."""
    with workers(Breaking) as of, caplog.at_level(logging.WARNING, "flowrl"):
        plan = StandardMetricsReporting(ParallelRollouts(of, steps=12).for_each(scalars), of, {"report_every": 24})
        with plan.run() as run:
            result = next(run)
            # Of each environment the steps 7 and 14 of its life fail; every other one is a row.
            assert {name: result[name] for name in ("env_steps", "env_faults", "cut_episodes", "episodes")} == {
                "env_steps": 24,
                "env_faults": 2,
                "cut_episodes": 2,
                "episodes": 4,
            }
            assert result["episode_length"] == 4
            assert "env_faults" in run.counters
    said = [message for message in caplog.messages if "the client has gone" in message]
    assert len(said) == 2
    assert re.match(
        r"environment \d, episode 1 \(seed \d+\), step 2: exception during step: ConnectionError: ", said[0]
    )
    assert "Traceback" in said[0]
    assert "Traceback" not in said[1]


def test_where_nothing_fails_nothing_is_counted() -> None:
    """F12: a counter that never counted is not there."""
    with workers(functools.partial(Breaking, nth=1000), "local") as of, ParallelRollouts(of, steps=4).run() as run:
        next(run)
        assert set(run.counters) == {"env_steps", "episodes"}


@pytest.mark.parametrize(("kind", "options"), [("local", {}), ("thread", {}), ("async", {"wait_num": 1})])
def test_rows_of_any_environments_feed_a_replay_buffer(kind: str, options: dict[str, Any]) -> None:
    """T11, T6: single transitions, as many as were asked for or a few more, each a true one."""
    buffer = ReplayBuffer(1000, seed=0)
    with workers(functools.partial(Breaking, nth=1000), kind, **options) as of:
        store = ParallelRollouts(of, rows=10).for_each(StoreToReplay(buffer))
        plan = Concurrently([store, Replay(buffer, 8)], output_indexes=[1])
        with plan.run() as run:
            for _ in range(5):
                drawn = next(run)
                np.testing.assert_array_equal(drawn.next_obs[:, 1], drawn.action)
                np.testing.assert_array_equal(drawn.next_obs[:, 2], drawn.obs[:, 2] + 1)
            assert run.counters["env_steps"] == run.counters["inserted"] == len(buffer)
            assert 50 <= run.counters["env_steps"] <= 55 + 5


@pytest.mark.parametrize("given", [{"steps": 0}, {"rows": 0}, {"steps": 4, "rows": 4}])
def test_bad_requests_are_refused(given: dict[str, int]) -> None:
    with workers(Breaking) as of, pytest.raises(PlanError, match=r"steps|rows"):
        ParallelRollouts(of, **given)


def test_a_bound_on_the_weights_age_is_for_who_does_not_wait() -> None:
    with workers(Breaking) as of:
        with pytest.raises(PlanError, match="max_weight_lag=1 is for mode='async', not 'bulk_sync'"):
            ParallelRollouts(of, max_weight_lag=1)
        assert "max_weight_lag=1" in ParallelRollouts(of, "async", max_weight_lag=1).explain()


def test_one_fault_too_many_ends_the_run_and_spares_what_it_has() -> None:
    """F9, F10: the error says which environment; the buffer keeps its rows, the counters their numbers."""
    buffer = ReplayBuffer(1000, seed=0)
    # It cannot finish an episode between two faults: the first fault comes at step 3, the last one at 9.
    with workers(functools.partial(Breaking, nth=3), max_retry=2) as of:
        plan = ParallelRollouts(of, steps=1).for_each(StoreToReplay(buffer))
        with plan.run() as run:
            with pytest.raises(
                EnvFault, match=r"environment \d, episode 2 (.|\n)*the client has gone(.|\n)*max_retry=2"
            ) as e:
                for _ in run:
                    pass
            assert any("Rollouts" in note for note in e.value.__notes__)
            assert len(buffer) == run.counters["env_steps"] == run.counters["inserted"] > 0
            assert set(np.diff(buffer[:]["obs"][:, 2] % 1000)) <= set(range(-9, 10))
        # A new run on the same workers needs new episodes.
        of.local.reset_env()
        with plan.run() as run:
            next(run)


PLAN_ENV = '''
import os
from pathlib import Path
import numpy as np, gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Env(CartPoleEnv):
    """Its client goes away for good after 400 steps, while there is a file that says so."""
    steps = 0
    def step(self, action):
        self.steps += 1
        if self.steps > 400 and Path("broken").exists():
            raise ConnectionError("the client has gone")
        return super().step(int(action))

def make():
    return gymnasium.wrappers.TimeLimit(Env(), 50)
'''


def test_a_run_of_the_command_fails_and_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10, D3: exit code 1, the reason, a checkpoint that a resume goes on from once the environment is well again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "brittle_client.py").write_text(PLAN_ENV)
    (tmp_path / "broken").touch()
    small = ["hidden=[8]", "learning_starts=64", "replay_ratio=1", "checkpoint_every=200", "report_every=100"]
    options = [part for each in [*small, "eval_every=100000"] for part in ("--set", each)]
    failed = flowrl(
        *("run", "dqn", "--env", "brittle_client:make", "--env-manager", "thread", "--envs", 2, *options),
        *("--stop-steps", 1200, "--out", "run", "--quiet"),
    )
    assert failed.exit_code == 1, failed.output
    assert "Error: environment" in failed.output
    assert "max_retry=3" in failed.output
    assert "the client has gone" in failed.output
    steps = [result["env_steps"] for result in metrics(tmp_path / "run")]
    assert 600 <= steps[-1] < 1200
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "failed"
    (tmp_path / "broken").unlink()
    resumed = flowrl("run", "--resume", "run")
    assert resumed.exit_code == 0, resumed.output
    assert "resumed at" in resumed.stdout
    assert metrics(tmp_path / "run")[-1]["env_steps"] >= 1200

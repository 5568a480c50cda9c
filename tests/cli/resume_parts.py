"""What the tests of resuming share: a small run, and when two runs are the same."""

from __future__ import annotations

import pickle

import numpy as np
from gymnasium.vector import VectorEnv

from flowrl.storage.checkpoint import Checkpoints
from flowrl.testing import same
from tests.cli import parts
from tests.plans.small import without_clock

SMALL = (
    *parts.SMALL,
    *("--set", "report_every=100", "--set", "eval_every=200", "--set", "eval_episodes=2", "--set", "torch_threads=1"),
)
STEPS = 1200


def checkpoints(run):
    return Checkpoints(run / "checkpoints")


def assert_same_run(run, whole):
    """Results, policies and the whole state at the end, but for the clock."""
    assert parts.metrics(run) == parts.metrics(whole)
    for name in ("policy.pt", "policy_last.pt"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    ours, theirs = (checkpoints(path).load(trusted=True) for path in (run, whole))
    for state in (ours, theirs):
        for name in ("seconds", "eval_seconds"):
            state["session"].pop(name)
        state["session"]["last"] = without_clock(state["session"]["last"])
        for workers in state["resources"].get("WorkerSet", {}).get("workers", []):
            workers["manager"]["envs"] = [_described(env) for env in workers["manager"]["envs"]]
    for part in theirs:
        assert same(ours[part], theirs[part]), part


def _described(packed):
    """A vector environment that was pickled before shares other parts, so its pickle differs; but no value does."""
    env = pickle.loads(packed)
    if not isinstance(env, VectorEnv):
        return packed
    return {n: v.bit_generator.state if isinstance(v, np.random.Generator) else v for n, v in vars(env).items()}


PLAN = '''"""Results without learning."""
import attrs
import gymnasium
import numpy as np

import flowrl
from flowrl.runs.config import Configuration
from flowrl.operators import ParallelRollouts, StandardMetricsReporting


@attrs.define(kw_only=True)
class Config(Configuration):
    report_every: int = 20
    speed: float = 1.0


class Left:
    draws = version = 0
    resources = ()

    @property
    def collect_mode(self):
        return self

    def act(self, obs, noise, env_steps):
        return {"action": np.zeros(len(obs), dtype=np.int64)}


def policy(config, observation_space, action_space):
    return Left()


def execution_plan(workers, config):
    return StandardMetricsReporting(ParallelRollouts(workers, steps=5).for_each(look), workers, config)


def look(batch):
    return {"reward": float(batch.reward.sum())}
'''


RUN_OWN = ("run", "own.py", "--envs", 2, "--stop-steps", 60, "--set", "eval_every=1000", "--set", "checkpoint_every=20")

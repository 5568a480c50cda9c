"""Dictionaries of observations from the environment to the training sample: nothing is lost or mixed on the way."""

from __future__ import annotations

import copy
import pickle
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.data import Batch, ReplayBuffer
from flowrl.engine.plan import Plan
from flowrl.envs import EnvManager, VectorEnvManager
from flowrl.errors import SchemaError
from flowrl.operators import Concurrently, NStep, ParallelRollouts, Replay, StoreToReplay
from flowrl.rollout import RolloutWorker, WorkerSet, evaluate
from flowrl.testing import check_plan, same
from tests.clock_envs import (
    BOTH,
    TABLE,
    TERMINATED,
    TRUNCATED,
    DictClockEnv,
    Table,
    assert_one_tick,
    clock_envs,
    clock_vector,
    clocks_of,
)
from tests.scripted import ScriptedPolicy
from tests.span_model import repeats_last

MODES = ["own", *AutoresetMode]
ends = st.tuples(st.integers(1, 5), st.sampled_from([TERMINATED, TRUNCATED, BOTH]))
tables = st.lists(st.lists(ends, min_size=1, max_size=4), min_size=1, max_size=3)


def worker_over(table: Table, mode: Any = "own", policy: Any = None, *, noisy: bool = False) -> RolloutWorker:
    make = clock_envs(table, kind=DictClockEnv, noisy=noisy)
    if mode == "own":
        manager: Any = EnvManager([make() for _ in table])
    else:
        manager = VectorEnvManager(clock_vector(table, mode, kind=DictClockEnv, noisy=noisy))
    return RolloutWorker(manager, policy or ScriptedPolicy(), seed=1)


def windows_end_where_they_say(rows: Batch, n: int) -> None:
    """Every leaf of `next_obs` is k steps after `obs`, k being in the discount 0.5**k; after n of them or an end."""
    before, after = clocks_of(rows.obs), clocks_of(rows.next_obs)
    steps = after["count"] - before["count"]
    ended = rows.terminated | rows.truncated
    assert ((steps == n) | (ended & (steps >= 1) & (steps <= n))).all()
    np.testing.assert_array_equal(rows.discount, np.where(rows.terminated, 0, 0.5**steps).astype(np.float32))
    for leaf in before:
        np.testing.assert_array_equal((after[leaf] - before[leaf]) % 256, steps, leaf)


# -- the worker


@pytest.mark.parametrize("mode", MODES)
@given(table=tables, steps=st.lists(st.integers(1, 6), min_size=1, max_size=4))
@settings(max_examples=15)
def test_every_row_is_a_transition_in_every_leaf(mode: Any, table: Table, steps: list[int]) -> None:
    """T1, T2, T6, T7: whatever resets, and wherever fragments are cut; and every step is counted."""
    worker = worker_over(table, mode)
    for n in steps:
        fragment = worker.sample(n)
        assert fragment.shape == fragment.obs.shape == fragment.next_obs.shape == (n, len(table))
        assert_one_tick(fragment.obs, fragment.next_obs)
        np.testing.assert_array_equal(fragment.obs.where[..., 0], fragment.env_id)
        inside = ~(fragment.terminated | fragment.truncated)[:-1]
        assert fragment.obs[1:][inside] == fragment.next_obs[:-1][inside]
    assert worker.env_steps == sum(episode.length for episode in worker.episodes()) + int(worker.manager.t.sum())


def test_dtypes_are_kept() -> None:
    """B6: uint8 stays uint8."""
    batch = worker_over(TABLE).sample(2)
    for obs in (batch.obs, batch.next_obs):
        assert obs.image.dtype == np.uint8
        assert (obs.goal.bits.dtype, obs.goal.vector.dtype, obs["count"].dtype) == (np.int8, np.float32, np.int64)


@pytest.mark.parametrize("mode", MODES)
def test_whole_episodes_in_fixed_shares(mode: Any) -> None:
    """S2: sample(episodes=) with padding in every leaf."""
    worker = worker_over(TABLE, mode)
    worker.sample(2)
    batch = worker.sample(episodes=5)
    assert batch.env_id[0].tolist() == [0, 0, 1, 1, 2]
    assert_one_tick(batch.obs[batch.mask], batch.next_obs[batch.mask])
    assert batch.obs.image.dtype == np.uint8
    for column in clocks_of(batch.obs).values():
        assert repeats_last(column, batch.mask)


@pytest.mark.parametrize("mode", MODES)
def test_values_arrived_in(mode: Any) -> None:
    """T5, T7: next_value is that of the true last observation where an episode or a fragment ends."""
    worker = worker_over(TABLE, mode, ScriptedPolicy(with_value=True))
    for steps in (5, 3):
        batch = worker.sample(steps)
        np.testing.assert_array_equal(batch.next_value, batch.next_obs.where[..., 1])


@pytest.mark.parametrize("mode", MODES)
def test_resumes_mid_fragment(mode: Any) -> None:
    """D3, D5: a worker restored anywhere, rows of the next fragment waiting, collects what the uninterrupted does."""
    act = ScriptedPolicy(lambda obs, noise, env_steps: (noise[:, 0] * 1000).astype(np.int64), draws=1)
    worker = worker_over(TABLE, mode, act, noisy=True)
    waiting = 0
    for _ in range(12):
        state = copy.deepcopy(worker.state_dict())
        assert same(state, worker.state_dict())
        waiting += state["fragment"]["rows"]
        expected = worker.sample(2)
        other = worker_over(TABLE, mode, act, noisy=True)
        other.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert same(other.state_dict()["fragment"], state["fragment"])
        assert other.sample(2) == expected
        assert same(other.state_dict()["fragment"], worker.state_dict()["fragment"])
    assert (waiting > 0) is (mode is AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_plays_dictionary_environments(mode: Any) -> None:
    """S1, S2: the policy is given the nested batch, and returns are those of the episodes."""

    def act(obs: Batch, noise: np.ndarray, env_steps: int) -> np.ndarray:
        assert obs.image.shape == (2, 2, 3, 1)
        return obs["count"] % 1000

    table: Table = [[(1, TERMINATED)], [(10, TERMINATED)]]
    env: Any = clock_envs(table, kind=DictClockEnv)
    if mode != "own":
        env = lambda num_envs: clock_vector(table, mode, kind=DictClockEnv)  # noqa: E731
    played = evaluate(ScriptedPolicy(act), env, episodes=5, seed=0, num_envs=2)
    assert sorted(episode.length for episode in played) == [1, 1, 1, 10, 10]
    assert max(episode.return_ for episode in played if episode.env_id == 1) == sum(range(2011, 2021))


# -- adders and buffers


@pytest.mark.parametrize("mode", MODES)
@given(table=tables, n=st.integers(1, 4))
@settings(max_examples=10)
def test_write_time_and_sample_time_windows(mode: Any, table: Table, n: int) -> None:
    """N1, N2, N3, N5, T6, B6: NStep into a buffer of rows, and a buffer that makes its windows, draw the same."""
    worker = worker_over(table, mode)
    adder = NStep(n=n, gamma=0.5)
    late, early = ReplayBuffer(1000, n_step=n, gamma=0.5, seed=0), ReplayBuffer(1000, seed=0)
    for steps in (3, 1, 4):
        fragment = worker.sample(steps)
        late.add(fragment)
        rows = adder(fragment)
        windows_end_where_they_say(rows, n)
        early.add(rows)
    for rows in adder.finish():
        early.add(rows)
    assert early.size == late.size == 8 * len(table)
    drawn = [buffer.sample(30 * buffer.size) for buffer in (early, late)]
    found = []
    for rows in drawn:
        assert rows.obs.image.dtype == rows.next_obs.image.dtype == np.uint8
        leaves = [*clocks_of(rows.obs).values(), *clocks_of(rows.next_obs).values()]
        found.append(set(zip(*(column.tolist() for column in [*leaves, rows.discount, rows.reward, rows.env_id]))))
    assert found[0] == found[1]


@pytest.mark.parametrize("n", [1, 3])
def test_a_ring_that_wraps_and_is_saved(n: int) -> None:
    """B5, N1, T6: fragments overwrite the oldest in every leaf, and a loaded buffer draws the same rows."""
    worker = worker_over(TABLE)
    buffer, other = (ReplayBuffer(15, n_step=n, gamma=0.5, seed=seed) for seed in (0, 1))
    for steps in (4, 3, 2):
        buffer.add(worker.sample(steps))
    other.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
    for _ in range(2):
        drawn = buffer.sample(40)
        assert drawn == other.sample(40)
        shown = clocks_of(drawn.obs)
        assert all((shown[leaf] == shown["count"]).all() for leaf in ("goal.vector", "goal.bits", "where"))
        assert drawn.t.shape == (40,)
        fragment = worker.sample(2)
        buffer.add(fragment)
        other.add(fragment)


def test_a_buffer_names_the_leaf_that_does_not_fit() -> None:
    fragment = worker_over(TABLE).sample(2)
    buffer = ReplayBuffer(30, seed=0)
    buffer.add(fragment)
    obs = fragment.obs.replace(goal=fragment.obs.goal.replace(vector=fragment.obs.goal.vector.astype(np.float64)))
    with pytest.raises(SchemaError, match=r"column 'obs\.goal\.vector': the buffer stores float32.* got float64"):
        buffer.add(fragment.replace(obs=obs))


# -- plans


def workers(mode: Any) -> WorkerSet:
    env: Any = clock_envs(TABLE, kind=DictClockEnv, noisy=True)
    if mode != "own":
        env = lambda num_envs: clock_vector(TABLE, mode, kind=DictClockEnv, noisy=True)  # noqa: E731
    act = lambda obs, noise, env_steps: (noise[:, 0] * 1000).astype(np.int64)  # noqa: E731
    return WorkerSet(env, lambda *spaces: ScriptedPolicy(act, draws=1), envs_per_worker=3)  # type: ignore


def replayed(mode: Any) -> Plan:
    buffer = ReplayBuffer(40, gamma=0.5)
    store = ParallelRollouts(workers(mode), steps=2).for_each(NStep(2, 0.5)).for_each(StoreToReplay(buffer))
    return Concurrently({"store": store, "train": Replay(buffer, 4)}, round_robin_weights=[1, 1])


def test_a_plan_over_dictionaries_is_resumable_at_every_step() -> None:
    """D1, D3, D4, D5: environments mid-episode, open windows, a buffer."""
    check_plan(lambda: replayed("own"), items=10)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_plan_over_vector_environments_gives_the_same_items_when_resumed(mode: Any) -> None:
    """D3: rows of the next fragment wait under NEXT_STEP, and a reset may be pending."""
    with replayed(mode).run(seed=0) as run:
        reference = list(islice(run, 12))
    with replayed(mode).run(seed=0) as run:
        for emitted in range(11):
            state = pickle.loads(pickle.dumps(run.state_dict()))
            with replayed(mode).run(seed=0) as resumed:
                resumed.load_state_dict(state)
                assert same(list(islice(resumed, 12 - emitted)), reference[emitted:])
            next(run)


def test_gymnasiums_goal_environments_look_like_this() -> None:
    """The keys of gymnasium-robotics, from an environment registered nowhere."""

    class Reach(gymnasium.Env[Any, Any]):
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        observation_space = gymnasium.spaces.Dict(observation=box, achieved_goal=box, desired_goal=box)
        action_space = gymnasium.spaces.Box(-1, 1, (2,))

        def _obs(self) -> Any:
            return {"observation": -self.at, "achieved_goal": self.at, "desired_goal": self.goal}

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.at, self.goal = np.zeros(2, np.float32), self.np_random.normal(size=2).astype(np.float32)
            return self._obs(), {}

        def step(self, action: Any) -> Any:
            self.at = self.at + action
            near = bool(np.linalg.norm(self.at - self.goal) < 0.01)
            return self._obs(), float(near) - 1, near, False, {"is_success": near}

    def act(obs: Batch, noise: np.ndarray, env_steps: int) -> np.ndarray:
        return np.clip(obs.desired_goal - obs.achieved_goal, -1, 1)

    with WorkerSet(Reach, lambda *spaces: ScriptedPolicy(act), envs_per_worker=4) as of:  # type: ignore
        with ParallelRollouts(of, steps=20).run(seed=0) as run:
            batch = next(run)
        moved = batch.next_obs.achieved_goal - batch.obs.achieved_goal
        np.testing.assert_allclose(moved, batch.action, atol=1e-6)
        inside = ~batch.terminated[:-1]
        np.testing.assert_array_equal(batch.obs.desired_goal[1:][inside], batch.obs.desired_goal[:-1][inside])
        assert batch.terminated.sum() > 4
        played = evaluate(of.policy, Reach, episodes=6, seed=1)
        assert all(episode.success for episode in played)

"""What a rollout worker collects, over environments whose observations prove every row."""

from __future__ import annotations

import copy
import functools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import Batch
from flowrl.engine.schema import UNKNOWN
from flowrl.envs import EnvManager, VectorEnvManager
from flowrl.errors import NotFinite, SchemaError
from flowrl.policies import DQNPolicy
from flowrl.rollout import RolloutWorker
from flowrl.rollout.worker import collected, shares_of
from flowrl.testing import same
from tests.clock_envs import BOTH, TABLE, TERMINATED, TRUNCATED, ClockEnv, EchoEnv, Table, clock_envs, clock_vector
from tests.scripted import ScriptedPolicy

MODES = ["own", *AutoresetMode]


class Rebuilt(ClockEnv, EzPickle):
    """Cannot be saved in the middle of an episode."""

    def __init__(self, *args: Any) -> None:
        EzPickle.__init__(self, *args)
        super().__init__(*args)


def worker_over(table: Table, mode: Any = "own", policy: Any = None, index: int = 0, **kwargs: Any) -> RolloutWorker:
    make = clock_envs(table, **kwargs)
    if mode == "own":
        manager: Any = EnvManager([make() for _ in table])
    else:
        manager = VectorEnvManager(clock_vector(table, mode, **kwargs))
    return RolloutWorker(manager, policy or ScriptedPolicy(), seed=1, index=index)


def rows_by_env(fragments: list[Batch]) -> list[list[dict[str, Any]]]:
    """The transitions of each environment in order, as plain values without the provenance of the sampler."""
    joined = Batch.cat(fragments)
    return [
        [{name: np.asarray(joined[name][t, i]).tolist() for name in joined} for t in range(len(joined))]
        for i in range(joined.shape[1])
    ]


ends = st.tuples(st.integers(1, 5), st.sampled_from([TERMINATED, TRUNCATED, BOTH]))
tables = st.lists(st.lists(ends, min_size=1, max_size=4), min_size=1, max_size=3)


@pytest.mark.parametrize("mode", MODES)
@given(table=tables, steps=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_every_row_is_a_transition_and_every_step_is_counted(mode: Any, table: Table, steps: list[int]) -> None:
    """T1, T2, T7: next == obs + 1 on every row, in all autoreset modes; env_steps are the steps of episodes."""
    worker = worker_over(table, mode)
    fragments = [worker.sample(n) for n in steps]
    for fragment, n in zip(fragments, steps):
        assert fragment.shape == (n, len(table))
        np.testing.assert_array_equal(fragment.next_obs - fragment.obs, np.broadcast_to([0, 0, 1], (n, len(table), 3)))
    lengths = sum(episode.length for episode in worker.episodes())
    assert worker.env_steps == lengths + int(worker.manager.t.sum())
    for env_id, rows in enumerate(rows_by_env(fragments)):
        for before, after in pairwise(rows):
            ended = before["terminated"] or before["truncated"]
            # T7: a fragment's border inside an episode changes nothing.
            assert after["episode_id"] == before["episode_id"] + ended
            assert after["t"] == (0 if ended else before["t"] + 1)
            assert ended or after["obs"] == before["next_obs"]
        assert all(row["env_id"] == env_id for row in rows)


@given(table=tables)
def test_all_autoreset_modes_give_the_same_rows(table: Table) -> None:
    """T3: the sequence of transitions of each environment is the same, whoever resets."""
    workers = [worker_over(table, mode) for mode in MODES]
    sequences = [rows_by_env([worker.sample(n) for n in (4, 1, 6)]) for worker in workers]
    assert all(sequence == sequences[0] for sequence in sequences)


def test_a_fast_environment_opens_the_next_fragment() -> None:
    """T1: under NEXT_STEP each environment has its own cursor, and no row is dropped or invented."""
    table: Table = [[(2, TERMINATED)], [(100, TRUNCATED)]]
    worker = worker_over(table, AutoresetMode.NEXT_STEP)
    rows = rows_by_env([worker.sample(n) for n in (3, 3, 2)])
    clocks = [row["obs"][2] - rows[1][0]["obs"][2] for row in rows[1]]
    assert clocks == list(range(8))
    assert [row["t"] for row in rows[0]] == [0, 1] * 4
    assert worker.env_steps > 16  # the second environment is ahead, its rows wait


def test_actions_lead_to_the_observations_beside_them() -> None:
    """T11 (in this process): an environment that echoes its action proves each pairing."""
    policy = ScriptedPolicy(lambda obs, noise, env_steps: (obs[:, 2] * 7 + obs[:, 0]).astype(np.int64) % 1000)
    for mode in MODES:
        batch = worker_over(TABLE, mode, policy, kind=EchoEnv).sample(12)
        np.testing.assert_array_equal(batch.next_obs[..., 1], batch.action)


@pytest.mark.parametrize("mode", MODES)
def test_environments_get_the_env_action_and_rows_keep_what_was_drawn(mode: Any) -> None:
    """G6, T11: the environment echoes the clipped action; the row has the drawn one, and no column besides."""

    def act(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> dict[str, np.ndarray]:
        drawn = 10 * obs[:, 2]
        return {"action": drawn, "env_action": np.clip(drawn, 0, 999).astype(np.int64) - obs[:, 0].astype(np.int64)}

    batch = worker_over(TABLE, mode, ScriptedPolicy(act), kind=EchoEnv).sample(12)
    np.testing.assert_array_equal(batch.action, 10 * batch.obs[..., 2])
    np.testing.assert_array_equal(batch.next_obs[..., 1], 999 - batch.env_id)
    assert "env_action" not in batch
    episodes = worker_over(TABLE, mode, ScriptedPolicy(act)).sample(episodes=3)
    assert "env_action" not in episodes


def test_rows_know_the_version_that_made_them() -> None:
    """Provenance: policy_version, worker, env_id, episode_id and t of every row."""
    policy = ScriptedPolicy()
    worker = worker_over(TABLE, policy=policy, index=3)
    first = worker.sample(2)
    policy.version = 5
    second = worker.sample(1)
    assert first.policy_version.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert second.policy_version.tolist() == [[5, 5, 5]]
    assert second.env_id.tolist() == [[0, 1, 2]]
    assert second.worker.tolist() == [[3, 3, 3]]
    assert set(worker.sample(episodes=1).worker.flat) == {3}


def test_values_arrived_in() -> None:
    """T5, T7: next_value is value[t + 1] inside an episode, and that of the true last observation at its end."""
    worker = worker_over(TABLE, policy=ScriptedPolicy(with_value=True))
    for steps in (5, 3):
        batch = worker.sample(steps)
        np.testing.assert_array_equal(batch.next_value, batch.next_obs[..., -1])


def test_values_arrived_in_where_a_resume_cut_an_episode() -> None:
    """T7: rows that waited for the next fragment do not bootstrap from the new episode's first value."""

    def make() -> RolloutWorker:
        envs = [functools.partial(Rebuilt, 0, [(1, TERMINATED)]), functools.partial(Rebuilt, 1, [(40, TERMINATED)])]
        return RolloutWorker(VectorEnvManager(SyncVectorEnv(envs)), ScriptedPolicy(with_value=True), seed=0)

    worker, resumed = make(), make()
    worker.sample(5)
    state = worker.state_dict()
    assert state["fragment"]["rows"], "the slow environment has rows that wait"
    resumed.load_state_dict(state)
    assert resumed.manager.cut_episodes == 2
    batch = resumed.sample(8)
    assert len(set(batch.episode_id[:, 1].tolist())) == 2
    assert not (batch.terminated | batch.truncated)[:, 1].any()
    np.testing.assert_array_equal(batch.next_value, batch.next_obs[..., -1])


def test_noise_comes_from_each_environments_own_stream() -> None:
    """D2: an environment draws the same numbers whatever acts beside it, and however the steps are cut."""
    drawn: dict[tuple[int, ...], np.ndarray] = {}
    for steps in ((100,), (1, 64, 35)):
        for envs in (1, 3):
            seen: list[np.ndarray] = []

            def act(obs: np.ndarray, noise: np.ndarray, env_steps: int, seen: Any = seen) -> np.ndarray:
                seen.append(noise.copy())
                return np.zeros(len(obs), np.int64)

            worker = worker_over(TABLE[:envs], policy=ScriptedPolicy(act, draws=2))
            for n in steps:
                worker.sample(n)
            drawn[(envs, *steps)] = np.array(seen)
    reference = drawn[(3, 100)]
    assert len(np.unique(reference)) == reference.size
    assert np.array_equal(reference, drawn[(3, 1, 64, 35)])
    assert np.array_equal(reference[:, :1], drawn[(1, 100)])


def test_exploration_sees_the_env_steps() -> None:
    """Q7: what is passed to act counts the steps of the whole worker, and survives a resume."""
    seen: list[int] = []

    def act(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> np.ndarray:
        seen.append(env_steps)
        return np.zeros(len(obs), np.int64)

    worker = worker_over(TABLE, policy=ScriptedPolicy(act))
    worker.sample(2)
    other = worker_over(TABLE, policy=ScriptedPolicy(act))
    other.load_state_dict(copy.deepcopy(worker.state_dict()))
    other.sample(1)
    assert seen == [0, 3, 6]


@pytest.mark.parametrize("mode", MODES)
def test_resumes_mid_episode(mode: Any) -> None:
    """D3, D5: a worker restored anywhere collects what the uninterrupted one does."""
    act = ScriptedPolicy(lambda obs, noise, env_steps: (noise[:, 0] * 1000).astype(np.int64), draws=1)
    worker = worker_over(TABLE, mode, act, noisy=True)
    for _ in range(70):  # beyond one block of noise
        state = copy.deepcopy(worker.state_dict())
        assert same(state, worker.state_dict())
        expected = worker.sample(2)
        other = worker_over(TABLE, mode, act, noisy=True)
        other.load_state_dict(state)
        assert other.sample(2) == expected


def test_whole_episodes_in_fixed_shares() -> None:
    """S2: sample(episodes=) takes as many from each environment as from any other, or one more."""
    assert shares_of(12, 5).tolist() == [3, 3, 2, 2, 2]
    for mode in MODES:
        worker = worker_over(TABLE, mode)
        worker.sample(2)
        batch = worker.sample(episodes=5)
        assert batch.shape[1] == 5
        assert batch.env_id[0].tolist() == [0, 0, 1, 1, 2]
        lengths = batch.mask.sum(0)
        for i in range(5):
            real = batch[:, i][batch.mask[:, i]]
            assert real.t.tolist() == list(range(lengths[i]))
            ended = real.terminated | real.truncated
            assert ended[-1]
            assert not ended[:-1].any()
        assert not batch.reward[~batch.mask].any()


@pytest.mark.parametrize("kwargs", [{}, {"steps": 0}, {"episodes": 0}, {"steps": 1, "episodes": 1}])
def test_bad_requests_are_refused(kwargs: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="sample needs steps"):
        worker_over(TABLE).sample(**kwargs)


def test_whole_episodes_leave_nothing_behind() -> None:
    """S2: the episodes that are reported are those returned, and the next rows begin afresh."""
    worker = worker_over(TABLE)
    worker.sample(1)
    worker.episodes()
    batch = worker.sample(episodes=5)
    reported = sorted((episode.env_id, episode.length) for episode in worker.episodes())
    assert reported == sorted(zip(batch.env_id[0].tolist(), batch.mask.sum(0).tolist()))
    assert not worker.sample(1).t.any()


def test_resetting_cuts_what_waits() -> None:
    """Rows of cut episodes do not turn up in the next fragment."""
    worker = worker_over([[(2, TERMINATED)], [(100, TRUNCATED)]], AutoresetMode.NEXT_STEP)
    worker.sample(3)
    worker.reset_env()
    fragment = worker.sample(2)
    assert fragment.t[0].tolist() == [0, 0]
    assert fragment.episode_id[0].tolist() == [2, 1]


@pytest.mark.parametrize(("before", "after", "message"), [(True, False, "lacks 'value'"), (False, True, "has extra")])
def test_a_policy_with_other_columns_does_not_go_on_with_rows_that_wait(
    before: bool, after: bool, message: str
) -> None:
    """T11: a fragment's rows have one set of columns."""
    worker = worker_over(
        [[(1, TERMINATED)], [(100, TRUNCATED)]], AutoresetMode.NEXT_STEP, ScriptedPolicy(with_value=before)
    )
    worker.sample(3)
    worker.reset_policy(ScriptedPolicy(with_value=after))  # type: ignore
    with pytest.raises(SchemaError, match=rf"rows of another policy wait .*reset_env\(\).* {message}"):
        worker.sample(4)
    worker.reset_env()
    assert ("value" in worker.sample(4)) is after


def test_another_policy_may_draw_another_amount() -> None:
    worker = worker_over(TABLE, policy=ScriptedPolicy(draws=1))
    worker.sample(2)
    worker.reset_policy(ScriptedPolicy(lambda obs, noise, env_steps: (noise[:, 1] > 2).astype(np.int64), draws=2))  # type: ignore
    assert worker.sample(2).shape == (2, 3)


@pytest.mark.parametrize("amount", [{"steps": 4}, {"rows": 9}, {"episodes": 2}])
@pytest.mark.parametrize("name", ["logp", "value"])
def test_estimates_of_the_policy_that_are_not_finite_are_refused(name: str, amount: dict[str, int]) -> None:
    """X1: where they are made, with the rows."""

    class Wild(ScriptedPolicy):
        def act(self, obs: Any, *others: Any) -> Any:
            wild = np.where((obs[:, 0] == 1) & (obs[:, 2] % 1000 == 2), np.inf, 0.0).astype(np.float32)
            return {**super().act(obs, *others), "logp": np.zeros(len(obs)), "value": np.zeros(len(obs)), name: wild}

        def value(self, obs: Any) -> Any:
            return np.zeros(len(obs))

    worker = worker_over([[(3, TERMINATED)]] * 2, policy=Wild())
    words = rf"the policy gives {name} = inf \(environment 1, episode 0, step 2\)"
    with pytest.raises(NotFinite, match=words) as caught:
        worker.sample(**amount)
    assert np.isinf(caught.value.batches[0][name]).any()


def test_a_policy_that_cannot_be_tried_out_is_told_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Y2: what check() does not know passes it, but not without a word; once for each class."""

    class Broken(DQNPolicy):
        @property
        def collect_mode(self) -> Any:
            raise ValueError("no mode yet")

        @collect_mode.setter
        def collect_mode(self, mode: Any) -> None: ...

    policy = Broken(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), hidden=(4,), device="cpu")
    assert collected(policy, policy.observation_space) == collected(policy, policy.observation_space) == UNKNOWN
    (told,) = caplog.messages
    assert "what Broken collects: it cannot act on an observation of zeros: ValueError: no mode yet" in told


def test_what_choices_that_start_above_zero_collect_is_known() -> None:
    """R7: zero is none of them, so that trying the policy out with zeros had failed."""
    policy = DQNPolicy(spaces.Dict(at=spaces.Discrete(3, start=4)), spaces.Discrete(2), hidden=(4,), device="cpu")
    assert collected(policy, policy.observation_space) != UNKNOWN

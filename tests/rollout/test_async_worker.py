"""A rollout worker over environments that answer in any order, and fail: nothing is lost, doubled or mixed up."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import Batch
from flowrl.errors import EnvFault, FlowError, SchemaError
from flowrl.rollout import RolloutWorker
from flowrl.testing import same
from tests.clock_envs import TABLE, ClockEnv, EchoEnv, clock_envs
from tests.scheduled_manager import ScheduledManager
from tests.scripted import ScriptedPolicy

ORDERS = [[[0, 1, 2]], [[0], [1], [2]], [[2, 0], [1], [2]], [[0]] * 9 + [[1, 2]], [[2], [2], [1], [0, 2]]]
any_order = st.lists(st.lists(st.integers(0, 2), max_size=3, unique=True), min_size=1, max_size=8)
some_faults = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=4)


def own_stream(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> np.ndarray:
    """An action that shows the noise and the observation it was made of."""
    return (noise[:, 0] * 500).astype(np.int64) + (obs[:, 2].astype(np.int64) * 7 + obs[:, 0].astype(np.int64)) % 500


def worker_with(
    answers: Any, faults: Any = (), *, policy: Any = None, kind: type[ClockEnv] = ClockEnv, **kwargs: Any
) -> RolloutWorker:
    make = clock_envs(TABLE, kind=kind)
    manager = ScheduledManager([make() for _ in TABLE], answers, faults, **kwargs)
    return RolloutWorker(manager, policy or ScriptedPolicy(own_stream, draws=1), seed=1)


def rows_by_env(fragments: list[Batch]) -> list[list[dict[str, Any]]]:
    joined = Batch.cat(fragments)
    return [
        [{name: np.asarray(joined[name][t, i]).tolist() for name in joined} for t in range(len(joined))]
        for i in range(joined.shape[1])
    ]


def assert_consecutive(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert np.subtract(row["next_obs"], row["obs"]).tolist()[::2] == [0, 1]
    for before, after in pairwise(rows):
        ended = before["terminated"] or before["truncated"]
        if after["episode_id"] == before["episode_id"]:
            assert not ended
            assert after["obs"] == before["next_obs"]
            assert after["t"] == before["t"] + 1
        else:
            assert after["t"] == 0  # ended, or cut by a fault


@given(answers=any_order, faults=some_faults, steps=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_every_answer_is_stored_beside_what_was_sent(answers: Any, faults: Any, steps: list[int]) -> None:
    """T1, T7, T11: in any order of answers, with faults, every row is a step of one environment, and each is there."""
    worker = worker_with(answers, faults, kind=EchoEnv, max_retry=20)
    fragments = [worker.sample(n) for n in steps]
    for fragment, n in zip(fragments, steps):
        assert fragment.shape == (n, 3)
        np.testing.assert_array_equal(fragment.next_obs[..., 1], fragment.action)
        np.testing.assert_array_equal(fragment.env_id, np.broadcast_to([0, 1, 2], (n, 3)))
    for env_id, rows in enumerate(rows_by_env(fragments)):
        assert_consecutive(rows)
        assert all(row["obs"][0] == env_id for row in rows)
    # Every clock has ticked once for every row, those that wait for the next fragment among them.
    clocks = sum(env.clock % 1000 for env in worker.manager._envs)  # type: ignore
    assert clocks == worker.env_steps
    assert clocks == sum(steps) * 3 + (worker._fragment.lengths()).sum()


@pytest.mark.parametrize("answers", ORDERS)
def test_each_environment_has_the_sequence_that_it_has_in_lockstep(answers: Any) -> None:
    """T3, D2: whoever answers first, an environment sees the same noise, actions and episodes."""
    lockstep, other = worker_with([[0, 1, 2]]), worker_with(answers)
    expected = rows_by_env([lockstep.sample(12)])
    assert rows_by_env([other.sample(n) for n in (5, 1, 6)]) == expected


def test_a_fast_environment_waits_when_it_is_a_fragment_ahead() -> None:
    """F7: rows for the next fragment are bounded: who has them all gets no action until the others have caught up."""
    worker = worker_with([[0]] * 50 + [[1], [2]])
    worker.sample(4)
    assert worker._fragment.lengths().max() == 4
    worker.sample(4)
    assert worker._fragment.lengths().max() <= 4


class InTurn(ScheduledManager):
    """Environment 0 cannot act before environment 1 has taken so many steps."""

    first = 20

    @property
    def ready(self) -> np.ndarray:
        return super().ready & ([self._taken[1] >= self.first] + [True] * (self.num_envs - 1))

    def _answer(self, env_ids: list[int]) -> Any:
        return super()._answer([env_id for env_id in env_ids if env_id in self._stepping])


@pytest.mark.parametrize("amount", [{"steps": 4}, {"episodes": 3}])
def test_environments_that_wait_for_each_other_are_named(amount: dict[str, int]) -> None:
    """F8: those held with all their rows, and those that cannot act without them; no endless loop."""
    make = clock_envs(TABLE)
    manager = InTurn([make() for _ in TABLE], [[0, 1, 2]])
    worker = RolloutWorker(manager, ScriptedPolicy(own_stream, draws=1), seed=1)
    for _ in range(2):
        with pytest.raises(
            FlowError, match=r"environment 0 \(0 rows\) cannot act, while 1 \(\d+ rows\), 2 \(\d+ rows\) h"
        ):
            worker.sample(**amount)
    manager.first = 2
    assert worker.sample(**amount).reward.size >= 12
    assert worker.sample(rows=9).rows >= 9


def test_nobody_waits_where_any_rows_will_do() -> None:
    """T11: sample(rows=) takes the steps of whoever is quick, in the order of time, and their values."""
    worker = worker_with([[0]] * 9 + [[1], [2]], policy=ScriptedPolicy(own_stream, draws=1, with_value=True))
    batch = worker.sample(rows=20)
    assert batch.shape == (20,)
    counts = np.bincount(batch.env_id)
    assert counts[0] > 4 * counts[1] > 0
    np.testing.assert_array_equal(batch.next_value, batch.next_obs[:, -1])
    assert "mask" not in batch
    for env_id in range(3):
        mine = batch[batch.env_id == env_id]
        assert_consecutive([{name: mine[name][i].tolist() for name in mine} for i in range(len(mine))])
    assert worker.env_steps == 20


def test_rows_know_the_version_that_acted_though_the_answer_came_later() -> None:
    """T11, V3: the version, noise and place of a row are those of when its action was sent."""
    policy = ScriptedPolicy(own_stream, draws=1)
    worker = worker_with([[0], [0], [1], [2]], policy=policy)
    worker.sample(1)
    policy.version = 5
    batch = worker.sample(3)
    assert batch.policy_version.T.tolist() == [[0, 5, 5], [0, 5, 5], [5, 5, 5]]
    worker = worker_with([[0]] + [[0, 1, 2]] * 9, policy=policy)
    worker.sample(rows=1)
    policy.version = 6
    assert worker.sample(2).policy_version[0].tolist() == [6, 5, 5]


def test_a_cut_episode_stops_without_a_flag() -> None:
    """T7: the rows before a fault stay, the row that failed does not exist, the next one begins an episode."""
    worker = worker_with([[0, 1, 2]], faults=[(1, 4)], policy=ScriptedPolicy(with_value=True))
    batch = worker.sample(8)
    assert batch.episode_id[:, 1].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert batch.t[:, 1].tolist() == [0, 1, 2, 3, 0, 1, 0, 1]
    assert not (batch.terminated | batch.truncated)[:5, 1].any()
    np.testing.assert_array_equal(batch.next_value, batch.next_obs[..., -1])  # the cut is bootstrapped
    assert worker.manager.cut_episodes == 1
    assert [(fault.env_id, fault.episode_id, fault.t) for fault in worker.faults()] == [(1, 0, 4)]
    assert worker.faults() == []
    assert all(episode.length != 4 for episode in worker.episodes() if episode.env_id == 1)


@given(answers=any_order, faults=some_faults, episodes=st.integers(1, 7))
def test_whole_episodes_in_fixed_shares_whoever_is_quick_or_fails(answers: Any, faults: Any, episodes: int) -> None:
    """S2: each environment plays its share of whole episodes; those that a fault cut are played again."""
    worker = worker_with(answers, faults, kind=EchoEnv, max_retry=20)
    worker.sample(2)
    worker.episodes()
    batch = worker.sample(episodes=episodes)
    assert batch.env_id[0].tolist() == [i for i, n in enumerate(np.array_split(np.arange(episodes), 3)) for _ in n]
    for i, length in enumerate(batch.mask.sum(0)):
        real = batch[:length, i]
        assert real.t.tolist() == list(range(length))
        assert len(set(real.episode_id.tolist())) == 1
        assert (real.terminated | real.truncated).tolist() == [False] * (length - 1) + [True]
        np.testing.assert_array_equal(real.next_obs[:, 1], real.action)
    reported = [(episode.env_id, episode.episode_id, episode.length) for episode in worker.episodes()]
    assert sorted(reported) == sorted(zip(batch.env_id[0], batch.episode_id[0], batch.mask.sum(0)))
    assert not worker.sample(1).t.any()


@pytest.mark.parametrize("answers", ORDERS)
def test_resumes_with_answers_outstanding(answers: Any) -> None:
    """D3, D5: the rows that were sent are in the state, so whatever answers first meets its own row."""

    def make() -> RolloutWorker:
        return worker_with(answers, faults=[(0, 6), (1, 11)], kind=EchoEnv)

    worker = make()
    for _ in range(8):
        state = copy.deepcopy(worker.state_dict())
        assert same(state, worker.state_dict())
        expected = worker.sample(2)
        resumed = make()
        resumed.load_state_dict(state)
        assert same(resumed.state_dict(), state)
        assert resumed.sample(2) == expected


def test_one_fault_too_many_ends_it_and_keeps_what_was_finished() -> None:
    """The episodes of others are still reported; reset_env() begins again."""
    worker = worker_with([[0, 1, 2]], faults=[(1, 2), (1, 3)], max_retry=1)
    with pytest.raises(EnvFault, match=r"environment 1, (.|\n)*Traceback of 1\n2 faults .* max_retry=1"):
        worker.sample(6)
    assert [episode.env_id for episode in worker.episodes()] == [2, 2, 0, 0]
    worker.reset_env()
    assert worker.sample(3).shape == (3, 3)


def test_a_policy_with_other_columns_waits_until_all_have_answered() -> None:
    """T11: a row that was sent with other columns is never mixed with the new ones."""
    worker = worker_with([[0], [0], [0, 1, 2]])
    worker.sample(rows=1)
    worker.reset_policy(ScriptedPolicy(with_value=True))  # type: ignore
    with pytest.raises(SchemaError, match=r"still step with another policy.*has extra 'value'"):
        worker.sample(2)
    worker.reset_env()
    assert "value" in worker.sample(2)

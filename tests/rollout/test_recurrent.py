"""Recurrent policies: each environment has a state of its own, and begins every episode with the initial one (T8).

Some hear of rewards (T13).
"""

from __future__ import annotations

import copy
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

from flowrl.data import Batch
from flowrl.envs import EnvManager, Manager, VectorEnvManager
from flowrl.rollout import RolloutWorker, evaluate
from flowrl.rollout.worker import collected
from flowrl.testing import same
from tests.clock_envs import BOTH, TABLE, TERMINATED, ClockEnv, Table, clock_envs, clock_vector
from tests.scheduled_manager import ScheduledManager


class GRUPolicy:
    """A GRU of the observation's clock, which draws its action from the softmax of its memory; values too."""

    def __init__(self, hidden: int = 6, hears: bool = False) -> None:
        torch.manual_seed(0)
        self.cell, self.head = nn.GRUCell(1, hidden).double(), nn.Linear(hidden, 5).double()
        self.hidden, self.version = hidden, 0
        self.first = 0.5  # what an episode begins with
        self.collect_mode = self.eval_mode = (Hearing if hears else Remembering)(self)


@attrs.frozen
class Remembering:
    policy: GRUPolicy
    draws = 1

    def initial_state(self) -> Batch:
        return Batch(memory=np.full((1, self.policy.hidden), self.policy.first), steps=np.zeros(1, np.int64))

    def _forward(self, obs: Any, state: Batch) -> tuple[torch.Tensor, Any, Any]:
        clock = torch.as_tensor(np.asarray(obs)[:, 2:] % 10 / 10, dtype=torch.float64)
        memory = self.policy.cell(clock, torch.as_tensor(state.memory))
        given = self.policy.head(memory)
        return memory, given[:, :4], given[:, 4]

    def act(self, obs: Any, noise: np.ndarray, env_steps: int, state: Batch) -> dict[str, Any]:
        with torch.inference_mode():
            memory, logits, value = self._forward(obs, state)
            drawn = (logits.softmax(1).cumsum(1) < torch.as_tensor(noise)).sum(1).clamp(max=3)
        next_state = Batch(memory=memory.numpy(), steps=state.steps + 1)
        return {"action": drawn.numpy(), "value": value.numpy(), "next_state": next_state}

    def value(self, obs: Any, state: Batch) -> np.ndarray:
        with torch.inference_mode():
            return self._forward(obs, state)[2].numpy()


class Hearing(Remembering):
    """It remembers the rewards that it got too."""

    def rewarded(self, state: Batch, reward: np.ndarray) -> Batch:
        return state.replace(memory=0.7 * state.memory + np.sin(reward)[:, None])


def own(table: Table) -> Manager:
    make = clock_envs(table)
    return EnvManager([make() for _ in table])


def asynchronous(table: Table) -> Manager:
    make = clock_envs(table)
    return ScheduledManager([make() for _ in table], [[0]] * 5 + [[2], [1]], faults=[(1, 4), (2, 6)])


MANAGERS = {
    "own": own,
    **{mode.name: lambda table, mode=mode: VectorEnvManager(clock_vector(table, mode)) for mode in AutoresetMode},
    "async": asynchronous,
}
every_manager = pytest.mark.parametrize("make", MANAGERS.values(), ids=MANAGERS)
whether_it_hears = pytest.mark.parametrize("hears", [False, True], ids=["deaf", "hears"])


def replayed(mode: Remembering, rows: list[Batch]) -> None:
    """The obvious loop: one environment's rows in order, its memory begun anew at each episode."""
    state, last = mode.initial_state(), rows[0]
    for number, row in enumerate(rows):
        if number and row.episode_id[0] != last.episode_id[0]:
            state = mode.initial_state()
        np.testing.assert_array_equal(row.state.steps, row.t)
        np.testing.assert_allclose(row.state.memory, state.memory, atol=1e-12)
        columns = mode.act(row.obs, np.zeros((1, 1)), 0, state)
        np.testing.assert_allclose(row.value, columns["value"], atol=1e-12)
        state, last = columns["next_state"], row
        if isinstance(mode, Hearing):
            state = mode.rewarded(state, row.reward)
        np.testing.assert_allclose(row.next_value, mode.value(row.next_obs, state), atol=1e-12)


@whether_it_hears
@every_manager
def test_the_state_begins_with_the_episode_and_goes_on_with_it(make: Any, hears: bool) -> None:
    """T8, T13, T5, T7: states and values are those of the loop over each episode, whoever resets, answers or fails."""
    policy = GRUPolicy(hears=hears)
    worker = RolloutWorker(make(TABLE), policy, seed=3)  # type: ignore
    joined = Batch.cat([worker.sample(n) for n in (4, 1, 9, 6)])
    assert "next_state" not in joined
    for i in range(3):
        replayed(policy.collect_mode, [joined[t : t + 1, i] for t in range(20)])


@whether_it_hears
@every_manager
def test_resumes_with_the_memory_of_every_environment(make: Any, hears: bool) -> None:
    """T8, T13, D3: a worker restored mid-episode remembers what the uninterrupted one does."""
    worker = RolloutWorker(make(TABLE), GRUPolicy(hears=hears), seed=3)  # type: ignore
    worker.sample(5)
    for _ in range(4):
        state = copy.deepcopy(worker.state_dict())
        assert same(state, worker.state_dict())
        expected = worker.sample(3)
        resumed = RolloutWorker(make(TABLE), GRUPolicy(hears=hears), seed=3)  # type: ignore
        resumed.load_state_dict(state)
        assert resumed.sample(3) == expected


def test_whole_episodes_begin_with_the_initial_state() -> None:
    """T8: also those of sample(episodes=), begun afresh in the middle of others."""
    worker = RolloutWorker(own(TABLE), GRUPolicy(), seed=3)  # type: ignore
    worker.sample(2)
    batch = worker.sample(episodes=6)
    np.testing.assert_array_equal(batch.state.memory[0], np.full((6, 6), 0.5))
    np.testing.assert_array_equal(batch.state.steps[batch.mask], batch.t[batch.mask])


def test_an_episode_begins_with_what_the_policy_has_learned_to_begin_with() -> None:
    """T8: not with the initial state of when the worker was made."""
    policy = GRUPolicy()
    worker = RolloutWorker(own(TABLE), policy, seed=3)  # type: ignore
    policy.first = 0.25
    np.testing.assert_array_equal(worker.sample(1).state.memory[0], np.full((3, 6), 0.25))


def test_another_policy_begins_with_its_own_state() -> None:
    """T8: reset_policy() forgets, even where the new memory is of the same size."""
    worker = RolloutWorker(own([[(99, TERMINATED)]]), GRUPolicy(), seed=3)  # type: ignore
    worker.sample(2)
    worker.reset_policy(GRUPolicy())  # type: ignore
    np.testing.assert_array_equal(worker.sample(1).state.memory[0], [np.full(6, 0.5)])


def test_the_columns_are_known_beforehand() -> None:
    """A schema has the state that is stored, and not the next one."""
    policy = GRUPolicy()
    schema = collected(policy, ClockEnv(0, [(1, BOTH)]).observation_space)  # type: ignore
    worker = RolloutWorker(own(TABLE), policy, seed=3)  # type: ignore
    assert {name.partition(".")[0] for name in schema.columns} == set(worker.sample(1))


def test_evaluation_remembers_as_collecting_does() -> None:
    """T8: whole episodes of a recurrent policy score what the worker's own do."""
    seen: list[int] = []

    class Counting(Remembering):
        def act(self, obs: Any, noise: np.ndarray, env_steps: int, state: Batch) -> dict[str, Any]:
            seen.append(int(state.steps[0]))
            return super().act(obs, noise, env_steps, state)

    policy = GRUPolicy()
    policy.eval_mode = Counting(policy)
    episodes = evaluate(policy, clock_envs(TABLE[:1]), episodes=3, seed=1, num_envs=1)  # type: ignore
    assert [episode.length for episode in episodes] == [3, 1, 2]
    assert seen == [0, 1, 2, 0, 0, 1]

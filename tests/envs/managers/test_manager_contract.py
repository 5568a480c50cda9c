"""One suite for every manager: what a rollout worker relies on, whoever resets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.envs import EnvManager, Episode, Manager, SubprocessEnvManager, ThreadEnvManager, VectorEnvManager
from flowrl.errors import CheckpointError, EnvFault, FlowError, SchemaError, notes_of
from tests.clock_envs import (
    BOTH,
    TERMINATED,
    TRUNCATED,
    ClockEnv,
    Table,
    actions_at,
    around,
    clock_envs,
    clock_factories,
    clock_vector,
    collect,
)
from tests.clock_envs import SHORT_TABLE as TABLE


def own(table: Table, **kwargs: Any) -> Manager:
    make = clock_envs(table, **kwargs)
    return EnvManager([make() for _ in table])


def vector(mode: AutoresetMode, **how: Any) -> Callable[..., Manager]:
    return lambda table, **kwargs: VectorEnvManager(clock_vector(table, mode, **how, **kwargs))


def hosted(manager: Callable[..., Manager]) -> Callable[..., Manager]:
    """In processes or threads, where an error is a fault."""
    return lambda table, **kwargs: manager(clock_factories(table, **kwargs))


MANAGERS = {"own": own, **{mode.name: vector(mode) for mode in AutoresetMode}}
MANAGERS |= {f"{mode.name}-around": vector(mode, make=around) for mode in AutoresetMode}
in_this_thread = pytest.mark.parametrize("make", MANAGERS.values(), ids=MANAGERS)  # of others: test_conformance.py
OF_flowrl = {"own": own, "subprocess": hosted(SubprocessEnvManager), "thread": hosted(ThreadEnvManager)}
EVERY = MANAGERS | OF_flowrl
every_manager = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
tables = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([TERMINATED, TRUNCATED, BOTH])), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


@in_this_thread
@given(table=tables)
def test_every_row_is_a_transition_of_its_own_environment(make: Callable[..., Manager], table: Table) -> None:
    """T1, T2, T6: next == obs + 1 on the clock in every row, at episode ends too; nothing else is counted."""
    with make(table) as manager:
        manager.launch(0)
        rows = collect(manager, 12)
        for i, transitions in enumerate(rows):
            for _, _, obs, _, reward, _, _, next_obs in transitions:
                assert obs[0] == i
                assert np.subtract(next_obs, obs).tolist() == [0, 0, 1]
                assert reward == next_obs[2]
        finished = sum(episode.length for episode in manager.finished)
        assert sum(map(len, rows)) == finished + int(manager.t.sum())


@in_this_thread
@given(table=tables)
def test_episodes_are_numbered_and_summed_up(make: Callable[..., Manager], table: Table) -> None:
    """T4, T7, S1, T10: each episode is the table's, its statistics are those of its rows, flags come as they are.

    The clock's reset info claims success: a truncated episode that succeeded would prove a wrongly read info.
    """
    with make(table) as manager:
        manager.launch(0)
        rows = collect(manager, 12)
        expected = []
        for i, transitions in enumerate(rows):
            number, first = 0, 0
            while first < len(transitions):
                length, ending = table[i][min(number, len(table[i]) - 1)]
                part = transitions[first : first + length]
                assert [row[:2] for row in part] == [(number, t) for t in range(len(part))]
                ends = [(terminated, truncated) for *_, terminated, truncated, _ in part]
                over = (ending != TRUNCATED, ending != TERMINATED)
                if len(part) == length:
                    assert ends.pop() == over
                    expected.append(Episode(i, number, sum(row[4] for row in part), length, over[0]))
                assert not np.any(ends)
                first, number = first + length, number + 1
        by_env = sorted(manager.finished, key=lambda episode: (episode.env_id, episode.episode_id))
        assert by_env == expected
        assert manager.drain()
        assert manager.drain() == []


@given(table=tables)
@settings(max_examples=15)
def test_all_modes_give_the_same_sequences(table: Table) -> None:
    """T3: a fixed policy per environment sees the same transitions in all modes, its resets being random.

    The first episode is that of the manager in this process too: all seed it alike.
    """

    def run(make: Callable[..., Manager]) -> list[list[tuple[Any, ...]]]:
        with make(table, noisy=True) as manager:
            manager.launch(7)
            return [
                [(*row[:3], *row[4:]) for row in rows]  # the action is the step's, and modes differ in steps
                for rows in collect(manager, 14)
            ]

    sequences = {name: run(make) for name, make in MANAGERS.items()}
    for i in range(len(table)):
        length = min(len(rows[i]) for rows in sequences.values())
        same_step = sequences["SAME_STEP"][i][:length]
        assert all(mine[i][:length] == same_step for name, mine in sequences.items() if name != "own")
        first = [row for row in same_step if row[0] == 0]
        assert sequences["own"][i][: len(first)] == first


@in_this_thread
@pytest.mark.parametrize("saved_at", range(8))
def test_a_resumed_manager_goes_on_as_if_nothing_happened(make: Callable[..., Manager], saved_at: int) -> None:
    """D3, D5: saved mid-episode, at an end, or with a reset pending, into a manager that was never launched."""
    with make(TABLE, noisy=True) as manager, make(TABLE, noisy=True) as resumed:
        manager.launch(3)
        collect(manager, saved_at)
        state, again = manager.state_dict(), manager.state_dict()
        np.testing.assert_equal(state, again)
        resumed.load_state_dict(state)
        np.testing.assert_array_equal(resumed.done, manager.done)
        assert collect(resumed, 10, saved_at) == collect(manager, 10, saved_at)
        assert resumed.finished == manager.finished
        assert resumed.cut_episodes == manager.cut_episodes == 0
        np.testing.assert_equal(resumed.state_dict()["streams"], manager.state_dict()["streams"])
        np.testing.assert_equal(state, again)  # who loads a state leaves it as it is


@every_manager
def test_a_running_manager_can_go_back(make: Callable[..., Manager]) -> None:
    """D3: what happened after the state was taken is forgotten, flags of an ended episode included."""
    with make(TABLE, noisy=True) as manager:
        manager.launch(3)
        collect(manager, 3)
        state = manager.state_dict()
        first = collect(manager, 9, 3)
        manager.load_state_dict(state)
        assert collect(manager, 9, 3) == first


@every_manager
def test_reset_cuts_and_begins(make: Callable[..., Manager]) -> None:
    """Cut episodes are counted and in no statistics; numbers go on; a seed makes the new ones repeatable."""
    with make(TABLE, noisy=True) as manager:
        manager.launch(0)
        collect(manager, 2)
        finished, numbers = list(manager.finished), manager.episode_id.copy()
        held, copy = manager.obs, manager.obs.copy()
        manager.reset(seed=5)
        np.testing.assert_array_equal(held, copy)
        np.testing.assert_array_equal(manager.episode_id, numbers + 1)
        assert (manager.cut_episodes, manager.finished) == (3, finished)
        assert not manager.t.any()
        assert not manager.done.any()
        marks = manager.obs[:, 1].copy()
        assert len(collect(manager, 1)[0]) == 1
        manager.reset(seed=5)
        np.testing.assert_array_equal(manager.obs[:, 1], marks)
        manager.reset()
        assert (manager.obs[:, 1] != marks).all()


@every_manager
def test_buffers_last_as_long_as_promised(make: Callable[..., Manager]) -> None:
    """The observation acted from survives the step, and without an episode's end nothing is copied twice."""
    with make(TABLE) as manager:
        manager.launch(0)
        for step in range(8):
            before, copy = manager.obs, manager.obs.copy()
            result = manager.step(actions_at(step, 3))
            np.testing.assert_array_equal(before, copy)
            if not manager.done.any():
                assert result.next_obs is manager.obs


@every_manager
def test_calls_out_of_order_are_refused(make: Callable[..., Manager]) -> None:
    manager = make(TABLE)
    for call in (lambda: manager.obs, manager.state_dict, manager.reset, lambda: manager.seed(1)):
        with pytest.raises(FlowError, match=r"call launch\(seed\) first"):
            call()
    with pytest.raises(FlowError, match=r"call launch\(seed\) first"):
        manager.step([0, 0, 0])
    manager.launch(0)
    with pytest.raises(FlowError, match="cannot launch twice"):
        manager.launch(0)
    manager.close()
    manager.close()
    with pytest.raises(FlowError, match="closed"):
        manager.step([0, 0, 0])


@every_manager
@pytest.mark.parametrize("actions", [[0, 0], [[0], [0], [0]], [0.5, 0.5, 0.5]])
def test_wrong_actions_name_what_is_expected(make: Callable[..., Manager], actions: Any) -> None:
    with make(TABLE) as manager:
        manager.launch(0)
        with pytest.raises(SchemaError, match=r"expected int64\[3\]: one row for each of 3 environments"):
            manager.step(actions)
        assert len(collect(manager, 1)[0]) == 1  # nothing had been stepped


@every_manager
def test_a_state_of_other_environments_is_refused(make: Callable[..., Manager]) -> None:
    with make(TABLE) as manager, make(TABLE[:2]) as smaller:
        manager.launch(0)
        with pytest.raises(CheckpointError, match=r"float32\[3, 3\].*float32\[2, 3\]"):
            smaller.load_state_dict(manager.state_dict())
        with pytest.raises(CheckpointError, match=r"that of another, this is an? .*EnvManager"):
            smaller.load_state_dict({**manager.state_dict(), "kind": "another"})


@in_this_thread
def test_a_failing_environment_is_named(make: Callable[..., Manager]) -> None:
    """The error keeps its type; the manager does not go on with rows that are out of step."""
    table = [[(3, TERMINATED)], [(9, TERMINATED)], [(9, TERMINATED)]]  # the first has ended when the second fails
    with make(table, kind=Failing) as manager:
        manager.launch(0)
        collect(manager, 2)
        with pytest.raises(ZeroDivisionError) as caught:
            manager.step([0, 999, 0])
        assert any("environment 1" in note or "Around" in note for note in caught.value.__notes__)
        with pytest.raises(FlowError, match=r"call reset\(\) first"):
            manager.step([0, 0, 0])
        manager.reset()
        assert [row[1] for row in collect(manager, 2)[0]] == [0, 1]


class Failing(ClockEnv):
    def step(self, action: Any) -> tuple[Any, ...]:
        if action == 999:
            raise ZeroDivisionError
        return super().step(action)


@pytest.mark.parametrize("kind", ["native", "own", "sync"])
def test_cartpole_obeys_its_physics(kind: str) -> None:
    """T1, T2 on CartPole, native vector environment included: x' = x + 0.02 v holds in each row that counts."""
    if kind == "own":
        manager: Manager = EnvManager([gymnasium.make("CartPole-v1", max_episode_steps=15) for _ in range(4)])
    else:
        mode = "sync" if kind == "sync" else "vector_entry_point"
        manager = VectorEnvManager(
            gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode=mode, max_episode_steps=15)
        )
    with manager:
        manager.launch(0)
        rng = np.random.default_rng(0)
        counted = 0
        for _ in range(150):
            before, t = manager.obs, manager.t.copy()
            next_obs, reward, _, truncated, acted = manager.step(rng.integers(2, size=4))
            rows = np.ones(4, bool) if acted is None else acted
            np.testing.assert_allclose(next_obs[rows, 0], (before[:, 0] + 0.02 * before[:, 1])[rows], atol=1e-6)
            np.testing.assert_array_equal(truncated[rows], t[rows] == 14)
            assert (reward[rows] == 1).all()
            counted += int(rows.sum())
        episodes = manager.drain()
        assert len(episodes) > 20
        assert counted == sum(episode.length for episode in episodes) + manager.t.sum()
        assert all(episode.return_ == episode.length for episode in episodes)


class TwoRewards(ClockEnv):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward, 1.0]), *rest


@every_manager
def test_several_rewards_of_a_step_are_refused_with_the_way_out(make: Callable[..., Manager]) -> None:
    with make(TABLE, kind=TwoRewards) as manager:
        manager.launch(0)
        with pytest.raises((SchemaError, ValueError, EnvFault)) as refused:
            [manager.step(np.zeros(len(TABLE), int)) for _ in range(4)]  # in processes and threads it is a fault
    assert "TransformReward makes one number" in "".join([str(refused.value), *notes_of(refused.value)])

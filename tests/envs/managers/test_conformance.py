"""One suite over all managers, the asynchronous ones too: what they have in common whatever their clocks say."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics

from flowrl.data import Batch
from flowrl.envs import AsyncSubprocessEnvManager, EnvManager, Episode, SubprocessEnvManager, ThreadEnvManager
from flowrl.errors import ConfigError, SchemaError
from tests.clock_envs import (
    TABLE,
    TERMINATED,
    TRUNCATED,
    ClockEnv,
    DictClockEnv,
    EchoEnv,
    Lives,
    ReusedClockEnv,
    ReusedDictClockEnv,
    assert_one_tick,
    clock_factories,
)
from tests.managers import (
    EVERY,
    Collector,
    Make,
    every_manager,
    every_one_of_flowrl,
    from_factories,
    local,
    over_clocks,
)


def ends_of(env_id: int, episode: int) -> tuple[int, str]:
    return TABLE[env_id][min(episode, len(TABLE[env_id]) - 1)]


@every_manager
def test_every_row_is_a_step_of_its_own_environment(make: Make) -> None:
    """T1, T2, T4, T6, T11: what was sent led to what came back, at ends of episodes too, each once."""
    with make(TABLE, kind=EchoEnv) as manager:
        manager.launch(0)
        collector = Collector(manager)
        collector.until(25)
        for i, rows in enumerate(collector.rows):
            episode, t = 0, 0
            for episode_id, number, obs, action, reward, terminated, truncated, next_obs in rows:
                assert (episode_id, number) == (episode, t)
                assert next_obs == [i, action, obs[2] + 1]
                assert reward == next_obs[2]
                length, ending = ends_of(i, episode)
                over = t + 1 == length
                assert (terminated, truncated) == (over and ending != TRUNCATED, over and ending != TERMINATED)
                episode, t = (episode + 1, 0) if over else (episode, t + 1)
        steps = sum(map(len, collector.rows))
        assert steps == sum(episode.length for episode in manager.finished) + manager.t.sum()


@every_manager
def test_episodes_are_summed_up(make: Make) -> None:
    """S1: number, return, length and success of every finished episode are those of its rows."""
    with make(TABLE) as manager:
        manager.launch(0)
        collector = Collector(manager)
        collector.until(20)
        expected = []
        for i, rows in enumerate(collector.rows):
            for episode in sorted({row[0] for row in rows if row[5] or row[6]}):
                mine = [row for row in rows if row[0] == episode]
                expected.append(Episode(i, episode, sum(row[4] for row in mine), len(mine), mine[-1][5]))
        assert sorted(manager.drain(), key=lambda each: (each.env_id, each.episode_id)) == expected
        assert manager.cut_episodes == 0
        assert manager.drain_faults() == []


@every_one_of_flowrl
def test_all_give_the_same_sequences(make: Make) -> None:
    """T3, D1: with resets by chance each environment sees what it sees in this process, whoever answers first."""
    with make(TABLE, noisy=True) as manager, local(TABLE, noisy=True) as reference:
        manager.launch(7)
        reference.launch(7)
        assert Collector(manager).until(30) == Collector(reference).until(30)


@every_manager
def test_all_give_the_same_sequences_without_chance(make: Make) -> None:
    """T3: those that vector environments reset are the same too."""
    with make(TABLE, kind=EchoEnv) as manager, local(TABLE, kind=EchoEnv) as reference:
        manager.launch(1)
        reference.launch(2)
        assert Collector(manager).until(20) == Collector(reference).until(20)


@from_factories
def test_fixed_seeds_of_episodes(make: Make) -> None:
    """T3: environment i begins its k-th episode with episode_seeds[(k N + i) mod their number], in every manager."""
    seeds = [5, 11, 17, 23, 29, 31, 37]
    with make(clock_factories(TABLE, noisy=True), episode_seeds=seeds) as manager:
        manager.launch(0)
        collected = Collector(manager).until(12)
    for i, rows in enumerate(collected):
        for episode, t, obs, *_ in rows:
            if t == 0:
                seed = seeds[(episode * 3 + i) % len(seeds)]
                assert obs[1] == np.float32(np.random.default_rng(seed).integers(2**20))


@pytest.mark.parametrize("kind", [DictClockEnv, ReusedDictClockEnv])
@every_manager
def test_observations_in_dictionaries(make: Make, kind: Any) -> None:
    """T2, T6, T11: every leaf is one tick further in next_obs, also where the environment hands out its own arrays."""
    # Its reset overwrites the last observation.
    refused = kind is ReusedDictClockEnv and make is EVERY["SAME_STEP-around"]
    with (
        pytest.raises(SchemaError, match="reuses the memory") if refused else nullcontext(),
        make(TABLE, kind=kind) as manager,
    ):
        manager.launch(0)
        rows = Collector(manager, act=lambda obs: int(obs["count"]) % 1000).until(12)
        for mine in rows:
            before, after = (Batch.stack([as_batch(row[at]) for row in mine]) for at in (2, 7))
            assert_one_tick(before, after)


def as_batch(row: Any) -> Batch:
    return Batch({name: as_batch(part) if isinstance(part, dict) else np.array(part) for name, part in row.items()})


@every_one_of_flowrl
def test_environments_may_reuse_their_memory(make: Make) -> None:
    """T2: what was observed stays what it was."""
    with make(TABLE, kind=ReusedClockEnv) as manager, local(TABLE) as reference:
        manager.launch(0)
        reference.launch(0)
        assert Collector(manager).until(12) == Collector(reference).until(12)


@every_manager
@pytest.mark.parametrize("saved_at", [0, 3, *(pytest.param(step, marks=pytest.mark.exhaustive) for step in (1, 6))])
def test_goes_on_where_it_was_saved(make: Make, saved_at: int) -> None:
    """D3, D5: mid-episode and with answers outstanding, into a manager that was never launched."""
    with make(TABLE, noisy=True) as manager, make(TABLE, noisy=True) as resumed:
        manager.launch(3)
        collector = Collector(manager)
        for _ in range(saved_at):
            collector.step()
        state = copy.deepcopy(manager.state_dict())
        np.testing.assert_equal(manager.state_dict(), state)
        resumed.load_state_dict(state)
        np.testing.assert_equal(resumed.state_dict(), state)
        other = Collector(resumed)
        other.rows, other.sent = copy.deepcopy(collector.rows), dict(collector.sent)
        assert other.until(20) == collector.until(20)
        assert resumed.cut_episodes == manager.cut_episodes == 0


@every_manager
def test_a_reset_begins_anew(make: Make) -> None:
    """T11, D1: answers outstanding belong to episodes that are over; a seed makes the new ones repeatable."""
    with make(TABLE, noisy=True) as manager:
        manager.launch(0)
        collector = Collector(manager)
        for _ in range(4):
            collector.step()
        finished, numbers = list(manager.finished), manager.episode_id.copy()
        manager.reset(seed=5)
        assert (manager.episode_id >= numbers + 1).all()
        assert not manager.t.any()
        assert manager.finished[: len(finished)] == finished
        assert manager.ready is None or manager.ready.all()
        marks = manager.obs[:, 1].copy()
        Collector(manager).until(1)
        manager.reset(seed=5)
        np.testing.assert_array_equal(manager.obs[:, 1], marks)


@from_factories
def test_a_lost_life_is_no_episode_end_for_the_statistics(make: Make) -> None:
    """T9, S1: the recorder inside decides what an episode is, wherever it runs."""

    def one() -> Any:
        return Lives(RecordEpisodeStatistics(ClockEnv(0, [(5, TERMINATED)])))

    with make([one, one]) as manager:
        manager.launch(0)
        Collector(manager).until(10)
        lengths = [(episode.length, episode.return_) for episode in manager.drain() if episode.env_id == 0]
        assert lengths[:1] == [(5, sum(range(1001, 1006)))]
        assert {length for length, _ in lengths} == {5}


@every_manager
def test_wrong_actions_are_refused_before_anything_steps(make: Make) -> None:
    """T11: and the manager goes on."""
    with make(TABLE, kind=EchoEnv) as manager:
        manager.launch(0)
        with pytest.raises(SchemaError, match=r"expected int64\[3\]: one row for each of 3 environments"):
            manager.step([0.5, 0.5, 0.5])
        rows = Collector(manager).until(2)
        assert all(row[7][1] == row[3] for mine in rows for row in mine)


@pytest.mark.parametrize("form", [dict, lambda sent: [*sent.values()]], ids=["by id", "in order"])
@every_manager
def test_actions_may_be_those_of_ready_obs_alone(make: Make, form: Any) -> None:
    """T11: each reaches its own environment, where others reset or have not answered too."""
    with make(TABLE, kind=EchoEnv) as manager:
        manager.launch(0)
        sent = dict[int, int]()
        for number in range(30):
            now = {env_id: 10 * number + env_id for env_id in manager.ready_obs}
            sent |= now
            result = manager.step(form(now))
            for env_id in range(3) if result.acted is None else np.flatnonzero(result.acted):
                assert result.next_obs[env_id][1] == sent[env_id]


@pytest.mark.parametrize("per_process", [1, 2])
def test_environments_that_are_told_to_wait_keep_their_place(per_process: int) -> None:
    """T11, F7: they take no step and lose none; the others go on."""
    make = over_clocks(AsyncSubprocessEnvManager, envs_per_process=per_process, wait_num=3)
    with make(TABLE, kind=EchoEnv) as manager:
        manager.launch(0)
        waiting = np.array([True, False, True])
        for step in range(4):
            result = manager.step([7, step, 7], wait=waiting)  # type: ignore[call-arg]
            assert result.acted is not None
            assert result.acted.tolist() == [False, True, False]
        assert manager.t.tolist() == [0, 4, 0]
        rows = Collector(manager).until(3)
        assert [row[:2] for row in rows[0]] == [(0, 0), (0, 1), (0, 2)]
        assert all(row[7][1] == row[3] for mine in rows for row in mine)


@pytest.mark.parametrize("manager", [EnvManager, SubprocessEnvManager, AsyncSubprocessEnvManager, ThreadEnvManager])
def test_no_environments_are_refused(manager: Any) -> None:
    with pytest.raises(ConfigError, match="0 environments: a manager needs at least one"):
        manager([])

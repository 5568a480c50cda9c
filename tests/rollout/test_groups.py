"""Groups of environments in this process: the same stream wherever they are; what they are told."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from flowrl.data import Batch
from flowrl.envs import Environments
from flowrl.errors import ConfigError
from flowrl.operators import ParallelRollouts
from flowrl.rollout import WorkerSet
from flowrl.rollout.groups import Group, GroupLayout
from flowrl.testing import check_plan, same
from tests.scripted import ScriptedPolicy


def noisy(obs: Any, noise: Any, env_steps: int) -> dict[str, Any]:
    return {"action": (noise[:, 0] < 0.5).astype(np.int64), "told": np.full(len(obs), env_steps)}


def make(**settings: Any) -> WorkerSet:
    settings = {"envs_per_worker": 4, "env_groups": 2, "seed": 3, **settings}
    return WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(noisy, draws=1), **settings)  # type: ignore[arg-type]


def rounds(workers: WorkerSet, count: int, mode: str = "bulk_sync", steps: int = 7) -> list[Batch]:
    with workers, ParallelRollouts(workers, mode, steps=steps).run() as run:  # type: ignore[arg-type]
        return [next(run) for _ in range(count)]


def test_groups_are_workers_of_their_own_side_by_side() -> None:
    """D2, T7: a group has its index as `worker`, its own environments, and episodes that go on from round to round."""
    first, second = rounds(make(), 2)
    assert first.shape == (7, 4)
    assert first.worker[0].tolist() == [0, 0, 1, 1]
    assert first.env_id[0].tolist() == [0, 1, 0, 1]
    assert not same(first.obs[:, :2], first.obs[:, 2:])
    on = ~(first.terminated | first.truncated)[-1]
    np.testing.assert_array_equal(second.obs[0][on], first.next_obs[-1][on])
    np.testing.assert_array_equal(second.episode_id[0][on], first.episode_id[-1][on])
    np.testing.assert_array_equal(second.t[0][on], first.t[-1][on] + 1)


def test_the_first_group_is_what_one_worker_would_be() -> None:
    """D1: that there are others changes nothing in it."""
    alone = rounds(make(envs_per_worker=2, env_groups=1), 3)
    for one, of_two in zip(alone, rounds(make(), 3)):
        assert same(one.obs, of_two.obs[:, :2])
        assert same(one.action, of_two.action[:, :2])


@pytest.mark.parametrize("mode", ["bulk_sync", "async"])
def test_a_run_over_groups_resumes_anywhere(mode: str) -> None:
    """D1, D3, D5: also between two groups of a round."""
    check_plan(lambda: ParallelRollouts(make(), mode, steps=3), items=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("life", [0, 2])
@pytest.mark.parametrize("fixed", [None, [5, 11, 17, 23, 29]])
def test_the_seed_of_an_episode_can_be_told_afterwards(life: int, fixed: list[int] | None) -> None:
    """D11: in any group and life of it, with seeds of its own or given ones."""
    group = Group(Environments("CartPole-v1", episode_seeds=fixed), 3, index=1, groups=2, seed=4, life=life)
    worker = group.worker({"default": ScriptedPolicy(noisy, draws=1)})  # type: ignore[dict-item]
    seen: dict[tuple[int, int], int] = {}
    for _ in range(60):
        worker.sample(1)
        state = worker.manager.state_dict()
        seen |= dict(zip(enumerate(state["episode_id"]), state["seeds"]))
    worker.close()
    assert len(seen) > 6
    first = attrs.evolve(group, life=0)  # as it is known from the configuration alone
    assert seen == {(env_id, episode_id): first.episode_seed(env_id, episode_id) for env_id, episode_id in seen}


def test_schedules_follow_the_env_steps_of_the_run() -> None:
    """Q7: each group is told those of all of them when it is asked, and adds its own meanwhile."""
    first, second = rounds(make(), 2)
    assert first.told[:, 0].tolist() == first.told[:, 2].tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert second.told[:, 0].tolist() == second.told[:, 2].tolist() == [28, 30, 32, 34, 36, 38, 40]


def test_schedules_go_on_with_the_next_run_of_the_workers() -> None:
    """Q7: its counters begin at 0, the exploration does not."""
    with make() as workers:
        for expected in (0, 28):
            with ParallelRollouts(workers, steps=7).run() as run:
                assert next(run).told[0].tolist() == [expected] * 4
                assert run.counters["env_steps"] == 28


def test_given_seeds_of_episodes_go_over_all_groups_in_turn() -> None:
    """D2: the groups begin with the seeds that one group of all environments begins with."""
    seeds = [5, 6, 7, 8, 9, 10]
    alone, of_two = (rounds(make(env_groups=n, episode_seeds=seeds), 1, steps=100)[0] for n in (1, 2))
    begins = [np.concatenate([b.obs[:, i][b.t[:, i] == 0][:3] for i in range(4)]) for b in (alone, of_two)]
    assert len(begins[0]) == 12
    np.testing.assert_array_equal(*begins)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [((0, 16, 2), (2, 8)), ((1, 16, 2), (2, 8)), ((2, 8, 2), (2, 8)), ((2, 8, None), (2, 8)), ((0, 8, None), (1, 8))],
)
def test_layouts(layout: tuple[Any, ...], expected: tuple[int, int]) -> None:
    """D2: equal groups over other workers."""
    over = GroupLayout(*layout)
    assert (over.groups, over.envs_per_group) == expected
    indices = [index for worker in range(over.processes) for index in over.indices(worker)]
    assert indices == list(range(expected[0]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_groups": 3}, "env_groups=3: 1 x 4 environments .* take 1 or 2 or 4"),
        ({"env_groups": 0}, "env_groups=0"),
        ({"num_workers": 2, "env_groups": 3}, "2 x 4 environments .* take 2 or 4 or 8"),
        ({"num_workers": 2, "env_groups": 16}, "env_groups=16"),
        ({"on_death": "shrug"}, "on_death='shrug': .*go_on, stop"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_one_environment_object_is_one_group_of_this_process() -> None:
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", 4)
    for settings in ({"env_groups": 2}, {"num_workers": 1}):
        with pytest.raises(ConfigError, match="is an object, which acts in this process alone"):
            WorkerSet(envs, lambda *_: ScriptedPolicy(), envs_per_worker=4, **settings)  # type: ignore[arg-type]
    envs.close()


def test_where_they_are_is_shown() -> None:
    assert repr(make()) == "this process: 4 x CartPole-v1 in 2 groups"
    assert repr(make(num_workers=2)) == "2 workers on Ray: 4 x CartPole-v1"

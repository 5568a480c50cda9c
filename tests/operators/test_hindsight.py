"""HindsightRelabel: every relabelled row is one that could have been collected for its goal."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import from_items
from flowrl.data import Batch, ReplayBuffer
from flowrl.engine.context import Context
from flowrl.envs.goals import never_ends
from flowrl.errors import PlanError, SchemaError
from flowrl.operators import (
    Concurrently,
    Episodes,
    HindsightRelabel,
    ParallelRollouts,
    Replay,
    StoreToReplay,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from tests.episodes import Stream, fragment, streams
from tests.goal_envs import BitFlip

GAMMA = 0.5


def reached(achieved: Any, desired: Any, info: Any) -> Any:
    return (achieved == desired)[:, 0]


def sparse(achieved: Any, desired: Any, info: Any) -> Any:
    return reached(achieved, desired, info) - 1.0


def never(achieved: Any, desired: Any, info: Any) -> Any:
    return np.zeros(len(achieved), bool)


def with_goals(b: Batch, desired: dict[int, int] | None = None) -> Batch:
    """Each step achieves a goal of its own: its number. What it desires is never achieved, unless it is said here."""
    wanted = [(desired or {}).get(int(number), -1) for number in b.reward.flat]
    goals = {"desired_goal": np.array(wanted, b.reward.dtype).reshape(*b.reward.shape, 1)}
    obs = Batch({"observation": b.obs, "achieved_goal": b.reward[..., None] - 1, **goals})
    return b.replace(obs=obs, next_obs={"observation": b.next_obs, "achieved_goal": b.reward[..., None], **goals})


def whole(stream: Stream, size: int | None = None, desired: dict[int, int] | None = None) -> list[Batch]:
    adder = Episodes(size)
    return [adder(with_goals(each, desired)) for each in stream.fragments]


def adder(k: int = 2, strategy: Any = "future", n: int = 1, terminated: Any = reached) -> HindsightRelabel:
    return HindsightRelabel(sparse, terminated, GAMMA, k, strategy, n)


def rows_of(b: Batch) -> list[tuple[Any, ...]]:
    """Of each row: the step, its goal, the step arrived in, reward, ends, discount."""
    columns = (
        b.obs.observation[:, 0],
        b.obs.desired_goal[:, 0],
        b.next_obs.achieved_goal[:, 0],
        b.reward,
        b.terminated,
        b.truncated,
        b.discount,
    )
    return list(zip(*(column.tolist() for column in columns)))


def window(steps: list[int], ends: str, first: int, goal: Any, n: int, stops: bool, own: int) -> tuple[Any, ...]:
    """The row of one step for a goal, by the definition; for its own goal if that is None."""
    total = 0.0
    for i in range(n):
        at = steps[first + i]
        success, newest = at == goal, first + i == len(steps) - 1
        total += GAMMA**i * (0.0 if success else -1.0) if goal is not None else GAMMA**i * at
        over = newest and ends in "T*" and ends != ""
        terminated = (success and stops) or (over and not (at == own and stops)) if goal is not None else over
        if success or newest or i == n - 1:
            given_up = over and not terminated
            truncated = (newest and ends in "t*" and ends != "") or given_up
            discount = 0.0 if terminated else GAMMA ** (i + 1)
            return steps[first], own if goal is None else goal, at, total, terminated, truncated, discount
    raise AssertionError


@given(
    streams(),
    st.integers(1, 4),
    st.sampled_from(["future", "episode", "final"]),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 4)),
)
def test_rows_are_those_of_the_loop_over_each_episode(
    stream: Stream, n: int, strategy: Any, stops: bool, explained: bool, size: int | None
) -> None:
    """H1, H2, H3, H4, H5, H6, N2, T4: real and relabelled rows; goals of the same episode; the input left alone."""
    desired = {step: each.steps[-1] for each in stream.runs for step in each.steps if explained}
    episodes: dict[int, tuple[list[int], str]] = {}
    for each in stream.runs:
        if each.t == 0:
            pieces = (
                [each.steps] if size is None else [each.steps[i : i + size] for i in range(0, len(each.steps), size)]
            )
            for piece in pieces:
                end = each.end if piece[-1] == each.steps[-1] else ""
                episodes |= dict.fromkeys(piece, (piece, end))
    relabel = adder(2, strategy, n, reached if stops else never)
    for b in whole(stream, size, desired):
        before = copy.deepcopy(b)
        rows = relabel(b)
        assert b == before, "the input was changed in place"
        assert not any(np.shares_memory(rows.obs[name], b.obs[name]) for name in b.obs)
        real, again = rows_of(rows[: b.mask.sum()]), rows_of(rows[b.mask.sum() :])
        steps = b.obs.observation[..., 0][b.mask].tolist()
        assert [row[0] for row in real] == steps
        assert [row[0] for row in again] == [step for step in steps for _ in range(2)], "k of each real one"
        for row in real:
            piece, end = episodes[row[0]]
            assert row == window(piece, end, piece.index(row[0]), None, n, stops, desired.get(row[0], -1))
        for row in again:
            piece, end = episodes[row[0]]
            first = {"future": piece.index(row[0]), "episode": 0, "final": len(piece) - 1}[strategy]
            assert row[1] in piece[first:], "a goal that this episode did not achieve then"
            assert row == window(piece, end, piece.index(row[0]), row[1], n, stops, desired.get(row[0], -1))
        assert (rows.obs.desired_goal == rows.next_obs.desired_goal).all(), "one goal a transition"


def test_goals_are_drawn_uniformly_from_what_is_to_come() -> None:
    """H1: step 2 of 6 takes each of the goals of steps 2 to 5 a quarter of the time; chi-square, 3 degrees."""
    b = Episodes()(with_goals(fragment([".....T"])))
    rows = adder(k=4000)(b)[6:]
    goals = rows.obs.desired_goal[rows.obs.observation[:, 0] == 3, 0]
    counts = np.array([(goals == each).sum() for each in (3, 4, 5, 6)])
    assert counts.sum() == 4000
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3, "p < 0.001"


def test_the_same_run_draws_the_same_goals() -> None:
    """D1, D6."""
    items = [Episodes()(with_goals(fragment(["...T..t", "......T"])))]
    plan = from_items(items).for_each(adder(k=3))
    drawn = []
    for seed in (1, 1, 2):
        with plan.run(seed=seed) as run:
            drawn.append(next(run))
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_relabelled_rows_of_a_real_environment_are_what_it_would_have_given(ends: bool, n: int) -> None:
    """H1, H2, H3, H6: bits, flipped again for the new goal."""
    env = BitFlip(5, ends)
    with WorkerSet(
        lambda: BitFlip(5, ends),
        lambda *spaces: DQNPolicy(*spaces, hidden=(4,), epsilon=lambda steps: 1.0, device="cpu"),
        envs_per_worker=2,
    ) as workers:
        workers.start(Context())
        collected = workers.local.sample(episodes=6)
    relabel = HindsightRelabel(env.compute_reward, env.compute_terminated, 0.9, k=3, n=n)
    rows = relabel(collected)
    real = int(collected.mask.sum())
    assert rows.rows == 4 * real, "3 of 4 are relabelled"
    successes = 0
    for row in (rows[i] for i in range(real, rows.rows)):
        episode = (collected.episode_id == row.episode_id) & (collected.env_id == row.env_id) & collected.mask
        column = collected[:, int(episode.any(0).argmax())]
        total, goal, t = 0.0, row.obs.desired_goal, int(row.t)
        for i in range(n):
            step = column[t + i]
            success = bool((step.next_obs.achieved_goal == goal).all())
            total += 0.9**i * (success - 1.0)
            last = step.terminated or step.truncated
            if success or last:
                break
        assert row.reward == pytest.approx(total)
        assert row.terminated == (success and ends)
        assert row.discount == pytest.approx(0 if success and ends else 0.9 ** (i + 1))
        assert (row.next_obs.observation == step.next_obs.observation).all()
        successes += success
    assert successes > real // 2
    assert rows.obs.desired_goal.dtype == np.int8


def test_a_plan_trains_on_goals_that_were_reached() -> None:
    """H5, F14: rollouts, whole episodes, hindsight, replay, DQN."""
    env = BitFlip()
    policy = lambda *spaces: DQNPolicy(*spaces, hidden=(8,), device="cpu")  # noqa: E731
    workers, buffer = WorkerSet(BitFlip, policy, envs_per_worker=2), ReplayBuffer(500)
    store = (
        ParallelRollouts(workers, steps=8)
        .for_each(Episodes())
        .for_each(HindsightRelabel(env.compute_reward, env.compute_terminated, 0.9))
        .for_each(StoreToReplay(buffer))
    )
    plan = Concurrently(
        {"store": store, "train": Replay(buffer, 16).for_each(TrainOneStep(workers))}, output_indexes=[1]
    )
    plan.check()
    with workers, plan.run() as run:
        for _ in range(3):
            assert np.isfinite(next(run)["loss"])
    assert buffer.size > 20


@pytest.mark.slow
@pytest.mark.parametrize(("hindsight", "least", "most"), [(True, 0.8, 1.0), (False, 0.0, 0.3)])
def test_goals_that_are_hardly_ever_reached_are_learnt_with_hindsight_alone(
    hindsight: bool, least: float, most: float
) -> None:
    """H1, H3: 7 bits; random flips reach a goal about once in 20 episodes, and the values of the others stay alike."""
    env = BitFlip(7)

    def policy(*spaces: Any) -> DQNPolicy:
        epsilon = lambda env_steps: max(0.1, 1 - env_steps / 6000)  # noqa: E731
        return DQNPolicy(*spaces, hidden=(64,), gamma=0.95, learning_rate=1e-3, epsilon=epsilon, device="cpu")

    workers, buffer = WorkerSet(lambda: BitFlip(7), policy, envs_per_worker=8), ReplayBuffer(50_000, gamma=0.95)
    store = ParallelRollouts(workers, steps=4)
    if hindsight:
        relabel = HindsightRelabel(env.compute_reward, env.compute_terminated, 0.95)
        store = store.for_each(Episodes()).for_each(relabel)
    train = Replay(buffer, 64).for_each(TrainOneStep(workers)).for_each(UpdateTargetNetwork(workers, every=100))
    store = store.for_each(StoreToReplay(buffer))
    plan = Concurrently([store, train], output_indexes=[1], round_robin_weights=[1, 2])
    with workers, plan.run(seed=0) as run:
        for _ in range(1500):
            next(run)
        episodes = workers.local.sample(episodes=100)
    assert least <= (episodes.terminated & episodes.mask).any(0).mean() <= most


def test_episodes_and_goals_must_be_there_before_the_run() -> None:
    env = BitFlip()
    policy = lambda *spaces: DQNPolicy(*spaces, hidden=(8,), device="cpu")  # noqa: E731
    relabel = HindsightRelabel(env.compute_reward, env.compute_terminated, 0.9)
    with pytest.raises(PlanError, match=r"needs 'episodes', .*: put Episodes before HindsightRelabel"):
        ParallelRollouts(WorkerSet(BitFlip, policy)).for_each(relabel).check()
    with pytest.raises(PlanError, match="needs the entry 'achieved_goal' of 'obs', a dictionary"):
        ParallelRollouts(WorkerSet("CartPole-v1", policy)).for_each(Episodes()).for_each(relabel).check()


def test_what_it_cannot_relabel_is_refused() -> None:
    b = with_goals(fragment(["..T..t"]))
    with pytest.raises(SchemaError, match="column 0 holds several"):
        adder()(b)
    one = b[:3]
    with pytest.raises(SchemaError, match="'desired_goal' of 'obs'"):
        adder()(one.replace(obs=one.obs.select(["observation", "achieved_goal"])))
    with pytest.raises(SchemaError, match="'achieved_goal' of 'obs', a dictionary; got"):
        adder()(one.replace(obs=one.reward))
    with pytest.raises(
        SchemaError,
        match=r"reward\(achieved_goal, desired_goal, info\) must return one number for each of 6 goals, .* shape \[2\]",
    ):
        HindsightRelabel(lambda *_: np.zeros(2), reached, 0.9, k=2)(one)
    with pytest.raises(SchemaError, match="padding before its end"):
        adder()(one.replace(mask=np.array([[0], [1], [1]])))
    for bad in ({"k": 0}, {"strategy": "past"}, {"n": 0}, {"gamma": 2}):
        with pytest.raises(ValueError, match=r"k|strategy|n|gamma"):
            HindsightRelabel(**{"reward": sparse, "terminated": reached, "gamma": 0.9, **bad})


def test_functions_of_single_goals_are_asked_for_each() -> None:
    """H3: as those of gymnasium-robotics, which say False of however many goals, or take all for one."""
    fragments = fragment(["..T.t", "....t"])
    last = int(fragments.reward[2, 0])
    b = Episodes()(with_goals(fragments, dict.fromkeys(fragments.reward[:3, 0].astype(int), last)))
    alone = lambda achieved, desired, info: bool(np.linalg.norm(achieved - desired) == 0)  # noqa: E731
    paid = lambda achieved, desired, info: float(alone(achieved, desired, info)) - 1.0  # noqa: E731
    assert HindsightRelabel(paid, alone, GAMMA, 3)(b) == HindsightRelabel(sparse, reached, GAMMA, 3)(b)
    unexplained = HindsightRelabel(sparse, lambda *_: False, GAMMA, 3)(b)[int(b.mask.sum()) :]
    assert unexplained.terminated.tolist() == np.repeat(b.terminated[b.mask], 3).tolist()


def test_what_belongs_to_one_goal_is_dropped() -> None:
    """H3."""
    b = Episodes()(with_goals(fragment(["..T"])))
    rows = adder()(b.replace(value=b.reward, next_value=b.reward))
    assert list(rows) == [*(name for name in b if name != "mask"), "discount"]


@pytest.mark.parametrize("last", [True, False])
def test_without_a_function_for_it_a_step_ends_where_its_episode_did(last: bool) -> None:
    """H3: as of an environment that has `compute_reward` alone."""

    def goals(*at: int) -> dict[str, Any]:
        return {"achieved_goal": np.reshape(at, (-1, 1, 1)), "desired_goal": np.full((2, 1, 1), 2)}

    terminated = np.array([[False], [last]])
    episode = Batch(
        obs=goals(0, 1), next_obs=goals(1, 2), reward=np.zeros((2, 1)), terminated=terminated, truncated=~terminated
    )
    episode.truncated[0] = False
    relabel = HindsightRelabel(lambda achieved, desired, info: np.zeros(len(achieved)), never_ends, 0.9, k=2)
    rows = relabel(episode)
    assert rows.terminated.tolist() == [False, last, False, False, last, last]

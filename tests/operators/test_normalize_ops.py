"""Statistics of streams against loops, scaled rewards, and where each operator is right or wrong in a plan."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from flowrl import Plan, from_items
from flowrl import operators as ops
from flowrl.data import Batch, ReplayBuffer
from flowrl.engine.operator import load_operator_state, operator_state
from flowrl.errors import PlanError, SchemaError
from flowrl.inspect.check import examine
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.rollout import WorkerSet
from tests.clock_envs import BOTH, TERMINATED, TRUNCATED, clock_vector
from tests.episodes import Stream, fragment, streams

GAMMA = 0.9
EVERYTHING = {"normalize_obs": True, "normalize_rewards": True}


class Workers:
    """A policy alone: what operators on plain lists need of workers."""

    def __init__(self, **settings: Any) -> None:
        box = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.policy = PPOPolicy(box, spaces.Discrete(2), hidden=(4,), device="cpu", **settings)


def rewards_only() -> Any:
    return Workers(normalize_rewards=True)


def workers(kind: Any = PPOPolicy, env: Any = "CartPole-v1", **settings: Any) -> WorkerSet:
    settings = settings or EVERYTHING
    return WorkerSet(env, lambda *found: kind(*found, hidden=(4,), device="cpu", **settings), envs_per_worker=2)


def returns_by_hand(stream: Stream) -> list[float]:
    """The discounted return at every step, one episode after another."""
    rewards = {int(reward): float(reward) for b in stream.fragments for reward in b.reward.ravel()}
    found = []
    for run in stream.runs:
        so_far = 0.0
        for step in run.steps:
            so_far = rewards[step] + GAMMA * so_far
            found.append(so_far)
    return found


@given(stream=streams(), data=st.data())
def test_returns_are_discounted_within_an_episode(stream: Stream, data: Any) -> None:
    """O2, O3: each environment by itself, over fragments and resumes, from 0 after an end, a cut or a loss; each row
    once."""
    of = rewards_only()
    gather = ops.GatherStatistics(of, GAMMA)
    stop = data.draw(st.integers(0, len(stream.fragments)))
    for number, each in enumerate(stream.fragments):
        if number == stop:  # a resume
            saved, gather = operator_state(gather), ops.GatherStatistics(of, GAMMA)
            load_operator_state(gather, saved)
        assert gather(each) is each
    of.policy.update_statistics()
    expected = returns_by_hand(stream)
    returns: Any = of.policy.returns
    assert int(returns.count) == len(expected)
    assert float(returns.mean) == pytest.approx(np.mean(expected))
    assert float(returns.var) == pytest.approx(np.var(expected), abs=1e-6)


def test_without_provenance_only_flags_end_an_episode() -> None:
    """O3."""
    of = rewards_only()
    gather = ops.GatherStatistics(of, 0.5)
    no = np.zeros((2, 1), bool)
    for terminated in (no, np.array([[False], [True]]), no):
        batch = Batch(obs=np.zeros((2, 1, 1)), reward=np.ones((2, 1)), terminated=terminated, truncated=no)
        gather(batch)
    of.policy.update_statistics()
    expected = [1, 1.5, 1.75, 1.875, 1, 1.5]
    assert float(of.policy.returns.mean) == pytest.approx(np.mean(expected))


def test_padding_counts_nowhere() -> None:
    """O1, O3: a fragment with a mask begins with its first step, and none goes on after it."""
    of: Any = Workers(**EVERYTHING)
    whole = fragment(["...", "..T"])
    mask = np.array([[1, 1], [1, 1], [0, 1]], bool)
    gather = ops.GatherStatistics(of, GAMMA)
    gather(whole.replace(mask=mask))
    gather(whole.replace(mask=mask))
    of.policy.update_statistics()
    once = returns_by_hand(Stream([whole[:2, :1], whole[:, 1:]]))
    assert float(of.policy.returns.mean) == pytest.approx(np.mean(once))
    (observed,) = (each for each in of.policy.normalizers.values() if each is not of.policy.returns)
    assert int(observed.count) == 10
    assert float(observed.mean) == pytest.approx(whole.obs[mask].mean())


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_row_that_only_resets_is_not_counted(mode: AutoresetMode) -> None:
    """O1, T1: as many rows as env steps, those whose clocks were seen."""
    table = [[(3, TERMINATED), (1, BOTH), (2, TRUNCATED)], [(4, TRUNCATED), (2, TERMINATED)]]
    of = workers(env=clock_vector(table, mode))
    seen: list[Any] = []
    plan = (
        ops.ParallelRollouts(of, steps=5).for_each(ops.GatherStatistics(of, GAMMA)).tap("GatherStatistics", seen.append)
    )
    with of, plan.run() as run:
        for _ in range(4):
            next(run)
        steps = run.counters["env_steps"]
    of.policy.update_statistics()
    (observed,) = (each for each in of.policy.normalizers.values() if each is not of.policy.returns)
    assert int(observed.count) == int(of.policy.returns.count) == steps == 40
    np.testing.assert_allclose(observed.mean, np.concatenate([b.obs.reshape(-1, 3) for b in seen]).mean(0, np.float64))


def test_rewards_are_divided_and_not_shifted() -> None:
    """O3: by the deviation over all batches, not over this one; a reward of 0 stays 0, and none changes its sign."""
    of = rewards_only()
    gather, scale = ops.GatherStatistics(of, GAMMA), ops.NormalizeRewards(of, clip=None)
    stream = Stream([fragment(["...T..x..."])[a:b] for a, b in pairwise([0, 3, 4, 10])])
    for each in stream.fragments:
        gather(each)
        of.policy.update_statistics()
    std = np.std(returns_by_hand(stream))
    batch = Batch(reward=[-2.0, 0.0, 1.0], obs=[1, 2, 3])
    np.testing.assert_allclose(scale(batch).reward, batch.reward / std, rtol=1e-6)
    assert batch.reward.tolist() == [-2.0, 0.0, 1.0], "the input was written into"
    assert ops.NormalizeRewards(of, clip=0.5)(Batch(reward=[-1e9, 1e9])).reward.tolist() == [-0.5, 0.5]


def test_the_first_rewards_are_scaled_and_the_next_by_the_same_number() -> None:
    """O1, O3: what the statistics were when the policy acted, until they are updated."""
    of = rewards_only()
    gather, scale = ops.GatherStatistics(of, GAMMA), ops.NormalizeRewards(of)
    first, second = fragment(["....", "..T."]), fragment(["....", "...."], first=5000)
    std = np.std(returns_by_hand(Stream([first])))
    np.testing.assert_allclose(scale(gather(first)).reward, (first.reward / std).clip(-10, 10))
    np.testing.assert_allclose(scale(gather(second)).reward, (second.reward / std).clip(-10, 10))
    ops.UpdateStatistics(of)({"loss": 1.0})
    assert float(of.policy.returns.std) > 2 * std


def test_a_scale_that_is_not_known_is_not_guessed() -> None:
    with pytest.raises(PlanError, match="no returns have been gathered: put GatherStatistics before it"):
        ops.NormalizeRewards(rewards_only())(Batch(reward=[1.0]))
    with pytest.raises(SchemaError, match="NormalizeRewards needs the column 'reward'"):
        ops.NormalizeRewards(rewards_only())(Batch(rewards=[1.0]))
    with pytest.raises(SchemaError, match=r"GatherStatistics needs fragments \[T, N, ...\]"):
        ops.GatherStatistics(rewards_only(), GAMMA)(fragment(["..."]).flat())


def test_what_an_operator_cannot_do_is_said_when_it_is_made() -> None:
    plain: Any = Workers()
    for make in (ops.GatherStatistics, ops.NormalizeRewards, ops.UpdateStatistics):
        with pytest.raises(PlanError, match="a policy with statistics, made with normalize_obs=True or"):
            make(plain)
    with pytest.raises(PlanError, match="make it with normalize_rewards=True"):
        ops.NormalizeRewards(Workers(normalize_obs=True))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="needs gamma"):
        ops.GatherStatistics(rewards_only())
    with pytest.raises(ValueError, match="gamma is 2"):
        ops.GatherStatistics(rewards_only(), 2)
    with pytest.raises(ValueError, match="clip is 0"):
        ops.NormalizeRewards(rewards_only(), clip=0)


# -- where they belong

Step = Callable[[WorkerSet], Any]


def gathers(of: WorkerSet) -> Any:
    return ops.GatherStatistics(of, GAMMA)


def estimates(of: WorkerSet) -> Any:
    return ops.GAE(GAMMA, 0.9)


def halves(of: WorkerSet) -> Any:
    return ops.ScaleRewards(0.5)


GATHER, SCALE, UPDATE, LEARN = gathers, ops.NormalizeRewards, ops.UpdateStatistics, ops.TrainOneStep
ON_POLICY: dict[str, tuple[list[Step], str]] = {
    "as it should be": ([GATHER, SCALE, estimates, LEARN, UPDATE], ""),
    "the policy's own advantages": ([GATHER, SCALE, LEARN, UPDATE], ""),
    "a factor after it": ([GATHER, SCALE, halves, LEARN, UPDATE], ""),
    "nobody gathers": ([SCALE, LEARN, UPDATE], "needs 'statistics', which is not in the output of ParallelRollouts"),
    "nobody scales": (
        [GATHER, LEARN, UPDATE],
        "needs 'normalized_rewards', which is not in the output of GatherStatistics",
    ),
    "nobody updates": ([GATHER, SCALE, LEARN], "its statistics are never written back; put UpdateStatistics after"),
    "twice": ([GATHER, SCALE, SCALE, LEARN, UPDATE], "rewards are normalized already: leave out one NormalizeRewards"),
    "before it is gathered": ([SCALE, GATHER, LEARN, UPDATE], "put NormalizeRewards after GatherStatistics"),
    "a factor before it": ([halves, GATHER, SCALE, LEARN, UPDATE], "put ScaleRewards after GatherStatistics"),
    "after advantages": ([GATHER, estimates, SCALE, LEARN, UPDATE], "put it before GAE or VTrace"),
    "between acting and learning": (
        [GATHER, SCALE, UPDATE, LEARN],
        "needs 'on_policy', which is lost in UpdateStatistics",
    ),
}


@pytest.mark.parametrize("case", ON_POLICY)
def test_where_they_belong_on_policy(case: str) -> None:
    """O1: each mistake is found by the check, and named."""
    steps, problem = ON_POLICY[case]
    of = workers()
    plan = ops.ParallelRollouts(of, steps=2)
    for make in steps:
        plan = plan.for_each(make(of))
    problems = examine(plan).problems
    assert bool(problems) == bool(problem)
    assert not problem or any(problem in found for found in problems), problems


REPLAY: dict[str, tuple[list[Step], list[Step], str]] = {
    "as it should be": ([GATHER, UPDATE], [SCALE], ""),
    "scaled before it is stored": ([GATHER, UPDATE, SCALE], [], "buffers store raw rewards, and the newest statistics"),
    "scaled before and after": (
        [GATHER, UPDATE, SCALE],
        [SCALE],
        "buffers store raw rewards, and the newest statistics",
    ),
    "gathered from replay": ([], [GATHER, SCALE, UPDATE], "replay draws rows several times"),
    "nobody scales": ([GATHER, UPDATE], [], "needs 'normalized_rewards', which is not in the output of train.Replay"),
}


@pytest.mark.parametrize("case", REPLAY)
def test_where_they_belong_with_replay(case: str) -> None:
    """O1: raw rows are stored."""
    before, after, problem = REPLAY[case]
    of, buffer = workers(DQNPolicy), ReplayBuffer(100)

    def through(plan: Plan, steps: list[Step]) -> Plan:
        for make in steps:
            plan = plan.for_each(make(of))
        return plan

    store = through(ops.ParallelRollouts(of, steps=2), before).for_each(ops.StoreToReplay(buffer))
    train = through(ops.Replay(buffer, 4), after).for_each(LEARN(of))
    problems = examine(ops.Concurrently({"store": store, "train": train})).problems
    assert bool(problems) == bool(problem)
    assert not problem or any(problem in found for found in problems), problems


def test_batches_that_are_replayed_whole_are_kept_raw() -> None:
    """O1."""
    of = workers()
    rollouts = ops.ParallelRollouts(of, steps=2).for_each(gathers(of))
    mixed = rollouts.combine(ops.MixInReplay(4)).for_each(SCALE(of)).for_each(UPDATE(of))
    assert examine(mixed).problems == []
    (found,) = examine(rollouts.for_each(SCALE(of)).combine(ops.MixInReplay(4)).for_each(UPDATE(of))).problems
    assert "put NormalizeRewards after Replay" in found


def test_a_batch_without_rows_passes() -> None:
    of: Any = Workers(**EVERYTHING)
    empty = fragment(["..."])[:0]
    assert list(from_items([empty]).for_each(ops.GatherStatistics(of, GAMMA))) == [empty]

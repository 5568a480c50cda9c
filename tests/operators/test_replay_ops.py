"""StoreToReplay and Replay around a limited buffer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowrl import Plan, from_items
from flowrl.data import Batch, PrioritizedReplayBuffer, RateLimiter, ReplayBuffer
from flowrl.errors import Deadlock, PlanError, SchemaError
from flowrl.operators import (
    Concurrently,
    MixInReplay,
    ParallelRollouts,
    Replay,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
)
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan
from tests.scripted import transitions


def batches(count: int, rows: int = 2) -> list[Batch]:
    return [
        Batch(obs=np.arange(rows) + rows * i, reward=np.ones(rows), terminated=np.zeros(rows, bool))
        for i in range(count)
    ]


def both(ratio: float = 2.0, weights: object = (1, 1), count: int = 20) -> tuple[Plan, ReplayBuffer]:
    limiter = RateLimiter(ratio, 8, sample_batch=3, insert_batch=2)
    buffer = ReplayBuffer(16, limiter=limiter)
    store = from_items(batches(count)).for_each(StoreToReplay(buffer))
    return Concurrently({"store": store, "replay": Replay(buffer, 3)}, round_robin_weights=weights), buffer


@pytest.mark.parametrize("weights", [(1, 1), (1, "*"), (5, 1), (1, 0.25), ("*", "*")])
@pytest.mark.parametrize("ratio", [0.5, 2.0, 7.0])
def test_the_ratio_holds_at_all_times(weights: tuple[object, object], ratio: float) -> None:
    """F11, B8: whatever the weights, the rows sampled stay within the slack of the ratio, at every step."""
    plan, buffer = both(ratio, weights, count=60)
    slack = max(3, ratio * 2)
    with plan.run() as run:
        while buffer.inserts < 120:
            run.step()
            if buffer.inserts >= 8:
                assert abs(buffer.samples - ratio * (buffer.inserts - 8)) <= slack
            else:
                assert buffer.samples == 0
        assert run.counters == {"inserted": buffer.inserts, "sampled": buffer.samples}


def test_resumes_at_every_step() -> None:
    """D3, F2: items held by the limiter, the buffer and its generator are in the state."""
    check_plan(lambda: both()[0], items=40)


def test_stuck_branches_say_what_they_wait_for() -> None:
    """F8: the branch that ended and the one that waits are both named."""
    buffer = ReplayBuffer(16, seed=0, limiter=RateLimiter(1, 8, sample_batch=3, insert_batch=2))
    store = from_items(batches(1)).for_each(StoreToReplay(buffer))
    plan = Concurrently({"store": store, "replay": Replay(buffer, 3)})
    with pytest.raises(Deadlock, match=r"(?s)store: has ended.*replay.Replay: .*2 of 8"):
        list(plan)


def test_storing_alone_waits_for_training() -> None:
    """F8: a limiter without anyone who samples is a deadlock, said in words, and not a hang."""
    buffer = ReplayBuffer(16, seed=0, limiter=RateLimiter(1, 4, sample_batch=2, insert_batch=2))
    with pytest.raises(Deadlock, match="StoreToReplay: waits for training"):
        list(from_items(batches(8)).for_each(StoreToReplay(buffer)))


def test_what_cannot_work_is_refused_when_built() -> None:
    with pytest.raises(PlanError, match="StoreToReplay needs a ReplayBuffer, got None"):
        StoreToReplay(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size"):
        Replay(ReplayBuffer(4), 0)


def test_operators_work_alone() -> None:
    """F14: on plain batches, without a run."""
    buffer = ReplayBuffer(16, seed=0)
    (batch,) = batches(1)
    assert StoreToReplay(buffer)(batch) is batch
    assert len(buffer) == 2


# -- priorities


def learners(gamma: float = 0.99) -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, hidden=(8,), gamma=gamma, device="cpu"))


def prioritized(rows: int = 12, **settings: object) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(rows, seed=0, compiled=False, **settings)  # type: ignore[arg-type]
    buffer.add(transitions(rows))
    return buffer


def td_errors(of: WorkerSet, rows: Batch) -> np.ndarray:
    """|r + gamma Q_target(s', argmax Q(s')) - Q(s, a)|, row by row."""
    policy, found = of.policy, []
    for i in range(rows.rows):
        with torch.no_grad():
            q, q_t, target_t = (
                net(torch.from_numpy(obs[i : i + 1]))[0]
                for net, obs in (
                    (policy.model, rows.obs),
                    (policy.model, rows.next_obs),
                    (policy.target, rows.next_obs),
                )
            )
        target = rows.reward[i] + (0 if rows.terminated[i] else 0.99) * float(target_t[q_t.argmax()])
        found.append(abs(target - float(q[rows.action[i]])))
    return np.array(found)


def test_priorities_are_the_td_errors_of_the_rows_that_were_learned_from() -> None:
    """P3, P4: as they were before the step; the buffer raises them to alpha, once."""
    of, buffer = learners(), prioritized(alpha=0.5)
    drawn = buffer.sample(7)
    errors = td_errors(of, drawn)
    scalars = TrainOneStep(of)(drawn)
    update = UpdatePriorities(buffer)
    assert scalars["priorities"].index.tolist() == drawn.index.tolist()
    assert scalars["priorities"].generation.tolist() == drawn.generation.tolist()
    np.testing.assert_allclose(scalars["priorities"].priority, errors, rtol=1e-4)
    assert set(update(scalars)) == set(scalars) - {"priorities"}
    np.testing.assert_allclose(buffer._tree[drawn.index], (errors + buffer.eps) ** 0.5, rtol=1e-4)
    buffer.add(transitions(12))
    update(scalars)
    assert update.context.counters == {"outdated": 7}


def test_priorities_follow_their_rows_through_minibatches() -> None:
    """Of several epochs the last one counts, in whatever order the rows were in."""
    of, buffer = learners(), prioritized(alpha=1.0)
    drawn = buffer.sample(11)
    scalars = TrainOneStep(of, num_sgd_iter=3, minibatch_size=4)(drawn)
    assert len(scalars["priorities"]) == 33
    assert sorted(scalars["priorities"].index[-11:].tolist()) == drawn.index.tolist()
    UpdatePriorities(buffer)(scalars)
    last = dict(zip(scalars["priorities"].index.tolist(), scalars["priorities"].priority))
    np.testing.assert_allclose(buffer._tree[np.array([*last])], np.array([*last.values()]) + buffer.eps, rtol=1e-6)


def test_the_loss_is_the_mean_of_weighted_errors() -> None:
    """P2: w_i times the Huber loss of row i, over all rows."""
    of, drawn = learners(), prioritized(beta=1.0).sample(9)
    drawn["weight"] = np.linspace(0.1, 1.0, 9, dtype=np.float32)
    errors = td_errors(of, drawn)
    huber = np.where(errors < 1, errors**2 / 2, errors - 0.5)
    scalars = TrainOneStep(of)(drawn)
    np.testing.assert_allclose(scalars["loss"], (huber * drawn.weight).mean(), rtol=1e-4)


def test_rows_without_weights_give_no_priorities() -> None:
    of, buffer = learners(), ReplayBuffer(12, seed=0)
    buffer.add(transitions(12))
    scalars = TrainOneStep(of)(buffer.sample(4))
    assert set(scalars) == {"loss", "q"}
    with pytest.raises(SchemaError, match="UpdatePriorities got loss, q and no priorities: draw the rows with Replay"):
        UpdatePriorities(prioritized())(scalars)
    assert UpdatePriorities(prioritized())({}) == {}
    with pytest.raises(PlanError, match="UpdatePriorities needs a PrioritizedReplayBuffer, got ReplayBuffer"):
        UpdatePriorities(buffer)  # type: ignore[arg-type]


# -- mixing


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0, 2.25])
def test_fresh_batches_are_mixed_with_earlier_ones_at_the_ratio(ratio: float) -> None:
    """F11: within one batch at all times; each is one of the newest before it, all of them about equally often."""
    items, slots = batches(400), 4
    mix, ages, replayed = MixInReplay(slots, ratio), np.zeros(slots + 1, int), 0
    for number, item in enumerate(items):
        fresh, *others = mix(item)
        assert fresh is item
        for other in others:
            ages[number - next(i for i, each in enumerate(items) if each is other)] += 1
        replayed += len(others)
        assert abs(replayed - ratio * number) < 1
    assert ages[0] == 0
    assert mix.context.counters.get("sampled", 0) == 2 * replayed
    if ratio:
        expected = replayed / slots
        assert ((ages[1:] - expected) ** 2 / expected).sum() < 16.3  # chi-square of 3 degrees, 99.9 %


def test_what_is_mixed_is_not_on_policy() -> None:
    of = learners()
    plan = ParallelRollouts(of).combine(MixInReplay(8))
    schemas = plan.check()
    assert schemas["ParallelRollouts"].has("on_policy")
    assert not schemas["MixInReplay"].has("on_policy")
    for slots, ratio in ((0, 1.0), (1, -1.0)):
        with pytest.raises(ValueError, match=r"must be >= "):
            MixInReplay(slots, ratio)

"""StoreToReplay and Replay around a limited buffer."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl import Plan, from_items
from flowrl.data import Batch, RateLimiter, ReplayBuffer
from flowrl.errors import Deadlock, PlanError
from flowrl.operators import Concurrently, Replay, StoreToReplay
from flowrl.testing import check_plan


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

"""Record and FromDataset: a stream to disk and back, exactly, also across a run that was killed."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import Plan, from_items
from flowrl.data import Batch, Dataset, DatasetWriter, ReplayBuffer
from flowrl.errors import DatasetError, PlanError, SchemaError
from flowrl.inspect.strict import strict
from flowrl.operators import FromDataset, NStep, ParallelRollouts, Record, StoreToReplay, TrainOneStep
from flowrl.policies import DQNPolicy, PPOPolicy, SACPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan, same


def fragments(count: int = 5, steps: int = 3) -> list[Batch]:
    """Rewards number the rows: 0, 1, 2 ..."""
    rewards = np.arange(count * steps * 2.0).reshape(count, steps, 2)
    return [Batch(obs={"x": np.float32(reward[..., None])}, reward=reward) for reward in rewards]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five fragments of three steps of two environments."""
    list(from_items(fragments()).for_each(Record(tmp_path / "data")))
    return tmp_path / "data"


def rewards(plan: Plan, count: int | None = None, seed: int = 0) -> list[list[float]]:
    with plan.run(seed=seed) as run:
        return [batch.reward.ravel().tolist() for batch in islice(run, count)]


# -- Record


def test_it_passes_on_what_it_records(tmp_path: Path) -> None:
    """F14: the very items; rows are counted, padding included."""
    items = fragments()
    with from_items(items).for_each(Record(tmp_path / "data")).run() as run:
        assert all(out is item for out, item in zip(run, items, strict=True))
        assert run.counters == {"recorded": 30}
    assert list(Dataset(tmp_path / "data").verify()) == items


@pytest.mark.parametrize("saved_at", range(1, 6))
@pytest.mark.parametrize("died_at", range(1, 6))
def test_a_resume_loses_and_doubles_nothing(tmp_path: Path, saved_at: int, died_at: int) -> None:
    """F2, D3: the run went on after its checkpoint, and died; the resumed one records those items once."""
    make = lambda: from_items(fragments()).for_each(Record(tmp_path / "data"))  # noqa: E731
    with make().run() as run:
        for _ in range(saved_at):
            next(run)
        state = run.state_dict()
        list(islice(run, died_at - saved_at if died_at > saved_at else 0))
    with make().run() as run:
        run.load_state_dict(state)
        assert list(run) == fragments()[saved_at:]
    assert list(Dataset(tmp_path / "data").verify()) == fragments()


def test_going_back_within_a_run(tmp_path: Path) -> None:
    """F2: a state is loaded into the run that went past it."""
    with from_items(fragments()).for_each(Record(tmp_path / "data")).run() as run:
        next(run)
        state = run.state_dict()
        list(islice(run, 3))
        run.load_state_dict(state)
        assert len(list(run)) == 4
    assert list(Dataset(tmp_path / "data").verify()) == fragments()


def test_what_is_there_already_is_not_touched(path: Path) -> None:
    with pytest.raises(DatasetError, match=r"already has 5 batches.*: take another path, or overwrite=True"):
        list(from_items(fragments(1)).for_each(Record(path)))
    assert len(Dataset(path)) == 5
    others = [batch.replace(more=batch.reward) for batch in fragments(2)]
    list(from_items(others).for_each(Record(path, overwrite=True)))
    assert list(Dataset(path)) == others


def test_batches_that_went_missing_are_not_passed_over(path: Path) -> None:
    """F2: the checkpoint knows of more than there is."""
    make = lambda: from_items(fragments()).for_each(Record(path, overwrite=True))  # noqa: E731
    with make().run() as run:
        list(islice(run, 4))
        state = run.state_dict()
    DatasetWriter(path).rewind(2)
    with make().run() as run:
        run.load_state_dict(state)
        with pytest.raises(DatasetError, match="has 2 batches, 4 are expected in it: some were lost"):
            next(run)


def test_what_cannot_be_recorded_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"Record stores batches, got a dict"):
        list(from_items([{"reward": np.ones(2)}]).for_each(Record(tmp_path / "other")))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(PlanError, match=r"Record .*file is there and is no dataset"):
        from_items(fragments()).for_each(Record(tmp_path / "file")).check()
    plan = from_items([*fragments(1), Batch(reward=np.ones((2, 2)))]).for_each(Record(tmp_path / "more"))
    with pytest.raises(SchemaError, match="the batch lacks 'obs'") as error:
        list(plan)
    assert "operator Record" in error.value.__notes__[0]
    assert len(Dataset(tmp_path / "more")) == 1


# -- FromDataset


def test_recorded_batches_come_back_as_they_were(path: Path) -> None:
    batches = list(FromDataset(path))
    assert batches == fragments()
    batches[0].reward[:] = 9  # a copy, that may be written to
    assert list(FromDataset(Dataset(path), epochs=2)) == [*fragments(), *fragments()]
    with FromDataset(path).run() as run:
        list(run)
        assert run.counters == {"read": 30}


@given(st.integers(1, 40), st.integers(1, 3), st.sampled_from([None, True, False]), st.integers(0, 3))
def test_an_epoch_gives_every_row_once(size: int, epochs: int, shuffle: bool | None, seed: int) -> None:
    """D1, D6: in an order that follows from the run's seed alone, another one in each epoch."""
    plan = FromDataset(SHARED[0], size, shuffle=shuffle, epochs=epochs)
    drawn = rewards(plan, seed=seed)
    assert drawn == rewards(plan, seed=seed)
    per_epoch = -(-30 // size)
    assert [len(batch) for batch in drawn] == ([size] * (per_epoch - 1) + [30 - size * (per_epoch - 1)]) * epochs
    orders = [[*chain(*drawn[i * per_epoch : (i + 1) * per_epoch])] for i in range(epochs)]
    for order in orders:
        assert sorted(order) == list(range(30))
        assert (order == sorted(order)) == (shuffle is False)
    assert len({tuple(order) for order in orders}) == (1 if shuffle is False else epochs)
    if shuffle is not False:
        assert drawn != rewards(plan, seed=seed + 1)


SHARED: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same dataset, for tests that run many times."""
    SHARED[:] = [tmp_path_factory.mktemp("shared") / "data"]
    list(from_items(fragments()).for_each(Record(SHARED[0])))


def test_batches_can_be_shuffled_too(path: Path) -> None:
    orders = [[int(b.reward[0, 0]) // 6 for b in FromDataset(path, shuffle=True, epochs=3)] for _ in range(2)]
    assert orders[0] == orders[1]
    assert [sorted(orders[0][i : i + 5]) for i in (0, 5, 10)] == [list(range(5))] * 3
    assert orders[0][:5] != orders[0][5:10]


def test_padded_steps_are_not_drawn(tmp_path: Path) -> None:
    """N6"""
    padded = [batch.replace(mask=batch.reward % 3 != 0) for batch in fragments()]
    list(from_items(padded).for_each(Record(tmp_path / "data")))
    drawn = chain(*rewards(FromDataset(tmp_path / "data", 4)))
    assert sorted(drawn) == [reward for reward in range(30) if reward % 3]


def test_an_epoch_reads_what_was_there_when_it_began(tmp_path: Path) -> None:
    """D3: also if it is resumed after the dataset has grown."""
    writer = DatasetWriter(tmp_path / "data")
    for batch in fragments(2):
        writer.add(batch)
    plan = FromDataset(tmp_path / "data", 5, epochs=2)
    with plan.run() as run:
        first = [next(run)]
        state = run.state_dict()
        for batch in fragments()[2:]:
            writer.add(batch)
        rest = list(run)
    with FromDataset(tmp_path / "data", 5, epochs=2).run() as run:
        run.load_state_dict(state)
        assert same(list(run), rest)
    counts = Counter(reward for batch in first + rest for reward in batch.reward.tolist())
    assert counts == Counter([*range(12), *range(30)])


def test_it_resumes_at_every_item(path: Path) -> None:
    """D1, D3, D5: mid-epoch, of batches and of rows."""
    check_plan(lambda: FromDataset(path, epochs=2))
    check_plan(lambda: FromDataset(path, 8, epochs=None), items=9)


def test_a_state_goes_on_in_a_run_that_had_another_seed(path: Path) -> None:
    """D3, D6: the order is that of the seed in the state, whatever the run has given before."""
    with FromDataset(path, 4).run(seed=1) as run:
        next(run)
        state, rest = run.state_dict(), list(run)
    with FromDataset(path, 4).run(seed=2) as run:
        next(run)
        run.load_state_dict(state)
        assert list(run) == rest


def test_what_cannot_be_read_is_refused(path: Path, tmp_path: Path) -> None:
    """B5"""
    with pytest.raises(DatasetError, match="nowhere is not there"):
        FromDataset(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="batch_size is 0"):
        FromDataset(path, 0)
    with pytest.raises(ValueError, match=r"batch_size is 2.5, expected a whole number"):
        FromDataset(path, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epochs is 0"):
        FromDataset(path, epochs=0)
    DatasetWriter(tmp_path / "empty").add(fragments(1)[0][:0])
    with pytest.raises(DatasetError, match="is empty"):
        list(FromDataset(tmp_path / "empty", 4, epochs=None))
    assert [batch.rows for batch in FromDataset(tmp_path / "empty")] == [0]
    with FromDataset(path).run() as run:
        next(run)
        state = run.state_dict()
    DatasetWriter(path).rewind(3)
    with FromDataset(path).run() as run:
        run.load_state_dict(state)
        with pytest.raises(DatasetError, match="has 3 batches, but this run has read 5"):
            next(run)
    reward = path / "01-reward.bin"
    reward.write_bytes(bytes(8) + reward.read_bytes()[8:-1] + b"x")
    assert len(list(FromDataset(path))) == 3, "batches that were taken back are not read"
    reward.write_bytes(b"x" + reward.read_bytes()[1:])
    with pytest.raises(DatasetError, match="batch 0 of 3 is not what was recorded"):
        list(FromDataset(path))
    assert len(list(FromDataset(path, verify=False))) == 3


# -- in plans


def dqn() -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, hidden=(4,), device="cpu"), envs_per_worker=2)


def test_rollouts_are_recorded_and_learned_from(tmp_path: Path) -> None:
    """A dataset of what DQN did, checked before it runs; then another DQN learns from it offline."""
    with dqn() as workers:
        plan = ParallelRollouts(workers, steps=4).for_each(Record(tmp_path / "data"))
        schema = plan.check()["Record"]
        with plan.run() as run:
            items = list(islice(run, 5))
        assert list(Dataset(tmp_path / "data")) == items
    learner = dqn()
    offline = FromDataset(tmp_path / "data", 8, epochs=3).for_each(TrainOneStep(learner))
    known = offline.check()["FromDataset"]
    assert known.columns == schema.rows().columns
    assert {"experience", "rows"} <= known.words
    assert "on_policy" not in known.words
    assert [result["loss"] > 0 for result in offline] == [True] * 15
    with learner:
        list(strict(FromDataset(tmp_path / "data")))  # every item is what the check predicted
    stored = FromDataset(tmp_path / "data").for_each(NStep(2, 0.9)).for_each(StoreToReplay(ReplayBuffer(100)))
    stored.check()
    assert len(list(stored)) > 4
    ppo = WorkerSet("CartPole-v1", lambda *spaces: PPOPolicy(*spaces, hidden=(4,), device="cpu"), envs_per_worker=2)
    with pytest.raises(PlanError, match="TrainOneStep"):
        FromDataset(tmp_path / "data", 8).for_each(TrainOneStep(ppo)).check()
    ppo.close()


@pytest.mark.parametrize("kind", [SACPolicy, PPOPolicy])
def test_actions_of_rollouts_are_recorded_as_the_environment_gets_them(tmp_path: Path, kind: Any) -> None:
    """G6: whose workers they are knows what it sends; what passes stays as it was, and so do choices."""
    settings = {"hidden": (4,), "device": "cpu"}
    with WorkerSet("Pendulum-v1", lambda *spaces: kind(*spaces, **settings), envs_per_worker=2) as workers:
        plan = ParallelRollouts(workers, steps=50).for_each(Record(tmp_path / "data", workers=workers))
        with plan.run(seed=1) as run:
            passed = next(run)
    (recorded,) = Dataset(tmp_path / "data")
    drawn = passed.action.astype(np.float32)
    sent = 2 * drawn if kind is SACPolicy else drawn.clip(-2, 2)
    np.testing.assert_allclose(recorded.action, sent, atol=1e-6)
    assert "logp" not in recorded
    assert ("logp" in passed) == (kind is PPOPolicy)
    assert Dataset(tmp_path / "data").about["env"] == "Pendulum-v1"
    with WorkerSet("CartPole-v1", lambda *spaces: PPOPolicy(*spaces, **settings), envs_per_worker=2) as workers:
        plan = ParallelRollouts(workers, steps=5).for_each(Record(tmp_path / "choices", workers=workers))
        with plan.run(seed=1) as run:
            assert [next(run)] == list(Dataset(tmp_path / "choices"))


def test_explain_shows_what_is_recorded_and_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    plan = FromDataset("data", 8, epochs=None).for_each(Record("copy"))
    lines = [line.split("  ")[0] for line in plan.explain().splitlines()]
    assert lines[1] == "Record(path='copy')"
    assert lines[0].startswith("FromDataset(data=Dataset('data', rows=30, columns=2), batch_size=8")

"""Demonstrations in plans: one phase after another, mixtures that check() sees through, rows that nobody changes."""

from __future__ import annotations

import copy
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import Plan, from_items
from flowrl import operators as ops
from flowrl.data import Batch, Dataset, DatasetWriter, MixedReplay, PrioritizedReplayBuffer, RateLimiter, ReplayBuffer
from flowrl.engine.protocols import DONE
from flowrl.errors import CheckpointError, ConfigError, DatasetError, Deadlock, PlanError, SchemaError
from flowrl.operators.datasets import demonstrations_in
from flowrl.policies import DQNPolicy, R2D2Policy
from flowrl.rollout import WorkerSet
from flowrl.runs.config import build_config
from flowrl.testing import same
from flowrl.trainer.plan_file import load_plan_file
from tests.demonstrations import cartpole, random_steps
from tests.plans.small import SMALL, make


def fragments(count: int, start: int = 0) -> list[Batch]:
    no = np.zeros((2, 1), bool)
    clocks = [np.arange(start + 2 * i, start + 2 * i + 2)[:, None] for i in range(count)]
    return [Batch(obs=clock, reward=clock * 1.0, next_obs=clock + 1, terminated=no, truncated=no) for clock in clocks]


def mixed(fresh: ReplayBuffer, shown: ReplayBuffer, learn: Any = lambda batch: {}) -> Plan:
    mixture = MixedReplay(fresh=(fresh, 0.5), demonstrations=(shown, 0.5))
    first = from_items(fragments(3, 100)).for_each(ops.NStep(1, 0.9)).for_each(ops.StoreToReplay(shown))
    store = from_items(fragments(9)).for_each(ops.NStep(1, 0.9)).for_each(ops.StoreToReplay(fresh))
    train = ops.Replay(mixture, 4).for_each(learn)
    online = ops.Concurrently({"store": store, "train": train}, output_indexes=["train"])
    return ops.Sequentially({"demonstrate": first, "online": online})


# -- one after another


def test_a_phase_begins_when_the_one_before_has_ended() -> None:
    """F2: all items in order, the last of an adder too; the next phase is not asked before."""
    asked: list[int] = []

    def source() -> Any:
        asked.append(len(seen))
        return iter([7, 8])

    seen: list[Any] = []
    plan = ops.Sequentially({"first": from_items([1, 2, 3]).batch(2), "then": from_items(source)})
    with plan.run() as run:
        for item in run:
            seen.append(item)  # noqa: PERF402  while it runs
    assert seen == [[1, 2], [3], 7, 8]
    assert asked == [2]


def test_what_waits_is_the_phase_that_runs() -> None:
    """F8: and the ones after it wait for it."""
    with pytest.raises(PlanError, match=r"names that are identifiers, got \{\}"):
        ops.Sequentially({})
    with pytest.raises(PlanError, match=r"identifiers, got \{'a b'"):
        ops.Sequentially({"a b": from_items([1])})
    plan = ops.Sequentially({"first": from_items([1]), "then": from_items([2])})
    with plan.run() as run:
        merge: Any = run.stages[-1] if hasattr(run.stages[-1], "reasons") else run.stages[0]
        assert merge.reasons(1) == ["begins after first"]
        list(run)
        assert merge.reasons(0) == ["has ended"]
    stuck = ops.Sequentially({"first": ops.Replay(ReplayBuffer(3)), "then": from_items([2])})
    with stuck.run() as run, pytest.raises(Deadlock) as raised:
        next(run)
    assert "branch first: first.Replay: waits for rows: nothing is stored yet" in str(raised.value)
    assert "branch then: begins after first" in str(raised.value)


def test_some_phases_give_nothing() -> None:
    """F2: they run all the same, to their end; the schema is that of the others."""
    seen: list[Any] = []
    branches = {"first": from_items([1, 2]).for_each(seen.append), "then": from_items([3]), "last": from_items([4])}
    plan = ops.Sequentially(branches, output_indexes=["then"])
    assert plan.explain().splitlines()[-1].startswith("Sequentially(emits then)")
    assert list(plan) == [3]
    assert seen == [1, 2]
    with pytest.raises(PlanError, match="output_indexes names 'online', but the branches are first, then, last"):
        ops.Sequentially(branches, output_indexes=["online"])


def test_check_sees_phases_that_cannot_begin_or_end() -> None:
    """F8: what is drawn from is filled in a later phase alone, and what comes before never ends."""

    def plan(read: ReplayBuffer, filled: ReplayBuffer, end: Any = lambda draws: draws.take(3)) -> Plan:
        store = from_items(fragments(3)).for_each(ops.NStep(1, 0.9)).for_each(ops.StoreToReplay(filled))
        return ops.Sequentially({"learn": end(ops.Replay(read, 4)), "store": store})

    def refused(plan: Plan) -> str:
        with pytest.raises(PlanError) as raised:
            plan.check()
        return str(raised.value)

    buffer, full = ReplayBuffer(100), ReplayBuffer(100, seed=0)
    full.add(Batch(obs=np.arange(9)))
    assert "learn.Replay" in (said := refused(plan(buffer, buffer)))
    assert "store.StoreToReplay" in said
    assert said.endswith("fills it only in a later phase")
    assert plan(full, buffer).check()
    endless = "learn never ends, so store never begins: end it with .take(n)"
    assert refused(plan(full, buffer, lambda draws: draws)).endswith(endless)
    assert refused(plan(full, buffer, lambda draws: ops.Concurrently([draws, from_items([1])]))).endswith(endless)
    assert plan(full, buffer, lambda draws: ops.Concurrently([draws, from_items([1])], output_indexes=[1])).check()
    assert plan(full, buffer, lambda draws: draws.zip(from_items([1]))).check()
    both = {"store": plan(full, buffer), "train": ops.Replay(buffer, 4)}
    assert ops.Concurrently(both).check()  # beside phases, not after them


# -- a mixture in a plan


def test_demonstrations_are_mixed_into_a_plan_that_knows_of_none() -> None:
    """F11, P2: the ratio, and priorities that go back to both buffers; the results are those of the plan."""

    def told(batch: Batch) -> dict[str, Any]:
        drawn.append(batch)
        places = batch.select(["index", "generation", "part"] if "part" in batch else ["index", "generation"])
        return {"loss": 0.0, "priorities": places.replace(priority=batch.obs * 1.0)}

    def plan(buffer: ReplayBuffer) -> Plan:
        store = from_items(fragments(9)).for_each(ops.NStep(1, 0.9)).for_each(ops.StoreToReplay(buffer))
        train = ops.Replay(buffer, 8).for_each(told).for_each(ops.UpdatePriorities(buffer))
        return ops.Concurrently({"store": store, "train": train}, output_indexes=["train"])

    drawn: list[Batch] = []
    fresh, shown = (PrioritizedReplayBuffer(100, alpha=1.0) for _ in range(2))
    recorded = from_items(fragments(3, 100)).for_each(ops.NStep(1, 0.9))
    mixed_in = ops.MixInDemonstrations(plan(fresh), recorded.for_each(ops.StoreToReplay(shown)), 0.25)
    with mixed_in.run(seed=0) as run:
        assert list(islice(run, 40)) == [{"loss": 0.0}] * 40
    assert all((batch.obs >= 100).tolist() == [False] * 6 + [True] * 2 for batch in drawn)
    masses = [np.array(buffer.state_dict()["masses"]).max() for buffer in (fresh, shown)]
    assert masses[0] < 20 < 100 <= masses[1]
    with pytest.raises(PlanError, match="demonstrate ends with NStep: end it with StoreToReplay"):
        ops.MixInDemonstrations(plan(fresh), recorded, 0.25)
    with pytest.raises(PlanError, match="no operator is named 'StoreToReplay'"):
        ops.MixInDemonstrations(recorded, recorded.for_each(ops.StoreToReplay(shown)), 0.25)
    with pytest.raises(ValueError, match="fractions above 0"):
        ops.MixInDemonstrations(plan(fresh), recorded.for_each(ops.StoreToReplay(shown)), 0.0)


def test_nothing_is_learned_before_the_demonstrations_are_there() -> None:
    """The first batch is drawn when all of them are stored, and every batch has the ratio."""
    fresh, shown = ReplayBuffer(100), ReplayBuffer(100)
    drawn: list[tuple[int, list[int]]] = []
    plan = mixed(fresh, shown, lambda batch: drawn.append((len(shown), batch.part.tolist())))
    with plan.run() as run:
        list(islice(run, 8))
    assert {rows for rows, _ in drawn} == {6}
    assert {tuple(parts) for _, parts in drawn} == {(0, 0, 1, 1)}


def test_a_run_resumed_in_the_middle_draws_what_it_would_have_drawn() -> None:
    """D3: at every step, also while demonstrations are read; the mixture and its parts are saved once each."""

    def make(uneven: float = 0.3) -> Plan:
        fresh, shown = PrioritizedReplayBuffer(100), ReplayBuffer(100)
        mixture = MixedReplay(fresh=(fresh, 1 - uneven), demonstrations=(shown, uneven))
        first = from_items(fragments(3, 100)).for_each(ops.NStep(1, 0.9)).for_each(ops.StoreToReplay(shown))
        store = from_items(fragments(9)).for_each(ops.NStep(1, 0.9)).for_each(ops.StoreToReplay(fresh))
        train = ops.Replay(mixture, 4).for_each(told).for_each(ops.UpdatePriorities(mixture)).take(12)
        online = ops.Concurrently({"store": store, "train": train}, output_indexes=["train"])
        return ops.Sequentially({"demonstrate": first, "online": online})

    def told(batch: Batch) -> dict[str, Any]:
        places = batch.select(["index", "generation", "part"])
        return {"obs": batch.obs.tolist(), "priorities": places.replace(priority=batch.obs * 1.0)}

    with make().run(seed=3) as run:
        whole: list[Any] = []
        states, counts = [], []
        item: Any = None
        while item is not DONE:
            states.append(copy.deepcopy(run.state_dict()))
            counts.append(len(whole))
            item = run.step()
            whole += [item] if isinstance(item, dict | Batch) else []
        end = run.state_dict()
    assert set(end["resources"]) == {"MixedReplay", "ReplayBuffer", "PrioritizedReplayBuffer"}
    for state, count in list(zip(states, counts))[::3]:
        with make().run(seed=99) as resumed:
            resumed.load_state_dict(state)
            assert same(list(resumed), whole[count:])
            assert same(resumed.state_dict(), end)


def test_the_rows_in_the_buffers_are_untouched() -> None:
    """H4: nor is what was recorded; what learns may write to what it is given."""

    def spoil(batch: Batch) -> None:
        for name in ("obs", "reward", "next_obs"):
            batch[name][:] = -1

    fresh, shown = ReplayBuffer(100), ReplayBuffer(100)
    with mixed(fresh, shown, spoil).run() as run:
        list(islice(run, 8))
    assert shown[:].obs.tolist() == [100, 101, 102, 103, 104, 105]
    assert np.array_equal(fresh[:].obs, np.arange(len(fresh)))
    assert np.array_equal(fresh[:].reward, np.arange(len(fresh)))


def test_check_sees_what_goes_into_the_parts() -> None:
    """Their columns, a part that nobody fills, a limiter that nobody draws for, priorities that are owed."""
    workers = WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, hidden=(4,), device="cpu"))

    def plan(
        of: Any = ReplayBuffer,
        *,
        fill: bool = True,
        update: bool = True,
        extra: Any = None,
        batch: int = 4,
        **others: Any,
    ) -> Plan:
        fresh, shown = of(100, **others), ReplayBuffer(100)
        mixture = MixedReplay(fresh=(fresh, 0.5), demonstrations=(shown, 0.5))
        recorded = ops.Demonstrations(cartpole(), workers.policy)
        recorded = recorded if extra is None else recorded.for_each(extra)
        rollouts = ops.ParallelRollouts(workers, steps=2)
        train = ops.Replay(mixture, batch).for_each(ops.TrainOneStep(workers))
        train = train.for_each(ops.UpdatePriorities(mixture)) if update and mixture.by_priority else train
        branches = {"store": rollouts.for_each(ops.StoreToReplay(fresh)), "train": train}
        first = recorded.for_each(ops.StoreToReplay(shown) if fill else ops.StoreToReplay(ReplayBuffer(100)))
        return ops.Sequentially({"first": first, "online": ops.Concurrently(branches)})

    schemas = plan().check()
    (drawn,) = [str(schema) for path, schema in schemas.items() if path.endswith("Replay") and "Store" not in path]
    assert drawn.startswith("experience, replayed, rows [B]: obs float32[4], action int64, reward float64")
    assert "policy_version" not in drawn
    assert plan(PrioritizedReplayBuffer).check()
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"fill": False},
            "waits for ever: a part of its MixedReplay(fresh=0.5, demonstrations=0.5) is empty and no operator",
        ),
        ({"of": PrioritizedReplayBuffer, "update": False}, "its priorities are never written back"),
        ({"extra": ops.NStep(1, 0.9), "batch": 400}, "batch_size is 400, but the buffer keeps 200 rows"),
        (
            {"limiter": RateLimiter(1.0, 10, sample_batch=1, insert_batch=99)},
            "the buffer's rate limiter has sample_batch=1: it would never allow a draw",
        ),
    ]
    for how, message in wrong:
        with pytest.raises(PlanError) as raised:
            plan(**how).check()
        assert message in str(raised.value)
    limiter = RateLimiter(1.0, 10, sample_batch=4, insert_batch=99)
    assert plan(limiter=limiter).check()  # which the mixture draws for


def test_a_mixture_is_not_stored_into() -> None:
    mixture = MixedReplay(a=(ReplayBuffer(3), 0.5), b=(ReplayBuffer(3), 0.5))
    with pytest.raises(PlanError, match="store into one of its parts, a or b"):
        ops.StoreToReplay(mixture)
    with pytest.raises(PlanError, match="needs a PrioritizedReplayBuffer, got MixedReplay"):
        ops.UpdatePriorities(mixture)


# -- what is done to them on their way


def test_a_column_is_filled_and_the_batch_left_alone() -> None:
    """H4: in the dtype that is there; of rows and fragments."""
    (batch,) = fragments(1, 5)
    before = batch.map(np.copy)
    filled = ops.FillColumn("demonstration", True)(ops.FillColumn("reward", 0.0)(batch))
    assert filled.reward.tolist() == [[0.0], [0.0]]
    assert (filled.demonstration.dtype, filled.demonstration.shape) == (np.bool_, (2, 1))
    assert filled.obs is batch.obs
    assert batch == before
    rows = ops.FillColumn("reward", 1)(batch.flat())
    assert (rows.reward.dtype, rows.reward.tolist()) == (np.float64, [1.0, 1.0])


def test_one_step_is_kept_beside_the_window() -> None:
    """N4, T6: what NStep makes of a window of one step, at each window's first step."""
    batch = Batch.cat(fragments(3, 1))
    batch["terminated"] = np.arange(6)[:, None] == 3
    (rows, single) = (make(batch) for make in (lambda b: ops.NStep(3, 0.5)(ops.KeepOneStep(0.5)(b)), ops.NStep(1, 0.5)))
    for name in ("reward", "next_obs", "discount"):
        assert np.array_equal(rows.one_step[name], single[name][: len(rows)])
    assert rows.reward.tolist() != rows.one_step.reward.tolist()
    with pytest.raises(SchemaError, match="KeepOneStep needs the column 'reward'"):
        ops.KeepOneStep(0.5)(Batch(obs=np.zeros((2, 1))))


def test_steps_of_others_begin_with_the_initial_state() -> None:
    """T8."""
    workers = WorkerSet("CartPole-v1", lambda *spaces: R2D2Policy(*spaces, units=3, device="cpu"))
    (batch,) = fragments(1)
    state = ops.InitialState(workers)(batch.replace(state=np.ones((2, 1, 9)))).state
    assert (state.shape, state.dtype, state.any()) == ((2, 1, 6), np.float32, np.False_)
    with pytest.raises(PlanError, match="InitialState needs a recurrent policy"):
        ops.InitialState(WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, device="cpu")))


@pytest.mark.parametrize("name", ["sqil", "dqfd", "r2d3", "sacfd"])
def test_a_dataset_that_grows_is_what_it_was_when_the_plan_was_made(name: str, tmp_path: Path) -> None:
    """F2, D3: what another process records meanwhile is not read; nor does a run go on with more than it began with."""
    path = random_steps(SMALL[name].get("env", "CartPole-v1"), 40)
    shutil.copytree(path, tmp_path / "growing")
    workers, plan = make(name, demonstrations=str(tmp_path / "growing"))
    (batch,) = list(Dataset(path))
    DatasetWriter(tmp_path / "growing").add(batch)
    with workers, plan.run(seed=0) as run:
        assert next(run)["read"] == 80
        state = run.state_dict()
    workers, plan = make(name, demonstrations=str(tmp_path / "growing"))
    with workers, plan.run(seed=0) as run, pytest.raises(CheckpointError, match="capacity 80, this one 160"):
        run.load_state_dict(state)


# -- bad input

#: Those with a reward model have their own, in tests/plans/test_reward_plans.py.
PLANS = [name for name in SMALL if "demonstrations" in SMALL[name] and not name.split()[0].endswith("_ppo")]


@pytest.mark.parametrize("name", PLANS)
def test_demonstrations_that_cannot_be_learned_from_are_refused_before_anything_runs(name: str, tmp_path: Path) -> None:
    """None, none there, without a column that the plan needs, of other spaces."""
    plan_file = load_plan_file(name.split()[0])

    def built(source: Any) -> None:
        plan_file.build(build_config(plan_file.Config, {**SMALL[name], "env": "CartPole-v1", "demonstrations": source}))

    with pytest.raises(ConfigError, match="flowrl record RUN --episodes 10 --out DIR"):
        built(None)
    with pytest.raises(DatasetError, match="nowhere"):
        built(str(tmp_path / "nowhere"))
    (episode,) = islice(Dataset(cartpole()), 1)
    for without in ("action", "next_obs"):
        path = tmp_path / without
        list(
            from_items([episode.select([each for each in episode if each != without])]).for_each(ops.Record(str(path)))
        )
        with pytest.raises(DatasetError, match=f"has no column '{without}', which learning needs"):
            built(str(path))
    list(from_items([episode.replace(obs=episode.obs[..., :3])]).for_each(ops.Record(str(tmp_path / "narrow"))))
    with pytest.raises(DatasetError, match="does not fit: its column 'obs'"):
        built(str(tmp_path / "narrow"))


def test_which_demonstrations_must_be_said() -> None:
    with pytest.raises(ConfigError, match="demonstrations=None"):
        demonstrations_in(None)

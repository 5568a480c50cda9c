"""Aggregators: lists of batches become batches, here or on Ray, with one meaning."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from flowrl import Context, Plan, from_items
from flowrl.engine.workers.remote import Remote
from flowrl.errors import ValueLost, WorkerDied
from flowrl.learners import Aggregators, LearnerGroup
from flowrl.learners.aggregators import Joiner
from flowrl.operators import CollectBatches, ConcatBatches, ParallelRollouts, TrainOneStep, options
from flowrl.plans import impala
from flowrl.policies import A2CPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import ManualWorkers, check_plan, same
from tests.scripted import transitions

BATCHES = [transitions(n, seed=n) for n in (3, 5, 2, 7, 1, 4)]


def collected(items: Any = BATCHES) -> Plan:
    return from_items(items).combine(CollectBatches(7))


def test_they_join_as_one_operator_would() -> None:
    """F2, D1, D3, D5: every batch once, in order, resumable with lists that are on their way."""
    expected = list(from_items(BATCHES).combine(ConcatBatches(7)))
    check_plan(lambda: collected().call(Aggregators(0), "join", 2), expected=expected)


def test_batches_elsewhere_are_counted_and_not_fetched() -> None:
    def refuse(ref: Any) -> Any:
        raise AssertionError(f"{ref} was fetched")

    remote = [Remote(number, rows=3, nbytes=1, get=refuse) for number in range(5)]
    assert [[each.ref for each in batches] for batches in collected(remote)] == [[0, 1, 2], [3, 4]]


def test_the_check_knows_what_comes_out() -> None:
    workers = WorkerSet("CartPole-v1", policy)
    fragments = ParallelRollouts(workers, mode="async", steps=4).combine(CollectBatches(64))
    schemas = fragments.call(Aggregators(0), "join").check()
    assert schemas["join"] == schemas["ParallelRollouts"]


def test_a_death_that_is_noticed_twice_restarts_once() -> None:
    """F10: two requests were with the one that died, and the second fails after another one has its place."""
    aggregators = Aggregators(0)
    aggregators.start(Context())
    manual = ManualWorkers(1, Joiner)
    aggregators._actors.members[:] = manual.members
    first, second = (aggregators.submit("join", BATCHES[:2]) for _ in range(2))
    manual.fail(WorkerDied("aggregator 0", "killed"))
    assert aggregators.recover(first.exception()) is None
    assert aggregators._actors.restarts == [1]
    manual.fail(WorkerDied("aggregator 0", "killed"))
    assert aggregators.recover(second.exception()) is None
    assert aggregators._actors.restarts == [1]


def test_a_list_that_is_lost_is_no_death() -> None:
    """F10: the one that was to join it is well."""
    aggregators = Aggregators(0)
    aggregators.start(Context())
    manual = ManualWorkers(1, Joiner)
    aggregators._actors.members[:] = manual.members
    asked, lost = aggregators.submit("join", BATCHES[:2]), ValueLost("aggregator 0", "lost")
    manual.fail(lost)
    assert aggregators.recover(asked.exception()) is lost
    assert aggregators._actors.restarts == [0]


def test_a_plan_has_them_on_the_cluster_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process can be on one cluster only."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(options, "Aggregators", lambda count, **given: made.append(given) or Aggregators(0))
    config = impala.Config(num_aggregators=2, address="ray://there:10001", worker_timeout=9.0)
    workers = WorkerSet("CartPole-v1", policy)
    config.edited(impala.execution_plan(workers, config), workers)
    assert made == [{"address": "ray://there:10001", "worker_timeout": 9.0}]


def policy(*spaces: Any) -> A2CPolicy:
    return A2CPolicy(*spaces, hidden=(8,), device="cpu")


@pytest.mark.slow
def test_fragments_reach_the_learner_without_the_driver(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """References in and out: no batch is fetched here. The same stream learned from here gives the same parameters."""
    with WorkerSet("CartPole-v1", policy, envs_per_worker=2, num_workers=1) as workers:
        fragments = ParallelRollouts(workers, mode="async", steps=4).combine(CollectBatches(16))
        batches = fragments.call(Aggregators(1), "join")
        monkeypatch.setattr(Remote, "fetch", lambda self: pytest.fail("a batch came here"))
        with batches.call(LearnerGroup(workers, where="actor"), "train").run(seed=1) as run:
            apart = list(islice(run, 3))
            monkeypatch.undo()
    with WorkerSet("CartPole-v1", policy, envs_per_worker=2) as workers:
        joined = ParallelRollouts(workers, mode="async", steps=4).combine(ConcatBatches(16))
        with joined.for_each(TrainOneStep(workers)).run(seed=1) as run:
            assert same(apart[:1], list(islice(run, 1)))

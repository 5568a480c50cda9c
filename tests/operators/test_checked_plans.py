"""plan.check() on real operators: what it predicts is what flows, and what is wrong in the domain is one message."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from flowrl import Plan
from flowrl import operators as ops
from flowrl.data import Batch, PrioritizedReplayBuffer, RateLimiter, ReplayBuffer
from flowrl.engine.operator import declare, name_of
from flowrl.engine.schema import UNKNOWN, ColumnSchema, Schema
from flowrl.errors import PlanError, SchemaError
from flowrl.inspect.check import examine
from flowrl.inspect.strict import strict
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from flowrl.trainer.plan_file import builtin_plans, load_plan_file
from tests.clock_envs import TERMINATED, clock_envs
from tests.plans.small import FAMILY_PLANS, first, make
from tests.scripted import ScriptedPolicy


def workers(requires: Any = None) -> WorkerSet:
    made = WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, hidden=(4,), device="cpu"), envs_per_worker=2)
    if requires is not None:
        made.policy.learn_mode.requires = requires
    return made


def off_policy(of: WorkerSet, add: Callable[[Plan], Plan] = lambda plan: plan) -> Plan:
    buffer = ReplayBuffer(100)
    store = ops.ParallelRollouts(of, steps=2).for_each(ops.StoreToReplay(buffer))
    return ops.Concurrently({"store": store, "train": add(ops.Replay(buffer, 4)).for_each(ops.TrainOneStep(of))})


@pytest.mark.parametrize("name", first(builtin_plans(), of=FAMILY_PLANS, rest="slow"))
def test_what_is_predicted_for_the_built_in_plans_is_what_flows(name: str) -> None:
    """Every item on every edge, and results that are those of a run without checks (D4)."""
    asks = hasattr(load_plan_file(name).Config(), "in_flight")
    settings = {"in_flight": 1} if asks else {}  # debugging looks at one request at a time
    results = []
    for edit in (lambda plan: plan, strict):
        of, plan = make(name, edit=edit, **settings)
        schemas = plan.check()
        assert any(schema.columns for schema in schemas.values())
        with of, plan.run() as run:
            results.append(list(islice(run, 4)))
    assert results[0][-1]["updates"] > 0
    assert same(*results)


def test_a_wrong_item_is_refused_on_its_edge() -> None:
    """F9: `--debug` names the edge."""
    of = workers()

    @declare(schema=lambda given: given)
    def spoils(batch: Any) -> Any:
        return batch.replace(reward=batch.reward.astype("float32"))

    plan = strict(ops.ParallelRollouts(of, steps=2).for_each(spoils).for_each(ops.TrainOneStep(of)))
    with of, plan.run() as run, pytest.raises(SchemaError) as raised:
        next(run)
    assert str(raised.value) == (
        "on the edge spoils -> TrainOneStep: column 'reward' is float32[2, 2], expected float64[T, N]"
    )


def test_learning_from_a_buffer_what_must_be_on_policy_is_found() -> None:
    requires = {"on_policy": "its loss is right only for experience of the current weights"}
    (found,) = examine(off_policy(workers(requires))).problems
    assert found.startswith("train.TrainOneStep (")
    assert "needs 'on_policy', which is lost in train.Replay (" in found
    assert found.endswith(": its loss is right only for experience of the current weights")
    of = workers(requires)
    ops.ParallelRollouts(of).for_each(ops.TrainOneStep(of)).check()


def test_a_loss_that_needs_values_which_the_policy_does_not_give_is_found() -> None:
    of = workers(("value", "next_value"))
    (found,) = examine(ops.ParallelRollouts(of).for_each(ops.TrainOneStep(of))).problems
    assert "needs 'value', 'next_value', which is not in the output of ParallelRollouts (" in found
    values = WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(with_value=True), envs_per_worker=2)  # type: ignore
    schema = ops.ParallelRollouts(values).check()["ParallelRollouts"]
    assert schema.has("value")
    assert schema.has("next_value")


def test_experience_gradients_and_scalars_are_not_taken_for_each_other() -> None:
    of = workers()
    plan = ops.ParallelRollouts(of).for_each(ops.ApplyGradients(of))
    assert examine(plan).problems[0].endswith("put ComputeGradients before ApplyGradients")
    plan = ops.ParallelRollouts(of).for_each(ops.TrainOneStep(of)).for_each(ops.StoreToReplay(ReplayBuffer(9)))
    assert "StoreToReplay" in examine(plan).problems[0]
    gradients = ops.ParallelRollouts(of).for_each(ops.ComputeGradients(of))
    gradients.combine(ops.AverageGradients(2)).for_each(ops.ApplyGradients(of)).check()


def test_two_adders_are_found() -> None:
    plan = ops.ParallelRollouts(workers()).for_each(ops.NStep(2, 0.9)).for_each(ops.NStep(2, 0.9))
    found = examine(plan).problems
    assert "NStep-2" in found[0]
    assert "needs 'fragments', which is lost in NStep (" in found[0]
    assert "is there an NStep before it?" in found[1]


def on_policy(*adders: Any) -> Plan:
    of = WorkerSet("CartPole-v1", lambda *spaces: PPOPolicy(*spaces, hidden=(4,), device="cpu"), envs_per_worker=2)
    plan = ops.ParallelRollouts(of)
    for adder in adders:
        plan = plan.for_each(adder)
    return plan.for_each(ops.TrainOneStep(of))


def test_advantages_are_estimated_once_and_from_fragments() -> None:
    twice = examine(on_policy(ops.GAE(0.9, 0.9), ops.GAE(0.9, 0.9))).problems
    assert "GAE makes the column 'advantage', which exists already: is there a GAE or VTrace before it?" in twice[0]
    (found,) = examine(on_policy(ops.NStep(2, 0.9))).problems
    assert "TrainOneStep" in found
    assert "needs 'advantage or fragments', which is lost in NStep (" in found
    assert found.endswith("put GAE before it, or leave it out")
    for right in ((), (ops.GAE(0.9, 0.9),), (ops.GAE(0.9, 0.9), Batch.flat)):
        on_policy(*right).check()


def test_results_are_made_once_and_evaluated_where_they_are() -> None:
    of = workers()
    learned = ops.ParallelRollouts(of).for_each(ops.TrainOneStep(of))
    reported = ops.StandardMetricsReporting(learned, of, {})
    assert "is there a Report before it?" in examine(ops.StandardMetricsReporting(reported, of, {})).problems[0]
    (found,) = examine(learned.for_each(ops.Evaluate(of, every=10))).problems
    assert "needs 'env_steps', which is not in the output of TrainOneStep" in found
    assert "end the plan with StandardMetricsReporting" in found
    reported.for_each(ops.Evaluate(of, every=10)).check()


@pytest.mark.parametrize("op", [ops.ConcatBatches(8), ops.AverageGradients(2), ops.Report(10)], ids=name_of)
def test_an_operator_that_gives_lists_is_for_combine(op: Any) -> None:
    plan = ops.ParallelRollouts(workers())
    with pytest.raises(PlanError, match=rf"{name_of(op)} is for combine: use .combine\({name_of(op)}\(...\)\)"):
        plan.for_each(op)
    with pytest.raises(PlanError, match=r"or verb='combine' in insert_before and insert_after"):
        plan.insert_after("ParallelRollouts", op)
    assert plan.insert_after("ParallelRollouts", op, "combine").kind == "combine"


def by_priority(of: WorkerSet, *after: Any) -> Plan:
    buffer = PrioritizedReplayBuffer(100)
    store = ops.ParallelRollouts(of, steps=2).for_each(ops.StoreToReplay(buffer))
    train = ops.Replay(buffer, 4).for_each(ops.TrainOneStep(of))
    for op in after:
        train = train.for_each(op(buffer))
    return ops.Concurrently({"store": store, "train": train})


def test_priorities_that_are_never_written_back_are_found() -> None:
    """Nobody does it, or to another buffer; a policy that reports none is found too."""
    (found,) = examine(by_priority(workers())).problems
    assert found.startswith("train.Replay (")
    assert ": its priorities are never written back; put UpdatePriorities " in found
    other = PrioritizedReplayBuffer(100)
    (found,) = examine(by_priority(workers(), lambda _: ops.UpdatePriorities(other))).problems
    assert "its priorities are never written back" in found
    by_priority(workers(), ops.UpdatePriorities).check()
    schemas = by_priority(workers(), ops.UpdatePriorities, lambda _: ops.UpdateTargetNetwork(workers())).check()
    assert schemas["train.Replay"].columns["weight"] == ColumnSchema("float32", ("B",))
    silent = workers()
    silent.policy.learn_mode.reports_priority = False
    (found,) = examine(by_priority(silent, ops.UpdatePriorities)).problems
    assert "needs 'priorities', which is not in the output of train.TrainOneStep (" in found
    assert found.endswith("a policy whose loss reports priorities, as DQN's does")


def test_a_plan_of_a_policy_that_says_nothing_is_not_refused() -> None:
    """A policy that cannot act on zeros, and one without a learn mode."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError("only real observations")

    of = WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(refuse), envs_per_worker=2)  # type: ignore[arg-type]
    assert of.schema() == UNKNOWN
    schemas = off_policy(of).check()
    assert schemas["store.ParallelRollouts"] == Schema(
        words=frozenset({"experience", "fragments", "on_policy"}), open=True
    )


def test_checking_starts_no_worker() -> None:
    """F1: nothing acts, no environment is reset."""
    of = workers()
    off_policy(of).check()
    assert of.members == []


def ending_together(groups: int = 1) -> WorkerSet:
    """Four environments, whose episodes all have four steps."""
    policy = lambda *spaces: ScriptedPolicy()  # noqa: E731
    return WorkerSet(clock_envs([[(4, TERMINATED)]] * 4), policy, envs_per_worker=4, env_groups=groups)


MOST_ROWS: dict[str, tuple[Callable[[], Plan], int]] = {
    "fragments": (lambda: ops.ParallelRollouts(ending_together(), steps=2), 8),
    "of two groups": (lambda: ops.ParallelRollouts(ending_together(2), steps=2), 8),
    "of one of two groups": (lambda: ops.ParallelRollouts(ending_together(2), mode="async", steps=2), 4),
    "rows": (lambda: ops.ParallelRollouts(ending_together(), rows=5), 8),
    "windows of one step": (lambda: ops.ParallelRollouts(ending_together(), steps=2).for_each(ops.NStep(1, 0.9)), 8),
    "windows": (lambda: ops.ParallelRollouts(ending_together(2), steps=2).for_each(ops.NStep(3, 0.9)), 16),
    "windows made on workers": (
        lambda: (
            ops.ParallelRollouts(ending_together(2), mode="raw", steps=2).for_each(ops.NStep(3, 0.9)).gather_async()
        ),
        8,
    ),
    "parts": (
        lambda: ops.ParallelRollouts(ending_together(), steps=2).combine(ops.SplitBatch(max_rows=3)).prefetch(2),
        3,
    ),
}


@pytest.mark.parametrize("case", MOST_ROWS)
def test_a_limiter_is_told_the_most_rows_that_come_at_once(case: str) -> None:
    """B8: as many do come; a smaller insert_batch is refused before the run, and by the run if nobody checks."""
    make, most = MOST_ROWS[case]
    assert max(batch.rows for batch in islice(make(), 9)) == most
    for told, fits in [(most, True), (most - 1, False)]:
        buffer = ReplayBuffer(100, limiter=RateLimiter(1, 1, sample_batch=most, insert_batch=told))
        plan = ops.Concurrently([make().for_each(ops.StoreToReplay(buffer)), ops.Replay(buffer, 1)])
        if fits:
            plan.check()
            list(islice(plan, 40))
            continue
        with pytest.raises(
            PlanError, match=rf"may have {most} rows, .* insert_batch={told}: .* at least {most}; rows add"
        ):
            plan.check()
        with pytest.raises(
            ValueError, match=rf"told insert_batch={told}; rows added at once are steps \* environments"
        ):
            list(islice(plan, 40))


def test_what_an_operator_does_to_the_number_of_rows_is_not_guessed() -> None:
    """B8: an operator that does not say how many rows it emits may emit fewer."""
    buffer = ReplayBuffer(100, limiter=RateLimiter(1, 1, sample_batch=1, insert_batch=1))
    for op in (ops.SelectExperiences(["default_policy"]), declare(schema=lambda given: given.having())(lambda b: b)):
        store = ops.ParallelRollouts(ending_together(), steps=2).for_each(op).for_each(ops.StoreToReplay(buffer))
        ops.Concurrently([store, ops.Replay(buffer, 1)]).check()

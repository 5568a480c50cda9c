"""Two algorithms that learn from one stream: what they owe each other."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import pytest

from flowrl import Plan
from flowrl.data import Batch, ReplayBuffer
from flowrl.engine.operator import declare
from flowrl.errors import ConfigError, PlanError, SchemaError
from flowrl.inspect.check import examine
from flowrl.learners import LearnerGroup
from flowrl.operators import (
    GAE,
    ConcatBatches,
    Concurrently,
    NStep,
    OfPolicy,
    ParallelRollouts,
    Replay,
    ScaleRewards,
    SelectExperiences,
    StandardizeFields,
    StoreToReplay,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from tests.plans.small import make

KINDS = {"ppo": PPOPolicy, "dqn": DQNPolicy}


def workers_of_both(num_workers: int = 0) -> WorkerSet:
    policies = {name: partial(kind, hidden=(8,), device="cpu", seed=1) for name, kind in KINDS.items()}
    layout: dict[str, Any] = {"num_workers": num_workers, "envs_per_worker": 4 // max(1, num_workers), "env_groups": 2}
    return WorkerSet("flowrl:two_cartpoles", policies=policies, agents={"left": "ppo", "right": "dqn"}, **layout)


def both(workers: WorkerSet, where: Any = None) -> Plan:
    """PPO and DQN learn from each fragment: here, or each in learners of its own."""
    ppo, dqn = workers.of("ppo"), workers.of("dqn")
    for_ppo, for_dqn = ParallelRollouts(workers, steps=8).duplicate(2)
    of_ppo = for_ppo.combine(OfPolicy("ppo")).for_each(GAE(0.9, 0.8))
    of_dqn = for_dqn.combine(OfPolicy("dqn")).for_each(NStep(1, 0.9))
    if where is None:
        learned = of_dqn.for_each(TrainOneStep(dqn)).for_each(UpdateTargetNetwork(dqn, every=2))
        branches = {"ppo": of_ppo.for_each(TrainOneStep(ppo)), "dqn": learned}
    else:
        number = 2 if where == "actor" else 1
        learners = {"ppo": LearnerGroup(ppo, number, where), "dqn": LearnerGroup(dqn, number, where, target_every=2)}
        streams = {"ppo": of_ppo, "dqn": of_dqn}
        branches = {name: stream.call(learners[name], "train") for name, stream in streams.items()}
    return Concurrently(branches, round_robin_weights=[1, 1])


def trained(num_workers: int = 0, where: Any = None) -> tuple[list[Any], dict[str, float], list[Any]]:
    """Scalars, counters and weights after some steps of both."""
    with workers_of_both(num_workers) as workers, both(workers, where).run(seed=1) as run:
        found = list(islice(run, 8))
        return found, dict(run.counters), [workers.of(name).policy.weights() for name in KINDS]


def test_each_of_two_learner_groups_learns_its_own_policy() -> None:
    """D1, F12: the same bits as where both learn in the plan."""
    assert same(trained(where="inline"), trained())


def by_name(*names: str) -> tuple[list[Any], dict[str, float], list[Any]]:
    """As `trained`, by one operator that trains the policies of these names."""
    with workers_of_both() as workers:
        plan = ParallelRollouts(workers, steps=8).for_each(TrainOneStep(workers, policies=names))
        with plan.run(seed=1) as run:
            found = list(islice(run, 4))
            return found, dict(run.counters), [workers.of(name).policy.weights() for name in KINDS]


def test_policies_are_trained_by_their_names() -> None:
    """F16, M3: each from its own rows, in any order; where there are several, all that is told carries the names."""
    scalars, counters, weights = by_name("ppo", "dqn")
    assert {"loss/ppo", "loss/dqn", "kl/ppo"} <= scalars[-1].keys()
    assert "loss" not in scalars[-1]
    assert counters["updates/ppo"] == counters["updates/dqn"] == counters["updates"] / 2 == 4
    assert same(by_name("dqn", "ppo")[2], weights)

    alone, counted, of_one = by_name("ppo")
    assert alone[0] == {name.removesuffix("/ppo"): scalars[0][name] for name in scalars[0] if name.endswith("/ppo")}
    assert counted["updates"] == 4
    assert not same(of_one, weights)


def test_names_of_policies_are_checked_before_work_starts() -> None:
    workers = workers_of_both()
    with pytest.raises(ConfigError, match="no policy 'pop': did you mean 'ppo'"):
        TrainOneStep(workers, policies=["pop"])
    with pytest.raises(PlanError, match="expected the names of one or more"):
        TrainOneStep(workers, policies="ppo")
    with pytest.raises(SchemaError, match=r"pass its workers, TrainOneStep\(workers.of\(NAME\)\)"):
        TrainOneStep(workers, policies=["ppo"])(Batch(reward=[1.0]))


def learned(steps: Plan, of: Any) -> Plan:
    return steps.for_each(GAE(0.9, 0.8)).for_each(TrainOneStep(of))


def replayed(steps: Plan, of: Any, *adders: Any) -> Plan:
    buffer = ReplayBuffer(1000)
    for adder in adders:
        steps = steps.for_each(adder)
    return Concurrently([steps.for_each(StoreToReplay(buffer)), Replay(buffer, 4).for_each(TrainOneStep(of))])


#: Plans on the stream of PPO's and DQN's experience, with what the check says of them; "" of those that are right.
STREAMS: dict[str, tuple[Callable[[Plan, WorkerSet], Plan], str]] = {
    "each its own": (lambda _, of: both(of), ""),
    "each its own, in learners of its own": (lambda _, of: both(of, "thread"), ""),
    "by one operator": (lambda plan, of: plan.for_each(TrainOneStep(of, policies=["ppo", "dqn"])), ""),
    "scaled and joined before": (
        lambda plan, of: learned(
            plan.for_each(ScaleRewards(0.1)).combine(ConcatBatches(64)).combine(OfPolicy("ppo")), of.of("ppo")
        ),
        "",
    ),
    "replayed to another one, off-policy": (
        lambda plan, of: replayed(plan.combine(OfPolicy("ppo")), of.of("dqn"), NStep(1, 0.9)),
        "",
    ),
    "a name that no policy has": (
        lambda plan, of: learned(plan.combine(OfPolicy("pp")), of.of("ppo")),
        r"^OfPolicy \(.*\): no policy 'pp': did you mean 'ppo'",
    ),
    "a name that is not selected": (
        lambda plan, of: plan.for_each(SelectExperiences(["ppo"])).combine(OfPolicy("dqn")),
        r"^OfPolicy \(.*\): no policy 'dqn'",
    ),
    "all to an operator for one": (
        lambda plan, of: learned(plan, of.of("ppo")),
        r"^GAE \(.*\) takes .* one policy, but ParallelRollouts \(.*'ppo' and 'dqn': put OfPolicy\(NAME\) before GAE",
    ),
    "all to a learner that says nothing": (
        lambda plan, of: plan.for_each(declare(provides=("more",))(lambda item: item)).for_each(
            TrainOneStep(of.of("dqn"))
        ),
        r"^TrainOneStep \(.*\) takes the experience of one policy",
    ),
    "the rows of a policy without values": (
        lambda plan, of: learned(plan.combine(OfPolicy("dqn")), of.of("ppo")),
        r"^GAE \(.*\) needs 'value', 'next_value', which is not in the output of OfPolicy",
    ),
    "what not all of them have": (
        lambda plan, of: plan.for_each(StandardizeFields(["value"])),
        r"^StandardizeFields \(.*\) needs 'value', .* \[ppo, dqn\]",
    ),
    "rows that one of several learners cannot learn from": (
        lambda plan, of: plan.for_each(declare(schema=lambda given: given.without("logp"))(lambda item: item)).for_each(
            TrainOneStep(of, policies=["dqn", "ppo"])
        ),
        r"^TrainOneStep \(.*\): policy 'ppo' needs 'logp', .*: collect with a policy that records it",
    ),
    "padded steps to a plain buffer": (
        lambda plan, of: replayed(plan.combine(OfPolicy("dqn")), of.of("dqn")),
        r"StoreToReplay \(.*\): its items have padded steps .* put NStep\(n=1",
    ),
}


@pytest.mark.parametrize("case", STREAMS)
def test_of_several_policies_a_plan_is_checked_by_their_names(case: str) -> None:
    """M13: before work starts; the operator is named, and the way out."""
    make_plan, expected = STREAMS[case]
    workers = workers_of_both()
    found = examine(make_plan(ParallelRollouts(workers, steps=8), workers)).problems
    if not expected:
        assert found == []
        return
    assert re.search(expected, found[0]), found


def test_who_learns_on_policy_is_given_no_rows_of_another_one() -> None:
    """M13: not by a LearnerGroup either."""
    make_ppo = partial(PPOPolicy, hidden=(8,), device="cpu", seed=1)
    workers = WorkerSet("flowrl:two_cartpoles", policies={"left": make_ppo, "right": make_ppo}, envs_per_worker=2)
    rollouts = ParallelRollouts(workers, steps=8)
    examined = {name: examine(learned(rollouts.combine(OfPolicy(name)), workers.of("left"))) for name in workers.parts}
    assert examined["left"].problems == []
    (found,) = examined["right"].problems
    assert found.endswith(
        "it trains the policy 'left' on the experience of 'right', but PPOPolicy learns from its own alone: "
        "put OfPolicy('left') before it"
    )
    trained = rollouts.combine(OfPolicy("right")).call(LearnerGroup(workers.of("left"), 1, "thread"), "train")
    assert "on the experience of 'right'" in examine(trained).problems[0]


def test_a_name_that_no_policy_has_fails_at_the_first_batch_if_nobody_checks() -> None:
    """M13: instead of a run that waits for its rows for ever."""
    with workers_of_both() as workers:
        rollouts = ParallelRollouts(workers, steps=2)
        for plan in (rollouts.combine(OfPolicy("pp")), rollouts.for_each(SelectExperiences(["pp"]))):
            with plan.run(seed=0) as run, pytest.raises(SchemaError, match="no policy 'pp': did you mean 'ppo'"):
                deque((run.step() for _ in range(9)), 0)  # `next` would wait for ever if it went on


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_each_of_two_learner_groups_may_be_several_processes() -> None:
    """D2, F13: with 2 workers and 2 learners for each policy, near what one process learns."""
    (apart, counted, _), (here, expected, _) = trained(2, "actor"), trained()
    assert counted == expected
    for scalars, others in zip(apart, here, strict=True):
        assert scalars == pytest.approx(others, rel=1e-2, abs=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_a_branch_that_fails_names_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the path of its operator; nothing of the other branch is in it."""
    workers, plan = make("two_trainers")

    def fail(*_: Any) -> None:
        raise ValueError("the loss is wrong")

    with workers, plan.run(seed=0) as run:
        monkeypatch.setattr(workers.of(name).policy.learn_mode, "loss", fail)
        with pytest.raises(ValueError, match="the loss is wrong") as failed:
            list(islice(run, 20))
    (note,) = failed.value.__notes__
    assert f"in operator {name}.TrainOneStep (" in note


def test_a_setting_that_a_branch_cannot_have_is_refused() -> None:
    """Both policies learn, so neither table may freeze one; what is of the whole run stands beside the tables."""
    for table, words in (({"frozen": ["ppo"]}, "ppo: unknown configuration key 'frozen'"), ({"env": "x"}, "whole run")):
        with pytest.raises(ConfigError, match=words):
            make("two_trainers", ppo=table)

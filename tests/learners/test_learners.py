"""A group of learners: learning in this process, in a thread and on Ray, with one meaning."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from flowrl import Plan, from_items
from flowrl.data import Batch
from flowrl.engine.protocols import Signal
from flowrl.engine.workers import calls
from flowrl.engine.workers.calls import Answer
from flowrl.engine.workers.remote import Remote
from flowrl.errors import ConfigError, PlanError, SchemaError, ValueLost, WorkerDied
from flowrl.learners import LearnerGroup
from flowrl.learners.learner import LearnerReport
from flowrl.learners.training import Training
from flowrl.operators import GAE, ConcatBatches, ParallelRollouts, TrainOneStep, UpdateKL, UpdateTargetNetwork
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan, same
from tests.scripted import transitions


def policy(observation_space: Any, action_space: Any) -> DQNPolicy:
    return DQNPolicy(observation_space, action_space, hidden=(8,), device="cpu")


def ppo(observation_space: Any, action_space: Any) -> PPOPolicy:
    return PPOPolicy(observation_space, action_space, hidden=(8,), device="cpu")


def make(of: Any = policy) -> WorkerSet:
    return WorkerSet("CartPole-v1", of, envs_per_worker=2)


def group(workers: WorkerSet, num_learners: int = 1, where: Any = "inline", **settings: Any) -> LearnerGroup:
    target = {"target_every": 2, "tau": 0.5} if hasattr(workers.policy, "update_target") else {}
    return LearnerGroup(workers, num_learners, where, **{**target, **settings})


def rollouts(workers: WorkerSet) -> Plan:
    batches = ParallelRollouts(workers, steps=4).for_each(GAE(0.9, 0.8))
    return batches.combine(ConcatBatches(16))


def test_learning_there_is_training_here() -> None:
    """D1, F12, F3: the same bits in results, parameters, optimiser and counters; every row is of the newest weights."""
    there, here = make(ppo), make(ppo)
    apart = rollouts(there).call(LearnerGroup(there, where="inline"), "train")
    together = rollouts(here).for_each(TrainOneStep(here))
    with there, here:
        with apart.run(seed=1) as one, together.run(seed=1) as other:
            assert same(list(islice(one, 4)), list(islice(other, 4)))
            assert one.counters == other.counters
            assert [lags.tolist() for lags in one.context.metrics.drain("policy_lag")] == [[0] * 16] * 4
        assert same(there.policy.state_dict(), here.policy.state_dict())


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("of", [policy, ppo])
def test_it_resumes_at_every_step(of: Any, in_flight: int) -> None:
    """D1, D3, D5, Q2: optimiser, target network, minibatches, and answers whose turn has not come."""

    def plan() -> Plan:
        workers = make(of)
        learners = group(workers, num_sgd_iter=2, minibatch_size=7)
        return rollouts(workers).call(learners, "train", in_flight) if of is ppo else by_steps(workers, learners)

    def by_steps(workers: WorkerSet, learners: LearnerGroup) -> Plan:
        return ParallelRollouts(workers, steps=4).call(learners, "train", in_flight)

    check_plan(plan, items=3)


def test_a_run_goes_on_where_another_one_ended() -> None:
    """What a group learned is the workers' policy between runs, so that anybody may go on with it."""
    interrupted, whole = make(ppo), make(ppo)
    batches = list(islice(rollouts(make(ppo)), 6))
    learners = group(interrupted, minibatch_size=5)
    with from_items(batches[:3]).call(learners, "train").run(seed=2) as run:
        list(run)
    assert interrupted.policy.version == 12
    with from_items(batches[3:]).call(learners, "train").run(seed=2) as run:
        list(run)
    with from_items(batches).call(group(whole, minibatch_size=5), "train").run(seed=2) as run:
        list(run)
    assert same(interrupted.policy.state_dict(), whole.policy.state_dict())


def test_a_thread_learns_while_the_run_goes_on() -> None:
    """F7, F12, F15: two batches are with it, results come in order, and no thread is left."""
    import threading

    before = set(threading.enumerate())
    workers, reference = make(), make()
    batches = [transitions(n, seed=n) for n in (3, 5, 2, 7)]
    with from_items(batches).call(group(workers, where="thread"), "train", 2).run() as run:
        scalars = list(run)
        assert run.counters == {"trained": 17, "updates": 4}
    assert set(threading.enumerate()) <= before
    with from_items(batches).call(group(reference), "train").run() as run:
        assert same(scalars, list(run))
    assert same(workers.policy.state_dict(), reference.policy.state_dict())


def test_weights_are_published_when_the_turn_of_their_answer_has_come() -> None:
    """F3: in order, each with its version; nothing that waits behind another answer is seen before it."""
    workers = make()
    published: list[int] = []
    workers.publish = lambda version, weights: published.append(version)  # type: ignore[method-assign]
    plan = from_items([transitions(4)] * 4).call(group(workers), "train", 3)
    with plan.run() as run:
        for count in (1, 2, 3, 4):
            next(run)
            assert published == list(range(1, count + 1))


def test_a_batch_without_rows_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are as they were need not be sent to anybody."""
    workers, published = make(), []
    publish = workers.publish
    monkeypatch.setattr(workers, "publish", lambda *given: (published.append(given[0]), publish(*given)))
    with from_items([transitions(0), transitions(2)]).call(group(workers), "train").run() as run:
        assert next(run) == {}
        assert (workers.version, run.counters) == (0, {})
        assert published == []
        assert next(run)["loss"] > 0
        assert workers.version == 1
        assert published == [1]


def test_schedules_follow_the_env_steps_of_the_run() -> None:
    """Q7: those that were counted when the batch was sent."""
    seen = []

    def scheduled(*spaces: Any) -> PPOPolicy:
        return PPOPolicy(*spaces, hidden=(8,), learning_rate=lambda steps: seen.append(steps) or 1e-3, device="cpu")

    workers = make(scheduled)
    with workers, rollouts(workers).call(LearnerGroup(workers, where="inline"), "train").run() as run:
        seen.clear()
        list(islice(run, 2))
    assert sorted(set(seen)) == [16, 32]


def test_errors_name_the_batch_and_the_run_goes_on() -> None:
    """F9, F2: a batch that cannot be learned from is skipped where that is asked for."""
    workers = make()
    bad = Batch(reward=np.ones(3))
    plan = from_items([transitions(4), bad, transitions(2)]).call(group(workers), "train")
    with plan.run() as run:
        next(run)
        with pytest.raises(SchemaError, match="no column") as caught:
            next(run)
        assert "in operator train" in caught.value.__notes__[-1]
    with plan.run(on_error="skip") as run:
        assert len(list(run)) == 2
        assert run.counters == {"trained": 6, "updates": 2, "skipped_items": 1}


def test_the_check_asks_for_what_the_loss_needs() -> None:
    """`plan.check()`: the words that TrainOneStep requires, and what it gives."""
    workers = make(ppo)
    learners = LearnerGroup(workers, where="inline")
    fine = rollouts(workers).call(learners, "train")
    assert fine.check()["train"].has("scalars")
    assert "1 learner in this process" in fine.explain()
    rows = ParallelRollouts(workers, rows=8)
    without = [rows.call(learners, "train"), rows.for_each(TrainOneStep(workers))]
    messages = []
    for plan in without:
        with pytest.raises(PlanError, match="needs 'advantage or fragments'") as caught:
            plan.check()
        messages.append(str(caught.value).partition(" needs ")[2])
    assert messages[0] == messages[1].replace("TrainOneStep", "train")


def test_what_would_change_another_policy_than_the_one_that_learns_is_refused() -> None:
    """Q2: the target network and the KL penalty of the workers' policy are not those of the learners."""
    workers = make(ppo)
    learned = rollouts(workers).call(LearnerGroup(workers, where="inline"), "train")
    with pytest.raises(PlanError, match=r"UpdateKL would change the policy of the workers here.*a fixed kl_coef"):
        learned.for_each(UpdateKL(workers)).check()
    workers = make()
    learned = ParallelRollouts(workers, steps=4).call(group(workers), "train")
    with pytest.raises(PlanError, match=r"UpdateTargetNetwork would .* LearnerGroup\(..., target_every=\)"):
        learned.for_each(UpdateTargetNetwork(workers)).check()


def test_what_cannot_be_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match=r"2 learners in a thread.*: take 1, or where='actor'"):
        group(make(), 2, "thread")
    with pytest.raises(ConfigError, match="where='process'; there are: actor, inline, thread"):
        group(make(), where="process")
    with pytest.raises(ConfigError, match="target_every=None, but DQNPolicy has a target network"):
        LearnerGroup(make())
    with pytest.raises(ConfigError, match="target_every=3, but PPOPolicy has no target network"):
        LearnerGroup(make(ppo), target_every=3)
    with pytest.raises(ConfigError, match="the workers' policy normalizes"):
        LearnerGroup(make(lambda *spaces: PPOPolicy(*spaces, normalize_obs=True, device="cpu")))
    with pytest.raises(PlanError, match="training needs num_sgd_iter >= 1, got 0"):
        LearnerGroup(make(ppo), num_sgd_iter=0)
    learners = group(make())
    with from_items([1]).call(learners, "learn").run() as run, pytest.raises(PlanError, match="not to 'learn'"):
        next(run)


def test_a_receipt_of_any_worker_is_counted() -> None:
    """F12: what a worker counted and recorded goes to the run, and its item on."""

    class Counts:
        def work(self, item: int) -> Answer:
            return Answer(2 * item, False, {"trained": item}, {"x": [item]})

    with from_items([1, 2, 3]).call(Counts(), "work", 2).run() as run:
        assert list(run) == [2, 4, 6]
        assert run.counters == {"trained": 6}
        assert run.context.metrics.drain("x") == [1, 2, 3]


class Asked:
    """A learner whose answers the test gives."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[Any]] = {}

    def submit(self, method: str, *args: Any) -> Future[Any]:
        return self.futures.setdefault(method, Future())

    submit_apart = submit


def test_what_not_all_have_learned_is_no_state_to_go_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: one that dies after the last step, before it says so, has its batch asked again: the others must not go on
    from the state after it, or they would learn it twice."""
    workers = make(ppo)
    learners = LearnerGroup(workers, 2, "actor", seconds=0.1)
    first, second = Asked(), Asked()
    monkeypatch.setattr(LearnerGroup, "members", [first, second])
    learners._actors = SimpleNamespace(put=lambda value: value)  # type: ignore[assignment]
    learners._newest = "before"
    answer = learners.submit("train", transitions(4))
    first.futures["train"].set_result((LearnerReport({}, {"trained": 4, "updates": 1}, {}, 1), {}))
    first.futures["state_apart"].set_result((1, "after"))
    assert not answer.done()
    assert learners._latest() == "before"
    second.futures["train_along"].set_exception(WorkerDied("learner 1", "it was killed"))
    assert isinstance(answer.exception(), WorkerDied)
    assert learners._latest() == "before"


def test_a_state_that_is_loaded_is_what_they_go_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: answers of before, whose turn had not come, are not of this run."""
    learners, learner = LearnerGroup(make(ppo), where="actor"), Asked()
    monkeypatch.setattr(LearnerGroup, "members", [learner])
    learners._actors = SimpleNamespace(put=lambda value: value)  # type: ignore[assignment]
    answer = learners.submit("train", transitions(4))
    learner.futures["train"].set_result((LearnerReport({}, {"trained": 4, "updates": 1}, {}, 1), {}))
    learner.futures["state_apart"].set_result((1, {"policy": "after"}))
    assert answer.result()
    learner.submit("load_state_dict").set_result(None)
    learners.load_state_dict({"policy": "loaded"})
    assert learners.state_dict() == {"policy": "loaded"}


def test_a_batch_that_is_lost_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: the machine that held it is gone, and the learner is well."""
    learners, learner = LearnerGroup(make(ppo), where="actor"), Asked()
    monkeypatch.setattr(LearnerGroup, "members", [learner])
    learners._actors = SimpleNamespace(restart=lambda *_: pytest.fail("it is well"))  # type: ignore[assignment]
    answer = learners.submit("train", Remote("gone", 4, 100))
    learner.futures["train"].set_exception(lost := ValueLost("learner 0", "it is lost"))
    learner.futures["state_apart"].set_result((0, "before"))
    assert answer.exception() is lost
    assert learners.recover(lost) is lost


# -- on Ray


@pytest.fixture
def two(ray_cluster: None) -> Iterator[tuple[WorkerSet, LearnerGroup]]:
    workers = make(ppo)
    yield workers, LearnerGroup(workers, 2, "actor", num_sgd_iter=2, minibatch_size=7, seconds=20)
    workers.close()


def collected(count: int) -> list[Batch]:
    with make(ppo) as workers:
        return list(islice(rollouts(workers), count))


def processes(learners: LearnerGroup) -> list[int]:
    return [worker.submit("process").result(20) for worker in learners.members]


def states(learners: LearnerGroup) -> list[Any]:
    return [worker.submit("state_dict").result(20) for worker in learners.members]


@pytest.mark.slow
def test_two_processes_learn_what_one_would(two: Any) -> None:
    """F13, F12: alike to the last bit, and near one learner; what is published and counted is that of one."""
    workers, learners = two
    batches, reference = collected(3), make(ppo)
    alone = LearnerGroup(reference, where="inline", num_sgd_iter=2, minibatch_size=7)
    with from_items(batches).call(learners, "train", 2).run(seed=3) as run:
        with from_items(batches).call(alone, "train", 2).run(seed=3) as one:
            for scalars, expected in zip(run, one, strict=True):
                assert scalars == pytest.approx(expected, rel=1e-3, abs=1e-5)
            assert run.counters == one.counters == {"trained": 96, "updates": 18}
        first, second = states(learners)
        assert same(first, second)
        assert same(workers.policy.weights(), first["policy"]["modules"]["model"])
        assert workers.version == 18
        saved = run.state_dict()
    for name, value in reference.policy.weights().items():
        torch.testing.assert_close(workers.policy.weights()[name], value, rtol=1e-3, atol=1e-5)
    assert same(workers.policy.state_dict(), saved["resources"]["LearnerGroup"]["policy"])
    resumed = make(ppo)
    again = LearnerGroup(resumed, where="inline", num_sgd_iter=2, minibatch_size=7)
    with from_items([*batches, *batches[:1]]).call(again, "train", 2).run(seed=9) as run:
        run.load_state_dict(saved)
        assert len(list(run)) == 1
        assert run.counters == {"trained": 128, "updates": 24}


@pytest.mark.slow
def test_a_learner_that_is_killed_costs_nothing_but_time(two: Any) -> None:
    """F10, F2, no hang: the other one does not wait for it; both go on from the newest answered state, and what was in
    flight is asked again, so that the result is that of a run in which nobody died."""
    workers, learners = two
    batches, reference = collected(8), make(ppo)  # more than are in flight after either death
    other = LearnerGroup(reference, 2, "actor", num_sgd_iter=2, minibatch_size=7)
    with from_items(batches).call(other, "train", 2).run(seed=3) as run:
        expected = list(run)
    with from_items(batches).call(learners, "train", 2).run(seed=3) as run:
        first, second = processes(learners)
        scalars = list(islice(run, 1))
        os.kill(second, signal.SIGKILL)
        scalars += islice(run, 3)
        os.kill(first, signal.SIGKILL)
        scalars += run
        assert same(scalars, expected)
        lost, restarts = run.counters.pop("lost_requests"), run.counters.pop("learner_restarts")
        assert (restarts, run.counters) == (2, {"trained": 8 * 32, "updates": 8 * 6})
        assert 2 <= lost <= 4
        assert same(*states(learners))
    assert same(workers.policy.state_dict(), reference.policy.state_dict())


@pytest.mark.slow
def test_a_state_does_not_wait_for_a_learner_that_hangs(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10, F2, D3: stopped, as in an endless call of C. Its batches are asked again where the state is loaded, so that
    the result is that of a run in which nobody hung; and it goes on here once it can."""
    workers, learners = two
    batches, reference = collected(4), make(ppo)
    monkeypatch.setattr(calls, "DRAIN_SECONDS", 0.1)
    with from_items(batches).call(learners, "train", 2).run(seed=3) as run:
        _, second = processes(learners)
        scalars = list(islice(run, 1))
        os.kill(second, signal.SIGSTOP)
        try:
            item = run._pull()  # asks for one more, which is not answered
            scalars += [] if isinstance(item, Signal) else [item]
            emitted, saved = len(scalars), run.state_dict()
        finally:
            os.kill(second, signal.SIGCONT)
        monkeypatch.undo()
        scalars += run
    assert "request" in [kind for kind, _ in saved["operators"]["train"]["pending"]]
    other = LearnerGroup(reference, 2, "actor", num_sgd_iter=2, minibatch_size=7)
    with from_items(batches).call(other, "train", 2).run(seed=9) as resumed:
        resumed.load_state_dict(saved)
        assert same(scalars[emitted:], list(resumed))
        assert resumed.counters == {"trained": 4 * 32, "updates": 4 * 6}
    assert same(workers.policy.state_dict(), reference.policy.state_dict())


@pytest.mark.slow
def test_one_that_dies_too_often_ends_the_run(ray_cluster: None) -> None:
    workers = make(ppo)
    learners = LearnerGroup(workers, where="actor", max_restarts=0)
    with from_items(collected(3)).call(learners, "train").run() as run:
        next(run)
        os.kill(processes(learners)[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"learner 0 died: .* restarted 0 times already, max_restarts=0"):
            next(run)
    assert workers.policy.version == 1, "what was answered before is not lost"


@pytest.mark.slow
def test_an_error_of_the_loss_is_the_batchs_and_not_the_groups(two: Any) -> None:
    """F9: the learner that could learn is told by the other, and both go on alike."""
    _, learners = two
    good, bad = collected(2), collected(1)[0]
    bad = bad.replace(reward=bad.reward * np.nan)
    bad["advantage"], bad["target"] = bad.advantage * np.nan, bad.target * np.nan
    with from_items([good[0], bad, good[1]]).call(learners, "train", 2).run(on_error="skip") as run:
        assert len(list(run)) == 2
        assert run.counters["skipped_items"] == 1
        assert run.counters["trained"] == 64
        assert same(*states(learners))


def test_old_rows_of_an_on_policy_loss_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """D15: once, and not of rows that are at most two batches old."""
    policy = PPOPolicy(Box(-1, 1, (2,)), Discrete(2), hidden=(4,), device="cpu")
    numbers = np.ones(4, np.float32)
    columns = dict.fromkeys(("logp", "advantage", "target", "value"), numbers)
    rows = Batch(obs=np.ones((4, 2), np.float32), action=np.zeros(4, int), **columns, policy_version=np.zeros(4, int))
    train = Training(num_sgd_iter=2)
    for version, told in ((4, 0), (5, 1), (50, 1)):
        policy.version = version
        train(policy.learn_mode, rows, np.random.default_rng(0))
        assert len(caplog.messages) == told
    assert "from rows that are 5 versions of the weights old, at 2 versions a batch" in caplog.messages[0]

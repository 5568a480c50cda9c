"""Groups in processes of their own: what rides with requests, who comes and goes. Here the processes are objects of
this one, each with a policy of its own; tests/rollout/test_over_ray.py has real ones.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from flowrl import Context, Plan
from flowrl.data import Batch, ReplayBuffer
from flowrl.data.multi_agent import DEFAULT_POLICY
from flowrl.engine.workers.futures import Future
from flowrl.engine.workers.subplan import packed, unpacked
from flowrl.errors import CheckpointError, FlowError, PlanError, WorkerDied
from flowrl.operators import (
    ApplyGradients,
    AsyncGradients,
    ComputeGradients,
    GatherStatistics,
    ParallelRollouts,
    StoreToReplay,
    TrainOneStep,
    UpdateStatistics,
)
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.rollout.groups import EPISODES_OF_A_LIFE, GroupRunner
from flowrl.rollout.remote_groups import RemoteGroups
from flowrl.testing import same
from tests.plans.small import SMALL
from tests.scripted import ScriptedPolicy


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are objects of this one."""
    monkeypatch.setattr(RemoteGroups, "remote", False)


def make(kind: Any = PPOPolicy, num_workers: int = 2, *, of: Any = {}, **settings: Any) -> WorkerSet:  # noqa: B006
    policy = partial(kind, hidden=(4,), device="cpu", **of)
    return WorkerSet("CartPole-v1", policy, num_workers=num_workers, seed=3, **{"envs_per_worker": 2, **settings})


def puts(workers: WorkerSet) -> list[Any]:
    """What is put for the workers from now on."""
    seen: list[Any] = []
    actors = workers._hosts._actors  # type: ignore[union-attr]
    put = actors.put
    actors.put = lambda value: seen.append(value) or put(value)  # type: ignore[method-assign, func-returns-value]
    return seen


def acting(workers: WorkerSet) -> list[Any]:
    """The policies that act, one of each process."""
    members = workers._hosts._actors.members  # type: ignore[union-attr]
    return [worker.target._policies[DEFAULT_POLICY] for worker in members if worker]


def learn(workers: WorkerSet, mode: str, in_flight: int = 1) -> Plan:
    """Pairs of a batch and its learner's scalars."""
    rollouts = ParallelRollouts(workers, mode, in_flight, steps=4)  # type: ignore[arg-type]
    trained = TrainOneStep(workers)
    return rollouts.for_each(lambda batch: (batch, trained(batch)), name="learn")


# -- D2


def run_of(name: str, rounds: int, state: Any = None, **settings: Any) -> tuple[list[Any], Any, Any]:
    """What a plan collects and gives, its state and the policy's at the end, in that many results."""
    from flowrl.trainer.plan_file import load_plan_file

    plan_file, seen = load_plan_file(name.split()[0]), []
    config = plan_file.Config(**{**SMALL[name], "env_groups": 4, "seed": 5, **settings})
    workers, plan = plan_file.build(config)
    with workers, plan.tap("ParallelRollouts", seen.append).run(seed=5) as run:
        if state is not None:
            run.load_state_dict(state)
        for _ in range(rounds):
            next(run)
        return seen, run.state_dict(), workers.policy.state_dict()


@pytest.mark.parametrize("name", ["ppo", "dqn", "ppo normalized", "dqn normalized", "ppo in torch", "rainbow"])
def test_the_same_groups_over_0_1_and_2_workers_give_one_stream(name: str) -> None:
    """D2, O1: rows with all that is known of them, parameters, optimiser and statistics, bit for bit."""
    here = run_of(name, 6, num_workers=0, envs_per_worker=8)
    assert len(here[0]) > 5
    assert here[2]["version"] > 5
    for layout in ({"num_workers": 1, "envs_per_worker": 8}, {"num_workers": 2, "envs_per_worker": 4}):
        assert all(map(same, here, run_of(name, 6, **layout)))


def whole_episodes(num_workers: int, envs: int) -> tuple[list[Batch], dict[str, int], Any]:
    seen: list[Batch] = []
    policy = partial(PPOPolicy, hidden=(4,), device="cpu")
    settings = {"num_workers": num_workers, "envs_per_worker": envs, "env_groups": 2, "seed": 3}
    with WorkerSet("CartPole-v1", policy, **settings) as workers:  # type: ignore[arg-type]
        rollouts = ParallelRollouts(workers, episodes=3).tap("ParallelRollouts", seen.append)
        with rollouts.for_each(TrainOneStep(workers)).run() as run:
            losses = [next(run)["loss"] for _ in range(2)]
            return seen, dict(run.counters), (losses, workers.policy.state_dict())


def test_whole_episodes_are_the_same_over_0_1_and_2_workers() -> None:
    """D2, S2, F12: of groups of two environments, which take turns at the third episode; padding does not count."""
    here = whole_episodes(0, 4)
    assert all(map(same, here, whole_episodes(1, 4)))
    assert all(map(same, here, whole_episodes(2, 2)))
    seen, counters, (losses, _) = here
    for batch in seen:
        assert batch.worker[0].tolist() == [0, 0, 0, 1, 1, 1]
        assert batch.env_id[0].tolist() == [0, 0, 1] * 2
        assert len(batch) == batch.mask.sum(0).max()
        ends = batch.terminated | batch.truncated
        assert (ends.sum(0) == 1).all()
        assert ends[batch.mask.sum(0) - 1, np.arange(6)].all()
        assert (batch.t[0] == 0).all()
    steps = sum(int(batch.mask.sum()) for batch in seen)
    assert (counters["env_steps"], counters["trained"], counters["episodes"]) == (steps, steps, 2 * 6)
    assert "cut_episodes" not in counters
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_worker_set_works_without_a_plan(num_workers: int) -> None:
    """D2, F15: started by hand, sampled, asked for anything, with the newest weights."""
    settings = {"num_workers": num_workers, "envs_per_worker": 4 // max(num_workers, 1), "env_groups": 2, "seed": 3}
    with WorkerSet("CartPole-v1", partial(PPOPolicy, hidden=(4,), device="cpu"), **settings) as workers:  # type: ignore
        for use in (lambda: workers.local, lambda: workers.sample(2), lambda: workers.foreach_worker(repr)):
            with pytest.raises(FlowError, match=r"is not started: call start|no worker is in"):
                use()
        workers.start()
        with ParallelRollouts(workers, steps=2).run() as run:
            first = next(run)
        with torch.no_grad():
            next(iter(workers.policy.model.parameters())).fill_(0.5)
        workers.policy.version = 7
        second = workers.sample(2)
        assert second.shape == first.shape == (2, 4)
        assert set(second.policy_version.ravel().tolist()) == {7}
        assert second.t[0].tolist() == [2] * 4
        assert (workers.env_steps, workers.sample(episodes=2).shape[1], workers.sample(rows=4).shape) == (16, 4, (8,))
        assert workers.foreach_worker(lambda worker: worker.index) == [0, 1]
        for weights in workers.foreach_worker(lambda worker: worker.get_weights()):
            assert same(weights, workers.policy.weights())
        if not num_workers:
            assert workers.local.sample(3).shape == (3, 2)
    with WorkerSet("CartPole-v1", lambda *spaces: ScriptedPolicy(), envs_per_worker=2, seed=3) as alone:
        alone.start()
        again = WorkerSet("CartPole-v1", lambda *spaces: ScriptedPolicy(), envs_per_worker=2, seed=3)
        with again, ParallelRollouts(again, steps=3).run() as run:
            assert same(alone.sample(3), next(run))


@pytest.mark.parametrize("name", ["ppo", "dqn normalized"])
def test_a_run_goes_on_over_other_workers(name: str) -> None:
    """D2, D3: a checkpoint of this process goes on over two workers, and that over one, and back."""
    layouts = [(0, 8), (2, 4), (1, 8), (0, 8)]
    seen, state = [], None
    for k, (num_workers, envs) in enumerate(layouts):
        more, state, policy = run_of(name, 2, state, num_workers=num_workers, envs_per_worker=envs)
        seen += more
        assert k == 0 or state is not None
    whole = run_of(name, 8, num_workers=0, envs_per_worker=8)
    assert same(seen, whole[0])
    assert same(policy, whole[2])


# -- weights


@pytest.mark.parametrize("mode", ["bulk_sync", "async"])
def test_weights_pushed_after_an_item_make_the_next_one_of_that_worker(mode: str) -> None:
    """F3: with one request in flight, in whichever mode."""
    with make(num_workers=3) as workers, learn(workers, mode).run() as run:
        newest: dict[int, int] = dict.fromkeys(range(3), 0)
        for _ in range(9):
            batch, _ = next(run)
            for worker in np.unique(batch.worker).tolist():
                versions = batch.policy_version[batch.worker == worker]
                assert set(versions.tolist()) == {newest[worker]}
            newest |= dict.fromkeys(np.unique(batch.worker).tolist(), workers.policy.version)


@pytest.mark.parametrize("count", [1, 4])
def test_weights_are_put_once_for_each_version_however_many_workers(count: int) -> None:
    with make(num_workers=count) as workers, learn(workers, "bulk_sync").run() as run:
        seen = puts(workers)
        for _ in range(6):
            next(run)
        assert len(seen) == 5  # those of the beginning were put when the plan was opened
        assert all(same(policy.weights(), dict(seen[-1])) for policy in acting(workers))


def test_workers_begin_with_the_weights_of_this_process() -> None:
    with make() as workers:
        with torch.no_grad():
            for parameter in workers.policy.parameters:
                parameter += 1
        with ParallelRollouts(workers, steps=2).run() as run:
            next(run)
            assert all(same(policy.weights(), workers.policy.weights()) for policy in acting(workers))


def test_statistics_ride_though_the_version_stays() -> None:
    """O1: they are part of the weights."""
    with make(of={"normalize_obs": True}) as workers:
        rollouts = ParallelRollouts(workers, steps=4)
        with rollouts.for_each(GatherStatistics(workers)).for_each(UpdateStatistics(workers)).run() as run:
            for _ in range(3):
                before = {name: each.mean.clone() for name, each in workers.policy.normalizers.items()}
                batch = next(run)
                for policy in acting(workers):
                    assert all(same(each.mean, before[name]) for name, each in policy.normalizers.items())
            assert batch.policy_version.max() == 0


def test_nothing_is_put_where_nothing_changed() -> None:
    with make() as workers, ParallelRollouts(workers, steps=2).run() as run:
        next(run)
        seen = puts(workers)
        for _ in range(3):
            next(run)
        assert seen == []


def test_workers_act_in_numpy_with_loaded_weights() -> None:
    with make(of={"act_backend": "numpy"}) as workers, learn(workers, "bulk_sync").run() as run:
        for _ in range(4):
            batch, _ = next(run)
            obs = batch.obs[:, :2].reshape(-1, 4)
        policy = acting(workers)[0]
        model = policy.model.value(torch.from_numpy(obs)).detach().numpy()
        np.testing.assert_allclose(policy.collect_mode.value(obs), model, rtol=1e-5, atol=1e-6)


def test_a_policy_without_weights_acts_as_each_process_makes_it() -> None:
    workers = WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(), num_workers=2, envs_per_worker=1)  # type: ignore
    with workers, ParallelRollouts(workers, steps=3).run() as run:
        assert next(run).shape == (3, 2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_learner_elsewhere_publishes_is_acted_with_and_taken_when_asked_for(num_workers: int) -> None:
    """V: the next request acts with it; the policy of this process takes it when somebody wants that."""
    with make(num_workers=num_workers) as workers, ParallelRollouts(workers, steps=2).run() as run:
        next(run)
        learner = workers.new_policy()
        with torch.no_grad():
            learner.parameters[0] += 1
        workers.publish(7, learner.weights())
        assert workers.version == 7
        assert workers._policy.version == 0
        assert set(next(run).policy_version.flat) == {7}
        assert workers.policy.version == 7
        assert same(workers.policy.weights(), learner.weights())
        if num_workers:
            assert all(same(policy.weights(), learner.weights()) for policy in acting(workers))
            seen = puts(workers)
            next(run)
            assert seen == []  # they have it already


def test_a_checkpoint_has_what_was_published() -> None:
    """D3: and a run that is put back forgets what was published since."""
    with make() as workers, ParallelRollouts(workers, steps=2).run() as run:
        next(run)
        learner = workers.new_policy()
        with torch.no_grad():
            learner.parameters[0] += 1
        workers.publish(7, learner.weights())
        state = run.state_dict()
        assert state["resources"]["PPOPolicy"]["version"] == 7
        workers.publish(9, workers.new_policy().weights())
        run.load_state_dict(state)
        assert workers.version == 7
        assert set(next(run).policy_version.flat) == {7}
        assert all(same(policy.weights(), learner.weights()) for policy in [workers.policy, *acting(workers)])


def test_gradients_of_workers_know_their_weights() -> None:
    """F13, V: computed where the experience is, applied here."""
    with make(num_workers=2) as workers:
        plan = AsyncGradients(workers, steps=4).for_each(ApplyGradients(workers, update_all=False))
        with plan.run() as run:
            for _ in range(6):
                next(run)
            lags = [int(lag[0]) for lag in run.context.metrics.drain("policy_lag")]
        assert lags == [0, 1, 1, 1, 1, 1]  # the other worker's were applied meanwhile


# -- who comes and goes


def test_a_process_that_is_made_again_begins_afresh_with_the_newest_weights() -> None:
    """F10: other environments, other streams, episodes of other numbers; for all of its groups, at once."""
    with make(num_workers=2, env_groups=4) as workers, learn(workers, "bulk_sync").run() as run:
        before, _ = next(run)
        others, gone = workers.members[:2], workers.members[2:]
        assert [member.submit("episodes").result() for member in workers.members] == [[]] * 4  # all have the newest
        workers.restart(2)
        for member in gone:
            with pytest.raises(WorkerDied, match=rf"group {member.index} on worker 1 died: a new process has"):
                member.submit("episodes").result()
        assert workers.members[:2] == others
        assert run.counters["cut_episodes"] == 2
        for index, member in list(enumerate(workers.members))[2:]:
            batch = member.submit("sample", 4).result()
            assert set(batch.worker.flat) == {index}
            assert batch.t[0].tolist() == [0]
            assert batch.episode_id.min() >= 1 << 32
            assert set(batch.policy_version.flat) == {workers.policy.version} == {1}
            assert not same(batch.obs, before.obs[:, index : index + 1])


def test_no_life_is_lived_twice() -> None:
    """D6: also not after a resume, whose processes are new ones."""
    firsts = []
    state = None
    for _ in range(3):
        with make() as workers:
            workers.start(Context())
            if state is not None:
                workers.load_state_dict(state)
            workers.restart(0)
            firsts.append(workers.members[0].submit("sample", 2).result())
            state = workers.state_dict()
    assert [int(batch.episode_id[0, 0] >> 32) for batch in firsts] == [1, 2, 3]
    assert len({tuple(batch.obs[0, 0]) for batch in firsts}) == 3


def test_exploration_goes_on_where_the_run_is_after_a_death() -> None:
    """Q7: not at the beginning of the schedule."""

    def told(obs: Any, noise: Any, env_steps: int) -> dict[str, Any]:
        return {"action": np.zeros(len(obs), np.int64), "told": np.full(len(obs), env_steps)}

    workers = WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(told), num_workers=2, envs_per_worker=2)  # type: ignore
    with workers, ParallelRollouts(workers, steps=5).run() as run:
        next(run)
        next(run)
        workers.restart(1)
        part = ParallelRollouts(workers, "raw", steps=2)
        workers.members[1].submit("open_plan", "part", part, ["Rollouts"], 0, 1, "stop").result()
        assert workers.members[1].submit("pull_plan", "part").result()[0].told[:, 0].tolist() == [40, 42]


def test_it_is_made_again_only_so_often() -> None:
    with make(max_restarts=1) as workers:
        workers.start(Context())
        workers.restart(0)
        died = WorkerDied("worker 0", "its machine ran out of memory")
        with pytest.raises(WorkerDied, match="ran out of memory; it was restarted 1 times already") as caught:
            workers.restart(0, died)
        assert caught.value.__cause__ is died
        assert None not in workers.members


def test_or_the_run_goes_on_without_it() -> None:
    """F10: while there is another; all of its groups are gone then."""
    context = Context()
    with make(max_restarts=0, env_groups=4, on_death="go_on") as workers:
        workers.start(context)
        workers.restart(1)
        assert workers.members[:2] == [None, None]
        assert context.counters == {"cut_episodes": 2}
        assert workers.members[3].submit("sample", 2).result().worker[0, 0] == 3
        with pytest.raises(WorkerDied, match="restarted 0 times already"):
            workers.restart(3)


def test_workers_are_added_and_removed() -> None:
    """Members keep their index for ever; what was asked of a removed one is still answered."""
    with make(num_workers=1, env_groups=2) as workers:
        workers.start(Context())
        workers.add()
        assert [member.index for member in workers.members] == [0, 1, 2, 3]
        asked = workers.members[3].submit("sample", 2)
        assert set(asked.result().worker.flat) == {3}
        seen = {tuple(member.submit("sample", 2).result().obs[0, 0]) for member in workers.members}
        assert len(seen) == 4
        workers.remove()
        assert workers.members[2:] == [None, None]
        with pytest.raises(FlowError, match=r"remove\(1\) of 1 workers: at least one"):
            workers.remove()
        with pytest.raises(FlowError, match="there is no worker 3: it was removed"):
            workers.restart(3)
        workers.add()
        assert workers.members[4].submit("sample", 2).result().worker[0, 0] == 4


def test_a_worker_whose_environments_do_not_begin_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """F15: its process ends, and the others go on."""

    def fails(self: Any) -> bool:
        raise ZeroDivisionError

    with make() as workers:
        workers.start(Context())
        monkeypatch.setattr(GroupRunner, "begin", fails)
        with pytest.raises(ZeroDivisionError):
            workers.add()
        assert len(workers.members) == 2
        assert workers._hosts._actors.members[2] is None  # type: ignore[union-attr]
        monkeypatch.undo()
        workers.add()
        assert workers.members[2].submit("sample", 2).result().worker[0, 0] == 2


def test_workers_of_this_process_do_not_come_and_go() -> None:
    with pytest.raises(FlowError, match=r"cannot add workers: this process: .* samples in this process"):
        make(num_workers=0).add()
    with pytest.raises(FlowError, match=r"cannot restart workers: 2 workers .* is not started"):
        make().restart(0)
    with pytest.raises(FlowError, match="no worker is in this process"):
        make().local  # noqa: B018


def test_the_state_says_who_was_removed() -> None:
    """D3: and is that of the same members alone."""
    with make() as workers:
        workers.start(Context())
        whole = workers.state_dict()
        workers.remove()
        state = workers.state_dict()
        assert state["workers"][1] is None
        workers.load_state_dict(state)
        with pytest.raises(CheckpointError, match=r"the state has 2 workers, .* has 2 .of which 1 was removed"):
            workers.load_state_dict(whole)


@pytest.mark.parametrize("num_workers", [2, 4, 0])
def test_a_run_that_went_on_without_a_worker_is_resumed_without_it(num_workers: int) -> None:
    """D3, F10: wherever its groups are now."""

    def opened(**settings: Any) -> tuple[WorkerSet, Any]:
        workers = make(**{"env_groups": 4, "on_death": "go_on", "max_restarts": 0, **settings})
        return workers, ParallelRollouts(workers, steps=4).run(seed=3)

    workers, run = opened(num_workers=4)
    with workers, run:
        next(run)
        workers.restart(1)  # which it may not be
        assert [member is None for member in workers.members] == [False, True, False, False]
        next(run)
        state = run.state_dict()
        then = [next(run) for _ in range(2)]
    policy = partial(PPOPolicy, hidden=(4,), device="cpu")
    envs = 8 // max(num_workers, 1)
    settings = {"num_workers": num_workers, "envs_per_worker": envs, "env_groups": 4, "seed": 3}
    again = WorkerSet("CartPole-v1", policy, **settings)
    with again, ParallelRollouts(again, steps=4).run(seed=3) as run:
        run.load_state_dict(state)
        assert again.members[1] is None
        assert same([next(run) for _ in range(2)], then)
        again.load_state_dict(again.state_dict())
    assert again.members == []


@pytest.mark.parametrize("num_workers", [2, 4, 0])
def test_a_state_without_a_worker_that_hangs_begins_its_episodes_anew(num_workers: int) -> None:
    """D3, F10: in new streams, wherever its group is now; the other groups go on where they were."""
    with make(num_workers=4) as workers, ParallelRollouts(workers, steps=4).run(seed=3) as run:
        next(run)
        hanging = workers._hosts._actors.members[1]  # type: ignore[union-attr]
        hanging.silent, submit, hanging.submit = inf, hanging.submit, lambda *args: Future()
        state = run.state_dict()
        hanging.submit, hanging.silent = submit, 0.0
        then = next(run)
    with make(num_workers=num_workers, envs_per_worker=8 // max(num_workers, 1), env_groups=4) as again:
        with ParallelRollouts(again, steps=4).run(seed=3) as run:
            run.load_state_dict(state)
            assert run.counters["cut_episodes"] == 2
            batch = next(run)
        anew = batch.worker[0] == 1
        assert same(batch[:, ~anew], then[:, ~anew])
        assert (batch.episode_id[:, anew] >= EPISODES_OF_A_LIFE).all()
        assert again.state_dict()["lives"] == {1: 1}


# -- parts of plans


def test_a_part_of_a_plan_is_sent_once_and_runs_there() -> None:
    with make(num_workers=3) as workers:
        plan = ParallelRollouts(workers, "raw", steps=2).for_each(Batch.flat).gather_async()
        sent = []
        with plan.run() as run:
            sent += puts(workers)
            assert next(run).shape == (4,)
            run.load_state_dict(run.state_dict())
            assert next(run).shape == (4,)


def test_what_belongs_to_this_process_is_refused_by_name() -> None:
    with make() as workers:
        raw = ParallelRollouts(workers, "raw", steps=2)
        with pytest.raises(
            PlanError, match=r"StoreToReplay .*test_remote_groups.* holds the ReplayBuffer .* behind the gather"
        ):
            raw.for_each(StoreToReplay(ReplayBuffer(10))).gather_async().run()
        wanted = r"ComputeGradients .* holds the WorkerSet .* or leave the workers out, ComputeGradients\(\)"
        with pytest.raises(PlanError, match=wanted):
            raw.for_each(ComputeGradients(workers)).gather_async().run()


def test_what_cannot_be_pickled_is_refused_by_name() -> None:
    import threading

    lock = threading.Lock()
    with (
        make() as workers,
        pytest.raises(PlanError, match=r"locked .*test_remote.*variable lock.*cannot pickle"),
    ):
        ParallelRollouts(workers, "raw").for_each(lambda batch: lock and batch, name="locked").gather_async().run()


def test_a_part_leaves_its_workers_here() -> None:
    plan = ParallelRollouts(make(), "raw", steps=2).for_each(Batch.flat)
    part = unpacked(packed(plan, ["a", "b"]))
    assert part.on is None
    assert part.inputs[0].on is None
    assert part.inputs[0].op.steps == 2


# -- staleness


def test_every_row_that_is_learned_from_has_a_lag() -> None:
    """V3: by how many versions the weights that made it are older than those that learn from it."""
    seen: list[Batch] = []
    with make(num_workers=3) as workers:
        plan = ParallelRollouts(workers, "async", in_flight=2, steps=4).for_each(TrainOneStep(workers))
        with plan.tap("ParallelRollouts", seen.append).run() as run:
            for _ in range(12):
                next(run)
            lags = np.concatenate(run.context.metrics.drain("policy_lag"))
    expected = np.concatenate([version - batch.policy_version.flatten() for version, batch in enumerate(seen)])
    assert Counter(lags.tolist()) == Counter(expected.tolist())
    assert lags.max() == 5

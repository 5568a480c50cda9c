"""Real deaths: processes of workers and whole machines that are killed while a plan trains with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from flowrl.engine.plan import Plan
from flowrl.engine.workers import members
from flowrl.operators import ParallelRollouts
from flowrl.policies import Policy, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.rollout.remote_groups import RemoteGroup
from flowrl.runs.config import build_config
from flowrl.trainer.plan_file import load_plan_file
from tests.chaos import Workers, results
from tests.plans.small import SMALL

ROOT = Path(__file__).parents[2]


def build(name: str, **settings: Any) -> tuple[WorkerSet, Plan]:
    """A small plan over two workers."""
    plan_file = load_plan_file(name)
    values = {**SMALL[name], "num_workers": 2, "envs_per_worker": 2, "report_every": 40, **settings}
    workers, plan = plan_file.build(build_config(plan_file.Config, values))
    return workers, plan


def collect(workers: WorkerSet, in_flight: int, steps: int = 8) -> Plan:
    return ParallelRollouts(workers, "async", in_flight, steps=steps)


def process_of(resource: Any, member: int) -> int:
    """Where a member of a resource that is made of actors is now."""
    actor = resource._actors.members[member]._actor
    return int(ray._private.state.actors(actor._actor_id.hex())["Pid"])


def policy(*spaces: Any) -> Policy:
    return PPOPolicy(*spaces, hidden=(4,), device="cpu")


@pytest.fixture
def there(tmp_path: Path) -> Workers:
    return Workers(tmp_path)


@pytest.fixture(scope="module")
def two(ray_for_module: None) -> Iterator[WorkerSet]:
    """Two processes, for all tests here that leave them alive."""
    with WorkerSet("CartPole-v1", policy, num_workers=2, envs_per_worker=2) as workers:
        yield workers


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn"])
def test_a_plan_goes_on_after_its_workers_are_killed(name: str, there: Workers) -> None:
    """F10, F12: one after the other; the learner stays, and so do the other worker and all counters."""
    workers, plan = build(name)
    with workers, there.noted(plan).run() as run:
        policies: set[Policy] = set()
        killed = 0
        for _ in results(run, 1200):
            policies.add(workers.policy)
            if killed < 2 and run.counters["env_steps"] > 300 * (killed + 1):
                spared = there.process(1 - killed)
                there.signal(killed)
                killed += 1
        assert there.process(0) == spared, "the worker that was made again first is still there"
        assert len(policies) == 1
        assert run.counters["updates"] == workers.policy.version
        lost = {unit: run.counters[unit] for unit in ("worker_restarts", "lost_requests", "cut_episodes")}
        assert lost == {"worker_restarts": 2, "lost_requests": 2, "cut_episodes": 4}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_ape_x_goes_on_after_a_shard_and_a_worker_are_killed(there: Workers) -> None:
    """F10, F12: the rows of the one shard are counted as lost, those of the other stay; nothing else begins anew."""
    workers, plan = build("apex_dqn", replay_shards=2, buffer_size=4000)
    with workers, there.noted(plan).run() as run, run.resources["ReplayActors"] as memory:
        for _ in results(run, 400):
            pass
        held, updates = memory.rows_of_shards, run.counters["updates"]
        os.kill(process_of(memory, 0), signal.SIGKILL)
        there.signal(1)
        for _ in results(run, 1200):
            pass
        assert run.counters["replay_restarts"] == 1
        assert held[0] <= run.counters["lost_rows"] <= held[0] + 400
        assert memory.rows_of_shards[1] >= held[1], "the other shard"
        assert memory.rows_of_shards[0] > 0
        assert run.counters["worker_restarts"] == 1
        assert run.counters["updates"] == workers.policy.version > updates


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_impala_goes_on_after_a_learner_and_a_worker_are_killed(there: Workers) -> None:
    """F10, F12: the learner that is made again goes on from the newest weights that were answered."""
    workers, plan = build("impala", num_learners=2)
    with workers, there.noted(plan).run() as run:
        learners = run.resources["LearnerGroup"]
        for _ in results(run, 400):
            pass
        updates, spared = run.counters["updates"], process_of(learners, 0)
        assert updates > 0
        os.kill(process_of(learners, 1), signal.SIGKILL)
        there.signal(0)
        for _ in results(run, 1200):
            assert workers.version >= updates
        assert process_of(learners, 0) == spared, "no other learner"
        assert run.counters["learner_restarts"] == run.counters["worker_restarts"] == 1
        assert run.counters["updates"] > updates


@pytest.mark.slow
def test_exactly_the_requests_in_flight_are_lost(
    two: WorkerSet, there: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2, F10: all that was asked for was emitted, waits in the state, or is counted as lost."""
    asked = 0
    submit = RemoteGroup.submit

    def counted(member: RemoteGroup, method: str, *args: Any) -> Any:
        nonlocal asked
        asked += method == "pull_plan"
        return submit(member, method, *args)

    monkeypatch.setattr(RemoteGroup, "submit", counted)
    with there.noted(collect(two, 3)).run() as run:
        for number in range(60):
            next(run)
            if number in (20, 40):
                there.signal(number // 20 - 1)
        pending = len(run.state_dict()["operators"]["ParallelRollouts"]["pending"])
        assert 60 + pending + run.counters["lost_requests"] == asked
        assert run.counters["worker_restarts"] == 2
        assert 2 <= run.counters["lost_requests"] <= 6


@pytest.mark.slow
def test_a_consumer_that_stops_stops_its_producers(two: WorkerSet, there: Workers) -> None:
    """F7: they make at most what was in flight, however long nobody pulls."""
    with there.noted(collect(two, 3)).run() as run:
        for _ in range(10):
            next(run)
        run.state_dict()  # waits for all that was asked for
        made = there.items()
        assert made <= 10 + 2 * 3
        for member in two.members:
            member.submit("episodes").result(30)  # comes after whatever else it was asked
        assert there.items() == made


@pytest.mark.slow
def test_a_worker_that_stands_still_is_named(
    two: WorkerSet, there: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F10: the others go on, nobody is started again, and closing the run does not wait for it."""
    monkeypatch.setattr(members, "LATE_SECONDS", 0.3)
    with there.noted(collect(two, 1)).run() as run:
        while len(list(there.folder.iterdir())) < 2:
            next(run)
        there.signal(1, signal.SIGSTOP)
        try:
            while "has not answered" not in caplog.text:
                next(run)
            assert "ParallelRollouts: worker 1 has not answered for" in caplog.text
            assert "no answer for" in run.explain().partition("; 1: ")[2]
            assert "worker_restarts" not in run.counters
            run.close()
        finally:
            there.signal(1, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_workers_come_and_go_while_a_plan_trains(there: Workers) -> None:
    """F12: what they made is counted once, and learned from with the version that made it."""
    workers, plan = build("a2c")
    with workers, there.noted(plan).run() as run:
        for _ in results(run, 200):
            pass
        first = list(workers.members)
        workers.add()
        for _ in results(run, 500):
            pass
        assert there.process(2) not in (there.process(0), there.process(1))
        workers.remove()
        for _ in results(run, 700):
            pass
        assert workers.members == [*first, None]
        assert {"lost_requests", "worker_restarts"}.isdisjoint(run.counters)


@pytest.mark.slow
def test_a_machine_is_lost(tmp_path: Path) -> None:
    """F10: its workers are made again on another one; here each raylet is a machine."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "lose_a_machine.py", tmp_path],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr

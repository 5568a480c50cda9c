"""Workers that die, come and go under gather_sync and gather_async: what is lost, and what is not."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from flowrl import Plan, from_workers, operator, state, testing
from flowrl.errors import WorkerDied
from flowrl.testing import ManualWorkers, same
from tests.engine.engine_parts import Host, Numbers, Total, answer_all, gathered, hosts, settle


def test_the_death_of_workers_costs_their_requests_and_nothing_else() -> None:
    """F10: under "retry" all may fail at once, counters and the learner go on; each is asked again."""
    workers = ManualWorkers(4, hosts())
    plan = from_workers(workers, Numbers(3)).gather_async().for_each(Total())
    with plan.run(on_error="retry") as run:
        settle(run)
        for index in range(4):
            workers.fail(ConnectionError(f"worker {index} died"))
        assert settle(run) == []
        assert [request.worker for request in workers.requests] == [0, 1, 2, 3]
        assert run.counters == {"retried_items": 4}
        items = []
        while workers.requests:
            workers.answer()
            items += settle(run)
        assert items[-1] == sum(100 * w + i for w in range(4) for i in range(3))
        assert run.counters["env_steps"] == 4 * 3 * 10


def test_a_worker_that_stays_dead_ends_the_run_though_others_answer() -> None:
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(9)).gather_async().run(on_error="retry") as run:
        settle(run)
        for _ in range(2):
            workers.fail(ConnectionError("still dead"), worker=0)
            workers.answer(1)
            settle(run)
        workers.fail(ConnectionError("still dead"), worker=0)
        with pytest.raises(ConnectionError, match="still dead") as caught:
            settle(run)
        assert "in operator gather_async" in caught.value.__notes__[0]


@pytest.mark.parametrize("sync", [False, True])
def test_a_state_is_taken_without_a_worker_that_hangs(sync: bool, caplog: pytest.LogCaptureFixture) -> None:
    """F10: it has what the others have made; where it is loaded, that worker is asked anew and they go on."""
    workers = ManualWorkers(3, hosts())
    with gathered(workers, sync=sync).run() as run:
        settle(run)
        for index in (0, 2):
            workers.answer(index)
        made = settle(run)
        workers.hang(1)
        for request in list(workers.requests):
            if request.worker != 1:
                workers.answer(request.worker)
        state = run.state_dict()
        assert "worker 1 does not answer, so the state is without it" in caplog.text
        assert run.counters.get("worker_restarts") is None, "it may merely be slow"
    fresh = ManualWorkers(3, hosts())
    with gathered(fresh, sync=sync).run() as run:
        run.load_state_dict(state)
        made += answer_all(run, fresh)
    assert sorted(made) == sorted(answered())


def answered() -> list[int]:
    """What three workers make."""
    workers = ManualWorkers(3, hosts())
    with gathered(workers).run() as run:
        return answer_all(run, workers)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_death_costs_the_requests_in_flight_and_nothing_else(in_flight: int) -> None:
    """F10: exactly those are counted as lost; the worker begins anew once, the others go on where they were."""
    workers = ManualWorkers(3, hosts())
    with gathered(workers, in_flight=in_flight).run() as run:
        settle(run)
        for index in (1, 2):
            workers.answer(index)
        assert settle(run) == [100, 200]
        counted = dict(run.counters)
        lost = workers.kill(1)
        assert len(lost) == in_flight
        assert settle(run) == [], "the run goes on"
        assert run.counters == {**counted, "lost_requests": in_flight, "worker_restarts": 1}
        assert workers.restarts == [0, 1, 0]
        assert sum(request.worker == 1 for request in workers.requests) == in_flight, "it is asked again"
        workers.answer(2)
        assert settle(run) == [200 + 201], "its running sum goes on"


def test_all_workers_may_die_at_once() -> None:
    """F10: the run goes on with those in their places; what was counted stays counted."""
    workers = ManualWorkers(4, hosts())
    with gathered(workers, n=2).run() as run:
        settle(run)
        workers.answer(0)
        assert settle(run) == [0]
        for index in range(4):
            workers.kill(index)
        items = answer_all(run, workers)
        assert run.counters == {"env_steps": 90, "lost_requests": 4, "worker_restarts": 4}
        assert len(items) == 8


def test_a_worker_that_dies_idle_is_started_again_when_it_is_asked() -> None:
    """F10: nothing that was answered before is lost."""
    workers = ManualWorkers(2, hosts())
    with gathered(workers).run() as run:
        settle(run)
        workers.answer(0)
        workers.kill(0)
        assert settle(run) == [0]
        assert run.counters["lost_requests"] == 1
        assert [request.worker for request in workers.requests] == [1, 0]


def test_a_round_waits_for_the_worker_that_is_started_again() -> None:
    """F10: gather_sync still gives one item of each worker, in their order."""
    workers = ManualWorkers(2, hosts())
    with gathered(workers, sync=True).run() as run:
        settle(run)
        workers.kill(0)
        workers.answer(1)
        assert settle(run) == []
        workers.answer(0)
        assert len(settle(run)) == 2
        assert run.counters["worker_restarts"] == 1


@operator
class Threes:
    """Sums of three numbers, for `combine`; `held_rows` are the numbers that wait."""

    waiting: list[int] = state(factory=list)

    @property
    def held_rows(self) -> int:
        return len(self.waiting)

    def __call__(self, item: int) -> list[int]:
        self.waiting.append(item)
        if len(self.waiting) < 3:
            return []
        three, self.waiting = self.waiting, []
        return [sum(three)]


@operator
class Twos(Threes):
    """Numbers in pairs: of three that a worker makes for an item, one waits for the next."""

    def __call__(self, item: int) -> list[int]:
        made = super().__call__(item)
        return made or ([item] if len(self.waiting) == 2 else [])


def held(workers: ManualWorkers) -> Plan:
    return from_workers(workers, Numbers(9)).combine(Twos()).gather_async()


def test_what_a_dead_worker_held_is_counted() -> None:
    """F18: also by each of two streams, once, and in a run that went on from a state; what lives loses nothing."""
    workers = ManualWorkers(2, hosts())
    with held(workers).union(held(workers)).run() as run:
        settle(run)
        for index in (0, 0, 1, 1):
            workers.answer(index)
        state = run.state_dict()
        settle(run)
        workers.kill(1)
        settle(run)
        assert run.counters["lost_steps"] == 2 * 2
        answer_all(run, workers)
        assert run.counters["lost_steps"] == 2 * 2, "nobody else died"
    others = ManualWorkers(2, hosts())
    with held(others).union(held(others)).run() as resumed:
        resumed.load_state_dict(state)
        settle(resumed)
        others.kill(0)
        settle(resumed)
        assert resumed.counters["lost_steps"] == 2 * 2


def test_two_streams_of_the_same_workers_start_them_again_once() -> None:
    """F10: whichever notices the death first; both parts of the plan are there again."""
    workers = ManualWorkers(2, hosts())
    first, second = (from_workers(workers, Numbers(2)).gather_async() for _ in range(2))
    with first.union(second).run() as run:
        settle(run)
        assert len(workers.kill(1)) == 2
        items = answer_all(run, workers)
        assert run.counters["worker_restarts"] == 1
        assert run.counters["lost_requests"] == 2
        assert len(items) == 8


def test_a_worker_that_dies_too_often_stops_the_run_by_name() -> None:
    """F9, F10: the error says who and how often, and where in the plan."""
    workers = ManualWorkers(2, hosts(), max_restarts=2)
    with gathered(workers).run() as run:
        for _ in range(2):
            settle(run)
            workers.kill(1)
        settle(run)
        workers.kill(1)
        with pytest.raises(WorkerDied, match="worker 1 died: it was restarted 2 times already") as caught:
            settle(run)
        assert caught.value.__notes__[0].startswith("in operator gather_async (")
        assert run.counters == {"lost_requests": 3, "worker_restarts": 2}


def test_a_run_ends_without_waiting_for_a_worker_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """F15: no machine may ever take it."""
    workers = ManualWorkers(2)
    with from_workers(workers, Numbers(100)).gather_async().run() as run:
        settle(run)
        monkeypatch.setattr(testing, "_AT_ONCE", ("close_plan",))  # who is started again takes its part later
        workers.kill(0)
        settle(run)
        never: Future[None] = Future()
        monkeypatch.setattr(workers.members[0], "submit", lambda *_: never)
        run.close()
    assert not never.done()


@pytest.mark.parametrize("sync", [True, False])
def test_a_run_may_go_on_without_a_worker_that_dies_too_often(sync: bool, caplog: pytest.LogCaptureFixture) -> None:
    """F10: with `on_death="go_on"`, while there is another one."""
    workers = ManualWorkers(2, hosts(), max_restarts=0, on_death="go_on")
    with gathered(workers, sync=sync, n=2).run() as run:
        settle(run)
        workers.kill(0)
        assert answer_all(run, workers) == [100, 201]
        assert run.counters == {"env_steps": 20, "lost_requests": 1}
        assert "gather_" in caplog.text
        assert "worker 0 died: the test killed it; the others go on without it" in caplog.text
    workers = ManualWorkers(1, hosts(), max_restarts=0, on_death="go_on")
    with gathered(workers).run() as run:
        settle(run)
        workers.kill(0)
        with pytest.raises(WorkerDied):
            settle(run)


def test_a_death_is_no_error_of_the_users() -> None:
    """F10: `on_error` has no say in it, and it is no attempt of a "retry"."""
    workers = ManualWorkers(2, hosts())
    with gathered(workers, n=2).run(on_error="retry") as run:
        for _ in range(5):
            settle(run)
            workers.kill(0)
        assert len(answer_all(run, workers)) == 4
        assert "retried_items" not in run.counters


def test_a_death_while_a_state_is_taken_is_in_the_state() -> None:
    """F2, F10: the worker is started again for it; a resume asks it again, and the other's answer is kept."""
    workers, others = ManualWorkers(2, hosts()), ManualWorkers(2, hosts())
    with gathered(workers, n=2).run() as run, gathered(others, n=2).run() as resumed:
        settle(run)
        workers.answer(1)
        workers.kill(0)
        state = run.state_dict()
        assert same(state, run.state_dict()), "D5"
        assert run.counters == {"lost_requests": 1, "worker_restarts": 1}
        resumed.load_state_dict(state)
        for each, asked in ((run, workers), (resumed, others)):
            assert sorted(answer_all(each, asked)) == [0, 1, 100, 201]
            assert each.counters == {"lost_requests": 1, "worker_restarts": 1, "env_steps": 40}


class Environments:
    """A resource that is with a worker, which dies so many times when its state is asked for."""

    def __init__(self, workers: ManualWorkers, deaths: int) -> None:
        self.workers, self.deaths = workers, deaths

    def state_dict(self) -> dict[str, Any]:
        if self.deaths:
            self.deaths -= 1
            self.workers.kill(0)
            self.workers.members[0].submit("state_dict").result()
        return {"lives": self.workers.restarts[0]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is needed here."""


@operator
class Uses:
    environments: Environments

    def __call__(self, item: Any) -> Any:
        return item


def test_a_death_after_its_part_was_saved_is_in_the_state_too() -> None:
    """F10: resources with workers are saved after the parts of the plan; who dies again and again is an error."""
    workers = ManualWorkers(2, hosts())
    environments = Environments(workers, deaths=1)
    with gathered(workers).for_each(Uses(environments)).run() as run:
        state = run.state_dict()
        assert state["resources"] == {"Environments": {"lives": 1}}
        assert state["ledger"]["counters"] == run.counters == {"worker_restarts": 1}
        environments.deaths = 99
        with pytest.raises(WorkerDied):
            run.state_dict()


def test_an_idle_worker_that_died_is_started_again_for_a_state() -> None:
    """F10: also where nobody had asked it anything."""
    workers = ManualWorkers(2, hosts())
    with gathered(workers, n=1).run() as run:
        answer_all(run, workers)
        workers.kill(1)
        state = run.state_dict()
        assert run.counters == {"env_steps": 20, "worker_restarts": 1}
        assert len(state["operators"]["gather_async"]["@workers"]) == 2


@pytest.mark.parametrize("sync", [True, False])
def test_workers_are_added_and_removed_while_a_run_goes_on(sync: bool) -> None:
    """The added one is asked from the next turn on; the answer of the removed one still comes, once."""
    workers = ManualWorkers(2, hosts())
    with gathered(workers, sync=sync, n=2).run() as run:
        settle(run)
        workers.add()
        workers.remove(0)
        items = answer_all(run, workers)
        assert sorted(items) == [0, 100, 200, 100 + 101, 200 + 201][: 6 if sync else 5]
        assert run.counters == {"env_steps": 50}
        state = run.state_dict()
        assert state["operators"][run.paths[id(run.plan)]]["@workers"][0] is None


def test_an_operator_that_fails_to_open_on_a_new_worker_says_why() -> None:
    """F9: not that the worker has no part of the plan, but why it does not."""

    class Refuses(Host):
        def open_plan(self, *args: Any) -> None:
            if self.index == 2:
                raise ImportError("no such package there")
            super().open_plan(*args)

    workers = ManualWorkers(2, Refuses)
    with gathered(workers).run() as run:
        settle(run)
        workers.add()
        with pytest.raises(ImportError, match="no such package there"):
            answer_all(run, workers)

"""gather_sync and gather_async: a plan's part on workers, on futures that the test completes."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from itertools import islice
from typing import Any

import attrs
import pytest
from engine_parts import Fails, Host, InlineWorkers, Noise, Numbers, Total, answer_meanwhile, hosts, settle
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl import Plan, from_workers, gather, hosting, operator, testing
from flowrl.errors import PlanError, WorkerDied
from flowrl.operators.concurrency import Concurrently
from flowrl.remote import Remote
from flowrl.scheduler import Run
from flowrl.testing import ManualWorkers, same


def test_gather_sync_takes_one_item_of_each_worker_in_their_order() -> None:
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(2)).gather_sync().run() as run:
        for expected in ([0, 100], [1, 101]):
            assert settle(run) == []
            workers.answer(1)
            assert settle(run) == [], "the round is not complete"
            workers.answer(0)
            assert settle(run) == expected


def test_gather_sync_goes_on_with_the_workers_that_have_not_ended() -> None:
    def uneven(workers: Any) -> Plan:
        return from_workers(workers, Numbers(3)).filter(lambda i: i < 100 or i == 101)

    assert list(uneven(InlineWorkers(2)).gather_sync()) == [0, 101, 1, 2]
    assert list(uneven(InlineWorkers(2)).gather_sync(list)) == [[0, 101], [1], [2]]


def test_gather_async_gives_what_is_ready() -> None:
    """F7: with as many requests to each worker as were allowed."""
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(9)).gather_async(in_flight=2).run() as run:
        settle(run)
        assert [request.worker for request in workers.requests] == [0, 0, 1, 1]
        workers.answer(1)
        workers.answer(1)
        assert settle(run) == [100, 101]
        assert [request.worker for request in workers.requests] == [0, 0, 1, 1], "F7: never more than 2 each"


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_done_with_an_item_happens_before_its_worker_is_asked_again(sync: bool) -> None:
    """F3: with one request in flight, an operator's effect on item i comes before the request for item i+1."""
    events: list[str] = []

    class Told(Host):
        """A worker that notes when it is asked."""

        def pull_plan(self, key: str) -> Any:
            events.append(f"asked {self.index}")
            return super().pull_plan(key)

    indexes = iter(range(2))
    workers = InlineWorkers(0)
    from flowrl.workers import InlineWorker

    workers.members = [InlineWorker(Told(next(indexes))) for _ in range(2)]
    part = from_workers(workers, Numbers(9))
    gathered = part.gather_sync() if sync else part.gather_async()
    list(islice(gathered.for_each(lambda item: events.append(f"learnt from {item // 100}")).run(), 6))
    for worker in (0, 1):
        own = [event for event in events if event.endswith(str(worker))]
        assert own[:5] == [f"asked {worker}", f"learnt from {worker}"] * 2 + [f"asked {worker}"]


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


@pytest.mark.parametrize("sync", [True, False])
def test_a_request_that_failed_is_sent_again_when_the_run_goes_on(sync: bool) -> None:
    workers = ManualWorkers(2, hosts())
    part = from_workers(workers, Numbers(1))
    with (part.gather_sync() if sync else part.gather_async()).run() as run:
        settle(run)
        workers.fail(ConnectionError("gone"), worker=0)
        workers.answer(1)
        items = []
        with pytest.raises(ConnectionError):
            items += settle(run)
        items += settle(run)
        while workers.requests:
            workers.answer()
            items += settle(run)
        assert sorted(items) == [0, 100]


def test_an_error_of_an_operator_on_a_worker_is_the_operators() -> None:
    """F9: its own path and line, not that of the gather; the policy of the run reaches the workers."""

    def part(workers: Any) -> Plan:
        return from_workers(workers, Numbers(3)).for_each(Fails(1), name="fragile").gather_async()

    with pytest.raises(ValueError, match="cannot do 1") as caught:
        list(part(InlineWorkers(1)))
    assert len(caught.value.__notes__) == 1
    assert caught.value.__notes__[0].startswith("in operator fragile (")
    assert caught.value.__notes__[0].endswith("item 2, input int")
    with part(InlineWorkers(1)).run(on_error={"fragile": "skip"}) as run:
        assert list(run) == [0, 2]
        assert run.counters["skipped_items"] == 1
    with pytest.raises(ValueError, match="cannot do 1"):
        list(part(InlineWorkers(1)).run(on_error="retry"))  # it is not declared pure, so it is not retried


def test_answers_in_flight_are_drained_into_the_state() -> None:
    """F2: across a checkpoint every item of every worker comes once."""
    for sync in (True, False):
        workers, others = ManualWorkers(2, hosts()), ManualWorkers(2, hosts())
        runs = []
        for each in (workers, others):
            part = from_workers(each, Numbers(4)).for_each(Total())
            runs.append((part.gather_sync() if sync else part.gather_async(2)).run())
        run, resumed = runs
        before = settle(run)
        workers.answer(1)
        before += settle(run)
        thread = answer_meanwhile(workers)
        state = run.state_dict()
        thread.join()
        resumed.load_state_dict(state)
        for each, asked in zip(runs, (workers, others)):
            items = list(before) + settle(each)
            while asked.requests:
                asked.answer()
                items += settle(each)
            assert sorted(items) == [0, 1, 3, 6, 100, 201, 303, 406]
            each.close()


def test_counters_of_workers_arrive_once() -> None:
    """F12: through unions, forks, resumes and with operators on several workers."""

    def make() -> Plan:
        a = from_workers(InlineWorkers(2), Numbers(3)).for_each(Noise()).gather_async(2)
        b = from_workers(InlineWorkers(1), Numbers(2)).gather_sync()
        r1, r2 = a.union(b).duplicate(2)
        return Concurrently([r1, r2.batch(3)])

    with make().run() as run:
        list(run)
        total = dict(run.counters)
        drawn = sorted(run.context.ledger.drain("drawn"))
    assert total == {"env_steps": 10 * (2 * 3 + 2), "draws": 6}
    assert drawn == [0, 1, 2, 100, 101, 102]
    for steps in range(0, 20, 3):
        with make().run() as run, make().run() as resumed:
            for _ in range(steps):
                run.step()
            resumed.load_state_dict(run.state_dict())
            list(resumed)
            assert resumed.counters == total


def test_operators_on_workers_have_the_paths_and_streams_of_the_whole_plan() -> None:
    """D6: two parts with operators of equal names draw from different streams."""

    def noise(workers: Any) -> Plan:
        return from_workers(workers, Numbers(2)).for_each(lambda _: 0.0).for_each(Noise()).gather_sync()

    r1, r2 = noise(InlineWorkers(2)).duplicate(2)
    r3, r4 = noise(InlineWorkers(2)).duplicate(2)
    plan = r1.zip(r3).union(r2.zip(r4))
    draws = {value for row in plan for value in row}
    assert len(draws) == 2 * 2 * 2, "four workers' streams, two draws each"


def test_the_state_of_other_workers_is_refused() -> None:
    from flowrl.errors import CheckpointError

    with from_workers(InlineWorkers(2), Numbers(2)).gather_sync().run() as run:
        state = run.state_dict()
    more = from_workers(InlineWorkers(3), Numbers(2)).gather_sync()
    with more.run() as run, pytest.raises(CheckpointError, match="gather_sync has 3 workers, and 2 in it"):
        run.load_state_dict(state)
    with from_workers(InlineWorkers(2), Numbers(2)).for_each(Total()).gather_sync().run() as run:
        with pytest.raises(CheckpointError, match="operators missing in it: Total"):
            run.load_state_dict(state)
        assert len(list(run)) == 4, "nothing was changed"


# -- workers that die, come and go


def gathered(workers: ManualWorkers, *, sync: bool = False, n: int = 9, in_flight: int = 1) -> Plan:
    part = from_workers(workers, Numbers(n)).for_each(Total())
    return part.gather_sync() if sync else part.gather_async(in_flight)


def answer_all(run: Run, workers: ManualWorkers) -> list[Any]:
    """Answer until nobody is asked any more; the items."""
    items = settle(run)
    while workers.requests:
        workers.answer()
        items += settle(run)
    return items


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


# -- where items are, and with which weights they were made


class Store:
    """What takes items where they are; it notes what it was given."""

    takes_remote = True

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, item: Any) -> Any:
        self.given.append(item)
        return item.fetch() if isinstance(item, Remote) else item


def test_items_stay_where_they_were_made_for_who_takes_them_there() -> None:
    """The receipt comes with counters all the same; a tap sees the value, and changes nothing (D4)."""
    for tapped in (False, True):
        workers, store, seen = ManualWorkers(2, hosts(), apart=True), Store(), []
        plan = gathered(workers, n=2)
        plan = (plan.tap("gather_async", seen.append) if tapped else plan).for_each(store)
        with plan.run() as run:
            assert sorted(answer_all(run, workers)) == [0, 1, 100, 201]
            assert run.counters == {"env_steps": 40}
        assert all(isinstance(item, Remote) for item in store.given) is not tapped
        assert seen == (store.given if tapped else [])


def test_items_come_here_for_who_needs_their_values() -> None:
    workers = ManualWorkers(2, hosts(), apart=True)
    with gathered(workers, n=2).for_each(Total()).run() as run:
        assert answer_all(run, workers)[-1] == 0 + 1 + 100 + 201


def test_a_state_holds_the_values_of_items_that_are_elsewhere() -> None:
    """F2: and the run that resumes gives them to who takes both."""
    make = lambda each: gathered(each, n=2, in_flight=2).for_each(Store())  # noqa: E731
    workers, others = ManualWorkers(2, hosts(), apart=True), ManualWorkers(2, hosts(), apart=True)
    with make(workers).run() as run, make(others).run() as resumed:
        settle(run)
        thread = answer_meanwhile(workers)
        state = run.state_dict()
        thread.join()
        assert sorted(answer.receipt.item for answer in state["operators"]["gather_async"]["pending"]) == [
            0,
            1,
            100,
            201,
        ]
        resumed.load_state_dict(state)
        for each, asked in ((run, workers), (resumed, others)):
            assert sorted(answer_all(each, asked)) == [0, 1, 100, 201]


def test_an_item_that_was_lost_elsewhere_is_counted_when_a_state_is_taken() -> None:
    """F10: its worker is asked again."""

    workers = ManualWorkers(1, hosts(), apart=True)

    def lost(_: Any) -> Any:
        raise WorkerDied("machine 3", "it does not answer")

    with gathered(workers, n=2).for_each(Store()).run() as run:
        settle(run)
        request = workers.requests.pop()
        receipt, item = request.do()
        request.future.set_result((receipt, attrs.evolve(item, get=lost)))
        state = run.state_dict()
        assert state["operators"]["gather_async"]["pending"] == []
        assert run.counters == {"lost_requests": 1}
        assert answer_all(run, workers) == [1]


def versions(workers: ManualWorkers, lag: int | None, in_flight: int = 1) -> Plan:
    """Every item makes a version of the weights; items are the versions since theirs was asked for."""

    def train(item: int) -> int:
        workers.version += 1
        return item

    return from_workers(workers, Numbers(99)).gather_async(in_flight, lag).for_each(train)


def test_nothing_leaves_while_a_worker_is_about_to_fall_behind() -> None:
    """max_weight_lag: a worker that has not answered is never more versions behind; who is waited for is named."""
    workers = ManualWorkers(3, hosts())
    with versions(workers, 1).run() as run:
        settle(run)
        workers.answer(0)
        assert settle(run) == [0]
        workers.answer(2)
        assert settle(run) == [], "worker 1 was asked at version 0, and there is version 1"
        workers.answer(0)
        assert settle(run) == []
        text = "; ".join(run.explain().splitlines())
        assert "nothing leaves before the answer of worker 1, which has weights that are max_weight_lag=1" in text
        workers.answer(1)
        assert settle(run)[0] == 200, "of those made with version 0 what came first"


def test_the_oldest_weights_come_first_and_what_is_too_old_is_dropped() -> None:
    """max_weight_lag: the versions between request and emission are within it; the rest is counted, its steps too."""
    workers = ManualWorkers(4, hosts())
    with versions(workers, 1).run() as run:
        settle(run)
        for index in range(4):
            workers.answer(index)
        assert settle(run) == [0, 100], "lags 0 and 1; the others would have had 2"
        assert run.counters == {"env_steps": 40, "discarded_items": 2}
        assert [request.worker for request in workers.requests] == [0, 1, 2, 3], "all are asked again"


@given(data=st.data(), lag=st.integers(0, 4), count=st.integers(1, 5), in_flight=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_lag_of_every_item_is_within_its_bound(data: Any, lag: int, count: int, in_flight: int) -> None:
    """F3, F2, max_weight_lag, whatever comes first: every item emitted or counted as dropped, and none is too old."""
    workers = ManualWorkers(count, hosts())
    made: dict[int, int] = {}  # the version with which each item was asked for
    every = data.draw(st.integers(1, 4))
    lags: list[int] = []

    def train(item: int) -> int:
        lags.append(workers.version - made[item])
        workers.version += len(lags) % every == 0
        return item

    with from_workers(workers, Numbers(6)).gather_async(in_flight, lag).for_each(train).run() as run:
        settle(run)
        while workers.requests:
            worker = data.draw(st.sampled_from(sorted({request.worker for request in workers.requests})))
            number = sum(item // 100 == worker for item in made)
            made[100 * worker + number] = workers.answer(worker).version
            settle(run)
        assert all(each <= lag for each in lags)
        assert len(lags) + run.counters.get("discarded_items", 0) == 6 * count
        assert run.counters["env_steps"] == 60 * count


def test_a_dead_worker_does_not_hold_the_others_back() -> None:
    """F10, max_weight_lag: it is asked again with the newest weights."""
    workers = ManualWorkers(2, hosts())
    with versions(workers, 1).run() as run:
        settle(run)
        workers.answer(0)
        settle(run)
        workers.answer(0)
        assert settle(run) == []
        workers.kill(1)
        assert settle(run) == [1]


def test_a_bound_on_the_lag_needs_versions() -> None:
    part = from_workers(ManualWorkers(1, hosts()), Numbers(1))
    with pytest.raises(PlanError, match="max_weight_lag >= 0 or None, got -1"):
        part.gather_async(1, -1)
    with pytest.raises(PlanError, match="InlineWorkers has no versions of weights for max_weight_lag"):
        from_workers(InlineWorkers(1), Numbers(1)).gather_async(1, 2)


# -- seeing


def test_a_slow_worker_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F10: once in the log, and in the explanation of the run; closing the run does not wait for it."""
    now = 0.0
    for module in (gather, hosting):
        monkeypatch.setattr(module, "clock", lambda: now)
    workers = ManualWorkers(3, hosts())
    with gathered(workers, n=99).run() as run:
        settle(run)
        for _ in range(40):
            now += 0.5
            workers.answer(0)
            workers.answer(1)
            settle(run)
        assert caplog.text.count("worker 2 has not answered for") == 1
        assert "worker 2 has not answered for 10 s; requests usually take 0.5 s" in caplog.text
        report = run.explain()
        assert "workers of gather_async: 0: 40 items, 1 request, 0.5 s each; 1: 40 items" in report
        assert "2: 0 items, 1 request, no answer for 20 s" in report
        member = workers.members[2]
        assert member is not None
        monkeypatch.setattr(member, "submit", lambda *args: Future())


def test_many_slow_workers_are_one_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: with how long the slowest has not answered."""
    now = 0.0
    for module in (gather, hosting):
        monkeypatch.setattr(module, "clock", lambda: now)
    workers = ManualWorkers(4, hosts())
    with gathered(workers, n=99).run() as run:
        settle(run)
        now = 0.5
        workers.answer(2)
        settle(run)
        for now in map(float, range(1, 13)):
            workers.answer(0)
            if now <= 2:
                workers.answer(3)
            settle(run)
        now += 3
        workers.answer(0)
        settle(run)
        lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
        assert [line.partition(";")[0] for line in lines] == [
            "worker 1, 2 has not answered for 11 s",
            "worker 3 has not answered for 13 s",
        ]
        for place in (1, 2, 3):
            workers.answer(place)


def test_the_cost_of_an_item_does_not_grow_with_the_requests_in_flight() -> None:
    """No part of a step looks at every request: so many calls an item, with 10 workers or with 1000."""

    def calls(count: int) -> float:
        workers = ManualWorkers(count, hosts())
        with from_workers(workers, Numbers(99)).gather_async().run() as run:
            settle(run)
            made, items = 0, 20

            def count_calls(frame: Any, event: str, _: Any) -> None:
                nonlocal made
                made += event in ("call", "c_call")

            for _ in range(items):
                request = workers.requests.pop()
                result = request.do()
                sys.setprofile(count_calls)
                request.future.set_result(result)
                run.step()
                sys.setprofile(None)
            return made / items

    few, many = calls(10), calls(1000)
    assert many <= 1.5 * few

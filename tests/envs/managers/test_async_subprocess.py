"""AsyncSubprocessEnvManager: who answers when, and that every answer is matched with its question."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.envs import AsyncSubprocessEnvManager, EnvManager
from flowrl.errors import ConfigError, EnvFault, FlowError
from tests.clock_envs import BOTH, TERMINATED, TRUNCATED, ClockEnv, DictClockEnv, EchoEnv, clock_envs
from tests.faulty_envs import BUSY, Player, footprint, one_faulty
from tests.managers import Collector

TABLE = [
    [(3, TERMINATED), (1, BOTH), (2, TRUNCATED)],
    [(2, TRUNCATED), (2, TERMINATED)],
    [(1, TERMINATED), (1, TRUNCATED), (4, BOTH)],
    [(5, TERMINATED)],
]


class GatedEnv(EchoEnv):
    """An EchoEnv that takes a step only when the test lets it: each takes a byte out of its pipe."""

    def __init__(self, index: int, gate: int, length: int = 3) -> None:
        super().__init__(index, [(length, TERMINATED)])
        self.gate = gate

    def step(self, action: Any) -> Any:
        os.read(self.gate, 1)
        return super().step(action)


class Gates:
    """Asynchronous GatedEnvs; `let` one take some steps, or `open` its gate for one and wait for the answer."""

    def __init__(self, num_envs: int, **options: Any) -> None:
        self._pipes = [os.pipe() for _ in range(num_envs)]
        factories = [functools.partial(GatedEnv, i, gate) for i, (gate, _) in enumerate(self._pipes)]
        self.manager = AsyncSubprocessEnvManager(factories, **options)

    def open(self, env_id: int) -> None:
        self.let(env_id)
        assert self.manager._crew.processes[env_id].orders.poll(5)

    def let(self, env_id: int, steps: int = 1) -> None:
        os.write(self._pipes[env_id][1], b"x" * steps)

    def __enter__(self) -> Any:
        self.manager.launch(0)
        return self, self.manager

    def __exit__(self, *exc_info: object) -> None:
        for env_id in range(len(self._pipes)):
            self.let(env_id, 99)
        self.manager.close()
        for pipe in self._pipes:
            for end in pipe:
                os.close(end)


def asynchronous(kind: Any = ClockEnv, noisy: bool = True, **options: Any) -> AsyncSubprocessEnvManager:
    return AsyncSubprocessEnvManager(
        [functools.partial(kind, i, ends, noisy) for i, ends in enumerate(TABLE)], **options
    )


def test_only_answers_are_handed_out_and_only_the_ready_act() -> None:
    """T11: who has not answered keeps what it acted from, and its new action is not read."""
    with Gates(3, wait_num=1) as (gates, manager):
        assert manager.ready.tolist() == [True] * 3
        gates.let(1)
        first = manager.step([10, 20, 30])
        assert first.acted.tolist() == manager.ready.tolist() == [False, True, False]
        assert first.next_obs[1].tolist() == [1, 20, 1001]
        assert list(manager.ready_obs) == [1]
        assert (manager.t.tolist(), manager.obs[:, 2].tolist()) == ([0, 1, 0], [1000, 1001, 1000])
        gates.let(2)
        second = manager.step([99, 21, 99])
        assert second.acted.tolist() == [False, False, True]
        assert second.next_obs[2].tolist() == [2, 30, 1001]  # the action of the first step
        gates.let(0)
        third = manager.step([99, 99, 31])
        assert third.next_obs[0].tolist() == [0, 10, 1001]
        gates.let(1)
        assert manager.step([11, 99, 99]).next_obs[1].tolist() == [1, 21, 1002]
        assert manager.t.tolist() == [1, 2, 1]


def test_a_step_waits_for_so_many() -> None:
    with Gates(4, wait_num=3) as (gates, manager):
        for env_id in (0, 2, 3):
            gates.let(env_id)
        assert manager.step([0, 0, 0, 0]).acted.tolist() == [True, False, True, True]
        gates.open(1)  # its answer is there, and counts among three
        for env_id in (0, 2):
            gates.let(env_id)
        acted = manager.step([0, 0, 0, 0]).acted
        assert acted[1]
        assert acted.sum() == 3


def test_a_step_is_left_when_its_time_is_over_but_never_without_an_answer() -> None:
    with Gates(3, wait_num=3, wait_seconds=0.2) as (gates, manager):
        gates.let(2)
        start = time.monotonic()
        assert manager.step([0, 0, 0]).acted.tolist() == [False, False, True]
        assert time.monotonic() - start >= 0.2
    with Gates(2, wait_num=2, wait_seconds=0.0, step_timeout=0.4) as (_, manager):
        result = manager.step([0, 0])  # nobody ever answers: the deadline does
        assert not result.acted.any()
        assert manager.drain_faults()[0].kind == "timeout"


def test_several_in_one_process_answer_together() -> None:
    with asynchronous(envs_per_process=2, wait_num=1, noisy=False) as manager:
        manager.launch(0)
        for step in range(20):
            acted = manager.step(np.full(4, step)).acted
            assert acted[0] == acted[1]
            assert acted[2] == acted[3]


@pytest.mark.parametrize("kind", [ClockEnv, DictClockEnv])
def test_each_environments_transitions_are_those_of_the_manager_in_this_process(kind: Any) -> None:
    """T3, T11, S1: in whatever order they come; episodes and their seeds too."""
    make = clock_envs(TABLE, noisy=True, kind=kind)
    with asynchronous(kind) as manager, EnvManager([make() for _ in TABLE]) as reference:
        rows = []
        for each in (manager, reference):
            each.launch(3)
            rows.append(Collector(each, act=lambda obs: 0).until(12))
        assert rows[0] == rows[1]
        ours = {(episode.env_id, episode.episode_id): episode for episode in manager.finished}
        for episode in reference.finished:
            assert ours.get((episode.env_id, episode.episode_id), episode) == episode


@given(order=st.lists(st.sampled_from(range(3)), min_size=20, max_size=20))
@settings(max_examples=8)
def test_any_order_of_answers_is_matched(order: list[int]) -> None:
    """T11: an environment that echoes its action and its clock proves every pairing."""
    with Gates(3, wait_num=1, step_timeout=10) as (gates, manager):
        player = Player(manager)
        for env_id in order:
            gates.let(env_id)
            player.play(1)
        assert sum(player.counts) == len(order)
        assert player.counts == [order.count(i) for i in range(3)]
        finished = sum(episode.length for episode in manager.finished)
        assert sum(player.counts) == finished + manager.t.sum()


# -- answers due


def test_a_state_keeps_the_answers_that_were_due() -> None:
    """D3, D5, T11: it waits for them, and the next step hands them out, here and where it is loaded."""
    with Gates(3, wait_num=1) as (gates, manager), Gates(3, wait_num=1) as (_, resumed):
        gates.let(1)
        manager.step([10, 20, 30])
        for env_id in (0, 2):
            gates.let(env_id)
        state = manager.state_dict()
        assert manager.ready.tolist() == [False, True, False]
        np.testing.assert_equal(state, manager.state_dict())
        resumed.load_state_dict(state)
        for each in (manager, resumed):
            assert each.ready.tolist() == [False, True, False]
            assert each.t.tolist() == [0, 1, 0]
            result = each.step([99, 21, 99])
            assert result.acted.tolist() == [True, False, True]
            assert result.next_obs[[0, 2]].tolist() == [[0, 10, 1001], [2, 30, 1001]]
        gates.let(1, 9)  # those that were loaded go through the gates that they were saved with


def test_a_resumed_run_goes_on_exactly() -> None:
    """D3: with answers due that end episodes, on a manager that runs already, and in one never launched."""
    with (
        asynchronous(wait_num=1) as manager,
        asynchronous(wait_num=4) as reference,
        asynchronous(wait_num=4) as resumed,
    ):
        manager.launch(5)
        for _ in range(9):
            manager.step([0, 0, 0, 0])
        state = manager.state_dict()
        rows = []
        for each in (reference, resumed):
            each.load_state_dict(state)
            rows.append([])
            for _ in range(8):
                result = each.step([0, 0, 0, 0])
                rows[-1].append([result.acted.tolist(), result.next_obs[result.acted].tolist(), each.obs.tolist()])
        assert rows[0] == rows[1]
        assert all(all(acted) for acted, *_ in rows[0][1:])
        assert reference.finished == resumed.finished
        assert reference.cut_episodes == resumed.cut_episodes == 0


class SlowThird(ClockEnv):
    def step(self, action: Any) -> Any:
        if self.index == 2:
            time.sleep(0.1)
        return super().step(action)


def test_seed_reaches_the_coming_episodes_and_not_those_begun() -> None:
    """T3: also where the answer that ended an episode is still due, and the next one has begun with the old stream."""
    make = clock_envs(TABLE, noisy=True)
    with asynchronous(SlowThird, wait_num=1) as manager, EnvManager([make() for _ in TABLE]) as reference:
        collectors = [Collector(manager), Collector(reference)]
        for each in collectors:
            each.manager.launch(3)
            each.step()
        assert not manager.ready[2]  # whose first episode is one step long
        for each in collectors:
            each.manager.seed(9)
        ours, theirs = (each.until(9)[2] for each in collectors)
        assert ours == theirs


@pytest.mark.parametrize("what", ["reset", "close"])
def test_answers_due_are_waited_for_and_dropped(what: str) -> None:
    """F15: reset and close with requests in flight."""
    before = footprint()
    with Gates(3, wait_num=1, step_timeout=10) as (gates, manager):
        gates.let(1)
        manager.step([10, 20, 30])
        for env_id in range(3):
            gates.let(env_id, 2)
        if what == "reset":
            manager.reset(4)
            assert manager.cut_episodes == 3
            assert manager.ready.all()
            assert (manager.t.tolist(), manager.obs[:, 2].tolist()) == ([0, 0, 0], [2001, 2001, 2001])
            player = Player(manager)
            player.play(1)
            assert manager.drain_faults() == []
    del gates, manager
    assert footprint() == before


def test_one_that_hangs_as_the_manager_closes_is_killed() -> None:
    """F15."""
    before = footprint()

    class Hangs(ClockEnv):
        def step(self, action: Any) -> Any:
            if self.index == 1:
                time.sleep(3600)
            return super().step(action)

    manager = asynchronous(Hangs, wait_num=1, step_timeout=0.5, reset_timeout=0.5)
    manager.launch(0)
    manager.step([0, 0, 0, 0])
    start = time.monotonic()
    manager.close()
    assert time.monotonic() - start < BUSY
    del manager
    assert footprint() == before


# -- faults


def test_others_go_on_while_one_is_renewed(tmp_path: Path) -> None:
    """The time limit of one costs the others nothing."""
    with AsyncSubprocessEnvManager(one_faulty("step", "c_block", tmp_path), wait_num=1, step_timeout=1.0) as manager:
        manager.launch(0)
        player = Player(manager)
        while not manager._faults._new:
            player.play(1)
        assert min(count for i, count in enumerate(player.counts) if i != 1) > 5
        player.until(player.counts[1] + 8)
        [fault] = manager.drain_faults()
        assert (fault.env_id, fault.kind, fault.collateral) == (1, "timeout", ())
        assert manager.cut_episodes == 1


def test_a_fault_in_flight_is_kept_in_the_state() -> None:
    """What was lost is answered by the next step, as no transition."""
    with Gates(2, wait_num=1, step_timeout=0.4) as (gates, manager):
        gates.let(0)
        manager.step([0, 0])
        state = manager.state_dict()  # environment 1 is over its time limit
        assert manager.cut_episodes == 1
        assert manager.ready.tolist() == [True, False]
        manager.load_state_dict(state)
        gates.let(0)
        acted = manager.step([1, 1]).acted
        assert not acted[1]
        assert manager.ready[1]
        for env_id in (0, 1):
            gates.let(env_id, 2)
        assert manager.step([5, 6]).acted.any()
        assert [fault.env_id for fault in manager.drain_faults()] == [1]


def test_past_max_retry_what_others_finished_is_kept() -> None:
    with AsyncSubprocessEnvManager(
        [functools.partial(Bad, i, [(1 + 99 * i, TERMINATED)]) for i in range(2)], max_retry=0, wait_num=2
    ) as manager:
        manager.launch(0)
        with pytest.raises(EnvFault, match=r"environment 1, episode 0 .*step 0: exception during step"):
            manager.step([0, 0])
        assert [episode.env_id for episode in manager.drain()] == [0]
        with pytest.raises(FlowError, match="call reset"):
            manager.step([0, 0])
        manager.reset()
        assert manager.ready.all()


class Bad(ClockEnv):
    def step(self, action: Any) -> Any:
        if self.index == 1:
            raise ArithmeticError
        return super().step(action)


@pytest.mark.parametrize("options", [{"wait_num": 0}, {"wait_num": 5}, {"wait_seconds": -1}, {"envs_per_process": 0}])
def test_bad_settings_are_refused(options: Any) -> None:
    [(name, value)] = options.items()
    with pytest.raises(ConfigError, match=f"{name}={value}: expected"):
        asynchronous(**options)

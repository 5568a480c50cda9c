"""Adders over the fragments of games, whose seats have different numbers of rows, also none."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

from flowrl.data import Batch, EpisodeReplayBuffer, ReplayBuffer, SequenceReplayBuffer
from flowrl.data.running_returns import Running, running_returns
from flowrl.operators import GAE, Episodes, NStep, ParallelRollouts, StoreToReplay, Unroll, VTrace
from flowrl.policies import A2CPolicy
from flowrl.rollout import WorkerSet
from tests.games import AGENTS, ARRANGEMENTS, Following, by_hand, read

HOW = ARRANGEMENTS["memory"]


def fragments(count: int = 40, steps: int = 2) -> list[Batch]:
    """Of three games, so short that some seats have no row, among them the first."""
    with HOW.worker() as worker:
        found = [worker.sample(steps) for _ in range(count)]
    rows = np.array([batch.mask.sum(0).tolist() for batch in found])
    assert (rows[:, 0] == 0).any()
    return found


def seats(batch: Batch) -> list[tuple[Any, Batch]]:
    """The seat and the real rows of each column."""
    found = []
    for column in range(batch.reward.shape[1]):
        seat = int(batch.env_id[0, column]), int(batch.agent[0, column])
        found.append((seat, batch[:, column][np.flatnonzero(batch.mask[:, column])]))
    return found


def test_episodes_are_the_whole_ones_of_each_seat() -> None:
    """M4, M5, H5, T7: over fragments, in which a seat may have no turn."""
    adder, found = Episodes(), dict[Any, Any]()
    for batch in fragments():
        done = adder(batch)
        for seat, rows in seats(done) if len(done) else []:
            key = *seat, int(rows.episode_id[0])
            assert key not in found
            found[key] = [row for _, row in read(rows, "default_policy")]
    played = {(env_id, k): by_hand(HOW, env_id, k) for env_id in range(3) for k in range(3)}
    for (env_id, k), hand in played.items():
        for agent, rows in hand.rows.items():
            assert found.pop((env_id, AGENTS.index(agent), k), []) == [row._replace(at=0) for row in rows]


def test_unrolls_hold_every_step_once() -> None:
    """N6, N7, T8: pieces of one seat's episode, in their order, with the state of their first step."""
    adder, pieces = Unroll(length=3, last="pad"), dict[Any, Any]()
    given: dict[Any, Any] = {}
    for batch in [*fragments(), None]:
        for made in [adder(batch)] if batch is not None else adder.finish():
            for seat, rows in seats(made) if made.reward.shape[1] else []:
                assert len(set(rows.episode_id.tolist())) == 1
                assert (np.diff(rows.t) == 1).all()
                pieces.setdefault(seat, []).extend(read(rows, ""))
                whole = len(rows) == 3
                assert whole or batch is None or (rows.terminated | rows.truncated)[-1]
        for seat, rows in seats(batch) if batch is not None else []:
            given.setdefault(seat, []).extend(read(rows, ""))
    assert pieces == given


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_replayed_sequences_and_episodes_are_those_of_whole_games(steps: int) -> None:
    """M5, N7, H5, T8, D3: cut from each seat's rows as the loop has them, with the actor's memory, whatever fragments
    they came in.
    """
    in_sequences, whole = SequenceReplayBuffer(2000, length=3, seed=0), EpisodeReplayBuffer(2000, seed=0)
    for batch in fragments(84 // steps, steps):
        in_sequences.add(batch)
        whole.add(batch)
        in_sequences, whole = pickle.loads(pickle.dumps((in_sequences, whole)))
    for buffer, length in ((in_sequences, 3), (whole, 99)):
        found, expected = dict[Any, Any](), dict[Any, Any]()
        drawn = buffer.sample(3000)
        for seat, rows in seats(drawn):
            found[*seat, int(rows.episode_id[0]), int(rows.t[0])] = [row for _, row in read(rows, "default_policy")]
        for env_id in range(3):
            for episode in range(max(each[2] for each in found if each[0] == env_id)):
                for agent, rows in by_hand(HOW, env_id, episode).rows.items():
                    for t in range(0, len(rows), length):
                        key = env_id, AGENTS.index(agent), episode, t
                        # Every step of a drawn sequence has the state of the first: the learner unrolls from it (T8).
                        expected[key] = [row._replace(at=0, state=rows[t].state) for row in rows[t : t + length]]
        assert len(expected) > 50
        assert {key: rows for key, rows in found.items() if key in expected} == expected


def test_advantages_are_those_of_a_loop_over_each_seat() -> None:
    """G1, T5, T7, M1: from own turn to own turn; padding gets 0."""
    for batch in fragments(12, 7):
        with_advantages = GAE(gamma=0.9, lam=0.7)(batch)
        assert not with_advantages.advantage[~batch.mask].any()
        for _, rows in seats(with_advantages):
            trace = 0.0
            for i in reversed(range(len(rows))):
                end = rows.terminated[i] or rows.truncated[i]
                delta = rows.reward[i] + 0.9 * rows.next_value[i] * (not rows.terminated[i]) - rows.value[i]
                trace = delta + (0.0 if end else 0.9 * 0.7 * trace)
                np.testing.assert_allclose(rows.advantage[i], trace, rtol=1e-5)
                np.testing.assert_allclose(rows.target[i], trace + rows.value[i], rtol=1e-5)


def test_corrected_advantages_are_those_of_each_seat_alone() -> None:
    """V1, V2, M5: padding, and other seats beside, change nothing."""
    settings: dict[str, Any] = {"env_groups": 1, "envs_per_worker": 3, "seed": 3}
    with WorkerSet("flowrl:tic_tac_toe", partial(A2CPolicy, hidden=(8,), device="cpu", seed=1), **settings) as workers:
        workers.start()
        batch = workers.sample(7)
        correct = VTrace(workers, gamma=0.9, lam=0.7)
        together = correct(batch)
    assert not together.advantage[~together.mask].any()
    for column, (_, rows) in enumerate(seats(batch)):
        alone = correct(rows.select([name for name in rows if name != "mask"])[:, None])
        for name in ("advantage", "target"):
            np.testing.assert_allclose(together[name][: len(rows), column], alone[name][:, 0], atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_windows_are_those_of_a_loop_over_each_seat(steps: int) -> None:
    """N1, N2, N3, M5, D3: every step begins one, of at most n steps of its episode, over fragments of any length."""
    adder, found, given = NStep(n=3, gamma=0.5), dict[Any, Any](), dict[Any, list[Any]]()
    for batch in [*fragments(42 // steps, steps), None]:
        for made in [adder(batch)] if batch is not None else adder.finish():
            for i in range(len(made)):
                row = made[i]
                key = int(row.env_id), int(row.agent), int(row.episode_id), int(row.t)
                assert key not in found
                found[key] = row
        for seat, rows in seats(batch) if batch is not None else []:
            given.setdefault(seat, []).extend(rows[i] for i in range(len(rows)))
        adder = pickle.loads(pickle.dumps(adder))
    for seat, of in given.items():
        for i, first in enumerate(of):
            last, reward = i, first.reward
            while last - i < 2 and last + 1 < len(of) and not (of[last].terminated or of[last].truncated):
                last += 1
                reward += 0.5 ** (last - i) * of[last].reward
            window: Any = found.pop((*seat, int(first.episode_id), int(first.t)))
            assert window.reward == reward
            assert window.discount == 0.5 ** (last - i + 1) * (not of[last].terminated)
            assert (window.terminated, window.truncated) == (of[last].terminated, of[last].truncated)
            np.testing.assert_array_equal(window.next_obs, of[last].next_obs)
            np.testing.assert_array_equal(window.obs, first.obs)
    assert not found


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_running_returns_are_those_of_a_loop_over_each_seat(steps: int) -> None:
    """O3, M5: over fragments of any length, also where a seat has no turn in one."""
    running: Running = {}
    so_far, counted = dict[Any, float](), 0
    for batch in fragments(42 // steps, steps):
        with_returns = batch.replace(returns=running_returns(batch, 0.9, running))
        for seat, rows in seats(with_returns):
            for i in range(len(rows)):
                so_far[seat] = rows.reward[i] + 0.9 * so_far.get(seat, 0.0)
                assert rows.returns[i] == so_far[seat]
                counted += 1
                if rows.terminated[i] or rows.truncated[i]:
                    so_far[seat] = 0.0
    assert counted > 100


def test_replay_stores_the_rows_of_all_seats() -> None:
    """M4, T6: without padding, with the true next observations."""
    settings: dict[str, Any] = {"env_groups": 1, "envs_per_worker": 3, "seed": 3}
    with WorkerSet(HOW.game, lambda *_: Following(), **settings) as workers:  # type: ignore[arg-type, return-value]
        buffer, stored = ReplayBuffer(1000, seed=0), list[Batch]()
        plan = ParallelRollouts(workers, rows=20).tap("ParallelRollouts", stored.append).for_each(StoreToReplay(buffer))
        with plan.run() as run:
            for _ in range(5):
                next(run)
            env_steps = run.counters["env_steps"]
            assert env_steps == workers.local.env_steps < len(buffer)
            assert run.counters["inserted"] == len(buffer) == sum(map(len, stored)) >= 100
        whole = Batch.cat(stored)
        drawn = buffer.sample(200)
        for name in ("obs", "next_obs", "reward", "terminated", "agent", "t"):
            np.testing.assert_array_equal(drawn[name], whole[name][drawn["index"]])


@pytest.mark.parametrize("operator", [Episodes(), Unroll(length=2), NStep(n=2, gamma=0.9)])
def test_a_fragment_in_which_nobody_of_a_seat_acts_is_nothing_to_it(operator: Any) -> None:
    """N6: the first column too."""
    zeros = np.zeros((3, 2))
    mask = np.array([[False, True]] * 3)
    ends = np.array([[0, 0], [0, 1], [0, 0]])
    batch = Batch(
        reward=zeros,
        t=np.array([[0, 0], [0, 1], [0, 0]]),
        terminated=ends,
        truncated=zeros,
        next_obs=zeros,
        mask=mask,
        env_id=zeros,
        agent=[[0, 1]] * 3,
    )
    made = operator(batch)
    assert not (made["agent"][made["mask"]] if "mask" in made else made["agent"]).tolist().count(0)
    if isinstance(operator, Episodes):
        assert made.mask.sum(0).tolist() == [2]

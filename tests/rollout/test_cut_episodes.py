"""What an episode that a fault cut is downstream: it stops as if it were truncated, and bootstraps from there.

Its rows carry no flag; that the next row of its environment has another `episode_id` says it. So whatever learns from
a stream with cuts must make of it what it makes of the same stream with `truncated` set there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.data import (
    Batch,
    EpisodeReplayBuffer,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.data.advantages import with_v_trace
from flowrl.data.columns import PLACE
from flowrl.operators import GAE, Episodes, NStep, Unroll
from flowrl.rollout import RolloutWorker
from tests.clock_envs import TERMINATED, TRUNCATED, Table, clock_envs
from tests.scheduled_manager import ScheduledManager
from tests.scripted import ScriptedPolicy

TABLE: Table = [[(3, TERMINATED), (5, TRUNCATED)], [(9, TRUNCATED)], [(2, TERMINATED), (30, TERMINATED)]]


def act(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> dict[str, np.ndarray]:
    return {"action": obs[:, 2].astype(np.int64) % 1000, "logp": np.float32(-0.5) - obs[:, 0] / 8}


def stream(faults: Any, steps: list[int]) -> list[Batch]:
    make = clock_envs(TABLE)
    manager = ScheduledManager([make() for _ in TABLE], [[0], [1, 2], [0, 2]], faults, max_retry=50)
    worker = RolloutWorker(manager, ScriptedPolicy(act, with_value=True), seed=0)  # type: ignore[arg-type]
    return [worker.sample(n) for n in steps]


def marked(fragments: list[Batch]) -> list[Batch]:
    """The same stream with `truncated` where an episode was cut, by the obvious loop."""
    copies = [fragment.map(np.copy) for fragment in fragments]
    for env in range(3):
        before: tuple[Batch, int] | None = None
        for fragment in copies:
            for t in range(len(fragment)):
                if before is not None:
                    last, at = before
                    ended = last.terminated[at, env] or last.truncated[at, env]
                    if last.episode_id[at, env] != fragment.episode_id[t, env] and not ended:
                        last.truncated[at, env] = True
                before = fragment, t
    return copies


cuts = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 14)), min_size=1, max_size=6)
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)
over_streams = given(faults=cuts, steps=lengths)


def rows_of(batches: list[Batch]) -> list[Any]:
    """The rows of all batches without `truncated`, in an order that does not depend on when they were given."""
    found = []
    for batch in batches:
        flat = batch if batch.reward.ndim == 1 else batch.flat()
        for i in range(len(flat)):
            if "mask" not in flat or flat.mask[i]:
                row = {name: np.asarray(flat[name][i]).tolist() for name in flat if name != "truncated"}
                found.append(sorted(row.items()))
    return sorted(found, key=lambda row: [dict(row)[name] for name in ("env_id", "episode_id", "t")])


def through(adder: Any, fragments: list[Batch]) -> list[Batch]:
    return [*map(adder, fragments), *(adder.finish() if hasattr(adder, "finish") else [])]


def v_trace_of(batch: Batch) -> Batch:
    return with_v_trace(batch, batch.logp + np.float32(0.25), gamma=0.9, lam=0.8)


ADDERS: dict[str, Callable[[], Any]] = {
    "GAE": lambda: GAE(gamma=0.9, lam=0.8),
    "v_trace": lambda: v_trace_of,
    "NStep": lambda: NStep(n=3, gamma=0.9),
    "Unroll drop": lambda: Unroll(length=2),
    "Unroll pad": lambda: Unroll(length=3, last="pad"),
    "Unroll last": lambda: Unroll(length=3, last="last", burn_in=1),
}


@pytest.mark.parametrize("name", ADDERS)
@over_streams
@settings(max_examples=15)
def test_adders_stop_there_and_bootstrap(name: str, faults: Any, steps: list[int]) -> None:
    """T7, N1, N3, N7, V1: advantages, windows and sequences are those of a truncated episode."""
    fragments = stream(faults, steps)
    made, expected = (through(ADDERS[name](), each) for each in (fragments, marked(fragments)))
    assert rows_of(made) == rows_of(expected)


@over_streams
@settings(max_examples=15)
def test_whole_episodes_are_those_that_ended(faults: Any, steps: list[int]) -> None:
    """T7: of one that was cut nothing is a whole episode, and it is counted."""
    fragments, adder = stream(faults, steps), Episodes()
    expected = [each for fragment in marked(fragments) for each in ends_in(fragment)]
    found = []
    for batch in through(adder, fragments):
        for i in range(batch.shape[1]):
            real = batch[:, i][batch.mask[:, i]]
            assert real.t.tolist() == list(range(len(real)))
            assert real.terminated[-1] or real.truncated[-1]
            found.append((int(real.env_id[0]), int(real.episode_id[0])))
    unflagged = [each for fragment in fragments for each in ends_in(fragment)]
    assert sorted(found) == sorted(unflagged)
    open_at_the_end = len({(int(i), int(e)) for i, e in zip([0, 1, 2], fragments[-1].episode_id[-1])} - set(unflagged))
    dropped = adder.context.counters.get("episodes_dropped", 0)
    assert dropped == len(expected) - len(unflagged) + open_at_the_end


def ends_in(fragment: Batch) -> list[tuple[int, int]]:
    where = np.argwhere(fragment.terminated | fragment.truncated)
    return [(int(env), int(fragment.episode_id[t, env])) for t, env in where]


BUFFERS: dict[str, Callable[[], ReplayBuffer]] = {
    "one step": lambda: ReplayBuffer(600, seed=1),
    "n steps": lambda: ReplayBuffer(600, n_step=3, gamma=0.9, seed=1),
    "stored once": lambda: ReplayBuffer(600, n_step=2, gamma=0.9, store_next_obs=False, seed=1),
    "frames": lambda: ReplayBuffer(600, frame_stack=3, store_next_obs=False, seed=1),
    "a small ring": lambda: ReplayBuffer(12, n_step=3, gamma=0.9, store_next_obs=False, seed=1),
}


@pytest.mark.parametrize("name", BUFFERS)
@over_streams
@settings(max_examples=15)
def test_replay_draws_what_a_truncated_episode_gives(name: str, faults: Any, steps: list[int]) -> None:
    """N1, N3, N5, B1, B2, T6: the same draws of the same rows, windows and frames."""
    fragments = stream(faults, steps)
    cut, truncated = filled(BUFFERS[name](), fragments), filled(BUFFERS[name](), marked(fragments))
    assert cut.can_sample(32) == truncated.can_sample(32)
    if cut.can_sample(32):
        drawn, expected = cut.sample(32), truncated.sample(32)
        for column in set(drawn) - {"truncated"}:
            np.testing.assert_array_equal(drawn[column], expected[column], column)


@over_streams
@settings(max_examples=15)
def test_replay_draws_the_sequences_that_a_truncated_episode_gives(faults: Any, steps: list[int]) -> None:
    """N6, N7, T8: the same ones, though a cut may be known a fragment later."""
    fragments = stream(faults, steps)
    drawn: list[set[str]] = []
    for each in (fragments, marked(fragments)):
        buffer = filled(SequenceReplayBuffer(600, length=2, burn_in=1, seed=1), each)
        drawn.append(set())
        if buffer.can_sample(400):
            batch = buffer.sample(400)
            names = [name for name in batch if name not in ("truncated", *PLACE)]
            drawn[-1] = {str([batch[name][:, i].tolist() for name in names]) for i in range(400)}
    assert drawn[0] == drawn[1]


def filled(buffer: ReplayBuffer, fragments: list[Batch]) -> ReplayBuffer:
    for fragment in fragments:
        buffer.add(fragment)
    return buffer


@over_streams
@settings(max_examples=15)
def test_replay_of_episodes_draws_those_that_ended(faults: Any, steps: list[int]) -> None:
    """H5, N7: one that was cut is no whole episode."""
    fragments = stream(faults, steps)
    buffer = filled(EpisodeReplayBuffer(600, seed=1), fragments)
    ended = {each for fragment in fragments for each in ends_in(fragment)}
    if not buffer.can_sample(32):
        assert not ended
        return
    drawn = buffer.sample(32)
    for i in range(32):
        real = drawn[:, i][drawn.mask[:, i]]
        assert real.t.tolist() == list(range(len(real)))
        assert (int(real.env_id[0]), int(real.episode_id[0])) in ended

"""Action masks in replay: each stays with its observation, whatever becomes of that one on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from flowrl.data import Batch, PrioritizedReplayBuffer, ReplayBuffer, SequenceReplayBuffer
from flowrl.data.replay.frame_stack import stacked_schema
from flowrl.engine.schema import ColumnSchema, Schema, schema_of
from flowrl.operators import NStep
from tests.episodes import Stream, fragment, streams
from tests.span_model import repeats_last


def bits(x: np.ndarray) -> np.ndarray:
    """A mask that tells which observation it belongs to."""
    return ((2 * x).astype(np.int64)[..., None] >> np.arange(20) & 1).astype(np.int8)


def with_masks(stream: Stream) -> list[Batch]:
    return [
        each.replace(
            **{name: {"x": each[name], "action_mask": bits(each[name][..., 0])} for name in ("obs", "next_obs")}
        )
        for each in stream.fragments
    ]


def assert_paired(rows: Batch, frames: int = 1) -> None:
    for name in ("obs", "next_obs"):
        x = rows[name].x[..., -1, 0] if frames > 1 else rows[name].x[..., 0]
        np.testing.assert_array_equal(rows[name].action_mask, bits(x))


BUFFERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "uniform": (ReplayBuffer, {}),
    "stored once": (ReplayBuffer, {"store_next_obs": False}),
    "by priority": (PrioritizedReplayBuffer, {"store_next_obs": False}),
    "n-step": (ReplayBuffer, {"n_step": 3, "gamma": 0.9}),
    "n-step by priority, once": (PrioritizedReplayBuffer, {"n_step": 3, "gamma": 0.9, "store_next_obs": False}),
    "stacked": (ReplayBuffer, {"frame_stack": 3}),
    "stacked n-step, once": (ReplayBuffer, {"frame_stack": 2, "n_step": 2, "gamma": 0.9, "store_next_obs": False}),
}


@pytest.mark.parametrize("name", BUFFERS)
@given(stream=streams(workers=1, lossy=False))
@settings(max_examples=12)
def test_a_mask_is_drawn_with_its_observation(name: str, stream: Stream) -> None:
    """N1, N3, T6, B1: that of next_obs is the one at the window's end; of stacked frames that of the newest."""
    kind, options = BUFFERS[name]
    buffer = kind(50, seed=0, **options)
    for each in with_masks(stream):
        buffer.add(each)
    if buffer.can_sample(1):
        assert_paired(buffer.sample(40), options.get("frame_stack", 1))


@given(stream=streams(workers=1, lossy=False))
@settings(max_examples=12)
def test_windows_end_with_the_mask_of_their_end(stream: Stream) -> None:
    """N3, N8: at write time."""
    adder = NStep(n=3, gamma=0.9)
    for each in with_masks(stream):
        if not (rows := adder(each)).is_empty:
            assert_paired(rows)


def test_sequences_hold_the_masks_of_their_steps() -> None:
    """N6: padded steps have none."""
    stream = with_masks(Stream([fragment(["....T...t.."] * 2)]))
    buffer = SequenceReplayBuffer(40, length=4, seed=0)
    for each in stream:
        buffer.add(each)
    drawn = buffer.sample(30)
    assert_paired(drawn.flat()[np.flatnonzero(drawn.mask.ravel())])
    assert repeats_last(drawn.obs.action_mask, drawn.mask)


def test_stacks_are_foretold_without_one_of_masks() -> None:
    """B1"""
    buffer = ReplayBuffer(40, frame_stack=3, seed=0)
    buffer.add(with_masks(Stream([fragment(["....T....", "........."])]))[0])
    drawn = schema_of(buffer.sample(5)).columns
    stored = {"obs.x": ColumnSchema("float64", ("B", 1)), "obs.action_mask": ColumnSchema("int8", ("B", 20))}
    for name, column in stacked_schema(Schema(stored), 3, 1).columns.items():
        assert column.shape[1:] == drawn[name].shape[1:]


def test_of_frames_that_come_stacked_the_newest_is_kept_and_its_mask() -> None:
    """B1"""
    plain = with_masks(Stream([fragment(["....T...."] * 2)]))[0]
    x, next_x = plain.obs.x, plain.next_obs.x
    stacks = {"x": np.stack([x, x], 2), "action_mask": plain.obs.action_mask}
    later = {"x": np.stack([x, next_x], 2), "action_mask": plain.next_obs.action_mask}
    buffer = ReplayBuffer(20, frame_stack=2, newest_frame_only=True, seed=0)
    buffer.add(plain.replace(obs=stacks, next_obs=later))
    assert_paired(buffer.sample(20), frames=2)

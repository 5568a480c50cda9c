"""Frames that wide observations have in common, stored once: what is drawn is what storing everything would give."""

import logging
import pickle

import numpy as np
import pytest

from flowrl.data import (
    Batch,
    EpisodeReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    ReplayBuffer,
)
from flowrl.data.replay import shared_frames
from flowrl.data.replay.shared_frames import SharedFrames
from flowrl.data.replay.tree import Spec
from flowrl.errors import CheckpointError, ConfigError
from flowrl.operators import NStep
from tests.plans.built import described

SIDE = 13  # 169 bytes: no whole number of words
KINDS = {
    "rows": lambda **how: ReplayBuffer(90, seed=0, **how),
    "windows": lambda **how: ReplayBuffer(90, n_step=3, gamma=0.9, seed=0, **how),
    "priorities": lambda **how: PrioritizedReplayBuffer(90, compiled=False, seed=0, **how),
    "sequences": lambda **how: PrioritizedSequenceReplayBuffer(90, length=4, burn_in=1, compiled=False, seed=0, **how),
    "episodes": lambda **how: EpisodeReplayBuffer(90, seed=0, **how),
}


def fragments(axis, count, envs=3, k=4, padding="reset", seed=0):
    """Stacks of k frames of random pixels, in fragments of several lengths; episodes end by chance."""
    draw = np.random.default_rng(seed)

    def frame():
        return draw.integers(0, 256, (SIDE, SIDE), np.uint8)

    def begin():
        first = frame()
        return [np.zeros_like(first) if padding == "zero" else first] * (k - 1) + [first]

    stacks = [begin() for _ in range(envs)]
    for _ in range(count):
        steps = []
        for _ in range(draw.integers(1, 9)):
            after = [[*stack[1:], frame()] for stack in stacks]
            ends = draw.random(envs) < 0.2
            seen = [np.stack([np.stack(stack, axis) for stack in each]) for each in (stacks, after)]
            steps.append({"obs": seen[0], "next_obs": seen[1], "terminated": ends, "truncated": ends & False})
            stacks = [begin() if end else stack for end, stack in zip(ends, after)]
        columns = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
        yield Batch(columns, reward=draw.random(columns["terminated"].shape))


def nested(batch):
    """With the observation beside a small one in a dictionary."""
    named = {name: {"image": batch[name], "speed": batch["reward"][..., None]} for name in ("obs", "next_obs")}
    return batch.replace(**named)


def the_same_draws(buffers, items):
    """Fill buffers and compare all that they give out, in every step and once around the ring."""
    draws = 0
    for item in items:
        for buffer in buffers:
            buffer.add(item)
        assert buffers[0][:] == buffers[1][:]
        if buffers[1].can_sample(16):
            ours, full = (buffer.sample(16) for buffer in buffers)
            assert ours == full
            assert all(column.flags.c_contiguous for name, column in ours.leaves() if "obs" in name)
            draws += 1
    return draws


@pytest.mark.parametrize("axis", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_draws_equal_those_of_full_storage_and_each_frame_is_there_once(kind, axis):
    """B13: stacks along the first or the last axis, over ends, starts and the cursor; frames counted by a set."""
    once, full = KINDS[kind](share_frames=True), KINDS[kind]()
    assert the_same_draws([once, full], fragments(axis, 14)) > 8
    stacks = full.columns("obs", "next_obs")
    planes = np.concatenate([np.moveaxis(stacks[name], 1 + axis % 3, 1).reshape(-1, SIDE, SIDE) for name in stacks])
    different = len({plane.tobytes() for plane in planes})
    assert different <= once._rings._shared[0].count <= 1.05 * different  # the lookup forgets some


def changed(batch):
    """A transform above the stack that changes every frame, as a running normalization does."""
    change = np.random.default_rng(1).integers(0, 256, batch["obs"].shape, np.uint8)
    return batch.replace(obs=batch["obs"] + change, next_obs=batch["next_obs"] ^ change)


@pytest.mark.parametrize(
    "items",
    [
        lambda: [NStep(3, 0.9)(each) for each in fragments(0, 14)],
        lambda: [batch.flat() for batch in fragments(0, 14, padding="zero")],
        lambda: map(nested, fragments(0, 14)),
        lambda: map(changed, fragments(0, 14)),
        lambda: [batch.flat()[::-1] for batch in fragments(0, 14)],
        lambda: [part for batch in fragments(0, 9) for part in (batch, batch)],
        lambda: [batch.select([name for name in batch if name != "next_obs"]) for batch in fragments(0, 14)],
    ],
    ids=["windows before", "zeros before a start", "a dictionary", "no stacks", "any order", "twice", "no next_obs"],
)
def test_whatever_comes_is_drawn_as_it_came(items):
    """B13: nothing is rebuilt from neighbors, so that no wrapper, window or order of rows can make it wrong."""
    assert the_same_draws([ReplayBuffer(60, share_frames=True, seed=0), ReplayBuffer(60, seed=0)], items()) > 8


def test_frames_that_only_look_alike_are_two(monkeypatch):
    """B13: a hash that is equal for all of them does not make them so."""
    monkeypatch.setattr(SharedFrames, "_hashed", lambda self, words: np.zeros(len(words), np.uint64))
    assert the_same_draws([ReplayBuffer(60, share_frames=True, seed=0), ReplayBuffer(60, seed=0)], fragments(0, 9)) > 5


def test_bits_count_and_not_values():
    """B13: 0.0 and -0.0, and numbers that are none, are given back bit by bit."""
    obs = np.zeros((4, 2, 8, 10), np.float32)
    obs[1], obs[2], obs[3] = -0.0, np.nan, -np.nan
    buffer = ReplayBuffer(4, share_frames=True, seed=0)
    buffer.add(Batch(obs=obs, action=np.zeros(4)))
    assert buffer[:].obs.tobytes() == obs.tobytes()
    assert buffer._rings._shared[0].count == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_between_buffers_with_and_without_it(kind):
    """B5, D12: also one of before frames were shared; a state that somebody holds stays as it was."""
    batches = list(fragments(0, 20))
    once, full = KINDS[kind](share_frames=True), KINDS[kind]()
    the_same_draws([once, full], batches[:6])
    state, kept = once.state_dict(), pickle.dumps(once.state_dict())
    again = {how: KINDS[kind](share_frames=how) for how in (True, False)}
    again[True].load_state_dict(full.state_dict())
    again[False].load_state_dict(state)
    the_same_draws([again[True], again[False]], batches[6:13])
    the_same_draws([once, full], batches[6:13])
    assert once[:] == again[True][:]
    assert pickle.dumps(state) == kept
    exact = KINDS[kind](share_frames=True)
    exact.load_state_dict(pickle.loads(pickle.dumps(once.state_dict())))
    the_same_draws([once, exact], batches[13:])
    assert described(once.state_dict()) == described(exact.state_dict())


def test_a_large_state_is_lent_and_not_copied(monkeypatch):
    """D12: no frame of it is overwritten while it is held, and its memory is used again after that."""
    monkeypatch.setattr(shared_frames, "COPIED_WHOLE", 1)
    once, full = ReplayBuffer(60, share_frames=True, seed=0), ReplayBuffer(60, seed=0)
    batches = list(fragments(0, 60))
    the_same_draws([once, full], batches[:10])
    state = once.state_dict()
    kept = pickle.dumps(state)
    assert np.shares_memory(state["shared"][0]["frames"]["0"], once._rings._shared[0]._blocks[0])
    the_same_draws([once, full], batches[10:14])
    assert pickle.dumps(state) == kept
    del state
    high = once._rings._shared[0]._high
    the_same_draws([once, full], batches[14:])
    assert once._rings._shared[0]._high == high


def test_it_is_saved_updated_and_kept_in_files(tmp_path):
    """B3, B5: and a memory-mapped one."""
    once = ReplayBuffer(60, share_frames=True, directory=tmp_path, seed=0)
    full = ReplayBuffer(60, seed=0)
    the_same_draws([once, full], fragments(0, 8))
    once.save(tmp_path / "buffer")
    loaded = ReplayBuffer.load(tmp_path / "buffer")
    assert loaded.settings() == once.settings()
    assert loaded.sample(30) == once.sample(30)
    larger = ReplayBuffer(200, share_frames=True, seed=0)
    larger.add(next(iter(fragments(0, 1, seed=7))))
    larger.update(loaded)
    assert larger[-len(full) :] == full[:]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda part: part.update(free=part["free"][:0]), "free is .*, expected the numbers of frames that no row has"),
        (
            lambda part: part.update(frames={"0": part["frames"]["0"][:5]}),
            "expected columns of numbers of its 5 frames",
        ),
        (lambda part: part.update(frames={}), "expected the shape of an observation"),
        (lambda part: part.update(axis=2), "expected the shape of an observation"),
        (lambda part: part.update(shape=[9, SIDE, SIDE]), "expected columns of numbers"),
        (lambda part: part.update(shape=[4, 12, SIDE]), r"0 is uint8\[\d+, 13, 13\], expected uint8\[any, 12"),
        (lambda part: part.update(newest=part["newest"] + 10**6), "newest holds"),
        (lambda part: part.update(of=[["obs"]]), "expected the numbers of frames that no row has"),
        (lambda part: part.update(of=[["obs"], ["obs"]]), "expected frames of columns that it has, each in one place"),
        (lambda part: part.update(of=[["reward"], ["obs"]]), "expected columns of numbers"),
    ],
    ids=["free", "fewer", "none", "axis", "stack", "frame", "lookup", "one column", "twice", "another column"],
)
def test_a_state_that_is_at_odds_with_itself_is_refused(edit, message):
    """B11, D7."""
    buffer = ReplayBuffer(12, share_frames=True, seed=0)
    for batch in fragments(0, 8):
        buffer.add(batch)
    before, state = pickle.dumps(buffer.state_dict()), buffer.state_dict()
    edit(state["shared"][0])
    with pytest.raises(CheckpointError, match=message):
        buffer.load_state_dict(state)
    assert pickle.dumps(buffer.state_dict()) == before


def test_frames_of_one_form_are_in_one_place():
    """B11: else the second ones would be loaded over the first, which rows refer to."""
    buffer = ReplayBuffer(12, share_frames=True, seed=0)
    for batch in fragments(0, 8):
        buffer.add(batch)
    state = buffer.state_dict()
    (part,) = state["shared"]
    state["shared"] = [{**part, "of": [column]} for column in part["of"]]
    with pytest.raises(CheckpointError, match="expected frames of different forms"):
        buffer.load_state_dict(state)


@pytest.mark.parametrize("shape", [(24, 24, 3), (3, 24, 24), (24, 24)], ids=str)
def test_pictures_without_stacks_take_half_and_no_warning(shape, caplog):
    """B13: what a step arrives in is what the next one sees."""
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (1001, *shape), np.uint8)
    once, full = ReplayBuffer(900, share_frames=True, seed=0), ReplayBuffer(900, seed=0)
    with caplog.at_level(logging.WARNING, "flowrl"):
        for start in range(0, 1000, 100):
            rows = slice(start, start + 100), slice(start + 1, start + 101)
            for buffer in (once, full):
                buffer.add(Batch(obs=pictures[rows[0]], next_obs=pictures[rows[1]], reward=np.zeros(100)))
    assert once[:] == full[:]
    assert once.sample(50) == full.sample(50)
    assert once.statistics()["bytes"] < 0.66 * full.statistics()["bytes"]
    assert not caplog.records


def test_what_shares_little_is_stored_all_the_same_and_said(caplog, monkeypatch):
    """B13: it takes what full storage takes, with a warning; beyond all memory it is refused."""
    spec = Spec(np.dtype(np.uint8), (4, SIDE, SIDE))
    frames, draw = SharedFrames(spec, 0, 64, np.empty), np.random.default_rng(0)
    with caplog.at_level(logging.WARNING, "flowrl"):
        rows = draw.integers(0, 256, (200, *spec.shape), np.uint8)
        numbers = frames.put(rows)
    assert "4 x 13 x 13 as 13 x 13 have few frames in common" in caplog.text
    assert (frames.take(numbers, np.empty) == rows).all()
    monkeypatch.setattr(shared_frames, "memory", lambda: 1000 * SIDE * SIDE)
    with pytest.raises(ConfigError, match="rows take more than all memory; take a smaller capacity"):
        frames.put(draw.integers(0, 256, (200, *spec.shape), np.uint8))

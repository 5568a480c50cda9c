"""Buffers on disk: the one that is loaded goes on alike; what is damaged, foreign or half-written is refused."""

import json

import numpy as np
import pytest

from flowrl.data import (
    Batch,
    Dataset,
    DatasetWriter,
    EpisodeReplayBuffer,
    RateLimiter,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.errors import CheckpointError
from flowrl.storage.checkpoint import save_checkpoint
from tests.full_disk import full_disk
from tests.streams import Stream

STREAM = Stream(("..T....t.", "t.......T"))
SETTINGS = [
    {},
    {"n_step": 3, "gamma": 0.5},
    {"store_next_obs": False, "frame_stack": 2},
    {"max_uses": 30, "max_staleness": 1},
    {"capacity_bytes": 2000, "track_uses": True, "reuse": True},
    {"limiter": RateLimiter(2.5, 4, sample_batch=8, insert_batch=8, slack=100)},
]


def filled(**settings):
    buffer = ReplayBuffer(10, seed=0, **settings)
    for start in range(0, 9, 3):
        part = STREAM.fragment(start, start + 3)
        buffer.add(part.replace(policy_version=np.full((3, 2), start // 3), image=np.ones((3, 2, 30, 30), np.uint8)))
        if buffer.can_sample(8):
            buffer.sample(8)
    return buffer


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings) or "plain")
def test_a_loaded_buffer_goes_on_alike(settings, tmp_path):
    """B5: settings, rows, cursor, counters and generator."""
    buffer = filled(**settings)
    assert buffer.save(tmp_path / "buffer") == tmp_path / "buffer"
    loaded = ReplayBuffer.load(tmp_path / "buffer")
    assert loaded.settings() == buffer.settings()
    for start in (0, 3):
        assert loaded[:] == buffer[:]
        assert (loaded.inserts, loaded.samples) == (buffer.inserts, buffer.samples)
        assert loaded.sample(8) == buffer.sample(8)
        for one in (buffer, loaded):
            part = STREAM.fragment(start, start + 3)
            one.add(part.replace(policy_version=np.full((3, 2), 3), image=np.ones((3, 2, 30, 30), np.uint8)))


@pytest.mark.parametrize(
    ("saved", "loading", "message"),
    [
        (ReplayBuffer(10), ReplayBuffer(10, n_step=3), "does not know where episodes begin"),
        (ReplayBuffer(10), ReplayBuffer(10, frame_stack=2), "does not know where episodes begin"),
        (ReplayBuffer(10), ReplayBuffer(10, max_uses=2), "has max_uses None, this one 2; it must be equal"),
        (ReplayBuffer(10, max_staleness=1), ReplayBuffer(10), "has max_staleness 1, this one None; it must be equal"),
        (ReplayBuffer(10), EpisodeReplayBuffer(10), r"gives out single rows, this one WholeEpisodes\(\); it must"),
        (SequenceReplayBuffer(10, length=2), EpisodeReplayBuffer(10), r"out Windows\(.*, this one WholeEpisodes"),
        (SequenceReplayBuffer(10, length=2), SequenceReplayBuffer(10, length=3), r"\(steps=2, .* one Windows\(steps=3"),
    ],
    ids=["n_step", "frames", "uses", "staleness", "rows", "sequences", "length"],
)
def test_the_state_of_a_buffer_with_other_settings_is_refused(saved, loading, message):
    """B1, N1, B5: it does not hold what these settings need, and would draw across episodes."""
    part = STREAM.fragment(0, 3)
    for buffer in (saved, loading):
        buffer.add(part.replace(policy_version=np.zeros((3, 2), int)))
    before = loading[:]
    with pytest.raises(CheckpointError, match=message):
        loading.load_state_dict(saved.state_dict())
    assert loading[:] == before


def test_an_empty_buffer_and_one_in_a_directory(tmp_path):
    ReplayBuffer(10, seed=3).save(tmp_path / "empty")
    empty = ReplayBuffer.load(tmp_path / "empty")
    buffer = filled(directory=tmp_path)
    empty.add(STREAM.fragment(0, 2))
    buffer.save(tmp_path / "full")
    loaded = ReplayBuffer.load(tmp_path / "full", directory=tmp_path)
    assert loaded.sample(20) == buffer.sample(20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_objects_are_loaded_with_trust_alone(tmp_path):
    buffer = ReplayBuffer(4, seed=0)
    buffer.add(Batch(thing=np.array([{"a": 1}, None], object), reward=np.ones(2)))
    buffer.save(tmp_path / "buffer")
    with pytest.raises(CheckpointError, match="trusted=True"):
        ReplayBuffer.load(tmp_path / "buffer")
    assert ReplayBuffer.load(tmp_path / "buffer", trusted=True)[:].thing.tolist() == [{"a": 1}, None]


def test_a_damaged_file_is_refused_by_name(tmp_path):
    path = filled().save(tmp_path / "buffer")
    arrays = max(path.iterdir(), key=lambda file: file.stat().st_size)
    whole = arrays.read_bytes()
    for damaged, message in ((whole[:-10], "is truncated"), (whole[:500] + b"?" + whole[501:], "is damaged")):
        arrays.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{message}: {arrays.name}"):
            ReplayBuffer.load(path)


class Other(ReplayBuffer):
    pass


def test_a_foreign_folder_is_refused_by_name(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "manifest.json").write_text(json.dumps({"format": "something else"}))
    save_checkpoint(tmp_path / "run", {"ledger": {"x": 1}})
    Other(5).save(tmp_path / "other")
    save_checkpoint(tmp_path / "half", {"settings": {"limiter": None}}, {"replay buffer": "ReplayBuffer"})
    for name, message in {
        "missing": "missing is not there",
        "text": "text is no checkpoint of flowrl",
        "run": "run holds no replay buffer, not a ReplayBuffer",
        "other": "other holds a Other: use Other.load, not a ReplayBuffer",
        "half": "half is damaged: it is no whole ReplayBuffer",
    }.items():
        with pytest.raises(CheckpointError, match=message):
            ReplayBuffer.load(tmp_path / name)


def test_a_dataset_is_not_replaced(tmp_path):
    DatasetWriter(tmp_path / "data").add(Batch(reward=np.ones(3)))
    with pytest.raises(CheckpointError, match="data is there and is no checkpoint; choose another place"):
        filled().save(tmp_path / "data")
    assert Dataset(tmp_path / "data").verify().rows == 3


def test_a_full_disk_leaves_nothing_and_the_buffer_as_it_was(tmp_path):
    """B5: also the one saved before stays whole."""
    buffer = filled()
    buffer.save(tmp_path / "buffer")
    before = buffer[:]
    with (
        full_disk(2000),
        pytest.raises(CheckpointError, match=r"buffer cannot be written: .*nothing of it is left"),
    ):
        buffer.save(tmp_path / "buffer")
    with full_disk(2000), pytest.raises(CheckpointError, match="cannot be written"):
        buffer.save(tmp_path / "another")
    assert [path.name for path in tmp_path.iterdir()] == ["buffer"]
    assert ReplayBuffer.load(tmp_path / "buffer")[:] == before == buffer[:]

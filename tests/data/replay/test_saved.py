"""Buffers on disk: the one that is loaded goes on alike; what is damaged, foreign or half-written is refused."""

import json
import pickle

import numpy as np
import pytest

from flowrl.data import (
    Batch,
    Dataset,
    DatasetWriter,
    EpisodeReplayBuffer,
    PrioritizedReplayBuffer,
    RateLimiter,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.data.replay import ring_storage
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


KINDS = {
    "rows": lambda: ReplayBuffer(24, seed=0),
    "once": lambda: ReplayBuffer(24, seed=0, store_next_obs=False, n_step=2),
    "limits": lambda: ReplayBuffer(24, seed=0, max_uses=3, max_staleness=2),
    "priorities": lambda: PrioritizedReplayBuffer(24, seed=0, compiled=False),
    "limited priorities": lambda: PrioritizedReplayBuffer(24, seed=0, compiled=False, max_uses=3),
    "sequences": lambda: SequenceReplayBuffer(24, length=2, seed=0),
    "episodes": lambda: EpisodeReplayBuffer(24, seed=0),
}


def full(kind):
    buffer = KINDS[kind]()
    part = STREAM.fragment(0, 9)
    buffer.add(part.replace(policy_version=np.zeros((9, 2), int)))
    return buffer


def at(*path, to):
    """An edit of a state: `to` is the new value, or makes it from the old one."""

    def edit(state):
        *above, name = path
        for each in above:
            state = state[each]
        state[name] = to(state[name]) if callable(to) else to

    return edit


@pytest.mark.parametrize(
    ("kind", "edit", "message"),
    [
        (
            "rows",
            at("written", to=24),
            r"written is 24, expected the number of steps ever written, of which it holds 9",
        ),
        ("rows", at("written", to=-1), "written is -1, expected int of at least 0"),
        ("rows", at("written", to=True), "written is True, expected int"),
        ("rows", at("samples", to=10**400), r"samples is 1000.*0000, expected int of at least 0, at most 90071992"),
        ("rows", at("columns", to={}), "columns is {}, expected arrays of the same steps and environments"),
        (
            "rows",
            at("columns", "reward", to=lambda rows: rows[:-1]),
            "columns is .*, expected arrays of the same steps",
        ),
        ("rows", at("columns", to=None), "written is 9, expected 0, since it has no columns"),
        ("rows", at("notes", "begins", to=lambda note: note[1:]), r"begins is bool\[17\], expected bool\[18\]"),
        ("rows", at("generator", "state", "inc", to=0), "expected the state of a PCG64 generator, whose inc is odd"),
        ("rows", at("generator", to={"state": "?"}), "generator is no state of a PCG64 generator"),
        ("rows", lambda state: state.pop("notes"), "the saved buffer has no notes"),
        (
            "once",
            at("aside", "slots", to=lambda slots: slots[:-1]),
            "expected slots in ascending order, the newest ones",
        ),
        ("once", at("aside", "slots", to=lambda slots: slots + 1), "slots holds .* 18, expected 0 .. 17"),
        ("once", at("aside", "rows", "obs", to=lambda rows: rows[1:]), "rows is .*, expected observations like the"),
        ("once", at("columns", "terminated", to=lambda ends: ends.astype("S1")), "the column 'terminated' is .S1"),
        ("limits", at("limits", "members", to=lambda slots: slots * 0), "expected slots that can be drawn, each once"),
        ("limits", at("limits", "members", to=lambda slots: slots + 9), "members holds 9 .. 26, expected 0 .. 17"),
        ("limits", at("limits", "left", to=lambda left: left - 9), "left holds -6 .. -6, expected 1 .. 3"),
        ("limits", at("limits", "slots", to=10**12), "slots is 1000000000000, expected 24"),
        ("limits", lambda state: state["columns"].pop("policy_version"), "needs the column 'policy_version'"),
        ("priorities", at("masses", to=lambda masses: masses * np.nan), "masses holds nan .. nan, expected 0"),
        ("priorities", at("masses", to=lambda masses: masses - 2), "masses holds -1.0 .. -1.0, expected 0"),
        ("priorities", at("masses", to=lambda masses: masses * np.inf), "masses holds inf .. inf, expected 0"),
        ("priorities", at("masses", to=lambda masses: masses * 0), "masses is .*, expected more than 0 for all rows"),
        ("priorities", at("live", to=lambda live: ~live), "live is .*, expected True for all rows that can be drawn"),
        (
            "limited priorities",
            at("limits", "members", to=lambda slots: slots[:0]),
            "left is int64.18., expected int64.0.",
        ),
        ("sequences", at("span", to=lambda span: span + np.int32(10**6)), "span is .*, expected spans of stored steps"),
        ("sequences", at("span", to=lambda span: -span), "span holds -.* expected 0"),
        ("episodes", at("begin", to=lambda begin: begin + 9), "begin holds .*, expected 0 .. 8"),
        ("episodes", at("spans", to="\x1b[2J"), r"gives out \\x1b\[2J, this one"),
    ],
)
def test_a_state_that_is_at_odds_with_itself_is_refused_and_changes_nothing(kind, edit, message):
    """B11, D7: nothing that nobody wrote is drawn."""
    buffer, state = full(kind), full(kind).state_dict()
    before = pickle.dumps(buffer.state_dict())
    edit(state)
    with pytest.raises(CheckpointError, match=message) as caught:
        buffer.load_state_dict(state)
    assert str(caught.value).isprintable()
    assert pickle.dumps(buffer.state_dict()) == before


@pytest.mark.parametrize("stored", [{}, {"store_next_obs": False}], ids=["", "once"])
@pytest.mark.parametrize("kept", ["", "some", "a column"])
def test_a_state_copies_what_is_new_since_the_last_one_and_is_never_changed(kept, stored, monkeypatch):
    """D5, D12: whole, over any writes and around the ring; one that is still needed stays as it was."""
    monkeypatch.setattr(ring_storage, "COPIED_WHOLE", 1)
    buffer, draw, states = ReplayBuffer(20, seed=0, **stored), np.random.default_rng(0), []
    at = 0
    for number in range(30):
        for steps in draw.integers(0, 8, draw.integers(3)):
            rows = np.arange(at, at + steps)[:, None].repeat(2, 1)
            at += steps
            ends = np.zeros(rows.shape, bool)
            if steps:
                buffer.add(Batch(obs=rows, next_obs=rows + 1, reward=rows * 1.0, terminated=ends, truncated=ends))
        state, now = buffer.state_dict(), buffer.state_dict(copy_rows=False)
        told = now["columns"]
        if told is None:
            continue
        assert Batch(state["columns"]) == Batch(told)
        with pytest.raises(ValueError, match="read-only"):
            state["columns"]["obs"][:] = 0
        if kept and number % 3 == 0:
            column = state["columns"]["obs"]
            states.append((column if kept == "a column" else state["columns"], column.copy()))
        del state, now, told
    for held, then in states:
        assert np.array_equal(held if kept == "a column" else held["obs"], then)
    if not kept:
        first = buffer.state_dict()["columns"]["obs"].base
        assert buffer.state_dict()["columns"]["obs"].base is not first, "it is still referred to"


def test_a_state_whose_rows_nobody_has_any_more_takes_no_second_copy(monkeypatch):
    """D12: its memory becomes that of the next one, of which only new rows are written."""
    monkeypatch.setattr(ring_storage, "COPIED_WHOLE", 1)
    buffer = filled()
    at = buffer.state_dict()["columns"]["image"].ctypes.data
    image = buffer.state_dict(copy_rows=False)["columns"]["image"]
    image[0] = 77  # nobody writes there, and a second copy would see it
    copied = buffer.state_dict()["columns"]["image"]
    assert copied.ctypes.data == at
    assert (copied[0] == 1).all()

"""The file of a journal (J3): parts, a kill in the middle, and files of earlier versions."""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flowrl.engine.recording.journal import ANSWER, ITEM, PART, Recording, Replay, entries
from flowrl.errors import ConfigError, FlowError
from flowrl.storage.journal import VERSION, JournalFile, StoredJournal, is_current

#: Journals as each version has written them: `small` below wrote the newest one.
OF_VERSION = Path(__file__).parent / "journals"


def small(path: Path) -> None:
    """A journal of two parts, as this version writes it."""
    noted, worker = Recording(), Recording("gather/0.0.0")
    file = JournalFile(path, {"plan": "a plan", "seed": 3})
    for number in range(3):
        noted.decide("gather", ())
        worker.decide("@answered", [5, number])
        worker.item("Rollouts", 1000 + number)
        noted.decide("gather", [2 * number])
        noted.heard(worker.name, worker.answer())
        noted.item("train", 2000 + number)
        noted.decide("gather", ())
        noted.settle()
        file.write(noted.drain())
        if number == 1:
            file.end_part()
            noted.renumber()
    noted.end()
    file.write(noted.drain())
    file.end_part()
    file.close()


def test_a_journal_of_this_version_is_read(tmp_path: Path) -> None:
    """J3."""
    stored = StoredJournal.read(OF_VERSION / f"version-{VERSION}")
    assert stored.about == {"journal": VERSION, "plan": "a plan", "seed": 3}
    found = [entry for part in stored.parts for entry in entries(part)]
    assert [(kind, point) for kind, point, _ in found[:4]] == [
        *((ANSWER, "gather"), (PART, "gather/0.0.0"), (ITEM, "train"), (ANSWER, "gather"))
    ]
    replay = Replay(stored.parts)
    assert replay.whole
    part = replay.part("gather", 0)
    for number in range(3):
        assert [list(replay.decide("gather", [])) for _ in range(3)] == [[], [2 * number], []]
        assert part.decide("@answered", []) == [5, number]
        part.item("Rollouts", 1000 + number)
        replay.item("train", 2000 + number)
    assert not replay.departed()
    small(tmp_path / "journal")
    assert StoredJournal.read(tmp_path / "journal") == stored


@pytest.mark.parametrize("version", range(1, VERSION))
def test_a_journal_of_an_earlier_version_is_refused(version: int) -> None:
    """J3: a resumed run asks before."""
    file = OF_VERSION / f"version-{version}"
    with pytest.raises(ConfigError, match=f"has version {version} of the format, and this flowrl reads {VERSION}: run"):
        StoredJournal.read(file)
    assert not is_current(file)


@pytest.mark.parametrize("value", [-1, 1.5, True, None, "text", b"", [], [1], {}, msgpack.ExtType(1, b"x")])
def test_what_is_no_number_is_refused(value: Any) -> None:
    """D7: whatever else msgpack has."""
    with pytest.raises(FlowError, match="the journal is damaged at byte"):
        list(entries(b"".join(map(msgpack.packb, ["here", ITEM, 1, value]))))


def test_what_was_written_can_be_read_after_a_kill(tmp_path):
    """J3: also without the end of its part."""
    file = JournalFile(tmp_path / "journal", {})
    file.write(b"one ")
    size = file.end_part()
    file.write(b"two ")
    assert StoredJournal.read(tmp_path / "journal").parts == [b"one ", b"two "]
    file.write(bytes(range(256)))  # more than the resumed run will write
    killed = (tmp_path / "journal").read_bytes()
    file.close()
    (tmp_path / "journal").write_bytes(killed)
    resumed = JournalFile(tmp_path / "journal", {}, size)
    resumed.write(b"another two")
    resumed.close()
    assert StoredJournal.read(tmp_path / "journal").parts == [b"one ", b"another two"]
    with pytest.raises(ConfigError, match="is shorter than it was at the checkpoint"):
        JournalFile(tmp_path / "journal", {}, 1_000)


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    """D19: neither for what it might have, nor for what it unpacks to."""
    small(tmp_path / "journal")
    tracemalloc.start()
    StoredJournal.read(tmp_path / "journal")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    header = (tmp_path / "journal").read_bytes().partition(b"\n")[0]
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(2**22)) for _ in range(64)) + packer.flush()
    (tmp_path / "journal").write_bytes(header + b"\n" + packed)
    tracemalloc.reset_peak()
    with pytest.raises(FlowError, match="the journal is damaged"):
        list(entries((b"\xdd" + (2**16).to_bytes(4, "big")) * 500 + bytes(2**17)))  # lists of lists, of so many each
    assert tracemalloc.get_traced_memory()[1] < 2**24
    with pytest.raises(ConfigError, match="it unpacks to over 64 times its size"):
        StoredJournal.read(tmp_path / "journal")
    assert tracemalloc.get_traced_memory()[1] < 2**28
    tracemalloc.stop()

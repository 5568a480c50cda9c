"""The file of a journal (J3): parts, a kill in the middle, and files of earlier versions."""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path

import pytest

from flowrl.engine.journal import ANSWER, ITEM, PART, Recording, Replay, entries
from flowrl.errors import ConfigError
from flowrl.storage.journal import VERSION, JournalFile, StoredJournal

#: Journals as each version has written them, which later ones still read: `small` below wrote the newest one.
OF_VERSION = Path(__file__).parent / "journals"


def small(path: Path) -> None:
    """A journal of two parts, as this version writes it."""
    noted, worker = Recording(), Recording("gather/0.0.0")
    file = JournalFile(path, {"plan": "a plan", "seed": 3})
    for number in range(3):
        noted.take("gather", ())
        worker.take("@answered", [5, number])
        worker.item("Rollouts", 1000 + number)
        noted.take("gather", [2 * number])
        noted.heard(worker.name, worker.answer())
        noted.item("train", 2000 + number)
        noted.take("gather", ())
        noted.settle()
        file.write(noted.drain())
        if number == 1:
            file.end_part()
            noted.renumber()
    noted.end()
    file.write(noted.drain())
    file.end_part()
    file.close()


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_journal_of_each_version_is_read(version, tmp_path):
    """J3."""
    stored = StoredJournal.read(OF_VERSION / f"version-{version}")
    assert stored.about == {"journal": version, "plan": "a plan", "seed": 3}
    found = [entry for part in stored.parts for entry in entries(part)]
    assert [(kind, point) for kind, point, _ in found[:4]] == [
        *((ANSWER, "gather"), (PART, "gather/0.0.0"), (ITEM, "train"), (ANSWER, "gather"))
    ]
    replay = Replay(stored.parts)
    assert replay.whole
    part = replay.part("gather", 0)
    for number in range(3):
        assert [list(replay.take("gather", [])) for _ in range(3)] == [[], [2 * number], []]
        assert part.take("@answered", []) == [5, number]
        part.item("Rollouts", 1000 + number)
        replay.item("train", 2000 + number)
    assert not replay.departed()
    if version == VERSION:
        small(tmp_path / "journal")
        assert StoredJournal.read(tmp_path / "journal") == stored


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
    with pytest.raises(ConfigError, match="it unpacks to over 64 times its size"):
        StoredJournal.read(tmp_path / "journal")
    assert tracemalloc.get_traced_memory()[1] < 2**28
    tracemalloc.stop()

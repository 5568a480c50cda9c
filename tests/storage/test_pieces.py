"""Large arrays on disk: what has not changed is written once, and no file takes more memory than it may."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.errors import CheckpointError
from flowrl.storage import checkpoint, pieces
from flowrl.storage.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from flowrl.storage.files import checksum
from flowrl.testing import same

SIZE = 256
NOISE = np.random.default_rng(0).integers(0, 256, 4 * SIZE, np.uint8)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", SIZE)


def _bins(path: Path) -> list[Path]:
    return sorted(path.glob("*.bin"))


@pytest.mark.parametrize(
    ("value", "files"),
    [
        (NOISE, 4),
        (NOISE[:-1], 4),
        (NOISE[: SIZE - 1], 0),
        (np.zeros((8, 8, 8), np.float32), 8),
        (np.arange(100.0)[::2], 2),
        (np.arange(600, dtype=np.int32).reshape(20, 30)[:, 3:9], 2),
        (np.asfortranarray(np.arange(600.0).reshape(20, 30)), 0),
        (np.zeros(40, [("a", "<f4", 2), ("b", "u1")]), 2),
        (np.arange(40).astype("datetime64[s]"), 2),
        (torch.arange(300, dtype=torch.bfloat16), 3),
        (bytes(range(256)) * 2, 2),
    ],
)
def test_a_large_array_comes_back_with_dtype_and_shape(value: Any, files: int, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a", {"x": {"value": value, "small": np.arange(3)}})
    assert len(_bins(path)) == files
    assert same(load_checkpoint(path), {"x": {"value": value, "small": np.arange(3)}})


def test_what_compression_does_not_shrink_is_stored_as_it_is(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a", {"x": [NOISE, np.repeat(NOISE[:8], 128), np.zeros(4 * SIZE, np.uint8)]})
    sizes = [file.stat().st_size for file in _bins(path)]
    assert sizes[:4] == [SIZE] * 4
    assert max(sizes[4:]) < SIZE / 2
    assert min(sizes) >= SIZE / pieces.MOST


def test_a_checkpoint_shares_what_has_not_changed_and_needs_no_other(tmp_path: Path) -> None:
    """D8: one write in a ring changes one piece; the files of the others are the same on the disk."""
    checkpoints, ring = Checkpoints(tmp_path, keep=2), NOISE.copy()
    first = checkpoints.save({"ring": ring}, step=1)
    ring[SIZE + 3 : SIZE + 9] = 7
    second = checkpoints.save({"ring": ring}, step=2)
    shared = [a.stat().st_ino == b.stat().st_ino for a, b in zip(_bins(first), _bins(second), strict=True)]
    assert shared == [True, False, True, True]
    assert same(load_checkpoint(first), {"ring": NOISE})
    grown = np.concatenate([ring, ring[:5]])
    third = checkpoints.save({"ring": grown}, step=3)
    assert [file.stat().st_nlink for file in _bins(third)] == [2, 2, 2, 2, 1]
    assert not first.exists()
    shutil.rmtree(second)
    assert same(load_checkpoint(third), {"ring": grown})
    again = save_checkpoint(third, {"ring": ring})  # in its place
    assert same(load_checkpoint(again), {"ring": ring})


def test_the_same_content_elsewhere_is_shared_too(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"a": NOISE}, step=1)
    moved = checkpoints.save({"b": np.concatenate([NOISE[2 * SIZE :], NOISE[: 2 * SIZE]])}, step=2)
    assert [file.stat().st_nlink for file in _bins(moved)] == [2] * 4


def test_what_cannot_be_shared_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the earlier one is damaged or gone, or the disk has no links."""
    state = {"x": NOISE}
    checkpoints = Checkpoints(tmp_path, keep=9)
    files = _bins(checkpoints.save(state, step=1))
    files[0].write_bytes(b"short")
    files[1].unlink()
    second = checkpoints.save(state, step=2)
    assert [file.stat().st_nlink for file in _bins(second)] == [1, 1, 2, 2]
    assert same(load_checkpoint(second), state)
    (second / "manifest.json").write_text("{}")
    third = checkpoints.save(state, step=3)
    assert {file.stat().st_nlink for file in _bins(third)} == {1}

    def refuse(*_: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert same(load_checkpoint(checkpoints.save(state, step=4)), state)


def _forged(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the entry of the array and its files, with the right checksums."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    entry = manifest["pieces"]["x"]["0"]
    change(entry)
    for file in entry["files"]:
        if (path / file["name"]).exists():
            file.update(checkpoint._about_file(path / file["name"]))
    manifest["sha256"] = checksum(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path, entry: entry.update(shape=[10**15]), "4 pieces for an array (1000000000000000,) of uint8"),
        (lambda path, entry: entry.update(shape=[-4, -256]), "4 pieces for an array (-4, -256)"),
        (lambda path, entry: entry.update(shape=[0]), "4 pieces for an array (0,)"),
        (lambda path, entry: entry.update(shape="x"), "manifest.json is malformed"),
        (lambda path, entry: entry.pop("shape"), "manifest.json is malformed"),
        (lambda path, entry: entry["files"].append(entry["files"][0]), "manifest.json is malformed"),
        (lambda path, entry: entry["files"][0].pop("content"), "manifest.json is malformed"),
        (lambda path, entry: entry["files"][0].update(name="../x"), "../x is missing"),
        (lambda path, entry: (path / entry["files"][0]["name"]).write_bytes(b"x"), "over 64 times their size on disk"),
        (lambda path, entry: (path / entry["files"][0]["name"]).write_bytes(b"x" * 99), "cannot be read"),
        (
            lambda path, entry: (path / entry["files"][0]["name"]).write_bytes(pieces._packed(memoryview(b"x" * 200))),
            "a piece of 200 bytes, expected 256",
        ),
    ],
    ids=range(11),
)
def test_a_forged_entry_is_refused_before_memory_is_taken(
    change: Callable[[Path, Any], Any], message: str, tmp_path: Path
) -> None:
    """D7: a few bytes on disk stand for no more than `MOST` times as many."""
    path = save_checkpoint(tmp_path / "a", {"x": NOISE})
    _forged(path, lambda entry: change(path, entry))
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert message in str(caught.value)


def test_a_piece_takes_no_more_memory_than_it_has_content() -> None:
    """D7: what a stream would give beyond that is never unpacked."""
    bomb = pieces._packed(memoryview(bytes(80 * SIZE)))
    assert pieces._unpacked(bomb, SIZE) == bytes(SIZE)


def test_a_damaged_piece_is_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a", {"x": NOISE})
    file = _bins(path)[2]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"is truncated: {file.name} has 255 bytes of 256"):
        load_checkpoint(path)

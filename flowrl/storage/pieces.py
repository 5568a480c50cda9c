"""Large arrays on disk, in compressed pieces: a checkpoint links those that the one before it has already.

A replay buffer overwrites few of its rows between two checkpoints. Its arrays are cut every `PIECE` bytes; a piece
whose content the earlier checkpoint holds becomes a hard link to that file. So it takes no space twice, and lasts until
no checkpoint needs it.
"""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.storage.files import new_file, read_file

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes of content per piece. An array of fewer bytes is none to cut.
PIECE = 2**22
#: The most bytes of content per byte on disk, so that a small file cannot fill the memory.
MOST = 64
#: A piece is stored as it is if compression saves less than this share of its first bytes.
_SAVES, _TRIED = 0.1, 2**16


def is_large(array: Array) -> bool:
    """Whether to write an array in pieces; those in Fortran's order keep it in another file."""
    return array.nbytes >= PIECE and (array.flags.c_contiguous or not array.flags.f_contiguous)


def write_pieces(array: Array, prefix: Path, known: Mapping[str, tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    """Write an array to files that begin with `prefix`; returns its entry in the manifest.

    `known` are pieces on the disk, with their entries, by the checksum of their content.
    """
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def write(start: int) -> dict[str, Any]:
        piece = content[start : start + PIECE].data
        path, key = prefix.with_name(f"{prefix.name}-{start // PIECE:06}.bin"), hashlib.sha256(piece).hexdigest()
        if key in known and _link(*known[key], path):
            return {**known[key][1], "name": path.name}
        packed = _packed(piece)
        with new_file(path) as file:
            file.write(packed)
        checksum = key if len(packed) == len(piece) else hashlib.sha256(packed).hexdigest()
        return {"name": path.name, "size": len(packed), "sha256": checksum, "content": key}

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "checkpoint") as pool:
        return {"shape": list(array.shape), "files": list(pool.map(write, range(0, content.nbytes, PIECE)))}


def read_pieces(folder: Path, dtype: np.dtype[Any], shape: Iterable[int], files: list[Mapping[str, Any]]) -> Array:
    """The array of an entry, whose files have the size that the entry says.

    Raises: ValueError for a malformed entry, before memory is taken, or content of another size; OSError; zlib.error.
    """
    shape = tuple(shape)
    total = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or len(files) != -(-total // PIECE):
        raise ValueError(f"malformed: {len(files)} pieces for an array {shape} of {dtype}")
    lengths = [min(PIECE, total - start) for start in range(0, total, PIECE)]
    if any(file["size"] * MOST < length for file, length in zip(files, lengths)):
        raise ValueError(f"malformed: pieces of over {MOST} times their size on disk")
    content = np.empty(total, np.uint8)
    for number, (file, length) in enumerate(zip(files, lengths)):
        data = _unpacked(read_file(folder / file["name"], file["size"]), length)
        content[number * PIECE : number * PIECE + length] = np.frombuffer(data, np.uint8)
    return content.view(dtype).reshape(shape)


def _link(earlier: Path, entry: Mapping[str, Any], path: Path) -> bool:
    """Link a file of an earlier checkpoint, if it is still there and the file system has links."""
    try:
        if earlier.stat().st_size != entry["size"]:
            return False
        os.link(earlier, path)
    except OSError:
        return False
    return True


def _packed(part: memoryview) -> bytes:
    """A piece as it is stored: compressed, where that pays, and not below its `MOST`-th part."""
    tried = part[:_TRIED]
    if len(zlib.compress(tried, 1)) < (1 - _SAVES) * len(tried):
        packed = zlib.compress(part, 1).ljust(-(-len(part) // MOST), b"\0")
        if len(packed) < len(part):
            return packed
    return bytes(part)


def _unpacked(data: bytes, length: int) -> bytes:
    """The content of a stored piece; takes no more memory than `length`."""
    if len(data) == length:
        return data
    content = zlib.decompressobj().decompress(data, length)
    if len(content) != length:
        raise ValueError(f"malformed: a piece of {len(content)} bytes, expected {length}")
    return content

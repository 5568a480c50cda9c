"""What reading a dataset of Minari would take, by what its files say of it: bounded by their size (D19)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.errors import DatasetError
from flowrl.saved import shown

#: The most bytes of content: so many, and so many more for each byte of the files. One of deflate holds 1,032 zeros at
#: most, one of JPEG fewer bytes of a single color.
LEAST, MOST = 2**20, 1_032
#: Filters of HDF5 that pack nothing: shuffle and checksums.
_NO_PACKING = (2, 3)


def check_metadata(folder: Path) -> None:
    """Look at what Minari believes when it opens the dataset in a folder, and raise nothing if there is none.

    Raises: DatasetError: more episodes or steps than its files can hold; a format whose size cannot be told before it
        is unpacked; or no spaces, for which Minari would make the environment that is named there, and so run code
        (D17).
    """
    file = folder / "metadata.json"
    if not file.exists():
        return
    try:
        metadata = json.loads(file.read_bytes())
        counts = {name: metadata[name] for name in ("total_episodes", "total_steps")}
        form = metadata["data_format"]
        lacking = [name for name in ("observation_space", "action_space") if name not in metadata]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DatasetError(f"{file} is no metadata of Minari: {type(error).__name__}: {error}") from error
    most = LEAST + MOST * sum(each.stat().st_size for each in folder.rglob("*"))
    for name, count in counts.items():
        if not isinstance(count, int) or not 0 <= count <= most:
            raise DatasetError(f"{file} is refused: {name} is {shown(count)}, which its files cannot hold")
    if form != "hdf5":
        raise DatasetError(
            f"{file} is refused: how much memory {shown(form)} takes cannot be told before it is unpacked; if you "
            "trust its author, record it: from_minari(minari.load_dataset(...)).for_each(Record(FOLDER))"
        )
    if lacking:
        raise DatasetError(f"{file} is refused: it has no {lacking[0]}; make the dataset again with Minari from 0.5 on")


def check_episodes(storage: Any, numbers: Iterable[int]) -> None:
    """Compare what episodes take in memory, all together, with the size of their file of HDF5, if it is one.

    Raises: DatasetError: they take more; or data is in an episode twice, in another file, or packed twice.
    """
    file = Path(storage.data_path, "main_data.hdf5")
    if not file.exists():
        return
    import h5py

    left = LEAST + MOST * file.stat().st_size
    spaces = {"observations": storage.observation_space, "actions": storage.action_space}
    with h5py.File(file) as opened:
        for number in numbers:
            for size in _sizes(opened, f"episode_{number}", spaces if storage.jpeg_encoding else None, set()):
                if (left := left - size) < 0:
                    raise DatasetError(
                        f"{file} is refused: with episode {number} it would take over {MOST:,} times its own bytes of "
                        "memory; if it is sound, pack it less, as with h5repack -f NONE"
                    )


def _sizes(parent: Any, name: str, space: Any, seen: set[Any]) -> Iterator[int]:
    """The bytes of each array in a group once it is read, and of its pictures once they are decoded."""
    import h5py
    from PIL import Image

    if parent.get(name, getclass=True, getlink=True) is not h5py.HardLink:
        raise _refused(parent, name, "a link, expected data")
    node = parent[name]
    if (at := h5py.h5o.get_info(node.id).addr) in seen:
        raise _refused(parent, name, "in an episode twice")
    seen.add(at)
    if isinstance(node, h5py.Group):
        inner = _parts(space)
        for each in node:
            yield from _sizes(node, each, inner.get(each), seen)
        return
    made = node.id.get_create_plist()
    filters = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
    if node.is_virtual or node.external or sum(each not in _NO_PACKING for each in filters) > 1:
        raise _refused(parent, name, "in another file or packed twice")
    yield node.dtype.itemsize * max(node.size or 0, prod(node.chunks or ()))
    if node.dtype.hasobject:  # of which many may be one in the file
        yield from (memoryview(node[index]).nbytes for index in np.ndindex(node.shape))
    if space is not None and len(space.shape or ()) > 1 >= node.ndim - 1 and node.size:
        sizes = (prod(each.size) * len(each.getbands()) for each in map(Image.open, map(BytesIO, map(bytes, node[()]))))
        yield len(node) * next(sizes)  # the first makes room for all
        yield from sizes


def _parts(space: Any) -> Mapping[str, Any]:
    """The spaces in one, by the names of Minari's groups."""
    if isinstance(space, Sequence):
        return {f"_index_{i}": each for i, each in enumerate(space)}
    return space if isinstance(space, Mapping) else {}


def _refused(parent: Any, name: str, what: str) -> DatasetError:
    return DatasetError(f"{parent.file.filename} is refused: {parent.name.strip('/')}/{name} is {what}")

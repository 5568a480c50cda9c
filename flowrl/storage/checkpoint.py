"""Checkpoints on disk: folders that are written atomically, and checked when read.

A checkpoint is a folder with manifest.json and, for each part of a state (`operators`, each resource ...), a JSON
skeleton, an .npz of its arrays, and, if needed, a second .npz for objects that can only be pickled. Only that one can
run code; it is read only if the file is declared trusted. Large arrays are in files of their own, see
`flowrl.storage.pieces`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from flowrl.errors import CheckpointError, did_you_mean
from flowrl.saved import fits, shown
from flowrl.storage.codec import decode, encode
from flowrl.storage.files import (
    MANIFEST,
    checksummed_manifest,
    new_file,
    opened,
    opened_zip,
    read_file,
    read_json,
    read_manifest,
    swapped,
)
from flowrl.storage.pieces import is_large, read_pieces, write_pieces

#: The format that this version writes; it reads all earlier ones too.
FORMAT_VERSION = 2
_RESOURCES = "resources/"
#: The entry of a file in the manifest.
_FILE = {"name": str, "size": int, "sha256": str}


def save_checkpoint(
    path: str | Path,
    state: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
    *,
    earlier: str | Path | None = None,
) -> Path:
    """Write a state, such as `Run.state_dict()`, as a folder; replaces an existing checkpoint.

    It writes the folder under another name, flushes it to disk and then renames it, so the checkpoint is complete
    whenever the process or the machine dies. Where folders cannot be swapped in one step (other systems than Linux,
    NFS), a replacement takes two renames; a death between them leaves the earlier checkpoint beside, as
    `.NAME.PID.old`.

    Args:
        path: The folder.
        state: Entries become parts; those of `state["resources"]` one each.
        about: Further entries of the manifest, as JSON.
        earlier: A checkpoint on the same disk, with which this one may share the files of what has not changed; None:
            the one that it replaces.

    Raises:
        CheckpointError: a part of the state cannot be saved, or `path` cannot be written or holds something else.
    """
    given, parts = Path(path), _parts(state)
    try:
        path = given.resolve()  # a link to a checkpoint stays; its target is replaced
        replaced = path.exists()
        if replaced and not _is_ours(path) and not (path.is_dir() and not any(path.iterdir())):
            raise CheckpointError(f"{given} is there and is no checkpoint; choose another place")
        partial, old = (path.with_name(f".{path.name}.{os.getpid()}.{suffix}") for suffix in ("tmp", "old"))
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        raise CheckpointError(f"{given} cannot be written: {error}; choose another place") from error
    try:
        known = _pieces_of(path if earlier is None else Path(earlier))
        pieces: dict[str, dict[str, Any]] = {}
        files = {
            name: _write_part(partial, i, name, part, pieces.setdefault(name, {}), known)
            for i, (name, part) in enumerate(parts.items())
        }
        _write_manifest(partial, files, {name: large for name, large in pieces.items() if large}, about or {})
        _flush_folder(partial)
        if not (replaced and swapped(partial, path)):
            if replaced:
                shutil.rmtree(old, ignore_errors=True)
                os.replace(path, old)
            os.replace(partial, path)
    except BaseException:
        if replaced and old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _flush_folder(path.parent)
    for left in (*_left_by_killed(path, "tmp"), *_left_by_killed(path, "old")):
        shutil.rmtree(left, ignore_errors=True)
    return given


def load_checkpoint(path: str | Path, *, parts: Collection[str] | None = None, trusted: bool = False) -> dict[str, Any]:
    """Read a state, or some of its parts, after checking that it is complete.

    Nothing is unpickled unless `trusted`, which runs code in the file: pass it only for your own files. Policies,
    buffers and results need no trust; environments mid-episode do.

    Args:
        path: The folder of a checkpoint.
        parts: Names from the manifest ("ledger", "resources/DQNPolicy"); None: all.
        trusted: Whether to unpickle objects.

    Raises:
        CheckpointError: it is damaged, truncated, of a newer format or not a checkpoint; a part does not exist; or a
            part needs trust.
    """
    path = Path(path)
    manifest = verify_checkpoint(path)
    files, pieces = manifest["parts"], manifest.get("pieces", {})
    if unknown := [name for name in parts or () if name not in files]:
        raise CheckpointError(f"{path} has no part {unknown[0]!r}; {did_you_mean(unknown[0], files)}")
    state: dict[str, Any] = {}
    for name in files if parts is None else parts:
        part = _read_part(path, name, files[name], pieces.get(name, {}), trusted)
        if name.startswith(_RESOURCES):
            state.setdefault("resources", {})[name.removeprefix(_RESOURCES)] = part
        else:
            state[name] = part
    return state


def verify_checkpoint(path: str | Path) -> dict[str, Any]:
    """Compare every file of a checkpoint with its size and checksum; returns the manifest.

    Raises:
        CheckpointError: see `load_checkpoint`.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    for file in _files(manifest):
        at = path / file["name"]
        try:
            if Path(file["name"]).name != file["name"] or not at.is_file():
                raise CheckpointError(f"{path} is damaged: {file['name']} is missing")
            if (size := at.stat().st_size) != file["size"]:
                how = "truncated" if size < file["size"] else "damaged"
                raise CheckpointError(f"{path} is {how}: {file['name']} has {size} bytes of {file['size']}")
            if _digest(at) != file["sha256"]:
                raise CheckpointError(
                    f"{path} is damaged: {file['name']} is not what was written (its checksum differs)"
                )
        except (OSError, ValueError) as error:  # no name that the system knows
            raise CheckpointError(f"{path} is damaged: {shown(file['name'])} cannot be read: {error}") from error
    return manifest


@attrs.frozen
class Checkpoints:
    """A folder of checkpoints of one run, the newest `keep` of them: step-000012345 ...

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(folder, keep=2)
    ...     for steps in (100, 200, 300):
    ...         path = checkpoints.save({"x": steps}, step=steps)
    ...     [path.name for path in checkpoints.paths()], checkpoints.load()
    (['step-000000200', 'step-000000300'], {'x': 300})
    """

    folder: Path = attrs.field(converter=Path)
    keep: int = attrs.field(default=3, validator=attrs.validators.ge(1))

    def save(self, state: Mapping[str, Any], about: Mapping[str, Any] | None = None, *, step: int) -> Path:
        """Write a checkpoint, then remove the oldest ones and the remains of killed writes.

        What has not changed since the newest one is not written again: both share its files.
        """
        # A second checkpoint of the same step sorts after earlier ones, even if these were removed.
        ordinals = [key[1] for key in map(_key, _entries(self.folder)) if key is not None and key[0] == step]
        ordinal = 1 + max(ordinals, default=0)
        path = self.folder / f"step-{step:09}{f'-{ordinal}' * (ordinal > 1)}"
        save_checkpoint(path, state, about, earlier=self.latest())
        stale = [entry for entry in self.folder.iterdir() if entry.name.startswith(".step-")]
        ours = [entry for entry in self.paths() if (entry / MANIFEST).is_file()]  # leaves a foreign folder step-1 alone
        for entry in [*stale, *(entry for entry in ours[: -self.keep] if entry != path)]:
            _remove(entry)
        return path

    def paths(self) -> list[Path]:
        """The checkpoints, oldest first, including damaged ones."""
        found = [(key, path) for path in _entries(self.folder) if (key := _key(path)) is not None]
        return [path for _, path in sorted(found)]

    def latest(self) -> Path | None:
        """The newest; None if there is none."""
        return next(reversed(self.paths()), None)

    def load(self, path: str | Path | None = None, *, trusted: bool = False) -> dict[str, Any]:
        """Read a checkpoint, by default the newest; see `load_checkpoint`.

        Raises:
            CheckpointError: there is none, or it cannot be read; names the newest complete one before it.
        """
        chosen = self.latest() if path is None else Path(path)
        if chosen is None:
            raise CheckpointError(f"there is no checkpoint in {self.folder}")
        try:
            return load_checkpoint(chosen, trusted=trusted)
        except CheckpointError as error:
            before = self.before(chosen)
            offer = "no earlier one is whole" if before is None else f"the one before it, {before}, is whole"
            raise CheckpointError(f"{error}; {offer}") from error

    def before(self, path: Path) -> Path | None:
        """The newest complete checkpoint before this one."""
        for earlier in reversed([each for each in self.paths() if (_key(each) or ()) < (_key(path) or ())]):
            try:
                verify_checkpoint(earlier)
            except CheckpointError:
                continue
            return earlier
        return None

    def rewind(self, path: Path) -> None:
        """Continue from a checkpoint: set later ones aside; the next save removes them."""
        for later in [each for each in self.paths() if (_key(each) or ()) > (_key(path) or ())]:
            aside = later.with_name(f".{later.name}.superseded")
            _remove(aside)
            os.replace(later, aside)


# -- writing


def _parts(state: Mapping[str, Any]) -> dict[str, Any]:
    parts = dict(state)
    if unfit := [name for name in parts if type(name) is not str or "/" in name]:
        raise CheckpointError(f"a part of a state is named by a string without '/', not {unfit[0]!r}")
    if isinstance(state.get("resources"), Mapping) and state["resources"]:
        parts |= {f"{_RESOURCES}{name}": value for name, value in parts.pop("resources").items()}
    return parts


def _pieces_of(path: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The pieces of large arrays of an earlier checkpoint, as far as it has any, by the checksum of their content."""
    try:
        pieces = _read_manifest(path).get("pieces", {})
    except CheckpointError:
        return {}
    files = [file for part in pieces.values() for large in part.values() for file in large["files"]]
    return {file["content"]: (path / file["name"], file) for file in files}


def _write_part(
    folder: Path, index: int, name: str, part: Any, large: dict[str, Any], known: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Write a part; returns its files, and adds those of its large arrays to `large`."""
    encoded = encode(part, name)
    slug = f"{index:02}-" + re.sub(r"[^\w-]+", "-", name)[:60]
    pickles = [np.frombuffer(each, np.uint8) for each in encoded.pickles]
    files, arrays = {}, list(encoded.arrays)
    with new_file(folder / f"{slug}.json") as file:
        file.write(json.dumps(encoded.skeleton, allow_nan=False).encode())
    files["skeleton"] = _about_file(folder / f"{slug}.json")
    for i, array in enumerate(arrays):
        if is_large(array):
            large[str(i)] = write_pieces(array, folder / f"{slug}-{i}", known)
            arrays[i] = np.empty(0, array.dtype)  # keeps the dtype, beside the small ones
    for role, members in (("arrays", arrays), ("pickles", pickles)):
        if members:
            at = folder / f"{slug}{'' if role == 'arrays' else '.pickles'}.npz"
            with new_file(at) as file:
                np.savez(file, **{str(i): array for i, array in enumerate(members)})  # type: ignore[arg-type]
            files[role] = _about_file(at)
    return files


def _write_manifest(
    folder: Path, parts: Mapping[str, Any], pieces: Mapping[str, Any], about: Mapping[str, Any]
) -> None:
    body = {
        "saved": datetime.now().astimezone().isoformat(timespec="seconds"),
        "about": dict(about),
        "parts": dict(parts),
        "pieces": dict(pieces),
    }
    try:
        body = json.loads(json.dumps(body))  # as it will be read: JSON makes strings of all keys
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"about={dict(about)!r} cannot be written to the manifest: {error}") from error
    with new_file(folder / MANIFEST) as file:
        file.write(json.dumps(checksummed_manifest("checkpoint", FORMAT_VERSION, body), indent=2).encode())


def _about_file(path: Path) -> dict[str, Any]:
    return {"name": path.name, "size": path.stat().st_size, "sha256": _digest(path)}


def _digest(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_folder(path: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        what = "is a file" if path.exists() else "is not there"
        kept = [f"; a save that was killed left the one before it as {old}" for old in _left_by_killed(path, "old")]
        raise CheckpointError(f"{path} {what}: a checkpoint is a folder with a {MANIFEST}{''.join(kept)}")
    found = read_manifest(path, "checkpoint", FORMAT_VERSION, CheckpointError)
    if not _well_formed(found):
        raise CheckpointError(f"{path} is damaged: its {MANIFEST} is malformed")
    return found


def _well_formed(manifest: dict[str, Any]) -> bool:
    """Whether it has the fields that reading needs: a matching checksum does not prove that."""
    parts, pieces, about = (manifest.get(name, {}) for name in ("parts", "pieces", "about"))
    tables = dict[str, dict[str, dict[str, Any]]]
    if not (fits(parts, tables) and fits(pieces, tables) and isinstance(about, dict) and "parts" in manifest):
        return False
    large = [each for part in pieces.values() for each in part.values()]
    if not all(map(_is_large, large)) or not all("skeleton" in part for part in parts.values()):
        return False
    files = [file for part in parts.values() for file in part.values()]
    names = [file.get("name") for file in _files(manifest)]
    return len({*names}) == len(names) and all({k: type(v) for k, v in file.items()} == _FILE for file in files)


def _is_large(entry: dict[str, Any]) -> bool:
    """Whether it is the entry of an array in pieces."""
    return (
        {*entry} == {"shape", "files"}
        and fits(entry["shape"], list[int])
        and fits(entry["files"], list[dict[str, Any]])
        and all({k: type(v) for k, v in file.items()} == {**_FILE, "content": str} for file in entry["files"])
    )


def _files(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of all files. None is there twice, so that a small checkpoint cannot fill the memory."""
    files = [file for part in manifest["parts"].values() for file in part.values()]
    large = [each for part in manifest.get("pieces", {}).values() for each in part.values()]
    return files + [file for each in large for file in each["files"]]


def _read_part(path: Path, name: str, files: Mapping[str, Any], pieces: Mapping[str, Any], trusted: bool) -> Any:
    archives: dict[str, zipfile.ZipFile] = {}
    taken, files_open = set(), ExitStack()

    def array(role: str, number: int) -> Any:
        if role == "pickles" and not trusted:
            raise CheckpointError(
                "it holds what can only be unpickled, which runs code from the file: load it with trusted=True "
                "if it is your own"
            )
        if role not in archives:
            archives[role] = files_open.enter_context(opened_zip(path / files[role]["name"]))
        if (role, (member := f"{int(number)}.npy")) in taken:  # or a small file could fill the memory
            raise CheckpointError(f"malformed: it refers to {member} of its {role} twice")
        taken.add((role, member))
        with archives[role].open(member) as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
        large = pieces.get(str(int(number))) if role == "arrays" else None
        return found if large is None else read_pieces(path, found.dtype, **large)

    try:
        skeleton = json.loads(read_file(path / files["skeleton"]["name"], files["skeleton"]["size"]))
        return decode(skeleton, lambda at: array("arrays", at), lambda at: array("pickles", at).tobytes())
    except CheckpointError as error:
        raise CheckpointError(f"{path}, part {name}: {error}") from error
    except Exception as error:  # a forged file with the right checksum may make readers raise anything
        raise CheckpointError(f"{path} is damaged: part {name} cannot be read: {error}") from error
    finally:
        files_open.close()


def _is_ours(path: Path) -> bool:
    """Whether the path holds a checkpoint, maybe a damaged one, not another folder with a manifest."""
    try:
        manifest = read_json(path / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return (path / MANIFEST).is_file()
    return isinstance(manifest, dict) and manifest.get("format") == "flowrl checkpoint"


def _left_by_killed(path: Path, suffix: str) -> list[Path]:
    """The remains of killed saves beside a path."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\d+\.{suffix}")
    return [each for each in _entries(path.parent) if pattern.fullmatch(each.name)]


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _key(path: Path) -> tuple[int, int] | None:
    """The sort key of a folder among a run's checkpoints; None if it is not one."""
    match = re.fullmatch(r"step-(\d+)(?:-(\d+))?", path.name)
    return None if match is None else (int(match[1]), int(match[2] or 1))


def _remove(path: Path) -> None:
    """Remove a checkpoint, renaming it first, so that no partial one is ever found."""
    if not path.exists():
        return
    if not path.name.startswith("."):
        hidden = path.with_name(f".{path.name}.removed")
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(path, hidden)
        path = hidden
    shutil.rmtree(path, ignore_errors=True)

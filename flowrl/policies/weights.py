"""A policy in a file: its acting weights, and what else acting needs. Nothing in such a file can run code."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from flowrl.errors import CheckpointError
from flowrl.networks.loading import check_numbers
from flowrl.policies.protocols import HasModel, HasWeights
from flowrl.saved import Saved, load_whole
from flowrl.storage.files import opened_zip, parse_json, write

#: The member of torch's archive in which a policy says what it is, where torch has room for such files.
ABOUT = "extra/flowrl.json"
#: The newest version of what it says.
VERSION = 1


def save_weights(policy: HasWeights, path: Path, about: Mapping[str, Any] | None = None) -> None:
    """Write the weights to a file, as torch does, and what it says `about` the policy; creates its folder."""
    buffer = io.BytesIO()
    torch.save(policy.weights(), buffer)
    if about is not None:
        with zipfile.ZipFile(buffer, "a") as archive:  # a member has no time, so equal policies are equal files
            top = archive.namelist()[0].partition("/")[0]
            archive.writestr(zipfile.ZipInfo(f"{top}/{ABOUT}"), json.dumps({"version": VERSION, **about}))
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, buffer.getvalue())


def policy_about(path: Path) -> dict[str, Any] | None:
    """What a file says about its policy; None for files of earlier versions, and any others of torch.

    Raises:
        CheckpointError: the file is missing or damaged, or of a newer version.
    """
    try:
        with opened_zip(path) as archive:
            found = [archive.read(name) for name in archive.namelist() if name.partition("/")[2] == ABOUT]
        about = parse_json(found[0]) if found else None
    except OSError as error:
        raise CheckpointError(f"no saved policy can be read at {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} holds no readable weights: {error}") from error
    if about is None:
        return None
    if (version := Saved(about, f"the policy file {path}").count("version")) > VERSION:
        raise CheckpointError(f"{path} has version {version}, this flowrl reads up to {VERSION}: upgrade flowrl")
    return dict(about)


def read_weights(path: Path) -> Any:
    """The weights of a file: tensors by name.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        with opened_zip(path) as archive:
            weights = torch.load(cast("BinaryIO", archive.fp), weights_only=True, map_location="cpu")
            # torch believes the sizes that the file names, and reads on beyond a member's end.
            held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in _tensors(weights)}
            if sum(held.values()) > sum(each.file_size for each in archive.infolist()):
                raise ValueError("its tensors are larger than the file")
            return weights
    except OSError as error:
        raise CheckpointError(f"no saved policy can be read at {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:  # torch's message would recommend trusting the file
        raise CheckpointError(f"{path} holds no readable weights, but objects that could run code") from error
    except Exception as error:  # torch has no error class for bytes that are not a file of weights
        raise CheckpointError(f"{path} holds no readable weights: {type(error).__name__}: {error}") from error


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ():
        yield from _tensors(inner)


def load_weights(policy: HasWeights, path: Path) -> None:
    """Load the weights of a file into a policy.

    Raises:
        CheckpointError: the file is missing or damaged, or its weights belong to another model.
    """
    weights = read_weights(path)
    try:
        check_numbers(policy.model if isinstance(policy, HasModel) else None, weights, "the weights")
        load_whole(policy.load_weights, weights, policy.weights(), "the weights")
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit {type(policy).__name__}: {error}") from error

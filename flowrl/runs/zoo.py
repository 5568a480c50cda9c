"""The zoo: trained policies that come with a checkout, not with the wheel: `flowrl.load("zoo:ppo/CartPole-v1")`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from flowrl.errors import CheckpointError, ConfigError, did_you_mean
from flowrl.saved import Saved
from flowrl.storage.files import read_file, read_json

#: What the names of its policies begin with.
PREFIX = "zoo:"
#: The variable that names its folder; without it, that of the checkout.
VARIABLE = "FLOWRL_ZOO"
#: The file in it that lists the policies.
INDEX = "index.json"


def zoo_folder() -> Path:
    """The folder of the zoo. Raises: ConfigError: there is none."""
    folder = Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2] / "benchmarks" / "zoo")
    if not (folder / INDEX).is_file():
        raise ConfigError(
            f"there is no zoo in {folder}: its policies come with a checkout of flowrl, not with the package; set "
            f"{VARIABLE} to the folder benchmarks/zoo of one"
        )
    return folder


def zoo_index() -> dict[str, Any]:
    """What there is, by name, and what is known of each. Raises: ConfigError: there is no zoo, or it is damaged."""
    path = zoo_folder() / INDEX
    try:
        index = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(index, dict):
        raise ConfigError(f"{path} is malformed: expected a table of policies")
    return index


def zoo_file(name: str) -> Path:
    """The policy file of this name, with or without the prefix, compared with its checksum.

    Raises:
        ConfigError: no zoo, or no policy of that name in it (with the closest one).
        CheckpointError: the file is not the one in the index.
    """
    name, index, folder = name.removeprefix(PREFIX), zoo_index(), zoo_folder()
    if name not in index:
        raise ConfigError(f"the zoo in {folder} has no {name!r}; {did_you_mean(name, index)}")
    entry = Saved(index[name], f"{folder / INDEX}, {name}")
    file = entry.get("file", str)
    path = folder / Path(file).name
    try:
        found = hashlib.sha256(read_file(path)).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if found != entry.get("sha256", str):
        raise CheckpointError(f"{path} is damaged: its checksum is not that in {INDEX}")
    return path

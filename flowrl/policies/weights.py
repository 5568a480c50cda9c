"""A policy's acting weights in a file. Nothing in such a file can run code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowrl.errors import CheckpointError
from flowrl.files import write

if TYPE_CHECKING:
    from flowrl.policies.policy import Policy


def save_weights(policy: Policy, path: Path) -> None:
    """Write the weights to a file, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(policy.weights(), buffer)
    write(path, buffer.getvalue())


def load_weights(policy: Policy, path: Path) -> None:
    """Load the weights of a file into a policy.

    Raises:
        CheckpointError: the file is not there or is damaged, or its weights are those of another model.
    """
    try:
        policy.load_weights(torch.load(path, weights_only=True, map_location="cpu"))
    except OSError as error:
        raise CheckpointError(f"no saved policy can be read at {path}: {error.strerror or error}") from error
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} does not fit {type(policy).__name__}: {error}") from error

"""A policy's acting weights in a file. Nothing in such a file can run code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowrl.errors import CheckpointError
from flowrl.storage.files import write

if TYPE_CHECKING:
    from flowrl.policies.policy import Policy


def save_weights(policy: Policy, path: Path) -> None:
    """Write the weights to a file, atomically."""
    buffer = io.BytesIO()
    torch.save(policy.weights(), buffer)
    write(path, buffer.getvalue())


def load_weights(policy: Policy, path: Path) -> None:
    """Load the weights of a file into a policy.

    Raises:
        CheckpointError: the file is missing or damaged, or its weights belong to another model.
    """
    try:
        weights = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise CheckpointError(f"no saved policy can be read at {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:  # torch's message would recommend trusting the file
        raise CheckpointError(f"{path} holds no readable weights, but objects that could run code") from error
    except Exception as error:  # torch has no error class for bytes that are not a file of weights
        raise CheckpointError(f"{path} holds no readable weights: {type(error).__name__}: {error}") from error
    try:
        policy.load_weights(weights)
    except (RuntimeError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} does not fit {type(policy).__name__}: {error}") from error

"""A policy's acting weights in a file. Nothing in such a file can run code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flowrl.errors import CheckpointError
from flowrl.policies.protocols import HasModel
from flowrl.saved import load_whole, shown
from flowrl.storage.files import opened_zip, write

if TYPE_CHECKING:
    from flowrl.policies.policy import Policy


def save_weights(policy: Policy, path: Path) -> None:
    """Write the weights to a file, atomically; creates its folder."""
    buffer = io.BytesIO()
    torch.save(policy.weights(), buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, buffer.getvalue())


def check_numbers(module: torch.nn.Module | None, weights: Any, what: str) -> None:
    """Raise a CheckpointError for weights that are not finite, and for NaN in buffers, which may hold infinities."""
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"{what} are {shown(weights)}, expected tensors by name")
    parameters = {} if module is None else dict(module.named_parameters(remove_duplicate=False))
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            continue
        if bool(value.isnan().any()) or (name in parameters and not bool(value.isfinite().all())):
            raise CheckpointError(f"{what} hold numbers that are not finite in {shown(name)}")


def load_weights(policy: Policy, path: Path) -> None:
    """Load the weights of a file into a policy.

    Raises:
        CheckpointError: the file is missing or damaged, or its weights belong to another model.
    """
    try:
        with opened_zip(path):
            weights = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise CheckpointError(f"no saved policy can be read at {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:  # torch's message would recommend trusting the file
        raise CheckpointError(f"{path} holds no readable weights, but objects that could run code") from error
    except Exception as error:  # torch has no error class for bytes that are not a file of weights
        raise CheckpointError(f"{path} holds no readable weights: {type(error).__name__}: {error}") from error
    try:
        check_numbers(policy.model if isinstance(policy, HasModel) else None, weights, "the weights")
        load_whole(policy.load_weights, weights, policy.weights(), "the weights")
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit {type(policy).__name__}: {error}") from error

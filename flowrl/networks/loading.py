"""What a network and its optimizer take from a file, after a look at it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch

from flowrl.errors import CheckpointError
from flowrl.saved import Saved, fits, shown


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


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Saved) -> None:
    """Load the state of an optimizer of the same parameters.

    Raises: CheckpointError for other parameters, shapes and types, and numbers that are not finite.
    """
    ours = optimizer.state_dict()["param_groups"]
    groups = saved.get("param_groups", list[dict[str, Any]])
    if len(groups) != len(ours) or not all(map(_alike_group, groups, ours)):
        saved.refuse("param_groups", "groups of these parameters, with finite numbers for their rates")
    parameters = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    states = saved.get("state", dict[int, dict[str, Any]])
    for number, state in states.items():
        if number not in parameters or state.keys() != next(iter(states.values())).keys():
            saved.refuse("state", "the same entries for parameters that there are")
        for value in state.values():
            tensor = value if isinstance(value, torch.Tensor) else torch.tensor([])
            if not bool(tensor.isfinite().all()) or (tensor.dim() and tensor.shape != parameters[number].shape):
                raise CheckpointError(f"{saved.what}: the state of parameter {number} is not finite or of its shape")
    optimizer.load_state_dict(copy.deepcopy(dict(saved.state)))


def _alike_group(group: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether the entries that both have are numbers alike, and the parameters the same."""

    def alike(value: Any, mine: Any) -> bool:
        if isinstance(mine, tuple):
            return isinstance(value, tuple | list) and len(value) == len(mine) and all(map(alike, value, mine))
        if isinstance(mine, float | int) and not isinstance(mine, bool):
            return fits(value, float) and math.isfinite(value)
        return fits(value, bool | None) == fits(mine, bool | None)

    both = group.keys() & ours.keys()
    return group.get("params") == ours["params"] and all(alike(group[name], ours[name]) for name in both)

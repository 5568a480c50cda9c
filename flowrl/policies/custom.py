"""A network of one's own in the place of the built-in encoders, by class or by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import create_empty_array
from torch import nn

from flowrl.data import Batch
from flowrl.errors import ConfigError, closest
from flowrl.policies.networks import Encoder

#: What a network of one's own is.
EXPECTED = (
    "a class, or 'module:Class', that is called with the observation space and makes a torch.nn.Module from "
    "observations [B, ...] to [B, features], which has an attribute `features`"
)


def custom_encoder(network: Any, space: gymnasium.Space[Any]) -> Encoder:
    """The network that a class, or the name of one, makes for observations of a space.

    It is given what the space holds as tensors `[B, ...]`, a `Batch` of them where it is a Dict: bytes of images as
    bytes, numbers as they are. It has been tried on observations of zeros, and is in its eval mode.

    Raises:
        ConfigError: there is no such class, or what it makes does not fit.
    """
    name = network if isinstance(network, str) else getattr(network, "__name__", repr(network))
    made = (_named(network) if isinstance(network, str) else network)(space)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"network={name}: it made a {type(made).__name__}; expected {EXPECTED}")
    features = getattr(made, "features", None)
    if not isinstance(features, int) or features < 1:
        raise ConfigError(f"network={name}: its `features` are {features!r}, expected how many it gives, 1 or more")
    empty: Any = create_empty_array(space, 2, np.zeros)
    zeros: Any = Batch(empty).to_torch() if isinstance(empty, Mapping) else torch.from_numpy(empty)
    try:
        with torch.no_grad():
            given = made.eval()(zeros)
    except Exception as error:
        error.add_note(f"while network={name} encoded two observations of zeros of {space}")
        raise
    shape = list(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
    if shape != [2, features]:
        raise ConfigError(
            f"network={name}: for two observations it gave {shape}, expected [2, {features}], as its `features` say"
        )
    return cast(Encoder, made)


def _named(name: str) -> Any:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"network={name!r}: expected {EXPECTED}")
    try:
        module = importlib.import_module(module_name)
    except (ModuleNotFoundError, ValueError) as error:
        raise ConfigError(f"network={name!r}: {error}. Expected {EXPECTED}") from error
    if (found := getattr(module, attribute, None)) is None:
        there = [each for each, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"network={name!r}: {module_name} has no {attribute!r}; {closest(attribute, there)}")
    return found

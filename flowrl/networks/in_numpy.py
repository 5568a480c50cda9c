"""Acting in plain numpy: what a small dense network computes, without torch's cost per call.

`in_numpy(module)` is a function of arrays. It reads the weights where torch keeps them, so it follows every update.
A user's module takes part if its class has a method `in_numpy()` beside `forward`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from flowrl.errors import ConfigError
from flowrl.networks.sampling import Array
from flowrl.networks.torch_private import has_hooks, writes

Function: TypeAlias = Callable[..., Any]

#: Array functions that replace torch's layers; `out` may be the input array.
ACTIVATIONS: dict[type[nn.Module], Function] = {
    nn.ReLU: lambda x, out=None: np.maximum(x, 0, out=out),
    nn.Tanh: lambda x, out=None: np.tanh(x, out=out),
    nn.Sigmoid: lambda x, out=None: np.reciprocal(1 + np.exp(-x), out=out),
}


class InNumpy:
    """A model as a function of arrays, for `act_backend="numpy"`.

    Weights on this host are not copied; those on a GPU are, at the first act after they change.

    Raises:
        ConfigError: the model has a part without a numpy form.
    """

    _copied: list[int]  # `_changes` when the weights were last copied; empty: never

    def __init__(self, model: nn.Module) -> None:
        self._read(model)

    def __call__(self, model: nn.Module, version: int) -> Any:
        """The function with the current weights of this model, which are of this version."""
        if self._model is not model or self._places != self._where():
            self._read(model)  # the weights moved to other tensors
        if self._on_host is not model and self._copied != (now := self._changes(version)):
            self._on_host.load_state_dict(model.state_dict())
            self._copied = now
        return self._function

    def _read(self, model: nn.Module) -> None:
        self._model = self._on_host = model
        self._weights = [*model.parameters(), *model.buffers()]
        self._places = self._where()
        self._copied = []
        if not self._is_here():
            self._on_host = copy.deepcopy(model).cpu()
        self._function = in_numpy(self._on_host)

    def _is_here(self) -> bool:
        return all(weight.device.type == "cpu" for weight in self._weights)

    def _where(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self._weights))

    def _changes(self, version: int) -> list[int]:
        """A list that changes with any write: fused optimizers change the version, others the tensors' counts."""
        return [version, *writes(self._weights)]


def in_numpy(module: nn.Module) -> Function:
    """A function of arrays that computes the same as `module` on tensors, up to rounding.

    >>> layer = nn.Linear(2, 1)
    >>> function = in_numpy(layer)
    >>> _ = nn.init.constant_(layer.weight, 2.0), nn.init.zeros_(layer.bias)
    >>> function(np.array([[1, 3]], np.float32))
    array([[8.]], dtype=float32)

    Raises:
        ConfigError: a part of the module has no numpy form.
    """
    kind = next(base for base in type(module).__mro__ if "forward" in vars(base))
    hooked = has_hooks(module) or parametrize.is_parametrized(module)
    if not hooked:
        if "in_numpy" in vars(kind):
            made: Function = module.in_numpy()  # type: ignore[operator]
            return made
        if kind in ACTIVATIONS:
            return ACTIVATIONS[kind]
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            return linear_in_numpy(module.weight, module.bias)
        if isinstance(module, nn.Sequential) and kind is nn.Sequential:
            return _sequential(module)
        if isinstance(module, nn.LayerNorm) and kind is nn.LayerNorm and module.elementwise_affine:
            return _layer_norm(module)
        if kind is nn.Flatten:
            return lambda x: x.reshape(len(x), -1)
        if kind is nn.Identity:
            return lambda x: x
    what = str(module).splitlines()[0].rstrip("(")  # a module of several parts is as long as they are
    why = "which has hooks or parametrizations" if hooked else "which has no numpy form"
    raise ConfigError(
        f"act_backend='numpy' serves small dense networks, but the model has a {what}, {why}: "
        "take act_backend='torch', or give its class a method in_numpy() beside forward()"
    )


def to_numpy(given: Any) -> Array:
    """An array from a tensor or an array."""
    array: Array = given if isinstance(given, np.ndarray) else given.cpu().numpy()
    return array


def log_softmax(scores: Any) -> Array:
    """Normalized log-probabilities `[..., A]` of scores that are a tensor or an array."""
    if isinstance(scores, torch.Tensor):
        return to_numpy(torch.log_softmax(scores, -1))
    shifted = scores - np.maximum.reduce(scores, -1, keepdims=True)
    total = np.add.reduce(np.exp(shifted), -1, keepdims=True)
    found: Array = np.subtract(shifted, np.log(total, out=total), out=shifted)
    return found


def linear_in_numpy(weight: torch.Tensor, bias: torch.Tensor | None) -> Function:
    """A linear layer with weight `[out, in]` and bias `[out]`."""
    weights = weight.detach().numpy().T
    biases = None if bias is None else bias.detach().numpy()

    def forward(x: Array) -> Array:
        y: Array = np.dot(x, weights)
        if biases is not None:
            y += biases
        return y

    return forward


def _layer_norm(module: nn.LayerNorm) -> Function:
    weight, bias, axes = module.weight.detach().numpy(), module.bias, tuple(range(-len(module.normalized_shape), 0))
    shift = None if bias is None else bias.detach().numpy()

    def forward(x: Array) -> Array:
        centered = x - x.mean(axes, keepdims=True)
        scale = np.sqrt(np.square(centered).mean(axes, keepdims=True) + module.eps)
        normalized: Array = centered / scale * weight
        if shift is not None:
            normalized += shift
        return normalized

    return forward


def _sequential(module: nn.Sequential) -> Function:
    steps, owned = [], False
    for layer in layers_of(module):
        function = in_numpy(layer)
        if owned and type(layer) in ACTIVATIONS:
            function = _in_place(function)
        owned = type(layer) is nn.Linear
        steps.append(function)

    def forward(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return forward


def layers_of(module: nn.Sequential) -> Iterator[nn.Module]:
    """The layers of a Sequential, nested ones flattened."""
    for layer in module:
        if type(layer) is nn.Sequential and not has_hooks(layer):
            yield from layers_of(layer)
        else:
            yield layer


def _in_place(function: Function) -> Function:
    return lambda x: function(x, out=x)

"""A loss and its gradients as one compiled function: for a small network, torch keeps books longer than it computes."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any

import attrs
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.torch_private import traced
from flowrl.policies.learning import Learning

log = logging.getLogger("flowrl")


@attrs.frozen
class Code:
    """The compiled function of tensors `[B, ...]` to loss, scalars and gradients; and what these belong to."""

    function: Callable[..., Any]
    scalars: list[str]
    learned: list[torch.nn.Parameter]  #: those that the loss depends on


class CompiledLoss:
    """The loss of a `Learning` with its gradients, compiled by torch for rows of each shape.

    The loss is run once on the first such rows, and all that torch computes in it becomes code. So a number that is not
    in a tensor is the same for ever, and two resumed runs have the same code.

    Raises: ConfigError if the loss is not to be compiled, or there is no C++ compiler.
    """

    def __init__(self, learn: Learning) -> None:
        if why_not := hindrance(learn):
            raise ConfigError(f"compile=True {why_not}: take compile=False")
        if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
            raise ConfigError("compile=True needs a C++ compiler, but finds none: install g++, or set CXX")
        self._learn = learn
        self._codes: dict[Hashable, Code] = {}

    def __call__(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Set the parameters' gradients to those of the loss of rows `[B, ...]`; return it and its scalars."""
        policy, leaves = self._learn.policy, list(rows.leaves())
        shapes = [(name, tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in leaves]
        key = (self._learn.phase(), *shapes, *[parameter.requires_grad for parameter in policy.parameters])
        code = self._codes.get(key) or self._compile(rows, key)
        with torch.no_grad():
            loss, *others = code.function(*[tensor for _, tensor in leaves])
        for parameter, gradient in zip(code.learned, others[len(code.scalars) :]):
            parameter.grad = gradient
        return loss, dict(zip(code.scalars, others))

    def _compile(self, rows: Batch, key: Hashable) -> Code:
        learn, policy, began = self._learn, self._learn.policy, perf_counter()
        scalars: list[str] = []
        learned: list[torch.nn.Parameter] = []

        def computed(*tensors: torch.Tensor) -> list[torch.Tensor]:
            given = iter(tensors)
            with policy.mixed.forward():
                loss, found = learn.loss(rows.map(lambda _: next(given)))
            asked = [parameter for parameter in policy.parameters if parameter.requires_grad]
            gradients = dict(zip(asked, torch.autograd.grad(loss, asked, allow_unused=True)))
            scalars[:] = found
            learned[:] = [parameter for parameter in asked if gradients[parameter] is not None]
            values = [loss, *found.values(), *(gradients[parameter] for parameter in learned)]
            return [value.detach() for value in values]

        tensors = [tensor for _, tensor in rows.leaves()]
        # What torch would look at in every call is in the key; and its calls of kernels are C++, not Python.
        options: dict[str, Any] = {
            "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
            "cpp_wrapper": policy.device.type == "cpu",
        }
        function = torch.compile(traced(computed, *tensors), dynamic=False, options=options)
        with torch.no_grad():
            function(*tensors)
        code = self._codes[key] = Code(function, scalars, learned)
        log.info("compiled the loss of %d rows in %.0f s", rows.rows, perf_counter() - began)
        return code

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_codes": {}}  # of this policy's weights: a copy compiles its own


def hindrance(learn: Learning) -> str:
    """Why its loss is not to be compiled; "" if it is."""
    policy, kind = learn.policy, type(learn)
    if not vars(kind).get("compiles"):  # not inherited: a subclass may read what changes
        return f"does not serve the loss of {type(policy).__name__}"
    if policy.settings.network is not None:
        return f"serves built-in networks, and not network={policy.settings.network!r}"
    if policy.mixed.scaler is not None:
        return "serves precision='float32' and 'bfloat16', and not 'float16'"
    for name in ("noisy", "dropout"):
        if policy.settings.get(name, False):
            return f"cannot be with {name}={policy.settings.get(name)}, which draws random numbers in the loss"
    return ""

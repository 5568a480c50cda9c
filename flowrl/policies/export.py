"""A policy as a file that runs without flowrl: observations in, greedy actions out."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.envs.spaces import first_members
from flowrl.errors import ConfigError
from flowrl.policies.protocols import HasMemory, InTorch
from flowrl.storage.files import replacing


class Exportable(Protocol):
    """A policy as a `Program` sees it; `actor_space` has what its eval mode reads."""

    model: Any
    eval_mode: Any
    action_space: gymnasium.Space[Any]

    @property
    def actor_space(self) -> gymnasium.Space[Any]: ...


class Program(nn.Module):
    """The eval mode of a policy in pure torch: observations `[B, ...]` to actions `[B, ...]` for the environment.

    It takes raw observations, a tensor or a dict of tensors, and normalizes them itself. It is a copy, on the CPU.

    Raises:
        ConfigError: the eval mode is recurrent, or has no form in torch.
    """

    def __init__(self, policy: Exportable) -> None:
        super().__init__()
        self.mode: Any = policy.eval_mode
        if isinstance(self.mode, HasMemory):
            raise ConfigError(
                f"{policy!r} cannot be exported: it is recurrent, and an exported program takes observations alone; "
                "act with flowrl.load(run).act(obs, state=...), which takes and returns the state"
            )
        if not isinstance(self.mode, InTorch):
            raise ConfigError(
                f"{policy!r} cannot be exported: its eval mode, {type(self.mode).__name__}, has no method "
                "in_torch(model, obs) beside act() that returns the actions as a tensor"
            )
        space: Any = policy.action_space
        self.model = copy.deepcopy(policy.model).cpu().eval().requires_grad_(False)
        self.dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype

    def forward(self, obs: Any) -> torch.Tensor:
        rows = Batch(obs) if isinstance(obs, Mapping) else obs
        action: torch.Tensor = self.mode.in_torch(self.model, rows)
        return action.to(self.dtype)


def export(policy: Exportable, path: str | Path) -> None:
    """Write a `Program` to a file; it takes batches of any size, of the policy's `actor_space`.

    `torch.export.load(path).module()(obs)` runs a ".pt2" file. An ONNX runtime runs an ".onnx" file, which needs the
    extra `onnx`; its input is `obs`, or `obs.KEY` for each key of a dictionary, its output `action`.

    Raises:
        ConfigError: the suffix is another one, the extra is missing, or the policy has no form in torch.
    """
    path = Path(path)
    if path.suffix not in (".pt2", ".onnx"):
        raise ConfigError(f"export to {path}: expected a file .pt2 (torch.export) or .onnx")
    if path.suffix == ".onnx" and find_spec("onnxscript") is None:
        raise ConfigError(f"export to {path} needs the extra onnx: pip install 'flowrl-engine[onnx]'; or take .pt2")
    obs = _example(policy.actor_space)
    batch = torch.export.Dim("batch", min=1)
    with _of_torch_alone():
        program = torch.export.export(Program(policy), (obs,), dynamic_shapes=(_map(obs, lambda _: {0: batch}),))
        with replacing(path) as partial:
            if path.suffix == ".pt2":
                with partial.open("wb") as file:
                    torch.export.save(program, file)
            else:
                names = [name for name, _ in Batch(obs=obs).leaves()]
                made: Any = torch.onnx.export(
                    program, dynamo=True, input_names=names, output_names=["action"], verbose=False
                )
                made.save(partial)


@contextmanager
def _of_torch_alone() -> Iterator[None]:
    """Hide what torch says of its own internals, and of torchvision, which no policy needs."""
    of_onnx = logging.getLogger("torch.onnx")
    level = of_onnx.level
    of_onnx.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        of_onnx.setLevel(level)


def _example(space: gymnasium.Space[Any]) -> Any:
    """Three observations of zeros, as tensors: one alone would fix the batch size to 1."""
    empty: Any = first_members(space, 3)
    return _map(empty, torch.from_numpy)


def _map(obs: Any, function: Any) -> Any:
    if isinstance(obs, Mapping):
        return {name: _map(part, function) for name, part in obs.items()}
    return function(obs)

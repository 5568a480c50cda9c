"""Where networks live, and code that is compiled for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from flowrl.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """The device of a name; "auto" is a GPU if there is one.

    Raises:
        ConfigError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is none; take 'auto', 'cpu' or 'cuda'") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device={name!r} cannot train; take 'auto', 'cpu' or 'cuda'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r}, but torch {torch.__version__} finds no GPU here; take 'auto' or 'cpu'")
    return device


def compile_networks(networks: Iterable[nn.Module]) -> None:
    """Have networks compiled when they are called next, in place: weights and their names stay.

    Raises:
        ConfigError: there is no C++ compiler, which `torch.compile` needs.
    """
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        raise ConfigError("compile=True needs a C++ compiler, and none is found: install g++, or set CXX")
    for network in networks:
        # One code for all sizes of batches: what came before must not choose the code, or a resume differs (D3).
        network.compile(dynamic=True)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """So many threads for torch, which are the process's; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Devices of networks, and threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flowrl.blas import blas_threads
from flowrl.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" takes a GPU if there is one.

    Raises:
        ConfigError: this machine has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is not a device; take 'auto', 'cpu' or 'cuda'") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device={name!r} cannot train; take 'auto', 'cpu' or 'cuda'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r}, but torch {torch.__version__} finds no GPU here; take 'auto' or 'cpu'")
    return device


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run a block with `count` threads of torch and of numpy (settings of the process), then restore the numbers."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with blas_threads(count):
            yield
    finally:
        torch.set_num_threads(before)

"""Trainer: an algorithm as a class; its configuration, plan files, and the trained policy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.trainer.trainer import Trainer

__all__ = ["Trainer"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # when asked for: a configuration needs no torch
        return getattr(import_module("flowrl.trainer.trainer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Trainer: an algorithm as a class; its configuration, plan files, and the trained policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl._lazy import lazy

if TYPE_CHECKING:
    from flowrl.trainer.trainer import Trainer

__all__ = ["Trainer"]

# A configuration needs no torch.
__getattr__, __dir__ = lazy(__name__, {"Trainer": "flowrl.trainer.trainer"})

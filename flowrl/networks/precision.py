"""The number format of learning: float32, or 16 bits where that is faster (mixed precision)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from flowrl.errors import ConfigError

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """Mixed precision by `torch.autocast` in the forward of learning; weights and acting stay in float32.

    The small range of float16 needs a scaled loss, by `torch.amp.GradScaler`. A step whose gradients overflow is
    skipped, and the scale halved.

    Args:
        name: "float32", "bfloat16" or, on a GPU, "float16".

    State: that of the scaler.
    Raises: ConfigError for any other name, and for float16 without a GPU.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name != "float32" and name not in HALVES:
            raise ConfigError(f"precision={name!r} is not a precision; take one of float32, {', '.join(HALVES)}")
        if name == "float16" and device.type != "cuda":
            raise ConfigError(f"precision='float16' needs a GPU, but the device is {device}; take 'bfloat16'")
        self._half, self._device = HALVES.get(name), device
        self.scaler = torch.amp.GradScaler(device.type) if name == "float16" else None

    def forward(self) -> AbstractContextManager[Any]:
        """The context of a loss."""
        if self._half is None:
            return nullcontext()
        return torch.autocast(self._device.type, self._half)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)

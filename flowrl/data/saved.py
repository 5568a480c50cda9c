"""Replay buffers on disk: folders that are there whole or not at all, checksummed, of plain data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from flowrl.checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint
from flowrl.data.limiter import RateLimiter
from flowrl.errors import CheckpointError

if TYPE_CHECKING:
    from flowrl.data.replay import ReplayBuffer

Buffer = TypeVar("Buffer", bound="ReplayBuffer")

_KIND = "replay buffer"


def save(buffer: ReplayBuffer, path: str | Path) -> Path:
    """See `ReplayBuffer.save`."""
    settings = buffer.settings()
    if settings["limiter"] is not None:
        settings["limiter"] = attrs.asdict(settings["limiter"], filter=lambda field, _: field.init)
    state = {"settings": settings, "state": buffer.state_dict(copy_rows=False)}
    try:
        return save_checkpoint(path, state, {_KIND: type(buffer).__name__})
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}; nothing of it is left there") from error


def load(kind: type[Buffer], path: str | Path, trusted: bool, directory: str | Path | None) -> Buffer:
    """See `ReplayBuffer.load`."""
    saved: Any = verify_checkpoint(path)["about"]
    found = saved.get(_KIND) if isinstance(saved, dict) else None
    if found != kind.__name__:
        what = "no replay buffer" if found is None else f"a {found}: use {found}.load"
        raise CheckpointError(f"{path} holds {what}, not a {kind.__name__}")
    parts = load_checkpoint(path, trusted=trusted)
    try:
        settings = parts["settings"]
        if settings["limiter"] is not None:
            settings["limiter"] = RateLimiter(**settings["limiter"])
        buffer = kind(**settings, directory=directory)
        buffer.load_state_dict(parts["state"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{path} is damaged: it is no whole {kind.__name__}: {error!r}") from error
    return buffer

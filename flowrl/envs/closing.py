"""What a failing `close()` of an environment costs: a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from flowrl.frames import one_line

log = logging.getLogger("flowrl")


@contextmanager
def closing(name: str, way_out: str = "") -> Iterator[None]:
    """Close environments in the block. An error is logged, each once: nothing needs them any more."""
    try:
        yield
    except (Exception, SystemExit) as error:
        _say(f"{name}: it could not be closed, which is ignored: {one_line(error)}{way_out}")


def close_each(envs: Iterable[Any]) -> None:
    """Close environments, each of them whatever the others do. Raises: the first error."""
    errors = []
    for env in envs:
        try:
            env.close()
        except (Exception, SystemExit) as error:
            errors.append(error)
    if errors:
        raise errors[0]


@lru_cache
def _say(text: str) -> None:
    log.warning("%s", text)

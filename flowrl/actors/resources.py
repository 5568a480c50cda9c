"""The function that makes an actor's object, and the CPUs, GPUs and memory that the actor reserves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from attrs import validators

Make = Callable[[], Any]


@attrs.frozen
class Resources:
    """The resources that one actor reserves on its machine.

    Attributes:
        cpus: Logical cores, or a fraction. They limit the number of actors per machine, but bind no actor to a core.
        gpus: GPUs, or a fraction; the actor sees only these.
        memory: Bytes; 0: no reservation.
        custom: Custom resources of the cluster's machines, by name.
        threads: Threads of torch and numpy in the actor.
    """

    cpus: float = attrs.field(default=1, validator=validators.ge(0))
    gpus: float = attrs.field(default=0, validator=validators.ge(0))
    memory: int = attrs.field(default=0, validator=validators.ge(0))
    custom: dict[str, float] = attrs.field(factory=dict)
    threads: int = attrs.field(default=1, validator=validators.ge(1))

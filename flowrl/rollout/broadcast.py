"""The newest weights for workers elsewhere: put once for each change, however many ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowrl.data.columns import kind
from flowrl.engine.remote import Remote
from flowrl.policies import Policy
from flowrl.policies.protocols import HasWeights


class Broadcast:
    """Which weights a request should ride with.

    They are those of the policy of this process, or what somebody who learns elsewhere has published since: the
    policy takes that when it is asked for, not before.

    Args:
        policy: What has learned here; what has no `weights` never rides.

    Attributes:
        number: Of the newest weights, from 1 on; who has them needs no others.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.number = 0
        self._stamp: Any = None  # of the policy, when its weights were put or others were published
        self._reference: Any = None  # what stands for the newest weights
        self._published: tuple[int, Any] | None = None  # which the policy has not taken yet

    @property
    def version(self) -> int:
        """Of the newest weights."""
        return self._policy.version if self._published is None else self._published[0]

    def publish(self, version: int, weights: Any, everywhere: bool = False) -> None:
        """These, a state or a `Remote` one, are the newest; who has the ones before need not get them `everywhere`."""
        self._published, self._reference = (version, weights), None
        self._stamp = self._now()
        self.number += not everywhere

    def take(self) -> None:
        """Have the policy of this process take what was published, unless it was written to since, by a load say."""
        if self._published is None:
            return
        (version, weights), self._published = self._published, None
        if self._stamp == self._now():
            self._policy.load_weights(weights.fetch() if isinstance(weights, Remote) else weights)
            self._policy.version = version
            self._stamp = self._now()

    def newest(self, put: Callable[[Any], Any]) -> Any:
        """What stands for the newest weights as an argument; None where there are none."""
        if not isinstance(self._policy, HasWeights):
            return None
        if self._stamp != (stamp := self._now()):
            self._stamp, self._published = stamp, None
            self._reference = put(_on_host(self._policy.weights()))
            self.number += 1
        elif self._reference is None:
            weights = self._published[1] if self._published is not None else self._policy.weights()
            self._reference = weights if isinstance(weights, Remote) else put(_on_host(weights))
        return self._reference

    def forget(self) -> None:
        """What was put is gone with the store that had it."""
        self._reference = None

    def _now(self) -> Any:
        """Another value after any change of the policy's weights."""
        return self._policy.stamp if isinstance(self._policy, Policy) else self._policy.version


def _on_host(weights: Any) -> Any:
    """Tensors of a GPU as those of the host: a worker need not have one."""
    if not isinstance(weights, Mapping):
        return weights
    return {name: value.cpu() if kind(value) == "tensor" else value for name, value in weights.items()}

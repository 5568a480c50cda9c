"""The newest weights for workers elsewhere: put once for each change, however many ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrl.remote import Remote


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
        self._stamp: Any = None  # of the policy, when its weights were put
        self._reference: Any = None
        self._published: tuple[int, Any] | None = None  # which the policy has not taken yet

    @property
    def version(self) -> int:
        """Of the newest weights."""
        return self._policy.version if self._published is None else self._published[0]

    def publish(self, version: int, weights: Any, everywhere: bool = False) -> None:
        """These, a state or a `Remote` one, are the newest; who has the ones before need not get them `everywhere`."""
        self._published, self._reference = (version, weights), None
        self.number += not everywhere

    def take(self) -> None:
        """Have the policy of this process take what was published."""
        if self._published is None:
            return
        (version, weights), self._published = self._published, None
        self._policy.load_weights(weights.fetch() if isinstance(weights, Remote) else weights)
        self._policy.version = version
        if self._reference is None and isinstance(weights, Remote):
            self._reference = weights
        self._stamp = None if self._reference is None else self._now()  # nobody elsewhere has them yet

    def newest(self, put: Callable[[Any], Any]) -> Any:
        """What stands for the newest weights as an argument; None where there are none."""
        if self._published is not None:
            if self._reference is None:
                weights = self._published[1]
                self._reference = weights if isinstance(weights, Remote) else put(weights)
        elif hasattr(self._policy, "weights") and self._stamp != (stamp := self._now()):
            self._stamp, self._reference = stamp, put(self._policy.weights())
            self.number += 1
        return self._reference

    def _now(self) -> Any:
        """Another value after any change of the weights."""
        return getattr(self._policy, "stamp", self._policy.version)

    def forget(self) -> None:
        """What was put is gone with the store that had it."""
        self._stamp = self._reference = None

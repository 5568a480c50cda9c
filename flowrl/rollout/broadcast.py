"""The newest weights for remote workers: stored once per change, however many workers need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowrl.data.columns import HostTensors
from flowrl.engine.workers.remote import Remote
from flowrl.policies import Policy
from flowrl.policies.protocols import HasWeights


class Broadcast:
    """The weights to send with a request.

    They are those of this process's policy, or newer ones that a learner elsewhere published; the policy loads these
    only on access.

    Args:
        policy: The policy of this process; one without `weights` is never sent.

    Attributes:
        number: Number of the newest weights, from 1 on; a worker with this number is up to date.
    """

    def __init__(self, policy: Any) -> None:
        self._policy, self._has_weights = policy, isinstance(policy, HasWeights)
        self.number = 0
        self._stamp: Any = None  # of the policy, when its weights were stored or others were published
        self._reference: Any = None  # reference to the newest weights
        self._published: tuple[int, Any] | None = None  # not loaded by the policy yet

    @property
    def version(self) -> int:
        """The version of the newest weights."""
        return self._policy.version if self._published is None else self._published[0]

    def publish(self, version: int, weights: Any, everywhere: bool = False) -> None:
        """Make these weights, or a `Remote` of them, the newest; `everywhere`: the workers have them already."""
        self._published, self._reference = (version, weights), None
        self._stamp = self._now()
        self.number += not everywhere

    def take(self) -> None:
        """Load the published weights into this process's policy, unless it changed since, by a load for example."""
        if self._published is None:
            return
        (version, weights), self._published = self._published, None
        if self._stamp == self._now():
            self._policy.load_weights(weights.fetch() if isinstance(weights, Remote) else weights)
            self._policy.version = version
            self._stamp = self._now()

    def newest(self, put: Callable[[Any], Any]) -> Any:
        """A reference to the newest weights to pass as an argument; None if there are none."""
        if not self._has_weights:
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
        """Forget the reference: its store is gone."""
        self._reference = None

    def _now(self) -> Any:
        """A value that changes with the policy's weights."""
        return self._policy.stamp if isinstance(self._policy, Policy) else self._policy.version


def _on_host(weights: Any) -> Any:
    """Move GPU tensors to the host: a worker may have no GPU."""
    return HostTensors(weights) if isinstance(weights, Mapping) else weights

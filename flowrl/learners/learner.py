"""A learner: a policy that learns where it is, alone or as one of several that stay alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.learners.all_reduce import Peer
from flowrl.learners.training import Training

if TYPE_CHECKING:
    from flowrl.policies import Policy


class LearnerReport(NamedTuple):
    """What a learner says of a batch: scalars, what it counted and recorded, and the version of its weights since."""

    scalars: dict[str, Any]
    counters: dict[str, int]
    records: dict[str, list[Any]]
    version: int


@attrs.frozen
class TargetNetwork:
    """When the target network moves: every so many updates, by `tau` (Q2)."""

    every: int = attrs.field(validator=attrs.validators.ge(1))
    tau: float = 1.0


class Learner(Peer):
    """Trains a policy on the batches that it is given.

    State: the policy, the generator of minibatches, the version at which the target network moved last.

    Args:
        policy: Makes the policy.
        training: How it trains.
        seed: Of the minibatches; the same for all that are to stay alike.
        target: When the target network moves; None: there is none.
    """

    def __init__(
        self, policy: Callable[[], Policy], training: Training, seed: int, target: TargetNetwork | None = None
    ) -> None:
        self.policy, self.training, self.target = policy(), training, target
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._moved = 0
        self.peers = 1

    def train(self, batch: Batch, env_steps: int) -> tuple[LearnerReport, dict[str, Any]]:
        """Train on a batch; a report, and the weights.

        Raises: Disconnected: others that learn with this one are gone; `connect` again, and load one state everywhere.
        """
        self.check_peers()
        try:
            report = self._train(batch, env_steps)
        except BaseException:
            self.leave()  # the others must not wait for a step that never comes
            raise
        return report, self.policy.weights()

    def train_along(self, batch: Batch, env_steps: int) -> LearnerReport:
        """As `train`; the weights are those of another learner."""
        return self.train(batch, env_steps)[0]

    def _train(self, batch: Batch, env_steps: int) -> LearnerReport:
        learn: Any = self.policy.learn_mode
        learn.schedule(env_steps)
        trained = self.training(learn, batch, self._generator, self.all_reduce)
        version = self.policy.version
        if self.target is not None and version - self._moved >= self.target.every:
            policy: Any = self.policy
            policy.update_target(self.target.tau)
            self._moved = version
        return LearnerReport(trained.scalars, trained.counters, trained.records, version)

    def close(self) -> None:
        """Leave the others."""
        self.leave()

    # -- state

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "generator": self._generator.bit_generator.state,
            "moved": self._moved,
        }

    def state_apart(self) -> tuple[int, dict[str, Any]]:
        """The state with the version that it belongs to, as a answer; not one in the middle of a batch.

        Raises: Disconnected: see `train`.
        """
        self.check_peers()
        return self.policy.version, self.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        if state["generator"] is not None:
            self._generator.bit_generator.state = state["generator"]
        self._moved = state["moved"]

"""A learner: trains a policy in its own process, alone or as one of several that stay identical."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import HostTensors
from flowrl.learners.all_reduce import Peer
from flowrl.learners.training import Training
from flowrl.saved import Saved, random_generator

if TYPE_CHECKING:
    from flowrl.policies import Policy


class LearnerReport(NamedTuple):
    """A learner's report on a batch: scalars, counters, records, and the new version of its weights."""

    scalars: dict[str, Any]
    counters: dict[str, int]
    records: dict[str, list[Any]]
    version: int


@attrs.frozen
class TargetNetwork:
    """Schedule of the target network: it moves after `every` updates, by `tau` (Q2)."""

    every: int = attrs.field(validator=attrs.validators.ge(1))
    tau: float = 1.0


class Learner(Peer):
    """Trains a policy on batches.

    State: the policy, the generator of minibatches, the version at which the target network moved last.

    Args:
        policy: Factory of the policy.
        training: Epochs and minibatches.
        seed: Seed of the minibatches; the same for all learners that must stay identical.
        target: Schedule of the target network; None: the policy has none.
    """

    def __init__(
        self, policy: Callable[[], Policy], training: Training, seed: int, target: TargetNetwork | None = None
    ) -> None:
        self._policy, self.training, self.target = policy(), training, target
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._moved = 0
        self.peers = 1

    @property
    def policy(self) -> Policy:
        """The policy that learns."""
        return self._policy

    def train(self, batch: Batch, env_steps: int) -> tuple[LearnerReport, dict[str, Any]]:
        """Train on a batch; returns a report and the weights.

        Raises: Disconnected: a joint learner is gone; `connect` again, and load the same state into all.
        """
        self.check_peers()
        try:
            report = self._train(batch, env_steps)
        except BaseException:
            self.leave()  # the others must not wait for a step that never comes
            raise
        return report, HostTensors(self.policy.weights())

    def train_along(self, batch: Batch, env_steps: int) -> LearnerReport:
        """Like `train`, without the weights, which another learner returns."""
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
        """Disconnect from the others."""
        self.leave()

    # -- state

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "generator": self._generator.bit_generator.state,
            "moved": self._moved,
        }

    def state_apart(self) -> tuple[int, dict[str, Any]]:
        """The version and the state, as (answer, item); never from the middle of a batch.

        Raises: Disconnected: see `train`.
        """
        self.check_peers()
        return self.policy.version, self.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved learner")
        generator, moved = random_generator(saved, "generator"), saved.get("moved")
        self.policy.load_state_dict(saved.get("policy"))
        if generator is not None:
            self._generator.bit_generator.state = generator.bit_generator.state
        self._moved = moved

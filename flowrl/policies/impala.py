"""IMPALA: the actor-critic loss on experience of older weights, corrected by V-trace where it is learned from."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import gymnasium
from attrs import validators

from flowrl.data import Batch
from flowrl.policies.a2c import A2CLearning, A2CPolicy
from flowrl.policies.actor_critic import OVER_TIME

#: Why a loss that corrects experience needs the log-probabilities of who collected it.
RECORDED = "collect with a policy that records it"

#: Columns that V-trace is made of.
CORRECTED_FROM = ("obs", "action", "logp", "reward", "terminated", "truncated", "next_obs")


@attrs.frozen(kw_only=True)
class VTraceLimits:
    """Limits of V-trace's weights π/μ: of errors (ρ̄), of traces (c̄) and of advantages; may be inf."""

    rho_bar: float = attrs.field(default=1.0, validator=validators.gt(0))
    c_bar: float = attrs.field(default=1.0, validator=validators.gt(0))
    rho_pg_bar: float = attrs.field(default=1.0, validator=validators.gt(0))


class IMPALAPolicy(A2CPolicy):
    """An actor-critic that learns from what older weights collected; see `ActorCriticPolicy` for the other arguments.

    Args:
        limits: Of the weights of V-trace.
        lam: Decay of its traces; 0 gives one-step targets.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        limits: VTraceLimits = VTraceLimits(),
        lam: float = 1.0,
        **settings: Any,
    ) -> None:
        self.limits = limits
        super().__init__(observation_space, action_space, lam=lam, **settings)

    def _learning(self) -> IMPALALearning:
        return IMPALALearning(self)


class IMPALALearning(A2CLearning):
    """The loss of `A2CLearning`; `prepare` makes its advantages, weight included, and its targets by V-trace (V1).

    With the values (V2) and log-probabilities of the weights that learn, and the recorded ones of those that acted
    (V3): so fragments `[T, N, ...]` should come as they are to whoever learns.

    Source: Espeholt et al. 2018, "IMPALA", section 4.
    """

    policy: IMPALAPolicy
    requires: ClassVar[dict[str, str]] = {
        "obs": "",
        "action": "",
        "logp": RECORDED,
        "advantage or reward": "",
        "advantage or fragments": OVER_TIME,
    }
    needed = CORRECTED_FROM

    def estimated(self, batch: Batch) -> Batch:
        """See the class."""
        policy = self.policy
        return self.corrected(batch, gamma=policy.gamma, lam=policy.lam, **attrs.asdict(policy.limits))

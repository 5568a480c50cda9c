"""IMPALA: the actor-critic loss on experience of older weights, corrected by V-trace in the learner."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from flowrl.data import Batch
from flowrl.policies.a2c import A2CLearning, A2CPolicy
from flowrl.policies.actor_critic import OVER_TIME
from flowrl.settings import Settings, fraction, positive

#: Why an off-policy correction needs the log-probabilities of the policy that acted.
RECORDED = "collect with a policy that records it"

#: Columns that V-trace reads.
CORRECTED_FROM = ("obs", "action", "logp", "reward", "terminated", "truncated", "next_obs")


@attrs.frozen(kw_only=True, slots=False)
class VTraceLimits(Settings):
    """Upper bounds of V-trace's weights π/μ: of errors (ρ̄), traces (c̄) and advantages; may be inf."""

    rho_bar: float = positive(1.0, "V-trace: upper bound of the weight of a TD error (ρ̄)", unbounded=True)
    c_bar: float = positive(1.0, "V-trace: upper bound of the weight of a trace (c̄)", unbounded=True)
    rho_pg_bar: float = positive(1.0, "V-trace: upper bound of the weight of an advantage", unbounded=True)

    @property
    def limits(self) -> VTraceLimits:
        """These settings alone, as a policy takes them."""
        return VTraceLimits(rho_bar=self.rho_bar, c_bar=self.c_bar, rho_pg_bar=self.rho_pg_bar)


class IMPALAPolicy(A2CPolicy):
    """An actor-critic that learns from experience of older weights; see `ActorCriticPolicy`.

    Args:
        limits: Upper bounds of the weights of V-trace.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(A2CPolicy.Settings):
        """The networks, and how they learn."""

        lam: float = fraction(1.0, "λ of V-trace; 0 gives one-step targets")

    settings: Settings

    def __init__(self, *spaces: Any, limits: VTraceLimits = VTraceLimits(), **settings: Any) -> None:
        self.limits = limits
        super().__init__(*spaces, **settings)

    def _learning(self) -> IMPALALearning:
        return IMPALALearning(self)


class IMPALALearning(A2CLearning):
    """The loss of `A2CLearning`; `prepare` computes advantages, weight included, and targets by V-trace (V1).

    It uses values (V2) and log-probabilities of the current weights, and the recorded log-probabilities of the acting
    weights (V3): so fragments `[T, N, ...]` should reach the learner unchanged.

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
        policy, given = self.policy, self.policy.settings
        return self.corrected(batch, gamma=given.gamma, lam=given.lam, **attrs.asdict(policy.limits))

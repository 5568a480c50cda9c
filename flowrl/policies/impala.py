"""IMPALA: the actor-critic loss on experience of older weights, corrected by V-trace where it is learned from."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from flowrl.data import Batch
from flowrl.policies.a2c import A2CLearning, A2CPolicy
from flowrl.policies.actor_critic import OVER_TIME
from flowrl.settings import Settings, fraction, positive

#: Why a loss that corrects experience needs the log-probabilities of who collected it.
RECORDED = "collect with a policy that records it"

#: Columns that V-trace is made of.
CORRECTED_FROM = ("obs", "action", "logp", "reward", "terminated", "truncated", "next_obs")


@attrs.frozen(kw_only=True, slots=False)
class VTraceLimits(Settings):
    """Limits of V-trace's weights π/μ: of errors (ρ̄), of traces (c̄) and of advantages; may be inf."""

    rho_bar: float = positive(1.0, "largest weight of an error")
    c_bar: float = positive(1.0, "largest weight of a trace")
    rho_pg_bar: float = positive(1.0, "largest weight of an advantage")

    @property
    def limits(self) -> VTraceLimits:
        """What a policy takes, of a configuration that has these settings."""
        return VTraceLimits(rho_bar=self.rho_bar, c_bar=self.c_bar, rho_pg_bar=self.rho_pg_bar)


class IMPALAPolicy(A2CPolicy):
    """An actor-critic that learns from what older weights collected; see `ActorCriticPolicy`.

    Args:
        limits: Of the weights of V-trace.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(A2CPolicy.Settings):
        """The networks, and how they learn."""

        lam: float = fraction(1.0, "decay of the traces of V-trace; 0 gives one-step targets")

    settings: Settings

    def __init__(self, *spaces: Any, limits: VTraceLimits = VTraceLimits(), **settings: Any) -> None:
        self.limits = limits
        super().__init__(*spaces, **settings)

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
        policy, given = self.policy, self.policy.settings
        return self.corrected(batch, gamma=given.gamma, lam=given.lam, **attrs.asdict(policy.limits))

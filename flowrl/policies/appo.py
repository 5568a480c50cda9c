"""APPO: PPO's clipped loss on experience of older weights, around a target policy."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import attrs
import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.networks.networks import ActorCritic, follow
from flowrl.policies.actor_critic import OVER_TIME, ActorCriticPolicy, EntropySettings
from flowrl.policies.impala import CORRECTED_FROM, RECORDED, VTraceLimits
from flowrl.policies.ppo import ClipSettings, PPOLearning, PPOPolicy
from flowrl.settings import fraction, positive


@attrs.frozen(kw_only=True, slots=False)
class TargetPolicySettings(ClipSettings, EntropySettings, ActorCriticPolicy.Settings):
    """The networks, and a clipped loss around a target policy."""

    lam: float = fraction(1.0, "λ of V-trace; 0 gives one-step targets")
    old_weight: float = positive(
        2.0, "upper bound of the ratio of the acting policy to the target policy", unbounded=True
    )


class APPOPolicy(PPOPolicy):
    """Asynchronous PPO; see `ActorCriticPolicy` and `PPOPolicy`.

    Args:
        limits: Upper bounds of the weights of V-trace.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(TargetPolicySettings, PPOPolicy.Settings):
        """Those of PPO, and of the target policy."""

    settings: Settings
    target: ActorCritic

    def __init__(self, *spaces: Any, limits: VTraceLimits = VTraceLimits(), **settings: Any) -> None:  # noqa: B008
        self.limits = limits
        super().__init__(*spaces, **settings)

    def _build(self) -> None:
        super()._build()
        self.target = copy.deepcopy(self.model).requires_grad_(False)

    def _learning(self) -> APPOLearning:
        return APPOLearning(self)

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "target": self.target}

    def update_target(self, tau: float = 1.0) -> None:
        """target ← tau · online + (1 − tau) · target (Q2)."""
        follow(self.target, self.model, tau)


class APPOLearning(PPOLearning):
    """The loss of `PPOLearning` with the target policy π_old in place of the policy that acted, μ.

    r = min(μ/π_old, old_weight) · π/μ, which is π/π_old unless the minimum cuts in (G7). Advantages, weighted by
    min(ρ̄, π_old/μ), and targets are those of V-trace for π_old, with the values of the current weights (V1, V2).
    The divergence is KL(π_old | π) of the whole distributions.

    Source: Luo et al. 2020, "IMPACT", section 3 (the target policy), and RLlib's APPO (the bound of the weight, the
    KL penalty), after Espeholt et al. 2018 and Schulman et al. 2017.
    """

    policy: APPOPolicy
    requires: ClassVar[dict[str, str]] = {
        "obs": "",
        "action": "",
        "logp": RECORDED,
        "advantage or reward": "",
        "advantage or fragments": OVER_TIME,
    }
    needed = CORRECTED_FROM

    def estimated(self, batch: Batch) -> Batch:
        """Add advantage, target, and a `logp` such that π / exp(logp) is the ratio r of the class."""
        policy, given = self.policy, self.policy.settings
        old, _ = self.judged(batch.to_numpy(), policy.target)
        batch = self.corrected(batch, old, gamma=given.gamma, lam=given.lam, **attrs.asdict(policy.limits))
        return batch.replace(logp=np.maximum(old, batch["logp"] - math.log(given.old_weight)))

    def divergence(self, rows: Batch, given: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
        """The mean of KL(π_old | π) over rows."""
        old = self.policy.target
        with torch.no_grad():
            old_given, _ = old(rows.obs)
        return old.distribution.divergence(old_given, self.policy.model.distribution, given).mean()

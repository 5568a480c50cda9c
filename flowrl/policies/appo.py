"""APPO: PPO's clipped loss on experience of older weights, around a target policy that moves now and then."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.policies.actor_critic import OVER_TIME
from flowrl.policies.impala import CORRECTED_FROM, RECORDED, VTraceLimits
from flowrl.policies.networks import ActorCritic, follow
from flowrl.policies.ppo import PPOLearning, PPOPolicy


class APPOPolicy(PPOPolicy):
    """Asynchronous PPO; see `ActorCriticPolicy` and `PPOPolicy` for the other arguments.

    Args:
        limits: Of the weights of V-trace.
        lam: Decay of its traces; 0 gives one-step targets.
        old_weight: Largest weight μ/π_old of a row.
    """

    target: ActorCritic

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        limits: VTraceLimits = VTraceLimits(),  # noqa: B008  frozen
        lam: float = 1.0,
        old_weight: float = 2.0,
        **settings: Any,
    ) -> None:
        self.limits, self.old_weight = limits, old_weight
        super().__init__(observation_space, action_space, lam=lam, **settings)

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
    """The loss of `PPOLearning` with the target policy π_old in the place of the one that acted, μ.

    r = min(μ/π_old, old_weight) · π/μ, which is π/π_old where the first is not limited (G7). Advantages, weighted by
    min(ρ̄, π_old/μ), and targets are those of V-trace for π_old, with the values of the weights that learn (V1, V2).
    The divergence is KL(π_old | π), of the whole distributions.

    Source: Luo et al. 2020, "IMPACT", section 3 (the target policy), and RLlib's APPO (the weight's limit, the KL
    penalty), on Espeholt et al. 2018 and Schulman et al. 2017.
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
        """With advantage and target, and a `logp` to which π's is the ratio r of the class."""
        policy = self.policy
        old, _ = self.judged(batch.to_numpy(), policy.target)
        batch = self.corrected(batch, old, gamma=policy.gamma, lam=policy.lam, **attrs.asdict(policy.limits))
        return batch.replace(logp=np.maximum(old, batch["logp"] - math.log(policy.old_weight)))

    def divergence(self, rows: Batch, given: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
        """KL(π_old | π), the mean over rows."""
        old = self.policy.target
        with torch.no_grad():
            old_given, _ = old(rows.obs)
        return old.distribution.divergence(old_given, self.policy.model.distribution, given).mean()

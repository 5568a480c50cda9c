"""PPO: the clipped surrogate loss, with optional value clipping and KL penalty."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs
import torch

from flowrl.data import Batch
from flowrl.networks.distributions import Distribution
from flowrl.policies.actor_critic import OVER_TIME, ActorCriticLearning, ActorCriticPolicy, EntropySettings
from flowrl.policies.ppo_in_numpy import PPOInNumpy, learns_in_numpy
from flowrl.saved import Saved
from flowrl.schedules import NumberOrSchedule, value_at
from flowrl.settings import Settings, positive, scheduled, setting

#: The library that computes the gradients, see `learns_in_numpy`.
LearnBackend = Literal["torch", "numpy", "auto"]


def clipped_surrogate(ratio: torch.Tensor, advantage: torch.Tensor, clip: float) -> torch.Tensor:
    """−min(r A, clip(r, 1 − ε, 1 + ε) A), `[B]`, of r = π(a | s) / μ(a | s) (G7).

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7.

    >>> clipped_surrogate(torch.tensor([1.5, 1.5, 0.5]), torch.tensor([1.0, -1.0, -1.0]), 0.2)
    tensor([-1.2000,  1.5000,  0.8000])
    """
    assert ratio.shape == advantage.shape
    return -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def value_error(value: torch.Tensor, old: torch.Tensor, target: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Squared error `[B]` of values; with `clip`, at least that of values clipped around the old ones (G4).

    >>> value_error(torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([3.0]), clip=0.5)
    tensor([6.2500])
    """
    assert value.shape == old.shape == target.shape
    error = (value - target).square()
    if clip is None:
        return error
    return torch.max(error, (old + (value - old).clamp(-clip, clip) - target).square())


def standardized(advantage: torch.Tensor) -> torch.Tensor:
    """(A − mean) / deviation over a minibatch; a single row stays unchanged (G3)."""
    if len(advantage) < 2:
        return advantage
    deviation, mean = torch.std_mean(advantage)
    return (advantage - mean) / (deviation + 1e-8)


@attrs.frozen(kw_only=True, slots=False)
class StandardizeSettings(Settings):
    """Advantages of one scale."""

    standardize: bool = setting(True, "standardize the advantages of each minibatch")


@attrs.frozen(kw_only=True, slots=False)
class ClipSettings(StandardizeSettings):
    """The clipped loss."""

    clip: NumberOrSchedule = scheduled(0.2, "clip range ε of the probability ratio at the start")


class PPOPolicy(ActorCriticPolicy):
    """Proximal policy optimization; see `ActorCriticPolicy`.

    Args:
        kl_coef: Weight of the KL divergence from the policy that acted; `UpdateKL` adapts it.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(ClipSettings, EntropySettings, ActorCriticPolicy.Settings):
        """The networks, and the clipped loss."""

        clip_end: float | None = setting(None, "clip range at the end of the schedule; None: constant", resume="fork")
        value_clip: float | None = positive(None, "largest change of a value per batch; None: no limit")
        #: "numpy" takes a third of the time for small dense networks; results agree up to rounding.
        learn_backend: LearnBackend = setting(
            "torch", "library that computes gradients: torch; numpy; auto: numpy if it can", resume="rounding"
        )

    settings: Settings

    def __init__(self, *spaces: Any, kl_coef: float = 0.0, **settings: Any) -> None:
        self.kl_coef = kl_coef
        super().__init__(*spaces, **settings)

    def _build(self) -> None:
        self.clip = self.settings.schedule_of("clip")
        super()._build()
        learn: Any = self.learn_mode
        if learns_in_numpy(self, own_loss=type(learn) is not PPOLearning):
            learn.in_numpy = PPOInNumpy(self)

    def _learning(self) -> PPOLearning:
        return PPOLearning(self)

    def update_kl(self, kl: float, target: float) -> None:
        """Multiply kl_coef by 1.5 if the divergence exceeds 2 · target, halve it if below target / 2."""
        if kl > 2 * target:
            self.kl_coef *= 1.5
        elif kl < target / 2:
            self.kl_coef /= 2

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kl_coef": self.kl_coef}

    def _load(self, saved: Saved) -> None:
        kl_coef = saved.get("kl_coef", float, least=0)
        super()._load(saved)
        self.kl_coef = kl_coef


class PPOLearning(ActorCriticLearning):
    """L = mean clipped_surrogate + value_coef · mean value_error − entropy_coef · mean H + kl_coef · KL.

    KL(μ | π) is estimated by mean((r − 1) − log r) (G5), where the ratio r is to the recorded log-probabilities (G7).

    Source: Schulman et al. 2017, eq. 9 and section 4; Schulman 2020, "Approximating KL Divergence".
    """

    policy: PPOPolicy
    requires: ClassVar[dict[str, str]] = {
        "obs": "",
        "action": "",
        "logp": "collect with a policy that records it",
        "advantage or value": "",
        "advantage or fragments": OVER_TIME,
        "on_policy": "PPO is right only for experience of nearly the current weights: take it from ParallelRollouts",
    }
    columns: tuple[str, ...] = ("obs", "action", "logp", "advantage", "target", "value")
    in_numpy: PPOInNumpy | None = None  #: what computes the gradients in place of autograd
    _standardized: tuple[torch.Tensor, torch.Tensor] | None = None  # the newest advantages, before and after

    def schedule(self, env_steps: int) -> None:
        super().schedule(env_steps)
        self.clip = value_at(self.policy.clip, env_steps)

    def over_minibatch(self, rows: Batch) -> Batch:
        """Standardise the advantages, if the policy's settings ask for it (G3); once if a minibatch is the batch."""
        if not self.policy.settings.standardize:
            return rows
        given = rows.advantage
        if self._standardized is None or self._standardized[0] is not given:
            self._standardized = given, standardized(given)
        return rows.replace(advantage=self._standardized[1])

    def _differentiate(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if self.in_numpy is None or not (self.in_numpy.fits() or learns_in_numpy(self.policy)):
            return super()._differentiate(rows)
        return self.in_numpy(rows, self.clip, self.entropy_coef, self.policy.kl_coef)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        model = self.policy.model
        return self.objective(rows, model.distribution, *model(rows.obs))

    def objective(
        self, rows: Batch, distribution: Distribution, given: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of rows `[B, ...]` from the network's outputs and values, and the scalars to report."""
        policy = self.policy
        logp, entropy = distribution.evaluate(given, rows.action)
        log_ratio = logp - rows.logp
        ratio = log_ratio.exp()
        policy_loss = clipped_surrogate(ratio, rows.advantage, self.clip).mean()
        value_loss = value_error(value, rows.value, rows.target, policy.settings.value_clip).mean()
        entropy = entropy.mean()
        kl = self.divergence(rows, given, log_ratio)
        loss = policy_loss + policy.settings.value_coef * value_loss
        if self.entropy_coef:
            loss = loss - self.entropy_coef * entropy
        if policy.kl_coef:
            loss = loss + policy.kl_coef * kl
        with torch.no_grad():
            clipped = ((ratio - 1).abs() > self.clip).float().mean()
        scalars = {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss}
        return loss, {**scalars, "entropy": entropy, "kl": kl, "clip_fraction": clipped}

    def divergence(self, rows: Batch, given: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
        """KL(μ | π), one number, estimated from the actions taken (G5)."""
        return ((log_ratio.exp() - 1) - log_ratio).mean()

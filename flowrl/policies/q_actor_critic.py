"""The base of SAC, TD3 and DDPG: an actor, critics of its actions, target networks, and one combined loss."""

from __future__ import annotations

import abc
import copy
from typing import Any, ClassVar, Protocol

import attrs
import gymnasium
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.steps import one_step_windows
from flowrl.networks.adam import Adam
from flowrl.networks.critics import ActorAndCritics, Critics
from flowrl.networks.distributions import ActionHead
from flowrl.networks.in_numpy import to_numpy
from flowrl.networks.masks import action_mask
from flowrl.networks.networks import encoder, follow
from flowrl.networks.sampling import Array
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy
from flowrl.schedules import NumberOrSchedule, schedule
from flowrl.settings import Settings, fraction, not_negative, positive, scheduled, sizes


@attrs.frozen(kw_only=True, slots=False)
class ActorAndCriticsSettings(Policy.Settings):
    """An actor and critics, and how they learn."""

    hidden: tuple[int, ...] = sizes(256, 256, meaning="sizes of the hidden layers of the actor and of each critic")
    gamma: float = fraction(0.99, "discount per step")
    learning_rate: NumberOrSchedule = 3e-4


@attrs.frozen(kw_only=True, slots=False)
class EnsembleSettings(Settings):
    """The critics, in plans that let their number be chosen."""

    critics: int = positive(2, "number of critics", most=1_000)


class QActorCriticPolicy(Policy):
    """An actor, critics of its actions, and maybe target networks; a subclass defines how it acts and learns.

    collect: uniform actions for `random_steps`, then the actor's exploration; eval: its greedy action.

    Args:
        critics: Number of critics; targets take their minimum (A5).
        settings: The fields of `Settings`, see `Policy`.

    Raises:
        ConfigError: the action space does not fit, or no network fits the observations; see `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(ActorAndCriticsSettings):
        """The networks, how they learn, and how the first actions are chosen."""

        critic_learning_rate: NumberOrSchedule | None = scheduled(
            None, "learning rate of the critics; None: learning_rate"
        )
        random_steps: int = not_negative(0, "env steps of uniformly random actions at the start")

    settings: Settings
    model: ActorAndCritics
    target: nn.Module | None
    learn_mode: QActorCriticLearning
    choosing: ActionHead
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)  #: of Adam

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        critics: int = 2,
        **settings: Any,
    ) -> None:
        self.critics = critics
        if (rate := settings.get("critic_learning_rate")) is not None:
            settings["learning_rates"] = {"critics": schedule(rate)}
        super().__init__(observation_space, action_space, **settings)

    @property
    def random_steps(self) -> int:
        """Env steps of uniform actions at the start."""
        return self.settings.random_steps

    def _build(self) -> None:
        self.choosing = self._choosing()
        self.model = self._network().to(self.device)
        self.target = None if self.followed is None else copy.deepcopy(self.followed).requires_grad_(False)
        critics = list(self.model.critics.parameters())
        theirs = {id(parameter) for parameter in critics}
        learned = filter(lambda parameter: parameter.requires_grad, self.model.parameters())
        others = [parameter for parameter in learned if id(parameter) not in theirs]
        groups: list[dict[str, Any]] = [
            {"params": others, "lr": self.rate()},
            {"params": critics, "lr": self.rate("critics"), "name": "critics"},
        ]
        self.optimizer = Adam(groups, lr=self.rate(), betas=self.betas)
        self.collect_mode, self.eval_mode = Exploring(self), Greedy(self)
        self.learn_mode = self._learning()

    @abc.abstractmethod
    def _choosing(self) -> ActionHead:
        """How the actor's outputs become actions."""

    @abc.abstractmethod
    def _network(self) -> ActorAndCritics:
        """The model."""

    @abc.abstractmethod
    def _learning(self) -> QActorCriticLearning:
        """The learn mode."""

    def _critics(self, size: int, outputs: int = 1, **how: Any) -> Critics:
        """See `Critics`, of which `how` are the further arguments."""
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=self.settings.network)
        return Critics(encoding, size, outputs, self.settings.hidden, self.critics, **how)

    @property
    @abc.abstractmethod
    def followed(self) -> nn.Module | None:
        """The module that the target networks follow; None: there are none."""

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() if self.target is None else {"model": self.model, "target": self.target}

    def from_env(self, action: Array) -> Array:
        """Convert actions `[B, ...]` from the environment's scale to the critics'."""
        return self.choosing.from_env(action)

    def for_env(self, action: Array) -> Array:
        """See `Policy.for_env`."""
        return self.choosing.for_env(action)

    def update_target(self, tau: float = 1.0) -> None:
        """target ← tau · online + (1 − tau) · target, for parameters and statistics of observations (Q2, O1)."""
        assert self.target is not None
        assert self.followed is not None
        follow(self.target, self.followed, tau)


class ActorNetwork(Protocol):
    """A policy as the modes below use it."""

    @property
    def choosing(self) -> ActionHead: ...
    @property
    def random_steps(self) -> int: ...
    def acting(self) -> Any: ...
    def observed(self, obs: Any) -> Any: ...


@attrs.frozen
class Exploring:
    """The collect mode: the sampled action, and `env_action`, the same in the environment's scale (G6)."""

    policy: ActorNetwork

    @property
    def draws(self) -> int:
        return self.policy.choosing.draws

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        choosing = self.policy.choosing
        if env_steps < self.policy.random_steps:
            action = choosing.uniform(noise, action_mask(obs))
        else:
            action = choosing.explore(actor_gives(self.policy, obs), noise, env_steps)
        return {"action": action, "env_action": choosing.for_env(action)}

    def value(self, obs: Any) -> Array:
        """Called only on modes that return values."""
        raise NotImplementedError


@attrs.frozen
class Greedy:
    """The eval mode: the action without noise. Draws nothing."""

    policy: ActorNetwork
    draws = 0

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        choosing = self.policy.choosing
        action = choosing.greedy(actor_gives(self.policy, obs))
        return {"action": action, "env_action": choosing.for_env(action)}

    def in_torch(self, model: Any, obs: Any) -> torch.Tensor:
        """The same action in the environment's scale, for `Policy.export`."""
        return self.policy.choosing.mode_for_env(model(obs))

    def value(self, obs: Any) -> Array:
        """Called only on modes that return values."""
        raise NotImplementedError


def actor_gives(policy: ActorNetwork, obs: Any) -> Array:
    """The outputs `[N, outputs]` of the actor network for observations `[N, ...]`, as an array."""
    with torch.inference_mode():
        return to_numpy(policy.acting()(policy.observed(obs)))


class QActorCriticLearning(Learning):
    """A loss of the critics' squared errors plus a subclass's terms for the actor, in one step of Adam.

    All terms use the weights before the step. The actor's terms use detached features and detached critic weights, so
    each network learns from its own terms alone.
    """

    policy: QActorCriticPolicy
    columns = ("obs", "action", "reward", "next_obs", "discount")
    optional = ("weight",)
    requires: ClassVar[tuple[str, ...]] = ("obs", "action", "reward", "next_obs", "discount or terminated")
    reports_priority = True

    def prepare(self, batch: Batch) -> Batch:
        """Rows, as one-step windows unless an adder made longer ones (T6), without padded steps (N6)."""
        return one_step_windows(batch, self.policy.settings.gamma)

    def phase(self) -> bool:
        """Whether the next update is of the critics alone, by `policy_delay`."""
        return bool((self.policy.version + 1) % self.policy.settings.get("policy_delay", 1))

    def normal(self, rows: Batch, size: int) -> torch.Tensor:
        """Normal numbers `[B, size]` for the rows of a minibatch, from the policy's stream (D6)."""
        return torch.from_numpy(self.policy.stream.normal((rows.rows, size))).to(self.policy.device)

    def combined(
        self,
        rows: Batch,
        q: torch.Tensor,
        value_t: torch.Tensor,
        actor_terms: torch.Tensor | None,
        reported: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The mean over rows of wᵢ (critic lossᵢ + actor termsᵢ), with y = r + d · value_t.

        Args:
            q: `[k, B]`. value_t: `[B]`, of the state arrived in, which d discounts (T6, N2).
            actor_terms: `[B]`, or None.

        Reports the mean over critics of |Qₖ − y| as each row's priority.
        """
        y = rows.reward.float() + rows.discount * value_t
        critic = self.critic_loss(q, y)
        each = critic if actor_terms is None else critic + actor_terms
        scalars = {"critic_loss": critic.mean(), "q": q.mean(), **reported}
        if "weight" not in rows:
            return each.mean(), scalars
        return (each * rows["weight"]).mean(), {**scalars, "priority": self.priority(q.detach(), y)}

    def critic_loss(self, q: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Σₖ ½ (Qₖ(sᵢ, aᵢ) − yᵢ)², `[B]`."""
        assert q.shape[1:] == y.shape
        return 0.5 * (q - y).square().sum(0)

    def priority(self, q: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean over critics of |Qₖ − y|, `[B]`."""
        return (q - y).abs().mean(0)

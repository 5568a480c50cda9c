"""DQN and its family: the loss, and a policy with double Q-learning, dueling and noisy networks, and any head."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import gymnasium
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.steps import one_step_windows
from flowrl.networks.adam import Adam
from flowrl.networks.heads import MeanHead, ValueHead
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.networks import QNetwork, actions_of, encoder, follow
from flowrl.networks.noisy import signed_root
from flowrl.networks.sampling import argmax_sample, eps_greedy_sample
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy, ValueActing
from flowrl.schedules import NumberOrSchedule, Schedule, linear_schedule, schedule
from flowrl.settings import STEPS, Settings, fraction, positive, scheduled, setting, sizes


def q_learning_loss(
    head: ValueHead, outputs_tm1: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, **at: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The mean of wᵢ ℓ(Q(s_tm1, a_tm1), y), and scalars to report, among them the `priority` of rows with a weight.

    y = r + d · Q_target(s_t, argmaxₐ Q(s_t, a)), see `of_best`; `head` defines ℓ, the priority, and what y is if a
    distribution takes the place of the mean Q.

    Args:
        outputs_tm1: `[B, ...]`, those of the online network for the actions taken.
        target: y, `[B, ...]`; see `ValueHead.target`.
        weight: w, `[B]`; None: 1.
        at: What else the `errors` of the head read, such as the levels of quantiles.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning".
    """
    errors, q = head.errors(outputs_tm1, target, **at), head(outputs_tm1.detach()).mean()
    loss = errors.mean() if weight is None else (errors * weight).mean()
    scalars = {"loss": loss, "q": q}
    return loss, scalars if weight is None else {**scalars, "priority": head.priority(errors, outputs_tm1, target)}


def of_best(outputs_t: torch.Tensor, q_t: torch.Tensor, mask_t: torch.Tensor | None = None) -> torch.Tensor:
    """The target network's outputs `[B, ...]` for the best action, argmaxₐ Q(s_t, a) over the valid actions.

    Args:
        outputs_t: `[B, A, ...]`. q_t: `[B, A]`, the values that select: the online network's in double Q-learning, else
            those of the outputs (Q1).
        mask_t: `[B, A]` bool, the valid actions; None: all.

    Source: van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning", eq. 4.
    """
    assert q_t.shape == outputs_t.shape[:2]
    return of_action(outputs_t, torch.argmax(masked(q_t, mask_t), 1))


def of_action(outputs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The outputs of one action per row: `[B, A]` or `[B, A, K]`, and actions `[B]`, to `[B]` or `[B, K]`."""
    index = action.unsqueeze(1)
    if outputs.ndim > 2:
        index = index.unsqueeze(2).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)


@attrs.frozen(kw_only=True, slots=False)
class ValueSettings(Policy.Settings):
    """A Q-network over discrete actions, and how it learns."""

    hidden: tuple[int, ...] = sizes(64, 64, meaning="sizes of the hidden layers")
    dueling: bool = setting(True, "split the Q-network into value and advantage: Q = V + A - mean A")
    gamma: float = fraction(0.99, "discount per step")
    grad_clip: float | None = 10.0


@attrs.frozen(kw_only=True, slots=False)
class DoubleQSettings(ValueSettings):
    """Q-learning over discrete actions, see `of_best`."""

    double: bool = setting(True, "double Q-learning: the online network selects, the target network evaluates")


@attrs.frozen(kw_only=True, slots=False)
class EpsilonSettings(Settings):
    """How often actions are random."""

    epsilon_start: NumberOrSchedule = scheduled(1.0, "probability of a random action at the start", most=1)
    epsilon_end: float = fraction(0.04, "probability of a random action at the end of its schedule", resume="fork")
    epsilon_steps: int = positive(10_000, "env steps over which epsilon changes", most=STEPS, resume="fork")

    @property
    def epsilon(self) -> Schedule:
        """The schedule of epsilon."""
        return schedule(self.epsilon_start, self.epsilon_end, self.epsilon_steps)


def of_one_step(config: Settings, _field: Any, given: float) -> None:
    """Refuse a weight out of range, and returns of several steps."""
    if not 0 <= given <= 1:
        raise ValueError("expected 0 .. 1")
    if given and config.get("n_step", 1) > 1:
        raise ValueError("returns of several steps would lack what it adds on those between: set n_step=1 too")


class DQNPolicy(Policy):
    """Deep Q-learning over discrete actions, with its later improvements as settings.

    collect: epsilon-greedy, with noise per environment if the network is noisy; eval: greedy, without noise (Q6);
    learn: one step of Adam on the loss of the head.

    Args:
        head: How returns are modelled: their mean (DQN), a categorical distribution (C51), quantiles (QR-DQN).
        epsilon: Exploration rate: a number, or a function of env steps. See `EpsilonSettings`.
        algorithm: Its name in error messages.
        settings: The fields of `Settings`, see `Policy`.

    Raises:
        ConfigError: the actions are not discrete, or no network fits the observations; see `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(DoubleQSettings):
        """The Q-network, and how it learns."""

        #: See `QNetwork`. Set epsilon to 0 to explore by noise alone.
        noisy: bool = setting(False, "explore by noise of learned scale in the weights (NoisyNet)")
        munchausen: float = setting(
            0.0, "weight of the log-policy in rewards (M-DQN has 0.9); 0 is DQN", range="0 .. 1", validator=of_one_step
        )
        munchausen_temperature: float = positive(0.03, "temperature of that policy, softmax of the target's values")

    settings: Settings
    model: QNetwork
    _q_network: type[QNetwork] = QNetwork

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        head: ValueHead | None = None,
        epsilon: Schedule = linear_schedule(1.0, 0.05, 10_000),  # noqa: B008  frozen
        algorithm: str = "DQN",
        **settings: Any,
    ) -> None:
        self.actions = self._count(action_space, algorithm)
        self.head = MeanHead() if head is None else head
        self.epsilon = epsilon
        super().__init__(observation_space, action_space, **settings)

    def _count(self, action_space: gymnasium.Space[Any], algorithm: str) -> int:
        """The number of values of a state. Raises: ConfigError: the actions do not fit."""
        return actions_of(action_space, algorithm)

    def _build(self) -> None:
        self.model = self._network(self.observation_space).to(self.device)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate())
        self.collect_mode = self.exploring(self.epsilon)
        self.eval_mode = ValueActing(self, argmax_sample())
        self.learn_mode = DQNLearning(self)

    def _network(self, space: gymnasium.Space[Any]) -> QNetwork:
        """The values of actions for observations of a space."""
        given = self.settings
        encoding = encoder(space, normalize=self.normalize_obs, network=given.network)
        return self._q_network(encoding, self.actions, given.hidden, **self._parts())

    def _parts(self) -> dict[str, Any]:
        """Further arguments of the network."""
        return {"dueling": self.settings.dueling, "head": self.head, "noisy": self.settings.noisy}

    def exploring(self, epsilon: Schedule) -> ValueActing:
        """A collect mode with this epsilon, and with noise in the weights if the network is noisy."""
        return ValueActing(self, eps_greedy_sample(epsilon), noise_draws=self.model.draws)

    def noise(self) -> torch.Tensor | None:
        """Fresh noise for one forward of learning, `[1, draws]` (Q6); None unless the network is noisy."""
        if not self.model.draws:
            return None
        noise: torch.Tensor = self.tensor(signed_root(self.stream.normal((1, self.model.draws))))
        return noise

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "target": self.target}

    def update_target(self, tau: float = 1.0) -> None:
        """target ← tau · online + (1 − tau) · target (Q2).

        The statistics of observations move too, as part of the weights (O1): between two updates the target network
        gives an observation the same values.
        """
        follow(self.target, self.model, tau)


class DQNLearning(Learning):
    """The learn mode of a `DQNPolicy`: `q_learning_loss`, or with Munchausen rewards the target of `munchausen_target`.

    The online network, the target network and the selection of the best action each draw their own noise.
    """

    policy: DQNPolicy
    compiles = True
    columns: tuple[str, ...] = ("obs", "action", "reward", "next_obs", "discount")
    optional = ("weight",)
    requires: ClassVar[tuple[str, ...] | Mapping[str, str]] = (*columns[:-1], "discount or terminated")
    reports_priority = True

    def prepare(self, batch: Batch) -> Batch:
        """Rows, as one-step windows unless an adder made longer ones (T6), without padded steps (N6)."""
        return one_step_windows(batch, self.policy.settings.gamma)

    @torch.no_grad()
    def target(self, rows: Batch) -> torch.Tensor:
        """Targets `[B, ...]` of the head for windows with `reward`, `next_obs` and `discount`."""
        policy, head, given, obs_t = self.policy, self.policy.model.head, self.policy.settings, rows.next_obs
        if given.munchausen:
            q_tm1 = policy.target(rows.obs, policy.noise())
            outputs_t = policy.target(obs_t, policy.noise(), values=False)
            return munchausen_target(head, rows, q_tm1, outputs_t, head(outputs_t), given)
        outputs_t = policy.target(obs_t, policy.noise(), values=False)
        q_t = policy.model(obs_t, policy.noise()) if given.double else head(outputs_t)
        return head.target(rows.reward.float(), rows.discount, of_best(outputs_t, q_t, action_mask(obs_t)))

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, target = self.policy, self.target(rows)
        outputs = of_action(policy.model(rows.obs, policy.noise(), values=False), rows.action.long())
        return q_learning_loss(policy.model.head, outputs, target, rows.get("weight"))


def munchausen_target(
    head: ValueHead,
    rows: Batch,
    q_tm1: torch.Tensor,
    outputs_t: torch.Tensor,
    q_t: torch.Tensor,
    given: DQNPolicy.Settings,
) -> torch.Tensor:
    """Σₐ π(a | s_t) times the head's target for a reward of r + α [τ log π(a_tm1 | s_tm1)]₋₁⁰ − d τ log π(a | s_t).

    π is the softmax of the target network's values / τ over the valid actions. For the mean this is eq. 1 of the
    source, for quantiles its M-IQN, and for a categorical distribution the mixture over actions.

    Args:
        rows: Windows of one step. q_tm1, q_t: `[B, A]`, the target network's values. outputs_t: `[B, A, ...]`.
        given: α and τ.

    Source: Vieillard et al. 2020, "Munchausen Reinforcement Learning".
    """
    tau = given.munchausen_temperature
    log_pi_tm1 = torch.log_softmax(masked(q_tm1, action_mask(rows.obs)) / tau, 1)
    log_pi_t = torch.log_softmax(masked(q_t, action_mask(rows.next_obs)) / tau, 1)
    bonus = given.munchausen * (tau * of_action(log_pi_tm1, rows.action.long())).clamp(-1, 0)
    reward = (rows.reward.float() + bonus)[:, None] - rows.discount[:, None] * tau * log_pi_t
    discount = rows.discount[:, None].expand_as(reward)
    each = head.target(reward.flatten(), discount.flatten(), outputs_t.flatten(0, 1)).view_as(outputs_t)
    target: torch.Tensor = (log_pi_t.exp().view(*log_pi_t.shape, *[1] * len(head.shape)) * each).sum(1)
    return target

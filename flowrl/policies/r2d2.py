"""R2D2: recurrent Q-learning on sequences that start from the actor's recurrent state."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import attrs
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.columns import STEP_DISCOUNT
from flowrl.data.steps import discounts
from flowrl.errors import ConfigError
from flowrl.networks.adam import Adam
from flowrl.networks.in_numpy import to_numpy
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.networks import QNetwork, encoder
from flowrl.networks.recurrent import (
    OF_ONE_EPISODE,
    RECURRENT_REQUIRES,
    Cell,
    RecurrentEncoder,
    RecurrentNetwork,
    memory,
    recurrent_rows,
)
from flowrl.networks.sampling import Array, argmax_sample, eps_greedy_sample
from flowrl.policies.dqn import DoubleQSettings, DQNPolicy
from flowrl.policies.learning import Learning
from flowrl.returns import n_step
from flowrl.settings import positive, setting

#: ε of `rescaled`.
EPS = 1e-3


def rescaled(x: torch.Tensor) -> torch.Tensor:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x: compresses values of any size into a range that a network can output.

    √(|x| + 1) − 1 is |x| / (√(|x| + 1) + 1), which loses no digits where x is small.

    Source: Pohlen et al. 2018, "Observe and Look Further", proposition A.2.

    >>> rescaled(torch.tensor([0.0, 3.0, -3.0, 500.0]))
    tensor([ 0.0000,  1.0030, -1.0030, 21.8830])
    """
    return x / ((x.abs() + 1).sqrt() + 1) + EPS * x


def unscaled(x: torch.Tensor) -> torch.Tensor:
    """The inverse of `rescaled`: sign(x) (((√(1 + 4ε (|x| + 1 + ε)) − 1) / 2ε)² − 1).

    (√(1 + u) − 1) / 2ε is u / (√(1 + u) + 1) / 2ε, see `rescaled`.

    >>> unscaled(rescaled(torch.tensor([0.0, 3.0, -80.0])))
    tensor([  0.0000,   3.0000, -80.0000])
    """
    u = 4 * EPS * (x.abs() + 1 + EPS)
    return x.sign() * ((u / ((1 + u).sqrt() + 1) / (2 * EPS)).square() - 1)


def n_step_q_target(
    reward: torch.Tensor,
    terminated: torch.Tensor,
    last: torch.Tensor,
    value: torch.Tensor,
    *,
    gamma: float | torch.Tensor,
    n: int,
    rescale: bool,
) -> torch.Tensor:
    """yₜ = h(Σᵢ₌₀ᵏ⁻¹ γⁱ rₜ₊ᵢ + γᵏ h⁻¹(valueₜ₊ₖ)), `[T, B]`, over the k ≤ n steps to where the window or the data ends.

    h is `rescaled`, or with `rescale=False` the identity; what follows a terminal step is worth 0.

    Args:
        reward, terminated, last: `[T, B]`; `last` marks steps after which a sequence ends.
        value: `[T + 1, B]`, of the observation of each step, and of that after the last.

    Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 2.3.
    """
    window_return, steps, discount = n_step(reward, terminated, last, gamma=gamma, n=n)
    at = torch.arange(len(steps), device=steps.device)[:, None] + steps
    target: torch.Tensor = window_return + discount * (unscaled(value) if rescale else value).gather(0, at)
    return rescaled(target) if rescale else target


@attrs.frozen(kw_only=True, slots=False)
class SequenceSettings(DoubleQSettings):
    """Q-learning on sequences."""

    n_step: int = positive(5, "rewards summed in a return before it bootstraps, within a sequence")
    rescale: bool = setting(True, "learn values on a square-root scale")
    stored_state: bool = setting(True, "start sequences from the actor's recurrent state, not the initial one")


class R2D2Policy(DQNPolicy):
    """Recurrent Q-learning from replay: see `DQNPolicy`.

    Args:
        units: Size of the memory, between the encoder and the hidden layers.
        cell: "lstm", "gru" or "gtrxl", which looks `memory_steps` back in each of `memory_layers`.

    Raises:
        ConfigError: a `noisy` network or a `head`, which R2D2 does not support; see `DQNPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(SequenceSettings, DQNPolicy.Settings):
        """The settings of Q-learning and of its sequences."""

    settings: Settings
    model: Any  #: a `RecurrentNetwork` of a `QNetwork`

    def __init__(
        self,
        *spaces: Any,
        units: int = 64,
        cell: Cell = "lstm",
        memory_steps: int = 64,
        memory_layers: int = 1,
        **settings: Any,
    ) -> None:
        for name in ("noisy", "head", "munchausen"):
            if settings.get(name):
                raise ConfigError(f"{name}={settings[name]!r}: R2D2 learns plain means, without noise in the weights")
        self.units, self.cell, self.memory_steps, self.memory_layers = units, cell, memory_steps, memory_layers
        super().__init__(*spaces, algorithm="R2D2", **settings)

    def _build(self) -> None:
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=self.settings.network)
        remembering = memory(encoding.features, self.units, self.cell, self.memory_steps, self.memory_layers)
        network = QNetwork(
            RecurrentEncoder(self.units), self.actions, self.settings.hidden, dueling=self.settings.dueling
        )
        self.model = RecurrentNetwork(encoding, remembering, network).to(self.device)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate())
        self.collect_mode = RecurrentValueActing(self, eps_greedy_sample(self.epsilon))
        self.eval_mode = RecurrentValueActing(self, argmax_sample())
        self.learn_mode: Any = R2D2Learning(self)


@attrs.frozen
class RecurrentValueActing:
    """Acts by a wrapper on the values `[N, A]` of a recurrent network."""

    policy: R2D2Policy
    sample: Any

    @property
    def draws(self) -> int:
        return int(self.sample.draws)

    def initial_state(self) -> Array:
        """See `RecurrentMode`."""
        state: Array = self.policy.model.initial_state()
        return state

    def act(self, obs: Any, noise: Array, env_steps: int, state: Array) -> dict[str, Any]:
        values, after = self._step(obs, state)
        return {"action": self.sample(values, noise, env_steps, mask=action_mask(obs)), "next_state": after}

    def value(self, obs: Any, state: Array) -> Array:
        """The value of the best valid action."""
        best: Array = masked(self._step(obs, state)[0], action_mask(obs)).max(1)
        return best

    def _step(self, obs: Any, state: Array) -> tuple[Array, Array]:
        with torch.inference_mode():
            values, after = self.policy.acting().step(self.policy.tensor(obs), self.policy.tensor(state))
        return to_numpy(values), to_numpy(after)


class R2D2Learning(Learning):
    """The Huber loss (delta 1) of Q(s_t, a_t) and `n_step_q_target` of the values Q_target(s_t, argmax_a Q(s_t, a)),

    with both networks unrolled over the sequence from the same state. The argmax is over valid actions; without
    `double` it is Q_target's (Q1). Burn-in steps are unrolled without loss or gradient (N7).

    The mean over the counted steps, of wᵢ · huberᵢ if they have a `weight`; their priority is |TD error|, which a
    `PrioritizedSequenceReplayBuffer` combines per sequence.

    Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 2.3.
    """

    policy: R2D2Policy
    recurrent = True
    columns = ("obs", "action", "reward", "terminated", "next_obs", "state", "mask")
    optional = ("weight", STEP_DISCOUNT)
    requires: ClassVar[dict[str, str]] = {
        **RECURRENT_REQUIRES,
        **OF_ONE_EPISODE,
        **dict.fromkeys(("obs", "action", "reward", "terminated", "truncated", "next_obs"), ""),
    }
    reports_priority = True

    def prepare(self, batch: Batch) -> Batch:
        """See `recurrent_rows`."""
        return recurrent_rows(batch)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        counts = rows.mask
        all_q = self.unrolled(self.policy.model, rows)
        with torch.no_grad():
            target = self.targets(rows, all_q, self.unrolled(self.policy.target, rows))[counts]
        q = all_q[:-1].gather(2, rows.action.long().unsqueeze(2)).squeeze(2)[counts]
        errors = nn.functional.smooth_l1_loss(q, target, reduction="none")
        if "weight" not in rows:
            return errors.mean(), {"loss": errors.mean(), "q": q.mean()}
        loss = (errors * rows["weight"][counts]).mean()
        priority = torch.zeros_like(rows.mask, dtype=torch.float32)
        priority[counts] = (target - q).detach().abs()
        return loss, {"loss": loss, "q": q.mean(), "priority": priority}

    def unrolled(self, model: nn.Module, rows: Batch) -> torch.Tensor:
        """Q-values `[T + 1, B, A]`: of the observation of every step, and of the one after the last step.

        Inside an episode the next observation is that of the next step, so one unroll gives both; after an episode's
        last step, its final observation takes the place of padding.
        """
        obs = self.unrolled_obs(rows)
        state = rows.state[0] if self.policy.settings.stored_state else torch.zeros_like(rows.state[0])
        warm_up = int(rows.mask.int().argmax(0).max())  # 0 if all sequences start with their episode
        parts = []
        if warm_up:
            values, state = model(obs[:warm_up], state)
            state = torch.where(rows.mask[0, :, None], state, state.detach())
            parts.append(values)
        parts.append(model(obs[warm_up:], state)[0])
        return torch.cat(parts).reshape(len(rows.mask) + 1, rows.mask.shape[1], -1)

    def unrolled_obs(self, rows: Batch) -> Any:
        """The observations `[T + 1, B, ...]` that `unrolled` evaluates."""
        return Batch.cat([Batch(obs=rows.obs[:1]), Batch(obs=rows.next_obs)])["obs"]

    def targets(self, rows: Batch, online: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """yₜ `[T, B]`, from both networks' values `[T + 1, B, A]`; valid at the counted steps."""
        given, last = self.policy.settings, rows.mask.clone()
        last[:-1] &= ~rows.mask[1:]
        chooser = masked(online if given.double else target, action_mask(self.unrolled_obs(rows)))
        value = target.gather(2, chooser.argmax(2, keepdim=True)).squeeze(2)
        reward, gamma = rows.reward.float(), discounts(rows, given.gamma)
        return n_step_q_target(reward, rows.terminated, last, value, gamma=gamma, n=given.n_step, rescale=given.rescale)

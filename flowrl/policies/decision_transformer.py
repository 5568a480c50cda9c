"""Decision Transformer: actions as a sequence model continues them, given the return that is still to come."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import attrs
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.envs.spaces import first_members
from flowrl.errors import ConfigError
from flowrl.networks.adam import Adam
from flowrl.networks.distributions import ActionHead, DiscreteChoice, NoisyChoice
from flowrl.networks.in_numpy import to_numpy
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.networks import Encoder, FlatEncoder, OneHotEncoder, encoder
from flowrl.networks.recurrent import HEADS
from flowrl.networks.sampling import Array
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import positive, setting


class DecisionTransformerNetwork(nn.Module):
    """A causal transformer over three tokens per step: the return to go, the observation and the action.

    Each token is an embedding plus that of its step in the episode. What stands at the token of an observation decides
    on the action that follows it.
    """

    def __init__(
        self, seen: Encoder, done: Encoder, outputs: int, units: int, layers: int, return_scale: float
    ) -> None:
        super().__init__()
        self.seen, self.done, self.units, self.return_scale = seen, done, units, return_scale
        self.embed = nn.ModuleList(nn.Linear(features, units) for features in (1, seen.features, done.features))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(units, HEADS, 4 * units, dropout=0.0, activation="gelu", norm_first=True)
            for _ in range(layers)
        )
        self.first, self.last = nn.LayerNorm(units), nn.LayerNorm(units)
        self.actor = nn.Linear(units, outputs)
        self.register_buffer("best_return", torch.tensor(-math.inf))
        self.best_return: torch.Tensor

    def forward(self, rows: Batch) -> torch.Tensor:
        """Outputs `[T, B, outputs]` for each step of sequences `[T, B, ...]`, valid where the mask is.

        Args:
            rows: The columns of `flowrl.data.datasets.returns_view.ContextView`; no output reads the action of its own
                step or of later ones.
        """
        steps, envs = rows.t.shape
        flat = rows.flat()
        parts = flat.return_to_go[:, None].float() / self.return_scale, self.seen(flat.obs), self.done(flat.action)
        when = in_waves(flat.t, self.units)
        tokens = [embed(part) + when for embed, part in zip(self.embed, parts)]
        x = torch.stack([token.view(steps, envs, -1) for token in tokens], 1).flatten(0, 1)

        place = torch.arange(len(x), device=x.device)
        hidden = (place > place[:, None]) | ~rows.mask.T.repeat_interleave(3, 1)[:, None]
        hidden = hidden & (place != place[:, None])  # padding sees itself: attention to nothing is NaN
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, src_mask=hidden.repeat_interleave(HEADS, 0))
        given = self.actor(self.last(x[1::3])).flatten(0, 1)
        outputs: torch.Tensor = masked(given.float(), action_mask(flat.obs)).view(steps, envs, -1)
        return outputs


def in_waves(t: torch.Tensor, units: int) -> torch.Tensor:
    """Numbers `[B]` as sines and cosines `[B, units]` of wavelengths from 2π to 2π · 10000.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """
    rate = 10_000 ** -(torch.arange(0, units, 2, device=t.device) / units)
    angle = t[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], 1)


class DecisionTransformerPolicy(Policy):
    """An actor that continues sequences of returns, observations and actions as a dataset does.

    It asks for `target_return`, less the rewards that it has got in the episode, which it hears: see `HearsRewards`.
    Without one it asks for the best return of the episodes whose beginning it has learned from, which is part of the
    weights; 0 before that.
    collect: draws discrete actions; eval: the most probable one. Continuous actions are not drawn; they are stored in
    -1 .. 1, whatever their bounds.

    Raises:
        ConfigError: units that do not fit the heads, actions that are neither discrete nor a bounded Box of floats, or
            no network fits the observations; see `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(Policy.Settings):
        """The transformer, and the return that it is asked for."""

        target_return: float | None = setting(
            None, "return to ask for while acting; None: the best of the recorded episodes", resume="free"
        )
        return_scale: float = positive(1000.0, "returns are divided by it")
        context: int = positive(20, "steps that it sees")
        units: int = positive(128, "width of the transformer, a multiple of 4")
        layers: int = positive(3, "layers of the transformer", most=1_000)
        learning_rate: NumberOrSchedule = 1e-4
        grad_clip: float | None = 0.25

    settings: Settings
    model: DecisionTransformerNetwork
    choosing: ActionHead

    def _build(self) -> None:
        given, space = self.settings, self.action_space
        if given.units % HEADS:
            raise ConfigError(f"units={given.units}: expected a multiple of {HEADS}, the heads of the transformer")
        done: Encoder
        if isinstance(space, spaces.Discrete):
            self.choosing, done = DiscreteChoice(int(space.n), int(space.start)), OneHotEncoder([int(space.n)], [0])
        else:
            self.choosing = NoisyChoice(space, "Decision Transformer", 0.0)
            done = FlatEncoder(self.choosing.outputs)
        seen = encoder(self.observation_space, normalize=self.normalize_obs, network=given.network)
        model = DecisionTransformerNetwork(
            seen, done, self.choosing.outputs, given.units, given.layers, given.return_scale
        )
        self.model = model.to(self.device)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate())
        self.collect_mode = Conditioned(self, given.target_return, explores=True)
        self.eval_mode = Conditioned(self, given.target_return)
        self.learn_mode = DecisionTransformerLearning(self)

    def from_env(self, action: Array) -> Array:
        """Convert actions `[..., *shape]` from the environment's scale to the stored one."""
        return self.choosing.from_env(action)

    def for_env(self, action: Array) -> Array:
        """See `Policy.for_env`."""
        return self.choosing.for_env(action)


@attrs.frozen
class Conditioned:
    """A `RecurrentMode` whose state holds the last steps, the return that is still to come, and the step's number."""

    policy: DecisionTransformerPolicy
    target_return: float | None
    explores: bool = False

    @property
    def draws(self) -> int:
        return self.policy.choosing.draws if self.explores else 0

    def initial_state(self) -> Batch:
        """See `RecurrentMode`."""
        policy, choosing = self.policy, self.policy.choosing
        best = float(policy.model.best_return)
        wanted = self.target_return if self.target_return is not None else best if math.isfinite(best) else 0.0
        target, t = np.array([wanted], np.float64), np.zeros(1, np.int64)
        obs = first_members(policy.observation_space, 1)
        none = Batch(obs=obs, action=choosing.greedy(np.zeros((1, choosing.outputs), np.float32)))
        seen = none.replace(return_to_go=target, t=t)[:, None]
        seen = seen.map(lambda column: np.repeat(column, policy.settings.context, 1))
        return Batch(seen=seen, return_to_go=target, t=t)

    def rewarded(self, state: Any, reward: Array) -> Batch:
        """See `HearsRewards`."""
        return Batch(state).replace(return_to_go=state["return_to_go"] - reward)

    def act(self, obs: Any, noise: Array, env_steps: int, state: Any) -> dict[str, Any]:
        policy, choosing = self.policy, self.policy.choosing
        state = Batch(state)
        seen = state.seen.map(lambda column: np.roll(column, -1, 1))
        begins = state.t == 0
        seen["obs"][begins] = obs[begins][:, None]  # padding, which not every encoder accepts as zeros
        seen["obs"][:, -1], seen["return_to_go"][:, -1], seen["t"][:, -1] = obs, state.return_to_go, state.t
        rows = seen.map(lambda column: np.swapaxes(column, 0, 1))
        length = len(rows)
        rows["mask"] = np.arange(length)[:, None] >= length - 1 - state.t
        with torch.inference_mode():
            given = to_numpy(policy.acting()(policy.tensor(rows))[-1])
        action = choosing.explore(given, noise, env_steps) if self.explores else choosing.greedy(given)
        seen["action"][:, -1] = action
        after = Batch(seen=seen, return_to_go=state.return_to_go, t=state.t + 1)
        return {"action": action, "env_action": choosing.for_env(action), "next_state": after}

    def value(self, obs: Any, state: Any) -> Array:
        """Called only on modes that return values."""
        raise NotImplementedError


class DecisionTransformerLearning(Learning):
    """The mean over the steps of sequences, without padding (N6), of −log π(a | s) for discrete actions, and of the
    squared error (tanh of the output − a)² for continuous ones.

    Source: Chen et al. 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling", algorithm 1. There
    steps have a learned embedding in place of sinusoids, there is one head, a tenth of the activations is dropped out,
    weights decay, and the learning rate warms up.
    """

    policy: DecisionTransformerPolicy
    recurrent = True
    columns = ("obs", "action", "return_to_go", "t", "mask")
    requires: ClassVar[dict[str, str]] = {
        "sequences": "of steps that end anywhere in an episode: read them with OfflineRows(context=)",
        **dict.fromkeys(columns, ""),
    }

    def over_minibatch(self, rows: Batch) -> Batch:
        """Note the best return of an episode whose first step is here."""
        begins, best = rows.mask & (rows.t == 0), self.policy.model.best_return
        if begins.any():
            best.copy_(torch.maximum(best, rows.return_to_go[begins].max()))
        return rows

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        given, action = self.policy.model(rows)[rows.mask], rows.action[rows.mask]
        choosing = self.policy.choosing
        if isinstance(choosing, DiscreteChoice):
            loss = -choosing.logp(given, action).mean()
        else:
            loss = nn.functional.mse_loss(given.tanh(), action.reshape(given.shape))
        return loss, {"loss": loss}

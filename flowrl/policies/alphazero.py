"""AlphaZero: a network that says where a search begins to look, and learns from what the search found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy as np
import torch
from scipy.special import gammaincinv
from torch import nn

from flowrl.data import Batch
from flowrl.data.steps import real_rows
from flowrl.envs.make import model_of
from flowrl.errors import ConfigError
from flowrl.networks.adam import Adam
from flowrl.networks.in_numpy import Function, in_numpy, log_softmax, to_numpy
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.networks import Encoder, actions_of, encoder, mlp
from flowrl.networks.sampling import Array, argmax_sample, softmax_sample
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy
from flowrl.policies.search import tree_search
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import at_least_one, fraction, not_negative, positive, scheduled, setting, sizes, span


class AlphaZeroNetwork(nn.Module):
    """Logits of moves `[B, A]` and values `[B]` in -1 .. 1, of one network; invalid moves have probability 0."""

    def __init__(self, encoder: Encoder, actions: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.encoder = encoder
        self.body = mlp([encoder.features, *hidden, actions + 1])

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self.body(self.encoder(obs)).float()
        return masked(outputs[:, :-1], action_mask(obs)), outputs[:, -1].tanh()

    def in_numpy(self) -> Function:
        encode, body = in_numpy(self.encoder), in_numpy(self.body)

        def forward(obs: Any) -> tuple[Array, Array]:
            outputs = body(encode(obs))
            return masked(outputs[:, :-1], action_mask(obs)), np.tanh(outputs[:, -1])

        return forward


class AlphaZeroPolicy(Policy):
    """A search over the moves of a game for two that begins with what a network thinks of them, and teaches it.

    collect: searches with noise at the root and draws a move in proportion to visits ** (1 / temperature); eval:
    searches without noise and makes the move with the most visits. Both add the columns `visits [N, A]` and
    `search_value [N]`. It needs the rules of the game, see `flowrl.envs.games.GameModel`, and sees the board alone: any
    position that it is asked for.

    Args:
        env, env_args, wrappers: The game, whose rules the search follows: see `flowrl.envs.make.model_of`.
        settings: The fields of `Settings`, see `Policy`.

    Source: Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go through
    self-play".

    Raises:
        ConfigError: the environment is no game with a model, or has other moves; no network fits the observations; see
            `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(Policy.Settings):
        """The network, how it learns, and the search."""

        hidden: tuple[int, ...] = sizes(128, 128, meaning="sizes of the hidden layers of the network")
        simulations: int = at_least_one(50, "simulations of a search", most=1_000_000)
        eval_simulations: int | None = at_least_one(
            None, "simulations of a search in evaluations; None: simulations", most=1_000_000, resume="free"
        )
        c_puct: float = positive(1.5, "how much a search explores", resume="fork")
        root_noise: float = fraction(0.25, "share of Dirichlet noise in the prior of the root", resume="fork")
        dirichlet_alpha: float = positive(
            1.0, "concentration of this noise: about 10 / the number of legal moves", resume="fork"
        )
        temperature: float = positive(1.0, "temperature of the draw among moves, by their visits", resume="fork")
        exploring_moves: int = not_negative(
            30, "moves of a game that are drawn; later ones are those with the most visits", resume="fork"
        )
        value_coef: float = setting(1.0, "weight of the value loss", resume="fork")
        q_ratio: float = fraction(
            0.0, "share of what the search found in the target of the value; the rest is the outcome", resume="fork"
        )
        learning_rate_end: float | None = setting(
            None, "learning rate at the end of the schedule; None: constant", resume="fork"
        )
        schedule_steps: int | None = span("env steps over which the learning rate changes")
        learning_rate: NumberOrSchedule = scheduled(2e-3, "learning rate of Adam at the start")

    settings: Settings
    model: AlphaZeroNetwork

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        env: Any,
        env_args: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] = (),
        **settings: Any,
    ) -> None:
        self.game, actions = model_of(env, env_args, wrappers), actions_of(action_space, "AlphaZero")
        if self.game.actions != actions:
            raise ConfigError(f"the model of {env!r} has {self.game.actions} moves, but there are {actions} actions")
        super().__init__(observation_space, action_space, **settings)

    def _build(self) -> None:
        given = self.settings
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=given.network)
        self.model = AlphaZeroNetwork(encoding, self.game.actions, given.hidden).to(self.device)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate())
        self.collect_mode = Searching(self, given.simulations, explores=True)
        self.eval_mode = Searching(self, given.eval_simulations or given.simulations, explores=False)
        self.learn_mode = AlphaZeroLearning(self)

    def judged(self, states: Array) -> tuple[Array, Array]:
        """What the network thinks of states `[N, ...]` of the game: priors `[N, A]`, and values `[N]`."""
        with torch.inference_mode():
            logits, value = self.acting()(self.observed(self.game.observe(states)))
        return np.exp(log_softmax(logits)), to_numpy(value)


@attrs.frozen
class Searching:
    """Acts by a search from each observation (K1): columns action, visits `[N, A]`, search_value `[N]`."""

    policy: AlphaZeroPolicy
    simulations: int
    explores: bool

    @property
    def draws(self) -> int:
        return self.policy.game.actions + 1 if self.explores else 0

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        policy, given = self.policy, self.policy.settings
        game = policy.game
        states, prior = game.states(obs), None
        if self.explores:
            prior = with_noise(
                policy.judged(states)[0], game.legal(states), noise[:, :-1], given.root_noise, given.dirichlet_alpha
            )
        visits, value = tree_search(
            game, states, policy.judged, simulations=self.simulations, c_puct=given.c_puct, prior=prior
        )
        action = argmax_sample()(visits)
        if self.explores:
            scores = np.log(np.maximum(visits, 1))
            drawn = softmax_sample(given.temperature)(scores, noise[:, -1:], mask=visits > 0)
            action = np.where(game.moves(states) < given.exploring_moves, drawn, action)
        return {"action": action, "visits": visits.astype(np.int32), "search_value": value.astype(np.float32)}

    def value(self, obs: Any) -> Array:
        """The network's values of observations `[N, ...]`, without a search."""
        return self.policy.judged(self.policy.game.states(obs))[1]


def with_noise(prior: Array, legal: Array, noise: Array, share: float, alpha: float) -> Array:
    """(1 − share) · P + share · η, with η of Dirichlet(alpha) over the legal moves, by uniform noise `[N, A]`."""
    least = np.finfo(np.float64).tiny
    drawn = np.where(legal, np.maximum(gammaincinv(alpha, noise), least), 0.0)
    mixed: Array = (1 - share) * prior + share * drawn / np.maximum(drawn.sum(1, keepdims=True), least)
    return mixed


class AlphaZeroLearning(Learning):
    """L = mean(−Σₐ πₐ log pₐ + value_coef · (y − v)²), with the shares π of visits and y = (1 − ratio) · z + ratio · q.

    ratio is `q_ratio`. z, the outcome of the game, is the `reward` of a row from which `NStep` has summed all to the
    end of the game; of a row whose game was cut by a fault there is none, and π alone is learned. q is `search_value`.

    Source: Silver et al. 2018, eq. 1, without its weight decay; Willemsen et al. 2021, "Value targets in off-policy
    AlphaZero: a new greedy backup", for targets that are not the outcome alone.
    """

    policy: AlphaZeroPolicy
    columns: tuple[str, ...] = ("obs", "visits", "reward", "discount", "search_value")
    requires: ClassVar[dict[str, str]] = {
        "obs": "",
        "visits": "collect with a policy that searches",
        "reward": "",
        "search_value": "collect with a policy that searches",
        "discount": "put NStep(n, gamma=1) before the buffer, with n at least the moves of a game",
    }

    def prepare(self, batch: Batch) -> Batch:
        """Rows without padded steps (N6)."""
        return real_rows(batch)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        given = self.policy.settings
        logits, value = self.policy.model(rows.obs)
        shares = rows.visits / rows.visits.sum(1, keepdim=True)
        policy_loss = -(shares * torch.log_softmax(logits, 1)).sum(1).mean()
        target = torch.lerp(rows.reward.float(), rows.search_value, given.q_ratio)
        value_loss = ((rows.discount == 0) * (target - value).square()).mean()
        loss = policy_loss + given.value_coef * value_loss
        return loss, {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss}

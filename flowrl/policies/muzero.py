"""MuZero: a search in a model that the policy has learned, which teaches the policy and its model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.steps import is_fragment
from flowrl.errors import SchemaError
from flowrl.networks.adam import Adam
from flowrl.networks.in_numpy import Function, in_numpy, to_numpy
from flowrl.networks.masks import action_mask
from flowrl.networks.networks import Encoder, actions_of, encoder, follow, mlp
from flowrl.networks.recurrent import OF_ONE_EPISODE
from flowrl.networks.sampling import Array, eps_greedy_sample
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy
from flowrl.policies.r2d2 import rescaled, unscaled
from flowrl.policies.search import ModelStep, Planned, gumbel_search
from flowrl.returns import n_step
from flowrl.schedules import NumberOrSchedule, Schedule
from flowrl.settings import Settings, at_least_one, fraction, positive, scheduled, setting, sizes, span

#: Columns of what a search found, which reanalysis replaces.
SEARCHED = ("search_policy", "search_value")


def unrolled_cross_entropy(
    logits: torch.Tensor, shares: torch.Tensor, counts: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The mean over rows of Σₖ weightₖ countₖ CEₖ, with the cross-entropy CEₖ = −Σₐ shareₖₐ log softmax(logitsₖ)ₐ.

    Args:
        logits: `[K · B, A]`, of step after step of the unrolls. shares: `[B, K, A]`. counts: `[B, K]`.
        weight: `[K, 1]`.
    """
    each = -(shares.transpose(0, 1).flatten(0, 1) * torch.log_softmax(logits, 1)).sum(1).reshape(-1, len(shares))
    return (each * counts.transpose(0, 1) * weight).sum(0).mean()


class Support:
    """Numbers as distributions over the whole numbers −size .. size, on the scale of `rescaled` unless it is `linear`.

    Source: Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model", appendix
    F.

    >>> support = Support(2)
    >>> support.shares(torch.tensor([0.0, 3.0]))
    tensor([[0.0000, 0.0000, 1.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 0.9970, 0.0030]])
    """

    def __init__(self, size: int, linear: bool = False) -> None:
        self.size, self.atoms, self.linear = size, 2 * size + 1, linear

    def shares(self, numbers: torch.Tensor) -> torch.Tensor:
        """Distributions `[..., atoms]` of numbers `[...]`, each over its two neighbours; beyond the ends, at them."""
        scaled = (numbers if self.linear else rescaled(numbers)).clamp(-self.size, self.size) + self.size
        each = torch.arange(self.atoms, device=numbers.device)
        return (1 - (scaled.unsqueeze(-1) - each).abs()).clamp(min=0)

    def numbers(self, logits: Any) -> Array:
        """The means `[...]` of distributions with these logits `[..., atoms]`, as an array of numbers."""
        scores = torch.as_tensor(logits)
        with torch.autocast(scores.device.type, enabled=False):  # it would round the product to half precision
            mean = torch.softmax(scores.float(), -1) @ torch.arange(-self.size, self.size + 1.0, device=scores.device)
        return to_numpy(mean if self.linear else unscaled(mean))


def unit_scaled(latent: Any) -> Any:
    """Latent states `[N, L]`, tensors or arrays, each scaled to 0 .. 1."""
    if isinstance(latent, torch.Tensor):
        low, high = latent.amin(1, keepdim=True), latent.amax(1, keepdim=True)
        return (latent - low) / (high - low + 1e-5)
    low = latent.min(1, keepdims=True)
    return (latent - low) / (latent.max(1, keepdims=True) - low + np.float32(1e-5))


class MuZeroNetwork(nn.Module):
    """Three functions: representation h, dynamics g and prediction f.

    h: observations -> latent states. g: latent states, actions -> the next ones, logits of the reward on the way. f:
    latent states -> logits of actions, logits of values.
    """

    def __init__(self, encoder: Encoder, actions: int, units: int, hidden: Sequence[int], atoms: int) -> None:
        super().__init__()
        self.actions, self.atoms, self.encoder = actions, atoms, encoder
        self.representation = mlp([encoder.features, *hidden, units])
        self.dynamics = mlp([units + actions, *hidden, units + atoms])
        self.prediction = mlp([units, *hidden, actions + atoms])

    def represent(self, obs: Any) -> torch.Tensor:
        """h: latent states `[N, units]` of observations `[N, ...]`."""
        latent: torch.Tensor = unit_scaled(self.representation(self.encoder(obs)).float())
        return latent

    def advance(self, latent: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """g: the latent states after actions `[N]`, and the logits of rewards `[N, atoms]`."""
        both = torch.cat([latent, nn.functional.one_hot(action.long(), self.actions).to(latent.dtype)], 1)
        after, reward = self.dynamics(both).float().split([latent.shape[1], self.atoms], 1)
        return unit_scaled(after), reward

    def predict(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """f: the logits of actions `[N, A]` and of values `[N, atoms]`."""
        logits, value = self.prediction(latent).float().split([self.actions, self.atoms], 1)
        return logits, value

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """f(h(obs)), without a search."""
        return self.predict(self.represent(obs))

    def in_numpy(self) -> Function:
        return InNumpyMuZero(self)  # type: ignore[return-value]


class InNumpyMuZero:
    """The same functions of arrays."""

    def __init__(self, network: MuZeroNetwork) -> None:
        self.encoder, self.actions = in_numpy(network.encoder), network.actions
        self._one_hot = np.eye(network.actions, dtype=np.float32)
        parts = network.representation, network.dynamics, network.prediction
        self._represent, self._dynamics, self._predict = map(in_numpy, parts)

    def represent(self, obs: Any) -> Array:
        """See `MuZeroNetwork`."""
        latent: Array = unit_scaled(self._represent(self.encoder(obs)))
        return latent

    def advance(self, latent: Array, action: Array) -> tuple[Array, Array]:
        """See `MuZeroNetwork`."""
        outputs = self._dynamics(np.concatenate([latent, self._one_hot[action]], 1))
        return unit_scaled(outputs[:, : latent.shape[1]]), outputs[:, latent.shape[1] :]

    def predict(self, latent: Array) -> tuple[Array, Array]:
        """See `MuZeroNetwork`."""
        outputs = self._predict(latent)
        return outputs[:, : self.actions], outputs[:, self.actions :]


@attrs.frozen(kw_only=True, slots=False)
class UnrollSettings(Settings):
    """How the model is unrolled in learning, and how far rewards are summed."""

    unroll_steps: int = at_least_one(5, "steps that learning unrolls the model over", most=10_000)
    n_step: int = at_least_one(10, "rewards summed in a value target before it bootstraps, within a sequence")


class MuZeroPolicy(Policy):
    """A search in a learned model, which says how to act and is what the policy and the model learn from.

    collect: searches with Gumbel noise at the root, and takes a random action with probability epsilon; eval: neither.
    Both add the columns `search_policy [N, A]`, the improved policy, and `search_value [N]`, its value.

    Args:
        epsilon: Probability of a random action, or a function of the env steps so far.

    Source: Danihelka et al. 2022, "Policy improvement by planning with Gumbel"; Schrittwieser et al. 2020, "Mastering
    Atari, Go, chess and shogi by planning with a learned model".

    Raises:
        ConfigError: the actions are not Discrete; no network fits the observations; see `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(UnrollSettings, Policy.Settings):
        """The model, the search, and how they learn."""

        hidden: tuple[int, ...] = sizes(64, meaning="sizes of the hidden layers of each function of the model")
        latent_size: int = at_least_one(64, "size of a latent state")
        support_size: int = at_least_one(
            10,
            "values and rewards are distributions over -size .. size, on a square-root scale; in a game for two, whose "
            "outcomes should be in that range, on a linear one",
        )
        simulations: int = at_least_one(8, "simulations of a search", most=1_000_000)
        eval_simulations: int | None = at_least_one(
            None, "simulations of a search in evaluations; None: simulations", most=1_000_000, resume="free"
        )
        considered_actions: int = at_least_one(16, "actions that a search considers at its root", resume="fork")
        visit_offset: float = positive(50.0, "c_visit of the scale of Q against logits", resume="fork")
        q_scale: float = positive(0.05, "c_scale of the scale of Q against logits", resume="fork")
        gamma: float = fraction(0.99, "discount per step")
        longest_game: int | None = at_least_one(
            None, "moves of the longest game for two, who move in turn, and gain what the other loses; None: one agent"
        )
        value_coef: float = setting(1.0, "weight of the value loss", resume="fork")
        reward_coef: float = setting(1.0, "weight of the reward loss", resume="fork")
        learning_rate_end: float | None = setting(
            2e-4, "learning rate at the end of the schedule; None: constant", resume="fork"
        )
        schedule_steps: int | None = span("env steps over which the learning rate changes")
        learning_rate: NumberOrSchedule = scheduled(2e-3, "learning rate of Adam at the start")
        grad_clip: float | None = 5.0

    settings: Settings
    model: MuZeroNetwork
    target: MuZeroNetwork

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        epsilon: Schedule = 0.0,
        **settings: Any,
    ) -> None:
        self.actions, self.epsilon = actions_of(action_space, "MuZero"), epsilon
        super().__init__(observation_space, action_space, **settings)

    def _build(self) -> None:
        given = self.settings
        self.support = Support(given.support_size, linear=given.longest_game is not None)
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=given.network)
        network = MuZeroNetwork(encoding, self.actions, given.latent_size, given.hidden, self.support.atoms)
        self.model = network.to(self.device)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate())
        self.collect_mode = Planning(self, given.simulations, explores=True)
        self.eval_mode = Planning(self, given.eval_simulations or given.simulations, explores=False)
        self.learn_mode = MuZeroLearning(self)

    @property
    def discount(self) -> float:
        """Of the value after a step: −γ where that value is the other agent's."""
        given = self.settings
        return given.gamma if given.longest_game is None else -given.gamma

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "target": self.target}

    def update_target(self, tau: float = 1.0) -> None:
        """target ← tau · online + (1 − tau) · target."""
        follow(self.target, self.model, tau)

    def plan(self, obs: Any, simulations: int, gumbel: Array | None = None) -> Planned:
        """Search from observations `[N, ...]`, with the newest weights."""
        given, model, numbers = self.settings, self.acting(), self.support.numbers

        def imagined(latent: Any, reward: Array) -> ModelStep:
            logits, value = model.predict(latent)
            return ModelStep(to_numpy(latent), reward, to_numpy(logits), numbers(value))

        def imagine(latent: Array, action: Array) -> ModelStep:
            after, reward = model.advance(self.observed(latent), self.observed(action))
            return imagined(after, numbers(reward))

        with torch.inference_mode():
            return gumbel_search(
                imagined(model.represent(self.observed(obs)), np.zeros(0)),
                imagine,
                simulations=simulations,
                discount=self.discount,
                considered=given.considered_actions,
                gumbel=gumbel,
                legal=action_mask(obs),
                visit_offset=given.visit_offset,
                q_scale=given.q_scale,
                extent=None if given.longest_game is None else given.support_size,
            )

    def reanalysed(self, obs: Any) -> dict[str, Array]:
        """The columns that acting adds, of a search of `obs [N, ...]` with the newest weights, without noise."""
        return searched(self.plan(obs, self.settings.simulations))


def searched(found: Planned) -> dict[str, Array]:
    """The columns of what a search found."""
    return {"search_policy": found.policy.astype(np.float32), "search_value": found.value.astype(np.float32)}


@attrs.frozen
class Planning:
    """Acts by a search from each observation (K1): columns action, search_policy `[N, A]`, search_value `[N]`."""

    policy: MuZeroPolicy
    simulations: int
    explores: bool

    @property
    def draws(self) -> int:
        return self.policy.actions + 2 if self.explores else 0

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        policy = self.policy
        if not self.explores:
            found = policy.plan(obs, self.simulations)
            return {"action": found.action, **searched(found)}
        gumbel = -np.log(-np.log(np.maximum(noise[:, : policy.actions], TINIEST)))
        found = policy.plan(obs, self.simulations, gumbel)
        chosen = np.eye(policy.actions)[found.action]
        random = eps_greedy_sample(policy.epsilon)
        action = random(chosen, noise[:, policy.actions :], env_steps, mask=action_mask(obs))
        return {"action": action, **searched(found)}

    def value(self, obs: Any) -> Array:
        """The network's values of observations `[N, ...]`, without a search."""
        policy = self.policy
        with torch.inference_mode():
            model = policy.acting()
            return policy.support.numbers(model.predict(model.represent(policy.observed(obs)))[1])


#: The least uniform number that Gumbel noise is made of.
TINIEST = 1e-12


class MuZeroLearning(Learning):
    """The model is unrolled from each step of a sequence over the K actions that were taken from there:

    L = mean( l₀ + 1/K Σₖ₌₁ᴷ lₖ ),    lₖ = −Σₐ πₐ log pₐ + value_coef · CE(z, v) + reward_coef · CE(r, g)

    with the improved policy π of the search in the step that is k later, CE the cross-entropy of distributions, see
    `Support`, and over the j ≤ n steps to where the window or the sequence ends

    zₜ = Σᵢ₌₀ʲ⁻¹ γⁱ rₜ₊ᵢ + γʲ ν_t+j

    where ν is what a target network says of a step, or in a game for two `search_value`. Behind a terminal state values
    and rewards are 0 whatever the actions, which are drawn uniformly, and there is no policy to learn; behind the last
    step of a sequence that goes on, nothing is learned. Each step of the model halves the gradient, that of what is
    said of its own state too.

    Source: Schrittwieser et al. 2020, eq. 1 and appendix G, and appendix H for the target network; Danihelka et al.
    2022, section 4, for the policy.
    """

    policy: MuZeroPolicy
    columns: tuple[str, ...] = ("obs", "actions", "policies", "values", "rewards", "policy_counts", "counts")
    requires: ClassVar[dict[str, str]] = {
        "fragments": "MuZero unrolls steps in the order of time: draw them from a SequenceReplayBuffer",
        **OF_ONE_EPISODE,
        **dict.fromkeys(("obs", "action", "reward", "terminated", "truncated"), ""),
        **dict.fromkeys(SEARCHED, "collect with a policy that searches"),
    }

    def prepare(self, batch: Batch) -> Batch:
        """Rows `[B, ...]`, one for each step that counts, with what its unroll is to come to: see `unrolls`."""
        if not is_fragment(batch):
            raise SchemaError(f"{batch!r} cannot be unrolled: {self.requires['fragments']}")
        policy, given, (length, width) = self.policy, self.policy.settings, batch.shape[:2]
        # A search goes on behind an end, with any action.
        beyond = (policy.actions * policy.stream.uniform((length + given.unroll_steps, width))).astype(np.int64)
        return unrolls(batch, self.bootstraps(batch), given.unroll_steps, given.n_step, policy.discount, beyond)

    def bootstraps(self, batch: Batch) -> Array:
        """ν of the steps of sequences `[T, B]`: see the class."""
        policy = self.policy
        if policy.settings.longest_game is not None:
            return np.asarray(batch["search_value"], np.float32)
        with torch.inference_mode():
            latent = policy.target.represent(policy.tensor(batch.select(["obs"]).flat()["obs"]))
            return policy.support.numbers(policy.target.predict(latent)[1]).reshape(batch.shape)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, model, steps = self.policy, self.policy.model, rows.actions.shape[1]
        latents, rewards = [model.represent(rows.obs)], []
        for step in range(steps):
            latent, reward = model.advance(latents[-1], rows.actions[:, step])
            latents.append(0.5 * latent + 0.5 * latent.detach())
            rewards.append(reward)
        logits, values = model.predict(torch.cat(latents))
        weight = torch.full((steps + 1, 1), 1 / steps, device=logits.device)
        weight[0] = 1.0
        shares, given = policy.support.shares, policy.settings
        policy_loss = unrolled_cross_entropy(logits, rows.policies, rows.policy_counts, weight)
        value_loss = unrolled_cross_entropy(values, shares(rows["values"]), rows.counts, weight)
        reward_loss = unrolled_cross_entropy(torch.cat(rewards), shares(rows.rewards), rows.counts[:, :-1], weight[1:])
        loss = policy_loss + given.value_coef * value_loss + given.reward_coef * reward_loss
        return loss, {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "reward_loss": reward_loss}


def unrolls(batch: Batch, found: Array, steps: int, n: int, discount: float, beyond: Array) -> Batch:
    """Each step of sequences `[T, B, ...]` as a row, with what the model is to say in the K = `steps` steps from there.

    `found [T, B]` are the values ν from which value targets bootstrap. Adds actions and rewards `[R, K]`, policies
    `[R, K + 1, A]`, values `[R, K + 1]`, and which of them count: see `MuZeroLearning`. Behind the last step of a
    sequence, actions are those of `beyond [T + K, B]`.
    """
    real = np.asarray(batch["mask"] != 0) if "mask" in batch else np.ones(batch.shape[:2], bool)
    length, width = real.shape
    last = real.shape[0] - 1 - real[::-1].argmax(0)
    each = np.arange(width)
    terminal = np.asarray(batch["terminated"] != 0) & real
    over = terminal[last, each]
    value = values_of(batch, found, real, last, over, n, discount)
    padded = length + steps
    actions = beyond.copy()
    actions[:length][real] = np.asarray(batch["action"])[real]

    def ahead(column: Array, of: int) -> Array:
        """The column `[R, of, ...]` at each step of the unrolls."""
        longer = np.zeros((padded + 1, *column.shape[1:]), column.dtype)
        longer[: len(column)] = column
        return np.stack([longer[step : step + length][real] for step in range(of)], 1)

    known = np.zeros((padded + 1, width), bool)
    known[:length] = real
    known |= (np.arange(padded + 1)[:, None] > last) & over
    counts = np.stack([known[step : step + length][real] for step in range(steps + 1)], 1)
    rows = batch.select([name for name in batch if name in ("obs", "policy_version")]).flat()
    made: Batch = rows[np.flatnonzero(real)].replace(
        actions=ahead(actions, steps),
        rewards=ahead(np.asarray(batch["reward"], np.float32) * real, steps),
        policies=ahead(np.asarray(batch["search_policy"]) * real[..., None], steps + 1),
        values=ahead(value * real, steps + 1),
        policy_counts=ahead(real, steps + 1).astype(np.float32),
        counts=counts.astype(np.float32),
    )
    return made


def values_of(batch: Batch, found: Array, real: Array, last: Array, over: Array, n: int, discount: float) -> Array:
    """The value targets zₜ `[T, B]`: see `MuZeroLearning`."""
    each = np.arange(len(last))
    reward = np.asarray(batch["reward"], np.float32)
    terminated = np.asarray(batch["terminated"] != 0) & real
    cut = ~real
    cut[np.maximum(last - 1, 0), each] |= ~over & (last > 0)  # from there it bootstraps from the value of the last step
    total, steps, after = n_step(reward, terminated, cut, gamma=discount, n=n)
    at = np.minimum(np.arange(len(real))[:, None] + steps, len(real) - 1)
    target: Array = total + after * np.take_along_axis(found, at, 0)
    target[last, each] = np.where(over, reward[last, each], found[last, each])
    return target

"""Dreamer: an actor and a critic that learn from what a world model imagines."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import attrs
import gymnasium
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.data.columns import ACTION_MASK
from flowrl.envs.pictures import picture_of
from flowrl.errors import ConfigError
from flowrl.networks.adam import Adam
from flowrl.networks.distributions import Distribution, MultiCategorical, Product, distribution, way_out
from flowrl.networks.in_numpy import to_numpy
from flowrl.networks.networks import Encoder, OneHotEncoder, encoder, follow
from flowrl.networks.recurrent import OF_ONE_EPISODE, RECURRENT_REQUIRES, recurrent_rows
from flowrl.networks.sampling import Array
from flowrl.networks.world_model import FlatPixels, TwoHot, WorldModel, balanced_kl, layers
from flowrl.policies.learning import AllReduce, Learning
from flowrl.policies.policy import Policy
from flowrl.returns import td_lambda
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import at_least_one, fraction, not_negative, scheduled, setting, sizes


class BoxActions(Encoder):
    """Stored actions of a Box as the environment gets them, flattened."""

    def __init__(self, chosen: Distribution) -> None:
        super().__init__()
        self.features, self._for_env = chosen.outputs, chosen.mode_for_env  # a method: its parameters are the actor's

    def forward(self, action: torch.Tensor) -> torch.Tensor:
        return self._for_env(action.cpu()).flatten(1).to(action.device)  # the bounds are on the CPU


def actions_seen(space: gymnasium.Space[Any], chosen: Distribution) -> Encoder:
    """From stored actions to what a model reads of them; discrete ones are stored as they count from 0."""
    if isinstance(space, spaces.Box):
        return BoxActions(chosen)
    if isinstance(chosen, Product):
        raise ConfigError(f"Dreamer's model reads no actions of several parts, as of {space}: {way_out(space)}")
    parts = chosen.sizes if isinstance(chosen, MultiCategorical) else [chosen.outputs]
    return OneHotEncoder(parts, [0] * len(parts))


class DreamerNetwork(nn.Module):
    """The world model, the actor and the critic; and the spread of imagined returns."""

    spread: torch.Tensor

    def __init__(self, world: WorldModel, chosen: Distribution, hidden: tuple[int, ...], bins: int) -> None:
        super().__init__()
        self.world, self.distribution = world, chosen
        self.actor = layers(world.width, hidden, chosen.outputs, zeros=True)
        self.critic = layers(world.width, hidden, bins, zeros=True)
        self.register_buffer("spread", torch.zeros(()))


class DreamerPolicy(Policy):
    """An actor that sees latent states of a world model, and learns in them.

    collect: draws from the actor; eval: its most probable action. Both draw the choices of the latent state from the
    posterior. The recurrent state is the memory of the world model.

    `world_mode` is how the world model learns, `learn_mode` how actor and critic do, from what `imagined` gives.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models".

    Raises:
        ConfigError: observations that need a network to become numbers, such as those in a dictionary, or that have an
            action mask; no distribution fits the actions; see `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(Policy.Settings):
        """The world model, and how it, the actor and the critic learn."""

        hidden: tuple[int, ...] = sizes(64, meaning="sizes of the hidden layers of each network")
        memory_size: int = at_least_one(64, "units of the memory of the world model")
        latent_groups: int = at_least_one(8, "choices of a latent state")
        latent_classes: int = at_least_one(8, "values of each of them")
        image_depth: int = at_least_one(
            16, "channels of the first convolution of images; each next one has twice as many"
        )
        bins: int = at_least_one(127, "bins of the distributions of rewards and values; an odd number")
        squash: bool = setting(False, "map continuous actions into their bounds by tanh instead of clipping")
        log_std: float = setting(0.0, "initial log standard deviation of continuous actions")
        gamma: float = fraction(0.99, "discount per step")
        lam: float = fraction(0.95, "λ of the returns of imagined steps")
        free_nats: float = not_negative(0.1, "KL divergence below which nothing is learned from it", resume="fork")
        obs_coef: float = not_negative(10.0, "weight of the loss of reconstructed observations", resume="fork")
        dynamics_coef: float = not_negative(1.0, "weight of the loss of the prior", resume="fork")
        representation_coef: float = not_negative(0.1, "weight of the KL loss of the posterior", resume="fork")
        spread_decay: float = fraction(0.99, "decay of the mean of the spread of imagined returns", resume="fork")
        entropy_coef: float = setting(3e-4, "weight of the entropy bonus", resume="fork")
        learning_rate: NumberOrSchedule = scheduled(2e-3, "learning rate of Adam")
        grad_clip: float | None = 100.0

    settings: Settings
    model: DreamerNetwork
    collect_mode: Any  #: `Dreaming`, which tells no values
    eval_mode: Any

    def _build(self) -> None:
        given = self.settings
        if isinstance(self.observation_space, spaces.Dict) and ACTION_MASK in self.observation_space.spaces:
            raise ConfigError("Dreamer imagines no action_mask: leave it out of the observations, or take muzero")
        space = self.observation_space
        if picture_of(space) is not None and given.network is None:
            encoding: Encoder = FlatPixels(space)
        else:
            encoding = encoder(space, normalize=self.normalize_obs, network=given.network)
        if list(encoding.parameters()):
            raise ConfigError(
                f"Dreamer learns to reconstruct the numbers of observations, but a network makes those of "
                f"{space}: images in a dictionary and network=... are not supported"
            )
        chosen = distribution(self.action_space, squash=given.squash, log_std=given.log_std)
        self.two_hot = TwoHot(given.bins, self.device)
        world = WorldModel(
            encoding,
            actions_seen(self.action_space, chosen),
            given.memory_size,
            given.hidden,
            given.latent_groups,
            given.latent_classes,
            given.bins,
            given.image_depth,
        )
        self.model = DreamerNetwork(world, chosen, given.hidden, given.bins).to(self.device)
        self.target = copy.deepcopy(self.model.critic).requires_grad_(False)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate())
        self.collect_mode, self.eval_mode = Dreaming(self, explores=True), Dreaming(self, explores=False)
        self.world_mode, self.learn_mode = WorldLearning(self), DreamerLearning(self)

    def modules(self) -> dict[str, nn.Module]:
        """See `Policy.modules`."""
        return {"model": self.model, "target": self.target}

    def update_target(self, tau: float = 1.0) -> None:
        """target ← tau · critic + (1 − tau) · target (Q2)."""
        follow(self.target, self.model.critic, tau)

    def from_env(self, action: Array) -> Array:
        """See `Policy.from_env`."""
        return self.model.distribution.from_env(action)

    def for_env(self, action: Array) -> Array:
        """See `Policy.for_env`."""
        return self.model.distribution.for_env(action)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Uniform numbers in [0, 1) of the policy's stream (D6)."""
        with self.stream.swapped_in():
            return torch.rand(shape).to(self.device)

    def imagined(self, latent: torch.Tensor, horizon: int) -> Batch:
        """`horizon` steps from each latent state `[B, width]`, and one more for its value: columns `[horizon + 1, B]`.

        latent, action, reward, and discount, γ times the probability that the episode goes on. The actor acts, the
        prior says what would be seen.
        """
        model, world, chosen = self.model, self.model.world, self.model.distribution
        steps: dict[str, list[torch.Tensor]] = {"latent": [], "action": [], "memory": []}
        with torch.no_grad(), self.mixed.forward():
            for each in self.uniform(horizon + 1, len(latent), world.groups + chosen.draws):
                drawn, _ = chosen.sample(model.actor(latent).float(), to_numpy(each[:, world.groups :]))
                action = torch.from_numpy(drawn).to(self.device)
                memory = world.advance(latent, action)
                for column, value in zip(steps.values(), (latent, action, memory)):
                    column.append(value)
                latent = world.latent(memory, world.prior_of(memory), each[:, : world.groups])
            found = {name: torch.stack(column) for name, column in steps.items()}
            memory = found.pop("memory")
            goes_on = world.goes_on(memory).float().squeeze(-1).sigmoid()
            reward = self.two_hot.numbers(world.reward(memory))
        return Batch(found).replace(reward=reward, discount=self.settings.gamma * goes_on)


@attrs.frozen
class Dreaming:
    """Acts in the latent state: columns action, next_state; env_action if it differs."""

    policy: DreamerPolicy
    explores: bool

    @property
    def draws(self) -> int:
        model = self.policy.model
        return model.world.groups + (model.distribution.draws if self.explores else 0)

    def initial_state(self) -> Array:
        """See `RecurrentMode`."""
        return self.policy.model.world.initial_memory()

    def act(self, obs: Any, noise: Array, env_steps: int, state: Array) -> dict[str, Any]:
        policy, model = self.policy, self.policy.acting()
        world, chosen = model.world, model.distribution
        uniform = torch.from_numpy(noise[:, : world.groups]).float().to(policy.device)
        with torch.inference_mode():
            memory = policy.tensor(state)
            looked = world.look(world.seen(policy.tensor(obs)))
            latent = world.latent(memory, world.posterior_of(memory, looked), uniform)
            given = model.actor(latent)
            action = chosen.sample(given, noise[:, world.groups :])[0] if self.explores else chosen.mode(given)
            after = world.advance(latent, torch.from_numpy(action).to(policy.device))
        columns = {"action": action, "next_state": to_numpy(after)}
        if (changed := chosen.for_env(action)) is not action:
            columns["env_action"] = changed
        return columns


class WorldLearning(Learning):
    """The loss of the world model over sequences that start from an empty memory, a mean over steps that count:

    L = ½ obs_coef · |decoder(s) − x|² + CE(reward) + CE(1 − terminated) + dynamics_coef · KL(sg(q) | p) +
    representation_coef · KL(q | sg(p))

    see `balanced_kl`. The scalars hold `latent [B, width]` besides, the latent states of the steps that count.

    Source: Hafner et al. 2025, section "World model learning".
    """

    policy: DreamerPolicy
    recurrent = True
    columns = ("obs", "action", "reward", "terminated", "mask")
    requires: ClassVar[dict[str, str]] = {
        **RECURRENT_REQUIRES,
        **OF_ONE_EPISODE,
        **dict.fromkeys(("obs", "action", "reward", "terminated", "truncated"), ""),
    }

    def prepare(self, batch: Batch) -> Batch:
        """See `recurrent_rows`."""
        return recurrent_rows(batch)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, world, given, counts = self.policy, self.policy.model.world, self.policy.settings, rows.mask
        steps, width = counts.shape
        flat = rows.obs.flat() if isinstance(rows.obs, Batch) else rows.obs.flatten(0, 1)
        seen = world.seen(flat)
        looked, seen = (each.unflatten(0, (steps, width)) for each in (world.look(seen), seen))
        empty = seen.new_zeros(width, world.units)  # memories in the buffer are of older weights
        latents, q, after = world.unroll(looked, rows.action, empty, policy.uniform(steps, width, world.groups))
        latent, after, q = latents[counts], after[counts], q[counts]
        prior, posterior = balanced_kl(q, world.prior_of(latent[:, : world.units]), given.free_nats)
        parts = {
            "obs_loss": 0.5 * given.obs_coef * (world.decoder(latent).float() - seen[counts]).square().sum(-1),
            "reward_loss": policy.two_hot.cross_entropy(world.reward(after), rows.reward[counts].float()),
            "end_loss": nn.functional.binary_cross_entropy_with_logits(
                world.goes_on(after).float().squeeze(-1), 1 - rows.terminated[counts].float(), reduction="none"
            ),
            "dynamics_loss": given.dynamics_coef * prior,
            "representation_loss": given.representation_coef * posterior,
        }
        means = {name: part.mean() for name, part in parts.items()}
        loss = torch.stack(list(means.values())).sum()
        return loss, {"model_loss": loss, **means, "latent": latent}


class DreamerLearning(Learning):
    """The losses of actor and critic over imagined steps, `[H, B]`; λ-returns bootstrap from the target critic V':

    Gₜ = rₜ + dₜ ((1 − λ) V'(sₜ₊₁) + λ Gₜ₊₁)    G_H = V'(s_H)    wₜ = Πᵢ₌₀ᵗ⁻¹ dᵢ
    L = mean(wₜ CE(V(sₜ), Gₜ)) − mean(wₜ ((Gₜ − V'(sₜ)) / max(1, S) · log π(aₜ) + entropy_coef · H(π)))

    with the discounts d of imagined steps. S is the running mean of the distance of the 5th and the 95th percentile of
    G: rewards that are dense are scaled down, rare ones are not scaled up.

    Source: Hafner et al. 2025, sections "Critic learning" and "Actor learning".
    """

    policy: DreamerPolicy
    columns = ("latent", "action", "target", "value", "weight")
    requires: ClassVar[dict[str, str]] = {
        "imagined": "the actor learns from imagined steps: put ImagineAhead before it"
    }
    beyond_gradients = "the world model learns in steps of its own"

    def prepare(self, batch: Batch) -> Batch:
        """Imagined steps `[H + 1, B]` as H steps with target, value and weight."""
        batch = batch.to_torch(self.policy.device)
        with torch.no_grad():
            value = self.policy.two_hot.numbers(self.policy.target(batch["latent"]))
        reward, discount = batch["reward"][:-1], batch["discount"][:-1]
        no = torch.zeros_like(reward, dtype=torch.bool)
        target = td_lambda(reward, value[1:], no, no, gamma=discount, lam=self.policy.settings.lam)
        weight = torch.cat([torch.ones_like(discount[:1]), discount[:-1]]).cumprod(0)
        steps: Batch = batch[:-1].replace(target=target, value=value[:-1], weight=weight)
        return steps

    def over_batch(self, rows: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        """Move the spread of returns; the first one counts in full."""
        model, decay = self.policy.model, self.policy.settings.spread_decay
        low, high = torch.quantile(rows.target, torch.tensor([0.05, 0.95], device=rows.target.device))
        model.spread.copy_(
            torch.where(model.spread == 0, high - low, decay * model.spread + (1 - decay) * (high - low))
        )
        return {"return_spread": model.spread.clone()}

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, model = self.policy, self.policy.model
        latent, weight = rows["latent"].flatten(0, 1), rows["weight"].flatten()
        logp, entropy = model.distribution.evaluate(model.actor(latent).float(), rows.action.flatten(0, 1))
        advantage = ((rows.target - rows.value) / model.spread.clamp(min=1)).flatten()
        gain = advantage * logp + policy.settings.entropy_coef * entropy
        actor_loss = -(weight * gain).mean()
        critic_loss = (weight * policy.two_hot.cross_entropy(model.critic(latent), rows.target.flatten())).mean()
        loss = actor_loss + critic_loss
        said = {"actor_loss": actor_loss, "critic_loss": critic_loss, "entropy": entropy.mean()}
        return loss, {"loss": loss, **said, "imagined_return": rows.target[0].mean()}

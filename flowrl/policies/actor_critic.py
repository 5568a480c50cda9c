"""The base of actor-critic algorithms: acting with log-probabilities and values, advantages, the optimizer."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import attrs
import gymnasium
import torch

from flowrl.data import Batch
from flowrl.data.advantages import NEEDED, values_arrived_in, with_advantages, with_v_trace
from flowrl.data.columns import ACTION_MASK, STATE
from flowrl.data.steps import is_fragment, real_rows
from flowrl.errors import ConfigError, SchemaError
from flowrl.networks.adam import Adam
from flowrl.networks.distributions import Acting, Distribution, distribution
from flowrl.networks.in_numpy import to_numpy
from flowrl.networks.networks import ActorCritic, Encoder, part_encoder, without
from flowrl.networks.sampling import Array
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy
from flowrl.schedules import NumberOrSchedule, value_at
from flowrl.settings import Settings, fraction, scheduled, setting, sizes, span


@attrs.frozen(kw_only=True, slots=False)
class EntropySettings(Settings):
    """An entropy bonus that follows a schedule."""

    entropy_coef_end: float | None = setting(
        None, "weight of the entropy bonus at the end; None: constant", resume="fork"
    )


class ActorCriticPolicy(Policy):
    """A policy network and a value network; a subclass defines how they learn.

    Actions may be discrete, multi-discrete or continuous; see `distribution`.
    collect: draws from the policy; eval: its most probable action.

    A critic may read entries of the observations that the actor does not: `privileged` information of a simulator, or
    the state of a whole game. Acting by the eval mode, and an exported policy, do not need them.

    Source: Pinto et al. 2018, "Asymmetric Actor Critic for Image-Based Robot Learning", section IV.

    Raises:
        ConfigError: no distribution fits the actions, or no network the observations; entries that the observations
            lack; see `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(Policy.Settings):
        """The networks, and how they learn; `gamma` and `lam` apply unless `GAE` has computed the advantages."""

        hidden: tuple[int, ...] = sizes(64, 64, meaning="sizes of the hidden layers of the actor and of the critic")
        squash: bool = setting(False, "map continuous actions into their bounds by tanh instead of clipping")
        log_std: float = setting(0.0, "initial log standard deviation of continuous actions")
        gamma: float = fraction(0.99, "discount per step")
        lam: float = fraction(0.95, "λ of generalized advantage estimation")
        value_coef: float = setting(0.5, "weight of the value loss", resume="fork")
        entropy_coef: NumberOrSchedule = scheduled(0.0, "weight of the entropy bonus at the start")
        learning_rate: NumberOrSchedule = scheduled(3e-4, "learning rate of Adam at the start")
        learning_rate_end: float | None = setting(
            None, "learning rate at the end of the schedule; None: constant", resume="fork"
        )
        schedule_steps: int | None = span("env steps over which the settings with an _end change")
        grad_clip: float | None = 0.5
        privileged: tuple[str, ...] = setting((), "entries of the observations that the critic alone reads")
        critic_obs: tuple[str, ...] | None = setting(None, "entries that the critic reads; None: all")

    settings: Settings
    model: ActorCritic
    learn_mode: ActorCriticLearning

    def _build(self) -> None:
        self.entropy_coef = self.settings.schedule_of("entropy_coef")
        self.model = self._network().to(self.device)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate(), eps=1e-5)
        self.collect_mode, self.eval_mode = Drawing(self), MostProbable(self)
        self.learn_mode = self._learning()

    def _network(self) -> ActorCritic:
        """The model."""
        given = self.settings
        judged = None if given.critic_obs is None and not given.privileged else self._encoder(self._critic_space())
        return ActorCritic(self._encoder(self.actor_space), self._distribution(), given.hidden, judged)

    def _encoder(self, space: gymnasium.Space[Any]) -> Encoder:
        network = self.settings.network
        return part_encoder(space, self.observation_space, normalize=self.normalize_obs, network=network)

    @property
    def actor_space(self) -> gymnasium.Space[Any]:
        """See `Policy.actor_space`: without what is `privileged`."""
        names = self.settings.privileged
        return without(self._parts("privileged", names), *names) if names else self.observation_space

    def _critic_space(self) -> gymnasium.Space[Any]:
        names = self.settings.critic_obs
        if names is None:
            return self.observation_space
        parts = self._parts("critic_obs", names)
        return without(parts, *(name for name in parts if name not in names))

    def _parts(self, setting: str, names: tuple[str, ...]) -> gymnasium.spaces.Dict:
        """The observations, which have these entries and others. Raises: ConfigError if they do not."""
        space = self.observation_space
        parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
        readable = [name for name in parts if name != ACTION_MASK]
        for name in names:
            if name not in readable:
                way_out = f"; the wrapper {GIVE_STATE}" if name == STATE else ""
                raise ConfigError(f"{setting}={list(names)}: the observations have no entry {name!r}: {space}{way_out}")
        if setting == "privileged" and set(readable) <= set(names):
            raise ConfigError(f"{setting}={list(names)} leaves the actor nothing to act on: {space}")
        if not names:
            raise ConfigError(f"{setting}=[]: the critic needs something to read, of {', '.join(readable)}")
        assert isinstance(space, gymnasium.spaces.Dict)
        return space

    def _distribution(self) -> Distribution:
        return distribution(self.action_space, squash=self.settings.squash, log_std=self.settings.log_std)

    @property
    def distribution(self) -> Distribution:
        """The distribution of actions."""
        return self.model.distribution

    def from_env(self, action: Array) -> Array:
        """See `Policy.from_env`."""
        return self.distribution.from_env(action)

    def for_env(self, action: Array) -> Array:
        """See `Policy.for_env`."""
        return self.distribution.for_env(action)

    @abc.abstractmethod
    def _learning(self) -> ActorCriticLearning:
        """The learn mode."""


@attrs.frozen
class Drawing:
    """The collect mode: columns action, logp (of the drawn action, G6), value; env_action if it differs."""

    policy: ActorCriticPolicy

    @property
    def draws(self) -> int:
        return self.policy.model.distribution.draws

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        model = self.policy.acting()
        with self.policy.inference():
            given, value = model(self.policy.observed(obs))
            return drawn_columns(model.distribution, given, value, noise)

    def value(self, obs: Any) -> Array:
        """Values `[N]` of observations `[N, ...]` at the ends of episodes and fragments."""
        with self.policy.inference():
            return to_numpy(self.policy.acting().value(self.policy.observed(obs)))


def drawn_columns(distribution: Acting, given: Any, value: Any, noise: Array) -> dict[str, Array]:
    """The columns of actions `[N, ...]` drawn from the outputs of a network."""
    action, logp = distribution.sample(given, noise)
    columns = {"action": action, "logp": logp, "value": to_numpy(value)}
    if (changed := distribution.for_env(action)) is not action:
        columns["env_action"] = changed
    return columns


@attrs.frozen
class MostProbable:
    """The eval mode: the most probable action. Draws nothing."""

    policy: ActorCriticPolicy
    draws = 0

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        model = self.policy.acting()
        with self.policy.inference():
            action = model.distribution.mode(model.outputs(self.policy.observed(obs)))
        return {"action": action, "env_action": model.distribution.for_env(action)}

    def in_torch(self, model: Any, obs: Any) -> torch.Tensor:
        """The same action in the environment's scale, for `Policy.export`."""
        action: torch.Tensor = model.distribution.mode_for_env(model.outputs(obs))
        return action

    def value(self, obs: Any) -> Array:
        """The same as when collecting."""
        return Drawing(self.policy).value(obs)


#: What adds the state to a game's observations.
GIVE_STATE = "GlobalState adds that of a game that says its state; where none is said, the plan ippo needs none"

#: Why a loss needs fragments unless advantages are estimated already.
OVER_TIME = "advantages are estimated along fragments: put GAE before it, or leave it out"


class ActorCriticLearning(Learning):
    """A loss of three parts: policy + value_coef · value − entropy_coef · entropy."""

    policy: ActorCriticPolicy

    #: Columns that advantages are computed from.
    needed: ClassVar[tuple[str, ...]] = NEEDED

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__(policy)
        self.schedule(0)

    def schedule(self, env_steps: int) -> None:
        super().schedule(env_steps)
        self.entropy_coef = value_at(self.policy.entropy_coef, env_steps)

    def prepare(self, batch: Batch) -> Batch:
        """Rows `[B, ...]` with advantage and target, `estimated` from fragments `[T, N, ...]` unless an adder did.

        Drops padded steps (`mask` 0).
        """
        return real_rows(self.advantaged(batch))

    def advantaged(self, batch: Batch) -> Batch:
        """The batch with advantage and target, `estimated` from fragments `[T, N, ...]` unless an adder did."""
        if "advantage" not in batch:
            missing = [name for name in self.needed if name not in batch]
            if missing or not is_fragment(batch):
                what = f"the column {missing[0]!r}" if missing else "fragments [T, N, ...]"
                raise SchemaError(f"advantages need {what}: put GAE(...) before the operator that made {batch!r}")
            batch = self.estimated(batch)
        return batch

    def estimated(self, batch: Batch) -> Batch:
        """A fragment `[T, N, ...]` with advantage and target; here those of `GAE` (G2)."""
        return with_advantages(batch, self.policy.settings.gamma, self.policy.settings.lam)

    def corrected(self, batch: Batch, target_logp: Array | None = None, **settings: float) -> Batch:
        """A fragment `[T, N, ...]` of older weights with the advantage and target of `VTrace` (V1, V2).

        Args:
            target_logp: `[T, N]`, of the policy to evaluate; None: of the one that learns.
            settings: gamma and the other settings of `flowrl.returns.v_trace`.
        """
        logp, value, next_value = self.evaluate(batch)
        own = batch.replace(value=value, next_value=next_value)
        return with_v_trace(own, logp if target_logp is None else target_logp, **settings)

    def evaluate(self, batch: Batch) -> tuple[Array, Array, Array]:
        """Evaluate a fragment `[T, N, ...]` with the current weights, without a gradient.

        Returns: log-probabilities of its actions, and values of its `obs` and its `next_obs`, each `[T, N]`.
        """
        batch = batch.to_numpy()
        logp, value = self.judged(batch, self.policy.model)
        return logp, value, values_arrived_in(batch, value, self.policy.collect_mode.value)

    def judged(self, batch: Batch, model: ActorCritic) -> tuple[Array, Array]:
        """Log-probabilities of a fragment's actions, and values of its observations, `[T, N]`, by a model."""
        rows = batch.select(["obs", "action"]).flat().to_torch(self.policy.device)
        with torch.inference_mode():
            given, value = model(rows.obs)
            logp, _ = model.distribution.evaluate(given, rows.action)
        shape = batch["reward"].shape
        return logp.cpu().numpy().reshape(shape), value.cpu().numpy().reshape(shape)

    def logp_of(self, rows: Batch) -> Array:
        """Log-probabilities `[B]` of the actions in rows `[B, ...]` under the current weights."""
        model, used = self.policy.model, rows.select(["obs", "action"]).to_torch(self.policy.device)
        with torch.inference_mode():
            logp, _ = model.distribution.evaluate(model(used.obs)[0], used.action)
        return logp.cpu().numpy()

    def describe(self, rows: Batch) -> dict[str, torch.Tensor]:
        """explained_variance: 1 − Var(target − value) / Var(target), with the values at acting time; 1 is perfect."""
        spread = rows.target.var(correction=0).clamp_min(1e-12)
        return {"explained_variance": 1 - (rows.target - rows.value).var(correction=0) / spread}

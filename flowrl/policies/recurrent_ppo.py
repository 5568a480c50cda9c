"""Recurrent PPO: the same loss, over sequences that start from the actor's recurrent states."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.networks.distributions import Distribution
from flowrl.networks.in_numpy import to_numpy
from flowrl.networks.networks import ActorCritic, encoder
from flowrl.networks.recurrent import (
    RECURRENT_REQUIRES,
    Cell,
    RecurrentEncoder,
    RecurrentNetwork,
    memory,
    recurrent_rows,
)
from flowrl.networks.sampling import Array
from flowrl.policies.actor_critic import drawn_columns
from flowrl.policies.ppo import PPOLearning, PPOPolicy, standardized


class RecurrentPPOPolicy(PPOPolicy):
    """PPO of a recurrent network, whose memory actor and critic share; see `PPOPolicy`.

    Args:
        units: Size of the memory, between the encoder and the hidden layers.
        cell: "lstm", "gru" or "gtrxl", which looks `memory_steps` back in each of `memory_layers`.

    Raises:
        ConfigError: `privileged` or `critic_obs`, which a shared memory rules out; see `PPOPolicy` too.
    """

    model: Any  #: a `RecurrentNetwork` of an `ActorCritic`

    def __init__(
        self,
        *spaces: Any,
        units: int = 64,
        cell: Cell = "lstm",
        memory_steps: int = 64,
        memory_layers: int = 1,
        **settings: Any,
    ) -> None:
        self.units, self.cell, self.memory_steps, self.memory_layers = units, cell, memory_steps, memory_layers
        super().__init__(*spaces, **settings)

    def _network(self) -> Any:
        for name in ("privileged", "critic_obs"):
            if value := self.settings.get(name):
                raise ConfigError(
                    f"{name}={list(value)}: a recurrent policy has one memory of what actor and critic both read: "
                    "leave it out, or take a policy without memory"
                )
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=self.settings.network)
        chosen = self._distribution()
        remembering = memory(encoding.features, self.units, self.cell, self.memory_steps, self.memory_layers)
        return RecurrentNetwork(
            encoding, remembering, ActorCritic(RecurrentEncoder(self.units), chosen, self.settings.hidden)
        )

    def _build(self) -> None:
        super()._build()
        self.collect_mode, self.eval_mode = RecurrentDrawing(self), RecurrentMostProbable(self)

    @property
    def distribution(self) -> Distribution:
        """The distribution of actions."""
        chosen: Distribution = self.model.network.distribution
        return chosen

    def _learning(self) -> RecurrentPPOLearning:
        return RecurrentPPOLearning(self)


@attrs.frozen
class RecurrentActing:
    """Base of both modes."""

    policy: RecurrentPPOPolicy

    def initial_state(self) -> Array:
        """See `RecurrentMode`."""
        state: Array = self.policy.model.initial_state()
        return state

    def value(self, obs: Any, state: Array) -> Array:
        """Values `[N]` of observations `[N, ...]` in these states."""
        with torch.inference_mode():
            (_, value), _ = self._step(obs, state)
        return to_numpy(value)

    def _step(self, obs: Any, state: Array) -> Any:
        return self.policy.acting().step(self.policy.tensor(obs), self.policy.tensor(state))


@attrs.frozen
class RecurrentDrawing(RecurrentActing):
    """The collect mode: the columns of `Drawing`, and next_state."""

    @property
    def draws(self) -> int:
        return int(self.policy.model.network.distribution.draws)

    def act(self, obs: Any, noise: Array, env_steps: int, state: Array) -> dict[str, Any]:
        with torch.inference_mode():
            (given, value), after = self._step(obs, state)
            columns = drawn_columns(self.policy.model.network.distribution, given, value, noise)
        return {**columns, "next_state": to_numpy(after)}


@attrs.frozen
class RecurrentMostProbable(RecurrentActing):
    """The eval mode: the most probable action, and next_state. Draws nothing."""

    draws = 0

    def act(self, obs: Any, noise: Array, env_steps: int, state: Array) -> dict[str, Any]:
        chosen = self.policy.model.network.distribution
        with torch.inference_mode():
            (given, _), after = self._step(obs, state)
            action = chosen.mode(given)
        return {"action": action, "env_action": chosen.for_env(action), "next_state": to_numpy(after)}


class RecurrentPPOLearning(PPOLearning):
    """The loss of `PPOLearning` over sequences `[T, B, ...]`, a mean over the steps that count (N6).

    Sequences unroll from `state[0]`, and the state resets where an episode begins (T8). Minibatches are whole
    sequences. Advantages are estimated along fragments, and standardized over the steps that count.
    """

    policy: RecurrentPPOPolicy
    recurrent = True
    requires: ClassVar[dict[str, str]] = {
        **PPOLearning.requires,
        **RECURRENT_REQUIRES,
        "terminated": "",
        "truncated": "",
    }
    columns = (*PPOLearning.columns, "state", "begins", "mask")

    def prepare(self, batch: Batch) -> Batch:
        """Sequences with advantage and target, `estimated` unless an adder did; see `recurrent_rows`."""
        return recurrent_rows(self.advantaged(batch))

    def over_minibatch(self, rows: Batch) -> Batch:
        """See `PPOLearning.over_minibatch`; padding is left out."""
        if not self.policy.settings.standardize:
            return rows
        advantage = torch.zeros_like(rows.advantage)
        advantage[rows.mask] = standardized(rows.advantage[rows.mask])
        return rows.replace(advantage=advantage)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        (given, value), _ = self.policy.model(rows.obs, rows.state[0], rows.begins)
        counts = rows.mask.flatten()
        return self.objective(self._counted(rows), self.policy.model.network.distribution, given[counts], value[counts])

    def describe(self, rows: Batch) -> dict[str, torch.Tensor]:
        """See `ActorCriticLearning.describe`; over the steps that count."""
        return super().describe(self._counted(rows))

    def evaluate(self, batch: Batch) -> tuple[Array, Array, Array]:
        """Not supported: the current weights would have had other recurrent states."""
        raise SchemaError("V-trace does not support recurrent policies: leave out VTrace, or take recurrent=None")

    def _counted(self, rows: Batch) -> Batch:
        """The steps that count, as rows `[B, ...]` of the columns that the loss reads, without observations."""
        names = [name for name in PPOLearning.columns if name != "obs"]
        return rows.select(names).map(lambda column: column[rows.mask])

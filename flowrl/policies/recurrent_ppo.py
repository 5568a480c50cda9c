"""PPO with a memory: the same loss, over sequences that begin with the states that the actor had."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import torch

from flowrl.data import Batch
from flowrl.errors import SchemaError
from flowrl.policies.actor_critic import drawn_columns
from flowrl.policies.distributions import Distribution
from flowrl.policies.in_numpy import host
from flowrl.policies.networks import ActorCritic, encoder
from flowrl.policies.ppo import PPOLearning, PPOPolicy, standardized
from flowrl.policies.recurrent import IN_SEQUENCES, Cell, Memory, RecurrentEncoder, RecurrentNetwork, sequenced
from flowrl.policies.sampling import Array


class RecurrentPPOPolicy(PPOPolicy):
    """PPO of a network with a memory, which the actor and the critic share; see `PPOPolicy`.

    Args:
        units: Size of the memory, which comes after the encoder and before the hidden layers.
        cell: "lstm" or "gru".
    """

    model: Any  #: a `RecurrentNetwork` of an `ActorCritic`

    def __init__(self, *spaces: Any, units: int = 64, cell: Cell = "lstm", **settings: Any) -> None:
        self.units, self.cell = units, cell
        super().__init__(*spaces, **settings)

    def _network(self) -> Any:
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=self.settings.network)
        chosen = self._distribution()
        memory = Memory(encoding.features, self.units, self.cell)
        return RecurrentNetwork(
            encoding, memory, ActorCritic(RecurrentEncoder(self.units), chosen, self.settings.hidden)
        )

    def _build(self) -> None:
        super()._build()
        self.collect_mode, self.eval_mode = RecurrentDrawing(self), RecurrentMostProbable(self)

    @property
    def distribution(self) -> Distribution:
        """What actions are drawn from."""
        chosen: Distribution = self.model.network.distribution
        return chosen

    def _learning(self) -> RecurrentPPOLearning:
        return RecurrentPPOLearning(self)


@attrs.frozen
class RecurrentActing:
    """What both modes share."""

    policy: RecurrentPPOPolicy

    def initial_state(self) -> Array:
        """See `RecurrentMode`."""
        state: Array = self.policy.model.initial_state()
        return state

    def value(self, obs: Any, state: Array) -> Array:
        """Values `[N]` of observations `[N, ...]` met in these states."""
        with torch.inference_mode():
            (_, value), _ = self._step(obs, state)
        return host(value)

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
        return {**columns, "next_state": host(after)}


@attrs.frozen
class RecurrentMostProbable(RecurrentActing):
    """The eval mode: the most probable action, and next_state. Draws nothing."""

    draws = 0

    def act(self, obs: Any, noise: Array, env_steps: int, state: Array) -> dict[str, Any]:
        chosen = self.policy.model.network.distribution
        with torch.inference_mode():
            (given, _), after = self._step(obs, state)
            action = chosen.mode(given)
        return {"action": action, "env_action": chosen.for_env(action), "next_state": host(after)}


class RecurrentPPOLearning(PPOLearning):
    """The loss of `PPOLearning`, a mean over the steps that count (N6), of sequences `[T, B, ...]`.

    They are unrolled from `state[0]`, and begin anew where an episode does (T8). Minibatches are whole sequences.
    Advantages are estimated along fragments, as without a memory, and standardised over the steps that count.
    """

    policy: RecurrentPPOPolicy
    in_sequences = True
    requires: ClassVar[dict[str, str]] = {**PPOLearning.requires, **IN_SEQUENCES, "terminated": "", "truncated": ""}
    columns = (*PPOLearning.columns, "state", "begins", "mask")

    def prepare(self, batch: Batch) -> Batch:
        """Sequences with advantage and target, `estimated` where no adder did that; see `sequenced`."""
        return sequenced(self.advantaged(batch))

    def over_minibatch(self, rows: Batch) -> Batch:
        """See `PPOLearning.over_minibatch`; padding has no part in it."""
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
        """See `ActorCriticLearning.describe`; of the steps that count."""
        return super().describe(self._counted(rows))

    def evaluate(self, batch: Batch) -> tuple[Array, Array, Array]:
        """Refused: the present weights would have had other states."""
        raise SchemaError("V-trace is of policies without a memory: leave VTrace out, or the memory")

    def _counted(self, rows: Batch) -> Batch:
        """The steps that count as rows `[B, ...]`, of the columns that the loss reads beside observations."""
        names = [name for name in PPOLearning.columns if name != "obs"]
        return rows.select(names).map(lambda column: column[rows.mask])

"""Networks with a memory after the encoder, over sequences or one step at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import attrs
import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.columns import ACTION_MASK, episode_breaks
from flowrl.data.steps import is_fragment
from flowrl.errors import ConfigError, SchemaError
from flowrl.networks.gated_transformer import GatedTransformer
from flowrl.networks.masks import action_mask
from flowrl.networks.networks import Encoder
from flowrl.networks.sampling import Array
from flowrl.settings import Settings, positive, setting

Cell = Literal["lstm", "gru", "gtrxl"]

#: Of a transformer.
HEADS = 4

#: The needs of a recurrent learner, with the remedy for each.
RECURRENT_REQUIRES = {
    "state": "a recurrent policy learns from its recorded states: collect with a recurrent policy",
    "fragments": "a recurrent policy unrolls steps in the order of time: keep them in fragments, or make sequences "
    "with Unroll, or draw them from a SequenceReplayBuffer",
}
#: The need of a learner that does not look for the beginnings of episodes.
OF_ONE_EPISODE = {"sequences": "each of one episode: draw them from a SequenceReplayBuffer, or make them with Unroll"}


@attrs.frozen(kw_only=True, slots=False)
class MemorySettings(Settings):
    """The memory."""

    recurrent: Cell | None = setting("lstm", "memory before the hidden layers: lstm, gru, or gtrxl, a transformer")
    memory_size: int = positive(64, "units of the memory; of gtrxl a multiple of 4")
    memory_steps: int = positive(64, "gtrxl: steps that a layer looks back")
    memory_layers: int = positive(1, "gtrxl: number of layers", most=1_000)

    @property
    def cell(self) -> Cell | None:
        """What a policy takes."""
        return self.recurrent

    @property
    def units(self) -> int:
        """What a policy takes."""
        return self.memory_size


class Memory(nn.Module):
    """A recurrent layer: features `[T, B, features]` in, `[T, B, units]` out, with a state `[B, width]`.

    An episode begins with a state of zeros (T8). The state of an LSTM is its output and its cell side by side.
    """

    def __init__(self, features: int, units: int, cell: Cell = "lstm") -> None:
        super().__init__()
        self.units, self.cell = units, cell
        self.width = 2 * units if cell == "lstm" else units
        self.layer: Any = nn.LSTM(features, units) if cell == "lstm" else nn.GRU(features, units)

    def forward(
        self, features: torch.Tensor, state: torch.Tensor, begins: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs, and the state after the last step.

        Args:
            features: `[T, B, features]`.
            state: `[B, width]`, before the first step.
            begins: bool `[T, B]`, True at the first steps of episodes; None: there are none.
        """
        assert state.shape == (features.shape[1], self.width)
        if begins is None:
            return self._run(features, state)
        cuts = [0, *(begins[1:].any(1).nonzero().flatten() + 1).tolist(), len(features)]
        outputs = []
        for first, end in pairwise(cuts):
            state = state.masked_fill(begins[first, :, None], 0.0)
            output, state = self._run(features[first:end], state)
            outputs.append(output)
        return torch.cat(outputs), state

    def _run(self, features: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [part[None].contiguous() for part in torch.split(state, self.units, 1)]
        output, after = self.layer(features, tuple(parts) if self.cell == "lstm" else parts[0])
        return output, (torch.cat(after, 2) if self.cell == "lstm" else after)[0]


def memory(features: int, units: int, cell: Cell, steps: int, layers: int) -> Memory | GatedTransformer:
    """The memory of this kind. Raises: ConfigError: units that do not go into the heads of a transformer."""
    if cell != "gtrxl":
        return Memory(features, units, cell)
    if units % HEADS:
        raise ConfigError(f"memory_size={units}: expected a multiple of {HEADS}, the heads of recurrent='gtrxl'")
    return GatedTransformer(features, units, steps, layers, HEADS)


class RecurrentEncoder(Encoder):
    """Passes the outputs of a memory, `[rows, units]`, through; an action mask may accompany them."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.features = units

    def forward(self, given: Any) -> torch.Tensor:
        remembered: torch.Tensor = given["remembered"] if isinstance(given, dict) else given
        return remembered


class RecurrentNetwork(nn.Module):
    """An encoder, a memory, and a network whose encoder is a `RecurrentEncoder`."""

    def __init__(self, encoder: Encoder, memory: Memory | GatedTransformer, network: nn.Module) -> None:
        super().__init__()
        self.encoder, self.memory, self.network = encoder, memory, network

    def forward(self, obs: Any, state: torch.Tensor, begins: torch.Tensor | None = None) -> tuple[Any, torch.Tensor]:
        """Outputs `[T * B, ...]` for observations `[T, B, ...]`, and the state after them.

        For the arguments see `Memory.forward`.
        """
        steps, envs = obs.shape[:2]
        rows = obs.flat() if isinstance(obs, Batch) else obs.flatten(0, 1)
        outputs, after = self.memory(self.encoder(rows).reshape(steps, envs, -1), state, begins)
        remembered: Any = outputs.flatten(0, 1)
        if action_mask(rows) is not None:
            remembered = {"remembered": remembered, ACTION_MASK: rows[ACTION_MASK]}
        return self.network(remembered), after

    def step(self, obs: Any, state: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Outputs for observations `[N, ...]` in states `[N, width]`, and the states after them."""
        return self(obs[None], state)  # type: ignore[no-any-return]

    def initial_state(self) -> Array:
        """The state that an episode begins with, `[1, width]`."""
        return np.zeros((1, self.memory.width), np.float32)


def recurrent_rows(batch: Batch) -> Batch:
    """Sequences `[T, B, ...]` for a recurrent learner, with the columns `begins` and `mask`.

    `begins` is True where an episode begins, `mask` where a step counts. Padding repeats the observations of the
    first step, since not every encoder accepts zeros.

    Raises:
        SchemaError: the batch holds no sequences, has no `state`, or has a sequence without a step that counts.
    """
    for name, fits in (("state", "state" in batch), ("fragments", is_fragment(batch))):
        if not fits:
            raise SchemaError(f"{batch!r} cannot be unrolled: {RECURRENT_REQUIRES[name]}")
    mask = np.asarray(batch["mask"] != 0) if "mask" in batch else np.ones(batch.shape[:2], bool)
    if not mask.any(0).all():
        raise SchemaError(
            f"{int((~mask.any(0)).sum())} of {mask.shape[1]} sequences of {len(mask)} steps have no step that counts: "
            "they are not longer than their burn-in; make them longer, or the burn-in shorter"
        )
    begins = np.zeros(mask.shape, bool)
    begins[1:] = (batch["terminated"][:-1] != 0) | (batch["truncated"][:-1] != 0) | episode_breaks(batch)
    padded = ~np.logical_or.accumulate(mask[::-1])[::-1]
    begins &= ~padded
    seen = batch.select([name for name in ("obs", "next_obs") if name in batch])
    if padded.any():
        seen = seen.map(lambda column: _filled(column, padded))
    return batch.replace(begins=begins, mask=mask, **dict(seen.items()))


def _filled(column: Array, padded: Array) -> Array:
    """A column `[T, B, ...]` whose padded steps repeat the first step."""
    return np.where(padded.reshape(*padded.shape, *[1] * (column.ndim - 2)), column[:1], column)

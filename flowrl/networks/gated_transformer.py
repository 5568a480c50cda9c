"""A gated transformer as a memory: attention over the last steps of an episode."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class GatedTransformer(nn.Module):
    """Layers of attention: features `[T, B, features]` in, `[T, B, units]` out, with a state `[B, width]`.

    Each layer sees its inputs of this step and of the `steps` before, as far as they are of the same episode. The state
    holds these inputs, and their number, so an episode begins with zeros (T8).

    At first gates pass a layer's input through, so that a policy learns to act before it learns to remember. Distances
    have a learned bias per head, where the source has sinusoids (Raffel et al. 2020, "Exploring the Limits of Transfer
    Learning with a Unified Text-to-Text Transformer", section 2.1).

    Source: Parisotto et al. 2020, "Stabilizing Transformers for Reinforcement Learning", section 3, GTrXL.

    Args:
        units: A multiple of the number of heads.
        steps: That a layer looks back; several layers reach further.
    """

    def __init__(self, features: int, units: int, steps: int = 64, layers: int = 1, heads: int = 4) -> None:
        super().__init__()
        self.units, self.steps, self.width = units, steps, layers * steps * units + 1
        self.embed = nn.Linear(features, units)
        self.layers = nn.ModuleList(Layer(units, steps, heads) for _ in range(layers))

    def forward(
        self, features: torch.Tensor, state: torch.Tensor, begins: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Memory.forward`."""
        count, envs = features.shape[:2]
        held, known = state[:, :-1].reshape(envs, len(self.layers), self.steps, self.units), state[:, -1]
        place = torch.arange(self.steps + count, device=features.device)
        # Of which episode each step is, the first ones those of the state; -1 where it holds none.
        before = torch.where(place[: self.steps, None] >= self.steps - known, 0, -1)
        since = before.new_zeros(count, envs) if begins is None else begins.cumsum(0)
        episode = torch.cat([before, since])
        distance = place[self.steps :, None] - place
        seen = (episode[self.steps :, None] == episode) & ((distance >= 0) & (distance <= self.steps))[:, :, None]
        last = episode[-self.steps :] == episode[-1]

        x, after = self.embed(features), []
        for number, layer in enumerate(self.layers):
            inputs = torch.cat([held[:, number].transpose(0, 1), x])
            after.append(inputs[-self.steps :] * last[:, :, None])
            x = layer(x, inputs, seen.permute(2, 0, 1), distance.clamp(0, self.steps))
        kept = torch.stack(after).permute(2, 0, 1, 3).flatten(1)
        return x, torch.cat([kept, last.sum(0)[:, None]], 1)


class Layer(nn.Module):
    """Attention and a dense layer, each normalized before and gated after it."""

    def __init__(self, units: int, steps: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.query, self.key_value = nn.Linear(units, units), nn.Linear(units, 2 * units)
        self.out = nn.Linear(units, units)
        self.bias = nn.Parameter(torch.zeros(heads, steps + 1))
        self.dense = nn.Sequential(nn.Linear(units, units), nn.ReLU())
        self.gates = nn.ModuleList(nn.GRUCell(units, units) for _ in range(2))
        gates: Any = self.gates
        for gate in gates:
            nn.init.constant_(gate.bias_ih[units : 2 * units], 2.0)  # keep the input

    def forward(
        self, x: torch.Tensor, inputs: torch.Tensor, seen: torch.Tensor, distance: torch.Tensor
    ) -> torch.Tensor:
        """Outputs `[T, B, units]` for `x [T, B, units]`.

        Args:
            inputs: `[S + T, B, units]`: the steps before, and x. seen: bool `[B, T, S + T]`, those that a step sees.
            distance: `[T, S + T]`, in steps.
        """
        (first, second), (attended, computed) = self.norms, self.gates
        query = self._by_head(self.query(first(x)))
        key, value = map(self._by_head, self.key_value(first(inputs)).chunk(2, 2))
        scores = self.bias[:, distance].masked_fill(~seen[:, None], -torch.inf)
        found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=scores)
        x = _gated(attended, x, self.out(found.permute(2, 0, 1, 3).flatten(2)).relu())
        return _gated(computed, x, self.dense(second(x)))

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, B, units]` as `[B, heads, T, units / heads]`."""
        return x.reshape(*x.shape[:2], self.heads, -1).permute(1, 2, 0, 3)


def _gated(gate: Any, x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    gated: torch.Tensor = gate(new.flatten(0, 1), x.flatten(0, 1))
    return gated.view_as(x)

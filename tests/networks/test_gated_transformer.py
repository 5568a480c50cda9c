"""A gated transformer as a memory: what it sees, one step at a time as over a sequence."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl.errors import ConfigError
from flowrl.networks.gated_transformer import GatedTransformer, Layer
from flowrl.policies import RecurrentPPOPolicy


def made(**how: Any) -> GatedTransformer:
    torch.manual_seed(0)
    memory = GatedTransformer(3, 8, **{"steps": 5, "layers": 2, **how})
    for layer in memory.layers:
        torch.nn.init.normal_(layer.bias)
    return memory


def given(count: int = 17, envs: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Features, and where episodes begin: of the first environment nowhere."""
    draw = np.random.default_rng(0)
    begins = torch.from_numpy(draw.random((count, envs)) < 0.2)
    begins[:, 0] = begins[0] = False
    return torch.from_numpy(draw.normal(size=(count, envs, 3)).astype(np.float32)), begins


def by_loop(layer: Layer, seen: list[torch.Tensor]) -> torch.Tensor:
    """The output for the last of the inputs `[units]` that a step sees, each head and each distance by itself."""
    units, x = layer.out.in_features, seen[-1]
    size = units // layer.heads
    query = layer.query(layer.norms[0](x))
    found = []
    for head in range(layer.heads):
        part = slice(head * size, (head + 1) * size)
        scores, values = [], []
        for distance, other in enumerate(reversed(seen)):
            key, value = layer.key_value(layer.norms[0](other)).chunk(2)
            scores.append(query[part] @ key[part] / math.sqrt(size) + layer.bias[head, distance])
            values.append(value[part])
        found.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
    x = layer.gates[0](torch.relu(layer.out(torch.cat(found))), x)
    return layer.gates[1](layer.dense(layer.norms[1](x)), x)


def test_a_step_sees_the_last_ones_of_its_episode_as_in_a_loop() -> None:
    """T8: each layer the last `steps` of its inputs; nothing of another episode."""
    memory, (features, begins) = made(), given()
    outputs, _ = memory(features, torch.zeros(4, memory.width), begins)
    for env in range(4):
        inputs: list[list[torch.Tensor]] = [[], []]
        for t in range(len(features)):
            if begins[t, env]:
                inputs = [[], []]
            x = memory.embed(features[t, env])
            for layer, before in zip(memory.layers, inputs):
                before.append(x)
                x = by_loop(layer, before[-6:])
            torch.testing.assert_close(outputs[t, env], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cut", [1, 3, 8])
def test_it_goes_on_from_a_state(cut: int) -> None:
    """T8: in parts, and one step at a time, it is the same as at once; an episode begins with a state of zeros."""
    memory, (features, begins) = made(), given()
    whole, last = memory(features, torch.zeros(4, memory.width), begins)
    state, outputs = torch.zeros(4, memory.width), []
    for first in range(0, len(features), cut):
        part = slice(first, first + cut)
        if cut == 1:  # as where it acts: the worker resets the states
            state = state.masked_fill(begins[first, :, None], 0.0)
            output, state = memory(features[part], state)
        else:
            output, state = memory(features[part], state, begins[part])
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), whole)
    torch.testing.assert_close(state, last)
    fresh = memory(features[:1], torch.zeros(4, memory.width))[1]
    assert (fresh[:, -1] == 1).all()


def test_units_go_into_the_heads() -> None:
    space, actions = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
    with pytest.raises(ConfigError, match=r"memory_size=6: expected a multiple of 4, the heads of recurrent='gtrxl'"):
        RecurrentPPOPolicy(space, actions, units=6, cell="gtrxl")

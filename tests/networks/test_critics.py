"""Several critics as one network are as good as each alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.networks.critics import FIRST, ActorAndCritics, Critics
from flowrl.networks.in_numpy import in_numpy
from flowrl.networks.networks import encoder
from flowrl.networks.torch_rng import TorchStream
from tests.policies.plain import apart, pairs, rows

OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)


def make(size: int = 2, outputs: int = 1, k: int = 3, hidden: Sequence[int] = (16, 8), **how: Any) -> Critics:
    with TorchStream(0).swapped_in():
        return Critics(encoder(OBSERVATIONS), size, outputs, hidden, k, **how)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_values_and_gradients_are_those_of_networks_apart(layer_norm: bool) -> None:
    critics, batch = make(layer_norm=layer_norm), rows(20, 2).to_torch()
    with torch.no_grad():
        for norm in critics.norms:
            norm.weight.copy_(torch.arange(norm.weight.numel()).view_as(norm.weight) / 10)
            norm.bias.copy_(norm.weight - 1)
    networks = apart(critics)
    values = critics(batch.obs, batch.action)
    wanted = torch.stack([each(torch.cat([batch.obs, batch.action], 1)).squeeze(1) for each in networks])
    torch.testing.assert_close(values, wanted)
    values.square().sum().backward()
    wanted.square().sum().backward()
    for ours, theirs in pairs(critics, networks):
        torch.testing.assert_close(ours, theirs)
    for some in (FIRST, torch.tensor([2, 0])):
        torch.testing.assert_close(critics(batch.obs, batch.action, only=some), values[some])


def test_dropout_leaves_the_mean_as_it_is() -> None:
    """D6: it draws from the stream that is swapped in, for every critic its own."""
    critics, batch = make(hidden=(16,), k=2, dropout=0.25), rows(20, 2).to_torch()
    outside = torch.get_rng_state()
    with TorchStream(1).swapped_in():
        drawn = torch.stack([critics(batch.obs, batch.action).detach() for _ in range(4000)])
    with TorchStream(1).swapped_in():
        assert torch.equal(critics(batch.obs, batch.action), drawn[0])
    assert torch.equal(torch.get_rng_state(), outside)
    critics.dropout = 0.0
    torch.testing.assert_close(drawn.mean(0), critics(batch.obs, batch.action), rtol=0, atol=0.02)
    assert drawn.std(0).mean() > 0.05
    assert not torch.equal(drawn[:, 0], drawn[:, 1])


def test_all_discrete_actions_are_judged_at_once() -> None:
    critics, batch = make(0, 4), rows(20, 1, actions=4).to_torch()
    values = critics(batch.obs)
    torch.testing.assert_close(values, torch.stack([each(batch.obs) for each in apart(critics)]))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_frozen_critics_learn_nothing_and_their_actions_do(layer_norm: bool) -> None:
    critics, batch = make(layer_norm=layer_norm), rows(20, 2).to_torch()
    action, again = (batch.action.clone().requires_grad_() for _ in range(2))
    critics(batch.obs, action, frozen=True).sum().backward()
    assert all(parameter.grad is None for parameter in critics.parameters())
    critics(batch.obs, again).sum().backward()
    torch.testing.assert_close(action.grad, again.grad)


def test_they_begin_as_linear_layers_do() -> None:
    """Uniform in ±1/√in; no two critics alike."""
    weight = make(k=2).layers[1].weight.detach()
    assert float(weight.abs().max()) <= 0.25
    assert float(weight.std()) > 0.12
    assert not torch.equal(weight[0], weight[1])


def test_the_actor_acts_alike_in_numpy() -> None:
    model, obs = ActorAndCritics(make(), 4, (16,)), rows(20, 2).obs
    with torch.no_grad():
        assert np.allclose(in_numpy(model)(obs), model(torch.from_numpy(obs)), atol=1e-6)

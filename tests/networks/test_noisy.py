"""Noisy networks: what the noise does, where it comes from, and where there is none."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl.networks.noisy import NoisyLinear, noise_of
from flowrl.networks.torch_rng import TorchStream
from flowrl.policies import CategoricalHead, DQNPolicy
from flowrl.testing import same
from tests.scripted import transitions

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)


def make(**settings: Any) -> DQNPolicy:
    """Greedy but for its noise."""
    given: dict[str, Any] = {"hidden": (16, 8), "seed": 3, "device": "cpu", "noisy": True, "epsilon": lambda steps: 0.0}
    return DQNPolicy(OBSERVATIONS, gymnasium.spaces.Discrete(3), **{**given, **settings})


def layer(*sizes: int) -> NoisyLinear:
    with TorchStream(0).swapped_in():
        return NoisyLinear(*sizes)


def test_a_layer_against_its_matrices() -> None:
    """Each row by weights of its own, μ + σ ∘ ε_out ε_inᵀ; and by one noise for all."""
    noisy, draw = layer(3, 2), torch.Generator().manual_seed(1)
    noisy.weight_sigma.data.copy_(torch.rand(2, 3, generator=draw))
    noisy.bias_sigma.data.copy_(torch.rand(2, generator=draw))
    x, noise = torch.randn(5, 3, generator=draw), torch.randn(5, 5, generator=draw)
    for given in (noise, noise[:1]):
        got = noisy(x, given)
        for b in range(5):
            entering, leaving = given[b % len(given), :3], given[b % len(given), 3:]
            weight = noisy.weight + noisy.weight_sigma * torch.outer(leaving, entering)
            torch.testing.assert_close(got[b], weight @ x[b] + noisy.bias + noisy.bias_sigma * leaving)
    torch.testing.assert_close(noisy(x), x @ noisy.weight.T + noisy.bias)


def test_it_begins_as_in_the_paper() -> None:
    """μ uniform in ±1/√in, σ = 0.5/√in."""
    noisy = layer(100, 50)
    assert float(noisy.weight.detach().abs().max()) == pytest.approx(0.1, rel=0.01)
    for sigma in (noisy.weight_sigma, noisy.bias_sigma):
        torch.testing.assert_close(sigma.detach(), torch.full_like(sigma, 0.05))


def test_noise_for_acting_is_the_signed_root_of_normal_numbers() -> None:
    """Of uniform ones, 0 too, which has no quantile."""
    noise = noise_of(np.random.default_rng(0).random((100, 500)))
    normal = noise * np.abs(noise)
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    assert np.isfinite(noise_of(np.zeros((1, 3)))).all()


def test_learning_has_fresh_noise_in_every_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q6: the online network, the target network and the choice of an action, in every update."""
    policy, seen = make(), []
    draw = policy.noise
    monkeypatch.setattr(policy, "noise", lambda: seen.append(draw()) or seen[-1])  # type: ignore[func-returns-value]
    for _ in range(2):
        policy.learn_mode.learn_from(transitions(32))
    assert len(seen) == 6
    assert all(noise.shape == (1, policy.model.draws) for noise in seen)
    assert len({tuple(noise.flatten().tolist()) for noise in seen}) == 6


def test_each_forward_of_the_loss_takes_its_noise() -> None:
    """Q6: without noise, or with other noise, in any of the three the loss is another one."""
    policy = make()
    rows = policy.learn_mode.tensors(policy.learn_mode.prepare(transitions(64)))

    def loss(*noise: Any) -> float:
        given = iter(noise)
        policy.noise = lambda: next(given)  # type: ignore[method-assign]
        return policy.learn_mode.loss(rows)[0].item()

    draw = torch.Generator().manual_seed(1)
    target, choice, online = 3 * torch.randn(3, 1, policy.model.draws, generator=draw)
    losses = [loss(target, choice, online), loss(None, choice, online), loss(target, None, online)]
    losses += [loss(target, choice, None), loss(target, choice, target)]
    assert len(set(losses)) == 5


def test_the_amount_of_noise_is_learned() -> None:
    policy = make()
    before = {name: value for name, value in policy.weights().items() if name.endswith("sigma")}
    assert len(before) == 8  # two hidden layers, advantages, value
    policy.learn_mode.learn_from(transitions(32))
    assert all(not torch.equal(value, policy.weights()[name]) for name, value in before.items())


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_it_explores_by_its_noise_and_is_evaluated_without(backend: str) -> None:
    """Q6: of one observation it collects with all actions, though it never draws one; in evaluation it takes the best
    one by the mean weights, and draws nothing."""
    policy = make(act_backend=backend)
    obs = np.tile(np.float32([[0.1, -0.2, 0.3, 0.1]]), (500, 1))
    collect, evaluation = policy.collect_mode, policy.eval_mode
    noise = np.random.default_rng(0).random((500, collect.draws))
    assert set(collect.act(obs, noise, 0)["action"].tolist()) == {0, 1, 2}
    assert evaluation.draws == 0
    (best,) = set(evaluation.act(obs, noise[:, :0], 0)["action"].tolist())
    with torch.no_grad():
        assert best == int(policy.model(torch.from_numpy(obs[:1])).argmax())
        for name, parameter in policy.model.named_parameters():
            if name.endswith("sigma"):
                parameter.zero_()
    assert set(collect.act(obs, noise, 0)["action"].tolist()) == {best}


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_what_is_drawn_for_one_environment_changes_no_other(backend: str) -> None:
    """D2: each row acts by the noise of its own stream."""
    policy = make(act_backend=backend, head=CategoricalHead(5, -1, 1))
    draw = np.random.default_rng(0)
    obs, noise = draw.normal(size=(64, 4)).astype(np.float32), draw.random((64, policy.collect_mode.draws))
    together = policy.collect_mode.act(obs, noise, 0)["action"]
    alone = [policy.collect_mode.act(obs[i : i + 1], noise[i : i + 1], 0)["action"][0] for i in range(64)]
    assert together.tolist() == alone
    others = np.concatenate([noise[:32], draw.random((32, noise.shape[1]))])
    changed = policy.collect_mode.act(obs, others, 0)["action"]
    assert (changed[:32] == together[:32]).all()
    assert (changed[32:] != together[32:]).any()


def test_epsilon_has_a_coin_of_its_own() -> None:
    """Q8: random actions come beside the noise, and do not depend on it."""
    policy = make(epsilon=lambda steps: 1.0)
    draw = np.random.default_rng(0)
    obs, noise = draw.normal(size=(64, 4)).astype(np.float32), draw.random((64, policy.collect_mode.draws))
    assert policy.collect_mode.act(obs, noise, 0)["action"].tolist() == (noise[:, 1] * 3).astype(int).tolist()


def test_a_state_goes_on_with_the_noise_that_would_have_come() -> None:
    """D3, D6, Q6: the noise of learning is in the policy's stream, and in no global one."""
    policy, other = make(), make(seed=9)
    batch, outside = transitions(32), torch.get_rng_state()
    policy.learn_mode.learn_from(batch)
    other.load_state_dict(policy.state_dict())
    for each in (policy, other):
        each.learn_mode.learn_from(batch)
    assert same(policy.state_dict(), other.state_dict())
    assert torch.equal(outside, torch.get_rng_state())


def test_without_it_nothing_is_drawn() -> None:
    policy = make(noisy=False)
    before = policy.stream.state_dict()["state"].clone()
    policy.learn_mode.learn_from(transitions(8))
    assert torch.equal(policy.stream.state_dict()["state"], before)
    assert policy.noise() is None
    assert policy.collect_mode.draws == 2

"""Soft Q-learning and regularised behavioural cloning, against loops that are obviously right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.sampling import softmax_sample
from flowrl.policies import RBCPolicy, SoftQPolicy
from flowrl.policies.soft_q import soft_value

BOX, THREE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def rows(count: int = 7, **more: Any) -> Batch:
    draw = np.random.default_rng(2)
    return Batch(
        obs=draw.normal(size=(count, 4)).astype(np.float32),
        action=draw.integers(3, size=count),
        reward=draw.normal(size=count),
        next_obs=draw.normal(size=(count, 4)).astype(np.float32),
        discount=np.where(draw.random(count) < 0.3, 0, 0.9).astype(np.float32),
        **more,
    )


def made(kind: type[SoftQPolicy] = SoftQPolicy, **settings: Any) -> Any:
    policy = kind(BOX, THREE, hidden=(8,), device="cpu", **settings)
    for parameter in policy.target.parameters():  # other values than the online network's
        parameter.data += 0.1
    return policy


def values(model: Any, obs: Any) -> Any:
    with torch.no_grad():
        return model(torch.as_tensor(obs)).double().numpy()


def by_loop(policy: Any, batch: Batch, reward: Any) -> list[float]:
    """Q(s, a) - (r + d V(s')) of each row."""
    q, q_t, alpha = values(policy.model, batch.obs), values(policy.target, batch.next_obs), policy.temperature
    errors = []
    for i in range(len(batch)):
        value = alpha * math.log(sum(math.exp(x / alpha) for x in q_t[i]))
        errors.append(q[i][batch.action[i]] - (reward[i] + batch.discount[i] * value))
    return errors


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=5), st.floats(0.1, 5))
def test_the_soft_value_is_the_best_return_with_entropy(q: list[float], temperature: float) -> None:
    """Its formula, and E_pi[Q] + temperature * H(pi) of pi = softmax(Q / temperature)."""
    found = soft_value(torch.tensor([q], dtype=torch.float64), temperature).item()
    mass = [math.exp((x - max(q)) / temperature) for x in q]
    pi = [each / sum(mass) for each in mass]
    entropy = -sum(p * math.log(p) for p in pi if p > 0)
    assert found == pytest.approx(sum(p * x for p, x in zip(pi, q)) + temperature * entropy, abs=1e-6)


def test_invalid_actions_have_no_part_in_a_soft_value() -> None:
    """Q1: masked in the value."""
    q, mask = torch.tensor([[1.0, 50.0]]), torch.tensor([[True, False]])
    assert soft_value(q, 1.0, mask).item() == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_loss_of_soft_q_learning_against_a_loop(temperature: float) -> None:
    """Q1, T6: the squared soft Bellman error, of weighted rows too; the target network judges."""
    policy, batch = made(temperature=temperature), rows()
    errors = by_loop(policy, batch, batch.reward)
    loss, scalars = policy.learn_mode.loss(policy.learn_mode.tensors(batch))
    assert loss.item() == pytest.approx(sum(e * e for e in errors) / len(errors), rel=1e-4)
    assert "priority" not in scalars
    weight = np.linspace(0.1, 1, len(batch)).astype(np.float32)
    place = {name: np.arange(len(batch)) for name in ("index", "generation")}
    weighted = policy.learn_mode.tensors(batch.replace(weight=weight, **place))
    loss, scalars = policy.learn_mode.loss(weighted)
    assert loss.item() == pytest.approx(sum(w * e * e for w, e in zip(weight, errors)) / len(errors), rel=1e-4)
    np.testing.assert_allclose(scalars["priority"].detach(), np.abs(errors), rtol=1e-4)


def test_it_acts_as_often_as_the_soft_policy_says() -> None:
    """Q8: exp(Q / temperature), from each environment's own noise; the greedy action in evaluation."""
    noise = (np.arange(4000) + 0.5)[:, None] / 4000
    value = np.tile([[0.0, 1.0, 3.0]], (4000, 1))
    chosen = softmax_sample(2.0)(value, noise)
    expected = np.exp(np.array([0.0, 0.5, 1.5]))
    np.testing.assert_allclose(np.bincount(chosen) / 4000, expected / expected.sum(), atol=1e-3)
    masked = softmax_sample(2.0)(value, noise, mask=np.tile([[True, True, False]], (4000, 1)))
    np.testing.assert_allclose(np.bincount(masked) / 4000, expected[:2] / expected[:2].sum(), atol=1e-3)
    policy, obs = made(), rows().obs
    best = policy.eval_mode.act(obs, np.zeros((7, 0)), 0)["action"]
    assert np.array_equal(best, values(policy.model, obs).argmax(1))
    assert policy.collect_mode.draws == 1


@pytest.mark.parametrize("bellman_weight", [0.0, 0.7])
def test_the_loss_of_regularised_cloning_against_a_loop(bellman_weight: float) -> None:
    """-log pi of demonstrated actions, and the squared soft Bellman error of all rows; no reward is read."""
    policy = made(RBCPolicy, temperature=0.5, bellman_weight=bellman_weight)
    shown = np.array([True, False, True, True, False, False, False])
    batch = rows(demonstration=shown)
    errors, q = by_loop(policy, batch, np.zeros(7)), values(policy.model, batch.obs) / 0.5
    nll = [math.log(sum(map(math.exp, q[i]))) - q[i][batch.action[i]] for i in np.flatnonzero(shown)]
    expected = sum(nll) / 3 + bellman_weight * sum(e * e for e in errors) / 7
    learn = policy.learn_mode
    whole = learn.over_minibatch(learn.tensors(batch.replace(reward=np.full(7, np.nan))))
    loss, scalars = learn.loss(whole)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert scalars["nll"].item() == pytest.approx(sum(nll) / 3, rel=1e-4)
    shares = [len(share) * learn.loss(share)[0].item() for share in (whole[:2], whole[2:])]  # of two learners
    assert sum(shares) / 7 == pytest.approx(expected, rel=1e-4)
    none, _ = learn.loss(learn.over_minibatch(learn.tensors(rows(demonstration=np.zeros(7, bool)))))
    assert torch.isfinite(none)


def test_settings_of_the_greedy_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"epsilon=0\.1"):
        made(epsilon=0.1)
    with pytest.raises(ConfigError, match="temperature=0: 'temperature' must be > 0"):
        made(temperature=0)

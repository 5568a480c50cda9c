"""Implicit quantile networks against loops over levels."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.in_numpy import in_numpy
from flowrl.policies import IQNPolicy
from flowrl.testing import same
from tests.scripted import shake, transitions

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
MASKED = gymnasium.spaces.Dict(seen=OBSERVATIONS, action_mask=gymnasium.spaces.MultiBinary(3))


def make(space: Any = OBSERVATIONS, **settings: Any) -> IQNPolicy:
    """With weights large enough that returns differ from action to action and from level to level."""
    counts = {"quantiles": 3, "target_quantiles": 4, "acting_quantiles": 5, "cosines": 6}
    given = {"hidden": (8,), "seed": 3, "device": "cpu", **counts, **settings}
    policy: IQNPolicy = shake(IQNPolicy(space, gymnasium.spaces.Discrete(3), **given))
    return policy


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_a_quantile_at_each_level_against_a_loop(noisy: bool, dueling: bool) -> None:
    """Q13: hidden units times relu(W cos(π i τ) + b), level by level; Q3: dueling among the valid actions."""
    policy = make(MASKED, noisy=noisy, dueling=dueling)
    net, draw = policy.model, torch.Generator().manual_seed(2)
    mask = torch.tensor([[1, 1, 1], [1, 0, 1]], dtype=torch.int8)
    obs, levels = Batch(seen=torch.randn(2, 4, generator=draw), action_mask=mask), torch.rand(2, 7, generator=draw)
    noise = torch.randn(2, net.draws, generator=draw) if noisy else None
    with torch.no_grad():
        got = net(obs, noise, values=False, levels=levels)
        assert got.shape == (2, 3, 7)
        parts = () if noise is None else torch.split(noise, net._noise_parts, 1)
        hidden = torch.relu(net.trunk[1](obs.seen, *parts[:1]))
        for b, k in np.ndindex(2, 7):
            cosines = torch.tensor([math.cos(math.pi * i * float(levels[b, k])) for i in range(6)])
            seen = (hidden[b] * torch.relu(net.embedding(cosines)))[None]
            expected = net.advantage(seen, *(part[b : b + 1] for part in parts[1:2]))[0]
            if net.value is not None:
                valid = mask[b].bool()
                expected = expected - expected[valid].mean() + net.value(seen, *(p[b : b + 1] for p in parts[2:]))[0]
            torch.testing.assert_close(got[b, :, k], expected, atol=1e-5, rtol=1e-5)
        midpoints = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]).expand(2, 5)
        values = net(obs, noise)
        torch.testing.assert_close(values, net(obs, noise, values=False, levels=midpoints).mean(2))
        given = [] if noise is None else [noise.numpy()]
        arrays = Batch(seen=obs.seen.numpy(), action_mask=mask.numpy())
        np.testing.assert_allclose(in_numpy(net)(arrays, *given), values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_losses_and_priorities_of_rows_against_a_loop(double: bool) -> None:
    """Q5, Q13: over rows, levels of the prediction and samples of the target; P2: weighted."""
    policy, batch = make(double=double), transitions(16)
    weight = np.random.default_rng(7).random(16).astype(np.float32)
    learn = policy.learn_mode
    rows = learn.over_minibatch(learn.tensors(learn.prepare(batch.replace(weight=weight))))
    assert rows.levels.shape == (16, 3)
    assert rows.next_levels.shape == (16, 4)
    loss, scalars = learn.loss(rows)
    expected = []
    with torch.no_grad():
        for b in range(16):
            obs, next_obs = rows.obs[b : b + 1], rows.next_obs[b : b + 1]
            aims = policy.target(next_obs, values=False, levels=rows.next_levels[b : b + 1])[0]
            best = int((policy.model(next_obs)[0] if double else aims.mean(1)).argmax())
            said = policy.model(obs, values=False, levels=rows.levels[b : b + 1])[0, batch.action[b]]
            row = 0.0
            for level, theta in zip(rows.levels[b], said):
                for aim in aims[best]:
                    u = float(batch.reward[b]) + 0.99 * (not batch.terminated[b]) * float(aim) - float(theta)
                    row += abs(float(level) - (u < 0)) * (0.5 * u**2 if abs(u) < 1 else abs(u) - 0.5) / 4
            assert float(scalars["priority"][b]) == pytest.approx(row, rel=1e-3, abs=1e-4)
            expected.append(weight[b] * row)
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-4)


def test_munchausen_targets_prefer_by_the_levels_of_acting() -> None:
    """Q12: each row's target is the mean, by a policy that does not see which levels were drawn for it."""
    policy, batch = make(munchausen=0.9, munchausen_temperature=0.2), transitions(16)
    learn = policy.learn_mode
    rows = learn.over_minibatch(learn.tensors(learn.prepare(batch)))

    def log_pi(obs: torch.Tensor) -> list[float]:
        q = policy.target(obs[None])[0]
        scores = [float(torch.exp((each - q.max()) / 0.2)) for each in q]
        return [math.log(score / sum(scores)) for score in scores]

    with torch.no_grad():
        for b, got in enumerate(learn.target(rows)):
            next_obs = rows.next_obs[b : b + 1]
            aims = policy.target(next_obs, values=False, levels=rows.next_levels[b : b + 1])[0]
            reward = float(batch.reward[b]) + 0.9 * max(-1.0, 0.2 * log_pi(rows.obs[b])[batch.action[b]])
            soft = [math.exp(each) * (aim - 0.2 * each) for each, aim in zip(log_pi(next_obs[0]), aims)]
            wanted = reward + 0.99 * (not batch.terminated[b]) * sum(soft)
            torch.testing.assert_close(got, torch.as_tensor(wanted).expand(4).float(), rtol=1e-4, atol=1e-5)


def test_each_row_has_levels_of_its_own_from_the_saved_stream() -> None:
    """Q13, D6: drawn anew for each minibatch, over all of 0 .. 1; two policies of one state draw the same."""
    policy, other, rows = make(), make(seed=4), Batch(reward=torch.zeros(200))
    other.load_state_dict(policy.state_dict())
    first, second = (policy.learn_mode.over_minibatch(rows).levels for _ in range(2))
    assert len(torch.unique(torch.cat([first, second]))) == 1200
    assert first.min() < 0.05
    assert first.max() > 0.95
    assert same(other.learn_mode.over_minibatch(rows).levels, first)


def test_it_learns_the_quantile_function() -> None:
    """Q13: of rewards 0 .. 8, equally likely, in a terminal state; the median too, which no setting names."""
    policy = make(quantiles=16, target_quantiles=1, learning_rate=5e-3, hidden=(32,), cosines=16)
    draw = np.random.default_rng(0)
    obs = np.zeros((64, 4), np.float32)
    for _ in range(300):
        reward = draw.uniform(0, 8, 64).astype(np.float32)
        columns = {"action": np.zeros(64, np.int64), "reward": reward, "terminated": np.ones(64, bool)}
        policy.learn_mode.learn_from(Batch(obs=obs, next_obs=obs, **columns))
    levels = torch.tensor([[0.1, 0.25, 0.5, 0.75, 0.9]])
    with torch.no_grad():
        found = policy.model(torch.zeros(1, 4), values=False, levels=levels)[0, 0]
    assert found.tolist() == pytest.approx((8 * levels[0]).tolist(), abs=0.8)


def test_actions_that_are_not_discrete_are_refused_in_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^IQN chooses among discrete actions"):
        IQNPolicy(OBSERVATIONS, OBSERVATIONS)

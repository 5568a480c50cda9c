"""The loss of DQfD, against a loop that is obviously right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.policies import DQfDPolicy
from flowrl.policies.dqfd import large_margin

BOX, THREE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)


def rows(count: int = 9, **more: Any) -> Batch:
    draw = np.random.default_rng(4)

    def window() -> dict[str, Any]:
        return {
            "reward": draw.normal(size=count),
            "next_obs": draw.normal(size=(count, 4)).astype(np.float32),
            "discount": np.where(draw.random(count) < 0.3, 0, 0.8).astype(np.float32),
        }

    return Batch(
        obs=draw.normal(size=(count, 4)).astype(np.float32),
        action=draw.integers(3, size=count),
        one_step=Batch(window()),
        demonstration=draw.random(count) < 0.5,
        **window(),
        **more,
    )


def made(**settings: Any) -> DQfDPolicy:
    policy = DQfDPolicy(BOX, THREE, hidden=(8,), device="cpu", **settings)
    for parameter in policy.target.parameters():  # other values than the online network's
        parameter.data += 0.1
    return policy


def values(model: Any, obs: Any) -> Any:
    with torch.no_grad():
        return model(torch.as_tensor(obs)).double().numpy()


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5


def test_the_margin_against_a_loop() -> None:
    """Q1: over the valid actions."""
    draw = np.random.default_rng(0)
    q, action = draw.normal(size=(20, 3)), draw.integers(3, size=20)
    mask = draw.random((20, 3)) < 0.6
    mask[np.arange(20), action] = True
    for valid in (None, mask):
        expected = [
            max(q[i][a] + (0.0 if a == action[i] else 0.8) for a in range(3) if valid is None or valid[i][a])
            - q[i][action[i]]
            for i in range(20)
        ]
        given = None if valid is None else torch.as_tensor(valid)
        found = large_margin(torch.as_tensor(q), torch.as_tensor(action), 0.8, given)
        np.testing.assert_allclose(found, expected)


def test_the_loss_against_a_loop() -> None:
    """Q1, T6: each window with its own reward, next observation and discount; the margin of demonstrations alone."""
    policy = made(n_step_weight=0.7, margin=0.6, margin_weight=0.3, l2=0.01)
    weight = np.linspace(0.2, 1, 9).astype(np.float32)
    batch = rows(weight=weight, index=np.arange(9), generation=np.ones(9, int))
    q = values(policy.model, batch.obs)

    def error(window: Any, i: int) -> float:
        best = values(policy.model, window["next_obs"])[i].argmax()
        bootstrap = values(policy.target, window["next_obs"])[i][best]
        return float(q[i][batch.action[i]] - (window["reward"][i] + window["discount"][i] * bootstrap))

    total = 0.0
    for i in range(9):
        chosen = batch.action[i]
        margin = max(q[i][a] + 0.6 * (a != chosen) for a in range(3)) - q[i][chosen]
        of_row = huber(error(batch.one_step, i)) + 0.7 * huber(error(batch, i))
        total += weight[i] * (of_row + 0.3 * margin * batch.demonstration[i])
    norm = sum(float(parameter.detach().double().square().sum()) for parameter in policy.parameters)
    loss, scalars = policy.learn_mode.loss(policy.learn_mode.tensors(batch))
    assert loss.item() == pytest.approx(total / 9 + 0.01 * norm, rel=1e-4)
    expected = [abs(error(batch.one_step, i)) for i in range(9)]
    np.testing.assert_allclose(scalars["priority"].detach(), expected, rtol=1e-4)


def test_a_batch_without_demonstrations_has_no_margin() -> None:
    policy = made(l2=0.0)
    batch = rows().replace(demonstration=np.zeros(9, bool))
    assert policy.learn_mode.loss(policy.learn_mode.tensors(batch))[1]["margin_loss"].item() == 0


def test_scaled_rewards_are_refused() -> None:
    """O1: of two windows one alone would be scaled."""
    with pytest.raises(ConfigError, match="normalize_rewards=True: DQfD learns from raw rewards"):
        made(normalize_rewards=True)


def test_munchausen_rewards_count_in_the_windows_of_one_step() -> None:
    """Q12: their target needs the action taken and where, which a window of one step shares with the longer one."""
    losses = [
        made(munchausen=weight, seed=1, n_step_weight=0.0).learn_mode.learn_from(rows())["loss"]
        for weight in (0.0, 0.9)
    ]
    assert losses[0] != losses[1]

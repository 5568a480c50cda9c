"""TQC: what differs from SAC, against loops over quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.errors import ConfigError
from flowrl.policies import TQCPolicy
from tests.policies.plain import apart, rows

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)


def make(**settings: Any) -> TQCPolicy:
    given = {"hidden": (16, 8), "temperature": 0.3, "seed": 3, "critics": 3, "quantiles": 4, "dropped_quantiles": 1}
    policy = TQCPolicy(OBSERVATIONS, ACTIONS, **{**given, **settings})
    for parameter in policy.target.parameters():  # so that it is not the online network
        parameter.add_(0.1)
    return policy


def quantiles(critics: Any, obs: Any, action: Any) -> list[list[list[float]]]:
    """By critic, row and quantile."""
    return [network(torch.cat([obs, action], 1)).tolist() for network in apart(critics)]


@pytest.mark.parametrize("weighted", [False, True])
def test_targets_leave_out_the_highest_quantiles_of_all_critics(weighted: bool) -> None:
    """A8, Q5: against a loop over rows, critics and pairs of quantiles."""
    policy = make()
    learn, choosing = policy.learn_mode, policy.choosing
    b = learn.over_minibatch(learn.tensors(learn.prepare(rows(24, 2, weighted=weighted))))
    with torch.no_grad():
        next_action, next_logp = choosing.sample(policy.model(b.next_obs), b.next_noise)
        action, logp = choosing.sample(policy.model(b.obs), b.noise)
        aims = quantiles(policy.target, b.next_obs, next_action)
        ours = quantiles(policy.model.critics, b.obs, b.action)
        climbed = quantiles(policy.model.critics, b.obs, action)
    losses, priorities, actor = [], [], []
    for i in range(24):
        kept = sorted(z for critic in aims for z in critic[i])[: 3 * 3]
        y = [float(b.reward[i] + b.discount[i] * (z - 0.3 * next_logp[i])) for z in kept]
        loss = 0.0
        for critic in ours:
            for place, theta in enumerate(critic[i]):
                for sample in y:
                    u = sample - theta
                    huber = 0.5 * u * u if abs(u) < 1 else abs(u) - 0.5
                    loss += abs((place + 0.5) / 4 - (u < 0)) * huber / len(y) / 4
        losses.append(loss)
        priorities.append(np.mean([abs(np.mean(critic[i]) - np.mean(y)) for critic in ours]))
        actor.append(0.3 * float(logp[i]) - np.mean([critic[i] for critic in climbed]))
    loss, reported = learn.loss(b)
    assert reported["critic_loss"].item() == pytest.approx(np.mean(losses), rel=1e-4)
    assert reported["actor_loss"].item() == pytest.approx(np.mean(actor), rel=1e-4)
    if weighted:
        np.testing.assert_allclose(reported["priority"], priorities, rtol=1e-4)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="dropped_quantiles=4 of quantiles=4: nothing is left"):
        make(dropped_quantiles=4)
    with pytest.raises(ConfigError, match="quantiles=1: expected at least 2"):
        make(quantiles=1, dropped_quantiles=0)
    with pytest.raises(ConfigError, match="TQC"):
        TQCPolicy(OBSERVATIONS, spaces.Discrete(2))

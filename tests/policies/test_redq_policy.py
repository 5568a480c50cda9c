"""REDQ and DroQ: what differs from SAC, against plain networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.errors import ConfigError
from flowrl.policies import REDQPolicy
from tests.policies.plain import apart, rows

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)


def make(**settings: Any) -> REDQPolicy:
    given = {"hidden": (16, 8), "temperature": 0.3, "seed": 3, "critics": 5, "policy_delay": 1, **settings}
    policy = REDQPolicy(OBSERVATIONS, ACTIONS, **given)
    for parameter in policy.target.parameters():  # so that it is not the online network
        parameter.add_(0.1)
    return policy


def batch(policy: REDQPolicy) -> Any:
    learn = policy.learn_mode
    return learn.over_minibatch(learn.tensors(learn.prepare(rows(24, 2))))


def values(critics: Any, obs: Any, action: Any) -> Any:
    return torch.stack([network(torch.cat([obs, action], 1)).squeeze(1) for network in apart(critics)])


@pytest.mark.parametrize("layer_norm", [False, True])
def test_targets_take_the_minimum_of_a_few_and_the_actor_the_mean_of_all(layer_norm: bool) -> None:
    """A7: against each critic as a network of its own."""
    policy = make(layer_norm=layer_norm)
    assert len(policy.model.critics.norms) == len(policy.target.norms) == 2 * layer_norm
    b, choosing = batch(policy), policy.choosing
    with torch.no_grad():
        next_action, next_logp = choosing.sample(policy.model(b.next_obs), b.next_noise)
        judged = values(policy.target, b.next_obs, next_action)
        y = [
            float(b.reward[i] + b.discount[i] * (min(judged[k, i] for k in b.judges[i]) - 0.3 * next_logp[i]))
            for i in range(24)
        ]
        action, logp = choosing.sample(policy.model(b.obs), b.noise)
        actor = 0.3 * logp - values(policy.model.critics, b.obs, action).mean(0)
        critics = 0.5 * (values(policy.model.critics, b.obs, b.action) - torch.tensor(y)).square().sum(0)
    _, reported = policy.learn_mode.loss(b)
    assert reported["critic_loss"].item() == pytest.approx(critics.mean().item(), rel=1e-4)
    assert reported["actor_loss"].item() == pytest.approx(actor.mean().item(), rel=1e-4)


def test_a_minibatch_is_judged_by_critics_drawn_for_it() -> None:
    """A7: all its rows by the same ones, no critic twice, and each as often as another."""
    policy = make()
    drawn = [batch(policy).judges for _ in range(300)]
    assert all((each == each[0]).all() for each in drawn)
    chosen = torch.stack([each[0] for each in drawn])
    assert (chosen[:, 0] != chosen[:, 1]).all()
    assert torch.bincount(chosen.flatten(), minlength=5).min() > 80  # of 120 on average


def test_the_actor_learns_in_every_few_updates() -> None:
    """A7: by the policy's version, so that a resumed run goes on in step."""
    policy = make(policy_delay=3)
    changed = []
    for _ in range(6):
        before = [each.detach().clone() for each in policy.model.actor.parameters()]
        policy.learn_mode.learn_from(rows(24, 2))
        changed.append(not all(map(torch.equal, before, policy.model.actor.parameters())))
    assert changed == [False, False, True, False, False, True]


def test_dropout_follows_the_seed_and_never_the_global_generator() -> None:
    """D6."""
    policies, outside = [make(dropout=0.1, critics=2) for _ in range(2)], torch.get_rng_state()
    for policy in policies:
        for _ in range(3):
            policy.learn_mode.learn_from(rows(24, 2))
    one, other = (policy.model.critics.layers[0].weight for policy in policies)
    assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), outside)
    without = make(critics=2)
    for _ in range(3):
        without.learn_mode.learn_from(rows(24, 2))
    assert not torch.equal(one, without.model.critics.layers[0].weight)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="target_critics=3 of critics=2: expected at most all of them"):
        make(critics=2, target_critics=3)
    with pytest.raises(ConfigError, match=r"dropout=1\.0"):
        make(dropout=1.0)
    with pytest.raises(ConfigError, match="REDQ"):
        REDQPolicy(OBSERVATIONS, spaces.Discrete(2))

"""TD3 and DDPG: the loss against plain networks, the delayed actor, the smoothed target."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.errors import ConfigError
from flowrl.learners.training import Training
from flowrl.operators import AverageGradients
from flowrl.policies import DDPGPolicy, TD3Policy
from flowrl.testing import same
from tests.policies.plain import apart, pairs, rows

OBSERVATIONS, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32)


def make(kind: Any = TD3Policy, **kwargs: Any) -> TD3Policy:
    policy: TD3Policy = kind(OBSERVATIONS, BOX, **{"hidden": (16, 8), "seed": 3, **kwargs})
    for parameter in policy.target.parameters():  # so that it is not the online network
        parameter.add_(0.1)
    return policy


def batch(policy: TD3Policy) -> Any:
    learn = policy.learn_mode
    return learn.over_minibatch(learn.tensors(learn.prepare(rows(24, 2))))


@pytest.mark.parametrize("kind", [TD3Policy, DDPGPolicy])
def test_the_loss_against_plain_networks(kind: Any) -> None:
    """A5, A6: noise clipped, then the action; the minimum of the twins; the actor climbs the first critic alone."""
    twins = kind is TD3Policy
    policy = make(kind, **({"target_noise": 0.9, "target_noise_clip": 0.4} if twins else {}))
    policy.version = 1  # the next update is the second, in which the actor learns
    b = batch(policy)
    targets, networks = apart(policy.target.critics), apart(policy.model.critics)
    frozen = [copy.deepcopy(network).requires_grad_(False) for network in networks]
    actor = copy.deepcopy(policy.model.actor)
    clipped = [0, 0]
    y = []
    with torch.no_grad():
        for i in range(24):
            action = []
            for j, mean in enumerate(policy.target.actor(b.next_obs[i]).tanh().tolist()):
                noise = max(-0.4, min(0.4, 0.9 * float(b.next_noise[i, j]))) if twins else 0.0
                clipped[0] += abs(noise) == 0.4
                clipped[1] += abs(mean + noise) > 1
                action.append(max(-1.0, min(1.0, mean + noise)))
            judged = [float(net(torch.cat([b.next_obs[i], torch.tensor(action)]))) for net in targets]
            y.append(float(b.reward[i] + b.discount[i] * min(judged)))
    assert not twins or min(clipped) > 0, "the rows must show both"
    seen = torch.cat([b.obs, b.action], 1)
    critic_loss = sum(0.5 * (network(seen).squeeze(1) - torch.tensor(y)).square().mean() for network in networks)
    actor_loss = -frozen[0](torch.cat([b.obs, actor(b.obs).tanh()], 1)).mean()
    (critic_loss + actor_loss).backward()
    loss, scalars = policy.learn_mode.loss(b)
    loss.backward()
    assert scalars["critic_loss"].item() == pytest.approx(critic_loss.item(), rel=1e-4)
    assert scalars["actor_loss"].item() == pytest.approx(actor_loss.item(), rel=1e-4)
    for got, wanted in pairs(policy.model.critics, networks):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)
    for got, wanted in zip(policy.model.actor.parameters(), actor.parameters()):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-6)
    assert len(networks) == 1 + twins


def learned(policy: TD3Policy, updates: int) -> list[bool]:
    """In which of so many updates the actor's weights moved."""
    moved = []
    for _ in range(updates):
        before = copy.deepcopy(policy.model.actor.state_dict())
        policy.learn_mode.learn_from(rows(24, 2))
        moved.append(not same(before, policy.model.actor.state_dict()))
    return moved


def test_the_actor_learns_in_every_second_update_also_after_a_resume() -> None:
    """A6, D3: with nothing left of Adam's momentum in between."""
    policy, other = make(policy_delay=3), make(policy_delay=3, seed=5)
    assert learned(policy, 4) == [False, False, True, False]
    other.load_state_dict(policy.state_dict())
    assert learned(policy, 4) == learned(other, 4) == [False, True, False, False]
    assert same(policy.state_dict(), other.state_dict())
    assert learned(make(DDPGPolicy), 2) == [True, True]


def test_several_updates_of_a_batch_report_what_each_has() -> None:
    """The actor's loss is the mean over the updates in which it learned."""
    policy, again = make(), make()
    scalars = Training(num_sgd_iter=3)(policy.learn_mode, rows(24, 2), np.random.default_rng(0)).scalars
    steps = [again.learn_mode.learn_from(rows(24, 2)) for _ in range(3)]
    assert scalars["actor_loss"] == pytest.approx(float(steps[1]["actor_loss"]))
    assert scalars["q"] == pytest.approx(np.mean([float(step["q"]) for step in steps]))


def test_gradients_of_parts_of_a_batch_are_those_of_the_whole() -> None:
    """F13: with the same noise for the same rows, in updates with the actor and without."""
    for version in (0, 1):
        policy = make(target_noise=0.0)
        policy.version = version
        learn = policy.learn_mode
        full = learn.prepare(rows(24, 2))
        whole, average = learn.gradients(full), AverageGradients(2)
        (mean,) = [each for part in (full[:9], full[9:]) for each in average(learn.gradients(part))]
        assert whole.values.keys() == mean.values.keys()
        assert any(name.startswith("actor") for name in whole.values) == bool(version)
        for name, value in whole.values.items():
            torch.testing.assert_close(mean.values[name], value, rtol=1e-4, atol=1e-6)


def test_actor_and_critics_have_targets() -> None:
    """Q2"""
    policy = make()
    before = [parameter.clone() for parameter in policy.target.parameters()]
    policy.update_target(0.25)
    for old, new, online in zip(before, policy.target.parameters(), policy.model.parameters()):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * online)


def test_acting() -> None:
    """G6: what is stored lies in -1 .. 1; evaluation adds no noise."""
    policy, obs = make(exploration_noise=0.2, random_steps=5), rows(24, 2).obs
    noise = np.random.default_rng(0).random((24, 2))
    explored = policy.collect_mode.act(obs, noise, 5)
    greedy = policy.eval_mode.act(obs, noise[:, :0], 0)
    assert np.allclose(explored["env_action"], 2 * explored["action"], atol=1e-6)
    assert 0.1 < float(np.std(explored["action"] - greedy["action"])) < 0.3
    assert np.array_equal(policy.collect_mode.act(obs, noise, 4)["action"], (2 * noise - 1).astype(np.float32))


@pytest.mark.parametrize("kind", [TD3Policy, DDPGPolicy])
@pytest.mark.parametrize("actions", [spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (2,), np.float32)])
def test_actions_it_cannot_serve_are_refused(kind: Any, actions: Any) -> None:
    with pytest.raises(ConfigError, match=kind.__name__.removesuffix("Policy")):
        kind(OBSERVATIONS, actions)

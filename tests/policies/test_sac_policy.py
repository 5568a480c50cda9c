"""SAC: its loss against plain networks and torch's own gradients, and what learns from what."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as d

from flowrl.errors import ConfigError
from flowrl.policies import SACPolicy
from flowrl.testing import same
from tests.policies.plain import apart, pairs, rows

OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)
BOX, CHOICES = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)


def make(actions: Any = BOX, **kwargs: Any) -> SACPolicy:
    policy = SACPolicy(OBSERVATIONS, actions, **{"hidden": (16, 8), "temperature": 0.3, "seed": 3, **kwargs})
    for parameter in policy.target.parameters():  # so that it is not the online network
        parameter.add_(0.1)
    return policy


def batch(policy: SACPolicy, **kwargs: Any) -> Any:
    learn = policy.learn_mode
    actions = 4 if policy.discrete else None
    return learn.over_minibatch(learn.tensors(learn.prepare(rows(24, 2, actions=actions, **kwargs))))


def check_gradients(policy: SACPolicy, critics: Any, actor: Any, temperature: Any, ours: Any) -> None:
    """The loss is the sum of three, and each network has the gradient of its own and of no other."""
    networks, plain_actor, log_alpha = (
        apart(policy.model.critics),
        copy.deepcopy(policy.model.actor),
        torch.tensor(math.log(0.3), requires_grad=True),
    )
    frozen = [copy.deepcopy(network).requires_grad_(False) for network in networks]
    parts = critics(networks), actor(plain_actor, frozen), temperature(log_alpha)
    for part in parts:
        part.backward()
    loss, _ = ours
    loss.backward()
    assert loss.item() == pytest.approx(sum(part.item() for part in parts), rel=1e-4)
    for got, wanted in pairs(policy.model.critics, networks):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)
    for got, wanted in zip(policy.model.actor.parameters(), plain_actor.parameters()):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(policy.model.log_temperature.grad, log_alpha.grad, rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in policy.target.parameters())


@pytest.mark.parametrize("weighted", [False, True])
def test_the_continuous_loss_against_plain_networks(weighted: bool) -> None:
    """A1, A3, A4, A5, P2: target, critics, actor and temperature, each by a loop or torch's own densities."""
    policy = make()
    b = batch(policy, weighted=weighted)
    weight = b["weight"] if weighted else torch.ones(24)
    targets = apart(policy.target)

    def drawn(network: Any, obs: Any, normal: Any) -> Any:
        mean, log_std = network(obs).chunk(2, 1)
        u = mean + log_std.exp() * normal
        slope = d.TanhTransform().log_abs_det_jacobian(u, u.tanh())
        return u.tanh(), (d.Normal(mean, log_std.exp()).log_prob(u) - slope).sum(1)

    def q(networks: Any, obs: Any, action: Any) -> list[Any]:
        return [network(torch.cat([obs, action], 1)).squeeze(1) for network in networks]

    with torch.no_grad():
        next_action, next_logp = drawn(policy.model.actor, b.next_obs, b.next_noise)
        both = q(targets, b.next_obs, next_action)
        y = [float(b.reward[i] + b.discount[i] * (min(both[0][i], both[1][i]) - 0.3 * next_logp[i])) for i in range(24)]
        _, logp_now = drawn(policy.model.actor, b.obs, b.noise)

    def critics(networks: Any) -> Any:
        return sum((weight * 0.5 * (each - torch.tensor(y)) ** 2).mean() for each in q(networks, b.obs, b.action))

    def actor(network: Any, frozen: Any) -> Any:
        action, logp = drawn(network, b.obs, b.noise)
        return (weight * (0.3 * logp - torch.minimum(*q(frozen, b.obs, action)))).mean()

    def temperature(log_alpha: Any) -> Any:
        return -(weight * log_alpha * (logp_now + -2.0)).mean()  # -dim(A)

    ours = policy.learn_mode.loss(b)
    check_gradients(policy, critics, actor, temperature, ours)
    if weighted:
        errors = torch.stack(q(apart(policy.model.critics), b.obs, b.action)) - torch.tensor(y)
        torch.testing.assert_close(ours[1]["priority"], errors.abs().mean(0), rtol=1e-3, atol=1e-5)
    assert ours[1]["entropy"].item() == pytest.approx(-logp_now.mean().item(), rel=1e-4)


def test_the_discrete_loss_against_a_loop() -> None:
    """A3, A4, A5: expectations over all actions; nothing is drawn."""
    policy = make(CHOICES, entropy_fraction=0.7)
    b = batch(policy)
    targets = apart(policy.target)

    def mean_over_actions(logits: Any, values: list[Any], sign: float) -> Any:
        """The soft value of one state, or its negative."""
        p = torch.softmax(logits, 0)
        return sum(p[a] * sign * (min(values[0][a], values[1][a]) - 0.3 * p[a].log()) for a in range(4))

    with torch.no_grad():
        y = torch.stack(
            [
                b.reward[i].float()
                + b.discount[i]
                * mean_over_actions(policy.model(b.next_obs)[i], [net(b.next_obs[i]) for net in targets], 1.0)
                for i in range(24)
            ]
        )
        p = torch.softmax(policy.model(b.obs), 1)
        entropy = -(p * p.log()).sum(1)

    def critics(networks: Any) -> Any:
        return sum(0.5 * (network(b.obs)[torch.arange(24), b.action] - y).square().mean() for network in networks)

    def actor(network: Any, frozen: Any) -> Any:
        each = [mean_over_actions(network(b.obs[i]), [net(b.obs[i]) for net in frozen], -1.0) for i in range(24)]
        return torch.stack(each).mean()

    def temperature(log_alpha: Any) -> Any:
        return (log_alpha * (entropy - 0.7 * math.log(4))).mean()

    check_gradients(policy, critics, actor, temperature, policy.learn_mode.loss(b))


@pytest.mark.parametrize("actions", [BOX, CHOICES])
def test_each_network_learns_from_its_own_terms(actions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A4: the actor's terms give the critics no gradient, and the temperature's give the actor none."""
    policy = make(actions)
    critics, actor = list(policy.model.critics.parameters()), list(policy.model.actor.parameters())
    parts: list[Any] = []
    monkeypatch.setattr(policy.learn_mode, "combined", lambda *given: parts.extend(given))
    policy.learn_mode.loss(batch(policy))
    _, q, value_t, terms, reported = parts
    for loss, others in ((terms, critics), (q, [*actor, policy.model.log_temperature])):
        gradients = torch.autograd.grad(loss.sum(), others, allow_unused=True, retain_graph=True)
        assert gradients == (None,) * len(others)
    assert not value_t.requires_grad
    assert not reported["entropy"].requires_grad
    assert all(g.any() for g in torch.autograd.grad(terms.sum(), [*actor, policy.model.log_temperature]))


def test_the_temperature_rises_where_entropy_is_missing() -> None:
    """A3, A4: one step of Adam on log α."""
    for target, sign in ((100.0, 1), (-100.0, -1)):
        policy = make(target_entropy=target, learning_rate=0.01)
        policy.learn_mode.learn_from(rows(24, 2))
        moved = policy.model.log_temperature.item() - math.log(0.3)
        assert moved == pytest.approx(sign * 0.01, rel=1e-3)
    fixed = make(learn_temperature=False)
    fixed.learn_mode.learn_from(rows(24, 2))
    assert fixed.model.log_temperature.item() == pytest.approx(math.log(0.3))
    moved = [parameter for group in fixed.optimizer.param_groups for parameter in group["params"]]
    assert all(parameter.grad is not None for parameter in moved), "the optimiser is given what is learned alone"


def test_target_entropies() -> None:
    """A3: −dim(A), or c log n with 0 < c < 1; or as it is given."""
    assert make(spaces.Box(-1, 1, (2, 3), np.float32)).entropy == -6
    assert make(CHOICES, entropy_fraction=0.7).entropy == pytest.approx(0.7 * math.log(4))
    assert make(target_entropy=-1.5).entropy == -1.5
    with pytest.raises(ConfigError, match="entropy_fraction=1"):
        make(CHOICES, entropy_fraction=1.0)
    with pytest.raises(ConfigError, match="temperature=0"):
        make(temperature=0.0)


def test_units_of_the_environment_change_nothing_but_its_actions() -> None:
    """A2: the density is that of the action stored; what is learned is the same to the bit."""
    policies = [make(BOX), make(spaces.Box(-5, 20, (2,), np.float32))]
    obs, noise = rows(8, 2).obs, np.random.default_rng(0).random((8, 2))
    acted = [policy.collect_mode.act(obs, noise, 0) for policy in policies]
    assert np.array_equal(acted[0]["action"], acted[1]["action"])
    assert np.allclose(acted[1]["env_action"], 7.5 + 12.5 * acted[0]["env_action"], atol=1e-5)
    for policy in policies:
        policy.learn_mode.learn_from(rows(24, 2))
    assert same(policies[0].state_dict(), policies[1].state_dict())


@pytest.mark.parametrize("actions", [BOX, CHOICES])
def test_acting(actions: Any) -> None:
    """Uniform at first, then by the actor; alike in numpy; greedy in evaluation."""
    policy, numpy = make(actions, random_steps=10), make(actions, random_steps=10, act_backend="numpy")
    obs = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    noise = np.random.default_rng(1).random((30, policy.collect_mode.draws))
    early, late = (policy.collect_mode.act(obs, noise, steps)["action"] for steps in (9, 10))
    assert np.array_equal(early, policy.choosing.uniform(noise))
    assert not np.array_equal(early, late)
    assert np.allclose(late, numpy.collect_mode.act(obs, noise, 10)["action"], atol=1e-5)
    with torch.no_grad():
        given = policy.model(torch.from_numpy(obs)).numpy()
    greedy = given.argmax(1) if policy.discrete else np.tanh(given[:, :2])
    for each in (policy, numpy):
        assert np.allclose(each.eval_mode.act(obs, noise, 0)["action"], greedy, atol=1e-5)


def test_the_target_critics_follow() -> None:
    """Q2: they alone; the actor has no target."""
    policy = make()
    before = [parameter.clone() for parameter in policy.target.parameters()]
    policy.update_target(0.25)
    for old, new, online in zip(before, policy.target.parameters(), policy.model.critics.parameters()):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * online)


def test_noise_comes_from_the_policys_own_stream_and_goes_on_after_a_resume() -> None:
    """D3, D6"""
    policy, other = make(), make(seed=9)
    learn = policy.learn_mode
    learn.learn_from(rows(24, 2))
    outside = torch.get_rng_state()
    other.load_state_dict(policy.state_dict())
    for each in (policy, other):
        each.learn_mode.learn_from(rows(24, 2))
    assert same(policy.state_dict(), other.state_dict())
    assert torch.equal(outside, torch.get_rng_state())
    first, second = learn.over_minibatch(learn.tensors(rows(24, 2))), learn.over_minibatch(learn.tensors(rows(24, 2)))
    assert not torch.equal(first.noise, second.noise)
    assert not torch.equal(first.noise, first.next_noise)


def test_rates_of_learning() -> None:
    """Q7: of the critics one of their own; schedules of both are followed."""
    policy = make(learning_rate=lambda steps: 0.1 / (1 + steps), critic_learning_rate=0.01)
    assert [group["lr"] for group in policy.optimizer.param_groups] == [0.1, 0.01]
    policy.learn_mode.schedule(4)
    assert [group["lr"] for group in policy.optimizer.param_groups] == pytest.approx([0.02, 0.01])
    before = copy.deepcopy(list(policy.model.critics.parameters()))
    policy.learn_mode.learn_from(rows(24, 2))
    steps = [float((a - b).detach().abs().max()) for a, b in zip(before, policy.model.critics.parameters())]
    assert max(steps) == pytest.approx(0.01, rel=1e-2)  # Adam's first step


def test_images_are_encoded_by_what_the_critics_have_learned() -> None:
    """A4: the actor acts on the encoder's features, and its terms give the encoder no gradient."""
    policy = SACPolicy(spaces.Box(0, 255, (8, 8, 1), np.uint8), BOX, hidden=(8,))
    images = np.random.default_rng(0).integers(256, size=(2, 6, 8, 8, 1)).astype(np.uint8)
    learn, critics = policy.learn_mode, policy.model.critics
    given = rows(6, 2).replace(obs=images[0], next_obs=images[1], discount=np.zeros(6, np.float32))
    b = learn.over_minibatch(learn.tensors(learn.prepare(given)))
    learn.loss(b)[0].backward()
    got = [parameter.grad.clone() for parameter in critics.encoder.parameters()]
    policy.optimizer.zero_grad()
    alone = critics(critics.encoder(b.obs), b.action) - b.reward.float()
    (0.5 * alone.square().sum(0)).mean().backward()
    for ours, parameter in zip(got, critics.encoder.parameters()):
        torch.testing.assert_close(ours, parameter.grad)


@pytest.mark.parametrize(
    ("actions", "message"),
    [(spaces.MultiDiscrete([2, 2]), "continuous"), (spaces.Box(-np.inf, np.inf, (2,), np.float32), "bounds")],
)
def test_actions_it_cannot_serve_are_refused(actions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(actions)

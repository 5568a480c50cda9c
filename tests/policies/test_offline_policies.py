"""BC, MARWIL, IQL, CQL and TD3+BC: each loss and its gradients against plain loops, and what learns from what."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as d

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.learners.training import Training
from flowrl.networks.distributions import GaussianChoice
from flowrl.plans import CQL
from flowrl.policies import (
    BCPolicy,
    CQLPolicy,
    DiscreteCQLPolicy,
    DQNPolicy,
    IQLPolicy,
    MARWILPolicy,
    SACPolicy,
    TD3BCPolicy,
    TD3Policy,
)
from flowrl.policies.iql import expectile_loss, of_actions
from flowrl.testing import same
from tests.offline_data import offline_data
from tests.policies.plain import apart, pairs, rows

OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)
BOX, CHOICES = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)


def make(kind: Any, actions: Any, **kwargs: Any) -> Any:
    policy = kind(OBSERVATIONS, actions, **{"hidden": (16, 8), "seed": 3, "device": "cpu", **kwargs})
    if hasattr(policy, "target"):
        for parameter in policy.target.parameters():  # so that it is not the online network
            parameter.data.add_(0.1)
    return policy


def batch(policy: Any) -> Batch:
    learn = policy.learn_mode
    given = learn.prepare(rows(24, 2, actions=of(policy.action_space)))
    found: Batch = learn.over_minibatch(learn.tensors(given))
    return found


def of(space: Any) -> int | None:
    """How many choices there are, if they are such."""
    return 4 if isinstance(space, spaces.Discrete) else None


def logp(policy: Any, given: Any, action: Any) -> Any:
    """Of one action, by torch's own distributions."""
    if isinstance(policy.action_space, spaces.Discrete):
        return d.Categorical(logits=given).log_prob(action)
    mean, log_std = given.chunk(2)
    return d.Normal(mean.tanh(), log_std.clamp(-5, 2).exp()).log_prob(action).sum()


@pytest.mark.parametrize("actions", [BOX, CHOICES], ids=["continuous", "discrete"])
def test_the_loss_of_bc_against_a_loop(actions: Any) -> None:
    """N6: the cross entropy, or that of a normal distribution around tanh of the mean."""
    policy = make(BCPolicy, actions)
    b = batch(policy)
    given = policy.model(b.obs)
    wanted = -sum(logp(policy, given[i], b.action[i]) for i in range(24)) / 24
    loss, scalars = policy.learn_mode.loss(b)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert scalars["loss"].item() == pytest.approx(loss.item())
    padded = Batch(obs=np.zeros((2, 2, 3), np.float32), action=np.zeros((2, 2), int), mask=[[1, 1], [1, 0]])
    assert len(policy.learn_mode.prepare(padded)) == 3


@pytest.mark.parametrize("actions", [BOX, CHOICES], ids=["continuous", "discrete"])
def test_the_loss_of_marwil_against_a_loop(actions: Any) -> None:
    """G2, T6: weights by advantages over their running size; the return of an episode that was cut is bootstrapped."""
    policy = make(MARWILPolicy, actions, beta=0.7, value_coef=0.3, max_weight=2.0, norm_rate=0.1)
    b, mean_square = policy.learn_mode.prepare(rows(24, 2, actions=of(actions))), 0.0
    b = policy.learn_mode.tensors(b)
    for update in range(3):
        with torch.no_grad():
            value = [float(policy.model.value(b.obs)[i]) for i in range(24)]
            target = [float(b.reward[i] + b.discount[i] * policy.model.value(b.next_obs)[i]) for i in range(24)]
            advantage = [target[i] - value[i] for i in range(24)]
            mean_square += 0.1 * (sum(a * a for a in advantage) / 24 - mean_square)
            c = math.sqrt(mean_square / (1 - 0.9 ** (update + 1)))
            weight = [min(math.exp(0.7 * a / c), 2.0) for a in advantage]
        assert max(weight) == 2.0
        plain_actor, plain_critic = copy.deepcopy(policy.model.actor), copy.deepcopy(policy.model.critic)
        given, plain = plain_actor(b.obs), plain_critic(b.obs).squeeze(1)
        imitation = -sum(weight[i] * logp(policy, given[i], b.action[i]) for i in range(24)) / 24
        wanted = imitation + 0.3 * sum(0.5 * (plain[i] - target[i]) ** 2 for i in range(24)) / 24
        wanted.backward()
        scalars = policy.learn_mode.update(b)
        assert scalars["loss"].item() == pytest.approx(wanted.item(), rel=1e-4)
        for network, ours in ((plain_actor, policy.model.actor), (plain_critic, policy.model.critic)):
            for theirs, parameter in zip(network.parameters(), ours.parameters()):
                torch.testing.assert_close(parameter.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert policy.weights()["mean_square"].item() == pytest.approx(mean_square, rel=1e-4)  # part of the weights


def test_marwil_without_a_weight_is_bc() -> None:
    """Beta 0: the actor has the gradient of behavioural cloning."""
    cloned, policy = make(BCPolicy, CHOICES), make(MARWILPolicy, CHOICES, beta=0.0)
    policy.model.actor.load_state_dict(cloned.model.actor.state_dict())
    for each in (cloned, policy):
        each.learn_mode.loss(batch(each))[0].backward()
    for ours, theirs in zip(policy.model.actor.parameters(), cloned.model.actor.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("actions", [BOX, CHOICES], ids=["continuous", "discrete"])
def test_the_loss_of_iql_against_a_loop(actions: Any) -> None:
    """A5, T6: values of the data's actions alone; each network learns from its own terms."""
    policy = make(IQLPolicy, actions, expectile=0.8, beta=2.0, max_weight=1.01)
    b = batch(policy)
    with torch.no_grad():  # so that there are advantages of both signs
        judged = of_actions(policy.target, b.obs, b.action).amin(0)
        policy.model.state_value[-1].bias += (judged - policy.model.value(b.obs)).median()
    networks, targets = apart(policy.model.critics), apart(policy.target)
    actor, critic = copy.deepcopy(policy.model.actor), copy.deepcopy(policy.model.state_value)

    def q(network: Any, i: int) -> Any:
        if actions is CHOICES:
            return network(b.obs[i])[b.action[i]]
        return network(torch.cat([b.obs[i], b.action[i]]))[0]

    parts: dict[str, Any] = {"critics": 0, "value": 0, "actor": 0}
    weights = []
    for i in range(24):
        with torch.no_grad():
            y = b.reward[i].float() + b.discount[i] * critic(b.next_obs[i])[0]
            judged = min(q(network, i) for network in targets)
        parts["critics"] += sum(0.5 * (q(network, i) - y) ** 2 for network in networks) / 24
        u = judged - critic(b.obs[i])[0]
        parts["value"] += (0.2 if u < 0 else 0.8) * u**2 / 24
        weights.append(min(math.exp(2.0 * u.item()), 1.01))
        parts["actor"] -= weights[-1] * logp(policy, actor(b.obs[i]), b.action[i]) / 24
    assert min(weights) < 1 < 1.01 == max(weights)
    for part in parts.values():
        part.backward()
    loss, scalars = policy.learn_mode.loss(b)
    loss.backward()
    assert loss.item() == pytest.approx(sum(part.item() for part in parts.values()), rel=1e-4)
    assert scalars["value_loss"].item() == pytest.approx(parts["value"].item(), rel=1e-4)
    for got, wanted in pairs(policy.model.critics, networks):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)
    for plain, ours in ((actor, policy.model.actor), (critic, policy.model.state_value)):
        for theirs, parameter in zip(plain.parameters(), ours.parameters()):
            torch.testing.assert_close(parameter.grad, theirs.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("tau", [0.5, 0.7, 0.95])
def test_what_minimises_it_is_the_expectile(tau: float) -> None:
    """Against the definition, of a thousand numbers; 0.5 is the mean."""
    numbers = torch.from_numpy(np.random.default_rng(0).exponential(size=1_000))
    grid = torch.linspace(0, 4, 4_001, dtype=torch.float64)
    found = grid[expectile_loss(numbers[:, None] - grid, tau).mean(0).argmin()]
    above, below = (numbers - found).clamp(min=0).mean(), (found - numbers).clamp(min=0).mean()
    assert float(tau * above) == pytest.approx(float((1 - tau) * below), rel=2e-2)


def test_the_penalty_of_discrete_cql_against_a_loop() -> None:
    """Q1: beside the loss of DQN, over the valid actions."""
    space = spaces.Dict(at=OBSERVATIONS, action_mask=spaces.MultiBinary(4))
    settings = {"hidden": (16,), "seed": 3, "device": "cpu"}
    policy, plain = (
        DiscreteCQLPolicy(space, CHOICES, conservatism=0.5, **settings),
        DQNPolicy(space, CHOICES, **settings),
    )
    given = rows(24, 2, actions=4)
    mask = np.random.default_rng(1).integers(2, size=(24, 4)).astype(np.int8)
    mask[np.arange(24), given.action] = 1
    given = given.replace(
        obs=Batch(at=given.obs, action_mask=mask), next_obs=Batch(at=given.next_obs, action_mask=mask)
    )
    b = policy.learn_mode.tensors(given)
    assert same(policy.weights(), plain.weights())
    values = policy.model(b.obs)
    gap = 0
    for i in range(24):
        valid = [float(values[i, a].detach()) for a in range(4) if mask[i, a]]
        gap += (math.log(sum(math.exp(v) for v in valid)) - float(values[i, b.action[i]].detach())) / 24
    loss, scalars = policy.learn_mode.loss(b)
    assert loss.item() == pytest.approx(plain.learn_mode.loss(b)[0].item() + 0.5 * gap, rel=1e-4)
    assert scalars["conservative_gap"].item() == pytest.approx(gap, rel=1e-4)


def test_the_penalty_of_continuous_cql_against_a_loop() -> None:
    """A1, A4: beside the loss of SAC; importance sampling of three kinds of actions, which the actor does not feel."""
    policy = make(CQLPolicy, BOX, conservatism=0.5, candidates=3, temperature=0.3)
    plain = make(SACPolicy, BOX, temperature=0.3)
    b = batch(policy)
    assert same(policy.weights(), plain.weights())
    assert abs(b.candidate_noise[:, 0]).max() <= 1
    networks = apart(policy.model.critics)

    def drawn(obs: Any, normal: Any) -> tuple[Any, float]:
        mean, log_std = policy.model.actor(obs).detach().chunk(2)
        base = d.Normal(mean, log_std.exp())
        squashed = d.TransformedDistribution(base, d.TanhTransform(cache_size=1))
        action = (mean + log_std.exp() * normal).tanh()
        return action, float(squashed.log_prob(action).sum())

    gap: Any = 0
    for i in range(24):
        kinds = [(b.candidate_noise[i, 0, j], 2 * math.log(0.5)) for j in range(3)]
        kinds += [drawn(b.obs[i], b.candidate_noise[i, 1, j]) for j in range(3)]
        kinds += [drawn(b.next_obs[i], b.candidate_noise[i, 2, j]) for j in range(3)]
        for network in networks:
            soft = sum(torch.exp(network(torch.cat([b.obs[i], a]))[0] - p) for a, p in kinds) / 9
            gap += (soft.log() - network(torch.cat([b.obs[i], b.action[i]]))[0]) / 24
    (0.5 * gap).backward()
    of_sac, _ = plain.learn_mode.loss(b)
    of_sac.backward()
    loss, scalars = policy.learn_mode.loss(b)
    loss.backward()
    assert scalars["conservative_gap"].item() == pytest.approx(gap.item(), rel=1e-3)
    assert loss.item() == pytest.approx(of_sac.item() + 0.5 * gap.item(), rel=1e-4)
    theirs = [parameter.grad for parameter in plain.model.actor.parameters()]
    for parameter, wanted in zip(policy.model.actor.parameters(), theirs):
        torch.testing.assert_close(parameter.grad, wanted)  # as if there were no penalty
    for k, linear in enumerate(network[0] for network in networks):
        got = policy.model.critics.layers[0].weight.grad[k] - plain.model.critics.layers[0].weight.grad[k]
        torch.testing.assert_close(got.T, linear.weight.grad, rtol=1e-2, atol=1e-4)


def test_the_critics_of_edac_disagree_as_in_a_loop() -> None:
    """A11: over all pairs of critics, each as a network of its own; the actor does not feel it."""
    policy = make(CQLPolicy, BOX, conservatism=0.0, diversity=0.7, critics=4)
    plain = make(SACPolicy, BOX, critics=4)
    b = batch(policy)
    networks = apart(policy.model.critics)
    agreement: Any = 0
    for i in range(24):
        action = b.action[i].clone().requires_grad_()
        slopes = []
        for network in networks:
            value = network(torch.cat([b.obs[i], action]))[0]
            slopes += torch.autograd.grad(value, action, create_graph=True)
        for one in range(4):
            for other in range(one):
                cosine = slopes[one] @ slopes[other] / (slopes[one].norm() * slopes[other].norm())
                agreement += cosine / 3 / 24
    (0.7 * agreement).backward()
    of_sac, _ = plain.learn_mode.loss(b)
    of_sac.backward()
    loss, scalars = policy.learn_mode.loss(b)
    loss.backward()
    assert scalars["agreement"].item() == pytest.approx(agreement.item(), rel=1e-4)
    assert "conservative_gap" not in scalars
    assert loss.item() == pytest.approx(of_sac.item() + 0.7 * agreement.item(), rel=1e-5)
    theirs = [parameter.grad for parameter in plain.model.actor.parameters()]
    for parameter, wanted in zip(policy.model.actor.parameters(), theirs):
        torch.testing.assert_close(parameter.grad, wanted)
    for k, linear in enumerate(network[0] for network in networks):
        got = policy.model.critics.layers[0].weight.grad[k] - plain.model.critics.layers[0].weight.grad[k]
        torch.testing.assert_close(got.T, linear.weight.grad, rtol=1e-2, atol=1e-5)
    one = gymnasium.spaces.Box(-2, 2, (1,), np.float32)
    for space, critics in ((BOX, 1), (one, 4)):
        with pytest.raises(ConfigError, match="expected at least two of both"):
            make(CQLPolicy, space, diversity=0.7, critics=critics)
    with pytest.raises(ConfigError, match="needs continuous actions, but the action space is Discrete"):
        CQL(data=offline_data("CartPole-v1"), diversity=0.7)


def test_the_actor_of_td3_bc_against_a_loop() -> None:
    """A9: values of unit size, whatever the rewards; the critics learn as those of TD3."""
    policy = make(TD3BCPolicy, BOX, value_weight=1.5, policy_delay=1)
    b = batch(policy)
    first = apart(policy.model.critics)[0]
    actions = [torch.tanh(policy.model.actor(b.obs[i])) for i in range(24)]
    values = [first(torch.cat([b.obs[i], actions[i]]))[0] for i in range(24)]
    size = sum(abs(value.item()) for value in values) / 24
    wanted = sum((actions[i] - b.action[i]).square().sum() / 2 - 1.5 / size * values[i] for i in range(24)) / 24
    wanted.backward()
    gradients = [parameter.grad.clone() for parameter in policy.model.actor.parameters()]
    policy.model.zero_grad()
    loss, reported = policy.learn_mode.loss(b)
    loss.backward()
    assert reported["actor_loss"].item() == pytest.approx(wanted.item(), rel=1e-4)
    for parameter, gradient in zip(policy.model.actor.parameters(), gradients):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)
    plain = make(TD3Policy, BOX, policy_delay=1)
    assert plain.learn_mode.loss(b)[1]["critic_loss"] == reported["critic_loss"]


def test_the_integral_of_the_penalty_is_estimated_rightly() -> None:
    """Of many candidates it is the logarithm of the integral over all actions, by a fine grid."""
    one = spaces.Box(-1, 1, (1,), np.float32)
    policy = make(CQLPolicy, one, candidates=4_000)
    learn = policy.learn_mode
    given = rows(3, 1)
    b = learn.over_minibatch(learn.tensors(learn.prepare(given)))
    _, scalars = learn.loss(b)
    grid, wanted = torch.linspace(-1, 1, 2_001)[:, None], 0.0
    with torch.no_grad():
        for network in apart(policy.model.critics):
            for i in range(3):
                q = network(torch.cat([b.obs[i].expand(2_001, -1), grid], 1))[:, 0]
                wanted += float((q.exp().mean() * 2).log() - network(torch.cat([b.obs[i], b.action[i]]))[0]) / 3
    assert scalars["conservative_gap"].item() == pytest.approx(wanted, abs=0.03)


def test_a_normal_choice_draws_and_judges_what_it_draws() -> None:
    """G6, A2: in -1 .. 1 whatever the bounds; frequencies are those of its density."""
    choice = GaussianChoice(spaces.Box(np.float32(0), np.float32(10), (1,)), "BC")
    given = np.tile(np.array([[0.3, -1.5]], np.float32), (20_000, 1))
    noise = np.random.default_rng(0).random((20_000, 1))
    drawn = choice.explore(given, noise, 0)[:, 0]
    density = d.Normal(math.tanh(0.3), math.exp(-1.5))
    assert drawn.mean() == pytest.approx(density.mean.item(), abs=0.01)
    assert drawn.std() == pytest.approx(density.stddev.item(), abs=0.01)
    logp = choice.logp(torch.from_numpy(given[:5]), torch.from_numpy(drawn[:5, None]))
    torch.testing.assert_close(logp, density.log_prob(torch.from_numpy(drawn[:5])), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(choice.for_env(choice.greedy(given[:1])), [[5 + 5 * math.tanh(0.3)]], rtol=1e-5)
    narrow = choice.logp(torch.tensor([[0.0, -9.0]]), torch.tensor([[0.01]]))  # nothing is ever more certain than that
    torch.testing.assert_close(narrow[0], d.Normal(0.0, math.exp(-5)).log_prob(torch.tensor(0.01)))


def test_actions_that_they_cannot_take_are_refused() -> None:
    for kind in (BCPolicy, MARWILPolicy, IQLPolicy):
        with pytest.raises(ConfigError, match=f"{kind.__name__.removesuffix('Policy')} takes continuous actions"):
            make(kind, spaces.MultiBinary(3))
        with pytest.raises(ConfigError, match="has none"):
            make(kind, spaces.Box(-np.inf, np.inf, (2,), np.float32))
    with pytest.raises(ConfigError, match="CQL takes continuous actions"):
        make(CQLPolicy, gymnasium.spaces.MultiDiscrete([2, 2]))


@pytest.mark.parametrize("kind", [BCPolicy, MARWILPolicy, IQLPolicy, CQLPolicy])
def test_acting_in_numpy_is_acting_in_torch(kind: Any) -> None:
    """D2: to rounding."""
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    there, here = (make(kind, BOX, act_backend=backend) for backend in ("torch", "numpy"))
    for mode in ("collect_mode", "eval_mode"):
        columns = [getattr(each, mode).act(obs, np.full((5, 2), 0.3), 0) for each in (there, here)]
        np.testing.assert_allclose(columns[0]["action"], columns[1]["action"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fragments", [False, True])
def test_rows_with_as_many_observed_numbers_as_actions_are_rows(fragments: bool) -> None:
    """F12: shapes tell nothing where both have two numbers a step; the observation space does."""
    policy = BCPolicy(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,)), hidden=(8,), device="cpu")
    shape = (15, 4, 2) if fragments else (60, 2)
    batch = Batch(obs=np.zeros(shape, np.float32), action=np.zeros(shape, np.float32))
    trained = Training(minibatch_size=20)(policy.learn_mode, batch, np.random.default_rng(0))
    assert trained.counters == {"trained": 60, "updates": 3}

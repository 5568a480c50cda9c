"""CrossQ: batch renormalization against torch's batch normalization and a loop; an update against plain networks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from flowrl.errors import ConfigError, NotFinite, PlanError
from flowrl.networks.in_numpy import in_numpy
from flowrl.operators import UpdateTargetNetwork
from flowrl.policies import CrossQPolicy
from flowrl.policies.crossq import BatchRenorm, Minibatch
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from tests.learners.test_all_reduce import together
from tests.policies.plain import rows

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)


def make(**settings: Any) -> CrossQPolicy:
    given = {"hidden": (16, 8), "critic_hidden": (12, 6), "temperature": 0.3, "seed": 3, "policy_delay": 1, **settings}
    return shaken(CrossQPolicy(OBSERVATIONS, ACTIONS, device="cpu", **given))


def shaken(of: Any) -> Any:
    """With statistics, scales and shifts that differ from 1 and 0."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm in (each for each in getattr(of, "model", of).modules() if isinstance(each, BatchRenorm)):
            for part, least in ((norm.weight, 0.5), (norm.bias, -0.5), (norm.mean, -0.5), (norm.var, 0.5)):
                part.copy_(least + torch.rand(part.shape, generator=draw))
    return of


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3 + 1


def plain_norm(norm: BatchRenorm, k: int) -> nn.BatchNorm1d:
    """Torch's batch normalization with the same numbers, of one of several networks."""
    plain = nn.BatchNorm1d(norm.weight.shape[-1], eps=1e-3, momentum=0.01)
    for ours, theirs in ((norm.weight, plain.weight), (norm.bias, plain.bias)):
        theirs.data.copy_(ours.detach().reshape(-1, plain.num_features)[k])
    for ours, theirs in ((norm.mean, plain.running_mean), (norm.var, plain.running_var)):
        theirs.copy_(ours.reshape(-1, plain.num_features)[k])
    return plain


@pytest.mark.parametrize("shape", [(1, 4), (3, 1, 4)])
def test_in_the_warm_up_it_is_batch_normalization(shape: tuple[int, ...]) -> None:
    """A10: values, gradients and running statistics are those of torch, for one network and for several."""
    norm, x = shaken(BatchRenorm(*shape)), numbers(*shape[:-2], 20, 4).requires_grad_()
    batch = Minibatch()
    y = norm(x, batch)
    weigh = numbers(*y.shape)
    (y * weigh).sum().backward()
    plains = [plain_norm(norm, k) for k in range(shape[0])]
    again = x.detach().reshape(-1, 20, 4).clone().requires_grad_()
    wanted = torch.stack([plain(again[k]) for k, plain in enumerate(plains)])
    (wanted * weigh.reshape(wanted.shape)).sum().backward()
    torch.testing.assert_close(y.reshape(wanted.shape), wanted)
    torch.testing.assert_close(x.grad.reshape(again.shape), again.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.weight.grad.reshape(-1, 4), torch.stack([each.weight.grad for each in plains]))
    before = norm.var.clone()
    norm.follow(batch.statistics[norm], 0.01)
    torch.testing.assert_close(norm.mean.reshape(-1, 4), torch.stack([each.running_mean for each in plains]))
    # Torch's running variance is that of a sample, n / (n - 1) times that of the batch.
    sample = torch.stack([each.running_var for each in plains]).reshape(shape) - 0.99 * before
    torch.testing.assert_close(norm.var - 0.99 * before, sample * 19 / 20)


def test_after_it_batches_are_corrected_towards_the_running_statistics() -> None:
    """A10: against a loop over columns, with one beyond each bound; within them it computes what acting does."""
    norm, x = shaken(BatchRenorm(1, 4)), numbers(20, 4) * torch.tensor([0.3, 0.05, 9.0, 0.3])
    x[:, 3] += 20
    y = norm(x, Minibatch(renormalize=True)).detach()
    weight, bias, running_mean, running_var = (
        each.flatten().tolist() for each in (norm.weight, norm.bias, norm.mean, norm.var)
    )
    for j in range(4):
        mean, deviation = float(x[:, j].mean()), (float(x[:, j].var(correction=0)) + 1e-3) ** 0.5
        running = (running_var[j] + 1e-3) ** 0.5
        r = min(max(deviation / running, 1 / 3), 3.0)
        d = min(max((mean - running_mean[j]) / running, -5.0), 5.0)
        wanted = [((number - mean) / deviation * r + d) * weight[j] + bias[j] for number in x[:, j].tolist()]
        assert y[:, j].tolist() == pytest.approx(wanted, abs=1e-4)
    acting = norm(x)
    torch.testing.assert_close(y[:, 0], acting[:, 0].detach(), rtol=1e-4, atol=1e-5)
    assert all(not torch.allclose(y[:, j], acting[:, j], atol=0.1) for j in (1, 2, 3))


def test_r_and_d_have_no_gradients() -> None:
    """A10: with them a batch keeps the gradients of batch normalization, r times as large."""
    norm, x = shaken(BatchRenorm(1, 4)), numbers(20, 4).requires_grad_()
    weigh = numbers(20, 4)
    found = [torch.autograd.grad((norm(x, Minibatch(way)) * weigh).sum(), x)[0] for way in (False, True)]
    r = (x.var(0, correction=0) + 1e-3).sqrt() / (norm.var[0] + 1e-3).sqrt()
    torch.testing.assert_close(found[1], found[0] * r.clamp(1 / 3, 3).detach(), rtol=1e-3, atol=1e-5)


def plain(norms: Any, linears: Any, k: int = 0) -> nn.Sequential:
    """A network apart; `linears` are pairs of weights `[in, out]` and biases."""
    layers: list[nn.Module] = []
    for norm, (weight, bias) in zip(norms, linears):
        linear = nn.Linear(*weight.shape)
        linear.weight.data, linear.bias.data = weight.detach().T.clone(), bias.detach().flatten().clone()
        layers += [plain_norm(norm, k), linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def networks_of(policy: CrossQPolicy) -> tuple[nn.Sequential, list[nn.Sequential]]:
    """The actor and the critics, apart."""
    actor, critics = policy.model.actor, policy.model.critics
    norms, linears = list(actor)[::3], list(actor)[1::3]
    return plain(norms, [(each.weight.T, each.bias) for each in linears]), [
        plain(critics.norms, [(each.weight[k], each.bias[k]) for each in critics.layers], k) for k in range(critics.k)
    ]


@pytest.mark.parametrize("weighted", [False, True])
def test_an_update_against_plain_networks(weighted: bool) -> None:
    """A10: targets by one forward of both halves; gradients of each network, and the statistics that follow."""
    policy = make()
    learn: Any = policy.learn_mode
    b = learn.over_minibatch(learn.tensors(learn.prepare(rows(24, 2, weighted=weighted))))
    weight = b["weight"] if weighted else torch.ones(24)
    actor, critics = networks_of(policy)
    judges = [copy.deepcopy(each).eval().requires_grad_(False) for each in critics]
    choosing: Any = policy.choosing

    with torch.no_grad():
        next_action, next_logp = choosing.sample(copy.deepcopy(actor).eval()(b.next_obs), b.next_noise)
    obs, actions = torch.cat([b.obs, b.next_obs]), torch.cat([b.action, next_action])
    values = [network(torch.cat([obs, actions], 1)).squeeze(1) for network in critics]
    of_next = [each[24:].tolist() for each in values]
    y = [float(b.reward[i] + b.discount[i] * (min(q[i] for q in of_next) - 0.3 * next_logp[i])) for i in range(24)]
    errors = [each[:24] - torch.tensor(y) for each in values]
    sum((weight * 0.5 * error**2).mean() for error in errors).backward()

    action, logp = choosing.sample(actor(b.obs), b.noise)
    climbed = torch.minimum(*(network(torch.cat([b.obs, action], 1)).squeeze(1) for network in judges))
    (weight * (0.3 * logp - climbed)).mean().backward()

    loss, reported = learn.loss(b)
    loss.backward()
    if weighted:
        torch.testing.assert_close(reported["priority"], torch.stack(errors).abs().mean(0).detach())
    model = policy.model
    for got, wanted in zip(model.actor.parameters(), actor.parameters(), strict=True):
        torch.testing.assert_close(got.grad.flatten(), wanted.grad.flatten(), rtol=1e-3, atol=1e-5)
    for k, network in enumerate(critics):
        for i, (norm, layer) in enumerate(zip(model.critics.norms, model.critics.layers)):
            plain_one, linear = network[3 * i], network[3 * i + 1]
            for got, wanted in (
                (norm.weight.grad[k, 0], plain_one.weight.grad),
                (norm.bias.grad[k, 0], plain_one.bias.grad),
                (layer.weight.grad[k].T, linear.weight.grad),
                (layer.bias.grad[k, 0], linear.bias.grad),
            ):
                torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)

    learn._step()
    for i, norm in enumerate(model.critics.norms):
        torch.testing.assert_close(norm.mean[:, 0], torch.stack([each[3 * i].running_mean for each in critics]))
    for i, norm in enumerate(list(model.actor)[::3]):
        torch.testing.assert_close(norm.mean[0], actor[3 * i].running_mean)


def test_the_actor_and_its_statistics_learn_in_every_few_updates() -> None:
    """A10: and those of the critics in each."""
    policy = make(policy_delay=3)
    changed = []
    for _ in range(6):
        before = copy.deepcopy(policy.model)
        policy.learn_mode.learn_from(rows(24, 2))
        parts = (policy.model.actor, before.actor), (policy.model.critics, before.critics)
        changed.append([[not same(a, b) for a, b in zip(of.buffers(), then.buffers())] for of, then in parts])
    assert [all(actor) for actor, _ in changed] == [any(actor) for actor, _ in changed]
    assert [all(actor) for actor, _ in changed] == [False, False, True, False, False, True]
    assert all(all(critics) for _, critics in changed)


def test_the_warm_up_ends_at_a_version() -> None:
    """A10: so that a resumed run goes on with what it did."""
    short, long = make(renorm_warmup=1), make(renorm_warmup=2)
    first, second = ([each.learn_mode.learn_from(rows(24, 2)) for each in (short, long)] for _ in range(2))
    assert same(*first)
    assert not same(*second)
    resumed = make(renorm_warmup=1, seed=4)
    resumed.load_state_dict(short.state_dict())
    for _ in range(2):
        assert same(*(each.learn_mode.learn_from(rows(24, 2)) for each in (short, resumed)))
    assert same(short.state_dict(), resumed.state_dict())


def test_acting_in_numpy_follows_the_running_statistics() -> None:
    """A10: those of every update, for any number of observations."""
    policy, obs = make(act_backend="numpy"), rows(20, 2).obs
    acts = policy.acting()
    for _ in range(3):
        policy.learn_mode.learn_from(rows(24, 2))
        with torch.no_grad():
            for count in (1, 20):
                wanted = policy.model(torch.from_numpy(obs[:count])).numpy()
                np.testing.assert_allclose(acts(obs[:count]), wanted, rtol=1e-4, atol=1e-5)
    assert acts is policy.acting()
    assert not np.allclose(in_numpy(make().model)(obs), wanted, atol=1e-3)


def test_weights_hold_the_statistics() -> None:
    """A10: what acts elsewhere acts alike."""
    policy, other, obs = make(), make(seed=4), torch.from_numpy(rows(20, 2).obs)
    policy.learn_mode.learn_from(rows(24, 2))
    other.load_weights(policy.weights())
    assert torch.equal(other.model(obs), policy.model(obs))


def test_a_batch_that_cannot_be_learned_from_leaves_the_statistics_as_they_are() -> None:
    """X1."""
    policy = make()
    before = copy.deepcopy(policy.model.state_dict())
    batch = rows(24, 2)
    batch.obs[3] = np.inf
    with pytest.raises(NotFinite):
        policy.learn_mode.learn_from(batch)
    assert same(policy.model.state_dict(), before)


def test_learners_together_keep_equal_statistics() -> None:
    """A10, F13: the mean of those of their rows, weighted by these."""
    learners, batch = [make() for _ in range(2)], rows(20, 2)
    before = make().model.critics.norms[0].mean[0, 0, :3]
    for result in together(2, lambda group: learners[group.rank].learn_mode.learn_from(batch, group)):
        assert isinstance(result, dict), result
    assert same(*(each.model.state_dict() for each in learners))
    joint = torch.from_numpy(np.concatenate([batch.obs, batch.next_obs])).mean(0)
    after = learners[0].model.critics.norms[0].mean[0, 0, :3]
    torch.testing.assert_close(after, before + 0.01 * (joint - before))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="CrossQ"):
        CrossQPolicy(OBSERVATIONS, spaces.Discrete(2))
    with WorkerSet("Pendulum-v1", CrossQPolicy) as workers, pytest.raises(PlanError, match="has no target network"):
        UpdateTargetNetwork(workers)
    with pytest.raises(PlanError, match="learn with TrainOneStep"):
        make().learn_mode.gradients(rows(24, 2))

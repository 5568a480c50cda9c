"""TRPO: the step of the policy against the full Fisher matrix of a tiny network, and a line search by hand."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from flowrl.data import Batch
from flowrl.errors import NotFinite, PlanError
from flowrl.learners.training import Training
from flowrl.policies import TRPOPolicy
from flowrl.testing import same
from tests.policies.test_ppo_policy import ACTIONS, fragment
from tests.policies.test_ppo_policy import make as make_any


def make(actions: str = "discrete", **settings: Any) -> Any:
    return make_any(TRPOPolicy, actions, **{"hidden": (3,), **settings})


def tensors(policy: Any, of: Any = None) -> Batch:
    batch: Batch = policy.learn_mode.tensors(policy.learn_mode.prepare(fragment(of or policy)))
    return batch


def moved(policy: Any) -> torch.Tensor:
    return parameters_to_vector(policy.moved).detach()


def flat_gradient(of: torch.Tensor, policy: Any) -> torch.Tensor:
    found = torch.autograd.grad(of, policy.moved, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([each.flatten() for each in found])


def fisher(policy: Any, rows: Batch) -> torch.Tensor:
    """E[∇log π ∇log πᵀ] `[n, n]`, row by row: Jacobians of the outputs around the Fisher matrix of the distribution."""
    size, outputs = len(moved(policy)), policy.model.outputs(rows.obs)
    discrete = isinstance(policy.action_space, gymnasium.spaces.Discrete)
    matrix = torch.zeros(size, size)
    for row in outputs:
        jacobian = torch.stack([flat_gradient(number, policy) for number in row])
        p = torch.softmax(row.detach(), 0)
        if discrete:
            inner = torch.diag(p) - torch.outer(p, p)
        else:
            inner = torch.diag((-2 * policy.model.distribution.log_std.detach()).exp())
        matrix += jacobian.T @ inner @ jacobian / len(outputs)
    if not discrete:  # of each log σ it is 2
        matrix += 2 * torch.diag(flat_gradient(policy.model.distribution.log_std.sum(), policy))
    return matrix


def reached(policy: Any, rows: Batch, old: Any) -> tuple[float, float]:
    """L and D of a policy, by loops over rows."""
    with torch.no_grad():
        logp, entropy = policy.model.distribution.evaluate(policy.model.outputs(rows.obs), rows.action)
        outputs = [each.model.outputs(rows.obs) for each in (old, policy)]
        kl = old.model.distribution.divergence(outputs[0], policy.model.distribution, outputs[1])
    advantages = rows.advantage.tolist()
    scaled = [(each - np.mean(advantages)) / np.std(advantages, ddof=1) for each in advantages]
    ratios = [float(torch.exp(logp[b] - rows.logp[b])) for b in range(rows.rows)]
    gain = np.mean([ratio * advantage for ratio, advantage in zip(ratios, scaled)])
    return float(gain + policy.learn_mode.entropy_coef * entropy.mean()), float(kl.mean())


@pytest.mark.parametrize("actions", ACTIONS)
def test_the_step_solves_with_the_full_fisher_matrix(actions: str) -> None:
    """G9: (F + λ I) x = ∇L, and a length of sqrt(2 δ / xᵀ (F + λ I) x)."""
    policy = make(actions, cg_steps=60, entropy_coef=0.1, log_std=-0.5)
    rows, before = tensors(policy), moved(policy)
    standardized = rows.replace(advantage=(rows.advantage - rows.advantage.mean()) / rows.advantage.std())
    logp, entropy = policy.model.distribution.evaluate(policy.model.outputs(rows.obs), rows.action)
    gain = ((logp - rows.logp).exp() * standardized.advantage).mean() + 0.1 * entropy.mean()
    ascent = flat_gradient(gain, policy)
    damped = fisher(policy, rows) + 0.1 * torch.eye(len(before))
    x = torch.linalg.solve(damped, ascent)
    scalars = policy.learn_mode.over_batch(rows)
    assert scalars["step_length"] == 1
    wanted = x * (2 * 0.01 / (x @ damped @ x)).sqrt()
    torch.testing.assert_close(moved(policy) - before, wanted, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("actions", ACTIONS)
def test_the_first_length_that_gains_within_the_divergence_is_taken(actions: str) -> None:
    """G9: lengths that were tried in vain leave nothing behind, also if all were."""
    policy = make(actions, max_kl=4.0, line_search_steps=40, cg_damping=1e-3)
    rows, old, before = tensors(policy), copy.deepcopy(policy), moved(policy)
    scalars = policy.learn_mode.over_batch(rows)
    share, after = float(scalars["step_length"]), moved(policy)
    assert 0 < share < 1
    gain, kl = reached(policy, rows, old)
    assert gain > reached(old, rows, old)[0]
    assert kl <= 4
    assert (float(scalars["kl"]), -float(scalars["policy_loss"])) == pytest.approx((kl, gain), rel=1e-3)
    policy.learn_mode._move((after - before) / share * 0.8 ** (round(np.log(share) / np.log(0.8)) - 1) + before)
    gain, kl = reached(policy, rows, old)
    assert kl > 4 or gain <= reached(old, rows, old)[0], "a longer step would have done"

    short = make(actions, max_kl=4.0, line_search_steps=1, cg_damping=1e-3)
    assert float(short.learn_mode.over_batch(rows)["step_length"]) == 0
    assert torch.equal(moved(short), before)
    assert (policy.version, short.version) == (1, 0)


def test_policy_and_critic_learn_apart() -> None:
    """G9: also from images, whose encoders have weights; the policy once per batch, before the critic's epochs."""
    space = gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    policy = TRPOPolicy(space, ACTIONS["discrete"], hidden=(8,), device="cpu")
    learn: Any = policy.learn_mode
    batch = fragment(make())
    batch["obs"] = np.random.default_rng(0).integers(256, size=(6, 3, 8, 8, 1)).astype(np.uint8)
    rows = learn.tensors(learn.prepare(batch))
    parts = {name: each.detach().clone() for name, each in policy.model.named_parameters()}

    def changed() -> set[str]:
        now = dict(policy.model.named_parameters())
        names = {name.partition(".")[0] for name in parts if not torch.equal(now[name], parts[name])}
        parts.update({name: each.detach().clone() for name, each in now.items()})
        return names

    seen = []
    steps = {"over_batch": learn.over_batch, "update": learn.update}
    for name, step in steps.items():
        setattr(learn, name, lambda *given, name=name, step=step: (step(*given), seen.append((name, changed())))[0])
    trained = Training(num_sgd_iter=2, minibatch_size=9)(learn, batch, np.random.default_rng(0))
    assert seen == [("over_batch", {"encoder", "actor"})] + [("update", {"critic_encoder", "critic"})] * 4
    assert trained.counters == {"trained": 36, "updates": 4}
    assert {"kl", "step_length", "value_loss"} <= trained.scalars.keys()
    assert rows.rows == 18


def test_acting_in_numpy_follows_the_step() -> None:
    """G9: parameters are written in place."""
    policy, obs = make(act_backend="numpy"), np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    acts = policy.acting()
    before = acts.outputs(obs)
    policy.learn_mode.learn_from(fragment(policy))
    assert policy.acting() is acts
    with torch.no_grad():
        np.testing.assert_allclose(acts.outputs(obs), policy.model.outputs(torch.from_numpy(obs)), rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, acts.outputs(obs), atol=1e-4)


@pytest.mark.parametrize("column", ["advantage", "target", "obs", "logp"])
def test_a_batch_that_cannot_be_learned_from_changes_nothing(column: str) -> None:
    """X1: neither policy nor critic, whichever of them it is for."""
    policy = make()
    rows = tensors(policy)
    rows[column][3] = torch.nan
    before = copy.deepcopy(policy.state_dict())
    with pytest.raises(NotFinite, match=column):
        policy.learn_mode.over_batch(rows)
    assert same(policy.state_dict(), before)


def test_what_cannot_be_is_refused() -> None:
    policy: Any = make()
    with pytest.raises(PlanError, match="TRPO has one learner"):
        policy.learn_mode.learn_from(fragment(policy), all_reduce=object())
    with pytest.raises(PlanError, match="learn with TrainOneStep"):
        policy.learn_mode.gradients(fragment(policy))

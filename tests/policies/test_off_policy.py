"""The losses of IMPALA and APPO on experience of older weights, against loops, one observation at a time."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.engine.context import Context
from flowrl.errors import SchemaError
from flowrl.policies import APPOPolicy, IMPALAPolicy, VTraceLimits
from flowrl.rollout import WorkerSet
from flowrl.testing import same

LIMITS = VTraceLimits(rho_bar=1.1, c_bar=1.05, rho_pg_bar=1.2)


def workers(kind: type, env: str = "CartPole-v1", **settings: Any) -> WorkerSet:
    made = lambda *spaces: kind(*spaces, **{"hidden": (8,), "seed": 3, "device": "cpu", "gamma": 0.9, **settings})  # noqa: E731
    return WorkerSet(env, made, envs_per_worker=3)


def learn(of: WorkerSet, batch: Batch, updates: int = 8) -> None:
    """Let the policy become another one."""
    learn_mode = of.policy.learn_mode
    rows = learn_mode.tensors(learn_mode.prepare(batch))
    for _ in range(updates):
        learn_mode.update(rows)


def old_experience(of: WorkerSet) -> Batch:
    """A fragment `[40, 3]` in the middle of which the weights changed, of a policy that has learned since."""
    of.start(Context())
    first = of.local.sample(steps=20)
    learn(of, first)
    second = of.local.sample(steps=20)
    whole = Batch.cat([first, second])
    learn(of, whole)
    assert set(whole.policy_version.ravel()) == {0, 8}
    return whole


def steps(rows: Batch) -> list[Batch]:
    """One by one."""
    return [rows[b] for b in range(len(rows))]


def judged(model: Any, obs: Any, action: Any) -> tuple[float, float]:
    """Log-probability of one action, and the value of one observation."""
    with torch.no_grad():
        given, value = model(torch.from_numpy(obs[None]))
        logp, _ = model.distribution.evaluate(given, torch.as_tensor(action)[None])
    return float(logp), float(value)


def v_trace(of: WorkerSet, one: Batch, target: Any) -> tuple[list[float], list[float]]:
    """vs and the weighted advantages of one environment's steps, backwards, lambda = 0.8, for a target policy."""
    values: list[float] = []
    advantages: list[float] = []
    error = 0.0
    for t in reversed(range(len(one))):
        logp, _ = judged(target, one.obs[t], one.action[t])
        _, value = judged(of.policy.model, one.obs[t], one.action[t])
        _, following = judged(of.policy.model, one.next_obs[t], one.action[t])
        discount = 0.0 if one.terminated[t] else 0.9
        goes_on = t + 1 < len(one) and not one.terminated[t] and not one.truncated[t]
        ratio = math.exp(logp - one.logp[t])
        q = following + 0.8 * error if goes_on else following
        advantages.append(min(ratio, 1.2) * (one.reward[t] + discount * q - value))
        own = min(ratio, 1.1) * (one.reward[t] + discount * following - value)
        error = own + (discount * 0.8 * min(ratio, 1.05) * error if goes_on else 0.0)
        values.append(value + error)
    return values[::-1], advantages[::-1]


@pytest.mark.parametrize("kind", [IMPALAPolicy, APPOPolicy])
def test_advantages_and_targets_against_a_loop(kind: type) -> None:
    """V1, V2, V3, G7, T7: the learner's own values, at the fragment's end too; the log-probability of every step."""
    with workers(kind, limits=LIMITS, lam=0.8, learning_rate=0.01) as of:
        batch = old_experience(of)
        target = of.policy.target if kind is APPOPolicy else of.policy.model
        before = copy.deepcopy(batch)
        rows = of.policy.learn_mode.prepare(batch)
        assert batch == before, "the input was changed in place"
        assert rows.reward.shape == (120,)
        for env in range(3):
            wanted, advantages = v_trace(of, batch[:, env], target)
            np.testing.assert_allclose(rows.target[env::3], wanted, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(rows.advantage[env::3], advantages, rtol=1e-3, atol=1e-3)
        ratios = [math.exp(judged(of.policy.model, r.obs, r.action)[0] - r.logp) for r in steps(batch[:, 0])]
        assert max(ratios) > 1.2, "the weights did not change enough to tell"


def test_the_loss_of_impala_against_a_loop() -> None:
    """V1: the mean of −weighted advantage · log π, squared errors of V-trace's targets, and the entropy."""
    with workers(IMPALAPolicy, entropy_coef=0.3, learning_rate=0.01) as of:
        batch = old_experience(of)
        learner = of.policy.learn_mode
        prepared = learner.prepare(batch)
        loss, scalars = learner.loss(learner.tensors(prepared))
        parts = []
        for row in steps(prepared):
            logp, value = judged(of.policy.model, row.obs, row.action)
            with torch.no_grad():
                p = torch.softmax(of.policy.model(torch.from_numpy(row.obs[None]))[0][0], 0)
            entropy = -float((p * p.log()).sum())
            parts.append(-row.advantage * logp + 0.5 * (value - row.target) ** 2 - 0.3 * entropy)
        assert float(loss.detach()) == pytest.approx(np.mean(parts), rel=1e-3)
        assert {"policy_loss", "value_loss", "entropy"} <= scalars.keys()


@pytest.mark.parametrize("old_weight", [1.01, 2.0])
def test_the_loss_of_appo_against_a_loop(old_weight: float) -> None:
    """G7: the ratio is min(μ/π_old, limit) · π/μ, of the recorded μ; the divergence that of π from π_old."""
    settings: dict[str, Any] = {"clip": 0.1, "standardize": False, "kl_coef": 0.7, "learning_rate": 0.01}
    with workers(APPOPolicy, old_weight=old_weight, **settings) as of:
        batch = old_experience(of)
        learner, policy = of.policy.learn_mode, of.policy
        policy.update_target(0.5)
        prepared = learner.prepare(batch)
        learn(of, batch)
        loss, scalars = learner.loss(learner.tensors(prepared))
        parts: list[float] = []
        kls: list[float] = []
        limited = 0
        for row, mu in zip(steps(prepared), batch.logp.ravel().tolist()):
            pi, value = judged(policy.model, row.obs, row.action)
            old, _ = judged(policy.target, row.obs, row.action)
            limited += math.exp(mu - old) > old_weight
            ratio = min(math.exp(mu - old), old_weight) * math.exp(pi - mu)
            surrogate = min(ratio * row.advantage, min(max(ratio, 0.9), 1.1) * row.advantage)
            with torch.no_grad():
                obs = torch.from_numpy(row.obs[None])
                p, q = (torch.softmax(model(obs)[0][0], 0) for model in (policy.target, policy.model))
            kls.append(float((p * (p / q).log()).sum()))
            parts.append(-surrogate + 0.5 * (value - row.target) ** 2 + 0.7 * kls[-1])
        assert (limited > 0) == (old_weight < 1.1)
        assert float(loss.detach()) == pytest.approx(np.mean(parts), rel=1e-3)
        assert float(scalars["kl"].detach()) == pytest.approx(np.mean(kls), rel=1e-2, abs=1e-6)
        assert np.mean(kls) > 1e-4


def test_on_policy_impala_is_the_actor_critic() -> None:
    """V1: experience of the current weights has weights of 1, so targets are those of TD(1)."""
    with workers(IMPALAPolicy) as of:
        of.start(Context())
        batch = of.local.sample(steps=20)
        prepared = of.policy.learn_mode.prepare(batch)
        np.testing.assert_allclose(prepared.target, prepared.advantage + prepared.value, atol=1e-3)


def test_the_target_policy_follows_when_told_and_is_saved() -> None:
    """Q2, D3, D5: tau of the way; a checkpoint holds it."""
    space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    made = [APPOPolicy(space, gymnasium.spaces.Discrete(2), hidden=(8,), seed=s, device="cpu") for s in (0, 1)]
    policy, other = made
    before = copy.deepcopy(policy.target.state_dict())
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.add_(1.0)
    policy.update_target(0.25)
    for name, value in policy.target.state_dict().items():
        torch.testing.assert_close(value, before[name] + 0.25)
    other.load_state_dict(policy.state_dict())
    assert same(other.state_dict(), policy.state_dict())
    assert same(dict(other.target.state_dict()), dict(policy.target.state_dict()))
    assert set(policy.weights()) == set(policy.model.state_dict()), "who acts needs no target"


@pytest.mark.parametrize("kind", [IMPALAPolicy, APPOPolicy])
def test_an_adder_upstream_makes_preparing_a_no_op(kind: type) -> None:
    """Advantages that are there stay; rows without order, or without log-probabilities, are refused."""
    with workers(kind) as of:
        of.start(Context())
        batch = of.local.sample(steps=5)
        learner = of.policy.learn_mode
        given = batch.replace(advantage=batch.value, target=batch.value)
        np.testing.assert_array_equal(learner.prepare(given).advantage, batch.value.ravel())
        with pytest.raises(SchemaError, match=r"advantages need fragments \[T, N"):
            learner.prepare(batch.flat())
        with pytest.raises(SchemaError, match="advantages need the column 'logp'"):
            learner.prepare(batch.select([name for name in batch if name != "logp"]))


@pytest.mark.parametrize("name", ["rho_bar", "c_bar", "rho_pg_bar"])
def test_limits_are_above_0(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        VTraceLimits(**{name: 0.0})

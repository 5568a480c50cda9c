"""The PPO and A2C losses against loops, and what actor-critic policies share."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import SchemaError
from flowrl.policies import A2CPolicy, PPOPolicy, linear_schedule
from flowrl.policies.actor_critic import ActorCriticPolicy
from flowrl.policies.ppo import clipped_surrogate, standardized, value_error
from flowrl.returns import gae
from flowrl.testing import same

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = {"discrete": gymnasium.spaces.Discrete(3), "continuous": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}


def make(kind: type[ActorCriticPolicy] = PPOPolicy, actions: str = "discrete", **settings: Any) -> Any:
    return kind(OBSERVATIONS, ACTIONS[actions], **{"hidden": (8,), "seed": 3, "device": "cpu", **settings})


def fragment(policy: ActorCriticPolicy, steps: int = 6, envs: int = 3, seed: int = 0) -> Batch:
    """Experience `[steps, envs]` as the policy itself would collect it."""
    draw = np.random.default_rng(seed)
    obs = draw.normal(size=(steps + 1, envs, 4)).astype(np.float32)
    mode = policy.collect_mode
    rows = [Batch(mode.act(obs[t], draw.random((envs, mode.draws)), 0)) for t in range(steps)]
    batch = Batch.stack([row.select(["action", "logp", "value"]) for row in rows])
    batch.update(
        obs=obs[:-1],
        next_obs=obs[1:],
        next_value=np.stack([mode.value(obs[t + 1]) for t in range(steps)]),
        reward=draw.normal(size=(steps, envs)),
        terminated=draw.random((steps, envs)) < 0.2,
        truncated=draw.random((steps, envs)) < 0.2,
    )
    return batch


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("value_clip", [None, 0.05])
def test_the_loss_against_a_loop(actions: str, value_clip: float | None) -> None:
    """G3, G4, G5, G7: over the rows of a minibatch, of a policy that is not the one that acted any more."""
    actor = make(actions=actions)
    policy = make(actions=actions, seed=4, value_clip=value_clip, clip=0.1, entropy_coef=0.3, kl_coef=0.7)
    rows = policy.learn_mode.tensors(policy.learn_mode.prepare(fragment(actor)))
    loss, scalars = policy.learn_mode.loss(policy.learn_mode.over_minibatch(rows))
    with torch.no_grad():
        given, value = policy.model(rows.obs)
        logp, entropy = policy.model.distribution.evaluate(given, rows.action)
    advantages = rows.advantage.tolist()
    deviation, mean = np.std(advantages, ddof=1), np.mean(advantages)
    parts: list[float] = []
    kls: list[float] = []
    for b in range(rows.rows):
        log_ratio = float(logp[b] - rows.logp[b])
        ratio, advantage = math.exp(log_ratio), (advantages[b] - mean) / deviation
        surrogate = min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage)
        v, old, target = float(value[b]), float(rows.value[b]), float(rows.target[b])
        error = (v - target) ** 2
        if value_clip is not None:
            error = max(error, (min(max(v, old - value_clip), old + value_clip) - target) ** 2)
        kls.append((ratio - 1) - log_ratio)
        parts.append(-surrogate + 0.5 * error - 0.3 * float(entropy[b]) + 0.7 * kls[-1])
    assert float(loss.detach()) == pytest.approx(np.mean(parts), rel=1e-4)
    assert float(scalars["kl"].detach()) == pytest.approx(np.mean(kls), rel=1e-3, abs=1e-6)


def test_the_a2c_loss_against_a_loop() -> None:
    policy = make(A2CPolicy, entropy_coef=0.3)
    rows = policy.learn_mode.tensors(policy.learn_mode.prepare(fragment(policy)))
    loss, _ = policy.learn_mode.loss(rows)
    parts = []
    for b in range(rows.rows):
        with torch.no_grad():
            given, value = policy.model(rows.obs[b : b + 1])
        p = torch.softmax(given[0], 0)
        entropy = -float((p * p.log()).sum())
        policy_loss = -float(p[rows.action[b]].log()) * float(rows.advantage[b])
        parts.append(policy_loss + 0.5 * (float(value) - float(rows.target[b])) ** 2 - 0.3 * entropy)
    assert float(loss.detach()) == pytest.approx(np.mean(parts), rel=1e-4)


def test_the_surrogate_is_the_worse_of_both() -> None:
    """Table of ratio, advantage and loss at epsilon 0.2."""
    ratio, advantage = torch.tensor([1.0, 2.0, 0.5, 2.0, 0.5]), torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0])
    assert clipped_surrogate(ratio, advantage, 0.2).tolist() == pytest.approx([-1.0, -1.2, -0.5, 2.0, 0.8])


def test_value_clipping_is_off_by_default() -> None:
    """G4: and takes the larger error where it is on."""
    value, old, target = torch.tensor([2.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([2.0, 0.1])
    assert make().value_clip is None
    assert value_error(value, old, target, None).tolist() == [0.0, 0.0]
    assert value_error(value, old, target, 0.5).tolist() == pytest.approx([2.25, 0.0])


def test_one_row_alone_is_not_standardised() -> None:
    """G3: no NaN, in the loss neither."""
    assert standardized(torch.tensor([3.0])).tolist() == [3.0]
    assert standardized(torch.tensor([1.0, 1.0])).tolist() == [0.0, 0.0]
    policy = make()
    scalars = policy.learn_mode.learn_from(fragment(policy, 1, 1))
    assert all(math.isfinite(value) for value in scalars.values())


def test_advantages_are_made_where_no_adder_made_them() -> None:
    """G2: target = advantage + value; an adder upstream makes it a no-op; padded steps are left out."""
    policy = make(gamma=0.9, lam=0.5)
    batch = fragment(policy)
    prepared = policy.learn_mode.prepare(batch)
    names = ("reward", "value", "next_value", "terminated", "truncated")
    wanted = gae(*(batch[name] for name in names), gamma=0.9, lam=0.5)
    assert prepared.advantage == pytest.approx(wanted.ravel(), rel=1e-5, abs=1e-6)
    assert prepared.target == pytest.approx(prepared.advantage + batch.value.ravel(), abs=1e-6)
    assert policy.learn_mode.prepare(prepared) is prepared
    mask = np.ones((6, 3), bool)
    mask[4:, 1] = False
    assert policy.learn_mode.prepare(batch.replace(mask=mask)).rows == 16
    with pytest.raises(SchemaError, match=r"advantages need fragments .* put GAE"):
        policy.learn_mode.prepare(batch.flat())


def test_ratios_start_at_one() -> None:
    """G6: learning finds the log-probabilities that acting recorded, so that nothing is clipped at first."""
    for actions in ACTIONS:
        policy = make(actions=actions)
        with torch.no_grad():
            rows = policy.learn_mode.tensors(policy.learn_mode.prepare(fragment(policy)))
            _, scalars = policy.learn_mode.loss(rows)
        assert float(scalars["kl"]) == pytest.approx(0.0, abs=1e-6)
        assert float(scalars["clip_fraction"]) == 0.0


def test_schedules_follow_env_steps() -> None:
    """Q7: learning rate, clip and entropy weight, whenever they are asked for."""
    policy = make(
        learning_rate=linear_schedule(1.0, 0.0, 100),
        clip=linear_schedule(0.2, 0.0, 100),
        entropy_coef=linear_schedule(0.4, 0.2, 100),
    )
    policy.learn_mode.schedule(50)
    assert policy.optimizer.param_groups[0]["lr"] == pytest.approx(0.5)
    assert policy.learn_mode.clip == pytest.approx(0.1)
    assert policy.learn_mode.entropy_coef == pytest.approx(0.3)


def test_a_run_that_outlasts_its_learning_rate_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not where it ends with its schedule: the last update may be the first at 0."""
    policy = make(learning_rate=linear_schedule(1.0, 0.0, 100))
    for env_steps in (99, 104, 104):
        policy.learn_mode.schedule(env_steps)
    assert caplog.text == ""
    for env_steps in (108, 112):
        policy.learn_mode.schedule(env_steps)
    (said,) = caplog.messages
    assert said.startswith("the learning rate has been 0 since env step 104:")


def test_the_kl_weight_is_adapted_and_saved() -> None:
    """D3: it is part of the policy's state."""
    policy, other = make(kl_coef=1.0), make(kl_coef=1.0)
    policy.update_kl(0.05, target=0.01)
    assert policy.kl_coef == 1.5
    policy.update_kl(0.01, target=0.01)
    assert policy.kl_coef == 1.5
    other.load_state_dict(policy.state_dict())
    policy.update_kl(0.001, target=0.01)
    assert (policy.kl_coef, other.kl_coef) == (0.75, 1.5)


@pytest.mark.parametrize("kind", [PPOPolicy, A2CPolicy])
@pytest.mark.parametrize("actions", ACTIONS)
def test_state_continues_exactly(kind: type[ActorCriticPolicy], actions: str) -> None:
    """D3, D5: networks, deviations, optimiser and version."""
    policy, other = make(kind, actions), make(kind, actions, seed=9)
    policy.learn_mode.learn_from(fragment(policy))
    state = policy.state_dict()
    other.load_state_dict(copy.deepcopy(state))
    for p in (policy, other):
        p.learn_mode.learn_from(fragment(p, seed=1))
    assert same(policy.state_dict(), other.state_dict())
    assert not same(policy.state_dict(), state)


def test_eval_mode_takes_the_most_probable_action() -> None:
    policy = make(actions="continuous", log_std=1.0)
    obs = np.ones((2, 4), np.float32)
    with torch.no_grad():
        mean = policy.model(torch.from_numpy(obs))[0].numpy()
    acted = policy.eval_mode.act(obs, np.empty((2, 0)), 0)
    assert acted["action"] == pytest.approx(mean)
    assert acted["env_action"] == pytest.approx(mean.clip(-1, 1))
    assert policy.eval_mode.draws == 0

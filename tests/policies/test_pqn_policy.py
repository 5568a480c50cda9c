"""PQN: its returns and its loss against loops, and the network that it has in place of a target."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError, PlanError
from flowrl.networks.in_numpy import in_numpy
from flowrl.operators import GAE, ParallelRollouts, TrainOneStep
from flowrl.plans import PQN
from flowrl.policies import PQNPolicy

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)


def make(**settings: Any) -> PQNPolicy:
    given = {"hidden": (8,), "seed": 3, "device": "cpu", **settings}
    return PQNPolicy(OBSERVATIONS, gymnasium.spaces.Discrete(3), **given)


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_targets_are_q_lambda_returns_of_a_loop(lam: float) -> None:
    """Q14: over what the plan collects: episodes that end, one that is cut off, and the end of the fragment."""
    env: dict[str, Any] = {"env": "CartPole-v1", "env_args": {"max_episode_steps": 12}, "envs_per_worker": 3}
    with PQN(**env, hidden=(8,), seed=1, device="cpu") as trainer:
        with ParallelRollouts(trainer.workers, steps=25).for_each(GAE(0.9, lam)).run(seed=0) as run:
            batch = next(run)
        model = trainer.workers.policy.model
        assert batch.terminated.any()
        assert batch.truncated.any()
        with torch.no_grad():
            after = [model(torch.from_numpy(batch.next_obs[:, n])).max(1).values.tolist() for n in range(3)]
    for n in range(3):
        for t in reversed(range(25)):
            if batch.terminated[t, n]:
                g = batch.reward[t, n]
            elif batch.truncated[t, n] or t == 24:
                g = batch.reward[t, n] + 0.9 * after[n][t]
            else:
                g = batch.reward[t, n] + 0.9 * ((1 - lam) * after[n][t] + lam * g)
            assert batch.target[t, n] == pytest.approx(g, rel=1e-4)


def test_the_loss_against_a_loop() -> None:
    """Q14: half the squared distance of the action taken from its target."""
    policy, draw = make(), np.random.default_rng(0)
    obs, target = draw.normal(size=(6, 4)).astype(np.float32), draw.normal(size=6).astype(np.float32)
    action = np.array([0, 1, 2, 2, 1, 0])
    loss, scalars = policy.learn_mode.loss(Batch(obs=obs, action=action, target=target).to_torch("cpu"))
    with torch.no_grad():
        q = [float(policy.model(torch.from_numpy(obs[i : i + 1]))[0, a]) for i, a in enumerate(action)]
    assert loss.item() == pytest.approx(np.mean([0.5 * (q_i - y) ** 2 for q_i, y in zip(q, target)]), rel=1e-5)
    assert scalars["q"].item() == pytest.approx(np.mean(q), rel=1e-5)


def test_hidden_layers_are_normalized_before_their_activation() -> None:
    """Q14: so values do not grow with observations; and the same in numpy."""
    policy, obs = make(hidden=(8, 16)), torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    net = policy.model
    with torch.no_grad():
        net.trunk[2].weight.uniform_(0.5, 2)
        hidden = obs
        for linear, norm in ((net.trunk[1], net.trunk[2]), (net.trunk[4], net.trunk[5])):
            y = linear(hidden)
            y = (y - y.mean(1, keepdim=True)) / (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
            hidden = torch.relu(y * norm.weight + norm.bias)
        torch.testing.assert_close(net(obs), net.advantage(hidden))
        np.testing.assert_allclose(in_numpy(net)(obs.numpy()), net(obs), rtol=1e-4, atol=1e-5)
        assert make(layer_norm=False).model(1000 * obs).abs().max() > 20 * net(1000 * obs).abs().max()


def test_what_it_cannot_learn_from_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^PQN chooses among discrete actions"):
        PQNPolicy(OBSERVATIONS, OBSERVATIONS)
    with PQN(env="CartPole-v1", hidden=(8,)) as trainer:
        plan = ParallelRollouts(trainer.workers).for_each(TrainOneStep(trainer.workers))
        with pytest.raises(PlanError, match="put GAE before it"):
            plan.check()

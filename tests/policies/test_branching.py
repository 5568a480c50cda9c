"""Q-learning over several choices: against plain loops over rows and choices, and what acting draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.in_numpy import to_numpy
from flowrl.networks.sampling import argmax_sample, eps_greedy_sample
from flowrl.policies import BranchingDQNPolicy
from flowrl.policies.branching import branching_sample

SIZES, FIRST = (3, 2, 4), (0, 3, 5)
NUMBERS = spaces.Box(-1, 1, (5,), np.float32)
MASKED = spaces.Dict(at=NUMBERS, action_mask=spaces.MultiBinary(9))


def make(space: Any = MASKED, **settings: Any) -> Any:
    return BranchingDQNPolicy(space, spaces.MultiDiscrete(SIZES), **{"hidden": (16,), "device": "cpu", **settings})


def masks(count: int, seed: int) -> np.ndarray[Any, Any]:
    """Of each choice some actions are valid, the first one always."""
    found = np.random.default_rng(seed).integers(2, size=(count, 9)).astype(np.int8)
    found[:, FIRST] = 1
    return found


def rows(count: int = 12) -> Batch:
    draw = np.random.default_rng(0)
    obs = [Batch(at=draw.normal(size=(count, 5)).astype(np.float32), action_mask=masks(count, i)) for i in range(2)]
    return Batch(
        obs=obs[0],
        action=np.stack([draw.integers(size, size=count) for size in SIZES], 1),
        reward=draw.normal(size=count).astype(np.float32),
        next_obs=obs[1],
        terminated=draw.random(count) < 0.3,
        weight=draw.random(count).astype(np.float32),
    )


@pytest.mark.parametrize("double", [True, False])
def test_the_loss_against_a_loop(double: bool) -> None:
    """Q1, Q3, Q15: one target for all choices, of their mean; losses and priorities are means over them."""
    policy = make(double=double, gamma=0.9)
    torch.nn.init.normal_(policy.target.advantage.weight)
    batch = policy.learn_mode.tensors(policy.learn_mode.prepare(rows()))

    def values(network: Any, obs: Batch, i: int) -> list[torch.Tensor]:
        with torch.no_grad():
            hidden = network.trunk(obs[i : i + 1])
            advantages, value = network.advantage(hidden)[0], network.value(hidden)[0]
        found = []
        for first, size in zip(FIRST, SIZES):
            own = advantages[first : first + size]
            valid = obs.action_mask[i, first : first + size] != 0
            found.append(value + own - own[valid].mean())
        return found

    np.testing.assert_allclose(batch.discount, 0.9 * ~rows().terminated, rtol=1e-6)
    losses, priorities = [], []
    for i in range(12):
        online, target = values(policy.model, batch.next_obs, i), values(policy.target, batch.next_obs, i)
        best = []
        for k, (first, size) in enumerate(zip(FIRST, SIZES)):
            valid = [a for a in range(size) if batch.next_obs.action_mask[i, first + a]]
            chooses = online[k] if double else target[k]
            best.append(float(target[k][max(valid, key=lambda a: float(chooses[a]))]))
        y = float(batch.reward[i]) + float(batch.discount[i]) * sum(best) / 3
        taken = values(policy.model, batch.obs, i)
        errors = [abs(float(taken[k][batch.action[i, k]]) - y) for k in range(3)]
        priorities.append(sum(errors) / 3)
        losses.append(float(batch["weight"][i]) * sum(e * e / 2 if e < 1 else e - 0.5 for e in errors) / 3)
    loss, scalars = policy.learn_mode.loss(batch)
    assert loss.item() == pytest.approx(np.mean(losses), rel=1e-4)
    np.testing.assert_allclose(scalars["priority"].detach(), priorities, rtol=1e-4, atol=1e-6)


def test_one_coin_for_all_choices() -> None:
    """Q8: an environment explores in all choices or in none, each by a number of its own, among the valid actions."""
    sample, draw = branching_sample(SIZES, eps_greedy_sample(lambda steps: 0.5)), np.random.default_rng(0)
    assert sample.draws == 4
    value, valid = draw.normal(size=(4_000, 9)), masks(4_000, 2) != 0
    noise = draw.random((4_000, 4))
    action = sample(value, noise, 0, mask=valid)
    greedy = branching_sample(SIZES, argmax_sample())(value, noise, mask=valid)
    for k, (first, size) in enumerate(zip(FIRST, SIZES)):
        part = np.where(valid, value, -np.inf)[:, first : first + size]
        np.testing.assert_array_equal(greedy[:, k], part.argmax(1))
        assert valid[np.arange(4_000), first + action[:, k]].all()
    np.testing.assert_array_equal(action[noise[:, 0] >= 0.5], greedy[noise[:, 0] >= 0.5])
    free = sample(value, noise, 0)[noise[:, 0] < 0.5]
    counts = np.histogramdd(free, bins=SIZES)[0].ravel() / len(free)
    np.testing.assert_allclose(counts, 1 / 24, atol=0.02)  # all combinations


def test_numpy_and_torch_act_alike_and_an_export_too() -> None:
    """Q3: with a mean over the valid actions of each choice."""
    policies = [
        make(act_backend=backend, dueling=dueling) for dueling in (True, False) for backend in ("torch", "numpy")
    ]
    obs = rows().obs
    for first, second in (policies[:2], policies[2:]):
        with torch.no_grad():
            values = [to_numpy(each.acting()(each.observed(obs))) for each in (first, second)]
        np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-6)
        action = second.eval_mode.act(obs, np.empty((12, 0)), 0)["action"]
        exported = second.eval_mode.in_torch(
            second.model, second.learn_mode.tensors(second.learn_mode.prepare(rows())).obs
        )
        np.testing.assert_array_equal(action, exported)
        assert action.shape == (12, 3)
        assert first.eval_mode.value(obs).shape == (12,)


def test_what_it_cannot_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"choices among actions 0 .. n-1, .*start=\[1 0\].*: take an"):
        BranchingDQNPolicy(NUMBERS, spaces.MultiDiscrete([2, 2], start=[1, 0]))
    with pytest.raises(ConfigError, match=r"munchausen=0.9 is for one choice, not for several"):
        make(munchausen=0.9)

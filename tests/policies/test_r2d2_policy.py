"""The loss of R2D2 against a loop, and what each of its parts is for."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.learners.training import Training
from flowrl.policies import CategoricalHead, R2D2Policy
from flowrl.policies.r2d2 import EPS, rescaled, unscaled
from tests.policies.recurrent_parts import make

BURN_IN, LENGTH, ENVS = 2, 6, 4


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + EPS * x


def h_inverse(x: float) -> float:
    root = (math.sqrt(1 + 4 * EPS * (abs(x) + 1 + EPS)) - 1) / (2 * EPS)
    return math.copysign(root**2 - 1, x)


def sequences(seed: int = 0) -> Batch:
    """Four sequences: with a burn-in; ended by a terminal state; padded; of an episode's begin, and padded."""
    draw = np.random.default_rng(seed)
    lengths, warm_up, count = np.array([8, 8, 5, 4]), np.array([BURN_IN, BURN_IN, BURN_IN, 0]), BURN_IN + LENGTH
    number = np.arange(count)[:, None]
    obs = draw.normal(size=(count + 1, ENVS, 4)).astype(np.float32)
    real = number < lengths
    terminated = np.zeros((count, ENVS), bool)
    terminated[lengths[1:3] - 1, [1, 2]] = True
    state = np.broadcast_to(draw.normal(size=(ENVS, 12)).astype(np.float32), (count, ENVS, 12))
    batch = Batch(
        obs=obs[:-1], next_obs=obs[1:], reward=10 * draw.normal(size=(count, ENVS)), terminated=terminated,
        truncated=np.zeros_like(terminated), action=draw.integers(3, size=(count, ENVS)), state=state,
        weight=np.broadcast_to(draw.random(ENVS).astype(np.float32), (count, ENVS)),
    )  # fmt: skip
    batch = batch.map(np.copy)
    for name in ("obs", "next_obs", "reward", "terminated", "action"):
        batch[name][~real] = 0
    batch["mask"] = real & (number >= warm_up)
    return batch


def policy_of(**settings: Any) -> Any:
    """One whose target network differs from the online one."""
    policy = make(R2D2Policy, **{"n_step": 3, "gamma": 0.9, **settings})
    policy.target = copy.deepcopy(make(R2D2Policy, **{**settings, "seed": 4}).model).requires_grad_(False)
    return policy


def prepared(policy: Any, batch: Batch) -> Batch:
    rows: Batch = policy.learn_mode.tensors(policy.learn_mode.prepare(batch))
    return rows


def values_along(model: Any, obs: list[np.ndarray], state: np.ndarray) -> list[list[float]]:
    """Q-values of one sequence, a step at a time."""
    found, memory = [], torch.from_numpy(state[None])
    with torch.no_grad():
        for each in obs:
            values, memory = model.step(torch.from_numpy(each[None]), memory)
            found.append(values[0].tolist())
    return found


def by_loop(policy: Any, batch: Batch) -> tuple[float, dict[tuple[int, int], float]]:
    """The loss, and |TD error| by step and sequence."""
    losses, errors = [], {}
    for b in range(ENVS):
        counted = np.flatnonzero(batch.mask[:, b])
        last = counted[-1]
        obs = [*batch.obs[: last + 1, b], batch.next_obs[last, b]]
        state = batch.state[0, b] if policy.stored_state else np.zeros_like(batch.state[0, b])
        online, target = values_along(policy.model, obs, state), values_along(policy.target, obs, state)
        for t in counted:
            total, k = 0.0, 0
            while k < policy.n_step and t + k <= last:
                total += policy.gamma**k * float(batch.reward[t + k, b])
                k += 1
            if not (t + k - 1 == last and batch.terminated[last, b]):
                best = int(np.argmax((online if policy.double else target)[t + k]))
                value = target[t + k][best]
                total += policy.gamma**k * (h_inverse(value) if policy.rescale else value)
            y = h(total) if policy.rescale else total
            error = abs(y - online[t][batch.action[t, b]])
            errors[t, b] = error
            losses.append(float(batch.weight[t, b]) * (0.5 * error**2 if error < 1 else error - 0.5))
    return float(np.mean(losses)), errors


@pytest.mark.parametrize("settings", [{}, {"double": False}, {"rescale": False}, {"stored_state": False}])
def test_the_loss_against_a_loop(settings: dict[str, Any]) -> None:
    """N2, N3, N6, N7, Q1, P2: windows end with the sequence, burn-in and padding do not count, nor in priorities."""
    policy, batch = policy_of(**settings), sequences()
    loss, scalars = policy.learn_mode.loss(prepared(policy, batch))
    expected, errors = by_loop(policy, batch)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    for (t, b), error in errors.items():
        assert float(scalars["priority"][t, b]) == pytest.approx(error, rel=1e-3, abs=1e-4)


def test_values_come_back_from_their_scale() -> None:
    """h and its inverse, over the range of returns; the worked values are those of the formula in full precision."""
    x = torch.tensor([-1e4, -3.0, -0.01, 0.0, 1e-4, 0.5, 80.0, 500.0, 1e5])
    torch.testing.assert_close(unscaled(rescaled(x)), x, rtol=1e-4, atol=2e-6)
    for each in x.tolist():
        assert float(rescaled(torch.tensor(each))) == pytest.approx(h(each), rel=1e-5)


def test_burn_in_carries_no_gradient() -> None:
    """N7: what was seen then warms the memory up and is not learned from; in an episode's begin all is."""
    policy, batch = policy_of(), sequences()
    batch["weight"][:BURN_IN, 3] = 0  # what is learned there comes through the memory, from later steps
    rows = prepared(policy, batch)
    rows = rows.replace(obs=rows.obs.requires_grad_())
    rows = rows.replace(next_obs=torch.cat([rows.obs[1:], rows.next_obs[-1:]]))
    policy.learn_mode.loss(rows)[0].backward()
    moved = rows.obs.grad.abs().sum(2) > 0
    assert not moved[:BURN_IN, :3].any()
    assert moved[BURN_IN, :3].all()
    assert moved[0, 3]


@pytest.mark.parametrize("cell", ["lstm", "gru", "gtrxl"])
def test_an_episodes_begin_is_learned_from_as_if_alone(cell: str) -> None:
    """N7: the burn-in of other sequences cuts no gradient of one that needs none."""
    policy, batch = policy_of(cell=cell, units=8, memory_steps=5), sequences()
    width = policy.model.memory.width
    batch["state"] = np.zeros((*batch.mask.shape, width), np.float32)
    learned = []
    for beside in (0, 1, 3):
        rows = prepared(policy, batch[:, 3 - beside :])
        obs = rows.obs.requires_grad_()
        rows = rows.replace(obs=obs, next_obs=torch.cat([obs[1:], rows.next_obs[-1:]]))
        policy.learn_mode.unrolled(policy.model, rows)[3, -1].sum().backward()
        learned.append(obs.grad[:4, -1])
        assert (learned[-1] != 0).any(1).all()
    torch.testing.assert_close(learned[1], learned[0])
    torch.testing.assert_close(learned[2], learned[0])


def test_burn_in_and_the_stored_state_tell_in_the_values() -> None:
    """N7, T8: what is left out of either is missing from what the network remembers when steps begin to count."""
    policy, batch = policy_of(), sequences()
    zero = batch.replace(state=np.zeros_like(batch.state))
    with torch.no_grad():
        usual, without_burn_in, without_state = (
            policy.learn_mode.unrolled(policy.model, prepared(policy, each))[-LENGTH - 1 :]
            for each in (batch, batch[BURN_IN:], zero)
        )
    for other in (without_burn_in, without_state):
        apart = (usual[0, :2] - other[0, :2]).abs().amax(1)
        assert (apart > 1e-3).all()


def test_what_it_has_not_is_refused() -> None:
    for settings in ({"noisy": True}, {"head": CategoricalHead(5, 0, 1)}, {"munchausen": 0.9}):
        with pytest.raises(ConfigError, match="R2D2 learns plain means, without noise"):
            make(R2D2Policy, **settings)


def test_what_padding_holds_does_not_tell() -> None:
    """N6: neither in the loss nor in its denominator, nor in priorities."""
    policy, batch = policy_of(), sequences()
    other = batch.map(np.copy)
    for name in ("obs", "next_obs", "reward", "action"):
        other[name][5:, 2] = 2
    first, second = (policy.learn_mode.loss(prepared(policy, each))[1] for each in (batch, other))
    assert {name: value.tolist() for name, value in first.items()} == {n: v.tolist() for n, v in second.items()}


def test_priorities_are_those_of_the_steps_that_count() -> None:
    """N6, N7: a buffer mixes max and mean of |TD error| over them, and over nothing else."""
    policy, batch = policy_of(), sequences()
    _, errors = by_loop(policy, batch)
    place = np.broadcast_to(np.arange(ENVS), batch.shape)
    drawn = batch.replace(index=place, generation=np.zeros_like(place))
    told = Training()(policy.learn_mode, drawn, np.random.default_rng(0)).scalars["priorities"]
    for b in range(ENVS):
        expected = [error for (_, of), error in errors.items() if of == b]
        np.testing.assert_allclose(told.priority[told.index == b], expected, rtol=1e-3, atol=1e-4)

"""Actions between bounds: what is stored, what the environment gets, and how densities are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as d

from flowrl.errors import ConfigError
from flowrl.networks.distributions import Bounded, DiscreteChoice, NoisyChoice, SquashedChoice
from flowrl.policies import (
    BCPolicy,
    CQLPolicy,
    CrossQPolicy,
    IQLPolicy,
    MARWILPolicy,
    REDQPolicy,
    SACPolicy,
    TD3BCPolicy,
    TD3Policy,
    TQCPolicy,
)
from tests.policies.plain import rows

BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 3], np.float32))
MATRIX = spaces.Box(-1, 1, (2, 2), np.float32)
#: Policies that learn from rows of such actions, and settings of them.
LEARNERS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{kind.__name__: (kind, {}) for kind in (BCPolicy, IQLPolicy, MARWILPolicy, SACPolicy, TQCPolicy, CrossQPolicy)},
    **{kind.__name__: (kind, {"policy_delay": 1}) for kind in (REDQPolicy, TD3Policy, TD3BCPolicy)},
    "CQLPolicy": (CQLPolicy, {}),
    "EDAC": (CQLPolicy, {"conservatism": 0.0, "diversity": 0.7, "critics": 4}),
}


def noise(draws: int, rows: int = 50) -> np.ndarray:
    return np.random.default_rng(2).random((rows, draws))


def test_the_bounds_are_minus_one_and_one() -> None:
    bounded = Bounded(BOX, "TD3")
    assert bounded.for_env(np.array([[-1, 1], [0, 0]], np.float32)).tolist() == [[-2, 3], [0, 1.5]]


def test_rounding_does_not_lead_out_of_the_bounds() -> None:
    space = spaces.Box(np.float32(-0.1), np.float32(0.7), (1,), np.float32)
    ends = Bounded(space, "TD3").for_env(np.array([[-1], [1]], np.float32))
    assert all(space.contains(row) for row in ends)


@pytest.mark.parametrize("kind", [SquashedChoice, lambda *given: NoisyChoice(*given, 0.3)])
@pytest.mark.parametrize("space", [BOX, MATRIX])
def test_actions_have_the_shape_of_the_space_and_lie_in_it(kind: Any, space: spaces.Box) -> None:
    choice = kind(space, "SAC")
    given = np.random.default_rng(0).normal(size=(50, choice.outputs)).astype(np.float32) * 3
    for action in (
        choice.explore(given, noise(choice.draws), 0),
        choice.greedy(given),
        choice.uniform(noise(choice.draws)),
    ):
        assert action.shape == (50, *space.shape)
        assert action.dtype == np.float32
        assert np.abs(action).max() <= 1
        assert all(space.contains(row) for row in choice.for_env(action))


def test_random_actions_are_uniform_in_the_bounds() -> None:
    drawn = Bounded(BOX, "SAC").uniform(noise(2, 4000))
    assert np.allclose(np.quantile(drawn, [0.25, 0.5, 0.75], axis=0).T, [-0.5, 0, 0.5], atol=0.06)


def test_squashed_actions_are_those_of_a_normal_distribution() -> None:
    """By inversion: quantiles of the noise are quantiles of the action."""
    choice, quantiles = SquashedChoice(spaces.Box(-1, 1, (1,)), "SAC"), np.array([[0.1], [0.5], [0.9]])
    given = np.tile(np.array([[0.4, -0.7]], np.float32), (3, 1))
    normal = d.Normal(torch.tensor(0.4), torch.tensor(-0.7).exp())
    wanted = normal.icdf(torch.from_numpy(quantiles).float()).tanh()
    assert np.allclose(choice.explore(given, quantiles, 0), wanted, atol=1e-6)
    assert np.allclose(choice.greedy(given), np.tanh(0.4))


def test_squashed_densities_are_torchs() -> None:
    """A1, A2: of the action in -1 .. 1."""
    choice, draw = SquashedChoice(BOX, "SAC"), torch.Generator().manual_seed(3)
    given, normal = torch.randn(50, 4, generator=draw) * 0.5, torch.randn(50, 2, generator=draw)
    action, logp = choice.sample(given, normal)
    mean, log_std = given.chunk(2, 1)
    u = mean + log_std.exp() * normal
    torch.testing.assert_close(action, u.tanh())
    wanted = (d.Normal(mean, log_std.exp()).log_prob(u) - d.TanhTransform().log_abs_det_jacobian(u, u.tanh())).sum(1)
    torch.testing.assert_close(logp, wanted)


def test_far_out_densities_and_their_gradients_are_finite() -> None:
    """A1: at |u| = 20, where 1 - tanh² is 0 in float32; and deviations stay within e^-20 and e^2."""
    choice = SquashedChoice(BOX, "SAC")
    given = torch.tensor([[20.0, -20.0, 0.0, 0.0], [0.0, 0.0, 90.0, -90.0]], requires_grad=True)
    _, logp = choice.sample(given, torch.ones(2, 2))
    logp.sum().backward()
    assert torch.isfinite(logp).all()
    assert given.grad is not None
    assert torch.isfinite(given.grad).all()
    slope = 2 * (np.log(2) - 21 - np.log1p(np.exp(-42))) + 2 * (np.log(2) + 19 - 38)
    assert logp[0].item() == pytest.approx(2 * (-0.5 - 0.5 * np.log(2 * np.pi)) - slope, rel=1e-5)


def test_exploration_is_normal_noise_clipped_to_the_bounds() -> None:
    """A6: its deviation may be a function of env steps (Q7)."""
    choice = NoisyChoice(BOX, "TD3", lambda steps: 0.0 if steps < 10 else 0.5)
    given = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    assert np.array_equal(choice.explore(given, noise(2), 0), choice.greedy(given))
    added = 0.5 * d.Normal(0, 1).icdf(torch.from_numpy(noise(2))).numpy()
    assert np.allclose(choice.explore(given, noise(2), 10), np.clip(np.tanh(given) + added, -1, 1), atol=1e-6)


def test_random_discrete_actions_are_uniform() -> None:
    choice = DiscreteChoice(3, 5)
    drawn = choice.uniform(noise(1, 3000))
    assert np.allclose(np.bincount(drawn) / 3000, 1 / 3, atol=0.03)
    assert sorted(set(choice.for_env(drawn))) == [5, 6, 7]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(3), "TD3 takes continuous actions, but .* Discrete"),
        (spaces.MultiDiscrete([2, 2]), "continuous actions"),
        (spaces.Box(0, 5, (2,), np.int64), "continuous actions"),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), "scales actions between their bounds"),
        (spaces.Box(np.float32(-1), np.float32(np.inf), (2,), np.float32), "has none"),
    ],
)
def test_actions_that_have_no_scale_are_refused(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Bounded(space, "TD3")


@pytest.mark.parametrize(
    ("name", "shape", "flat"),
    [*((name, (2, 2), 4) for name in LEARNERS), *((name, (), 1) for name in LEARNERS if name != "EDAC")],
)
def test_what_is_learned_does_not_depend_on_how_the_numbers_are_laid_out(
    name: str, shape: tuple[int, ...], flat: int
) -> None:
    """A2: the loss is that of the same numbers in one axis."""
    kind, settings = LEARNERS[name]

    def loss(shape: tuple[int, ...]) -> float:
        space = spaces.Box(-2, 2, shape, np.float32)
        policy = kind(BOX, space, hidden=(8,), seed=3, device="cpu", **settings)
        columns = rows(24, flat)
        columns["obs"], columns["next_obs"] = (columns[key][:, :2] for key in ("obs", "next_obs"))
        columns["action"] = columns["action"].reshape(24, *shape)
        columns["return"] = columns["reward"]
        learn = policy.learn_mode
        return float(learn.loss(learn.over_minibatch(learn.tensors(learn.prepare(columns))))[0].detach())

    assert loss(shape) == loss((flat,))

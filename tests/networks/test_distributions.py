"""Action distributions against torch's own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.envs.hybrid import HybridActions
from flowrl.errors import ConfigError
from flowrl.networks.distributions import distribution

BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 3], np.float32))
SPACES = {
    "discrete": spaces.Discrete(3),
    "shifted": spaces.Discrete(3, start=5),
    "multi": spaces.MultiDiscrete([2, 4]),
    "binary": spaces.MultiBinary(3),
    "box": BOX,
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "hybrid": HybridActions(
        spaces.Tuple([spaces.Discrete(3, start=5), spaces.Dict(box=spaces.Box(-5, 5, (2,)), on=spaces.MultiBinary(2))])
    ),
}


def given(outputs: int, rows: int = 50) -> torch.Tensor:
    return torch.randn(rows, outputs, generator=torch.Generator().manual_seed(1))


def noise(draws: int, rows: int = 50) -> np.ndarray:
    return np.random.default_rng(2).random((rows, draws))


def reference(space: gymnasium.Space[Any], outputs: torch.Tensor, std: float) -> Any:
    """The same distribution as torch has it."""
    from torch import distributions as d

    if isinstance(space, spaces.Discrete):
        return d.Categorical(logits=outputs)
    if isinstance(space, spaces.MultiDiscrete):
        return [d.Categorical(logits=part) for part in outputs.split(space.nvec.tolist(), 1)]
    if isinstance(space, spaces.MultiBinary):
        return [d.Categorical(logits=part) for part in outputs.split([2] * space.shape[0], 1)]
    if isinstance(space, HybridActions):  # each number of a row by itself
        choices = [d.Categorical(logits=part) for part in outputs.split([3, 2, 2, 2], 1)]
        return [choices[0], *(d.Normal(mean, std) for mean in outputs[:, 3:5].unbind(1)), *choices[2:]]
    return d.Independent(d.Normal(outputs, std), 1)


@pytest.mark.parametrize("name", SPACES)
def test_log_probabilities_and_entropy_are_torchs(name: str) -> None:
    """G6, G11: the one stored is that of the action drawn, and learning finds the same one again."""
    space = SPACES[name]
    chosen = distribution(space, log_std=-0.5)
    outputs = given(chosen.outputs)
    with torch.no_grad():
        action, logp = chosen.sample(outputs, noise(chosen.draws))
        logp_again, entropy = chosen.evaluate(outputs, torch.from_numpy(action))
    theirs, rows = reference(space, outputs, float(np.exp(-0.5))), torch.from_numpy(action).reshape(50, -1)
    if isinstance(theirs, list):
        wanted = sum(part.log_prob(rows[:, i]) for i, part in enumerate(theirs))
        wanted_entropy = sum(part.entropy() for part in theirs)
    else:
        wanted = theirs.log_prob(rows[:, 0] if isinstance(space, spaces.Discrete) else rows)
        wanted_entropy = theirs.entropy()
    torch.testing.assert_close(torch.from_numpy(logp), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logp_again, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(entropy, wanted_entropy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_divergences_are_torchs(name: str, squash: bool) -> None:
    """G5: exact ones, of whole distributions, whose deviations may differ; tanh changes nothing."""
    from torch.distributions import kl_divergence

    space = SPACES[name]
    squash = squash and isinstance(space, spaces.Box) and space.is_bounded()
    ours, other = distribution(space, squash=squash, log_std=-0.5), distribution(space, squash=squash, log_std=0.2)
    outputs = given(ours.outputs)
    others = outputs.flip(0) * 1.5
    with torch.no_grad():
        found = ours.divergence(outputs, other, others)
        assert ours.divergence(outputs, ours, outputs).abs().max() < 1e-6
    theirs = reference(space, outputs, float(np.exp(-0.5))), reference(space, others, float(np.exp(0.2)))
    if isinstance(theirs[0], list):
        wanted = sum(kl_divergence(part, another) for part, another in zip(*theirs))
    else:
        wanted = kl_divergence(*theirs)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_what_the_environment_gets_is_in_its_space(name: str) -> None:
    """Drawn ones and the most probable ones."""
    space = SPACES[name]
    chosen = distribution(space, log_std=1.0)
    outputs = given(chosen.outputs)
    with torch.no_grad():
        for action in (chosen.sample(outputs, noise(chosen.draws))[0], chosen.mode(outputs)):
            assert all(row in space for row in chosen.for_env(action).astype(space.dtype))


@pytest.mark.parametrize(
    ("name", "squash"),
    [
        (name, squash)
        for name, space in SPACES.items()
        for squash in (False, True)
        if not squash or (isinstance(space, spaces.Box) and space.is_bounded())
    ],
)
def test_what_the_environment_got_is_known_as_what_was_drawn(name: str, squash: bool) -> None:
    """G6, A2: choices from 0, and numbers before they were squashed."""
    space = SPACES[name]
    chosen = distribution(space, squash=squash, log_std=-1.0)
    with torch.no_grad():
        action = chosen.sample(given(chosen.outputs) / 10, noise(chosen.draws))[0]
    sent = chosen.for_env(action)
    kept = action if squash or not isinstance(space, spaces.Box) else sent  # what was clipped is lost
    np.testing.assert_allclose(chosen.from_env(sent), kept, rtol=1e-3, atol=1e-4)
    if squash:
        assert np.isfinite(chosen.from_env(np.stack([space.low, space.high]))).all()


def test_draws_are_distributed_as_they_say() -> None:
    """Frequencies of choices; mean and deviation of a Gaussian; noise of 0 gives a finite action."""
    with torch.no_grad():
        choice = distribution(SPACES["discrete"])
        outputs = torch.tensor([[0.0, 1.0, -1.0]]).expand(40_000, 3)
        action, _ = choice.sample(outputs, noise(1, 40_000))
        assert np.bincount(action) / 40_000 == pytest.approx(torch.softmax(outputs[0], 0).numpy(), abs=0.01)
        normal = distribution(SPACES["unbounded"], log_std=float(np.log(0.5)))
        action, _ = normal.sample(torch.tensor([[1.0, -2.0]]).expand(40_000, 2), noise(2, 40_000))
        assert action.mean(0) == pytest.approx([1.0, -2.0], abs=0.02)
        assert action.std(0) == pytest.approx([0.5, 0.5], abs=0.02)
        assert np.isfinite(normal.sample(torch.zeros(1, 2), np.zeros((1, 2)))[0]).all()


def test_clipping_is_for_the_environment_only() -> None:
    """G6: the action stored is the one drawn, beyond the bounds too."""
    chosen = distribution(BOX, log_std=2.0)
    with torch.no_grad():
        action, _ = chosen.sample(torch.zeros(50, 2), noise(2))
    assert (action > BOX.high).any()
    assert chosen.for_env(action) == pytest.approx(np.clip(action, BOX.low, BOX.high))


def test_squashed_log_probabilities_are_those_of_the_action_in_its_bounds() -> None:
    """A1, A2: as torch's tanh and affine transforms say, scale included."""
    from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

    chosen = distribution(BOX, squash=True, log_std=-1.0)
    outputs = given(2)
    with torch.no_grad():
        action, logp = chosen.sample(outputs, noise(2))
    low, high = torch.from_numpy(BOX.low), torch.from_numpy(BOX.high)
    transforms = [TanhTransform(cache_size=1), AffineTransform((low + high) / 2, (high - low) / 2, event_dim=1)]
    theirs = TransformedDistribution(Independent(Normal(outputs, float(np.exp(-1))), 1), transforms)
    in_bounds = torch.from_numpy(chosen.for_env(action))
    torch.testing.assert_close(torch.from_numpy(logp), theirs.log_prob(in_bounds), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_squashed_actions_stay_in_their_bounds(backend: str) -> None:
    """A2: where rounding would leave them; and a number that is fixed stays as it is."""
    draw = np.random.default_rng(4)
    low = draw.uniform(-3, 0, 500).astype(np.float32)
    high = np.where(np.arange(500) < 20, low, draw.uniform(0, 3, 500).astype(np.float32))
    space = spaces.Box(low, high)
    chosen = distribution(space, squash=True)
    for outputs in (torch.full((1, 500), 9.2), torch.full((1, 500), -9.2), given(500, 1)):
        sent = chosen.mode_for_env(outputs).numpy() if backend == "torch" else chosen.for_env(outputs.numpy())
        assert space.contains(sent[0].astype(np.float32))
    again = torch.from_numpy(chosen.from_env(chosen.for_env(outputs.numpy())))
    torch.testing.assert_close(again[:, 20:], outputs[:, 20:], rtol=1e-3, atol=1e-3)
    assert torch.isfinite(chosen.evaluate(outputs, again)[0]).all()


def test_squashed_log_probabilities_are_finite_far_out() -> None:
    """A1: at |u| = 20, where 1 - tanh² is 0 in float32."""
    chosen = distribution(BOX, squash=True)
    logp, _ = chosen.evaluate(torch.zeros(2, 2), torch.tensor([[20.0, -20.0], [-20.0, 20.0]]))
    assert torch.isfinite(logp).all()
    exact = 2 * (-0.5 * 400 - 0.5 * np.log(2 * np.pi)) - 2 * (np.log(4) - 40) - np.log(2) - np.log(1.5)
    assert logp.tolist() == pytest.approx([exact, exact], rel=1e-5)


@pytest.mark.parametrize(
    ("space", "squash", "message"),
    [
        (SPACES["unbounded"], True, "needs bounds"),
        (spaces.Text(3), False, "no action distribution"),
        (spaces.Box(0, 5, (2,), np.int64), False, "no action distribution"),
    ],
)
def test_spaces_without_a_distribution_are_refused(space: Any, squash: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        distribution(space, squash=squash)

"""ICM against loops, and what it is for: what actions do is predicted, and what they do not do is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.models import ICM
from tests.models.test_reward_model import BOX, TWO, fragment, make, rows_of, teach


def through(network: Any, inputs: np.ndarray) -> np.ndarray:
    """What linear layers with ReLU between them give for one row."""
    layers = [each for each in network.modules() if isinstance(each, torch.nn.Linear)]
    for number, layer in enumerate(layers):
        inputs = layer.weight.detach().numpy() @ inputs + layer.bias.detach().numpy()
        if number < len(layers) - 1:
            inputs = np.maximum(inputs, 0)
    return inputs


def by_hand(model: ICM, row: Batch) -> tuple[float, float]:
    """The errors of the forward and the inverse model for one row."""
    normalizer = model._of_observations[0]

    def features(obs: np.ndarray) -> np.ndarray:
        seen = np.clip((obs - normalizer.mean.numpy()) / normalizer.std.numpy(), -5, 5).astype(np.float32)
        return through(model.model["features"], seen)

    before, after = features(row.obs), features(row.next_obs)
    action = np.eye(2, dtype=np.float32)[row.action]
    forward = 0.5 * np.mean((through(model.model["forward_model"], np.concatenate([before, action])) - after) ** 2)
    logits = through(model.model["inverse_model"], np.concatenate([before, after])).astype(np.float64)
    return float(forward), float(np.log(np.exp(logits).sum()) - logits[row.action])


def test_reward_and_loss_are_those_of_a_loop() -> None:
    """O3: the reward is the forward model's error over the deviation of its returns."""
    model, batch = make("icm", gamma=0.9, beta=0.3), fragment(2)
    teach(model, fragment(0), fragment(1))
    found = [by_hand(model, row) for row in rows_of(batch)]
    forward, inverse = np.mean(found, 0)
    expected = np.array([error for error, _ in found]).reshape(4, 2)
    np.testing.assert_allclose(model.novelty(batch), expected, rtol=1e-4)
    np.testing.assert_allclose(model.reward(batch), expected / float(model.returns.std), rtol=1e-4)
    scalars = model.update(model.rows(batch))
    assert float(scalars["forward_loss"]) == pytest.approx(forward, rel=1e-4)
    assert float(scalars["inverse_loss"]) == pytest.approx(inverse, rel=1e-4)
    assert float(scalars["icm_loss"]) == pytest.approx(0.7 * inverse + 0.3 * forward, rel=1e-4)


def test_continuous_actions_have_a_squared_error() -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    model = make("icm", actions=box)
    action = np.random.default_rng(0).normal(size=(4, 2, 2)).astype(np.float32)
    rows = model.rows(fragment(action=action))
    before, after = (model._features(obs).detach() for obs in (rows.obs, rows.next_obs))
    told = model.model["inverse_model"](torch.cat([before, after], 1)).detach().numpy()
    error = model._inverse_error(rows.action, before, after).detach()
    np.testing.assert_allclose(error, 0.5 * ((told - action.reshape(-1, 2)) ** 2).mean(1), rtol=1e-5)


def test_what_actions_do_is_learned_and_expected() -> None:
    """Of two numbers one follows the action and one is noise: the action is told, and its effect predicted."""
    draw = np.random.default_rng(0)
    obs = draw.normal(size=(200, 1, 3)).astype(np.float32)
    action = draw.integers(2, size=(200, 1))
    after = obs.copy()
    after[..., 0] += 2 * action - 1
    after[..., 1] = draw.normal(size=(200, 1))
    no = np.zeros((200, 1), bool)
    batch = Batch(
        obs=obs, action=action, next_obs=after, reward=draw.normal(size=(200, 1)), terminated=no, truncated=no
    )
    model = ICM(BOX, TWO, hidden=(32,), features=4, device="cpu", seed=1)
    first = teach(model, batch)
    for _ in range(300):
        last = model.update(model.rows(batch))
    assert float(first["inverse_loss"]) > 0.5
    assert float(last["inverse_loss"]) < 0.1
    swapped = batch.replace(action=1 - action)  # what did not follow from this action
    assert model.reward(swapped).mean() > 2 * model.reward(batch).mean()


def test_a_share_lies_between_0_and_1() -> None:
    with pytest.raises(ConfigError, match="beta is 2"):
        make("icm", beta=2)

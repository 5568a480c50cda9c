"""RND against loops, and what it is for: what was seen often is new no more."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import SchemaError
from flowrl.models import RND
from tests.episodes import Stream
from tests.episodes import fragment as marked
from tests.models.test_reward_model import BOX, TWO, fragment, make, teach

GAMMA = 0.9


def by_hand(model: RND, obs: np.ndarray) -> float:
    """The mean squared error of one observation `[3]`, normalised and clipped."""
    normalizer = model._of_observations[0]
    seen = np.clip((obs - normalizer.mean.numpy()) / normalizer.std.numpy(), -5, 5).astype(np.float32)
    outputs = [seen, seen]
    for i, network in enumerate((model.predictor, model.target)):
        layers = [each for each in network.modules() if isinstance(each, torch.nn.Linear)]
        for number, layer in enumerate(layers):
            outputs[i] = layer.weight.detach().numpy() @ outputs[i] + layer.bias.detach().numpy()
            if number < len(layers) - 1:
                outputs[i] = np.maximum(outputs[i], 0)
    return float(np.mean((outputs[0] - outputs[1]) ** 2))


def test_the_reward_is_the_error_of_a_step_by_hand() -> None:
    """O1, O3: of the observation arrived in, normalised and clipped to ±5, over the deviation of its returns."""
    model = make(gamma=GAMMA)
    teach(model, fragment(0), fragment(1))
    batch = fragment(2)
    batch.next_obs[0, 0] *= 1e6
    expected = [[by_hand(model, obs) for obs in row] for row in batch.next_obs]
    np.testing.assert_allclose(model.novelty(batch), expected, rtol=1e-3)
    np.testing.assert_allclose(model.reward(batch), np.array(expected) / float(model.returns.std), rtol=1e-3)


def test_rewards_are_scaled_by_returns_over_the_stream() -> None:
    """O3: discounted within an episode, over fragments, whatever ended it; running, and nothing is subtracted."""
    model = make(gamma=GAMMA)
    stream = [marked(["...T..x...", ".....t...."])[a:b] for a, b in pairwise([0, 3, 4, 10])]
    # What is predicted does not change here, so that a loop over all of the stream can say it too.
    fragments = [each.replace(next_obs=np.repeat(each.next_obs, 3).reshape(*each.shape, 3)) for each in stream]
    model.observe = lambda batch: type(model).observe(model, batch)
    for normalizer in model._of_observations:
        normalizer.update = lambda: None
    novelty = {int(n): float(x) for b in fragments for n, x in zip(b.reward.flat, model.novelty(b).flat)}
    for each in fragments:
        model.observe(each)
    found = []
    for run in Stream(stream).runs:
        so_far = 0.0
        for step in run.steps:
            so_far = novelty[step] + GAMMA * so_far
            found.append(so_far)
    assert int(model.returns.count) == len(found) == 20
    assert float(model.returns.std) == pytest.approx(np.std(found), rel=1e-4)
    np.testing.assert_allclose(model.reward(fragments[0]), model.novelty(fragments[0]) / np.std(found), rtol=1e-4)


def test_before_its_scale_is_known_nothing_is_new() -> None:
    """O3."""
    model = make()
    assert not model.reward(fragment()).any()
    teach(model, fragment())
    assert (model.reward(fragment()) > 0).all()


def test_a_minibatch_moves_no_statistics() -> None:
    """O3: they are those of what comes by, once."""
    model = make()
    teach(model, fragment())
    before = [float(model.returns.std), model.running]
    for _ in range(5):
        model.update(model.rows(fragment(3)))
        model.reward(fragment(3))
    assert [float(model.returns.std), model.running] == before


def test_what_was_seen_often_is_new_no_more() -> None:
    """The target stays as it is; the predictor comes close to it where it learns, and not elsewhere."""
    model = RND(BOX, TWO, hidden=(32,), device="cpu", seed=1)
    near, far = fragment(0, steps=64), fragment(1, steps=64)
    far.next_obs += 30
    model.observe(near)
    model.observe(far)
    target = [each.clone() for each in model.target.parameters()]
    before = model.novelty(near).mean(), model.novelty(far).mean()
    for _ in range(300):
        model.update(model.rows(near))
    assert all(torch.equal(a, b) for a, b in zip(target, model.target.parameters()))
    assert model.novelty(near).mean() < 0.1 * before[0]
    assert model.novelty(far).mean() > 5 * model.novelty(near).mean()


def test_its_loss_is_the_mean_error() -> None:
    model = make()
    batch = fragment()
    model.observe(batch)
    expected = float(np.mean([by_hand(model, obs) for obs in batch.next_obs.reshape(-1, 3)]))
    assert float(model.update(model.rows(batch))["rnd_loss"]) == pytest.approx(expected, rel=1e-3)


def test_returns_need_the_order_of_time() -> None:
    """O3."""
    with pytest.raises(SchemaError, match=r"RND learns from fragments \[T, N, ...\]"):
        make().observe(fragment().flat())
    with pytest.raises(ValueError, match=r"gamma is 1\.5, expected a discount in"):
        make(gamma=1.5)


def test_a_step_that_does_not_count_is_in_no_statistics() -> None:
    """O3: padding."""
    model, batch = make(gamma=0.0), fragment()
    mask = np.arange(8).reshape(4, 2) < 5
    model.observe(batch.replace(mask=mask))
    rows: Any = Batch(next_obs=batch.next_obs, reward=batch.reward)
    assert float(model.returns.mean) == pytest.approx(model.novelty(rows)[mask].mean(), rel=1e-5)

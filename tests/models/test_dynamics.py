"""Dynamics: the ensemble against a loop over plain networks, what a fit keeps, and what is imagined."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional

from flowrl.data import Batch
from flowrl.errors import CheckpointError, ConfigError, NotFinite
from flowrl.models import Dynamics
from flowrl.testing import same

BOX, ONE, TWO = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)


def make(actions: Any = ONE, **settings: Any) -> Dynamics:
    given = {"hidden": (5, 4), "members": 3, "elites": 2, "learning_rate": 0.01, "seed": 1, "device": "cpu", **settings}
    return Dynamics(BOX, actions, **given)


def steps(count: int = 40, seed: int = 0, actions: Any = ONE) -> Batch:
    """Steps of a line: s' = s + a, of which the first number rewards; beyond 3 it ends."""
    draw = np.random.default_rng(seed)
    obs = draw.normal(1, 2, (count, 2)).astype(np.float32)
    push = draw.uniform(-1, 1, (count, 1)).astype(np.float32)
    action = push if actions is ONE else (push[:, 0] > 0).astype(np.int64)
    next_obs = obs + push
    ended = next_obs[:, 0] > 3
    return Batch(obs=obs, action=action, reward=next_obs[:, 0].astype(float), next_obs=next_obs, terminated=ended)


def plain(model: Dynamics, member: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, log-variance and logit of one row of numbers, layer by layer."""
    layers: Any = model.model["layers"]
    for layer in layers:
        x = x @ layer.weight[member] + layer.bias[member, 0]
        x = x if layer is layers[-1] else x * torch.sigmoid(x)
    mean, log_var, end = x[:3], x[3:6], x[6]
    bounds: Any = model.model["bounds"]
    log_var = bounds["most"] - functional.softplus(bounds["most"] - log_var)
    return mean, bounds["least"] + functional.softplus(log_var - bounds["least"]), end


def test_the_loss_is_that_of_a_loop() -> None:
    """Z1: each member judges its own rows; the bounds of the log-variances count once."""
    model, draw = make(), torch.Generator().manual_seed(0)
    x, y = (torch.randn((3, 6, 3), generator=draw) for _ in range(2))
    terminated = (torch.rand((3, 6), generator=draw) < 0.5).float()
    loss, _ = model.loss(Batch(x=x, y=y, terminated=terminated))
    expected = 0.01 * 3 * (0.5 + 10)
    for member in range(3):
        for row in range(6):
            mean, log_var, end = plain(model, member, x[member, row])
            chance = torch.sigmoid(end) if terminated[member, row] else 1 - torch.sigmoid(end)
            of_numbers = ((y[member, row] - mean) ** 2 / log_var.exp() + log_var) / 2
            expected = expected + (of_numbers.sum() - chance.log()) / 6
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("actions", [ONE, TWO], ids=["continuous", "discrete"])
def test_it_learns_what_follows(actions: Any) -> None:
    """Z1: rewards, observations and ends, in their own units."""
    model, shown = make(actions, hidden=(32,)), steps(400, actions=actions)
    model.fit(shown, np.random.default_rng(0), minibatch_size=100, patience=20, epochs=150)
    fresh, none = steps(100, 1, actions), np.zeros((100, 3), np.float32)
    reward, next_obs, ended = model.imagine(fresh.obs, fresh.action, none, np.zeros(100, int))
    near = 0.3 if actions is ONE else 1.0  # a discrete action leaves out how far it pushes
    assert np.abs(reward - fresh.reward).mean() < near
    assert np.abs(next_obs - fresh.next_obs).mean() < near
    assert (ended == fresh.terminated).mean() > 0.8


def test_inputs_and_outcomes_are_normalized_by_all_rows() -> None:
    """Z1: of the newest fit alone, which has the rows of earlier ones too."""
    model, shown = make(), steps()
    for _ in range(2):
        model.fit(shown, np.random.default_rng(0), epochs=1)
    scale, seen = (model.model[name] for name in ("outcome", "seen"))
    outcome = np.column_stack([shown.reward, shown.next_obs.astype(float) - shown.obs])
    np.testing.assert_allclose(scale.mean, outcome.mean(0))
    np.testing.assert_allclose(scale.var, outcome.var(0))
    np.testing.assert_allclose(seen.normalizer.mean, shown.obs.astype(float).mean(0))
    assert int(scale.count) == len(shown)


def test_held_out_rows_choose_weights_and_elites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Z1: no member learns them; each keeps its best weights, and those with the least error are the elites."""
    model, shown = make(), steps()
    learned: list[Batch] = []
    judged: list[Batch] = []
    weights: list[Any] = []
    errors = iter([[8.0, 5.0, 2.0], [3.0, 4.99, 9.0], [9.0, 9.0, 9.0], [9.0, 9.0, 9.0]])

    def judge(rows: Batch) -> Any:
        judged.append(rows)
        weights.append(model._weights())
        return np.array(next(errors))

    update = model.update
    monkeypatch.setattr(model, "errors", judge)
    monkeypatch.setattr(model, "update", lambda rows: learned.append(rows) or update(rows))
    count, scalars = model.fit(shown, np.random.default_rng(0), holdout=0.25, minibatch_size=10, patience=2)
    assert count == len(learned) == 4 * 3  # epochs of 30 rows of each member
    assert {len(rows) for rows in judged} == {10}
    held = {tuple(row) for row in judged[0].x.tolist()}
    assert not held & {tuple(row) for rows in learned for row in rows.x.reshape(-1, 3).tolist()}
    first, second = weights[:2]  # after the first epoch, and after the second
    for now, one, two in zip(model._weights(), first, second):
        assert torch.equal(now[0], two[0])
        assert torch.equal(now[1], one[1])  # 4.99 is no improvement of 1 %
        assert torch.equal(now[2], one[2])
    assert model.elites == [2, 0]
    assert (scalars["model_error"], scalars["model_epochs"]) == (2.5, 4)


def test_a_fit_learns_from_new_rows_whatever_it_knew_of_old_ones() -> None:
    """Z1: that the old weights have seen held-out rows is no reason to keep them."""
    model, shown = make(), steps()
    model.fit(shown, np.random.default_rng(0), patience=20, epochs=150)
    before = model._weights()
    model.fit(Batch.cat([shown, steps(20, 3)]), np.random.default_rng(1), epochs=1)
    for now, old in zip(model._weights(), before):
        assert all(not torch.equal(*each) for each in zip(now, old))


def test_an_elite_imagines_by_hand() -> None:
    """Z2: its mean and its deviation times the noise, in the units of the rows; an end is likelier than not."""
    model, shown = make(), steps()
    model.fit(shown, np.random.default_rng(0), epochs=2)
    normal = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)
    elite = np.array([0, 1, 1, 0, 1, 0])
    reward, next_obs, ended = model.imagine(shown.obs[:6], shown.action[:6], normal, elite)
    x = model.input(torch.from_numpy(shown.obs[:6]), torch.from_numpy(shown.action[:6]))
    scale: Any = model.model["outcome"]
    for row in range(6):
        mean, log_var, end = plain(model, model.elites[elite[row]], x[row])
        y = (mean + (log_var / 2).exp() * torch.from_numpy(normal[row])).detach().double() * scale.std + scale.mean
        np.testing.assert_allclose(reward[row], y[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(next_obs[row], shown.obs[row] + y[1:].numpy(), rtol=1e-4, atol=1e-5)
        assert ended[row] == (end > 0).item()


def test_it_goes_on_from_its_state() -> None:
    """D3: networks, statistics, optimizer and elites; D6: its streams are not those of another seed."""
    one, other, shown = make(), make(seed=2), steps()
    one.fit(shown, np.random.default_rng(0), epochs=3)
    assert not same(one.state_dict(), other.state_dict())
    other.load_state_dict(one.state_dict())
    assert other.elites == one.elites
    for model in (one, other):
        model.fit(steps(50, 3), np.random.default_rng(1), epochs=2)
    assert same(one.state_dict(), other.state_dict())
    damaged = {**one.state_dict(), "elites": [0, 0]}
    with pytest.raises(CheckpointError, match="elites"):
        other.load_state_dict(damaged)
    assert same(one.state_dict(), other.state_dict())


def test_what_it_cannot_do_is_said() -> None:
    """X1 of what it imagines, and spaces and numbers before anything starts."""
    image, choice = spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Discrete(3)
    for space in (image, choice, spaces.Dict(obs=BOX)):
        with pytest.raises(ConfigError, match=r"predicts observations that are a Box of floats, got .*: wrap"):
            Dynamics(space, ONE, device="cpu")
    with pytest.raises(ConfigError, match=r"elites is 4, expected 1 \.\. 3"):
        make(elites=4)
    model, shown = make(), steps()
    model.fit(shown, np.random.default_rng(0), epochs=1)
    normal = np.full((40, 3), math.nan, np.float32)
    with pytest.raises(NotFinite, match="imagines numbers that are not finite"):
        model.imagine(shown.obs, shown.action, normal, np.zeros(40, int))


def test_the_weights_are_those_of_separate_networks() -> None:
    """Z1: as many as the sizes say."""
    sizes = [3, 5, 4, 7]
    assert [tuple(each.shape) for each in make()._stacked] == [
        shape for one, two in pairwise(sizes) for shape in ((3, one, two), (3, 1, two))
    ]

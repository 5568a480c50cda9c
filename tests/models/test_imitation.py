"""Discriminators against loops: GAIL and AIRL, their rewards, and what they come to tell apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.models import AIRL, GAIL
from tests.models.test_reward_model import BOX, TWO, fragment, make, rows_of, teach


def through(network: Any, inputs: np.ndarray) -> float:
    """What linear layers with tanh between them give for one row."""
    layers = [each for each in network.modules() if isinstance(each, torch.nn.Linear)]
    for number, layer in enumerate(layers):
        inputs = layer.weight.detach().numpy() @ inputs + layer.bias.detach().numpy()
        if number < len(layers) - 1:
            inputs = np.tanh(inputs)
    return float(inputs[0])


def seen(model: Any, obs: np.ndarray) -> np.ndarray:
    normalizer = model._of_observations[0]
    return np.clip((obs - normalizer.mean.numpy()) / normalizer.std.numpy(), -5, 5).astype(np.float32)


def gail_logit(model: GAIL, row: Batch) -> float:
    return through(
        model.model["judge"], np.concatenate([seen(model, row.obs), np.eye(2, dtype=np.float32)[row.action]])
    )


def airl_logit(model: AIRL, row: Batch) -> float:
    """f − log π with f = g(s) + γ (1 − terminated) h(s') − h(s)."""
    reward, shaping = model.model["reward"], model.model["shaping"]
    inputs = [seen(model, row.obs)] + ([] if model.state_only else [np.eye(2, dtype=np.float32)[row.action]])
    inputs += [np.zeros(1, np.float32)] if model.absorbing else []
    after = 0.0 if row.terminated else through(shaping, seen(model, row.next_obs))
    f = through(reward, np.concatenate(inputs)) + model.gamma * after - through(shaping, seen(model, row.obs))
    return f - float(row.logp)


def absorbed(model: AIRL) -> float:
    """f of the absorbing state."""
    layer = model.model["reward"][0]
    return through(model.model["reward"], np.eye(layer.in_features, dtype=np.float32)[-1])


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


REWARDS = {
    "positive": lambda d: -np.log(1 - d),
    "negative": lambda d: np.log(d),
    "both": lambda d: np.log(d) - np.log(1 - d),
}


@pytest.mark.parametrize("form", REWARDS)
def test_gails_reward_is_what_its_form_says(form: str) -> None:
    model, batch = make("gail", form=form), fragment(2)
    teach(model, fragment(0), fragment(1))
    expected = [REWARDS[form](sigmoid(gail_logit(model, row))) for row in rows_of(batch)]
    np.testing.assert_allclose(model.reward(batch).ravel(), expected, rtol=1e-3, atol=1e-5)
    signs = set(np.sign(expected).tolist())
    assert signs == {"positive": {1.0}, "negative": {-1.0}, "both": signs}[form]


@pytest.mark.parametrize("absorbing", [True, False])
@pytest.mark.parametrize("state_only", [True, False])
def test_airls_reward_is_log_d_minus_log_of_the_rest(state_only: bool, absorbing: bool) -> None:
    """D = exp f / (exp f + π); no value is carried over an end, but what the absorbing state is worth ever after."""
    ends = np.arange(8).reshape(4, 2) % 3 == 0
    logp = np.random.default_rng(1).uniform(-2, 0, (4, 2)).astype(np.float32)
    model = make("airl", state_only=state_only, absorbing=absorbing, gamma=0.8)
    batch = fragment(2, terminated=ends, logp=logp)
    teach(model, fragment(0, terminated=ends), fragment(1))
    expected = []
    for row in rows_of(batch):
        f = airl_logit(model, row) + float(row.logp)
        d = np.exp(f) / (np.exp(f) + np.exp(float(row.logp)))
        ever_after = sum(0.8**n * absorbed(model) for n in range(1, 100)) if absorbing and row.terminated else 0
        expected.append(np.log(d) - np.log(1 - d) + ever_after)
    np.testing.assert_allclose(model.reward(batch).ravel(), expected, rtol=1e-3, atol=1e-5)


def test_each_end_is_a_row_of_the_absorbing_state() -> None:
    """Of whoever ended; truncated episodes have not."""
    model = make("airl", gamma=0.8)
    ends = np.arange(8).reshape(4, 2) % 3 == 0
    agent, shown = fragment(0, terminated=ends), fragment(1, truncated=ends)
    model.observe(agent, shown)
    of_agent = [airl_logit(model, row) for row in rows_of(agent)] + [absorbed(model)] * int(ends.sum())
    of_shown = [airl_logit(model, row) for row in rows_of(shown)]
    scalars = model.update(model.rows(agent), model.rows(shown))
    expected = -0.5 * np.mean(np.log(1 - sigmoid(np.array(of_agent)))) - 0.5 * np.mean(
        np.log(sigmoid(np.array(of_shown)))
    )
    assert float(scalars["discriminator_loss"]) == pytest.approx(expected, rel=1e-4)


def test_an_end_that_nobody_showed_is_worth_less_than_to_go_on() -> None:
    """And one that was shown is worth more: whether to end is learned, and not said by the sign of rewards."""
    ends = np.arange(64).reshape(32, 2) % 8 == 0
    worth = []
    for of_agent, of_shown in ((ends, ~ends & ends), (~ends & ends, ends)):
        model = make("airl", hidden=(32,), learning_rate=1e-2, gamma=0.9)
        agent, shown = fragment(0, steps=32, terminated=of_agent), fragment(0, steps=32, terminated=of_shown)
        for _ in range(50):
            model.observe(agent, shown)
            model.update(model.rows(agent), model.rows(shown))
        told = [
            model.reward(fragment(2, steps=32, terminated=np.full((32, 2), ended))).mean() for ended in (True, False)
        ]
        worth.append(told[0] - told[1])
    assert worth[0] < -1
    assert worth[1] > 1


@pytest.mark.parametrize(("name", "logit"), [("gail", gail_logit), ("airl", airl_logit)])
def test_the_loss_is_that_of_telling_both_apart(name: str, logit: Any) -> None:
    """Demonstrated steps are 1, the agent's 0; each half counts alike, whichever has more rows."""
    model = make(name, **({"gradient_penalty": 0} if name == "gail" else {}))
    agent, shown = fragment(0), fragment(1, steps=2)
    model.observe(agent, shown)
    of_agent = [-np.log(1 - sigmoid(logit(model, row))) for row in rows_of(agent)]
    of_shown = [-np.log(sigmoid(logit(model, row))) for row in rows_of(shown)]
    scalars = model.update(model.rows(agent), model.rows(shown))
    expected = 0.5 * np.mean(of_agent) + 0.5 * np.mean(of_shown)
    assert float(scalars["discriminator_loss"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("shown_rows", "pairs"), [(8, list(range(8))), (4, [0, 2, 4, 7])])
def test_the_penalty_is_that_of_slopes_by_differences(shown_rows: int, pairs: list[int]) -> None:
    """D6: at points between pairs of rows, from all over the fragment, drawn from the model's stream."""
    model, agent, shown = make("gail"), fragment(0), fragment(1)
    model.observe(agent, shown)
    rows = model.rows(agent), model.rows(shown)[:shown_rows]
    with model.stream.swapped_in():
        before = torch.get_rng_state()
        penalty = float(model._penalty(*rows).detach())
        torch.set_rng_state(before)
        share = torch.rand(shown_rows, 1)
    points = share * model._input(rows[0][pairs]) + (1 - share) * model._input(rows[1])
    slopes = []
    for point in points.detach().double().numpy():
        steps = np.eye(5) * 1e-3
        found = [through(model.model["judge"], point + d) - through(model.model["judge"], point - d) for d in steps]
        slopes.append(np.linalg.norm(found) / 2e-3)
    assert penalty == pytest.approx(np.mean(np.square(slopes)), rel=1e-3)


@pytest.mark.parametrize("name", ["gail", "airl"])
def test_what_looks_demonstrated_is_worth_more(name: str) -> None:
    model = make(name, hidden=(32,), learning_rate=1e-2)
    agent, shown = fragment(0, steps=32), fragment(1, steps=32)
    shown.obs += 4
    for _ in range(100):
        model.observe(agent, shown)
        scalars = model.update(model.rows(agent), model.rows(shown))
    assert float(scalars["discriminator_accuracy"]) > 0.7
    assert model.reward(shown).mean() > model.reward(agent).mean() + 0.3


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="form='best' is not a form of the reward; take one of positive, negative"):
        GAIL(BOX, TWO, form="best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="gradient_penalty is -1"):
        make("gail", gradient_penalty=-1)
    with pytest.raises(ValueError, match="gamma is 3, expected a discount in 0"):
        make("airl", gamma=3)
    with pytest.raises(ConfigError, match="gamma is 1: the return of an absorbing state would be infinite"):
        make("airl", gamma=1)
    make("airl", gamma=1, absorbing=False)

"""What DQN, C51 and QR-DQN learn of a return, against loops over rows, atoms and quantiles."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowrl.errors import ConfigError
from flowrl.networks.heads import MeanHead, project, quantile_huber
from flowrl.networks.networks import QNetwork, encoder
from flowrl.networks.torch_rng import TorchStream
from flowrl.policies import CategoricalHead, DQNPolicy, QuantileHead, ValueHead
from tests.scripted import shake, transitions

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
HEADS: dict[str, Any] = {
    "mean": MeanHead,
    "categorical": lambda: CategoricalHead(7, -2.0, 3.0),
    "quantile": lambda: QuantileHead(5),
}


def make(head: ValueHead, **settings: Any) -> DQNPolicy:
    """With weights large enough that returns differ from action to action."""
    given = {"hidden": (8,), "seed": 3, "device": "cpu", **settings}
    policy: DQNPolicy = shake(DQNPolicy(OBSERVATIONS, gymnasium.spaces.Discrete(3), head=head, **given))
    return policy


# -- the categorical projection


def projected(probabilities: list[float], returns: list[float], atoms: list[float]) -> list[float]:
    """Algorithm 1 of the paper, atom by atom, with what it leaves out: a return that is an atom keeps its mass."""
    found, step = [0.0] * len(atoms), atoms[1] - atoms[0]
    for probability, value in zip(probabilities, returns):
        place = (min(max(value, atoms[0]), atoms[-1]) - atoms[0]) / step
        lower, upper = math.floor(place), math.ceil(place)
        if lower == upper:
            found[lower] += probability
        else:
            found[lower] += probability * (upper - place)
            found[upper] += probability * (place - lower)
    return found


@given(
    st.lists(st.floats(-6, 6) | st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]), min_size=5, max_size=5),
    st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(any),
)
def test_the_projection_against_a_loop(returns: list[float], shares: list[float]) -> None:
    """Q4: between atoms, on one, beyond both ends; mass is conserved."""
    probabilities = [share / sum(shares) for share in shares]
    given = torch.tensor([probabilities]), torch.tensor([returns])
    got = project(*given, -2.0, 2.0)[0]
    assert got.tolist() == pytest.approx(projected(probabilities, returns, [-2.0, -1.0, 0.0, 1.0, 2.0]), abs=1e-5)
    assert float(got.sum()) == pytest.approx(1, abs=1e-6)
    assert bool((got >= 0).all())


def test_mass_is_conserved_where_the_target_falls_on_an_atom() -> None:
    """Q4: on each one, the last too, also where rounding leads beside it (51 atoms from 0 to 1)."""
    head = CategoricalHead(51, 0.0, 1.0)
    outputs = torch.full((51, 51), -50.0).fill_diagonal_(50.0)
    got = head.target(torch.zeros(51), torch.ones(51), outputs)
    torch.testing.assert_close(got, torch.eye(51), atol=1e-4, rtol=0)
    torch.testing.assert_close(got.sum(1), torch.ones(51))


@pytest.mark.parametrize(("reward", "expected"), [(0.25, [0, 0.75, 0.25]), (9.0, [0.0, 0, 1]), (-1.5, [1.0, 0, 0])])
def test_a_terminal_state_puts_all_mass_at_the_reward(reward: float, expected: list[float]) -> None:
    """Q4: clipped to the range, shared by its two neighbours, whatever was said of the next state."""
    head = CategoricalHead(3, -1.0, 1.0)
    got = head.target(torch.tensor([reward]), torch.zeros(1), torch.tensor([[3.0, -2.0, 1.0]]))
    torch.testing.assert_close(got, torch.tensor([expected]))


# -- the quantile Huber loss


def test_the_quantile_huber_loss_against_a_loop() -> None:
    """Q5: a sample above a quantile costs its level, one below it the rest; the mean over samples, the sum over
    quantiles."""
    draw = torch.Generator().manual_seed(2)
    quantiles, samples = 2 * torch.randn(6, 4, generator=draw), 2 * torch.randn(6, 3, generator=draw)
    levels = torch.tensor([0.125, 0.375, 0.625, 0.875])
    got = quantile_huber(quantiles, samples, levels)
    for b in range(6):
        loss = 0.0
        for i in range(4):
            for j in range(3):
                u = float(samples[b, j] - quantiles[b, i])
                huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                loss += (float(levels[i]) if u >= 0 else 1 - float(levels[i])) * huber / 3
        assert float(got[b]) == pytest.approx(loss, rel=1e-5)


def test_what_minimises_it_are_the_quantiles_of_the_samples() -> None:
    """Q5: of 1 .. 100 the levels 0.1, 0.5 and 0.9 lie near 10, 50 and 90, in this order."""
    samples, found = torch.arange(1.0, 101).expand(1, -1), torch.full((1, 3), 50.0, requires_grad=True)
    optimizer = torch.optim.Adam([found], lr=2.0)
    for _ in range(200):
        optimizer.zero_grad()
        quantile_huber(found, samples, torch.tensor([0.1, 0.5, 0.9])).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert found.tolist()[0] == pytest.approx([10.5, 50.5, 90.5], abs=2)


def test_levels_are_midpoints() -> None:
    assert QuantileHead(4).levels.tolist() == [0.125, 0.375, 0.625, 0.875]


# -- values, losses and priorities of whole rows


@pytest.mark.parametrize("name", HEADS)
def test_values_are_means_of_what_is_said(name: str) -> None:
    """And the same in numpy."""
    head = HEADS[name]()
    outputs = torch.randn(2, 3, *head.shape, generator=torch.Generator().manual_seed(1))
    values = head(outputs)
    assert values.shape == (2, 3)
    np.testing.assert_allclose(head.in_numpy()(outputs.numpy()), values, rtol=1e-5, atol=1e-6)
    numbers = outputs[1, 2].tolist()
    if name == "mean":
        expected = numbers
    elif name == "quantile":
        expected = sum(numbers) / 5
    else:
        total = sum(map(math.exp, numbers))
        expected = sum(math.exp(number) / total * (-2 + k * 5 / 6) for k, number in enumerate(numbers))
    assert float(values[1, 2]) == pytest.approx(expected, rel=1e-5)


def test_values_are_not_rounded_in_mixed_precision() -> None:
    """Q1: near 100 bfloat16 knows steps of a half, and the best action would be the first of many."""
    head, outputs = CategoricalHead(51, 0.0, 100.0), torch.randn(1, 8, 51, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        values = head(outputs)
    torch.testing.assert_close(values, head(outputs))


@pytest.mark.parametrize("name", ["categorical", "quantile"])
@pytest.mark.parametrize("dueling", [False, True])
def test_dueling_is_of_each_number_that_is_said(name: str, dueling: bool) -> None:
    """Q3: the mean over the valid actions of each atom, or quantile, is taken away."""
    head = HEADS[name]()
    space = gymnasium.spaces.Dict(seen=OBSERVATIONS, action_mask=gymnasium.spaces.MultiBinary(3))
    with TorchStream(0).swapped_in():
        net = QNetwork(encoder(space), 3, (8,), dueling=dueling, head=head)
    seen, mask = torch.ones(2, 4), torch.tensor([[True, True, True], [True, False, True]])
    hidden = net.trunk({"seen": seen})
    advantage = net.advantage(hidden).reshape(2, 3, -1)
    for masked, counted in (({}, [[0, 1, 2], [0, 1, 2]]), ({"action_mask": mask}, [[0, 1, 2], [0, 2]])):
        got = net({"seen": seen, **masked}, values=False)
        assert got.shape == (2, 3, *head.shape)
        for b, a, k in np.ndindex(*got.shape):
            expected = advantage[b, a, k]
            if net.value is not None:
                expected = (
                    expected + net.value(hidden)[b, k] - sum(advantage[b, c, k] for c in counted[b]) / len(counted[b])
                )
            assert float(got[b, a, k].detach()) == pytest.approx(float(expected.detach()), abs=1e-5)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_losses_and_priorities_of_rows_against_a_loop(name: str, double: bool) -> None:
    """Q1, Q4, Q5: the best action's distribution is the target, moved by reward and discount; P2: weighted; the
    priority is |TD error|, the KL divergence, or the quantile loss."""
    policy, batch = make(HEADS[name](), double=double), transitions(16)
    weight = np.random.default_rng(7).random(16).astype(np.float32)
    rows = policy.learn_mode.tensors(policy.learn_mode.prepare(batch.replace(weight=weight)))
    loss, scalars = policy.learn_mode.loss(rows)
    expected, chosen = [], set()
    with torch.no_grad():
        for b in range(16):
            obs, next_obs = rows.obs[b : b + 1], rows.next_obs[b : b + 1]
            best = int((policy.model if double else policy.target)(next_obs)[0].argmax())
            chosen.add((best, int(policy.target(next_obs)[0].argmax())))
            said_t = policy.target(next_obs, values=False)[0, best]
            said = policy.model(obs, values=False)[0, batch.action[b]]
            reward, discount = float(batch.reward[b]), 0.99 * (not batch.terminated[b])
            if name == "mean":
                error = abs(reward + discount * float(said_t) - float(said))
                row, priority = (0.5 * error**2 if error < 1 else error - 0.5), error
            elif name == "quantile":
                target = [reward + discount * float(theta) for theta in said_t]
                row = 0.0
                for i in range(5):
                    for j in range(5):
                        u = target[j] - float(said[i])
                        row += abs((i + 0.5) / 5 - (u < 0)) * (0.5 * u**2 if abs(u) < 1 else abs(u) - 0.5) / 5
                priority = row
            else:
                atoms = [-2 + k * 5 / 6 for k in range(7)]
                moved = [reward + discount * atom for atom in atoms]
                target = projected(torch.softmax(said_t, 0).tolist(), moved, atoms)
                predicted = torch.softmax(said, 0).tolist()
                row = -sum(p * math.log(q) for p, q in zip(target, predicted))
                priority = sum(p * math.log(p / q) for p, q in zip(target, predicted) if p > 0)
            assert float(scalars["priority"][b]) == pytest.approx(priority, rel=1e-3, abs=1e-4)
            expected.append(weight[b] * row)
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-4)
    assert not double or any(online != target for online, target in chosen)  # both networks are seen at work


@pytest.mark.parametrize(
    ("make_head", "message"),
    [
        (lambda: CategoricalHead(1, 0, 1), "atoms=1.* at least 2"),
        (lambda: CategoricalHead(51, 1, 1), "v_min=1 and v_max=1"),
        (lambda: QuantileHead(0), "quantiles=0"),
    ],
)
def test_no_distribution_is_refused(make_head: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_head()

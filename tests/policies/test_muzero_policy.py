"""MuZero's policy: what unrolls are to come to, the model in numpy, the scale of its numbers, and what it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.policies import MuZeroPolicy, muzero
from flowrl.policies.muzero import Support, unrolls

NUMBERS = spaces.Box(-1, 1, (4,), np.float32)
MASKED = spaces.Dict({"seen": NUMBERS, "action_mask": spaces.MultiBinary(3)})


def small(space: Any = NUMBERS, actions: int = 3, **settings: Any) -> MuZeroPolicy:
    return MuZeroPolicy(
        space, spaces.Discrete(actions), **{"hidden": (8,), "latent_size": 6, "support_size": 3, **settings}
    )


def sequences(draw: np.random.Generator, length: int, width: int) -> Batch:
    """Sequences `[T, B]` as a buffer gives them: of different lengths, some of which end with their episode."""
    real = np.arange(length)[:, None] < draw.integers(1, length + 1, size=width)
    real[:, 0] = True
    last = real & ~np.vstack([real[1:], np.zeros((1, width), bool)])
    over = draw.random(width) < 0.5
    return Batch(
        obs=draw.normal(size=(length, width, 4)).astype(np.float32),
        action=draw.integers(3, size=(length, width)),
        reward=draw.normal(size=(length, width)).astype(np.float32) * real,
        terminated=last & over,
        truncated=np.zeros((length, width), bool),
        search_policy=draw.dirichlet(np.ones(3), size=(length, width)).astype(np.float32),
        search_value=draw.normal(size=(length, width)).astype(np.float32),
        policy_version=np.zeros((length, width), np.int64),
        mask=real,
    )


@pytest.mark.parametrize("discount", [0.9, -1.0])
@pytest.mark.parametrize("n", [1, 3, 20])
def test_targets_are_those_of_an_obvious_loop(n: int, discount: float) -> None:
    """K4: within the sequence, with 0 behind a terminal state, and nothing to learn behind an open end."""
    batch, steps = sequences(np.random.default_rng(n), 7, 9), 3
    beyond = 3 + np.arange(10 * 9).reshape(10, 9)
    rows, row = unrolls(batch, batch.search_value, steps, n, discount, beyond), 0

    def value(seat: int, at: int, last: int) -> float:
        total, weight = 0.0, 1.0
        for step in range(at, at + n):
            if step == last and not batch.terminated[step, seat]:
                return total + weight * batch.search_value[step, seat]
            total, weight = total + weight * batch.reward[step, seat], weight * discount
            if batch.terminated[step, seat]:
                return total
        return total + weight * batch.search_value[at + n, seat]

    for at, seat in np.argwhere(batch.mask).tolist():
        last = int(batch.mask[:, seat].sum()) - 1
        assert (rows.obs[row] == batch.obs[at, seat]).all()
        for ahead in range(steps + 1):
            then = at + ahead
            assert rows.policy_counts[row, ahead] == (then <= last)
            assert rows.counts[row, ahead] == (then <= last or batch.terminated[last, seat])
            if then <= last:
                assert (rows.policies[row, ahead] == batch.search_policy[then, seat]).all()
                assert rows["values"][row, ahead] == pytest.approx(value(seat, then, last), abs=1e-5)
            else:
                assert rows["values"][row, ahead] == 0
            if ahead < steps:
                assert rows.rewards[row, ahead] == (batch.reward[then, seat] if then <= last else 0)
                assert rows.actions[row, ahead] == (batch.action if then <= last else beyond)[then, seat]
        row += 1
    assert row == len(rows)


def test_numbers_survive_their_distribution() -> None:
    """Up to the ends of the support, beyond which they stay there."""
    support, numbers = Support(4), torch.tensor([-20.0, -1.5, 0.0, 0.3, 7.0])
    shares = support.shares(numbers)
    assert torch.allclose(shares.sum(1), torch.ones(5))
    assert support.numbers(shares.clamp(min=1e-30).log()) == pytest.approx(numbers.numpy(), abs=1e-3)
    assert support.numbers(support.shares(torch.tensor([1e6])).clamp(min=1e-30).log()) == pytest.approx(
        support.numbers(torch.tensor([[-100.0] * 8 + [0.0]])), abs=1e-3
    )


def test_values_of_a_game_for_two_are_not_rescaled() -> None:
    """An outcome that the support holds is one atom; between two, shares are in proportion."""
    policy = small(longest_game=9, support_size=1)
    shares = policy.support.shares(torch.tensor([-1.0, 0.25, 3.0]))
    assert shares.tolist() == [[1, 0, 0], [0, 0.75, 0.25], [0, 0, 1]]
    assert policy.support.numbers(shares.clamp(min=1e-30).log()) == pytest.approx([-1, 0.25, 1])


def test_in_a_game_for_two_q_is_scaled_by_what_can_be_won(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else noise between equally good moves would count as much as a game that is won."""
    search, given = muzero.gumbel_search, []
    monkeypatch.setattr(muzero, "gumbel_search", lambda *on, **how: given.append(how["extent"]) or search(*on, **how))
    for longest_game in (9, None):
        mode = small(longest_game=longest_game).collect_mode
        mode.act(np.zeros((2, 4), np.float32), np.full((2, mode.draws), 0.5), 0)
    assert given == [3, None]


@pytest.mark.parametrize("longest_game", [None, 9])
def test_behind_an_end_the_model_meets_all_actions(longest_game: int | None) -> None:
    """K4: a search also goes on there, with any of them; other draws each time, the same ones for the same seed."""
    batch = sequences(np.random.default_rng(0), 7, 40)
    batch.terminated = batch.mask & ~np.vstack([batch.mask[1:], np.zeros((1, 40), bool)])
    one, other = (small(seed=1, longest_game=longest_game) for _ in range(2))
    drawn = [one.learn_mode.prepare(batch) for _ in range(2)]
    beyond = drawn[0].policy_counts[:, :-1] == 0
    assert (np.bincount(drawn[0].actions[beyond], minlength=3) > 0.25 * beyond.sum()).all()
    assert (drawn[0].actions[beyond] != drawn[1].actions[beyond]).any()
    assert (drawn[0].actions == other.learn_mode.prepare(batch).actions).all()


def test_the_model_in_numpy_is_that_of_torch() -> None:
    """The same columns, with and without a mask, up to rounding."""
    for space in (NUMBERS, MASKED):
        one, other = small(space, act_backend="torch"), small(space, act_backend="numpy")
        seen = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
        mask = np.int8([[1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 1, 0], [0, 1, 1]])
        obs: Any = seen if space is NUMBERS else Batch(seen=seen, action_mask=mask)
        noise = np.random.default_rng(1).random((5, 5))
        rows, twins = one.collect_mode.act(obs, noise, 0), other.collect_mode.act(obs, noise, 0)
        assert (rows["action"] == twins["action"]).all()
        assert rows["search_policy"] == pytest.approx(twins["search_policy"], abs=1e-4)
        assert rows["search_value"] == pytest.approx(twins["search_value"], abs=1e-4)
        assert one.eval_mode.value(obs) == pytest.approx(other.eval_mode.value(obs), abs=1e-5)
        if space is MASKED:
            assert not rows["search_policy"][mask == 0].any()
            assert mask[np.arange(5), rows["action"]].all()


def test_it_learns_what_searches_found() -> None:
    """From the same sequences again and again, so that rewards, values and policies of whole unrolls come near."""
    policy = small(learning_rate=0.01, gamma=0.9, hidden=(32,))
    batch = sequences(np.random.default_rng(3), 6, 4)
    losses = [policy.learn_mode.learn_from(batch) for _ in range(300)]
    for name in ("policy_loss", "value_loss", "reward_loss"):
        assert losses[-1][name] < losses[0][name]
    rows = policy.learn_mode.prepare(batch)
    assert np.corrcoef(policy.eval_mode.value(rows.obs), rows["values"][:, 0])[0, 1] > 0.9


def test_values_bootstrap_from_a_target_network_and_in_games_from_searches() -> None:
    """K4: the target network says the same while the online one learns, until it follows."""
    policy, batch = small(gamma=0.9), sequences(np.random.default_rng(4), 6, 4)
    obs, nobody = batch.select(["obs"]).flat().obs, np.zeros((11, 4), np.int64)

    def learned(values: Any, discount: float = 0.9) -> Any:
        return unrolls(batch, values.reshape(6, 4), 5, 10, discount, nobody)["values"]

    before = policy.eval_mode.value(obs)
    for _ in range(3):
        policy.learn_mode.learn_from(batch)
    assert policy.learn_mode.prepare(batch)["values"] == pytest.approx(learned(before), abs=1e-5)
    policy.update_target()
    assert policy.learn_mode.prepare(batch)["values"] == pytest.approx(learned(policy.eval_mode.value(obs)), abs=1e-5)
    assert np.abs(policy.eval_mode.value(obs) - before).max() > 1e-3
    game = small(gamma=0.9, longest_game=9)
    assert game.learn_mode.prepare(batch)["values"] == pytest.approx(learned(batch.search_value, -0.9))


def test_each_step_of_the_model_halves_the_gradient() -> None:
    """K4: what the k-th step says moves the representation by 2 ** -k of what it would."""
    policy, batch = small(unroll_steps=2), sequences(np.random.default_rng(5), 6, 4)
    learn, rows = policy.learn_mode, policy.learn_mode.tensors(policy.learn_mode.prepare(batch))
    rows.policy_counts[:], rows.counts[:, :2], rows.counts[:, 2] = 0, 0, 1  # only the second step's value counts
    model, weights = policy.model, [next(policy.model.representation.parameters())]
    (halved,) = torch.autograd.grad(learn.loss(rows)[0], weights)
    latent = model.represent(rows.obs)
    for step in range(2):
        latent, _ = model.advance(latent, rows.actions[:, step])
    shares = policy.support.shares(rows["values"][:, 2])
    loss = -(shares * torch.log_softmax(model.predict(latent)[1], 1)).sum(1).mean()
    (whole,) = torch.autograd.grad(policy.settings.value_coef * loss / 2, weights)
    assert torch.allclose(halved, whole / 4, rtol=1e-4, atol=1e-9)
    assert halved.abs().sum() > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"simulations": 0}, "simulations=0"),
        ({"eval_simulations": 0}, "eval_simulations=0"),
        ({"unroll_steps": 0}, "unroll_steps=0"),
        ({"longest_game": 0}, "longest_game=0"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small(**settings)


def test_other_actions_and_rows_without_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="MuZero"):
        MuZeroPolicy(NUMBERS, spaces.Box(-1, 1, (2,)))
    policy = small()
    rows = sequences(np.random.default_rng(0), 3, 1)[:, 0]
    with pytest.raises(SchemaError, match="MuZero unrolls steps in the order of time"):
        policy.learn_mode.prepare(rows)

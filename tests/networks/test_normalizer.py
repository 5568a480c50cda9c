"""Running statistics against numpy, and what they do to a policy: part of its weights, for all who read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.networks.normalize import EPS, LIMIT, Moments
from flowrl.policies import A2CPolicy, DQNPolicy, Normalizer, Policy, PPOPolicy, policy_from
from flowrl.policies.weights import load_weights, save_weights
from flowrl.testing import same
from tests.scripted import transitions

BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
BOTH = {"normalize_obs": True, "normalize_rewards": True}


def make(kind: type[Policy] = PPOPolicy, space: gymnasium.Space[Any] = BOX, **given: Any) -> Any:
    return kind(space, spaces.Discrete(2), **{"hidden": (8,), "device": "cpu", "seed": 1, **BOTH, **given})


def rows(count: int = 50, seed: int = 0, mean: float = 5.0) -> np.ndarray:
    return (mean + 3 * np.random.default_rng(seed).normal(size=(count, 4))).astype(np.float32)


@st.composite
def batches(draw: Any) -> list[np.ndarray]:
    """Rows in parts of any size, around means of any size."""
    number = st.floats(-100, 100, width=32)
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    offset = draw(st.sampled_from([0.0, 1e3, -1e6, 1e9]))
    return [offset + draw(arrays.arrays(np.float64, (size, 2), elements=number)) for size in sizes]


@given(parts=batches(), order=st.randoms(use_true_random=False))
def test_merged_in_any_order_they_are_those_of_all_rows(parts: Sequence[np.ndarray], order: Any) -> None:
    """O2: as numpy finds them on the concatenation; in halves that were merged before, too."""
    shuffled = list(parts)
    order.shuffle(shuffled)
    half = len(parts) // 2
    sides = [Moments.none((2,)), Moments.none((2,))]
    for i, part in enumerate(shuffled):
        sides[i < half] = sides[i < half].merged(Moments.of(part))
    merged, whole = sides[0].merged(sides[1]), np.concatenate(parts)
    assert merged.count == len(whole)
    if len(whole):
        around = whole - whole[0]  # numpy's own variance would lose digits to a large mean
        np.testing.assert_allclose(merged.mean, whole[0] + around.mean(0), rtol=1e-12, atol=1e-9)
        scale = np.abs(around).max()
        np.testing.assert_allclose(merged.var, around.var(0), rtol=1e-9, atol=1e-15 * np.abs(whole).max() * scale)


def test_a_large_mean_costs_no_digits() -> None:
    """O2: where E[x²] − E[x]² would be all noise."""
    noise = np.random.default_rng(0).integers(-5, 6, size=(1000, 3)).astype(np.float64)
    merged = Moments.none((3,))
    for part in np.array_split(noise + 1e9, 37):
        merged = merged.merged(Moments.of(part))
    np.testing.assert_allclose(merged.var, noise.var(0), rtol=1e-6)


def test_what_is_gathered_waits_for_the_update() -> None:
    """O1: then the numbers have mean 0 and deviation 1, over all updates so far, and lie within the limit."""
    normalizer, first, second = Normalizer((4,)), rows(30), rows(70, seed=1, mean=-2.0)
    before = normalizer(torch.from_numpy(first))
    torch.testing.assert_close(before, torch.from_numpy(first.clip(-LIMIT, LIMIT)))
    for part in (first[:10], first[10:]):
        normalizer.gather(part, "obs")
    assert torch.equal(normalizer(torch.from_numpy(first)), before)
    normalizer.update()
    once = normalizer(torch.from_numpy(first)).numpy()
    np.testing.assert_allclose(once, (first - first.mean(0)) / np.sqrt(first.var(0) + EPS), rtol=1e-4, atol=1e-5)
    normalizer.update()
    assert np.array_equal(normalizer(torch.from_numpy(first)).numpy(), once), "an update counted rows twice"
    normalizer.gather(second, "obs")
    normalizer.update()
    whole = np.concatenate([first, second]).astype(np.float64)
    twice = normalizer(torch.from_numpy(second)).numpy()
    np.testing.assert_allclose(twice, (second - whole.mean(0)) / np.sqrt(whole.var(0) + EPS), rtol=1e-4, atol=1e-5)
    assert (normalizer(torch.full((1, 4), 1e9)) == LIMIT).all()


def test_what_never_varied_is_not_blown_up() -> None:
    """Its deviation is 1, be it a number that is rounded."""
    normalizer = Normalizer((1,))
    for count in (7, 100):
        normalizer.gather(np.full((count, 1), 0.1, np.float32), "obs")
        normalizer.update()
    assert normalizer(torch.tensor([[0.1], [0.6]])).numpy().ravel() == pytest.approx([0, 0.5], abs=1e-6)


def test_numbers_that_are_not_finite_are_refused_and_change_nothing() -> None:
    policy = make(space=spaces.Dict(speed=BOX))
    policy.gather_statistics(Batch(speed=rows()), np.ones(50))
    state = policy.state_dict()
    for bad in (np.inf, 1e200):
        spoilt = rows().astype(np.float64)
        spoilt[3, 2] = bad
        with pytest.raises(
            SchemaError, match=r"obs\['speed'\] has no mean and variance.* \(number 2 of a row is not\)"
        ):
            policy.gather_statistics(Batch(speed=spoilt), np.ones(50))
    assert same(policy.state_dict(), state)


@pytest.mark.parametrize("kind", [PPOPolicy, A2CPolicy, DQNPolicy])
def test_a_normalizing_policy_is_one_that_is_given_normalized_numbers(kind: type[Policy], tmp_path: Path) -> None:
    """O1: in all modes; the statistics go with the weights into a file, and into the state, what waits too."""
    policy, plain = make(kind), make(kind, normalize_obs=False, normalize_rewards=False)
    seen, later = rows(), rows(seed=1, mean=-3.0)
    policy.gather_statistics(seen, np.arange(50.0))
    policy.update_statistics()
    policy.gather_statistics(later, np.arange(50.0))
    by_hand = ((seen - seen.mean(0)) / np.sqrt(seen.var(0) + EPS)).clip(-10, 10).astype(np.float32)
    save_weights(policy, tmp_path / "policy.pt")
    loaded, resumed = make(kind, seed=2), make(kind, seed=2)
    load_weights(loaded, tmp_path / "policy.pt")
    resumed.load_state_dict(policy.state_dict())
    for which in ("collect_mode", "eval_mode"):
        noise = np.full((50, getattr(policy, which).draws), 0.6)
        expected = getattr(plain, which).act(by_hand, noise, 10**9)
        for other in (policy, loaded, resumed):
            acted = getattr(other, which).act(seen, noise, 10**9)
            for name, column in expected.items():
                np.testing.assert_allclose(acted[name], column, rtol=1e-3, atol=1e-5)
    assert same(resumed.state_dict(), policy.state_dict())
    policy.update_statistics()
    resumed.update_statistics()
    assert same(resumed.weights(), policy.weights())
    assert not same(loaded.weights(), policy.weights())


@pytest.mark.parametrize("kind", [PPOPolicy, DQNPolicy])
def test_acting_evaluating_and_learning_count_nothing(kind: type[Policy]) -> None:
    """O1: only `gather_statistics` does."""
    policy = make(kind)
    policy.gather_statistics(rows(), np.arange(50.0))
    policy.update_statistics()
    batch = transitions(50)
    if kind is PPOPolicy:
        batch.update(logp=np.zeros(50, np.float32), value=np.zeros(50, np.float32))
        batch.update(advantage=np.ones(50, np.float32), target=np.zeros(50, np.float32))
    statistics = {name: value for name, value in policy.weights().items() if "normalizer" in name or "returns" in name}
    for mode in (policy.collect_mode, policy.eval_mode):
        mode.act(rows(), np.full((50, mode.draws), 0.5), 0)
    policy.learn_mode.learn_from(batch)
    assert len(statistics) == 8
    assert all(torch.equal(policy.weights()[name], value) for name, value in statistics.items())
    assert all(each.waiting.count == 0 for each in policy.normalizers.values())


def test_the_target_network_has_statistics_of_its_own() -> None:
    """O1, Q2: those of the online network until the first update; then they are part of its weights, and move so."""
    policy, obs = make(DQNPolicy), torch.from_numpy(rows())
    for seed in range(2):
        policy.gather_statistics(rows(seed=seed), np.arange(50.0))
        policy.update_statistics()
        assert torch.equal(policy.target(obs), policy.model(obs))
    policy.learn_mode.learn_from(transitions(20))
    policy.gather_statistics(rows(mean=-3.0), np.arange(50.0))
    before, (theirs, ours) = policy.target(obs), (each.trunk[0].normalizer for each in (policy.target, policy.model))
    first = theirs.mean.clone()
    policy.update_statistics()
    assert torch.equal(policy.target(obs), before)
    assert not torch.equal(ours.mean, first)
    policy.update_target(tau=0.25)
    torch.testing.assert_close(theirs.mean, 0.75 * first + 0.25 * ours.mean)
    policy.update_target()
    assert torch.equal(policy.target(obs), policy.model(obs))


def test_the_loss_of_rows_from_replay_normalizes_them_once() -> None:
    """O1: raw rows, by the statistics in use, obs and next_obs alike."""
    policy, plain = make(DQNPolicy), make(DQNPolicy, normalize_obs=False)
    batch = transitions(20).replace(obs=rows(20), next_obs=rows(20, seed=1))
    policy.gather_statistics(rows(), np.arange(50.0))
    policy.update_statistics()
    policy.update_target()
    mean, std = rows().mean(0), np.sqrt(rows().var(0) + EPS)
    by_hand = batch.replace(**{name: ((batch[name] - mean) / std).astype(np.float32) for name in ("obs", "next_obs")})
    losses = [
        float(each.learn_mode.loss(each.learn_mode.tensors(each.learn_mode.prepare(given)))[0].detach())
        for each, given in ((policy, batch), (plain, by_hand))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, np.float64])
def test_numbers_of_any_type_are_normalized(dtype: Any) -> None:
    """As torch has them and as numpy: of switches too, from which torch subtracts nothing."""
    given = rows(mean=0.0) > 0 if dtype is bool else rows().clip(0).astype(dtype)
    normalizer = Normalizer((4,))
    normalizer.gather(given, "obs")
    normalizer.update()
    expected = (given - given.mean(0, np.float64)) / given.std(0, dtype=np.float64)
    np.testing.assert_allclose(normalizer(torch.as_tensor(given)), expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(normalizer.in_numpy()(given), expected, rtol=1e-3, atol=1e-5)


def test_numbers_of_a_dictionary_are_normalized_by_key() -> None:
    """Nested ones too; images, choices and switches are left alone."""
    deep = spaces.Dict({"a.b": BOX, "bits": spaces.MultiBinary(3)})
    space = spaces.Dict(
        image=spaces.Box(0, 255, (12, 12, 3), np.uint8), choice=spaces.Discrete(3), deep=deep, speed=spaces.Box(-1, 1)
    )
    policy = make(space=space, normalize_rewards=False)
    obs = Batch(
        image=np.zeros((50, 12, 12, 3), np.uint8),
        choice=np.zeros(50, np.int64),
        deep={"a.b": rows(), "bits": np.zeros((50, 3), np.int8)},
        speed=rows()[:, :1] + 7,
    )
    policy.gather_statistics(obs, None)
    policy.update_statistics()
    found = {each.path: each.mean.numpy() for each in policy.normalizers.values()}
    assert found.keys() == {("deep", "a.b"), ("speed",)}
    np.testing.assert_allclose(found["deep", "a.b"], rows().mean(0, np.float64))
    np.testing.assert_allclose(found[("speed",)], (rows()[:, :1] + 7).mean(0, np.float64))


def test_the_first_returns_come_into_use_at_once() -> None:
    """O3: nobody acted by them; later ones wait, as observations always do."""
    policy = make()
    policy.gather_statistics(rows(), np.arange(50.0))
    assert float(policy.returns.std) == pytest.approx(np.arange(50.0).std())
    policy.gather_statistics(rows(), 1000 * np.arange(50.0))
    assert float(policy.returns.std) == pytest.approx(np.arange(50.0).std())
    assert [int(each.count) for each in policy.normalizers.values()] == [0, 50]
    policy.update_statistics()
    assert [int(each.count) for each in policy.normalizers.values()] == [100, 100]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_updating_more_often_gives_the_same_statistics(sizes: list[int]) -> None:
    """O2: whether every part is put into use by itself, or all at once."""
    often, once = Normalizer((4,)), Normalizer((4,))
    for seed, size in enumerate(sizes):
        often.gather(rows(size, seed), "obs")
        often.update()
        once.gather(rows(size, seed), "obs")
    once.update()
    for name, value in often.state_dict().items():
        torch.testing.assert_close(value, once.state_dict()[name], rtol=1e-9, atol=1e-9)


def test_a_model_of_ones_own_may_have_one() -> None:
    """Wherever it is in the model of a `policy_from`."""
    network = lambda *_: torch.nn.Sequential(Normalizer((4,)), torch.nn.Linear(4, 2))  # noqa: E731
    kind = policy_from(network, lambda model, batch: model(batch.obs).sum())
    policy = kind(BOX, spaces.Discrete(2), device="cpu")  # type: ignore[call-arg]
    policy.gather_statistics(rows(), None)
    policy.update_statistics()
    np.testing.assert_allclose(policy.model[0].mean, rows().mean(0, np.float64))  # type: ignore[index]


def test_what_cannot_be_normalized_is_said() -> None:
    with pytest.raises(ConfigError, match="normalize_obs=True, but Discrete"):
        make(space=spaces.Discrete(5))
    assert make(space=spaces.Discrete(5), normalize_obs=False).returns is not None
    with pytest.raises(ConfigError, match="device='mps' lacks"):
        make(device="mps")

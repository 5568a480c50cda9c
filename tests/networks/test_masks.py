"""Action masks in networks, distributions, losses and acting, each against a loop over the valid actions alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch.distributions import Categorical, kl_divergence

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.distributions import distribution
from flowrl.networks.masks import action_mask, masked, valid_mean
from flowrl.networks.networks import QNetwork, encoder
from flowrl.networks.sampling import argmax_sample, eps_greedy_sample, multinomial_sample
from flowrl.networks.torch_rng import TorchStream
from flowrl.policies import APPOPolicy, DQNPolicy, PPOPolicy, R2D2Policy, RandomPolicy, SACPolicy, policy_from
from flowrl.policies.policy import ValueActing
from flowrl.policies.recurrent_ppo import RecurrentPPOPolicy
from flowrl.schedules import linear_schedule
from tests.masked_envs import ACTIONS

ROWS = 40
SIZES = {"discrete": [5], "shifted": [5], "multi": [4, 3], "binary": [2, 2, 2]}


def observations(width: int) -> spaces.Dict:
    seen = spaces.Box(-1, 1, (3,), np.float32)
    return spaces.Dict(seen=seen, action_mask=spaces.MultiBinary(width))


def masks(sizes: list[int], rows: int = ROWS, seed: int = 0) -> np.ndarray:
    """Random ones `[rows, sum(sizes)]` in which every choice has a valid action."""
    draw = np.random.default_rng(seed)
    parts = [draw.random((rows, size)) < 0.5 for size in sizes]
    for part, size in zip(parts, sizes):
        part[np.arange(rows), draw.integers(size, size=rows)] = True
    return np.concatenate(parts, 1)


def seen(mask: np.ndarray, seed: int = 0) -> Batch:
    numbers = np.random.default_rng(seed).normal(size=(len(mask), 3)).astype(np.float32)
    return Batch(seen=numbers, action_mask=mask.astype(np.int8))


def over_valid(
    logits: torch.Tensor, mask: np.ndarray, sizes: list[int], row: int
) -> list[tuple[Categorical, list[int]]]:
    """Of one row: a distribution over the valid actions alone for each choice, and which those are."""
    found, first = [], 0
    for size in sizes:
        valid = [a for a in range(size) if mask[row, first + a]]
        found.append((Categorical(logits=logits[row, [first + a for a in valid]]), valid))
        first += size
    return found


def test_only_a_dictionary_has_a_mask() -> None:
    assert action_mask(np.zeros((2, 3))) is None
    assert action_mask(Batch(seen=np.zeros((2, 3)))) is None
    for numbers in (np.array([[2, 0]], np.int8), np.array([[0.5, 0.0]]), np.array([[True, False]])):
        assert action_mask({"action_mask": numbers}).tolist() == [[True, False]]
        assert action_mask({"action_mask": torch.from_numpy(numbers)}).tolist() == [[True, False]]


@pytest.mark.parametrize("kind", ACTIONS)
def test_distributions_are_those_of_the_valid_actions(kind: str) -> None:
    """G6: drawn, log-probability and entropy, in torch and in numpy; only valid ones are drawn, by any noise."""
    chosen, sizes = distribution(ACTIONS[kind]), SIZES[kind]
    logits = torch.randn(ROWS, sum(sizes), generator=torch.Generator().manual_seed(1)) * 3
    mask = masks(sizes)
    given_ = masked(logits, torch.from_numpy(mask))
    noise = np.random.default_rng(2).random((ROWS, len(sizes)))
    noise[:5], noise[5:10] = 0.0, np.nextafter(1, 0)
    action, logp = chosen.sample(given_, noise)
    in_numpy = chosen.in_numpy().sample(masked(logits.numpy(), mask), noise)
    np.testing.assert_array_equal(in_numpy[0], action)
    np.testing.assert_allclose(in_numpy[1], logp, rtol=1e-4, atol=1e-5)
    again, entropy = chosen.evaluate(given_, torch.from_numpy(action))
    best = chosen.mode(given_).reshape(ROWS, -1)
    for row in range(ROWS):
        parts = over_valid(logits, mask, sizes, row)
        drawn = action.reshape(ROWS, -1)[row].tolist()
        assert all(a in valid for a, (_, valid) in zip(drawn, parts))
        wanted = sum(part.log_prob(torch.tensor(valid.index(a))) for a, (part, valid) in zip(drawn, parts))
        assert logp[row] == pytest.approx(float(wanted), rel=1e-4, abs=1e-5)
        assert float(again[row]) == pytest.approx(float(wanted), rel=1e-4, abs=1e-5)
        assert float(entropy[row]) == pytest.approx(float(sum(part.entropy() for part, _ in parts)), abs=1e-5)
        assert best[row].tolist() == [valid[int(part.logits.argmax())] for part, valid in parts]


@pytest.mark.parametrize("kind", ACTIONS)
def test_divergences_are_those_of_the_valid_actions(kind: str) -> None:
    """G5, and gradients that an action that is not valid has none of, not even NaN."""
    chosen, sizes = distribution(ACTIONS[kind]), SIZES[kind]
    draw = torch.Generator().manual_seed(1)
    logits, others = torch.randn(2, ROWS, sum(sizes), generator=draw)
    logits.requires_grad_()
    mask = masks(sizes)
    valid = torch.from_numpy(mask)
    found = chosen.divergence(masked(logits, valid), chosen, masked(others, valid))
    for row in range(ROWS):
        pairs = zip(over_valid(logits.detach(), mask, sizes, row), over_valid(others, mask, sizes, row))
        wanted = sum(kl_divergence(ours, theirs) for (ours, _), (theirs, _) in pairs)
        assert float(found[row].detach()) == pytest.approx(float(wanted), abs=1e-5)
    _, entropy = chosen.evaluate(masked(logits, valid), torch.from_numpy(chosen.mode(masked(logits.detach(), valid))))
    (found.sum() + entropy.sum()).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert not logits.grad[~valid].any()
    assert logits.grad[valid].any()


def test_a_row_without_a_valid_action_stays_finite() -> None:
    """N6: padded rows have none, and what is 0 times their loss must be 0."""
    nothing = torch.zeros(1, 5, dtype=torch.bool)
    logits = torch.ones(1, 5, requires_grad=True)
    logp, entropy = distribution(ACTIONS["discrete"]).evaluate(masked(logits, nothing), torch.zeros(1))
    mean = valid_mean(logits, nothing)
    (logp + entropy + mean).sum().backward()
    assert mean.tolist() == [[0.0]]
    assert logp.isfinite()
    assert logits.grad is not None
    assert not logits.grad.any()


@given(
    values=arrays.arrays(np.float64, (3, 4, 2), elements=st.floats(-10, 10)),
    mask=arrays.arrays(np.bool_, (3, 4)),
)
def test_the_mean_over_valid_actions(values: np.ndarray, mask: np.ndarray) -> None:
    """Q3: for each number of an action, such as its quantiles."""
    found = [valid_mean(values, mask), valid_mean(torch.from_numpy(values), torch.from_numpy(mask)).numpy()]
    for row in range(3):
        chosen = [values[row, a] for a in range(4) if mask[row, a]]
        for mean in found:
            assert mean.shape == (3, 1, 2)
            np.testing.assert_allclose(mean[row, 0], sum(chosen) / len(chosen) if chosen else np.zeros(2), atol=1e-12)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_of_actions_against_a_loop(dueling: bool) -> None:
    """Q3: Q = V + A - mean A, over valid actions; the same in numpy."""
    with TorchStream(0).swapped_in():
        network = QNetwork(encoder(observations(5)), 5, (8,), dueling=dueling)
    obs = seen(mask := masks([5]))
    with torch.no_grad():
        found = network(obs.to_torch("cpu"))
        hidden = network.trunk(obs.to_torch("cpu"))
        for row in range(ROWS):
            advantage = network.advantage(hidden[row])
            wanted = advantage
            if network.value is not None:
                wanted = network.value(hidden[row]) + advantage - advantage[mask[row]].mean()
            torch.testing.assert_close(found[row], wanted)
    np.testing.assert_allclose(network.in_numpy()(obs), found.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_dqn_acts_among_the_valid_actions(backend: str) -> None:
    """Q1, Q8: greedy and exploring rows side by side, each with a coin and a mask of its own."""
    policy = DQNPolicy(observations(5), ACTIONS["discrete"], hidden=(8,), act_backend=backend, seed=1)
    obs = seen(mask := masks([5]))
    with torch.no_grad():
        values = policy.model(obs.to_torch("cpu")).numpy()
    noise = np.random.default_rng(3).random((ROWS, 2))
    half = ValueActing(policy, eps_greedy_sample(linear_schedule(0.5, 0.5, 1)))
    found, greedy = half.act(obs, noise, 0)["action"], policy.eval_mode.act(obs, noise[:, :0], 0)["action"]
    for row in range(ROWS):
        valid = np.flatnonzero(mask[row])
        best = valid[values[row, valid].argmax()]
        random = valid[int(noise[row, 1] * len(valid))]
        assert greedy[row] == best
        assert found[row] == (random if noise[row, 0] < 0.5 else best)
        assert half.value(obs)[row] == pytest.approx(values[row, best], abs=1e-5)


@pytest.mark.parametrize("kind", ACTIONS)
def test_random_actions_are_uniform_among_the_valid_ones(kind: str) -> None:
    sizes, space = SIZES[kind], ACTIONS[kind]
    policy = RandomPolicy(observations(sum(sizes)), space)
    mask = masks(sizes)
    noise = np.random.default_rng(3).random((ROWS, policy.draws))
    columns = policy.act(seen(mask), noise, 0)
    found = columns["action"].reshape(ROWS, -1)
    for row in range(ROWS):
        assert columns["env_action"][row] in space
        for choice, part in enumerate(np.split(mask[row], np.cumsum(sizes)[:-1])):
            valid = np.flatnonzero(part)
            assert found[row, choice] == valid[int(noise[row, choice] * len(valid))]


def rows_to_learn_from(policy: Any, mask: np.ndarray) -> Batch:
    draw = np.random.default_rng(5)
    obs = seen(mask)
    columns = policy.collect_mode.act(obs, draw.random((ROWS, policy.collect_mode.draws)), 0)
    numbers = {name: draw.normal(size=ROWS).astype(np.float32) for name in ("advantage", "target")}
    return Batch(obs=obs, **{**columns, "logp": columns["logp"] - 0.1}, **numbers)


@pytest.mark.parametrize("kind", ["discrete", "multi"])
def test_the_loss_of_ppo_against_a_loop(kind: str) -> None:
    """G5, G6, G7: ratios, entropy and divergence are those of the valid actions."""
    sizes = SIZES[kind]
    policy = PPOPolicy(observations(sum(sizes)), ACTIONS[kind], hidden=(8,), standardize=False, seed=2)
    mask = masks(sizes)
    rows = rows_to_learn_from(policy, mask)
    scalars = policy.learn_mode.loss(policy.learn_mode.tensors(rows))[1]
    scalars = {name: value.detach() for name, value in scalars.items()}
    with torch.no_grad():
        logits = policy.model.actor(policy.model.encoder(rows.obs.to_torch("cpu")))
    losses, entropies, divergences = [], [], []
    for row in range(ROWS):
        parts = over_valid(logits, mask, sizes, row)
        drawn = rows.action.reshape(ROWS, -1)[row].tolist()
        logp = sum(float(part.log_prob(torch.tensor(valid.index(a)))) for a, (part, valid) in zip(drawn, parts))
        ratio = np.exp(logp - rows.logp[row])
        losses.append(-min(ratio * rows.advantage[row], np.clip(ratio, 0.8, 1.2) * rows.advantage[row]))
        entropies.append(sum(float(part.entropy()) for part, _ in parts))
        divergences.append(ratio - 1 - np.log(ratio))
    assert float(scalars["policy_loss"]) == pytest.approx(np.mean(losses), abs=1e-5)
    assert float(scalars["entropy"]) == pytest.approx(np.mean(entropies), abs=1e-5)
    assert float(scalars["kl"]) == pytest.approx(np.mean(divergences), abs=1e-5)


def test_the_divergence_of_appo_is_over_valid_actions() -> None:
    policy = APPOPolicy(observations(5), ACTIONS["discrete"], hidden=(8,), standardize=False, seed=2)
    with torch.no_grad():
        for weight in policy.model.actor.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    mask = masks([5])
    rows = rows_to_learn_from(policy, mask)
    scalars = policy.learn_mode.loss(policy.learn_mode.tensors(rows))[1]
    scalars = {name: value.detach() for name, value in scalars.items()}
    with torch.no_grad():
        old, new = (each.actor(each.encoder(rows.obs.to_torch("cpu"))) for each in (policy.target, policy.model))
    wanted = [
        float(kl_divergence(over_valid(old, mask, [5], row)[0][0], over_valid(new, mask, [5], row)[0][0]))
        for row in range(ROWS)
    ]
    assert float(scalars["kl"]) == pytest.approx(np.mean(wanted), rel=1e-4)
    assert float(scalars["kl"]) > 0.01


@pytest.mark.parametrize("double", [False, True])
def test_the_target_of_r2d2_is_of_valid_actions(double: bool) -> None:
    """Q1: by the mask of what a step arrives in."""
    settings = {"hidden": (8,), "units": 4, "n_step": 1, "rescale": False, "gamma": 0.9, "double": double}
    learning = R2D2Policy(observations(5), ACTIONS["discrete"], **settings).learn_mode
    draw = np.random.default_rng(4)
    mask = masks([5]).reshape(5, 8, 5)  # [T + 1, B, A]
    flags = draw.random((4, 8)) < 0.2
    rows = Batch(
        obs=seen(mask[:4].reshape(-1, 5)).map(lambda column: column.reshape(4, 8, -1)),
        next_obs=seen(mask[1:].reshape(-1, 5)).map(lambda column: column.reshape(4, 8, -1)),
        reward=draw.normal(size=(4, 8)),
        terminated=flags,
        mask=np.ones((4, 8), bool),
    ).to_torch("cpu")
    online, target = torch.from_numpy(draw.normal(size=(2, 5, 8, 5)))
    found = learning.targets(rows, online, target)
    for t, b in np.ndindex(4, 8):
        valid = [a for a in range(5) if mask[t + 1, b, a]]
        best = max(valid, key=lambda a: float((online if double else target)[t + 1, b, a]))
        wanted = float(rows.reward[t, b]) + 0.9 * (not flags[t, b]) * float(target[t + 1, b, best])
        assert float(found[t, b]) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("kind", [R2D2Policy, RecurrentPPOPolicy])
def test_policies_with_a_memory_act_among_the_valid_actions(kind: Any) -> None:
    """Q3, G6, T8: and what they remember is no mask."""
    policy = kind(observations(5), ACTIONS["discrete"], hidden=(8,), units=4, seed=1)
    obs = seen(mask := masks([5]))
    state = np.zeros((ROWS, 8), np.float32)
    with torch.no_grad():
        given, other = (policy.collect_mode._step(each, state) for each in (obs, seen(np.ones_like(mask))))
    np.testing.assert_array_equal(given[1], other[1])
    for mode in (policy.collect_mode, policy.eval_mode):
        columns = mode.act(obs, np.random.default_rng(2).random((ROWS, mode.draws)), 0, state)
        assert mask[np.arange(ROWS), columns["action"]].all()
    if kind is R2D2Policy:
        best = np.where(mask, given[0], -np.inf).max(1)
        np.testing.assert_allclose(policy.eval_mode.value(obs, state), best)
        # Of the valid ones the mean is the state's value, which all actions together have as theirs.
        np.testing.assert_allclose(valid_mean(given[0], mask), other[0].mean(1, keepdims=True), atol=1e-5)
        return
    for row in range(ROWS):
        ((part, _),) = over_valid(other[0][0], mask, [5], row)
        np.testing.assert_allclose(torch.softmax(given[0][0], 1)[row][mask[row]], part.probs, atol=1e-5)


def test_discrete_sac_goes_by_the_valid_actions() -> None:
    """A3, G6: what it draws, the value it bootstraps from and the entropy that it keeps, against a loop."""
    policy = SACPolicy(observations(5), ACTIONS["discrete"], hidden=(8,), random_steps=1, seed=1)
    mask, next_mask = masks([5]), masks([5], seed=1)
    draw = np.random.default_rng(2)
    obs, next_obs = seen(mask), seen(next_mask, seed=1)
    for step in (0, 5):
        action = policy.collect_mode.act(obs, draw.random((ROWS, policy.collect_mode.draws)), step)["action"]
        assert mask[np.arange(ROWS), action].all()
    rows = Batch(obs=obs, next_obs=next_obs, action=action, reward=np.zeros(ROWS), discount=np.full(ROWS, 0.9))
    _, found = policy.learn_mode.loss(policy.learn_mode.tensors(rows))
    model, target, wanted, entropies = policy.model, policy.target, policy.learn_mode.wanted, []
    critic, alpha = 0.0, float(model.log_temperature.detach().exp())
    with torch.no_grad():
        here, there = obs.to_torch("cpu"), next_obs.to_torch("cpu")
        q, next_q = model.critics(model.critics.encoder(here)), target(target.encoder(there)).amin(0)
        logits, next_logits = (model.actor(model.critics.encoder(each)) for each in (here, there))
        for row in range(ROWS):
            ((part, valid),) = over_valid(next_logits, next_mask, [5], row)
            value = float((part.probs * (next_q[row, valid] - alpha * part.logits)).sum())
            critic += float(0.5 * (q[:, row, action[row]] - 0.9 * value).square().sum()) / ROWS
            entropies.append(float(over_valid(logits, mask, [5], row)[0][0].entropy()))
    assert float(found["critic_loss"].detach()) == pytest.approx(critic, rel=1e-4)
    assert float(found["entropy"].detach()) == pytest.approx(np.mean(entropies), rel=1e-4)
    assert wanted(torch.from_numpy(mask)).tolist() == pytest.approx((0.5 * np.log(mask.sum(1))).tolist())


def test_the_mask_is_no_input_of_the_network() -> None:
    """O1: and nothing of it is normalised."""
    policy = DQNPolicy(observations(5), ACTIONS["discrete"], hidden=(8,), normalize_obs=True)
    assert policy.model.trunk[0].features == 3
    assert [normalizer.path for normalizer in policy.normalizers.values()] == [("seen",)]
    policy.gather_statistics(seen(masks([5])), None)
    policy.update_statistics()
    (normalizer,) = policy.normalizers.values()
    assert normalizer.mean.shape == (3,)


@pytest.mark.parametrize("collect", [multinomial_sample(), eps_greedy_sample(linear_schedule(0.5, 0.5, 1))])
def test_a_policy_of_functions_acts_among_the_valid_actions(collect: Any) -> None:
    """G6: the log-probability that is stored is that of the masked distribution."""

    class Scores(torch.nn.Linear):
        def forward(self, obs: Any) -> torch.Tensor:
            return super().forward(obs.seen)

    made = policy_from(lambda seen, actions: Scores(3, 5), lambda model, rows: model(rows.obs).mean(), collect=collect)
    policy = made(observations(5), ACTIONS["discrete"])
    obs = seen(mask := masks([5]))
    noise = np.random.default_rng(3).random((ROWS, collect.draws))
    columns = policy.collect_mode.act(obs, noise, 0)
    greedy = policy.eval_mode.act(obs, noise[:, :0], 0)["action"]
    assert mask[np.arange(ROWS), columns["action"]].all()
    assert mask[np.arange(ROWS), greedy].all()
    if "logp" in columns:
        scores = policy.model(obs.to_torch("cpu")).detach()
        for row in range(ROWS):
            ((part, valid),) = over_valid(scores, mask, [5], row)
            wanted = part.log_prob(torch.tensor(valid.index(columns["action"][row])))
            assert columns["logp"][row] == pytest.approx(float(wanted), abs=1e-5)


def test_wrappers_alone_take_a_mask() -> None:
    scores = np.log(np.array([[0.6, 0.2, 0.2]]).repeat(3, 0))
    mask = np.array([[False, True, True], [True, False, True], [True, True, False]])
    assert multinomial_sample()(scores, np.full((3, 1), 0.7), mask=mask).tolist() == [2, 0, 0]
    assert argmax_sample()(scores, mask=mask).tolist() == [1, 0, 0]


@pytest.mark.parametrize("make", [DQNPolicy, PPOPolicy, RandomPolicy])
@pytest.mark.parametrize(
    ("mask", "actions", "message"),
    [
        (spaces.MultiBinary(4), spaces.Discrete(5), r"action_mask'\] is MultiBinary\(4\).*Discrete\(5\) has 5 actions"),
        (spaces.Discrete(5), spaces.Discrete(5), r"expected MultiBinary\(5\) or a Box of shape \(5,\)"),
        (spaces.MultiBinary(2), spaces.Box(-1, 1, (2,)), "can have none|chooses among discrete"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(make: Any, mask: Any, actions: Any, message: str) -> None:
    space = spaces.Dict(seen=spaces.Box(-1, 1, (3,)), action_mask=mask)
    with pytest.raises(ConfigError, match=message):
        make(space, actions)


def test_a_mask_is_nothing_to_learn_from() -> None:
    with pytest.raises(ConfigError, match="hold an action_mask alone"):
        DQNPolicy(spaces.Dict(action_mask=spaces.MultiBinary(2)), spaces.Discrete(2))

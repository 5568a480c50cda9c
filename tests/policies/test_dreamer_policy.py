"""Dreamer's policy: its scale of numbers, what its world model learns and imagines, and what actor and critic learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.networks.world_model import TwoHot, balanced_kl, symexp, symlog
from flowrl.policies import DreamerPolicy

NUMBERS = spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = [spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 3]), spaces.Box(-2, 2, (2,), np.float32)]


def small(actions: Any = ACTIONS[0], space: Any = NUMBERS, **settings: Any) -> DreamerPolicy:
    sizes = {"hidden": (8,), "memory_size": 6, "latent_groups": 3, "latent_classes": 4, "bins": 11}
    return DreamerPolicy(space, actions, **{**sizes, "device": "cpu", **settings})


def normal(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def lively(**settings: Any) -> DreamerPolicy:
    """One whose outputs are not 0."""
    policy = small(**settings)
    for network in (policy.model, policy.target):
        for seed, parameter in enumerate(network.parameters()):
            parameter.data = parameter.data + 0.3 * normal(*parameter.shape, seed=seed)
    return policy


def sequences(length: int = 5, width: int = 4) -> Batch:
    """Sequences `[T, B]` as a buffer gives them, the last ones padded, some of which end with their episode."""
    draw = np.random.default_rng(0)
    mask = np.arange(length)[:, None] < length - np.arange(width)
    last = mask & ~np.vstack([mask[1:], np.zeros((1, width), bool)])
    return Batch(
        obs=draw.normal(size=(length, width, 4)).astype(np.float32),
        action=draw.integers(3, size=(length, width)),
        reward=draw.normal(size=(length, width)).astype(np.float32),
        terminated=last & (np.arange(width) % 2 == 1),
        truncated=np.zeros((length, width), bool),
        state=draw.normal(size=(length, width, 6)).astype(np.float32),
        mask=mask,
    )


@given(st.lists(st.floats(-3e4, 3e4, width=32), min_size=1, max_size=5), st.sampled_from([3, 11, 41]))
def test_a_number_is_the_mean_of_the_two_bins_beside_it(numbers: list[float], size: int) -> None:
    """Z4: found by a search through all bins; numbers beyond the last bin are at it."""
    bins, given_ = TwoHot(size), torch.tensor(numbers)
    shares, at = bins.shares(given_), bins.bins.tolist()
    for row, number in zip(shares.tolist(), given_.tolist()):
        inside = min(max(number, at[0]), at[-1])
        low = max(i for i in range(size - 1) if at[i] <= inside)
        part = (inside - at[low]) / (at[low + 1] - at[low])
        expected = [0.0] * size
        expected[low], expected[low + 1] = 1 - part, part
        assert row == pytest.approx(expected, abs=1e-5)
    inside = given_.clamp(at[0], at[-1])
    torch.testing.assert_close(bins.numbers(shares.log()), inside, rtol=1e-4, atol=1e-2)
    uniform = -torch.full((size,), 1 / size).log() * shares.sum(1)[:, None]
    torch.testing.assert_close(bins.cross_entropy(torch.zeros(len(numbers), size), given_), uniform[:, 0])
    torch.testing.assert_close(symexp(symlog(given_)), given_, rtol=1e-4, atol=1e-4)


def test_kl_losses_teach_one_side_each_and_nothing_below_the_free_nats() -> None:
    """Z5: the divergence is that of a sum over choices."""
    logits = [normal(5, 3, 4, seed=seed).requires_grad_() for seed in range(2)]
    q, p = (each.softmax(-1) for each in logits)
    pairs = [list(zip(q[row].detach().flatten().tolist(), p[row].detach().flatten().tolist())) for row in range(5)]
    expected = [sum(share * math.log(share / other) for share, other in row) for row in pairs]
    free = sum(sorted(expected)[1:3]) / 2
    prior, posterior = balanced_kl(q, p, free)
    for loss in (prior, posterior):
        assert loss.detach().tolist() == pytest.approx([max(free, each) for each in expected], rel=1e-5)
    for loss, learns in ((prior, 1), (posterior, 0)):
        found = torch.autograd.grad(loss.sum(), logits, allow_unused=True, retain_graph=True)
        assert found[1 - learns] is None
        moved = found[learns].abs().sum((1, 2)) > 0  # type: ignore[union-attr]
        assert moved.tolist() == [each > free for each in expected]


IMAGE = spaces.Box(0, 255, (3, 9, 12), np.uint8)


@pytest.mark.parametrize(
    ("actions", "space"), [*((actions, NUMBERS) for actions in ACTIONS), (ACTIONS[0], IMAGE)], ids=str
)
def test_learning_unrolls_the_memory_that_acting_had(actions: Any, space: spaces.Box) -> None:
    """Z6, T8: from an empty one where an episode begins, step by step, by the same uniform numbers."""
    policy, draw = lively(actions=actions, space=space), np.random.default_rng(2)
    space.seed(2)
    mode, groups = policy.collect_mode, policy.model.world.groups
    state, rows = np.repeat(mode.initial_state(), 2, 0), []
    assert not state.any()
    for _ in range(4):
        obs, noise = np.stack([space.sample(), space.sample()]), draw.random((2, mode.draws))
        row = mode.act(obs, noise, 0, state)
        rows.append((obs, row["action"], noise[:, :groups].astype(np.float32), state))
        state = row["next_state"]
        env_action = row.get("env_action", row["action"])
        assert all(actions.contains(np.asarray(each, actions.dtype)) for each in env_action)
    obs, action, uniform, states = (torch.from_numpy(np.stack(column)) for column in zip(*rows))
    world = policy.model.world
    looked = world.look(world.seen(obs.flatten(0, 1))).unflatten(0, (4, 2))
    _, _, after = world.unroll(looked, action, states[0], uniform)
    torch.testing.assert_close(after, torch.cat([states[1:], torch.from_numpy(state)[None]]))


@pytest.mark.parametrize("shape", [(3, 64, 64), (9, 21, 3), (10, 10, 4), (5, 4, 2)], ids=str)
def test_images_are_seen_as_small_ones_and_shown_in_their_size(shape: tuple[int, ...]) -> None:
    """Numbers from 0 to 1, channels first; sides are halved as long as both have 8 pixels."""
    space = spaces.Box(0, 10, shape, np.uint8)
    space.seed(1)
    world = small(space=space, image_depth=2).model.world
    image = space.sample()
    seen = world.seen(torch.from_numpy(image[None]))
    first = image if shape[0] == 3 else image.transpose(2, 0, 1)
    torch.testing.assert_close(seen[0], torch.from_numpy(first.ravel() / np.float32(10)))
    channels, *sides = first.shape
    halvings = 0
    while min(sides) >= 8:
        channels, halvings, sides = 2 * 2**halvings, halvings + 1, [side // 2 for side in sides]
    assert world.look(seen).shape == (1, channels * math.prod(sides))
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in world.look) == halvings
    assert world.decoder(normal(5, world.width)).shape == (5, image.size)


def test_the_world_model_learns_what_an_image_shows() -> None:
    """Each pixel in its place: three images, one pixel of each white."""
    space = spaces.Box(0, 1, (8, 9, 2), np.bool_)
    policy = small(space=space, hidden=(32,), image_depth=4, obs_coef=1.0, learning_rate=1e-2)
    obs = np.zeros((4, 3, 8, 9, 2), bool)
    obs[:, 0, 0, 8, 0] = obs[:, 1, 7, 0, 1] = obs[:, 2, 3, 4, 0] = True
    batch = sequences(4, 3).replace(obs=obs, mask=np.ones((4, 3), bool))
    for _ in range(100):
        policy.world_mode.learn_from(batch)
    learn, world = policy.world_mode, policy.model.world
    rows = learn.tensors(learn.prepare(batch))
    with torch.no_grad():
        latent = learn.loss(rows)[1]["latent"]
        shown, seen = world.decoder(latent), world.seen(rows.obs.flatten(0, 1))
    assert (shown.argmax(1) == seen.argmax(1)).sum() >= 11  # of 12: a hundredth of all choices is drawn at random
    assert torch.equal(seen, torch.from_numpy(obs.transpose(0, 1, 4, 2, 3).reshape(12, -1)).float())


def test_the_world_model_learns_from_steps_that_count_alone() -> None:
    """Z6: the parts of the loss are means over them, computed here step by step; and nothing else learns."""
    policy = lively(free_nats=0.0, obs_coef=3.0, dynamics_coef=0.5, representation_coef=0.25)
    learn, batch = policy.world_mode, sequences()
    before = policy.stream.state_dict()
    with torch.no_grad():
        loss, scalars = learn.loss(learn.tensors(learn.prepare(batch)))
    policy.stream.load_state_dict(before)
    uniform, world, parts = policy.uniform(5, 4, 3), policy.model.world, []
    for seat in range(4):
        memory = torch.zeros(1, 6)  # whatever state was recorded
        for at in range(int(batch.mask[:, seat].sum())):
            x = symlog(torch.from_numpy(batch.obs[at, seat : seat + 1]))
            q, p = world.posterior_of(memory, x), world.prior_of(memory)
            latent = world.latent(memory, q, uniform[at, seat : seat + 1])
            memory = world.advance(latent, torch.from_numpy(batch.action[at, seat : seat + 1]))
            end, far = torch.sigmoid(world.goes_on(memory))[0, 0], (q * (q / p).log()).sum()
            reward = torch.tensor([batch.reward[at, seat]])
            parts.append(
                [
                    1.5 * (world.decoder(latent) - x).square().sum(),
                    policy.two_hot.cross_entropy(world.reward(memory), reward)[0],
                    -((1 - end) if batch.terminated[at, seat] else end).log(),
                    0.5 * far,
                    0.25 * far,
                ]
            )
    means = torch.stack([torch.stack(part) for part in parts]).mean(0).detach()
    names = ("obs_loss", "reward_loss", "end_loss", "dynamics_loss", "representation_loss")
    assert [float(scalars[name]) for name in names] == pytest.approx(means.tolist(), rel=1e-4)
    assert float(loss) == pytest.approx(float(means.sum()), rel=1e-4)
    assert scalars["latent"].shape == (int(batch.mask.sum()), world.width)
    padded = batch.replace(reward=batch.reward + 7 * ~batch.mask)
    policy.stream.load_state_dict(before)
    assert torch.equal(learn.loss(learn.tensors(learn.prepare(padded)))[0].detach(), loss)
    assert learned(policy, lambda: learn.learn_from(batch)) == {"world"}


def learned(policy: DreamerPolicy, learn: Any) -> set[str]:
    """The parts of the model that an update changes."""
    before = policy.weights()
    learn()
    after = policy.weights()
    return {name.partition(".")[0] for name, value in after.items() if not torch.equal(value, before[name])}


def test_imagined_steps_follow_actor_and_world_model() -> None:
    """Z7: from the latent states given, in which nothing is learned."""
    policy = lively(gamma=0.9)
    world, starts = policy.model.world, 7
    given_ = torch.cat([normal(starts, 6), torch.zeros(starts, 12)], 1)
    found = policy.imagined(given_, 4)
    assert found["reward"].shape == (5, starts)
    torch.testing.assert_close(found["latent"][0], given_)
    for at in range(5):
        memory = world.advance(found["latent"][at], found.action[at])
        torch.testing.assert_close(found.reward[at], policy.two_hot.numbers(world.reward(memory)), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(found["discount"][at], 0.9 * world.goes_on(memory).sigmoid()[:, 0])
        if at < 4:
            following = found["latent"][at + 1]
            torch.testing.assert_close(following[:, :6], memory)
            chosen = following[:, 6:].unflatten(1, (3, 4))
            assert ((chosen == 0) | (chosen == 1)).all()
            assert (chosen.sum(2) == 1).all()


def test_choices_are_drawn_by_their_probabilities() -> None:
    """Z7: of the actor and of the prior, which are mixed with uniform ones."""
    policy = lively()
    world, many = policy.model.world, 40_000
    world.prior[-1].bias.data[-1] = 50.0  # the last choice is all but certain
    memory = normal(1, 6).expand(many, 6)
    probs = world.prior_of(memory)
    assert float(probs.detach().min()) == pytest.approx(0.01 / 4)
    drawn = world.latent(memory, probs, torch.rand(many, 3, generator=torch.Generator().manual_seed(3)))
    torch.testing.assert_close(drawn[:, 6:].mean(0), probs[0].flatten(), atol=0.01, rtol=0)
    slope = torch.autograd.grad(drawn[0, 6], world.prior[-1].bias, retain_graph=True)[0]  # type: ignore[arg-type]
    expected = torch.autograd.grad(probs[0, 0, 0], world.prior[-1].bias)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(slope, expected)


def test_actor_and_critic_learn_what_a_loop_over_imagined_steps_says() -> None:
    """Z7: λ-returns that bootstrap from the target critic, weights, the running spread; the world model stays."""
    policy = lively(gamma=0.9, lam=0.8, entropy_coef=0.1, spread_decay=0.75)
    model, learn, horizon = policy.model, policy.learn_mode, 3
    for parameter in policy.target.parameters():
        parameter.data = parameter.data * 3  # returns that are far apart
    imagined = policy.imagined(normal(5, model.world.width), horizon)
    value = policy.two_hot.numbers(policy.target(imagined["latent"])).detach()
    rows = learn.tensors(learn.prepare(imagined))
    actor = critic = entropies = 0.0
    returns = []
    for seat in range(5):
        back, weight = float(value[horizon, seat]), 1.0
        targets = [0.0] * horizon
        for at in reversed(range(horizon)):
            ahead = value[at + 1, seat] if at == horizon - 1 else 0.2 * value[at + 1, seat] + 0.8 * back
            targets[at] = back = float(imagined.reward[at, seat] + imagined["discount"][at, seat] * ahead)
        assert rows.target[:, seat].tolist() == pytest.approx(targets, rel=1e-4)
        for at in range(horizon):
            assert float(rows["weight"][at, seat]) == pytest.approx(weight, rel=1e-4)
            weight *= float(imagined["discount"][at, seat])
        returns += targets
    apart = np.percentile(returns, 95) - np.percentile(returns, 5)
    assert apart > 1
    assert float(learn.over_batch(rows)["return_spread"]) == pytest.approx(apart, rel=1e-4)
    model.spread.fill_(2.0)
    spread = 0.75 * 2 + 0.25 * apart
    assert float(learn.over_batch(rows)["return_spread"]) == pytest.approx(spread, rel=1e-4)
    for at in range(horizon):
        for seat in range(5):
            latent, weight = rows["latent"][at, seat][None], float(rows["weight"][at, seat])
            logp = model.actor(latent).log_softmax(1)[0].detach()
            entropy = -float((logp.exp() * logp).sum())
            advantage = float(rows.target[at, seat] - value[at, seat]) / spread
            actor -= weight * (advantage * float(logp[rows.action[at, seat]]) + 0.1 * entropy) / 15
            loss = policy.two_hot.cross_entropy(model.critic(latent), rows.target[at, seat][None])
            critic += weight * float(loss.detach()) / 15
            entropies += entropy / 15
    with torch.no_grad():
        _, scalars = learn.loss(rows)
    found = [float(scalars[name]) for name in ("actor_loss", "critic_loss", "entropy", "loss")]
    assert found == pytest.approx([actor, critic, entropies, actor + critic], rel=1e-3)
    assert learned(policy, lambda: learn.learn_from(imagined)) == {"actor", "critic", "spread"}
    model.spread.fill_(1e-3)
    small_spread = learn.loss(rows)[1]["actor_loss"]
    model.spread.fill_(1.0)
    assert torch.equal(learn.loss(rows)[1]["actor_loss"], small_spread)  # rare rewards are not scaled up


def test_a_new_critic_and_a_new_model_of_rewards_say_0() -> None:
    """So nothing is learned from numbers that nobody has seen."""
    policy = small(bins=41)
    assert not policy.two_hot.numbers(policy.target(normal(3, policy.model.world.width))).abs().max() > 0.01
    assert not policy.imagined(normal(3, policy.model.world.width), 2).reward.abs().max() > 0.01


def test_what_it_cannot_imagine_is_refused() -> None:
    beside = spaces.Dict({"seen": NUMBERS, "image": spaces.Box(0, 255, (8, 8, 3), np.uint8)})
    with pytest.raises(ConfigError, match=r"images in a dictionary and network=\.\.\. are not supported"):
        small(space=beside)
    masked = spaces.Dict({"seen": NUMBERS, "action_mask": spaces.MultiBinary(3)})
    with pytest.raises(ConfigError, match="Dreamer imagines no action_mask: leave it out"):
        small(space=masked, actions=spaces.Discrete(3))
    with pytest.raises(ConfigError, match="bins=10: expected an odd number of at least 3"):
        small(bins=10)
    with pytest.raises(SchemaError, match="keep them in fragments"):
        small().world_mode.prepare(sequences().flat())


def test_numbers_are_those_of_float32_in_mixed_precision() -> None:
    """Z4: autocast would round the product, and be wrong by more than 1."""
    bins, logits = TwoHot(127), 3 * normal(100, 127)
    with torch.autocast("cpu", torch.bfloat16):
        numbers = bins.numbers(logits)
    assert torch.equal(numbers, logits.softmax(-1) @ bins.bins)

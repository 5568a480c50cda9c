"""What every reward model is: a resource with running statistics, streams of its own, and a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError, NotFinite, SchemaError
from flowrl.models import AIRL, GAIL, ICM, RND, RewardModel
from flowrl.policies import PPOPolicy
from flowrl.testing import same

BOX, TWO = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2)
#: Models by name; they must all keep what is tested here.
MODELS: dict[str, type[RewardModel]] = {"rnd": RND, "icm": ICM, "gail": GAIL, "airl": AIRL}


def make(name: str = "rnd", space: Any = BOX, actions: Any = TWO, **settings: Any) -> Any:
    return MODELS[name](space, actions, **{"hidden": (8,), "device": "cpu", "seed": 1, **settings})


def fragment(seed: int = 0, steps: int = 4, envs: int = 2, **columns: Any) -> Batch:
    """Steps of two environments; nothing ends."""
    draw = np.random.default_rng(seed)
    no = np.zeros((steps, envs), bool)
    return Batch(
        {
            "obs": draw.normal(2, 3, (steps, envs, 3)).astype(np.float32),
            "action": draw.integers(2, size=(steps, envs)),
            "logp": np.full((steps, envs), -0.7, np.float32),
            "reward": draw.normal(size=(steps, envs)),
            "next_obs": draw.normal(2, 3, (steps, envs, 3)).astype(np.float32),
            "terminated": no,
            "truncated": no,
            **columns,
        }
    )


def rows_of(batch: Batch) -> list[Batch]:
    """The steps of a fragment, one by one."""
    return [batch.flat()[number] for number in range(batch.rows)]


def learned_from(model: RewardModel, batch: Batch) -> tuple[Batch, ...]:
    """What the model is given of a batch: with demonstrations, where it learns from them."""
    return (batch, fragment(99)) if model.demonstrations else (batch,)


def teach(model: RewardModel, *batches: Batch) -> dict[str, torch.Tensor]:
    scalars: dict[str, torch.Tensor] = {}
    for batch in batches:
        given = learned_from(model, batch)
        model.observe(*given)
        scalars = model.update(*[model.rows(each) for each in given])
    return scalars


@pytest.mark.parametrize("name", MODELS)
def test_it_says_one_number_a_step(name: str) -> None:
    """Of fragments and of rows alike, 0 where a step does not count; the batch is left as it is."""
    model, batch = make(name), fragment()
    teach(model, batch)
    before = {key: column.copy() for key, column in batch.items()}
    said = model.reward(batch)
    assert said.shape == (4, 2)
    assert said.dtype == np.float32
    assert np.isfinite(said).all()
    assert len(np.unique(said)) > 1
    np.testing.assert_allclose(model.reward(batch.flat()).reshape(4, 2), said, rtol=1e-5)
    mask = np.arange(8).reshape(4, 2) % 3 != 0
    masked = model.reward(batch.replace(mask=mask))
    np.testing.assert_array_equal(masked, np.where(mask, said, 0))
    assert model.reward(batch[:0]).shape == (0, 2)
    assert same(dict(batch.items()), before)


@pytest.mark.parametrize("name", MODELS)
def test_it_goes_on_from_its_state(name: str) -> None:
    """D3, D5: statistics, networks, optimiser and stream; a copy, not a view."""
    one, other = make(name), make(name, seed=2)
    teach(one, fragment(0), fragment(1))
    state = one.state_dict()
    assert same(state, one.state_dict())
    other.load_state_dict(state)
    assert same(other.state_dict(), state)
    teach(one, fragment(2))
    teach(other, fragment(2))
    assert same(one.state_dict(), other.state_dict())
    assert not same(one.state_dict(), state)
    np.testing.assert_array_equal(one.reward(fragment(3)), other.reward(fragment(3)))


@pytest.mark.parametrize("name", MODELS)
def test_its_streams_are_its_own(name: str) -> None:
    """D1, D6: the seed decides all of it; not the global generator, nor what a policy of that seed draws."""
    before = torch.get_rng_state()
    one, again, other = make(name), make(name), make(name, seed=2)
    for model in (one, again, other):
        teach(model, fragment())
    assert torch.equal(before, torch.get_rng_state())
    assert same(one.state_dict(), again.state_dict())
    assert not same(one.state_dict()["model"], other.state_dict()["model"])
    policy = PPOPolicy(BOX, TWO, hidden=(8,), seed=1, device="cpu")
    streams = [policy.stream, *(make(each).stream for each in MODELS)]
    assert len({stream._generator.initial_seed() for stream in streams}) == 1 + len(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_observations_are_normalised_by_all_rows_so_far(name: str) -> None:
    """O1, O2: never by a minibatch; asking and learning move nothing, and padding does not count."""
    model = make(name)
    batches = [fragment(seed, mask=np.random.default_rng(seed).random((4, 2)) < 0.7) for seed in range(3)]
    for batch in batches:
        model.observe(*(fragment(7) for _ in learned_from(model, batch)[1:]), batch)
    seen = "obs" if "obs" in model.requires else "next_obs"
    rows = np.concatenate([batch[seen][batch["mask"]] for batch in batches])
    if model.demonstrations:
        rows = np.concatenate([rows, *[fragment(7)[seen].reshape(-1, 3)] * 3])
    normalizers = model._of_observations
    assert normalizers
    for _ in range(2):
        for normalizer in normalizers:
            assert int(normalizer.count) == len(rows)
            np.testing.assert_allclose(normalizer.mean, rows.mean(0, np.float64))
            np.testing.assert_allclose(normalizer.var, rows.var(0, np.float64))
            assert normalizer(torch.full((1, 3), 1e9)).max() == 5
        model.reward(batches[0])
        model.update(*[model.rows(each) for each in learned_from(model, batches[0])])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5),
        spaces.Box(0, 255, (12, 12, 3), np.uint8),
        spaces.Dict({"at": spaces.Box(-1, 1, (2,), np.float32), "goal": spaces.Discrete(3)}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "actions", [TWO, spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,), np.float32)]
)
def test_any_observation_and_action_will_do(name: str, space: Any, actions: Any) -> None:
    """Actions are those that policies store: choices from 0."""
    space.seed(0)
    actions.seed(0)
    model = make(name, space, actions)

    def drawn(what: Any) -> Any:
        values = [what.sample() for _ in range(8)]
        if isinstance(values[0], dict):
            return {key: np.array([value[key] for value in values]).reshape(4, 2, -1).squeeze() for key in values[0]}
        values = np.array(values) - (what.start if isinstance(what, spaces.Discrete) else 0)
        return values.reshape(4, 2, *values.shape[1:])

    batch = fragment(obs=drawn(space), next_obs=drawn(space), action=drawn(actions))
    given = (batch, batch)[: 1 + model.demonstrations]
    model.observe(*given)
    scalars = model.update(*[model.rows(each) for each in given])
    assert all(bool(torch.isfinite(value)) for value in scalars.values())
    assert np.isfinite(model.reward(batch)).all()


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if "action" in MODELS[name].requires])
def test_actions_are_seen_as_the_environment_gets_them(name: str, squash: bool) -> None:
    """G6: in asking and in learning; the batch keeps what was drawn, also beyond the bounds."""
    space = spaces.Box(-1, 2, (2,), np.float32)
    policy = PPOPolicy(BOX, space, squash=squash, hidden=(8,), device="cpu")
    settings = {"actions": space, **({"state_only": False} if name == "airl" else {})}
    seeing, plain = make(name, **settings, for_env=policy.for_env), make(name, **settings)
    drawn = np.random.default_rng(0).normal(0, 3, (4, 2, 2)).astype(np.float32)
    batch, other = fragment(action=drawn.copy()), fragment(2, action=drawn[::-1].copy())
    got, other_got = (each.replace(action=policy.for_env(each.action)) for each in (batch, other))
    for model, given in ((seeing, (batch, other)), (plain, (got, other_got))):
        given = given[: 1 + model.demonstrations]
        model.observe(*given)
        model.update(*[model.rows(each) for each in given])
    assert same(seeing.state_dict(), plain.state_dict())
    np.testing.assert_array_equal(seeing.reward(batch), plain.reward(got))
    assert not np.allclose(plain.reward(batch), plain.reward(got))
    np.testing.assert_array_equal(batch.action, drawn)


@pytest.mark.parametrize("name", MODELS)
def test_what_it_cannot_do_is_said(name: str) -> None:
    missing = MODELS[name].requires[0]
    batch = fragment()
    without = batch.select([column for column in batch if column != missing])
    model = make(name)
    with pytest.raises(SchemaError, match=f"{MODELS[name].__name__} needs the column '{missing}'"):
        model.rows(without)
    teach(model, batch)
    with pytest.raises(SchemaError, match=f"{MODELS[name].__name__} needs the column '{missing}'"):
        model.reward(without)
    seen = "obs" if "obs" in model.requires else "next_obs"
    with pytest.raises(SchemaError, match=f"{seen} has no mean and variance"):
        model.observe(*learned_from(model, fragment(**{seen: np.full((4, 2, 3), np.inf, np.float32)})))
    with pytest.raises(ConfigError, match="device='tpu' is not a device"):
        make(name, device="tpu")


def test_one_of_ones_own() -> None:
    """Three methods make a reward model: here the distance from a point that is learned, the mean of what was seen."""

    class Distance(RewardModel):
        column = "distance_reward"

        def _build(self) -> None:
            self.model = torch.nn.Linear(1, 3, bias=False)

        def estimate(self, rows: Batch) -> torch.Tensor:
            return (rows.next_obs - self.model(torch.ones(1, 1))).square().mean(1)

        def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            loss = self.estimate(rows[0]).mean()
            return loss, {"distance": loss}

    model, batch = Distance(BOX, TWO, learning_rate=0.1, device="cpu"), fragment()
    for _ in range(200):
        teach(model, batch)
    point = batch.next_obs.reshape(-1, 3).mean(0)
    np.testing.assert_allclose(model.reward(batch), ((batch.next_obs - point) ** 2).mean(-1), rtol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_learns_and_estimates_is_finite(name: str) -> None:
    """X1: else it is named, with the rows."""
    model, given = make(name), fragment()
    teach(model, given)
    rows = [model.rows(each) for each in learned_from(model, given)]
    with torch.no_grad():
        model.parameters[0].fill_(np.nan)
    with pytest.raises(
        NotFinite, match=r"the weights \S+ have nan in .*, and so the loss is nan; .* its rows"
    ) as caught:
        model.update(*rows)
    assert [len(batch) for batch in caught.value.batches] == [8] * len(rows)
    with pytest.raises(NotFinite, match=r"\(column=\w+\) estimates the reward nan") as caught:
        model.reward(given)
    assert caught.value.batches[0].shape[:2] == (4, 2)

"""X1: a loss, a gradient or weights that are not finite end an update: with a name, a number, and the rows."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import flowrl.policies
from flowrl.data import Batch
from flowrl.errors import ConfigError, NotFinite
from flowrl.networks.adam import Adam
from flowrl.policies import DQNPolicy, SACPolicy, TD3Policy
from flowrl.policies.learning import LEAST_SCALE, Learning
from flowrl.policies.policy import Policy
from flowrl.testing import same

OBS, CHOICES, FORCES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)
ROWS = 5
CLIPS: dict[str, dict[str, Any]] = {
    "not clipped": {"grad_clip": None},
    "by norm": {"grad_clip": 1.0},
    "by value": {"grad_clip": None, "grad_clip_value": 0.1},
}
clipped = pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)


def made(kind: type[Policy] = DQNPolicy, **settings: Any) -> Policy:
    actions = CHOICES if kind is DQNPolicy else FORCES
    return kind(OBS, actions, **{"hidden": (4,), "device": "cpu", **settings})  # type: ignore[arg-type]


def rows(kind: type[Policy] = DQNPolicy, **columns: Any) -> Batch:
    draw = np.random.default_rng(0)
    action = draw.integers(2, size=ROWS) if kind is DQNPolicy else draw.uniform(-1, 1, (ROWS, 2)).astype(np.float32)
    obs = draw.normal(size=(2, ROWS, 3)).astype(np.float32)
    given = {"obs": obs[0], "next_obs": obs[1], "action": action, "reward": np.ones(ROWS)}
    return Batch({**given, "terminated": np.zeros(ROWS, bool), **columns})


def taught(policy: Policy, updates: int, **columns: Any) -> None:
    for _ in range(updates):
        policy.learn_mode.learn_from(rows(**columns))


def row(number: float, *others: int) -> np.ndarray[Any, Any]:
    """Ones `[ROWS, *others]`, but for this number in row 3."""
    numbers = np.ones((ROWS, *others), np.float32)
    numbers[3] = number
    return numbers


@clipped
@pytest.mark.parametrize(
    ("kind", "columns", "words"),
    [
        (DQNPolicy, {"reward": row(math.nan)}, r"the loss is nan; its rows have reward\[3\] = nan"),
        (DQNPolicy, {"reward": row(math.inf)}, r"the loss is inf; its rows have reward\[3\] = inf"),
        (SACPolicy, {"reward": row(3e38)}, r"the loss is inf; the largest number in its rows is reward\[3\] = 3e\+38"),
        (TD3Policy, {"next_obs": row(1e30, 3)}, r"the loss is inf; the largest .* is next_obs\[3, 0\] = 1e\+30"),
    ],
)
def test_rows_that_spoil_a_loss_spoil_no_weights(kind: Any, columns: Any, words: str, clip: Any) -> None:
    """X1: the Huber loss of an infinite reward has finite gradients."""
    policy = made(kind, **clip)
    before = policy.state_dict()
    with pytest.raises(NotFinite, match=words) as caught:
        policy.learn_mode.learn_from(rows(kind, **columns))
    (name,) = columns
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):  # as it comes from another process
        (batch,) = error.batches
        assert np.array_equal(batch[name], columns[name], equal_nan=True)
    after = policy.state_dict()
    assert all(same(after[part], before[part]) for part in ("modules", "optimizer", "version"))


def first_of(policy: Policy) -> torch.nn.Parameter:
    return policy.parameters[0]


#: Finite losses of the first parameter with gradients that are not.
LOSSES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "nan": (lambda w: (0 * w).sum().sqrt(), "has nan in"),
    "infinite": (lambda w: (w - w.detach()).sqrt().sum(), "has inf in"),
    "of squares that overflow": (lambda w: 1e20 * (w - w.detach()).sum(), r"reaches 1e\+20, whose square"),
}


@clipped
@pytest.mark.parametrize("loss", LOSSES)
def test_a_gradient_that_is_not_finite_is_named(monkeypatch: pytest.MonkeyPatch, clip: Any, loss: str) -> None:
    """X1: clipping by value would make an infinite one finite; Adam never moves again what it squares to infinity."""
    policy = made(**clip)
    learn, (of, words), before = policy.learn_mode, LOSSES[loss], policy.weights()
    monkeypatch.setattr(learn, "loss", lambda rows: (of(first_of(policy)), {}))
    name = next(iter(policy.model.named_parameters()))[0]
    for update in (learn.learn_from, learn.gradients):
        with pytest.raises(NotFinite, match=f"the gradient of {name} {words}") as caught:
            update(learn.prepare(rows()))
        assert len(caught.value.batches) == 1
    assert same(policy.weights(), before)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, Adam])
def test_weights_are_looked_at_where_a_step_is_not_bounded(monkeypatch: pytest.MonkeyPatch, optimizer: Any) -> None:
    """X1: by the step that makes them, not by the next one: there may be none."""
    policy = made(grad_clip=None)
    policy.optimizer = optimizer(policy.parameters, lr=2e38)
    monkeypatch.setattr(policy.learn_mode, "loss", lambda rows: (2 * first_of(policy).sum(), {}))
    words = rf"the weights \S+ have -inf in .* numbers, after a step of {optimizer.__name__} .* 2e\+38"
    with pytest.raises(NotFinite, match=words):
        taught(policy, 3)


def test_weights_that_came_so_are_named() -> None:
    """X1: from a file, say."""
    policy = made()
    with torch.no_grad():
        first_of(policy)[0] = math.nan
    with pytest.raises(NotFinite, match=r"the weights \S+ have nan in \d+ of \d+ numbers, and so the loss is nan"):
        policy.learn_mode.learn_from(rows())


def test_a_schedule_gives_finite_rates() -> None:
    """X1."""
    policy = made(learning_rate=lambda steps: math.inf if steps > 9 else 1.0)
    policy.learn_mode.schedule(9)
    with pytest.raises(ConfigError, match="the learning rate is inf at env step 10"):
        policy.learn_mode.schedule(10)


def test_float16_skips_what_overflows_its_loss_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: up to a scale that cannot be the reason; a loss is not scaled, so it must be finite at once."""
    policy = made()
    policy.mixed.scaler = scaler = torch.amp.GradScaler("cpu")
    learn, before = policy.learn_mode, policy.weights()
    with pytest.raises(NotFinite, match="the loss is nan"):
        learn.learn_from(rows(reward=row(math.nan)))
    of, _ = LOSSES["nan"]
    monkeypatch.setattr(learn, "loss", lambda rows: (of(first_of(policy)), {}))
    learn.learn_from(rows())
    assert (policy.version, scaler.get_scale()) == (1, 2.0**15)
    with pytest.raises(NotFinite, match="the gradients overflow float16 at a loss scale of"):
        taught(policy, 40)
    assert scaler.get_scale() == LEAST_SCALE / 2
    assert same(policy.weights(), before)


def test_every_policy_takes_its_steps_by_the_same_function() -> None:
    """X1: so what is tested here of a few holds for all."""
    for name in flowrl.policies.__all__:
        getattr(flowrl.policies, name)  # imports it
    kinds, todo = set(), [Learning]
    while todo:
        kinds |= set(found := todo.pop().__subclasses__())
        todo += found
    assert len(kinds) > 10
    for kind in kinds:
        assert not {"update", "gradients", "apply", "_backward", "_step", "_check_gradients"} & vars(kind).keys(), kind

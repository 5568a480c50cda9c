"""Acting in numpy: equal to torch, never of old weights, and refused where it does not fit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.networks.in_numpy import ACTIVATIONS, InNumpy, in_numpy
from flowrl.networks.networks import ImageEncoder, encoder
from flowrl.operators import ParallelRollouts
from flowrl.policies import A2CPolicy, CategoricalHead, DQNPolicy, PPOPolicy, QuantileHead, policy_from
from flowrl.policies.policy import Policy
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from tests.scripted import transitions

ROWS = 64
VECTOR, CHOICE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)

OBSERVATIONS = {
    "vector": VECTOR,
    "doubles": spaces.Box(-1, 1, (4,), np.float64),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "choice": spaces.Discrete(5, start=2),
    "choices": spaces.MultiDiscrete([2, 3], start=[0, 4]),
    "flags": spaces.MultiBinary(3),
    "dictionary": spaces.Dict(
        {"a.b": VECTOR, "n": spaces.Discrete(2), "in": spaces.Dict({"x": spaces.Box(0, 9, (2,))})}
    ),
}
ACTIONS = {
    "discrete": CHOICE,
    "shifted": spaces.Discrete(3, start=5),
    "multi": spaces.MultiDiscrete([2, 4]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 3], np.float32)),
    "doubles": spaces.Box(-1, 1, (2,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
}


def make(kind: Any = PPOPolicy, observations: Any = VECTOR, actions: Any = CHOICE, **settings: Any) -> Any:
    """A policy that acts in numpy, with weights large enough that every part of them shows."""
    policy = kind(observations, actions, **{"act_backend": "numpy", "device": "cpu", "seed": 3, **settings})
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
    return policy


def observed(space: gymnasium.Space[Any], rows: int = ROWS) -> Any:
    if isinstance(space, spaces.Dict):
        return Batch({name: observed(part, rows) for name, part in space.items()})
    space.seed(4)
    return np.stack([space.sample() for _ in range(rows)])


def acted(policy: Policy, backend: str, obs: Any = None) -> list[Any]:
    """What both modes make of observations, and the values of them where the policy has some."""
    obs = observed(policy.observation_space) if obs is None else obs
    policy.settings = attrs.evolve(policy.settings, act_backend=backend)
    found: list[Any] = []
    try:
        for mode in (policy.collect_mode, policy.eval_mode):
            found.append(mode.act(obs, np.random.default_rng(5).random((ROWS, mode.draws)), 0))
            found.append(mode.value(obs) if "value" in found[0] or isinstance(policy, DQNPolicy) else None)
    finally:
        policy.settings = attrs.evolve(policy.settings, act_backend="numpy")
    return found


def assert_equal_to_torch(policy: Policy) -> list[Any]:
    """Every column, its type and its shape; choices exactly, numbers to rounding."""
    ours, theirs = acted(policy, "numpy"), acted(policy, "torch")
    for mine, wanted in zip(ours, theirs):
        columns = (mine, wanted) if isinstance(mine, dict) else ({"value": mine}, {"value": wanted})
        assert columns[0].keys() == columns[1].keys()
        for name, column in columns[1].items():
            found = columns[0][name]
            if column is None:
                assert found is None
                continue
            assert (type(found), found.dtype, found.shape) == (np.ndarray, column.dtype, column.shape)
            if column.dtype.kind == "f":
                np.testing.assert_allclose(found, column, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(found, column)
    return ours


NUMBERS = [name for name in OBSERVATIONS if name not in ("choice", "choices", "flags")]


@pytest.mark.parametrize(
    ("name", "normalize"), [*((name, False) for name in OBSERVATIONS), *((name, True) for name in NUMBERS)]
)
def test_it_is_equal_to_torch_for_every_kind_of_observation(name: str, normalize: bool) -> None:
    space = OBSERVATIONS[name]
    for kind in (A2CPolicy, DQNPolicy):
        policy = make(kind, space, normalize_obs=normalize)
        if normalize:
            policy.gather_statistics(
                observed(space).map(lambda x: x * 3) if name == "dictionary" else observed(space), None
            )
            policy.update_statistics()
        assert_equal_to_torch(policy)


@pytest.mark.parametrize("name", ACTIONS)
def test_it_is_equal_to_torch_for_every_distribution(name: str) -> None:
    """G6, A1, A2."""
    for settings in ({}, {"squash": True, "log_std": -0.5}):
        assert_equal_to_torch(make(PPOPolicy, actions=ACTIONS[name], **settings))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_it_is_equal_to_torch_for_values_of_actions(dueling: bool, noisy: bool) -> None:
    """Q3, Q6, Q8: means, and those of distributions."""
    for head in (None, CategoricalHead(5, -3, 3), QuantileHead(5)):
        assert_equal_to_torch(make(DQNPolicy, dueling=dueling, noisy=noisy, head=head, hidden=(8, 8)))


def functional(*layers: nn.Module) -> type[Policy]:
    return policy_from(
        lambda *spaces: nn.Sequential(*copy.deepcopy(layers)), lambda model, rows: model(rows.obs).mean()
    )


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_model_of_ones_own_is_served_if_its_layers_are(kind: type[nn.Module]) -> None:
    """An activation in front must not write into what the environments gave."""
    layers = (
        kind(),
        nn.Flatten(),
        nn.Sequential(nn.Linear(6, 8), kind(), nn.Identity()),
        kind(),
        nn.Linear(8, 3, bias=False),
    )
    policy = make(functional(*layers), OBSERVATIONS["matrix"])
    obs = observed(policy.observation_space)
    before = obs.copy()
    assert_equal_to_torch(policy)
    acted(policy, "numpy", obs)
    assert same(obs, before)


def learn(policy: Any) -> Any:
    batch = transitions(32)
    extra = {"logp": batch.reward, "advantage": batch.reward, "target": batch.reward, "value": batch.reward}
    learn_mode = policy.learn_mode
    learn_mode.update(
        learn_mode.tensors(learn_mode.prepare(batch.replace(**{n: c.astype("f4") for n, c in extra.items()})))
    )
    return policy


def load(policy: Any) -> Any:
    policy.load_weights(make(type(policy), seed=9).weights())
    return policy


def resume(policy: Any) -> Any:
    policy.load_state_dict(make(type(policy), seed=9).state_dict())
    return policy


def edit(policy: Any) -> Any:
    first = next(policy.model.parameters())
    first.data = first.data + 1
    return policy


def replace(policy: Any) -> Any:
    policy.model = make(type(policy), seed=9).model
    return policy


def learn_copied(policy: Any) -> Any:
    return learn(copy.deepcopy(policy))


def load_pickled(policy: Any) -> Any:
    return load(pickle.loads(pickle.dumps(policy)))


CHANGES = [learn, load, resume, edit, replace, learn_copied, load_pickled]


@pytest.fixture(params=["shared", "copied"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Weights in this host's memory, and copied to it as they are from a GPU."""
    if request.param == "copied":
        monkeypatch.setattr(InNumpy, "_is_here", lambda self: False)
    return str(request.param)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [PPOPolicy, DQNPolicy])
def test_it_acts_with_the_newest_weights(kind: Any, change: Callable[[Any], Any]) -> None:
    """F3: however they changed, and whether or not the version did; a copy of a policy acts with its own weights."""
    policy = make(kind)
    before = assert_equal_to_torch(policy)
    changed = change(policy)
    assert not same(acted(changed, "numpy"), before)
    assert_equal_to_torch(changed)
    if changed is not policy:
        assert same(acted(policy, "numpy"), before)


@pytest.mark.usefixtures("memory")
def test_it_acts_with_the_newest_statistics() -> None:
    """O1: they come into use for both at once, and not before."""
    policy = make(normalize_obs=True)
    before = assert_equal_to_torch(policy)
    policy.gather_statistics(observed(VECTOR) * 3 + 1, None)
    assert same(acted(policy, "numpy"), before)
    policy.update_statistics()
    assert not same(assert_equal_to_torch(policy), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("change", CHANGES)
def test_it_acts_here_with_what_a_gpu_learned(change: Callable[[Any], Any]) -> None:
    policy = make(device="cuda")
    before = assert_equal_to_torch(policy)
    assert not same(assert_equal_to_torch(change(policy)), before)


class Noisy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def hooked() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda module, given, output: output + 1)
    return layer


def parametrized() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("make_layer", "named"),
    [
        (lambda: Noisy(4, 3), "Noisy.* no numpy"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout()), "Dropout.* no numpy"),
        (hooked, "Linear.* hooks"),
        (parametrized, "Linear.*parametrizations"),
    ],
)
def test_what_has_no_numpy_is_refused(make_layer: Callable[[], nn.Module], named: str) -> None:
    """Also a layer that only inherits from one that has: before any work, with the way out."""
    with pytest.raises(ConfigError, match=rf"(?s){named}.*act_backend='torch'"):
        make(functional(make_layer()))
    functional(make_layer())(VECTOR, CHOICE, device="cpu")  # torch serves it


def test_images_are_left_to_torch() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 255, (40, 44, 3), np.uint8), "n": spaces.Discrete(2)})
    assert isinstance(encoder(space).parts[0], ImageEncoder)
    with pytest.raises(ConfigError, match=r"(?s)ImageEncoder.*act_backend='torch'"):
        make(observations=space)


def test_a_module_of_ones_own_may_have_its_numpy() -> None:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        def in_numpy(self) -> Callable[[Any], Any]:
            return lambda x: 2 * x

    class Other(Scale):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 3 * x

    assert_equal_to_torch(make(functional(Scale(), nn.Linear(4, 3))))
    with pytest.raises(ConfigError, match="Other"):
        in_numpy(Other())


def test_a_choice_that_there_is_not_is_refused() -> None:
    policy = make(observations=spaces.MultiDiscrete([2, 3]))
    for wrong in ([2, 0], [0, -1]):
        with pytest.raises(SchemaError, match=r"not one of \(2, 3\)"):
            policy.eval_mode.act(np.array([wrong]), np.empty((1, 0)), 0)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="act_backend='jax' is no backend; take one of torch, numpy"):
        make(act_backend="jax")


def test_explain_says_so() -> None:
    for backend, said in (("torch", False), ("numpy", True)):
        make = partial(PPOPolicy, hidden=(8,), device="cpu", act_backend=backend)
        with WorkerSet("CartPole-v1", make) as workers:
            assert ("acts in numpy" in ParallelRollouts(workers).explain()) == said

"""PPO's gradients by hand: equal to autograd's, of the newest weights, and refused where they are not derived."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError, NotFinite
from flowrl.policies import PPOPolicy, RecurrentPPOPolicy
from flowrl.policies.learning import Learning

ROWS = 40
VECTOR, CHOICE = spaces.Box(-2, 2, (4,), np.float32), spaces.Discrete(3, start=1)
MASKED = spaces.Dict({"seen": VECTOR, "kind": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)})


def make(backend: str = "numpy", kind: Any = PPOPolicy, space: Any = VECTOR, actions: Any = CHOICE, **more: Any) -> Any:
    """A policy with weights large enough that every part of them shows."""
    settings = {"learn_backend": backend, "device": "cpu", "seed": 3, "hidden": (8, 6), **more}
    policy = kind(space, actions, **settings)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter += 0.5 * torch.randn(parameter.shape, generator=draw)
    return policy


def experience(policy: Any) -> Batch:
    """Rows of an older policy, whose ratios and values are on both sides of each clip range."""
    space, draw = policy.observation_space, np.random.default_rng(2)
    obs = observed(space, draw)
    valid = np.ones((ROWS, 3), np.bool_)
    if isinstance(space, spaces.Dict):
        obs["action_mask"] = valid = draw.random((ROWS, 3)) < np.array([1.0, 0.5, 0.5])
    with torch.no_grad():
        given, value = policy.model(policy.tensor(obs))
        action = torch.multinomial(torch.from_numpy(valid).float(), 1, generator=torch.Generator().manual_seed(4))[:, 0]
        logp, _ = policy.distribution.evaluate(given, action)
    numbers = draw.normal(size=(4, ROWS)).astype(np.float32)
    columns = {"logp": logp.numpy() + 0.4 * numbers[0], "value": value.numpy() + 0.4 * numbers[1]}
    return Batch(obs=obs, action=action.numpy(), **columns, advantage=numbers[2], target=numbers[3])


def observed(space: gymnasium.Space[Any], draw: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return Batch({name: observed(part, draw) for name, part in space.items()})
    return draw.integers(0, 2, ROWS) if space != VECTOR else draw.normal(size=(ROWS, 4)).astype(np.float32)


def assert_same_gradients(ours: Any, theirs: Any, rows: Batch) -> None:
    """Gradients and scalars agree to rounding, and no parameter is left out."""
    assert ours.learn_mode.in_numpy is not None
    assert theirs.learn_mode.in_numpy is None
    found, wanted = ours.learn_mode.gradients(rows), theirs.learn_mode.gradients(rows)
    assert found.values.keys() == wanted.values.keys() == dict(theirs.model.named_parameters()).keys()
    for name, gradient in wanted.values.items():
        torch.testing.assert_close(found.values[name], gradient, rtol=1e-4, atol=1e-5)
    assert found.scalars == pytest.approx(wanted.scalars, rel=1e-4, abs=1e-6)
    assert list(found.scalars) == list(wanted.scalars)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"entropy_coef": 0.3, "value_coef": 2.0, "clip": 0.1},
        {"kl_coef": 0.7, "value_clip": 0.3},
        {"clip": 0.0, "value_clip": 1e-9},
        {"space": MASKED, "entropy_coef": 0.3},
        {"space": MASKED, "critic_obs": ("seen",), "privileged": ("kind",)},
        {"space": MASKED, "normalize_obs": True},
    ],
    ids=str,
)
def test_gradients_equal_those_of_autograd(settings: dict[str, Any]) -> None:
    """G3, G4, G5, G7, G10: whatever the loss consists of, and whatever actor and critic read."""
    ours, theirs = make("numpy", **settings), make("torch", **settings)
    rows = experience(theirs)
    if settings.get("normalize_obs"):
        for policy in (ours, theirs):
            policy.gather_statistics(rows.obs, None)
            policy.update_statistics()
    assert_same_gradients(ours, theirs, rows)


def test_it_learns_from_the_newest_weights_and_a_copy_from_its_own() -> None:
    """G10: after steps, after weights came from elsewhere, and after they moved to other tensors."""
    ours, theirs, other = make("numpy"), make("torch"), make("torch", seed=9)
    rows = experience(theirs)
    for policy in (ours, theirs):
        policy.learn_mode.learn_from(rows)
    assert_same_gradients(ours, theirs, rows)
    copied = copy.deepcopy(ours)
    copied.learn_mode.learn_from(rows)
    assert_same_gradients(ours, theirs, rows)
    for parameter in ours.parameters:
        parameter.data = parameter.data.clone()
    ours.load_weights(other.weights())
    assert_same_gradients(ours, other, rows)


def test_layers_that_somebody_changed_are_those_of_autograd() -> None:
    """G10: frozen, with a hook, and replaced, after the policy was made."""
    heard: list[Any] = []

    def frozen(model: Any) -> None:
        model.actor[0].weight.requires_grad_(False)

    def hooked(model: Any) -> None:
        model.critic[1].register_forward_hook(lambda *_: heard.append(0))

    def replaced(model: Any) -> None:
        model.actor[1] = torch.nn.ReLU()

    for change in (frozen, hooked, replaced):
        ours, theirs = make("auto"), make("torch")
        rows = experience(theirs)
        for policy in (ours, theirs):
            change(policy.model)
            policy.learn_mode.learn_from(rows)
        for name, weight in theirs.weights().items():
            torch.testing.assert_close(ours.weights()[name], weight, rtol=1e-4, atol=1e-5)
    assert len(heard) == 2


def test_what_is_not_finite_is_named_and_changes_no_weights() -> None:
    """X1, without a warning of numpy's."""
    policy = make()
    before = policy.weights()
    rows = experience(policy)
    rows.logp[3], rows.advantage[3] = -200.0, -5.0
    with pytest.raises(NotFinite, match=r"the loss is (inf|nan).*logp\[3\] = -200"):
        policy.learn_mode.learn_from(rows)
    assert all(torch.equal(before[name], now) for name, now in policy.weights().items())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"actions": VECTOR}, "serves one choice among n actions, not Box"),
        ({"space": spaces.Box(0, 255, (9, 9, 3), np.uint8)}, "serves dense networks, without images"),
        ({"kind": RecurrentPPOPolicy}, "not those of RecurrentPPOPolicy"),
        ({"precision": "bfloat16"}, "in float32"),
    ],
)
def test_autograd_computes_what_is_not_derived(settings: dict[str, Any], why: str) -> None:
    """G10: "numpy" says why it cannot, "auto" leaves it to torch."""
    with pytest.raises(ConfigError, match=rf"learn_backend='numpy' .*{why}.*take learn_backend='torch', or 'auto'"):
        make("numpy", **settings)
    assert make("auto", **settings).learn_mode.in_numpy is None
    assert make("auto").learn_mode.in_numpy is not None


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="learn_backend='jax' is no backend; take one of torch, numpy, auto"):
        make("jax")


class WithHead(PPOPolicy):
    """With one more head, which another loss trains."""

    def _network(self) -> Any:
        model: Any = super()._network()
        model.head = torch.nn.Linear(4, 1)
        return model


class HeadLoss(Learning):
    columns = ("obs", "target")

    def loss(self, rows: Batch) -> Any:
        loss = (self.policy.model.head(rows.obs)[:, 0] - rows.target).square().mean()
        return loss, {"loss": loss}


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_step_takes_nothing_of_another_loss(backend: str) -> None:
    """D16: neither its gradient nor its part of the norm, so a policy with the saved state learns alike."""
    policy, resumed = (make(backend, WithHead, grad_clip=0.1) for _ in range(2))
    rows = experience(policy)
    HeadLoss(policy).learn_from(rows.select(["obs", "target"]))
    head = policy.model.head.weight.clone()
    resumed.load_state_dict(policy.state_dict())
    for each in (policy, resumed):
        each.learn_mode.update(each.learn_mode.tensors(rows))
    assert torch.equal(policy.model.head.weight, head)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(policy.parameters, resumed.parameters))


def test_auto_leaves_models_with_more_to_torch() -> None:
    """D16: what numpy does not read is somebody's who reads it."""
    assert make("auto").learn_mode.in_numpy is not None
    assert make("auto", WithHead).learn_mode.in_numpy is None
    policy = make("auto")
    assert policy.learn_mode.in_numpy.fits()
    policy.model.head = torch.nn.Linear(4, 1)
    assert not policy.learn_mode.in_numpy.fits()


class ScaleLoss(Learning):
    columns = ("target",)

    def loss(self, rows: Batch) -> Any:
        loss = (self.policy.scale * rows.target).mean()  # type: ignore[operator]
        return loss, {"loss": loss}


def test_gradients_of_what_is_not_in_the_model_do_not_add_up() -> None:
    """D16: the optimizer moves a number that somebody has given it later."""
    policy = make("torch")
    policy.scale = torch.nn.Parameter(torch.ones(()))
    policy.optimizer.add_param_group({"params": [policy.scale]})
    for _ in range(3):
        ScaleLoss(policy).learn_from(Batch(target=np.ones(4, np.float32)))
    assert policy.scale.grad == 1

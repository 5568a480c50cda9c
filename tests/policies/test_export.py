"""A policy as a file: what comes out of it is what the eval mode gives the environment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.heads import CategoricalHead, QuantileHead
from flowrl.policies import (
    A2CPolicy,
    CrossQPolicy,
    DDPGPolicy,
    DQNPolicy,
    MuZeroPolicy,
    Policy,
    PPOPolicy,
    R2D2Policy,
    RecurrentPPOPolicy,
    SACPolicy,
    TD3Policy,
    argmax_sample,
    eps_greedy_sample,
    policy_from,
)
from flowrl.policies.alphazero import AlphaZeroPolicy
from tests.plans.small import SMALL, make

NUMBERS = spaces.Box(-1, 1, (4,), np.float32)
PARTS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "position": spaces.Box(-5, 5, (2,), np.float64),
        "room": spaces.Discrete(3),
    }
)
MASKED = spaces.Dict({"seen": NUMBERS, "action_mask": spaces.MultiBinary(5)})
CHOICES = spaces.Discrete(5)
BOUNDED = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32))
Functional = policy_from(lambda obs, act: nn.Linear(4, act.n), lambda model, batch: model(batch.obs).mean())

#: Of five actions, or of two and three side by side.
VALID = np.array([[1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 1, 1, 0, 0]], np.int8)

CASES: dict[str, Callable[[], Any]] = {
    "values of a dictionary, normalised": lambda: DQNPolicy(
        PARTS, spaces.Discrete(3), normalize_obs=True, device="cpu"
    ),
    "several choices": lambda: A2CPolicy(NUMBERS, spaces.MultiDiscrete([2, 3], start=[1, 0]), device="cpu"),
    "soft": lambda: SACPolicy(NUMBERS, BOUNDED, normalize_obs=True, device="cpu"),
    "valid actions of noisy categorical values": lambda: DQNPolicy(
        MASKED, CHOICES, head=CategoricalHead(7, -1, 1), noisy=True, device="cpu"
    ),
}
MORE: dict[str, Callable[[], Any]] = {
    "choices that do not start at 0": lambda: PPOPolicy(NUMBERS, spaces.Discrete(3, start=2), device="cpu"),
    "clipped": lambda: PPOPolicy(NUMBERS, BOUNDED, normalize_obs=True, device="cpu"),
    "squashed": lambda: PPOPolicy(NUMBERS, BOUNDED, squash=True, device="cpu"),
    "functions": lambda: Functional(NUMBERS, spaces.Discrete(3), device="cpu"),
    "soft, in double precision and two axes": lambda: SACPolicy(
        PARTS, spaces.Box(-3.0, 0.5, (2, 3), np.float64), device="cpu"
    ),
    "soft choices that do not start at 0": lambda: SACPolicy(NUMBERS, spaces.Discrete(3, start=2), device="cpu"),
    "twins": lambda: TD3Policy(NUMBERS, BOUNDED, device="cpu"),
    "normalized by running statistics": lambda: CrossQPolicy(NUMBERS, BOUNDED, device="cpu"),
    "one critic": lambda: DDPGPolicy(PARTS, BOUNDED, device="cpu"),
    "noisy categorical values": lambda: DQNPolicy(
        NUMBERS, CHOICES, head=CategoricalHead(7, -1, 1), noisy=True, device="cpu"
    ),
    "noisy quantiles": lambda: DQNPolicy(NUMBERS, CHOICES, head=QuantileHead(5), noisy=True, device="cpu"),
    **{
        f"the valid ones, {kind.__name__} {settings}": lambda kind=kind, settings=settings: kind(
            MASKED, CHOICES, device="cpu", **settings
        )
        for kind, settings in (
            (DQNPolicy, {}),
            (DQNPolicy, {"dueling": False}),
            (DQNPolicy, {"head": QuantileHead(5)}),
            (PPOPolicy, {}),
            (SACPolicy, {"precision": "bfloat16"}),
        )
    },
    "several valid choices": lambda: A2CPolicy(MASKED, spaces.MultiDiscrete([2, 3], start=[1, 0]), device="cpu"),
}


def stirred(policy: Any) -> Any:
    """With other weights than the first ones, which say little, and with statistics."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    for normalizer in policy.normalizers.values():
        normalizer.mean.add_(0.3)
        normalizer.std.mul_(1.7)
    return policy


def observations(space: Any, count: int) -> Any:
    space.seed(0)
    drawn = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        stacked = {name: np.stack([each[name] for each in drawn]) for name in space}
        if "action_mask" in stacked:
            mask, row = stacked["action_mask"], np.arange(count)
            mask[row, row % mask.shape[1]] = 1  # one action is valid in any case
            stacked["action_mask"] = VALID[row % len(VALID)] if mask.shape[1:] == VALID.shape[1:] else mask
        return stacked
    return np.stack(drawn)


def expected(policy: Any, obs: Any) -> np.ndarray:
    columns = policy.eval_mode.act(Batch(obs) if isinstance(obs, dict) else obs, np.empty((0, 0)), 0)
    return np.asarray(columns.get("env_action", columns["action"]))


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)])
def test_a_program_of_torch_gives_the_actions_of_the_eval_mode(case: str, tmp_path: Path) -> None:
    """A2, Q3: for any number of observations, in the numbers of the environment, and among the valid actions."""
    policy = stirred({**CASES, **MORE}[case]())
    policy.export(tmp_path / "policy.pt2")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    for count in (1, 5):
        obs = observations(policy.actor_space, count)
        given = {k: torch.from_numpy(v) for k, v in obs.items()} if isinstance(obs, dict) else torch.from_numpy(obs)
        actions = program(given).numpy()
        np.testing.assert_allclose(actions, expected(policy, obs), rtol=1e-5, atol=1e-6)
        assert actions.dtype == policy.action_space.dtype
        assert all(action in policy.action_space for action in actions)
        if isinstance(obs, dict) and "action_mask" in obs and policy.action_space is CHOICES:
            assert obs["action_mask"][np.arange(count), actions].all()
    assert list(tmp_path.iterdir()) == [tmp_path / "policy.pt2"]


@pytest.mark.needs("onnx")
@pytest.mark.filterwarnings("ignore")  # of the exporter's own parts
@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_an_onnx_program_gives_the_actions_of_the_eval_mode(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the exporter's log, as of torchvision, which no policy needs, stays silent."""
    check_onnx({**CASES, **MORE}[case](), tmp_path)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.needs("onnx")
@pytest.mark.filterwarnings("ignore")  # of the exporter's own parts
@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_policies_of_the_plans_are_onnx_programs(name: str, tmp_path: Path) -> None:
    """But for those with a memory, and those that search."""
    workers, _ = make(name)
    with workers:
        for policy in (each for each in workers.resources if isinstance(each, Policy)):
            if hasattr(policy.eval_mode, "initial_state"):
                with pytest.raises(ConfigError, match="it is recurrent"):
                    policy.export(tmp_path / "policy.onnx")
            elif isinstance(policy, AlphaZeroPolicy | MuZeroPolicy):
                with pytest.raises(ConfigError, match=r"its eval mode, (Searching|Planning), has no method in_torch"):
                    policy.export(tmp_path / "policy.onnx")
            else:
                check_onnx(policy, tmp_path)


def check_onnx(policy: Any, tmp_path: Path) -> None:
    """The program acts as the policy does, on one observation and on several."""
    import onnxruntime

    stirred(policy).export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    for count in (1, 5):
        obs = observations(policy.actor_space, count)
        given = {f"obs.{name}": part for name, part in obs.items()} if isinstance(obs, dict) else {"obs": obs}
        (actions,) = session.run(["action"], given)
        np.testing.assert_allclose(actions, expected(policy, obs), rtol=1e-5, atol=3e-5)  # in another order of sums
        assert actions.dtype == policy.action_space.dtype


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    policy = DQNPolicy(NUMBERS, spaces.Discrete(3), device="cpu")
    with pytest.raises(ConfigError, match=r"expected a file \.pt2"):
        policy.export(tmp_path / "policy.pt")
    policy.eval_mode = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="has no method in_torch"):
        policy.export(tmp_path / "policy.pt2")
    for kind in (R2D2Policy, RecurrentPPOPolicy):
        with pytest.raises(ConfigError, match="it is recurrent"):
            kind(NUMBERS, spaces.Discrete(3), device="cpu").export(tmp_path / "policy.pt2")
    by_coin = policy_from(
        lambda obs, act: nn.Linear(4, act.n), lambda model, batch: model(batch.obs).mean(), eval=eps_greedy_sample(0.1)
    )
    with pytest.raises(ConfigError, match=r"only argmax_sample\(\) can be exported"):
        by_coin(NUMBERS, spaces.Discrete(3), device="cpu").export(tmp_path / "policy.pt2")
    assert argmax_sample.draws == 0
    assert not list(tmp_path.iterdir())

"""A policy as a file: what comes out of it is what the eval mode gives the environment."""

from __future__ import annotations

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
from flowrl.policies import (
    A2CPolicy,
    CategoricalHead,
    DQNPolicy,
    PPOPolicy,
    SACPolicy,
    TD3Policy,
    argmax_sample,
    eps_greedy_sample,
    policy_from,
)

NUMBERS = spaces.Box(-1, 1, (4,), np.float32)
PARTS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "position": spaces.Box(-5, 5, (2,), np.float64),
        "room": spaces.Discrete(3),
    }
)
BOUNDED = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32))
Functional = policy_from(lambda obs, act: nn.Linear(4, act.n), lambda model, batch: model(batch.obs).mean())

CASES: dict[str, Callable[[], Any]] = {
    "values of a dictionary, normalised": lambda: DQNPolicy(
        PARTS, spaces.Discrete(3), normalize_obs=True, device="cpu"
    ),
    "choices that do not start at 0": lambda: PPOPolicy(NUMBERS, spaces.Discrete(3, start=2), device="cpu"),
    "several choices": lambda: A2CPolicy(NUMBERS, spaces.MultiDiscrete([2, 3], start=[1, 0]), device="cpu"),
    "clipped": lambda: PPOPolicy(NUMBERS, BOUNDED, normalize_obs=True, device="cpu"),
    "squashed": lambda: PPOPolicy(NUMBERS, BOUNDED, squash=True, device="cpu"),
    "distributions of returns": lambda: DQNPolicy(
        NUMBERS, spaces.Discrete(3), head=CategoricalHead(5, -1, 1), noisy=True, device="cpu"
    ),
    "soft": lambda: SACPolicy(NUMBERS, BOUNDED, hidden=(8,), normalize_obs=True, device="cpu"),
    "soft choices that do not start at 0": lambda: SACPolicy(
        NUMBERS, spaces.Discrete(3, start=2), hidden=(8,), device="cpu"
    ),
    "deterministic": lambda: TD3Policy(NUMBERS, BOUNDED, hidden=(8,), device="cpu"),
    "functions": lambda: Functional(NUMBERS, spaces.Discrete(3), device="cpu"),
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
        return {name: np.stack([each[name] for each in drawn]) for name in space}
    return np.stack(drawn)


def expected(policy: Any, obs: Any) -> np.ndarray:
    columns = policy.eval_mode.act(Batch(obs) if isinstance(obs, dict) else obs, np.empty((0, 0)), 0)
    return np.asarray(columns.get("env_action", columns["action"]))


@pytest.mark.parametrize("case", CASES)
def test_a_program_of_torch_gives_the_actions_of_the_eval_mode(case: str, tmp_path: Path) -> None:
    """For any number of observations, not only as many as it was made with."""
    policy = stirred(CASES[case]())
    policy.export(tmp_path / "policy.pt2")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    for count in (1, 5):
        obs = observations(policy.observation_space, count)
        given = {k: torch.from_numpy(v) for k, v in obs.items()} if isinstance(obs, dict) else torch.from_numpy(obs)
        actions = program(given).numpy()
        np.testing.assert_allclose(actions, expected(policy, obs), rtol=1e-5, atol=1e-6)
        assert actions.dtype == policy.action_space.dtype
    assert list(tmp_path.iterdir()) == [tmp_path / "policy.pt2"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter's own parts
@pytest.mark.parametrize("case", CASES)
def test_an_onnx_program_gives_the_actions_of_the_eval_mode(case: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    policy = stirred(CASES[case]())
    policy.export(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    for count in (1, 5):
        obs = observations(policy.observation_space, count)
        given = {f"obs.{name}": part for name, part in obs.items()} if isinstance(obs, dict) else {"obs": obs}
        (actions,) = session.run(["action"], given)
        np.testing.assert_allclose(actions, expected(policy, obs), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    policy = DQNPolicy(NUMBERS, spaces.Discrete(3), device="cpu")
    with pytest.raises(ConfigError, match=r"expected a file \.pt2"):
        policy.export(tmp_path / "policy.pt")
    policy.eval_mode = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="has no method in_torch"):
        policy.export(tmp_path / "policy.pt2")
    by_coin = policy_from(
        lambda obs, act: nn.Linear(4, act.n), lambda model, batch: model(batch.obs).mean(), eval=eps_greedy_sample(0.1)
    )
    with pytest.raises(ConfigError, match=r"only argmax_sample\(\) can be exported"):
        by_coin(NUMBERS, spaces.Discrete(3), device="cpu").export(tmp_path / "policy.pt2")
    assert argmax_sample.draws == 0
    assert not list(tmp_path.iterdir())

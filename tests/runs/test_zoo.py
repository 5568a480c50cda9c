"""The zoo: policies by name, which are what its index says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import flowrl
from flowrl.errors import CheckpointError, ConfigError
from flowrl.plans import PPO
from flowrl.runs.zoo import INDEX, zoo_file, zoo_folder, zoo_index
from tests.cli import parts

ZOO = Path(__file__).parents[2] / "benchmarks" / "zoo"


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo with one policy, which has learned nothing."""
    monkeypatch.setenv("FLOWRL_ZOO", str(tmp_path))
    with PPO("CartPole-v1", hidden=(4,), device="cpu") as trainer:
        file = trainer.save_policy(tmp_path / "ppo-CartPole-v1.pt")
    entry = {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    (tmp_path / INDEX).write_text(json.dumps({"ppo/CartPole-v1": entry}))
    return tmp_path


def test_a_policy_by_name(zoo: Path) -> None:
    assert flowrl.load("zoo:ppo/CartPole-v1").act([0.0] * 4) in (0, 1)
    done = parts.flowrl("evaluate", "zoo:ppo/CartPole-v1", "--episodes", 2)
    assert done.stdout.startswith(f"{zoo / 'ppo-CartPole-v1.pt'} on CartPole-v1: 2 episodes"), done.output
    with pytest.raises(ConfigError, match="has no 'ppo/CartPol-v1'; did you mean 'ppo/CartPole-v1'"):
        flowrl.load("zoo:ppo/CartPol-v1")


def test_another_file_is_not_taken_for_it(zoo: Path) -> None:
    """D7"""
    file = zoo / "ppo-CartPole-v1.pt"
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(CheckpointError, match=r"its checksum is not that in index\.json"):
        flowrl.load("zoo:ppo/CartPole-v1")
    (zoo / INDEX).write_text(json.dumps({"x": {"file": "../../etc/passwd", "sha256": ""}}))
    with pytest.raises(CheckpointError, match="passwd cannot be read"):
        zoo_file("x")


def test_without_a_checkout_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRL_ZOO", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="come with a checkout of flowrl, not with the package; set FLOWRL_ZOO to"):
        flowrl.load("zoo:ppo/CartPole-v1")


def test_the_policies_of_the_repository_are_what_the_index_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files with their checksums, which act without an environment."""
    monkeypatch.delenv("FLOWRL_ZOO", raising=False)
    assert zoo_folder() == ZOO.resolve()
    index = zoo_index()
    assert {path.name for path in ZOO.glob("*.pt")} == {about["file"] for about in index.values()}
    for name, about in index.items():
        policy = flowrl.load(f"zoo:{name}")
        assert policy.source is not None
        assert policy.source.stat().st_size == about["bytes"] < 400_000
        assert about["episodes"] == 100
        space = policy.policy.observation_space
        space.seed(0)
        action = policy.act(space.sample())
        chosen = action[0] if isinstance(action, tuple) else action  # with the state of a memory
        assert policy.policy.action_space.contains(chosen), name

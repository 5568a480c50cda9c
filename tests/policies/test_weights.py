"""A policy's weights in a file."""

from __future__ import annotations

import pickle
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from flowrl.errors import CheckpointError
from flowrl.policies import DQNPolicy
from flowrl.policies.weights import load_weights, save_weights
from flowrl.testing import same


def make(seed: int = 0, hidden: int = 8) -> DQNPolicy:
    observations = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    return DQNPolicy(observations, gymnasium.spaces.Discrete(3), hidden=(hidden,), seed=seed, device="cpu")


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    saved, other = make(seed=1), make(seed=2)
    save_weights(saved, tmp_path / "policy.pt")
    load_weights(other, tmp_path / "policy.pt")
    assert same(other.weights(), saved.weights())
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


def test_equal_weights_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        save_weights(make(), tmp_path / name)
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_what_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    """Nothing in a file can run code."""
    save_weights(make(hidden=9), tmp_path / "wide.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(make, protocol=2))
    reasons = {"none.pt": "no saved policy", "wide.pt": "does not fit", "pickle.pt": "no readable weights"}
    for name, reason in reasons.items():
        with pytest.raises(CheckpointError, match=reason):
            load_weights(make(), tmp_path / name)

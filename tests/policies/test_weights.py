"""A policy's weights in a file."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

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
    """D7: nothing in a file can run code, block, or become a weight that is no number."""
    save_weights(make(hidden=9), tmp_path / "wide.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(make, protocol=2))
    os.mkfifo(tmp_path / "pipe.pt")
    wrong = make(hidden=8).weights()
    torch.save({**wrong, list(wrong)[-1]: torch.full((3,), torch.nan)}, tmp_path / "nan.pt")
    torch.save({**wrong, list(wrong)[-1]: torch.zeros(4)}, tmp_path / "last.pt")
    with zipfile.ZipFile(tmp_path / "nan.pt") as plain, zipfile.ZipFile(tmp_path / "packed.pt", "w") as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name), zipfile.ZIP_DEFLATED)
    reasons = {
        "none.pt": "no saved policy",
        "wide.pt": "does not fit",
        "pickle.pt": "no readable weights",
        "pipe.pt": "it is no regular file",
        "nan.pt": "hold numbers that are not finite in ",
        "last.pt": "does not fit DQNPolicy",
        "packed.pt": "it has compressed members",
    }
    for name, reason in reasons.items():
        policy = make()
        with pytest.raises(CheckpointError, match=reason):
            load_weights(policy, tmp_path / name)
        assert same(policy.weights(), make().weights())

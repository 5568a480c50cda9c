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
from flowrl.policies.weights import load_weights, policy_about, read_weights, save_weights
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


def test_a_damaged_file_is_refused_or_gives_the_weights_that_were_saved(tmp_path: Path) -> None:
    """D18: a flipped bit anywhere, what is cut off, and what is added."""
    save_weights(make(hidden=2), tmp_path / "whole.pt", {"plan": "dqn"})
    whole, file = (tmp_path / "whole.pt").read_bytes(), tmp_path / "policy.pt"
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(0, len(whole), 23)]
    refused = []
    for data in flipped:
        file.write_bytes(data)
        try:
            assert same(read_weights(file), read_weights(tmp_path / "whole.pt"))
            assert policy_about(file) == {"version": 1, "plan": "dqn"}
        except CheckpointError as error:
            refused.append(str(error))
    assert len(refused) > len(flipped) / 8
    assert all(each.startswith(str(file)) and "\n" not in each for each in refused)
    for data in (whole[:-1], whole[: len(whole) // 2], whole + b"\0", b"\0" + whole, whole + whole, b""):
        file.write_bytes(data)
        for read in (read_weights, policy_about):
            with pytest.raises(CheckpointError, match=r"policy\.pt holds no readable weights: "):
                read(file)

"""Checkpoints, buffers and datasets that were written before modules and classes moved."""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import _moved
from flowrl.data import (
    Dataset,
    EpisodeReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.engine.context import Context
from flowrl.engine.seeds import SeedTree
from flowrl.storage.checkpoint import load_checkpoint
from flowrl.testing import same
from tests.plans.small import make

BEFORE = Path(__file__).parent / "written_before"


def as_before(state: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Without the learning rates that policies say since then, and fields that operators have added."""
    for resource in state["resources"].values():
        resource.pop("rates", None)
    return {**state, "operators": among(state["operators"], saved["operators"])}


def among(new: Any, old: Any) -> Any:
    """The fields that the old state has too, also those of operators on workers."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {name: among(new[name], value) for name, value in old.items()}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [among(each, before) for each, before in zip(new, old)]
    return new


@pytest.mark.parametrize("name", ["apex_dqn", "ppo recurrent"])
def test_a_run_goes_on_from_an_old_checkpoint(name: str) -> None:
    """D3, D5: the state is what was saved, classes in it included, and the run goes on from it, twice the same.

    That it goes on as the old code did was compared once; another processor may round otherwise.
    """
    saved = load_checkpoint(BEFORE / name.replace(" ", "_"), trusted=True)
    ends = []
    for seed in (5, 6):
        workers, plan = make(name)
        with workers, plan.run(seed=seed) as run:
            run.load_state_dict(saved)
            assert same(as_before(run.state_dict(), saved), saved)
            ends.append((list(islice(run, 2)), run.state_dict()))
    assert same(ends[0], ends[1])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rows", ReplayBuffer),
        ("prioritized", PrioritizedReplayBuffer),
        ("sequences", SequenceReplayBuffer),
        ("episodes", EpisodeReplayBuffer),
    ],
)
def test_an_old_buffer_is_read(name: str, kind: Any) -> None:
    """B5: its rows, and what it draws."""
    buffers = [kind.load(BEFORE / name) for _ in range(2)]
    for buffer in buffers:
        buffer.start(Context(seeds=SeedTree(7)).at("buffer"))
    assert len(buffers[0]) == (36 if name == "episodes" else 20)
    drawn, again = (buffer.sample(8) for buffer in buffers)
    assert same(drawn, again)
    assert np.array_equal(drawn.obs[..., 1], 10 * drawn.obs[..., 0])


def test_an_old_dataset_is_read() -> None:
    data = Dataset(BEFORE / "dataset")
    assert data.rows == 36
    assert np.array_equal(data.take(np.arange(36), ["reward"])["reward"], np.repeat(np.arange(18.0), 2))


def test_old_modules_and_names_are_the_new_ones() -> None:
    """With a warning that names the new one; what it does not have, neither has."""
    for old, new in _moved.MODULES.items():
        sys.modules.pop(old, None)
        with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
            module = importlib.import_module(old)
        there = importlib.import_module(new)
        names = [name for name in vars(there) if name[0] != "_" and f"{old}:{name}" not in _moved.NAMES]
        assert all(getattr(module, name) is getattr(there, name) for name in names)
        with pytest.raises(AttributeError):
            _ = module.nothing_like_it
    for old, new in _moved.NAMES.items():
        module_name, _, name = new.partition(":")
        assert _moved.find(*old.split(":")) is getattr(importlib.import_module(module_name), name)

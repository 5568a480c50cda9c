"""Checkpoints, buffers and datasets that were written before modules and classes moved."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.data import (
    Dataset,
    EpisodeReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.engine.context import Context
from flowrl.engine.seeds import SeedTree
from flowrl.rollout.match_making import Rival
from flowrl.storage.checkpoint import load_checkpoint
from flowrl.storage.codec import decode, encode
from flowrl.testing import same
from tests.plans.small import make

BEFORE = Path(__file__).parent / "written_before"


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
            assert same(run.state_dict(), saved)
            ends.append((list(islice(run, 2)), run.state_dict()))
    assert same(ends[0], ends[1])


def test_a_state_may_lack_what_operators_have_added_since() -> None:
    """D5."""
    saved = load_checkpoint(BEFORE / "apex_dqn", trusted=True)
    del saved["operators"]["store.gather_async"]["emitted"]
    workers, plan = make("apex_dqn")
    with workers, plan.run(seed=5) as run:
        run.load_state_dict(saved)
        assert next(run)["env_steps"] > saved["ledger"]["counters"]["env_steps"]


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


def test_a_class_that_has_moved_is_found_where_it_is_now() -> None:
    encoded = encode(rival := Rival("main", "main:9", 0.75))
    encoded.skeleton["type"] = "flowrl.rollout.match_making:Opponent"
    assert decode(encoded.skeleton, encoded.arrays.__getitem__, encoded.pickles.__getitem__) == rival

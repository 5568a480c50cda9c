"""Files that somebody edited, with right checksums: each is refused, or holds what was written and nothing else."""

from __future__ import annotations

import copy
import json
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from flowrl import Plan, Queue, from_items
from flowrl.data import (
    Batch,
    Dataset,
    DatasetWriter,
    EpisodeReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.data.datasets import dataset as datasets
from flowrl.engine.context import Context
from flowrl.engine.seeds import SeedTree
from flowrl.errors import CheckpointError, DatasetError
from flowrl.operators import StoreToReplay
from flowrl.operators.concurrency import Concurrently, Enqueue
from flowrl.policies import DQNPolicy
from flowrl.policies.weights import load_weights
from flowrl.storage.checkpoint import load_checkpoint, save_checkpoint
from flowrl.storage.files import MANIFEST, checksum, json_text, plain, read_json
from flowrl.testing import same
from tests.engine.engine_parts import N, Noise, Total
from tests.streams import Stream

#: What an entry becomes.
VALUES = [
    None, True, 0, -1, 1, 7, 10**6, 2**62, 2**70, -0.5, float("nan"), float("inf"), "", "\x1b[2J", [], {}, [0], [[]],
    (), {"a": 1}, np.zeros(3), np.zeros((0, 2)), np.array(5), np.array(["x"]), np.arange(36), np.int64(-3),
]  # fmt: skip
NUMBERS = [0, 1, -1, 5, 17, 18, 24, 10**6, 2**31 - 1, -(2**31), 2**62, float("nan"), float("inf"), 1e300]


@contextmanager
def limit(seconds: int = 20) -> Iterator[None]:
    """What is read or drawn ends."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all entries of a tree."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    for key, inner in inside:
        yield (*at, key)
        yield from places(inner, (*at, key))


def changed(draw: Any, value: Any) -> Any:
    """Another value in place of one, most often one like it."""
    how = draw(st.integers(0, 5))
    if isinstance(value, np.ndarray) and how and value.size:
        made = value.copy()
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if how == 1:
                return np.repeat(made, 2, axis=0)
            if how == 2:
                return made[1:] if made.ndim else made
            if how == 3 and made.dtype.kind in "biuf":
                return made.astype(draw(st.sampled_from([np.int8, np.int64, np.float32, np.float64, bool, "S3"])))
            if made.dtype.kind in "biuf":
                number = np.array(draw(st.sampled_from(NUMBERS))).astype(made.dtype)
                made.flat[draw(st.integers(0, made.size - 1)) if how == 4 else slice(None)] = number
                return made
    if type(value) is int and how > 1:
        return value + draw(st.sampled_from([-20, -1, 1, 3, 10**4, 2**60]))
    return copy.deepcopy(draw(st.sampled_from(VALUES)))


def forged(draw: Any, tree: Any) -> Any:
    """The tree with one to three entries changed or removed, or values of two entries exchanged."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        paths = list(places(tree))
        if not paths:
            return tree
        *above, key = draw(st.sampled_from(paths))
        holder = tree
        for each in above:
            holder = holder[each]
        if isinstance(holder, tuple):
            continue
        if isinstance(holder, dict) and draw(st.integers(0, 6)) == 0:
            del holder[key]
        else:
            holder[key] = changed(draw, holder[key])
    return tree


@contextmanager
def unsynced() -> Iterator[None]:
    """Without waiting for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def refusal(load: Callable[[], Any], kind: type[Exception] = CheckpointError) -> bool:
    """Whether what was forged is refused, in words that a terminal only shows."""
    try:
        load()
    except kind as error:
        words = str(error)
    else:
        event("loaded")
        return False
    event("refused")
    assert words
    assert words.replace("\n", "").replace("\t", "").isprintable()
    return True


# -- replay buffers

STREAM = Stream(("..T....t.", "t.......T"))
BUFFERS: dict[str, Callable[[], ReplayBuffer]] = {
    "rows": lambda: ReplayBuffer(24, seed=0),
    "windows": lambda: ReplayBuffer(24, seed=0, n_step=3),
    "once": lambda: ReplayBuffer(24, seed=0, store_next_obs=False, n_step=2),
    "stacks": lambda: ReplayBuffer(24, seed=0, frame_stack=2),
    "limits": lambda: ReplayBuffer(24, seed=0, max_uses=3, max_staleness=2),
    "priorities": lambda: PrioritizedReplayBuffer(24, seed=0, compiled=False),
    "limited priorities": lambda: PrioritizedReplayBuffer(24, seed=0, compiled=False, max_uses=30, n_step=2),
    "priorities once": lambda: PrioritizedReplayBuffer(24, seed=0, compiled=False, store_next_obs=False),
    "sequences": lambda: SequenceReplayBuffer(24, length=2, burn_in=1, seed=0),
    "episodes": lambda: EpisodeReplayBuffer(24, seed=0),
}


def filled(kind: str) -> ReplayBuffer:
    """A buffer that is full, drawn from, and overwritten in part."""
    buffer = BUFFERS[kind]()
    for start in (0, 5):
        part = STREAM.fragment(start, start + (9 if start == 0 else 4))
        buffer.add(part.replace(policy_version=np.full(part.shape, start // 5)))
        buffer.sample(4)
    return buffer


@pytest.mark.parametrize("kind", BUFFERS)
@given(data=st.data())
def test_a_buffer_gives_out_what_was_written(kind: str, data: st.DataObject) -> None:
    """B11, D7: from a file whose checksums are right and whose content is not."""
    buffer = filled(kind)
    with tempfile.TemporaryDirectory() as folder, unsynced(), limit():
        parts = forged(data.draw, load_checkpoint(buffer.save(f"{folder}/good")))
        if refusal(lambda: save_checkpoint(f"{folder}/bad", parts, {"replay buffer": type(buffer).__name__})):
            return
        if refusal(lambda: type(buffer).load(f"{folder}/bad")):
            return
        loaded = type(buffer).load(f"{folder}/bad")
        loaded.start(Context(seeds=SeedTree(7)))
        columns = Batch((parts["state"]["columns"] if len(loaded) else None) or {})
        name = next((each for each in ("obs", "policy_version") if each in columns), "")  # a draw makes others anew
        written = {frame.tobytes() for step in columns.get(name, ()) for frame in step}

        def of_them(drawn: Batch) -> bool:
            frames = drawn[name].reshape(-1, *columns[name].shape[2:])
            padding = {np.zeros_like(frames[0]).tobytes()} if "mask" in drawn else set()
            return {frame.tobytes() for frame in frames} <= written | padding

        assert not name or of_them(loaded[:])
        for _ in range(3):
            if loaded.can_sample(8):
                drawn = loaded.sample(8)
                assert not name or of_them(drawn)
                assert ((drawn["index"] >= 0) & (drawn["index"] < len(loaded))).all()


# -- checkpoints of a run


def plan() -> tuple[Plan, ReplayBuffer]:
    buffer, queue = ReplayBuffer(30, seed=1), Queue(99)
    rows = [Batch(obs=np.full(2, i)) for i in range(40)]
    store = from_items(rows).for_each(StoreToReplay(buffer))
    sums = from_items(N * 9).for_each(Noise()).for_each(Total()).batch(3).prefetch(2).for_each(Enqueue(queue))
    zipped = from_items(N * 9).zip(from_items(N * 9).filter(lambda item: item % 2 == 0))
    return Concurrently({"store": store, "sums": sums, "zipped": zipped}), buffer


@given(data=st.data())
def test_a_run_takes_a_state_whole_or_stays_as_it_was(data: st.DataObject) -> None:
    """D7: and goes on either way, or its own operators say why not."""
    made, buffer = plan()
    with tempfile.TemporaryDirectory() as folder, unsynced(), limit(), made.run() as run:
        assert len(list(islice(run, 7))) == 7
        state = run.state_dict()
        assert len(list(islice(run, 2))) == 2
        before = run.state_dict()
        if refusal(lambda: save_checkpoint(f"{folder}/bad", forged(data.draw, state))):
            return
        if refusal(lambda: run.load_state_dict(load_checkpoint(f"{folder}/bad"))):
            assert same(run.state_dict(), before)
            return
        assert len(buffer) <= 30
        list(islice(run, 3))


# -- datasets


@given(data=st.data())
def test_a_dataset_gives_out_what_was_recorded(data: st.DataObject) -> None:
    """D7: its manifest and its index are compared with the files."""
    with tempfile.TemporaryDirectory() as folder, unsynced(), limit():
        path = Path(folder) / "data"
        writer = DatasetWriter(path, {"env": "CartPole-v1"})
        for i in range(3):
            writer.add(Batch(obs={"x": np.full((2, 1, 3), i, "f4")}, reward=np.full((2, 1), i * 1.0)))
        writer.flush()
        lines = [json.loads(line) for line in (path / datasets.INDEX).read_text().splitlines()]
        whole = {"manifest": read_json(path / MANIFEST), "lines": lines}
        part = data.draw(st.sampled_from(list(whole)))
        made = whole | {part: forged(data.draw, whole[part])}
        manifest = {name: value for name, value in plain(made["manifest"]).items() if name != "sha256"}
        (path / MANIFEST).write_text(json_text({**manifest, "sha256": checksum(manifest)}))
        (path / datasets.INDEX).write_text("".join(json.dumps(plain(line)) + "\n" for line in made["lines"]))
        if refusal(lambda: Dataset(path).verify(), DatasetError):
            return
        found = Dataset(path)
        assert repr(found[:0] if not len(found) else found[0]).isprintable()
        for i, batch in enumerate(found):
            assert all(column.nbytes <= 24 for _, column in batch.leaves()), i
        assert found.rows <= 6


# -- policies

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)


def policy(seed: int) -> DQNPolicy:
    return DQNPolicy(OBSERVATIONS, gymnasium.spaces.Discrete(3), hidden=(4,), seed=seed, device="cpu")


@given(data=st.data())
def test_a_policy_takes_weights_whole_or_stays_as_it_was(data: st.DataObject) -> None:
    """D7: finite weights of its shapes; acts with them."""
    ours, theirs = policy(0), policy(1)
    before = ours.state_dict()
    with tempfile.TemporaryDirectory() as folder, limit():
        if data.draw(st.booleans()):
            path = Path(folder) / "policy.pt"
            torch.save(tensors(forged(data.draw, arrayed(theirs.weights()))), path)
            refused = refusal(lambda: load_weights(ours, path))
        else:
            state = tensors(forged(data.draw, arrayed(theirs.state_dict())))
            refused = refusal(lambda: ours.load_state_dict(state))
        if refused:
            assert same(ours.state_dict(), before)
            return
        columns = ours.eval_mode.act(np.zeros((2, 4), np.float32), np.zeros((2, ours.eval_mode.draws)), 0)
        assert set(columns["action"].tolist()) <= {0, 1, 2}
        assert all(bool(each.isfinite().all()) for each in ours.weights().values())


def arrayed(tree: Any) -> Any:
    """A tree with arrays in place of tensors."""
    if isinstance(tree, dict):
        return {key: arrayed(inner) for key, inner in tree.items()}
    if isinstance(tree, list):
        return [arrayed(inner) for inner in tree]
    return tree.numpy() if isinstance(tree, torch.Tensor) else tree


def tensors(tree: Any) -> Any:
    """The reverse."""
    if isinstance(tree, dict):
        return {key: tensors(inner) for key, inner in tree.items()}
    if isinstance(tree, list):
        return [tensors(inner) for inner in tree]
    return torch.from_numpy(tree.copy()) if isinstance(tree, np.ndarray) and tree.dtype.kind in "biuf" else tree

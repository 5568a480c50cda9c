"""Datasets: what was recorded comes back, whole batches only, whenever the writer dies."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.errors import DatasetError, SchemaError
from flowrl.storage.checkpoint import save_checkpoint
from flowrl.storage.files import checksum
from tests.full_disk import full_disk

DTYPES = [np.float32, np.float64, np.int64, np.uint8, bool, np.complex64, "U3", "S2", "M8[s]"]


def fragment(steps: int, envs: int = 2, start: int = 0) -> Batch:
    clock = start + np.arange(steps * envs).reshape(steps, envs)
    return Batch(obs={"x": np.stack([clock, -clock], -1).astype(np.float32), "none": {}}, reward=clock / 2)


@st.composite
def columns(draw: Any, depth: int = 2) -> dict[str, Any]:
    """Names, and for each a dtype and a shape, or more columns."""
    names = draw(st.sets(st.sampled_from(["obs", "a.b", "a", "b", "x/y", ""]), min_size=1, max_size=3))
    leaf = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=2).map(tuple))
    return {name: draw(columns(depth - 1)) if depth and draw(st.booleans()) else draw(leaf) for name in names}


def filled(tree: dict[str, Any], shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        name: filled(leaf, shape, seed)
        if isinstance(leaf, dict)
        else draw.integers(0, 99, (*shape, *leaf[1])).astype(leaf[0])
        for name, leaf in tree.items()
    }


def test_some_columns_of_rows_are_taken_without_the_others(tmp_path: Path) -> None:
    """Those that nobody asks for are not read."""
    writer = DatasetWriter(tmp_path / "data")
    writer.add(Batch(obs={"x": np.arange(6.0).reshape(3, 2, 1)}, reward=np.arange(6.0).reshape(3, 2)))
    data = Dataset(tmp_path / "data")
    assert data.take([5, 0], ["reward"]) == Batch(reward=np.array([5.0, 0.0]))
    assert data.take([5, 0], ["obs"]) == data.take([5, 0]).select(["obs"])


@given(columns(), st.booleans(), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=5))
def test_what_was_recorded_comes_back(tree: dict[str, Any], flat: bool, shapes: list[tuple[int, int]]) -> None:
    """Any columns, nested, of any dtype; fragments of any T and N, or rows; none is a batch too."""
    tree["reward"] = (np.float64, ())
    batches = [Batch(filled(tree, shape[: 2 - flat], i)) for i, shape in enumerate(shapes)]
    with tempfile.TemporaryDirectory() as folder:
        writer = DatasetWriter(Path(folder) / "new" / "data", about={"seed": 3})
        for batch in batches:
            writer.add(batch)
        dataset = Dataset(writer.path).verify()
        assert list(dataset) == batches
        assert all(list(ours) == list(theirs) for ours, theirs in zip(dataset, batches)), "also in their order"
        rows = Batch.cat([batch if flat else batch.flat() for batch in batches])
        assert (len(dataset), dataset.rows, dataset.about) == (len(batches), rows.rows, {"seed": 3})
        order = np.random.default_rng(0).permutation(rows.rows)
        assert dataset.take(order) == rows[order]
        assert pickle.loads(pickle.dumps(dataset))[-1] == batches[-1]


def test_tensors_come_back_as_arrays_and_reading_copies_nothing(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data")
    writer.add(Batch(reward=torch.arange(6.0).reshape(3, 2)))
    dataset = Dataset(tmp_path / "data")
    assert dataset[0] == Batch(reward=np.arange(6, dtype=np.float32).reshape(3, 2))
    assert np.shares_memory(dataset[0].reward, dataset.columns[0])
    with pytest.raises(ValueError, match="read-only"):
        dataset[0].reward[:] = 1
    with pytest.raises(IndexError):
        dataset[1]


def test_a_reader_sees_what_has_been_recorded_since(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data")
    writer.add(fragment(2))
    dataset = Dataset(tmp_path / "data")
    first = dataset[0]
    writer.add(fragment(3, 1))
    assert len(dataset) == 1
    assert list(dataset.refresh()) == [fragment(2), fragment(3, 1)]
    assert first == fragment(2)


def test_padded_steps_are_no_rows(tmp_path: Path) -> None:
    """N6"""
    writer = DatasetWriter(tmp_path / "data")
    writer.add(Batch(reward=np.arange(6).reshape(3, 2), mask=[[True, True], [True, False], [False, False]]))
    writer.add(Batch(reward=np.arange(6, 8).reshape(1, 2), mask=[[False, True]]))
    dataset = Dataset(tmp_path / "data")
    assert dataset.take(dataset.real_rows()).reward.tolist() == [0, 1, 2, 7]
    assert dataset.take(dataset.real_rows(1)).reward.tolist() == [0, 1, 2]
    assert dataset.real_rows(0).tolist() == []
    with pytest.raises(IndexError, match=r"taken by number, got bool; of a mask give np.flatnonzero\(mask\)"):
        dataset.take(dataset.take(np.arange(8)).mask)
    assert dataset.take([]).reward.shape == (0,)


# -- the writer against a list


class AgainstAList(RuleBasedStateMachine):
    """F2: any sequence of adding, taking back, closing, dying in the middle of a batch, and beginning anew."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "data"
        self.writer = DatasetWriter(self.path)
        self.batches: list[Batch] = []

    @rule(steps=st.integers(0, 3), envs=st.integers(1, 2), start=st.integers(0, 9))
    def add(self, steps: int, envs: int, start: int) -> None:
        self.writer.add(fragment(steps, envs, start))
        self.batches.append(fragment(steps, envs, start))

    @rule(share=st.floats(0, 1))
    def rewind(self, share: float) -> None:
        self.batches = self.batches[: round(share * len(self.batches))]
        self.writer.rewind(len(self.batches))

    @rule()
    def open_again(self) -> None:
        self.writer.flush()
        self.writer = DatasetWriter(self.path)

    @precondition(lambda self: self.path.exists())
    @rule(share=st.floats(0, 1, exclude_max=True))
    def die_while_adding(self, share: float) -> None:
        """The files are written one after another, the index last: what a kill leaves is the beginning of that."""
        paths = [*sorted(self.path.glob("*.bin")), self.path / "batches.jsonl"]
        before = [path.read_bytes() for path in paths]
        self.writer.add(fragment(2, 2, 50))
        after = [path.read_bytes() for path in paths]
        starts = [self.writer.entries[-1].start * size for size in (8, 8)]
        starts.append(len(after[-1]) - len(after[-1].splitlines(keepends=True)[-1]))
        left = int(share * sum(len(new) - start for new, start in zip(after, starts)))
        for path, old, new, start in zip(paths, before, after, starts):
            end = start + min(left, len(new) - start)
            left -= end - start
            path.write_bytes(new[:end] + old[end:])
        self.writer = DatasetWriter(self.path)

    @precondition(lambda self: self.path.exists())
    @rule()
    def clear(self) -> None:
        self.writer.clear()
        self.batches = []
        assert not self.path.exists()

    @invariant()
    def holds_what_was_added(self) -> None:
        assert len(self.writer) == len(self.batches)
        if self.path.exists():
            assert list(Dataset(self.path).verify()) == self.batches

    def teardown(self) -> None:
        self.folder.cleanup()


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(stateful_step_count=15)


def test_a_line_that_has_no_end_is_not_there(path: Path) -> None:
    """B5, F2: it is being written, or was when the writer died; the next writer writes over it."""
    index = path / "batches.jsonl"
    lines = index.read_bytes()
    index.write_bytes(lines[:-1])
    assert len(Dataset(path)) == 2
    index.write_bytes(lines + lines[:200].replace(b"\n", b" "))
    assert len(Dataset(path)) == 3
    DatasetWriter(path).add(fragment(1))
    DatasetWriter(path).add(fragment(2))
    assert [len(batch) for batch in Dataset(path).verify()] == [2, 2, 2, 1, 2]


RECORD_FOR_EVER = """
import sys, itertools, numpy as np
from flowrl.data import Batch, DatasetWriter
writer = DatasetWriter(sys.argv[1])
for i in itertools.count(len(writer)):
    writer.add(Batch(reward=np.full((5, 3), i), obs=np.full((5, 3, 400), i)))
    if i == int(sys.argv[2]):
        print("running", flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_batches(tmp_path: Path) -> None:
    """F2, B5: twice, at whatever moment; the second goes on after the first."""
    path, count = tmp_path / "data", 0
    for _ in range(2):
        command = [sys.executable, "-c", RECORD_FOR_EVER, str(path), str(count + 20)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            process.send_signal(signal.SIGKILL)
        dataset = Dataset(path).verify()
        count = len(dataset)
        assert [batch.reward[0, 0] for batch in dataset] == list(range(count))
    assert count > 40


# -- what is refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dataset of three batches."""
    writer = DatasetWriter(tmp_path / "data")
    for i in range(3):
        writer.add(fragment(2, start=10 * i))
    return writer.path


@given(st.data())
def test_no_damaged_byte_is_read(data: st.DataObject) -> None:
    """B5: it is refused, or a batch whose line does not end is not there; what is read is what was recorded."""
    with tempfile.TemporaryDirectory() as folder:
        writer = DatasetWriter(Path(folder) / "data")
        for i in range(3):
            writer.add(fragment(2, start=10 * i))
        file = data.draw(st.sampled_from(sorted(writer.path.iterdir())))
        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
        with suppress(DatasetError):
            found = list(Dataset(writer.path).verify())
            assert found == [fragment(2, start=10 * i) for i in range(len(found))]
            assert len(found) == 3 or file.name == "batches.jsonl"


def test_a_batch_is_asked_for_by_its_number(path: Path) -> None:
    dataset = Dataset(path)
    assert dataset[-1] == dataset[len(dataset) - 1] == dataset[np.int64(len(dataset) - 1)]
    with pytest.raises(IndexError, match=f"has {len(dataset)} batches and no batch {len(dataset)}"):
        dataset[len(dataset)]
    with pytest.raises(TypeError, match=r"got slice\(0, 2, None\); rows of any batches are dataset.take\(rows\)"):
        dataset[0:2]  # type: ignore[index]


def test_what_is_wrong_is_named(path: Path, tmp_path: Path) -> None:
    """B5: a file that is missing, short or changed, and what is no dataset at all."""

    def refusal(change: Any) -> str:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        copy = Path(shutil.copytree(path, tmp_path / "copy"))
        change(copy)
        with pytest.raises(DatasetError) as error:
            Dataset(copy).verify()
        return str(error.value).removeprefix(str(copy) + " ")

    def newer(copy: Path) -> None:
        (copy / "manifest.json").write_text('{"format": "flowrl dataset", "version": 2, "flowrl": "9.1"}')

    def changed(copy: Path) -> None:
        (copy / "manifest.json").write_text((copy / "manifest.json").read_text().replace('"<f4"', '"<i4"'))

    reward, index, manifest = "01-reward.bin", "batches.jsonl", "manifest.json"
    bad_line = json.dumps({"shape": [2, -2], "sha256": ""})

    def pipe(file: Path) -> None:
        file.unlink()
        os.mkfifo(file)

    def rewritten(**entries: Any) -> Callable[[Path], None]:
        def rewrite(copy: Path) -> None:
            made = {k: v for k, v in json.loads((copy / manifest).read_text()).items() if k != "sha256"} | entries
            (copy / manifest).write_text(json.dumps({**made, "sha256": checksum(made)}))

        return rewrite

    def shortened(copy: Path) -> None:
        DatasetWriter(copy).flush()
        (copy / index).write_bytes(b"".join((copy / index).read_bytes().splitlines(keepends=True)[:2]))

    for change, message in [
        (lambda copy: (copy / reward).unlink(), f"is damaged: {reward} cannot be read: "),
        (lambda copy: (copy / reward).write_bytes(b"1234"), f"is truncated: {reward} has 4 bytes of 96"),
        (lambda copy: (copy / reward).write_bytes(b"1" * 96), "is damaged: batch 0 of 3 is not what was recorded"),
        (lambda copy: (copy / index).unlink(), f"is damaged: its {index} cannot be read"),
        (lambda copy: (copy / index).write_text("[]\n"), f"is damaged: line 1 of its {index} is malformed"),
        (lambda copy: (copy / index).write_text(f"{bad_line}\n"), f"is damaged: line 1 of its {index} is malformed"),
        (lambda copy: (copy / manifest).write_text("{"), f"is damaged: its {manifest} cannot be read"),
        (lambda copy: (copy / manifest).write_text("{}"), f"is no dataset of flowrl: its {manifest} is that of"),
        (lambda copy: (copy / manifest).unlink(), f"has no {manifest}: a dataset is a folder that"),
        (lambda copy: shutil.rmtree(copy), "is not there: a dataset is a folder that"),
        (shortened, f"is damaged: its {index} has 2 batches, its {manifest} counts 3: some were lost"),
        (lambda copy: pipe(copy / manifest), f"is damaged: its {manifest} cannot be read: "),
        (lambda copy: pipe(copy / index), f"is damaged: its {index} cannot be read: "),
        (lambda copy: pipe(copy / reward), f"is truncated: {reward} has 0 bytes of 96"),
        (lambda copy: (copy / index).write_bytes(b"[" * 10**5), f"is damaged: line 1 of its {index} is malformed"),
        (rewritten(batches=-1), f"is damaged: its {manifest}: batches is -1, expected int of at least 0"),
        (rewritten(version=0), "is damaged: its format is 0, expected a whole number of at least 1"),
        (newer, "has format 2, written by flowrl 9.1; this is flowrl "),
        (changed, f"is damaged: its {manifest} is not what was written (its checksum differs)"),
    ]:
        assert refusal(change).startswith(message)
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="file is a file"):
        Dataset(tmp_path / "file")


@pytest.mark.parametrize("value", ["[]", "null", '{"columns": {"reward": 0}}'])
def test_a_malformed_layout_is_refused_although_its_checksum_is_right(path: Path, value: str) -> None:
    """B5: whoever wrote it may also have made the checksum."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    for layout in (json.loads(value), {**manifest["layout"], "axes": 3}, {**manifest["layout"], "tree": {"a": 0}}):
        made = {**manifest, "layout": layout}
        (path / "manifest.json").write_text(json.dumps({**made, "sha256": checksum(made)}))
        with pytest.raises(DatasetError, match=r"is damaged: its manifest.json is malformed"):
            Dataset(path)
    stored = manifest["layout"]["columns"][0]
    for change in ({"file": "../../secret.bin"}, {"dtype": "|O"}, {"shape": [-1]}, {"name": "\x1b[2J"}):
        layout = {**manifest["layout"], "columns": [{**stored, **change}, *manifest["layout"]["columns"][1:]]}
        made = {**manifest, "layout": layout}
        (path / "manifest.json").write_text(json.dumps({**made, "sha256": checksum(made)}))
        with pytest.raises(DatasetError, match=r"is damaged: its manifest.json is malformed"):
            Dataset(path)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (fragment(2).select(["obs"]), "the batch lacks 'reward'; expected columns: obs, reward"),
        (fragment(2).replace(more=np.ones((2, 2))), "the batch has extra 'more'"),
        (fragment(2).replace(reward=np.ones((2, 2), int)), r"'reward': the dataset has float64\[\] per row \[T, N\]"),
        (fragment(2).replace(obs={"x": np.ones((2, 2, 5), "f4"), "none": {}}), r"'obs.x': .* float32\[2, 2, 5\]"),
        (fragment(2).replace(obs={"y": np.ones((2, 2, 2), "f4"), "none": {}}), "column 'obs' of the batch lacks 'x'"),
        (fragment(2).replace(obs=np.ones((2, 2))), "column 'obs': .* nested, the other not"),
        (fragment(2).flat(), r"column 'obs.x': .* per row \[T, N\], got float32\[4, 2\]"),
        (fragment(2).replace(reward=np.array([[{}, 1], [2, 3]])), r"column 'reward': .* got object\[2, 2\]"),
    ],
)  # fmt: skip
def test_batches_unlike_the_first_are_refused_and_change_nothing(path: Path, batch: Batch, message: str) -> None:
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    writer = DatasetWriter(path)
    with pytest.raises(SchemaError, match=message):
        writer.add(batch)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    writer.add(fragment(1))
    assert len(Dataset(path)) == 4


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            Batch(reward=np.ones(2), info={"a": np.array([{}, None])}),
            r"column 'info.a' is object\[2\]: a dataset holds",
        ),
        (Batch(obs=np.ones((2, 2, 2))), "cannot tell rows from features"),
        (Batch(), "cannot tell rows from features"),
        (Batch(reward=np.ones(2))[0], "cannot tell rows from features"),
    ],
)
def test_what_has_no_columns_is_refused_and_leaves_nothing(tmp_path: Path, batch: Batch, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        DatasetWriter(tmp_path / "data").add(batch)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("largest", [96, 100, 127, 128, 250, 300])
def test_of_what_a_full_disk_refuses_nothing_is_left(path: Path, largest: int) -> None:
    """B5, F2: neither in a column nor in the index; with room again it goes on."""
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    writer = DatasetWriter(path)
    with full_disk(largest), pytest.raises(DatasetError, match=r"cannot be written: File too large; its 3 batches"):
        writer.add(fragment(2, start=30))
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    writer.add(fragment(2, start=30))
    assert list(Dataset(path).verify()) == [fragment(2, start=10 * i) for i in range(4)]


def test_a_disk_that_is_full_from_the_beginning(tmp_path: Path) -> None:
    with full_disk(10), pytest.raises(DatasetError, match="cannot be written"):
        DatasetWriter(tmp_path / "data").add(fragment(2))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    for taken in (tmp_path / "file", save_checkpoint(tmp_path / "checkpoint", {"x": 1})):
        if taken.name == "file":
            taken.write_text("mine")
        with pytest.raises(DatasetError, match=r"is there and is no dataset; choose another|is that of something else"):
            DatasetWriter(taken)
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    DatasetWriter(tmp_path / "empty").add(fragment(1))


def test_a_second_writer_is_noticed(path: Path) -> None:
    first, second = DatasetWriter(path), DatasetWriter(path)
    second.add(fragment(1, start=70))
    with pytest.raises(DatasetError, match="changed by somebody else since batch 3: a dataset has one writer"):
        first.add(fragment(1))
    second.rewind(1)
    with pytest.raises(DatasetError, match="changed by somebody else"):
        first.rewind(2)
    assert list(Dataset(path).verify()) == [fragment(2)]
    with pytest.raises(DatasetError, match="has 1 batches, 2 are expected in it: some were lost"):
        second.rewind(2)


def test_what_a_dying_machine_left_damaged_is_dropped(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B5: lines whose rows never reached the disk; batches before them stay."""
    reward = path / "01-reward.bin"
    reward.write_bytes(reward.read_bytes()[:64] + bytes(32))
    writer = DatasetWriter(path)
    assert "its last 1 batches are damaged and dropped" in caplog.text
    assert list(Dataset(path).verify()) == [fragment(2), fragment(2, start=10)]
    writer.add(fragment(2, start=20))
    assert len(Dataset(path).verify()) == 3

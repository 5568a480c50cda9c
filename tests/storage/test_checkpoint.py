"""Checkpoints on disk: whole or not at all, refused by name, and no code from a stranger's file."""

from __future__ import annotations

import io
import json
import operator
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import Plan, from_items
from flowrl.data import ReplayBuffer
from flowrl.envs.wrappers import unpack
from flowrl.errors import CheckpointError
from flowrl.storage import checkpoint
from flowrl.storage.checkpoint import Checkpoints, load_checkpoint, save_checkpoint, verify_checkpoint
from flowrl.storage.codec import Pickled
from flowrl.storage.files import checksum
from flowrl.testing import same
from tests.engine.engine_parts import Noise, Total
from tests.inspect.test_check_plans import PLANS

STATE = {
    "operators": {"a": {"n": 3, "window": (1, 2)}},
    "resources": {"ReplayBuffer": {"rows": np.arange(5), "k": {0: 1.5}}, "ReplayBuffer-2": {"rows": np.zeros(2)}},
    "ledger": {"counters": {"env_steps": 12}},
}


def test_a_state_comes_back_and_the_manifest_tells_of_it(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a" / "b", STATE, {"plan": "mine"})
    assert path == tmp_path / "a" / "b"
    assert same(load_checkpoint(path), STATE)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["about"]) == ("flowrl checkpoint", 2, {"plan": "mine"})
    assert sorted(manifest["parts"]) == ["ledger", "operators", "resources/ReplayBuffer", "resources/ReplayBuffer-2"]
    named = {file["name"] for part in manifest["parts"].values() for file in part.values()}
    assert named | {"manifest.json"} == {each.name for each in path.iterdir()}
    assert [each.name for each in path.parent.iterdir()] == ["b"], "nothing else is left"


def test_parts_are_read_alone(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a", {**STATE, "odd": object})
    got = load_checkpoint(path, parts=["ledger", "resources/ReplayBuffer-2"])
    assert same(got, {"ledger": STATE["ledger"], "resources": {"ReplayBuffer-2": {"rows": np.zeros(2)}}})
    with pytest.raises(CheckpointError, match="no part 'leger'; did you mean 'ledger'"):
        load_checkpoint(path, parts=["leger"])


def test_a_checkpoint_is_replaced_but_nothing_else_is(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a", STATE)
    save_checkpoint(path, {"x": 1})
    assert load_checkpoint(path) == {"x": 1}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(CheckpointError, match="is no checkpoint; choose another place"):
        save_checkpoint(tmp_path / "mine", STATE)
    (tmp_path / "mine" / "manifest.json").write_text('{"format": "flowrl dataset"}')
    with pytest.raises(CheckpointError, match="is no checkpoint; choose another place"):
        save_checkpoint(tmp_path / "mine", STATE)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"
    with pytest.raises(CheckpointError, match="lock cannot be saved"):
        save_checkpoint(path, {"x": __import__("threading").Lock()})
    assert load_checkpoint(path) == {"x": 1}, "what was there stays when the new one fails"
    assert {each.name for each in tmp_path.iterdir()} == {"a", "mine"}


def test_a_replacement_that_is_killed_between_its_two_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: the message says where the one before it is; the next save clears up."""
    path, real = save_checkpoint(tmp_path / "a", {"x": 1}), os.replace
    left = tmp_path / ".a.4711.old"
    real(path, left)
    with pytest.raises(
        CheckpointError, match=r"a is not there: .*; a save that was killed left .* as .*/\.a\.4711\.old"
    ):
        load_checkpoint(path)
    assert load_checkpoint(left) == {"x": 1}
    save_checkpoint(path, {"x": 2})
    assert list(tmp_path.iterdir()) == [path]

    def fails(*args: Any) -> Any:
        if str(args[0]).endswith(".tmp"):
            raise OSError("disk")
        return real(*args)

    monkeypatch.setattr(checkpoint, "swapped", lambda *_: False)
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk"):
        save_checkpoint(path, {"x": 3})
    assert load_checkpoint(path) == {"x": 2}
    monkeypatch.setattr(os, "replace", real)
    save_checkpoint(path, {"x": 3})
    assert load_checkpoint(path) == {"x": 3}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a replacement takes two renames")
def test_a_replacement_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: who looks meanwhile, or after a kill, finds the earlier checkpoint or the new one."""
    path = save_checkpoint(tmp_path / "a", {"x": 1})
    monkeypatch.setattr(os, "replace", None)  # would take the earlier one away first
    save_checkpoint(path, {"x": 2})
    assert load_checkpoint(path) == {"x": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(save_checkpoint(tmp_path / "a", STATE))
    assert save_checkpoint(tmp_path / "latest", {"x": 1}) == tmp_path / "latest"
    assert (tmp_path / "latest").readlink() == tmp_path / "a"
    assert load_checkpoint(tmp_path / "a") == load_checkpoint(tmp_path / "latest") == {"x": 1}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "latest"]


def test_a_place_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in (tmp_path / "file" / "a", tmp_path / "loop" / "a", tmp_path / ("x" * 300), Path("/proc/flowrl/a")):
        with pytest.raises(CheckpointError, match=f"^{place} cannot be written: "):
            save_checkpoint(place, STATE)


def test_the_names_of_parts_cannot_be_confused(tmp_path: Path) -> None:
    """Only resources may be named with a slash."""
    state = {"a": 1, "x" * 300: 4, "x" * 301: 5, "resources": {"b/c": 2, "b": 3}}
    assert load_checkpoint(save_checkpoint(tmp_path / "a", state)) == state
    for unfit in ("a/b", "resources/x", 7):
        with pytest.raises(CheckpointError, match=f"named by a string without '/', not {unfit!r}"):
            save_checkpoint(tmp_path / "b", {"a": 1, unfit: 2})
    assert not (tmp_path / "b").exists()


def test_the_manifest_says_what_the_caller_says(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a", {"x": 1}, {"by steps": {10: 1, 9: 2}, "none": float("nan")})
    assert verify_checkpoint(path)["about"]["by steps"] == {"10": 1, "9": 2}
    with pytest.raises(CheckpointError, match="cannot be written to the manifest"):
        save_checkpoint(tmp_path / "b", {"x": 1}, {"plan": object()})
    assert list(tmp_path.iterdir()) == [path]


def test_two_checkpoints_of_one_state_are_equal(tmp_path: Path) -> None:
    """D5: byte for byte, but for the time in the manifest."""
    a, b = (save_checkpoint(tmp_path / name, STATE) for name in "ab")
    files = sorted(each.name for each in a.iterdir())
    assert files == sorted(each.name for each in b.iterdir())
    for name in files:
        if name != "manifest.json":
            assert (a / name).read_bytes() == (b / name).read_bytes()
    assert verify_checkpoint(a)["parts"] == verify_checkpoint(b)["parts"]


# -- damage


def _files(path: Path) -> list[Path]:
    return sorted(path.iterdir())


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    """D3: what is loaded is what was saved, or an error that names the checkpoint."""
    whole = save_checkpoint(tmp_path / "whole", STATE)
    draw = np.random.default_rng(0)
    for file in _files(whole):
        content = file.read_bytes()
        for at in {0, len(content) - 1, *draw.integers(len(content), size=12).tolist()}:
            broken = Path(shutil.copytree(whole, tmp_path / "broken"))
            flipped = bytearray(content)
            flipped[at] ^= 1 << int(draw.integers(8))
            (broken / file.name).write_bytes(flipped)
            with pytest.raises(CheckpointError, match=r"broken (is damaged|is no checkpoint|has format)"):
                load_checkpoint(broken)
            (broken / file.name).write_bytes(content[:at])
            with pytest.raises(CheckpointError, match=r"broken is (damaged|truncated)"):
                load_checkpoint(broken)
            (broken / file.name).unlink()
            with pytest.raises(CheckpointError, match=r"broken is (damaged|no checkpoint)"):
                load_checkpoint(broken)
            shutil.rmtree(broken)


def _rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest with other content and the right checksum, as somebody may write it on purpose."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    change(manifest)
    manifest["sha256"] = checksum(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def _swap(path: Path, role: str, change: Callable[[bytes], bytes]) -> None:
    """Other content in a file of the buffer's part, with the right checksum."""

    def swap(manifest: dict[str, Any]) -> None:
        file = manifest["parts"]["resources/ReplayBuffer"][role]
        (path / file["name"]).write_bytes(change((path / file["name"]).read_bytes()))
        file.update(checkpoint._about_file(path / file["name"]))

    _rewrite(path, swap)


def _compressed(archive: bytes) -> bytes:
    """An archive of one array that takes a thousand times its own size."""
    made = io.BytesIO()
    np.savez_compressed(made, **{"0": np.zeros(10**5)})
    return made.getvalue()


def _pipe(path: Path) -> None:
    """A pipe in place of a file: whoever opens it waits for a writer."""
    path.unlink()
    os.mkfifo(path)


def test_foreign_and_newer_ones_are_told_apart(tmp_path: Path) -> None:
    """D7: nothing is believed that is not checked, and nothing is read that does not end."""
    cases: list[tuple[Callable[[Path], Any], str]] = [
        (lambda path: _rewrite(path, lambda m: m.update(version=3, flowrl="9.1")), "format 3, written by flowrl 9.1"),
        (lambda path: _rewrite(path, lambda m: m.update(format="zip")), "is no checkpoint of flowrl"),
        (lambda path: (path / "manifest.json").unlink(), "is no checkpoint of flowrl: it has no manifest.json"),
        (lambda path: (path / "manifest.json").write_text("[1]"), "is no checkpoint of flowrl"),
        (lambda path: _rewrite(path, lambda m: m.update(parts=[])), "malformed"),
        (lambda path: _rewrite(path, lambda m: m["parts"].update(x={})), "malformed"),
        (lambda path: _rewrite(path, lambda m: m["parts"]["ledger"]["skeleton"].update(size="1")), "malformed"),
        (lambda path: _rewrite(path, lambda m: m["parts"]["ledger"]["skeleton"].update(name="../a")), "../a is"),
        (lambda path: _rewrite(path, lambda m: m["parts"]["ledger"]["skeleton"].update(name="x" * 999)), "cannot be"),
        (lambda path: _rewrite(path, lambda m: m.update(about=[])), "malformed"),
        (lambda path: _rewrite(path, lambda m: m.update(version=0)), "its format is 0, expected a whole number"),
        (lambda path: _rewrite(path, lambda m: m.update(version=True)), "its format is True, expected a whole"),
        (lambda path: (path / "manifest.json").write_text("[" * 10**5), "cannot be read: it is nested too deeply"),
        (lambda path: (path / "manifest.json").write_text("[" * 200 + "]" * 200), "too deeply, over 100 levels"),
        (lambda path: os.truncate(path / "manifest.json", 10**12), "it has more than 67,108,864 bytes"),
        (lambda path: _pipe(path / "manifest.json"), "cannot be read: [Errno 22] it is no regular file"),
        (lambda path: _pipe(path / "00-operators.json"), "00-operators.json is missing"),
        (lambda path: _swap(path, "arrays", _compressed), "it has compressed members, which flowrl does not write"),
        (lambda path: _swap(path, "skeleton", lambda old: b"[" + old + b"," + old + b"]"), "0.npy of its arrays twice"),
        (lambda path: _swap(path, "skeleton", lambda _: b"[" * 150 + b"]" * 150), "nested too deeply, over 100 levels"),
        (lambda path: shutil.rmtree(path), "is not there"),
    ]  # fmt: skip
    for break_it, message in cases:
        path = save_checkpoint(tmp_path / "a", STATE)
        break_it(path)
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(path)
        assert str(path) in str(caught.value)
        assert message in str(caught.value)
        shutil.rmtree(path, ignore_errors=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="file is a file: a checkpoint is a folder"):
        load_checkpoint(tmp_path / "file")


# -- strangers

RAN: dict[str, bool] = {}


class Boom:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return operator.setitem, (RAN, "ran", True)


def test_nothing_is_unpickled_unless_it_is_said_to_be_trusted(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a", {"good": {"x": np.ones(2)}, "bad": {"x": Boom()}})
    with pytest.raises(CheckpointError, match=r"a, part bad: .*trusted=True"):
        load_checkpoint(path)
    assert same(load_checkpoint(path, parts=["good"]), {"good": {"x": np.ones(2)}})
    assert RAN == {}


def test_a_pickle_in_place_of_an_array_or_a_skeleton_does_not_run(tmp_path: Path) -> None:
    """A stranger's checksums are right, of course."""
    evil = pickle.dumps(Boom())
    objects = tmp_path / "objects.npz"
    np.savez(objects, **{"0": np.array([Boom()], object)}, allow_pickle=True)
    for role, content in (("arrays", evil), ("arrays", objects.read_bytes()), ("skeleton", evil)):
        path = save_checkpoint(tmp_path / "a", STATE)

        def plant(manifest: dict[str, Any], role: str = role, content: bytes = content, path: Path = path) -> None:
            file = manifest["parts"]["resources/ReplayBuffer"][role]
            (path / file["name"]).write_bytes(content)
            file.update(checkpoint._about_file(path / file["name"]))

        _rewrite(path, plant)
        for trusted in (False, True):
            with pytest.raises(CheckpointError, match="part resources/ReplayBuffer"):
                load_checkpoint(path, trusted=trusted)
        assert RAN == {}


def test_plain_bytes_are_never_taken_for_an_environment(tmp_path: Path) -> None:
    """They need no trust to be read, so they must not run."""
    evil = pickle.dumps(Boom())
    loaded = load_checkpoint(save_checkpoint(tmp_path / "a", {"envs": [evil]}))
    with pytest.raises(CheckpointError, match="environment 0 in the state is a bytes"):
        unpack(loaded["envs"][0], "environment 0")
    assert RAN == {}
    path = save_checkpoint(tmp_path / "b", {"envs": [Pickled(evil)]})
    with pytest.raises(CheckpointError, match="trusted"):
        load_checkpoint(path)
    assert type(load_checkpoint(path, trusted=True)["envs"][0]) is Pickled


# -- rotation


def test_the_newest_are_kept_in_order(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    assert checkpoints.latest() is None
    assert checkpoints.paths() == []
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        checkpoints.load()
    saved = [checkpoints.save({"n": n}, step=step) for n, step in enumerate((5, 5, 1_000_000_000, 20_000_000_000))]
    assert [path.name for path in saved] == [
        "step-000000005", "step-000000005-2", "step-1000000000", "step-20000000000"
    ]  # fmt: skip
    assert checkpoints.paths() == saved[2:]
    assert checkpoints.latest() == saved[-1]
    assert checkpoints.load() == {"n": 3}
    assert checkpoints.load(saved[2]) == {"n": 2}
    assert {each.name for each in (tmp_path / "c").iterdir()} == {path.name for path in saved[2:]}


def test_the_last_of_many_of_one_step_is_the_newest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for n in range(5):
        path = checkpoints.save({"n": n}, step=7)
        assert checkpoints.latest() == path
        assert checkpoints.load() == {"n": n}
    assert [path.name for path in checkpoints.paths()] == ["step-000000007-4", "step-000000007-5"]
    assert checkpoints.save({"n": 5}, step=6).exists(), "what was just written is never rotated away"


def test_rotation_leaves_what_is_no_checkpoint_alone(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "thesis.txt").write_text("x")
    (tmp_path / "step-000000002").write_text("x")
    checkpoints = Checkpoints(tmp_path, keep=1)
    saved = [checkpoints.save({"n": n}, step=n) for n in (1, 2, 3)]
    assert {each.name for each in tmp_path.iterdir()} == {"step-1", "step-000000002", saved[-1].name}


def test_after_damage_the_newest_whole_one_before_is_offered(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    a, b, c = (checkpoints.save({"n": n}, step=n) for n in (1, 2, 3))
    for path in (b, c):
        (path / "00-n.json").write_text("9")
    with pytest.raises(CheckpointError, match=f"^{c} is damaged: 00-n.json .*; the one before it, {a}, is whole$"):
        checkpoints.load()
    (a / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no earlier one is whole"):
        checkpoints.load()


def test_going_back_puts_later_ones_aside_until_the_next_is_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    a, b, c = (checkpoints.save({"n": n}, step=n) for n in (1, 2, 3))
    checkpoints.rewind(a)
    assert checkpoints.paths() == [a]
    assert len(list(tmp_path.iterdir())) == 3
    again = checkpoints.save({"n": 4}, step=2)
    assert again == b
    assert sorted(tmp_path.iterdir()) == [a, b]
    assert not c.exists()


class Killed(BaseException):
    """The end of the process, as far as the files are concerned."""


def _dies(
    write: Callable[[], Any], call: str, real: Callable[..., Any], after: int, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Does a write reach the call of a function of `os` that ends it? The dead clear nothing up."""
    left, remove = [after], shutil.rmtree

    def dies(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, dies)
        patched.setattr(shutil, "rmtree", lambda *args, **more: left[0] >= 0 and remove(*args, **more))
        try:
            write()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_ends_anywhere_leaves_what_was_there(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: no half-written checkpoint is ever found, and the next save clears up."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(STATE, step=1)
    real, count = getattr(os, call), 0
    while _dies(lambda: checkpoints.save(STATE, step=2), call, real, count, monkeypatch):
        assert checkpoints.paths()
        for path in checkpoints.paths():
            assert same(load_checkpoint(path), STATE)
        count += 1
    assert count >= (8 if call == "fsync" else 1)
    checkpoints.save(STATE, step=3)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]


# -- runs through the disk


@pytest.mark.parametrize("name", PLANS)
def test_every_primitive_continues_from_disk(name: str, tmp_path: Path) -> None:
    """D3, D5, F2: in another run, from the middle."""
    with PLANS[name]().run() as run:
        items = list(run)
        final = run.state_dict()
    for done in {0, len(items) // 2, len(items)}:
        with PLANS[name]().run() as run:
            list(islice(run, done))
            state = run.state_dict()
        loaded = load_checkpoint(save_checkpoint(tmp_path / "c", state))
        assert same(loaded, state)
        with PLANS[name]().run() as resumed:
            resumed.load_state_dict(loaded)
            assert same(list(resumed), items[done:])
            assert same(resumed.state_dict(), final)


def test_a_buffer_needs_no_trust(tmp_path: Path) -> None:
    """B5"""
    from flowrl.data import Batch

    buffer, other = ReplayBuffer(10, seed=3), ReplayBuffer(10)
    buffer.add(Batch(obs=np.arange(6, dtype=np.uint8), inner={"x": np.ones((6, 2))}))
    buffer.sample(2)
    saved = save_checkpoint(tmp_path / "c", {"resources": {"ReplayBuffer": buffer.state_dict()}})
    other.load_state_dict(load_checkpoint(saved)["resources"]["ReplayBuffer"])
    assert same(buffer.sample(5), other.sample(5))


# -- another plan


def test_what_maps_is_loaded_on_purpose(tmp_path: Path) -> None:
    """D3 for the operators that stayed; the rest is named."""

    def plan(*extra: Any) -> Plan:
        made = from_items(range(1, 8)).for_each(Total())
        for op in extra:
            made = made.for_each(op)
        return made.for_each(Noise())

    with plan(Total(scale=2)).run(seed=4) as run:
        assert len(list(islice(run, 3))) == 3
        state = load_checkpoint(save_checkpoint(tmp_path / "c", run.state_dict()))
    with plan().run(seed=4) as run:
        with pytest.raises(CheckpointError, match=r"does not have: Total-2\. What maps: Items, Total; load_state_dict"):
            run.load_state_dict(state)
        assert run.load_state_dict(state, partial=True) == ((), ("Total-2",))
        assert int(next(run)) == 1 + 2 + 3 + 4
        assert run.counters["draws"] == 4
        state = run.state_dict()
    inserted = plan().insert_before("Noise", Total(), name="mine")
    with inserted.run(seed=4) as run:
        left = run.load_state_dict(state, partial=True)
        assert (left.fresh, left.unused) == (("mine",), ())
        assert int(next(run)) == 10 + 5, "the sum before it went on, its own began"
        assert run.load_state_dict(run.state_dict(), partial=True) == ((), ())


def test_an_operator_that_keeps_other_things_begins_afresh() -> None:
    with from_items([1, 2]).batch(2).for_each(Total(), name="x").run() as run:
        state = run.state_dict()
    other = from_items([1, 2]).batch(2).combine(lambda _: [1]).batch(1, name="x")
    with other.run() as run:
        with pytest.raises(CheckpointError, match="x keeps open, in it total"):
            run.load_state_dict(state)
        assert run.load_state_dict(state, partial=True) == (("x",), ("x",))
        assert list(run) == [[1]]


def test_parts_on_another_number_of_workers_begin_afresh() -> None:
    from flowrl import from_workers
    from tests.engine.engine_parts import InlineWorkers, Numbers

    def plan(count: int) -> Plan:
        return from_workers(InlineWorkers(count), Numbers(2)).for_each(Total()).gather_sync().for_each(Total())

    with plan(2).run() as run:
        next(run), next(run)
        state = run.state_dict()
    with plan(3).run() as run:
        with pytest.raises(CheckpointError, match="gather_sync has 3 workers, and 2 in it"):
            run.load_state_dict(state)
        left = run.load_state_dict(state, partial=True)
        assert left.fresh == left.unused == ("Numbers", "Total", "gather_sync")
        assert len(list(run)) == 6

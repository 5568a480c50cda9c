"""What a stranger may write into a run directory: every command that reads it says what is wrong, in one line (E14)."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowrl.cli.main import cli
from flowrl.tools.ui.run_view import RunView
from tests.cli.parts import SMALL

#: What reads a run directory, by what it reads of it.
PROFILE = [("profile", "run"), ("simulate", "run", "--workers", 2)]
CURVES = [("plot", "run", "--out", "p.svg"), ("plot", "run", "--profile", "--out", "p.svg")]
POLICY = [("evaluate", "run", "--episodes", 1), ("export", "run", "--out", "x.pt2")]
ROWS = [("show", "run"), ("show", "run", "--account")]
AGAIN = [("rerun", "run"), ("verify", "run"), ("run", "--resume", "run", "--stop-steps", 151, "--quiet")]
FROM = [
    ("explain", "dqn", "--config", "run/config.json"),
    ("run", "dqn", "--from", "run", "--stop-steps", 9, "--out", "new", "--quiet"),
]
READERS: dict[str, list[tuple[Any, ...]]] = {
    "config.json": [*PROFILE, *CURVES, *POLICY, *ROWS, *AGAIN, *FROM],
    "run.json": [*PROFILE, *CURVES, *POLICY, *ROWS, *AGAIN, *FROM],
    "summary.json": [*ROWS, *AGAIN],
    "profile.json": PROFILE,
    "metrics.jsonl": [*CURVES, *ROWS, *AGAIN],
    "journal": AGAIN[:2],
    "policy.pt": [*POLICY, *AGAIN[2:], *FROM[1:]],
    "plan.py": [*POLICY, *AGAIN],
    "checkpoints": [*ROWS, *AGAIN[2:]],
}
#: In place of a value.
ODD = [None, True, -1, 0, 1.5, 1e308, float("nan"), 10**400, "", "x", "\x1b[31m\n", [], [None], {}, {"a": [1]}]
#: In place of a text.
TEXTS = [b"", b"[", b"\xff\xfe\x00", b"null", b"[]\n", b"5\n", b'"x"\n', b"{" * 9_000, b"[" * 200 + b"]" * 200]
TEXTS += [b"9" * 5_000, b'{"a": 1e999}\n', b'{"a": ' + b"9" * 400 + b"}\n"]


def command(*words: Any) -> Result:
    """The command, of which an error is no error of the test."""
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of DQN, with all that a run can write."""
    run = tmp_path_factory.mktemp("whole") / "run"
    more = ("eval_every=80", "eval_episodes=1", "eval_max_steps=30", "report_every=50", "buffer_size=500", "device=cpu")
    words = [word for setting in more for word in ("--set", setting)]
    done = command("run", "dqn", *SMALL, *words, "--journal", "--stop-steps", 150, "--out", run, "--quiet")
    assert done.exit_code == 0, done.output
    return run


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a JSON value has values, itself included; of a list the first two."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, each in inside:
        yield from leaves(each, (*path, key))


def put(value: Any, path: tuple[Any, ...], *odd: Any) -> Any:
    """The JSON value with another value, or none, at a place."""
    if not path:
        return odd[0] if odd else {}
    copy = value.copy()
    if len(path) > 1 or odd:
        copy[path[0]] = put(value[path[0]], path[1:], *odd)
    else:
        del copy[path[0]]
    return copy


def cases(whole: Path) -> Iterator[tuple[str, str, str, Callable[[Path], Any]]]:
    """What is in place of which file: its name in `READERS`, its path in the run, in words, and what makes it."""
    files = {name: name for name in READERS if name != "checkpoints"}
    newest = max((whole / "checkpoints").iterdir())
    files |= {each.relative_to(whole).as_posix(): "checkpoints" for each in newest.iterdir()}
    for file, name in files.items():
        for text in TEXTS:
            yield name, file, f"{text[:12]!r}", partial(Path.write_bytes, data=text)
        yield name, file, "a folder", Path.mkdir
        yield name, file, "nothing", lambda path: None
        yield name, file, "a pipe", os.mkfifo
        for there in ("config.json", "nothing", "/dev/zero"):
            yield name, file, f"a link to {there}", partial(Path.symlink_to, target=there)
        if file.endswith(".json") or file == "metrics.jsonl":
            *lines, last = (
                (whole / file).read_text().splitlines() if "metrics" in file else [(whole / file).read_text()]
            )
            value = json.loads(last)
            for path in leaves(value):
                for odd in [[each] for each in ODD] + [[]]:
                    text = "".join(f"{line}\n" for line in [*lines, json.dumps(put(value, path, *odd))])
                    yield name, file, f"{path}: {odd!s:.40}", partial(Path.write_text, data=text)


def told(done: Result) -> str:
    """What is wrong with how a command ended, "" for nothing."""
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{done.exception!r}"
    lines = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    fine = done.exit_code == 0 or len(lines) == 1 or (done.exit_code == 1 and not done.stderr)
    return "" if fine and "Traceback" not in done.output else f"{done.exit_code}: {done.output[-500:]}"


def look(run: Path) -> None:
    """What the page shows of a run."""
    view = RunView(run, "run")
    for shown in (view.line(), view.details(), view.curve("env_steps", "loss"), list(view.films())):
        json.dumps(shown, allow_nan=False)
    view.picture()


@pytest.mark.parametrize(
    "chosen",
    [slice(0, None, 1_500), *(pytest.param(slice(i, None, 40), marks=pytest.mark.exhaustive) for i in range(40))],
)
def test_no_file_of_a_run_ends_a_command_in_a_traceback(
    whole: Path, tmp_path: Path, chosen: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E14: any file replaced by something else, and any value in it."""
    monkeypatch.chdir(tmp_path)
    every = list(cases(whole))
    random.Random(0).shuffle(every)
    found = []
    for name, file, words, make in every[chosen]:
        for reader in (*random.Random(f"{file} {words}").sample(READERS[name], 1), None):
            for folder in ("run", "new"):
                shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, "run")
            odd = Path("run", file)
            odd.unlink()
            make(odd)
            if reader is None:
                look(Path("run"))
            elif wrong := told(command(*reader)):
                found.append(f"{reader} with {file} as {words}: {wrong}")
    assert not found, "\n".join(found)

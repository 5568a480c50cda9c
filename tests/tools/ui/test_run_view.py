"""What the page of `flowrl ui` shows of runs: read from their directories, as they grow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.errors import ConfigError
from flowrl.tools.ui import run_view
from flowrl.tools.ui.run_view import POINTS, Results, RunList, RunView, histogram, thinned
from tests.cli.parts import TINY, flowrl


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four results."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.py").write_text(TINY)
    assert flowrl("run", folder / "tiny.py", "--out", folder / "run", "--quiet").exit_code == 0
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def add(run: Path, *results: dict[str, Any] | str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(each if isinstance(each, str) else json.dumps(each) + "\n" for each in results)


def test_a_finished_run_is_told_in_a_line(run: Path) -> None:
    line = RunView(run, "run").line()
    expected = {"plan": "tiny", "seed": "0", "steps": 40, "episode_return": 4, "results": 4, "state": "done", "why": ""}
    assert {key: line[key] for key in expected} == expected


def test_its_operators_are_those_of_the_drawn_plan(run: Path) -> None:
    details = RunView(run, "run").details()
    operators = details["profile"]["operators"]
    assert details["problems"] == []
    assert operators.keys() == {"Items", "keep"}
    assert set(operators["keep"]) == {"busy", "starved", "blocked", "rate", "state", "fill", "store"}
    picture = RunView(run, "run").picture().decode()
    assert all(f'data-path="{path}"' in picture for path in operators)


def test_only_new_lines_are_read_and_none_that_is_being_written(run: Path) -> None:
    results = Results(run / "metrics.jsonl")
    results.read_on()
    add(run, {"env_steps": 50, "episode_return": 5.0}, '{"env_steps": 60, "episo')
    results.read_on()
    assert results.count == 5
    add(run, 'de_return": 6.0}\n')
    results.read_on()
    assert results.count == 6
    assert results.curve("env_steps", "episode_return").tolist() == [[10, 20, 30, 40, 50, 60], [1, 2, 3, 4, 5, 6]]


def test_a_file_of_fewer_results_is_read_anew(run: Path) -> None:
    """As a resumed run writes it, which goes back to its checkpoint."""
    results = Results(run / "metrics.jsonl")
    results.read_on()
    shorter = run / "shorter"
    shorter.write_text('{"env_steps": 10, "loss": 7.0}\n')
    os.replace(shorter, run / "metrics.jsonl")
    results.read_on()
    assert (results.count, list(results.columns)) == (1, ["env_steps", "loss"])


def test_a_curve_takes_the_results_that_have_both(run: Path) -> None:
    """`loss` is there from the second result on, and `unknown` never."""
    view = RunView(run, "run")
    assert view.curve("env_steps", "loss") == [[20, 30, 40], [1 / 2, 1 / 3, 1 / 4]]
    assert view.curve("env_steps", "unknown") == [[], []]


def test_what_is_no_number_is_no_point_and_what_is_no_result_is_told(run: Path) -> None:
    """D7: NaN and infinities, which Python reads, are no JSON that a page could."""
    add(run, '{"episode_return": NaN}\n', '{"episode_return": true}\n', "[1]\n", "{\n", '{"episode_return": 1e999}\n')
    details = RunView(run, "run").details()
    assert details["newest"]["episode_return"] == 4
    assert details["problems"] == ["metrics.jsonl, line 8 is no result"]
    json.dumps(details, allow_nan=False)


def test_ten_thousand_results_become_few_points_with_all_extremes() -> None:
    values = np.sin(np.arange(10_000) / 50)
    values[1234], values[7777] = 99, -99
    few = thinned(np.stack([np.arange(10_000.0), values]))
    assert few.shape[1] <= POINTS
    assert (few[1].max(), few[1].min()) == (99, -99)
    assert (np.diff(few[0]) > 0).all()


@pytest.mark.parametrize("values", [[3], [0, 5_000], [0.25, 0.5], [-2, -2, 7]])
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    bars = histogram(values)
    assert sum(bars["counts"]) == len(values)
    assert len(bars["counts"]) <= run_view.BARS
    assert len(bars["edges"]) == len(bars["counts"]) + 1


def test_lags_are_counted(run: Path) -> None:
    add(run, {"policy_lag_max": 2}, {"policy_lag_max": 2}, {"policy_lag_max": 0})
    assert RunView(run, "run").details()["lags"] == {"policy_lag_max": {"edges": [0, 1, 2, 3], "counts": [1, 0, 2]}}


def test_a_run_without_an_end_goes_on_or_was_killed(run: Path) -> None:
    """E6: as its process is there or not; of another machine nobody knows."""
    (run / "summary.json").unlink()
    assert RunView(run, "run").line()["state"] == "running", "this process"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    profile = json.loads((run / "profile.json").read_text())
    for host, state in ((profile["ledger"]["accounts"][0]["where"][0], "killed"), ("elsewhere", "running")):
        profile["ledger"]["accounts"][0]["where"] = [host, gone.pid, 1]
        (run / "profile.json").write_text(json.dumps(profile))
        assert RunView(run, "run").line()["state"] == state


def test_a_failed_run_says_why(run: Path) -> None:
    (run / "summary.json").write_text('{"outcome": "failed", "error": "ValueError: no\\nin operator keep"}')
    line = RunView(run, "run").line()
    assert (line["state"], line["why"]) == ("failed", "ValueError: no")


def test_damaged_files_are_told(run: Path) -> None:
    """D7."""
    for name in ("run.json", "config.json", "summary.json"):
        (run / name).write_text("[")
    (run / "profile.json").write_text('{"layout": 1}')
    details = RunView(run, "run").details()
    assert details["profile"] is None
    assert details["problems"] == ["profile.json: it is no profile: KeyError: 'before'"]


def test_films_are_found_and_links_to_what_is_elsewhere_are_not(run: Path, tmp_path: Path) -> None:
    """E7."""
    for name in ("films/step-10/a.mp4", "b.mp4", "checkpoints/c.mp4", "d.txt"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b"film")
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (run / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (run / "folder").symlink_to(tmp_path)
    assert [*RunView(run, "run").films()] == ["b.mp4", "films/step-10/a.mp4"]


def test_runs_that_begin_later_are_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "SEARCH_SECONDS", 0.0)
    runs = RunList([run.parent])
    first = runs.current()[str(run)]
    shutil.copytree(run, run.parent / "seed-10")
    shutil.copytree(run, run.parent / "seed-9")
    assert [Path(name).name for name in runs.current()] == ["run", "seed-9", "seed-10"]
    assert runs.current()[str(run)] is first, "what was read is kept"
    shutil.rmtree(run.parent)
    assert runs.current() == {}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing", "missing is not there; expected a run directory"),
        ("empty", "empty is no run directory and holds none: there is no metrics.jsonl"),
    ],
)
def test_what_is_no_run_is_refused(path: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=words):
        RunList([Path(path)])
    done = flowrl("ui", path)
    assert (done.exit_code, done.stderr) == (2, f"Error: {words}\n")

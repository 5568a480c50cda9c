"""Learning curves: which runs are one curve, what it is of, and pictures that are whole."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import attrs
import matplotlib.image
import numpy as np
import pytest

from flowrl.errors import ConfigError
from flowrl.tools.curves import RunRecord, curves, find_runs
from flowrl.tools.plot import draw
from flowrl.tools.statistics import interquartile_mean, interval
from tests.cli.parts import TINY, flowrl

SVG = "{http://www.w3.org/2000/svg}"


def write_run(folder: Path, results: list[dict], plan: str = "tiny", **config: object) -> Path:
    """A run directory, as much of it as a plot needs."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"plan": plan, "path": f"{plan}.py"}))
    (folder / "config.json").write_text(json.dumps({"env": "CartPole-v1", "seed": 0, "rate": 1.0, **config}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    return folder


def line(*points: tuple[float, float | None]) -> list[dict]:
    return [{"env_steps": x, "episode_return": y} for x, y in points]


def drawn(*runs: Path) -> list:
    return curves([RunRecord.read(run) for run in runs], "env_steps", "episode_return")


def texts_in_legend(shown: list) -> list[str]:
    return [text.get_text() for text in draw(shown, "env_steps", "episode_return").legends[0].get_texts()]


# -- curves


def test_seeds_are_one_curve_and_other_settings_another(tmp_path: Path) -> None:
    """Labels say in what they differ, and settings that change nothing of the learning are no difference."""
    same = [write_run(tmp_path / f"a{seed}", line((1, 1), (2, 2)), seed=seed, eval_every=seed) for seed in range(3)]
    other = write_run(tmp_path / "b", line((1, 1)), rate=2.0)
    env = write_run(tmp_path / "c", line((1, 1)), env="Acrobot-v1")
    plan = write_run(tmp_path / "d", line((1, 1)), plan="dqn")
    before_a_setting = write_run(tmp_path / "e", line((1, 1), (2, 2)), new=None)
    found = drawn(*same, other, env, plan, before_a_setting)
    assert [(curve.label, curve.statistic) for curve in found] == [
        ("tiny CartPole-v1, rate=1.0", "IQM of 4 runs"),
        ("tiny CartPole-v1, rate=2.0", "1 run"),
        ("tiny Acrobot-v1", "1 run"),
        ("dqn CartPole-v1", "1 run"),
    ]


def test_the_middle_is_the_interquartile_mean_where_all_runs_are(tmp_path: Path) -> None:
    """S4: interpolated between results of different steps, never beyond the shortest run."""
    slopes = [1.0, 2.0, 3.0, 4.0, 50.0]
    runs = [
        write_run(tmp_path / str(i), line(*((x, slope * x) for x in range(10 * i, 100 + 50 * i, 7 + i))), seed=i)
        for i, slope in enumerate(slopes)
    ]
    (curve,) = drawn(*runs)
    assert curve.statistic == "IQM of 5 runs"
    assert curve.grid[0] == 40
    assert curve.grid[-1] == min(run[0, -1] for run in curve.lines) <= 100
    assert np.allclose(curve.middle, interquartile_mean(slopes) * curve.grid)
    low, high = interval([slopes])
    assert np.allclose(curve.low, low * curve.grid)
    assert np.allclose(curve.high, high * curve.grid)


def test_results_without_a_value_are_gaps(tmp_path: Path) -> None:
    (curve,) = drawn(write_run(tmp_path / "a", line((1, None), (2, 5), (3, None), (4, 9))))
    assert curve.lines[0].tolist() == [[2, 4], [5, 9]]
    assert curve.middle is None


def test_runs_that_share_no_x_have_no_middle(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", line((1, 1), (2, 1))), write_run(tmp_path / "b", line((3, 1), (4, 1)))
    (curve,) = drawn(first, second)
    assert (len(curve.lines), curve.middle) == (2, None)


def test_runs_are_found_in_folders_and_each_once(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "seeds" / f"seed-{i}", []) for i in range(3)]
    assert find_runs([tmp_path / "seeds", runs[1], tmp_path]) == runs


def test_a_last_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", line((1, 1)))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 2, "epi')
    assert len(RunRecord.read(run).results) == 1
    (run / "metrics.jsonl").write_text('{"env_steps": 1}\nnonsense\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl, line 2 is malformed"):
        RunRecord.read(run)


# -- pictures


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five seeds of one setting, two of another, really run."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.py").write_text(TINY)
    for rate, seeds in (("1", 5), ("2", 2)):
        for seed in range(seeds):
            out = folder / f"rate-{rate}" / f"seed-{seed}"
            done = flowrl("run", folder / "tiny.py", "--seed", seed, "--set", f"rate={rate}", "--out", out, "--quiet")
            assert done.exit_code == 0, done.output
    return folder


def ids_of(file: Path) -> list[str]:
    names = [element.get("id", "") for element in ElementTree.parse(file).iter(f"{SVG}g")]
    return [name for name in names if name.startswith("curve-")]


def texts_of(file: Path) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.parse(file).iter(f"{SVG}text")]


def nothing_cut_off(png: Path, height: int = 750) -> bool:
    picture = matplotlib.image.imread(png)
    assert picture.shape == (height, 1200, 4)
    edge = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
    return bool((edge == 1).all())


def test_a_png_and_an_svg_are_written_into_the_first_folder(runs: Path) -> None:
    done = flowrl("plot", runs / "rate-1", runs / "rate-2")
    assert done.exit_code == 0, done.output
    png, svg = runs / "rate-1" / "curve.png", runs / "rate-1" / "curve.svg"
    assert done.stdout.splitlines() == [str(png), str(svg)]
    assert nothing_cut_off(png)
    assert sorted(ids_of(svg)) == sorted(
        [f"curve-0-run-{i}" for i in range(5)]
        + [f"curve-1-run-{i}" for i in range(2)]
        + [f"curve-{i}-{part}" for i in (0, 1) for part in ("band", "middle")]
    )
    texts = texts_of(svg)
    assert {
        "episode_return over env_steps",
        "environment steps",
        "return of training episodes (mean of the last 100)",
        "tiny CartPole-v1, rate=1.0: IQM of 5 runs, 95 % interval",
        "tiny CartPole-v1, rate=2.0: mean of 2 runs, 95 % interval",
    } <= set(texts)


def test_a_long_name_of_a_run_takes_several_lines(tmp_path: Path) -> None:
    run, out = tmp_path / "a", tmp_path / "x.png"
    write_run(run, line((1, 0), (2, 5)), env_args={f"argument_{number}": "word " * 4 for number in range(4)})
    assert flowrl("plot", run, "--out", out).exit_code == 0
    assert nothing_cut_off(out)
    assert "\n" in texts_in_legend(drawn(run))[0]


def test_an_interval_stays_in_one_line_of_a_legend(tmp_path: Path) -> None:
    (curve,) = drawn(*(write_run(tmp_path / f"{seed}", line((1, 0), (2, 5)), seed=seed) for seed in range(4)))
    texts = texts_in_legend([attrs.evolve(curve, label="x" * length) for length in range(50, 100)])
    assert len({text.count("\n") for text in texts}) > 1
    assert all(text.count("95 % interval") == 1 for text in texts)


def test_many_curves_have_a_line_each_in_a_legend_below_the_axes(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"{rate}", line((1, 0), (2, rate)), rate=rate) for rate in range(20)]
    out = tmp_path / "x.png"
    assert flowrl("plot", *runs, "--out", out).exit_code == 0
    assert nothing_cut_off(out, height=750 + 14 * 33)
    (axes,) = draw(drawn(*runs), "env_steps", "episode_return").axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 20, "each looks otherwise"


def test_any_keys_and_one_file(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "picture.svg"
    done = flowrl("plot", runs / "rate-1" / "seed-0", "--x", "episode_return", "--y", "loss", "--out", out)
    assert done.exit_code == 0, done.output
    assert ids_of(out) == ["curve-0-run-0"]
    assert {"loss", "tiny CartPole-v1: loss", "tiny CartPole-v1: 1 run"} <= set(texts_of(out))
    first = out.read_bytes()
    flowrl("plot", runs / "rate-1" / "seed-0", "--x", "episode_return", "--y", "loss", "--out", out)
    assert out.read_bytes() == first, "the same runs give the same file"


def test_a_run_with_nothing_to_show_is_left_out_of_a_folder_and_refused_by_name(tmp_path: Path) -> None:
    write_run(tmp_path / "seeds" / "a", line((1, 1), (2, 2)))
    empty = write_run(tmp_path / "seeds" / "b", [], seed=1)
    done = flowrl("plot", tmp_path / "seeds", "--out", tmp_path / "x.svg")
    assert done.exit_code == 0, done.output
    assert done.stderr == f"left out: {empty} has nothing to show yet\n"
    assert ids_of(tmp_path / "x.svg") == ["curve-0-run-0"]
    (empty / "run.json").unlink()
    done = flowrl("plot", tmp_path / "seeds", "--out", tmp_path / "x.svg")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith(f"left out: {empty} does not say which plan it ran")
    assert ids_of(tmp_path / "x.svg") == ["curve-0-run-0"]
    assert flowrl("plot", empty).exit_code == 2
    write_run(tmp_path / "other", [])
    (empty / "run.json").write_text((tmp_path / "other" / "run.json").read_text())
    done = flowrl("plot", tmp_path / "seeds" / "a", empty)
    assert done.exit_code == 2
    assert f"{empty} has no result with 'env_steps' and 'episode_return'" in done.stderr


def test_what_cannot_be_drawn_is_bad_input(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs / "rate-1" / "seed-0"
    empty = write_run(tmp_path / "empty", [])
    (tmp_path / "file").write_text("x")
    (tmp_path / "nothing").mkdir()
    for arguments, message in [
        ((run, "--y", "los"), "no number 'los' in the results; did you mean 'loss'?"),
        ((run, "--x", "shape"), "no number 'shape' in the results"),
        ((empty,), "no number 'env_steps' in the results; there are none"),
        ((tmp_path / "nothing",), "holds none: there is no metrics.jsonl"),
        ((tmp_path / "nowhere",), "nowhere is not there; expected a run directory"),
        ((tmp_path / "file",), "file' is a file"),
        ((run, "--out", "x.gif"), "x.gif: expected a file that ends with .png or .svg"),
        ((run, "--out", tmp_path / "file" / "x.png"), "cannot write"),
    ]:
        done = flowrl("plot", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = flowrl("plot", run)
    assert done.exit_code == 2
    assert "pip install matplotlib" in done.stderr


def test_a_run_with_one_value_is_drawn_as_a_point(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "a", line((1, None), (2, 5))), tmp_path / "x.svg"
    assert flowrl("plot", run, "--out", out).exit_code == 0
    (group,) = [each for each in ElementTree.parse(out).iter(f"{SVG}g") if each.get("id") == "curve-0-run-0"]
    assert len(list(group.iter(f"{SVG}use"))) == 1


# -- profiles and tables


def seeds_of(folder: Path, returns: list[float], **of: object) -> None:
    """Runs that ended with these returns, after a first one of 0."""
    for seed, last in enumerate(returns):
        write_run(folder / f"seed-{seed}", line((1, 0.0), (2, last)), seed=seed, **of)


def cells(text: str) -> list[list[list[str]]]:
    """The rows of each table that was printed, without headers."""
    tables = [table.splitlines()[2:] for table in text.split("\n\n") if table.startswith("|")]
    return [[[cell.strip() for cell in row.split("|")[1:-1]] for row in table] for table in tables]


def test_algorithms_are_compared_over_environments_on_one_scale(tmp_path: Path) -> None:
    """S4, S7: settings of each environment are one algorithm, those that differ in one are two."""
    seeds_of(tmp_path / "a", [20.0, 100.0, 110.0, 120.0, 500.0], plan="dqn", rate=2.0)
    seeds_of(tmp_path / "b", [-200.0, -150.0], plan="dqn", env="Pendulum-v1", rate=3.0)
    seeds_of(tmp_path / "c", [100.0, 90.0], plan="ppo", rate=1.0)
    seeds_of(tmp_path / "d", [0.0, 1.0], plan="ppo", rate=2.0)
    out = tmp_path / "x.svg"
    done = flowrl("plot", tmp_path, "--profile", "--out", out, *("--scale", "CartPole-v1=0,100"), *SCALE)
    assert done.exit_code == 0, done.output
    by_task, over_tasks, improvements = cells(done.stdout)
    assert by_task[0] == ["CartPole-v1", "dqn", "5", "110.0", by_task[0][4], "20.0 .. 500.0 (34 %)"]
    low, high = interval([[20.0, 100.0, 110.0, 120.0, 500.0]])
    assert by_task[0][4] == f"{low:.1f} .. {high:.1f}"
    assert [row[:3] for row in by_task[1:]] == [
        ["Pendulum-v1", "dqn", "2"],
        ["CartPole-v1", "ppo, rate=1.0", "2"],
        ["CartPole-v1", "ppo, rate=2.0", "2"],
    ]
    scaled = [0.2, 1.0, 1.1, 1.2, 5.0, 0.8, 0.85]
    assert over_tasks[0][:4] == ["dqn", "2", "7", f"{interquartile_mean(scaled):.3f}"]
    assert [row[:4] for row in improvements] == [
        ["dqn", "ppo, rate=1.0", "1", "0.750"],  # of ten pairs seven are won, one is drawn
        ["dqn", "ppo, rate=2.0", "1", "1.000"],
        ["ppo, rate=1.0", "ppo, rate=2.0", "1", "1.000"],
    ]
    assert {"dqn: 7 runs in 2 tasks, 95 % interval", "share of runs with a higher score"} <= set(texts_of(out))
    names = {element.get("id") for element in ElementTree.parse(out).iter(f"{SVG}g")}
    assert {f"profile-{i}{part}" for i in range(3) for part in ("", "-band")} <= names


SCALE = ("--scale", "Pendulum-v1=-1000,0")


def test_other_arguments_of_an_environment_are_another_task_of_the_algorithm(tmp_path: Path) -> None:
    seeds_of(tmp_path / "a", [1.0, 3.0], env_args={"game": "asterix", "bits": 2})
    seeds_of(tmp_path / "b", [10.0], env_args={"game": "breakout"})
    scales = ("--scale", "CartPole-v1[bits=2, game=asterix]=0,4", "--scale", "CartPole-v1[game=breakout]=0,20")
    done = flowrl("plot", tmp_path, "--profile", *scales)
    assert done.exit_code == 0, done.output
    by_task, over_tasks = cells(done.stdout)
    assert [row[:3] for row in by_task] == [
        ["CartPole-v1[bits=2, game=asterix]", "tiny", "2"],
        ["CartPole-v1[game=breakout]", "tiny", "1"],
    ]
    assert [row[:4] for row in over_tasks] == [["tiny", "2", "3", "0.500"]]


def test_a_profile_needs_scores_that_can_be_compared(tmp_path: Path) -> None:
    seeds_of(tmp_path / "a", [1.0, 2.0])
    seeds_of(tmp_path / "b", [1.0], env="Pendulum-v1")
    for arguments, message in [
        ((tmp_path, "--profile"), "2 environments need one scale: give --scale CartPole-v1=LOW,HIGH"),
        ((tmp_path, "--profile", *SCALE), "give --scale CartPole-v1=LOW,HIGH"),
        ((tmp_path / "a", "--profile", "--scale", "CartPole=0,1"), "did you mean 'CartPole-v1'?"),
        ((tmp_path / "a", "--profile", "--scale", "CartPole-v1=1"), "expected ENV=LOW,HIGH, two different numbers"),
        ((tmp_path / "a", "--profile", "--y", "episode_retur"), "did you mean 'episode_return'?"),
        ((tmp_path / "a", "--profile", "--x", "seconds"), "--x is of curves"),
        ((tmp_path / "a", *SCALE), "--scale is of --profile"),
    ]:
        done = flowrl("plot", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
    done = flowrl("plot", tmp_path / "a", "--profile")
    assert done.exit_code == 0, done.output
    assert [row[:4] for row in cells(done.stdout)[0]] == [["CartPole-v1", "tiny", "2", "1.500"]]
    assert (tmp_path / "a" / "profile.png").exists(), "of one environment scores are as they are"


def test_less_is_more_on_a_scale_that_falls(tmp_path: Path) -> None:
    """S4: an algorithm with the higher mean on the scale is the one that improves on the other."""
    seeds_of(tmp_path / "a", [1.0, 2.0], plan="cheap")
    seeds_of(tmp_path / "b", [5.0, 6.0], plan="dear")
    done = flowrl("plot", tmp_path, "--profile", "--scale", "CartPole-v1=10,0")
    assert done.exit_code == 0, done.output
    _, over_tasks, improvements = cells(done.stdout)
    assert [row[3] for row in over_tasks] == ["0.850", "0.450"]
    assert improvements[0][:4] == ["cheap", "dear", "1", "1.000"]

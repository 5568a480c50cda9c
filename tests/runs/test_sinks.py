"""Sinks: the same results as in metrics.jsonl, read back by the tools that they are written for."""

from __future__ import annotations

import csv
import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flowrl.errors import ConfigError
from flowrl.operators.metrics import CLOCK_KEYS
from flowrl.runs.sinks import check_sinks, open_sinks, sinks_in
from tests.cli.parts import TINY, flowrl, metrics, results_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY)
    return tmp_path


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def scalars_of(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Every tag with its steps and values, as TensorBoard shows them."""
    found = EventAccumulator(str(run))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_csv_has_a_column_for_every_key_also_a_late_one(folder: Path) -> None:
    assert flowrl("run", "tiny.py", "--sink", "csv", "--out", "run", "--quiet").exit_code == 0
    rows = rows_of(folder / "run")
    assert list(rows[0]) == ["env_steps", "episode_return", "unknown", "loss", "shape"]
    assert rows[0] == {"env_steps": "10", "episode_return": "1.0", "unknown": "", "loss": "", "shape": ""}
    assert rows[2] == {
        "env_steps": "30", "episode_return": "3.0", "unknown": "", "loss": str(1 / 3), "shape": "[3, 2]"
    }  # fmt: skip
    assert len(rows) == 4


def test_tensorboard_has_every_number_over_env_steps(folder: Path) -> None:
    assert flowrl("run", "tiny.py", "--sink", "tensorboard", "--out", "run", "--quiet").exit_code == 0
    assert scalars_of(folder / "run") == {
        "env_steps": [(10, 10), (20, 20), (30, 30), (40, 40)],
        "episode_return": [(10, 1), (20, 2), (30, 3), (40, 4)],
        "loss": [(20, 0.5), (30, pytest.approx(1 / 3)), (40, 0.25)],
    }


def test_metrics_jsonl_stays_and_sinks_change_no_result(folder: Path) -> None:
    """S3: switching logging on or off changes nothing."""
    small = ("--set", "hidden=[8]", "--set", "learning_starts=100", "--set", "replay_ratio=4", "--quiet")
    arguments = ("run", "dqn", *small, "--stop-steps", 300, "--set", "report_every=100", "--set", "eval_episodes=2")
    assert flowrl(*arguments, "--out", "without").exit_code == 0
    assert flowrl(*arguments, "--out", "with", "--sink", "csv", "--sink", "tensorboard").exit_code == 0
    without, with_sinks = (metrics(folder / name) for name in ("without", "with"))
    assert without == with_sinks
    rows = [{k: float(v) for k, v in row.items() if k not in CLOCK_KEYS and v} for row in rows_of(folder / "with")]
    assert rows == [{k: v for k, v in result.items() if v is not None} for result in with_sinks]
    steps = [step for step, _ in scalars_of(folder / "with")["eval_return"]]
    assert steps == [result["env_steps"] for result in with_sinks if "eval_return" in result]


def test_each_result_is_on_disk_when_it_is_recorded(tmp_path: Path) -> None:
    """Of a run that is killed, nothing is lost."""
    sinks = open_sinks(["csv", "tensorboard", "csv"], tmp_path)
    assert len(sinks) == 2, "each sink once"
    assert sinks_in(tmp_path) == ["csv", "tensorboard"]
    for n in (1, 2):
        for sink in sinks:
            sink.record({"env_steps": n, "x": n})
        assert len(rows_of(tmp_path)) == len(scalars_of(tmp_path)["x"]) == n
    for sink in sinks:
        sink.close()


def result(step: int, value: float, **more: Any) -> dict[str, Any]:
    return {"env_steps": step, "x": value, **more}


def test_a_run_that_goes_on_cuts_them_back_to_the_results_it_keeps(tmp_path: Path) -> None:
    """Also where two results have the same env steps, of which only the first is kept."""
    first = [result(10, 1.0), result(20, 2.0), result(20, 3.0, late=1), result(30, 4.0)]
    kept = first[:2]
    for open_with, then in [((), first), (kept, [result(30, 5.0), result(40, 6.0)])]:
        sinks = open_sinks(["csv", "tensorboard"], tmp_path, open_with)
        for each in then:
            for sink in sinks:
                sink.record(each)
        for sink in sinks:
            sink.close()
    assert [(row["env_steps"], row["x"]) for row in rows_of(tmp_path)] == [
        ("10", "1.0"), ("20", "2.0"), ("30", "5.0"), ("40", "6.0")
    ]  # fmt: skip
    assert "late" not in rows_of(tmp_path)[0]
    assert scalars_of(tmp_path)["x"] == [(10, 1), (20, 2), (30, 5), (40, 6)]


def of_wandb(folder: Path) -> list[dict[str, Any]]:
    """The results in the only file of a run, a header and then a record after the other."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # as when this process ends: its own process has then written everything
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, found = file.read_bytes(), 7, []
    while at + 7 <= len(data):
        _, length, whole = struct.unpack_from("<IHB", data, at)
        assert whole == 1, "a longer record has several parts"
        record, at = Record.FromString(data[at + 7 : at + 7 + length]), at + 7 + length
        if record.WhichOneof("record_type") == "history":
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            found.append({key: value for key, value in items.items() if key[0] != "_"})
    return found


@pytest.mark.needs("wandb")
def test_weights_and_biases_has_the_results_offline_also_of_a_run_that_goes_on(folder: Path) -> None:
    settings = ("--set", "n=4", "--set", "checkpoint_every=20", "--sink", "wandb", "--out", "run", "--quiet")
    assert flowrl("run", "tiny.py", *settings).exit_code == 0
    expected = [
        {key: value for key, value in each.items() if isinstance(value, (int, float))}
        for each in results_of(folder / "run")
    ]
    assert of_wandb(folder / "run") == expected
    first = min((folder / "run" / "checkpoints").iterdir())
    assert sinks_in(folder / "run") == ["wandb"]
    identity = next((folder / "run").glob("wandb/offline-run-*")).name.rpartition("-")[2]
    assert flowrl("run", "--resume", first, "--quiet").exit_code == 0
    assert of_wandb(folder / "run") == expected
    assert next((folder / "run").glob("wandb/offline-run-*")).name.endswith(f"-{identity}")


@pytest.mark.needs("mlflow")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own
def test_mlflow_has_settings_and_results_in_a_file_also_of_a_run_that_goes_on(folder: Path) -> None:
    from mlflow import MlflowClient

    settings = ("--set", "n=4", "--set", "checkpoint_every=20", "--sink", "mlflow", "--out", "run", "--quiet")
    assert flowrl("run", "tiny.py", *settings).exit_code == 0
    assert flowrl("run", "--resume", min((folder / "run" / "checkpoints").iterdir()), "--quiet").exit_code == 0
    client = MlflowClient(f"sqlite:///{folder / 'run' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("flowrl")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert {"n": "4", "rate": "1.0", "env": "CartPole-v1"}.items() <= run.data.params.items()
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(20, 0.5), (30, pytest.approx(1 / 3)), (40, 0.25)]


def test_a_sink_may_begin_with_a_run_that_goes_on(tmp_path: Path) -> None:
    kept = [result(10, 1.0), result(20, 2.0)]
    assert sinks_in(tmp_path) == []
    for sink in open_sinks(["csv", "tensorboard"], tmp_path, kept):
        sink.record(result(30, 3.0))
        sink.close()
    assert [row["x"] for row in rows_of(tmp_path)] == ["1.0", "2.0", "3.0"]
    assert scalars_of(tmp_path)["x"] == [(10, 1), (20, 2), (30, 3)]


def test_results_without_env_steps_are_numbered(tmp_path: Path) -> None:
    (sink,) = open_sinks(["tensorboard"], tmp_path)
    for value in (5.0, 6.0):
        sink.record({"x": value})
    sink.close()
    assert scalars_of(tmp_path) == {"x": [(0, 5), (1, 6)]}


def test_prometheus_finds_the_newest_result(tmp_path: Path) -> None:
    """As its text format has it: a type, and the lines of each metric together."""
    folder = tmp_path / 'a "run"'
    folder.mkdir()
    (sink,) = open_sinks(["prometheus"], folder, [{"env_steps": 1}])
    assert (folder / "metrics.prom").read_text() == (
        '# TYPE flowrl_env_steps gauge\nflowrl_env_steps{run="a \\"run\\""} 1.0\n'
    )
    sink.record({"loss/ppo": 0.5, "timers/train.Replay": 1e-7, "loss/dqn": 2, "unknown": None, "1-step": 3, "t": [1]})
    sink.close()
    run = 'run="a \\"run\\""'
    assert (folder / "metrics.prom").read_text().splitlines() == [
        "# TYPE flowrl_loss gauge",
        f'flowrl_loss{{{run},of="ppo"}} 0.5',
        f'flowrl_loss{{{run},of="dqn"}} 2.0',
        "# TYPE flowrl_timers gauge",
        f'flowrl_timers{{{run},of="train.Replay"}} 1e-07',
        "# TYPE flowrl_1_step gauge",
        f"flowrl_1_step{{{run}}} 3.0",
    ]
    assert sinks_in(folder) == ["prometheus"]


def test_an_unknown_sink_is_refused_before_any_work(folder: Path) -> None:
    done = flowrl("run", "tiny.py", "--sink", "tensorbord", "--out", "run")
    assert done.exit_code == 2
    assert (
        "no sink 'tensorbord'; did you mean 'tensorboard'? There are: csv, mlflow, prometheus, tensorboard"
        in done.stderr
    )
    assert not (folder / "run").exists()


def test_a_missing_package_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_sinks(["csv"])
    for name, package in (("tensorboard", "tensorboard"), ("wandb", r"'.*\[wandb\]'"), ("mlflow", r"'.*\[mlflow\]'")):
        with pytest.raises(ConfigError, match=f"the sink '{name}' needs a package: pip install {package}"):
            check_sinks(["csv", name])


def test_nothing_of_it_is_loaded_before_it_is_needed() -> None:
    code = (
        "import flowrl, sys; from flowrl.cli.main import cli; import flowrl.runs.directory, flowrl.runs.sinks\n"
        "cli(['run', '--help'], standalone_mode=False)\n"
        "print([m for m in ('tensorboard', 'wandb', 'mlflow', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


def test_a_run_that_goes_on_takes_its_sinks_along(folder: Path) -> None:
    """Also where the command that goes on names none of them: they would hold what is no more."""
    settings = ("n=8", "checkpoint_every=20")
    options = [word for setting in settings for word in ("--set", setting)]
    sinks = ("--sink", "csv", "--sink", "tensorboard")
    assert flowrl("run", "tiny.py", *options, *sinks, "--out", "run", "--quiet").exit_code == 0
    whole = rows_of(folder / "run"), scalars_of(folder / "run")
    first = min((folder / "run" / "checkpoints").iterdir())
    (folder / "run" / "metrics.csv").write_text("env_steps\n999\n")
    assert flowrl("run", "--resume", first, "--quiet").exit_code == 0
    assert (rows_of(folder / "run"), scalars_of(folder / "run")) == whole
    assert len(list((folder / "run").glob("events.out.tfevents.*"))) == 2
    refused = flowrl("run", "--resume", "run", "--seeds", 2)
    assert refused.exit_code == 2
    assert "--seeds begins new runs, --resume goes on with one" in refused.stderr

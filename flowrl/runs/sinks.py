"""Sinks: other formats of a run's metrics.jsonl, written next to it as results come."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from flowrl.errors import ConfigError, did_you_mean
from flowrl.storage.files import read_json, replacing, write, write_json

Result = Mapping[str, Any]


class Sink(Protocol):
    """Takes results of plain JSON values; each is on disk when `record` returns, or with a library that writes it."""

    def record(self, result: Result) -> None: ...
    def close(self) -> None: ...


class CsvSink:
    """metrics.csv: a row per result, a column per key; a cell is empty if the result lacks the key or has None.

    A key that first appears in a later result becomes a new column on the right, empty in the rows before. Lists and
    dicts become JSON.
    """

    def __init__(self, folder: Path, kept: Sequence[Result] = ()) -> None:
        self.path = folder / FILES["csv"]
        self.columns = list(dict.fromkeys(key for result in kept for key in result))
        self._file = self._written([_cells(result) for result in kept])

    def record(self, result: Result) -> None:
        late = [key for key in result if key not in self.columns]
        if late:
            self.columns += late
            self._file.close()
            with self.path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            self._file = self._written(rows)
        self._writer(self._file).writerow(_cells(result))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _written(self, rows: Iterable[Mapping[str, Any]]) -> TextIO:
        """Replace the file by one with these rows, atomically, and return it open for more."""
        with replacing(self.path) as partial:
            file = partial.open("w", encoding="utf-8", newline="")
            writer = self._writer(file)
            if self.columns:
                writer.writeheader()
            writer.writerows(rows)
            file.flush()
        return file

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self.columns, restval="", lineterminator="\n")


class TensorBoardSink:
    """Event files for TensorBoard: a scalar for every number of a result, over env steps.

    The step is the result's `env_steps`, else its `updates`, else its index. A resumed run opens another file, which
    tells TensorBoard to discard everything after the kept results.
    """

    def __init__(self, folder: Path, kept: Sequence[Result] = ()) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.results = len(kept)
        steps = [_step(result, index) for index, result in enumerate(kept)]
        ordinal = len(list(folder.glob(FILES["tensorboard"])))
        # Discards everything from this step on and writes the kept part again, since several results may share a step.
        again = steps[-1] if steps and ordinal else 0
        # Not EventFileWriter: it starts a thread, and its file names (second, host, process) do not sort by age.
        self._file = RecordWriter((folder / f"events.out.tfevents.{ordinal:010d}.flowrl").open("xb"))
        self._write(again, file_version="brain.Event:2")
        self._write(again, session_log=SessionLog(status=SessionLog.START))
        for step, result in zip(steps, kept):
            if step >= again:
                self._scalars(step, result)
        self._file.flush()

    def record(self, result: Result) -> None:
        self._scalars(_step(result, self.results), result)
        self.results += 1
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _scalars(self, step: int, result: Result) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=key, simple_value=value) for key, value in _numbers(result).items()]
        self._write(step, summary=Summary(value=values))

    def _write(self, step: int, **what: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._file.write(Event(wall_time=time.time(), step=step, **what).SerializeToString())


class WandbSink:
    """A run of Weights & Biases, over env steps: offline in wandb/ of the run directory, unless WANDB_MODE is set.

    `wandb sync RUN/wandb/offline-run-*` uploads it. WANDB_PROJECT and the other variables of its library apply. A
    resumed run keeps its id there and writes the kept results again.
    """

    def __init__(self, folder: Path, kept: Sequence[Result] = ()) -> None:
        mode: Literal["offline"] | None = None if "WANDB_MODE" in os.environ else "offline"
        if mode:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # as it is loaded
        import wandb

        earlier = sorted(folder.glob(FILES["wandb"]))
        identity = earlier[-1].name.rpartition("-")[2] if earlier else None
        for old in folder.glob("wandb/offline-run-*"):
            shutil.rmtree(old)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "flowrl"),
            dir=folder,
            id=identity,
            name=folder.name,
            config=_config(folder),
            mode=mode,
            reinit="create_new",
            resume=None if identity is None or mode else "allow",
            settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
        )
        self.results = 0
        for result in kept:
            self.record(result)

    def record(self, result: Result) -> None:
        if self.results == 0:
            self._run.define_metric("*", step_metric="env_steps" if "env_steps" in result else "updates")
        self._run.log(_numbers(result), step=self.results)  # several results may share their env steps
        self.results += 1

    def close(self) -> None:
        self._run.finish()


class MlflowSink:
    """A run of MLflow, over env steps: in mlflow.db of the run directory, unless MLFLOW_TRACKING_URI is set.

    `mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows it. A resumed run begins another one there, with the
    kept results, and deletes the first.
    """

    def __init__(self, folder: Path, kept: Sequence[Result] = ()) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # as it is loaded
        from mlflow import MlflowClient

        path = folder.resolve()
        store = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{path / 'mlflow.db'}")
        self._client = MlflowClient(tracking_uri=store)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "flowrl")
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            place = experiment.experiment_id
        else:
            artifacts = (path / "mlartifacts").as_uri() if "MLFLOW_TRACKING_URI" not in os.environ else None
            place = self._client.create_experiment(name, artifacts)
        file = folder / FILES["mlflow"]
        if file.exists():
            self._client.delete_run(read_json(file)["run"])
        self._id = self._client.create_run(place, run_name=folder.name).info.run_id
        write_json(file, {"store": store, "run": self._id})
        for key, value in _config(folder).items():
            self._client.log_param(self._id, key, value)
        self.results = 0
        for result in kept:
            self.record(result)

    def record(self, result: Result) -> None:
        from mlflow.entities import Metric

        now, step = time.time_ns() // 1_000_000, _step(result, self.results)
        numbers = [Metric(key, float(value), now, step) for key, value in _numbers(result).items()]
        self._client.log_batch(self._id, numbers)
        self.results += 1

    def close(self) -> None:
        self._client.set_terminated(self._id)


#: What stands in a label's text for its special characters.
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class PrometheusSink:
    """metrics.prom: the newest result in Prometheus's text format, a gauge for each number.

    For the textfile collector of the node exporter, or any server of files: nothing listens. `loss` becomes
    `flowrl_loss{run="NAME"}`; what follows a slash, such as a learner, becomes the label `of`. With
    `report_timers=true` there is `flowrl_timers{run="NAME",of="OPERATOR"}`, in seconds.
    """

    def __init__(self, folder: Path, kept: Sequence[Result] = ()) -> None:
        self.path, self._run = folder / FILES["prometheus"], folder.resolve().name
        self.record(kept[-1] if kept else {})

    def record(self, result: Result) -> None:
        samples: dict[str, list[str]] = {}
        for key, value in _numbers(result).items():
            name, _, of = key.partition("/")
            labels = {"run": self._run, **({"of": of} if of else {})}
            texts = [f'{label}="{text.translate(_ESCAPED)}"' for label, text in labels.items()]
            metric = "flowrl_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            samples.setdefault(metric, []).append(f"{metric}{{{','.join(texts)}}} {float(value)!r}\n")
        write(self.path, "".join("".join([f"# TYPE {name} gauge\n", *lines]) for name, lines in samples.items()))

    def close(self) -> None:
        """Does nothing: the file is whole."""


#: The sinks by name, and the files in a run directory that reveal each.
SINKS: dict[str, Callable[[Path, Sequence[Result]], Sink]] = {
    "csv": CsvSink,
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
    "prometheus": PrometheusSink,
}
FILES = {
    "csv": "metrics.csv",
    "tensorboard": "events.out.tfevents.*",
    "wandb": "wandb/*run-*-*",
    "mlflow": "mlflow_run.json",
    "prometheus": "metrics.prom",
}
#: What installs the packages of sinks, by their modules.
PACKAGES = {
    "tensorboard": {"tensorboard": "tensorboard"},
    "wandb": {"wandb": "'flowrl-engine[wandb]'"},
    "mlflow": dict.fromkeys(("mlflow", "sqlalchemy", "alembic"), "'flowrl-engine[mlflow]'"),
}


def check_sinks(names: Sequence[str]) -> None:
    """Reject sinks that cannot be opened later.

    Raises:
        ConfigError: an unknown sink (with the closest name), or one whose package is not installed.
    """
    for name in names:
        if name not in SINKS:
            raise ConfigError(f"no sink {name!r}; {did_you_mean(name, SINKS)}")
        for module, package in PACKAGES.get(name, {}).items():
            if importlib.util.find_spec(module) is None:
                raise ConfigError(f"the sink {name!r} needs a package: pip install {package}")


def sinks_in(folder: Path) -> list[str]:
    """The sinks of a run directory, which a resumed run must continue."""
    return [name for name, files in FILES.items() if any(folder.glob(files))]


def open_sinks(names: Sequence[str], folder: Path, kept: Sequence[Result] = ()) -> list[Sink]:
    """Open the sinks of a run directory, each once, for the results that follow the `kept` ones.

    A new run keeps none. A run resumed from a checkpoint keeps the first lines of its metrics.jsonl, and its sinks
    drop everything after them. A resumed run may also add a sink.
    """
    return [SINKS[name](folder, kept) for name in dict.fromkeys(names)]


def _config(folder: Path) -> dict[str, Any]:
    """The settings of the run, if it has written them."""
    file = folder / "config.json"
    return dict(read_json(file)) if file.exists() else {}


def _numbers(result: Result) -> dict[str, float]:
    return {key: value for key, value in result.items() if isinstance(value, (int, float))}


def _step(result: Result, index: int) -> int:
    step = result.get("env_steps", result.get("updates"))  # an offline plan has no env steps
    return int(step) if isinstance(step, (int, float)) else index


def _cells(result: Result) -> dict[str, Any]:
    return {key: _cell(value) for key, value in result.items()}


def _cell(value: Any) -> Any:
    """What a table of numbers has of a value: 1 and 0 of a truth value, and JSON of nested ones."""
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value) if isinstance(value, (list, dict)) else value

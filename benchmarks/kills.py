"""Does a run on Ray lose rows, or learn from one twice, when its processes are killed? Each row is followed by name.

    python benchmarks/kills.py [PLAN ...] [--kills 50] [--seed 0]

Each plan runs with two workers. A random process of it (the driver, a worker, a learner or a replay shard) gets SIGKILL
at a random moment, again and again; after the death of the driver the run is resumed. Each row that reaches the
learner, or the replay memory, is noted by its worker, environment, episode and step. Whenever the driver has died, and
at the end, the notes are compared with the newest checkpoint, by rule F18: no row is there twice; of an episode only
the last rows may be missing, where its worker died; and the counters say how many there are, wait and are lost.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np
from common import print_machine

from flowrl import operator, state
from flowrl.data import Batch
from flowrl.data.columns import ENDS
from flowrl.engine.workers.calls import Answer
from flowrl.engine.workers.remote import Remote
from flowrl.learners.learner import LearnerReport
from flowrl.storage.checkpoint import Checkpoints

#: A row's name.
NAME = ("worker", "env_id", "episode_id", "t")

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_workers": 2,
    "envs_per_worker": 2,
    "fragment_steps": 8,
    "hidden": [16],
    "report_every": 100,
    "checkpoint_every": 200,
    "eval_every": 0,
    "in_flight": 2,
    "device": "cpu",
    "max_worker_restarts": 1000,
}
STREAM = {"train_batch_size": 64, "schedule_steps": 1_000_000}
REPLAY = {"buffer_size": 1_000_000, "learning_starts": 100, "replay_ratio": 1.0, "batch_size": 16}


@attrs.frozen
class Case:
    """A plan: its settings, who works for it, after which operators rows are noted, and as what."""

    settings: dict[str, Any]
    victims: tuple[str, ...]
    noted: dict[str, str]
    epochs: int = 1


CASES = {
    "impala": Case({**STREAM, "num_learners": 2}, ("driver", "worker", "learner"), {"ConcatBatches": "learned"}),
    "appo": Case({**STREAM, "num_sgd_iter": 4}, ("driver", "worker"), {"ConcatBatches": "learned"}, epochs=4),
    "apex_dqn": Case(REPLAY, ("driver", "worker", "replay"), {"gather_async": "stored", "Replay": "drawn"}),
}
#: Seconds for a run to begin, or to go on after a death.
PATIENCE = 600.0
#: How often a run is started if Ray does not start in its half a minute, as on a machine that has much else to do.
STARTS = 5
#: Seconds between two looks at how far it is.
LOOK = 0.05


@operator
class Notes:
    """Notes each item that passes, in a file of this process: its number, and the names and ends of its rows.

    The number is part of the state: of two notes with one number, the later one is of the run that went on.
    """

    takes_remote: ClassVar[bool] = True
    folder: str
    what: str
    number: int = state(default=0)

    def __call__(self, item: Any) -> Any:
        self.number += 1
        batch = item.fetch() if isinstance(item, Remote) else item
        with Path(self.folder, f"{self.what}-{os.getpid()}").open("ab") as file:
            file.write(pickle.dumps((time.time_ns(), self.number, named(batch))))
        return item


def named(batch: Batch) -> np.ndarray:
    """The names of rows, each with whether its episode ends."""
    columns = [np.asarray(batch[name]).ravel() for name in NAME]
    return np.stack([*columns, np.logical_or(*(np.asarray(batch[name]).ravel() for name in ENDS))], 1)


def found(kind: type, value: Any) -> Iterator[Any]:
    """All objects of a kind in a saved state."""
    if isinstance(value, kind):
        yield value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | deque):
        for each in value:
            yield from found(kind, each)


def rows_in(value: Any) -> dict[tuple[int, ...], bool]:
    """The names of the rows in a saved state, with whether their episodes end there."""
    batches = [each for each in found(Batch, value) if all(name in each for name in (*NAME, *ENDS))]
    return {tuple(row[:-1]): bool(row[-1]) for batch in batches for row in named(batch).tolist()}


@attrs.define
class Account:
    """What became of each row of a run, up to its newest checkpoint."""

    case: Case
    run: Path
    notes: Path

    def line(self) -> str:
        """In words.

        Raises: AssertionError: a row is there twice, or is missing without a death, or the counters do not add up.
        """
        saved = Checkpoints(self.run / "checkpoints").load(trusted=True)
        operators, counters = saved["operators"], Counter(saved["ledger"]["counters"])
        numbers = {path: entry["number"] for path, entry in operators.items() if path.endswith("Notes")}
        what = next(iter(self.case.noted.values()))
        items = self._noted(what, next(n for path, n in numbers.items() if not path.startswith("train.")))
        rows = np.concatenate([*items, np.empty((0, 5), np.int64)])
        there = {tuple(row[:-1]): bool(row[-1]) for row in rows.tolist()}
        assert len(there) == len(rows), f"{len(rows) - len(there)} rows are {what} twice"

        held = {name: ended for name, ended in rows_in(operators).items() if name not in there}
        arriving = sum(answer.counters.get("env_steps", 0) for answer in found(Answer, operators))
        steps, lost = counters["env_steps"] + arriving, counters["lost_steps"]
        told = f"{steps} env steps, {len(there)} rows {what}, {len(held)} held, {lost} lost"
        assert steps == len(there) + len(held) + lost, told
        cut = cut_episodes({**held, **there})
        assert cut <= counters["cut_episodes"], f"{cut} episodes are cut, {counters['cut_episodes']} are counted"

        if what == "stored":
            self._check_memory(there, saved["resources"]["ReplayActors"], counters, operators, numbers)
        else:  # what the learners are asked for is noted, and was not trained on, or is not counted yet
            asked = operators.get("train", {}).get("pending", [])
            waits = sum(each.rows for kind, item in asked if kind == "request" for each in found(Batch, item))
            told = sum(next(found(LearnerReport, item)).counters["trained"] for kind, item in asked if kind == "result")
            trained = counters["trained"] + told
            assert trained == self.case.epochs * (len(there) - waits), f"{trained} trained, {len(there)} - {waits} rows"
        words = f"{steps:,} env steps = {len(there):,} {what} + {len(held):,} held + {lost:,} lost with workers"
        return f"{words}; {counters['lost_rows']:,} rows lost with shards; {counters['lost_requests']} requests lost"

    def _noted(self, what: str, number: int) -> list[np.ndarray]:
        """The items that are noted as this, up to a number."""
        newest: dict[int, tuple[int, np.ndarray]] = {}
        for path in self.notes.glob(f"{what}-*"):
            with path.open("rb") as file:
                while True:
                    try:
                        at, n, rows = pickle.load(file)
                    except (EOFError, pickle.UnpicklingError):  # cut off by a kill
                        break
                    newest[n] = max(newest.get(n, (0, rows)), (at, rows), key=lambda each: each[0])
        assert newest.keys() >= set(range(1, number + 1)), f"not all of {number} items are noted"
        return [newest[n][1] for n in range(1, number + 1)]

    def _check_memory(
        self, there: dict[Any, bool], memory: Any, counters: Counter[str], operators: Any, numbers: dict[str, int]
    ) -> None:
        """Compare what was stored with what the shards hold, and with what was drawn."""
        columns = [shard["columns"] for shard in memory["shards"] if shard["columns"]]
        rows = [row for each in columns for row in np.stack([np.ravel(each[name]) for name in NAME], 1).tolist()]
        holds = set(map(tuple, rows))
        assert len(holds) == len(rows), "a row is in the memory twice"
        assert holds <= there.keys(), "the memory has rows that were never stored"
        on_the_way = operators["store.Notes"].get("@outputs", []), operators.get("store.StoreToReplay", {})
        waits = len(rows_in(on_the_way))
        assert counters["inserted"] == len(there) - waits, f"{counters['inserted']} inserted, {len(there)} - {waits}"
        gone = counters["inserted"] - len(holds)
        assert gone == counters["lost_rows"], f"{gone} stored rows are gone, {counters['lost_rows']} are counted"
        drawn = np.concatenate([*self._noted("drawn", numbers["train.Notes"]), np.empty((0, 5), np.int64)])
        assert set(map(tuple, drawn[:, :-1].tolist())) <= there.keys(), "rows were drawn that were never stored"


def cut_episodes(rows: dict[tuple[int, ...], bool]) -> int:
    """The number of episodes without their end that others of the environment follow.

    Raises: AssertionError: one of the earlier rows of an episode is missing.
    """
    episodes: dict[tuple[int, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for worker, env_id, episode, t in rows:
        episodes[worker, env_id][episode].add(t)
    cut = 0
    for (worker, env_id), of in episodes.items():
        for episode, steps in of.items():
            last = max(steps)
            missing = set(range(last)) - steps
            assert not missing, f"episode {episode} of {worker}/{env_id} lacks the steps {sorted(missing)}"
            cut += episode != max(of) and not rows[worker, env_id, episode, last]
    return cut


# -- the run


def child(arguments: Sequence[str]) -> None:
    """`flowrl` in this process, which answers a line such as `worker 1` with the id of that member's process."""
    import ray

    from flowrl.actors.actors import Actors
    from flowrl.cli.main import main

    started: dict[str, Actors] = {}
    start = Actors.start

    def noted(actors: Actors) -> None:
        started[actors.kind] = actors
        start(actors)

    def tell() -> None:
        for line in sys.stdin:
            kind, index = line.split()
            actor: Any = started[kind].members[int(index)]
            print("pid", ray._private.state.actors(actor._actor._actor_id.hex())["Pid"], flush=True)

    Actors.start = noted  # type: ignore[method-assign]
    threading.Thread(target=tell, daemon=True).start()
    sys.argv[1:] = arguments
    main()


@attrs.define
class Killed:
    """A run that is killed and resumed in a folder."""

    name: str
    folder: Path
    draw: np.random.Generator
    kills: Counter[str] = attrs.field(factory=Counter)
    resumes: list[float] = attrs.field(factory=list)  # seconds until new rows
    _process: Any = None

    @property
    def case(self) -> Case:
        return CASES[self.name]

    @property
    def account(self) -> Account:
        return Account(self.case, self.folder / "run", self.folder / "notes")

    def begin(self) -> None:
        """Begin the run, or resume it; returns when it has made new rows."""
        for _ in range(STARTS):
            began = time.monotonic()
            self._start()
            try:
                self._go_on()
            except SystemExit as error:
                if "timed out during startup" not in str(error):
                    raise
            else:
                self.resumes.append(time.monotonic() - began)
                return
        raise SystemExit(f"Ray did not start in {STARTS} attempts")

    def _start(self) -> None:
        run, config, notes = (self.folder / name for name in ("run", "config.json", "notes"))
        notes.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({**SETTINGS, **self.case.settings}))
        words = ["run", self.name, "--config", str(config), "--out", str(run), "--stop-steps", "100000000"]
        for at, what in self.case.noted.items():
            words += ["--insert", f"{at}=kills:Notes({str(notes)!r}, {what!r})"]
        if (run / "run.json").exists():
            words = ["run", "--resume", str(run)]
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with (self.folder / "log.txt").open("a") as log:
            command = [sys.executable, __file__, "--child", *words, "--quiet"]
            self._process = subprocess.Popen(command, env=env, stderr=log, **pipes)

    def _size(self) -> int:
        return sum(each.stat().st_size for each in (self.folder / "notes").iterdir())

    def _go_on(self, items: int = 1) -> None:
        """Wait until rows have been noted so many times."""
        size, end = self._size(), time.monotonic() + PATIENCE
        while items:
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.name} does not go on: {(self.folder / 'log.txt').read_text()[-4000:]}")
            time.sleep(LOOK)
            items, size = items - (self._size() > size), self._size()

    def kill(self, kind: str) -> None:
        """Kill a process of a kind at a random moment; unless it was the driver, wait until the run has gone on."""
        self._go_on(int(self.draw.integers(1, 8)))
        time.sleep(self.draw.uniform(0, 4 * LOOK))
        if kind == "driver":
            self._process.kill()
            self._process.communicate(timeout=PATIENCE)
        else:
            self._process.stdin.write(f"{kind} {self.draw.integers(2)}\n")
            self._process.stdin.flush()
            os.kill(int(self._process.stdout.readline().split()[1]), signal.SIGKILL)
            self._go_on(3)
        self.kills[kind] += 1

    def end(self) -> None:
        """End the run with a checkpoint."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 130, (self.folder / "log.txt").read_text()[-4000:]


def kill_often(name: str, kills: int, draw: np.random.Generator, folder: Path) -> None:
    """Kill processes of a plan's run so many times; print each account."""
    run = Killed(name, folder, draw)
    run.begin()
    for _ in range(kills):
        kind = str(draw.choice(run.case.victims))
        run.kill(kind)
        if kind == "driver":
            print(f"{name}  {run.account.line()}", flush=True)
            run.begin()
    run.end()
    print(f"{name}  {run.account.line()}")
    killed = ", ".join(f"{times} of a {kind}" for kind, times in run.kills.items())
    again = f"; resumed in {min(run.resumes[1:]):.1f} .. {max(run.resumes[1:]):.1f} s" if run.resumes[1:] else ""
    print(f"{name}  {kills} kills: {killed}; every row is accounted for, 0 doubled{again}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plans", nargs="*", default=list(CASES), metavar="PLAN")
    parser.add_argument("--kills", type=int, default=50, help="of all plans together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print_machine("ray", "torch")
    shares = np.bincount(np.arange(options.kills) % len(options.plans), minlength=len(options.plans))
    for number, (name, kills) in enumerate(zip(options.plans, shares.tolist())):
        with tempfile.TemporaryDirectory() as folder:
            kill_often(name, kills, np.random.default_rng([options.seed, number]), Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()

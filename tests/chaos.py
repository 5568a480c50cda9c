"""For tests that kill: who works where, and what a run that lost somebody must still be."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from flowrl import Context, Plan, context, operator
from flowrl.engine.run import Run


@operator
class Whereabouts:
    """Notes in a folder, for each worker, its process and how many items it has made there."""

    folder: str
    context: Context = context()
    _made: int = attrs.field(default=0, init=False)

    def __call__(self, item: Any) -> Any:
        self._made += 1
        note = Path(self.folder, f"{self.context.worker.index}-{os.getpid()}")
        note.write_text(str(self._made))
        return item


@attrs.define
class Workers:
    """What `Whereabouts` noted."""

    folder: Path

    def noted(self, plan: Plan) -> Plan:
        """The plan with notes of its workers."""
        return plan.insert_after("Rollouts", Whereabouts(str(self.folder)))

    def process(self, worker: int) -> int:
        """Where a worker is now."""
        notes = sorted(self.folder.glob(f"{worker}-*"), key=lambda note: note.stat().st_mtime_ns)
        return int(notes[-1].name.partition("-")[2])

    def items(self) -> int:
        """Made by all workers, those that died among them."""
        return sum(int(note.read_text()) for note in self.folder.iterdir())

    def signal(self, worker: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.process(worker), number)


def results(run: Run, steps: int) -> Iterator[dict[str, Any]]:
    """The results of a run until so many env steps; no counter ever goes back, and no metric is lost."""
    before: dict[str, Any] = {}
    for result in run:
        for unit, n in run.counters.items():
            assert n >= before.get(unit, 0), f"{unit} went back"
        before = dict(run.counters)
        yield result
        if run.counters["env_steps"] >= steps:
            return

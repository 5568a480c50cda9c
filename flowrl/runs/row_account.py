"""What became of the rows that a run has collected: stored, trained on, lost, or made again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from flowrl.errors import ConfigError
from flowrl.runs.resume import EarlierRun
from flowrl.storage.checkpoint import Checkpoints, verify_checkpoint

#: The counters of what was made of rows, with words for each.
KEPT = {
    "env_steps": "env steps collected",
    "inserted": "rows stored",
    "sampled": "rows drawn",
    "trained": "rows trained on",
}
#: The counters of what is lost, at most once, with words for who lost it.
LOST = {
    "lost_steps": "env steps collected, with a worker that held their rows, or as too old to train on",
    "lost_rows": "rows stored, with a replay shard, or on their way to it",
    "lost_requests": "requests that were never answered: what was made for them is in none of these numbers",
}


@attrs.frozen
class RowAccount:
    """The account of a run up to its newest checkpoint (F18).

    Attributes:
        counters: Those of the run.
        again: Env steps that were made again: counted after a checkpoint that the run went on from when it was killed.

    >>> account = RowAccount({"env_steps": 4096, "trained": 4064, "lost_requests": 1}, again=320)
    >>> print("\\n".join(account.lines()))
           4,096 env steps collected
           4,064 rows trained on
    lost:      1 requests that were never answered: what was made for them is in none of these numbers
    again:   320 env steps, by runs that went on from a checkpoint
    """

    counters: Mapping[str, int]
    again: int = 0

    @classmethod
    def of(cls, run: str | Path) -> RowAccount:
        """Read it from the directory of a run, or one of its checkpoints.

        Raises:
            ConfigError: no run, or no checkpoint.
            CheckpointError: a damaged checkpoint.
        """
        earlier = EarlierRun.find(run)
        checkpoint = earlier.checkpoint or Checkpoints(earlier.path / "checkpoints").latest()
        if checkpoint is None:
            raise ConfigError(f"{run} has no checkpoint, and only checkpoints say what became of its rows")
        parts = [*earlier.about.get("earlier", ()), earlier.about]
        return cls(verify_checkpoint(checkpoint)["about"]["counters"], sum(part.get("again", 0) for part in parts))

    def lines(self) -> list[str]:
        """In words."""
        found = [("", self.counters[unit], words) for unit, words in KEPT.items() if unit in self.counters]
        lost = [("lost:", self.counters[unit], words) for unit, words in LOST.items() if self.counters.get(unit)]
        found += lost or [("lost:", 0, "rows")]
        found += [("again:", self.again, "env steps, by runs that went on from a checkpoint")] if self.again else []
        width = max(len(f"{number:,}") for _, number, _ in found)
        return [f"{head:6} {number:>{width},} {words}" for head, number, words in found]

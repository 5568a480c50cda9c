"""Experience from rollout workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

from flowrl.context import Context
from flowrl.data import Batch
from flowrl.errors import PlanError
from flowrl.operator import context, declare, operator
from flowrl.plan import Plan, from_workers
from flowrl.schema import UNKNOWN, Schema

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet


@operator
class Rollouts:
    """Source on a worker of its fragments `[steps, N, ...]`.

    Counts: env_steps, episodes. Records: episode_return and episode_length of every episode that ended.
    """

    steps: int
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return given.having("experience", "fragments", "on_policy")

    def pull(self) -> Batch:
        worker = self.context.worker
        batch: Batch = worker.sample(self.steps)
        self.context.count("env_steps", batch.rows)
        episodes = worker.episodes()
        if episodes:
            self.context.count("episodes", len(episodes))
        for episode in episodes:
            self.context.record("episode_return", episode.return_)
            self.context.record("episode_length", episode.length)
        return batch


def ParallelRollouts(
    workers: WorkerSet,
    mode: Literal["bulk_sync", "async", "raw"] = "bulk_sync",
    in_flight: int = 1,
    *,
    steps: int = 32,
) -> Plan:
    """Experience of all workers as a stream of batches `[steps, N, ...]`.

    Args:
        workers: Who acts.
        mode: "bulk_sync": one fragment of every worker at a time, joined along the environments; bit-exact.
            "async": fragments as they are ready. "raw": the stream stays on the workers, for operators that
            should run there; end it with `gather_sync()` or `gather_async()`.
        in_flight: Requests to each worker at a time, in async mode.
        steps: Steps of each environment in a fragment.

    Counts: env_steps, episodes.
    """
    if steps < 1:
        raise PlanError(f"ParallelRollouts needs steps >= 1, got {steps}")
    raw = from_workers(workers, Rollouts(steps))
    if mode == "raw":
        return raw
    if mode == "async":
        return attrs.evolve(raw.gather_async(in_flight), name="ParallelRollouts")
    if mode == "bulk_sync":
        return attrs.evolve(raw.gather_sync(side_by_side), name="ParallelRollouts")
    raise PlanError(f"ParallelRollouts: mode is 'bulk_sync', 'async' or 'raw', got {mode!r}")


@declare(schema=lambda given: given.of or UNKNOWN)
def side_by_side(fragments: list[Any]) -> Any:
    """Fragments `[T, N, ...]` of several workers as one, joined along the environments."""
    return fragments[0] if len(fragments) == 1 else Batch.cat(fragments, axis=1)

"""Experience from rollout workers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from flowrl.data import multi_agent
from flowrl.engine.context import Context
from flowrl.engine.operator import context, declare, operator, runtime
from flowrl.engine.plan import Plan, from_workers
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.errors import PlanError

if TYPE_CHECKING:
    from flowrl.envs import Fault
    from flowrl.rollout import WorkerSet

log = logging.getLogger("flowrl")

#: The record of how games of a league ended, which `RecordGames` takes.
GAMES = "games"


@operator
class Rollouts:
    """Source on a worker: its fragments `[steps, N, ...]`, rows `[rows, ...]` of any of its environments, or whole
    `episodes`, padded.

    Counts: env_steps, episodes; env_faults, and cut_episodes, the episodes that faults cut short, which enter no
        statistics. The log warns of each fault, for the first one with its traceback.
    Records: episode_return and episode_length of every finished episode; whether it was won, None if nobody says (S9),
        as success_rate, of an agent win_rate/NAME; in a league, games: see `RecordGames`.
    """

    endless: ClassVar[bool] = True
    steps: int | None = None
    rows: int | None = None
    episodes: int | None = None
    context: Context = context()
    _said: bool = runtime(default=False)

    def schema(self, given: Schema) -> Schema:
        fragments, envs = given.having("experience", "fragments", "on_policy"), given.most.get("N")
        if self.episodes is not None:
            return fragments.having("episodes", mask="bool[T, N]")
        if self.steps is not None:
            return fragments if envs is None else attrs.evolve(fragments, most={"T": self.steps, "N": envs})
        rows = fragments.without("mask").rows()
        return rows if envs is None or self.rows is None else attrs.evolve(rows, most={"B": self.rows + envs - 1})

    def pull(self) -> Any:
        worker = self.context.worker
        cut = worker.manager.cut_episodes
        try:
            batch = worker.sample(self.steps, rows=self.rows, episodes=self.episodes)
        finally:
            self._report(worker.faults(), worker.manager.cut_episodes - cut)
        self.context.count("env_steps", worker.env_steps_of(batch))
        episodes = worker.episodes()
        if finished := sum(not episode.agent for episode in episodes):
            self.context.count("episodes", finished)
        for game in worker.games():
            self.context.record(GAMES, (game.players, game.returns))
        for episode in episodes:
            whose = f"/{episode.agent}" if episode.agent else ""
            self.context.record(f"episode_return{whose}", episode.return_)
            self.context.record(f"episode_length{whose}", episode.length)
            won = None if episode.success is None else float(episode.success)
            self.context.record(f"win_rate{whose}" if whose else "success_rate", won)
        return batch

    def _report(self, faults: list[Fault], cut: int) -> None:
        if cut:
            self.context.count("cut_episodes", cut)
        if faults:
            self.context.count("env_faults", len(faults))
        for fault in faults:
            log.warning("%s", fault if self._said else f"{fault}\n{fault.traceback}".rstrip())
            self._said = True


def ParallelRollouts(
    workers: WorkerSet,
    mode: Literal["bulk_sync", "async", "raw"] = "bulk_sync",
    in_flight: int = 1,
    *,
    max_weight_lag: int | None = None,
    pace: tuple[int, int] = (1, 1),
    steps: int | None = None,
    rows: int | None = None,
    episodes: int | None = None,
) -> Plan:
    """Experience of all workers as a stream of batches `[steps, N, ...]`, `[rows, ...]`, or `[longest, episodes, ...]`.

    Args:
        workers: Workers that act.
        mode: "bulk_sync": one fragment of every worker per item, joined along the environments; bit-exact if the
            environments step in lockstep. "async": fragments as they become ready. "raw": the stream stays on the
            workers, for operators that run there; end it with `gather_sync()` or `gather_async()`.
        in_flight: Requests in flight to each worker, in async mode.
        max_weight_lag, pace: In async mode, versions of the weights that may come between collecting a fragment and
            training on it, and how fast they come; see `Plan.gather_async`.
        steps: Steps per environment in a fragment, 32 unless `rows` or `episodes` is given.
        rows: Instead of fragments, this many rows of each worker, or a few more, of any environments: with an
            asynchronous manager, no environment waits for the slowest. For learning from single transitions, as a
            replay buffer of rows gives them.
        episodes: Instead of fragments, this many whole episodes of each worker, for Monte Carlo methods: padded, with a
            `mask`. Its environments play equally many, or one more (S2); steps of others that go on meanwhile are
            neither in the batch nor counted.

    Counts: env_steps, episodes, env_faults, cut_episodes.
    """
    from flowrl.rollout.offline import OfflineWorkers

    amounts = {"steps": steps, "rows": rows, "episodes": episodes}
    given = {name: value for name, value in amounts.items() if value is not None} or {"steps": 32}
    if len(given) > 1:
        raise PlanError(
            "ParallelRollouts takes steps per environment, rows of any environment, or whole episodes, got "
            + " and ".join(f"{name}={value}" for name, value in given.items())
        )
    for name, value in given.items():
        if value < 1:
            raise PlanError(f"ParallelRollouts needs {name} >= 1, got {value}")
    if max_weight_lag is not None and mode != "async":
        raise PlanError(f"ParallelRollouts: max_weight_lag={max_weight_lag} is for mode='async', not {mode!r}")
    if isinstance(workers, OfflineWorkers):
        raise PlanError(f"ParallelRollouts: nobody acts here, without an environment; the workers are {workers!r}")
    raw = from_workers(workers, Rollouts(**given))
    if mode == "raw":
        return raw
    if mode == "async":
        return attrs.evolve(raw.gather_async(in_flight, max_weight_lag, pace=pace), name="ParallelRollouts")
    if mode == "bulk_sync":
        return attrs.evolve(raw.gather_sync(side_by_side), name="ParallelRollouts")
    raise PlanError(f"ParallelRollouts: mode is 'bulk_sync', 'async' or 'raw', got {mode!r}")


def _joined(given: Schema) -> Schema:
    """The schema of a round of items as one."""
    if given.of is None:
        return UNKNOWN
    many = given.most.get("of", 0)
    most = {axis: size * (1 if axis == "T" else many) for axis, size in given.of.most.items()} if many else {}
    return attrs.evolve(given.of, most=most)


@declare(schema=_joined)
def side_by_side(fragments: list[Any]) -> Any:
    """Join the batches of several workers: fragments `[T, N, ...]` side by side, rows one after the other."""
    return multi_agent.side_by_side(fragments)

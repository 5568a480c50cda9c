"""Leagues: how games end, and past selves of learners that join the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import attrs

from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, state
from flowrl.engine.schema import Schema
from flowrl.errors import PlanError
from flowrl.operators.rollout import GAMES
from flowrl.operators.train import learned_here

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet
    from flowrl.rollout.league import League


def _has_league(op: Any, attribute: Any, workers: Any) -> None:
    from flowrl.rollout import Workers

    if not isinstance(workers, Workers) or workers.league is None:
        raise PlanError(f"{type(op).__name__} needs workers with a league, WorkerSet(..., league=...), got {workers!r}")


@operator
class RecordGames:
    """Enters finished games into the league's table, which match-making follows (L1), and passes items on.

    Put it behind the rollouts, so that the next matches are drawn by the games of this item.

    Args:
        workers: Workers with a league.

    Counts: matches, games between two different players.
    Records: win_rate/LEARNER of each game of a learner against another player, 0.5 for a draw, and if that is a learner
        too, win_rate/LEARNER/OTHER; elo/LEARNER, its rating.
    """

    provides = ()
    workers: WorkerSet = attrs.field(validator=_has_league)
    context: Context = context()

    def __call__(self, item: Any) -> Any:
        league = cast("League", self.workers.league)
        games = self.context.metrics.drain(GAMES)
        league.count(games)
        between = [game for game in games if game[0][0] != game[0][1]]
        if between:
            self.context.count("matches", len(between))
        for learner in league.learners:
            for players, returns in between:
                if learner in players:
                    at = players.index(learner)
                    own, others = returns[at], returns[1 - at]
                    score = 1.0 if own > others else 0.5 if own == others else 0.0
                    self.context.record(f"win_rate/{learner}", score)
                    if (other := players[1 - at]) in league.learners:
                        self.context.record(f"win_rate/{learner}/{other}", score)
            self.context.record(f"elo/{learner}", league.ratings[learner])
        return item


@operator
class AddSnapshot:
    """Lets copies of a learner join the league's pool, and passes items on.

    One joins `every` env steps; and before, once the learner wins more than `win_rate` of its games against each of its
    rivals. Then, by chance, the learner begins anew, as exploiters do that look for what others lose to.

    Args:
        workers: Workers with a league.
        learner: Its name in the league.
        every: Env steps after which a snapshot joins in any case.
        win_rate: Share of games won, a draw as half of one; None: by env steps alone.
        least: Env steps before which none joins.
        now, past: Its rivals: learners as they are now, and past selves of learners; neither: its own past selves.
        restart: Probability of beginning anew once a snapshot has joined: see `League.restart`.

    Counts: snapshots, restarts; of several learners, those of each as snapshots/LEARNER too.
    State: when the next one is due.
    Raises: PlanError: no such learner; one that may not begin anew, or that learns elsewhere.
    """

    provides = ()
    workers: WorkerSet = attrs.field(validator=_has_league)
    learner: str
    every: int = attrs.field(validator=attrs.validators.ge(1))
    win_rate: float | None = None
    least: int = 0
    now: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    restart: float = 0.0
    due: int = state(default=attrs.Factory(lambda self: self.every, takes_self=True))
    context: Context = context()

    def __attrs_post_init__(self) -> None:
        if self.learner not in self._league.learners:
            raise PlanError(f"AddSnapshot: no learner {self.learner!r}, but {', '.join(self._league.learners)}")
        if self.restart and self.learner not in self._league.restarts:
            raise PlanError(
                f"AddSnapshot(restart={self.restart}): {self.learner!r} does not begin anew, but "
                f"{', '.join(self._league.restarts) or 'nobody'}: League(..., restarts=[{self.learner!r}])"
            )

    def schema(self, given: Schema) -> Schema:
        return learned_here(self, given, "train it with TrainOneStep, or let it not restart") if self.restart else given

    def __call__(self, item: Any) -> Any:
        now, league = self.context.counters.get("env_steps", 0), self._league
        if now < self.due and (now < self.due - self.every + self.least or not self._beats_all()):
            return item
        policy, counts = self.workers.of(self.learner).policy, {"snapshots": 1}
        league.add(self.learner, policy)
        self.due = now + self.every
        if self.restart and self.context.generator("restart").random() < self.restart:
            league.restart(self.learner, policy)
            counts["restarts"] = 1
        self.context.learned(counts, {}, self.learner if len(league.learners) > 1 else "")
        return item

    @property
    def _league(self) -> League:
        return cast("League", self.workers.league)

    def _beats_all(self) -> bool:
        past = self.past or (() if self.now else (self.learner,))
        return self.win_rate is not None and self._league.beats(self.learner, self.win_rate, self.now, past)

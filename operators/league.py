"""Leagues: how games end, and past selves of learners that join the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import attrs

from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, state
from flowrl.errors import PlanError
from flowrl.operators.rollout import GAMES

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet
    from flowrl.rollout.league import League


def _has_league(op: Any, attribute: Any, workers: Any) -> None:
    from flowrl.rollout import BaseWorkers

    if not isinstance(workers, BaseWorkers) or workers.league is None:
        raise PlanError(f"{type(op).__name__} needs workers with a league, WorkerSet(..., league=...), got {workers!r}")


@operator
class RecordGames:
    """Enters finished games into the league's table, which match-making follows (L1), and passes items on.

    Put it behind the rollouts, so that the next matches are drawn by the games of this item.

    Args:
        workers: Workers with a league.

    Counts: matches, games between two different players.
    Records: win_rate/LEARNER of each game of a learner against another player, 0.5 for a draw; elo/LEARNER, its rating.
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
                    own, other = returns if players[0] == learner else returns[::-1]
                    self.context.record(f"win_rate/{learner}", 1.0 if own > other else 0.5 if own == other else 0.0)
            self.context.record(f"elo/{learner}", league.ratings[learner])
        return item


@operator
class AddSnapshot:
    """Lets copies of a learner join the league's pool, and passes items on.

    One joins `every` env steps; and before, once the learner wins more than `win_rate` of its games against each member
    that it may meet of its own past.

    Args:
        workers: Workers with a league.
        learner: Its name in the league.
        every: Env steps after which a snapshot joins in any case.
        win_rate: Share of games won, a draw as half of one; None: by env steps alone.

    Counts: snapshots.
    State: when the next one is due.
    """

    provides = ()
    workers: WorkerSet = attrs.field(validator=_has_league)
    learner: str
    every: int = attrs.field(validator=attrs.validators.ge(1))
    win_rate: float | None = None
    due: int = state(default=attrs.Factory(lambda self: self.every, takes_self=True))
    context: Context = context()

    def __attrs_post_init__(self) -> None:
        if self.learner not in self._league.learners:
            raise PlanError(f"AddSnapshot: no learner {self.learner!r}, but {', '.join(self._league.learners)}")

    def __call__(self, item: Any) -> Any:
        now = self.context.counters.get("env_steps", 0)
        if now >= self.due or self._beats_all():
            self._league.add(self.learner, self.workers.of(self.learner).policy)
            self.context.count("snapshots")
            self.due = now + self.every
        return item

    @property
    def _league(self) -> League:
        return cast("League", self.workers.league)

    def _beats_all(self) -> bool:
        past = self._league.pool(self.learner)
        if self.win_rate is None or not past:
            return False
        return min(self._league.win_rate(self.learner, each.name) for each in past) > self.win_rate

"""Turns: the moves of both agents of a game, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import ENDS
from flowrl.data.steps import real_rows
from flowrl.data.trajectories import side_by_side
from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator
from flowrl.engine.schema import Schema
from flowrl.errors import SchemaError

#: The columns that identify a game.
_GAME = ("worker", "env_id", "episode_id")
#: Those that identify a seat's turn, and what it saw at its next one.
_OF_SEATS = (*_GAME, "agent", "t", "next_obs", "next_value")


@operator
class JoinTurns:
    """Whole episodes of the seats of games for two, `[T, seats, ...]`, as games, `[T, games, ...]`, of moves in turn.

    The `reward` of a move is what it gains who makes it, at the end of the game; what it costs the other, who moves
    next, is that with the opposite sign. So only the last move of a game has a reward and an end.

    Emits: games side by side, padded (`mask` 0). Counts: games_dropped, those that a fault has cut.
    Raises: SchemaError for agents that do not move in turn, the first one first; for rewards before the end of a game,
        or that are no loss of the other.

    >>> seats = Batch(reward=[[0.0, -1.0], [1.0, 0.0]], action=[[4, 0], [8, 0]], agent=[[0, 1], [0, 1]],
    ...               env_id=[[0, 0], [0, 0]], episode_id=[[0, 0], [0, 0]], t=[[0, 0], [1, 0]],
    ...               terminated=[[False, True], [True, False]], truncated=[[False] * 2] * 2, mask=[[1, 1], [1, 0]])
    >>> games = JoinTurns()(seats)
    >>> games.action.T, games.reward.T, games.terminated.T
    (array([[4, 0, 8]]), array([[0., 0., 1.]]), array([[False, False,  True]]))
    """

    requires: ClassVar[Mapping[str, str]] = {
        "episodes": "put Episodes() before it, so that games are whole",
        "agent": "collect in a game for two",
        **dict.fromkeys(("reward", "env_id", "episode_id", "t", *ENDS), ""),
    }
    provides = ("mask",)
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return given.without(*_OF_SEATS, *(name for name in given.columns if name.partition(".")[0] in _OF_SEATS))

    def __call__(self, batch: Batch) -> Batch:
        """The games of which this batch has both seats."""
        rows = real_rows(batch.to_numpy())
        names = [name for name in _GAME if name in rows]
        moves = rows[np.lexsort((rows["agent"], rows["t"], *(rows[name] for name in reversed(names))))]
        game = np.stack([moves[name] for name in names], 1)
        cuts = [0, *(np.flatnonzero((game[1:] != game[:-1]).any(1)) + 1).tolist(), len(moves)]
        games = [np.arange(*each) for each in pairwise(cuts) if self._whole(moves[slice(*each)])]
        last = np.zeros(len(moves), bool)
        last[[each[-1] for each in games]] = True
        moves["reward"] = np.where(last, moves["reward"], 0)
        for name in ENDS:
            moves[name] = moves[name] & last
        kept = moves.select([name for name in moves if name not in (*_OF_SEATS, "mask")])
        return side_by_side(kept, games, max(map(len, games), default=0))

    def _whole(self, game: Batch) -> bool:
        """Whether these are the moves of a game, in turn, from first to last."""
        if not len(game):
            return False
        where = ", ".join(f"{name} {game[name][0]}" for name in _GAME if name in game)
        if not (2 * game["t"] + game["agent"] == np.arange(len(game))).all():
            if game["truncated"].any():
                self.context.count("games_dropped")
                return False
            raise SchemaError(
                f"JoinTurns: in {where}, the agents {game['agent'].tolist()} move at their turns "
                f"{game['t'].tolist()}: expected two agents in turn, the first one first"
            )
        gains = game["reward"]
        if gains[:-2].any() or (gains[-2:-1] != -gains[-1]).any():
            raise SchemaError(
                f"JoinTurns: in {where}, the moves gain {gains.tolist()}: expected nothing before the last two, and of "
                "these what one gains as the loss of the other"
            )
        return True

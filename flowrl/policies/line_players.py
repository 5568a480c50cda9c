"""Players of tic-tac-toe and connect four that follow rules: opponents of known strength."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from flowrl.envs.games.connect_four import ConnectFour
from flowrl.envs.games.line_game import LineGame
from flowrl.envs.games.tic_tac_toe import TicTacToe
from flowrl.errors import ConfigError
from flowrl.policies.sampling import Array, uniform_choice
from flowrl.policies.scripted import FixedPolicy

#: A board from the view of who moves, square by square: 1 own stone, -1 another's, 0 free.
Board = tuple[int, ...]


class LinePlayer(FixedPolicy):
    """Base of players of a `LineGame`, who draw one of the moves that `moves` finds good, from their own noise.

    Raises: ConfigError: the observations are not those of a game that it plays.
    """

    draws = 1
    games: tuple[type[LineGame], ...] = (TicTacToe, ConnectFour)

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        known = {(game.rows * game.columns,): game for game in self.games}
        board = observation_space.get("board") if hasattr(observation_space, "get") else None
        if board is None or board.shape not in known:
            names = " and ".join(game.__name__ for game in self.games)
            raise ConfigError(f"{type(self).__name__} plays {names}, not a game with observations {observation_space}")
        self.game = known[board.shape]

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        """See `ActMode`. Who is not to move may have no valid move: its action is not read."""
        good = np.zeros_like(obs["action_mask"], bool)
        for row, board, valid in zip(good, np.rint(obs["board"]).astype(int).tolist(), obs["action_mask"]):
            row[self.moves(tuple(board), np.flatnonzero(valid).tolist())] = True
        return {"action": uniform_choice(noise[:, 0], good)}

    def moves(self, board: Board, valid: list[int]) -> list[int]:
        """The moves to choose from."""
        raise NotImplementedError


class OnePly(LinePlayer):
    """Looks one move ahead: it wins if it can, else stops the other from winning, else moves at random."""

    def moves(self, board: Board, valid: list[int]) -> list[int]:
        """See `LinePlayer`."""
        for who in (1, -1):
            if found := [move for move in valid if self._completes(board, move, who)]:
                return found
        return valid

    def _completes(self, board: Board, move: int, who: int) -> bool:
        game, square = self.game, move
        if game.falls:
            square = max(at for at in range(move, len(board), game.columns) if not board[at])
        return any(all(at == square or board[at] == who for at in line) for line in _lines_of(game)[square])


class Perfect(LinePlayer):
    """Makes no mistake in tic-tac-toe, and draws among the best moves."""

    games = (TicTacToe,)

    def moves(self, board: Board, valid: list[int]) -> list[int]:
        """See `LinePlayer`."""
        return list(_best(board)[1]) if valid else []


@functools.cache
def _lines_of(game: type[LineGame]) -> list[list[list[int]]]:
    """Of each square, the squares of the lines through it."""
    squares = range(game.rows * game.columns)
    return [[[at for at in squares if line >> at & 1] for line in lines] for lines in game().lines]


@functools.cache
def _best(board: Board) -> tuple[int, tuple[int, ...]]:
    """What the one to move gains with perfect play on both sides, and the moves that gain it."""
    gains = {}
    for move in [at for at, stone in enumerate(board) if not stone]:
        won = any(all(at == move or board[at] == 1 for at in line) for line in _lines_of(TicTacToe)[move])
        others_view = tuple(-1 if at == move else -stone for at, stone in enumerate(board))
        gains[move] = 1 if won else -_best(others_view)[0]
    best = max(gains.values(), default=0)
    return best, tuple(move for move, gain in gains.items() if gain == best)

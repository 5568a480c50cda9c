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
        self.rules = known[board.shape].rules()

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        """See `ActMode`. Who is not to move may have no valid move: its action is not read."""
        good = np.zeros_like(obs["action_mask"], bool)
        for row, (own, others), valid in zip(good, self.rules.states(obs).tolist(), obs["action_mask"]):
            row[self.moves(own, others, np.flatnonzero(valid).tolist())] = True
        return {"action": uniform_choice(noise[:, 0], good)}

    def moves(self, own: int, others: int, valid: list[int]) -> list[int]:
        """The valid moves to choose from, by the stones of who moves and of the other, see `LineModel`."""
        raise NotImplementedError


class OnePly(LinePlayer):
    """Looks one move ahead: it wins if it can, else stops the other from winning, else moves at random."""

    def moves(self, own: int, others: int, valid: list[int]) -> list[int]:
        """See `LinePlayer`."""
        for stones in (own, others):
            if found := [move for move in valid if self.rules.won(stones | self._stone(own | others, move))]:
                return found
        return valid

    def _stone(self, occupied: int, move: int) -> int:
        stone: int = self.rules.placed(occupied, self.rules.lowest[move])
        return stone


class Perfect(LinePlayer):
    """Makes no mistake in tic-tac-toe, and draws among the best moves."""

    games = (TicTacToe,)

    def moves(self, own: int, others: int, valid: list[int]) -> list[int]:
        """See `LinePlayer`."""
        return list(_best(own, others)[1]) if valid else []


_NOUGHTS = TicTacToe.rules()


@functools.cache
def _best(own: int, others: int) -> tuple[int, tuple[int, ...]]:
    """What the one to move gains with perfect play on both sides, and the moves that gain it."""
    gains = {}
    for move, stone in enumerate(_NOUGHTS.tops):
        if not (own | others) & stone:
            gains[move] = 1 if _NOUGHTS.won(own | stone) else -_best(others, own | stone)[0]
    best = max(gains.values(), default=0)
    return best, tuple(move for move, gain in gains.items() if gain == best)

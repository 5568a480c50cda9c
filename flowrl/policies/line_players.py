"""Players of tic-tac-toe and connect four that need no training: opponents of known strength."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from flowrl.envs.games.connect_four import ConnectFour
from flowrl.envs.games.line_game import LineGame
from flowrl.envs.games.model import GameModel
from flowrl.envs.games.tic_tac_toe import TicTacToe
from flowrl.errors import ConfigError
from flowrl.networks.sampling import Array, uniform_choice
from flowrl.policies.scripted import FixedPolicy
from flowrl.policies.search import tree_search


class LinePlayer(FixedPolicy):
    """Base of players of a `LineGame`, who draw one of the moves that they find good, from their own noise.

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
        return {"action": uniform_choice(noise[:, 0], self.good(obs, noise[:, 1:]))}

    def good(self, obs: Any, noise: Array) -> Array:
        """The moves to choose from, bool `[N, A]`; a row depends on its own noise alone (K1)."""
        good = np.zeros_like(obs["action_mask"], bool)
        for row, (own, others), valid in zip(good, self.rules.states(obs).tolist(), obs["action_mask"]):
            row[self.moves(own, others, np.flatnonzero(valid).tolist())] = True
        return good

    def moves(self, own: int, others: int, valid: list[int]) -> list[int]:
        """Those of one game, by the stones of who moves and of the other, see `LineModel`."""
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


class MCTS(LinePlayer):
    """Searches the tree of moves without a network: see `tree_search`, with equal priors.

    A position is worth what the agent who moves there gains in one game of random moves from it. Of the moves with the
    most visits it draws one.

    Source: Kocsis & Szepesvári 2006, "Bandit based Monte-Carlo Planning", there with another bound.
    """

    simulations, c_puct = 200, 5.0

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.draws = 1 + self.simulations * self.rules.longest

    def good(self, obs: Any, noise: Array) -> Array:
        """See `LinePlayer`: those with the most visits."""
        good = np.zeros_like(obs["action_mask"], bool)
        moving = obs["action_mask"].any(1)
        if moving.any():
            visits = self._visits(self.rules.states(obs)[moving], noise[moving])
            good[moving] = visits == visits.max(1, keepdims=True)
        return good

    def _visits(self, roots: Array, noise: Array) -> Array:
        games = iter(np.split(noise, self.simulations, 1))
        equal = np.full((len(roots), self.rules.actions), 1 / self.rules.actions)

        def evaluate(states: Array) -> tuple[Array, Array]:
            return equal, played_out(self.rules, states, next(games))

        visits, _ = tree_search(
            self.rules, roots, evaluate, simulations=self.simulations, c_puct=self.c_puct, prior=equal
        )
        return visits


def played_out(model: GameModel, states: Array, noise: Array) -> Array:
    """What the agents who move in `states [N, ...]` gain in a game of random moves, by uniform noise `[N, moves]`."""
    gained, rows, turn = np.zeros(len(states)), np.arange(len(states)), 1.0
    for luck in noise.T:
        states, gain, over = model.play(states, uniform_choice(luck[rows], model.legal(states)))
        gained[rows] = turn * gain
        rows, states, turn = rows[~over], states[~over], -turn
        if not len(rows):
            break
    return gained


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

"""Board games for two in which the first one with some stones in a line wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from flowrl.envs.games.game import Game, Turn


class LineGame(Game):
    """`x` begins, then they place stones in turn: the first with `length` in a line wins 1, and the other loses 1.

    A full board without a line is a draw. Observations are `board [rows * columns]`, row by row from the top: 1 where
    the agent itself has a stone and -1 where the other has; and the `action_mask`. An action is a square, or a column
    where stones fall to the lowest free square of it.

    Raises: ValueError for a move to where there is no room.
    """

    possible_agents = ("x", "o")
    rows: ClassVar[int]
    columns: ClassVar[int]
    length: ClassVar[int]
    falls: ClassVar[bool] = False

    def __init__(self) -> None:
        squares, moves = self.rows * self.columns, self.columns if self.falls else self.rows * self.columns
        board = spaces.Box(-1, 1, (squares,), np.float32)
        space = spaces.Dict(board=board, action_mask=spaces.MultiBinary(moves))
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(moves))
        lines = _lines(self.rows, self.columns, self.length)
        #: Of each square, the lines through it, as sets of bits.
        self.lines = [[line for line in lines if line >> square & 1] for square in range(squares)]

    def reset(self, seed: int) -> Mapping[str, Any]:
        """The empty board, before `x`."""
        self._board = np.zeros(self.rows * self.columns, np.float32)  # of `x`
        self._room = np.ones(self.action_spaces["x"].n, np.int8)  # type: ignore[attr-defined]
        self._stones = {"x": 0, "o": 0}  # as sets of bits
        self._free = [self.rows - 1] * self.columns  # the lowest free row of each column
        self._left = len(self._board)
        return {"x": self._seen("x")}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """Place a stone."""
        ((agent, action),) = actions.items()
        square = self._place(int(action))
        own = self._stones[agent] = self._stones[agent] | 1 << square
        self._board[square] = 1.0 if agent == "x" else -1.0
        self._left -= 1
        other = "o" if agent == "x" else "x"
        won = any(own & line == line for line in self.lines[square])
        if not won and self._left:
            return Turn({other: self._seen(other)})
        obs = {each: self._seen(each) for each in self.possible_agents}
        reward = {agent: 1.0, other: -1.0} if won else {}
        info = {agent: {"is_success": won}, other: {"is_success": False}}
        return Turn(obs, reward, terminated=self.possible_agents, info=info)

    def render(self) -> str:
        """The board as text."""
        stones = np.array(["o", ".", "x"])[self._board.astype(int) + 1].reshape(self.rows, self.columns)
        return "\n".join("".join(row) for row in stones)

    def _place(self, move: int) -> int:
        if not self._room[move]:
            raise ValueError(f"there is no room at {move}: see action_mask\n{self.render()}")
        if not self.falls:
            self._room[move] = 0
            return move
        row = self._free[move]
        self._free[move] -= 1
        self._room[move] = row > 0
        return row * self.columns + move

    def _seen(self, agent: str) -> dict[str, Any]:
        return {"board": self._board.copy() if agent == "x" else -self._board, "action_mask": self._room.copy()}


def _lines(rows: int, columns: int, length: int) -> list[int]:
    """All lines of a board, as sets of bits."""
    found = []
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                line = [(row + down * at, column + right * at) for at in range(length)]
                if all(r < rows and 0 <= c < columns for r, c in line):
                    found.append(sum(1 << r * columns + c for r, c in line))
    return found

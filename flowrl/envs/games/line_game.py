"""Board games for two in which the first one with some stones in a line wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from flowrl.data.batch import Batch
from flowrl.data.types import Array
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.games.model import GameModel


class LineModel(GameModel):
    """The rules of a `LineGame`. Stones are sets of bits: whole numbers, or uint64 arrays of them.

    A state is two such sets, `[N, 2]`: the stones of the agent who moves next, and those of the other. Each column of
    the board has one bit more than squares, so that a set that is shifted against itself shows its lines: none runs
    from the top of one column into the next.
    """

    def __init__(self, rows: int, columns: int, length: int, falls: bool) -> None:
        self.length, self.falls = length, falls
        height = rows + 1
        #: Of each square, row by row from the top, the number of its bit.
        self.bits = [column * height + rows - 1 - row for row in range(rows) for column in range(columns)]
        self._steps = (1, height, height + 1, height - 1)  # from square to square: up, right, and both diagonals
        #: Of each move, where its stone falls from, and how far.
        self.tops = [1 << bit for bit in (self.bits[:columns] if falls else self.bits)]
        self.lowest = [1 << column * height for column in range(columns)] if falls else self.tops
        self.full = sum(1 << bit for bit in self.bits)
        self.actions, self.longest = len(self.tops), rows * columns
        self._shifts, self._tops, self._lowest = (
            np.array(bits, np.uint64) for bits in (self.bits, self.tops, self.lowest)
        )

    def placed(self, occupied: Any, lowest: Any) -> Any:
        """The stone of a move, by the bits of the board's stones and that of the move's lowest square."""
        return (occupied + lowest) & ~occupied if self.falls else lowest

    def won(self, stones: Any) -> Any:
        """Whether stones have a line: not 0."""
        found = stones & 0
        for step in self._steps:
            run = stones
            for _ in range(self.length - 1):
                run = run & (run >> step)
            found = found | run
        return found

    def states(self, obs: Any) -> Array:
        """See `GameModel`."""
        board, stones = obs["board"], np.uint64(1) << self._shifts
        return np.stack([(board > 0) @ stones, (board < 0) @ stones], 1)

    def observe(self, states: Array) -> Batch:
        """See `GameModel`."""
        own, others = (states[:, :, None] >> self._shifts & np.uint64(1)).astype(np.float32).swapaxes(0, 1)
        return Batch(board=own - others, action_mask=self.legal(states).astype(np.int8))

    def legal(self, states: Array) -> Array:
        """See `GameModel`."""
        free: Array = (states[:, 0] | states[:, 1])[:, None] & self._tops == 0
        return free

    def play(self, states: Array, actions: Array) -> tuple[Array, Array, Array]:
        """See `GameModel`."""
        own, others = states.T
        own = own | self.placed(own | others, self._lowest[actions])
        won = self.won(own) != 0
        return np.stack([others, own], 1), won.astype(np.float64), won | ((own | others) == self.full)

    def moves(self, states: Array) -> Array:
        """See `GameModel`."""
        count: Array = np.bitwise_count(states).sum(1, dtype=np.int64)
        return count


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
        self._model = model = self.rules()
        board = spaces.Box(-1, 1, (self.rows * self.columns,), np.float32)
        space = spaces.Dict(board=board, action_mask=spaces.MultiBinary(model.actions))
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(model.actions))
        self._square_of = {1 << bit: square for square, bit in enumerate(model.bits)}

    @classmethod
    def rules(cls) -> LineModel:
        """The rules alone."""
        return LineModel(cls.rows, cls.columns, cls.length, cls.falls)

    def model(self) -> LineModel:
        """See `Game.model`."""
        return self._model

    def reset(self, seed: int) -> Mapping[str, Any]:
        """The empty board, before `x`."""
        self._board = np.zeros(self.rows * self.columns, np.float32)  # of `x`
        self._room = np.ones(self._model.actions, np.int8)
        self._stones = {"x": 0, "o": 0}
        return {"x": self._seen("x")}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """Place a stone."""
        ((agent, action),) = actions.items()
        move, model = int(action), self._model
        if not self._room[move]:
            raise ValueError(f"there is no room at {move}: see action_mask\n{self.render()}")
        other = "o" if agent == "x" else "x"
        occupied = self._stones[agent] | self._stones[other]
        stone = model.placed(occupied, model.lowest[move])
        self._stones[agent] |= stone
        self._board[self._square_of[stone]] = 1.0 if agent == "x" else -1.0
        self._room[move] = not stone & model.tops[move]
        won = bool(model.won(self._stones[agent]))
        if not won and occupied | stone != model.full:
            return Turn({other: self._seen(other)})
        obs = {each: self._seen(each) for each in self.possible_agents}
        reward = {agent: 1.0, other: -1.0} if won else {}
        info = {agent: {"is_success": won}, other: {"is_success": False}}
        return Turn(obs, reward, terminated=self.possible_agents, info=info)

    def render(self) -> str:
        """The board as text."""
        stones = np.array(["o", ".", "x"])[self._board.astype(int) + 1].reshape(self.rows, self.columns)
        return "\n".join("".join(row) for row in stones)

    def _seen(self, agent: str) -> dict[str, Any]:
        return {"board": self._board.copy() if agent == "x" else -self._board, "action_mask": self._room.copy()}

"""GameModel: the rules of a game as functions of states, for a search over its moves."""

from __future__ import annotations

import abc
from typing import Any

from flowrl.data.types import Array


class GameModel(abc.ABC):
    """The rules of a game for two, of many states at once.

    The agents take turns, one move each; both see all there is to see, nothing is left to chance, and what one of them
    gains at the end, -1 to 1, the other loses. A *state* is all that the rest of the game depends on, from the view of
    the agent who moves next. States are one array `[N, ...]`, whatever the game keeps in a row of it.
    """

    actions: int  #: number of moves, of which some may be illegal in a state
    longest: int  #: the most moves of a game

    @abc.abstractmethod
    def states(self, obs: Any) -> Array:
        """The states `[N, ...]` in which agents observe `obs [N, ...]`, which are to move there."""

    @abc.abstractmethod
    def observe(self, states: Array) -> Any:
        """What the agent who moves next observes in these states: a `Batch` if the observation space is a Dict."""

    @abc.abstractmethod
    def legal(self, states: Array) -> Array:
        """The legal moves, bool `[N, A]`; at the end of a game they do not matter."""

    @abc.abstractmethod
    def play(self, states: Array, actions: Array) -> tuple[Array, Array, Array]:
        """The states after these moves `[N]`, what the agents that made them gain `[N]`, and where the game is over."""

    @abc.abstractmethod
    def moves(self, states: Array) -> Array:
        """How many moves led to each state, `[N]`."""

"""Games: environments of several agents, each with rows of its own; and some small ones, `flowrl:NAME`."""

from flowrl.envs.games.catalog import GAMES, make
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.games.wrappers import AgentId, EntryWrapper, GameWrapper, GlobalState, PadSpaces

__all__ = ["GAMES", "AgentId", "EntryWrapper", "Game", "GameWrapper", "GlobalState", "PadSpaces", "Turn", "make"]

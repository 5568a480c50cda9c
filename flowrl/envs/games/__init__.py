"""Games: environments of several agents, each with rows of its own; and some small ones, `flowrl:NAME`."""

from flowrl.envs.games.catalog import GAMES, make
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.games.wrappers import AgentId, GameWrapper, GlobalState

__all__ = ["GAMES", "AgentId", "Game", "GameWrapper", "GlobalState", "Turn", "make"]

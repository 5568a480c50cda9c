"""Games: environments of several agents, each with rows of its own; and some small ones, `flowrl:NAME`."""

from flowrl.envs.games.catalog import GAMES, make
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.games.join_agents import JoinAgents
from flowrl.envs.games.model import GameModel
from flowrl.envs.games.team import Team
from flowrl.envs.games.wrappers import (
    AgentId,
    BaseGameWrapper,
    EntryWrapper,
    FiniteHorizon,
    GameWrapper,
    GlobalState,
    PadSpaces,
)

__all__ = [
    "GAMES",
    "AgentId",
    "BaseGameWrapper",
    "EntryWrapper",
    "FiniteHorizon",
    "Game",
    "GameModel",
    "GameWrapper",
    "GlobalState",
    "JoinAgents",
    "PadSpaces",
    "Team",
    "Turn",
    "make",
]

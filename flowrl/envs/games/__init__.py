"""Games: environments of several agents, each with rows of its own."""

from flowrl.envs.games.game import Game, Turn

__all__ = ["Game", "Turn"]

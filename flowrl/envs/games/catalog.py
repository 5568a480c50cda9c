"""The games that flowrl has, by name: `flowrl:tic_tac_toe`."""

from __future__ import annotations

from typing import Any

from flowrl.envs.games.connect_four import ConnectFour
from flowrl.envs.games.game import Game
from flowrl.envs.games.kuhn_poker import KuhnPoker
from flowrl.envs.games.matching_pennies import MatchingPennies
from flowrl.envs.games.tic_tac_toe import TicTacToe
from flowrl.envs.games.two_cartpoles import TwoCartPoles
from flowrl.envs.games.two_step import TwoStep
from flowrl.errors import ConfigError, did_you_mean

GAMES: dict[str, type[Game]] = {
    "connect_four": ConnectFour,
    "kuhn_poker": KuhnPoker,
    "matching_pennies": MatchingPennies,
    "tic_tac_toe": TicTacToe,
    "two_cartpoles": TwoCartPoles,
    "two_step": TwoStep,
}


def make(name: str, /, **args: Any) -> Game:
    """One of flowrl's games. Raises: ConfigError for an unknown name."""
    if name not in GAMES:
        raise ConfigError(f"no game {name!r} in flowrl: {did_you_mean(name, GAMES)}")
    return GAMES[name](**args)

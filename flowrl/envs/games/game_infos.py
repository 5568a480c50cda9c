"""GameInfoColumns: numbers of the `info` of each agent of a game as columns of its rows (T12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.data.types import Array
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.games.seats import ANSWERED, TABLE, GameEnv
from flowrl.envs.games.wrappers import BaseGameWrapper
from flowrl.envs.infos import Fills, InfoColumns, InfoKeys, fills_of, number_of, shape_of
from flowrl.errors import SchemaError


class GameInfoColumns(InfoColumns):
    """`InfoColumns` for a game: columns `[agents, ...]` of those whose action has its answer now, 0 for the others.

    An agent's number is the newest that its `info` had between its action and its next turn, or its end.

    Raises: SchemaError, naming the agent, if no `info` of it had a key without a fill, or one had something else than
    its number.
    """

    def __init__(self, env: GameEnv, keys: InfoKeys) -> None:
        own = fills_of(keys)
        self._game = _Listening(env.game, own)
        agents = len(env.seating.agents)
        super().__init__(GameEnv(self._game), {key: np.zeros((agents, *shape_of(fill))) for key, fill in own.items()})

    def _numbers(self, obs: Any, info: Mapping[str, Any]) -> dict[str, Array]:
        columns = {key: np.zeros(shape_of(fill)) for key, fill in self._fills.items()}
        for at in np.flatnonzero(obs[TABLE][:, ANSWERED]).tolist():
            for key, number in self._game.newest(self._game.possible_agents[at]).items():
                columns[key][at] = number
        return columns


class _Listening(BaseGameWrapper):
    """A game whose agents' infos are kept from their actions on."""

    def __init__(self, game: Game, fills: Fills) -> None:
        super().__init__(game)
        self.observation_spaces, self._fills = game.observation_spaces, fills
        self._heard: dict[str, dict[str, Array]] = {}

    def __str__(self) -> str:
        return str(self.game)

    def reset(self, seed: int) -> Mapping[str, Any]:
        """See `Game.reset`."""
        self._heard = {agent: {} for agent in self.possible_agents}
        return self.game.reset(seed)

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """See `Game.step`."""
        turn = self.game.step(actions)
        for agent in self.possible_agents:
            heard = self._heard[agent] = {} if agent in actions else self._heard[agent]
            told = turn.info.get(agent, {}) if isinstance(turn, Turn) else {}
            for key, fill in self._fills.items():
                if key in told:
                    heard[key] = self._number(agent, key, told[key], fill)
        return turn

    def newest(self, agent: str) -> dict[str, Array]:
        """The numbers of an agent that is answered."""
        heard = self._heard[agent]
        return {key: self._number(agent, key, heard.get(key), fill) for key, fill in self._fills.items()}

    def _number(self, agent: str, key: str, value: Any, fill: Array | None) -> Array:
        try:
            return number_of(key, value, fill)
        except SchemaError as error:
            raise SchemaError(f"{self.game}, agent {agent!r}: {error}") from None

"""Wrappers of games, which add to what each agent observes."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from flowrl.data.columns import AGENT, STATE
from flowrl.envs.games.game import Game, Turn
from flowrl.errors import ConfigError


class GameWrapper(Game):
    """A game with one more entry in each agent's observation, `name`; one that is no dictionary becomes `obs`.

    Raises: ConfigError for an environment that is no game, and for observations with such an entry.
    """

    name: str

    def __init__(self, game: Game) -> None:
        if not isinstance(game, Game):
            raise ConfigError(f"the wrapper {type(self).__name__} is for games of several agents, but {game} has one")
        self.game = game
        self.possible_agents, self.action_spaces = game.possible_agents, game.action_spaces
        self.metadata, self.render_mode, self.state_space = game.metadata, game.render_mode, game.state_space
        self.observation_spaces = {agent: self._wider(agent, seen) for agent, seen in game.observation_spaces.items()}

    @abc.abstractmethod
    def entry_space(self) -> spaces.Space[Any] | None:
        """The space of the entry; None: there is nothing to add."""

    @abc.abstractmethod
    def entry(self, agent: str) -> Any:
        """The entry of an agent's observation now."""

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.game})"

    def reset(self, seed: int) -> Mapping[str, Any]:
        """See `Game.reset`."""
        obs = self.game.reset(seed)
        return self._seen(obs) if isinstance(obs, Mapping) else obs

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """See `Game.step`."""
        turn = self.game.step(actions)
        return turn._replace(obs=self._seen(turn.obs)) if isinstance(turn, Turn) else turn

    def state(self) -> Any:
        """See `Game.state`."""
        return self.game.state()

    def render(self) -> Any:
        """See `Game.render`."""
        return self.game.render()

    def close(self) -> None:
        """See `Game.close`."""
        self.game.close()

    def _wider(self, agent: str, space: spaces.Space[Any]) -> spaces.Space[Any]:
        added = self.entry_space()
        if added is None:
            return space
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
        if self.name in parts:
            raise ConfigError(
                f"{self.game}, agent {agent!r}: observations have an entry {self.name!r} already: leave out the "
                f"wrapper {type(self).__name__}"
            )
        return spaces.Dict({**parts, self.name: added})

    def _seen(self, obs: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.entry_space() is None:
            return obs
        found = {}
        for agent, seen in obs.items():
            if agent not in self.possible_agents:  # who reads this refuses it by name
                found[agent] = seen
                continue
            parts = seen if isinstance(self.game.observation_spaces[agent], spaces.Dict) else {"obs": seen}
            found[agent] = {**parts, self.name: self.entry(agent)}
        return found


class AgentId(GameWrapper):
    """Tells each agent who it is: the entry `agent`, its number in `possible_agents`, so that one network plays all.

    >>> from flowrl.envs.games import make
    >>> game = AgentId(make("two_step"))
    >>> game.reset(seed=0)["second"]
    {'obs': array([1., 0., 0.], dtype=float32), 'agent': np.int64(1)}
    """

    name = AGENT

    def entry_space(self) -> spaces.Space[Any]:
        """A number."""
        return spaces.Discrete(len(self.possible_agents))

    def entry(self, agent: str) -> Any:
        """Its number."""
        return np.int64(self.possible_agents.index(agent))


class GlobalState(GameWrapper):
    """Adds the state of the whole game, `Game.state`, as the entry `state`, for learners that know more than an agent.

    A network that acts must leave it out, as that of `QMIXPolicy` does. A game without a state stays as it is.
    """

    name = STATE

    def entry_space(self) -> spaces.Space[Any] | None:
        """That of the state."""
        return self.state_space

    def entry(self, agent: str) -> Any:
        """The state now, the same for all."""
        return self.game.state()

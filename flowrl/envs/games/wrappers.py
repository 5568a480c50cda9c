"""Wrappers of games, most of which change what each agent observes."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from gymnasium import spaces

from flowrl.data.columns import ACTION_MASK, AGENT, STATE
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.masks import with_mask
from flowrl.errors import ConfigError, did_you_mean


def agents_named(game: Game, pattern: str, what: str) -> list[str]:
    """The agents of a game that a name or a pattern fits. Raises: ConfigError, which `what` begins: there is none."""
    found = [agent for agent in game.possible_agents if fnmatchcase(agent, pattern)]
    if not found:
        raise ConfigError(f"{what}: no agent of {game} is {pattern!r}: {did_you_mean(pattern, game.possible_agents)}")
    return found


class BaseGameWrapper(Game):
    """Base of games around another one, `game`, of which they keep what they do not replace.

    Raises: ConfigError for an environment that is no game.
    """

    def __init__(self, game: Game) -> None:
        if not isinstance(game, Game):
            raise ConfigError(f"the wrapper {type(self).__name__} is for games of several agents, but {game} has one")
        self.game = game
        self.possible_agents, self.action_spaces = game.possible_agents, game.action_spaces
        self.metadata, self.render_mode, self.state_space = game.metadata, game.render_mode, game.state_space
        self.discounts, self.instant = game.discounts, game.instant

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.game})"

    def state(self) -> Any:
        """See `Game.state`."""
        return self.game.state()

    def render(self) -> Any:
        """See `Game.render`."""
        return self.game.render()

    def close(self) -> None:
        """See `Game.close`."""
        self.game.close()


class FiniteHorizon(BaseGameWrapper):
    """A game whose time limit is its end: who would be truncated is terminated, so nothing is bootstrapped there.

    Values are then those of the steps that are played. Without it they are those of a game that would go on, in states
    that no step begins in, such as those farthest away; learners from replay may make up values there that grow
    without bound. An agent that must know how much time is left has to observe it.

    Source: Pardo et al. 2018, "Time Limits in Reinforcement Learning", section 3, without the observation of time.
    """

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self.observation_spaces = game.observation_spaces

    def reset(self, seed: int) -> Mapping[str, Any]:
        """See `Game.reset`."""
        return self.game.reset(seed)

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """See `Game.step`."""
        turn = self.game.step(actions)
        if not isinstance(turn, Turn) or not turn.truncated:
            return turn
        return turn._replace(terminated=(*turn.terminated, *turn.truncated), truncated=())


class GameWrapper(BaseGameWrapper):
    """Base of games whose agents observe something else than in the game inside; see `space_of` and `observed`."""

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self.observation_spaces = {agent: self.space_of(agent) for agent in game.observation_spaces}

    @abc.abstractmethod
    def space_of(self, agent: str) -> spaces.Space[Any]:
        """The space of an agent's observations."""

    @abc.abstractmethod
    def observed(self, obs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The observations of agents that the game has, from those in it."""

    def reset(self, seed: int) -> Mapping[str, Any]:
        """See `Game.reset`."""
        obs = self.game.reset(seed)
        return self._seen(obs) if isinstance(obs, Mapping) else obs

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """See `Game.step`."""
        turn = self.game.step(actions)
        return turn._replace(obs=self._seen(turn.obs)) if isinstance(turn, Turn) else turn

    def _seen(self, obs: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {agent: seen for agent, seen in obs.items() if agent in self.possible_agents}
        return {**obs, **self.observed(known)}  # who reads it refuses strangers by name


class EntryWrapper(GameWrapper):
    """A game with one more entry in each agent's observation, `name`; one that is no dictionary becomes `obs`.

    Raises: ConfigError for observations with such an entry.
    """

    name: str

    @abc.abstractmethod
    def entry_space(self) -> spaces.Space[Any] | None:
        """The space of the entry; None: there is nothing to add."""

    @abc.abstractmethod
    def entries(self, agents: Iterable[str]) -> Mapping[str, Any]:
        """The entry of each agent's observation now."""

    def space_of(self, agent: str) -> spaces.Space[Any]:
        """See `GameWrapper.space_of`."""
        space, added = self.game.observation_spaces[agent], self.entry_space()
        if added is None:
            return space
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
        if self.name in parts:
            raise ConfigError(
                f"{self.game}, agent {agent!r}: observations have an entry {self.name!r} already: leave out the "
                f"wrapper {type(self).__name__}"
            )
        return spaces.Dict({**parts, self.name: added})

    def observed(self, obs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `GameWrapper.observed`."""
        if not obs or self.entry_space() is None:
            return obs
        found, entries = {}, self.entries(obs)
        for agent, seen in obs.items():
            parts = seen if isinstance(self.game.observation_spaces[agent], spaces.Dict) else {"obs": seen}
            found[agent] = {**parts, self.name: entries[agent]}
        return found


class AgentId(EntryWrapper):
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

    def entries(self, agents: Iterable[str]) -> Mapping[str, Any]:
        """Their numbers."""
        return {agent: np.int64(self.possible_agents.index(agent)) for agent in agents}


class GlobalState(EntryWrapper):
    """Adds the state of the whole game, `Game.state`, as the entry `state`, for learners that know more than an agent.

    A network that acts must leave it out, as that of `QMIXPolicy` does, and that of `PPOPolicy` where it is
    `privileged`. A game without a state stays as it is.
    """

    name = STATE

    def entry_space(self) -> spaces.Space[Any] | None:
        """That of the state."""
        return self.state_space

    def entries(self, agents: Iterable[str]) -> Mapping[str, Any]:
        """The state now, the same for all."""
        return dict.fromkeys(agents, self.game.state())


class PadSpaces(GameWrapper):
    """Gives all agents the same spaces, so that one policy can play those whose observations or actions differ in size.

    A Box of observations has the largest size along each axis, and zeros beyond an agent's own numbers. Discrete
    actions are as many as the agent with most of them has; where others have less, an `action_mask` in the observation
    marks those that an agent has. Of a Box of actions an agent plays the first ones. `AgentId` tells the agents apart.

    Raises: ConfigError, naming two agents: their spaces differ in more than sizes.

    >>> class Unequal(Game):
    ...     possible_agents = ("big", "small")
    ...     observation_spaces = {"big": spaces.Box(0, 1, (3,)), "small": spaces.Box(0, 1, (1,))}
    ...     action_spaces = {"big": spaces.Discrete(2), "small": spaces.Discrete(3)}
    ...     def reset(self, seed):
    ...         return {"big": np.ones(3, np.float32), "small": np.ones(1, np.float32)}
    ...     def step(self, actions):
    ...         return Turn({}, terminated=self.possible_agents)
    >>> game = PadSpaces(Unequal())
    >>> game.action_spaces["big"], game.reset(seed=0)["small"]["obs"], game.reset(seed=0)["big"]["action_mask"]
    (Discrete(3), array([1., 0., 0.], dtype=float32), array([1, 1, 0], dtype=int8))
    """

    def __init__(self, game: Game) -> None:
        if isinstance(game, Game):
            self._common = _common(game.observation_spaces, str(game), "observation")
            self._action = _common(game.action_spaces, str(game), "action")
            self._masks = self._choices(game)
        super().__init__(game)
        self.action_spaces = dict.fromkeys(game.action_spaces, self._action)

    def _choices(self, game: Game) -> dict[str, Any]:
        """By agent, the mask of the actions that it has; empty if all have as many."""
        own = {agent: int(space.n) for agent, space in game.action_spaces.items() if isinstance(space, spaces.Discrete)}
        if len(set(own.values())) < 2:
            return {}
        return {agent: (np.arange(max(own.values())) < n).astype(np.int8) for agent, n in own.items()}

    def space_of(self, agent: str) -> spaces.Space[Any]:
        """That of all agents."""
        if not self._masks:
            return self._common
        common = self._common
        if isinstance(common, spaces.Dict):
            common = spaces.Dict({name: part for name, part in common.spaces.items() if name != ACTION_MASK})
        return with_mask(common, self._action)

    def observed(self, obs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `GameWrapper.observed`."""
        return {agent: self._of(agent, seen) for agent, seen in obs.items()}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """See `Game.step`."""
        return super().step({agent: self._played(agent, action) for agent, action in actions.items()})

    def _of(self, agent: str, seen: Any) -> Any:
        wide = _padded(seen, self._common)
        if not self._masks:
            return wide
        parts = wide if isinstance(self._common, spaces.Dict) else {"obs": wide}
        own = self._masks[agent]
        return {**parts, ACTION_MASK: own * parts[ACTION_MASK] if ACTION_MASK in parts else own}

    def _played(self, agent: str, action: Any) -> Any:
        own = self.game.action_spaces[agent]
        if isinstance(own, spaces.Box) and own.shape != self._action.shape:
            return action[tuple(map(slice, own.shape))]
        return action


def _common(of: Mapping[str, spaces.Space[Any]], game: str, what: str) -> spaces.Space[Any]:
    """The least space that those of all agents can be padded to."""
    (first, common), *others = of.items()
    for agent, space in others:
        wider = _wider(common, space)
        if wider is None:
            raise ConfigError(
                f"{game}: the {what} spaces of {first!r}, {of[first]}, and of {agent!r}, {space}, differ in more than "
                "their sizes, so no padding makes them one: give each kind of agents a policy of its own"
            )
        common = wider
    return common


def _wider(one: spaces.Space[Any], other: spaces.Space[Any]) -> spaces.Space[Any] | None:
    if one == other:
        return one
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict) and one.keys() == other.keys():
        parts = {name: _wider(part, other[name]) for name, part in one.items()}
        return None if None in parts.values() else spaces.Dict(parts)  # type: ignore[arg-type]
    if isinstance(one, spaces.Discrete) and isinstance(other, spaces.Discrete) and one.start == other.start:
        return max(one, other, key=lambda space: int(space.n))
    if isinstance(one, spaces.MultiBinary) and isinstance(other, spaces.MultiBinary) and one.n != other.n:
        return max(one, other, key=lambda space: int(np.prod(space.n)))
    if not isinstance(one, spaces.Box) or not isinstance(other, spaces.Box) or one.dtype != other.dtype:
        return None
    if len(one.shape) != len(other.shape):
        return None
    shape = tuple(map(max, one.shape, other.shape))
    low = np.minimum(_wide(one.low, shape), _wide(other.low, shape))
    return spaces.Box(low, np.maximum(_wide(one.high, shape), _wide(other.high, shape)), shape, low.dtype.type)


def _padded(seen: Any, space: spaces.Space[Any]) -> Any:
    """An observation with zeros up to the size of a space."""
    if isinstance(space, spaces.Dict) and isinstance(seen, Mapping):
        return {name: _padded(part, space[name]) for name, part in seen.items()}
    return seen if isinstance(space, spaces.Discrete) or space.shape is None else _wide(seen, space.shape)


def _wide(array: Any, shape: tuple[int, ...]) -> Any:
    own = np.asarray(array)
    if own.shape == shape:
        return own
    wide = np.zeros(shape, own.dtype)
    wide[tuple(map(slice, own.shape))] = own
    return wide

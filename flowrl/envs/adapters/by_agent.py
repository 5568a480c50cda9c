"""gymnasium environments of several agents, whose actions and observations are dictionaries or tuples, as games."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.envs.games.game import Game, Turn

#: What to do about an environment that `looks_like_agents`, but does not say so.
WAY_OUT = "if each entry is an agent, say so with agents={'*': 'policy'}"
#: Where environments have the names of their agents, or their number.
_DECLARED = ("possible_agents", "agents", "agent_ids", "_agent_ids", "n_agents", "num_agents")


def looks_like_agents(made: Any) -> TypeGuard[gymnasium.Env[Any, Any]]:
    """Whether actions and observations are Dicts with the same keys, or Tuples with as many entries: of agents, or of
    one agent with several sensors and motors.
    """
    if not isinstance(made, gymnasium.Env):
        return False
    try:
        action, observation = made.action_space, made.observation_space
    except AttributeError:  # it does not say its spaces, which is told where it is made
        return False
    if isinstance(action, spaces.Tuple) and isinstance(observation, spaces.Tuple):
        return 0 < len(action.spaces) == len(observation.spaces)
    if not isinstance(action, spaces.Dict) or not isinstance(observation, spaces.Dict):
        return False
    return bool(action.spaces) and action.spaces.keys() == observation.spaces.keys()


def declares_agents(env: gymnasium.Env[Any, Any]) -> bool | None:
    """Whether an environment that `looks_like_agents` declares them (R2); None: it says nothing."""
    keys = {*map(str, env.action_space.spaces)} if isinstance(env.action_space, spaces.Dict) else set()
    number = len(env.action_space.spaces)  # type: ignore[attr-defined]
    for name in _DECLARED:
        if (found := _attribute(env, name)) is None or callable(found):
            continue
        if isinstance(found, int | np.integer):
            return int(found) == number
        names = {each for each in found if isinstance(each, str)}
        if found:
            return names == keys if names and keys else len(found) == number
    return None if _attribute(env, "reward_space") is None else False  # several goals of one agent


def rewards_each(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment that `looks_like_agents` has a reward for each (R2); it acts one step."""
    actions = copy.deepcopy(env.action_space)
    actions.seed(0)
    try:
        env.reset(seed=0)
        reward: Any = env.step(actions.sample())[1]
    except Exception:  # it says so when it is played
        return False
    if isinstance(reward, Mapping):
        return bool(reward) and {*reward} <= {*actions.spaces, "__all__"}  # type: ignore[attr-defined]
    number = len(actions.spaces)  # type: ignore[attr-defined]
    return isinstance(reward, list | tuple | np.ndarray) and np.shape(reward) == (number,)


def _attribute(env: Any, name: str) -> Any:
    """That of the outermost layer that has it; None: none has."""
    while env is not None and not hasattr(env, name):
        env = getattr(env, "env", None)
    return getattr(env, name, None)


def game_of(env: gymnasium.Env[Any, Any]) -> DictGame:
    """An environment that `looks_like_agents` as a game."""
    return TupleGame(env) if isinstance(env.action_space, spaces.Tuple) else DictGame(env)


class DictGame(Game):
    """All agents act together, but for those that have ended, or whose observation is missing.

    `reward`, `terminated` and `truncated` are one value for all agents, or a dictionary by agent, in which a missing
    agent has 0 or False, and `"__all__"` means all. `info` is one for all agents unless it has their names for keys.

    >>> class Sum(gymnasium.Env):
    ...     observation_space = spaces.Dict(left=spaces.Discrete(2), right=spaces.Discrete(2))
    ...     action_space = spaces.Dict(left=spaces.Discrete(3), right=spaces.Discrete(3))
    ...     def reset(self, seed=None, options=None):
    ...         return {"left": 0, "right": 0}, {}
    ...     def step(self, action):
    ...         return {"left": 1, "right": 1}, action["left"] + action["right"], True, False, {}
    >>> game = DictGame(Sum())
    >>> game.reset(seed=0), game.step({"left": 2, "right": 1}).reward
    ({'left': 0, 'right': 0}, {'left': 3, 'right': 3})
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        assert isinstance(env.action_space, spaces.Dict)
        assert isinstance(env.observation_space, spaces.Dict)
        self.action_spaces, self.observation_spaces = env.action_space.spaces, env.observation_space.spaces
        self.possible_agents = tuple(map(str, self.action_spaces))
        self.metadata, self.render_mode = dict(env.metadata), env.render_mode

    def __str__(self) -> str:
        return str(self.env)

    def reset(self, seed: int) -> Mapping[str, Any]:
        """The observations of those who begin."""
        self._ended: set[str] = set()
        obs, _ = self.env.reset(seed=seed)
        return dict(obs)

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """All actions at once."""
        answer: Any = self.env.step(dict(actions))
        obs, reward, terminated, truncated, info = answer
        rewards = reward if isinstance(reward, Mapping) else dict.fromkeys(self.possible_agents, reward)
        own = any(agent in info for agent in self.possible_agents)
        infos = info if own else dict.fromkeys(self.possible_agents, info)
        seen = {agent: each for agent, each in obs.items() if agent not in self._ended}
        over, cut = self._who(terminated), self._who(truncated)
        self._ended.update(over, cut)
        return Turn(seen, rewards, over, cut, infos)

    def render(self) -> Any:
        """The rendering of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _who(self, flags: Any) -> list[str]:
        """The agents for which a flag is set."""
        if not isinstance(flags, Mapping):
            return list(self.possible_agents) if flags else []
        if flags.get("__all__"):
            return list(self.possible_agents)
        return [agent for agent, flag in flags.items() if flag and agent != "__all__"]


class NamedAgents(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Dictionaries by agent, `agent_0` and so on, in place of tuples.

    Of an agent that has ended before others the last action counts on, since a tuple has one of everybody.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Tuple)
        assert isinstance(env.action_space, spaces.Tuple)
        observations, actions = env.observation_space.spaces, env.action_space.spaces
        self.names = tuple(f"agent_{number}" for number in range(len(actions)))
        self.observation_space = spaces.Dict([*zip(self.names, observations)])
        self.action_space = spaces.Dict([*zip(self.names, actions)])  # a list keeps the order
        self._newest: dict[str, Any] = {}
        self.seen: tuple[Any, ...] = ()  #: the newest observations of all

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The observations of all."""
        self.seen, info = self.env.reset(seed=seed, options=options)
        return self._named(self.seen), info

    def step(self, action: Mapping[str, Any]) -> Any:
        """All actions at once."""
        self._newest.update(action)
        self.seen, *answer, info = self.env.step(tuple(self._newest[name] for name in self.names))
        return (self._named(self.seen), *map(self._named, answer), info)

    def _named(self, values: Any) -> Any:
        """What each agent has, by its name; what all have together as it is."""
        return dict(zip(self.names, values)) if isinstance(values, tuple | list | np.ndarray) else values


class TupleGame(DictGame):
    """All agents act together, as in a `DictGame`; their names are `agent_0` and so on.

    `reward`, `terminated` and `truncated` have one entry for each agent, or are one value for all. Agents whose
    observations are Boxes of one type have a state of the game: all of them side by side.

    >>> class Sum(gymnasium.Env):
    ...     observation_space = spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (2,))])
    ...     action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])
    ...     def reset(self, seed=None, options=None):
    ...         return (np.zeros(2, np.float32), np.ones(2, np.float32)), {}
    ...     def step(self, action):
    ...         return self.reset()[0], [sum(action), 0.0], True, False, {}
    >>> game = TupleGame(Sum())
    >>> game.reset(seed=0)["agent_1"], game.state(), game.step({"agent_0": 1, "agent_1": 2}).reward["agent_0"]
    (array([1., 1.], dtype=float32), array([0., 0., 1., 1.], dtype=float32), 3)
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._named = NamedAgents(env)
        super().__init__(self._named)
        boxes = [space for space in self.observation_spaces.values() if isinstance(space, spaces.Box)]
        if len(boxes) == len(self.possible_agents) and len({box.dtype for box in boxes}) == 1:
            low, high = (
                np.concatenate([*map(np.ravel, sides)]) for sides in zip(*((box.low, box.high) for box in boxes))
            )
            self.state_space = spaces.Box(low, high, low.shape, low.dtype.type)

    def __str__(self) -> str:
        return str(self._named.env)

    def state(self) -> Any:
        """The observations of all, side by side."""
        if self.state_space is None:
            return super().state()
        return np.concatenate([np.ravel(seen) for seen in self._named.seen])

"""gymnasium environments of several agents, whose actions and observations are dictionaries by agent, as games."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import gymnasium
from gymnasium import spaces

from flowrl.envs.games.game import Game, Turn


def is_one(made: Any) -> TypeGuard[gymnasium.Env[Any, Any]]:
    """Whether an environment's actions and observations are Dicts with the same keys, its agents."""
    if not isinstance(made, gymnasium.Env):
        return False
    try:
        action, observation = made.action_space, made.observation_space
    except AttributeError:  # it does not say its spaces, which is told where it is made
        return False
    if not isinstance(action, spaces.Dict) or not isinstance(observation, spaces.Dict):
        return False
    return bool(action.spaces) and action.spaces.keys() == observation.spaces.keys()


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

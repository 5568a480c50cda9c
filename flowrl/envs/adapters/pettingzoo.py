"""PettingZoo: turn-based and parallel environments as games, and one agent as an environment."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium

from flowrl.envs.games.game import Game, Turn
from flowrl.envs.masks import UNASKED, masked, unasked_mask, with_mask
from flowrl.envs.pictures import declare_known
from flowrl.errors import ConfigError, SchemaError, closest

log = logging.getLogger("flowrl")


def make(env_id: str, /, **args: Any) -> Any:
    """An environment of PettingZoo's registry, parallel if available: `classic/rps-v2`.

    Raises: ConfigError if PettingZoo, the environment or one of its imports is not installed.
    """
    try:
        zoo = importlib.import_module("pettingzoo")
    except ModuleNotFoundError as error:
        raise ConfigError(f"'pettingzoo:{env_id}' needs pettingzoo: pip install 'flowrl-engine[envs]'") from error
    errors = importlib.import_module("pettingzoo.env_registry.exceptions")
    for kind in ("parallel", "aec"):
        try:
            return zoo.make(kind, env_id, **args)
        except errors.FailedToImport as error:
            raise ConfigError(f"'pettingzoo:{env_id}' cannot be made: {error.__cause__}; {error}") from error
        except errors.PettingZooRegistryError:
            continue
    known = {*zoo.parallel_registry, *zoo.aec_registry}
    raise ConfigError(f"no environment {env_id!r} in pettingzoo: {closest(env_id, known)}")


def is_one(made: Any) -> bool:
    """Whether an object is a PettingZoo environment, parallel or turn-based."""
    zoo = sys.modules.get("pettingzoo")
    return zoo is not None and isinstance(made, zoo.ParallelEnv | zoo.AECEnv)


def converted(made: Any) -> OneAgentEnv | Game:
    """One agent as an environment, several as a game.

    A turn-based environment plays in parallel if its metadata says `is_parallelizable`.

    Raises: ConfigError for an environment that does not name its agents.
    """
    zoo = sys.modules["pettingzoo"]
    if not isinstance(made, zoo.ParallelEnv):
        if not made.metadata.get("is_parallelizable", False):
            return TurnBasedGame(made)
        made = importlib.import_module("pettingzoo.utils.conversions").aec_to_parallel(made)
    agents = _agents(made)
    return OneAgentEnv(made, agents[0]) if len(agents) == 1 else ParallelGame(made)


def _agents(env: Any) -> list[Any]:
    """Those that it names."""
    return list(_said(env, "possible_agents") or [])


def _said(env: Any, name: str) -> Any:
    """What it need not say; None if it does not."""
    return getattr(env, name, None)


class PettingZooGame(Game):
    """What turn-based and parallel environments have in common.

    `masked`: the `action_mask` in each agent's `info` goes into its observation, as `ActionMask` does for one agent.

    Raises: ConfigError for an environment that does not name its possible_agents, and for a mask that cannot be.
    """

    def __init__(self, env: Any, masked: bool = False) -> None:
        self.env, self._masked = env, masked
        agents = _agents(env)
        if not agents:
            raise ConfigError(
                f"{env} does not name its possible_agents, expected the names of all that may ever act: each has "
                "a seat from the start, also who appears late (M2)"
            )
        self._ids = {str(agent): agent for agent in agents}
        self.possible_agents = tuple(self._ids)
        self.metadata, self.render_mode = dict(env.metadata or {}), _said(env, "render_mode")
        self.action_spaces = {name: env.action_space(agent) for name, agent in self._ids.items()}
        spaces = {name: env.observation_space(agent) for name, agent in self._ids.items()}
        if masked:
            spaces = {name: with_mask(space, self.action_spaces[name]) for name, space in spaces.items()}
        declare_known(env, spaces.values())
        self.observation_spaces = spaces
        self.state_space = _said(env, "state_space")

    def __str__(self) -> str:
        return str(self.env)

    def state(self) -> Any:
        """That of the environment."""
        return self.env.state()

    def render(self) -> Any:
        """The rendering of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _seen(self, agent: str, obs: Any, info: Mapping[str, Any], during: str) -> Any:
        if not self._masked or agent not in self._ids:
            if during == "reset" and agent in self._ids and unasked_mask(info, self.observation_spaces[agent]):
                _tell_of_masks(str(self))
            return obs
        try:
            return masked(obs, info, self.action_spaces[agent], during)
        except SchemaError as error:
            raise SchemaError(f"{self}, agent {agent!r}: {error}") from None


@functools.cache  # once, however many copies there are
def _tell_of_masks(game: str) -> None:
    log.warning("%s: %s", game, UNASKED)


def with_masks(game: Game) -> PettingZooGame:
    """The same game, with the masks of `info` in the observations. Raises: ConfigError if it cannot have them."""
    if isinstance(game, PettingZooGame):
        return type(game)(game.env, masked=True)
    raise ConfigError(
        f"{game} is no game of PettingZoo, whose masks are in info: put action_mask into its observations"
    )


class ParallelGame(PettingZooGame):
    """A parallel environment: all agents act together that are there (M2).

    An agent without an observation waits. One that is no longer among the environment's agents and has not ended does
    not act, until it appears again.
    """

    def reset(self, seed: int) -> Mapping[str, Any]:
        """The observations of those who begin."""
        obs, infos = self.env.reset(seed=seed)
        return {
            (name := str(agent)): self._seen(name, seen, infos.get(agent, {}), "reset") for agent, seen in obs.items()
        }

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """All actions at once."""
        obs, rewards, terminated, truncated, infos = self.env.step(
            {self._ids[name]: action for name, action in actions.items()}
        )
        ended, cut = ([str(agent) for agent, over in flags.items() if over] for flags in (terminated, truncated))
        there = {*map(str, self.env.agents), *ended, *cut}
        return Turn(
            {
                name: self._seen(name, seen, infos.get(agent, {}), "step")
                for agent, seen in obs.items()
                if (name := str(agent)) in there
            },
            {str(agent): reward for agent, reward in rewards.items()},
            ended,
            cut,
            {str(agent): info for agent, info in infos.items()},
        )


class TurnBasedGame(PettingZooGame):
    """A turn-based environment: whose turn it is acts alone.

    An agent's reward comes with its turn, as what the environment has accumulated for it (M1). An agent that has ended
    takes its last turn without an action, which nobody sees.
    """

    def reset(self, seed: int) -> Mapping[str, Any]:
        """The observation of who begins."""
        self.env.reset(seed=seed)
        return self._next("reset").obs

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """The action of the one agent whose turn it is."""
        for action in actions.values():
            self.env.step(action)
        return self._next("step")

    def _next(self, during: str) -> Turn:
        """The next turn with an action; those who have ended pass before it."""
        env = self.env
        seen: dict[str, Any] = {}
        rewards: dict[str, float] = {}
        infos: dict[str, Any] = {}
        terminated: list[str] = []
        truncated: list[str] = []
        while env.agents:
            name = str(env.agent_selection)
            obs, rewards[name], ended, cut, infos[name] = env.last()
            seen[name] = self._seen(name, obs, infos[name], during)
            if not (ended or cut):
                break
            (terminated if ended else truncated).append(name)
            env.step(None)
        return Turn(seen, rewards, terminated, truncated, infos)


class OneAgentEnv(gymnasium.Env[Any, Any]):
    """The only agent of a parallel environment."""

    def __init__(self, env: Any, agent: Any) -> None:
        self.env, self.agent = env, agent
        self.observation_space, self.action_space = env.observation_space(agent), env.action_space(agent)
        declare_known(env, [self.observation_space])
        self.metadata, self.render_mode = dict(env.metadata or {}), _said(env, "render_mode")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The agent's first observation of an episode."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return obs[self.agent], infos.get(self.agent, {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The agent's (obs, reward, terminated, truncated, info)."""
        obs, reward, terminated, truncated, infos = self.env.step({self.agent: action})
        of = self.agent
        return obs[of], float(reward[of]), bool(terminated[of]), bool(truncated[of]), infos.get(of, {})

    def render(self) -> Any:
        """The rendering of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

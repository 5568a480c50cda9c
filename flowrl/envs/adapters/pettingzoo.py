"""PettingZoo: environments of several agents, each of which acts like the agent of a separate environment."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from flowrl.data.columns import ACTION_MASK
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.masks import masked, with_mask
from flowrl.errors import ConfigError, SchemaError, closest

#: The keys of an agent's final info that are passed on.
_KEPT = ("is_success", ACTION_MASK)


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


def converted(
    made: Any, num_envs: int, another: Callable[[], Any]
) -> gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]:
    """One agent as an environment; several as environments that step together, in as many copies as needed.

    A turn-based environment is accepted if its metadata says `is_parallelizable`.

    Raises: ConfigError for any other turn-based environment, for agents that do not share their spaces, and if
    `num_envs` is not a multiple of their number.
    """
    env = _parallel(made)
    agents = list(getattr(env, "possible_agents", []))
    if not agents:
        raise ConfigError(
            f"{made} does not name its possible_agents: agents that appear on the way are not served (M2)"
        )
    if len(agents) == 1:
        return OneAgentEnv(env, agents[0])
    if num_envs % len(agents):
        below = num_envs // len(agents) * len(agents)
        fits = [str(count) for count in (below, below + len(agents)) if count]
        raise ConfigError(
            f"{made} has {len(agents)} agents, each of which is an environment here: num_envs={num_envs} is not "
            f"a multiple of that; take {' or '.join(fits)}"
        )
    return AgentsVectorEnv([env, *(_parallel(another()) for _ in range(num_envs // len(agents) - 1))])


class PettingZooGame(Game):
    """What turn-based and parallel environments have in common.

    `masked`: the `action_mask` in each agent's `info` goes into its observation, as `ActionMask` does for one agent.

    Raises: ConfigError for an environment that does not name its possible_agents, and for a mask that cannot be.
    """

    def __init__(self, env: Any, masked: bool = False) -> None:
        self.env, self._masked = env, masked
        agents = list(getattr(env, "possible_agents", None) or [])
        if not agents:
            raise ConfigError(
                f"{env} does not name its possible_agents, expected the names of all that may ever act: each has "
                "a seat from the start, also who appears late (M2)"
            )
        self._ids = {str(agent): agent for agent in agents}
        self.possible_agents = tuple(self._ids)
        self.metadata, self.render_mode = dict(env.metadata), getattr(env, "render_mode", None)
        self.action_spaces = {name: env.action_space(agent) for name, agent in self._ids.items()}
        spaces = {name: env.observation_space(agent) for name, agent in self._ids.items()}
        if masked:
            spaces = {name: with_mask(space, self.action_spaces[name]) for name, space in spaces.items()}
        self.observation_spaces = spaces

    def __str__(self) -> str:
        return str(self.env)

    def render(self) -> Any:
        """The rendering of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _seen(self, agent: str, obs: Any, info: Mapping[str, Any], during: str) -> Any:
        if not self._masked or agent not in self._ids:
            return obs
        try:
            return masked(obs, info, self.action_spaces[agent], during)
        except SchemaError as error:
            raise SchemaError(f"{self}, agent {agent!r}: {error}") from None


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
        env, terminated, truncated = self.env, list[str](), list[str]()
        seen, rewards, infos = dict[str, Any](), dict[str, float](), dict[str, Any]()
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
        self.metadata, self.render_mode = dict(env.metadata), getattr(env, "render_mode", None)

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


class AgentsVectorEnv(VectorEnv[Any, Any, Any]):
    """Each agent of several equal parallel environments, as a separate environment.

    Rows are the agents of the first environment, in the order of `possible_agents`, then those of the next. When its
    agents have ended, an environment resets in the same step (T2), with a new seed. Each agent has its own episodes,
    returns and steps.

    Raises: ConfigError if agents differ in their spaces; SchemaError if an agent ends, appears or leaves while others
    go on (M1, M2), which is not supported.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        self.envs, self.agents = list(envs), list(envs[0].possible_agents)
        self.num_envs = len(envs) * len(self.agents)
        self.metadata = {**envs[0].metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = self._shared("observation", envs[0].observation_space)
        self.single_action_space = self._shared("action", envs[0].action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._seeds = [np.random.default_rng() for _ in envs]
        #: Further keys of an agent's info that are passed on.
        self.passed: set[str] = set()

    def __str__(self) -> str:
        return f"AgentsVectorEnv({len(self.envs)} x {self.envs[0]}, {len(self.agents)} agents)"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes everywhere; `seed` determines their starts."""
        if seed is not None:
            self._seeds = [np.random.default_rng([seed, copy]) for copy in range(len(self.envs))]
        rows: list[Any] = []
        infos: dict[str, Any] = {}
        for copy in range(len(self.envs)):
            here, info = self._begin(copy, options)
            infos = self._with_told(infos, info, len(rows))
            rows += here
        return self._rows(rows), infos

    def step(
        self, actions: npt.NDArray[Any]
    ) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        """(obs, reward, terminated, truncated, infos), rows by agent."""
        rows: list[Any] = []
        reward = np.zeros(self.num_envs, np.float64)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        infos: dict[str, Any] = {}
        for copy, env in enumerate(self.envs):
            start = len(rows)
            obs, *outcome, info = env.step({agent: actions[start + i] for i, agent in enumerate(self.agents)})
            for column, values in zip((reward, terminated, truncated), outcome):
                column[start : start + len(self.agents)] = self._of_all(values, env)
            over = (terminated | truncated)[start : start + len(self.agents)]
            here = self._of_all(obs, env)
            if over.any():
                self._refuse_survivors(over, env)
                for i, agent in enumerate(self.agents):
                    kept = {key: value for key, value in info.get(agent, {}).items() if key in {*_KEPT, *self.passed}}
                    infos = self._add_info(infos, {"final_obs": here[i], "final_info": kept}, start + i)
                here, info = self._begin(copy, None)
            infos = self._with_told(infos, info, start)
            rows += here
        return self._rows(rows), reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments."""
        for env in self.envs:
            env.close()

    def _begin(self, copy: int, options: dict[str, Any] | None) -> tuple[list[Any], Mapping[Any, Any]]:
        obs, info = self.envs[copy].reset(seed=int(self._seeds[copy].integers(2**31)), options=options)
        return self._of_all(obs, self.envs[copy]), info

    def _with_told(self, infos: dict[str, Any], info: Mapping[Any, Any], start: int) -> dict[str, Any]:
        passed = {ACTION_MASK, *self.passed}
        for i, agent in enumerate(self.agents):
            told = {key: np.asarray(info[agent][key]) for key in passed & info.get(agent, {}).keys()}
            infos = self._add_info(infos, told, start + i)
        return infos

    def _rows(self, rows: Sequence[Any]) -> Any:
        space = self.single_observation_space
        into: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, rows, into)

    def _of_all(self, values: Mapping[Any, Any], env: Any) -> list[Any]:
        if missing := [agent for agent in self.agents if agent not in values]:
            raise SchemaError(f"{env}: agent {missing[0]!r} is not there while others are: that is not served yet (M2)")
        return [values[agent] for agent in self.agents]

    def _refuse_survivors(self, over: npt.NDArray[np.bool_], env: Any) -> None:
        if not over.all():
            ended, left = self.agents[int(over.argmax())], self.agents[int(over.argmin())]
            raise SchemaError(f"{env}: agent {ended!r} has ended while {left!r} goes on: that is not served yet (M1)")

    def _shared(self, role: str, of: Callable[[Any], Any]) -> gymnasium.Space[Any]:
        first: gymnasium.Space[Any] = of(self.agents[0])
        for agent in self.agents[1:]:
            if of(agent) != first:
                raise ConfigError(
                    f"{self.envs[0]}: agent {self.agents[0]!r} has the {role} space {first}, agent {agent!r} has "
                    f"{of(agent)}; one policy acts for all of them, so give them the same, as supersuit's wrappers do"
                )
        return first


def _parallel(made: Any) -> Any:
    zoo = sys.modules["pettingzoo"]
    if isinstance(made, zoo.ParallelEnv):
        return made
    if not made.metadata.get("is_parallelizable", False):
        raise ConfigError(
            f"{made} is turn-based, and its agents cannot act at once (its metadata does not say is_parallelizable): "
            "taking turns is not served yet (M1)"
        )
    return importlib.import_module("pettingzoo.utils.conversions").aec_to_parallel(made)

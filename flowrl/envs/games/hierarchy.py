"""Hierarchy: an environment of one agent as a game of two, a manager that says what to do and a worker that does it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.data.columns import ACTION_MASK
from flowrl.data.types import Array
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.games.seats import WHOLE, GameEnv
from flowrl.envs.infos import ELSEWHERE, SUCCESS, checked_info
from flowrl.envs.spec import function_of
from flowrl.envs.wrappers import recorder, running
from flowrl.errors import ConfigError

MANAGER, WORKER = "manager", "worker"

Intrinsic = Callable[[Any, Any, Any], float]
"""What a worker gains in a step: a function of the goal, and of the observations before and after."""


class Goals(abc.ABC):
    """What a manager may choose. A *goal* is what the worker is told, from the choice until the manager's next one."""

    name: str  #: of the goal, as an entry of the worker's observation
    choices: spaces.Space[Any]  #: of the manager
    entry_space: spaces.Space[Any]  #: of what the worker sees of a goal
    none: Array  #: what stands for a goal before the first choice

    @abc.abstractmethod
    def goal(self, choice: Any, obs: Any) -> Array:
        """The goal that a choice means, made from this observation."""

    def entry(self, goal: Array, obs: Any) -> Array:
        """What the worker sees of a goal; here all of it."""
        return goal

    def reached(self, goal: Array, obs: Any) -> bool:
        """Whether the worker is done before the manager's time is over; here never."""
        return False

    def distance(self, goal: Array, before: Any, after: Any) -> float:
        """The built-in reward of the worker; here none."""
        return 0.0

    def success(self, goal: Array, before: Any, after: Any) -> float:
        """1 for a goal that is reached, else 0."""
        return float(self.reached(goal, after))


class Options(Goals):
    """A number of options, each of which the worker learns to act on (Sutton, Precup & Singh 1999, section 2)."""

    name = "option"

    def __init__(self, number: int) -> None:
        self.choices = self.entry_space = spaces.Discrete(number)
        self.none = np.zeros((), np.int64)

    def goal(self, choice: Any, obs: Any) -> Array:
        """The option."""
        return np.asarray(choice, np.int64)


class Subgoals(Goals):
    """Values that some entries of the observation are to have.

    The worker sees how far they are from there. It has reached them where that is no more than `tolerance`, as
    Euclidean distance.

    Args:
        space: Of observations, a Box with one axis.
        entries: Their indexes.
        reach: With it, choices are changes of at most this much, as in HIRO; None: values, within the space's bounds.

    Raises: ConfigError for other observations, an entry that does not exist, or one without bounds.
    Source: Nachum et al. 2018, "Data-efficient hierarchical reinforcement learning", section 3.1.
    """

    name = "subgoal"

    def __init__(
        self, space: spaces.Space[Any], entries: Sequence[int], reach: float | None = None, tolerance: float = 0.05
    ) -> None:
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"subgoals are of observations in a Box with one axis, not of {space}: set options=N")
        if not entries or not all(0 <= entry < space.shape[0] for entry in entries):
            raise ConfigError(f"subgoal={list(entries)}: expected indexes of the {space.shape[0]} entries of {space}")
        self.entries, self.tolerance, self.relative = np.array(entries), tolerance, reach is not None
        low, high = space.low[self.entries], space.high[self.entries]
        if reach is None and not (np.isfinite(low) & np.isfinite(high)).all():
            raise ConfigError(f"subgoal={list(entries)}: entries of {space} have no bounds: set reach=R")
        far = np.full(len(entries), reach if reach is not None else 0.0)
        low, high = (-far, far) if self.relative else (low, high)
        self.choices = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.none = np.zeros(len(entries), np.float32)
        self.entry_space = spaces.Box(-np.inf, np.inf, (len(entries),), np.float32)

    def goal(self, choice: Any, obs: Any) -> Array:
        """The values."""
        return np.asarray(choice + obs[self.entries] if self.relative else choice, np.float32)

    def entry(self, goal: Array, obs: Any) -> Array:
        """What is missing, as HIRO's h(s, g, s') leaves it."""
        return np.asarray(goal - obs[self.entries], np.float32)

    def reached(self, goal: Array, obs: Any) -> bool:
        """See the class."""
        return bool(np.linalg.norm(self.entry(goal, obs)) <= self.tolerance)

    def distance(self, goal: Array, before: Any, after: Any) -> float:
        """−‖goal − s'‖, HIRO's eq. 3."""
        return -float(np.linalg.norm(self.entry(goal, after)))


@attrs.frozen
class Levels:
    """What both levels of a hierarchy see, and when the manager decides, in any environment with these observations.

    Args:
        observation_space: Of the environment.
        options: Number of `Options`; 0: `Subgoals`.
        subgoal, reach, tolerance: The arguments of `Subgoals`.
        interval: Env steps after which the manager decides again, if the worker is not done before.
    """

    observation_space: spaces.Space[Any]
    options: int = 0
    subgoal: Sequence[int] = (0,)
    reach: float | None = None
    tolerance: float = 0.05
    interval: int = 20
    goals: Goals = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if self.interval < 1 or self.options < 0:
            raise ConfigError(f"interval={self.interval}, options={self.options}: expected at least 1, and at least 0")
        goals = (
            Options(self.options)
            if self.options
            else Subgoals(self.observation_space, self.subgoal, self.reach, self.tolerance)
        )
        object.__setattr__(self, "goals", goals)
        if goals.name in self._entries:
            raise ConfigError(f"observations have an entry {goals.name!r} already: rename it in the environment")

    @property
    def manager_space(self) -> spaces.Space[Any]:
        """What the manager sees: all but the mask of the worker's actions."""
        if ACTION_MASK not in self._entries:
            return self.observation_space
        return spaces.Dict({name: space for name, space in self._entries.items() if name != ACTION_MASK})

    @property
    def worker_space(self) -> spaces.Dict:
        """What the worker sees: all, and the goal."""
        inner = self._entries or {"obs": self.observation_space}
        return spaces.Dict({**inner, self.goals.name: self.goals.entry_space})

    def for_manager(self, obs: Any) -> Any:
        """An observation, or rows of them, as the manager sees them."""
        if ACTION_MASK not in self._entries:
            return obs
        return {name: part for name, part in obs.items() if name != ACTION_MASK}

    def for_worker(self, obs: Any, entry: Any) -> dict[str, Any]:
        """An observation, or rows of them, as the worker sees them, with what it sees of the goal."""
        inner = dict(obs.items()) if self._entries else {"obs": obs}
        return {**inner, self.goals.name: entry}

    @property
    def _entries(self) -> Mapping[str, spaces.Space[Any]]:
        return self.observation_space.spaces if isinstance(self.observation_space, spaces.Dict) else {}


class Hierarchy(Game):
    """A manager chooses a goal, and a worker acts until it has reached it, `interval` env steps are over, or all is.

    Only the worker's steps are env steps. The manager's reward is that of the environment, discounted from its choice
    on, and its `step_discount` is gamma**k after k env steps, as in a semi-Markov decision process. The worker's is
    `intrinsic` + `extrinsic` times the environment's; what comes after a goal that it reached does not count for it.
    The game's return and length are those of the environment below its wrappers (S1).

    The wrapper `Hierarchy(options=4, interval=5)` makes one of any environment.

    Args:
        env: The environment.
        intrinsic: "distance": minus the distance to the subgoal; "success": 1 for reaching it; or
            "module:function", an `Intrinsic`. None: "distance", nothing for options.
        extrinsic: Weight of the environment's reward in the worker's; None: 1 for options, else 0.
        gamma, worker_gamma: Discounts per env step of the manager and of the worker.
        how: The arguments of `Levels`.

    Raises: ConfigError for a vector environment, a reward that does not exist, and as `Levels`.
    Source: Sutton, Precup & Singh 1999, "Between MDPs and semi-MDPs", section 3; Kulkarni et al. 2016, "Hierarchical
        deep reinforcement learning", section 3.
    """

    possible_agents = (MANAGER, WORKER)
    discounts = True
    instant = (MANAGER,)

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        intrinsic: str | None = None,
        extrinsic: float | None = None,
        gamma: float = 0.99,
        worker_gamma: float = 0.99,
        **how: Any,
    ) -> None:
        if not isinstance(env, gymnasium.Env) or isinstance(env, GameEnv):
            raise ConfigError(f"the wrapper Hierarchy is for an environment of one agent, not for {env}")
        self.env, self.levels = env, Levels(env.observation_space, **how)
        goals = self.levels.goals
        self.observation_spaces = {MANAGER: self.levels.manager_space, WORKER: self.levels.worker_space}
        self.action_spaces = {MANAGER: goals.choices, WORKER: env.action_space}
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self._intrinsic = _reward(intrinsic or "distance", goals)
        self._extrinsic = float(bool(self.levels.options)) if extrinsic is None else extrinsic
        self._discount = {MANAGER: gamma, WORKER: worker_gamma}
        self._recorder = recorder(env)

    def __str__(self) -> str:
        return f"Hierarchy({self.env})"

    def reset(self, seed: int) -> Mapping[str, Any]:
        """The manager decides first."""
        self._return, self._length, self._left = 0.0, 0, 0
        self._obs = _kept(self.env.reset(seed=seed)[0])
        return {MANAGER: self.levels.for_manager(self._obs)}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """A choice of the manager, or a step of the worker."""
        goals = self.levels.goals
        if MANAGER in actions:
            self._goal, self._left = goals.goal(actions[MANAGER], self._obs), self.levels.interval
            return Turn({WORKER: self._for_worker()})
        obs, gain, terminated, truncated, info = self.env.step(actions[WORKER])
        before, self._obs = self._obs, _kept(obs)
        reward, reached = float(gain), goals.reached(self._goal, self._obs)
        self._left -= 1
        self._return += reward
        self._length += 1
        own = self._intrinsic(self._goal, before, self._obs) + self._extrinsic * reward
        rewards = {MANAGER: reward, WORKER: own, WHOLE: reward}
        discount = {**self._discount, WORKER: 0.0} if reached else self._discount
        both = {MANAGER: self.levels.for_manager(self._obs), WORKER: self._for_worker()}
        if terminated or truncated:
            ended = self.possible_agents
            over, cut = (ended, ()) if terminated else ((), ended)
            return Turn(both, rewards, over, cut, {WHOLE: self._summary(info)}, discount)
        who = MANAGER if reached or not self._left else WORKER
        return Turn({who: both[who]}, rewards, discount=discount)

    def render(self) -> Any:
        """The picture of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _for_worker(self) -> dict[str, Any]:
        return self.levels.for_worker(self._obs, self.levels.goals.entry(self._goal, self._obs))

    def _summary(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return_, length = (self._return, self._length) if self._recorder is None else running(self._recorder)
        success = {key: info[key] for key in (SUCCESS, ELSEWHERE) if key in checked_info(info)}
        return {"episode": {"r": return_, "l": length}, **success}


def hierarchy(env: gymnasium.Env[Any, Any], **how: Any) -> GameEnv:
    """The wrapper `Hierarchy`: see the class."""
    return GameEnv(Hierarchy(env, **how))


def _reward(name: str, goals: Goals) -> Intrinsic:
    if name == "distance":
        return goals.distance
    if name == "success":
        return goals.success
    if ":" not in name:
        raise ConfigError(f"intrinsic={name!r}: expected 'distance', 'success' or 'module:function'")
    return function_of(name, "intrinsic")


def _kept(obs: Any) -> Any:
    """An observation that stays when the environment overwrites its arrays."""
    return {name: _kept(part) for name, part in obs.items()} if isinstance(obs, Mapping) else np.array(obs)

"""HierarchicalPolicy: a manager and a worker as one policy with a memory, in the environment itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
import gymnasium
import numpy as np

from flowrl.data import Batch
from flowrl.envs.games.hierarchy import MANAGER as MANAGER
from flowrl.envs.games.hierarchy import WORKER as WORKER
from flowrl.envs.games.hierarchy import Levels
from flowrl.networks.sampling import Array
from flowrl.policies.policy import Policy
from flowrl.policies.protocols import HasMemory

#: The memory of the part of this name.
_OF_PART = "{}_state".format


@attrs.frozen
class HierarchicalPolicy:
    """Two parts that act as they do in the game `flowrl.envs.games.hierarchy.Hierarchy`, without its rewards.

    It acts from a state, like a recurrent policy: the goal, the env steps left for it, and the memories of the parts.

    >>> from gymnasium.spaces import Box, Dict, Discrete
    >>> from flowrl.policies import DQNPolicy, PPOPolicy
    >>> seen, options = Box(0, 1, (2,)), Discrete(3)
    >>> parts = {"manager": DQNPolicy(seen, options), "worker": PPOPolicy(Dict(obs=seen, option=options), Discrete(2))}
    >>> mode = HierarchicalPolicy(parts, Levels(seen, options=3, interval=5)).eval_mode
    >>> mode.act(np.zeros((1, 2), np.float32), np.zeros((1, 0)), 0, Batch(mode.initial_state()))["next_state"].left
    array([4])
    """

    parts: Mapping[str, Policy]
    levels: Levels

    @classmethod
    def of(cls, parts: Mapping[str, Policy], choices: Mapping[str, Any]) -> HierarchicalPolicy:
        """Of parts that learned with these arguments of `Levels`."""
        worker: Any = parts[WORKER].observation_space
        name = "option" if choices["options"] else "subgoal"
        inner = {key: space for key, space in worker.spaces.items() if key != name}
        manager = parts[MANAGER].observation_space
        whole = gymnasium.spaces.Dict(inner) if isinstance(manager, gymnasium.spaces.Dict) else manager
        return cls(parts, Levels(whole, **choices))

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """That of the environment."""
        return self.levels.observation_space

    @property
    def actor_space(self) -> gymnasium.Space[Any]:
        """See `Policy.actor_space`: all of it."""
        return self.levels.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """That of the environment, in which the worker acts."""
        return self.parts[WORKER].action_space

    @property
    def version(self) -> int:
        """The updates of both."""
        return sum(part.version for part in self.parts.values())

    @property
    def eval_mode(self) -> HierarchicalMode:
        """Both parts in their eval modes."""
        return HierarchicalMode(self, "eval_mode")

    @property
    def collect_mode(self) -> HierarchicalMode:
        """Both parts in their collect modes."""
        return HierarchicalMode(self, "collect_mode")


@attrs.frozen
class HierarchicalMode:
    """A `RecurrentMode` of both parts: the manager acts where a goal is over, then the worker everywhere."""

    policy: HierarchicalPolicy
    mode: Literal["eval_mode", "collect_mode"]

    @property
    def draws(self) -> int:
        """Those of the manager, then those of the worker."""
        return sum(int(self._of(part).draws) for part in (MANAGER, WORKER))

    def initial_state(self) -> dict[str, Any]:
        """See `RecurrentMode`: no goal yet."""
        memories = {
            _OF_PART(part): mode.initial_state()
            for part in (MANAGER, WORKER)
            if isinstance(mode := self._of(part), HasMemory)
        }
        return {"goal": self.policy.levels.goals.none[None], "left": np.zeros(1, np.int64), **memories}

    def act(self, obs: Any, noise: Array, env_steps: int, state: Any) -> dict[str, Any]:
        """Actions for observations `[N, ...]`, and next_state."""
        levels, goals = self.policy.levels, self.policy.levels.goals
        after = Batch(state).map(np.array)
        goal, left = after["goal"], after["left"]
        over = np.array([not k or goals.reached(g, obs[row]) for row, (g, k) in enumerate(zip(goal, left.tolist()))])
        rows, split = np.flatnonzero(over), int(self._of(MANAGER).draws)
        if len(rows):
            seen = _rows(levels.for_manager(obs[rows]))
            chosen = self._act(MANAGER, seen, noise[rows, :split], env_steps, after, rows)
            for row, choice in zip(rows.tolist(), chosen):
                goal[row] = goals.goal(choice, obs[row])
            left[rows] = levels.interval
        entries = np.stack([goals.entry(each, obs[row]) for row, each in enumerate(goal)])
        seen = _rows(levels.for_worker(obs, entries))
        every = np.arange(len(left))
        action = self._act(WORKER, seen, noise[:, split:], env_steps, after, every)
        left -= 1
        return {"action": action, "next_state": after}

    def _act(self, part: str, obs: Any, noise: Array, env_steps: int, state: Batch, rows: Array) -> Array:
        """The actions of a part for the environment, or for the worker; its memory is updated in place."""
        mode, key = self._of(part), _OF_PART(part)
        memory = [state[rows][key]] if key in state else []
        columns = mode.act(obs, noise, env_steps, *memory)
        if memory:
            state[rows] = {**state[rows], key: columns["next_state"]}
        space: Any = self.policy.parts[part].action_space
        return np.asarray(columns.get("env_action", columns["action"])).astype(space.dtype)

    def _of(self, part: str) -> Any:
        return getattr(self.policy.parts[part], self.mode)


def _rows(obs: Any) -> Any:
    return Batch(obs) if isinstance(obs, Mapping) else obs

"""Action masks of environments: in observations, where flowrl reads them, or moved there from `info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from flowrl.data.batch import Batch
from flowrl.data.columns import ACTION_MASK
from flowrl.envs.infos import begun
from flowrl.envs.spaces import row_of
from flowrl.errors import ConfigError, SchemaError

Space = gymnasium.Space[Any]


def choices_of(action_space: Space) -> list[int]:
    """The sizes of the choices that an action consists of; a mask holds their entries side by side.

    >>> choices_of(spaces.Discrete(3)), choices_of(spaces.MultiDiscrete([2, 4])), choices_of(spaces.Box(0, 1))
    ([3], [2, 4], [])
    """
    if isinstance(action_space, spaces.Discrete):
        return [int(action_space.n)]
    if isinstance(action_space, spaces.MultiDiscrete) and action_space.nvec.ndim == 1:
        return [int(n) for n in action_space.nvec]
    if isinstance(action_space, spaces.MultiBinary) and len(action_space.shape) == 1:
        return [2] * action_space.shape[0]
    return []


def check_mask(observation_space: Space, action_space: Space) -> None:
    """Raises: ConfigError if observations have an `action_mask` that does not fit the actions."""
    if not isinstance(observation_space, spaces.Dict) or ACTION_MASK not in observation_space.spaces:
        return
    mask = observation_space[ACTION_MASK]
    width = _width(action_space)
    if mask.shape != (width,) or not isinstance(mask, spaces.Box | spaces.MultiBinary):
        raise ConfigError(
            f"observation['action_mask'] is {mask}, but the action space {action_space} has {width} actions: expected "
            f"MultiBinary({width}) or a Box of shape ({width},), 1 where an action is valid and 0 where it is not"
        )


def _width(action_space: Space) -> int:
    if choices := choices_of(action_space):
        return sum(choices)
    raise ConfigError(
        f"there is an action mask, but the action space {action_space} can have none: a mask is of "
        "Discrete actions, MultiDiscrete ones of one row, or MultiBinary ones; give what it is another name"
    )


def without_choice(mask: npt.NDArray[np.bool_], action_space: Space) -> npt.NDArray[np.intp]:
    """The rows of a mask `[N, A]` in which one of the choices has no valid action."""
    firsts = np.cumsum([0, *choices_of(action_space)[:-1]])
    some = np.logical_or.reduceat(mask, firsts, axis=1).all(1)
    return np.flatnonzero(~some)


class ActionsOfMany(spaces.Box):
    """Actions of several agents in one row of numbers, those of each from a space of its own."""

    def sample_for(self, obs: Any) -> Any:
        """Random actions, valid ones of the agents that have a mask in an observation of all."""
        raise NotImplementedError


def valid_sample(action_space: Space, obs: Any) -> Any:
    """A random action, a valid one if the observation has a mask: see `gymnasium.Space.sample`."""
    if isinstance(action_space, ActionsOfMany):
        return action_space.sample_for(obs)
    if not isinstance(obs, Mapping | Batch) or ACTION_MASK not in obs:
        return action_space.sample()
    mask = _as_mask(obs[ACTION_MASK], (_width(action_space),))
    if isinstance(action_space, spaces.MultiDiscrete):
        return action_space.sample(tuple(np.split(mask, np.cumsum(action_space.nvec)[:-1])))
    if isinstance(action_space, spaces.MultiBinary):
        zero, one = mask.reshape(-1, 2).T
        return action_space.sample(np.where(zero & one, 2, one).astype(np.int8))  # 2: both are valid
    return action_space.sample(mask)


#: The warning about an environment with a mask that no policy reads.
UNASKED = "info has an action_mask, which policies do not read: the wrapper ActionMask adds it to the observation"


def unasked_mask(info: Any, observation_space: Space) -> bool:
    """Whether `info` has a mask, and observations have none."""
    if not isinstance(info, Mapping) or ACTION_MASK not in info:
        return False
    return not isinstance(observation_space, spaces.Dict) or ACTION_MASK not in observation_space.spaces


def with_mask(observation_space: Space, action_space: Space) -> spaces.Dict:
    """A dictionary of observations with a mask: the space's own entries if it is a Dict, else the entry `obs`.

    Raises: ConfigError if there is a mask already, or the actions cannot have one.
    """
    mask = spaces.MultiBinary(_width(action_space))
    if not isinstance(observation_space, spaces.Dict):
        return spaces.Dict({"obs": observation_space, ACTION_MASK: mask})
    if ACTION_MASK in observation_space.spaces:
        raise ConfigError("the observations have an action_mask already: leave out the wrapper ActionMask")
    return spaces.Dict({**observation_space.spaces, ACTION_MASK: mask})


def masked(obs: Any, info: Mapping[str, Any], action_space: Space, during: str) -> dict[str, Any]:
    """An observation of the space `with_mask`, with the mask of `info`.

    Raises: SchemaError if the mask is missing or has another length.
    """
    if ACTION_MASK not in info:
        raise _missing(during, "info", info)
    return _joined(obs, _as_mask(info[ACTION_MASK], (_width(action_space),)))


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts `info["action_mask"]` of every reset and step into the observation.

    An observation that is not a dictionary becomes the entry `obs`.

    Raises: ConfigError like `with_mask`; SchemaError if the mask is missing or has another length.

    >>> env = ActionMask(gymnasium.make("Taxi-v4"))
    >>> env.observation_space
    Dict('action_mask': MultiBinary(6), 'obs': Discrete(500))
    >>> env.reset(seed=0)[0]["action_mask"]
    array([1, 1, 0, 0, 0, 0], dtype=int8)
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = with_mask(env.observation_space, env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets."""
        obs, info = begun(self.env.reset(seed=seed, options=options))
        return masked(obs, info, self.action_space, "reset"), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return masked(obs, info, self.action_space, "step"), reward, terminated, truncated, info


class VectorActionMask(VectorWrapper):  # not generic below 1.4
    """`ActionMask` for a vector environment, with masks `[N, A]`, in each autoreset mode (T1, T2, T3).

    Raises: see `ActionMask`.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.single_observation_space = with_mask(env.single_observation_space, env.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._masks = np.zeros((env.num_envs, _width(env.single_action_space)), np.int8)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets; environments that are not reset (T3) keep their masks."""
        began = (options or {}).get("reset_mask")  # the environment removes it
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        return self._masked(obs, infos, "reset", np.ones(self.num_envs, np.bool_) if began is None else began), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps; final observations get the masks of their `final_info`."""
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        if "_final_obs" in infos:
            infos = {**infos, "final_obs": self._final(infos)}
        every = np.ones(self.num_envs, np.bool_)
        return self._masked(obs, infos, "step", every), reward, terminated, truncated, infos

    def _masked(self, obs: Any, infos: Mapping[str, Any], during: str, wanted: npt.NDArray[np.bool_]) -> dict[str, Any]:
        if ACTION_MASK not in infos:
            raise _missing(during, "infos", infos)
        said = infos.get(f"_{ACTION_MASK}", wanted)
        if (silent := np.flatnonzero(wanted & ~said)).size:
            raise _missing(during, f"infos of environment {silent[0]}", infos)
        given = infos[ACTION_MASK]
        self._masks = self._masks.copy()  # masks handed out before must not change
        for env_id in np.flatnonzero(wanted):
            self._masks[env_id] = _as_mask(given[env_id], self._masks[env_id].shape)
        return _joined(obs, self._masks)

    def _final(self, infos: Mapping[str, Any]) -> npt.NDArray[np.object_]:
        last = infos.get("final_info", {})
        final = np.full(self.num_envs, None, np.object_)
        for env_id in np.flatnonzero(infos["_final_obs"]):
            if ACTION_MASK not in last or not last[f"_{ACTION_MASK}"][env_id]:
                raise _missing("the last step of an episode", "final_info", last)
            mask = _as_mask(last[ACTION_MASK][env_id], self._masks[env_id].shape)
            final[env_id] = _joined(row_of(infos["final_obs"], int(env_id)), mask)
        return final


def _joined(obs: Any, mask: npt.NDArray[np.int8]) -> dict[str, Any]:
    return {**obs, ACTION_MASK: mask} if isinstance(obs, Mapping) else {"obs": obs, ACTION_MASK: mask}


def _as_mask(given: Any, shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    mask = np.asarray(given)
    if mask.shape != shape:
        raise SchemaError(f"info['action_mask'] has shape {mask.shape}, expected {shape}: a number for each action")
    valid: npt.NDArray[np.int8] = (mask != 0).astype(np.int8)
    return valid


def _missing(during: str, where: str, info: Mapping[str, Any]) -> SchemaError:
    there = ", ".join(map(str, info)) or "nothing"
    return SchemaError(
        f"{where} has no 'action_mask' after {during} (it has {there}): the wrapper ActionMask needs it at every reset "
        "and step, also at the last one of an episode"
    )

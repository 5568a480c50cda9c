"""Columns of `info`: numbers of every step's `info`, which travel beside its observation through any manager."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from flowrl.envs.spaces import row_of
from flowrl.errors import ConfigError, SchemaError
from flowrl.saved import shown

log = logging.getLogger("flowrl")

#: Keys of `info`; or keys with the number, or the numbers, to take where `info` lacks them, None for an error.
InfoKeys: TypeAlias = Sequence[str] | Mapping[str, Any]

#: The entries of an observation that carries columns of `info`.
OBS, INFO = "obs", "__info__"

#: What most libraries call a win in `info`; and Meta-World, PointMaze, AntMaze, Adroit and ManiSkill.
SUCCESS, ELSEWHERE = "is_success", "success"

Fills: TypeAlias = dict[str, npt.NDArray[np.float64] | None]


def fills_of(keys: InfoKeys) -> Fills:
    """What to take where `info` lacks a key, by key; None is an error.

    Raises: ConfigError for what are no keys or no finite numbers.

    >>> fills_of(["lives"]), fills_of({"lives": 3})
    ({'lives': None}, {'lives': array(3.)})
    """
    given = dict(keys) if isinstance(keys, Mapping) else dict.fromkeys(keys)
    if isinstance(keys, str) or not all(isinstance(key, str) for key in given):
        raise ConfigError(f"info_keys={keys!r}: expected a list of keys of info, or a table of keys and fills")
    return {key: None if fill is None else _fill(key, fill) for key, fill in given.items()}


def _fill(key: str, fill: Any) -> npt.NDArray[np.float64]:
    try:
        numbers = np.asarray(fill, np.float64)
        if np.isfinite(numbers).all():
            return numbers
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"info_keys: the fill of {key!r} is {fill!r}, expected a finite number, or a list of them")


def shape_of(fill: npt.NDArray[np.float64] | None) -> tuple[int, ...]:
    """The shape of a column in one row: one number, unless the fill is a list."""
    return () if fill is None else fill.shape


class RecordsEpisodes:
    """Records episodes: `ended` is return and length of the last one, until its reader takes it away.

    An episode ends by itself, or by a reset after an end that a wrapper above has made.
    """

    ended: tuple[float, int] | None = None
    episode_returns, episode_lengths = 0.0, 0  #: so far of the running one


def checked_info(info: Any) -> Mapping[str, Any]:
    """The `info` of a step; None counts as empty. Raises: SchemaError: it is no dictionary."""
    if type(info) is dict:  # as nearly always, and faster than to ask for a Mapping
        return info
    if info is None or isinstance(info, Mapping):
        return info or {}
    raise SchemaError(f"info is {info!r}, expected a dictionary: the fifth value that step returns, {{}} for nothing")


def begun(told: Any) -> tuple[Any, Any]:
    """Observation and `info` from what `reset` returned. Raises: SchemaError: it is not these two.

    >>> begun((0.5, None))
    (0.5, {})
    """
    if isinstance(told, tuple | list) and len(told) == 2 and (told[1] is None or isinstance(told[1], Mapping)):
        return told[0], told[1] or {}
    raise SchemaError(
        f"reset returned {' '.join(shown(told).split())}, expected (observation, info): return both, the info a "
        "dictionary, {} for nothing; classic gym, before 0.26, had the observation alone"
    )


def success_of(info: Mapping[str, Any]) -> int:
    """Whether the episode that ended with this `info` was won: 1 or 0, -1 if nobody says (S9).

    Where `is_success` is missing, `success` is taken if it is one truth value; that it is, is said once.

    Raises: SchemaError: `is_success` is not one truth value.

    >>> success_of({"is_success": np.array([True])}), success_of({"success": 0.0}), success_of({"success": 0.3})
    (1, 0, -1)
    """
    if (told := info.get(SUCCESS)) is not None:
        if (won := _truth(told)) is None:
            raise SchemaError(
                f"info['is_success'] is {told!r}, expected one True or False, or 1 or 0, of the whole episode"
            )
        return won
    won = _truth(info.get(ELSEWHERE))
    if won is None:
        return -1
    _say_elsewhere()
    return won


def ends_of(terminated: Any, truncated: Any) -> tuple[bool, bool]:
    """Whether a step terminated and truncated its episode, where one of the two is true for Python: `[False]` is, too.

    Raises: SchemaError: one is no single truth value.

    >>> ends_of(np.array([True]), None), ends_of([False], 0)
    ((True, False), (False, False))
    """
    return _ends("terminated", terminated), _ends("truncated", truncated)


def _ends(name: str, told: Any) -> bool:
    truth = _truth(told) if told else 0
    if truth is None:
        raise SchemaError(f"{name} is {told!r}, expected True or False of the whole environment")
    return bool(truth)


def rate_of(told: Iterable[bool | float | None]) -> tuple[float | None, int]:
    """The share of wins among the episodes that say, and their number; None says nothing (S9).

    >>> rate_of([True, None, False, None]), rate_of([None])
    ((0.5, 2), (None, 0))
    """
    judged = [float(each) for each in told if each is not None]
    return float(np.mean(judged)) if judged else None, len(judged)


def _truth(told: Any) -> int | None:
    if told is None or isinstance(told, bool | np.bool_):  # as nearly always, and faster than an array
        return None if told is None else int(told)
    value = np.asarray(told)
    # Neither a share, which tells no win, nor NaN, which is true in Python.
    return int(value.item()) if value.size == 1 and value.dtype.kind in "biuf" and value.item() in (0, 1) else None


def kept(info: Any) -> Mapping[str, Any]:
    """The `info` of an episode's last step, with what it says of success, as it is before the environment goes on: many
    keep one dictionary, and the reset empties it.

    Raises: SchemaError: see `checked_info` and `success_of`.
    """
    info = checked_info(info)
    success = success_of(info)
    return {**info, SUCCESS: None if success < 0 else success}


@lru_cache
def _say_elsewhere() -> None:
    log.warning(
        "info has no 'is_success' at an episode's end, but 'success': win rates are of that; to have them of something "
        "else, let the environment or a wrapper set info['is_success']"
    )


def episode_of(record: Any) -> tuple[float, int] | None:
    """Return and length from `info["episode"]`; None if it has not the form that recorders give it (R6)."""
    if not isinstance(record, Mapping) or not {"r", "l", "t"} <= record.keys():
        return None
    numbers = [np.asarray(record[key]) for key in "rl"]
    if any(number.size != 1 or number.dtype.kind not in "iuf" for number in numbers):
        return None
    return float(numbers[0].item()), int(numbers[1].item())


class InfoColumns(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts numbers of every step's `info` beside its observation, from where managers take them: `Manager.info`.

    Raises: SchemaError if `info` lacks a key without a fill, or has something else than its number.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], keys: InfoKeys) -> None:
        super().__init__(env)
        self._fills = fills_of(keys)
        self.observation_space = _with_info(env.observation_space, self._fills)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets; no step has led here, so its columns are 0 and never read."""
        obs, info = begun(self.env.reset(seed=seed, options=options))
        return {OBS: obs, INFO: {key: np.zeros(shape_of(fill)) for key, fill in self._fills.items()}}, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return {OBS: obs, INFO: self._numbers(obs, checked_info(info))}, reward, terminated, truncated, info

    def _numbers(self, obs: Any, info: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float64]]:
        return {key: number_of(key, info.get(key), fill) for key, fill in self._fills.items()}


class VectorInfoColumns(VectorWrapper):  # not generic below 1.4
    """`InfoColumns` for a vector environment, in each autoreset mode (T1, T2, T3).

    Values that a mask of `infos` excludes count as missing (T10).

    Raises: see `InfoColumns`.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], keys: InfoKeys) -> None:
        super().__init__(env)
        self._fills = fills_of(keys)
        self.single_observation_space = _with_info(env.single_observation_space, self._fills)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._mode = AutoresetMode(env.metadata["autoreset_mode"]) if "autoreset_mode" in env.metadata else None
        self._resetting = np.zeros(env.num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets; no step has led here, so its columns are 0 and never read."""
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        self._resetting = np.zeros(self.num_envs, np.bool_)
        return {OBS: obs, INFO: self._columns({}, np.zeros(self.num_envs, np.bool_))}, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps; final observations get the numbers of their `final_info`."""
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        over = np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        stepped = ~self._resetting
        if self._mode is AutoresetMode.SAME_STEP:
            if "_final_obs" in infos:
                infos = {**infos, "final_obs": self._final(infos)}
            stepped = ~over  # of the others, infos describe the next episode
        elif self._mode is AutoresetMode.NEXT_STEP:
            self._resetting = over & stepped
        return {OBS: obs, INFO: self._columns(infos, stepped)}, reward, terminated, truncated, infos

    def _final(self, infos: Mapping[str, Any]) -> npt.NDArray[np.object_]:
        ended = np.asarray(infos["_final_obs"], np.bool_)
        columns = self._columns(infos.get("final_info", {}), ended)
        final = np.full(self.num_envs, None, np.object_)
        for env_id in np.flatnonzero(ended).tolist():
            numbers = {key: column[env_id] for key, column in columns.items()}
            final[env_id] = {OBS: row_of(infos["final_obs"], env_id), INFO: numbers}
        return final

    def _columns(self, infos: Any, wanted: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[np.float64]]:
        """The columns `[N, ...]`, 0 for environments that are not wanted."""
        columns = {}
        for key, fill in self._fills.items():
            columns[key] = column = np.zeros((self.num_envs, *shape_of(fill)))
            for env_id in np.flatnonzero(wanted).tolist():
                column[env_id] = number_of(key, _told(infos, key, env_id), fill)
        return columns


def _told(infos: Any, key: str, env_id: int) -> Any:
    """What the infos of several environments say of one; None: nothing."""
    if not isinstance(infos, Mapping):  # one for each, as gymnasium keeps those that are no dict of Python's
        return checked_info(infos[env_id]).get(key)
    mask = infos.get(f"_{key}")
    return infos[key][env_id] if key in infos and (mask is None or mask[env_id]) else None


def _with_info(space: gymnasium.Space[Any], fills: Fills) -> spaces.Dict:
    boxes: dict[str, gymnasium.Space[Any]] = {
        key: spaces.Box(-np.inf, np.inf, shape_of(fill), np.float64) for key, fill in fills.items()
    }
    return spaces.Dict({OBS: space, INFO: spaces.Dict(boxes)})


def number_of(key: str, value: Any, fill: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64]:
    """A value of `info` as numbers, its fill if it is None. Raises: SchemaError: there is none, or it is no number."""
    if value is None:
        if fill is None:
            raise SchemaError(
                f"info has no {key!r} at this step; say what to take where it is missing, as in "
                f"info_keys={{{key!r}: 0}}"
            )
        return fill
    try:
        number = np.asarray(value, np.float64)
        if number.shape == shape_of(fill):
            return number
    except (TypeError, ValueError):
        pass
    shape = list(shape_of(fill))
    raise SchemaError(
        f"info[{key!r}] is {value!r}, expected {f'numbers of the shape {shape}' if shape else 'a number'}; a fill in "
        "info_keys gives the shape"
    )

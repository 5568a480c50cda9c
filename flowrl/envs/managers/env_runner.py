"""One environment in another process or thread, which writes its results to a `SharedMemory`."""

from __future__ import annotations

import time
import traceback
from typing import Any

import attrs
import gymnasium
import numpy as np
import numpy.typing as npt

from flowrl.data.finite import EXPECTED, LARGEST
from flowrl.envs.infos import RecordsEpisodes, begun, checked_info, ends_of, kept, success_of
from flowrl.envs.managers.faults import During, Kind, classic_interface
from flowrl.envs.managers.shared_memory import BEGAN, INNER_END, OWN_END, RECORDED_END, STEP, SharedMemory
from flowrl.envs.spaces import find_unusable, no_reward, row_shape, write_row
from flowrl.envs.wrappers import recorded, recorder, running
from flowrl.errors import SchemaError
from flowrl.frames import text_of


@attrs.frozen
class EnvFailure:
    """An error of one environment as text, which any process can read, whatever the exception."""

    env_id: int
    during: During
    kind: Kind
    message: str
    traceback: str = ""

    @staticmethod
    def of(env_id: int, during: During, error: BaseException) -> EnvFailure:
        kind: Kind = "observation" if isinstance(error, SchemaError) else "exception"
        name, text, classic = type(error).__name__, text_of(error), classic_interface(error)
        message = f"{name}: {text}" if text else name
        return EnvFailure(env_id, during, kind, f"{message}; {classic}" if classic else message, _formatted(error))


def _formatted(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # an error's own __str__ may fail
        return "".join(traceback.format_tb(error.__traceback__))


def figures(info: Any, inner: Any) -> tuple[int, float, int, int]:
    """The source of an ended episode's return, return and length from a recorder, and success (-1: unknown).

    `info` is that of the last step. Called after the reset, when the innermost recorder shows whether it was reset too:
    if not, a wrapper ended only its own episode (a life was lost), and the inner one goes on (T9).

    Raises: SchemaError: see `checked_info` and `success_of`.
    """
    info = checked_info(info)
    success = success_of(info)
    if inner is None:
        return OWN_END, 0.0, 0, success
    if (found := recorded(inner, info)) is not None:
        return RECORDED_END, *found, success
    return_, length = running(inner)
    return INNER_END if length else OWN_END, return_, length, success


def forget(inner: Any) -> None:
    """Take away the episode that a recorder has recorded."""
    if isinstance(inner, RecordsEpisodes):
        inner.ended = None


def plainly(column: npt.NDArray[Any]) -> Any:
    """A view of a column with Python numbers, which are faster to read and write one by one."""
    return memoryview(column.data)


class EnvRunner:
    """Executes the commands for environment `env_id`, and records what process (or thread) `host` is doing."""

    def __init__(self, env: gymnasium.Env[Any, Any], env_id: int, host: int, exchange: SharedMemory) -> None:
        self.env, self._id, self._host = env, env_id, host
        self._recorder = recorder(env)
        self.attach(exchange)

    def attach(self, exchange: SharedMemory) -> None:
        """Read and write there from now on."""
        self._exchange, env_id = exchange, self._id
        stores = (*exchange.stores, exchange.began)
        self._rows = [store[env_id : env_id + 1] for store in stores]
        self._row_shape = row_shape(exchange.began)
        self._row_dtype = exchange.began.dtype if isinstance(exchange.began, np.ndarray) else None
        self._copied = exchange.action.ndim > 1  # an environment may keep its row, which the next action overwrites
        x = exchange
        self._reward, self._terminated, self._truncated = map(plainly, (x.reward, x.terminated, x.truncated))
        self._return, self._length = map(plainly, (x.return_, x.length))
        self._at, self._seed, self._next_seed = map(plainly, (x.at, x.seed, x.next_seed))
        self._since, self._current, self._resetting = map(plainly, (x.since, x.current, x.resetting))

    def obey(self, command: int) -> EnvFailure | None:
        """Step, and reset if that ends an episode; or only reset. Returns an error instead of raising."""
        during: During = "step"
        try:
            if command == STEP:
                over, info = self._step()
                if not over:
                    return None
                self._note_end(info := kept(info))
                during = "reset"
                self._reset(self._next_seed[self._id])
                if self._recorder is not None:
                    self._note_end(info)
            else:
                during = "reset"
                self._reset(self._seed[self._id])
            forget(self._recorder)
        except BaseException as error:  # an environment that calls sys.exit() has failed too
            return EnvFailure.of(self._id, during, error)
        return None

    def _step(self) -> tuple[bool, Any]:
        """Step; whether that ended an episode, and its info."""
        env_id, host = self._id, self._host
        self._since[host] = time.monotonic()  # before the name: a new name beside an old time would be overdue
        self._current[host], self._resetting[host] = env_id, False
        action = self._exchange.action[env_id]
        obs, reward, over, cut, info = self.env.step(action.copy() if self._copied else action)
        try:
            reward = float(reward)
        except (TypeError, ValueError, OverflowError):
            raise no_reward(reward) from None
        if not -LARGEST <= reward <= LARGEST:
            raise SchemaError(f"the reward is {reward}, {EXPECTED}")
        self._write(obs, self._at[0])
        ends = ends_of(over, cut) if over or cut else (False, False)
        self._reward[env_id], (self._terminated[env_id], self._truncated[env_id]) = reward, ends
        if self._recorder is not None:
            self._return[env_id], self._length[env_id] = running(self._recorder)
        return any(ends), info

    def _reset(self, seed: int) -> None:
        self._since[self._host] = time.monotonic()
        self._current[self._host], self._resetting[self._host] = self._id, True
        obs, _ = begun(self.env.reset(seed=seed))
        self._write(obs, BEGAN)

    def _write(self, obs: Any, store: int) -> None:
        into = self._rows[store]
        if type(obs) is np.ndarray and obs.shape == self._row_shape and obs.dtype is self._row_dtype:
            into[0] = obs
        else:
            write_row(obs, into, 0, self._row_shape)
        if found := find_unusable(into):
            raise SchemaError(found[1])

    def _note_end(self, info: Any) -> None:
        x, env_id = self._exchange, self._id
        x.ending[env_id], x.return_[env_id], x.length[env_id], x.success[env_id] = figures(info, self._recorder)

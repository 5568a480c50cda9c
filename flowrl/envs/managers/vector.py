"""Gymnasium vector environments, in each of their autoreset modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from flowrl.envs.closing import close_each
from flowrl.envs.infos import ELSEWHERE, SUCCESS, begun, checked_info, ends_of, episode_of
from flowrl.envs.managers.base import Episode, Manager, StepResult
from flowrl.envs.managers.env_runner import figures, forget
from flowrl.envs.managers.faults import env_error
from flowrl.envs.managers.shared_memory import INNER_END, RECORDED_END
from flowrl.envs.masks import unasked_mask
from flowrl.envs.spaces import (
    ONE_REWARD,
    Observations,
    check_copies,
    checked_row,
    find_unusable,
    no_reward,
    row_of,
    shared_memory,
    write_row,
    write_rows,
)
from flowrl.envs.wrappers import has_raw_returns, is_recorder, layers, pack, recorder, running, stats_key, unpack
from flowrl.errors import ConfigError, SchemaError

AnyVectorEnv = VectorEnv[Any, Any, Any]

#: Seconds that gymnasium's processes may take to close their environments after an error.
CLOSE_SECONDS = 5.0

_WORDS = {
    AutoresetMode.NEXT_STEP: "the environment resets itself on the step after an episode's end (NEXT_STEP)",
    AutoresetMode.SAME_STEP: "the environment resets itself on the step that ends an episode (SAME_STEP)",
    AutoresetMode.DISABLED: "flowrl resets at the episode's end, by reset_mask (DISABLED)",
}


class VectorEnvManager(Manager):
    """The contract of `Manager` over any gymnasium 1.x VectorEnv.

    The autoreset mode comes from `vector_env.metadata["autoreset_mode"]` unless it is an argument:

    - NEXT_STEP: after the end of an episode `obs` is still its last observation, while `episode_id` and `t` belong to
      the next episode; the next step of that environment only resets it (`acted` is False there, T1).
    - SAME_STEP: the last observation is `infos["final_obs"]` where `_final_obs` is set (T2).
    - DISABLED: flowrl resets ended episodes with `options={"reset_mask": ...}`.

    A SyncVectorEnv without wrappers is stepped one environment after the other, to the same effect: gymnasium puts what
    they return into its arrays before anybody can look at it. What any other vector environment converts, nobody sees:
    an end that is no truth value may count as True, and an integer beyond its dtype wraps.

    `launch` and `reset` seed each environment once; later episodes continue with its own generator, so a Sync- or
    AsyncVectorEnv gives the same transitions in all three modes (T3). A native vector environment has one generator
    for all, seeded from the first stream. The manager copies observations: pass `copy=False` to the environment to
    save a second copy.

    Raises: ConfigError if the mode is unknown, for `episode_seeds`, and from `seed` unless flowrl resets.
    """

    def __init__(
        self,
        vector_env: AnyVectorEnv,
        autoreset: AutoresetMode | str | None = None,
        *,
        episode_seeds: Sequence[int] | None = None,
    ) -> None:
        if episode_seeds is not None:
            raise ConfigError(
                f"episode_seeds cannot reach the episodes of {vector_env}: a vector environment seeds each of its "
                f"environments once; use another manager, which resets them itself"
            )
        super().__init__(vector_env.num_envs, vector_env.single_observation_space, vector_env.single_action_space)
        self._mode = _autoreset_mode(vector_env, autoreset)
        self.autoreset = _WORDS[self._mode]
        self.raw_returns = has_raw_returns(vector_env)
        self._use(vector_env)
        base = vector_env.unwrapped
        self._own_seeds = isinstance(base, SyncVectorEnv | AsyncVectorEnv)
        # gymnasium 1.4: without shared memory a worker forgets, in reset(), that it has just been reset.
        self._resets_twice = isinstance(base, AsyncVectorEnv) and not base.shared_memory
        self._pending = np.zeros(self.num_envs, np.bool_)  # NEXT_STEP: those that ignore the next action
        self._reseed = np.zeros(self.num_envs, np.bool_)  # DISABLED: those that seed() has yet to reach
        # Those that ended before their recorder did: whether the episode did, their reset tells (T9).
        self._open: dict[int, tuple[int, float, int, int]] = {}

    def _use(self, vector_env: AnyVectorEnv) -> None:
        base: Any = vector_env.unwrapped
        self._env = vector_env
        plain = type(vector_env) in _PLAIN
        self._singles: list[Any] = list(base.envs) if plain else []  # the environments that are stepped one by one
        self._last: list[Any] = [None] * len(self._singles)  # the info of the step that ended the newest episode
        self._busy: int | None = None  # the one of them that steps or resets
        self._resets_itself = self._mode is AutoresetMode.SAME_STEP and not plain
        self._inner: list[Any] = [None] * self.num_envs  # recorders of single environments
        if isinstance(base, SyncVectorEnv):
            self._inner = [recorder(env) for env in base.envs]
        elif isinstance(base, AsyncVectorEnv):
            known = base.call("has_wrapper_attr", "episode_lengths")
            self._inner = [_Far(base, env_id) if has else None for env_id, has in enumerate(known)]
        around = [layer for layer in layers(vector_env) if is_recorder(layer)]
        self._around = around[-1] if around and not any(self._inner) else None
        # One that another library makes may have recorders inside, whose form alone tells.
        self._foreign = not around and not isinstance(base, SyncVectorEnv | AsyncVectorEnv)
        self._told = plain or any(self._inner) or self._around is not None

    def step(self, actions: npt.ArrayLike) -> StepResult:
        chosen = self._checked_actions(actions)
        self._phase = "failed"
        try:
            result = self._step(chosen)
        except (Exception, SystemExit) as error:
            self._fail(error)
        self._phase = "running"
        return result

    def _fail(self, error: BaseException) -> NoReturn:
        error = env_error(error)
        if isinstance(error, ValueError) and "setting an array element" in str(error):
            error.add_note(ONE_REWARD)  # SyncVectorEnv keeps one number for each of its environments
        if isinstance(error, AttributeError) and "no attribute 'items'" in str(error):
            error.add_note(
                "gymnasium found an info that is no dictionary: reset returns (observation, info), and the fifth value "
                "of step is one, {} for nothing"
            )
        where = f"in environments {self._env}, episodes {self.episode_id.tolist()}, steps {self.t.tolist()}"
        if (at := self._busy) is not None:
            where = f"in environment {at}, episode {self.episode_id[at]}, step {self.t[at]}"
        error.add_note(where + self.way_out)
        raise error

    def _step(self, chosen: npt.NDArray[Any]) -> StepResult:
        at = (self._at + 1) % 3
        arrived, infos = self._buffers[at], dict[str, Any]()
        if self._singles:
            reward, terminated, truncated = self._step_each(chosen, arrived)
        else:
            obs, reward, terminated, truncated, infos = self._env.step(chosen)
            self._take(obs, arrived)
            reward = self._column("rewards", reward, np.float64)
            terminated = self._column("terminations", terminated, np.bool_)
            truncated = self._column("truncations", truncated, np.bool_)
        self.done, acted = terminated | truncated, None
        if self._mode is AutoresetMode.NEXT_STEP:
            resetting, self._pending = self._pending, self.done
            if np.count_nonzero(resetting):  # faster than any()
                acted = ~resetting
                reward, self.done = np.where(acted, reward, 0.0), self.done & acted
                terminated, truncated = terminated & acted, truncated & acted
        _refuse_unusable(reward, "reward")
        self.t += 1 if acted is None else acted
        self._return = np.add(self._return, reward)
        ends = self.done.nonzero()[0]
        ended = ends.tolist()
        if self._open:
            self._settle()
        if infos or self._told:
            for env_id in ended:
                self._end(env_id, infos)
        elif ended:
            self._end_all(ends)
        if ended and self._mode is not AutoresetMode.NEXT_STEP:
            at = (at + 1) % 3
            self._buffers[at][:] = arrived
            if self._resets_itself:
                for env_id in ended:
                    arrived[env_id] = self._final_obs(env_id, infos)
                _refuse_unusable(arrived)
            else:
                self._begin_some(ended, self._buffers[at])
                self._settle()
        self._at = at
        return self._result(arrived, reward, terminated, truncated, acted)

    def _step_each(self, chosen: npt.NDArray[Any], arrived: Observations) -> tuple[npt.NDArray[Any], ...]:
        """Step one environment after the other, or reset it if it is to ignore its action."""
        reward, shape = np.zeros(self.num_envs), self._row_shape
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        for env_id, (env, action, resets) in enumerate(zip(self._singles, chosen, self._pending.tolist())):
            self._busy = env_id
            if resets:
                self._begin(env_id, None, arrived)
                continue
            obs, gain, over, cut, info = env.step(action)
            try:
                reward[env_id] = float(gain)
            except (TypeError, ValueError, OverflowError):
                raise no_reward(gain) from None
            write_row(obs, arrived, env_id, shape)
            if (over or cut) and any(ends := ends_of(over, cut)):
                terminated[env_id], truncated[env_id] = ends
                self._last[env_id] = info
        self._busy = None
        _refuse_unusable(arrived)
        return reward, terminated, truncated

    @property
    def ready_obs(self) -> dict[int, Observations]:
        return {env_id: row for env_id, row in super().ready_obs.items() if not self._pending[env_id]}

    def seed(self, seed: int) -> None:
        if self._phase not in ("running", "failed"):
            self._refuse("seed")
        if self._mode is not AutoresetMode.DISABLED or not self._own_seeds:
            raise ConfigError(
                f"seed({seed}) cannot reach the coming episodes: {self.autoreset}. "
                f"reset({seed}) cuts the running episodes and seeds the new ones"
            )
        super().seed(seed)
        self._reseed.fill(True)

    def _end(self, env_id: int, infos: Mapping[str, Any]) -> None:
        inner, info = self._inner[env_id], self._last_info(env_id, infos)
        found = figures(info, inner)
        if inner is None and (around := self._around or self._foreign):
            record = episode_of(info.get(stats_key(around)))
            if record is not None:
                found = RECORDED_END, *record, found[3]
            elif self._around is not None:
                found = INNER_END, 0.0, 0, found[3]
        episode_id, return_, length = int(self.episode_id[env_id]), float(self._return[env_id]), int(self.t[env_id])
        self._next_episode(env_id)
        if inner is not None and found[0] == INNER_END and not self._resets_itself:
            self._open[env_id] = episode_id, return_, length, found[3]
            return
        forget(inner)
        self._finish(env_id, episode_id, return_, length, *found)

    def _recorded(self, env_id: int) -> tuple[float, int]:
        if (around := self._around) is not None:
            return around.episode_returns.item(env_id), around.episode_lengths.item(env_id)
        return running(self._inner[env_id])

    def _last_info(self, env_id: int, infos: Mapping[str, Any]) -> Any:
        """The info of the step that ended an episode, as far as it counts."""
        if self._singles:
            return self._last[env_id]
        last: Any = infos
        if self._resets_itself:  # then the top level describes the new episode
            last = infos["final_info"] if _masked(infos, "final_info", env_id) else {}
        if isinstance(last, Mapping):
            info = {key: row_of(last[key], env_id) for key in (SUCCESS, ELSEWHERE) if _masked(last, key, env_id)}
        else:  # one info for each, as gymnasium keeps those that are no dict of Python's
            info, last = dict(checked_info(last[env_id])), {}
        key = stats_key(self._around or self._inner[env_id])
        for source in (infos, last):  # a recorder around all of them writes at the top level
            if _masked(source, key, env_id) and isinstance(record := source[key], Mapping):
                info[key] = {name: column[env_id] for name, column in record.items()}
        return info

    def _settle(self) -> None:
        """Finish the episodes that waited for a reset."""
        for env_id, (episode_id, return_, length, success) in self._open.items():
            inner = self._inner[env_id]
            self._finish(env_id, episode_id, return_, length, *figures({}, inner)[:3], success)
            forget(inner)
        self._open = {}

    def _end_all(self, env_ids: npt.NDArray[np.intp]) -> None:
        """End episodes without further infos, all at once: of a thousand some end on every step."""
        told = (column[env_ids].tolist() for column in (self.episode_id, self._return, self.t))
        self.finished.extend(map(Episode, env_ids.tolist(), *told))
        self.episode_id[env_ids] += 1
        self.t[env_ids], self._return[env_ids] = 0, 0.0

    def _final_obs(self, env_id: int, infos: Mapping[str, Any]) -> Any:
        if not _masked(infos, "final_obs", env_id):
            raise SchemaError(
                f"environment {env_id} ended an episode, but infos['final_obs'] or its mask '_final_obs' is "
                f"missing: in SAME_STEP mode the last observation is lost without them"
            )
        final = row_of(infos["final_obs"], env_id)
        row = checked_row(final, self._row_shape, f"final_obs of environment {env_id}")
        latest = _references(self._env)
        if latest is not None and (part := shared_memory(self._seen(final), latest[env_id])):
            raise SchemaError(
                f"environment {env_id} reuses the memory of its {part}, so its reset may have overwritten the last "
                f"one: use EnvManager or the NEXT_STEP mode, or let the environment hand out copies"
            )
        return row

    def _begin_all(self) -> None:
        try:
            self._reset_all()
        except (Exception, SystemExit) as error:
            self._fail(error)

    def _reset_all(self) -> None:
        seeds, into = [self._draw_seed(env_id) for env_id in range(self.num_envs)], self._buffers[self._at]
        if self._singles:
            self._begin_each(range(self.num_envs), seeds, into)
        else:
            # VectorEnv.reset is typed for one seed; Sync- and AsyncVectorEnv take one for each environment.
            seed: Any = seeds if self._own_seeds else seeds[0]
            obs, infos = begun(self._env.reset(seed=seed))
            if self._resets_itself and "final_obs" in infos:
                raise SchemaError(
                    "the info of a reset has 'final_obs', where a vector environment that resets itself on the same "
                    "step keeps the last observation: give it another name, or take the NEXT_STEP mode"
                )
            self.unasked_mask = unasked_mask(infos, self.observation_space)
            self._take(obs, into)
        self._reseed.fill(False)
        self._settle()
        for inner in self._inner:
            forget(inner)
        if not self._resets_twice:
            self._pending = np.zeros(self.num_envs, np.bool_)

    def _begin_some(self, env_ids: Sequence[int], into: Observations) -> None:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[env_ids] = True
        seed: Any = None
        if self._reseed.any():
            fresh = mask & self._reseed
            seed = [self._draw_seed(env_id) if fresh[env_id] else None for env_id in range(self.num_envs)]
            self._reseed &= ~mask
        if self._singles:
            self._begin_each(env_ids, seed or [None] * self.num_envs, into)
            return
        obs, _ = self._env.reset(seed=seed, options={"reset_mask": mask.copy()})
        self._take(obs, into, mask)

    def _begin_each(self, env_ids: Sequence[int], seeds: Sequence[int | None], into: Observations) -> None:
        for env_id in env_ids:
            self._busy = env_id
            self._begin(env_id, seeds[env_id], into)
        self._busy = None
        _refuse_unusable(into)

    def _begin(self, env_id: int, seed: int | None, into: Observations) -> None:
        obs, info = begun(self._singles[env_id].reset(seed=seed))
        self.unasked_mask = unasked_mask(info, self.observation_space)
        write_row(obs, into, env_id, self._row_shape)

    def _take(self, obs: Any, into: Observations, only: npt.NDArray[np.bool_] | None = None) -> None:
        """Copy the observations of all environments, or of those in a mask `[N]`."""
        write_rows("observations", obs, into, only)
        _refuse_unusable(into)

    def _column(self, what: str, values: Any, dtype: Any) -> npt.NDArray[Any]:
        column = np.asarray(values, dtype)
        if column.shape != (self.num_envs,):
            hint = f"; {ONE_REWARD}" if column.ndim > 1 else ""
            raise SchemaError(f"{what} have shape {column.shape}, expected one for each of {self.num_envs}{hint}")
        return column

    def _save_envs(self) -> dict[str, Any]:
        return {
            "envs": [pack(self._env)],
            "pending": self._pending.tolist(),
            "reseed": self._reseed.tolist(),
            "open": [[env_id, *of] for env_id, of in self._open.items()],
        }

    def _load_envs(self, state: dict[str, Any]) -> None:
        packed = state["envs"][0]
        saved = None if packed is None else unpack(packed, "the vector environment")
        self._open = {env_id: tuple(of) for env_id, *of in state.get("open", ())}
        if saved is None:
            self._cut(range(self.num_envs))
            self.done = np.zeros(self.num_envs, np.bool_)
            self._begin_all()
            return
        with self._closing():
            self._close()
        self._use(saved)
        self._pending = np.array(state["pending"], np.bool_)
        self._reseed = np.array(state["reseed"], np.bool_)

    def _kind(self) -> str:
        return f"a VectorEnvManager in {self._mode.value} mode"

    def close(self) -> None:
        """See `Manager.close`."""
        if self._phase == "failed" and isinstance(base := self._env.unwrapped, AsyncVectorEnv):
            _end_processes(base)
        super().close()

    def _close(self) -> None:
        base: Any = self._env.unwrapped
        try:
            if type(base) in _PLAIN and not base.closed:  # whose own close() ends at the first error
                base.closed = True
                close_each(base.envs)
        finally:
            self._env.close()


class Copies(SyncVectorEnv):
    """Copies of an environment that flowrl made, for the manager, which steps each of them.

    Raises: ConfigError: see `check_copies`.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], autoreset_mode: AutoresetMode) -> None:
        # Not by way of SyncVectorEnv, which asks for more than flowrl does, such as a render_mode.
        check_copies(envs)
        self.envs, self.num_envs = list(envs), len(envs)
        self.metadata = {**envs[0].metadata, "autoreset_mode": autoreset_mode}
        self.single_observation_space, self.single_action_space = envs[0].observation_space, envs[0].action_space


#: Those whose environments are stepped, and closed, one by one.
_PLAIN = (SyncVectorEnv, Copies)


def _end_processes(env: AsyncVectorEnv) -> None:
    """Close an AsyncVectorEnv after an error: its own `close` may wait for an answer that it has had already."""
    for pipe in env.parent_pipes:
        if pipe is not None:  # of one that failed
            with suppress(OSError):
                pipe.send(("close", None))
    until = monotonic() + CLOSE_SECONDS
    for process in env.processes:
        process.join(max(0.0, until - monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    env.closed = True


class _Far:
    """The recorder of an environment in a process of gymnasium's."""

    def __init__(self, env: AsyncVectorEnv, env_id: int) -> None:
        self._env, self._id = env, env_id

    @property
    def episode_returns(self) -> float:
        return float(self._env.get_attr("episode_returns")[self._id])

    @property
    def episode_lengths(self) -> int:
        return int(self._env.get_attr("episode_lengths")[self._id])


def _refuse_unusable(store: Observations, what: str = "observation") -> None:
    """Raises: SchemaError, naming the environment, for a number that nothing can be learned from (X2)."""
    if found := find_unusable(store, what):
        raise SchemaError(f"environment {found[0]}: {found[1]}")


def _autoreset_mode(env: AnyVectorEnv, given: AutoresetMode | str | None) -> AutoresetMode:
    found = env.metadata.get("autoreset_mode") if given is None else given
    modes = [mode.value for mode in AutoresetMode]
    if found is None:
        raise ConfigError(
            f"{env} does not say how it resets: metadata['autoreset_mode'] is missing. "
            f"Give VectorEnvManager(..., autoreset=) one of {modes}"
        )
    try:
        return AutoresetMode(found)
    except ValueError:
        raise ConfigError(f"{env} has autoreset mode {found!r}, expected one of {modes}") from None


def _references(env: AnyVectorEnv) -> Any:
    """The observations that SyncVectorEnv keeps by reference, of another one None; gymnasium has no public way to ask.

    See `test_a_last_observation_that_was_overwritten_is_not_passed_off_as_true`.
    """
    return env.unwrapped._env_obs if isinstance(env.unwrapped, SyncVectorEnv) else None


def _masked(infos: Mapping[str, Any], key: str, env_id: int) -> bool:
    """Whether `infos[key]` holds a value of this environment: without a mask it may be a filler (T10)."""
    return key in infos and (mask := infos.get(f"_{key}")) is not None and bool(mask[env_id])

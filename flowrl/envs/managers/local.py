"""Environments in this process, which step one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt

from flowrl.data.batch import Batch
from flowrl.envs.closing import close_each
from flowrl.envs.games.seats import GameEnv
from flowrl.envs.infos import begun, ends_of, kept
from flowrl.envs.managers.base import Manager, StepResult, check_number
from flowrl.envs.managers.env_runner import figures, forget
from flowrl.envs.managers.faults import env_error
from flowrl.envs.masks import unasked_mask
from flowrl.envs.spaces import Observations, check_copies, find_unusable, make_store, no_reward, write_row
from flowrl.envs.wrappers import has_raw_returns, pack, recorder, running, unpack
from flowrl.errors import SchemaError


class EnvManager(Manager):
    """Steps gymnasium environments in this process and resets each as soon as its episode ends.

    So it always sees the true last observation, no row is a mere reset (`acted` is always None), and every episode
    starts from a new seed of its environment's stream. The contract is that of `Manager`.

    Raises: ConfigError if the environments differ in their spaces, or one object is passed twice.

    >>> import gymnasium
    >>> with EnvManager([gymnasium.make("CartPole-v1") for _ in range(2)]) as manager:
    ...     manager.launch(seed=0)
    ...     manager.step([0, 1]).next_obs.shape
    (2, 4)
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], *, episode_seeds: Sequence[int] | None = None) -> None:
        check_number(len(envs))
        super().__init__(len(envs), envs[0].observation_space, envs[0].action_space, episode_seeds=episode_seeds)
        check_copies(envs)
        self.raw_returns = all(has_raw_returns(env) for env in envs)
        self._reward = np.zeros(self.num_envs, np.float64)
        self._terminated = np.zeros(self.num_envs, np.bool_)
        self._truncated = np.zeros(self.num_envs, np.bool_)
        first = self._buffers[0]
        self._row_dtype = first.dtype if isinstance(first, np.ndarray) else None
        self._ones = np.ones(self.num_envs, np.int64)  # adding an array is faster than adding 1
        self._marked = False  # whether flags of an earlier step are still set
        self._use(list(envs))

    def _use(self, envs: list[gymnasium.Env[Any, Any]]) -> None:
        self._envs = envs
        self._steps = [env.step for env in envs]  # bound once: one lookup less per step
        self._recorders = [recorder(env) for env in envs]
        self._written: Batch | None = None  # the observations of games, which they write themselves

    def _share_memory(self) -> None:
        games = [env for env in self._envs if isinstance(env, GameEnv)]
        if self._written is None and len(games) == self.num_envs:
            self._written = make_store(self._stored_space, self.num_envs)
            for env_id, game in enumerate(games):
                game.write_into(self._written[env_id])

    def step(self, actions: npt.ArrayLike) -> StepResult:
        chosen = self._checked_actions(actions)
        at = (self._at + 1) % 3
        arrived, shape, ndarray = self._buffers[at], self._row_shape, np.ndarray
        dtype, written = self._row_dtype, self._written
        reward, terminated, truncated = self._reward, self._terminated, self._truncated
        returns = self._return
        if self._marked:
            for flags in (terminated, truncated, self.done):
                flags.fill(False)
        self._marked, self._phase = True, "failed"  # until the step succeeds
        ended: list[tuple[int, Any]] = []
        env_id = 0
        try:
            for env_id, (step, action) in enumerate(zip(self._steps, chosen)):
                obs, gain, over, cut, info = step(action)
                try:
                    reward[env_id] = gain
                    returns[env_id] += float(gain)  # in float64, whatever the environment's type
                except (TypeError, ValueError, OverflowError):
                    raise no_reward(gain) from None
                if type(obs) is ndarray and obs.shape == shape and obs.dtype is dtype:
                    arrived[env_id] = obs
                elif written is None:
                    write_row(obs, arrived, env_id, shape)
                if (over or cut) and any(ends := ends_of(over, cut)):
                    terminated[env_id], truncated[env_id] = ends
                    ended.append((env_id, kept(info)))
            if written is not None:
                arrived[:] = written
            if found := find_unusable(arrived) or find_unusable(reward, "reward"):
                env_id, flaw = found
                raise SchemaError(flaw)
            np.add(self.t, self._ones, out=self.t)
            if ended:
                at = (at + 1) % 3
                self._buffers[at][:] = arrived
                for env_id, info in ended:
                    self._end(env_id, info, self._buffers[at])
        except (Exception, SystemExit) as error:
            self._fail(error, env_id)
        self._at, self._marked, self._phase = at, bool(ended), "running"
        return self._result(arrived, reward, terminated, truncated, None)

    def _end(self, env_id: int, info: Any, into: Observations) -> None:
        return_, length = float(self._return[env_id]), self.t.item(env_id)
        episode_id, inner = self.episode_id.item(env_id), self._recorders[env_id]
        self.done[env_id] = True
        self._next_episode(env_id)
        self._begin(env_id, into)
        found = figures(info, inner)
        forget(inner)
        self._finish(env_id, episode_id, return_, length, *found)

    def _begin_all(self) -> None:
        self._share_memory()
        self._begin_these(range(self.num_envs))

    def _begin_these(self, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            try:
                self._begin(env_id, self._buffers[self._at])
            except (Exception, SystemExit) as error:
                self._fail(error, env_id)
        self._forget_all()

    def _forget_all(self) -> None:
        for inner in self._recorders:
            forget(inner)

    def _begin(self, env_id: int, into: Observations) -> None:
        obs, info = begun(self._envs[env_id].reset(seed=self._draw_seed(env_id)))
        self.unasked_mask = unasked_mask(info, self.observation_space)
        if self._written is not None:
            into[env_id] = obs
        else:
            write_row(obs, into, env_id, self._row_shape)
        if found := find_unusable(into[env_id : env_id + 1]):
            raise SchemaError(found[1])

    def _fail(self, error: BaseException, env_id: int) -> NoReturn:
        error = env_error(error)
        where = f"in environment {env_id}, episode {self.episode_id[env_id]}, step {self.t[env_id]}"
        error.add_note(where + self.way_out)
        raise error

    def _recorded(self, env_id: int) -> tuple[float, int]:
        return running(self._recorders[env_id])

    def _save_envs(self) -> dict[str, Any]:
        return {"envs": [pack(env) for env in self._envs]}

    def _load_envs(self, state: dict[str, Any]) -> None:
        packed = [(i, each) for i, each in enumerate(state["envs"]) if each is not None]
        found = {i: unpack(each, f"environment {i}") for i, each in packed}
        saved = {i: env for i, env in found.items() if env is not None}
        lost = [env_id for env_id in range(self.num_envs) if env_id not in saved]
        for env_id in saved:
            with self._closing():
                self._envs[env_id].close()
        self._marked = True
        self._use([saved.get(env_id, env) for env_id, env in enumerate(self._envs)])
        self._share_memory()
        self._cut(lost)
        self._begin_these(lost)

    def _kind(self) -> str:
        return "an EnvManager"

    def _close(self) -> None:
        close_each(self._envs)

"""The contract of managers of environments: arrays in and out, a row per environment."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, Self

import attrs
import gymnasium
import numpy as np
import numpy.typing as npt

from flowrl.data.batch import Batch
from flowrl.data.columns import describe
from flowrl.engine.protocols import Decisions
from flowrl.envs.closing import closing
from flowrl.envs.infos import INFO, OBS
from flowrl.envs.managers.children import Children, warn_of
from flowrl.envs.managers.faults import During, Fault, FaultLog, Kind
from flowrl.envs.managers.shared_memory import INNER_END, OWN_END, RECORDED_END
from flowrl.envs.masks import check_mask
from flowrl.envs.spaces import (
    Observations,
    array_form,
    check_observations,
    dict_form,
    find_unusable,
    fits,
    make_store,
    plain_copy,
    row_shape,
    same_form,
)
from flowrl.envs.spec import name_of
from flowrl.errors import CheckpointError, ConfigError, FlowError, SchemaError
from flowrl.saved import Saved, random_generator

#: The fields of a saved state with one value for each environment, with their types.
_OF_EACH = {
    "episode_id": list[int],
    "t": list[int],
    "return": list[float],
    "done": list[bool],
    "seeds": list[int | None],
    "streams": list[dict[str, Any]],
}


class StepResult(NamedTuple):
    """The result of one step of all environments. The next step overwrites the arrays: copy to keep.

    - `next_obs [N, ...]`: the observation arrived in; the true last one where an episode ended (T2, T6). It has
      the form of `Manager.obs`.
    - `reward [N]` float64, as the environment returned it.
    - `terminated [N]`, `truncated [N]` bool, as reported: if both are set, terminated wins (T4).
    - `acted`: None if every row is a transition, else a bool mask `[N]`. A row with False is not a transition: its
      environment only reset itself (T1), or a fault cut its episode, or it has not answered yet. Such a row is
      neither stored nor counted; its reward is 0, its flags are False, its `next_obs` is undefined.
    """

    next_obs: Observations
    reward: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    acted: npt.NDArray[np.bool_] | None


@attrs.frozen(slots=True)
class Episode:
    """One finished episode: raw return (S1), length in steps, and `info["is_success"]` at its last step.

    `cut`: the caller stopped waiting before it ended; return and length are those so far. `agent`: whose it is, in a
    game of several; "" for that of the game, whose return is that of all together.
    """

    env_id: int
    episode_id: int
    return_: float
    length: int
    success: bool | None = None
    cut: bool = False
    agent: str = ""


class Manager(abc.ABC):
    """The contract, and the bookkeeping that all managers share.

    Call `launch(seed)` once, then `step(actions)` for ever. Between steps these attributes describe what each of the N
    environments acts from (`episode_id` and `t` change in place: copy to keep):

    - `obs [N, ...]`: the observation; a `Batch` of such columns if the space is a Dict or Tuple, nested or not. The
      returned object stays valid for one step, not for two. `observation_space` has a Dict for a Tuple.
    - `episode_id [N]`, `t [N]` int64: the episode of its environment, counted from 0, and the step in it.
    - `done [N]` bool: whether the last step ended an episode.
    - `ready`: None if every environment takes an action in the next step, else a bool mask `[N]` of those that do.
      The others are still stepping: they keep `obs`, `episode_id` and `t` until their answer is returned, unless a
      fault cuts their episode. The `step` of such an asynchronous manager also takes `wait`, a mask of environments
      that get no action yet.

    `info` holds columns `[N, ...]` of numbers in the `info` of the last step, in environments with `InfoColumns`, else
    None. Like the arrays of a `StepResult`, the next step overwrites it, and it is undefined where `acted` is False.

    `finished` holds the episodes ended since the last `drain()`; `cut_episodes` counts those cut short by a
    `reset()`, by a fault, or by a resume without a saved environment: no statistics include them. `autoreset`
    describes who resets. `raw_returns` is False if a wrapper may have changed rewards before they were summed (S1).
    `unasked_mask` is True if `info` had an action mask at the start of episodes but observations have none, as far
    as this process sees.

    Every environment has its own stream of seeds, `SeedSequence(seed, spawn_key=(env_id,))`. With `episode_seeds`,
    environment i begins its k-th episode with `episode_seeds[(k * N + i) % len(episode_seeds)]` instead.

    Raises: ConfigError for spaces that are not arrays, nor Dicts or Tuples of them (observations); FlowError for a call
    out of order; SchemaError for actions or observations of a wrong shape, and for numbers that are not finite or
    overflow float32, rewards too (X2). An error of an environment
    keeps its type and gains a note that names the environment; some environments have stepped then and others not, so
    `reset()` or `load_state_dict()` must follow. In processes or threads such an error is a fault instead: it cuts the
    episode, the environment begins a new one, and `drain_faults()` reports it; EnvFault is raised if an environment
    has more than `max_retry` faults without finishing an episode.
    """

    decisions = Decisions()
    """What an asynchronous manager asks which environments have answered, see `flowrl.engine.recording.journal`."""
    autoreset = "flowrl resets at the episode's end, with a fresh seed"
    raw_returns: bool
    info: Batch | None = None
    unasked_mask = False
    spec: Any = None
    """What its environments were made from, if they are in this process."""
    way_out = ""
    """What to do about a fault, to end its message: `flowrl doctor` with the environment's name, where it has one."""

    def __init__(
        self,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        episode_seeds: Sequence[int] | None = None,
        faults: FaultLog | None = None,
    ) -> None:
        check_number(num_envs)
        self.num_envs = num_envs
        self._episode_seeds = _checked_seeds(episode_seeds)
        self._seeds: list[int | None] = [None] * num_envs  # of the current episodes
        self._faults = faults or FaultLog(num_envs)
        check_observations(observation_space)
        self._stored_space = observation_space = dict_form(observation_space)
        self._informed = isinstance(observation_space, gymnasium.spaces.Dict) and INFO in observation_space.spaces
        self.observation_space = observation_space = self._seen(observation_space)
        check_mask(observation_space, action_space)
        self.action_space = action_space
        action_shape, self._action_dtype = array_form(action_space, "action")
        self._actions_shape = (num_envs, *action_shape)
        self.episode_id = np.zeros(num_envs, np.int64)
        self.t = np.zeros(num_envs, np.int64)
        self._lived = np.zeros(num_envs, np.int64)  # in no state: only evaluations, which begin anew, ask for `steps`
        self.done = np.zeros(num_envs, np.bool_)
        self.finished: list[Episode] = []
        self.cut_episodes = 0
        self._return: Any = [0.0] * num_envs  # or an array; Python adds single floats faster than numpy
        self._streams: list[np.random.PCG64] = []
        # Three buffers in turn: the one acted from, the one arrived in and, where an episode ended, the first one of
        # the next. So a step without an end writes each observation once, and the caller's `obs` survives.
        self._buffers = [make_store(self._stored_space, num_envs) for _ in range(3)]
        self._row_shape = row_shape(self._buffers[0])
        self._at = 0
        self._phase = "not launched"
        self.children = Children()

    # A manager implements:

    @abc.abstractmethod
    def step(self, actions: npt.ArrayLike) -> StepResult:
        """Step every environment once with `actions [N, ...]` of the action space.

        Or with those of the environments in `ready_obs` alone: in its order, or by id.
        """

    @abc.abstractmethod
    def _begin_all(self) -> None:
        """Reset every environment with the next seed of its stream, into `self._buffers[self._at]`."""

    @abc.abstractmethod
    def _save_envs(self) -> dict[str, Any]:
        """`envs`: pickled environments, None for those that cannot be pickled; and further state of the manager."""

    def _prepare_to_load(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare the environments to load a state into; failures here do not belong to the state."""

    @abc.abstractmethod
    def _load_envs(self, state: dict[str, Any]) -> None:
        """Restore the environments; those that were not saved begin new episodes, their old ones are cut."""

    @abc.abstractmethod
    def _kind(self) -> str:
        """The kind of states that this manager loads."""

    @abc.abstractmethod
    def _close(self) -> None: ...

    # All managers share:

    def launch(self, seed: int) -> None:
        """Seed every environment's stream and begin the first episodes."""
        if self._phase != "not launched":
            self._refuse("launch twice")
        self._sow(seed)
        self._phase = "failed"  # until every environment has begun
        with self.children.noted():
            self._begin_all()
        self._phase = "running"

    def reset(self, seed: int | None = None) -> None:
        """Cut all running episodes and begin new ones, with new streams of seeds if `seed` is given."""
        if self._phase not in ("running", "failed"):
            self._refuse("reset")
        if seed is not None:
            self._sow(seed)
        self._phase = "failed"
        self._cut(range(self.num_envs))
        self.done = np.zeros(self.num_envs, np.bool_)
        self._at = (self._at + 1) % 3
        self._begin_all()
        self._phase = "running"

    def seed(self, seed: int) -> None:
        """Give future episodes new streams of seeds; running ones continue."""
        if self._phase not in ("running", "failed"):
            self._refuse("seed")
        self._sow(seed)

    @property
    def obs(self) -> Observations:
        """`[N, ...]`: the observation that each environment acts from now."""
        if self._phase != "running":
            self._refuse("read observations")
        return self._seen(self._buffers[self._at])

    @property
    def ready(self) -> npt.NDArray[np.bool_] | None:
        """`[N]`: which environments take an action in the next step; None when all do."""
        return None

    @property
    def ready_obs(self) -> dict[int, Observations]:
        """Observations by id of environments whose next action counts: neither about to reset (T1) nor busy."""
        obs, ready = self.obs, self.ready
        return {env_id: obs[env_id] for env_id in range(self.num_envs) if ready is None or ready[env_id]}

    def follow(self, decisions: Decisions) -> None:
        """Ask these decisions from now on."""
        self.decisions = decisions

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """`[N]`: the steps of each running episode, with those of its lives before that a wrapper ended (T9)."""
        steps: npt.NDArray[np.int64] = self._lived + self.t
        return steps

    def so_far(self, env_id: int) -> tuple[float, int]:
        """Raw return and length (S1) of the running episode of an environment that has just stepped."""
        return_, length = self._recorded(env_id)
        return (return_, length) if length else (float(self._return[env_id]), self.t.item(env_id))

    def _recorded(self, env_id: int) -> tuple[float, int]:
        """Return and length so far in a recorder; 0 steps without one."""
        return 0.0, 0

    def drain(self) -> list[Episode]:
        """The episodes finished since the last drain, oldest first."""
        drained, self.finished = self.finished, []
        return drained

    def drain_faults(self) -> list[Fault]:
        """The faults since the last drain, oldest first."""
        return self._faults.drain()

    def close(self) -> None:
        """Close the environments; log errors, and processes that they leave behind. A second call does nothing."""
        if self._phase != "closed":
            self._phase = "closed"
            with self._closing():
                self._close()
            warn_of(self.children)

    def _closing(self) -> AbstractContextManager[None]:
        return closing(name_of(self.spec or type(self)), self.way_out)

    @property
    def is_open(self) -> bool:
        """Whether it has its environments still."""
        return self._phase != "closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """The state for an exact continuation mid-episode; `envs` are pickles, None where impossible."""
        if self._phase != "running":
            self._refuse("save")
        envs = self._save_envs()  # first: an environment that fails here begins another episode
        return {
            "kind": self._kind(),
            "obs": plain_copy(self._buffers[self._at]),
            "episode_id": self.episode_id.tolist(),
            "t": self.t.tolist(),
            "return": np.asarray(self._return).tolist(),
            "done": self.done.tolist(),
            "finished": [attrs.astuple(episode) for episode in self.finished],
            "cut_episodes": self.cut_episodes,
            "faults": self._faults.state_dict(),
            "seeds": list(self._seeds),
            "streams": [stream.state for stream in self._streams],
            **envs,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, launched or not. Environments without saved state reset, their episodes are cut.

        It unpickles: load only what you trust. Raises: CheckpointError for a state of other environments.
        """
        if self._phase in ("closed", "forked"):
            self._refuse("load")
        obs, saved = self._buffers[self._at], Saved(state, "the saved environments")
        if (kind := saved.get("kind", str)) != self._kind():
            raise CheckpointError(f"the state is that of {kind}, this is {self._kind()}")
        held = Batch(saved.get("obs")) if isinstance(saved.get("obs"), dict) else saved.get("obs")
        if not same_form(held, obs):
            raise CheckpointError(
                f"the state holds observations {describe(held)}, environments first; this manager's are "
                f"{describe(obs)}: make it as it was when it was saved"
            )
        each = {name: saved.get(name, kind) for name, kind in _OF_EACH.items()}
        for name, values in each.items():
            if len(values) != self.num_envs:
                saved.refuse(name, f"one value for each of {self.num_envs} environments")
        finished = [Episode(*fields) for fields in saved.get("finished", list)]
        cut_episodes, faults = saved.count("cut_episodes"), FaultLog(self.num_envs)
        faults.load_state_dict(saved.get("faults"))
        streams = [random_generator(Saved({"stream": one}, saved.what), "stream") for one in each["streams"]]
        self._phase = "failed"
        self._prepare_to_load()
        obs[:] = held
        self.episode_id[:] = each["episode_id"]
        self.t[:] = each["t"]
        self._return = list(each["return"])
        self.done = np.array(each["done"], np.bool_)
        self.finished, self.cut_episodes = finished, cut_episodes
        self._faults.load_state_dict(state["faults"])
        self._seeds = list(each["seeds"])
        self._sow(0)
        for stream, loaded in zip(self._streams, streams):
            if loaded is not None:
                stream.state = loaded.bit_generator.state  # type: ignore[assignment]  # numpy's stubs
        self._load_envs(state)
        self._phase = "running"

    def _seen(self, stored: Any) -> Any:
        """What policies see of stored observations, or of their space: not the columns of `info` beside them."""
        return stored[OBS] if self._informed else stored

    def _result(
        self,
        arrived: Observations,
        reward: npt.NDArray[np.float64],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        acted: npt.NDArray[np.bool_] | None,
    ) -> StepResult:
        """The result of a step that arrived in these stored observations."""
        if self._informed:
            self.info = arrived[INFO]
        return StepResult(self._seen(arrived), reward, terminated, truncated, acted)

    def _sow(self, seed: int) -> None:
        self._streams = [_stream(seed, env_id) for env_id in range(self.num_envs)]

    def _draw_seed(self, env_id: int) -> int:
        """Draw the seed of the environment's episode that is about to begin."""
        self._seeds[env_id] = seed = self._seed_after(env_id, 0)
        return seed

    def _coming_seed(self, env_id: int) -> int:
        """The seed of the episode after the current one, without drawing it."""
        seed = self._seed_after(env_id, 1)
        if not self._episode_seeds:
            self._streams[env_id].advance(-1)
        return seed

    def _seed_after(self, env_id: int, episodes: int) -> int:
        if fixed := self._episode_seeds:
            return fixed[((self.episode_id.item(env_id) + episodes) * self.num_envs + env_id) % len(fixed)]
        return _drawn(self._streams[env_id])

    def _fault(
        self,
        env_id: int,
        during: During,
        kind: Kind,
        message: str,
        traceback: str = "",
        collateral: Sequence[int] = (),
    ) -> None:
        """Record a fault and cut the episodes that it cost. Raises: EnvFault if it is one too many."""
        episode_id, t, seed = self.episode_id.item(env_id), self.t.item(env_id), self._seeds[env_id]
        self._cut([env_id, *collateral])
        fault = Fault(env_id, episode_id, t, seed, during, kind, message, traceback, tuple(collateral))
        self._faults.add(fault, self.way_out)

    def _finish(
        self,
        env_id: int,
        episode_id: int,
        return_: float,
        length: int,
        ending: int = OWN_END,
        recorded_return: float = 0.0,
        recorded_length: int = 0,
        success: int = -1,
    ) -> None:
        """Record an ended episode, with return and length of its recorder if there is one (S1, see `figures`)."""
        self._faults.forgive(env_id)
        if ending == INNER_END:  # the episode ended for a wrapper only
            self._lived[env_id] += length
            return
        self._lived[env_id] = 0
        if ending == RECORDED_END:
            return_, length = recorded_return, recorded_length
        self.finished.append(Episode(env_id, episode_id, return_, length, None if success < 0 else success > 0))

    def _cut(self, env_ids: Sequence[int]) -> None:
        self.cut_episodes += len(env_ids)
        for env_id in env_ids:
            self._lived[env_id] = 0
            self._next_episode(env_id)

    def _next_episode(self, env_id: int) -> None:
        self.episode_id[env_id] += 1
        self.t[env_id] = 0
        self._return[env_id] = 0.0

    def _checked_actions(self, actions: npt.ArrayLike) -> npt.NDArray[Any]:
        """Actions in the space's dtype, copied: environments may keep their rows, and callers reuse theirs.

        Raises: FlowError if the manager cannot step now; SchemaError if these are not actions.
        """
        if self._phase != "running":
            self._refuse("step")
        given = np.asarray(actions)
        if given.shape != self._actions_shape:
            given = self._of_ready(actions)
        dtype = self._action_dtype
        choices = given.dtype.kind in "iu" and dtype.kind in "iu"  # which policies count in int64 for every space
        if given.shape != self._actions_shape or not (choices or fits(given.dtype, dtype)):
            raise SchemaError(
                f"actions are {given.dtype}{list(given.shape)}, expected {dtype}{list(self._actions_shape)}: "
                f"one row for each of {self.num_envs} environments, or of the {len(self.ready_obs)} in ready_obs, "
                f"in the numbers of {self.action_space}"
            )
        if found := find_unusable(given, "action"):
            raise SchemaError(f"environment {found[0]}: {found[1]}; the policy gave it")
        return given.astype(dtype, copy=given.ndim > 1)

    def _of_ready(self, actions: Any) -> npt.NDArray[Any]:
        """Actions of the environments in `ready_obs` as rows of all; others as they are."""
        ready = list(self.ready_obs)
        if isinstance(actions, Mapping) and actions.keys() == set(ready):
            actions = [actions[env_id] for env_id in ready]
        rows = np.asarray(actions)
        rows = rows if rows.size else rows.astype(self._action_dtype)
        if rows.shape != (len(ready), *self._actions_shape[1:]):
            return rows
        whole = np.resize(rows, self._actions_shape)  # the rows of the others are not used, and must be actions (R7)
        whole[ready] = rows
        return whole

    def _refuse(self, what: str) -> NoReturn:
        reason = {
            "not launched": "the manager is not launched: call launch(seed) first",
            "running": "the manager runs: reset() begins new episodes, reset(seed) with new seeds",
            "failed": "an environment failed, and the others are out of step with it: call reset() first",
            "closed": "the manager is closed: make a new one",
            "forked": "this is a fork of the process that owns the environments: make a manager here",
        }
        raise FlowError(f"cannot {what}: {reason[self._phase]}")


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """The seed of an environment's episode, counted from 0 where its stream began with a manager's `seed` (D11)."""
    stream = _stream(seed, env_id)
    stream.advance(episode)
    return _drawn(stream)


def _stream(seed: int, env_id: int) -> np.random.PCG64:
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(env_id,)))


def _drawn(stream: np.random.PCG64) -> int:
    # Some simulators take at most 31 bits; and a raw draw costs a tenth of Generator.integers.
    return stream.random_raw() >> 33


def check_number(num_envs: int) -> None:
    """Raises: ConfigError for less than one environment."""
    if num_envs < 1:
        raise ConfigError(f"{num_envs} environments: a manager needs at least one")


def _checked_seeds(seeds: Sequence[int] | None) -> list[int]:
    if seeds is None:
        return []
    whole = [seed for seed in seeds if isinstance(seed, int | np.integer) and seed >= 0]
    if not whole or len(whole) < len(seeds):
        raise ConfigError(f"episode_seeds={seeds!r}: expected a list of at least one whole number, none below 0")
    return [int(seed) for seed in whole]

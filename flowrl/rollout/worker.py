"""RolloutWorker: a policy acts in environments and collects columnar fragments of experience."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import gymnasium
import numpy as np

from flowrl.data import Batch
from flowrl.data.advantages import values_arrived_in
from flowrl.data.columns import PROVENANCE
from flowrl.data.finite import first_unusable
from flowrl.data.multi_agent import DEFAULT_POLICY
from flowrl.data.steps import real_rows, real_steps
from flowrl.data.trajectories import side_by_side
from flowrl.engine.schema import UNKNOWN, ColumnSchema, Schema, schema_of
from flowrl.engine.workers.subplan import SubplanWorker
from flowrl.envs import Episode, Fault, Manager
from flowrl.envs.masks import UNASKED
from flowrl.envs.spaces import first_members
from flowrl.errors import FlowError, NotFinite
from flowrl.learners.all_reduce import Peer
from flowrl.networks.clipping import blamed
from flowrl.policies import Policy
from flowrl.policies.protocols import ExploresByWorker
from flowrl.rollout.acting import Actor, initial_states
from flowrl.rollout.fragment import Fragment
from flowrl.rollout.noise import split_seed
from flowrl.saved import Saved

log = logging.getLogger("flowrl")

Array = np.ndarray[Any, np.dtype[Any]]

#: Steps in a row without an action, while environments are held, after which the others cannot act without them.
MAX_IDLE_STEPS = 100

#: Columns that identify a row in messages.
_PLACE = {"env_id": "environment", "episode_id": "episode", "t": "step"}


class RolloutWorker(SubplanWorker, Peer):
    """Acts in the environments of one manager with a policy's collect mode.

    `sample` returns `[T, N, ...]` columns: obs, the columns of the mode's `act` (action, perhaps logp and value; but
    `env_action` goes to the environments in place of `action` and is not stored), reward (raw), terminated,
    truncated, next_obs (the true one at the end of an episode, T2, T6), next_value if there is a value, state if
    the mode is recurrent (the state before the action, T8), info.KEY for the setting `info_keys`, and the provenance
    of every row: policy_version, worker, env_id, episode_id, t. Dictionary observations are nested batches.

    A failing environment cuts its episode: this stops without a flag, and the next row of that environment has
    another episode_id.

    Args:
        manager: Environments, not launched yet.
        policy: The policy, shared with its learner in this process.
        seed: Seed of the environments and of the action noise.
        index: Index of this worker among others.

    State: environments, mid-episode; rows of the next fragment; actions sent and not answered yet; noise streams;
        recurrent state; the env steps of the run, as far as known: its own, and those reported to it; the policy, if
        it learns jointly with others.
    """

    def __init__(self, manager: Manager, policy: Policy, *, seed: int, index: int = 0) -> None:
        env_seed, noise_seed = split_seed(seed)
        manager.launch(env_seed)
        self._begin(manager, index)
        self._policy = policy
        self._ids = np.arange(manager.num_envs)
        self._idle_steps = 0  # in a row, see `MAX_IDLE_STEPS`
        self._fragment = Fragment(manager.num_envs)
        self._actor = Actor(manager, collect_mode_of(policy, index), noise_seed)

    def open_plan(self, key: str, *part: Any) -> None:
        """See `SubplanWorker.open_plan`; the environments follow the decisions of the part too."""
        super().open_plan(key, *part)
        self.manager.follow(self.parts[key].context.decisions)

    def _begin(self, manager: Manager, index: int) -> None:
        super().__init__()
        self.manager, self.index = manager, index
        self.env_steps = 0
        if manager.unasked_mask and index == 0:
            log.warning("%s", UNASKED)

    def __repr__(self) -> str:
        return f"RolloutWorker({self.manager.num_envs} environments)"

    def sample(self, steps: int | None = None, *, rows: int | None = None, episodes: int | None = None) -> Batch:
        """Collect `steps` steps of each environment, `[steps, N, ...]`; running episodes go on next time (T7).

        With an asynchronous manager, the steps of an environment that is ahead of slower ones open the next fragment;
        it waits when it is a whole fragment ahead.

        With `rows` instead: this many steps or a few more, of any environments, as rows `[B, ...]` in the order of
        time. Then the environments of an asynchronous manager do not wait for each other.

        With `episodes` instead: this many whole new episodes, `[T, episodes, ...]` with T the length of the longest
        and a `mask` column that is False on the padding. The environments' numbers of episodes differ by at most
        one, so that short episodes are not over-represented (S2). An episode that a fault cuts is repeated.

        Raises:
            ValueError: none or several of the three are set, or the value is below 1.
            FlowError: environments cannot act before others do that have all their rows.
            NotFinite: a log-probability or value of the policy is not finite (X1); it has the rows.
        """
        amounts = [n for n in (steps, rows, episodes) if n is not None]
        if len(amounts) != 1 or amounts[0] < 1:
            raise ValueError(f"sample needs steps >= 1, rows >= 1 or episodes >= 1, got {steps=}, {rows=}, {episodes=}")
        if steps is not None:
            self._fragment.reserve(steps)
            while (missing := steps - self._fragment.rows) > 0:
                for _ in range(missing):  # a step adds at most one row of each environment
                    self._step(most=2 * steps)
            return checked(completed(self._fragment.cut(steps), self._ids, self.index, self.policy))
        return self._any_rows(amounts[0]) if episodes is None else self._whole_episodes(episodes)

    @property
    def policy(self) -> Policy:
        """The policy that acts."""
        return self._policy

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policies that act, by name."""
        return {DEFAULT_POLICY: self.policy}

    def env_steps_of(self, batch: Any) -> int:
        """The env steps that the newest sample counts for."""
        return real_steps(batch)

    def episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        return self.manager.drain()

    def games(self) -> list[Any]:
        """How the games ended since the last call of which the players differ from match to match: `MatchResult`."""
        return []

    def faults(self) -> list[Fault]:
        """The environments' faults since the last call."""
        return self.manager.drain_faults()

    def observe_env_steps(self, env_steps: int) -> None:
        """Report the env steps of the run so far, including other workers': schedules follow them (Q7)."""
        self.env_steps = max(self.env_steps, env_steps)

    def get_weights(self) -> dict[str, Any]:
        """The weights of the policy that acts."""
        return self.policy.weights()

    def apply(self, function: Callable[[RolloutWorker], Any]) -> Any:
        """The result of a function of this worker, which may be in another process: see `WorkerSet.foreach_worker`."""
        return function(self)

    def weights_apart(self) -> tuple[int, dict[str, Any]]:
        """The version and the weights of the policy, as (answer, item)."""
        return self.policy.version, self.policy.weights()

    def reset_policy(self, policy: Policy) -> None:
        """Act with another policy from now on.

        The recurrent states start anew, and the noise too if the policy draws another number of values.
        """
        self._policy = policy
        self._actor.use(collect_mode_of(policy, self.index))

    def reset_env(self, seed: int | None = None) -> None:
        """Cut the running episodes and begin new ones; a `seed` starts new streams of seeds."""
        self.manager.reset(seed)
        self._fragment.clear()

    def close(self) -> None:
        """Close the environments."""
        self.leave()
        self.manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        return {
            "manager": self.manager.state_dict(),
            "fragment": self._fragment.state_dict(),
            "actor": self._actor.state_dict(),
            "env_steps": self.env_steps,
            **self._learned(),
        }

    def _learned(self) -> dict[str, Any]:
        """The state of the policy, if it learns here."""
        return {"policy": self.policy.state_dict()} if self.peers else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved worker")
        manager, env_steps = saved.get("manager"), saved.count("env_steps")
        self._fragment.load_state_dict(saved.get("fragment"))
        self._actor.load_state_dict(saved.get("actor"))
        self.manager.load_state_dict(manager)
        self.env_steps = env_steps
        if "policy" in state:
            self.policy.load_state_dict(state["policy"])

    def load(self, state: dict[str, Any]) -> int:
        """Load a state; returns the number of its running episodes that could not be saved and are cut."""
        self.load_state_dict(state)
        return int(self.manager.cut_episodes - state["manager"]["cut_episodes"])

    def _step(self, most: int | None = None, wanted: Array | None = None) -> Array:
        """One step of all environments that are ready, into the fragment.

        Args:
            most: Most rows per environment; one with so many gets no action before the others have caught up.
            wanted: Mask `[N]` of the environments that get actions, and whose rows are kept; None: all.

        Returns: Mask `[N]` of the environments that ended an episode.
        """
        wait = None if wanted is None else ~wanted
        if most is not None and self.manager.ready is not None:
            wait = self._fragment.lengths() >= most
        row, result = self._actor.step(self.env_steps, self.policy.version, wait)
        row["next_obs"], row["reward"], row["terminated"], row["truncated"], acted = result
        if self.manager.info is not None:
            row["info"] = self.manager.info
        if "value" not in row:
            row.pop("next_state", None)
        self._check_progress(wait, acted)
        if wanted is not None:
            acted = wanted if acted is None else acted & wanted
        self.env_steps += len(self._ids) if acted is None else int(np.count_nonzero(acted))  # faster than sum()
        self._fragment.write(row, acted)
        ended: Array = result.terminated | result.truncated
        return ended if acted is None else ended & acted

    def _check_progress(self, wait: Array | None, acted: Array | None) -> None:
        """Raise FlowError if environments that wait (`[N]`) hold up the others, as in a game of several seats."""
        if wait is None or acted is None or acted.any() or not wait.any():
            self._idle_steps = 0
            return
        self._idle_steps += 1
        if self._idle_steps == MAX_IDLE_STEPS:
            self._idle_steps = 0
            rows = self._fragment.lengths()
            idle, held = (", ".join(f"{k} ({rows[k]} rows)" for k in np.flatnonzero(of)) for of in (~wait, wait))
            raise FlowError(
                f"{self!r}: environment {idle} cannot act, while {held} has all its rows and waits: "
                "do they act in turn? sample(rows=...), which waits for none, collects from them"
            )

    def _any_rows(self, rows: int) -> Batch:
        self._fragment.reserve(-(-rows // len(self._ids)))
        while self._fragment.lengths().sum() < rows:
            self._step()
        written, batch = self._fragment.lengths(), self._fragment.cut_all()
        batch["mask"] = np.arange(len(batch))[:, None] < written
        batch = real_rows(completed(batch, self._ids, self.index, self.policy))
        del batch["mask"]
        return checked(batch)

    def _whole_episodes(self, episodes: int) -> Batch:
        if self.manager.t.any() or self._fragment.lengths().any():
            self.reset_env()
        missing = shares_of(episodes, len(self._ids))
        finished, self.manager.finished = self.manager.finished, []
        while (missing > 0).any():
            missing -= self._step(wanted=missing > 0)
        written, rows = self._fragment.lengths(), self._fragment.cut_all()
        columns = [index for env_id in self._ids.tolist() for index in self._ended(rows, written[env_id], env_id)]
        table, envs = rows.flat(), [int(column[0]) % len(self._ids) for column in columns]
        padded = side_by_side(table, columns, max(map(len, columns)))
        # Environments with a complete share may have played further episodes, which do not count.
        ours = {(env_id, int(table.episode_id[column[0]])) for env_id, column in zip(envs, columns)}
        played = [episode for episode in self.manager.finished if (episode.env_id, episode.episode_id) in ours]
        cut = self.manager.cut_episodes
        self.reset_env()
        self.manager.cut_episodes = cut  # those beyond the shares were never experience
        self.manager.finished = finished + played
        return checked(completed(padded, np.array(envs), self.index, self.policy))

    def _ended(self, rows: Batch, count: int, env_id: int) -> Iterator[Array]:
        """The flat row numbers of each episode that ended in the first `count` rows of an environment."""
        ends = np.flatnonzero((rows.terminated | rows.truncated)[:count, env_id])
        for end in ends.tolist():
            # Rows of an earlier, cut episode may come before it.
            yield (end + 1 - np.arange(rows.t[end, env_id] + 1, 0, -1)) * len(self._ids) + env_id


def completed(batch: Batch, env_ids: Array, index: int, policy: Policy) -> Batch:
    """Add env_id, from `env_ids [N]`, worker and next_value, which are computed for whole batches."""
    shape = batch.reward.shape
    batch["env_id"], batch["worker"] = np.full(shape, env_ids), np.full(shape, index)
    if "value" in batch:
        batch["next_value"] = values_arrived_in(batch, batch.value, policy.collect_mode.value)
        if "next_state" in batch:
            del batch["next_state"]
    return batch


def checked(batch: Batch) -> Batch:
    """The batch, whose estimates are finite: what a policy computed of its actions and observations."""
    for name in ("logp", "value", "next_value"):
        if name in batch and (first := first_unusable(batch[name])) is not None:
            row = first // (batch[name].size // batch.rows)
            place = [f"{words} {batch[key].flat[row]}" for key, words in _PLACE.items()]
            raise blamed(NotFinite(f"the policy gives {name} = {batch[name].flat[first]} ({', '.join(place)})"), batch)
    return batch


def collect_mode_of(policy: Any, worker: int) -> Any:
    """The collect mode of a policy for the worker with this index; most policies have one mode for all workers."""
    return policy.collect_mode_of(worker) if isinstance(policy, ExploresByWorker) else policy.collect_mode


#: Classes of policies of which it was said that they cannot be tried out.
_UNTRIED: set[type] = set()


def collected(
    policy: Policy, observation_space: gymnasium.Space[Any], infos: Mapping[str, tuple[int, ...]] | None = None
) -> Schema:
    """The columns of `RolloutWorker.sample`, computed without an environment; `infos`: shapes of those of `info`."""
    try:
        obs: Any = first_members(observation_space, 1)
        obs = Batch(obs) if isinstance(obs, dict) else obs
        mode: Any = policy.collect_mode
        state = initial_states(mode, 1)
        row = mode.act(obs, np.zeros((1, mode.draws)), 0, *([] if state is None else [state]))
        row.pop("env_action", None)  # not stored (G6)
        if state is not None:
            row["state"] = row.pop("next_state")
    except Exception as error:  # a policy that needs more raises a better error when it acts
        if type(policy) not in _UNTRIED:
            _UNTRIED.add(type(policy))
            log.warning(
                "check() does not know what %s collects: it cannot act on an observation of zeros: %s: %s",
                type(policy).__name__,
                type(error).__name__,
                error,
            )
        return UNKNOWN
    fixed = {"reward": np.float64, "terminated": np.bool_, "truncated": np.bool_}
    one = {"obs": obs, **row, **{name: np.zeros(1, dtype) for name, dtype in fixed.items()}, "next_obs": obs}
    if infos:
        one["info"] = {key: np.zeros((1, *shape)) for key, shape in infos.items()}
    if "value" in row:
        one["next_value"] = row["value"]
    one |= {name: np.zeros(1, np.int64) for name in ("policy_version", *PROVENANCE) if name != "agent"}
    columns = schema_of(one).columns
    if not Schema(columns).has("obs"):
        return UNKNOWN  # observations without columns
    return Schema({name: ColumnSchema(column.dtype, ("T", "N", *column.shape[1:])) for name, column in columns.items()})


def shares_of(episodes: int, num_envs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The number of episodes of each environment: they differ by at most one (S2).

    >>> shares_of(12, 5).tolist()
    [3, 3, 2, 2, 2]
    """
    return np.array([len(part) for part in np.array_split(np.arange(episodes), num_envs)])

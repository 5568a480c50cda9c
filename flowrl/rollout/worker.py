"""RolloutWorker: a policy acting in environments, giving columnar fragments of experience."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import create_empty_array

from flowrl.data import Batch
from flowrl.data.advantages import values_arrived_in
from flowrl.data.columns import PROVENANCE
from flowrl.data.steps import real_rows
from flowrl.data.trajectories import side_by_side
from flowrl.engine.schema import UNKNOWN, ColumnSchema, Schema, schema_of
from flowrl.engine.subplan import SubplanWorker
from flowrl.envs import Episode, Fault, Manager
from flowrl.envs.masks import UNASKED
from flowrl.learners.all_reduce import Peer
from flowrl.policies import Policy
from flowrl.policies.protocols import ExploresByWorker
from flowrl.rollout.acting import Actor, initial_states
from flowrl.rollout.fragment import Fragment
from flowrl.rollout.noise import split_seed

log = logging.getLogger("flowrl")

Array = np.ndarray[Any, np.dtype[Any]]


class RolloutWorker(SubplanWorker, Peer):
    """Acts in the environments of one manager with a policy's collect mode.

    `sample` gives `[T, N, ...]` columns: obs, what the mode's `act` gives (action, perhaps logp and value; but
    `env_action` goes to the environments in place of `action` and is not stored), reward (raw), terminated,
    truncated, next_obs (the true one where an episode ended, T2, T6), next_value where there is a value, state where
    the mode is recurrent (the one acted from, T8), and the provenance of every row: policy_version, worker, env_id,
    episode_id, t. Observations that are dictionaries are nested batches.

    Where an environment failed its episode is cut: it stops without a flag, and the next row of that environment has
    another episode_id.

    Args:
        manager: Environments, not launched yet.
        policy: Shared with whoever trains it, in this process.
        seed: Of the environments and of the action noise.
        index: Of this worker among others.

    State: environments, mid-episode; rows of the next fragment and those that were sent and are not answered yet;
        noise streams; recurrent state; the env steps of the run, as far as it knows: its own, and those it was told of;
        the policy, where it learns together with others.
    """

    def __init__(self, manager: Manager, policy: Policy, *, seed: int, index: int = 0) -> None:
        super().__init__()
        self.manager, self.policy, self.index = manager, policy, index
        self.env_steps = 0
        env_seed, noise_seed = split_seed(seed)
        manager.launch(env_seed)
        if manager.unasked_mask and index == 0:
            log.warning("%s", UNASKED)
        self._ids = np.arange(manager.num_envs)
        self._fragment = Fragment(manager.num_envs)
        self._actor = Actor(manager, collect_mode_of(policy, index), noise_seed)

    def __repr__(self) -> str:
        return f"RolloutWorker({self.manager.num_envs} environments)"

    def sample(self, steps: int | None = None, *, rows: int | None = None, episodes: int | None = None) -> Batch:
        """Collect `steps` steps of each environment, `[steps, N, ...]`; running episodes go on next time (T7).

        What an environment does while it waits for slower ones opens the next fragment. With an asynchronous manager
        it is at most one fragment ahead, then it waits too.

        With `rows` instead: so many steps or a few more, of whichever environments, as rows `[B, ...]` in the order of
        time. With an asynchronous manager nobody waits then.

        With `episodes` instead: so many whole episodes, begun afresh, `[T, episodes, ...]` with T the length
        of the longest and a `mask` column that is False on the padding. Every environment contributes as many
        as any other, or one more, so that short episodes are not over-represented (S2). One that is cut by a fault is
        played again.

        Raises:
            ValueError: none or several of the three are given, or less than 1.
        """
        given = [n for n in (steps, rows, episodes) if n is not None]
        if len(given) != 1 or given[0] < 1:
            raise ValueError(f"sample needs steps >= 1, rows >= 1 or episodes >= 1, got {steps=}, {rows=}, {episodes=}")
        if steps is not None:
            self._fragment.reserve(steps)
            while self._fragment.rows < steps:
                self._step(most=2 * steps)
            return self._completed(self._fragment.cut(steps), self._ids)
        return self._any_rows(given[0]) if episodes is None else self._whole_episodes(episodes)

    def episodes(self) -> list[Episode]:
        """The episodes that ended since this was last asked."""
        return self.manager.drain()

    def faults(self) -> list[Fault]:
        """What environments did wrong since this was last asked."""
        return self.manager.drain_faults()

    def observe_env_steps(self, env_steps: int) -> None:
        """So many env steps the run has had by now, those of other workers among them: schedules follow them (Q7)."""
        self.env_steps = max(self.env_steps, env_steps)

    def weights_apart(self) -> tuple[int, dict[str, Any]]:
        """The version of the policy, as a answer, and its weights."""
        return self.policy.version, self.policy.weights()

    def reset_policy(self, policy: Policy) -> None:
        """Act with another policy from now on.

        Its recurrent states begin anew, and the noise if it draws another number of them.
        """
        self.policy = policy
        self._actor.use(collect_mode_of(policy, self.index))

    def reset_env(self, seed: int | None = None) -> None:
        """Cut the running episodes and begin new ones, from new streams of seeds if `seed` is given."""
        self.manager.reset(seed)
        self._fragment.clear()

    def close(self) -> None:
        """Close the environments."""
        self.leave()
        self.manager.close()

    def state_dict(self) -> dict[str, Any]:
        state = {
            "manager": self.manager.state_dict(),
            "fragment": self._fragment.state_dict(),
            "actor": self._actor.state_dict(),
            "env_steps": self.env_steps,
        }
        return state | {"policy": self.policy.state_dict()} if self.peers else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.manager.load_state_dict(state["manager"])
        self._fragment.load_state_dict(state["fragment"])
        self._actor.load_state_dict(state["actor"])
        self.env_steps = state["env_steps"]
        if "policy" in state:
            self.policy.load_state_dict(state["policy"])

    def load(self, state: dict[str, Any]) -> int:
        """Load a state; how many of its running episodes that cost, because they could not be saved."""
        self.load_state_dict(state)
        return int(self.manager.cut_episodes - state["manager"]["cut_episodes"])

    def _step(self, most: int | None = None, wanted: Array | None = None) -> Array:
        """One step of all environments that are ready, into the fragment.

        Args:
            most: Rows of the fragment; who has them gets no action before the others have caught up.
            wanted: Mask `[N]` of environments of which rows are kept, and which get actions; None: all.

        Returns: Which environments ended an episode, `[N]`.
        """
        wait = None if wanted is None else ~wanted
        if most is not None and self.manager.ready is not None:
            wait = self._fragment.lengths() >= most
        row, result = self._actor.step(self.env_steps, self.policy.version, wait)
        row["next_obs"], row["reward"], row["terminated"], row["truncated"], acted = result
        if "value" not in row:
            row.pop("next_state", None)
        self.env_steps += len(self._ids) if acted is None else int(acted.sum())
        if wanted is not None:
            acted = wanted if acted is None else acted & wanted
        self._fragment.write(row, acted)
        ended: Array = result.terminated | result.truncated
        return ended if acted is None else ended & acted

    def _completed(self, batch: Batch, env_ids: Array) -> Batch:
        """Add what is known only of the whole: `env_ids [N]` of the columns, and the values arrived in."""
        shape = batch.reward.shape
        batch["env_id"] = np.broadcast_to(env_ids, shape)
        batch["worker"] = np.broadcast_to(np.int64(self.index), shape)
        if "value" in batch:
            batch["next_value"] = values_arrived_in(batch, batch.value, self.policy.collect_mode.value)
            if "next_state" in batch:
                del batch["next_state"]
        return batch

    def _any_rows(self, rows: int) -> Batch:
        self._fragment.reserve(-(-rows // len(self._ids)))
        while self._fragment.lengths().sum() < rows:
            self._step()
        written, batch = self._fragment.lengths(), self._fragment.cut_all()
        batch["mask"] = np.arange(len(batch))[:, None] < written
        batch = real_rows(self._completed(batch, self._ids))
        del batch["mask"]
        return batch

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
        # What some environments went on with meanwhile belongs to no share.
        ours = {(env_id, int(table.episode_id[column[0]])) for env_id, column in zip(envs, columns)}
        played = [episode for episode in self.manager.finished if (episode.env_id, episode.episode_id) in ours]
        self.reset_env()
        self.manager.finished = finished + played
        return self._completed(padded, np.array(envs))

    def _ended(self, rows: Batch, count: int, env_id: int) -> Iterator[Array]:
        """The flat row numbers of each episode that ended in the first `count` rows of an environment."""
        ends = np.flatnonzero((rows.terminated | rows.truncated)[:count, env_id])
        for end in ends.tolist():
            # Of an episode that was cut before it there are rows too.
            yield (end + 1 - np.arange(rows.t[end, env_id] + 1, 0, -1)) * len(self._ids) + env_id


def collect_mode_of(policy: Any, worker: int) -> Any:
    """How the worker of this index collects with a policy, which need not say that workers differ."""
    return policy.collect_mode_of(worker) if isinstance(policy, ExploresByWorker) else policy.collect_mode


def collected(policy: Policy, observation_space: gymnasium.Space[Any]) -> Schema:
    """The columns that `RolloutWorker.sample` gives, found without an environment."""
    try:
        obs: Any = create_empty_array(observation_space, 1)
        obs = Batch(obs) if isinstance(obs, dict) else obs
        mode: Any = policy.collect_mode
        state = initial_states(mode, 1)
        row = mode.act(obs, np.zeros((1, mode.draws)), 0, *([] if state is None else [state]))
        row.pop("env_action", None)  # which is not stored (G6)
        if state is not None:
            row["state"] = row.pop("next_state")
    except Exception:  # a policy that needs more than that says what is wrong when it acts
        return UNKNOWN
    fixed = {"reward": np.float64, "terminated": np.bool_, "truncated": np.bool_}
    one = {"obs": obs, **row, **{name: np.zeros(1, dtype) for name, dtype in fixed.items()}, "next_obs": obs}
    if "value" in row:
        one["next_value"] = row["value"]
    one |= {name: np.zeros(1, np.int64) for name in ("policy_version", *PROVENANCE)}
    columns = schema_of(one).columns
    if not Schema(columns).has("obs"):
        return UNKNOWN  # a kind of observations that has no columns
    return Schema({name: ColumnSchema(column.dtype, ("T", "N", *column.shape[1:])) for name, column in columns.items()})


def shares_of(episodes: int, num_envs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many of the episodes each environment plays: they differ by at most one (S2).

    >>> shares_of(12, 5).tolist()
    [3, 3, 2, 2, 2]
    """
    return np.array([len(part) for part in np.array_split(np.arange(episodes), num_envs)])

"""RolloutWorker: a policy acting in environments, giving columnar fragments of experience."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import create_empty_array

from flowrl.data import Batch
from flowrl.data.advantages import values_arrived_in
from flowrl.data.columns import PROVENANCE
from flowrl.data.trajectories import side_by_side
from flowrl.envs import Episode, Manager
from flowrl.host import PlanHost
from flowrl.policies import Policy
from flowrl.rollout.fragment import Fragment
from flowrl.rollout.noise import NoiseStreams, split_seed
from flowrl.schema import UNKNOWN, Column, Schema, schema_of

Array = np.ndarray[Any, np.dtype[Any]]


class RolloutWorker(PlanHost):
    """Acts in the environments of one manager with a policy's collect mode.

    `sample` gives `[T, N, ...]` columns: obs, what the mode's `act` gives (action, perhaps logp and value; but
    `env_action` goes to the environments in place of `action` and is not stored), reward (raw), terminated,
    truncated, next_obs (the true one where an episode ended, T2, T6), next_value where there is a value, and the
    provenance of every row: policy_version, worker, env_id, episode_id, t. Observations that are dictionaries are
    nested batches.

    Args:
        manager: Environments, not launched yet.
        policy: Shared with whoever trains it, in this process.
        seed: Of the environments and of the action noise.
        index: Of this worker among others.

    State: environments, mid-episode; rows of the next fragment; noise streams; the number of env steps.
    """

    def __init__(self, manager: Manager, policy: Policy, *, seed: int, index: int = 0) -> None:
        super().__init__()
        self.manager, self.policy, self.index = manager, policy, index
        self.env_steps = 0
        env_seed, self._noise_seed = split_seed(seed)
        manager.launch(env_seed)
        self._ids = np.arange(manager.num_envs)
        self._fragment = Fragment(manager.num_envs)
        self._noise = NoiseStreams(self._noise_seed, manager.num_envs, policy.collect_mode.draws)

    def __repr__(self) -> str:
        return f"RolloutWorker({self.manager.num_envs} environments)"

    def sample(self, steps: int | None = None, *, episodes: int | None = None) -> Batch:
        """Collect `steps` steps of each environment, `[steps, N, ...]`; running episodes go on next time (T7).

        With `episodes` instead: so many whole episodes, begun afresh, `[T, episodes, ...]` with T the length
        of the longest and a `mask` column that is False on the padding. Every environment contributes as many
        as any other, or one more, so that short episodes are not over-represented (S2).

        Raises:
            ValueError: neither or both are given, or less than 1.
        """
        if (steps is None) == (episodes is None) or (steps or episodes or 0) < 1:
            raise ValueError(f"sample needs steps >= 1 or episodes >= 1, got steps={steps}, episodes={episodes}")
        if episodes is not None:
            return self._whole_episodes(episodes)
        assert steps is not None
        self._fragment.reserve(steps)
        while self._fragment.rows < steps:
            self._step()
        return self._with_provenance(self._fragment.cut(steps), self._ids)

    def episodes(self) -> list[Episode]:
        """The episodes that ended since this was last asked."""
        return self.manager.drain()

    def reset_policy(self, policy: Policy) -> None:
        """Act with another policy from now on; the noise begins anew if it draws another number of them."""
        self.policy = policy
        if policy.collect_mode.draws != self._noise.draws:
            self._noise = NoiseStreams(self._noise_seed, self.manager.num_envs, policy.collect_mode.draws)

    def reset_env(self, seed: int | None = None) -> None:
        """Cut the running episodes and begin new ones, from new streams of seeds if `seed` is given."""
        self.manager.reset(seed)
        self._fragment.clear()

    def close(self) -> None:
        """Close the environments."""
        self.manager.close()

    def state_dict(self) -> dict[str, Any]:
        return {
            "manager": self.manager.state_dict(),
            "fragment": self._fragment.state_dict(),
            "noise": self._noise.state_dict(),
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.manager.load_state_dict(state["manager"])
        self._fragment.load_state_dict(state["fragment"])
        self._noise.load_state_dict(state["noise"])
        self.env_steps = state["env_steps"]

    def _step(self) -> None:
        """One step of all environments, into the fragment."""
        manager = self.manager
        obs = manager.obs
        row = self.policy.collect_mode.act(obs, self._noise.next(), self.env_steps)
        row["obs"] = obs
        row["episode_id"], row["t"] = manager.episode_id.copy(), manager.t.copy()  # the step changes them
        actions = row.pop("env_action", row["action"])  # what is stored is what the policy drew (G6)
        row["next_obs"], row["reward"], row["terminated"], row["truncated"], acted = manager.step(actions)
        row["policy_version"] = np.full(len(self._ids), self.policy.version)
        self._fragment.write(row, acted)
        self.env_steps += len(self._ids) if acted is None else int(acted.sum())

    def _with_provenance(self, batch: Batch, env_ids: Array) -> Batch:
        """Add what is known only of the whole: `env_ids [N]` of the columns, and the values arrived in."""
        shape = batch.reward.shape
        batch["env_id"] = np.broadcast_to(env_ids, shape)
        batch["worker"] = np.broadcast_to(np.int64(self.index), shape)
        if "value" in batch:
            batch["next_value"] = values_arrived_in(batch, batch.value, self.policy.collect_mode.value)
        return batch

    def _whole_episodes(self, episodes: int) -> Batch:
        if self.manager.t.any() or self._fragment.rows:
            self.reset_env()
        shares = shares_of(episodes, len(self._ids))
        first = self.manager.episode_id.copy()
        while (self.manager.episode_id - first < shares).any():
            self._step()
        written, rows = self._fragment.lengths(), self._fragment.cut_all()
        columns, envs = [], []
        for env_id in self._ids:
            ids = rows.episode_id[: written[env_id], env_id]
            for episode in range(first[env_id], first[env_id] + shares[env_id]):
                columns.append(np.flatnonzero(ids == episode) * len(self._ids) + env_id)
                envs.append(env_id)
        padded = side_by_side(rows.flat(), columns, max(map(len, columns)))
        # What some environments went on with meanwhile belongs to no share.
        ours = [e for e in self.manager.finished if e.episode_id - first[e.env_id] < shares[e.env_id]]
        self.reset_env()
        self.manager.finished = ours
        return self._with_provenance(padded, np.array(envs))


def collected(policy: Policy, observation_space: gymnasium.Space[Any]) -> Schema:
    """The columns that `RolloutWorker.sample` gives, found without an environment."""
    try:
        obs: Any = create_empty_array(observation_space, 1)
        obs = Batch(obs) if isinstance(obs, dict) else obs
        row = policy.collect_mode.act(obs, np.zeros((1, policy.collect_mode.draws)), 0)
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
    return Schema({name: Column(column.dtype, ("T", "N", *column.shape[1:])) for name, column in columns.items()})


def shares_of(episodes: int, num_envs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many of the episodes each environment plays: they differ by at most one (S2).

    >>> shares_of(12, 5).tolist()
    [3, 3, 2, 2, 2]
    """
    return np.array([len(part) for part in np.array_split(np.arange(episodes), num_envs)])

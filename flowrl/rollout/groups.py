"""Groups of environments, each of which acts as one batch, in whichever process (D2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import attrs

from flowrl.engine.seeds import SeedTree
from flowrl.engine.workers.local import InlineWorker
from flowrl.engine.workers.subplan import unpacked
from flowrl.envs import Environments
from flowrl.envs.managers.base import episode_seed
from flowrl.envs.managers.games import GameManager
from flowrl.errors import ConfigError
from flowrl.policies import Policy
from flowrl.rollout.games_worker import GamesWorker
from flowrl.rollout.noise import split_seed
from flowrl.rollout.policy_map import PolicyMap
from flowrl.rollout.worker import RolloutWorker

#: Episodes of a recreated environment are numbered from a multiple of this on, so numbers never repeat.
EPISODES_OF_A_LIFE = 1 << 32
#: Time limit for the first reset of all environments, in seconds.
BEGIN_SECONDS = 300.0
#: Stands for a policy's name where the odds of matches travel as weights do.
MATCHES = "/matches"


@attrs.frozen
class GroupLayout:
    """The division of all workers' environments into groups of equal size, and of groups among workers.

    A group acts as one batch, so the same groups over 0, 1 or k workers give the same stream, bit for bit.

    >>> layout = GroupLayout(num_workers=2, envs_per_worker=8, env_groups=4)
    >>> layout.indices(worker=1), layout.envs_per_group
    ([2, 3], 4)

    Args:
        num_workers: Processes; 0: this one.
        envs_per_worker: Environments per worker.
        env_groups: Groups of all environments; None: one per worker.

    Raises:
        ConfigError: groups would differ in size, or span several workers.
    """

    num_workers: int
    envs_per_worker: int
    env_groups: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.num_workers < 0:
            raise ConfigError(f"num_workers={self.num_workers}: expected 0, which samples in this process, or more")
        if self.envs_per_worker < 1:
            raise ConfigError(f"envs_per_worker={self.envs_per_worker}: a worker needs at least one environment")
        if self.groups < 1 or self.groups % self.processes or self.envs_per_worker % self.groups_per_worker:
            raise ConfigError(
                f"env_groups={self.env_groups}: {self.processes} x {self.envs_per_worker} environments do not form so "
                f"many groups of equal size, each whole on one worker; take {self._possible()}"
            )

    def _possible(self) -> str:
        sizes = [size for size in range(1, self.envs_per_worker + 1) if self.envs_per_worker % size == 0]
        return " or ".join(str(self.processes * size) for size in sizes)

    @property
    def processes(self) -> int:
        return max(self.num_workers, 1)

    @property
    def groups(self) -> int:
        return self.processes if self.env_groups is None else self.env_groups

    @property
    def groups_per_worker(self) -> int:
        return self.groups // self.processes

    @property
    def envs_per_group(self) -> int:
        return self.envs_per_worker // self.groups_per_worker

    def indices(self, worker: int) -> list[int]:
        """The groups of one worker."""
        return list(range(worker * self.groups_per_worker, (worker + 1) * self.groups_per_worker))


@attrs.frozen
class Group:
    """The arguments of the `RolloutWorker` of one group, in any process.

    Args:
        environments: The environments of all groups; `num_envs` of them belong to this group.
        index: Index of the group among `groups`.
        seed: Seed of all groups; the streams of one derive from it, the index and the life.
        life: How often the group was restarted after the death of its process.
        policy_map: Who plays whom, in a game of several agents.
    """

    environments: Environments
    num_envs: int
    index: int
    groups: int
    seed: int
    life: int = 0
    policy_map: PolicyMap | None = None

    def worker(self, policies: Mapping[str, Policy]) -> RolloutWorker:
        """Create the worker of these policies, and begin the first episodes of this life."""
        manager = self._environments().manager(self.num_envs)
        manager.episode_id += self.life * EPISODES_OF_A_LIFE
        if self.policy_map is None:
            (policy,) = policies.values()
            return RolloutWorker(manager, policy, seed=self._seed(), index=self.index)
        games = GameManager(manager, self.policy_map.seating)
        return GamesWorker(games, policies, self.policy_map, seed=self._seed(), index=self.index)

    def episode_seed(self, env_id: int, episode_id: int) -> int:
        """The seed that an episode of one of its environments began with, in whichever life of the group."""
        life, number = divmod(episode_id, EPISODES_OF_A_LIFE)
        if fixed := self._environments().episode_seeds:
            return fixed[(episode_id * self.num_envs + env_id) % len(fixed)]
        env_seed, _ = split_seed(attrs.evolve(self, life=life)._seed())
        return episode_seed(env_seed, env_id, number)

    def _seed(self) -> int:
        if not self.index and not self.life:
            return self.seed  # a single group keeps the seed of a worker
        return SeedTree(self.seed).integer(f"worker{self.index}/{self.life}")

    def _environments(self) -> Environments:
        """The environments of the group; fixed episode seeds go to the environments of all groups in turn."""
        seeds = self.environments.episode_seeds
        if seeds is None or self.groups == 1:
            return self.environments
        everywhere = self.groups * self.num_envs
        turns = len(seeds) // math.gcd(len(seeds), everywhere)
        first = [turn * everywhere + self.index * self.num_envs for turn in range(turns)]
        mine = [seeds[(at + env_id) % len(seeds)] for at in first for env_id in range(self.num_envs)]
        return attrs.evolve(self.environments, episode_seeds=mine)


def is_pull(method: str) -> bool:
    """Whether a worker may act for a request: for an item of a plan, or a function of its user."""
    return method.startswith("pull") or method == "apply"


class LocalGroup(InlineWorker):
    """A group in this process, as a worker of the engine."""

    def __init__(self, target: RolloutWorker, before: Callable[[RolloutWorker], None]) -> None:
        super().__init__(target)
        self._before = before

    def submit(self, method: str, *args: Any) -> Any:
        if is_pull(method):
            self._before(self.target)
        return super().submit(method, *args)


class GroupRunner:
    """The object in a worker process: its groups, and the policies that act in them.

    Args:
        groups: Their workers are created on first use.
        policies: Factories of the policies, by name.
    """

    def __init__(self, groups: Sequence[Group], policies: Mapping[str, Callable[[], Policy]]) -> None:
        self._groups, self._make = groups, policies
        self._policies: dict[str, Policy] = {}
        self._workers: dict[int, RolloutWorker] = {}

    def begin(self) -> bool:
        """Begin the first episodes; returns whether recorded rewards are raw (S1)."""
        if not self._policies:
            self._policies = {name: make() for name, make in self._make.items()}
        for group in self._groups:
            if group.index not in self._workers:
                self._workers[group.index] = group.worker(self._policies)
        return all(worker.manager.raw_returns for worker in self._workers.values())

    def begin_anew(self, index: int, life: int) -> None:
        """Replace the environments and the streams of a group by those of another life."""
        self._groups = [attrs.evolve(each, life=life) if each.index == index else each for each in self._groups]
        self._workers.pop(index).close()
        self.begin()

    def ask(self, index: int, method: str, env_steps: int, newest: Sequence[tuple[str, int]], *rest: Any) -> Any:
        """Call a method of a group's worker, after applying the data that comes with the request.

        Args:
            env_steps: Env steps of the run so far.
            newest: Name and version of the policies that act with new weights from now on.
            rest: Their weights, then the arguments of the method.
        """
        weights, args = rest[: len(newest)], rest[len(newest) :]
        if index not in self._workers:
            self.begin()
        worker = self._workers[index]
        if is_pull(method):  # not for a request for the state, which must change nothing
            worker.observe_env_steps(env_steps)
        for (name, version), new in zip(newest, weights):
            policy: Any = self._matches if name == MATCHES else worker.policies[name]
            policy.load_weights(new)
            policy.version = version
        if method == "open_plan" and isinstance(args[1], bytes):
            key, part, *others = args
            args = key, unpacked(part), *others
        return methodcaller(method, *args)(worker)

    def worker_of(self, index: int) -> RolloutWorker | None:
        """The worker of a group, if it has begun."""
        return self._workers.get(index)

    @property
    def _matches(self) -> Any:
        """What draws the matches of all groups."""
        policy_map = self._groups[0].policy_map
        assert policy_map is not None, "a league plays games"
        return policy_map.agents

    def close(self) -> None:
        """Close the environments."""
        for worker in self._workers.values():
            worker.close()

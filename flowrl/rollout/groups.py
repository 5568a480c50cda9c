"""Groups of environments: what is acted in together, whichever process has it (D2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

import attrs

from flowrl.engine.seeds import SeedTree
from flowrl.engine.subplan import unpacked
from flowrl.engine.workers import InlineWorker
from flowrl.envs import Environments
from flowrl.errors import ConfigError
from flowrl.policies import Policy
from flowrl.rollout.worker import RolloutWorker

#: Episodes of an environment that was made again are numbered from a multiple of this on, so that no two are mixed up.
EPISODES_OF_A_LIFE = 1 << 32


@attrs.frozen
class GroupLayout:
    """How the environments of all workers form groups of equal size, and which worker has which.

    What is in a group is acted in together, with one batch; so the same groups over 0, 1 or k workers give the same
    stream, bit for bit.

    >>> layout = GroupLayout(num_workers=2, envs_per_worker=8, env_groups=4)
    >>> layout.indices(worker=1), layout.envs_per_group
    ([2, 3], 4)

    Args:
        num_workers: Processes; 0: this one.
        envs_per_worker: Environments of each.
        env_groups: Groups over all of them; None: one a worker.

    Raises:
        ConfigError: the groups cannot be of equal size, or not whole on a worker.
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
    """What the `RolloutWorker` of one group is made of, in this process or in another one.

    Args:
        environments: Of all groups; `num_envs` of them are this one's.
        index: Which of `groups` it is.
        seed: Of all groups; the streams of one follow from it, the index and the life.
        life: How often the group was begun afresh, since the process that had it died.
    """

    environments: Environments
    num_envs: int
    index: int
    groups: int
    seed: int
    life: int = 0

    def worker(self, policy: Policy) -> RolloutWorker:
        """Begin the first episodes of this life."""
        manager = self._environments().manager(self.num_envs)
        manager.episode_id += self.life * EPISODES_OF_A_LIFE
        return RolloutWorker(manager, policy, seed=self._seed(), index=self.index)

    def _seed(self) -> int:
        if not self.index and not self.life:
            return self.seed  # one group has what a worker always had
        return SeedTree(self.seed).integer(f"worker{self.index}/{self.life}")

    def _environments(self) -> Environments:
        """Those of the group: seeds of episodes that were given go over the environments of all groups in turn."""
        given = self.environments.episode_seeds
        if given is None or self.groups == 1:
            return self.environments
        everywhere = self.groups * self.num_envs
        turns = len(given) // math.gcd(len(given), everywhere)
        first = [turn * everywhere + self.index * self.num_envs for turn in range(turns)]
        mine = [given[(at + env_id) % len(given)] for at in first for env_id in range(self.num_envs)]
        return attrs.evolve(self.environments, episode_seeds=mine)


def is_pull(method: str) -> bool:
    """Whether a request is for an item of a plan."""
    return method.startswith("pull")


class LocalGroup(InlineWorker):
    """A group of this process as a worker of the engine."""

    def __init__(self, target: RolloutWorker, before: Callable[[RolloutWorker], None]) -> None:
        super().__init__(target)
        self._before = before

    def submit(self, method: str, *args: Any) -> Any:
        if is_pull(method):
            self._before(self.target)
        return super().submit(method, *args)


class GroupRunner:
    """The groups of one process, and the policy that acts in them; what a worker process has.

    Args:
        groups: Made when the first one is asked for.
        policy: Makes the policy.
    """

    def __init__(self, groups: Sequence[Group], policy: Callable[[], Policy]) -> None:
        self._groups, self._make = groups, policy
        self._policy: Policy | None = None
        self._workers: dict[int, RolloutWorker] = {}

    def begin(self) -> bool:
        """Begin the first episodes; whether rewards are seen before a wrapper changes them (S1)."""
        if self._policy is None:
            self._policy = self._make()
        for group in self._groups:
            if group.index not in self._workers:
                self._workers[group.index] = group.worker(self._policy)
        return all(worker.manager.raw_returns for worker in self._workers.values())

    def ask(self, index: int, method: str, env_steps: int, version: int, weights: Any, *args: Any) -> Any:
        """Do what the worker of a group is asked for, after it was told what rides with a request.

        Args:
            env_steps: Of the run so far.
            version, weights: To act with from now on; None: those that are here.
        """
        self.begin()
        worker = self._workers[index]
        if is_pull(method):  # a state that is asked for meanwhile tells nothing
            worker.observe_env_steps(env_steps)
        if weights is not None:
            worker.policy.load_weights(weights)
            worker.policy.version = version
        if method == "open_plan":
            key, part, *rest = args
            args = key, unpacked(part), *rest
        return methodcaller(method, *args)(worker)

    def close(self) -> None:
        """Close the environments."""
        for worker in self._workers.values():
            worker.close()

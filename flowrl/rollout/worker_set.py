"""WorkerSet: which policy acts in which environments, and where. Nothing acts before a run starts it (F1)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from flowrl.actors.actors import Resources
from flowrl.engine.context import Context
from flowrl.engine.schema import Schema
from flowrl.engine.workers import ask, wait_for
from flowrl.envs import Environments
from flowrl.envs.goals import GoalFunctions
from flowrl.errors import CheckpointError, ConfigError, FlowError, PlanError, WorkerDied, did_you_mean
from flowrl.policies import Policy
from flowrl.rollout.base_workers import BaseWorkers, PolicyFactory
from flowrl.rollout.groups import Group, GroupLayout, LocalGroup
from flowrl.rollout.worker import RolloutWorker, collected

if TYPE_CHECKING:
    from flowrl.rollout.remote_groups import RemoteGroups

log = logging.getLogger("flowrl")

#: What may follow the death of a worker process that may not be made again.
ON_DEATH = ("stop", "go_on")


class WorkerSet(BaseWorkers):
    """A policy and the workers that act with it.

    All environments form `env_groups` groups, each acted in with one batch, by this process or by one of `num_workers`
    others. `members` are the groups: what a plan pulls. The same groups give the same stream wherever they are (D2).

    Other processes have policies of their own. The newest weights ride with the next request to each, put once however
    many there are, and so do the env steps of the run, which schedules follow.

    Args:
        env: A gymnasium id, "module:factory", a callable, or an environment that was made already, a VectorEnv say.
        policy: Called with the observation and the action space; what it returns learns, as `policy`, and acts where
            this process does.
        num_workers: Processes that sample, on Ray; 0: this one does.
        envs_per_worker: Environments of each worker.
        env_groups: Groups that the environments of all workers form; None: one a worker.
        worker_policy: Makes the policies of other processes, if not `policy`, which may take a device they lack.
        resources: Of each worker process.
        max_restarts: How often each may be made again after its death.
        on_death: Of one that may not: "stop" the run, or "go_on" with the others while there are any.
        address: Of a Ray cluster; see `flowrl.actors.actors.Actors`.
        env_args: Keyword arguments for the environment.
        wrappers: Around each, the first one innermost: see `flowrl.envs.wrapping`.
        env_manager, env_manager_args: Who steps them, and its keyword arguments: see `flowrl.envs.make_manager`.
        episode_seeds: Of the episodes in turn, instead of fresh ones.
        eval_env, eval_env_args, eval_wrappers, eval_env_manager: Of the environments that evaluate, if they are
            others; another environment has arguments of its own, another manager has none.
        seed: Of the environments and the action noise; follows from the run's seed if not given.

    Raises:
        ConfigError: an unknown environment, spaces that the policy cannot serve, groups that cannot be formed, or one
            environment object for several groups or another process.

    Attributes:
        members: One for each group, None where it was removed; empty until a run starts them.
        lost: What the last load could not continue, by counter.

    State: that of each group (environments mid-episode, noise), wherever it is; the policy is a resource of its own.
    """

    _started: ClassVar[weakref.WeakSet[WorkerSet]] = weakref.WeakSet()

    def __init__(
        self,
        env: Any,
        policy: PolicyFactory,
        *,
        num_workers: int = 0,
        envs_per_worker: int = 8,
        env_groups: int | None = None,
        worker_policy: PolicyFactory | None = None,
        resources: Resources | None = None,
        max_restarts: int = 10,
        on_death: str = "stop",
        address: str | None = None,
        env_args: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] = (),
        env_manager: str = "local",
        env_manager_args: Mapping[str, Any] | None = None,
        episode_seeds: Sequence[int] | None = None,
        eval_env: Any = None,
        eval_env_args: Mapping[str, Any] | None = None,
        eval_wrappers: Sequence[Any] | None = None,
        eval_env_manager: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.layout = GroupLayout(num_workers, envs_per_worker, env_groups)
        if on_death not in ON_DEATH:
            raise ConfigError(f"on_death={on_death!r}: {did_you_mean(str(on_death), ON_DEATH)}")
        self.num_workers, self.envs_per_worker, self.seed = num_workers, envs_per_worker, seed
        self.resources_of_each, self.max_restarts, self.on_death = resources or Resources(), max_restarts, on_death
        environments = Environments(
            env, dict(env_args or {}), tuple(wrappers), env_manager, dict(env_manager_args or {}), episode_seeds
        )
        if environments.is_one_object and (num_workers or self.layout.groups > 1):
            raise ConfigError(
                f"{environments} is made already, and acts in this process alone: with {self.layout.groups} "
                f"groups and num_workers={num_workers} pass what makes one, an id or a function"
            )
        seen = environments.look(self.layout.envs_per_group)
        self._goals = seen.goals
        others = eval_env, eval_env_args, eval_wrappers, eval_env_manager
        evaluation = environments.for_evaluation(*others)
        super().__init__(
            policy,
            seen[:2],
            environments,
            evaluation,
            self.layout.envs_per_group,
            worker_policy=worker_policy,
            address=address,
        )
        if any(given is not None for given in others):
            self.check_evaluation(environments)
        self._hosts: RemoteGroups | None = None
        self._context = Context()
        self._earlier = 0  # env steps of earlier runs
        self._lives: dict[int, int] = {}  # how often groups were begun afresh, by index
        self.members: list[Any] = []
        self.lost: dict[str, int] = {}

    def __repr__(self) -> str:
        layout, of = self.layout, self.resources_of_each
        where = (
            f"{self.num_workers} worker{'s' * (self.num_workers > 1)} on Ray" if self.num_workers else "this process"
        )
        groups = f" in {layout.groups} groups" if layout.groups != layout.processes else ""
        in_numpy = isinstance(self._policy, Policy) and self._policy.settings.act_backend == "numpy"
        took = f", each {of}" if self.num_workers and of != Resources() else ""
        return f"{where}: {self.envs_per_worker} x {self.env}{groups}{', acts in numpy' if in_numpy else ''}{took}"

    @property
    def num_members(self) -> int:
        """The groups, which are the members once a run has started the set."""
        return len(self.members) or self.layout.groups

    @property
    def env_steps(self) -> int:
        """Env steps of the run so far, and of earlier ones; exploration follows them (Q7)."""
        return self._earlier + self._context.counters.get("env_steps", 0)

    @property
    def env(self) -> Any:
        """The environment as it was given."""
        return self.environments.spec

    @property
    def goal_functions(self) -> GoalFunctions:
        """What the environment itself says of goals. Raises: ConfigError: it is none of goals."""
        if isinstance(self._goals, str):
            raise ConfigError(
                f"hindsight needs an environment of goals, but {self.environments} {self._goals}: expected "
                "gymnasium-robotics' convention, as flowrl.envs.goals:bit_flipping has it"
            )
        return self._goals

    @property
    def env_args(self) -> dict[str, Any]:
        """Its keyword arguments."""
        return dict(self.environments.env_args)

    def schema(self) -> Schema:
        """What its workers collect, from the spaces and what the policy answers to an observation of zeros."""
        return collected(self.policy, self._spaces[0])

    @property
    def local(self) -> RolloutWorker:
        """The worker of this process, the first of several groups; there once a run has started the set.

        Raises: FlowError where other processes sample.
        """
        if self.num_workers:
            raise FlowError(f"no worker is in this process: {self!r}")
        worker: RolloutWorker = next(filter(None, self.members)).target
        return worker

    @property
    def is_one_object(self) -> bool:
        """The environment was given as an object, of which no second one can be made."""
        return self.environments.is_one_object

    def start(self, context: Context) -> None:
        """Begin the first episodes, unless an earlier run did: then the environments go on where they were.

        Raises:
            PlanError: another worker set acts in the same environment object, and is not closed.
        """
        self._earlier, self._context = self.env_steps, context
        if self.members:
            return
        if any(self._shares_environment(other) for other in list(WorkerSet._started)):
            raise PlanError(
                f"{self.env} is in use by another worker set, and each would reset the other's episodes: "
                "close() that one first, or give each an environment of its own"
            )
        self._seed = context.seed("workers") if self.seed is None else self.seed
        if not (self._start_processes() if self.num_workers else self._start_here()):
            log.warning(
                "%s: wrappers may change rewards before flowrl adds them up to returns; those that it is given as "
                "`wrappers` (--wrapper) do not",
                self.env,
            )
        WorkerSet._started.add(self)

    def _start_here(self) -> bool:
        """Begin the groups in this process; whether rewards are seen raw (S1)."""
        workers = [self._group(index).worker(self._policy) for index in range(self.layout.groups)]
        self.members = [LocalGroup(worker, self._tell) for worker in workers]
        return all(worker.manager.raw_returns for worker in workers)

    def _start_processes(self) -> bool:
        from flowrl.rollout.remote_groups import RemoteGroups

        self._hosts = RemoteGroups(
            [[self._group(index) for index in self.layout.indices(k)] for k in range(self.num_workers)],
            partial(self._worker_policy, *self._spaces),
            self._broadcast,
            lambda: self.env_steps,
            self._lives,
            resources=self.resources_of_each,
            address=self.address,
            max_restarts=self.max_restarts,
        )
        raw = self._hosts.start()
        self.members = self._hosts.members
        return raw

    def _group(self, index: int) -> Group:
        return Group(self.environments, self.layout.envs_per_group, index, self.layout.groups, self._seed)

    def _tell(self, worker: RolloutWorker) -> None:
        """What rides with a request to another process is told to a group of this one."""
        self._broadcast.take()
        worker.observe_env_steps(self.env_steps)

    # -- workers that come and go

    def restart(self, index: int, died: WorkerDied | None = None) -> None:
        """Make the process of a member again after its death: new environments, fresh streams, the newest weights.

        Another member takes its place, and those of other groups of that process. Nothing is waited for. Where it may
        not be made again, and `on_death` is "go_on", they are None instead.

        Counts: cut_episodes.
        Raises: WorkerDied: it was made again `max_restarts` times already, or there is no other.
        """
        hosts = self._processes("restart")
        cost = len(hosts.neighbours(index)) * self.layout.envs_per_group
        try:
            hosts.restart(index, died)
        except WorkerDied:
            if self.on_death == "stop" or not hosts.give_up(index):
                raise
        self._context.count("cut_episodes", cost)

    def add(self, workers: int = 1) -> None:
        """More worker processes, with as many groups as the others, as new members; a plan that runs pulls them."""
        hosts = self._processes("add")
        for _ in range(workers):
            first = len(self.members)
            hosts.add([self._group(first + k) for k in range(self.layout.groups_per_worker)])

    def remove(self, workers: int = 1) -> None:
        """Fewer worker processes: the newest ones end when they have answered; their members are None from now on.

        Raises: FlowError: none would be left.
        """
        hosts = self._processes("remove")
        if workers >= (there := len({member.process for member in self.members if member is not None})):
            raise FlowError(f"remove({workers}) of {there} workers: at least one must be left to sample")
        for _ in range(workers):
            hosts.remove()

    def _processes(self, what: str) -> RemoteGroups:
        if self._hosts is None:
            state = "samples in this process" if not self.num_workers else "is not started: a run does that"
            raise FlowError(f"cannot {what} workers: {self!r} {state}")
        return self._hosts

    def _shares_environment(self, other: WorkerSet) -> bool:
        if not (other.members and self.is_one_object and other.is_one_object):
            return False
        return bool(other.env.unwrapped is self.env.unwrapped)

    def close(self) -> None:
        """Close the environments that were made here; an object that was given belongs to whoever made it."""
        if self._hosts is not None:
            try:
                self._broadcast.take()  # what they know of, and this process does not yet
            except WorkerDied as error:
                log.warning("what was learned last is lost: %s", error)
            hosts, self._hosts = self._hosts, None
            hosts.close()
        else:
            for member in filter(None, self.members if not self.is_one_object else ()):
                member.target.close()
        self.members = []

    def state_dict(self) -> dict[str, Any]:
        self._broadcast.take()  # the policy's own state is taken after this one
        about = {"earlier_env_steps": self._earlier, "lives": dict(self._lives)}
        return {"workers": self._ask_all("state_dict"), **about}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = state["workers"]
        gone = [index for index, each in enumerate(saved) if each is None]
        if len(saved) != len(self.members) or any(saved[k] for k, each in enumerate(self.members) if each is None):
            raise CheckpointError(
                f"the state is that of {_count(saved)} workers, {self!r} has {_count(self.members)}"
                + ("" if self.members else ": it is started by a run")
            )
        cut = sum(filter(None, self._ask_all("load", saved)))
        self._leave_out([index for index in gone if self.members[index] is not None])
        self._broadcast.take()  # nothing, since the policy was loaded
        self._earlier = state.get("earlier_env_steps", 0)
        self._lives |= state.get("lives", {})
        self.lost = {"cut_episodes": cut} if cut else {}
        if cut:
            log.warning("%d running episodes of %s could not be saved: they are cut, new ones begin", cut, self.env)

    def _leave_out(self, indices: Sequence[int]) -> None:
        """Go on without groups that a state is without: they were removed, or died for good."""
        if not indices:
            return
        log.warning("the state is that of a run without worker %s: it goes on without", ", ".join(map(str, indices)))
        if self._hosts is not None:
            self._hosts.leave_out(indices)
            return
        for index in indices:
            self.members[index].target.close()
            self.members[index] = None

    def _ask_all(self, method: str, given: Sequence[Any] | None = None) -> list[Any]:
        """What the workers of all groups answer, None for those that were removed; `given` is an argument of each.

        Who is given None is not asked.
        """
        futures = [
            None
            if member is None or (given is not None and given[index] is None)
            else ask(member, method, *([] if given is None else [given[index]]))
            for index, member in enumerate(self.members)
        ]
        wait_for([future for future in futures if future is not None], f"{method!r} of {self!r}")
        return [None if future is None else future.result() for future in futures]


def _count(groups: Sequence[Any]) -> str:
    """
    >>> _count(["a", None, "b"]), _count(["a"])
    ('3 (of which 1 was removed)', '1')
    """
    removed = [str(index) for index, group in enumerate(groups) if group is None]
    return f"{len(groups)}" + (f" (of which {', '.join(removed)} was removed)" if removed else "")

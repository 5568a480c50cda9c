"""Groups of environments in worker processes, and the data that each request carries to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from flowrl.actors.actors import HERE, Actors
from flowrl.actors.resources import Resources
from flowrl.engine.protocols import WorkerContract
from flowrl.engine.workers.futures import Future, failed
from flowrl.engine.workers.local import wait_for
from flowrl.engine.workers.subplan import packed
from flowrl.errors import FlowError, WorkerDied
from flowrl.rollout.groups import BEGIN_SECONDS, Group, GroupRunner

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan
    from flowrl.policies import Policy
    from flowrl.rollout.broadcast import Broadcast


@attrs.frozen
class GroupRunnerFactory:
    """Creates the `GroupRunner` of a process, in that process."""

    groups: tuple[Group, ...]
    policies: Mapping[str, Callable[[], Policy]]

    def __call__(self) -> GroupRunner:
        return GroupRunner(self.groups, self.policies)


class RemoteGroup:
    """One group of a worker process, as a worker of the engine.

    Attributes:
        index: Index of the group, for ever.
        process: Index of its process.
        life: Number of earlier restarts of that process. Each restart creates a new member.
    """

    def __init__(self, hosts: RemoteGroups, index: int, process: int, life: int) -> None:
        self._hosts, self.index, self.process, self.life = hosts, index, process, life

    def __repr__(self) -> str:
        return f"group {self.index} on worker {self.process}"

    @property
    def target(self) -> Any:
        """See `flowrl.engine.protocols.WorkerContract`; None in another process."""
        return self._hosts.target(self)

    @property
    def silent(self) -> float:
        """See `flowrl.engine.protocols.WorkerContract`; that of its process."""
        return self._hosts.silent(self.process)

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Send a request to the `RolloutWorker` of the group."""
        return self._hosts.ask(self, method, args)

    def submit_apart(self, method: str, *args: Any) -> Future[Any]:
        """Like `submit`, for a method that returns `(answer, item)`; the item stays in its process."""
        return self._hosts.ask(self, method, args, apart=True)

    def work_with_others(self) -> None:
        """See `flowrl.engine.protocols.JointWorker`."""
        self._hosts.work_with_others(self.process)


class RemoteGroups:
    """Worker processes, each with its groups; `members` has one member per group.

    Every request carries the run's env steps, and the first one to a process without the newest weights of a policy
    carries them.

    Args:
        groups: The groups of each process.
        policies: Factories of the policies of a process, by name.
        broadcasts: Sources of their newest weights.
        env_steps: Returns the env steps of the run so far.
        lives: Number of restarts of each group, by index.
        resources, address, max_restarts, worker_timeout: See `Actors`.
    """

    #: Whether they are processes, or else objects of this process, each with a separate policy.
    remote = True

    def __init__(
        self,
        groups: Sequence[Sequence[Group]],
        policies: Mapping[str, Callable[[], Policy]],
        broadcasts: Mapping[str, Broadcast],
        env_steps: Callable[[], int],
        lives: dict[int, int],
        *,
        resources: Resources,
        address: str | None,
        max_restarts: int,
        worker_timeout: float,
    ) -> None:
        self._policies, self._broadcasts, self._env_steps, self._lives = policies, broadcasts, env_steps, lives
        self._actors = Actors(
            [GroupRunnerFactory(tuple(each), policies) for each in groups],
            kind="worker",
            remote=self.remote,
            address=address,
            resources=resources,
            max_restarts=max_restarts,
            worker_timeout=worker_timeout,
        )
        self.members: list[RemoteGroup | None] = []
        self._sent: dict[tuple[int, str], int] = {}  # the number of the weights that each process has, by policy
        self._leaving: dict[int, Future[Any]] = {}  # processes to remove when their last request is answered
        self._parts: tuple[Any, Any] = (None, None)  # the part of a plan that was sent last, and the reference to it

    def start(self) -> bool:
        """Create the processes and begin the first episodes; returns whether recorded rewards are raw (S1)."""
        self._actors.start()
        try:
            return self._begin(range(len(self._actors.members)))
        except BaseException:
            self.close()
            raise

    def _begin(self, processes: Sequence[int]) -> bool:
        futures = [self._actors.members[process].submit("begin") for process in processes]
        wait_for(futures, "the environments of the workers to begin", BEGIN_SECONDS)
        raw = [future.result() for future in futures]
        for process in processes:
            for group in self._factory(process).groups:
                self.members.append(self._new_member(group.index, process))
        return all(raw)

    def _factory(self, process: int) -> GroupRunnerFactory:
        return cast(GroupRunnerFactory, self._actors.makes[process])

    def ask(self, member: RemoteGroup, method: str, args: tuple[Any, ...], *, apart: bool = False) -> Future[Any]:
        """Send a request to the worker of a group, by `submit_apart` or by `submit`, with the run's data."""
        if self._leaving:
            self._let_go()
        process = member.process
        if member.life != self._actors.restarts[process]:
            return failed(WorkerDied(repr(member), "a new process has replaced it"))
        if method == "open_plan" and not self.are_here:
            key, plan, paths, *rest = args
            args = key, self._part(plan, paths), paths, *rest
        newest, weights = [], []
        for name, broadcast in self._broadcasts.items():
            new = broadcast.newest(self._actors.put)
            if new is not None and self._sent.get((process, name)) != broadcast.number:
                newest.append((name, broadcast.version))
                weights.append(new)
            self._sent[process, name] = broadcast.number
        worker = self._actors.members[process]
        submit = worker.submit_apart if apart else worker.submit
        future: Future[Any] = submit("ask", member.index, method, self._env_steps(), newest, *weights, *args)
        return future

    def work_with_others(self, process: int) -> None:
        """See `RemoteGroup.work_with_others`."""
        if self.are_here:
            self._actors.members[process].work_with_others()

    @property
    def are_here(self) -> bool:
        """Whether they are in this process, where a part of a plan need not be packed."""
        return self._actors.address == HERE

    def target(self, member: RemoteGroup) -> Any:
        """The worker of a group that is in this process, else None."""
        return self._actors.members[member.process].target.worker_of(member.index) if self.are_here else None

    def silent(self, process: int) -> float:
        """See `flowrl.engine.protocols.WorkerContract`."""
        return WorkerContract(self._actors.members[process]).silent

    def begin_anew(self, index: int, life: int) -> Future[Any]:
        """Let a group begin new episodes from new streams, as after a death of its process."""
        worker: Future[Any] = self._actors.members[self._member(index).process].submit("begin_anew", index, life)
        return worker

    def _part(self, plan: Plan, paths: Sequence[str]) -> Any:
        """A reference to a part of a plan, pickled and stored once for all members."""
        last, reference = self._parts
        if last is not plan:
            reference = self._actors.put(packed(plan, paths))
            self._parts = plan, reference
        return reference

    def neighbors(self, index: int) -> list[int]:
        """The indexes of all groups in the same process as a group."""
        return [group.index for group in self._factory(self._member(index).process).groups]

    def restart(self, index: int, died: WorkerDied | None = None) -> None:
        """Restart the process of a group after the error `died`; new members replace all groups of the process.

        They begin fresh episodes from fresh streams, with the newest weights. Does not wait for them.

        Raises: WorkerDied: it was restarted `max_restarts` times already.
        """
        process = self._member(index).process
        groups = self._factory(process).groups
        for group in groups:
            self._lives[group.index] = self._lives.get(group.index, 0) + 1
        reborn = tuple(attrs.evolve(group, life=self._lives[group.index]) for group in groups)
        self._actors.makes[process] = GroupRunnerFactory(reborn, self._policies)
        self._actors.restart(process, died)
        for name in self._broadcasts:
            self._sent.pop((process, name), None)
        for group in groups:
            self.members[group.index] = self._new_member(group.index, process)

    def give_up(self, index: int) -> bool:
        """Remove the process of a group, unless it is the last; returns whether another one is left."""
        process = self._member(index).process
        if all(member.process == process for member in self._present()):
            return False
        self._take_out(process)
        self._actors.remove(process)
        return True

    def _member(self, index: int) -> RemoteGroup:
        member = self.members[index] if index < len(self.members) else None
        if member is None:
            raise FlowError(f"there is no worker {index}: it was removed, or never existed")
        return member

    def _new_member(self, index: int, process: int) -> RemoteGroup:
        return RemoteGroup(self, index, process, self._actors.restarts[process])

    def leave_out(self, indices: Sequence[int]) -> None:
        """Remove groups; ends processes without any group left."""
        before = {member.process for member in self._present()}
        for index in indices:
            self.members[index] = None
        for process in before - {member.process for member in self._present()}:
            self._actors.remove(process)

    def _take_out(self, process: int) -> None:
        for member in list(self._present()):
            if member.process == process:
                self.members[member.index] = None

    def add(self, groups: Sequence[Group]) -> None:
        """Add a process with these groups."""
        process = len(self._actors.makes)
        self._actors.add(GroupRunnerFactory(tuple(groups), self._policies))
        try:
            self._begin([process])
        except BaseException:
            self._actors.remove(process)
            raise

    def remove(self) -> None:
        """Remove the newest process's groups; it ends when it has answered its requests."""
        process = max(member.process for member in self._present())
        self._take_out(process)
        self._leaving[process] = self._actors.members[process].submit("begin")  # has begun, so that it only answers
        self._let_go()

    def _present(self) -> Iterator[RemoteGroup]:
        return (member for member in self.members if member is not None)

    def _let_go(self) -> None:
        for process, last in list(self._leaving.items()):
            if last.done():
                del self._leaving[process]
                self._actors.remove(process)

    def close(self) -> None:
        """End the processes."""
        self.members = []
        for entries in (self._sent, self._leaving):
            entries.clear()
        for broadcast in self._broadcasts.values():
            broadcast.forget()
        self._actors.close()

"""Groups of environments in worker processes, and what rides with each request to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from flowrl.actors.actors import Actors, Resources
from flowrl.engine.futures import Future
from flowrl.engine.subplan import packed
from flowrl.engine.workers import wait_for
from flowrl.errors import FlowError, WorkerDied
from flowrl.rollout.groups import Group, GroupRunner

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan
    from flowrl.policies import Policy
    from flowrl.rollout.broadcast import Broadcast

#: Seconds that the first episodes of all environments may take to begin.
BEGIN_SECONDS = 300.0


@attrs.frozen
class GroupRunnerFactory:
    """Makes the `GroupRunner` of one process, in it."""

    groups: tuple[Group, ...]
    policy: Callable[[], Policy]

    def __call__(self) -> GroupRunner:
        return GroupRunner(self.groups, self.policy)


class RemoteGroup:
    """One group of a worker process, as a worker of the engine.

    Attributes:
        index: Of the group, for ever.
        process: That has it.
        life: How often that process had been made again. Another life has another member.
    """

    def __init__(self, hosts: RemoteGroups, index: int, process: int, life: int) -> None:
        self._hosts, self.index, self.process, self.life = hosts, index, process, life

    def __repr__(self) -> str:
        return f"group {self.index} on worker {self.process}"

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Ask the `RolloutWorker` of the group."""
        return self._hosts.ask(self, method, args)

    def submit_apart(self, method: str, *args: Any) -> Future[Any]:
        """As `submit`, of a method that returns `(answer, item)`; the item stays where it was made."""
        return self._hosts.ask(self, method, args, apart=True)


class RemoteGroups:
    """Worker processes, each with its groups: as many `members` as groups.

    The run's env steps ride with every request, and the newest weights with the first one to a process without them.

    Args:
        groups: Of each process.
        policy: Makes the policy of a process.
        broadcast: Which weights are the newest.
        env_steps: Of the run so far.
        lives: How often groups were begun afresh, by index.
        resources, address, max_restarts: See `Actors`.
    """

    #: Whether they are processes; otherwise they are objects of this one, each with a policy of its own.
    remote = True

    def __init__(
        self,
        groups: Sequence[Sequence[Group]],
        policy: Callable[[], Policy],
        broadcast: Broadcast,
        env_steps: Callable[[], int],
        lives: dict[int, int],
        *,
        resources: Resources,
        address: str | None,
        max_restarts: int,
    ) -> None:
        self._policy, self._broadcast, self._env_steps, self._lives = policy, broadcast, env_steps, lives
        self._actors = Actors(
            [GroupRunnerFactory(tuple(each), policy) for each in groups],
            kind="worker",
            remote=self.remote,
            address=address,
            resources=resources,
            max_restarts=max_restarts,
        )
        self.members: list[RemoteGroup | None] = []
        self._sent: dict[int, int] = {}  # the number of the weights that each process has
        self._leaving: dict[int, list[Future[Any]]] = {}  # processes that are removed when these are done
        self._asked: dict[int, list[Future[Any]]] = {}  # of each process, what is not answered yet
        self._parts: tuple[Any, Any] = (None, None)  # the part of a plan that was sent last, and what stands for it

    def start(self) -> bool:
        """Make the processes and begin the first episodes; whether rewards are seen raw (S1)."""
        self._actors.start()
        try:
            return self._begin(range(len(self._actors.members)))
        except BaseException:
            self.close()
            raise

    def _begin(self, processes: Sequence[int]) -> bool:
        begun = [self._actors.members[process].submit("begin") for process in processes]
        wait_for(begun, "the environments of the workers to begin", BEGIN_SECONDS)
        raw = [future.result() for future in begun]
        for process in processes:
            for group in self._maker(process).groups:
                self.members.append(self._new_member(group.index, process))
        return all(raw)

    def _maker(self, process: int) -> GroupRunnerFactory:
        maker = cast(GroupRunnerFactory, self._actors.makes[process])
        return maker

    def ask(self, member: RemoteGroup, method: str, args: tuple[Any, ...], *, apart: bool = False) -> Future[Any]:
        """Ask the worker of a group, by `submit_apart` or by `submit`, with what rides along."""
        if self._leaving:
            self._let_go()
        process = member.process
        if member.life != self._actors.restarts[process]:
            return _failed(WorkerDied(repr(member), "another process has its place"))
        if method == "open_plan":
            key, plan, paths, *rest = args
            args = key, self._part(plan, paths), paths, *rest
        weights = self._broadcast.newest(self._actors.put)
        rides = None if self._sent.get(process) == self._broadcast.number else weights
        worker = self._actors.members[process]
        submit = worker.submit_apart if apart else worker.submit
        future: Future[Any] = submit(
            "ask", member.index, method, self._env_steps(), self._broadcast.version, rides, *args
        )
        self._sent[process] = self._broadcast.number
        asked = self._asked.setdefault(process, [])
        asked[:] = [each for each in asked if not each.done()]
        asked.append(future)
        return future

    def _part(self, plan: Plan, paths: Sequence[str]) -> Any:
        """What stands for a part of a plan, packed and put once for all members."""
        of, reference = self._parts
        if of is not plan:
            reference = self._actors.put(packed(plan, paths))
            self._parts = plan, reference
        return reference

    def neighbours(self, index: int) -> list[int]:
        """The groups of the process of a group."""
        return [group.index for group in self._maker(self._member(index).process).groups]

    def restart(self, index: int, died: WorkerDied | None = None) -> None:
        """Make the process of a group again, of what it died; other members take the places of all that it has.

        They begin fresh episodes from fresh streams, with the newest weights. Nothing is waited for.

        Raises: WorkerDied: it died more often than it may.
        """
        process = self._member(index).process
        groups = self._maker(process).groups
        for group in groups:
            self._lives[group.index] = self._lives.get(group.index, 0) + 1
        afresh = tuple(attrs.evolve(group, life=self._lives[group.index]) for group in groups)
        self._actors.makes[process] = GroupRunnerFactory(afresh, self._policy)
        self._actors.restart(process, died)
        self._asked.pop(process, None)
        self._sent.pop(process, None)
        for group in groups:
            self.members[group.index] = self._new_member(group.index, process)

    def give_up(self, index: int) -> bool:
        """Go on without the process of a group; whether any other is left, otherwise nothing happens."""
        process = self._member(index).process
        if all(member.process == process for member in self._present()):
            return False
        self._take_out(process)
        self._actors.remove(process)
        return True

    def _member(self, index: int) -> RemoteGroup:
        member = self.members[index] if index < len(self.members) else None
        if member is None:
            raise FlowError(f"there is no worker {index}: it was removed, or never was")
        return member

    def _new_member(self, index: int, process: int) -> RemoteGroup:
        return RemoteGroup(self, index, process, self._actors.restarts[process])

    def leave_out(self, indices: Sequence[int]) -> None:
        """Go on without groups; a process of which none is left ends."""
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
        """One more process."""
        process = len(self._actors.makes)
        self._actors.add(GroupRunnerFactory(tuple(groups), self._policy))
        try:
            self._begin([process])
        except BaseException:
            self._actors.remove(process)
            raise

    def remove(self) -> None:
        """Take the newest process's groups out; it ends when it has answered what it was asked."""
        process = max(member.process for member in self._present())
        self._take_out(process)
        self._leaving[process] = self._asked.pop(process, [])
        self._let_go()

    def _present(self) -> Iterator[RemoteGroup]:
        return (member for member in self.members if member is not None)

    def _let_go(self) -> None:
        for process, asked in list(self._leaving.items()):
            if all(future.done() for future in asked):
                del self._leaving[process]
                self._actors.remove(process)

    def close(self) -> None:
        """End the processes."""
        self.members = []
        for told in (self._sent, self._leaving, self._asked):
            told.clear()
        self._broadcast.forget()
        self._actors.close()


def _failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future

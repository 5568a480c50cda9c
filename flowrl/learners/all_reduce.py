"""All-reduce over torch.distributed: learners in several processes stay alike to the last bit."""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import torch
import torch.distributed

from flowrl.data import Batch
from flowrl.data.steps import is_fragment
from flowrl.engine.futures import Future
from flowrl.engine.workers import ask, wait_for
from flowrl.errors import Disconnected, WorkerDied
from flowrl.policies.torch_private import process_group

if TYPE_CHECKING:
    from flowrl.policies import Policy

distributed: Any = torch.distributed  #: what is used of it has no annotations

#: An address outside, by which a machine finds its own one to the outside; nothing is sent there.
_OUTSIDE = "10.255.255.255"


@attrs.frozen
class Rendezvous:
    """Where the members of a group find each other: an address that one of them listens at."""

    host: str
    port: int
    size: int
    one_batch: bool  #: see `flowrl.policies.learning.AllReduce`
    seconds: float  #: that any wait for the others may take


def listen(host: str, seconds: float) -> Any:
    """Open a free port for a meeting; whoever holds the result must keep it until the group has ended."""
    return distributed.TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=seconds)
    )


class GroupAllReduce:
    """One member of a group that averages over gloo, or over NCCL where the policy is on a GPU.

    A member that dies, or answers no more, is an error of the others: at once where its connection breaks, else after
    the meeting's seconds. The group is of no use then, and a new one must meet.

    Raises:
        Disconnected: the others did not come in time, or one of them is gone.
    """

    def __init__(
        self, rendezvous: Rendezvous, rank: int, device: torch.device | None = None, store: Any = None
    ) -> None:
        self.rank, self.size, self.one_batch = rank, rendezvous.size, rendezvous.one_batch
        self.device = torch.device("cpu") if device is None else device
        wait = datetime.timedelta(seconds=rendezvous.seconds)
        try:
            if store is None:
                store = distributed.TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=wait)
            address = own_address(rendezvous.host)
            self._group = process_group(store, rank, self.size, self.device, address, wait)
            self._store = store
        except (RuntimeError, TimeoutError) as error:
            raise Disconnected(f"member {rank} of {rendezvous.size} waited for the others: {_first(error)}") from error

    def mean(self, values: torch.Tensor, rows: int) -> torch.Tensor:
        """See `flowrl.policies.learning.AllReduce`: Σ nᵢ vᵢ / Σ nᵢ (F13)."""
        sums = torch.cat([values * rows, values.new_tensor([rows])])
        self._reduce(sums, distributed.ReduceOp.SUM)
        return sums[:-1] / sums[-1]

    def least_and_most(self, number: int) -> tuple[int, int]:
        """See `flowrl.policies.learning.AllReduce`."""
        both = torch.tensor([-number, number], device=self.device)
        self._reduce(both, distributed.ReduceOp.MAX)
        return -int(both[0]), int(both[1])

    def share(self, rows: Batch) -> Batch:
        """Rows `[B, ...]`, or environments of `[T, N, ...]`, so many as everybody's or one more; all if too few."""
        if not self.one_batch:
            return rows
        axis = int(is_fragment(rows))
        count = rows.shape[axis]
        if count < self.size:
            return rows
        mine = slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)
        part: Batch = rows[:, mine] if axis else rows[mine]
        return part

    def close(self) -> None:
        """Leave: the others' next request fails at once, and does not wait for this one."""
        group, self._group = self._group, None  # its connections end with it
        if group is not None:
            with suppress(RuntimeError):
                group.abort()

    def _reduce(self, values: torch.Tensor, how: Any) -> None:
        options = distributed.AllreduceOptions()
        options.reduceOp = how
        try:
            if self._group is None:
                raise RuntimeError("this one has left")
            self._group.allreduce([values], options).wait()
        except RuntimeError as error:
            self.close()
            raise Disconnected(f"one of {self.size} that learn together is gone: {_first(error)}") from error


class Peer:
    """Base of objects that learn with others in other processes: their side of a rendezvous.

    Attributes:
        peers: How many learn together, itself among them; 0: nobody has called a rendezvous.
    """

    policy: Policy
    peers = 0
    all_reduce: GroupAllReduce | None = None
    _store: Any = None

    def listen(self, seconds: float) -> tuple[str, int]:
        """Open the place where all meet: a host, by which this one can be reached, and a free port."""
        try:
            host = own_address(_OUTSIDE)
        except OSError:  # no network but that of this machine
            host = "127.0.0.1"
        self._store = listen(host, seconds)
        return host, self._store.port

    def connect(self, rendezvous: Rendezvous, rank: int) -> None:
        """Meet the others, and learn with them from now on.

        Raises: Disconnected: they do not come.
        """
        self.leave()
        self.peers = rendezvous.size
        if rendezvous.size > 1:
            self.all_reduce = GroupAllReduce(rendezvous, rank, self.policy.device, self._store if rank == 0 else None)

    def check_peers(self) -> None:
        """Raise Disconnected where the others are lost, or were never met."""
        if self.peers != 1 and self.all_reduce is None:
            raise Disconnected("the others that learn with this one are gone, or were never met")

    def process(self) -> int:
        """In which it is."""
        return os.getpid()

    def leave(self) -> None:
        """Have the others fail rather than wait for this one."""
        if self.all_reduce is not None:
            self.all_reduce.close()
            self.all_reduce = None


def rendezvous(members: Sequence[Any], *, one_batch: bool, seconds: float = 60.0) -> None:
    """Have workers, each with a `Peer`, rendezvous anew.

    Raises:
        WorkerDied: one of them is gone.
        Disconnected: they do not find each other in time.
    """
    host, port = "", 0
    if len(members) > 1:
        host, port = results([ask(members[0], "listen", seconds)], "a learner to listen", 2 * seconds)[0]
    rendezvous = Rendezvous(host, port, len(members), one_batch, seconds)
    results([ask(member, "connect", rendezvous, rank) for rank, member in enumerate(members)], "learners to meet")


def results(asked: list[Future[Any]], what: str, seconds: float = 120.0) -> list[Any]:
    """What all were asked; of several errors a death, rather than what others make of it."""
    wait_for(asked, what, seconds)
    errors = [error for future in asked if (error := future.exception())]
    for error in sorted(errors, key=lambda error: not isinstance(error, WorkerDied)):
        raise error
    return [future.result() for future in asked]


def own_address(other: str) -> str:
    """The address by which this machine talks to another one, whether or not that one is there.

    >>> own_address("127.0.0.1")
    '127.0.0.1'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing
        return str(probe.getsockname()[0])


def _first(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]

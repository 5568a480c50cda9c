"""All-reduce over torch.distributed, which keeps learners in several processes identical to the last bit."""

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
from flowrl.data.steps import is_fragment, tells_fragments
from flowrl.engine.protocols import JointWorker
from flowrl.engine.workers.futures import Future
from flowrl.engine.workers.local import ask, wait_for
from flowrl.errors import Disconnected, WorkerDied
from flowrl.networks.torch_private import process_group

if TYPE_CHECKING:
    from flowrl.policies import Policy

distributed: Any = torch.distributed  #: the functions used here have no annotations

#: An outside address, by which a machine finds its own outside address; nothing is sent there.
_OUTSIDE = "10.255.255.255"


@attrs.frozen
class Rendezvous:
    """The meeting point of a group: an address at which one member listens."""

    host: str
    port: int
    size: int
    one_batch: bool  #: see `flowrl.policies.learning.AllReduce`
    seconds: float  #: limit of any wait for the others


def listen(host: str, seconds: float) -> Any:
    """Open a free port for a rendezvous; the caller must keep the result until the group has ended."""
    return distributed.TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=seconds)
    )


class GroupAllReduce:
    """One member of a group that averages over gloo, or over NCCL if the policy is on a GPU.

    If a member dies or stops answering, the others raise: at once if its connection breaks, else after
    `rendezvous.seconds`. Then the group is useless, and its members need a new rendezvous.

    Raises:
        Disconnected: the others did not connect in time, or one of them is gone.
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

    def share(self, rows: Batch, sequences: bool = False) -> Batch:
        """This member's part of rows `[B, ...]`, or of sequences `[T, B, ...]`; parts differ in size by at most
        one. All rows if there are fewer than members."""
        if not self.one_batch:
            return rows
        axis = int(sequences or (tells_fragments(rows) and is_fragment(rows)))
        count = rows.shape[axis]
        if count < self.size:
            return rows
        mine = slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)
        part: Batch = rows[:, mine] if axis else rows[mine]
        return part

    def close(self) -> None:
        """Leave the group: the others' next request fails at once instead of waiting for this member."""
        group, self._group = self._group, None
        if group is not None:
            with suppress(RuntimeError):
                group.abort()

    def _reduce(self, values: torch.Tensor, how: Any) -> None:
        options = distributed.AllreduceOptions()
        options.reduceOp = how
        try:
            if self._group is None:
                raise RuntimeError("this member has left")
            self._group.allreduce([values], options).wait()
        except RuntimeError as error:
            self.close()
            raise Disconnected(f"one of {self.size} joint learners is gone: {_first(error)}") from error


class Peer:
    """Base of objects that learn jointly with others in other processes: one side of a rendezvous.

    Attributes:
        peers: Number of joint learners, including this one; 0 before any rendezvous.
    """

    @property
    def policy(self) -> Policy:
        """The policy that learns with the others'."""
        raise NotImplementedError

    peers = 0
    all_reduce: GroupAllReduce | None = None
    _store: Any = None

    def listen(self, seconds: float) -> tuple[str, int]:
        """Open the meeting point; returns a host address of this machine, and a free port."""
        try:
            host = own_address(_OUTSIDE)
        except OSError:  # no outside network
            host = "127.0.0.1"
        self._store = listen(host, seconds)
        return host, self._store.port

    def connect(self, rendezvous: Rendezvous, rank: int) -> None:
        """Connect to the others, and learn jointly with them from now on.

        Raises: Disconnected: they do not connect.
        """
        self.leave()
        self.peers = rendezvous.size
        if rendezvous.size > 1:
            self.all_reduce = GroupAllReduce(rendezvous, rank, self.policy.device, self._store if rank == 0 else None)

    def check_peers(self) -> None:
        """Raise Disconnected if the connection to the others is lost, or was never made."""
        if self.peers != 1 and self.all_reduce is None:
            raise Disconnected("the joint learners are gone, or were never connected")

    def process(self) -> int:
        """The id of its process."""
        return os.getpid()

    def leave(self) -> None:
        """Disconnect, so that the others fail instead of waiting for this one."""
        if self.all_reduce is not None:
            self.all_reduce.close()
            self.all_reduce = None


def rendezvous(members: Sequence[Any], *, one_batch: bool, seconds: float = 60.0) -> None:
    """Connect workers, each with a `Peer`, to a new group.

    Raises:
        WorkerDied: one of them is gone.
        Disconnected: they do not connect in time.
    """
    host, port = "", 0
    if len(members) > 1:
        for member in members:
            if isinstance(member, JointWorker):
                member.work_with_others()
        host, port = results([ask(members[0], "listen", seconds)], "a learner to listen", 2 * seconds)[0]
    rendezvous = Rendezvous(host, port, len(members), one_batch, seconds)
    results([ask(member, "connect", rendezvous, rank) for rank, member in enumerate(members)], "learners to meet")


def results(futures: list[Future[Any]], what: str, seconds: float = 120.0) -> list[Any]:
    """Wait for all results; of several errors, raises a death rather than its consequences."""
    wait_for(futures, what, seconds)
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda error: not isinstance(error, WorkerDied)):
        raise error
    return [future.result() for future in futures]


def own_address(other: str) -> str:
    """The address that this machine uses towards another one, which need not exist.

    >>> own_address("127.0.0.1")
    '127.0.0.1'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing
        return str(probe.getsockname()[0])


def _first(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]

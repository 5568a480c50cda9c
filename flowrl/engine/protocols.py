"""Contracts: the optional members of operators, resources, workers and the objects that `call` sends items to.

Users write plain functions and small classes without a base class and add only the members they need. The engine
reads each object through its contract, which supplies the default for a missing member. So every optional member
is described once, in this file, and no other code tests for it.

>>> contract = OperatorContract(print)
>>> contract.pure, contract.ready, list(contract.finish())
(False, None, [])
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from flowrl.engine.context import Context
    from flowrl.engine.plan import Plan
    from flowrl.engine.schema import Schema
    from flowrl.engine.workers.futures import Future

#: Words of items. A mapping adds to each word its remedy, or the problem if it is missing.
Words = tuple[str, ...] | Mapping[str, str]


class Signal(enum.Enum):
    """The result of a step without an item. Users' functions never see one (F4)."""

    WORKED = "moved, nothing to emit"
    WAITING = "a future is running and will ring the bell"
    BLOCKED = "only another branch can help"
    DONE = "nothing will come any more"


WORKED, WAITING, BLOCKED, DONE = Signal


class _Optional:
    """A member of a contract, with its default."""

    def __init__(self, default: Any) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, contract: Contract, owner: type) -> Any:
        return getattr(contract.of, self.name, self.default)


def optional(default: Any = None) -> Any:
    """A member of a contract: the object's own, or the default; None if its absence has a meaning."""
    return _Optional(default)


def has_member(kind: type, name: str) -> bool:
    """Whether a class has a member of this name, its own or inherited."""
    return any(name in vars(base) for base in kind.__mro__)


def _nothing(*_: object) -> None:
    """Default of an optional method."""


class Contract:
    """Base of the contracts; `of` is the object behind it."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of


class OperatorContract(Contract):
    """An operator: a callable `item -> item`, or a source with `pull()`.

    An operator that declares `requires` or `provides` but no `schema` passes items on. The output of an operator that
    declares neither is unknown, and an unknown schema passes every check.
    """

    # -- behavior

    ready: Callable[[Any], bool | Signal] | None = optional()
    """Whether the item may be processed now. False holds the item and makes the branch BLOCKED; WAITING holds it until
    a future that the operator started rings the bell."""
    why: Callable[[], str] = optional(lambda: "it is not ready")
    """What a source or a held item waits for, in words."""
    done: bool | None = optional()
    """True once the operator lets no further item through, as in `take`; None: it lets every item through."""
    finish: Callable[[], Iterable[Any]] = optional(list)
    """Called when the input has ended; returns the remaining items."""
    release: Callable[[], None] = optional(_nothing)
    """Called when nothing will pull the operator again, finished or not; possibly twice."""
    held_rows: int | None = optional()
    """Rows that it has been given and will emit with later items: they are lost with the worker that runs it."""
    drain: Callable[[], None] = optional(_nothing)
    """Wait for the pending requests of a source, so that its state is complete."""
    close: Callable[[], None] = optional(_nothing)
    """End the threads and generators of a source."""
    hosted: Callable[[Any], None] = optional(_nothing)
    """Called with the workers that run the operator, once they have opened their part of the plan; may prepare them."""

    # -- properties

    verb: str | None = optional()
    """The one verb that it works with, such as "combine", if another would change its meaning."""
    pure: bool = optional(False)
    """Applying it twice to an item does no harm, so it may be retried (F2)."""
    endless: bool = optional(False)
    """A source that never ends by itself."""
    takes_remote: bool = optional(False)
    """Whether it accepts `Remote` items."""
    hidden: bool = optional(False)
    """A tap that trees and pictures leave out."""
    clocked: tuple[str, ...] = optional(())
    """Keys of its items whose values a clock has told, or their beginnings, as "timers/"."""

    learns: Any = optional()
    """What it trains, such as a policy. If a plan trains several, each has its own scalars and counters in the results:
    see `flowrl.engine.labels`."""

    by_branch: bool = optional(False)
    """Whether it takes apart what several branches of a merge directly before it emit: their dicts arrive as
    `flowrl.engine.merge.FromBranch`."""

    # -- input of `Plan.check`, see `flowrl.engine.schema`

    requires: Words | None = optional()
    """Words that an item must have; a column's name is a word too, and "a or b" accepts either. A mapping adds to each
    word its remedy; "" lets the check look for one."""
    provides: tuple[str, ...] | None = optional()
    """Words that the operator adds to the item."""
    takes_policies: bool = optional(False)
    """Whether it accepts a `MultiAgentBatch`, of which each policy's experience must have what it requires. Any other
    operator that requires something takes the experience of one policy."""
    schema: Callable[..., Schema] | None = optional()
    """Maps the schemas of the inputs to that of the output; raises SchemaError. For a source the input is the schema
    that its workers collect, or that of the items entering its store, or each of the store's `parts`."""
    owes: Words = optional(())
    """Words that a later operator must consume; a mapping adds to each word the problem if none does."""
    consumes: tuple[str, ...] | None = optional()
    """Words, owed by earlier operators, that it consumes."""
    back_to: Any = optional()
    """The store that the items with the consumed words came from; None: any store."""
    into: Any = optional()
    """The store (buffer, queue) that its items enter; items that enter one of a store's `parts` leave by the store."""
    out_of: Any = optional()
    """The store that its items come from."""

    @property
    def says_nothing(self) -> bool:
        """Whether it declares nothing, and so may do anything to an item."""
        return all(each is None for each in (self.requires, self.provides, self.schema, self.consumes))


class ResourceContract(Contract):
    """A resource, which a plan saves (`Saveable`) or items pass through: a buffer, a queue, a policy, a worker set.

    `flowrl.data.replay.base.Store` is the base of replay stores.
    """

    start: Callable[[Context], None] | None = optional()
    """Called when a run opens: take generators from its seeds, start processes."""
    stop: Callable[[], None] = optional(_nothing)
    """Called when the run closes."""
    resources: Iterable[Any] = optional(())
    """Resources that it consists of."""
    lost: Mapping[str, int] = optional({})
    """What the last load could not continue, by counter."""
    parts: Sequence[Any] = optional(())
    """Stores that it consists of: items that enter a part leave by the whole."""
    holds_items: bool = optional(True)
    """Whether it can emit an item before a plan puts one in."""
    capacity: int | None = optional()
    """Most items or rows that it holds; `len` tells how many it holds. None: it does not say."""
    fills_up: bool = optional(False)
    """Whether it can be full, so that an item must leave before another enters."""
    caveat: str = optional("")
    """What `explain` says beside the operator that trains it."""
    kept_once: Callable[[Schema], str] = optional(lambda schema: "")
    """What it keeps once of items of a schema that repeat it, beside the operator that stores them."""


class WorkersContract(Contract):
    """The workers that run a part of a plan. They have `members`, a list of `Worker`s.

    A member keeps its index for ever; None replaces a removed member.
    """

    restart: Callable[[int, BaseException], None] | None = optional()
    """Restart a member after its death; None: a death is an error like any other."""
    num_members: int = optional(1)
    """Number of members, also before they are started."""
    num_elsewhere: int = optional(0)
    """Number of other processes with members; 0: all are in this one."""
    version: int | None = optional()
    """Version of the weights that a request made now would act with."""
    schema: Callable[[], Schema] | None = optional()
    """The schema of the items that they collect."""
    policy: Any = optional()
    """The policy that acts there and learns here."""
    name: str | None = optional()
    """The name of that policy, if it is one of several."""
    clock: str = optional("env_steps")
    """The counter of a run that results, evaluations and schedules follow."""


class WorkerContract(Contract):
    """A `Worker`."""

    target: Any = optional()
    """The object that it calls, in this process."""
    silent: float = optional(0.0)
    """Seconds for which it has left a request unanswered and answered nothing; a state is taken without it if they are
    too many."""


class CalleeContract(Contract):
    """The object that `call` sends items to, a `Worker` or any other; its members run in the run's own thread."""

    receive: Callable[[Any], Any] = optional(lambda answer: answer)
    """Convert an answer when its turn has come."""
    recover: Callable[[BaseException], BaseException | None] = optional(lambda error: error)
    """Repair the damage after a failed request; None repeats the failed requests, an error is raised."""
    takes_remote: bool = optional(False)
    """Whether it accepts `Remote` items."""
    requires: Words | None = optional()
    """See `OperatorContract.requires`; needs `schema` too."""
    schema: Callable[[Schema], Schema] = optional()
    """Maps the schema of its items to that of its answers."""
    learns: Any = optional()
    """See `OperatorContract.learns`."""
    repeats: bool = optional(False)
    """Whether its own state is that after the requests it has answered, so that others may be made again where a state
    is loaded. A state is then taken without the answers of a process that hangs."""
    silent: float = optional(0.0)
    """Seconds for which one of its processes has left a request unanswered and answered nothing."""


@runtime_checkable
class Saveable(Protocol):
    """A resource that a checkpoint holds once, however many operators share it: see `ResourceContract`."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@runtime_checkable
class SourceOperator(Protocol):
    """A source operator; `pull()` returns an item or a `Signal`."""

    def pull(self) -> Any: ...


@runtime_checkable
class Worker(Protocol):
    """Anything that executes requests one after another, in this process or elsewhere.

    A worker that runs a part of a plan receives requests for the methods of `SubplanWorker`.
    """

    def submit(self, method: str, /, *args: Any) -> Future[Any]:
        """Request `method(*args)`; the future rings the run's bell when it is done."""
        ...


@runtime_checkable
class StoringWorker(Protocol):
    """A `Worker` that can keep items."""

    def submit_apart(self, method: str, /, *args: Any) -> Future[Any]:
        """Request a method that returns (answer, item): the answer comes back, the item stays and is `Remote` here."""
        ...


@runtime_checkable
class JointWorker(Protocol):
    """A `Worker` for which others wait, or that waits for others; if it is in this process, in a thread of its own."""

    def work_with_others(self) -> None:
        """Called before its first request of that kind."""
        ...


class Observer:
    """Who listens to a run; this one does nothing with what it hears. It must change nothing in the run (E4)."""

    def opened(self) -> None:
        """Called when the run opens."""

    def busy(self, path: str, seconds: float) -> None:
        """An operator was busy until now, in the current thread."""

    def slept(self, paths: Sequence[str], seconds: float) -> None:
        """The run has slept until now, for answers to these operators."""

    def answered(
        self, path: str, worker: int, asked: float, answered: float, spans: Any = None, version: int | None = None
    ) -> None:
        """A worker has answered a request of an operator, maybe in another thread.

        Args:
            asked, answered: When.
            spans: What the observer of its part has told, see `part`.
            version: Of the weights that a request made now would carry, if any.
        """

    def part(self, *, inline: bool) -> Observer | None:
        """Who listens to a part of the plan on a worker, in this thread if `inline`; else it is sent there."""

    def asked(self) -> None:
        """On a worker: a request begins."""

    def tells(self) -> Any:
        """On a worker: what its answer tells the observer of the run."""


class Decisions:
    """What a run decides by the clock; this one decides by what it sees, and notes nothing.

    A journal (`flowrl.engine.recording.journal`) notes or follows the decisions.
    """

    #: Whether something notes or follows the decisions.
    active: ClassVar[bool] = False
    #: Whether they come from a journal, so that waiting is of no use.
    replays: ClassVar[bool] = False
    #: Of a part of a plan on a worker: which.
    name = ""
    #: The item that left an operator last, and its digest.
    newest: tuple[Any, int] = (None, 0)

    def woven(self, plan: Plan) -> Plan:
        """The plan with the taps that it needs. Raises: PlanError: it cannot note what the plan decides."""
        return plan

    def opened(self, order: Sequence[str]) -> None:
        """Called when a run opens, with the paths of its operators in the order of the flow of items."""

    def decide(self, point: str, seen: Sequence[int]) -> Sequence[int]:
        """Decide at a point of the run: `seen` has numbers for what is there now, none if there is nothing.

        Returns: the same, or what a journal has instead.
        """
        return seen

    def settles(self, point: str, answered: Sequence[tuple[int, bool]]) -> Sequence[tuple[int, bool]]:
        """Decide which requests are settled now, each as its place among others and whether its worker has died."""
        return answered

    def happens(self, point: str, seen: bool, *, lost: bool = False) -> bool:
        """Decide whether something has happened; `lost`: so that no run can repeat it.

        Raises: Departed: it was lost in the journal.
        """
        return seen

    def item(self, path: str, digest: int) -> None:
        """Note an item that leaves an operator. Raises: Departed: the journal has another one."""

    def depart(self, path: str, what: str) -> None:
        """Note that a replay does at an operator what its journal does not have. Raises: Departed."""

    def failed(self, error: BaseException) -> None:
        """Note that a request failed. Raises: JournalEnds: as the journal of the worker has nothing more."""

    def part(self, gather: str, index: int) -> Decisions:
        """Those of the part of a plan that a worker opens now."""
        return self

    def heard(self, part: str, noted: bytes) -> None:
        """Note what a worker noted for an answer."""

    def answer(self) -> bytes:
        """On a worker: what was noted since the last answer, b"" if nothing."""
        return b""

    def states(self) -> tuple[bool, bool]:
        """Whether the run that is followed has taken a state between two steps here, and whether it has loaded one."""
        return False, False

    def saved(self) -> None:
        """Note that the state of the run is taken."""

    def loaded(self) -> None:
        """Called when the run loads a state: its parts are opened anew."""

    def check_idle(self) -> None:
        """Called where a run would sleep. Raises: Departed: a replay waits for what will not come."""


class _ByMembers(abc.ABC):  # noqa: B024 - what makes it abstract is the hook
    """Base of classes whose subclasses are all classes with the same members."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        return all(has_member(kind, name) for name in cls.__annotations__)


@runtime_checkable
class PartHost(Protocol):
    """The object behind a worker that runs parts of plans, by the gather that pulls each."""

    parts: Mapping[str, Any]


class Array(_ByMembers):
    """A column, such as a numpy array or a torch tensor: the engine imports neither."""

    dtype: Any
    shape: tuple[int, ...]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """All other members of arrays."""


class Columns(_ByMembers):
    """Values by name: a dict, a batch."""

    keys: Callable[[], Iterable[Any]]
    items: Callable[[], Iterable[tuple[Any, Any]]]

"""Contracts: what an operator, what a plan saves, workers and what `call` sends items to may have.

Users write plain functions and small classes without a base class, which have the members that they need. The engine
looks at each of them through its contract: a member that the object lacks has the default that is written here. So
every optional member is described once, in this file, and nobody else asks whether it is there.

>>> contract = OperatorContract(print)
>>> contract.pure, contract.ready, list(contract.finish())
(False, None, [])
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from flowrl.engine.context import Context
    from flowrl.engine.futures import Future
    from flowrl.engine.schema import Schema
    from flowrl.engine.stages import Signal

#: Words of items. A mapping gives each one its way out, or what is wrong where it is missing.
Words = tuple[str, ...] | Mapping[str, str]


class _Offered:
    """A member that the object of a contract may have."""

    def __init__(self, default: Any) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, contract: Contract, owner: type) -> Any:
        return getattr(contract.of, self.name, self.default)


def offered(default: Any = None) -> Any:
    """A member of a contract: the object's, or the default; None where it matters that the object has none."""
    return _Offered(default)


def has_member(kind: type, name: str) -> bool:
    """Has a class a member of this name, its own or inherited?"""
    return any(name in vars(base) for base in kind.__mro__)


def _nothing(*_: object) -> None:
    """What an object does that has no such method."""


class Contract:
    """Base of the contracts: an object `of` which it is."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of


class OperatorContract(Contract):
    """What an operator may have: a callable `item -> item`, or a source with `pull()`.

    An operator that says what it `requires` or `provides`, and has no `schema`, passes items on. Of one that says
    neither nothing is known of what leaves, and what is not known never fails.
    """

    # -- what it does

    ready: Callable[[Any], bool | Signal] | None = offered()
    """May the item be processed now? False holds it, and the branch is BLOCKED; WAITING holds it too, until a future
    that the operator has asked for rings the bell."""
    why: Callable[[], str] = offered(lambda: "it is not ready")
    """In words, what a source or a held item waits for."""
    done: bool | None = offered()
    """True once no further item will be let through, as in `take`; None: it lets through whatever comes."""
    finish: Callable[[], Iterable[Any]] = offered(list)
    """The input has ended: what is still to be emitted."""
    release: Callable[[], None] = offered(_nothing)
    """Nobody will pull it any more, finished or not. Maybe said twice."""
    drain: Callable[[], None] = offered(_nothing)
    """Wait for what a source has asked for, so that its state is complete."""
    close: Callable[[], None] = offered(_nothing)
    """End the threads and generators of a source."""
    hosted: Callable[[Any], None] = offered(_nothing)
    """These workers have taken the part of the plan that it is in, and may be prepared."""

    # -- what it is

    verb: str | None = offered()
    """The one verb that it is for, such as "combine", where another would give something else."""
    pure: bool = offered(False)
    """Applying it twice to an item does no harm, so it may be retried (F2)."""
    endless: bool = offered(False)
    """A source that never ends by itself."""
    takes_remote: bool = offered(False)
    """Its items may be `Remote`."""
    hidden: bool = offered(False)
    """A tap that nobody wants to see in a tree or a picture."""

    # -- what a plan is checked by, see `flowrl.engine.schema`

    requires: Words | None = offered()
    """Words that an item must have; a column's name is a word too, and "a or b" is one of several. A mapping gives each
    word the way out, or "" to have one found."""
    provides: tuple[str, ...] | None = offered()
    """Words that the item has more when it leaves."""
    schema: Callable[..., Schema] | None = offered()
    """The schema of what leaves, from those of the inputs; raises SchemaError. A source is given what its workers
    collect, or what goes into its store, or into each of the `parts` that it is made of."""
    owes: Words = offered(())
    """Words that an operator further on must consume; a mapping says of each what is wrong where nobody does."""
    consumes: tuple[str, ...] | None = offered()
    """Words owed by operators before that it settles."""
    back_to: Any = offered()
    """The store out of which the items came whose words it consumes; None: any."""
    into: Any = offered()
    """The store (buffer, queue) that its items go into; what goes into one of a store's `parts` comes out of it."""
    out_of: Any = offered()
    """The store that its items come out of."""

    @property
    def says_nothing(self) -> bool:
        """Is it a function or class that may do anything to an item?"""
        return all(each is None for each in (self.requires, self.provides, self.schema, self.consumes))


class ResourceContract(Contract):
    """What a plan saves (`Saveable`) or items go through may have: a buffer, a queue, a policy, a worker set.

    `flowrl.data.replay.base.Store` is the base of those that are replayed from.
    """

    start: Callable[[Context], None] | None = offered()
    """A run opens: take generators from its seeds, begin processes."""
    stop: Callable[[], None] = offered(_nothing)
    """The run is closed."""
    resources: Iterable[Any] = offered(())
    """Further ones that it is made of."""
    lost: Mapping[str, int] = offered({})
    """What the last load could not continue, by counter."""
    parts: Sequence[Any] = offered(())
    """Stores that it is made of: what goes into them comes out of it."""
    holds_items: bool = offered(True)
    """Can something come out of it before a plan puts something in?"""
    fills_up: bool = offered(False)
    """Must something come out before more can go in?"""


class WorkersContract(Contract):
    """What the workers of a part of a plan may have beside `members`, a list of `Worker`s.

    A member has its index for ever; None is in the place of one that was removed.
    """

    restart: Callable[[int, BaseException], None] | None = offered()
    """Start a member again after its death; None: a death is an error like any other."""
    num_members: int = offered(1)
    """How many members there are, or will be once they are started."""
    num_workers: int = offered(0)
    """How many other processes they are in; 0: this one."""
    version: int | None = offered()
    """Of the weights that a request asked now would act with."""
    schema: Callable[[], Schema] | None = offered()
    """What they collect."""
    policy: Any = offered()
    """What acts there and learns here."""
    clock: str = offered("env_steps")
    """The counter of a run that results, evaluations and schedules follow."""


class WorkerContract(Contract):
    """What a `Worker` may have."""

    target: Any = offered()
    """The object that it asks, in this process."""


class CalleeContract(Contract):
    """What an object may have to which `call` sends items, a `Worker` or any other; all in the run's own thread."""

    receive: Callable[[Any], Any] = offered(lambda answer: answer)
    """What to do with an answer when its turn has come."""
    recover: Callable[[BaseException], BaseException | None] = offered(lambda error: error)
    """A request failed: mend what broke; None if what was asked in vain should be asked again, else the error."""
    takes_remote: bool = offered(False)
    """Items may be `Remote`."""
    requires: Words | None = offered()
    """See `OperatorContract.requires`; who has it has `schema` too."""
    schema: Callable[[Schema], Schema] = offered()
    """What it makes of items."""


@runtime_checkable
class Saveable(Protocol):
    """What a checkpoint holds once, however many operators share it: see `ResourceContract`."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@runtime_checkable
class SourceOperator(Protocol):
    """A source operator: an item, or a `Signal`."""

    def pull(self) -> Any: ...


@runtime_checkable
class Worker(Protocol):
    """Anything that does one thing after another when asked, in this process or elsewhere.

    Of a worker that runs a part of a plan the methods of `SubplanWorker` are asked.
    """

    def submit(self, method: str, /, *args: Any) -> Future[Any]:
        """Ask for `method(*args)`; the future rings the run's bell when it is done."""
        ...


@runtime_checkable
class StoringWorker(Protocol):
    """A `Worker` with which items may stay."""

    def submit_apart(self, method: str, /, *args: Any) -> Future[Any]:
        """Ask for a pair: what comes back, and what stays there, which is `Remote` here."""
        ...


class _ByMembers(abc.ABC):  # noqa: B024 - what makes it abstract is the hook
    """Of classes to which every class belongs that has the same members."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        return all(has_member(kind, name) for name in cls.__annotations__)


class Array(_ByMembers):
    """A column of numpy or torch, say: the engine knows no arrays."""

    dtype: Any
    shape: tuple[int, ...]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """And whatever arrays can do."""


class Columns(_ByMembers):
    """Values by name: a dict, a batch."""

    keys: Callable[[], Iterable[Any]]
    items: Callable[[], Iterable[tuple[Any, Any]]]

"""The ledger of a run: the accounts of all its threads and processes, and what bounds the pace of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.protocols import ResourceContract
from flowrl.engine.stages import Source, Stage
from flowrl.engine.workers.accounts import Account, accounts, less
from flowrl.engine.workers.calls import Call, Prefetch
from flowrl.engine.workers.gather import Gather, GatherAsync

if TYPE_CHECKING:
    from flowrl.engine.run import Run


@attrs.define
class Ledger:
    """The accounts of a run, the driver's first.

    Attributes:
        counters: The run's counters.
        stages: For each source, and each operator that another thread or process works for, what bounds its pace: its
            `kind`, `in_flight` and number of `workers`, and the `part` of the plan that these run.
        stores: The kind of the store that an operator puts items into or takes them from, by path: what may block it.
        fill: What such a store holds, or what an operator has ready or in flight, and the most it may, by path.
    """

    accounts: list[Account]
    counters: dict[str, int]
    stages: dict[str, dict[str, Any]]
    stores: dict[str, str] = attrs.field(factory=dict)
    fill: dict[str, tuple[int, int]] = attrs.field(factory=dict)

    @property
    def driver(self) -> Account:
        return self.accounts[0]

    def since(self, earlier: Ledger) -> Ledger:
        """The part of it after an earlier one of the same run."""
        before = {account.name: account for account in earlier.accounts}
        accounts = [each.since(before[each.name]) if each.name in before else each for each in self.accounts]
        return attrs.evolve(self, accounts=accounts, counters=less(self.counters, earlier.counters))

    def values(self) -> dict[str, Any]:
        """As values for JSON."""
        return attrs.asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Ledger:
        """From the values for JSON. Raises: TypeError, KeyError, ValueError: they are no ledger."""
        accounts = [Account(**{**each, "where": tuple(each["where"])}) for each in values["accounts"]]
        if not accounts:
            raise ValueError("it has no account")
        fill = {path: (int(held), int(most)) for path, (held, most) in values.get("fill", {}).items()}
        return cls(**{**values, "accounts": accounts, "fill": fill})


def ledger(run: Run) -> Ledger:
    """The ledger of a run up to now; exact between two items."""
    contracts = {meter.path: meter.contract for meter in run.meters()}
    both = {path: each.out_of if each.into is None else each.into for path, each in contracts.items()}
    stores = {path: store for path, store in both.items() if store is not None}
    fill = {stage.meter.path: stage.fill() for stage in run.stages}
    for path, store in stores.items():
        if (capacity := ResourceContract(store).capacity) is not None:
            fill[path] = len(store), capacity
    return Ledger(
        accounts(run),
        dict(run.counters),
        dict(filter(None, map(_pace, run.stages))),
        {path: type(store).__name__ for path, store in stores.items()},
        {path: (held, most) for path, (held, most) in fill.items() if most > 1},
    )


def _pace(stage: Stage) -> tuple[str, dict[str, Any]] | None:
    if isinstance(stage, Gather):
        workers = sum(each is not None for each in stage.workers.members)
        about = {"kind": "gather_sync", "in_flight": 1, "workers": workers}
        if isinstance(stage, GatherAsync):
            about |= {"kind": "gather_async", "in_flight": stage.in_flight}
        about["part"] = stage.part
    elif isinstance(stage, Call):
        about = {"kind": "call", "in_flight": stage.in_flight, "workers": 1}
    elif isinstance(stage, Prefetch) and stage.thread:
        about = {"kind": "prefetch", "in_flight": stage.n, "workers": 1}
    elif isinstance(stage, Source):
        about = {"kind": "source", "in_flight": 1, "workers": 0}
    else:
        return None
    return stage.meter.path, about

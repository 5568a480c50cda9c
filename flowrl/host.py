"""A worker's side of a plan: it runs its part of the plan and answers one item at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.calls import Receipt
from flowrl.scheduler import Part, Run

if TYPE_CHECKING:
    from flowrl.plan import ErrorPolicies, Plan


_ENDED = object()


class PlanHost:
    """Base of objects that run the part of a plan before `gather_sync` or `gather_async`.

    Operators find the host as `context.worker`. Its random streams differ from worker to worker.
    """

    def __init__(self) -> None:
        self.parts: dict[str, Run] = {}

    def open_plan(
        self, key: str, plan: Plan, named: Sequence[str], seed: int, index: int, on_error: ErrorPolicies
    ) -> None:
        """Get ready to pull a plan; `key` names it in further requests, `named` are its operators' paths."""
        part = Part(tuple(named), self, f"worker{index}/")
        self.parts[key] = Run(plan, seed=seed, on_error=on_error, part=part)

    def pull_plan(self, key: str) -> Receipt:
        run = self.parts[key]
        item = next(run, _ENDED)
        counters, records = run.context.ledger.take()
        return Receipt(None if item is _ENDED else item, item is _ENDED, counters, records)

    def pull_apart(self, key: str) -> tuple[Receipt, Any]:
        """As `pull_plan`, the item beside the receipt: it may stay where it was made."""
        receipt = self.pull_plan(key)
        return receipt._replace(item=None), receipt.item

    def save_plan(self, key: str) -> dict[str, Any]:
        return self.parts[key].state_dict()

    def load_plan(self, key: str, state: dict[str, Any]) -> None:
        self.parts[key].load_state_dict(state, partial=True)  # the run has compared it with the whole plan

    def close_plan(self, key: str) -> None:
        """Close the part; closing one that is not open does nothing."""
        run = self.parts.pop(key, None)
        if run is not None:
            run.close()

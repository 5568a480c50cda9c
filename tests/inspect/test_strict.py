"""`--debug`: items that are changed in place behind a fork."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowrl import Plan, from_items
from flowrl.errors import PlanError
from flowrl.inspect.strict import strict
from flowrl.operators.concurrency import Concurrently


def grow(item: list[int]) -> list[int]:
    item.append(9)
    return item


def grown(item: list[int]) -> list[int]:
    return [*item, 9]


def joined(*behind: Callable[[Plan], Plan], weights: tuple[int, ...] = (1, 1)) -> Plan:
    """The readers of a fork, each with operators behind it."""
    readers = from_items([[number] for number in range(4)]).duplicate(len(behind), max_lag=2)
    branches = [add(reader) for add, reader in zip(behind, readers)]
    return Concurrently(branches, round_robin_weights=weights)


CHANGED = {
    "before another reader gets it": joined(lambda p: p.for_each(grow), lambda p: p),
    "while another reader holds it": joined(lambda p: p.batch(3), lambda p: p.for_each(grow)),
    "by a reader that is ahead": joined(lambda p: p, lambda p: p.for_each(grow), weights=(1, 2)),
}
WHOLE = {
    "copies are changed": joined(lambda p: p.for_each(grown), lambda p: p.for_each(grown)),
    "one reader ends before": joined(lambda p: p.take(1), lambda p: p),
    "the same object comes twice": Concurrently(list(from_items([[1]] * 5).duplicate(2))),
    "it cannot be copied": Concurrently(list(from_items([(n for n in [1])] * 3).duplicate(2))),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_change_in_place_behind_a_fork_is_found(name: str) -> None:
    """Without `--debug` the other reader sees it, and nobody says so."""
    with pytest.raises(PlanError, match=r"an item of duplicate was changed in place behind .*\d.reader, and all its r"):
        list(strict(CHANGED[name]))


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_not_changed_passes(name: str) -> None:
    """D4: and the items are those of the plan without checks."""
    assert list(strict(WHOLE[name])) == list(WHOLE[name])

"""Contracts: every member is described once, and an object that lacks one has the default."""

from __future__ import annotations

import ast
import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.engine import protocols
from flowrl.engine.operator import operator, state
from flowrl.engine.protocols import Array, Columns, Contract, OperatorContract, ResourceContract, WorkersContract

CONTRACTS = [kind for kind in vars(protocols).values() if isinstance(kind, type) and issubclass(kind, Contract)]


def members(kind: type) -> list[str]:
    return [name for name in kind.__annotations__ if not name.startswith("_")]


def test_every_member_is_described_where_it_is_declared() -> None:
    tree = ast.parse(Path(protocols.__file__).read_text())
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Contract")):
        for declared, described in zip(kind.body, kind.body[1:]):
            if isinstance(declared, ast.AnnAssign):
                text = described.value if isinstance(described, ast.Expr) else None
                assert isinstance(text, ast.Constant), f"{kind.name}: {ast.unparse(declared)} is not described"


@pytest.mark.parametrize("kind", CONTRACTS)
def test_of_an_object_without_anything_all_is_default(kind: type[Contract]) -> None:
    contract = kind(object())
    for name in members(kind):
        assert not callable(getattr(contract, name)) or getattr(contract, name) is getattr(kind(3), name)


@pytest.mark.parametrize("kind", CONTRACTS)
def test_a_member_is_asked_whenever_it_is_needed(kind: type[Contract]) -> None:
    """A property may change from item to item, as `done` does."""
    for name in members(kind):
        thing = type("Thing", (), {})()
        contract = kind(thing)
        for value in ("one", "another"):
            setattr(thing, name, value)
            assert getattr(contract, name) == value


def test_plain_functions_and_operators_have_the_same_contract() -> None:
    @operator
    class Tail:
        kept: list[Any] = state(factory=list)

        def __call__(self, item: Any) -> Any:
            self.kept.append(item)
            return item

        def finish(self) -> list[Any]:
            return self.kept

    tail = Tail()
    tail(1)
    assert list(OperatorContract(tail).finish()) == [1]
    assert list(OperatorContract(len).finish()) == []
    assert OperatorContract(tail).ready is OperatorContract(len).ready is None
    assert OperatorContract(tail).says_nothing
    assert not OperatorContract(lambda item: item).pure


def test_defaults_are_those_of_the_least_an_object_can_be() -> None:
    assert ResourceContract(3).holds_items
    assert not ResourceContract(3).fills_up
    assert WorkersContract(3).num_members == 1
    assert WorkersContract(3).restart is None


VALUES: list[tuple[Callable[[], Any], bool, bool]] = [
    (lambda: np.zeros(3), True, False),
    (lambda: np.float32(3), True, False),
    (lambda: torch.zeros(3), True, False),
    (lambda: {"a": 1}, False, True),
    (lambda: collections.OrderedDict(a=1), False, True),
    (lambda: Batch(a=[1.0]), False, True),
    (lambda: Batch(dtype=[1.0], items=[1.0]), False, True),
    (lambda: [1], False, False),
    (lambda: "text", False, False),
]


@pytest.mark.parametrize(("make", "array", "columns"), VALUES)
def test_values_are_known_by_their_class(make: Callable[[], Any], array: bool, columns: bool) -> None:
    """A batch may have a column of any name."""
    assert isinstance(make(), Array) == array
    assert isinstance(make(), Columns) == columns

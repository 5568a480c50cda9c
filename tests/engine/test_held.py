"""What an operator holds, wherever it holds it: saved, or named (D14)."""

from __future__ import annotations

import io
import logging
import random
import threading
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest
import torch

from flowrl import Plan, from_items, operator, state
from flowrl.errors import PlanError
from flowrl.operators import Concurrently
from flowrl.testing import check_plan

N = [1, 2, 3, 4]


class Sum:
    def __init__(self) -> None:
        self.total = 0

    def add(self, x: int, k: int = 1) -> int:
        self.total += k * x
        return self.total

    def state_dict(self) -> Any:
        return vars(self)  # not a copy: a run makes one

    def load_state_dict(self, state: Any) -> None:
        self.total = state["total"]


@operator
class Inner:
    total: int = state(default=0)

    def __call__(self, x: int) -> int:
        self.total += x
        return self.total


@operator
class Using:
    held: Any
    use: Callable[[Any, int], Any]

    def __call__(self, x: int) -> Any:
        return self.use(self.held, x)


@attrs.define
class Behind:
    sums: Any

    def add(self, x: int) -> Any:
        return self.sums.add(x)


def by_default(sums: Sum) -> Callable[[int], int]:
    def add(x: int, *, to: Sum = sums) -> int:
        return to.add(x)

    return add


def seeded(function: Callable[[int], float]) -> Callable[[int], float]:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    return function


ALIVE: list[Any] = []


def alive(sums: Sum) -> Sum:
    """What somebody else holds."""
    ALIVE.append(sums)
    return sums


def in_thread(sums: Sum) -> Any:
    held = threading.local()
    held.sums = sums
    return held


HOLDING: dict[str, Callable[[], Any]] = {
    "list": lambda: Using([Sum()], lambda held, x: held[0].add(x)),
    "tuple": lambda: Using((Sum(),), lambda held, x: held[0].add(x)),
    "set": lambda: Using({Sum()}, lambda held, x: next(iter(held)).add(x)),
    "dict of lists": lambda: Using({"a": [Sum()]}, lambda held, x: held["a"][0].add(x)),
    "partial": lambda: partial(partial(Sum.add, Sum()), k=2),
    "keyword": lambda: partial(lambda x, to: to.add(x), to=Sum()),
    "closure": lambda: (lambda sums: lambda x: next(sums.add(y) for y in [x]))(Sum()),
    "default": lambda: by_default(Sum()),
    "plain object": lambda: Behind(SimpleNamespace(add=Sum().add)).add,
    "weak": lambda: Using([weakref.ref(alive(Sum()))], lambda held, x: held[0]().add(x)),
    "proxy": lambda: Using([weakref.proxy(alive(Sum()))], lambda held, x: held[0].add(x)),
    "weak set": lambda: Using(weakref.WeakSet([alive(Sum())]), lambda held, x: next(iter(held)).add(x)),
    "chain": lambda: Using(ChainMap({"a": Sum()}), lambda held, x: held["a"].add(x)),
    "thread": lambda: Using(in_thread(Sum()), lambda held, x: held.sums.add(x)),
    "array": lambda: Using(np.array([None, Sum()]), lambda held, x: held[1].add(x)),
    "operator": lambda: (lambda inner: lambda x: inner(x))(Inner()),
    "numpy": lambda: (lambda g: lambda x: x + g.normal())(np.random.default_rng(0)),
    "random": lambda: Using([random.Random(0)], lambda held, x: x + held[0].random()),
    "bound": lambda: (lambda draw: lambda x: x + draw())(random.Random(0).random),
    "bits": lambda: (lambda bits: lambda x: x + bits.random_raw())(np.random.PCG64(0)),
    "global": lambda: seeded(lambda x: x + random.random()),
    "numpy's": lambda: seeded(lambda x: x + np.random.rand()),  # noqa: NPY002
}


@pytest.mark.parametrize("holding", HOLDING)
def test_what_has_a_state_is_saved_wherever_it_is_held(holding: str) -> None:
    """D14."""
    check_plan(lambda: from_items(N).for_each(HOLDING[holding]()))


def test_what_several_operators_hold_is_saved_once() -> None:
    """D14: and it stays shared."""

    def plan() -> Plan:
        sums = Sum()
        one, other = from_items(N).duplicate(2)
        return Concurrently(
            {"one": one.for_each(lambda x: sums.add(x)), "other": other.for_each(partial(sums.add, k=9))}
        )

    with plan().run() as run:
        assert list(run.resources) == ["Sum"]
    check_plan(plan)


def test_a_generator_behind_a_source_goes_on_where_it_was() -> None:
    """D14: a resume calls the source's function again, which draws again what it has drawn."""

    def plan() -> Plan:
        generator = np.random.default_rng(0)
        return from_items(lambda: (float(generator.normal()) for _ in N))

    check_plan(plan)


class Counter:
    def __init__(self) -> None:
        self.n, self.seen = 0, list[int]()

    def up(self, x: int) -> int:
        self.n += 1
        return x

    def note(self, x: int) -> int:
        self.seen.append(x)
        return x


@operator
class Forgetful:
    total: int = 0

    def __call__(self, x: int) -> int:
        self.total = self.total + x
        return self.total


def counting() -> Callable[[int], int]:
    n = 0

    def count(x: int) -> int:
        nonlocal n
        n += 1
        return n

    return count


def noting() -> Callable[[int], Any]:
    seen: list[int] = []
    return lambda x: seen.append(x)


def reading(items: Iterator[int]) -> Callable[[int], int]:
    return lambda x: next(items)


CERTAIN: list[tuple[Callable[[], Any], str]] = [
    (counting, "the variable n changes"),
    (noting, "the variable seen changes"),
    (lambda: reading(iter(N)), "variable items, a list_iterator, changes"),
    (lambda: (lambda queue: lambda x: queue.put(x))(SimpleQueue()), "variable queue, a SimpleQueue, changes"),
    (lambda: Counter().up, "n of its Counter changes"),
    (lambda: Counter().note, "seen of its Counter changes"),
    (Forgetful, "its plain field total changes"),
]


@pytest.mark.parametrize(("make", "named"), CERTAIN, ids=[named for _, named in CERTAIN])
def test_what_certainly_changes_and_cannot_be_saved_is_refused(make: Callable[[], Any], named: str) -> None:
    """D14."""
    with pytest.raises(PlanError, match=f"{named} and is not in checkpoints: keep it in a state"):
        from_items(N).for_each(make()).check()


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def up(self, x: int) -> int:
        self.n += 1
        return x


def by_attribute() -> Callable[[int], int]:
    def count(x: int) -> int:
        count.n += 1  # type: ignore[attr-defined]
        return x

    count.n = 0  # type: ignore[attr-defined]
    return count


def noted_by(of: Slotted) -> Callable[[int], int]:
    return lambda x: of.up(x)


class Shared:
    n = 0

    def __call__(self, x: int) -> int:
        type(self).n += 1
        return x


@operator
class SharedOperator:
    totals: ClassVar[dict[str, int]] = {"n": 0}

    def __call__(self, x: int) -> int:
        type(self).totals["n"] += 1
        return x


def tensor() -> Any:
    total = torch.zeros(1)
    return lambda x: float(total.add_(x))


def viewed() -> Any:
    view = memoryview(bytearray(1))

    def count(x: int) -> int:
        view[0] += 1
        return x

    return count


def memoized() -> Any:
    counts = {"seen": 0}

    @cache
    def count(x: int) -> int:
        counts["seen"] += 1
        return x

    return count


def writing(text: Any, what: Any) -> Callable[[int], int]:
    return lambda x: text.write(what)


CHANGED: list[tuple[Callable[[], Any], str]] = [
    (lambda: noted_by(Slotted()), "variable of.n"),
    (lambda: partial(Slotted.up, Slotted()), ".args[0].n"),
    (by_attribute, "the variable n"),
    (Shared, "class Shared.n"),
    (SharedOperator, "class SharedOperator.totals, a dict,"),
    (tensor, "variable total, a Tensor,"),
    (lambda: writing(io.StringIO(), "x"), "variable text, a StringIO,"),
    (lambda: writing(io.BytesIO(), b"x"), "variable text, a BytesIO,"),
    (viewed, "variable view, a memoryview,"),
    (memoized, "variable counts, a dict,"),
]


@pytest.mark.parametrize(("make", "named"), CHANGED, ids=[named for _, named in CHANGED])
def test_whatever_an_object_keeps_its_state_in_is_looked_at(
    make: Callable[[], Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D14: slots, and attributes of functions, too."""
    with caplog.at_level(logging.WARNING, "flowrl"), from_items(N).for_each(make()).run() as run:
        next(run)
        run.state_dict()
    assert f"{named} has changed and is not in checkpoints" in caplog.text


def clipping() -> Callable[[int], float]:
    layer = torch.nn.Linear(1, 1)
    weights = list(layer.parameters())

    def clip(x: int) -> float:
        layer(torch.ones(1, 1)).sum().backward()
        with torch.no_grad():
            weights[0].sub_(x)
        return float(torch.nn.utils.clip_grad_norm_(weights, 1.0))

    return clip


class Lazy:
    def __init__(self) -> None:
        self.by = 2

    @cached_property
    def table(self) -> list[int]:
        return [self.by]

    def __call__(self, x: int) -> int:
        return x * self.table[0]


@pytest.mark.parametrize("make", [clipping, Lazy])
def test_what_is_saved_elsewhere_or_made_again_is_not_named(
    make: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """D14: the weights of a module that is saved, and what is cached."""
    with caplog.at_level(logging.WARNING, "flowrl"), from_items(N).for_each(make()).run() as run:
        next(run)
        run.state_dict()
    assert not caplog.text


def test_what_has_changed_and_cannot_be_saved_is_named_when_a_state_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    """D14: once, and what is only read is not named."""
    counts, constant = {"seen": 0}, {"by": [2]}

    def count(x: int) -> int:
        counts["seen"] += 1
        return x * constant["by"][0]

    plan = from_items(N).for_each(count)
    plan.check()
    with caplog.at_level(logging.WARNING, "flowrl"), plan.run() as run:
        run.state_dict()
        assert not caplog.messages
        next(run)
        run.state_dict()
        run.state_dict()
    (told,) = caplog.messages
    assert "variable counts, a dict, has changed and is not in checkpoints" in told

"""What cannot be sent to another process is named: the smallest part that cannot, and where it is."""

from __future__ import annotations

import functools
import pickle
import threading

import attrs
import pytest

from flowrl.engine.workers.pickling import pack
from flowrl.errors import PlanError

LOCK = threading.Lock()


class Owner:
    def __init__(self, held):
        self.held = held

    def method(self):
        """Bound to what cannot be sent."""


@attrs.define
class Slotted:
    inner: Owner


def _closure(held):
    return lambda: held


def _twice(held):
    owner = Owner(held)
    owner.itself = owner
    return owner


FOUND = [
    (LOCK, "a lock"),
    ({"a": [1, LOCK]}, "['a'][1], a lock"),
    (Owner({"b": (LOCK,)}), "held['b'][0], a lock"),
    (Slotted(Owner(LOCK)), "inner.held, a lock"),
    (functools.partial(Owner, LOCK), "args[0], a lock"),
    (functools.partial(Owner, held=LOCK), "keywords['held'], a lock"),
    (_closure(Owner(LOCK)), "variable held.held, a lock"),
    (Owner(LOCK).method, "__self__.held, a lock"),
    (_twice(LOCK), "held, a lock"),
    ((n for n in [1]), "a generator"),
]


@pytest.mark.parametrize(("value", "where"), FOUND, ids=[where for _, where in FOUND])
def test_the_part_is_named(value, where):
    with pytest.raises(PlanError) as refused:
        pack(value, "the environment")
    assert str(refused.value).startswith(f"the environment cannot be sent to another process: {where}: cannot pickle")


def test_what_can_be_sent_is_packed():
    """Functions without a name too."""
    assert pickle.loads(pack(lambda: 3, "a function"))() == 3

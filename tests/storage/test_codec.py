"""Trees to JSON, arrays and pickles, and exactly back."""

from __future__ import annotations

import io
import json
import math
import operator
import pickle
import threading
from collections import Counter, OrderedDict, deque
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flowrl.data import Batch
from flowrl.engine.workers.calls import Answer
from flowrl.envs import Episode
from flowrl.errors import CheckpointError
from flowrl.policies.learning import Gradients
from flowrl.storage.codec import Encoded, Pickled, decode, encode
from flowrl.testing import same


def through_files(encoded: Encoded) -> Any:
    """The tree again, after the skeleton and the arrays were text and bytes."""
    stored = []
    for array in encoded.arrays:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        stored.append(file.getvalue())
    skeleton = json.loads(json.dumps(encoded.skeleton, allow_nan=False))
    return decode(
        skeleton, lambda at: np.load(io.BytesIO(stored[at]), allow_pickle=False), lambda at: encoded.pickles[at]
    )


@attrs.define(eq=False)
class Own:
    """A user's class, which can only be pickled."""

    value: Any


NUMBERS = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**53 - 1, 2**53, -(2**53), 2**127 + 1, -(10**5000)],
    "floats": [0.0, -0.0, 0.1, 5e-324, 1e308, math.nan, math.inf, -math.inf],
    "complex": [1j, complex(math.nan, -0.0)],
    "text": ["", "ü\n\x00", "\ud800", "~", "\U0001f600"],
    "bytes": [b"", b"\x00\xff", bytearray(b"ab")],
    "numpy scalars": [np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("nan"), np.uint64(2**64 - 1)],
    "more numpy scalars": [np.datetime64("2026-01-02"), np.complex64(1j), np.longdouble(0.1), np.float16(-0.0)],
}
CONTAINERS = {
    "lists": [[], [[]], [1, [2]]],
    "tuples": [(), (1,), ((2, "a"), [3])],
    "deques": [deque(), deque([1, 2], maxlen=2), deque([[3]])],
    "sets": [set(), {1, "a"}, frozenset({(1, 2)})],
    "int keys": {0: "a", -1: "b", 2**70: "c"},
    "mixed keys": {"1": 1, 1: 2, (1, "x"): 3, None: 4, 0.5: 6},
    "a key like a tag": {"~": "tuple", "items": [1]},
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "counted": Counter("abca"),
}
ARRAYS = {
    "dtypes": [np.array([0, 1], dtype) for dtype in ("?", "i1", "u8", ">i4", "f2", "f8", "c8", "S3", "U2", "m8[s]")],
    "shapes": [np.zeros(shape, np.float32) for shape in ((), (0,), (2, 0, 3), (1, 1))],
    "Fortran order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "a view": np.arange(12).reshape(3, 4)[::2, 1:],
    "structured": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    "structured scalar": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])[0],
    "fields out of order": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])[["b", "a"]],
    "objects": np.array([1, "a", None], object),
    "tensors": [torch.arange(3), torch.zeros(2, 0), torch.tensor(1.5), torch.tensor([True]), torch.tensor(1j)],
    "bfloat16": [torch.tensor([0.1, -2], dtype=torch.bfloat16), torch.tensor(0.5, dtype=torch.bfloat16)],
    "float8": torch.tensor([0.1, -2]).to(torch.float8_e4m3fn).view(torch.uint8),
    "views": torch.arange(12).reshape(3, 4).t()[1:],
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "batch": Batch(obs=np.zeros((2, 3), np.uint8), inner={"x": torch.ones(2)}, items=[1, 2]),
    "row of a batch": Batch(a=np.arange(3.0))[0],
}
RECORDS = {
    "named tuple": Answer([1], True, {"env_steps": 3}, {"r": [1.0]}),
    "frozen": Episode(1, 2, 3.0, 4, None),
    "gradients": Gradients({"w": torch.ones(2)}, 3, {"loss": 0.5}),
    "a user's": Own([1, Own(np.ones(2))]),
    "other types": [range(3), torch.float32, torch.Size([1]), np.dtype("f4"), torch.nn.Parameter(torch.ones(2))],
    "a pickle": Pickled(b"\x80\x04N."),
}  # fmt: skip
TREES = {**NUMBERS, **CONTAINERS, **ARRAYS, **RECORDS}


@pytest.mark.parametrize("name", TREES)
def test_what_went_in_comes_out(name: str) -> None:
    """D3: type by type."""
    back = through_files(encode(TREES[name]))
    assert same(back, TREES[name]), f"{back!r} is not {TREES[name]!r}"


def test_deques_stay_bounded_and_order_is_kept() -> None:
    back = through_files(encode([deque([1], maxlen=3), {"b": 1, "a": 2}, {2: 1, 1: 2}]))
    assert back[0].maxlen == 3
    assert [list(each) for each in back[1:]] == [["b", "a"], [2, 1]]


def test_numpy_text_is_kept() -> None:
    for value in (np.str_("ab"), np.bytes_(b"a"), np.str_("")):
        back = through_files(encode(value))
        assert (type(back), back) == (type(value), value)


def test_signs_and_gradients_are_kept() -> None:
    """What `same` does not look at."""
    weight = torch.ones(2, requires_grad=True)
    zero, made = through_files(encode([-0.0, weight]))
    assert math.copysign(1, zero) == -1
    assert made.requires_grad
    assert made.is_leaf


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    hnp.arrays(
        st.one_of(hnp.integer_dtypes(endianness="<"), hnp.floating_dtypes(endianness="<"), hnp.boolean_dtypes()),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    ),
    st.builds(lambda values: torch.tensor(values, dtype=torch.bfloat16), st.lists(st.floats(width=16), max_size=3)),
)  # fmt: skip
KEYS = st.one_of(st.text(max_size=3), st.integers(), st.tuples(st.integers(), st.text(max_size=2)), st.just("~"))
TREE = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(deque),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=12,
)


@given(TREE)
def test_any_tree_comes_out_as_it_went_in(tree: Any) -> None:
    """D3, D5: also the bytes are the same when it is written twice."""
    encoded = encode(tree)
    assert same(through_files(encoded), tree)
    assert encoded.pickles == []
    again = encode(tree)
    assert json.dumps(again.skeleton) == json.dumps(encoded.skeleton)
    assert same(again.arrays, encoded.arrays)


def test_a_tensor_of_a_device_that_is_not_here_comes_to_the_cpu() -> None:
    """As when a policy of a machine with a GPU is looked at on a laptop."""
    encoded = encode(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    encoded.skeleton["device"] = "xpu:7"
    assert same(through_files(encoded), torch.tensor([1.0, 2.0], dtype=torch.bfloat16))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_tensor_comes_back_to_its_device() -> None:
    back = through_files(encode(torch.ones(2, device="cuda", dtype=torch.bfloat16)))
    assert back.device.type == "cuda"
    assert same(back, torch.ones(2, device="cuda", dtype=torch.bfloat16))


def test_plain_data_holds_no_pickle() -> None:
    """Only what nothing else can hold is pickled."""
    for name, tree in TREES.items():
        pickled = bool(encode(tree).pickles)
        assert pickled == (name in ("objects", "fields out of order", "structured scalar", *list(RECORDS)[3:])), name


def test_what_cannot_be_saved_is_named_by_its_place() -> None:
    with pytest.raises(CheckpointError, match=r"^state/a/1/x: a lock cannot be saved: .*pickle"):
        encode({"a": [0, {"x": threading.Lock()}]})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        encode(endless)


def test_what_can_be_saved_can_be_read() -> None:
    """However deep it is nested: what could not be read is refused when it is written."""

    def nested(levels: int) -> Any:
        tree: Any = 1
        for _ in range(levels):
            tree = ({1: tree},)
        return tree

    assert through_files(encode(nested(49))) == nested(49)
    with pytest.raises(CheckpointError, match=r"^state/0/1/0/.*: nested too deeply, over 100 levels"):
        encode(nested(50))


class Boom:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return operator.setitem, (RAN, "ran", True)


RAN: dict[str, bool] = {}

MALFORMED = {
    "unknown kind": {"~": "eval", "text": "1"},
    "kind that is no name": {"~": ["tuple"]},
    "no items": {"~": "tuple"},
    "an array that there is not": {"~": "array", "at": 7},
    "a module": {"~": "record", "type": "os:system", "fields": {}},
    "a module that looks like ours": {"~": "record", "type": "flowrl_evil.x:Y", "fields": {}},
    "a private module": {"~": "record", "type": "flowrl.__main__:main", "fields": {}},
    "a function of ours": {"~": "record", "type": "flowrl.cli.main:main", "fields": {}},
    "an attribute of an attribute": {"~": "record", "type": "flowrl.storage.codec:pickle.loads", "fields": {}},
    "no such class": {"~": "record", "type": "flowrl.storage.codec:Nothing", "fields": {}},
    "other fields": {"~": "record", "type": "flowrl.storage.codec:Encoded", "fields": {"x": 1}},
    "dtype": {"~": "tensor", "at": 0, "dtype": "load", "shape": [], "device": "cpu", "grad": False},
    "scalar": {"~": "scalar", "dtype": "O", "hex": "00" * 8},
    "unhashable key": {"~": "dict", "items": [[[], 1]]},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_skeleton_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError):
        decode({"a": [MALFORMED[name]]}, [np.zeros(())].__getitem__, [pickle.dumps(Boom())].__getitem__)
    assert RAN == {}


def test_an_object_that_cannot_be_unpickled_is_one_clear_error() -> None:
    with pytest.raises(CheckpointError, match="cannot be unpickled here: ModuleNotFoundError"):
        decode({"~": "object", "at": 0}, [].__getitem__, [b"cnowhere\nX\n."].__getitem__)

"""State as JSON and arrays: trees of plain data, with pickles kept separately.

`encode` turns a tree (nested dicts, lists, tuples ... of numbers, strings, arrays, tensors and batches) into a JSON
skeleton, arrays and pickles. A node that JSON cannot express is a dict with the key "~" that names its kind. `decode`
is the exact inverse: types, dtypes, shapes, keys that are not strings. Decoding runs no code from a file; it reads
pickles only if the caller passes them.
"""

from __future__ import annotations

import math
import pickle
import re
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import attrs
import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from flowrl.errors import CheckpointError
from flowrl.saved import fits, shown

Array = np.ndarray[Any, np.dtype[Any]]

#: The largest integer that JSON readers with floats alone keep exactly.
_EXACT = 2**53
#: Largest depth of a tree to write, far below Python's recursion limit for every reader.
_DEEPEST = 100
#: The dtypes that numpy and torch share; a tensor of another one is stored as its bytes.
_SHARED = {
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
}
_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter"}
#: Where classes are now that files name by a kind, or by where they were.
HOMES = {
    "batch": "flowrl.data.batch:Batch",
    "flowrl.engine.calls:Answer": "flowrl.engine.workers.calls:Answer",
    "flowrl.engine.gather:Arrival": "flowrl.engine.workers.gather:Arrival",
    "flowrl.rollout.match_making:Opponent": "flowrl.rollout.match_making:Rival",
}
#: Classes of columns by name, each with the kind that it is written as: whoever has such a class says so.
_COLUMNS: dict[type, str] = {}


def register_columns(kind: str, cls: type) -> type:
    """Have a class of named columns, which is made of a mapping and has `items()`, written as this kind."""
    _COLUMNS[cls] = kind
    _DECODERS[kind] = lambda d, node: cls({name: d.node(column) for name, column in node["columns"].items()})
    return cls


def _class_of(name: str) -> Any:
    """The class that files name so."""
    module, _, name = HOMES.get(name, name).partition(":")
    return getattr(import_module(module), name)


class Pickled(bytes):
    """A pickle inside a state, such as an environment in the middle of an episode.

    On disk it is separate from plain data, and it is the only kind of bytes that is ever unpickled: a file that was not
    loaded as trusted contains none.
    """


@attrs.define
class Encoded:
    """A tree as three things: a JSON skeleton, the arrays that it refers to, and the pickles."""

    skeleton: Any = None
    arrays: list[Array] = attrs.field(factory=list)
    pickles: list[bytes] = attrs.field(factory=list)


def encode(tree: Any, where: str = "state") -> Encoded:
    """Encode a tree, without copying arrays: write the result before they change.

    Raises:
        CheckpointError: an object can neither be encoded nor pickled; names its place in the tree.
    """
    encoded = Encoded()
    encoded.skeleton = _Encoder(encoded).node(tree, where)
    return encoded


def decode(skeleton: Any, arrays: Callable[[int], Array], pickles: Callable[[int], bytes]) -> Any:
    """The tree of a skeleton; `arrays` and `pickles` return those with the indices that it refers to.

    Raises:
        CheckpointError: the skeleton is malformed, or names a kind that this version does not know.
    """
    try:
        return _Decoder(arrays, pickles).node(skeleton)
    except CheckpointError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"malformed: {type(error).__name__}: {error}") from error


@attrs.define
class _Encoder:
    into: Encoded
    depth: int = 0

    def node(self, value: Any, where: str) -> Any:
        if self.depth == _DEEPEST:
            raise CheckpointError(f"{where[:60]}...: nested too deeply, over {_DEEPEST} levels, or in itself")
        self.depth += 1
        made = self.made(value, where)
        self.depth -= 1
        return made

    def made(self, value: Any, where: str) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if abs(value) < _EXACT else _tag("int", hex=hex(value))
        if kind is float:
            return value if math.isfinite(value) else _tag("float", text=repr(value))
        if kind is list:
            return self.nodes(value, where)
        if kind is dict and "~" not in value and all(type(key) is str for key in value):
            return {key: self.node(inner, f"{where}/{key}") for key, inner in value.items()}
        if kind in _MAPPINGS:
            items = [[self.node(key, where), self.node(inner, f"{where}/{key}")] for key, inner in value.items()]
            return _tag(_MAPPINGS[kind], items=items)
        if kind in _SEQUENCES:
            return _tag(_SEQUENCES[kind], items=self.nodes(value, where))
        if kind is deque:
            return _tag("deque", items=self.nodes(value, where), maxlen=value.maxlen)
        return self.rare(kind, value, where)

    def nodes(self, values: Any, where: str) -> list[Any]:
        return [self.node(inner, f"{where}/{i}") for i, inner in enumerate(values)]

    def rare(self, kind: type, value: Any, where: str) -> Any:
        """What is no plain Python data: arrays, tensors, batches, records; else a pickle."""
        if kind is np.ndarray and _storable(value.dtype):
            return _tag("array", at=self.array(value))
        if isinstance(value, np.generic) and _is_plain_scalar(value):
            return _tag("scalar", dtype=value.dtype.str, hex=value.tobytes().hex())
        if kind in _COLUMNS:
            columns = {name: self.node(column, f"{where}/{name}") for name, column in value.items()}
            return _tag(_COLUMNS[kind], columns=columns)
        if kind is complex:
            return _tag("complex", parts=[self.node(part, where) for part in (value.real, value.imag)])
        if kind is bytes or kind is bytearray:
            return _tag(kind.__name__, at=self.array(np.frombuffer(value, np.uint8)))
        if kind is Pickled:
            self.into.pickles.append(bytes(value))
            return _tag("pickled", at=len(self.into.pickles) - 1)
        torch = sys.modules.get("torch")  # loaded already if anyone holds a tensor
        if torch is not None and kind is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
            return self.tensor(value)
        if _is_record(kind, value):
            values = {name: self.node(inner, f"{where}/{name}") for name, inner in _fields_of(value).items()}
            return _tag("record", type=f"{kind.__module__}:{kind.__qualname__}", fields=values)
        self.into.pickles.append(_pickle(value, where))
        return _tag("object", at=len(self.into.pickles) - 1)

    def tensor(self, value: Any) -> Any:
        import torch

        dtype = str(value.dtype).removeprefix("torch.")
        plain = value.detach().resolve_conj().resolve_neg().cpu()
        stored = plain if dtype in _SHARED else plain.contiguous().reshape(-1).view(torch.uint8)
        return _tag(
            "tensor",
            at=self.array(stored.numpy()),
            dtype=dtype,
            shape=list(value.shape),
            device=str(value.device),
            grad=value.requires_grad,
        )

    def array(self, value: Array) -> int:
        self.into.arrays.append(value)
        return len(self.into.arrays) - 1


@attrs.define
class _Decoder:
    arrays: Callable[[int], Array]
    pickles: Callable[[int], bytes]
    depth: int = 0

    def node(self, node: Any) -> Any:
        if not isinstance(node, (list, dict)):
            return node
        if self.depth == _DEEPEST:
            raise CheckpointError(f"malformed: nested too deeply, over {_DEEPEST} levels")
        self.depth += 1
        made = self.nodes(node) if isinstance(node, list) else self.made(node)
        self.depth -= 1
        return made

    def nodes(self, nodes: Any) -> list[Any]:
        return [self.node(inner) for inner in nodes]

    def made(self, node: Any) -> Any:
        if "~" not in node:
            return {key: self.node(inner) for key, inner in node.items()}
        if node["~"] not in _DECODERS and node["~"] in HOMES:
            _class_of(node["~"])  # its module registers it
        known = _DECODERS.get(node["~"])
        if known is None:
            raise CheckpointError(f"malformed: it holds a node of the unknown kind {node['~']!r}")
        return known(self, node)

    def mapping(self, node: Any) -> Any:
        made = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[node["~"]]()
        for key, inner in node["items"]:
            made[self.node(key)] = self.node(inner)
        return made

    def tensor(self, node: Any) -> Any:
        import torch

        array, dtype = self.arrays(node["at"]), vars(torch).get(node["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"torch has no dtype {node['dtype']!r}")
        tensor = torch.from_numpy(array)
        if node["dtype"] not in _SHARED:
            tensor = tensor.view(dtype) if tensor.numel() else torch.empty(0, dtype=dtype)
        tensor = tensor.reshape(node["shape"])
        if torch.device(node["device"]).type == "meta":
            raise ValueError("a tensor without data")
        if node["device"] != "cpu":
            # Where that device is not here, the tensor's owner moves it where it belongs.
            with suppress(RuntimeError, AssertionError):
                tensor = tensor.to(node["device"])
        return tensor.requires_grad_(node["grad"])

    def record(self, node: Any) -> Any:
        """A flowrl class from its fields; none of its code runs."""
        module, _, name = node["type"].partition(":")
        if not re.fullmatch(r"flowrl(\.[a-z]\w*)+", module):
            raise CheckpointError(f"malformed: a record of type {node['type']!r}")
        kind = _class_of(node["type"])
        fields = {name: self.node(inner) for name, inner in node["fields"].items()}
        if _is_named_tuple(kind):
            fields = {**kind._field_defaults, **fields}
        if not (_is_named_tuple(kind) or _is_own_attrs(kind)) or set(fields) != set(_field_names(kind)):
            raise CheckpointError(f"it holds a {node['type']} with the fields {', '.join(fields)}, unknown here")
        if _is_named_tuple(kind):
            made = kind._make(fields[name] for name in kind._fields)
        else:
            made = object.__new__(kind)
            for name, value in fields.items():
                object.__setattr__(made, name, value)
        if not fits(made, kind):
            raise CheckpointError(f"it holds a {node['type']} with fields of other types: {shown(fields)}")
        return made

    def object(self, node: Any) -> Any:
        try:
            return pickle.loads(self.pickles(node["at"]))
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"an object in it cannot be unpickled here: {error!r}") from error


_DECODERS: dict[str, Callable[[_Decoder, Any], Any]] = {
    "int": lambda d, node: int(node["hex"], 16),
    "float": lambda d, node: float(node["text"]),
    "complex": lambda d, node: complex(*d.node(node["parts"])),
    "tuple": lambda d, node: tuple(d.nodes(node["items"])),
    "set": lambda d, node: set(d.nodes(node["items"])),
    "frozenset": lambda d, node: frozenset(d.nodes(node["items"])),
    "deque": lambda d, node: deque(d.nodes(node["items"]), node["maxlen"]),
    **dict.fromkeys(_MAPPINGS.values(), _Decoder.mapping),
    "array": lambda d, node: d.arrays(node["at"]),
    "scalar": lambda d, node: np.frombuffer(bytes.fromhex(node["hex"]), np.dtype(node["dtype"]))[0],
    "bytes": lambda d, node: d.arrays(node["at"]).tobytes(),
    "bytearray": lambda d, node: bytearray(d.arrays(node["at"]).tobytes()),
    "tensor": _Decoder.tensor,
    "record": _Decoder.record,
    "pickled": lambda d, node: Pickled(d.pickles(node["at"])),
    "object": _Decoder.object,
}


def _tag(kind: str, **values: Any) -> dict[str, Any]:
    return {"~": kind, **values}


def _storable(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype survive a round trip without pickle."""
    if dtype.hasobject:
        return False
    try:
        descr: Any = np.lib.format.dtype_to_descr(dtype)
    except ValueError:  # fields that overlap or are out of order
        return False
    return bool(np.lib.format.descr_to_dtype(descr) == dtype)


def _is_plain_scalar(value: np.generic) -> bool:
    """Whether dtype name and bytes determine the value."""
    dtype = value.dtype
    named = type(value) is dtype.type and np.dtype(dtype.str) == dtype
    return named and dtype.itemsize > 0 and not dtype.hasobject


def _is_record(kind: type, value: Any) -> bool:
    """Whether it is a named tuple or attrs class of flowrl that its fields determine."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    if not re.fullmatch(r"flowrl(\.[a-z]\w*)+\.[A-Za-z]\w*", path):
        return False
    module = sys.modules.get(kind.__module__)
    if module is None or vars(module).get(kind.__qualname__) is not kind:
        return False
    return _is_named_tuple(kind) or (
        _is_own_attrs(kind) and set(getattr(value, "__dict__", ())) <= {*_field_names(kind)}
    )


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__bases__ == (tuple,) and "_fields" in vars(kind)


def _is_own_attrs(kind: Any) -> bool:
    return isinstance(kind, type) and "__attrs_attrs__" in vars(kind)


def _field_names(kind: Any) -> list[str]:
    return list(kind._fields) if _is_named_tuple(kind) else [field.name for field in attrs.fields(kind)]


def _fields_of(value: Any) -> dict[str, Any]:
    made: dict[str, Any] = value._asdict() if _is_named_tuple(type(value)) else attrs.asdict(value, recurse=False)
    return made


def _pickle(value: Any, where: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # each type raises its own kind of error
        pass
    try:
        packed: bytes = cloudpickle.dumps(value)
        return packed
    except Exception as error:
        raise CheckpointError(f"{where}: a {type(value).__name__} cannot be saved: {error}") from error

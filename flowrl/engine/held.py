"""What operators hold besides their state fields: what a checkpoint saves once, and what it would lose (D14)."""

from __future__ import annotations

import copy
import dis
import io
import sys
import threading
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import cache, cached_property, partial
from inspect import ismethod
from queue import Queue, SimpleQueue
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, cast

import attrs

from flowrl.engine.operator import (
    check_operator_state,
    configuration,
    is_operator,
    load_operator_state,
    operator_state,
    state_fields,
)
from flowrl.engine.protocols import Array, ResourceContract, Saveable, has_member
from flowrl.engine.workers.pickling import attributes, parts
from flowrl.saved import Saved

#: Most objects behind one operator that are looked at, and the first bytes of an array that are compared.
MOST, MOST_BYTES = 20_000, 1 << 24
#: Metadata of a field of items, which pass through a plan and are no state.
ITEMS = "flowrl.items"
REMEDY = (
    "is not in checkpoints: keep it in a state() field of an @operator (runtime() if it may be lost), or give its "
    "class state_dict and load_state_dict"
)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
#: What of Python's is looked into besides its collections.
_WRAPPERS = (partial, FunctionType, MethodType, SimpleNamespace, Queue, threading.local, type(cache(id)))
#: Methods by which a container changes; not those with which memos are written, which may be lost.
_MUTATORS = {"append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft", "popitem", "remove"}
_LIBRARIES = frozenset({"flowrl", "numpy", "torch", "ray"})
_FOREIGN = _LIBRARIES | sys.stdlib_module_names - {"__main__"}


#: How a state is taken and set.
Ways = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]


@attrs.frozen
class HeldState:
    """Something with a state but no `state_dict`, as a resource: a random generator, an operator inside of another."""

    of: Any

    def state_dict(self) -> Any:
        save, _ = cast("Ways", _ways(self.of))
        return copy.deepcopy(save(self.of))

    def load_state_dict(self, state: Any) -> None:
        _, load = cast("Ways", _ways(self.of))
        load(self.of, copy.deepcopy(state))


def _save_operator(op: Any) -> dict[str, Any]:
    seeds = {name: each.seeds.state_dict() for name, each in _contexts(op).items()}
    return {"state": operator_state(op), "seeds": seeds}


def _load_operator(op: Any, state: Mapping[str, Any]) -> None:
    check_operator_state(op, Saved(state["state"], type(op).__name__))
    load_operator_state(op, state["state"])
    for name, each in _contexts(op).items():
        each.seeds.load_state_dict(state["seeds"][name])


def _contexts(op: Any) -> dict[str, Any]:
    return {f.name: vars(op)[f.name] for f in attrs.fields(type(op)) if f.metadata.get("flowrl.role") == "context"}


_GENERATORS: dict[tuple[str, str], Ways] = {
    ("numpy.random", "BitGenerator"): (lambda g: g.state, lambda g, state: setattr(g, "state", state)),
    ("numpy.random", "Generator"): (
        lambda g: g.bit_generator.state,
        lambda g, state: setattr(g.bit_generator, "state", state),
    ),
    ("numpy.random", "RandomState"): (lambda g: g.get_state(legacy=False), lambda g, state: g.set_state(state)),
    ("random", "Random"): (
        lambda g: list(map(_listed, g.getstate())),
        lambda g, state: g.setstate((state[0], tuple(state[1]), state[2])),
    ),
    ("torch", "Generator"): (lambda g: g.get_state(), lambda g, state: g.set_state(state)),
}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@cache
def _generator(kind: Any) -> Ways | None:
    for base in kind.__mro__:
        module = base.__module__.replace("numpy.random._generator", "numpy.random")
        module = {
            "numpy.random.mtrand": "numpy.random",
            "numpy.random.bit_generator": "numpy.random",
            "torch._C": "torch",
        }.get(module, module)
        if (found := _GENERATORS.get((module, base.__name__))) is not None:
            return found if base.__name__ != "Random" or kind.__name__ != "SystemRandom" else None
    return None


def _ways(held: Any) -> Ways | None:
    """How the state of something without `state_dict` is taken and set; None: it has none that is known."""
    if is_operator(held):
        return (_save_operator, _load_operator) if state_fields(held) or _contexts(held) else None
    return _generator(cast(Any, type(held)))


@attrs.frozen
class Held:
    """Something that an operator holds: where, and whether it is a resource."""

    where: str
    what: Any
    resource: bool


def held(op: Any) -> Iterator[Held]:
    """What an operator holds, each once, the nearest first, up to `MOST` objects.

    It is looked for in init fields and bound methods, in containers, weak references, partials, closures, default
    arguments and the globals that a function reads, among them methods of a module's own generator, such as
    `random.random`, and in the attributes of plain objects and of their classes. What is inside of a resource is left
    out: it saves its own.
    """
    if is_operator(op):
        fields = [field.name for field in attrs.fields(type(op)) if field.init and not field.metadata.get(ITEMS)]
        waiting = deque((f"its {name}", vars(op)[name], True) for name in fields)
        if not _is_foreign(type(op)):
            waiting.append(("", type(op), False))
            if has_member(type(op), "__call__"):
                waiting.append(("", type(op).__call__, False))
    else:
        waiting = deque([("" if not ismethod(op) else "its object", op.__self__ if ismethod(op) else op, True)])
        if ismethod(op):
            waiting.append(("", op.__func__, False))
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MOST:
        where, item, near = waiting.popleft()
        item = _referent(item)
        if type(item) in _ATOMS or isinstance(item, ModuleType) or id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, type):
            if not _is_foreign(item):
                where = f"class {item.__name__}"
                yield Held(where, item, False)
                waiting.extend((f"{where}.{name}", each, False) for name, each in _class_values(item).items())
            continue
        kind = type(item)
        saveable = isinstance(item, Saveable) if near else _has_state(cast(Any, kind))
        if saveable or (kind.__name__ != "method" and _ways(item) is not None):
            yield Held(where, item, True)
            further = ResourceContract(item).resources if saveable else []
            waiting.extend((where, each, True) for each in further)
            continue
        yield Held(where, item, False)
        if _is_open(item):
            inside = item.tolist() if kind.__module__ == "numpy" else item  # an array of objects
            waiting.extend((f"{where}{at}".lstrip(", "), part, False) for at, part in parts(inside))
            waiting.append((where, kind, False))


def _referent(item: Any) -> Any:
    """What a weak reference refers to, None if that is gone; anything else is itself."""
    if type(item) in weakref.ProxyTypes:
        with suppress(ReferenceError):
            return item.__repr__.__self__
        return None
    return item() if isinstance(item, weakref.ref) else item


_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), range, slice, type(...)})


@cache
def _has_state(kind: Any) -> bool:
    return all(has_member(kind, name) for name in ("state_dict", "load_state_dict"))


def _is_foreign(kind: Any, those: Set[str] = _FOREIGN) -> bool:
    """Whether a class or function is of flowrl, Python or a library whose objects are not looked into."""
    return str(kind.__module__).partition(".")[0] in those


def _is_open(item: Any) -> bool:
    """Whether it is looked into."""
    if isinstance(item, (BuiltinFunctionType, MethodWrapperType)):
        held_by = item.__self__
        return isinstance(held_by, (*_CONTAINERS, Iterator)) or _ways(held_by) is not None
    if isinstance(item, (*_CONTAINERS, *_WRAPPERS)) or is_operator(item):
        return True
    if isinstance(item, Array):
        return bool(item.dtype == object)
    return not _is_foreign(type(item), _LIBRARIES if isinstance(item, Collection) else _FOREIGN)


def resources(op: Any) -> Iterator[Any]:
    """The resources of an operator, which a checkpoint saves once: what it holds that has a state.

    A bound method (`for_each(policy.learn)`) shares its object. A resource may list further ones that it
    consists of in an attribute `resources`.
    """
    return (each.what for each in held(op) if each.resource)


def saveable(resource: Any) -> Any:
    """A resource with `state_dict` and `load_state_dict`."""
    return resource if isinstance(resource, Saveable) else HeldState(resource)


def same_resource(one: Any, other: Any) -> bool:
    """Whether two resources are one object."""
    one, other = (each.of if isinstance(each, HeldState) else each for each in (one, other))
    return one is other


def state_of(resource: Any) -> Any:
    """A copy of a resource's state: those of other libraries return what goes on changing."""
    state = resource.state_dict()
    return (
        state if _is_foreign(type(resource)) and not type(resource).__module__.startswith("torch") else _copied(state)
    )


def _copied(state: Any) -> Any:
    try:
        return copy.deepcopy(state)
    except Exception:  # what cannot be copied is refused, by its name, where it is written
        return state


# -- what would be lost


def lost(op: Any) -> Iterator[str]:
    """What certainly changes while an operator works and is in no checkpoint, in words."""
    if is_operator(op) and not _is_foreign(type(op)):
        fields = configuration(op)
        methods = {name: each for base in reversed(type(op).__mro__) for name, each in vars(base).items()}
        for method in ("__call__", "pull", "finish", "ready"):
            if isinstance(function := methods.get(method), FunctionType):
                yield from (f"its plain field {name}" for name in _changed_attributes(function, fields))
    for each in held(op):
        what = each.what
        if each.resource:
            continue
        if isinstance(what, (Iterator, SimpleQueue)) and not (
            isinstance(what, io.IOBase) and (what.closed or what.writable())
        ):
            yield f"{each.where or 'it'}, a {type(what).__name__},"
        elif isinstance(what, FunctionType) and not _is_foreign(what):
            yield from _changes(what)
        elif (
            isinstance(what, BuiltinFunctionType)
            and what.__name__ in _MUTATORS
            and isinstance(what.__self__, _CONTAINERS)
        ):
            yield f"the {type(what.__self__).__name__} behind {what.__name__}"
    if ismethod(op) and not _is_foreign(op.__func__) and not isinstance(op.__self__, (Saveable, type)):
        of, values = type(op.__self__).__name__, attributes(op.__self__)
        yield from (f"{name} of its {of}" for name in _changed_attributes(cast(FunctionType, op.__func__), values))


def _changes(function: FunctionType) -> Iterator[str]:
    """The variables of a closure or module that a function changes."""
    code = function.__code__
    values = dict(zip(code.co_freevars, _cells(function)))
    before: list[dis.Instruction] = []
    found: dict[str, None] = {}
    for now in dis.get_instructions(code):
        name, last = now.argval, before[-1] if before else now
        rebound = now.opname == "STORE_GLOBAL" and last.opname.startswith("BINARY_OP")
        if rebound or (now.opname == "STORE_DEREF" and name in values):
            found[name] = None
        elif now.opname in ("LOAD_METHOD", "LOAD_ATTR") and name in _MUTATORS:
            where = {"LOAD_DEREF": values, "LOAD_GLOBAL": function.__globals__}.get(last.opname, {})
            found |= {last.argval: None} if isinstance(where.get(last.argval), _CONTAINERS) else {}
        before.append(now)
    yield from (f"the variable {name}" for name in found)


def _cells(function: FunctionType) -> list[Any]:
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(None)
    return values


def _changed_attributes(function: FunctionType, values: Mapping[str, Any]) -> list[str]:
    """Those of the attributes of `self` that a method changes, as in `self.total += 1` and `self.seen.append(item)`.

    It may replace others, as one does with what is only made when it is needed.
    """
    code = function.__code__
    me = code.co_varnames[:1]
    steps = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "SWAP", "NOP", "EXTENDED_ARG")]
    loads = [each.opname.startswith("LOAD_FAST") and (each.argval,) == me for each in steps]
    read = {after.argval for mine, after in zip(loads, steps[1:]) if mine and after.opname == "LOAD_ATTR"}
    found: dict[str, None] = {}
    for i, step in enumerate(steps):
        if i >= 2 and loads[i - 2] and steps[i - 1].opname == "COPY" and step.opname == "LOAD_ATTR":
            found[step.argval] = None  # self.n += ...
        elif i >= 2 and step.opname == "STORE_ATTR" and loads[i - 1] and steps[i - 2].opname.startswith("BINARY_OP"):
            found |= {step.argval: None} if step.argval in read else {}  # self.n = self.n + ...
        elif i >= 2 and loads[i - 2] and steps[i - 1].opname == "LOAD_ATTR" and step.argval in _MUTATORS:
            name = steps[i - 1].argval
            found |= {name: None} if isinstance(values.get(name), _CONTAINERS) else {}
    return [name for name in found if name in values]


# -- what has changed


def watched(op: Any) -> list[tuple[str, Any, Any]]:
    """What an operator holds that is no resource, with what it was."""
    found = [("its plain field", op, dict(configuration(op)))] if is_operator(op) and not _is_foreign(type(op)) else []
    plain = [(each.where or "it", each.what, _now(each.what)) for each in held(op) if not each.resource]
    return found + [each for each in plain if each[2] is not None]


def changed(watching: list[tuple[str, Any, Any]], saved: Iterable[Any] = ()) -> Iterator[str]:
    """What has changed since, in words; tensors of resources that are `saved` are left out."""
    for where, what, before in watching:
        now = dict(configuration(what)) if is_operator(what) and not isinstance(what, type) else _now(what)
        if isinstance(before, dict) and isinstance(now, dict) and not isinstance(what, dict):
            names = [str(name) for name in now if name not in before or not _same(now[name], before[name])]
            of = (
                "the variable " if isinstance(what, FunctionType) else f"{where} " if is_operator(what) else f"{where}."
            )
            yield from (f"{of}{name}" for name in names)
        elif not _same_parts(now, before) and not (_is_tensor(what) and _memory(what) in _memories(saved)):
            yield f"{where}, a {type(what).__name__}," if where != "it" else f"its {type(what).__name__}"


def _class_values(kind: type) -> dict[str, Any]:
    """The numbers, texts and containers that a class has; not those of Python, such as `__doc__` and `_member_map_`."""
    values = {
        name: each for base in reversed(kind.__mro__) if not _is_foreign(base) for name, each in vars(base).items()
    }
    return {
        name: each
        for name, each in values.items()
        if not (name[0] == name[-1] == "_") and (type(each) in _ATOMS or isinstance(each, (*_CONTAINERS, Array)))
    }


def _now(what: Any) -> Any:
    """What can be compared later; None: it cannot change, or that is not known."""
    if isinstance(what, type):
        return _class_values(what)
    if isinstance(what, FunctionType):
        return dict(zip(what.__code__.co_freevars, _cells(what))) | vars(what) or None
    if isinstance(what, (dict, list, set, deque)):
        return copy.copy(what) if type(what) in (dict, list, set, deque) else list(what)
    if isinstance(what, (bytearray, array, memoryview)):
        return zlib.crc32(bytes(what))
    if isinstance(what, (io.StringIO, io.BytesIO)):
        return None if what.closed else (what.tell(), hash(what.getvalue()))
    if isinstance(what, Array):
        if type(what).__module__ == "numpy":
            return zlib.crc32(what.flat[: MOST_BYTES // max(1, what.itemsize)].tobytes())
        try:
            return what._version if _is_tensor(what) else None  # which counts how often it has changed
        except RuntimeError:  # of inference mode
            return None
    if isinstance(what, (tuple, frozenset, partial, MethodType, BuiltinFunctionType)) or is_operator(what):
        return None
    if not _is_open(what):
        return None
    return {name: each for name, each in attributes(what).items() if name not in _cached(cast(Any, type(what)))}


@cache
def _cached(kind: Any) -> set[str]:
    return {name for base in kind.__mro__ for name, each in vars(base).items() if isinstance(each, cached_property)}


def _is_tensor(what: Any) -> bool:
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(what).__mro__)


def _memory(tensor: Any) -> Any:
    return tensor.untyped_storage().data_ptr()


def _memories(saved: Iterable[Any]) -> set[Any]:
    """Where the tensors of networks are, which resources are or have as parts."""
    waiting, seen, found = deque(each.of if isinstance(each, HeldState) else each for each in saved), set[int](), set()
    while waiting and len(seen) < MOST:
        item = waiting.popleft()
        if id(item) in seen or type(item) in _ATOMS or isinstance(item, (type, ModuleType)):
            continue
        seen.add(id(item))
        if has_member(type(item), "parameters") and has_member(type(item), "buffers"):
            found |= {_memory(tensor) for tensors in (item.parameters(), item.buffers()) for tensor in tensors}
        elif isinstance(item, _CONTAINERS) or _has_state(cast(Any, type(item))):
            waiting.extend(part for _, part in parts(item))
    return found


def _same_parts(now: Any, before: Any) -> bool:
    if isinstance(now, dict):
        return now.keys() == before.keys() and all(map(_same, now.values(), before.values()))
    if isinstance(now, (list, deque)):
        return len(now) == len(before) and all(map(_same, now, before))
    return bool(now == before)


def _same(now: Any, before: Any) -> bool:
    return now is before or (type(now) in _ATOMS and type(now) is type(before) and now == before)

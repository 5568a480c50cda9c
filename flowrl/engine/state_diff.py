"""Comparison of a saved state with a plan: paths, resources, state fields and workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import attrs

from flowrl.engine.context import Metrics
from flowrl.engine.operator import added_fields, check_operator_state, state_fields
from flowrl.engine.seeds import SeedTree
from flowrl.engine.workers.gather import Gather
from flowrl.saved import Saved


class IncompatibleKeys(NamedTuple):
    """Omissions of a partial load: operators and resources that start fresh, and saved ones that nothing took."""

    fresh: tuple[str, ...]
    unused: tuple[str, ...]


@attrs.frozen
class StateDiff:
    """A comparison of a state with a plan: operators and resources in both, in only one, and in both but different."""

    both: list[str]
    missing: dict[str, list[str]]  #: by "operators" and "resources": the plan has it, the state does not
    unknown: dict[str, list[str]]  #: the state has it, the plan does not
    other: dict[str, str]  #: paths in both that do not fit, and why

    @property
    def left_out(self) -> IncompatibleKeys:
        missing, unknown = (found["operators"] + found["resources"] for found in (self.missing, self.unknown))
        return IncompatibleKeys((*missing, *self.other), (*unknown, *self.other))

    def problems(self) -> list[str]:
        """Why the state belongs to another plan, in words; [] if it belongs to this one."""
        found = []
        for what in ("operators", "resources"):
            if self.missing[what]:
                found.append(f"{what} missing in it: {', '.join(self.missing[what])}")
            if self.unknown[what]:
                found.append(f"{what} that this plan does not have: {', '.join(self.unknown[what])}")
        return found + list(dict.fromkeys(self.other.values()))

    def entries(self, saved: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The loadable entries of saved operators. An operator that does not fit still keeps its held items."""
        return {
            path: {key: value for key, value in entry.items() if path not in self.other or key in _ITEMS}
            for path, entry in saved.items()
        }


#: Keys under which an entry holds items of the stream.
_ITEMS = ("@inputs", "@outputs")
#: The keys of an entry beside the operator's own fields, with their types.
_HELD = {**dict.fromkeys((*_ITEMS, "@workers"), list), "@finished": bool}


def check_state(state: Any, operators: Mapping[str, Any], what: str = "the saved run") -> None:
    """Raise a CheckpointError unless the state of a run, or of a part on a worker, has all fields, of their types (D7).

    Args:
        operators: Those of the plan by path, including those on workers.
    """
    saved = Saved(state, what)
    saved.get("resources", dict[str, Any])
    saved.get("items", dict[str, int])
    Metrics().load_state_dict(saved.get("ledger"))
    SeedTree().load_state_dict(saved.get("seeds"))
    for path, entry in saved.get("operators", dict[str, dict[str, Any]]).items():
        fields = Saved(entry, f"{what}, operator {path}")
        for name, kind in _HELD.items():
            fields.get(name, kind, otherwise=kind())
        if path in operators:
            check_operator_state(operators[path], fields)
        for i, part in enumerate(entry.get("@workers", ())):
            if part is not None:
                check_state(part, operators, f"{what}, worker {i}")


def compare(
    state: Mapping[str, Any], operators: Mapping[str, Any], resources: Iterable[str], gathers: Iterable[Gather]
) -> StateDiff:
    """Compare a state with a plan's operators by path, its resources' names and its gathers."""
    saved, saved_resources = saved_entries(state), set(state["resources"])
    fields = {path: set(state_fields(op)) for path, op in operators.items()}
    theirs = {path: {key for key in entry if not key.startswith("@")} for path, entry in saved.items()}
    other = {}
    for path in fields.keys() & theirs.keys():
        if fields[path] - theirs[path] - set(added_fields(operators[path])) or theirs[path] - fields[path]:
            here, there = (", ".join(sorted(names)) or "nothing" for names in (fields[path], theirs[path]))
            other[path] = f"{path} keeps {here}, in it {there}"
    for gather in gathers:
        entry = state["operators"].get(gather.meter.path)
        if entry is not None and (reason := gather.differs(entry)):
            on_workers = {path for part in entry["@workers"] if part for path in saved_entries(part)}
            other |= dict.fromkeys([gather.meter.path, *sorted(on_workers)], reason)
    needed = {path for path, names in fields.items() if names}
    ours = set(resources)
    return StateDiff(
        both=[*sorted((needed & saved.keys()) - other.keys()), *sorted(ours & saved_resources)],
        missing={"operators": sorted(needed - saved.keys()), "resources": sorted(ours - saved_resources)},
        unknown={"operators": sorted(saved.keys() - fields.keys()), "resources": sorted(saved_resources - ours)},
        other=dict(sorted(other.items())),
    )


def saved_entries(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of operators in a state by path, including those on workers."""
    found = dict(state["operators"])
    for entry in state["operators"].values():
        for part in entry.get("@workers", ()):
            found |= saved_entries(part) if part else {}
    return found

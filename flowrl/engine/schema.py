"""Schemas: the columns of a plan's items, and words that operators agree on, as known before a run.

An operator declares its needs and its output in the members of `OperatorContract` from `requires` to `out_of`, see
`flowrl.engine.protocols`. The engine only compares words; it imports no arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import attrs

from flowrl.engine.protocols import Array, Columns
from flowrl.errors import SchemaError, did_you_mean


class ColumnSchema(NamedTuple):
    """A column's dtype and shape; a size is a number, or a name such as "T", "N", "B" where it is free."""

    dtype: str
    shape: tuple[int | str, ...]

    @classmethod
    def parse(cls, text: str) -> ColumnSchema:
        """The column that a text describes.

        >>> ColumnSchema.parse("float32[T, N, 4]")
        ColumnSchema(dtype='float32', shape=('T', 'N', 4))
        """
        found = re.fullmatch(r"(\w+)\[([\w, ]*)\]", text)
        if found is None:
            raise SchemaError(f"a column is written like float32[T, N, 4], got {text!r}")
        sizes = [size.strip() for size in found[2].split(",")] if found[2].strip() else []
        return cls(found[1], tuple(int(size) if size.isdigit() else size for size in sizes))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@attrs.frozen
class Schema:
    """Columns by name and words; `open` if there may be more of both. `of` describes the elements of a list, `each`
    those of a tuple.

    `in_turn` is the number of workers whose items arrive in any order, each item from one worker. `most` has the
    largest sizes of axes, as far as known: `{"T": 32, "N": 8}`; for a list, the number of its elements as "of". An
    operator that emits as many rows as it receives, or knows how many, keeps them; `having` and `without` drop them.

    Of the experience of several policies at once, `policies` has the schema of each by its name: what it has, all of
    them have, and `having`, `without` and `rows` change each. `policy` is the name of the one whose rows these are.

    >>> given = Schema.of_columns("fragments", obs="float32[T, N, 4]", reward="float64[T, N]")
    >>> print(given)
    fragments [T, N]: obs float32[4], reward float64
    >>> given.has("reward"), given.has("value"), given.has("value or obs"), UNKNOWN.has("value")
    (True, False, True, True)
    >>> print(given.rows().having("replayed", index="int64[B]"))
    replayed, rows [B]: obs float32[4], reward float64, index int64
    >>> both = Schema(policies={"cat": given, "dog": given.without("reward")})
    >>> both.has("obs"), both.has("reward"), both.of_policy("cat").policy
    (True, False, 'cat')
    """

    columns: Mapping[str, ColumnSchema] = attrs.field(factory=dict)
    words: frozenset[str] = frozenset()
    open: bool = False
    of: Schema | None = None
    in_turn: int = 1
    each: tuple[Schema, ...] | None = None
    most: Mapping[str, int] = attrs.field(factory=dict, eq=False)
    policies: Mapping[str, Schema] | None = None
    policy: str | None = None

    @classmethod
    def of_columns(cls, *words: str, **columns: str) -> Schema:
        """A schema from words and columns as text."""
        return cls().having(*words, **columns)

    def has(self, word: str) -> bool:
        """Whether items have, or may have, such a column or word; "a or b" asks for either."""
        if self.policies is not None:
            return all(schema.has(word) for schema in self.policies.values())
        names = {*self.words, *self.columns, *(name.partition(".")[0] for name in self.columns)}
        return self.open or any(each in names for each in word.split(" or "))

    def having(self, *words: str, **columns: str) -> Schema:
        """This schema with further words and columns."""
        if self.policies is not None:
            return self._each(lambda schema: schema.having(*words, **columns))
        parsed = {name: ColumnSchema.parse(text) for name, text in columns.items()}
        return attrs.evolve(self, columns={**self.columns, **parsed}, words=self.words | set(words), most={})

    def without(self, *names: str) -> Schema:
        """This schema without these words and columns."""
        if self.policies is not None:
            return self._each(lambda schema: schema.without(*names))
        kept = {name: column for name, column in self.columns.items() if name not in names}
        return attrs.evolve(self, columns=kept, words=self.words - set(names), most={})

    def rows(self) -> Schema:
        """Fragments `[T, N, ...]` as rows `[B, ...]`."""
        if self.policies is not None:
            return self._each(Schema.rows)
        most = {} if self.most_rows is None else {"B": self.most_rows}
        if "fragments" not in self.words:
            return attrs.evolve(self.having("rows"), most=most)
        flat = {name: ColumnSchema(column.dtype, ("B", *column.shape[2:])) for name, column in self.columns.items()}
        return attrs.evolve(self, columns=flat, words=self.words - {"fragments"} | {"rows"}, most=most)

    def of_policy(self, name: str) -> Schema:
        """The experience of one of several policies. Raises: SchemaError: there is none of this name."""
        assert self.policies is not None
        if name not in self.policies:
            raise SchemaError(f"no policy {name!r}: {did_you_mean(name, self.policies)}")
        return attrs.evolve(self.policies[name], policy=name, in_turn=self.in_turn)

    def _each(self, change: Callable[[Schema], Schema]) -> Schema:
        assert self.policies is not None
        return attrs.evolve(self, policies={name: change(schema) for name, schema in self.policies.items()}, most={})

    @property
    def most_rows(self) -> int | None:
        """The most rows of an item, if known: T * N of a fragment."""
        sizes = [self.most.get(axis) for axis in (("T", "N") if "fragments" in self.words else ("B",))]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    @property
    def axes(self) -> tuple[int | str, ...]:
        """The leading axes that all columns share, named ones only."""
        shared: list[int | str] = []
        for sizes in zip(*(column.shape for column in self.columns.values())):
            if len(set(sizes)) > 1 or not isinstance(sizes[0], str):
                break
            shared.append(sizes[0])
        return tuple(shared)

    def __str__(self) -> str:
        if self == UNKNOWN:
            return "?"
        if self.of is not None:
            return f"list of ({self.of})"
        if self.each is not None:
            return f"tuple of {', '.join(f'({schema.head})' for schema in self.each)}"
        if self.policies is not None:
            return f"by policy: {', '.join(f'{name} ({schema})' for name, schema in self.policies.items())}"
        columns = ", ".join(self.described(self.columns))
        return (f"{self.head}: {columns}" if columns else self.head or "no columns") + (", ..." if self.open else "")

    @property
    def head(self) -> str:
        """The words, and the axes that all columns share."""
        words = ", ".join(sorted(self.words - set(self.columns)))
        axes = f"[{', '.join(map(str, self.axes))}]" if self.columns else ""
        turns = f"of {self.in_turn} workers in turn" if self.in_turn > 1 else ""
        return " ".join(part for part in (words, axes, turns) if part)

    def described(self, names: Iterable[str]) -> list[str]:
        """Columns as text, without the axes that all share."""
        skip = len(self.axes)
        texts = {name: str(ColumnSchema(c.dtype, c.shape[skip:])).replace("[]", "") for name, c in self.columns.items()}
        return [f"{name} {texts[name]}" for name in names]


#: The schema of unknown items.
UNKNOWN = Schema(open=True)


def common(schemas: Iterable[Schema]) -> Schema:
    """The schema that fits the items of all of several streams.

    >>> print(common([Schema.of_columns("rows", a="int64[B]", b="int64[B]"), Schema.of_columns("rows", a="int64[B]")]))
    rows [B]: a int64
    """
    first, *others = schemas
    for other in others:
        most = {axis: max(size, other.most[axis]) for axis, size in first.most.items() if axis in other.most}
        if first == other:
            first = attrs.evolve(first, most=most)
            continue
        if UNKNOWN in (first, other):
            return UNKNOWN
        columns = {name: column for name, column in first.columns.items() if other.columns.get(name) == column}
        of = first.of if first.of == other.of else None
        in_turn = max(first.in_turn, other.in_turn)
        each = first.each if first.each == other.each else None
        if first.policies is not None or other.policies is not None:
            if first.policies is None or other.policies is None or first.policies.keys() != other.policies.keys():
                return UNKNOWN
            policies = {name: common((schema, other.policies[name])) for name, schema in first.policies.items()}
            first = Schema(in_turn=in_turn, policies=policies)
            continue
        policy = first.policy if first.policy == other.policy else None
        words, any_open = first.words & other.words, first.open or other.open
        first = Schema(columns, words, any_open, of, in_turn, each, most, policy=policy)
    return first


def schema_of(item: Any) -> Schema:
    """The columns of an actual item, which have a dtype and a shape; nested ones have dotted names."""
    found: dict[str, ColumnSchema] = {}

    def look(part: Columns, prefix: str) -> None:
        for name, value in part.items():
            if isinstance(value, Array):
                found[prefix + str(name)] = ColumnSchema(str(value.dtype).removeprefix("torch."), tuple(value.shape))
            elif isinstance(value, Columns):
                look(value, f"{prefix}{name}.")

    if isinstance(item, Columns):
        look(item, "")
    return Schema(found)


def mismatches(item: Any, expected: Schema) -> list[str]:
    """Differences of an item from its schema, in words; [] if it fits. Free sizes must agree with each other."""
    if expected.policies is not None and isinstance(item, Columns):
        by_policy = [(name, part, expected.policies[str(name)]) for name, part in item.items()]
        return [f"policy {name!r}: {each}" for name, part, schema in by_policy for each in mismatches(part, schema)]
    if not expected.columns:
        return []
    found, sizes, problems = schema_of(item).columns, dict[str, tuple[int | str, str]](), []
    for name, column in expected.columns.items():
        if name not in found:
            problems.append(f"column {name!r} is missing, expected {column}")
            continue
        actual = found[name]
        fits = actual.dtype == column.dtype and len(actual.shape) == len(column.shape)
        if not fits or any(isinstance(want, int) and got != want for got, want in zip(actual.shape, column.shape)):
            problems.append(f"column {name!r} is {actual}, expected {column}")
            continue
        for got, want in zip(actual.shape, column.shape):
            if isinstance(want, str) and sizes.setdefault(want, (got, name))[0] != got:
                other = sizes[want]
                problems.append(
                    f"column {name!r} is {actual}, so {want} = {got}, but {other[1]!r} has {want} = {other[0]}"
                )
    return problems

"""plan.check(): schemas along every edge, and problems that are certain before any worker starts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.graph import WIRING, graph, paths
from flowrl.engine.held import REMEDY, lost
from flowrl.engine.merge import Concurrent, Merge, Sequential
from flowrl.engine.operator import PROVIDERS
from flowrl.engine.protocols import OperatorContract, ResourceContract, WorkersContract
from flowrl.engine.schema import UNKNOWN, Schema, common
from flowrl.errors import PlanError, SchemaError
from flowrl.inspect.explain import relative, rows_of

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan


#: Most characters per line of a schema.
WIDEST = 96


@attrs.frozen
class Findings:
    """The schema of each operator's output, by path, and one message per problem."""

    schemas: dict[str, Schema]
    problems: list[str]


def check(plan: Plan) -> dict[str, Schema]:
    """The schema of each operator's output, by path.

    Raises:
        PlanError: the plan has problems; lists all.
    """
    findings = examine(plan)
    if findings.problems:
        raise PlanError("\n".join(findings.problems))
    return findings.schemas


def examine(plan: Plan) -> Findings:
    """Propagate the schemas that operators declare through a plan."""
    return _Examiner(plan).findings()


def schemas_of(plan: Plan) -> dict[str, Schema]:
    """The schema of each operator's output, by path, whatever problems the plan has."""
    return examine(plan).schemas


def explain_checked(plan: Plan, findings: Findings) -> str:
    """The plan as a tree with the schema of each operator's output: in full for sources and joins, else the changes."""
    by_id, lines = paths(plan), []
    for row in rows_of(plan, by_id):
        lines.append(row.bars + row.text)
        if row.node is not None:
            after = findings.schemas[by_id[id(row.node)]]
            before = findings.schemas[by_id[id(row.node.inputs[0])]] if len(row.node.inputs) == 1 else UNKNOWN
            changes = _difference(before, after)
            lines += [f"{row.bars}    {'   ' if i else '-> '}{line}" for i, line in enumerate(changes)]
    return "\n".join(lines)


class _Examiner:
    def __init__(self, plan: Plan) -> None:
        self.nodes, self.paths = graph(plan), paths(plan)
        self.after: dict[int, Schema] = {}
        self.problems: list[str] = []
        self.stores: list[Any] = []
        self.phases = phases(self.nodes)
        for node in self.nodes:
            for store in (node.contract.into, *_sources(node.contract.out_of)):
                if store is not None and all(store is not other for other in self.stores):
                    self.stores.append(store)

    def findings(self) -> Findings:
        # The schema out of a store is the schema into it, possibly from a later operator: repeat until stable.
        for _ in range(len(self.stores) + 2):
            before, self.problems = dict(self.after), []
            for node in self.nodes:
                self.after[id(node)] = self._leaving(node)
            if not self.stores or before == self.after:
                break
        problems = [*self.problems, *self._debts(), *self._stores(), *self._phases(), *self._unsaved()]
        return Findings({self.paths[id(node)]: self.after[id(node)] for node in self.nodes}, problems)

    def where(self, node: Plan) -> str:
        return f"{self.paths[id(node)]} ({relative(node.site)})"

    # -- schemas

    def _leaving(self, node: Plan) -> Schema:
        """The schema of an operator's output; notes a problem for what its input lacks."""
        given, op = self._given(node), node.contract
        if node.kind == "tap":
            return given[0]
        required = op.requires or ()
        if required and given[0].policies is not None and not op.takes_policies:
            self.problems.append(
                f"{self.where(node)} takes the experience of one policy, but {self.where(self._before(node))} emits "
                f"that of {' and '.join(map(repr, given[0].policies))}: put OfPolicy(NAME) before {node.name}"
            )
            return UNKNOWN
        missing: dict[str, list[str]] = {}
        for word in required:
            if not given[0].has(word):
                missing.setdefault(self._why_missing(node, word, given[0], required), []).append(repr(word))
        self.problems += [f"{self.where(node)} needs {', '.join(words)}, {why}" for why, words in missing.items()]
        try:
            if op.schema is not None:
                after = op.schema(*given)
            elif node.kind == "filter" or op.requires is not None or op.provides is not None:
                after = given[0] if node.kind in ("filter", *WIRING) else given[0].having()  # perhaps other sizes
            else:
                return UNKNOWN
        except SchemaError as error:
            self.problems.append(f"{self.where(node)}: {error}")
            return UNKNOWN
        return attrs.evolve(after.having(*(op.provides or ())), most=after.most)

    def _given(self, node: Plan) -> list[Schema]:
        if node.inputs:
            return [self.after.get(id(upstream), UNKNOWN) for upstream in node.inputs]
        store = node.contract.out_of
        if store is not None:
            filling = [self._using("into", source) for source in _sources(store)]
            return [common(self.after.get(id(other), UNKNOWN) for other in of) if of else UNKNOWN for of in filling]
        collected = WorkersContract(node.on).schema
        return [UNKNOWN if collected is None else collected()]

    def _why_missing(self, node: Plan, word: str, given: Schema, required: Any) -> str:
        """The operator that drops the word, or never had it, and the remedy."""
        before = self._before(node)
        lost = self._lost(before, word)
        if lost is not None:
            text = f"which is lost in {self.where(lost)}"
        else:
            text = f"which is not in the output of {self.where(before)} [{_brief(given)}]"
        if isinstance(required, Mapping) and required[word]:
            return f"{text}: {required[word]}"
        names = word.split(" or ")
        later = [other for other in self.nodes if any(name in (other.contract.provides or ()) for name in names)]
        if later:
            return f"{text}: {self.where(later[0])} provides it, put it before {node.name}"
        providers = sorted(kind.__name__ for kind in PROVIDERS if any(name in kind.provides for name in names))
        return f"{text}: put {' or '.join(providers)} before {node.name}" if providers else text

    @staticmethod
    def _before(node: Plan) -> Plan:
        return node.inputs[0] if node.inputs else node

    def _lost(self, node: Plan, word: str) -> Plan | None:
        """The last operator up to this one whose input had the word; follows the used element of tuples."""
        seen: set[int] = set()
        part: int | None = None  # index of the tuples' element that a later operator uses
        while id(node) not in seen:
            seen.add(id(node))
            given = self._given(node)
            if part is not None:
                if given[0].each is not None:  # this operator passes the tuples on
                    node = node.inputs[0]
                else:  # this operator zips them
                    node, part = node.inputs[part], None
                continue
            if given[0].each is not None and (after := self.after[id(node)]).each is None:
                part = given[0].each.index(after) if after in given[0].each else 0
                given = [given[0].each[part]]
            if any(before != UNKNOWN and before.has(word) for before in given):
                return node
            if not node.inputs:
                return None
            node = node.inputs[0]
        return None

    # -- owed words, and stores

    def _debts(self) -> Iterator[str]:
        for node in self.nodes:
            owed = node.contract.owes
            for word in owed:
                further = self._further(node)
                settled = any(self._settles(other, word, node) for other in further)
                if not settled and not any(other.kind != "tap" and other.contract.says_nothing for other in further):
                    if isinstance(owed, Mapping):
                        yield f"{self.where(node)}: {owed[word]}"
                        continue
                    able = sorted(kind.__name__ for kind in PROVIDERS if word in _consumes(kind))
                    who = " or ".join(able) or f"an operator that consumes {word!r}"
                    yield f"{self.where(node)}: its {word} are never written back; put {who} after the learning step"

    def _settles(self, node: Plan, word: str, owing: Plan) -> bool:
        back_to = node.contract.back_to
        return word in (node.contract.consumes or ()) and (back_to is None or back_to is owing.contract.out_of)

    def _further(self, node: Plan) -> list[Plan]:
        """The operators that this one's items reach, also through stores."""
        reached, found = {id(node)}, list["Plan"]()
        stores: list[Any] = []
        while True:
            new = [
                other
                for other in self.nodes
                if id(other) not in reached
                and (
                    any(id(upstream) in reached for upstream in other.inputs)
                    or any(store is source for store in stores for source in _sources(other.contract.out_of))
                )
            ]
            if not new:
                return found
            found += new
            reached |= {id(other) for other in new}
            stores += [other.contract.into for other in new if other.contract.into is not None]

    def _stores(self) -> Iterator[str]:
        """Streams that cannot begin, and stores that no operator draws from."""
        alive: set[int] = set()
        size = -1
        while size != len(alive):
            size = len(alive)
            for node in self.nodes:
                if self._can_begin(node, alive):
                    alive.add(id(node))
        for node in self.nodes:
            into, out_of = node.contract.into, node.contract.out_of
            if out_of is not None and id(node) not in alive:
                empty = next(source for source in _sources(out_of) if not self._can_fill(source, alive, node))
                filling = self._using("into", empty)
                who = ", ".join(self.where(other) for other in filling)
                why = f"{who} fills it only with its own items" if filling else "no operator fills it"
                if filling and all(self._later(other, node) for other in filling):
                    why = f"{who} fills it only in a later phase"
                yield f"{self.where(node)} waits for ever: {_kind(empty, out_of)} is empty and {why}"
            if into is not None and ResourceContract(into).fills_up and not self._using("out_of", into):
                yield (
                    f"{self.where(node)} will wait for ever: {_kind(into, into)} has a limit until items are drawn, "
                    "and no branch of the plan draws from it"
                )

    def _can_begin(self, node: Plan, alive: set[int]) -> bool:
        if node.inputs:
            inputs = [id(upstream) in alive for upstream in node.inputs]
            every = isinstance(node.op, Merge) and node.op.needs_all
            return all(inputs) if every else any(inputs)
        return all(self._can_fill(source, alive, node) for source in _sources(node.contract.out_of))

    def _can_fill(self, store: Any, alive: set[int], reader: Plan) -> bool:
        """Whether the store can have an item for a source that draws from it, at once or later."""
        if ResourceContract(store).holds_items:
            return True
        filling = self._using("into", store)
        return any(id(other) in alive and not self._later(other, reader) for other in filling)

    # -- phases

    def _later(self, node: Plan, than: Plan) -> bool:
        """Whether an operator runs only after the other one's phase has ended."""
        return any(phase > self.phases[id(than)].get(of, phase) for of, phase in self.phases[id(node)].items())

    def _phases(self) -> Iterator[str]:
        """Phases that follow one that never ends."""
        for node in self.nodes:
            if isinstance(node.op, Sequential):
                for name, then, branch in zip(node.op.names, node.op.names[1:], node.inputs):
                    if not can_end(branch):
                        yield f"{self.where(node)}: {name} never ends, so {then} never begins: end it with .take(n)"

    # -- checkpoints

    def _unsaved(self) -> Iterator[str]:
        """What changes and is in no checkpoint (D14)."""
        for node in self.nodes:
            if node.kind != "tap":
                yield from (f"{self.where(node)}: {what} changes and {REMEDY}" for what in lost(node.op))

    def _using(self, way: str, store: Any) -> list[Plan]:
        """The operators whose items enter a store ("into"), or come from it or from a store that it is part of."""
        if way == "out_of":
            pairs = [(node, node.contract.out_of) for node in self.nodes]
            return [node for node, out_of in pairs if any(store is each for each in (out_of, *_sources(out_of)))]
        return [node for node in self.nodes if node.contract.into is store]


def _consumes(kind: Any) -> tuple[str, ...]:
    """The words that all operators of a class consume, if the class declares them."""
    words = OperatorContract(kind).consumes
    return words if isinstance(words, tuple) else ()


def _sources(store: Any) -> tuple[Any, ...]:
    """The stores that a store draws from: its parts, or itself; () for None."""
    return () if store is None else tuple(ResourceContract(store).parts) or (store,)


def _kind(store: Any, out_of: Any) -> str:
    return f"its {type(store).__name__}" if store is out_of else f"a part of its {out_of!r}"


def _brief(schema: Schema) -> str:
    names = ", ".join([*sorted(schema.words - set(schema.columns)), *schema.columns, *(schema.policies or ())])
    return names if len(names) <= WIDEST else f"{names[: names.rindex(',', 0, WIDEST)]} ..."


def _difference(before: Schema, after: Schema) -> list[str]:
    """A schema in lines of text, or only an operator's changes."""
    if after == before:
        return [] if after != UNKNOWN else ["?"]
    if after.of == before and before != UNKNOWN:
        return ["lists of these"]
    if before.of == after:
        return ["one of these"]
    if before.each is not None and before.each[0] == after:
        return ["the first of these"]
    if set(before.columns) & set(after.columns):
        more = after.described(name for name in after.columns if name not in before.columns)
        less = [name for name in before.columns if name not in after.columns]
        text = f"{after.head}: " + ", ".join(["the same", *(f"+ {m}" for m in more), *(f"- {name}" for name in less)])
    else:
        text = str(after)
    return textwrap.wrap(text, WIDEST, break_long_words=False)


def phases(nodes: Iterable[Plan]) -> dict[int, dict[int, int]]:
    """The phase numbers of each operator in the `Sequentially`s around it, by `id` of both."""
    nodes = list(nodes)
    found: dict[int, dict[int, int]] = {id(node): {} for node in nodes}
    for of in nodes:
        if isinstance(of.op, Sequential):
            for number, branch in enumerate(of.inputs):
                for node in graph(branch):
                    found[id(node)][id(of)] = number
    return found


def can_end(node: Plan) -> bool:
    """Whether a stream can end by itself: unless its sources are `endless`."""
    found: dict[int, bool] = {}
    for each in graph(node):
        ends = [found[id(branch)] for branch in each.inputs]
        if isinstance(each.op, Concurrent):
            ends = [ends[i] for i in each.op.output_indexes]
        if not ends:
            ends = [not each.contract.endless]
        every = not (isinstance(each.op, Merge) and each.op.needs_all)
        found[id(each)] = each.contract.done is not None or (all(ends) if every else any(ends))
    return found[id(node)]

"""Contracts: what must hold of the rows on an edge. An item that breaks one is an error that names row and origin.

Insert one after any operator, or let `flowrl run --debug` put all that apply on every edge, as taps: see
`with_contracts`. They pass items on unchanged, and know padded steps (`mask` 0), fragments `[T, N, ...]` and rows
`[B, ...]`, the seats of games, several policies, and lists of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import attrs
import numpy as np

from flowrl.data import DEFAULT_POLICY, Batch, MultiAgentBatch
from flowrl.data import columns as cols
from flowrl.data.columns import ACTION_MASK, ENDS, PLACE, PROVENANCE, STREAM
from flowrl.data.finite import EXPECTED, first_unusable
from flowrl.data.types import Array
from flowrl.engine.context import Context
from flowrl.engine.graph import graph, paths, readers_of, rebuilt
from flowrl.engine.operator import configuration, context, is_operator, operator, runtime
from flowrl.engine.plan import Plan
from flowrl.engine.schema import Schema
from flowrl.engine.workers.gather import GatherAsync
from flowrl.errors import ContractError
from flowrl.policies.protocols import KnowsLikelihoods, Learns, OwnsPolicy

if TYPE_CHECKING:
    from gymnasium import Space

#: Columns that say where a row comes from.
_ORIGIN = (*PROVENANCE, "policy_version", *PLACE)
#: Words of rows that are not in the order in which a seat acted, each once.
_OUT_OF_ORDER = {"replayed", "sequences", "episodes", "windows"}
#: Counters of what ends an episode without a flag.
_CUTS = ("cut_episodes", "env_faults", "worker_restarts")


@operator
class OperatorCheck:
    """Base of the contracts: subclasses check a batch, of a policy by its name where an item has several.

    Args:
        edge: Where it is, for messages; "" where the name of the operator says it.
    """

    provides = ()
    hidden: ClassVar[bool] = True  # as a tap
    edge: str = attrs.field(default="", kw_only=True, repr=False)

    def __call__(self, item: Any) -> Any:
        for policy, batch in _batches(item):
            self._check(batch, policy)
        return item

    def _check(self, batch: Batch, policy: str) -> None:
        raise NotImplementedError

    def _refuse(self, batch: Batch, row: int, what: str, expected: str) -> NoReturn:
        """Raise for a row, by its number among all `[T * N]` or `[B]`."""
        where = f" on the edge {self.edge}" if self.edge else ""
        raise ContractError(f"{type(self).__name__}{where}: {what} in {_row(batch, row)}; expected {expected}")


@operator
class CheckFinite(OperatorCheck):
    """Refuses numbers that are NaN, infinite or too large for float32; columns of `info` may hold anything.

    Raises: ContractError.

    >>> CheckFinite()(Batch(reward=[1.0, np.nan], env_id=[0, 3], t=[7, 8]))
    Traceback (most recent call last):
    flowrl.errors.ContractError: CheckFinite: reward is nan in row 1 (env_id 3, t 8); expected a finite number of at \
most 3.4e+38, as float32 holds
    """

    def _check(self, batch: Batch, policy: str) -> None:
        for name, column in batch.leaves():
            if name.partition(".")[0] == "info" or not cols.numeric(column):
                continue
            numbers = _array(column)
            if first_unusable(numbers) is None:
                continue
            real = _real(batch)  # padding may hold anything
            numbers = numbers.reshape(len(real), -1)[real]
            if (first := first_unusable(numbers)) is not None:
                row = int(np.flatnonzero(real)[first // numbers.shape[1]])
                self._refuse(batch, row, f"{name} is {numbers.flat[first]}", EXPECTED.removeprefix("expected "))


@operator
class CheckEpisodes(OperatorCheck):
    """Refuses rows of a seat that are not its steps, each once and in order (T1, M5).

    In an episode `t` grows by one; no row follows the end of its episode, as the one does that only resets an
    environment; another episode begins at `t` 0, and after an end, unless a counter says that a fault cut one.

    For what an environment gives and operators that keep its order, not for replayed rows, n-step windows or sequences.

    Args:
        across: Whether an item goes on where the one before it ended; not behind an operator that drops some.

    Raises: ContractError.
    """

    requires = ("env_id", "episode_id", "t", *ENDS)
    across: bool = True
    context: Context = context()
    _last: dict[Any, tuple[int, int, bool]] = runtime(factory=dict)  # episode, t, end of each seat's newest row
    _cut: bool = runtime(default=False)  # whether a fault cut an episode

    def _check(self, batch: Batch, policy: str) -> None:
        order, of = _by_seat(batch)
        if not len(order):
            return
        self._cut = self._cut or any(self.context.counters.get(name) for name in _CUTS)
        flat = {name: _array(batch[name]).reshape(-1)[order] for name in self.requires}
        episode, t, ended = flat["episode_id"], flat["t"], flat["terminated"] | flat["truncated"]
        first = np.append(True, (of[1:] != of[:-1]).any(1))
        before = [np.roll(each, 1) for each in (episode, t, ended)]
        known = ~first
        if self.across:
            for at in np.flatnonzero(first):
                seat = (policy, *of[at].tolist())
                if known_here := self._last.get(seat):
                    known[at] = True
                    for column, value in zip(before, known_here):
                        column[at] = value
            for at in np.flatnonzero(np.append(first[1:], True)):
                self._last[policy, *of[at].tolist()] = int(episode[at]), int(t[at]), bool(ended[at])
        same = episode == before[0]
        for wrong, words, expected in (
            (same & before[2], "a row follows the end of its episode", "the first step of another one"),
            (same & (t != before[1] + 1), "a step is missing or doubled", "the step after {t}"),
            (~same & (t != 0), "an episode begins in its middle", "t = 0"),
            (~same & ~before[2] & (not self._cut), "an episode begins before the last one has ended", "its end first"),
        ):
            if (found := np.flatnonzero(known & wrong)).size:
                at = found[0]
                self._refuse(batch, int(order[at]), words, expected.format(t=f"t = {before[1][at]}"))


@operator
class CheckActions(OperatorCheck):
    """Refuses actions outside the action space, and those that the `action_mask` of their observation forbids.

    Args:
        space: The action space, or those of several policies by name. Rows keep the actions that a policy drew (G6):
            if it clips or rescales them for the environment, `Box` bounds do not hold for rows.

    Raises: ContractError.

    >>> from gymnasium.spaces import Discrete
    >>> CheckActions(Discrete(2))(Batch(action=[0, 2], env_id=[4, 5]))
    Traceback (most recent call last):
    flowrl.errors.ContractError: CheckActions: action is 2 in row 1 (env_id 5); expected one of Discrete(2)
    """

    requires = ("action",)
    takes_policies = True
    space: Space[Any] | Mapping[str, Space[Any]]

    def _check(self, batch: Batch, policy: str) -> None:
        from gymnasium.spaces import Box

        from flowrl.envs.masks import choices_of
        from flowrl.envs.spaces import start_of

        space = self.space.get(policy) if isinstance(self.space, Mapping) else self.space
        if space is None or "action" not in batch:
            return
        actions, real, choices = _array(batch["action"]), _real(batch), choices_of(space)
        if choices:
            chosen = actions.reshape(-1, len(choices)).astype(np.float64) - start_of(space)
            valid = (chosen >= 0) & (chosen < choices) & (chosen == np.floor(chosen))
        elif isinstance(space, Box):
            valid = (actions.reshape(-1, *space.shape) >= space.low) & (actions.reshape(-1, *space.shape) <= space.high)
        else:
            return
        each = len(valid) // max(1, len(real))  # actions of a row: those of a team are several
        wrong = np.flatnonzero(~valid.reshape(len(valid), -1).all(1) & np.repeat(real, each))
        if wrong.size:
            action = actions.reshape(len(valid), -1)[wrong[0]]
            self._refuse(batch, int(wrong[0]) // each, f"action is {_words(action)}", f"one of {space}")
        obs = batch.get("obs")
        if choices and isinstance(obs, Batch) and ACTION_MASK in obs:
            mask = _array(obs[ACTION_MASK]).reshape(-1, sum(choices))
            places = chosen.astype(np.int64) + np.cumsum([0, *choices[:-1]])
            allowed = (np.take_along_axis(mask, places * np.repeat(real, each)[:, None], 1) != 0).all(1)
            wrong = np.flatnonzero(~allowed & np.repeat(real, each))
            if wrong.size:
                action = actions.reshape(len(valid), -1)[wrong[0]]
                expected = f"one that the action_mask of its observation allows, {mask[wrong[0]]}"
                self._refuse(batch, int(wrong[0]) // each, f"action is {_words(action)}", expected)


@operator
class CheckLogRatios(OperatorCheck):
    """Refuses rows with |log π(a|s) − log μ(a|s)| > `most`: actions that the policy could hardly have drawn (G7).

    μ is the policy that acted, by the column `logp`; π is the present one.

    Args:
        workers: Workers of the policy, an actor-critic without memory.
        most: The bound; at 20 one row has the weight of 5e8 others.

    Raises: ContractError.
    """

    requires = ("obs", "action", "logp")
    workers: OwnsPolicy
    most: float = attrs.field(default=20.0, validator=attrs.validators.gt(0))

    def _check(self, batch: Batch, policy: str) -> None:
        real, rows = _real(batch), batch.flat() if len(_rows_of(batch)) > 1 else batch
        if not real.any():
            return
        logp = _array(rows["logp"])
        now = self.workers.policy.learn_mode.logp_of(rows)
        wrong = np.flatnonzero(real & ~(np.abs(now - logp) <= self.most))
        if wrong.size:
            row = int(wrong[0])
            what = f"the log-probability of action {_words(_array(rows['action'])[row])} was {logp[row]:.4g} and is "
            self._refuse(batch, row, f"{what}{now[row]:.4g} now", f"a difference of at most {self.most:g}")


@operator
class CheckPriorities(OperatorCheck):
    """Refuses priorities, of `TrainOneStep` for `UpdatePriorities`, that are negative or not finite.

    Raises: ContractError.

    >>> CheckPriorities()({"priorities": Batch(index=[8, 9], priority=[0.5, -1.0])})
    Traceback (most recent call last):
    flowrl.errors.ContractError: CheckPriorities: priority is -1.0 in row 1 (index 9); expected a finite number of at \
least 0
    """

    def __call__(self, item: Any) -> Any:
        of = item.get("priorities") if isinstance(item, dict) else None
        if isinstance(of, Batch):
            self._check(of, "")
        return item

    def _check(self, batch: Batch, policy: str) -> None:
        priority = _array(batch["priority"])
        wrong = np.flatnonzero(~((priority >= 0) & (priority < np.inf)))
        if wrong.size:
            row = int(wrong[0])
            self._refuse(batch, row, f"priority is {priority[row]}", "a finite number of at least 0")


# -- on every edge


def with_contracts(plan: Plan, site: str = "flowrl run --debug") -> Plan:
    """The plan with every contract that applies on each of its edges, as taps: they change no result (D4).

    `plan.check()` says which columns flow where. Behind a function that declares nothing, items are looked at for what
    they have; episodes are not followed there, nor behind a join.

    Raises: PlanError: see `Plan.check`.
    """
    schemas, by_id, readers = plan.check(), paths(plan), readers_of(plan)
    spaces, ordered = _spaces(plan), _in_order(plan)

    def checked(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        here = attrs.evolve(node, inputs=inputs)
        if node.kind in ("fork", "tap"):  # the readers of a fork have its items
            return here
        schema, after = schemas[by_id[id(node)]], readers[id(node)]
        found = _that_apply(schema, spaces, ordered.get(id(node)))
        found += [CheckLogRatios(workers) for workers in _judges(schema, after)]
        to = ", ".join(by_id[id(reader)] for reader in after) or "the end of the plan"
        for contract in found:
            contract.edge = f"{by_id[id(node)]} -> {to}"
            here = here.then(contract, "tap", default=type(contract).__name__, site=site)
        return here

    return rebuilt(plan, checked)


def _that_apply(schema: Schema, spaces: Mapping[str, Any], across: bool | None) -> list[OperatorCheck]:
    """The contracts for items of a schema; `across` as of `CheckEpisodes`, None where episodes are not followed."""
    found: list[OperatorCheck] = []
    parts = [schema, *filter(None, (schema.of, *(schema.each or ()), *(schema.policies or {}).values()))]
    if any(each.open or any(column.dtype[:5] == "float" for column in each.columns.values()) for each in parts):
        found.append(CheckFinite())
    if spaces and any(each.has("action") for each in parts):
        policy = "" if schema.policy is None else schema.policy
        found.append(CheckActions({**spaces, "": spaces[policy]} if policy in spaces else spaces))
    if across is not None and all(map(_is_ordered, (schema.policies or {"": schema}).values())):
        found.append(CheckEpisodes(across))
    if any(each.has("priorities") for each in parts):
        found.append(CheckPriorities())
    return found


def _is_ordered(schema: Schema) -> bool:
    """Whether rows are those of an environment, in the order of time."""
    needed = {"on_policy", *CheckEpisodes.requires}
    return needed <= {*schema.words, *schema.columns} and not schema.words & _OUT_OF_ORDER


def _in_order(plan: Plan) -> dict[int, bool]:
    """The operators whose rows may be followed, by `id`; whether from item to item, too: nothing drops items."""
    found: dict[int, bool] = {}
    for node in graph(plan):
        if len(node.inputs) > 1:
            continue
        lags = isinstance(node.op, GatherAsync) and node.op.max_weight_lag is not None
        if not node.inputs:
            found[id(node)] = True
        elif id(node.inputs[0]) in found:
            found[id(node)] = found[id(node.inputs[0])] and node.kind != "filter" and not lags
    return found


def _owners(node: Plan) -> list[Any]:
    """The workers with a policy that a node runs on or holds."""
    held = configuration(node.op).values() if is_operator(node.op) else ()
    return [each for each in (node.on, *held) if isinstance(each, OwnsPolicy)]


def _spaces(plan: Plan) -> dict[str, Space[Any]]:
    """The action spaces of the policies whose choices rows keep as the environment gets them, by name.

    "" is that of a plain batch; where policies of one name differ, none.
    """
    from flowrl.envs.masks import choices_of
    from flowrl.policies import Policy

    found: dict[str, Any] = {}
    for owner in (each for node in graph(plan) for each in _owners(node)):
        policies = owner.policy if isinstance(owner.policy, Mapping) else {DEFAULT_POLICY: owner.policy}
        for name, policy in policies.items():
            space = policy.action_space if isinstance(policy, Policy) else None
            found[name] = space if found.get(name, space) == space else None
    if set(found) == {DEFAULT_POLICY}:
        found[""] = found[DEFAULT_POLICY]
    return {name: space for name, space in found.items() if space is not None and choices_of(space)}


def _judges(schema: Schema, readers: list[Plan]) -> list[Any]:
    """The workers whose policy learns from items of a schema and can say how likely their actions are."""
    if schema.open or not all(map(schema.has, ("on_policy", *CheckLogRatios.requires))):
        return []  # demonstrations are of others, whose actions may be rare here
    found = []
    for owner in (each for reader in readers if reader.contract.learns is not None for each in _owners(reader)):
        mode = owner.policy.learn_mode if isinstance(owner.policy, Learns) else None
        if isinstance(mode, KnowsLikelihoods) and not mode.recurrent:
            found.append(owner)
    return found


# -- rows of items


def _batches(item: Any) -> Iterator[tuple[str, Batch]]:
    """The batches of an item, each with the name of its policy, "" if it has none."""
    if isinstance(item, Batch):
        if not item.is_empty:
            yield "", item
    elif isinstance(item, MultiAgentBatch):
        yield from ((name, batch) for name, batch in item.items() if not batch.is_empty)
    elif isinstance(item, (list, tuple)):
        for each in item:
            yield from _batches(each)


def _array(column: Any) -> Array:
    """A column as an array; numpy has no bfloat16."""
    numbers: Array = cols.array(column.float() if "bfloat16" in str(column.dtype) else column)
    return numbers


def _rows_of(batch: Batch) -> tuple[int, ...]:
    """The sizes of the axes of rows: (T, N) or (B,), as those of a column with one number per row."""
    numbers = next((batch[name] for name in ("reward", *ENDS, *PROVENANCE, "mask") if name in batch), None)
    return tuple(batch.shape[:1] if numbers is None else numbers.shape[:2])


def _real(batch: Batch) -> Array:
    """Which rows `[T * N]` or `[B]` are no padding."""
    if "mask" in batch:
        real: Array = _array(batch["mask"]).reshape(-1) != 0
        return real
    return np.ones(int(np.prod(_rows_of(batch))), bool)


def _by_seat(batch: Batch) -> tuple[Array, Array]:
    """The numbers of the rows, those of each seat together and in the order of time, and the seats `[B, k]`."""
    sizes = _rows_of(batch)
    order = np.arange(int(np.prod(sizes))).reshape(sizes).T.reshape(-1)  # a fragment may have a seat in two columns
    order = order[_real(batch)[order]]
    of = np.stack([_array(batch[name]).reshape(-1)[order] for name in STREAM if name in batch], 1)
    at = np.lexsort(of.T[::-1])
    return order[at], of[at]


def _row(batch: Batch, row: int) -> str:
    """A row in words, with where it comes from."""
    place = [int(i) for i in np.unravel_index(row, _rows_of(batch))]
    origin = [f"{name} {_array(batch[name]).reshape(-1)[row]}" for name in _ORIGIN if name in batch]
    return f"row {place if len(place) > 1 else place[0]}" + (f" ({', '.join(origin)})" if origin else "")


def _words(action: Array) -> str:
    return str(action.item() if action.size == 1 else action.tolist())

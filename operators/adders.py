"""Adders: operators that turn fragments of experience into training samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.data.advantages import NEEDED, with_advantages
from flowrl.data.columns import OF_LAST, STEP_DISCOUNT, STREAM, TRANSITION, episode_breaks
from flowrl.data.steps import discounts, is_fragment, real_rows
from flowrl.data.trajectories import (
    Held,
    Trajectory,
    env_names,
    hold,
    of_seats,
    side_by_side,
    still_open,
    trajectories,
)
from flowrl.data.types import Array
from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, state
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.schema import Schema
from flowrl.errors import PlanError, SchemaError, did_you_mean
from flowrl.policies.protocols import CorrectsFragments, Learns, check_alone
from flowrl.returns import n_step

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet

_SEATS = "seats"  # the key of their rows among `NStep.tails`, which are by stream
_MAKERS = {"discount": "an NStep", "advantage": "a GAE or VTrace", "target": "a GAE or VTrace"}
_NO_VALUES = "collect with a policy that records values, such as an actor-critic policy"
_NO_LOGP = "collect with a policy that records it, such as an actor-critic policy"
_WHY_MISSING = {
    "value": _NO_VALUES,
    "logp": _NO_LOGP,
    "next_value": f"{_NO_VALUES}; workers then add the values of `next_obs`",
}


def _has_values(op: Any, attribute: Any, workers: WorkerSet) -> None:
    policy = WorkersContract(workers).policy
    check_alone(policy, type(op).__name__)
    if not (isinstance(policy, Learns) and isinstance(policy.learn_mode, CorrectsFragments)):
        raise PlanError(f"VTrace needs the workers of an actor-critic policy, such as A2C's, got {policy or workers!r}")


@operator
class NStep:
    """Write-time n-step transitions: fragments `[T, N, ...]` in, flat rows `[B, ...]` out (rules N1-N5, N8).

    reward = Σᵢ₌₀ᵏ⁻¹ γⁱ rₜ₊ᵢ and discount = γᵏ · (1 − terminatedₜ₊ₖ₋₁) over a window of k ≤ n steps, which stops
    at the end of its episode; next_obs, terminated and truncated are those of the window's last step. Every other
    column (obs, action, provenance ...) is that of its first step. The column `step_discount`, the discounts of a
    game's own steps, takes the place of gamma (M10).

    With the columns `worker` and `env_id`, streams of several workers may interleave; with `episode_id` and `t`, a
    window also stops where an episode was lost (its worker died, or it was reset). Windows skip padded steps (`mask`
    0). Those of a game's seats, which `agent` tells apart, continue in the next fragment; any other batch with a
    `mask`, of whole episodes or sequences, is complete in itself.

    Emits: a row once its window is complete or its episode ended, ordered by the window's start, then by
        environment; a batch of 0 rows for a fragment that completes no window.
    State: the last n − 1 steps of every environment, or of every seat, and how many of their windows are open.
    Raises: SchemaError if a column is missing or the number of environments changes.
    Source: Sutton & Barto 2018, section 7.1.

    >>> b = Batch(obs=[[0], [1], [2]], reward=[[1.0], [1.0], [1.0]], next_obs=[[1], [2], [3]],
    ...           terminated=np.zeros((3, 1), bool), truncated=np.zeros((3, 1), bool))
    >>> adder = NStep(n=2, gamma=0.5)
    >>> rows = adder(b)
    >>> rows.obs, rows.reward, rows.next_obs, rows.discount
    (array([0, 1]), array([1.5, 1.5]), array([2, 3]), array([0.25, 0.25], dtype=float32))
    >>> [(rows.obs, rows.reward, rows.discount) for rows in adder.finish()]
    [(array([2]), array([1.]), array([0.5], dtype=float32))]
    """

    requires = ("fragments", "reward", *OF_LAST)
    provides = ("discount",)
    n: int
    gamma: float
    tails: dict[str, Batch] = state(factory=dict)
    open: dict[str, int] = state(factory=dict, added=True)  # windows, by stream

    @property
    def held_rows(self) -> int:
        """The steps whose windows are open."""
        return sum(self.open.values())

    def __attrs_post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n is {self.n}: a window holds at least 1 step")
        check_rates(gamma=self.gamma)

    def schema(self, given: Schema) -> Schema:
        _check_free("NStep", given.columns, ("discount",))
        windows = ("windows",) if self.n > 1 else ()
        rows = given.without("mask").rows().having(*windows, discount="float32[B]")
        if "mask" in given.columns or not {"T", "N"} <= given.most.keys():
            return rows
        # The end of an episode completes the windows that the fragment before left open.
        return attrs.evolve(rows, most={"B": (given.most["T"] + self.n - 1) * given.most["N"]})

    def __call__(self, batch: Batch) -> Batch:
        """The rows whose windows end in this fragment."""
        check_fragment("NStep", batch, needs=("reward", *OF_LAST), makes=("discount",))
        if self.n == 1 or not batch["reward"].shape[0]:
            terminated = np.asarray(batch["terminated"])
            discount = np.where(terminated, 0, discounts(batch, self.gamma)).astype(np.float32)
            return _without_steps(real_rows(batch.replace(discount=discount)))
        if of_seats(batch):
            return self._of_seats(*trajectories(*self._held(), batch))
        key, rows, before = _stream(batch), batch.to_numpy(), 0
        tail = self.tails.get(key)
        if tail is not None:
            before, envs = tail["reward"].shape
            if rows["reward"].shape[1] != envs:
                raise SchemaError(f"NStep got {rows['reward'].shape[1]} environments, after {envs} of the same stream")
            rows = Batch.cat([tail, rows])
        if "mask" not in rows:
            self.tails[key] = rows[np.arange(max(0, len(rows) - self.n + 1), len(rows))]  # a copy: a view keeps all
        return self._windows(rows, before, flush=False, stream=key)

    def finish(self) -> list[Batch]:
        """Flush at the end of the stream: open windows, shorter than n."""
        table, running = self._held()
        lost = [each._replace(open=False) for each in still_open(running)]
        flushed = [self._of_seats(table, lost)] if lost else []
        tails, self.tails, self.open = self.tails, {}, {}
        flushed += [self._windows(tail, len(tail), flush=True) for key, tail in tails.items() if key != _SEATS]
        return [rows for rows in flushed if not rows.is_empty]

    def _held(self) -> tuple[Batch, Held]:
        """The rows `[B, ...]` of seats that wait for their next fragment, as `trajectories` takes them."""
        rows = self.tails.get(_SEATS, Batch())
        counts = Counter(env_names(rows[None])) if rows else {}
        return rows, {seat: (count, count) for seat, count in counts.items()}

    def _of_seats(self, table: Batch, found: Sequence[Trajectory]) -> Batch:
        """The windows of each seat's steps, but for those that its next fragment completes."""
        columns = [each.rows for each in found]
        waiting = [each._replace(rows=each.rows[1 - self.n :]) for each in found if each.open]
        rows = side_by_side(table, columns, max(map(len, columns), default=0))
        ripe = rows["mask"].copy()
        for column, each in enumerate(found):
            if each.open:
                ripe[max(0, len(each.rows) - self.n + 1) :, column] = False
        self.tails[_SEATS], _ = hold(table, waiting)
        self.open[_SEATS] = self.tails[_SEATS].rows
        return self._windows(rows, 0, flush=False, among=ripe)

    def _windows(
        self, rows: Batch, before: int, *, flush: bool, among: Array | None = None, stream: str | None = None
    ) -> Batch:
        """The windows that the steps from `before` on closed, or with `flush` those still open; or `among` these."""
        reward, terminated = rows["reward"], rows["terminated"]
        length, envs = reward.shape
        flagged = (terminated != 0) | (rows["truncated"] != 0)
        ended = flagged.copy()
        ended[:-1] |= episode_breaks(rows)
        if "mask" in rows:
            ended[:-1] |= rows["mask"][1:] == 0
            ended[-1:] = True
        total, steps, discount = n_step(reward, terminated, ended, gamma=discounts(rows, self.gamma), n=self.n)
        last = np.arange(length)[:, None] + steps - 1
        closed = (steps == self.n) | ended[last, np.arange(envs)]
        if stream is not None:
            self.open[stream] = closed.size - int(np.count_nonzero(closed))
        if flush:
            emit = ~closed
        else:
            # An episode lost between two fragments was still open at the end of the first one.
            missing = (ended & ~flagged)[before - 1] if before else 0
            emit = closed & (last >= before - missing)
        if "mask" in rows:
            emit &= rows["mask"] != 0 if among is None else among
        start = np.flatnonzero(emit)  # time-major, then by environment
        flat, end = rows.flat(), last.ravel()[start] * envs + start % envs
        result: Batch = flat.select([name for name in flat if name not in OF_LAST])[start]
        result.update(flat.select(OF_LAST)[end])
        result.update(reward=total.ravel()[start], discount=discount.ravel()[start].astype(np.float32))
        return _without_steps(result)


def _without_steps(rows: Batch) -> Batch:
    """Rows of windows, without the discount of their first steps, which is part of `discount`."""
    return rows.select([name for name in rows if name != STEP_DISCOUNT]) if STEP_DISCOUNT in rows else rows


@operator
class GAE:
    """Generalized advantage estimates: fragments `[T, N, ...]` in, the same with `advantage` and `target` out.

    advantage is `flowrl.returns.gae` per environment (G1); target = advantage + value, before any normalization (G2).
    Both are float32.

    The trace stops where an episode ended or was lost (see `NStep`). Padded steps (`mask` 0) affect no other step's
    estimate and get 0.

    Args:
        gamma: discount per step; the column `step_discount`, that of a game's own steps, takes its place (M10).
        lam: 0 gives the one-step error, 1 the discounted return − value.

    Raises: SchemaError if a column is missing, advantages exist already, or steps are not in order.
    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", eq. 16.

    >>> no = np.zeros((2, 1), bool)
    >>> b = Batch(reward=[[1.0], [1.0]], value=[[0.0], [4.0]], next_value=[[4.0], [4.0]], terminated=no, truncated=no)
    >>> rows = GAE(gamma=0.5, lam=0.5)(b)
    >>> rows.advantage.tolist(), rows.target.tolist()
    ([[2.75], [-1.0]], [[2.75], [3.0]])
    """

    requires = ("fragments", *NEEDED)
    provides = ("advantage", "target")
    gamma: float
    lam: float
    pure = True

    def __attrs_post_init__(self) -> None:
        check_rates(gamma=self.gamma, lam=self.lam)

    def schema(self, given: Schema) -> Schema:
        _check_free("GAE", given.columns, ("advantage", "target"))
        return attrs.evolve(given.having(advantage="float32[T, N]", target="float32[T, N]"), most=given.most)

    def __call__(self, batch: Batch) -> Batch:
        """The fragment with advantages."""
        check_fragment("GAE", batch, needs=NEEDED, makes=("advantage", "target"))
        return with_advantages(batch, self.gamma, self.lam)


@operator
class VTrace:
    """Off-policy advantages by V-trace: fragments `[T, N, ...]` of older weights in, the same out.

    It evaluates the fragments with the learner's weights: `advantage` and `target` are those of
    `flowrl.returns.v_trace` per environment, float32; `value` and `next_value` become the learner's (V2). `logp`
    stays that of the policy that acted (V3, G7).

    Put it right before the learner: after the gather, and after `ConcatBatches`. The advantage includes its
    importance weight, so it fits a loss of log π · advantage, like A2C's. PPO's ratio is such a weight already: take
    `GAE` for PPO.

    The trace stops where an episode ended or was lost (see `NStep`). Padded steps (`mask` 0) affect no other step's
    estimate and get 0.

    Args:
        workers: Workers of the policy that learns, an actor-critic.
        gamma: discount per step. lam: 0 gives one-step targets.
        rho_bar, c_bar, rho_pg_bar: upper bounds of the weights of errors, traces and advantages; may be inf.

    Raises: SchemaError if a column is missing or advantages exist already; PlanError for a policy without values,
        and on a worker.
    Source: Espeholt et al. 2018, "IMPALA", section 4.1.
    """

    requires: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("fragments", *TRANSITION), ""),
        "logp": _NO_LOGP,
    }
    provides = ("advantage", "target", "corrected")
    workers: WorkerSet = attrs.field(validator=_has_values)
    gamma: float
    lam: float = 1.0
    rho_bar: float = 1.0
    c_bar: float = 1.0
    rho_pg_bar: float = 1.0
    context: Context = context()
    pure = True

    def __attrs_post_init__(self) -> None:
        check_rates(gamma=self.gamma, lam=self.lam)
        for name, limit in self._limits().items():
            if not limit > 0:
                raise ValueError(f"{name} is {limit}: expected an upper bound above 0")

    def _limits(self) -> dict[str, float]:
        return {"rho_bar": self.rho_bar, "c_bar": self.c_bar, "rho_pg_bar": self.rho_pg_bar}

    def schema(self, given: Schema) -> Schema:
        _check_free("VTrace", given.columns, ("advantage", "target"))
        return given.having(**dict.fromkeys(("advantage", "target", "value", "next_value"), "float32[T, N]"))

    def __call__(self, batch: Batch) -> Batch:
        """The fragment with advantages for the current weights."""
        if self.context.worker is not None:
            raise PlanError("VTrace needs the learner's weights, which a worker may lack: put it after the gather")
        check_fragment("VTrace", batch, needs=(*TRANSITION, "logp"), makes=("advantage", "target"))
        learn: Any = self.workers.policy.learn_mode
        corrected: Batch = learn.corrected(batch, gamma=self.gamma, lam=self.lam, **self._limits())
        return corrected


def _stream(batch: Batch) -> str:
    """The key of a worker's stream of environments; "" if the batch has none."""
    names = [name for name in STREAM if name in batch]
    return "/".join(np.asarray(batch[name][0]).tobytes().hex() for name in names)


def check_rates(**rates: float) -> None:
    """Raise unless the rates lie in 0 .. 1."""
    for name, rate in rates.items():
        if not 0 <= rate <= 1:
            raise ValueError(f"{name} is {rate}, expected a discount in 0 .. 1")


def check_fragment(name: str, batch: Batch, *, needs: Sequence[str], makes: Sequence[str] = ()) -> None:
    """Raise unless the adder of this name can use the batch."""
    for column in needs:
        if column not in batch:
            raise SchemaError(
                f"{name} needs the column {column!r}: {_WHY_MISSING.get(column) or did_you_mean(column, batch)}"
            )
    _check_free(name, batch, makes)
    if not is_fragment(batch):
        raise SchemaError(f"{name} needs fragments [T, N, ...] in the order of time, not {batch!r}")


def _check_free(name: str, columns: Container[str], makes: Sequence[str]) -> None:
    for column in makes:
        if column in columns:
            raise SchemaError(
                f"{name} makes the column {column!r}, which exists already: is there {_MAKERS[column]} before it?"
            )

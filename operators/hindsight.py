"""Hindsight: the goals that an episode did reach, as if they had been the ones to reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import GOALS, OF_LAST, episode_breaks
from flowrl.data.types import Array, Index
from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator
from flowrl.engine.schema import Schema
from flowrl.errors import SchemaError, did_you_mean
from flowrl.operators.adders import check_fragment, check_rates
from flowrl.returns import n_step

if TYPE_CHECKING:
    from flowrl.envs.goals import OfGoals

_NEEDED = ("obs", "reward", *OF_LAST)
#: What was estimated for the goal that was given, and would be wrong for another.
_OF_ONE_GOAL = ("value", "next_value", "advantage", "target")


@operator
class HindsightRelabel:
    """Whole episodes in, `[T, E, ...]` with a `mask`; their steps and k relabelled ones each out, `[B, ...]` (H1-H6).

    Observations are dictionaries with the parts `achieved_goal` and `desired_goal`, as those of gymnasium-robotics. A
    relabelled step has another `desired_goal`, one that its episode achieved, in `obs` and `next_obs` alike (H2). Its
    reward and termination are what `reward` and `terminated` say of the goal achieved with it (H3).

    With n > 1 all rows are n-step transitions, as `NStep` makes them, relabelled ones with one goal in all steps of
    the window. That ends at its first success, so where the goal was taken from at the latest: what follows was not
    done for this goal (H1). An end of the episode that is none for the new goal counts as a truncation.

    Args:
        reward, terminated: functions of (achieved_goal, desired_goal, info), `[B, ...]` each, that give `[B]`: the
            environment's own `compute_reward` and `compute_terminated`. The info is empty. One that gives a single
            number for all goals is asked about each by itself.
        gamma: discount per step.
        k: relabelled steps for each real one: the fraction of relabelled ones is k / (k + 1) (H6).
        strategy: which goals are drawn, uniformly, for a step: those achieved by it and the steps after it
            ("future"), by all of its episode ("episode"), or by the last one ("final").
        n: longest window, in steps.

    Emits: for each batch the real rows, then the relabelled ones. Columns that belong to one goal (value,
        advantage ...) are dropped.
    Draws: from the run's seed and the operator's path (D6).
    Raises: SchemaError where a needed column is missing, a column is no one episode, or a function gives another shape.
    Source: Andrychowicz et al. 2017, "Hindsight experience replay", section 3.

    >>> reached = lambda achieved, desired, info: (achieved == desired)[:, 0]
    >>> goals = lambda *at: {"achieved_goal": np.reshape(at, (-1, 1, 1)), "desired_goal": np.full((2, 1, 1), 9)}
    >>> episode = Batch(obs=goals(0, 1), next_obs=goals(1, 2), reward=np.zeros((2, 1)),
    ...                 terminated=np.zeros((2, 1), bool), truncated=np.array([[False], [True]]))
    >>> adder = HindsightRelabel(lambda *goals: reached(*goals).astype(float), reached, gamma=0.5, k=1)
    >>> rows = adder(episode)
    >>> rows.obs.desired_goal[:, 0], rows.reward, rows.discount
    (array([9, 9, 2, 2]), array([0., 0., 0., 1.]), array([0.5, 0.5, 0.5, 0. ], dtype=float32))
    """

    requires = ("episodes", *_NEEDED)
    provides = ("discount",)
    reward: OfGoals = attrs.field(repr=False)
    terminated: OfGoals = attrs.field(repr=False)
    gamma: float
    k: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    strategy: Literal["future", "episode", "final"] = attrs.field(
        default="future", validator=attrs.validators.in_(("future", "episode", "final"))
    )
    n: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    context: Context = context()

    def __attrs_post_init__(self) -> None:
        check_rates(gamma=self.gamma)

    def schema(self, given: Schema) -> Schema:
        if "scaled_rewards" in given.words:
            raise SchemaError("the rewards of relabelled steps are the environment's own: put ScaleRewards after it")
        for part in GOALS:
            if given.has("obs") and not given.has(f"obs.{part}"):
                raise SchemaError(f"HindsightRelabel needs {part!r} among the parts of 'obs', a dictionary")
        given = given.without("mask", "on_policy", "episodes", *_OF_ONE_GOAL)
        windows = ("windows",) if self.n > 1 else ()
        return given.rows().having(*windows, discount="float32[B]")

    def __call__(self, batch: Batch) -> Batch:
        """The rows of these episodes."""
        check_fragment("HindsightRelabel", batch, needs=_NEEDED, makes=("discount",))
        for name in ("obs", "next_obs"):
            _check_goals(name, batch[name])
        episodes = batch.to_numpy()
        lengths = _lengths(episodes)
        table = episodes.select([name for name in episodes if name not in ("mask", *_OF_ONE_GOAL)]).flat()
        time, episode = np.nonzero(np.arange(len(episodes))[:, None] < lengths)
        steps = _Steps(time, episode, lengths)
        real = self._real(table, steps)
        return Batch.cat([real, self._relabelled(table, steps.repeated(self.k))]) if real.rows else real

    def _real(self, table: Batch, steps: _Steps) -> Batch:
        window, stops = steps.windows(self.n)
        return self._transitions(table, window, table["reward"][window], table["terminated"][window] != 0, stops)

    def _relabelled(self, table: Batch, steps: _Steps) -> Batch:
        goal = table["next_obs"]["achieved_goal"][steps.rows(self._drawn(steps))]
        window, stops = steps.windows(self.n)
        achieved = table["next_obs"]["achieved_goal"][window]
        desired = np.broadcast_to(goal, achieved.shape)
        reward = _asked("reward", self.reward, achieved, desired)
        terminated = _asked("terminated", self.terminated, achieved, desired) != 0
        stops |= (achieved == desired).reshape(*window.shape, -1).all(-1)
        rows = self._transitions(table, window, reward, terminated, stops)
        for name in ("obs", "next_obs"):
            rows[name] = rows[name].replace(desired_goal=goal.astype(rows[name]["desired_goal"].dtype))
        return rows

    def _drawn(self, steps: _Steps) -> Index:
        """For each step the time of the one whose achieved goal becomes its goal."""
        if self.strategy == "final":
            return steps.lengths - 1
        first = steps.time if self.strategy == "future" else np.zeros_like(steps.time)
        return self.context.generator("goals").integers(first, steps.lengths)

    def _transitions(self, table: Batch, window: Index, reward: Array, terminated: Array, stops: Array) -> Batch:
        """Rows of the windows `[n, B]` of a table, given what happens in each of their steps."""
        total, steps, discount = n_step(reward, terminated, stops, gamma=self.gamma, n=self.n)
        last = (steps[0] - 1, np.arange(window.shape[1]))
        rows: Batch = table[window[0]]
        of_last = table.select(OF_LAST)[window[last]]
        ended = (of_last["terminated"] != 0) & ~terminated[last]
        rows.update(next_obs=of_last["next_obs"], terminated=terminated[last])
        rows.update(truncated=(of_last["truncated"] != 0) | ended)
        dtype = np.result_type(table["reward"], np.float32)
        rows.update(reward=total[0].astype(dtype), discount=discount[0].astype(np.float32))
        return rows


@attrs.frozen
class _Steps:
    """Some steps of episodes `[T, E]`, each `[B]`: at which time, in which episode, and of `lengths` how long."""

    time: Index
    episode: Index
    of_episodes: Index  #: `[E]`

    @property
    def lengths(self) -> Index:
        return self.of_episodes[self.episode]

    def repeated(self, k: int) -> _Steps:
        return _Steps(np.repeat(self.time, k), np.repeat(self.episode, k), self.of_episodes)

    def rows(self, time: Index) -> Index:
        """The numbers of rows `[T * E]`, time-major: of these episodes at other times."""
        return time * len(self.of_episodes) + self.episode

    def windows(self, n: int) -> tuple[Index, Array]:
        """The rows of these steps and those after them, `[n, B]`, and whether their episode stops at each."""
        time = self.time + np.arange(n)[:, None]
        return self.rows(np.minimum(time, self.lengths - 1)), time >= self.lengths - 1


def _lengths(episodes: Batch) -> Index:
    """How long the episodes `[T, E]` are; refuses what are none."""
    steps, count = episodes["reward"].shape
    lengths = np.full(count, steps)
    if "mask" in episodes:
        lengths = (episodes["mask"] != 0).sum(0)
    inside = np.arange(steps - 1)[:, None] < lengths - 1
    ended = (episodes["terminated"] != 0) | (episodes["truncated"] != 0)
    wrong = inside & (ended[:-1] | episode_breaks(episodes))
    if "mask" in episodes:
        wrong |= inside & (episodes["mask"][:-1] == 0)
    if wrong.any():
        raise SchemaError(
            f"HindsightRelabel needs whole episodes, one a column: column {int(wrong.any(0).argmax())} holds more than "
            "one, or padding before its end; put Episodes() before it"
        )
    return lengths


def _asked(name: str, function: OfGoals, achieved: Array, desired: Array) -> Array:
    """What a function of goals `[B, ...]` says of goals `[n, B, ...]`; one of single goals is asked for each."""
    shape, goal = achieved.shape[:2], achieved.shape[2:]
    achieved, desired = achieved.reshape(-1, *goal), desired.reshape(-1, *goal)
    said = np.asarray(function(achieved, desired, {}))
    if said.shape == ():  # as the `compute_terminated` of gymnasium-robotics
        said = np.array([function(*goals, {}) for goals in zip(achieved, desired)])
    if said.shape != (shape[0] * shape[1],):
        raise SchemaError(
            f"HindsightRelabel: {name}(achieved_goal, desired_goal, info) of {shape[0] * shape[1]} goals each must "
            f"give as many numbers, not an array of shape {list(said.shape)}"
        )
    return said.reshape(shape)


def _check_goals(name: str, obs: Any) -> None:
    for part in GOALS:
        if not isinstance(obs, Batch):
            raise SchemaError(f"HindsightRelabel needs {part!r} among the parts of {name!r}, a dictionary; got {obs!r}")
        if part not in obs:
            raise SchemaError(f"HindsightRelabel needs {part!r} among the parts of {name!r}: {did_you_mean(part, obs)}")

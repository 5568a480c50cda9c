"""Hindsight: relabels steps with goals that their episode reached."""

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
#: Columns estimated for the original goal, which would be wrong for another.
_OF_ONE_GOAL = ("value", "next_value", "advantage", "target")


@operator
class HindsightRelabel:
    """Whole episodes `[T, E, ...]` with a `mask` in; each step and k relabeled copies out, `[B, ...]` (H1-H6).

    Observations are dictionaries with the entries `achieved_goal` and `desired_goal`, like those of
    gymnasium-robotics. A relabeled step has a `desired_goal` that its episode achieved, in both `obs` and `next_obs`
    (H2). Its reward and termination are those of the functions `reward` and `terminated` (H3).

    With n > 1 all rows are n-step transitions, like those of `NStep`; a relabeled window has one goal in all steps. It
    ends at its first success, at the latest where the goal was achieved: later steps did not pursue this goal (H1).
    Where the episode ended by its own goal and the new one does not end it, the window counts as truncated; a failure,
    which ended it whatever the goal, is a termination of relabeled steps too.

    Args:
        reward, terminated: functions of (achieved_goal, desired_goal, info), `[B, ...]` each, to `[B]`: the
            environment's `compute_reward` and `compute_terminated`. The info is empty. A function that returns a
            single number for a batch of goals is called for each goal.
        gamma: discount per step.
        k: relabeled copies of each real step: their fraction is k / (k + 1) (H6).
        strategy: goals are drawn uniformly from those achieved by the step and later ones ("future"), by all steps
            of its episode ("episode"), or by the last step ("final").
        n: longest window, in steps.

    Emits: for each batch the real rows, then the relabeled ones. Drops columns that belong to one goal (value,
        advantage ...).
    Draws: goals, by the run's seed and the operator's path (D6).
    Raises: SchemaError if a column is missing, a column is not one episode, or a function returns a wrong shape.
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
            raise SchemaError("relabeled steps get raw rewards of the environment: put ScaleRewards after it")
        for part in GOALS:
            if given.has("obs") and not given.has(f"obs.{part}"):
                raise SchemaError(f"HindsightRelabel needs the entry {part!r} of 'obs', a dictionary")
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
        return Batch.cat([real, self._relabeled(table, steps.repeated(self.k))]) if real.rows else real

    def _real(self, table: Batch, steps: _Steps) -> Batch:
        window, stops = steps.windows(self.n)
        return self._transitions(table, window, table["reward"][window], table["terminated"][window] != 0, stops)

    def _relabeled(self, table: Batch, steps: _Steps) -> Batch:
        goal = table["next_obs"]["achieved_goal"][steps.rows(self._drawn(steps))]
        window, stops = steps.windows(self.n)
        achieved = table["next_obs"]["achieved_goal"][window]
        desired = np.broadcast_to(goal, achieved.shape)
        reward = _asked("reward", self.reward, achieved, desired)
        terminated = _asked("terminated", self.terminated, achieved, desired) != 0
        terminated |= self._failed(table)[window]
        stops |= (achieved == desired).reshape(*window.shape, -1).all(-1)
        rows = self._transitions(table, window, reward, terminated, stops)
        for name in ("obs", "next_obs"):
            rows[name] = rows[name].replace(desired_goal=goal.astype(rows[name]["desired_goal"].dtype))
        return rows

    def _failed(self, table: Batch) -> Array:
        """Which rows of a table ended their episode although their own goal did not: whatever the goal, they end it."""
        failed = np.asarray(table["terminated"] != 0)
        if failed.any():
            ended = table.select(["obs", "next_obs"])[failed][None]
            goals = ended["next_obs"]["achieved_goal"], ended["obs"]["desired_goal"]
            failed[failed] = _asked("terminated", self.terminated, *goals)[0] == 0
        return failed

    def _drawn(self, steps: _Steps) -> Index:
        """For each step, the time of the step whose achieved goal it gets."""
        if self.strategy == "final":
            return steps.lengths - 1
        first = steps.time if self.strategy == "future" else np.zeros_like(steps.time)
        return self.context.generator("goals").integers(first, steps.lengths)

    def _transitions(self, table: Batch, window: Index, reward: Array, terminated: Array, stops: Array) -> Batch:
        """The rows of windows `[n, B]` of a table, from the reward and ends of each of their steps."""
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
    """Steps of episodes `[T, E]`: their times and episodes, each `[B]`, and the `lengths` of their episodes."""

    time: Index
    episode: Index
    of_episodes: Index  #: `[E]`

    @property
    def lengths(self) -> Index:
        return self.of_episodes[self.episode]

    def repeated(self, k: int) -> _Steps:
        return _Steps(np.repeat(self.time, k), np.repeat(self.episode, k), self.of_episodes)

    def rows(self, time: Index) -> Index:
        """Indices of rows `[T * E]`, time-major: these episodes at other times."""
        return time * len(self.of_episodes) + self.episode

    def windows(self, n: int) -> tuple[Index, Array]:
        """The rows of the windows from these steps, `[n, B]`, and whether the episode stops at each."""
        time = self.time + np.arange(n)[:, None]
        return self.rows(np.minimum(time, self.lengths - 1)), time >= self.lengths - 1


def _lengths(episodes: Batch) -> Index:
    """The lengths of episodes `[T, E]`; raises unless each column is one episode."""
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
            f"HindsightRelabel needs whole episodes, one per column: column {int(wrong.any(0).argmax())} holds "
            "several, or padding before its end; put Episodes() before it"
        )
    return lengths


def _asked(name: str, function: OfGoals, achieved: Array, desired: Array) -> Array:
    """Apply a function of goals `[B, ...]` to goals `[n, B, ...]`; call a function of single goals for each."""
    shape, goal = achieved.shape[:2], achieved.shape[2:]
    achieved, desired = achieved.reshape(-1, *goal), desired.reshape(-1, *goal)
    try:
        said = np.asarray(function(achieved, desired, {}))
    except Exception as error:
        error.add_note(f"in {name}(achieved_goal, desired_goal, info) for {len(achieved)} goals; info is empty (H3)")
        raise
    if said.shape == ():  # like the `compute_terminated` of gymnasium-robotics
        said = np.array([function(*goals, {}) for goals in zip(achieved, desired)])
    if said.shape != (shape[0] * shape[1],):
        raise SchemaError(
            f"HindsightRelabel: {name}(achieved_goal, desired_goal, info) must return one number "
            f"for each of {shape[0] * shape[1]} goals, not an array of shape {list(said.shape)}"
        )
    return said.reshape(shape)


def _check_goals(name: str, obs: Any) -> None:
    for part in GOALS:
        if not isinstance(obs, Batch):
            raise SchemaError(f"HindsightRelabel needs the entry {part!r} of {name!r}, a dictionary; got {obs!r}")
        if part not in obs:
            raise SchemaError(f"HindsightRelabel needs the entry {part!r} of {name!r}: {did_you_mean(part, obs)}")

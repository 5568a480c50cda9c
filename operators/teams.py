"""Teams: the rows of agents that win or lose together, joined for one learner of all."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import ENDS, PROVENANCE
from flowrl.data.steps import real_rows
from flowrl.data.types import Array
from flowrl.engine.operator import operator, runtime
from flowrl.engine.schema import ColumnSchema, Schema
from flowrl.errors import SchemaError

log = logging.getLogger("flowrl")

#: The columns that identify a step of a game.
_STEP = tuple(name for name in PROVENANCE if name != "agent")
#: The columns that are the same for all agents of a team, and stay one number per row.
_SHARED = (*_STEP, *ENDS, "discount", "policy_version")
#: Rows with rewards after which a team that never gained anything is told.
REWARDED = 100
_WAY_OUT = "a team's agents act together in every step, from first to last; others learn as with the plan dqn or ippo"


def _names(given: Any) -> tuple[str, ...]:
    return tuple(map(str, given))


@operator
class JoinTeam:
    """The rows of a game's agents as those of their team: `[T, N, ...]` or `[B, ...]` in, `[B, A, ...]` out (M8).

    A row is one step of one game. Its `obs`, `action`, `next_obs` and whatever else differs from agent to agent are
    `[B, A, ...]`, in the order of `agents`. Its `reward [B]` is the mean of theirs, so that a reward which all of them
    get counts once. `terminated`, `truncated`, `discount` and provenance are those that all share; `agent` and `mask`
    go. Behind an `NStep`, a row is the same window of every agent.

    Put it where all agents' rows of a step are in one batch, as a worker or an `NStep` gives them.

    Args:
        agents: The names of all agents of the game, in the order of `possible_agents`: `workers.game_agents`.

    Emits: a row for each step, in the order in which the batch has them.
    Raises: SchemaError, naming the agent: one has no row in a step of the others, or another end than they.
    Source: Oliehoek & Amato 2016, "A Concise Introduction to Decentralized POMDPs", section 2.2, of joint actions.

    >>> seats = Batch(reward=[[1.0, 3.0]], action=[[0, 7]], agent=[[0, 1]], env_id=[[0, 0]], episode_id=[[0, 0]],
    ...               t=[[0, 0]], terminated=[[True, True]], truncated=[[False, False]])
    >>> rows = JoinTeam(["left", "right"])(seats)
    >>> rows.action, rows.reward, rows.terminated
    (array([[0, 7]]), array([2.]), array([ True]))
    """

    requires: ClassVar[Mapping[str, str]] = {
        "agent": "collect in a game of several agents",
        **dict.fromkeys(("reward", "env_id", "episode_id", "t", *ENDS), ""),
    }
    provides = ("team",)
    agents: tuple[str, ...] = attrs.field(converter=_names)
    pure = True
    #: Rows in which agents gained something, but together nothing; None: they have gained something together.
    _opposed: int | None = runtime(default=0)

    def __attrs_post_init__(self) -> None:
        if not self.agents:
            raise ValueError("agents is empty: name those of the team")

    def schema(self, given: Schema) -> Schema:
        rows = given.without("mask", "agent").rows()
        columns = {
            name: column
            if name in _SHARED or name == "reward"
            else ColumnSchema(column.dtype, ("B", len(self.agents), *column.shape[1:]))
            for name, column in rows.columns.items()
        }
        return attrs.evolve(rows, columns=columns, words=rows.words | {"team"})

    def __call__(self, batch: Batch) -> Batch:
        """The rows of the team."""
        for name, why in self.requires.items():
            if name not in batch:
                raise SchemaError(f"JoinTeam needs the column {name!r}: {why or 'as collected rows have it'}")
        rows = real_rows(batch.to_numpy())
        joint: Batch = rows[self._together(rows)]
        joint.update({name: self._shared(name, joint) for name in _SHARED if name in joint})
        self._watch(joint["reward"])
        joint["reward"] = joint["reward"].mean(1)
        return joint.select([name for name in joint if name not in ("agent", "mask")])

    def _watch(self, rewards: Array) -> None:
        """Say once if in the first `REWARDED` rows with rewards agents gain what other ones lose."""
        if self._opposed is None or not (rewarded := rewards.any(1)).any():
            return
        if not np.allclose(rewards.sum(1), 0, atol=1e-6 * np.abs(rewards).max()):
            self._opposed = None
        elif (seen := self._opposed + int(np.count_nonzero(rewarded))) < REWARDED:
            self._opposed = seen
        else:
            self._opposed = None
            log.warning(
                "the rewards of %s add up to 0 in each of the first %d rows that have any, so that there is nothing to "
                "learn for all of them as one team: name the agents of yours, as in team=%s",
                *(", ".join(self.agents), seen, [self.agents[0]]),
            )

    def _together(self, rows: Batch) -> Array:
        """`[B, A]`: the index of each agent's row of each step."""
        everyone, agent = np.arange(len(self.agents)), rows["agent"]
        steps = np.stack([rows[name] for name in _STEP if name in rows], 1)
        _, first, step = np.unique(steps, axis=0, return_index=True, return_inverse=True)
        step = first[step.reshape(-1)]  # numbered by their first row, so that they stay in the order of the batch
        order: Array = np.lexsort((agent, step))
        if len(order) != len(first) * len(everyone) or (agent[order].reshape(-1, len(everyone)) != everyone).any():
            here = ((at, np.sort(agent[step == at])) for at in np.sort(first).tolist())
            raise self._unlike(*next((rows[at], who) for at, who in here if not np.array_equal(who, everyone)))
        return order.reshape(-1, len(everyone))

    def _unlike(self, row: Batch, here: Array) -> SchemaError:
        where, found = _place(row), here.tolist()
        if found[-1] >= len(self.agents):
            known = ", ".join(self.agents)
            return SchemaError(f"JoinTeam: agent number {found[-1]} acts in {where}, but the team has {known} alone")
        for number, name in enumerate(self.agents):
            if number not in found:
                acting = self.agents[found[0]]
                return SchemaError(f"JoinTeam: agent {name!r} has no row of {where}, but {acting!r} has: {_WAY_OUT}")
        twice = next(name for number, name in enumerate(self.agents) if found.count(number) > 1)
        return SchemaError(f"JoinTeam: agent {twice!r} has several rows of {where}, expected one")

    def _shared(self, name: str, joint: Batch) -> Array:
        """The column `[B, A]` of all as that of the team, `[B]`."""
        column: Array = joint[name]
        for row, at in np.argwhere(column != column[:, :1]).tolist():
            raise SchemaError(
                f"JoinTeam: {name} of agent {self.agents[at]!r} is {column[row, at]} in {_place(joint[row, at])}, and "
                f"{column[row, 0]} of {self.agents[0]!r}: {_WAY_OUT}"
            )
        return column[:, 0]


def _place(row: Batch) -> str:
    return f"step {row['t']} of episode {row['episode_id']} of game {row['env_id']}"

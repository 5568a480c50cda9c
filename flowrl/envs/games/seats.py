"""GameEnv: a game as one gymnasium environment, so that every manager steps, times, saves and replaces it (M1)."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Any

import attrs
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import batch_space

from flowrl.data.batch import Batch
from flowrl.data.columns import ACTION_MASK
from flowrl.data.finite import EXPECTED, LARGEST
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.infos import RecordsEpisodes, checked_info, episode_of, success_of
from flowrl.envs.masks import ActionsOfMany, check_mask, valid_sample
from flowrl.envs.spaces import (
    Observations,
    array_form,
    check_observations,
    dict_form,
    make_store,
    no_reward,
    row_shape,
    write_row,
)
from flowrl.errors import ConfigError, SchemaError

#: The key of the table of seats in the observation of a `GameEnv`; the others are kinds of agents.
TABLE = "seats"
#: The name of the game itself among those of its agents, as in `Episode.agent`.
WHOLE = ""


class Of(IntEnum):
    """The columns of the table `[agents, len(Of)]`, float64: what the newest step means for each agent's seat.

    - TURN: whether it acts next. ANSWERED: whether its last action has its answer now, a transition.
    - REWARD: with an answer, all that it gained since its last one (M1), before its first action too.
    - TERMINATED, TRUNCATED: whether its episode has ended in this step; without an answer if it never acted.
    - RETURN: all that it gained in this episode. SUCCESS: that of its end, from then on; -1 where nobody said.
    - DISCOUNT: with an answer, what all that follows counts; the column is there in games with `discounts` only.
    """

    TURN = 0
    ANSWERED = 1
    REWARD = 2
    TERMINATED = 3
    TRUNCATED = 4
    RETURN = 5
    SUCCESS = 6
    DISCOUNT = 7


#: The columns as plain numbers, which index faster.
TURN, ANSWERED, REWARD, TERMINATED, TRUNCATED, RETURN, SUCCESS, DISCOUNT = map(int, Of)


@attrs.frozen
class Kind:
    """Agents with the same spaces: their observations are one stack of arrays."""

    name: str
    agents: tuple[str, ...]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@attrs.frozen
class Seating:
    """The agents of a game, and where each one's observation and action is in those of a `GameEnv`.

    Raises: ConfigError: no agents, an agent twice or without a space, spaces that are not arrays, or a mask that does
    not fit the actions.
    """

    agents: tuple[str, ...]
    kinds: tuple[Kind, ...]
    action_slices: Mapping[str, slice]
    discounts: bool = False
    instant: tuple[str, ...] = ()

    @classmethod
    def of(cls, game: Game) -> Seating:
        """The seating of a game."""
        named = game.possible_agents
        agents = tuple(named or ())
        if not agents or len(set(agents)) < len(agents) or not all(isinstance(agent, str) for agent in agents):
            raise ConfigError(f"{game}: possible_agents is {named!r}, expected the names of its agents, each once")
        for what, by_agent in (("observation_spaces", game.observation_spaces), ("action_spaces", game.action_spaces)):
            if missing := [agent for agent in agents if agent not in by_agent]:
                raise ConfigError(f"{game}: {what} has no entry for agent {missing[0]!r}")
        kinds: list[Kind] = []
        slices: dict[str, slice] = {}
        taken = 0
        for agent in agents:
            spaces = dict_form(game.observation_spaces[agent]), game.action_spaces[agent]
            try:
                check_observations(spaces[0])
                make_store(spaces[0], 0)
                size = math.prod(array_form(spaces[1], "action")[0])
                check_mask(*spaces)
            except ConfigError as error:
                raise ConfigError(f"{game}, agent {agent!r}: {error}") from None
            slices[agent] = slice(taken, taken + size)
            taken += size
            for at, kind in enumerate(kinds):
                if (kind.observation_space, kind.action_space) == spaces:
                    kinds[at] = attrs.evolve(kind, agents=(*kind.agents, agent))
                    break
            else:
                kinds.append(Kind(f"kind_{len(kinds)}", (agent,), *spaces))
        for agent in game.instant:
            if agent not in agents:
                raise ConfigError(f"{game}: instant names {agent!r}, which is not in possible_agents")
        return cls(agents, tuple(kinds), slices, game.discounts, tuple(game.instant))

    @property
    def observation_space(self) -> gymnasium.spaces.Dict:
        """The space of a `GameEnv`: the stacked observations of each kind, and the table."""
        stacks = {}
        for kind in self.kinds:
            one = copy.deepcopy(kind.observation_space)
            one.seed(0)  # batch_space copies its generator, which would otherwise begin anywhere, into states
            stacks[kind.name] = batch_space(one, len(kind.agents))
        shape = (len(self.agents), self.columns)
        return gymnasium.spaces.Dict({**stacks, TABLE: gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float64)})

    @property
    def columns(self) -> int:
        """The number of columns of the table."""
        return len(Of) if self.discounts else DISCOUNT

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """All agents' actions as one row of numbers: int64 if all are, else float64, exact up to 2^53."""
        return _Actions(self)

    def kind_of(self, agent: str) -> Kind:
        """The kind of an agent."""
        return next(kind for kind in self.kinds if agent in kind.agents)


class _Actions(ActionsOfMany):
    """The actions of a `GameEnv`; samples are of each agent's own space, which `seed` seeds."""

    def __init__(self, seating: Seating) -> None:
        self._seating = seating
        size = max(taken.stop for taken in seating.action_slices.values())
        numbers = [array_form(kind.action_space, "action")[1] for kind in seating.kinds]
        super().__init__(-np.inf, np.inf, (size,), np.result_type(np.int64, *numbers).type)

    def seed(self, seed: Any = None) -> Any:
        """Seed each agent's space."""
        for at, kind in enumerate(self._seating.kinds):
            kind.action_space.seed(None if seed is None else seed + at)
        return super().seed(seed)

    def sample(self, mask: None = None, probability: None = None) -> npt.NDArray[Any]:
        """Random actions of all."""
        return self.sample_for({})

    def sample_for(self, obs: Any) -> npt.NDArray[Any]:
        """See `ActionsOfMany`; of agents whose turn it is not, the action is random or, without any valid, 0."""
        row = np.zeros(self.shape, self.dtype)
        for kind in self._seating.kinds:
            stack = obs.get(kind.name)
            for at, agent in enumerate(kind.agents):
                own = {key: part[at] for key, part in stack.items()} if isinstance(stack, Mapping) else {}
                if np.any(own.get(ACTION_MASK, True)):
                    row[self._seating.action_slices[agent]] = np.ravel(valid_sample(kind.action_space, own))
        return row


class Seat:
    """Where the observation of one agent goes, and its part of an action is."""

    def __init__(self, at: int, store: Observations, row: int, part: slice, action_space: gymnasium.Space[Any]) -> None:
        self.at = at
        self._store, self._row, self._part = store, row, part
        self._action_shape, self._action_dtype = array_form(action_space, "action")
        self._look()

    def _look(self) -> None:
        """Views of its rows, which are written faster; a copy has its own."""
        store = self._store
        self._shape = row_shape(store)
        self._view: Any = store[self._row, ...] if isinstance(store, np.ndarray) else None
        self._dtype = store.dtype if isinstance(store, np.ndarray) else None
        parts = dict(store.items()) if isinstance(store, Batch) else {}
        flat = all(isinstance(column, np.ndarray) for column in parts.values())
        views = {name: column[self._row, ...] for name, column in parts.items()} if flat else {}
        self._views = [(name, view, view.shape, view.dtype) for name, view in views.items()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": None, "_view": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._look()

    def see(self, obs: Any) -> int:
        """Keep an observation; returns `at`. Raises: SchemaError if its space has no such."""
        array = np.ndarray
        if type(obs) is array:
            if obs.dtype is self._dtype and obs.shape == self._shape:
                self._view[...] = obs
                return self.at
        elif type(obs) is dict and len(obs) == len(self._views):
            for name, view, shape, dtype in self._views:
                part = obs.get(name)
                if type(part) is not array or part.shape != shape or part.dtype is not dtype:
                    break
                view[...] = part
            else:
                return self.at
        write_row(obs, self._store, self._row, self._shape)  # slower, and says what is wrong
        return self.at

    def action(self, actions: npt.NDArray[Any]) -> Any:
        """The agent's action in one of all."""
        if self._action_shape:
            return actions[self._part].astype(self._action_dtype).reshape(self._action_shape)
        if actions.dtype is self._action_dtype:
            return actions[self._part.start]
        return self._action_dtype.type(actions.item(self._part.start))


class GameEnv(gymnasium.Env[dict[str, Any], Any], RecordsEpisodes):
    """A game as one environment: observations `{kind: [agents of it, ...], "seats": [agents, columns of Of]}`.

    An agent's reward is what it gains from its action to its next turn, or to its end (M1), discounted by the game if
    that has `discounts` (M10). An agent whose episode ended is not asked again before the next game. Its action space
    holds all agents' actions in one row; those whose turn it is not are not read.

    Raises: SchemaError, naming the agent, for an answer of the game that contradicts its contract.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.seating = Seating.of(game)
        self.observation_space, self.action_space = self.seating.observation_space, self.seating.action_space
        self.metadata, self.render_mode = dict(game.metadata), game.render_mode
        self._stores = {kind.name: make_store(kind.observation_space, len(kind.agents)) for kind in self.seating.kinds}
        self._table = np.zeros((len(self.seating.agents), self.seating.columns))
        self._sit()
        self._gained = [0.0] * len(self._seats)  # since the last answer
        self._discount = [1.0] * len(self._seats)  # of what comes next, since the last action
        self._turn: list[str] = []
        self._open: set[str] = set()  # agents whose last action has no answer yet
        self._ended: set[str] = set()
        self._seed: int | None = None
        self._steady = False  # whether the table has it that those whose turn it is were answered, and nobody else
        self._row: Batch | None = None

    def _sit(self) -> None:
        """Write there from now on where the arrays are now."""
        self._cells: Any = memoryview(self._table)  # type: ignore[arg-type]  # faster to write one by one
        self._seats: dict[str, Seat] = {}
        for at, agent in enumerate(self.seating.agents):
            kind = self.seating.kind_of(agent)
            own = self.seating.action_slices[agent], kind.action_space
            self._seats[agent] = Seat(at, self._stores[kind.name], kind.agents.index(agent), *own)

    def write_into(self, row: Batch) -> None:
        """Keep the observation in this memory from now on, which `reset` and `step` then return, not a copy."""
        for name, store in {**self._stores, TABLE: self._table}.items():
            row[name][:] = store
        self._stores = {name: _renamed(row[name], store) for name, store in self._stores.items()}
        self._table, self._row = row[TABLE], row
        self._sit()

    def __getstate__(self) -> dict[str, Any]:
        own_memory = {"_row": None, "_cells": None, "_seats": None}
        in_order = {"_open": sorted(self._open), "_ended": sorted(self._ended)}  # equal states have equal bytes (D5)
        return {**self.__dict__, **own_memory, **in_order}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_standing" in state:  # its name when it had no more than what outlasts a step
            state = {**state, "_table": state["_standing"], "_steady": False, "_row": None}
        if "_discount" not in state:  # of before games had discounts
            state = {**state, "seating": Seating.of(state["game"]), "_discount": [1.0] * len(state["_gained"])}
        self.__dict__.update(state, _open=set(state["_open"]), _ended=set(state["_ended"]))
        self._sit()

    def __str__(self) -> str:
        return f"{self.game}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Begin a game; without a seed, with the one that follows from the last game's."""
        if seed is None:
            seed = int(np.random.default_rng(self._seed).integers(2**31))
        self._seed = seed
        self._open, self._ended = set(), set()
        self._gained, self._discount = [0.0] * len(self._seats), [1.0] * len(self._seats)
        self._table[:] = 0.0
        self._table[:, SUCCESS] = -1.0
        self._steady = False
        for store in self._stores.values():
            store[:] = 0
        obs = self.game.reset(seed)
        if not isinstance(obs, Mapping):
            raise SchemaError(
                f"{self.game}: reset() returned a {type(obs).__name__}, expected the observations of who acts first"
            )
        self._see(obs)
        if not obs:
            raise SchemaError(f"{self.game}: nobody acts first: reset() returned no observation")
        self._let_act(list(obs))
        return self._observation(), {}

    def step(self, action: npt.NDArray[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play the actions of those whose turn it is; the reward is that of all agents together."""
        acting, seats, table = self._turn, self._seats, self._table
        actions = {}
        for agent in acting:  # faster than a comprehension
            actions[agent] = seats[agent].action(action)
        turn = self.game.step(actions)
        if not isinstance(turn, Turn):
            raise SchemaError(f"{self.game}: step() returned a {type(turn).__name__}, expected a Turn")
        obs, rewards, terminated, truncated, info, discount = turn
        alike = self._steady and not (terminated or truncated or discount) and list(obs) == acting == list(rewards)
        if alike and (gained := self._go_on(obs, rewards)) is not None:
            return self._observation(), gained, False, False, {}
        self._see(obs)
        if self.seating.discounts:
            for agent in acting:
                self._discount[seats[agent].at] = 1.0
        total = self._gain(rewards) if rewards else 0.0
        if discount:
            self._lessen(discount)
        opened, kept = self._open, self._gained
        steady = bool(obs) and not (terminated or truncated or opened) and list(obs) == acting
        table[:, :RETURN] = 0.0
        if self.seating.discounts:
            table[:, DISCOUNT] = 0.0
        self._steady = steady and not self.seating.discounts
        over: Collection[str] = self._end(turn) if terminated or truncated else ()
        opened.update(acting)
        self._let_act([agent for agent in obs if agent not in over] if over else list(obs))
        if not self._turn and (left := opened.difference(over)):
            raise SchemaError(
                f"{self.game}: nobody acts next, but agent {min(left)!r} has neither terminated nor been truncated"
            )
        for agent in [agent for agent in opened if agent in obs or agent in over]:
            at = seats[agent].at
            table[at, ANSWERED] = 1.0
            if self.seating.discounts:
                table[at, DISCOUNT] = self._discount[at]
            table[at, REWARD] = kept[at]
            kept[at] = 0.0
            opened.remove(agent)
        finished = not self._turn
        cut_short = finished and bool(table[:, TRUNCATED].any())
        of_game = dict(info.get(WHOLE, {})) if finished and info else {}
        if isinstance(record := of_game.pop("episode", None), Mapping):  # of the game, see `Turn`
            self.ended = episode_of({"t": 0.0, **record})
        return self._observation(), total, finished and not cut_short, cut_short, of_game

    def _go_on(self, obs: Mapping[str, Any], rewards: Mapping[str, float]) -> float | None:
        """A step after one like it, in which the same agents act, gain and act next; returns all that they gain.

        None where a reward is not one to learn from.
        """
        seats, cells, total, agent = self._seats, self._cells, 0.0, ""
        try:
            for agent, seen in obs.items():
                at = seats[agent].see(seen)
                gain = float(rewards[agent])
                if not -LARGEST <= gain <= LARGEST:
                    return None
                cells[at, REWARD] = gain
                cells[at, RETURN] += gain
                total += gain
        except SchemaError as error:
            raise SchemaError(f"{self.game}, agent {agent!r}: {error}") from None
        except (TypeError, ValueError):
            return None
        return total

    def render(self) -> Any:
        """The rendering of the game."""
        return self.game.render()

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _see(self, obs: Mapping[str, Any]) -> None:
        for agent, seen in obs.items():
            if (seat := self._seats.get(agent)) is None:
                raise self._stranger(agent, "an observation")
            try:
                seat.see(seen)
            except SchemaError as error:
                raise SchemaError(f"{self.game}, agent {agent!r}: {error}") from None

    def _gain(self, rewards: Mapping[str, float]) -> float:
        total, own = 0.0, None
        for agent, reward in rewards.items():
            seat = self._seats.get(agent)
            if seat is None and agent != WHOLE:
                raise self._stranger(agent, "a reward")
            try:
                gain = float(reward)
            except (TypeError, ValueError):
                raise no_gain(self.game, agent, reward) from None
            if not -LARGEST <= gain <= LARGEST:
                raise SchemaError(f"{self.game}, agent {agent!r}: the reward is {gain}, {EXPECTED}")
            if seat is None:
                own = gain
                continue
            if gain and agent in self._ended:
                raise SchemaError(
                    f"{self.game}: agent {agent!r} gets a reward of {gain} after its end: give it in the step in "
                    "which it ends, or end it later (M1)"
                )
            at = seat.at
            self._gained[at] += self._discount[at] * gain
            self._table[at, RETURN] += gain
            total += gain
        return total if own is None else own

    def _lessen(self, discounts: Mapping[str, float]) -> None:
        if not self.seating.discounts:
            raise SchemaError(f"{self.game}: step() returned a discount: set discounts = True in the class (M10)")
        for agent, discount in discounts.items():
            if agent not in self._seats:
                raise self._stranger(agent, "a discount")
            if not 0 <= discount <= 1:
                raise SchemaError(f"{self.game}, agent {agent!r}: the discount is {discount}, expected 0 to 1")
            self._discount[self._seats[agent].at] *= discount

    def _end(self, turn: Turn) -> set[str]:
        over: set[str] = set()
        table = self._table
        truncated = turn.truncated, TRUNCATED, TERMINATED
        terminated = turn.terminated, TERMINATED, TRUNCATED
        check_ends(self.game, turn)
        for agents, column, other in (truncated, terminated):
            for agent in agents:
                if agent not in self._seats:
                    raise self._stranger(agent, "an end")
                if agent not in self._ended:
                    at = self._seats[agent].at
                    over.add(self.seating.agents[at])
                    table[at, column], table[at, other] = 1.0, 0.0  # terminated comes last: it wins (T4)
        for agent in over:
            if agent in turn.info:
                table[self._seats[agent].at, SUCCESS] = success_of(checked_info(turn.info[agent]))
        self._ended |= over
        return over

    def _let_act(self, agents: list[str]) -> None:
        # By the seating's names, not by equal ones of the game, so that the bytes of equal states are equal (D5).
        self._turn = [self.seating.agents[self._seats[agent].at] for agent in agents]
        for agent in agents:
            if agent in self._ended:
                raise revived(self.game, agent)
            self._table[self._seats[agent].at, TURN] = 1.0

    def _stranger(self, agent: str, what: str) -> SchemaError:
        return SchemaError(
            f"{self.game} gives {what} for agent {agent!r}, which is not in possible_agents "
            f"({', '.join(self.seating.agents)}): list there all that may ever act"
        )

    def _observation(self) -> Any:
        if self._row is not None:
            return self._row
        obs = {name: _copy(store) for name, store in self._stores.items()}
        obs[TABLE] = self._table.copy()
        return obs


def check_ends(game: Game, turn: Turn) -> None:
    """Raises: SchemaError if a turn does not list the names of those whose episode ends."""
    for name, agents in (("terminated", turn.terminated), ("truncated", turn.truncated)):
        if isinstance(agents, Mapping | str) or not isinstance(agents, Collection):
            raise SchemaError(f"{game}: {name} is a {type(agents).__name__}, expected the names of those who end now")


def no_gain(game: Game, agent: str, reward: Any) -> SchemaError:
    """The error for an agent's reward that is not one number."""
    return SchemaError(f"{game}, agent {agent!r}: {no_reward(reward)}")


def revived(game: Game, agent: str) -> SchemaError:
    """The error for an agent that shall act after its end."""
    return SchemaError(f"{game}: agent {agent!r} has ended, but has an observation to act from (M1)")


def _renamed(store: Observations, like: Observations) -> Observations:
    """The arrays of a store by the equal names of another one, so that equal states have equal bytes (D5)."""
    if not isinstance(like, Batch):
        return store
    return Batch({name: _renamed(store[name], part) for name, part in like.items()})


def _copy(store: Observations) -> Any:
    """As `plain_copy` does, faster for small stores."""
    return {name: _copy(part) for name, part in store.items()} if isinstance(store, Batch) else store.copy()

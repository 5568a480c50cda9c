"""SeatsEnv: a game as one gymnasium environment, so that every manager steps, times, saves and replaces it (M1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import attrs
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import batch_space

from flowrl.envs.games.game import Game
from flowrl.envs.spaces import (
    array_form,
    check_observations,
    dict_form,
    make_store,
    no_reward,
    plain_copy,
    row_shape,
    write_row,
)
from flowrl.errors import ConfigError, SchemaError

#: The key of the table of seats in the observation of a `SeatsEnv`; the others are kinds of agents.
TABLE = "seats"


class Of(IntEnum):
    """The columns of the table `[agents, len(Of)]`, float64: what the newest step means for each agent's seat.

    - TURN: whether it acts next. ANSWERED: whether its last action has its answer now, a transition.
    - REWARD: with an answer, all that it gained since that action (M1).
    - TERMINATED, TRUNCATED: whether its episode has ended in this step.
    - RETURN: all that it gained in this episode. SUCCESS: -1 where nobody said.
    """

    TURN = 0
    ANSWERED = 1
    REWARD = 2
    TERMINATED = 3
    TRUNCATED = 4
    RETURN = 5
    SUCCESS = 6


@attrs.frozen
class Kind:
    """Agents with the same spaces: their observations are one stack of arrays."""

    name: str
    agents: tuple[str, ...]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@attrs.frozen
class Seating:
    """The agents of a game, and where each one's observation and action is in those of a `SeatsEnv`.

    Raises: ConfigError: no agents, an agent twice or without a space, or spaces that are not arrays.
    """

    agents: tuple[str, ...]
    kinds: tuple[Kind, ...]
    action_slices: Mapping[str, slice]

    @classmethod
    def of(cls, game: Game) -> Seating:
        """The seating of a game."""
        agents = tuple(game.possible_agents)
        if not agents or len(set(agents)) < len(agents) or not all(isinstance(agent, str) for agent in agents):
            raise ConfigError(f"{game}: possible_agents is {agents!r}, expected the names of its agents, each once")
        for what in ("observation_spaces", "action_spaces"):
            if missing := [agent for agent in agents if agent not in getattr(game, what)]:
                raise ConfigError(f"{game}: {what} has no entry for agent {missing[0]!r}")
        kinds: list[Kind] = []
        slices: dict[str, slice] = {}
        for agent in agents:
            spaces = dict_form(game.observation_spaces[agent]), game.action_spaces[agent]
            try:
                check_observations(spaces[0])
                size = int(np.prod(array_form(spaces[1], "action")[0]))
            except ConfigError as error:
                raise ConfigError(f"{game}, agent {agent!r}: {error}") from None
            start = max((taken.stop for taken in slices.values()), default=0)
            slices[agent] = slice(start, start + size)
            for at, kind in enumerate(kinds):
                if (kind.observation_space, kind.action_space) == spaces:
                    kinds[at] = attrs.evolve(kind, agents=(*kind.agents, agent))
                    break
            else:
                kinds.append(Kind(f"kind_{len(kinds)}", (agent,), *spaces))
        return cls(agents, tuple(kinds), slices)

    @property
    def observation_space(self) -> gymnasium.spaces.Dict:
        """The space of a `SeatsEnv`: the stacked observations of each kind, and the table."""
        stacks = {kind.name: batch_space(kind.observation_space, len(kind.agents)) for kind in self.kinds}
        shape = (len(self.agents), len(Of))
        return gymnasium.spaces.Dict({**stacks, TABLE: gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float64)})

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """All agents' actions as one row of numbers, which float64 holds exactly up to 2^53."""
        size = max(taken.stop for taken in self.action_slices.values())
        return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)

    def kind_of(self, agent: str) -> Kind:
        """The kind of an agent."""
        return next(kind for kind in self.kinds if agent in kind.agents)


class SeatsEnv(gymnasium.Env[dict[str, Any], npt.NDArray[np.float64]]):
    """A game as one environment: observations `{kind: [agents of it, ...], "seats": [agents, len(Of)]}`.

    An agent's reward is what it gains from its action to its next turn, or to its end (M1). An agent whose episode
    ended is not asked again before the next game. Its action space holds all agents' actions in one row; those whose
    turn it is not are not read.

    Raises: SchemaError, naming the agent, for an answer of the game that contradicts its contract.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.seating = Seating.of(game)
        self.observation_space, self.action_space = self.seating.observation_space, self.seating.action_space
        self.metadata, self.render_mode = dict(getattr(game, "metadata", {})), getattr(game, "render_mode", None)
        self._stores = {kind.name: make_store(kind.observation_space, len(kind.agents)) for kind in self.seating.kinds}
        shapes = {name: row_shape(store) for name, store in self._stores.items()}
        self._place = {
            agent: (kind.name, at, shapes[kind.name])
            for kind in self.seating.kinds
            for at, agent in enumerate(kind.agents)
        }
        self._index = {agent: at for at, agent in enumerate(self.seating.agents)}
        self._forms = {agent: array_form(game.action_spaces[agent], "action") for agent in self.seating.agents}
        self._turn: list[str] = []
        self._open: set[str] = set()  # agents whose last action has no answer yet
        self._ended: set[str] = set()
        self._gained = dict.fromkeys(self.seating.agents, 0.0)  # since the last answer
        self._returns = dict.fromkeys(self.seating.agents, 0.0)

    def __str__(self) -> str:
        return f"{self.game}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Begin a game."""
        super().reset(seed=seed)
        self._open, self._ended = set(), set()
        self._gained = dict.fromkeys(self._gained, 0.0)
        self._returns = dict.fromkeys(self._returns, 0.0)
        for store in self._stores.values():
            store[:] = 0
        obs = self.game.reset(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._see(obs)
        table = np.zeros((len(self._index), len(Of)))
        self._let_act(list(obs), table)
        if not self._turn:
            raise SchemaError(f"{self.game}: nobody acts first: reset() returned no observation")
        return self._observation(table), {}

    def step(self, action: npt.NDArray[np.float64]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Play the actions of those whose turn it is; the reward is that of all agents together."""
        acting = self._turn
        turn = self.game.step({agent: self._action(agent, action) for agent in acting})
        self._open.update(acting)
        self._see(turn.obs)
        table = np.zeros((len(self._index), len(Of)))
        total = self._gain(turn.reward)
        over = self._end(turn, table)
        self._let_act([agent for agent in turn.obs if agent not in over], table)
        if not self._turn and (left := self._open - over):
            raise SchemaError(
                f"{self.game}: nobody acts next, but agent {min(left)!r} has neither terminated nor been truncated"
            )
        for agent in [agent for agent in self._open if agent in over or agent in self._turn]:
            table[self._index[agent], (Of.ANSWERED, Of.REWARD)] = 1.0, self._gained[agent]
            self._gained[agent] = 0.0
            self._open.discard(agent)
        table[:, Of.RETURN] = list(self._returns.values())
        table[:, Of.SUCCESS] = -1.0
        for agent in over:
            success = turn.info.get(agent, {}).get("is_success")
            if success is not None:
                table[self._index[agent], Of.SUCCESS] = bool(success)
        finished = not self._turn
        cut_short = finished and bool(set(turn.truncated) - set(turn.terminated))
        return self._observation(table), total, finished and not cut_short, cut_short, {}

    def render(self) -> Any:
        """The rendering of the game."""
        return self.game.render()

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _action(self, agent: str, action: npt.NDArray[np.float64]) -> Any:
        shape, dtype = self._forms[agent]
        own = action[self.seating.action_slices[agent]]
        return own.astype(dtype).reshape(shape) if shape else own.astype(dtype)[0]

    def _see(self, obs: Mapping[str, Any]) -> None:
        for agent, seen in obs.items():
            name, at, shape = self._place_of(agent, "an observation")
            try:
                write_row(seen, self._stores[name], at, shape)
            except SchemaError as error:
                raise SchemaError(f"{self.game}, agent {agent!r}: {error}") from None

    def _gain(self, rewards: Mapping[str, float]) -> float:
        total = 0.0
        for agent, reward in rewards.items():
            self._place_of(agent, "a reward")
            try:
                gain = float(reward)
            except (TypeError, ValueError):
                raise SchemaError(f"{self.game}, agent {agent!r}: {no_reward(reward)}") from None
            self._gained[agent] += gain
            self._returns[agent] += gain
            total += gain
        return total

    def _end(self, turn: Any, table: npt.NDArray[np.float64]) -> set[str]:
        over: set[str] = set()
        for agents, column in ((turn.truncated, Of.TRUNCATED), (turn.terminated, Of.TERMINATED)):
            for agent in agents:
                self._place_of(agent, "an end")
                if agent not in self._ended:
                    over.add(agent)
                    table[self._index[agent], (Of.TERMINATED, Of.TRUNCATED)] = 0.0  # terminated wins (T4)
                    table[self._index[agent], column] = 1.0
        self._ended |= over
        return over

    def _let_act(self, agents: list[str], table: npt.NDArray[np.float64]) -> None:
        if again := [agent for agent in agents if agent in self._ended]:
            raise SchemaError(f"{self.game}: agent {again[0]!r} has ended, but has an observation to act from (M1)")
        self._turn = agents
        for agent in agents:
            table[self._index[agent], Of.TURN] = 1.0

    def _place_of(self, agent: str, what: str) -> tuple[str, int, Any]:
        try:
            return self._place[agent]
        except KeyError:
            raise SchemaError(
                f"{self.game} gives {what} for agent {agent!r}, which is not in possible_agents "
                f"({', '.join(self.seating.agents)}): list there all that may ever act"
            ) from None

    def _observation(self, table: npt.NDArray[np.float64]) -> dict[str, Any]:
        return {**{name: plain_copy(store) for name, store in self._stores.items()}, TABLE: table}

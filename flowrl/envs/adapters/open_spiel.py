"""OpenSpiel: its games, turn-based and of simultaneous moves; chance follows the seed of each game."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from flowrl.data.columns import ACTION_MASK
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.masks import with_mask
from flowrl.errors import ConfigError, closest


def make(name: str, /, **args: Any) -> Any:
    """A game by its name, with parameters in parentheses, as arguments or both: `goofspiel(players=2,num_cards=4)`.

    Raises: ConfigError if OpenSpiel is not installed, has no such game, or the game rejects a parameter.
    """
    try:
        spiel = importlib.import_module("pyspiel")
    except ModuleNotFoundError as error:
        raise ConfigError(f"'openspiel:{name}' needs open_spiel: pip install 'flowrl-engine[openspiel]'") from error
    known, bare = spiel.registered_names(), name.partition("(")[0]
    if bare not in known:  # its own error lists them all
        raise ConfigError(f"no game {bare!r} in openspiel: {closest(bare, known)}")
    try:
        given = spiel.game_parameters_from_string(name)
        del given["name"]
        return spiel.load_game(bare, {**given, **args})
    except (spiel.SpielError, IndexError) as error:  # the latter of nfg_game without its file
        raise ConfigError(f"'openspiel:{name}' cannot be made{f' with {args}' if args else ''}: {error}") from error


def is_one(made: Any) -> bool:
    """Whether an object is a game of OpenSpiel."""
    spiel = sys.modules.get("pyspiel")
    return spiel is not None and isinstance(made, spiel.Game)


class OpenSpielGame(Game):
    """A game of OpenSpiel, whose agents are `player_0` and on.

    Observations are `obs`, the tensor of a player's information state, or that of its observation in games without; and
    `action_mask`. Agents gain what OpenSpiel's `returns` grow by. In a zero-sum or constant-sum game an agent has won
    (`is_success`) if it gained more than any other. The state of the whole game is the tensors of all players, one
    after another.

    Raises:
        ConfigError: a mean-field game, one that draws chance by itself, or one without tensors.
        ValueError: an action that is not valid: OpenSpiel's games take many as another one.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["ansi"]}

    def __init__(self, game: Any) -> None:
        self.game = game
        kind = game.get_type()
        if problem := _problem(kind):
            raise ConfigError(f"{game} {problem}")
        self._informed = kind.provides_information_state_tensor
        try:
            shape = game.information_state_tensor_shape() if self._informed else game.observation_tensor_shape()
        except RuntimeError as error:  # it says that it has one, and has none
            raise ConfigError(f"{game} has no tensor to observe, though it says so: {error}") from error
        self._shape = tuple(shape)
        self._choices = game.num_distinct_actions()
        self.possible_agents = tuple(f"player_{player}" for player in range(game.num_players()))
        action_space = spaces.Discrete(self._choices)
        space = with_mask(spaces.Box(-np.inf, np.inf, self._shape, np.float32), action_space)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, action_space)
        size = len(self.possible_agents) * math.prod(self._shape)
        self.state_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self._pays_at_the_end = kind.reward_model.name == "TERMINAL"
        self._has_winners = kind.utility.name in ("ZERO_SUM", "CONSTANT_SUM") and len(self.possible_agents) > 1

    def __str__(self) -> str:
        return f"openspiel:{self.game}"

    def reset(self, seed: int) -> Mapping[str, Any]:
        """A new game, in which chance follows the seed."""
        self._chance = np.random.default_rng(seed)
        self._state = self.game.new_initial_state()
        self._returns: Sequence[float] = [0.0] * len(self.possible_agents)
        self._let_chance_act()
        return self._turns()

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """The action of whose turn it is, or those of all that move at once."""
        chosen = [0] * len(self.possible_agents)  # of a player without a valid action OpenSpiel wants 0
        for agent, action in actions.items():
            player = self.possible_agents.index(agent)
            chosen[player] = int(action)
            if chosen[player] not in (valid := self._state.legal_actions(player)):
                raise ValueError(f"{self}: action {action} of agent {agent!r} is not one of the valid ones, {valid}")
        if self._state.is_simultaneous_node():
            self._state.apply_actions(chosen)
        else:
            self._state.apply_action(chosen[self._state.current_player()])
        self._let_chance_act()
        over = self._state.is_terminal()
        reward = self._gained() if over or not self._pays_at_the_end else {}
        if not over:
            return Turn(self._turns(), reward)
        obs = {agent: self.observed(self._state, player) for player, agent in enumerate(self.possible_agents)}
        return Turn(obs, reward, terminated=self.possible_agents, info=self._successes() if self._has_winners else {})

    def state(self) -> Any:
        """The tensors of all players."""
        return np.concatenate(
            [self._tensor(self._state, player).ravel() for player in range(len(self.possible_agents))]
        )

    def render(self) -> str:
        """OpenSpiel's text of the state."""
        return str(self._state)

    def observed(self, state: Any, player: int) -> dict[str, Any]:
        """The observation of a player in a state of the game."""
        mask = np.zeros(self._choices, np.int8)
        if not state.is_terminal():
            mask[state.legal_actions(player)] = 1
        return {"obs": self._tensor(state, player), ACTION_MASK: mask}

    def _tensor(self, state: Any, player: int) -> Any:
        tensor = state.information_state_tensor(player) if self._informed else state.observation_tensor(player)
        return np.array(tensor, np.float32).reshape(self._shape)

    def _let_chance_act(self) -> None:
        while self._state.is_chance_node():
            drawn, outcomes = self._chance.random(), self._state.chance_outcomes()
            reached = itertools.accumulate(probability for _, probability in outcomes)
            last, _ = outcomes[-1]  # where rounding leaves the sum below `drawn`
            self._state.apply_action(next((each for (each, _), sum_ in zip(outcomes, reached) if drawn < sum_), last))

    def _turns(self) -> dict[str, Any]:
        """The observations of who acts next."""
        state, agents = self._state, self.possible_agents
        if not state.is_simultaneous_node():
            player = state.current_player()
            return {agents[player]: self.observed(state, player)}
        seen = {agent: self.observed(state, player) for player, agent in enumerate(agents)}
        return {agent: obs for agent, obs in seen.items() if obs[ACTION_MASK].any()}

    def _gained(self) -> dict[str, float]:
        before, self._returns = self._returns, self._state.returns()
        return {agent: now - then for agent, now, then in zip(self.possible_agents, self._returns, before)}

    def _successes(self) -> dict[str, dict[str, bool]]:
        best, second = sorted(self._returns)[:-3:-1]
        gained = zip(self.possible_agents, self._returns)
        return {agent: {"is_success": gain == best > second} for agent, gain in gained}


def _problem(kind: Any) -> str | None:
    """Why a type of game cannot be served."""
    if kind.dynamics.name == "MEAN_FIELD":
        return "is a mean-field game, which is of a population and not of agents: there is no other way to play it"
    if kind.chance_mode.name == "SAMPLED_STOCHASTIC":
        return (
            "draws chance by itself (SAMPLED_STOCHASTIC), so that a seed would not decide how a game goes (D1): take "
            "one whose chance is EXPLICIT_STOCHASTIC"
        )
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        return "has neither information_state_tensor nor observation_tensor, so that there is nothing to observe"
    return None

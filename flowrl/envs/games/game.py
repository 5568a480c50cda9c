"""Game: the contract of an environment with several agents, which act in turn, together, or both."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium

from flowrl.envs.games.model import GameModel


class Turn(NamedTuple):
    """What a step of a game leads to. An agent that a mapping lacks has a reward of 0, and no info.

    - `obs`: the observation of each agent that acts next. An agent that ends in this step may have its last one here
      too; without it, the last one that it had stands in. The game is over when no agent acts next.
    - `reward`: what agents gained in this step, also agents that did not act in it (M1).
    - `terminated`, `truncated`: the agents whose episode ends in this step; they act no more before the next `reset`.
      Truncated is who could have gone on (a time limit), as in gymnasium.
    - `info`: by agent; of it `is_success` counts as the agent's win or loss (S5).
    - `discount`: in a game with `discounts`, what all that an agent gains after this step counts for what it did
      before, 0 to 1; 1 for an agent that it lacks. 0 ends a task of the agent's, which acts on.

    Under the name "", `reward` may have that of the whole game, if it is not the sum of its agents', and `info` what
    gymnasium's has of an episode at its end: `is_success`, and `episode`, its return `r` and length `l` (S1).
    """

    obs: Mapping[str, Any]
    reward: Mapping[str, float] = {}
    terminated: Collection[str] = ()
    truncated: Collection[str] = ()
    info: Mapping[str, Mapping[str, Any]] = {}
    discount: Mapping[str, float] = {}


class Game(abc.ABC):
    """One copy of a game. Its agents have names; an agent in one copy is a *seat*, which has rows of its own.

    A subclass sets, or defines as properties:

    - `possible_agents`: the names of all agents that may ever act, in a fixed order.
    - `observation_spaces`, `action_spaces`: by agent. A Dict of observations may have an `action_mask`.
    - `metadata`, `render_mode`: if it renders, as gymnasium's environments have them.
    - `state_space`: that of `state`, if it says what no single agent sees; None: it does not.
    - `discounts`: whether its turns have a `discount`. Rows then have it as `step_discount`, which takes the place of a
      learner's gamma, and the rewards between an agent's own turns add up discounted (M10).
    - `instant`: agents that decide in no time: a step in which nobody else acts is no env step (M10).

    Who acts is said by the observations: exactly the agents in `reset`'s answer act in the first step, those in
    `Turn.obs` that have not ended in the next. So agents that take turns, that act together, and that appear late or
    leave early are one contract.

    >>> import numpy as np
    >>> class RockPaperScissors(Game):
    ...     possible_agents = ("row", "column")
    ...     observation_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Box(0, 1, (1,)))
    ...     action_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(3))
    ...     nothing = dict.fromkeys(possible_agents, np.zeros(1, np.float32))
    ...     def reset(self, seed):
    ...         return self.nothing
    ...     def step(self, actions):
    ...         won = (0, 1, -1)[(actions["row"] - actions["column"]) % 3]
    ...         return Turn({}, {"row": won, "column": -won}, terminated=self.possible_agents)
    >>> game = RockPaperScissors()
    >>> game.reset(seed=0).keys(), game.step({"row": 1, "column": 0}).reward
    (dict_keys(['row', 'column']), {'row': 1, 'column': -1})
    """

    possible_agents: Sequence[str] = ()
    observation_spaces: Mapping[str, gymnasium.Space[Any]] = {}
    action_spaces: Mapping[str, gymnasium.Space[Any]] = {}
    metadata: Mapping[str, Any] = {}
    render_mode: str | None = None
    state_space: gymnasium.Space[Any] | None = None
    discounts: bool = False
    instant: Collection[str] = ()

    @abc.abstractmethod
    def reset(self, seed: int) -> Mapping[str, Any]:
        """Begin a new game, determined by `seed`; returns the observation of each agent that acts first."""

    @abc.abstractmethod
    def step(self, actions: Mapping[str, Any]) -> Turn:
        """Play the actions of exactly the agents whose turn it is."""

    def state(self) -> Any:
        """The state of the whole game now, in `state_space`. Raises: NotImplementedError: it has none."""
        raise NotImplementedError(f"{self} has no state of the whole game")

    def model(self) -> GameModel | None:
        """The rules as functions of states, for a search over moves; None: it has none, see `GameModel`."""
        return None

    def render(self) -> Any:
        """A picture `[height, width, 3]` of the game, or whatever its library renders; None if it renders nothing."""
        return None

    def __str__(self) -> str:
        return type(self).__name__

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Release what the game holds."""

"""The two-step game, which needs a mixture of the agents' values that is no sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from flowrl.envs.games.game import Game, Turn

#: What both get in state 1 and in state 2, by the action of the first agent and that of the second.
PAYOFF = (((7, 7), (7, 7)), ((0, 1), (1, 8)))


class TwoStep(Game):
    """Two agents win together: in state 0 the first one's action chooses between state 1, safe, and 2, better.

    Both observe the state, one of three, and get the same payoff in the second step, at most 8. Who adds up the
    values of single agents takes the safe 7.

    Source: Rashid et al. 2018, "QMIX", section 5.

    >>> game = TwoStep()
    >>> _ = game.reset(seed=0), game.step({"first": 1, "second": 0})
    >>> game.step({"first": 1, "second": 1}).reward
    {'first': 8.0, 'second': 8.0}
    """

    possible_agents = ("first", "second")
    observation_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Box(0, 1, (3,), np.float32))
    action_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Discrete(2))
    state_space = spaces.Discrete(3)

    def reset(self, seed: int) -> Mapping[str, Any]:
        """State 0."""
        self._at = 0
        return self._obs()

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """To the second state, or to its payoff."""
        if not self._at:
            self._at = 1 + int(actions["first"])
            return Turn(self._obs())
        payoff = float(PAYOFF[self._at - 1][actions["first"]][actions["second"]])
        return Turn({}, dict.fromkeys(self.possible_agents, payoff), terminated=self.possible_agents)

    def state(self) -> Any:
        """0, 1 or 2."""
        return np.int64(self._at)

    def _obs(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.possible_agents, np.eye(3, dtype=np.float32)[self._at])

"""Matching pennies: one agent wants the same side, the other one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from flowrl.envs.games.game import Game, Turn


class MatchingPennies(Game):
    """Both show a side of a penny at once: `even` wins 1 if they are the same, else `odd` does; the other one loses 1.

    There is nothing to observe. Each side half of the time is the only equilibrium.

    >>> game = MatchingPennies()
    >>> _ = game.reset(seed=0)
    >>> game.step({"even": 1, "odd": 1}).reward
    {'even': 1.0, 'odd': -1.0}
    """

    possible_agents = ("even", "odd")
    observation_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Box(0, 1, (1,), np.float32))
    action_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Discrete(2))

    def reset(self, seed: int) -> Mapping[str, Any]:
        """Nothing."""
        return dict.fromkeys(self.possible_agents, np.zeros(1, np.float32))

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """Show both."""
        same = bool(actions["even"] == actions["odd"])
        gain = 1.0 if same else -1.0
        info = {"even": {"is_success": same}, "odd": {"is_success": not same}}
        return Turn({}, {"even": gain, "odd": -gain}, terminated=self.possible_agents, info=info)

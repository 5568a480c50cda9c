"""Kuhn poker: three cards, one bet, and an equilibrium in closed form that bluffs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from flowrl.envs.games.game import Game, Turn


class KuhnPoker(Game):
    """Each has one of three cards and puts in 1. Action 1 bets 1, or calls; action 0 passes, or folds after a bet.

    The higher card wins what the other one put in, at once after two passes or a call; after a fold the better does.
    Observations `[7]`: the own card as one of three, then each of the first two actions as one of two. With best play
    `first` loses 1/18 of a game on average.

    Source: Kuhn 1950, "A simplified two-person poker".

    >>> game = KuhnPoker()
    >>> game.reset(seed=0)
    {'first': array([0., 0., 1., 0., 0., 0., 0.], dtype=float32)}
    >>> _ = game.step({"first": 1})
    >>> game.step({"second": 0}).reward
    {'first': 1.0, 'second': -1.0}
    """

    possible_agents = ("first", "second")
    observation_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Box(0, 1, (7,), np.float32))
    action_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Discrete(2))

    def reset(self, seed: int) -> Mapping[str, Any]:
        """Deal."""
        self.cards = np.random.default_rng(seed).permutation(3)[:2].tolist()
        self._past: tuple[int, ...] = ()
        return self._obs("first")

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """Bet or pass."""
        self._past += tuple(map(int, actions.values()))
        if self._past in ((0,), (1,), (0, 1)):
            return Turn(self._obs("second" if len(self._past) == 1 else "first"))
        bet = 1 in self._past
        if bet and not self._past[-1]:  # who folded acted last
            first_wins, stake = len(self._past) == 2, 1.0
        else:
            first_wins, stake = self.cards[0] > self.cards[1], 1.0 + bet
        gain = stake if first_wins else -stake
        info = {"first": {"is_success": first_wins}, "second": {"is_success": not first_wins}}
        return Turn({}, {"first": gain, "second": -gain}, terminated=self.possible_agents, info=info)

    def _obs(self, agent: str) -> Mapping[str, Any]:
        seen = np.zeros(7, np.float32)
        seen[[self.cards[agent == "second"], *(3 + 2 * at + action for at, action in enumerate(self._past))]] = 1.0
        return {agent: seen}

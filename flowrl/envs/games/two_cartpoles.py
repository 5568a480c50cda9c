"""Two CartPoles in one game: two agents that have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from flowrl.envs.games.game import Game, Turn


class TwoCartPoles(Game):
    """Each agent balances a pole of its own, with the rewards of CartPole-v1, until it falls or `max_steps` are over.

    Who drops its pole has ended, and the other one goes on (M1); the game is over when both have ended.

    >>> game = TwoCartPoles()
    >>> game.reset(seed=0).keys()
    dict_keys(['left', 'right'])
    >>> game.step({"left": 0, "right": 1}).reward
    {'left': 1.0, 'right': 1.0}
    """

    possible_agents = ("left", "right")

    def __init__(self, max_steps: int = 500) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}, expected at least 1")
        self.max_steps = max_steps
        self._envs: dict[str, gymnasium.Env[Any, Any]] = {agent: CartPoleEnv() for agent in self.possible_agents}
        self.observation_spaces = {agent: env.observation_space for agent, env in self._envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self._envs.items()}

    def reset(self, seed: int) -> Mapping[str, Any]:
        """Both poles upright, each in a place of its own."""
        self._step = 0
        seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
        return {agent: env.reset(seed=own)[0] for (agent, env), own in zip(self._envs.items(), seeds)}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """Push the carts of those whose poles still stand."""
        self._step += 1
        obs: dict[str, Any] = {}
        reward: dict[str, Any] = {}
        fallen: list[str] = []
        for agent, action in actions.items():
            obs[agent], reward[agent], over, _, _ = self._envs[agent].step(action)
            if over:
                fallen.append(agent)
        return Turn(obs, reward, fallen, list(obs) if self._step == self.max_steps else ())

    def close(self) -> None:
        """Close both."""
        for env in self._envs.values():
            env.close()

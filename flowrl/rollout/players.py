"""Players: policies that act in their seats of games, for rollout workers and evaluation (M7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from flowrl.engine.seeds import SeedTree
from flowrl.envs import StepResult
from flowrl.envs.managers.games import GameManager, Seats
from flowrl.policies import Policy
from flowrl.rollout.acting import Actor
from flowrl.rollout.noise import Array
from flowrl.rollout.policy_map import Match, PolicyMap


@attrs.define
class Player:
    """A policy and the seats that it plays."""

    policy: Policy
    seats: Seats
    actor: Actor

    def send(self, env_steps: int, wait: Array | None) -> None:
        """Act in the seats whose turn it is; `wait`: mask `[games]` of those that get no action yet."""
        held = None if wait is None else np.repeat(wait, len(self.seats.agents))
        ready, actions = self.actor.send(env_steps, self.policy.version, held)
        if actions is not None:
            self.seats.put(actions, ready)


class Players:
    """The policies that act in the games of one manager. A mapping of `Player` by the policy's name.

    Every seat has its own stream of noise (D2), which depends on the policy that plays there if there are several.

    Args:
        games: Launched already.
        policies: Policies by name.
        policy_map: Which of them plays which agent.
        mode_of: The mode of a policy that acts.
        seed: Seed of the noise.

    State: that of each policy's `Actor`.
    """

    def __init__(
        self,
        games: GameManager,
        policies: Mapping[str, Policy],
        policy_map: PolicyMap,
        mode_of: Callable[[Policy], Any],
        seed: int,
    ) -> None:
        self.games, self.policy_map = games, policy_map
        self.of: dict[str, Player] = {}
        tree = SeedTree(seed)
        for name, policy in policies.items():
            seats = Seats(games, policy_map.agents_of(name))
            streams = seats.env_id * len(games.seating.agents) + seats.agent
            own = seed if policy_map.shared else tree.integer(f"policy/{name}")
            self.of[name] = Player(policy, seats, Actor(seats, mode_of(policy), own, streams.tolist()))
        self.assign()

    def step(self, env_steps: int = 0, wait: Array | None = None) -> StepResult:
        """Act in all seats whose turn it is, and step the games: see `GameManager.step`.

        Who plays a game that begins is fixed by `assign`, to be called when the answers have been taken.
        """
        for player in self.of.values():
            player.send(env_steps, wait)
        return self.games.step(wait)

    def assign(self) -> None:
        """Fix who plays in the games that have begun."""
        for game in self.games.began:
            found = self.policy_map.players(Match(game, int(self.games.games.episode_id[game])))
            if found is None:
                break
            for number, player in enumerate(self.of.values()):
                player.seats.leave_to_others(game, found != number)
        self.games.began.clear()

    def assign_all(self) -> None:
        """Fix who plays anew in all games, after a state was loaded."""
        self.games.began = list(range(self.games.num_envs))
        self.assign()

    def state_dict(self) -> dict[str, Any]:
        return {name: player.actor.state_dict() for name, player in self.of.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, player in self.of.items():
            player.actor.load_state_dict(state[name])

"""Players: policies that act in their seats of games, for rollout workers and evaluation (M7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from flowrl.engine.seeds import SeedTree
from flowrl.envs import StepResult
from flowrl.envs.managers.games import GameManager, Seats
from flowrl.policies import Policy
from flowrl.rollout.acting import Actor
from flowrl.rollout.noise import Array
from flowrl.rollout.policy_map import Match, MatchPlayer, PolicyMap


@attrs.define
class Player:
    """A policy and the seats that it plays."""

    policy: Policy
    seats: Seats
    actor: Actor
    plays: bool = True  #: whether it plays any seat at present
    #: `[games]`: where it plays, but does not learn, as in a match of another learner; None: nowhere.
    plays_without_learning: Array | None = None
    sent: Array | None = None  #: `[N]`: the seats that acted in the newest step

    def learns(self, answered: Array | None) -> Array | None:
        """Of the seats `[N]` with an answer, None: all, those in which it is experience."""
        if self.plays_without_learning is None or not self.plays_without_learning.any():
            return answered
        own: Array = ~np.repeat(self.plays_without_learning, len(self.seats.agents))
        return own if answered is None else answered & own

    def send(self, env_steps: int, wait: Array | None) -> None:
        """Act in the seats whose turn it is; `wait`: mask `[games]` of those that get no action yet."""
        held = None if wait is None else np.repeat(wait, len(self.seats.agents))
        self.sent, actions = self.actor.send(env_steps, self.policy.version, held)
        if actions is not None:
            self.seats.put(actions, self.sent)

    def take_back(self, lost: Array) -> None:
        """Take back the noise of actions that nobody played, in these games `[games]`, whose step failed."""
        if self.plays and self.sent is not None:
            self.actor.take_back(np.flatnonzero(self.sent & lost[self.seats.env_id]))


class Players:
    """The policies that act in the games of one manager. A mapping of `Player` by the policy's name.

    Every seat has its own stream of noise (D2), which depends on the policy that plays there if there are several.

    Args:
        games: Launched already.
        policies: Policies by name.
        policy_map: Which of them plays which agent.
        mode_of: The mode of a policy that acts.
        seed: Seed of the noise.
        group: Number of the group of games.

    State: that of each policy's `Actor`; in `matches`, who plays the running games (L2).
    """

    def __init__(
        self,
        games: GameManager,
        policies: Mapping[str, Policy],
        policy_map: PolicyMap,
        mode_of: Callable[[Policy], Any],
        seed: int,
        group: int = 0,
    ) -> None:
        self.games, self.policy_map, self._group = games, policy_map, group
        self.of: dict[str, Player] = {}
        #: Of each running game, who plays each agent; empty: the same in every match.
        self.matches: dict[int, list[MatchPlayer]] = {}
        tree = SeedTree(seed)
        for name, policy in policies.items():
            seats = Seats(games, policy_map.agents_of(name))
            streams = seats.env_id * len(games.seating.agents) + seats.agent
            own = seed if len(policies) == 1 else tree.integer(f"policy/{name}")
            self.of[name] = Player(policy, seats, Actor(seats, mode_of(policy), own, streams.tolist()))
        self.assign()

    def step(self, env_steps: int | Mapping[str, int] = 0, wait: Array | None = None) -> StepResult:
        """Act in all seats whose turn it is, and step the games: see `GameManager.step`.

        `env_steps` are those that the policies, or each by its name, have trained for.

        Who plays a game that begins is fixed by `assign`, to be called when the answers have been taken.
        """
        for name, player in self.of.items():
            if player.plays:
                player.send(env_steps if isinstance(env_steps, int) else env_steps[name], wait)
        stepped = self.games.step(wait)
        if stepped.acted is not None and self.games.games.ready is None:
            for player in self.of.values():
                player.take_back(~stepped.acted)
        for player in self.of.values():
            if player.plays and player.actor.hears:
                player.actor.hear(player.seats.result(stepped))
        return stepped

    def assign(self) -> None:
        """Fix who plays in the games that have begun."""
        for game in self.games.began:
            found = self.policy_map.players(Match(game, int(self.games.games.episode_id[game]), self._group))
            if found is None:
                break
            self._seat(game, found)
        self.games.began.clear()

    def assign_all(self, matches: Sequence[Sequence[tuple[Any, ...]]] | None = None) -> None:
        """Fix who plays in all games, after a state was loaded: as in `matches`, but anew in those that begin anew."""
        began = self.games.began if matches else range(self.games.num_envs)
        for game, playing in enumerate(matches or ()):
            self._seat(game, playing)
        self.games.began = list(began)
        self.assign()

    def _seat(self, game: int, playing: Sequence[tuple[Any, ...]]) -> None:
        self.matches[game] = match = [MatchPlayer(*each) for each in playing]
        self.games.players[game] = [each.player for each in match]
        for name, player in self.of.items():
            player.seats.leave_to_others(game, np.array([each.policy != name for each in match]))
            player.plays = player.seats.others is None or not player.seats.others.all()
            if player.plays_without_learning is None:
                player.plays_without_learning = np.zeros(self.games.num_envs, np.bool_)
            player.plays_without_learning[game] = any(each.policy == name and not each.learns for each in match)

    def state_dict(self) -> dict[str, Any]:
        return {name: player.actor.state_dict() for name, player in self.of.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, player in self.of.items():
            player.actor.load_state_dict(state[name])

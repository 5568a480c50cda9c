"""Pay-offs: what players gain who play a game of two agents against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import gymnasium
import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from flowrl.envs import Environments, Episode
from flowrl.envs.spaces import are_alike, dict_form
from flowrl.errors import ConfigError
from flowrl.policies import Policy
from flowrl.policies.scripted import FixedPolicy
from flowrl.rollout.evaluation import MAX_STEPS, PolicyMaker, evaluate, made

Space = gymnasium.Space[Any]

Player = Policy | FixedPolicy | Mapping[str, Any] | PolicyMaker
"""A policy that plays any agent; policies by agent; or what makes one for an observation and an action space."""

#: The share of intervals that hold the true mean.
CONFIDENCE = 0.95


@attrs.frozen(eq=False)
class Payoffs:
    """The returns of games between players: `returns[a, b, k]` are those of `agents` in the k-th game of a against b.

    a plays the first agent and b the second. All pairs meet the same starts, also a player and itself.
    """

    players: tuple[str, ...]
    agents: tuple[str, str]
    returns: npt.NDArray[np.float64]  #: `[players, players, games, 2]`

    def of(self, player: str, other: str) -> npt.NDArray[np.float64]:
        """`[2 * games, 2]`: the returns of a player and of the other, in the games in which it plays either agent."""
        a, b = self.players.index(player), self.players.index(other)
        return np.concatenate([self.returns[a, b], self.returns[b, a][:, ::-1]])

    def mean(self, player: str, other: str) -> tuple[float, float]:
        """The mean return of a player against another one, and half of its 95 % interval (of Student's t)."""
        returns = self.of(player, other)
        # Against itself each game is there twice, from both sides.
        own = returns[:, 0] if player != other else returns[: len(returns) // 2].mean(1)
        half = stdtrit(len(own) - 1, (1 + CONFIDENCE) / 2) * own.std(ddof=1) / np.sqrt(len(own))
        return float(own.mean()), float(half)

    def shares(self, player: str, other: str) -> tuple[float, float, float]:
        """The shares of games in which a player gained more than the other, as much, and less."""
        own, others = self.of(player, other).T
        return float((own > others).mean()), float((own == others).mean()), float((own < others).mean())

    def overall(self, player: str) -> float:
        """The mean return of a player against all others."""
        return float(np.mean([self.mean(player, other)[0] for other in self.players if other != player]))

    @property
    def ranked(self) -> list[str]:
        """The players, by what they gain from the others."""
        return sorted(self.players, key=self.overall, reverse=True)

    def values(self) -> dict[str, Any]:
        """Plain values: for each player and other the mean return, its interval, and the shares of games."""
        ranked = self.ranked
        against = {player: {other: self._pair(player, other) for other in ranked} for player in ranked}
        return {player: {"overall": self.overall(player), "against": against[player]} for player in ranked}

    def _pair(self, player: str, other: str) -> dict[str, Any]:
        mean, half = self.mean(player, other)
        won, drawn, lost = self.shares(player, other)
        a, b = self.players.index(player), self.players.index(other)
        seats = self.returns[a, b, :, 0].mean(), self.returns[b, a, :, 1].mean()
        as_agent = {f"return_as/{agent}": float(seat) for agent, seat in zip(self.agents, seats)}
        return {
            "return_mean": mean,
            "interval": [mean - half, mean + half],
            **{"more": won, "equal": drawn, "less": lost},
            **as_agent,
        }


def payoffs(
    players: Mapping[str, Player],
    env: Any,
    *,
    episodes: int = 100,
    seed: int = 0,
    num_envs: int = 8,
    env_args: Mapping[str, Any] | None = None,
    max_steps: int = MAX_STEPS,
    deterministic: bool = True,
    env_steps: Mapping[str, int] | None = None,
) -> Payoffs:
    """Let players play whole games against each other, `episodes` with each of two as the first agent.

    Args:
        players: See `Player`, by the name that they have in the table.
        env: A game of two agents: what `flowrl.envs.make_manager` takes, made with `env_args`, or `Environments`.
        episodes: Games of each ordered pair, at least 2.
        seed: Environments and noise derive from it; all pairs meet the same starts.
        num_envs, max_steps, deterministic: See `evaluate`.
        env_steps: The env steps that players have trained for, by name, 0 if not given; see `evaluate`.

    Raises: ConfigError: fewer than two players or games; no game, or one of more agents; a player whose spaces are not
        those of an agent, by name; games that have not ended after `max_steps`.

    >>> from flowrl.policies import RandomPolicy
    >>> from flowrl.policies.line_players import Perfect
    >>> table = payoffs({"perfect": Perfect, "random": RandomPolicy}, "flowrl:tic_tac_toe", episodes=20)
    >>> table.ranked, table.shares("perfect", "random")[2], table.mean("perfect", "perfect")
    (['perfect', 'random'], 0.0, (0.0, 0.0))
    """
    environments = env if isinstance(env, Environments) else Environments(env, env_args or {}, agents=True)
    seating = environments.look(num_envs).seating
    if seating is None or len(seating.agents) != 2:
        agents = "one agent" if seating is None else f"the agents {', '.join(seating.agents)}"
        raise ConfigError(f"{environments} has {agents}: a pay-off table is of a game for two")
    if len(players) < 2 or episodes < 2:
        raise ConfigError(f"{len(players)} players, {episodes} games: expected at least 2 of each")
    seats = {}
    for name, player in players.items():
        for agent in seating.agents:
            kind = seating.kind_of(agent)
            seats[name, agent] = policy_of(name, player, agent, kind.observation_space, kind.action_space)
    returns = np.zeros((len(players), len(players), episodes, 2))
    for a, first in enumerate(players):
        for b, second in enumerate(players):
            sides = dict(zip(seating.agents, (first, second)))
            policies = {agent: seats[name, agent] for agent, name in sides.items()}
            options: dict[str, Any] = {"episodes": episodes, "seed": seed, "num_envs": num_envs, "max_steps": max_steps}
            options["deterministic"] = deterministic
            options["env_steps"] = {agent: (env_steps or {}).get(name, 0) for agent, name in sides.items()}
            played = evaluate(policies, environments, agents={agent: agent for agent in sides}, **options)
            if cut := sum(episode.cut for episode in played if not episode.agent):
                raise ConfigError(
                    f"{first} against {second}: {cut} of {episodes} games had not ended after {max_steps} steps: give "
                    "the game a limit, or raise max_steps"
                )
            returns[a, b] = _by_game(played, seating.agents)
    return Payoffs(tuple(players), (seating.agents[0], seating.agents[1]), returns)


def _by_game(played: Sequence[Episode], agents: Sequence[str]) -> npt.NDArray[np.float64]:
    """`[games, 2]`: the returns of both agents; one that never acted has no episode, but may have gained."""
    found = {(each.env_id, each.episode_id, each.agent): each.return_ for each in played}
    rows = []
    for game in (each for each in played if not each.agent):
        first, second = (found.get((game.env_id, game.episode_id, agent)) for agent in agents)
        if first is None:
            first = game.return_ - (0.0 if second is None else second)
        rows.append((first, game.return_ - first if second is None else second))
    return np.array(rows)


def policy_of(name: str, player: Player, agent: str, *spaces: Space) -> Any:
    """The policy with which a player plays an agent."""
    if isinstance(player, Mapping):
        if agent not in player:
            raise ConfigError(f"player {name!r} has no policy for agent {agent!r}, but for {', '.join(player)}")
        found = player[agent]
    else:
        try:
            found = made(player, *spaces)
        except ConfigError as error:
            raise ConfigError(f"player {name!r} as agent {agent!r}: {error}") from None
    own = found.observation_space, found.action_space
    for role, ours, theirs in zip(("observation", "action"), own, spaces):
        if ours is not None and not are_alike(dict_form(ours), dict_form(theirs)):
            raise ConfigError(f"player {name!r} has the {role} space {ours}, but agent {agent!r} has {theirs}")
    return found

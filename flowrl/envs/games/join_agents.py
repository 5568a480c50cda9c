"""JoinAgents: a game in which some agents are one player, whose single policy decides for all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from gymnasium import spaces

from flowrl.data.columns import ACTION_MASK
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.games.seats import WHOLE, Seat, check_ends, no_gain, revived
from flowrl.envs.games.wrappers import BaseGameWrapper, agents_named
from flowrl.envs.masks import check_mask, choices_of, with_mask
from flowrl.envs.spaces import array_form, dict_form, make_store, plain_copy, row_of, start_of
from flowrl.errors import ConfigError, SchemaError

#: Agents by name or pattern, such as "prey_*"; or several of these.
Named = str | Sequence[str]
#: The name of a player that has none.
TEAM = "team"


class JoinAgents(BaseGameWrapper):
    """Makes players of agents that act together: to a policy a player is one agent, and so it decides for all of them.

    A player observes what its agents do, side by side: one Box if all of theirs are Boxes with at most one axis,
    otherwise a Dict with an entry for each agent. Its action is theirs one after another, a MultiDiscrete or a Box,
    with a joint `action_mask` where one of them has a mask. Its reward is the sum of theirs, and its `info` has theirs
    as `AGENT/KEY`. It has won if one of them has.

    An agent that is not there, because it is late or gone or waits, observes zeros, or what is nearest to them in its
    space (R7), and nobody plays its action; its mask, if there is one, leaves it one choice. A player ends when all its
    agents have ended, or the game is over: truncated if the last of them are, otherwise terminated. Agents of no player
    stay as they are.

    Args:
        game: The game inside.
        players: The agents of each player by its name, by name or pattern, of which the first that fits counts, as in
            `{"left": ["l_0", "l_1"], "right": "r_*"}`. Names or patterns alone make one player, `team`; None: it has
            all agents.

    Raises: ConfigError for a name that fits no agent, a player without agents or with the name of another agent,
        actions of one player that are partly choices and partly numbers, and agents of a player whose turns have
        discounts or take no time. SchemaError in a step after which agents of one player act in turn.

    >>> from flowrl.envs.games import make
    >>> game = JoinAgents(make("two_cartpoles"))
    >>> game.possible_agents, game.action_spaces["team"], game.reset(seed=0)["team"].shape
    (('team',), MultiDiscrete([2 2]), (8,))
    >>> game.step({"team": np.array([0, 1])}).reward
    {'team': 2.0}
    """

    def __init__(self, game: Game, players: Named | Mapping[str, Named] | None = None) -> None:
        super().__init__(game)
        self._players = {name: _Player(game, name, agents) for name, agents in _agents_of(game, players).items()}
        self._player_of = {agent: player for player in self._players.values() for agent in player.named}
        alone = [agent for agent in game.possible_agents if agent not in self._player_of]
        if taken := [name for name in self._players if name in alone]:
            raise ConfigError(f"JoinAgents: {game} has an agent {taken[0]!r} beside that player: give it another name")
        if odd := [agent for agent in self._player_of if game.discounts or agent in game.instant]:
            raise ConfigError(f"JoinAgents: {game} lets {odd[0]!r} act over steps of its own, so leave it out")
        joined = [agent if agent in alone else self._player_of[agent].name for agent in game.possible_agents]
        self.possible_agents = tuple(dict.fromkeys(joined))
        self.observation_spaces = {agent: game.observation_spaces[agent] for agent in alone}
        self.action_spaces = {agent: game.action_spaces[agent] for agent in alone}
        for name, player in self._players.items():
            self.observation_spaces[name], self.action_spaces[name] = player.observation_space, player.action_space

    def reset(self, seed: int) -> Mapping[str, Any]:
        """See `Game.reset`."""
        obs = self.game.reset(seed)
        for player in self._players.values():
            player.begin()
        return self._joined(Turn(obs)).obs if isinstance(obs, Mapping) else obs  # who reads it refuses it

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """See `Game.step`."""
        own: dict[str, Any] = {}
        for name, action in actions.items():
            own |= self._players[name].parted(action) if name in self._players else {name: action}
        turn = self.game.step(own)
        return self._joined(turn) if isinstance(turn, Turn) else turn

    def _joined(self, turn: Turn) -> Turn:
        """A turn of the agents as one of the players."""
        check_ends(self.game, turn)
        obs, reward, info = (self._of_others(each) for each in (turn.obs, turn.reward, turn.info))
        terminated, truncated = (
            [agent for agent in ends if agent not in self._player_of] for ends in (turn.terminated, turn.truncated)
        )
        for agent, gain in turn.reward.items():
            if (of := self._player_of.get(agent)) is None:
                continue
            try:
                reward[of.name] = reward.get(of.name, 0.0) + float(gain)
            except (TypeError, ValueError):
                raise no_gain(self.game, agent, gain) from None
        over = {*turn.terminated, *turn.truncated}
        goes_on = any(agent not in over for agent in turn.obs)
        for name, player in self._players.items():
            ends = player.follow(turn, over, goes_on)
            if ends or player.acts:
                obs[name] = player.observation()
            info[name] = player.told(turn.info)
            if ends:
                (truncated if player.cut else terminated).append(name)
                info[name] |= {} if player.won is None else {"is_success": player.won}
        return Turn(obs, reward, terminated, truncated, info, turn.discount)

    def _of_others(self, by_agent: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: each for agent, each in by_agent.items() if agent not in self._player_of}


class _Part:
    """An agent of a player in the running game."""

    def __init__(self, game: Game, agent: str, first: int) -> None:
        self.game, self.agent = game, agent
        own, actions = dict_form(game.observation_spaces[agent]), game.action_spaces[agent]
        try:
            check_mask(own, actions)
            self._store = make_store(own, 1)
            #: The end of its numbers among those of the player's action.
            self.end = first + math.prod(array_form(actions, "action")[0])
        except ConfigError as error:
            raise ConfigError(f"{game}, agent {agent!r}: {error}") from None
        self._seat = Seat(0, self._store, 0, slice(first, self.end), actions)
        self._nothing = _nothing(own)
        entries = own.spaces if isinstance(own, spaces.Dict) else {}
        self.masked = ACTION_MASK in entries
        rest = {name: part for name, part in entries.items() if name != ACTION_MASK}
        self._only = self.masked and set(rest) == {"obs"}  # a mask made a dictionary of it
        #: The space of its observations without a mask.
        self.core = rest["obs"] if self._only else spaces.Dict(rest) if self.masked else own
        self._choices = choices_of(actions)
        self.came = self.there = self.ended = False

    def begin(self) -> None:
        """Begin a game, in which it is not there yet."""
        self.leave()
        self.came = self.ended = False

    def leave(self) -> None:
        """From now on it observes nothing."""
        self._store[:] = self._nothing
        self.there = False

    def see(self, obs: Any) -> None:
        """Keep an observation. Raises: SchemaError if its space has no such, or the agent has ended."""
        if self.ended:
            raise revived(self.game, self.agent)
        try:
            self._seat.see(obs)
        except SchemaError as error:
            raise SchemaError(f"{self.game}, agent {self.agent!r}: {error}") from None
        self.came = self.there = True

    def seen(self) -> Any:
        """A copy of what it observes, without a mask."""
        row = row_of(plain_copy(self._store), 0)
        if self.masked:
            del row[ACTION_MASK]
        return row["obs"] if self._only else row

    def mask(self) -> Any:
        """The actions that it has: all if it has no mask, and the first of each choice if it is not there."""
        if not self.there:
            return np.concatenate([np.arange(n) == 0 for n in self._choices])
        return self._store[ACTION_MASK][0] != 0 if self.masked else np.ones(sum(self._choices), np.bool_)

    def action(self, numbers: Any) -> Any:
        """Its action among the numbers of the player's."""
        return self._seat.action(numbers)


class _Player:
    """The agents of a player in the running game, in the order of `possible_agents`."""

    def __init__(self, game: Game, name: str, agents: Sequence[str]) -> None:
        self.game, self.name = game, name
        self.named, self.parts = tuple(agents), list[_Part]()
        for agent in agents:
            self.parts.append(_Part(game, agent, self.parts[-1].end if self.parts else 0))
        self.action_space = _joint_actions(game, name, agents)
        cores = {part.agent: part.core for part in self.parts}
        flat = [core for core in cores.values() if isinstance(core, spaces.Box) and len(core.shape) < 2]
        self._flat = len(flat) == len(cores)
        joined: spaces.Space[Any] = _joint_box(flat) if self._flat else spaces.Dict(cores)
        self._masked = any(part.masked for part in self.parts)
        self.observation_space = with_mask(joined, self.action_space) if self._masked else joined
        self.begin()

    def begin(self) -> None:
        """Begin a game."""
        for part in self.parts:
            part.begin()
        self._turn: list[str] = []
        #: Whether it acts next; whether its end, when it comes, is a truncation, and whether it has won then.
        self.acts = self.cut = self.ended = False
        self.won: bool | None = None

    def parted(self, action: Any) -> dict[str, Any]:
        """The actions of its agents whose turn it is."""
        return {part.agent: part.action(action) for part in self.parts if part.agent in self._turn}

    def follow(self, turn: Turn, over: set[str], goes_on: bool) -> bool:
        """Take in what a turn means for its agents, of whom `over` end; whether the player ends with it."""
        before = self._turn
        for part in self.parts:
            if part.agent in turn.obs:
                part.see(turn.obs[part.agent])
        ending = [part for part in self.parts if part.agent in over and not part.ended]
        for part in ending:
            part.ended = True
            if (success := turn.info.get(part.agent, {}).get("is_success")) is not None:
                self.won = bool(success) or bool(self.won)
        if ending:
            self.cut = any(part.agent in turn.truncated and part.agent not in turn.terminated for part in ending)
        acting = [part for part in self.parts if part.agent in turn.obs and not part.ended]
        self.acts = bool(acting)
        if acting:
            self._turn = [part.agent for part in acting]
            self._check_together(before)
            for part in self.parts:
                if part not in acting:
                    part.leave()
            return False
        if self.ended or any(part.came and not part.ended for part in self.parts):
            return False
        # Who has not come yet may still do so while the game goes on.
        self.ended = all(part.ended for part in self.parts) or (not goes_on and any(part.came for part in self.parts))
        return self.ended

    def told(self, info: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What its agents are told, by their names: `AGENT/KEY`."""
        told = {agent: info[agent] for agent in self.named if agent in info} if info else {}
        return {f"{agent}/{key}": each for agent, own in told.items() for key, each in own.items()}

    def observation(self) -> Any:
        """What it observes now."""
        seen = [part.seen() for part in self.parts]
        obs: Any = np.concatenate(seen, None) if self._flat else {part.agent: of for part, of in zip(self.parts, seen)}
        if not self._masked:
            return obs
        mask = np.concatenate([part.mask() for part in self.parts]).astype(np.int8)
        return {**({"obs": obs} if self._flat else obs), ACTION_MASK: mask}

    def _check_together(self, before: Sequence[str]) -> None:
        """Raises: SchemaError if agents act now while all that acted last wait."""
        waiting = [part.agent for part in self.parts if part.agent in before and not part.ended]
        if waiting and not {*before} & {*self._turn}:
            raise SchemaError(
                f"{self.game}: agents {waiting[0]!r} and {self._turn[0]!r} of the player {self.name!r} act in turn, "
                "but JoinAgents is for agents that act together: without it, one policy plays all agents too"
            )


def _agents_of(game: Game, players: Named | Mapping[str, Named] | None) -> dict[str, list[str]]:
    """The agents of each player, in the order of `possible_agents`."""
    given = players if isinstance(players, Mapping) else {TEAM: "*" if players is None else players}
    named = {name: [who] if isinstance(who, str) else who for name, who in given.items()}
    for name, patterns in named.items():
        if not isinstance(name, str) or name == WHOLE or not isinstance(patterns, Sequence) or not patterns:
            raise ConfigError(
                f"JoinAgents({players!r}): expected names of agents, or a table from the names of players to those of "
                'their agents, as in {"left": ["l_0", "l_1"]}'
            )
        for pattern in map(str, patterns):
            agents_named(game, pattern, "JoinAgents")
    found: dict[str, list[str]] = {name: [] for name in named}
    for agent in game.possible_agents:
        fits = (
            name for name, patterns in named.items() if any(fnmatchcase(agent, str(pattern)) for pattern in patterns)
        )
        if (first := next(fits, None)) is not None:
            found[first].append(agent)
    for name, agents in found.items():
        if not agents:
            raise ConfigError(
                f"JoinAgents: the player {name!r} has no agent, since those before it have all of its own"
            )
    return found


def _joint_actions(game: Game, name: str, agents: Sequence[str]) -> spaces.Space[Any]:
    """The actions of agents one after another."""
    of = {agent: game.action_spaces[agent] for agent in agents}
    boxes = {agent: space for agent, space in of.items() if isinstance(space, spaces.Box)}
    if len(boxes) == len(of):
        return _joint_box(list(boxes.values()))
    choices = {agent: choices_of(space) for agent, space in of.items()}
    if not all(choices.values()):
        other = next(agent for agent, each in choices.items() if not each)
        first = next((agent for agent, each in choices.items() if each), agents[0])
        raise ConfigError(
            f"{game}: the actions of {first!r}, {of[first]}, and of {other!r}, {of[other]}, are not both choices or "
            f"both numbers, so the player {name!r} cannot have them side by side: leave one of the agents out of it"
        )
    start = np.concatenate([np.broadcast_to(start_of(of[agent]), len(choices[agent])) for agent in agents])
    return spaces.MultiDiscrete(np.concatenate(list(choices.values())), start=start)


def _joint_box(parts: Sequence[spaces.Box]) -> spaces.Box:
    low, high = (np.concatenate(bounds, None) for bounds in zip(*((part.low, part.high) for part in parts)))
    return spaces.Box(low, high, dtype=np.result_type(low, high).type)


def _nothing(space: spaces.Space[Any]) -> Any:
    """What an agent observes that is not there."""
    if isinstance(space, spaces.Dict):
        return {name: _nothing(part) for name, part in space.items()}
    low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (start_of(space), None)
    return np.full(space.shape or (), 0, space.dtype).clip(low, high)

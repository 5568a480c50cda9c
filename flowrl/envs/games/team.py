"""Team: a game in which some agents are the learner's, and the others act at random as a part of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.data.columns import ACTION_MASK
from flowrl.engine.seeds import SeedTree
from flowrl.envs.games.game import Game, Turn
from flowrl.envs.games.seats import WHOLE, check_ends, no_gain
from flowrl.envs.games.wrappers import BaseGameWrapper, agents_named
from flowrl.envs.infos import SUCCESS, checked_info, success_of
from flowrl.envs.masks import valid_sample, without_choice
from flowrl.errors import ConfigError, SchemaError

#: Steps in a row without the team after which a game counts as one that it never acts in again.
LONGEST = 10_000


class Team(BaseGameWrapper):
    """A game that has the agents of one team alone: all others, its opponents for example, are a part of the game.

    These draw their actions uniformly, valid ones where they have an `action_mask`, from streams that follow from the
    seed of each episode. Rewards and ends are those of the team. A step goes on until somebody of it acts, so where
    others have turns of their own it holds these too; a game that ends before that is played anew. The game is over
    when the last of the team has ended, and won if one of them has won. A team of all agents is the game itself.

    Put it before the wrappers that add to what agents observe, which then number and pad those of the team alone.

    Args:
        game: The game inside.
        members: The agents of the team, by name or pattern.

    Raises: ConfigError for no members, a name that fits no agent, an agent that is named twice, an environment of one
        agent, and turns with discounts or that take no time. SchemaError in a step: another agent has no valid action,
        or acts on without the team.

    >>> from flowrl.envs.games import make
    >>> game = Team(make("two_cartpoles"), "left")
    >>> game.possible_agents, game.reset(seed=0).keys(), game.step({"left": 0}).reward
    (('left',), dict_keys(['left']), {'left': 1.0})
    """

    def __init__(self, game: Game, members: str | Sequence[str]) -> None:
        named = [members] if isinstance(members, str) else list(map(str, members))
        what = f"team={named}"
        if not isinstance(game, Game):
            raise ConfigError(f"{what} is for games of several agents, but {game} has one: leave team out")
        if not named:
            raise ConfigError(f"{what} is empty: name agents of {game}, {', '.join(game.possible_agents)}")
        super().__init__(game)
        team = [agent for pattern in named for agent in agents_named(game, pattern, what)]
        if twice := next((agent for agent in team if team.count(agent) > 1), None):
            raise ConfigError(f"{what} names {twice!r} twice: name each agent once")
        if game.discounts or game.instant:
            raise ConfigError(f"{what}: {game} lets agents act over steps of their own, so they are no team")
        self.possible_agents = tuple(agent for agent in game.possible_agents if agent in team)
        self.observation_spaces = {agent: game.observation_spaces[agent] for agent in self.possible_agents}
        self.action_spaces = {agent: game.action_spaces[agent] for agent in self.possible_agents}
        #: The action spaces of the others, whose generators draw.
        rest = [agent for agent in game.possible_agents if agent not in team]
        self._others = {agent: copy.deepcopy(game.action_spaces[agent]) for agent in rest}
        self._seen: dict[str, Any] = {}  # by the others, who act next
        self._left = list(self.possible_agents)  # who has not ended
        self._won: bool | None = None
        self._before = Turn({})  # what the team gained, and who ended, before its first action

    def reset(self, seed: int) -> Mapping[str, Any]:
        """See `Game.reset`."""
        if not self._others:
            return self.game.reset(seed)
        for _ in range(LONGEST):
            obs: Any = self.game.reset(seed)
            if not isinstance(obs, Mapping) or not obs:
                return obs  # who reads it refuses it
            tree = SeedTree(seed)
            for agent, space in self._others.items():
                space.seed(tree.integer(f"team/{agent}"))
            self._left, self._won, self._before = list(self.possible_agents), None, Turn({})
            turn = self._until_it_acts(Turn(obs))
            over = {*turn.terminated, *turn.truncated}
            if acting := {agent: seen for agent, seen in turn.obs.items() if agent not in over}:
                self._before = turn._replace(obs={agent: turn.obs[agent] for agent in turn.obs if agent in over})
                return acting
            seed = tree.integer("team")  # it was over before anybody of the team acted
        raise SchemaError(
            f"{self.game}: {LONGEST} games in a row without an action of {', '.join(self.possible_agents)}"
        )

    def step(self, actions: Mapping[str, Any]) -> Turn:
        """See `Game.step`."""
        return self._until_it_acts(self._stepped(actions)) if self._others else self.game.step(actions)

    def _stepped(self, actions: Mapping[str, Any]) -> Turn:
        return self.game.step({**actions, **{agent: self._drawn(agent, seen) for agent, seen in self._seen.items()}})

    def _drawn(self, agent: str, seen: Any) -> Any:
        space = self._others[agent]
        if isinstance(seen, Mapping) and ACTION_MASK in seen:
            mask = np.reshape(seen[ACTION_MASK], (1, -1)) != 0
            if without_choice(mask, space).size:
                raise SchemaError(f"{self.game}: agent {agent!r} has no valid action, its action_mask is {mask[0] * 1}")
        return valid_sample(space, seen)

    def _until_it_acts(self, turn: Any) -> Turn:
        """A turn of the game and those after it in which the others act alone, as one of the team."""
        before, self._before = self._before, Turn({})
        obs, reward, info = dict(before.obs), dict[str, Any](before.reward), dict(before.info)
        ends = list(before.terminated), list(before.truncated)
        for _ in range(LONGEST):
            if not isinstance(turn, Turn):
                return turn  # type: ignore[no-any-return]  # who reads it refuses it
            check_ends(self.game, turn)
            obs |= self._own(turn.obs)
            info |= {
                agent: {**info.get(agent, {}), **checked_info(told)} for agent, told in self._own(turn.info).items()
            }
            for agent, gain in self._own(turn.reward).items():
                reward[agent] = self._sum(agent, reward[agent], gain) if agent in reward else gain
            for found, told in zip(ends, (turn.terminated, turn.truncated)):
                found += [agent for agent in told if agent not in self._others]
            over = {*turn.terminated, *turn.truncated}
            for agent in [agent for agent in self._left if agent in over]:
                self._left.remove(agent)
                if (success := success_of(checked_info(turn.info.get(agent)))) >= 0:
                    self._won = bool(success) or bool(self._won)
            acting = [agent for agent in turn.obs if agent not in over]
            # By names of its own, so that the bytes of equal states are equal (D5).
            self._seen = {agent: turn.obs[agent] for agent in self._others if agent in acting}
            finished = not acting or not self._left
            if finished and self._won is not None:
                info[WHOLE] = {SUCCESS: self._won}
            if finished or len(self._seen) < len(acting):
                return Turn(obs, reward, *ends, info, turn.discount)
            turn = self._stepped({})
        raise SchemaError(f"{self.game}: {LONGEST} steps in a row without an action of {', '.join(self._left)}: end it")

    def _own(self, by_agent: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the team; strangers, too, whom the reader refuses by name."""
        return {agent: each for agent, each in by_agent.items() if agent not in self._others and agent != WHOLE}

    def _sum(self, agent: str, before: Any, gain: Any) -> float:
        try:
            return float(before) + float(gain)
        except (TypeError, ValueError):
            raise no_gain(self.game, agent, gain) from None

"""PolicyMap: which policy plays which agent of a game."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol, runtime_checkable

import attrs
import gymnasium

from flowrl.data.multi_agent import DEFAULT_POLICY
from flowrl.envs import Environments
from flowrl.envs.games.seats import Kind, Seating
from flowrl.envs.spec import function_of
from flowrl.errors import ConfigError, did_you_mean


class Match(NamedTuple):
    """One episode of one copy of a game."""

    env_id: int  #: number of the copy in its group of environments
    episode_id: int
    group: int = 0  #: number of the group


Agents = Mapping[str, str] | Callable[[str, Match], str]
"""The policy of each agent: by name or pattern, of which the first that fits counts; or a function of the agent and
the match, which is fixed for an episode (M7)."""


class MatchPlayer(NamedTuple):
    """Who plays an agent in a match."""

    policy: str
    player: str  #: its name in the results of games
    learns: bool = True  #: whether what it does there is experience, if the policy learns at all


@runtime_checkable
class DrawsMatches(Protocol):
    """A function of the agent and the match that draws all players of a match together, by names of their own."""

    def drawn(self, match: Match, /) -> Any: ...

    def learner(self, match: Match, /) -> str:
        """The policy that learns from the match."""
        ...


@attrs.frozen
class AgentsByName:
    """The function of the agent and the match that a text names, `module:function`; imported where it is first called.

    Raises, when it is called: ConfigError if there is no such function.
    """

    path: str

    def __call__(self, agent: str, match: Match, /) -> str:
        policy: str = function_of(self.path, "agents")(agent, match)
        return policy


#: One policy for all.
SHARED: Mapping[str, str] = {"*": DEFAULT_POLICY}


@attrs.frozen
class PolicyMap:
    """The policies of the agents of a game.

    Args:
        seating: The agents of the game, with their spaces.
        policies: Names of the policies.
        agents: See `Agents`.
        learners: Those whose experience is collected, by default all.

    Raises: ConfigError, naming the agent: no policy for it, or one that does not exist; a policy without agents;
        agents of one policy that differ in their spaces.

    >>> from flowrl.envs.games.seats import Seating
    >>> box, choice = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)
    >>> kind = Kind("kind_0", ("prey_0", "prey_1", "hunter"), box, choice)
    >>> seating = Seating(kind.agents, (kind,), {})
    >>> found = PolicyMap(seating, ("dqn", "ppo"), {"prey_*": "dqn", "*": "ppo"})
    >>> found.agents_of("dqn"), found.agents_of("ppo")
    (('prey_0', 'prey_1'), ('hunter',))
    >>> PolicyMap(seating, ("dqn",), {"prey_*": "dqn"})
    Traceback (most recent call last):
    flowrl.errors.ConfigError: agent 'hunter' has no policy: none of the patterns 'prey_*' fits; add '*' for all others
    """

    seating: Seating
    policies: tuple[str, ...] = (DEFAULT_POLICY,)
    agents: Agents = attrs.field(factory=lambda: dict(SHARED))
    learners: tuple[str, ...] = attrs.field(default=attrs.Factory(lambda self: self.policies, takes_self=True))

    def __attrs_post_init__(self) -> None:
        if callable(self.agents):
            if len(self.seating.kinds) > 1:
                first, other = (kind.agents[0] for kind in self.seating.kinds[:2])
                raise ConfigError(
                    f"agents is a function, with which any policy may play any agent, but {first!r} and {other!r} "
                    "differ in their spaces: give a mapping from agents to policies"
                )
            if not isinstance(self.agents, DrawsMatches):
                self.players(Match(0, 0))  # says what is wrong with it before anything is played
            return
        chosen = {agent: self._named(agent) for agent in self.seating.agents}
        for policy in self.policies:
            if policy not in chosen.values():
                raise ConfigError(f"policy {policy!r} has no agent: {self._told(chosen)}")
            first, *others = self.agents_of(policy)
            for agent in others:
                ours, theirs = self.seating.kind_of(first), self.seating.kind_of(agent)
                if ours is not theirs:
                    raise ConfigError(
                        f"policy {policy!r} plays {first!r}, which has the spaces {_spaces(ours)}, and {agent!r}, "
                        f"which has {_spaces(theirs)}: give each a policy, or the same spaces"
                    )

    @property
    def shared(self) -> bool:
        """Whether one policy learns, so that all experience is one batch."""
        return len(self.learners) == 1

    def agents_of(self, policy: str) -> tuple[str, ...]:
        """The agents that a policy may play."""
        if callable(self.agents):
            return self.seating.agents
        return tuple(agent for agent in self.seating.agents if self._named(agent) == policy)

    def spaces_of(self, policy: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """The observation and the action space of a policy's agents."""
        kind = self.seating.kind_of(self.agents_of(policy)[0])
        return kind.observation_space, kind.action_space

    def players(self, match: Match) -> list[MatchPlayer] | None:
        """Who plays each agent; None if that is the same in every match."""
        agents: Any = self.agents
        if not callable(agents):
            return None
        if isinstance(agents, DrawsMatches):
            learner = agents.learner(match)
            return [MatchPlayer(each.policy, each.player, each.policy == learner) for each in agents.drawn(match)]
        found = []
        for each in self.seating.agents:
            try:
                policy = agents(each, match)
            except Exception as error:
                error.add_note(f"in agents, asked who plays agent {each!r} in {match}")
                raise
            found.append(self._known(policy, each))
        return [MatchPlayer(each, each) for each in found]

    def _named(self, agent: str) -> str:
        assert not callable(self.agents)
        for pattern, policy in self.agents.items():
            if fnmatchcase(agent, pattern):
                return self._known(policy, agent)
        patterns = ", ".join(map(repr, self.agents)) or "(there are none)"
        raise ConfigError(
            f"agent {agent!r} has no policy: none of the patterns {patterns} fits; add '*' for all others"
        )

    def _known(self, policy: str, agent: str) -> str:
        if policy not in self.policies:
            raise ConfigError(f"agent {agent!r} has the policy {policy!r}: {did_you_mean(str(policy), self.policies)}")
        return policy

    def _told(self, chosen: Mapping[str, str]) -> str:
        return ", ".join(f"{agent} is played by {policy!r}" for agent, policy in chosen.items())


def _spaces(kind: Kind) -> str:
    return f"{kind.observation_space} and {kind.action_space}"


def checked_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of policies, which become parts of metrics' names and of paths. Raises: ConfigError."""
    found = tuple(names)
    if not found:
        raise ConfigError("policies is empty: name at least one")
    for name in found:
        if not isinstance(name, str) or not name or "/" in name or name != name.strip():
            raise ConfigError(f"policies has the name {name!r}: expected a word without '/'")
    return found


def policy_map(
    environments: Environments,
    seating: Seating | None,
    names: tuple[str, ...],
    agents: Agents | None,
    frozen: tuple[str, ...] = (),
) -> PolicyMap | None:
    """Who plays whom, with `frozen` policies, which only act; None with one agent, which one policy plays."""
    if frozen and seating is not None and agents is not None:
        return PolicyMap(seating, (*names, *frozen), agents, names)
    if seating is not None:
        everybody: Agents = {"*": names[0]} if len(names) == 1 else dict(zip(names, names))
        return PolicyMap(seating, names, everybody if agents is None else agents)
    if len(names) > 1 or agents is not None:
        what = "agents" if len(names) == 1 else f"policies {', '.join(names)}"
        raise ConfigError(f"{what}: {environments} has one agent, which one policy plays")
    return None

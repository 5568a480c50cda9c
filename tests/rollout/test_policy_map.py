"""PolicyMap: who plays whom, and what it says of those that nobody can play."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium import spaces

from flowrl.envs import Environments
from flowrl.envs.games.seats import Kind, Seating
from flowrl.errors import ConfigError
from flowrl.rollout.policy_map import Match, PolicyMap, checked_names, policy_map

NUMBER, OTHER, CHOICE = spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)), spaces.Discrete(2)
ALIKE = Seating(("prey_0", "prey_1", "hunter"), (Kind("kind_0", ("prey_0", "prey_1", "hunter"), NUMBER, CHOICE),), {})
PREY, HUNTER = Kind("kind_0", ("prey_0", "prey_1"), NUMBER, CHOICE), Kind("kind_1", ("hunter",), OTHER, CHOICE)
UNLIKE = Seating(("prey_0", "hunter", "prey_1"), (PREY, HUNTER), {})


def test_the_first_pattern_that_fits_counts() -> None:
    """M7: and nothing changes from match to match."""
    found = PolicyMap(ALIKE, ("a", "b", "c"), {"prey_1": "c", "prey_*": "a", "*": "b"})
    assert [found.agents_of(name) for name in "abc"] == [("prey_0",), ("hunter",), ("prey_1",)]
    assert found.players(Match(0, 0)) is None
    assert not found.shared


def test_each_policy_has_the_spaces_of_its_agents() -> None:
    found = PolicyMap(UNLIKE, ("a", "b"), {"prey_*": "a", "hunter": "b"})
    assert found.agents_of("a") == ("prey_0", "prey_1")
    assert found.spaces_of("a") == (NUMBER, CHOICE)
    assert found.spaces_of("b") == (OTHER, CHOICE)


def test_a_function_seats_each_match() -> None:
    """M7: each agent may be anyone's, and is one policy's in a match."""

    def seat(agent: str, match: Match) -> str:
        return "ab"[(match.env_id + match.episode_id + (agent == "hunter")) % 2]

    found = PolicyMap(ALIKE, ("a", "b"), seat)
    assert found.agents_of("a") == found.agents_of("b") == ALIKE.agents
    assert [each.policy for each in found.players(Match(1, 0))] == ["b", "b", "a"]
    assert [each.policy for each in found.players(Match(1, 1))] == ["a", "a", "b"]
    with pytest.raises(ConfigError, match="agent 'prey_0' has the policy 'x'"):
        PolicyMap(ALIKE, ("a", "b"), lambda *_: "x").players(Match(0, 0))


@pytest.mark.parametrize(
    ("seating", "policies", "agents", "message"),
    [
        (ALIKE, ("a",), {"prey_*": "a"}, "agent 'hunter' has no policy: none of the patterns 'prey_.' fits"),
        (ALIKE, ("a",), {}, r"agent 'prey_0' has no policy: none of the patterns \(there are none\)"),
        (ALIKE, ("prey", "b"), {"*": "pray"}, "agent 'prey_0' has the policy 'pray': did you mean 'prey'"),
        (ALIKE, ("a", "b"), {"*": "a"}, "policy 'b' has no agent: prey_0 is played by 'a', "),
        (UNLIKE, ("a",), {"*": "a"}, "policy 'a' plays 'prey_0', which has the spaces .*and 'hunter', which has"),
        (UNLIKE, ("a", "b"), lambda *_: "a", "agents is a function, .* but 'prey_0' and 'hunter' differ"),
    ],
)
def test_what_cannot_be_played_is_refused(seating: Seating, policies: Any, agents: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PolicyMap(seating, policies, agents)


def test_without_a_map_policies_play_the_agents_of_their_names() -> None:
    environments = Environments("CartPole-v1", {})
    assert policy_map(environments, None, ("a",), None) is None
    shared = policy_map(environments, ALIKE, ("a",), None)
    assert shared is not None
    assert shared.shared
    assert shared.agents_of("a") == ALIKE.agents
    named = policy_map(environments, ALIKE, ("prey_0", "prey_1", "hunter"), None)
    assert named is not None
    assert named.agents_of("hunter") == ("hunter",)


@pytest.mark.parametrize(("names", "agents"), [(("a", "b"), None), (("a",), {"*": "a"})])
def test_environments_of_one_agent_have_no_map(names: Any, agents: Any) -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1.* has one agent, which one policy plays"):
        policy_map(Environments("CartPole-v1", {}), None, names, agents)


@pytest.mark.parametrize("names", [[], [""], ["a/b"], [" a"], [3]])
def test_names_of_policies_can_be_parts_of_paths(names: Any) -> None:
    with pytest.raises(ConfigError, match="policies "):
        checked_names(names)

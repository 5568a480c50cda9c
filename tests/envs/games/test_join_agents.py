"""JoinAgents: what a player sees, does and gains is what its agents do, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs import make_env
from flowrl.envs.games import Game, JoinAgents, Turn, make
from flowrl.envs.wrappers import pack, unpack
from flowrl.errors import ConfigError, SchemaError
from flowrl.rollout.policy_map import PolicyMap
from tests.games import SEEDS, RandomGame

PAIR = {"pair": ["ann", "cid"]}


def actions_of(game: Game, obs: Mapping[str, Any], draw: np.random.Generator) -> dict[str, Any]:
    """Actions of those that act: any numbers of their spaces."""
    return {agent: draw.integers(7, size=game.action_spaces[agent].shape) for agent in obs}


@pytest.mark.parametrize("seed", SEEDS[:60])
def test_a_player_follows_its_agents_through_a_game(seed: int) -> None:
    """M11, M1, M2, M5, M6: those who come late, and end early or together, against a loop over the agents' own game."""
    alone, joined, draw = RandomGame("together"), JoinAgents(RandomGame("together"), PAIR), np.random.default_rng(seed)
    seen, found = alone.reset(seed), joined.reset(seed)
    last = dict(seen)
    acting, came, over = list(seen), set(seen), set[str]()
    newest, ended = list[str](), False
    won: bool | None = None
    while acting:
        pair = [agent for agent in ("ann", "cid") if agent in acting]
        newest = pair or newest  # those in its newest turn
        if not ended and pair:
            zeros = np.zeros(5, np.float32)
            expected = [last[agent] if agent in pair else zeros for agent in ("ann", "cid")]
            assert found["pair"].tolist() == np.concatenate(expected).tolist()
            assert joined.observation_spaces["pair"].contains(found["pair"])
        assert set(found) >= ({"pair"} if pair else set()) | ({"bob"} & {*acting})
        actions = actions_of(joined, ["pair"] * bool(pair) + ["bob"] * ("bob" in acting), draw)
        own = {"bob": actions["bob"]} if "bob" in acting else {}
        own |= {agent: actions["pair"][at] for at, agent in enumerate(("ann", "cid")) if agent in pair}
        turn, theirs = alone.step(own), joined.step(actions)
        found = theirs.obs
        last |= turn.obs
        ends = {*turn.terminated, *turn.truncated}
        acting = [agent for agent in turn.obs if agent not in ends]
        came |= set(turn.obs)
        over |= ends
        gains = [turn.reward[agent] for agent in ("ann", "cid") if agent in turn.reward]
        assert theirs.reward.get("pair", 0) == sum(gains)
        assert theirs.reward.get("bob") == turn.reward.get("bob")
        assert ("bob" in theirs.terminated, "bob" in theirs.truncated) == (
            "bob" in turn.terminated,
            "bob" in turn.truncated,
        )
        for agent in ("ann", "cid"):
            if agent in ends and "is_success" in turn.info.get(agent, {}):
                won = bool(won) or turn.info[agent]["is_success"]
        if ends & {"ann", "cid"}:
            cut = any(agent in turn.truncated and agent not in turn.terminated for agent in ends & {"ann", "cid"})
        now = not ended and {"ann", "cid"} & came <= over and ({"ann", "cid"} <= over or not acting)
        assert ("pair" in theirs.terminated, "pair" in theirs.truncated) == (now and not cut, now and cut)
        if now:
            ended = True
            assert theirs.info["pair"].get("is_success") == won
            there = {*newest, *turn.obs}
            gone = [last[agent] if agent in there else np.zeros(5, np.float32) for agent in ("ann", "cid")]
            assert theirs.obs["pair"].tolist() == np.concatenate(gone).tolist()
    assert ended


class Kinds(Game):
    """Three agents of different kinds; `masked` ones have a mask, and b is only there in every other step."""

    possible_agents = ("a", "b", "c")
    action_spaces: Mapping[str, Any] = {
        "a": spaces.Discrete(3, start=1),
        "b": spaces.MultiDiscrete([2, 2]),
        "c": spaces.MultiBinary(2),
    }

    def __init__(self, masked: tuple[str, ...] = ("a",)) -> None:
        self.masked = masked
        number: Any = spaces.Box(0, 9, (1,), np.float32)
        mask = {"a": spaces.MultiBinary(3), "b": spaces.MultiBinary(4)}
        self.observation_spaces = {"a": number, "b": number, "c": spaces.Box(0, 9, (), np.float64)}
        for agent in masked:
            self.observation_spaces[agent] = spaces.Dict(obs=number, action_mask=mask[agent])

    def reset(self, seed: int) -> Mapping[str, Any]:
        self.t, self.did = 0, list[Any]()
        return self._seen()

    def step(self, actions: Mapping[str, Any]) -> Turn:
        self.did.append(dict(actions))
        self.t += 1
        return Turn(self._seen(), truncated=self.possible_agents if self.t == 4 else ())

    def _seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = {"a": np.float32([self.t]), "b": np.float32([self.t]), "c": np.float64(self.t)}
        masks = {"a": np.int8([0, 1, 1]), "b": np.int8([0, 1, 1, 1])}
        for agent in self.masked:
            seen[agent] = {"obs": seen[agent], "action_mask": masks[agent]}
        return {agent: of for agent, of in seen.items() if agent != "b" or not self.t % 2}


def test_who_is_not_there_observes_a_member_of_its_space() -> None:
    """R7, M11: what is nearest to zero."""

    class Far(Kinds):
        def __init__(self) -> None:
            super().__init__(masked=())
            parts: Any = spaces.Dict(near=spaces.Box(-9, 9, (1,)), far=spaces.Box(3, 9, (2,), np.int64))
            self.observation_spaces = {"a": spaces.Discrete(9, start=3), "b": parts, "c": spaces.Discrete(2)}

        def _seen(self) -> dict[str, Any]:
            there = {"near": np.ones(1, np.float32), "far": np.full(2, 7)}
            return {"a": np.int64(5), "c": np.int64(0)} | ({} if self.t % 2 else {"b": there})

    game = JoinAgents(Far())
    seen = [game.reset(0)["team"], game.step({"team": np.zeros(5, np.int64)}).obs["team"]]
    assert [each["b"]["far"].tolist() for each in seen] == [[7, 7], [3, 3]]
    assert seen[1]["b"]["near"].tolist() == [0]
    assert all(map(game.observation_spaces["team"].contains, seen))


def test_choices_and_masks_stand_side_by_side() -> None:
    """M11: whoever has no mask has all its actions, whoever is not there has one of each choice."""
    game = JoinAgents(Kinds(masked=("a", "b")))
    space, actions = game.observation_spaces["team"], game.action_spaces["team"]
    assert actions == spaces.MultiDiscrete([3, 2, 2, 2, 2], start=[1, 0, 0, 0, 0])
    first = game.reset(0)["team"]
    assert space["obs"] == spaces.Box(0, 9, (3,), np.float64)
    assert first["obs"].tolist() == [0, 0, 0]
    assert first["action_mask"].tolist() == [0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1]
    second = game.step({"team": np.array([3, 1, 0, 0, 1])}).obs["team"]
    assert second["obs"].tolist() == [1, 0, 1]
    assert second["action_mask"].tolist() == [0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1]
    assert space.contains(first)
    assert space.contains(second)
    game.step({"team": np.array([2, 0, 0, 1, 0])})
    told: Any = game.game
    did = [{agent: np.asarray(action).tolist() for agent, action in each.items()} for each in told.did]
    assert did == [{"a": 3, "b": [1, 0], "c": [0, 1]}, {"a": 2, "c": [1, 0]}]
    assert all(told.action_spaces[agent].contains(action) for each in told.did for agent, action in each.items())


def test_agents_of_different_kinds_are_entries_of_a_dictionary() -> None:
    """M11: by their names, those without a number as if nothing had happened; and numbers are one Box of actions."""

    class Mixed(Kinds):
        action_spaces: Mapping[str, Any] = {
            "a": spaces.Box(-1, 1, (2, 1), np.float32),
            "b": spaces.Box(0, 5, (1,), np.float32),
            "c": spaces.Discrete(2),
        }

        def __init__(self) -> None:
            super().__init__(masked=())
            self.observation_spaces["b"] = spaces.Discrete(9, start=4)

        def _seen(self) -> dict[str, Any]:
            return super()._seen() | ({"b": np.int64(4 + self.t)} if not self.t % 2 else {})

    game = JoinAgents(Mixed(), {"both": ["b", "a"]})
    assert game.possible_agents == ("both", "c")
    assert game.action_spaces["both"] == spaces.Box(np.float32([-1, -1, 0]), np.float32([1, 1, 5]))
    game.reset(0)
    turn = game.step({"both": np.float32([0.5, -0.5, 3]), "c": np.int64(1)})
    assert {agent: seen.tolist() for agent, seen in turn.obs["both"].items()} == {"a": [1.0], "b": 4}
    assert game.observation_spaces["both"].contains(turn.obs["both"])
    assert turn.obs["c"] == 1
    (did,) = game.game.did  # type: ignore[attr-defined]
    assert (did["a"].tolist(), did["b"].tolist(), did["c"]) == ([[0.5], [-0.5]], [3], 1)


def test_players_are_given_by_name() -> None:
    """M11: the first pattern that fits counts, as for policies; whoever no pattern fits stays as it is."""
    for players, expected in (
        (None, ("team",)),
        ("*", ("team",)),
        (["ann", "c?d"], ("team", "bob")),
        ({"b": "bob", "rest": ["*"]}, ("rest", "b")),
    ):
        assert JoinAgents(RandomGame(), players).possible_agents == expected
    env: Any = make_env("flowrl:two_cartpoles", wrappers=['JoinAgents({"both": "*"})', "AgentId"])
    assert env.seating.agents == ("both",)
    assert PolicyMap(env.seating).agents_of("default_policy") == ("both",)


@pytest.mark.parametrize(
    ("players", "says"),
    [
        ('("anm",)', "no agent of RandomGame is 'anm': did you mean 'ann'"),
        ('{"all": "*", "x": "bob"}', "the player 'x' has no agent, since those before it"),
        ('{"bob": ["ann", "cid"]}', "has an agent 'bob' beside that player"),
        ('{"x": []}', "expected names of agents, or a table"),
        ("7", "expected names of agents, or a table"),
    ],
)
def test_players_that_cannot_be_are_refused(players: str, says: str) -> None:
    """M11: before anything is played."""
    with pytest.raises(ConfigError, match=says):
        make_env(RandomGame, wrappers=[f"JoinAgents({players})"])


def test_agents_that_cannot_be_joined_are_refused() -> None:
    """M11, M10: with their names."""
    both = Kinds(masked=())
    both.action_spaces = {**both.action_spaces, "a": spaces.Box(0, 1, (1,))}
    with pytest.raises(ConfigError, match=r"actions of 'b', MultiDiscrete.*, and of 'a', Box.* not both choices"):
        JoinAgents(both)
    with pytest.raises(ConfigError, match=r"lets 'manager' act over steps of its own"):
        make_env("CartPole-v1", wrappers=["Hierarchy(options=2)", "JoinAgents"])
    with pytest.raises(ConfigError, match=r"JoinAgents is for games of several agents, but .*CartPole.* has one"):
        make_env("CartPole-v1", wrappers=["JoinAgents"])


def test_agents_who_act_in_turn_are_refused() -> None:
    """M11: by name, in the first step that shows it."""
    env = make_env("flowrl:tic_tac_toe", wrappers=["JoinAgents"])
    env.reset(seed=0)
    with pytest.raises(SchemaError, match=r"TicTacToe: agents 'x' and 'o' of the player 'team' act in turn"):
        env.step(np.zeros(2))


def test_a_game_that_breaks_its_contract_is_told_for_which_agent() -> None:
    """M1: as without the wrapper, by the name of the agent and not of its player."""

    def stepped(turn: Turn) -> None:
        class Broken(Kinds):
            def step(self, actions: Mapping[str, Any]) -> Turn:
                self.t += 1
                return turn if self.t > 1 else Turn(self._seen(), terminated=["a"])

        env = make_env(lambda: Broken(masked=()), wrappers=['JoinAgents(["a", "b"])'])
        env.reset(seed=0)
        for _ in range(2):
            env.step(np.zeros(5))

    for turn, says in (
        (Turn({"a": np.zeros(1, np.float32)}), "agent 'a' has ended, but has an observation"),
        (Turn({"b": np.zeros(2, np.float32)}), "agent 'b': the observation has shape"),
        (Turn({}, {"b": None}), "agent 'b': the reward is None"),  # type: ignore[dict-item]
        (Turn({}, terminated={"b": False}), "terminated is a dict, expected the names"),  # type: ignore[arg-type]
        (Turn({}), "agent 'c' has neither terminated nor been truncated"),
        (Turn({"z": np.zeros(1)}), "an observation for agent 'z', which is not in possible_agents"),
    ):
        with pytest.raises(SchemaError, match=says):
            stepped(turn)


def test_a_restored_game_goes_on_in_equal_states() -> None:
    """D3: at any step, and D5: byte for byte."""
    env: Any = make_env(RandomGame, {"order": "together"}, wrappers=['JoinAgents(["ann", "cid"])'])
    small: Any = make_env("flowrl:two_step", wrappers=["JoinAgents"])
    env.reset(seed=SEEDS[1])
    small.reset(seed=0)
    for at in range(30):
        again, twin = unpack(pack(env), "the game"), unpack(pack(small), "the game")
        action = np.random.default_rng(at).integers(7, size=3).astype(float)
        (seen, *outcome, _), (same, *result, _) = env.step(action), again.step(action)
        np.testing.assert_equal(seen, same)
        assert outcome == result
        for each in (small, twin):
            if each.step(action[:2] % 2)[2]:
                each.reset()
        assert pack(small) == pack(twin)
        if True in outcome:
            env.reset()


def test_without_players_of_several_nothing_changes() -> None:
    """M11: of one agent each, of a game in which all act, in every number."""
    plain, joined = make("two_cartpoles"), JoinAgents(make("two_cartpoles"), {"l": "left", "r": "right"})
    seen, found = plain.reset(3), joined.reset(3)
    for _ in range(40):
        np.testing.assert_equal(list(found.values()), list(seen.values()))
        turn, other = plain.step(dict.fromkeys(seen, np.int64(1))), joined.step(dict.fromkeys(found, np.int64([1])))
        assert list(other.reward.values()) == list(turn.reward.values())
        assert [end[0] for end in turn.terminated] == list(other.terminated)
        seen, found = turn.obs, other.obs
        if len(turn.terminated):
            break

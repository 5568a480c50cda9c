"""Wrappers of games: what they add to the observation of each agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs import make_env
from flowrl.envs.games import AgentId, FiniteHorizon, Game, GlobalState, PadSpaces, Turn, make
from flowrl.envs.masks import valid_sample
from flowrl.envs.wrappers import pack, unpack
from flowrl.errors import ConfigError, SchemaError

BOTH = ["AgentId", "GlobalState"]


class Masked(Game):
    """Dictionaries already, and a state that the last step changes too."""

    possible_agents = ("a", "b")
    observation_spaces: Mapping[str, Any] = dict.fromkeys(
        possible_agents, spaces.Dict(sum=spaces.Discrete(9), action_mask=spaces.MultiBinary(2))
    )
    action_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Discrete(2))
    state_space = spaces.Box(0, 9, (2,), np.float32)

    def __init__(self, stranger: bool = False) -> None:
        self.stranger = stranger

    def reset(self, seed: int) -> Mapping[str, Any]:
        self.did = [0, 0]
        return self._seen()

    def step(self, actions: Mapping[str, Any]) -> Turn:
        self.did = [int(actions["a"]), int(actions["b"])]
        over = self.possible_agents if all(self.did) else ()
        return Turn(self._seen(), dict.fromkeys(self.possible_agents, 1.0), over)

    def state(self) -> Any:
        return np.array(self.did, np.float32)

    def _seen(self) -> dict[str, Any]:
        seen = {"sum": sum(self.did), "action_mask": np.ones(2, np.int8)}
        return dict.fromkeys(("a", "b", *["c"] * self.stranger), seen)


class Timed(Masked):
    """In a step in which both act, `a` ends and `b` has no time left."""

    def step(self, actions: Mapping[str, Any]) -> Turn:
        turn = super().step(actions)
        return turn._replace(truncated=("b",), terminated=("a",)) if turn.terminated else turn


def test_a_time_limit_is_the_end_of_a_game_with_a_finite_horizon() -> None:
    """T6: nothing is bootstrapped after who was truncated; before, the game is as it was."""
    game = FiniteHorizon(Timed())
    assert [*game.reset(0)] == ["a", "b"]
    assert game.observation_spaces == Timed.observation_spaces
    assert game.step({"a": 1, "b": 0})[2:4] == ((), ())
    assert game.step({"a": 1, "b": 1})[2:4] == (("a", "b"), ())


def test_each_agent_learns_its_number_and_learners_the_state() -> None:
    """M1, T6: in the last observation too, beside what was there."""
    game = GlobalState(AgentId(Masked()))
    assert str(game) == "GlobalState(AgentId(Masked))"
    assert set(game.observation_spaces["a"].spaces) == {"sum", "action_mask", "agent", "state"}
    assert [int(each["agent"]) for each in game.reset(0).values()] == [0, 1]
    assert game.step({"a": 1, "b": 0}).obs["b"]["state"].tolist() == [1, 0]
    turn = game.step({"a": 1, "b": 1})
    assert turn.terminated == ("a", "b")
    assert turn.obs["a"]["sum"] == 2
    assert turn.obs["a"]["state"].tolist() == game.state().tolist() == [1, 1]
    for agent, seen in turn.obs.items():
        assert game.observation_spaces[agent].contains({**seen, "sum": np.int64(seen["sum"])})


def test_a_game_without_a_state_stays_as_it_is() -> None:
    """M1: its observations and spaces."""
    plain, wrapped = make("tic_tac_toe"), GlobalState(make("tic_tac_toe"))
    assert wrapped.observation_spaces == plain.observation_spaces
    np.testing.assert_equal(wrapped.reset(0), plain.reset(0))
    with pytest.raises(NotImplementedError, match="TicTacToe has no state of the whole game"):
        wrapped.state()


def test_the_state_of_a_pettingzoo_environment_is_that_of_the_game() -> None:
    """M2: where it has one."""
    pytest.importorskip("pettingzoo")
    from pettingzoo import ParallelEnv

    from flowrl.envs.adapters.pettingzoo import ParallelGame

    class Two(ParallelEnv[str, Any, Any]):
        metadata: dict[str, Any] = {"name": "two"}  # noqa: RUF012
        possible_agents = ["x", "y"]  # noqa: RUF012
        state_space = spaces.Discrete(5)

        def observation_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents = list(self.possible_agents)
            return dict.fromkeys(self.agents, 0), {}

        def state(self) -> Any:
            return np.int64(4)

    seen = GlobalState(ParallelGame(Two())).reset(0)["y"]
    assert (seen["obs"], seen["state"]) == (0, 4)


def test_they_are_wrappers_by_name() -> None:
    """M4: the agents stay of one kind, which one policy plays."""
    env: Any = make_env("flowrl:two_step", wrappers=BOTH)
    obs, _ = env.reset(seed=0)
    (kind,) = env.seating.kinds
    assert obs[kind.name]["agent"].tolist() == [0, 1]
    assert obs[kind.name]["state"].tolist() == [0, 0]
    with pytest.raises(ConfigError, match=r"AgentId is for games of several agents, but .*CartPole.* has one"):
        make_env("CartPole-v1", wrappers=["AgentId"])
    with pytest.raises(ConfigError, match=r"agent 'first': observations have an entry 'agent' already: leave out"):
        make_env("flowrl:two_step", wrappers=["AgentId", "AgentId"])


def test_strangers_are_still_refused() -> None:
    """M1: by who reads the observations."""
    env = make_env(lambda: Masked(stranger=True), wrappers=BOTH)
    with pytest.raises(SchemaError, match="an observation for agent 'c', which is not in possible_agents"):
        env.reset(seed=0)


@pytest.mark.parametrize("wrappers", [[], BOTH])
def test_a_restored_game_goes_on_in_equal_states(wrappers: list[str]) -> None:
    """D3, D5: byte for byte, whatever objects it shares with its class."""
    env: Any = make_env("flowrl:two_step", wrappers=wrappers)
    env.reset(seed=1)
    again = unpack(pack(env), "the game")
    for each in (env, again):
        for _ in range(3):
            each.step(np.zeros(2))
            each.step(np.ones(2))
            each.reset()
    assert pack(env) == pack(again)


class Unequal(Game):
    """A speaker and a mover, of other sizes; `seen` and `acts` are the mover's spaces."""

    possible_agents = ("speaker", "mover")

    def __init__(self, seen: Any = None, acts: Any = None) -> None:
        wide = spaces.Box(-1, 5, (2, 3), np.float32)
        self.observation_spaces = {"speaker": spaces.Box(0, 2, (1, 2), np.float32), "mover": seen or wide}
        self.action_spaces = {"speaker": spaces.Discrete(2), "mover": acts or spaces.Discrete(4)}

    def reset(self, seed: int) -> Mapping[str, Any]:
        return self._seen()

    def step(self, actions: Mapping[str, Any]) -> Turn:
        self.did = dict(actions)
        return Turn(self._seen(), terminated=self.possible_agents)

    def _seen(self) -> dict[str, Any]:
        return {agent: np.ones(space.shape, np.float32) for agent, space in self.observation_spaces.items()}


def test_agents_of_other_sizes_become_of_one_kind() -> None:
    """M9: zeros beyond an agent's own numbers, in the last observation too, and a mask of the actions that it has."""
    env: Any = make_env(Unequal, wrappers=["PadSpaces", "AgentId"])
    (kind,) = env.seating.kinds
    assert kind.agents == ("speaker", "mover")
    assert kind.observation_space["obs"] == spaces.Box(-1, 5, (2, 3), np.float32)
    for obs in (env.reset(seed=0)[0], env.step(np.zeros(2))[0]):
        assert obs[kind.name]["obs"].tolist() == [[[1, 1, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]]]
        assert obs[kind.name]["action_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    game = PadSpaces(Unequal())
    speaker = game.reset(0)["speaker"]
    assert game.observation_spaces["speaker"].contains(speaker)
    assert {int(valid_sample(game.action_spaces["speaker"], speaker)) for _ in range(40)} == {0, 1}


def test_padding_is_a_member_of_the_padded_space() -> None:
    """R7, M9: also where zero is none of an agent's own."""

    class Far(Masked):
        observation_spaces: Mapping[str, Any] = {
            agent: spaces.Dict(far=spaces.Box(3, 9, (n, 3 - n)), kind=spaces.Discrete(n + 3, start=3))
            for agent, n in (("a", 1), ("b", 2))
        }
        action_spaces: Mapping[str, Any] = {"a": spaces.Discrete(2), "b": spaces.Discrete(3)}

        def _seen(self) -> dict[str, Any]:
            return {agent: space.sample() for agent, space in self.observation_spaces.items()}

    game = PadSpaces(Far())
    for agent, seen in game.reset(0).items():
        assert game.observation_spaces[agent].contains(seen)
        assert seen["far"].shape == (2, 2)


def test_parts_of_observations_and_masks_are_padded_one_by_one() -> None:
    """M9: a mask of the game's own stays the stricter one."""
    parts = {
        "a": spaces.Dict(x=spaces.Discrete(2), action_mask=spaces.MultiBinary(2)),
        "b": spaces.Dict(x=spaces.Discrete(5), action_mask=spaces.MultiBinary(3)),
    }

    class Both(Masked):
        observation_spaces = parts
        action_spaces: Mapping[str, Any] = {"a": spaces.Discrete(2), "b": spaces.Discrete(3)}

        def _seen(self) -> dict[str, Any]:
            own = {"a": np.int8([1, 0]), "b": np.int8([0, 1, 1])}
            return {agent: {"x": np.int64(1), "action_mask": mask} for agent, mask in own.items()}

    game = PadSpaces(Both())
    assert game.observation_spaces["a"] == game.observation_spaces["b"]
    assert game.observation_spaces["a"]["x"] == spaces.Discrete(5)
    seen = game.reset(0)
    assert (seen["a"]["action_mask"].tolist(), seen["b"]["action_mask"].tolist()) == ([1, 0, 0], [0, 1, 1])


def test_of_a_longer_action_an_agent_plays_its_own_part() -> None:
    """M9."""
    inner = Unequal(acts=spaces.Box(-1, 1, (3,), np.float32))
    inner.action_spaces["speaker"] = spaces.Box(0, 1, (1,), np.float32)
    game = PadSpaces(inner)
    assert game.action_spaces["speaker"] == spaces.Box(-1, 1, (3,), np.float32)
    assert not isinstance(game.observation_spaces["mover"], spaces.Dict)
    game.reset(0)
    game.step(dict.fromkeys(game.possible_agents, np.float32([0.25, 0.5, 0.75])))
    assert {agent: did.tolist() for agent, did in inner.did.items()} == {"speaker": [0.25], "mover": [0.25, 0.5, 0.75]}


def test_spaces_that_differ_in_more_than_sizes_are_refused() -> None:
    """M9: by the names of two agents."""
    for unlike in ({"seen": spaces.Discrete(3)}, {"seen": spaces.Box(0, 1, (2,))}):
        with pytest.raises(
            ConfigError, match=r"observation spaces of 'speaker', .*, and of 'mover', .*more than their"
        ):
            make_env(Unequal, unlike, wrappers=["PadSpaces"])
    with pytest.raises(ConfigError, match=r"action spaces of 'speaker', .*a policy of its own"):
        make_env(Unequal, {"acts": spaces.Box(0, 1, (2,))}, wrappers=["PadSpaces"])


def test_a_game_of_one_kind_stays_as_it_is() -> None:
    """M9: no mask, no other arrays."""
    plain, wrapped = make("two_cartpoles"), PadSpaces(make("two_cartpoles"))
    assert wrapped.observation_spaces == plain.observation_spaces
    np.testing.assert_equal(wrapped.reset(0), plain.reset(0))

"""Wrappers of games: what they add to the observation of each agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs import make_env
from flowrl.envs.games import AgentId, Game, GlobalState, Turn, make
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

"""Games of PettingZoo: every row that a seat gets is that of PettingZoo's own loop, with the same actions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from pettingzoo.utils import conversions

from flowrl.envs import Environments, make_env, make_manager
from flowrl.envs.adapters.pettingzoo import ParallelGame, PettingZooGame, TurnBasedGame, _tell_of_masks, make
from flowrl.envs.games.seats import GameEnv, Of
from flowrl.errors import ConfigError, SchemaError
from flowrl.rollout.video import filmed

Rows = dict[str, list[Any]]


class Visitors(pettingzoo.ParallelEnv):  # type: ignore[misc]
    """Agents that come, leave, return and end when the seed says; each is paid at every step, also while it is away.

    Agents are named by numbers. Observations are [agent, clock], `info` has a mask with one valid action.
    """

    def __init__(self, leave: bool = True, agents: int = 3, render_mode: str | None = None) -> None:
        self.metadata = {"name": "visitors_v0", "is_parallelizable": True}
        self.possible_agents, self.leave, self.render_mode = list(range(agents)), leave, render_mode

    def observation_space(self, agent: int) -> Any:
        return spaces.Box(0, np.inf, (2,), np.float32)

    def action_space(self, agent: int) -> Any:
        return spaces.Discrete(4 + agent)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.draw, self.clock = np.random.default_rng(seed), 0
        self.ended: set[int] = set()
        self.agents = [0] if self.leave else list(self.possible_agents)
        return self._obs(self.agents), self._infos()

    def step(self, actions: dict[int, Any]) -> Any:
        assert set(actions) == set(self.agents)
        self.clock += 1
        alive = [agent for agent in self.possible_agents if agent not in self.ended]
        chance, last = self.draw.random(3), self.clock == 9
        over = [agent for agent in alive if last or chance[agent] < 0.1]
        self.ended.update(over)
        here = [agent for agent in alive if not self.leave or chance[agent] < 0.7 or last]
        self.agents = [agent for agent in here if agent not in over]
        if not self.agents:
            over, here, self.ended = alive, alive, set(self.possible_agents)
        reward = {agent: float(10**agent * self.clock + actions.get(agent, 0)) for agent in alive}
        cut = {agent: agent in over and (last or agent == 1) for agent in alive}
        done = {agent: agent in over and agent != 1 for agent in alive}
        return self._obs(set(here) | set(over)), reward, done, cut, self._infos()

    def render(self) -> Any:
        return np.full((32, 32, 3), self.clock, np.uint8)

    def close(self) -> None: ...

    def _obs(self, agents: Any) -> Any:
        return {agent: np.array([agent, self.clock], np.float32) for agent in agents}

    def _infos(self) -> Any:
        return {i: {"action_mask": np.eye(4 + i)[(self.clock + i) % 4], "is_success": i == 1} for i in range(3)}


def chosen(env: Any, agent: Any, at: int) -> int:
    """The same action whoever asks."""
    return int(np.random.default_rng([at, int(str(agent)[-1])]).integers(env.action_space(agent).n))


def valid(obs: Any, at: int) -> int:
    """One of the valid actions that an observation names."""
    return int(np.random.default_rng(at).choice(np.flatnonzero(obs["action_mask"])))


def in_turns(env: Any, seed: int, act: Callable[[Any, Any, int], int]) -> Rows:
    """The loop of PettingZoo's documentation."""
    rows: Rows = {str(agent): [] for agent in env.possible_agents}
    open_: dict[Any, Any] = {}
    env.reset(seed=seed)
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, _ = env.last()
        if agent in open_:
            rows[str(agent)].append(
                (*open_.pop(agent), reward, obs, bool(terminated), bool(truncated and not terminated))
            )
        if terminated or truncated:
            env.step(None)
        else:
            open_[agent] = obs, act(agent, obs, len(rows[str(agent)]))
            env.step(open_[agent][1])
    return rows


def together(env: Any, seed: int, act: Callable[[Any, Any, int], int]) -> Rows:
    """The loop of PettingZoo's documentation; what an agent gains while it is away adds up."""
    rows: Rows = {str(agent): [] for agent in env.possible_agents}
    open_: dict[Any, Any] = {}
    gained = dict.fromkeys(env.possible_agents, 0.0)
    obs, _ = env.reset(seed=seed)
    while env.agents:
        actions = {agent: act(agent, obs[agent], len(rows[str(agent)])) for agent in env.agents}
        open_.update({agent: (obs[agent], action) for agent, action in actions.items()})
        obs, reward, terminated, truncated, _ = env.step(actions)
        for agent, gain in reward.items():
            gained[agent] += gain
        for agent in set(open_) & set(obs):
            ends = terminated[agent], truncated[agent] and not terminated[agent]
            rows[str(agent)].append((*open_.pop(agent), gained[agent], obs[agent], *ends))
            gained[agent] = 0.0
    return rows


def through_seats(game: PettingZooGame, seed: int, act: Callable[[Any, Any, int], int]) -> Rows:
    """The rows of each seat."""
    env, over = GameEnv(game), False
    rows: Rows = {agent: [] for agent in game.possible_agents}
    open_: dict[str, Any] = {}
    obs, _ = env.reset(seed=seed)
    while not over:
        action = np.zeros(env.action_space.shape)
        for agent, row in zip(rows, obs["seats"]):
            if row[Of.TURN]:
                seen = seen_by(env, obs, agent)
                open_[agent] = seen, act(game._ids[agent], seen, len(rows[agent]))
                action[env.seating.action_slices[agent]] = open_[agent][1]
        obs, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        for agent, row in zip(rows, obs["seats"]):
            if row[Of.ANSWERED]:
                ends = bool(row[Of.TERMINATED]), bool(row[Of.TRUNCATED])
                rows[agent].append((*open_.pop(agent), row[Of.REWARD], seen_by(env, obs, agent), *ends))
    return rows


def seen_by(env: GameEnv, obs: Any, agent: str) -> Any:
    kind = env.seating.kind_of(agent)
    stack, at = obs[kind.name], kind.agents.index(agent)
    return {key: part[at] for key, part in stack.items()} if isinstance(stack, dict) else stack[at]


def assert_same(rows: Rows, others: Rows) -> None:
    assert any(rows.values())
    np.testing.assert_equal(rows, others)


def test_parallel_agents_come_and_go_as_in_their_own_loop() -> None:
    """M1, M2."""
    game, again = ParallelGame(Visitors()), Visitors()

    def act(agent: int, obs: Any, at: int) -> int:
        return chosen(again, agent, at)

    for seed in range(50):
        assert_same(through_seats(game, seed, act), together(again, seed, act))


def test_a_single_agent_is_one_environment() -> None:
    env, again = make_env(lambda: Visitors(False, 1)), Visitors(False, 1)
    for seed in range(5):
        rows, over = [], False
        obs, _ = env.reset(seed=seed)
        while not over:
            last, action = obs, chosen(again, 0, len(rows))
            obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((last, action, reward, obs, terminated, truncated and not terminated))
            over = terminated or truncated
        assert_same({"0": rows}, together(again, seed, lambda agent, obs, at: chosen(again, agent, at)))


def test_agents_that_may_act_at_once_do() -> None:
    """A turn-based environment that says is_parallelizable."""
    env, again = make_env(taking_turns), Visitors(leave=False)
    assert isinstance(env, GameEnv)
    assert isinstance(env.game, ParallelGame)

    def act(agent: int, obs: Any, at: int) -> int:
        return chosen(again, agent, at)

    assert_same(through_seats(env.game, 0, act), together(again, 0, act))


def taking_turns() -> Any:
    return conversions.parallel_to_aec(Visitors(leave=False))


@pytest.mark.parametrize("make_one", [taking_turns, lambda: make("classic/rps-v2", max_cycles=4)], ids=["own", "rps"])
def test_agents_take_turns_as_in_their_own_loop(make_one: Any) -> None:
    """M1: who has ended takes its last turn without an action."""
    env, again = make_one(), make_one()
    if isinstance(env, pettingzoo.ParallelEnv):
        env, again = map(conversions.parallel_to_aec, (env, again))

    def act(agent: Any, obs: Any, at: int) -> int:
        return chosen(again, agent, at)

    game = TurnBasedGame(env)
    for seed in range(20):
        assert_same(through_seats(game, seed, act), in_turns(again, seed, act))


@pytest.mark.parametrize("name", ["classic/tictactoe-v3", "classic/connect_four-v3"])
def test_board_games_with_masks_are_played_to_their_end(name: str) -> None:
    """M5, M6: each seat's last row has what the end of the game gave it, and nobody plays an invalid move."""
    game, again = TurnBasedGame(make(name)), make(name)
    for seed in range(5):

        def act(agent: Any, obs: Any, at: int, seed: int = seed) -> int:
            return valid(obs, 100 * seed + at)

        rows = through_seats(game, seed, act)
        assert_same(rows, in_turns(again, seed, act))
        assert all(of_one[-1][4] for of_one in rows.values())
        assert sum(row[2] for of_one in rows.values() for row in of_one) == 0


@pytest.mark.parametrize(
    "make_game", [lambda: ParallelGame(Visitors(False), True), lambda: TurnBasedGame(taking_turns(), True)]
)
def test_masks_of_infos_belong_to_their_observations(make_game: Any) -> None:
    """Also to last ones, and each agent has its own."""
    rows = through_seats(make_game(), 0, lambda agent, obs, at: int(obs["action_mask"].argmax()))
    assert {len(row[0]["action_mask"]) for of_one in rows.values() for row in of_one} == {4, 5, 6}
    for agent, of_one in rows.items():
        for obs, _, _, next_obs, *_ in of_one:
            for each in (obs, next_obs):
                assert each["action_mask"].argmax() == (each["obs"][1] + int(agent)) % 4


def test_the_wrapper_of_masks_gives_each_agent_its_own(caplog: pytest.LogCaptureFixture) -> None:
    _tell_of_masks.cache_clear()
    for _ in range(2):
        make_env(Visitors).reset(seed=0)
    assert caplog.text.count("visitors_v0: info has an action_mask, which policies do not read") == 1
    env = make_env(Visitors, wrappers=["ActionMask"])
    assert isinstance(env, GameEnv)
    assert "action_mask" in env.game.observation_spaces["0"].spaces  # type: ignore[attr-defined]


def test_success_is_that_of_each_agent() -> None:
    env = GameEnv(ParallelGame(Visitors()))
    obs, _ = env.reset(seed=0)
    over = False
    while not over:
        obs, _, terminated, truncated, _ = env.step(np.zeros(3))
        over = terminated or truncated
    assert obs["seats"][:, Of.SUCCESS].tolist() == [0, 1, 0]


class Nameless(Visitors):
    def __init__(self) -> None:
        super().__init__()
        del self.possible_agents


class Intruder(Visitors):
    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)
        self.agents.append("3")  # type: ignore[arg-type]
        return {**obs, "3": obs.get(0)}, *rest


class Silent(Visitors):
    def _infos(self) -> Any:
        return {}


def test_what_cannot_be_a_game_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"visitors_v0 does not name its possible_agents, expected .*\(M2\)"):
        ParallelGame(Nameless())
    with pytest.raises(SchemaError, match="visitors_v0 gives an observation for agent '3', which is not in possible_a"):
        through_seats(ParallelGame(Intruder()), 0, lambda *_: 0)
    with pytest.raises(SchemaError, match="visitors_v0, agent '0': info has no 'action_mask' after reset"):
        through_seats(ParallelGame(Silent(), True), 0, lambda *_: 0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Nameless, r"visitors_v0 does not name its possible_agents, .*\(M2\)"),
        ("pettingzoo:classic/rps-v7", "no environment 'classic/rps-v7' in pettingzoo: did you mean 'classic/rps-v2'"),
        ("pettingzoo:butterfly/pistonball-v6", "cannot be made: .*pymunk.*additional dependencies"),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_work(
    spec: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymunk", None)  # pistonball needs it; whoever has it gets on without
    with pytest.raises(ConfigError, match=message):
        make_manager(spec, 8)


def test_without_pettingzoo_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r"needs pettingzoo: pip install 'flowrl-engine\[envs\]'"):
        make_env("pettingzoo:classic/rps-v2")


def test_the_real_rock_paper_scissors_in_processes() -> None:
    """M6: what one agent wins the other one loses, in each of its copies."""
    with make_manager("pettingzoo:classic/rps-v2", 2, {"max_cycles": 5}, kind="subprocess") as manager:
        manager.launch(3)
        for _ in range(10):
            result = manager.step(np.random.default_rng(0).integers(3, size=(2, 2)))
        assert manager.t.tolist() == [0, 0]
        table = result.next_obs["seats"]
    assert (table[:, 0, Of.RETURN] == -table[:, 1, Of.RETURN]).all()
    assert (table[..., Of.TRUNCATED] == 1).all()


def test_an_object_is_one_game() -> None:
    assert make_manager(Visitors(), 1).num_envs == 1
    with pytest.raises(ConfigError, match="is one environment: pass a callable"):
        make_manager(Visitors(), 6)


def test_all_agents_of_a_game_are_in_one_film(tmp_path: Path) -> None:
    environments = Environments(Visitors, env_args={"agents": 2, "leave": False})
    manager = filmed(environments, 2, tmp_path, [2, 0])
    with manager:
        manager.launch(0)
        while len(manager.finished) < 6:
            manager.step(np.zeros((2, 2), int))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["eval-episode-0.mp4", "eval-episode-1.mp4"]


def test_a_game_renders_and_closes_its_environment() -> None:
    env = make("classic/rps-v2", render_mode="rgb_array")
    game = GameEnv(ParallelGame(env))
    assert game.render_mode == "rgb_array"
    assert str(game) == "rps_v2"
    game.reset(seed=0)
    assert game.render().ndim == 3
    game.close()

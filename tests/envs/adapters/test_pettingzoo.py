"""PettingZoo at the border: agents side by side as environments where they are that, and refused where not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from pettingzoo.utils import conversions

from flowrl.envs import Environments, EnvManager, VectorEnvManager, make_env, make_manager
from flowrl.errors import ConfigError, SchemaError
from flowrl.rollout import evaluate
from tests.scripted import ScriptedPolicy


class Clocks(pettingzoo.ParallelEnv):  # type: ignore[misc]
    """Every agent observes [its number, the episode's mark, the clock, its last action], and is paid its own number.

    Episodes last 2, 3, 2, 3 ... steps; the odd ones are truncated, the even ones terminated.
    """

    render_mode = None

    def __init__(self, count: int = 2, alone: str = "", late: bool = False, spaces_differ: bool = False) -> None:
        self.metadata = {"name": "clocks_v0", "is_parallelizable": True}
        self.possible_agents = [f"agent_{i}" for i in range(count)]
        self.alone, self.late, self.differ = alone, late, spaces_differ
        self.episode, self.seeds, self.closed = -1, list[int](), False

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, np.inf, (4 + (self.differ and agent != "agent_0"),), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(10)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.seeds.append(seed)
        self.agents = self.possible_agents[1:] if self.late else list(self.possible_agents)
        self.episode += 1
        self.clock = 0
        return self._obs(dict.fromkeys(self.agents, -1)), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.clock += 1
        live, odd = list(self.agents), self.episode % 2 == 1
        over = self.clock == 2 + odd
        ended = {agent: over or agent == self.alone for agent in live}
        obs = self._obs(actions)
        rewards = {agent: float(agent[-1]) for agent in live}
        infos = {agent: {"is_success": agent == "agent_1"} if over else {} for agent in live}
        self.agents = [agent for agent in live if not ended[agent]]
        none = dict.fromkeys(live, False)
        return obs, rewards, *((none, ended) if odd else (ended, none)), infos

    def _obs(self, actions: dict[str, Any]) -> dict[str, Any]:
        mark = self.seeds[-1] % 1000
        rows = {agent: [int(agent[-1]), mark, self.clock, actions[agent]] for agent in self.agents}
        return {agent: np.array(row, np.float32) for agent, row in rows.items()}

    def close(self) -> None:
        self.closed = True


def played(manager: Any, steps: int) -> list[Any]:
    """Rows [N] of (obs, action, reward, terminated, truncated, next_obs)."""
    found = []
    manager.launch(3)
    for step in range(steps):
        obs = manager.obs.copy()
        actions = [(step + i) % manager.action_space.n for i in range(manager.num_envs)]
        result = manager.step(actions)
        assert result.acted is None
        found.append([obs, np.array(actions), *(np.copy(part) for part in result[1:4]), result.next_obs.copy()])
    return [np.stack(column) for column in zip(*found)]


def test_each_agent_is_an_environment() -> None:
    """T2, T6, T11: rows are the agents, copy by copy; every action reaches its agent."""
    with make_manager(Clocks, 4) as manager:
        assert isinstance(manager, VectorEnvManager)
        obs, action, reward, terminated, truncated, next_obs = played(manager, 10)
        episodes = manager.drain()
    assert obs[:, :, 0].tolist() == next_obs[:, :, 0].tolist() == [[0, 1, 0, 1]] * 10
    assert (next_obs[:, :, 3] == action).all()
    assert (next_obs[:, :, 2] == obs[:, :, 2] + 1).all()
    assert (next_obs[:, :, 1] == obs[:, :, 1]).all()
    assert (reward == [0, 1, 0, 1]).all()
    assert terminated.all(1).nonzero()[0].tolist() == terminated.any(1).nonzero()[0].tolist() == [1, 6]
    assert truncated.all(1).nonzero()[0].tolist() == truncated.any(1).nonzero()[0].tolist() == [4, 9]
    assert [(each.env_id, each.return_, each.length, each.success) for each in episodes[:4]] == [
        *((0, 0.0, 2, False), (1, 2.0, 2, True), (2, 0.0, 2, False), (3, 2.0, 2, True))
    ]


def test_every_episode_has_a_fresh_seed_of_its_own_copy() -> None:
    """D1: and the run's seed gives them all."""
    first, again = (played(make_manager(Clocks, 4), 10)[0][:, :, 1] for _ in range(2))
    assert (first == again).all()
    marks = {tuple(row[::2]) for row in first.tolist()}
    assert len({mark for pair in marks for mark in pair}) == 8  # 4 episodes in each of 2 copies
    assert (first[:, 0] == first[:, 1]).all()


def test_a_single_agent_is_one_environment() -> None:
    with make_manager(lambda: Clocks(1), 3) as manager:
        assert isinstance(manager, EnvManager)
        obs, action, _, _, _, next_obs = played(manager, 6)
    assert (next_obs[:, :, 3] == action).all()
    assert obs[:, :, 2].T.tolist() == [[0, 1, 0, 1, 2, 0]] * 3


def test_a_turn_based_environment_whose_agents_may_act_at_once() -> None:
    """M1: rewards are those that PettingZoo's own adapter adds up over the turns."""
    turns = conversions.parallel_to_aec(Clocks())
    assert isinstance(turns, pettingzoo.AECEnv)
    parallel, adapted = (played(make_manager(each, 4), 9) for each in (Clocks, _taking_turns))
    for one, other in zip(parallel, adapted):
        np.testing.assert_array_equal(one, other)


def _taking_turns() -> Any:
    env = conversions.parallel_to_aec(Clocks())
    env.metadata = {**env.metadata, "is_parallelizable": True}
    return env


class MaskedClocks(Clocks):
    """Only the action (clock + its own number) is valid, which `info` says."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed, options)
        return obs, self._told(infos)

    def step(self, actions: dict[str, Any]) -> Any:
        *answer, infos = super().step(actions)
        return *answer, self._told(infos)

    def _told(self, infos: Any) -> Any:
        return {
            agent: {**info, "action_mask": np.eye(10)[self.clock + int(agent[-1])]} for agent, info in infos.items()
        }


@pytest.mark.parametrize("count", [1, 2])
def test_masks_of_agents(count: int) -> None:
    """T2: each agent has its own, also of its last observation."""
    from flowrl.policies import RandomPolicy
    from flowrl.rollout import RolloutWorker

    with make_manager(lambda: MaskedClocks(count), 4, wrappers=["ActionMask"]) as manager:
        policy = RandomPolicy(manager.observation_space, manager.action_space)
        rows = RolloutWorker(manager, policy, seed=0).sample(8)
    for obs in (rows.obs, rows.next_obs):
        assert (obs.action_mask.argmax(-1) == obs.obs[..., 2] + obs.obs[..., 0]).all()
    assert (rows.action == rows.obs.action_mask.argmax(-1)).all()
    assert set(rows.next_obs.obs[..., 2].ravel().tolist()) == {1, 2, 3}


class Pictured(Clocks):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode  # type: ignore[assignment]

    def render(self) -> Any:
        return np.full((32, 32, 3), self.clock, np.uint8)


@pytest.mark.parametrize(("episodes", "shares"), [(1, [1, 0, 0, 0]), (3, [1, 1, 1, 0]), (6, [2, 2, 1, 1])])
def test_evaluation_of_any_number_of_episodes(episodes: int, shares: list[int], tmp_path: Path) -> None:
    """S2: quotas of agents differ by at most one; those without a share play along. A film changes nothing."""
    found = evaluate(ScriptedPolicy(), Pictured, episodes=episodes, seed=0, num_envs=4)
    assert np.bincount([episode.env_id for episode in found], minlength=4).tolist() == shares
    assert evaluate(ScriptedPolicy(), Pictured, episodes=episodes, seed=0, num_envs=4, video=tmp_path) == found
    assert len(list(tmp_path.iterdir())) == shares[0]


def test_an_object_serves_its_own_agents() -> None:
    env = Clocks(3)
    assert make_manager(env, 3).num_envs == 3
    with pytest.raises(ConfigError, match="is one environment: pass a callable"):
        make_manager(env, 6)


def test_the_real_rock_paper_scissors() -> None:
    """What one agent wins the other one loses."""
    with make_manager("pettingzoo:classic/rps-v2", 4, {"max_cycles": 5}) as manager:
        _, _, reward, _, truncated, _ = played(manager, 20)
    assert (reward[:, ::2] == -reward[:, 1::2]).all()
    assert reward.any()
    assert truncated.all(1).nonzero()[0].tolist() == [4, 9, 14, 19]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clocks(alone="agent_1"), r"M1"),
        (lambda: Clocks(late=True), r"clocks_v0: agent 'agent_0' is not there while others are: .*\(M2\)"),
    ],
)
def test_agents_that_come_and_go_are_refused(make: Any, message: str) -> None:
    """M1, M2: nothing of them is stored wrongly."""
    with pytest.raises(SchemaError, match=message):
        played(make_manager(make, 2), 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clocks(3), "clocks_v0 has 3 agents, each of which is an environment here: .* take 6 or 9"),
        (lambda: Clocks(9), "num_envs=8 is not a multiple of that; take 9"),
        (lambda: Clocks(spaces_differ=True), r"agent 'agent_0' has the observation space .*, agent 'agent_1' has"),
        (lambda: Clocks(0), r"does not name its possible_agents: .*\(M2\)"),
        ("pettingzoo:classic/tictactoe-v3", r"tictactoe_v3 is turn-based, and its agents cannot act at once .*\(M1\)"),
        ("pettingzoo:classic/rps-v7", "no environment 'classic/rps-v7' in pettingzoo: did you mean 'classic/rps-v2'"),
        ("pettingzoo:butterfly/pistonball-v6", "cannot be made: .*pymunk.*additional dependencies"),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_work(
    make: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymunk", None)  # pistonball needs it; whoever has it gets on without
    with pytest.raises(ConfigError, match=message):
        make_manager(make, 8)


def test_agents_of_one_environment_are_not_spread_over_processes() -> None:
    with pytest.raises(ConfigError, match="gives a AgentsVectorEnv, which steps all of its own: use env_manager='vec"):
        Environments(Clocks, kind="subprocess").spaces(4)


def test_that_agents_count_as_environments_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """F12: their steps are env steps."""
    Environments(Clocks).spaces(4)
    assert "each of its agents counts as an environment, and each of their steps as an env step" in caplog.text


def test_one_of_several_agents_is_no_environment() -> None:
    with pytest.raises(ConfigError, match="num_envs=1 is not a multiple"):
        make_env(Clocks)


def test_without_pettingzoo_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r"needs pettingzoo: pip install 'flowrl-engine\[envs\]'"):
        make_env("pettingzoo:classic/rps-v2")

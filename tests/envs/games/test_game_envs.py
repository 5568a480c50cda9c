"""Games by name, from functions and in gymnasium's own interface, in every manager."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs import make_env, make_manager
from flowrl.envs.games import Game, make
from flowrl.envs.games.seats import GameEnv, Of
from flowrl.envs.masks import valid_sample
from flowrl.errors import ConfigError
from flowrl.plans import A2C
from flowrl.tools.doctor import diagnose


class Countdown(gymnasium.Env[Any, Any]):
    """Agents count down from 2 and from 3, as they say in dictionaries or, `shared`, together."""

    observation_space = spaces.Dict(two=spaces.Discrete(4), three=spaces.Discrete(4))
    action_space = spaces.Dict(two=spaces.Discrete(5), three=spaces.Box(-1, 1, (2,), np.float32))

    def __init__(self, shared: bool = False, end: str = "") -> None:
        self.shared, self.end = shared, end

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = {"two": 2, "three": 3}
        return dict(self.left), {}

    def step(self, action: Any) -> Any:
        self.left = {agent: max(left - 1, 0) for agent, left in self.left.items()}
        over = {agent: not left for agent, left in self.left.items()}
        if self.shared:
            return dict(self.left), 1.5, all(over.values()), False, {"is_success": True}
        if self.end:
            over = {"__all__": self.left["two"] == 0}
        reward = dict.fromkeys(action, 1.0)
        return dict(self.left), reward, over, {}, {"two": {"is_success": False}}


def test_dictionaries_by_agent_are_a_game() -> None:
    """M1: whose episode ended is not asked again, though its observation stays in the dictionary."""
    env = make_env(Countdown)
    assert isinstance(env, GameEnv)
    obs, _ = env.reset(seed=0)
    tables = [obs["seats"]]
    over = False
    while not over:
        obs, _, over, _, _ = env.step(np.zeros(3))
        tables.append(obs["seats"])
    two, three = np.stack(tables).transpose(1, 0, 2)
    agents = env.seating.agents
    two, three = (two, three) if agents[0] == "two" else (three, two)
    assert two[:, Of.TURN].tolist() == [1, 1, 0, 0]
    assert three[:, Of.TURN].tolist() == [1, 1, 1, 0]
    assert two[-1, [Of.RETURN, Of.SUCCESS]].tolist() == [2, 0]
    assert three[-1, [Of.RETURN, Of.SUCCESS]].tolist() == [3, -1]


class Foragers(gymnasium.Env[Any, Any]):
    """Two agents whose actions and observations are tuples: each sees the action that the other did before.

    The second ends after two steps, the first after three, unless they end together.
    """

    observation_space = spaces.Tuple([spaces.Box(0, 9, (1,), np.float32), spaces.Box(0, 9, (2,), np.float32)])
    action_space = spaces.Tuple([spaces.Discrete(4), spaces.Discrete(5)])

    def __init__(self, together: bool = False, images: bool = False) -> None:
        self.together = together
        if images:
            self.observation_space = spaces.Tuple([spaces.Discrete(4), spaces.Box(0, 9, (2,), np.float32)])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps, self.did = 0, (0, 0)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps, self.did = self.steps + 1, action
        over: Any = self.steps == 3 if self.together else [self.steps == 3, self.steps >= 2]
        return self._seen(), np.float32([1, 2 * (self.steps < 3)]), over, False, {"steps": self.steps}

    def _seen(self) -> Any:
        return np.float32([self.did[1]]), np.float32([self.did[0], 7])


def test_tuples_are_a_game_too() -> None:
    """M1: agents have numbers for names; the last action of one that has ended counts on."""
    env: Any = make_env(Foragers, wrappers=["GlobalState"])
    assert env.seating.agents == ("agent_0", "agent_1")
    env.reset(seed=0)
    for actions in ((1, 2), (3, 4)):
        obs = env.step(np.float64(actions))[0]
        assert env.game.state().tolist() == [actions[1], actions[0], 7]
        kinds = {kind.agents[0]: obs[kind.name] for kind in env.seating.kinds}
        assert kinds["agent_0"]["state"].tolist() == [[actions[1], actions[0], 7]]
        assert kinds["agent_1"]["obs"].tolist() == [[actions[0], 7]]
    assert obs["seats"][:, Of.TURN].tolist() == [1, 0]
    obs, _, over, _, _ = env.step(np.float64([0, 0]))
    assert over
    assert obs["seats"][:, [Of.TERMINATED, Of.RETURN]].tolist() == [[1, 3], [0, 4]]
    assert env.unwrapped.game.state().tolist() == [4, 0, 7]


def test_tuples_with_one_end_for_all() -> None:
    """M1: and observations of which no state can be made."""
    env: Any = make_env(Foragers, {"together": True, "images": True})
    assert env.game.state_space is None
    with pytest.raises(NotImplementedError, match="has no state of the whole game"):
        env.game.state()


def test_one_reward_and_one_end_are_those_of_all_agents() -> None:
    env = make_env(Countdown, {"shared": True}, agents=True)
    env.reset(seed=0)
    over = False
    while not over:
        obs, _, over, _, _ = env.step(np.zeros(3))
    assert obs["seats"][:, [Of.TERMINATED, Of.RETURN, Of.SUCCESS]].tolist() == [[1, 4.5, 1]] * 2
    env = make_env(Countdown, {"end": "all"})
    env.reset(seed=0)
    env.step(np.zeros(3))
    assert env.step(np.zeros(3))[0]["seats"][:, Of.TERMINATED].tolist() == [1, 1]


class Robot(gymnasium.Env[Any, Any]):
    """One robot with two sensors and two motors, each of which has to do what the other one's sensor says."""

    def __init__(self, kind: str = "tuple", declared: Any = None, rewards: Any = None) -> None:
        sensors, motors = [spaces.Box(0, 1, (1,), np.float32)] * 2, [spaces.Discrete(2)] * 2
        self.named, self.rewards, self.games = kind == "dict", rewards, 3
        of = {"tuple": spaces.Tuple, "dict": lambda parts: spaces.Dict(dict(zip(("arm", "leg"), parts)))}[kind]
        self.observation_space, self.action_space = of(sensors), of(motors)
        if declared is not None:
            setattr(self, *declared)

    def look(self) -> Any:
        self.bits = self.np_random.integers(0, 2, 2)
        seen = [np.float32([bit]) for bit in self.bits]
        return dict(zip(("arm", "leg"), seen)) if self.named else tuple(seen)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.games = 0, self.games + 1
        return self.look(), {}

    def step(self, action: Any) -> Any:
        left, right = action.values() if self.named else action
        gain = float((left, right) == (self.bits[1], self.bits[0]))
        self.steps += 1
        return self.look(), gain if self.rewards is None else self.rewards, False, self.steps == self.games, {}


@pytest.mark.parametrize("kind", ["tuple", "dict"])
@pytest.mark.parametrize("manager", ["local", "subprocess", "async", "thread", "vector"])
def test_sensors_and_motors_with_one_reward_are_one_agent(kind: str, manager: str) -> None:
    """R2: whatever steps it; a policy that sees both sensors earns the four rewards of its first game."""
    with make_manager(Robot, 1, {"kind": kind}, kind=manager) as robot:
        robot.launch(seed=0)
        for _ in range(8):
            first, second = (np.ravel(part) for _, part in sorted(robot.obs.items()))
            stepped = robot.step(np.float32([[second[0], first[0]]]))
            assert stepped.acted is not None or stepped.reward.tolist() == [1]
        (episode, *_) = robot.drain()
    assert (episode.return_, episode.length, episode.agent) == (4, 4, "")


@pytest.mark.parametrize(
    ("kind", "how", "agents"),
    [
        ("tuple", {}, 1),
        ("dict", {}, 1),
        ("dict", {"declared": ("agents", 2)}, 2),
        ("dict", {"declared": ("possible_agents", ["leg", "arm"])}, 2),
        ("dict", {"declared": ("possible_agents", ["robot"])}, 1),
        ("tuple", {"declared": ("n_agents", 2)}, 2),
        ("tuple", {"declared": ("n_agents", 1), "rewards": [1, 0]}, 1),
        ("tuple", {"declared": ("reward_space", spaces.Box(0, 1, (2,))), "rewards": [1, 0]}, 1),
        ("tuple", {"rewards": [1, 0]}, 2),
        ("dict", {"rewards": {"arm": 1}}, 2),
        ("dict", {"rewards": {"speed": 1, "energy": 0}}, 1),
        ("tuple", {"rewards": [1, 0, 0]}, 1),
    ],
)
def test_agents_are_declared_or_have_a_reward_each(kind: str, how: dict[str, Any], agents: int) -> None:
    """R2: spaces with several entries alone say nothing; whoever sets `agents` says it all."""
    env = make_env(Robot, {"kind": kind, **how})
    assert (len(env.seating.agents) if isinstance(env, GameEnv) else 1) == agents
    assert isinstance(make_env(Robot, {"kind": kind, **how}, agents=True), GameEnv)


def test_the_setting_agents_makes_agents_of_entries(caplog: pytest.LogCaptureFixture) -> None:
    """R2: a run is told how."""
    with A2C(env=Robot) as one:
        assert one.workers.num_agents() == 1
    assert "if each entry is an agent, say so with agents={'*': 'policy'}" in caplog.text
    caplog.clear()
    with A2C(env=Robot, agents={"*": "policy"}) as two:
        assert two.workers.num_agents() == 2
    assert not caplog.text


@pytest.mark.parametrize("spec", ["flowrl:tic_tac_toe", "flowrl.envs.games.tic_tac_toe:TicTacToe", make("tic_tac_toe")])
def test_a_game_is_an_environment_by_any_way(spec: Any) -> None:
    env = make_env(spec)
    assert isinstance(env, GameEnv)
    assert isinstance(env.game, Game)
    assert make_manager(spec, 1).num_envs == 1


@pytest.mark.parametrize("kind", ["subprocess", "async", "thread"])
@pytest.mark.parametrize("name", ["flowrl:two_cartpoles", "flowrl:kuhn_poker"])
def test_every_manager_plays_the_same_games(kind: str, name: str) -> None:
    """D1, D2, T11."""
    with make_manager(name, 3) as here, make_manager(name, 3, kind=kind) as there:
        for manager in (here, there):
            manager.launch(5)
        draw = np.random.default_rng(0)
        for _ in range(40):
            actions = draw.integers(2, size=(3, 2))
            one, other = here.step(actions), all_of(there, actions)
            for seen, again in zip(one.next_obs.values(), other.values()):
                np.testing.assert_array_equal(seen, again)
        assert sorted(map(str, here.drain())) == sorted(map(str, there.drain()))


def all_of(manager: Any, actions: Any) -> Any:
    """The arrivals of one step of every environment, from however many answers."""
    result = manager.step(actions)
    if manager.ready is None:
        return result.next_obs
    arrived, missing = result.next_obs.map(np.copy), ~result.acted
    while missing.any():
        result = manager.step(actions, wait=~missing & manager.ready)
        new = missing & result.acted
        arrived[new] = result.next_obs[new]
        missing &= ~new
    return arrived


def test_wrappers_are_for_one_agent() -> None:
    """But for masks of infos, which each agent has its own of."""
    with pytest.raises(
        ConfigError, match=r"TimeLimit\(3\)' is for an environment of one agent, but TicTacToe is a game"
    ):
        make_env("flowrl:tic_tac_toe", wrappers=["TimeLimit(3)"])
    with pytest.raises(ConfigError, match="TicTacToe is no game of PettingZoo"):
        make_env("flowrl:tic_tac_toe", wrappers=["ActionMask"])


def test_samples_of_a_game_are_valid_actions_of_its_agents() -> None:
    """D6: seeded; and the doctor plays whole games with them."""
    found = []
    for _ in range(2):
        env = make_env("flowrl:tic_tac_toe")
        env.action_space.seed(7)
        obs, _ = env.reset(seed=0)
        over = False
        while not over:
            action = valid_sample(env.action_space, obs)
            obs, _, over, _, _ = env.step(action)
            found.append(action.tolist())
    half = len(found) // 2
    assert found[:half] == found[half:]
    report = diagnose("flowrl:kuhn_poker", steps=200, seconds=0.2)
    assert {finding.about for finding in report.findings if finding.level == "problem"} == set()

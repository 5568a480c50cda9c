"""Team: a game of some agents, of which the others are a part; and what learns in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs import make_env
from flowrl.envs.games import Game, Team, Turn
from flowrl.envs.wrappers import pack, unpack
from flowrl.errors import ConfigError, SchemaError
from flowrl.plans import MAPPO, QMIX
from flowrl.trainer.trainer import Trainer
from tests.games import ACTIONS, SEEDS, RandomGame

RED, BLUE = ("red_0", "red_1"), ("blue_0", "blue_1")
PAYOFF = ((0, 1), (1, 8))
OURS = ("ann", "cid")


class Noted(RandomGame):
    """Keeps what is played, and says more of the game as a whole."""

    def reset(self, seed: int) -> Mapping[str, Any]:
        self.did = list[dict[str, Any]]()
        return super().reset(seed)

    def step(self, actions: Mapping[str, Any]) -> Turn:
        self.did.append(dict(actions))
        turn = super().step(actions)
        whole = {"is_success": True}
        return turn._replace(reward={**turn.reward, "": 99.0}, info={**turn.info, "": whole})


class Match(Game):
    """Two against two, for one step or more: a pair gains what both of it make, and loses what the other pair makes."""

    possible_agents = tuple(agent for pair in zip(RED, BLUE) for agent in pair)
    observation_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Box(0, 1, (1,), np.float32))
    action_spaces: Mapping[str, Any] = dict.fromkeys(possible_agents, spaces.Discrete(2))
    state_space = spaces.Box(0, 1, (1,), np.float32)
    steps = 1

    def reset(self, seed: int) -> Mapping[str, Any]:
        self.t = 0
        return self._seen()

    def step(self, actions: Mapping[str, Any]) -> Turn:
        self.t += 1
        gain = gained(*(int(actions[agent]) for agent in (*RED, *BLUE)))
        reward = {agent: float(gain if agent in RED else -gain) for agent in self.possible_agents}
        if self.t < self.steps:
            return Turn(self._seen(), reward)
        won = {agent: {"is_success": (reward[agent] > 0)} for agent in self.possible_agents}
        return Turn({}, reward, terminated=self.possible_agents, info=won)

    def state(self) -> Any:
        return np.zeros(1, np.float32)

    def _seen(self) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, np.zeros(1, np.float32))


def gained(*actions: int) -> int:
    """What each of the red gains; the blue lose it."""
    return PAYOFF[actions[0]][actions[1]] - PAYOFF[actions[2]][actions[3]]


class Long(Match):
    """Many steps."""

    steps = 200


@pytest.mark.parametrize("order", ["together", "mixed", "turns"])
def test_a_team_sees_does_and_gains_what_its_agents_do(order: str) -> None:
    """M14, M1, M2: who comes late, ends early and waits for others, against a loop over all that was played."""
    drawn, seen_alone, finished = list[int](), 0, 0
    for seed in SEEDS[:80]:
        inner, alone = Noted(order), RandomGame(order)
        game, draw = Team(inner, ["ann", "c*"]), np.random.default_rng(seed)
        assert game.possible_agents == OURS
        turn, seen, played = Turn(began := game.reset(seed)), alone.reset(inner.seed), 0
        acting, left, success = list(seen), set(OURS), list[bool]()
        reward, ends = dict.fromkeys(OURS, 0.0), set[tuple[str, bool]]()
        expected = {agent: each.tolist() for agent, each in seen.items() if agent in OURS}
        while True:
            while played < len(inner.did):
                did = inner.did[played]
                assert left, "the game is over with the last of the team"
                assert set(did) == set(acting)
                drawn += [int(did["bob"])] if "bob" in did else []
                seen_alone += set(did) == {"bob"}
                step, played = alone.step(did), played + 1
                over = {*step.terminated, *step.truncated}
                for agent in OURS:
                    reward[agent] += step.reward.get(agent, 0.0)
                ends |= {(agent, agent in step.terminated) for agent in over & {*OURS}}
                left -= over
                success += [told["is_success"] for agent, told in step.info.items() if agent in OURS]
                acting = [agent for agent in step.obs if agent not in over]
                expected |= {agent: each.tolist() for agent, each in step.obs.items() if agent in OURS}
            ours = [agent for agent in acting if agent in OURS]
            if turn.obs is began:  # what else there was comes with the first step
                assert {agent: each.tolist() for agent, each in began.items()} == {a: expected.pop(a) for a in ours}
                turn = game.step({agent: draw.integers(ACTIONS) for agent in ours})
                continue
            assert {agent: each.tolist() for agent, each in turn.obs.items()} == expected
            assert dict.fromkeys(OURS, 0.0) | dict(turn.reward) == reward
            assert {(agent, agent in turn.terminated) for agent in (*turn.terminated, *turn.truncated)} == ends
            if not acting or not left:
                finished += 1
                assert turn.info.get("") == ({"is_success": any(success)} if success else None)
                break
            assert ours, "a step ends where somebody of the team acts"
            reward, ends, expected = dict.fromkeys(OURS, 0.0), set(), {}
            turn = game.step({agent: draw.integers(ACTIONS) for agent in ours})
    assert finished == 80
    assert seen_alone
    counts = np.bincount(drawn, minlength=ACTIONS)
    assert (np.abs(counts / len(drawn) - 1 / ACTIONS) < 4 / np.sqrt(len(drawn))).all()


def test_the_others_act_validly_and_by_the_seed() -> None:
    """M14, D6: uniformly among valid actions, counted from the start of their space, the same for the same seed."""

    class Masked(Match):
        def __init__(self) -> None:
            masked = spaces.Dict(obs=spaces.Box(0, 1, (1,), np.float32), action_mask=spaces.MultiBinary(4))
            self.observation_spaces = {**Match.observation_spaces, **dict.fromkeys(BLUE, masked)}
            self.action_spaces = {**Match.action_spaces, **dict.fromkeys(BLUE, spaces.Discrete(4, start=3))}
            self.did, self.mask = list[int](), np.int8([0, 1, 0, 1])

        def step(self, actions: Mapping[str, Any]) -> Turn:
            self.did += [int(actions[agent]) for agent in BLUE]
            return Turn({}, terminated=self.possible_agents)

        def _seen(self) -> dict[str, Any]:
            masked = {"obs": np.zeros(1, np.float32), "action_mask": self.mask}
            return {**super()._seen(), **dict.fromkeys(BLUE, masked)}

    def played(mask: Any = (0, 1, 0, 1)) -> list[int]:
        inner = Masked()
        inner.mask, game = np.int8(mask), Team(inner, RED)
        for seed in range(200):
            game.step(dict.fromkeys(game.reset(seed), 0))
        return inner.did

    did = played()
    assert did == played()
    assert set(did) == {4, 6}
    assert 160 < did.count(4) < 240
    assert did[::2] != did[1::2]
    with pytest.raises(SchemaError, match=r"agent 'blue_0' has no valid action, its action_mask is \[0 0 0 0\]"):
        played((0, 0, 0, 0))


def test_a_team_of_all_is_the_game() -> None:
    """M14: in every number."""
    plain, whole = RandomGame("mixed"), Team(RandomGame("mixed"), "*")
    for seed in SEEDS[:20]:
        seen, same = plain.reset(seed), whole.reset(seed)
        while seen:
            np.testing.assert_equal(same, seen)
            turn, other = (game.step({agent: np.int64(1) for agent in seen}) for game in (plain, whole))
            assert other[1:] == turn[1:]
            over = {*turn.terminated, *turn.truncated}
            seen, same = ({a: each for a, each in t.obs.items() if a not in over} for t in (turn, other))


def test_a_restored_game_goes_on() -> None:
    """D3, D5: the others draw what they would have drawn; equal states have equal bytes."""
    env: Any = make_env(RandomGame, {"order": "mixed"}, wrappers=["Team(['ann', 'cid'])", "AgentId"])
    small: Any = make_env(Long, wrappers=["Team(['red_*'])", "AgentId"])
    for each in (env, small):
        each.reset(seed=SEEDS[1])
        for at in range(40):
            again = unpack(pack(each), "the game")
            action = np.random.default_rng(at).integers(2, size=2).astype(float)
            (seen, *outcome, _), (same, *result, _) = each.step(action), again.step(action)
            np.testing.assert_equal(seen, same)
            assert outcome == result
            assert each is env or pack(each) == pack(again)
            if True in outcome:
                each.reset()


@pytest.mark.parametrize(
    ("env", "team", "says"),
    [
        (Match, ["red_0", "rad_1"], r"team=.*: no agent of Match is 'rad_1': did you mean 'red_1'"),
        (Match, [], r"team=\[\] is empty: name agents of Match, red_0, blue_0"),
        (Match, "green_*", r"no agent of Match is 'green_\*'"),
        (Match, ["red_0", "red_*"], r"team=\['red_0', 'red_\*'\] names 'red_0' twice: name each agent once"),
        (Match, [*RED, *BLUE, *RED, *BLUE], "names 'red_0' twice"),
        ("CartPole-v1", ["agent"], r"team=\['agent'\] is for games of several agents, but .*CartPole.* has one"),
    ],
)
def test_teams_that_cannot_be_are_refused(env: Any, team: Any, says: str) -> None:
    """M14: before anything is played, in one line."""
    with pytest.raises(ConfigError, match=says) as refused:
        QMIX(env, team=team)
    assert "\n" not in str(refused.value)


def test_teams_that_do_not_come_to_act_are_refused() -> None:
    """M14, M10: none of a hierarchy, and of no game that leaves the team out for ever."""

    class Alone(Match):
        def step(self, actions: Mapping[str, Any]) -> Turn:
            return Turn({agent: seen for agent, seen in self._seen().items() if agent in BLUE})

    with pytest.raises(ConfigError, match="lets agents act over steps of their own"):
        make_env("CartPole-v1", wrappers=["Hierarchy(options=2)", "Team('manager')"])
    with pytest.raises(ConfigError, match="is empty: name agents of Match"):
        make_env(Match, wrappers=["Team([])"])
    game = Team(Alone(), "red_*")
    with pytest.raises(SchemaError, match=r"10000 steps in a row without an action of red_0, red_1"):
        game.step(dict.fromkeys(game.reset(0), 0))


def test_the_returns_of_a_run_are_those_of_its_team() -> None:
    """M14, S1, S5: the sum over its members, and whether they win; against what both pairs did."""
    with QMIX(Match, team=["red_*"], fragment_steps=8, learning_starts=10**6, seed=0) as trainer:
        assert trainer.workers.game_agents == RED
        trainer.train(until={"env_steps": 512})
        found = trainer.train(until={"env_steps": 1024})
        assert found["episode_return"] == sum(found[f"episode_return/{agent}"] for agent in RED)
        assert not any("blue" in name for name in found)
        scored = trainer.evaluate(episodes=200)
    of_agents = scored["agents"]
    assert set(of_agents) == set(RED)
    assert scored["return_mean"] == sum(of["return_mean"] for of in of_agents.values())
    assert scored["win_rate"] == of_agents["red_0"]["win_rate"]
    assert scored["judged"] == 200


@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        (QMIX, {"learning_starts": 64, "replay_ratio": 32.0, "batch_size": 32, "epsilon_end": 1.0}),
        (MAPPO, {"fragment_steps": 16, "num_sgd_iter": 4, "entropy_coef": 0.05}),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_two_learn_to_beat_two(plan: type[Trainer], settings: dict[str, Any], seed: int) -> None:
    """M14, M8, Q10: the pair's best, which one alone does not find, against two who act at random."""
    best = max(product(range(2), repeat=2), key=lambda ours: expected(*ours))
    with plan(Match, team=["red_*"], hidden=(16,), seed=seed, **settings) as trainer:
        trainer.train(until={"env_steps": 1500})
        rows = [{"obs": np.zeros(1, np.float32), "agent": at, "state": np.zeros(1, np.float32)} for at in range(2)]
        assert tuple(np.ravel([trainer.act(row) for row in rows]).tolist()) == best == (1, 1)
        found = trainer.evaluate(episodes=400)["return_mean"]
    assert found == pytest.approx(2 * expected(*best), abs=1.5)


def expected(first: int, second: int) -> float:
    """What each of the red gains against all that the blue may do."""
    return float(np.mean([gained(first, second, *theirs) for theirs in product(range(2), repeat=2)]))


def test_a_team_that_plays_against_itself_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """M14: once, by the setting; not of a team that gains something together."""
    with caplog.at_level(logging.WARNING, "flowrl"):
        for team, told in (["red_*"], 0), (None, 1):
            with QMIX(Long, team=team, learning_starts=10**6, seed=0) as trainer:
                trainer.train(until={"env_steps": 2000})
            lines = [line.getMessage() for line in caplog.records if "add up to 0" in line.getMessage()]
            assert len(lines) == told
    assert "name the agents of yours, as in team=['red_0']" in lines[0]

"""Hierarchies: rows of both parts against a loop over the steps of the environment, and both parts as one policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.data.advantages import with_advantages
from flowrl.data.steps import one_step_windows, real_rows
from flowrl.envs.corridor import cue_corridor
from flowrl.envs.games import Game, Turn
from flowrl.envs.games.seats import GameEnv
from flowrl.envs.make import make_env
from flowrl.errors import ConfigError, SchemaError
from flowrl.operators import NStep
from flowrl.policies import DQNPolicy, Policies, PPOPolicy, RecurrentPPOPolicy
from flowrl.policies.hierarchical import HierarchicalPolicy
from flowrl.rollout import WorkerSet, evaluate

CORRIDOR = "flowrl.envs.corridor:cue_corridor"
PARTS = {"manager": "manager", "worker": "worker"}
GAMMA = {"manager": 0.5, "worker": 0.25}  # sums of powers and of whole rewards are exact


class Masked(gymnasium.Env[Any, Any]):
    """Rewards 1, 2, 3 ...; observes its clock; of two actions the mask allows the one that its clock says."""

    observation_space = spaces.Dict(clock=spaces.Box(0, 99, (1,)), action_mask=spaces.MultiBinary(2))
    action_space = spaces.Discrete(2)

    def __init__(self, steps: int = 11, cut: bool = False) -> None:
        self.steps, self.cut = steps, cut

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert action == self.t % 2
        self.t += 1
        over = self.t == self.steps
        return self._obs(), float(self.t), over and not self.cut, over and self.cut, {"is_success": True}

    def _obs(self) -> Any:
        return {"clock": np.float32([self.t]), "action_mask": np.int8([self.t % 2 == 0, self.t % 2 == 1])}


def workers_of(env: Any, kinds: Mapping[str, Any] | None = None, **wrapper: Any) -> WorkerSet:
    kinds = dict.fromkeys(PARTS, PPOPolicy) if kinds is None else kinds
    made = {name: partial(kind, hidden=(8,), device="cpu", seed=1) for name, kind in kinds.items()}
    told = ", ".join(f"{name}={value!r}" for name, value in wrapper.items())
    how: dict[str, Any] = {"envs_per_worker": 2, "wrappers": [f"Hierarchy({told})"], "seed": 3}
    return WorkerSet(env, policies=made, agents=PARTS, **how)


def collected(workers: WorkerSet, fragments: int = 6) -> tuple[dict[str, list[Batch]], int, list[Any]]:
    """Fragments of both parts, env steps, and finished episodes."""
    found: dict[str, list[Batch]] = {name: [] for name in PARTS}
    with workers:
        workers.start()
        steps = 0
        for _ in range(fragments):
            both = workers.sample(steps=7)
            steps += both.env_steps
            for name, batch in both.items():
                found[name].append(batch)
        return found, steps, workers.local.episodes()


def rows_of(fragments: list[Batch], game: int) -> list[Any]:
    """The rows of a seat in its own order."""
    every = [real_rows(batch[:, batch["env_id"][0] == game]) for batch in fragments]
    return [rows[i] for rows in every for i in range(rows.rows)]


@pytest.mark.parametrize("cut", [False, True], ids=["terminated", "truncated"])
def test_rows_of_both_parts_are_those_of_a_loop_over_env_steps(cut: bool) -> None:
    """M1, M5, M10, S1, T4: Σ γⁱ r over an option's k steps, which count γᵏ; only the worker's steps are env steps."""
    gammas = {"gamma": GAMMA["manager"], "worker_gamma": GAMMA["worker"]}
    workers = workers_of(partial(Masked, cut=cut), options=3, interval=4, extrinsic=2.0, **gammas)
    found, steps, episodes = collected(workers)
    spans = [4, 4, 3] * 9
    for game in range(2):
        start = 0
        managed = rows_of(found["manager"], game)
        assert len(managed) >= 9
        for row, span in zip(managed, spans):
            rewards = [start + i + 1 for i in range(span)]
            assert row.reward == sum(GAMMA["manager"] ** i * r for i, r in enumerate(rewards))
            assert row.step_discount == GAMMA["manager"] ** span
            assert (row.obs.clock[0], row.next_obs.clock[0]) == (start, start + span)
            assert "action_mask" not in row.obs
            start = (start + span) % 11
            assert (row.terminated, row.truncated) == (start == 0 and not cut, start == 0 and cut)
        worked = rows_of(found["worker"], game)
        for t, row in enumerate(worked):
            assert (row.reward, row.step_discount) == (2.0 * (t % 11 + 1), GAMMA["worker"])
            assert row.obs.clock[0] == t % 11
        # Actions without an answer are rows of the next fragment: those before a choice.
        assert steps / 2 - 1 <= len(worked) <= steps / 2
    assert {(each.return_, each.length, each.success) for each in episodes if not each.agent} == {(66.0, 11, True)}
    assert {(each.return_, each.length) for each in episodes if each.agent == "manager"} == {(66.0, 3)}


def smdp_advantages(rows: list[Any], gamma: Any, lam: float) -> list[float]:
    """Backwards over rows that span several steps each."""
    found, following = list[float](), 0.0
    for row in reversed(rows):
        bootstrap = 0.0 if row.terminated else row.next_value
        delta = row.reward + gamma(row) * bootstrap - row.value
        following = delta + gamma(row) * lam * following * (not (row.terminated or row.truncated))
        found.insert(0, float(following))
    return found


def test_estimators_take_the_discounts_of_rows_in_place_of_gamma() -> None:
    """M10, N2, N4: GAE and windows of n rows, whose own gamma means nothing then."""
    found, _, _ = collected(workers_of(CORRIDOR, interval=3, tolerance=0.2, gamma=0.9, worker_gamma=0.8))
    for name, discounts in (("manager", {0.9, 0.9**2, 0.9**3}), ("worker", {0.8, 0.0})):
        fragment = found[name][0]
        assert set(np.round(real_rows(fragment).step_discount, 12)) <= set(np.round(list(discounts), 12))
        made = with_advantages(fragment, gamma=0.123, lam=0.7)
        windows = one_step_windows(fragment, 0.123)
        np.testing.assert_allclose(windows.discount, windows.step_discount * ~windows.terminated, rtol=1e-6)
        adder = NStep(3, gamma=0.123)
        batches = [adder(fragment), *adder.finish()]
        for game in range(2):
            rows = rows_of([fragment], game)
            expected = smdp_advantages(rows, lambda row: row.step_discount, 0.7)
            np.testing.assert_allclose([row.advantage for row in rows_of([made], game)], expected, rtol=1e-4, atol=1e-5)
            of_windows = [row for each in batches for row in rows_of_rows(each, game)]
            assert "step_discount" not in of_windows[0]
            for row, (total, discount) in zip(of_windows, windows_of(rows, 3), strict=True):
                np.testing.assert_allclose([row.reward, row.discount], [total, discount], rtol=1e-5)


def rows_of_rows(rows: Batch, game: int) -> list[Any]:
    return [rows[i] for i in np.flatnonzero(rows["env_id"] == game)]


def windows_of(rows: list[Any], n: int) -> Iterator[tuple[float, float]]:
    for first in range(len(rows)):
        total, discount = 0.0, 1.0
        for row in rows[first : first + n]:
            total, discount = total + discount * row.reward, discount * row.step_discount
            if row.terminated or row.truncated:
                discount *= not row.terminated
                break
        yield total, discount


@pytest.mark.parametrize("kinds", [{}, {"manager": RecurrentPPOPolicy}, {"worker": RecurrentPPOPolicy}], ids=str)
@pytest.mark.parametrize(
    "how", [{"reach": 0.3, "interval": 4, "tolerance": 0.11}, {"options": 3, "interval": 4}], ids=str
)
def test_both_parts_as_one_policy_play_as_they_do_in_the_game(kinds: dict[str, Any], how: dict[str, Any]) -> None:
    """M10, S1, T8: the same returns and lengths in the environment itself, several episodes beside each other."""
    env = partial(cue_corridor, length=4)
    workers = workers_of(env, {**dict.fromkeys(PARTS, PPOPolicy), **kinds}, **how)
    parts = workers.policy
    one: Any = HierarchicalPolicy.of(parts, {"options": 0, "subgoal": (0,), "reach": None, "tolerance": 0.05, **how})
    wrapped = workers.environments
    same: dict[str, Any] = {"episodes": 7, "seed": 5, "num_envs": 3}
    games = [each for each in evaluate(parts, wrapped, agents=PARTS, **same) if not each.agent]
    alone = evaluate(one, env, **same)
    assert [(each.return_, each.length) for each in games] == [(each.return_, each.length) for each in alone]


def test_a_manager_may_learn_by_another_algorithm() -> None:
    """M10: rows of options enter a replay buffer with the discount of their length."""
    kinds = {"manager": DQNPolicy, "worker": PPOPolicy}
    with workers_of(CORRIDOR, kinds, options=2, interval=3, gamma=0.5) as workers:
        workers.start()
        rows = NStep(1, 0.9)(workers.sample(steps=12)["manager"])
        assert set(rows.discount.tolist()) == {0.125}
        workers.of("manager").policy.learn_mode.loss(rows.to_torch("cpu"))


def test_an_episode_that_a_wrapper_cuts_or_rewards_counts_as_the_environment_says() -> None:
    """S1: below all wrappers."""
    game: Any = make_env(
        Masked,
        wrappers=[
            "TimeLimit(5)",
            partial(gymnasium.wrappers.TransformReward, func=lambda reward: -reward),
            "Hierarchy(options=2, interval=2)",
        ],
    )
    game.reset(seed=0)
    game.game.step({"manager": 0})
    for t in range(4):
        game.game.step({"worker": t % 2})
    last = game.game.step({"worker": 0})
    assert last.truncated
    assert last.reward["manager"] == -5.0
    assert last.info[""]["episode"] == {"r": 15.0, "l": 5}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"subgoal": (2,)}, "expected indexes of the 2 entries"),
        ({"interval": 0}, "interval=0, options=0: expected at least 1"),
        ({"intrinsic": "nearness"}, "expected 'distance', 'success' or 'module:function'"),
        ({"options": -1}, "options=-1"),
    ],
)
def test_wrong_arguments_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(CORRIDOR, wrappers=["Hierarchy(" + ", ".join(f"{k}={v!r}" for k, v in how.items()) + ")"])


def test_environments_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(ConfigError, match="for an environment of one agent"):
        make_env("flowrl:two_step", wrappers=["Hierarchy(options=2)"])
    with pytest.raises(ConfigError, match="no bounds: set reach=R"):
        make_env("CartPole-v1", wrappers=["Hierarchy(subgoal=[1])"])
    with pytest.raises(ConfigError, match="set options=N"):
        make_env(Masked, wrappers=["Hierarchy()"])


class Discounting(Game):
    """Gives a discount that its class does not announce, or one that is none."""

    possible_agents = ("one",)

    def __init__(self, discount: float, announced: bool) -> None:
        self.observation_spaces = {"one": spaces.Box(0, 1, (1,))}
        self.action_spaces = {"one": spaces.Discrete(2)}
        self.discount, self.discounts = discount, announced

    def reset(self, seed: int) -> Any:
        return {"one": np.zeros(1, np.float32)}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        return Turn(self.reset(0), discount={"one": self.discount})


def test_discounts_of_a_game_are_announced_and_within_bounds() -> None:
    """M10: and agents that decide in no time are agents."""
    for discount, announced, message in ((0.5, False, "set discounts = True"), (1.5, True, "expected 0 to 1")):
        env = GameEnv(Discounting(discount, announced))
        env.reset(seed=0)
        with pytest.raises(SchemaError, match=message):
            env.step(np.zeros(1))
    game = Discounting(1, True)
    game.instant = ("two",)
    with pytest.raises(ConfigError, match="instant names 'two'"):
        GameEnv(game)


def test_policies_that_are_not_one_do_not_act_as_one() -> None:
    assert Policies({"left": PPOPolicy(spaces.Box(0, 1, (2,)), spaces.Discrete(2), device="cpu")}).as_one is None

"""Several policies in one WorkerSet: groups of games in any process, weights by policy, checkpoints, evaluation."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.data.steps import real_rows
from flowrl.envs.games import Turn
from flowrl.errors import ConfigError
from flowrl.operators import (
    GAE,
    FollowWorkers,
    ParallelRollouts,
    StandardMetricsReporting,
    TrainAllReduce,
    TrainOneStep,
)
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet, evaluate
from flowrl.rollout.evaluation import scores
from flowrl.rollout.policy_map import Match
from flowrl.rollout.remote_groups import RemoteGroups
from flowrl.storage.checkpoint import load_checkpoint, save_checkpoint
from flowrl.testing import same
from tests.games import AGENTS, ARRANGEMENTS, SEEDS, Arrangement, Following, RandomGame, by_hand, by_match, made
from tests.rollout.test_games_worker import Locked

UNLIKE = {"bob": "second", "*": "first"}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are objects of this one."""
    monkeypatch.setattr(RemoteGroups, "remote", False)


class Loaded(Following):
    """Notes the weights that it was sent."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.loads: list[Any] = []

    def load_weights(self, weights: Any) -> None:
        self.loads.append(weights["k"])
        super().load_weights(weights)


def follower(k: int, *spaces: Any) -> Loaded:
    return Loaded(k, memory=True, draws=1)


def learner(*spaces: Any) -> PPOPolicy:
    return PPOPolicy(*spaces, hidden=(4,), device="cpu", seed=1)


def make(
    num_workers: int = 0, envs: int = 4, *, first: Any = None, agents: Any = by_match, **settings: Any
) -> WorkerSet:
    policies = {"first": first or partial(follower, 1), "second": partial(follower, 2)}
    settings = {"env": partial(made, "mixed", True), "env_groups": 2, "seed": 3, **settings}
    return WorkerSet(policies=policies, agents=agents, num_workers=num_workers, envs_per_worker=envs, **settings)


def learned(rounds: int, state: Any = None, num_workers: int = 0, envs: int = 4, **settings: Any) -> tuple[Any, ...]:
    """What a plan collects while one of two policies learns, its losses, counters and states."""
    seen: list[Any] = []
    unlike = {"agents": UNLIKE, "env": partial(made, "mixed", False)}
    with make(num_workers, envs, first=learner, **{**unlike, **settings}) as workers:
        first = workers.of("first")
        rollouts = ParallelRollouts(workers, steps=6).tap("ParallelRollouts", seen.append)
        trained = rollouts.for_each(lambda batch: batch["first"], name="select").for_each(TrainOneStep(first))
        with trained.run(seed=5) as run:
            if state is not None:
                run.load_state_dict(state)
            losses = [next(run)["loss"] for _ in range(rounds)]
            known = dict(run.counters), [policy.state_dict() for policy in workers.resources]
            return seen, losses, *known, run.state_dict()


def compare_layouts() -> None:
    whole = learned(5)
    assert whole[2]["env_steps"] == 5 * 6 * 4
    assert sum(batch.rows for batch in whole[0]) != 5 * 6 * 4
    assert {name for batch in whole[0] for name in batch} == {"first", "second"}
    for layout in ((1, 4), (2, 2)):
        assert same(learned(5, None, *layout)[:4], whole[:4])
        half = learned(2, None, *layout)
        rest = learned(3, half[4])  # in this process
        assert same([*half[0], *rest[0]], whole[0])
        assert same(half[1] + rest[1], whole[1])
        assert same(rest[2:4], whole[2:4])


@pytest.mark.usefixtures("apart")
def test_the_same_groups_over_0_1_and_2_workers_give_one_stream() -> None:
    """D1, D2, D3, M3, M4: seats, learning of one policy, counters, and the rest after a checkpoint mid-game."""
    compare_layouts()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_the_same_over_real_processes() -> None:
    """D2, D3: through pickles."""
    compare_layouts()


@pytest.mark.usefixtures("apart")
def test_only_the_weights_that_changed_are_sent() -> None:
    """F3, V3: by policy, once for all processes; the next request of each carries them."""
    with make(2, 2) as workers:
        workers.start()
        puts: list[Any] = []
        actors = workers._hosts._actors  # type: ignore[union-attr]
        put = actors.put
        actors.put = lambda value: puts.append(value) or put(value)  # type: ignore[method-assign, func-returns-value]
        acting = [worker.target._policies for worker in actors.members]  # type: ignore[union-attr]
        workers.sample(4)
        assert puts == [{"k": 1}, {"k": 2}]
        for name, k in (("second", 5), ("second", 6), ("first", 3)):
            policy: Any = workers.of(name).policy
            policy.k, policy.version = k, policy.version + 1
            batch = workers.sample(30)
            assert (batch[name].policy_version.max(), puts.pop()) == (policy.version, {"k": k})
            assert len(puts) == 2
        assert [of["first"].loads for of in acting] == [[1, 3]] * 2
        assert [of["second"].loads for of in acting] == [[2, 5, 6]] * 2
        workers.sample(1)
        assert len(puts) == 2
        assert workers.version == 3


@pytest.mark.usefixtures("apart")
def test_a_process_that_is_made_again_has_the_newest_weights_of_all_policies() -> None:
    """F10: and new games, whose episodes have other numbers."""
    with make(2, 2) as workers:
        workers.start()
        workers.of("second").policy.k = 7  # type: ignore[attr-defined]
        workers.of("second").policy.version = 1
        before = workers.sample(3)
        workers.restart(1)
        after = workers.sample(3)
        acting = workers._hosts._actors.members[1].target._policies  # type: ignore[union-attr]
        assert [acting[name].k for name in ("first", "second")] == [1, 7]
    assert workers.env_steps == 2 * 3 * 4
    for name, batch in after.items():
        rows, old = real_rows(batch), real_rows(before[name])
        assert not np.isin(rows.episode_id[rows.worker == 1], old.episode_id).any()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.usefixtures("apart")
def test_games_that_cannot_be_saved_are_cut_and_counted(num_workers: int) -> None:
    """D3, F10: a run goes on from a checkpoint without them."""
    settings = {"env": locked, "num_workers": num_workers, "envs": 4 // max(num_workers, 1)}
    with make(**settings) as workers, ParallelRollouts(workers, steps=3).run() as run:
        before = next(run)
        state = copy.deepcopy(run.state_dict())
    with make(**settings) as workers, ParallelRollouts(workers, steps=3).run() as run:
        run.load_state_dict(state)
        after = next(run)
        assert workers.lost == {"cut_episodes": 4}
        assert run.counters["env_steps"] == 2 * 3 * 4
    for batch in after.values():
        assert (batch.t[0] == 0).all()
    assert before.env_steps == after.env_steps == 12


def locked() -> Any:
    from flowrl.envs.games.seats import GameEnv

    return GameEnv(Locked())


def test_a_checkpoint_on_disk_is_that_of_a_run_in_the_middle_of_games(tmp_path: Path) -> None:
    """D3: codec and all, for several policies."""
    with make() as workers, ParallelRollouts(workers, steps=5).run() as run:
        next(run)
        save_checkpoint(tmp_path / "state", run.state_dict())
        expected = [next(run) for _ in range(3)]
    with make() as workers, ParallelRollouts(workers, steps=5).run() as run:
        run.load_state_dict(load_checkpoint(tmp_path / "state", trusted=True))
        assert same([next(run) for _ in range(3)], expected)


def test_results_have_the_returns_of_games_and_of_their_agents() -> None:
    """M4, M6, S1: `episodes` are games, and the returns of a zero-sum game's agents cancel out."""
    with make() as workers:
        rollouts = ParallelRollouts(workers, steps=60)
        plan = StandardMetricsReporting(
            rollouts.for_each(lambda batch: {"rows": batch.rows}), workers, {"report_every": 1}
        )
        with plan.run() as run:
            result = next(run)
            played = sum(workers.foreach_worker(lambda worker: worker.manager.episode_id.sum()))
    assert result["env_steps"] == 240
    assert result["episode_return"] == 0.0
    assert result["episodes"] == played > 10
    assert all(-1 <= result[f"win_rate/{agent}"] <= 1 for agent in AGENTS)
    assert result["episode_length/ann"] < result["episode_length"]


# -- evaluation


def games(seats: Arrangement, episodes: int, num_envs: int, **settings: Any) -> list[Any]:
    from flowrl.envs import Environments

    environments = Environments(seats.game, {}, (), "local", {}, SEEDS)
    found = seats.policies()
    policies = found["default_policy"] if len(found) == 1 else found
    agents = seats.agents if len(found) > 1 else None
    return evaluate(policies, environments, episodes=episodes, seed=4, num_envs=num_envs, agents=agents, **settings)


@pytest.mark.parametrize("name", ["turns", "memory", "unlike", "by match"])
def test_evaluation_plays_the_games_that_an_obvious_loop_plays(name: str) -> None:
    """S2, S5, M4, M6, T8: a share of each game, agents beside it."""
    how = ARRANGEMENTS[name]
    found = games(how, 7, 3)
    shares = [(env_id, k) for env_id, share in enumerate((3, 2, 2)) for k in range(share)]
    whole = [episode for episode in found if not episode.agent]
    assert found[: len(whole)] == whole
    assert [(each.env_id, each.episode_id) for each in whole] == shares
    assert {(each.env_id, each.episode_id) for each in found} == set(shares)
    for env_id, k in shares:
        hand = by_hand(how, env_id, k)
        mine = [each for each in found if (each.env_id, each.episode_id) == (env_id, k)]
        if name == "by match":  # beside the agents' there are those of the policies, who change sides
            ours = [each for each in mine if each.agent in ("first", "second")]
            seats = Counter(by_match(agent, Match(env_id, k)) for agent in AGENTS if hand.rows[agent])
            assert Counter(each.agent for each in ours) == seats
            assert sum(each.return_ for each in ours) == sum(each.return_ for each in mine if each.agent in AGENTS)
            mine = [each for each in mine if each not in ours]
        known = {each.agent: (each.return_, each.length, each.success) for each in mine}
        of_agents = {a: (hand.returns[a], len(hand.rows[a]), hand.success[a]) for a in AGENTS if hand.rows[a]}
        assert known == {"": (0.0, hand.length, None), **of_agents}
        assert len(mine) == len(known)
    own = [each for each in found if each.agent == "bob"]
    assert scores(found, agent="bob").return_mean == np.mean([each.return_ for each in own])
    assert scores(found).steps == sum(each.length for each in whole)


def test_a_goal_that_is_missed_ends_the_games_early() -> None:
    """S6, S2: after the first round of all environments that makes 20 of them or more."""
    assert scores(games(ARRANGEMENTS["mixed"], 24, 3, goal={AGENTS[0]: 1e6})).episodes == 21
    assert scores(games(ARRANGEMENTS["mixed"], 24, 3, goal={AGENTS[0]: -1e6})).episodes == 24


class Endless(RandomGame):
    """In each step ann gains 1, bob loses 3, and everyone acts."""

    def reset(self, seed: int) -> Any:
        super().reset(seed)
        return self._seen([*AGENTS])

    def step(self, actions: Any) -> Turn:
        return Turn(self._seen([*AGENTS]), {"ann": 1.0, "bob": -3.0})


def test_a_cut_game_counts_for_its_agents_too() -> None:
    """S1, M4: with what each has gained so far."""
    found = evaluate(Following(), Endless, episodes=4, seed=0, num_envs=2, max_steps=5)
    assert all((each.length, each.cut) == (5, True) for each in found)
    assert [each.agent for each in found] == ["", "", *AGENTS, *AGENTS]
    assert [each.return_ for each in found] == [-10.0, -10.0, *(2 * [5.0, -15.0, 0.0])]


# -- what cannot be


def test_what_does_not_fit_is_refused() -> None:
    with make() as workers:
        with pytest.raises(ConfigError, match="no policy 'frist': did you mean 'first'"):
            workers.of("frist")
        with pytest.raises(
            ConfigError, match=r"several policies, first, second: pass those of one, workers.of\('first'\)"
        ):
            workers.publish(1, {})
    for policies in ({}, {"policy": learner, "policies": {"a": learner}}):
        with pytest.raises(ConfigError, match="give one of the two"):
            WorkerSet(partial(made, "mixed", True), **policies)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has one agent"):
        WorkerSet("CartPole-v1", policies={"a": learner, "b": learner})
    with pytest.raises(ConfigError, match="has one agent: pass its policy"):
        evaluate({"a": Following()}, "CartPole-v1", episodes=1, seed=0)  # type: ignore[dict-item]


@pytest.mark.parametrize("wrapper", ["TimeLimit(3)", "RecordEpisodeStatistics"])
def test_wrappers_of_a_game_are_refused(wrapper: str) -> None:
    """M5: a wrapper of all agents together would end games that have not ended for them."""
    with pytest.raises(
        ConfigError, match=r"the wrapper .* is for an environment of one agent, but RandomGame is a game of 3"
    ):
        make(wrappers=[wrapper])


def test_a_policy_that_learns_on_the_workers_is_saved_with_them() -> None:
    """D3: from games, as from environments of one agent: elsewhere it is not here, among the run's resources."""
    settings: dict[str, Any] = {"envs_per_worker": 2, "seed": 3}

    def learned_there(rounds: int, state: Any = None) -> tuple[list[Any], Any]:
        with WorkerSet(partial(made, "mixed", True), learner, **settings) as workers:
            plan = ParallelRollouts(workers, "raw", steps=8).for_each(GAE(0.9, 0.9)).for_each(TrainAllReduce())
            with plan.gather_sync(FollowWorkers(workers)).run() as run:
                if state is not None:
                    run.load_state_dict(state)
                return [next(run) for _ in range(rounds)], run.state_dict()

    whole, (half, state) = learned_there(4)[0], learned_there(2)
    (worker,) = state["resources"]["WorkerSet"]["workers"]
    assert worker["policy"]["version"] == 2
    assert same(half + learned_there(2, state)[0], whole)

"""Hindsight in the plans of DQN and SAC: what is stored, at which pace, and what it is for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowrl import Batch
from flowrl.cli.main import cli
from flowrl.engine.graph import graph
from flowrl.envs.goals import BitFlipping, bit_flipping
from flowrl.errors import ConfigError, PlanError
from flowrl.operators import NStep, ScaleRewards, StoreToReplay
from flowrl.plans import HERDQN
from flowrl.runs.config import build_config
from flowrl.trainer.plan_file import load_plan_file
from tests.goal_envs import BitFlip
from tests.plans.small import make

BITS: dict[str, Any] = {"env": "tests.goal_envs:BitFlip", "env_args": {"n": 4}}


def stored(settings: dict[str, Any], results: int = 8) -> tuple[list[Batch], list[Batch]]:
    """Episodes as they came to be relabelled, and what was stored of them, part by part."""
    episodes: list[Batch] = []
    parts: list[Batch] = []
    watch = lambda plan: plan.tap("Episodes", episodes.append).tap("StoreToReplay", parts.append)  # noqa: E731
    workers, plan = make("her_dqn", edit=watch, **BITS, **settings)
    with workers, plan.run(seed=0) as run:
        list(islice(run, results))
    return [episode for episode in episodes if not episode.is_empty], parts


@pytest.mark.parametrize("k", [1, 3])
def test_rows_are_those_of_the_environment_for_other_goals(k: int) -> None:
    """H2, H3, H6: of k + 1 rows one is real; all have the environment's own reward and end, -1 or 0 here."""
    episodes, parts = stored({"her_k": k})
    rows, env = Batch.cat(parts), BitFlip(4)
    goals = rows.next_obs.achieved_goal, rows.next_obs.desired_goal
    assert rows.reward.tolist() == env.compute_reward(*goals, {}).tolist()
    assert rows.terminated.tolist() == env.compute_terminated(*goals, {}).tolist()
    assert (rows.obs.desired_goal == rows.next_obs.desired_goal).all()
    steps = sum(int(episode.mask.sum()) for episode in episodes)
    waiting = steps * (k + 1) - rows.rows  # of the newest episodes, of which a part is stored
    assert 0 <= waiting < 4 * 2 * (k + 1)
    assert len(rows) >= 150
    real = {(env_id, episode, t) for env_id, episode, t in zip(rows.env_id, rows.episode_id, rows.t)}
    assert len(rows) == pytest.approx(len(real) * (k + 1), abs=4 * 2 * (k + 1))


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_each_strategy_takes_its_goals(strategy: str) -> None:
    """H1: the last one of the episode alone, one to come, or any of the episode."""
    episodes, parts = stored({"her_strategy": strategy})
    columns = [each[:, i][each.mask[:, i]] for each in episodes for i in range(each.mask.shape[1])]
    whole = {(int(each.env_id[0]), int(each.episode_id[0])): each for each in columns}
    rows, earlier = Batch.cat(parts), 0
    for env_id, episode, t, goal in zip(rows.env_id, rows.episode_id, rows.t, rows.obs.desired_goal):
        of = whole[int(env_id), int(episode)]
        if (goal == of.obs.desired_goal[0]).all():
            continue  # a real one
        achieved = of.next_obs.achieved_goal
        later = {"future": achieved[t:], "final": achieved[-1:], "episode": achieved}[strategy]
        assert (goal == later).all(1).any()
        earlier += not (goal == achieved[t:]).all(1).any()
    assert (earlier > 0) == (strategy == "episode")


def test_learning_keeps_pace_with_rows_not_with_episodes() -> None:
    """B8, F11: of an episode of 9 steps come 45 rows at once; sampling is never further from its ratio than a part."""
    settings: dict[str, Any] = {"env_args": {"bits": 9}, "replay_ratio": 3.0, "learning_starts": 60}
    workers, plan = make("her_dqn", **settings)
    part = 3 * 2  # steps of a fragment, of each environment
    slack, most = max(8, 3 * part), 0
    with workers, plan.run(seed=0) as run:
        seen = 0
        while seen < 8:
            before = run.counters.get("inserted", 0)
            seen += isinstance(run.step(), dict)
            inserted, sampled = (run.counters.get(name, 0) for name in ("inserted", "sampled"))
            most = max(most, inserted - before)
            if inserted >= 60:
                assert abs(sampled - 3 * (inserted - 60)) <= slack
    assert 0 < most <= part
    assert sampled > 500


def test_building_the_plan_makes_no_environment() -> None:
    """F1: the one that told the workers its spaces told its functions too."""
    made: list[BitFlipping] = []

    def counted() -> BitFlipping:
        made.append(bit_flipping(3))
        return made[-1]

    plan_file = load_plan_file("her_dqn")
    config = build_config(plan_file.Config, {"envs_per_worker": 2})
    with plan_file.trainer.make_workers(config, counted) as workers:
        known = len(made)
        plan_file.trainer.execution_plan(workers, config).check()
        assert len(made) == known == 1


class Half(BitFlipping):
    """Says whether a goal ends the episode, and not what it gives."""

    compute_reward = property()


@pytest.mark.parametrize(
    ("env", "lacks"),
    [
        (
            "CartPole-v1",
            r"CartPole-v1 has no 'achieved_goal' in its .* no method compute_reward: expected",
        ),
        (f"{__name__}:Half", "Half has no method compute_reward: expected gymnasium-robotics' convention"),
    ],
)
def test_an_environment_of_no_goals_is_refused_before_anything_runs(env: str, lacks: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=lacks):
        HERDQN(env=env)
    out = tmp_path / "run"
    done = CliRunner().invoke(cli, ["run", "her_dqn", "--env", env, "--out", str(out), "--stop-steps", "100"])
    assert done.exit_code == 2
    assert "hindsight needs an environment of goals" in done.output
    assert not out.exists()


def test_rewards_in_other_units_are_refused() -> None:
    """H3: relabelled steps would be paid in the environment's own units, real ones not."""
    workers, plan = make("her_dqn", edit=lambda plan: plan.insert_before("Episodes", ScaleRewards(0.1)))
    with workers, pytest.raises(PlanError, match="raw rewards of the environment: put ScaleRewards after"):
        plan.check()
    workers, plan = make("her_dqn", edit=lambda plan: plan.insert_after("HindsightRelabel", ScaleRewards(0.1)))
    with workers:
        plan.check()


def test_the_store_is_that_of_the_plan_it_edits() -> None:
    """One store, whose rate limiter knows of parts as large as those that come."""
    workers, plan = make("her_sac")
    with workers:
        (store,) = [node.op for node in graph(plan) if isinstance(node.op, StoreToReplay)]
        (part,) = [node.op for node in graph(plan) if node.name == "SplitBatch"]
    assert store.buffer.limiter is not None
    assert store.buffer.limiter.insert_batch == part.max_rows == 6


def share_of_successes(plan: str, relabelled: bool, **settings: Any) -> float:
    """After training, in 50 episodes of the policy's eval mode."""
    trainer: Any = load_plan_file(plan).trainer

    class Edited(trainer):  # type: ignore[misc]
        @classmethod
        def execution_plan(cls, workers: Any, config: Any) -> Any:
            built = super().execution_plan(workers, config)
            return built if relabelled else built.replace("HindsightRelabel", NStep(1, config.gamma))

    steps, ratio = settings.pop("env_steps"), settings.pop("replay_ratio")
    settings["replay_ratio"] = ratio if relabelled else 5 * ratio  # as many updates for each env step
    with Edited(act_backend="numpy", **settings) as built:
        built.train(until={"env_steps": steps})
        return float(built.evaluate(episodes=50, seed=1)["return_mean"])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        ("her_dqn", {"env_args": {"bits": 10}, "env_steps": 6_000, "replay_ratio": 16}),
        ("her_sac", {"env_args": {"radius": 0.03}, "env_steps": 5_000, "replay_ratio": 16}),
    ],
)
def test_goals_are_learned_to_be_reached_and_without_relabelling_they_are_not(
    plan: str, settings: dict[str, Any]
) -> None:
    """H1, H6: more than 0.8 of the goals; fewer than 0.3 with the same plan whose rows are the real ones alone."""
    assert share_of_successes(plan, relabelled=True, **settings) > 0.8
    assert share_of_successes(plan, relabelled=False, **settings) < 0.3

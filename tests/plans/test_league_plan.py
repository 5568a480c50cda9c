"""Leagues of several learners, as the plan has them: who meets whom, evaluations of each, saved learners, resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.errors import ConfigError
from flowrl.operators import Evaluate
from flowrl.plans import LeagueTraining
from flowrl.rollout import evaluate
from flowrl.testing import same
from tests.cli.parts import flowrl as command
from tests.plans.small import SMALL, final, weights

LEARNERS = ["main", "main_exploiter", "league_exploiter"]


def trained(out: Path | None = None, **settings: Any) -> LeagueTraining:
    return LeagueTraining(config={**SMALL["league"], **settings}, out=out)


def odds(trainer: LeagueTraining, learner: str) -> dict[str, float]:
    """How likely a learner meets each player, rounded."""
    found: dict[str, float] = {}
    for each in trainer.workers.league.matches.odds[learner]:
        found[each.player] = found.get(each.player, 0.0) + each.probability
    return {player: round(share / sum(found.values()), 3) for player, share in found.items()}


def test_roles_meet_whom_the_published_league_says() -> None:
    """Vinyals et al. 2019: shares of main agents, curricula of those that lose too often, and what was forgotten."""
    with trained(pool_size=4) as trainer:
        of, workers = trainer.workers.league, trainer.workers

        def join(learner: str, version: int) -> None:
            policy = workers.of(learner).policy
            policy.version = version
            of.add(learner, policy)

        def played(learner: str, **won: float) -> None:
            """A hundred games of which it wins these shares."""
            for other, share in won.items():
                name, score = other.replace("_at_", ":"), [1.0] * round(100 * share) + [0.0] * round(100 - 100 * share)
                of.count(
                    [((learner, name), (each, 1.0 - each)) for each in np.random.default_rng(0).permutation(score)]
                )

        assert [odds(trainer, name) for name in LEARNERS] == [{"main": 1.0}] * 3
        join("main", 1)
        join("main", 2)
        join("main_exploiter", 3)
        assert odds(trainer, "main") == {"main": 0.5, "main:1": 0.167, "main:2": 0.167, "main_exploiter:3": 0.167}
        assert odds(trainer, "main_exploiter") == {"main": 1.0}
        assert odds(trainer, "league_exploiter") == dict.fromkeys(["main:1", "main:2", "main_exploiter:3"], 0.333)

        played("main", main_exploiter_at_3=0.0)
        assert odds(trainer, "main")["main_exploiter:3"] > 0.15 + 0.3, "the past of exploiters, which it loses to"
        played("main", main_exploiter_at_3=1.0, main_at_1=0.0, main_at_2=1.0)
        assert odds(trainer, "main")["main"] == 0.35, "its own past, which it has forgotten how to beat"
        assert odds(trainer, "main")["main:1"] > 0.15 + 0.45
        played("main_exploiter", main=0.2)
        assert odds(trainer, "main_exploiter") == {"main": 1.0}
        played("main_exploiter", main=0.05)
        assert odds(trainer, "main_exploiter") == {"main:1": 0.5, "main:2": 0.5}, "a curriculum"


def test_an_exploiter_that_loses_before_there_are_past_selves_goes_on_against_the_main_agent() -> None:
    """Against itself it would count no game, and never win again."""
    with trained(pool_size=4) as trainer:
        trainer.workers.league.count([(("main_exploiter", "main"), (0.0, 1.0))])
        assert trainer.workers.league.win_rate("main_exploiter", "main") == 0
        assert odds(trainer, "main_exploiter") == {"main": 1.0}


def test_copies_join_and_exploiters_begin_anew_as_the_published_league_says() -> None:
    """After half of the interval if a learner beats its rivals; main exploiters always begin anew."""
    config = LeagueTraining.Config(snapshot_every=100)
    usual, rivals = {"every": 100, "least": 50, "win_rate": 0.7}, {"past": tuple(LEARNERS)}
    assert config.snapshots("main") == {**usual, "restart": 0.0, **rivals}
    assert config.snapshots("main_exploiter") == {**usual, "restart": 1.0, "now": ("main",)}
    assert config.snapshots("league_exploiter") == {**usual, "restart": 0.25, **rivals}


def test_several_of_a_role_are_numbered() -> None:
    with trained(learners={"main": 2, "main_exploiter": 1}) as trainer:
        assert list(trainer.workers.parts) == ["main_0", "main_1", "main_exploiter"]
        assert odds(trainer, "main_0") == {"main_0": 0.5, "main_1": 0.5}
        trainer.workers.league.count([(("main_0", "main_1"), (score, 1.0 - score)) for score in (1.0, 0.0, 0.0)])
        assert odds(trainer, "main_0") == {"main_0": 0.5, "main_1": 0.5}
        trainer.workers.league.count([(("main_0", "main_1"), (0.0, 1.0))])
        assert odds(trainer, "main_0") == {"main_0": 1.0}, "it loses more than seven of ten games to the other"
        first, second = (trainer.workers.of(f"main_{k}").policy.weights() for k in range(2))
        assert not same(first, second)
        assert {"elo/main_1", "updates/main_0"} <= trainer.train(env_steps=80).keys()
    with trained(learners={"main": 1}) as alone:
        assert {"elo/main", "updates", "snapshots"} <= alone.train(env_steps=80).keys()


@pytest.mark.slow
def test_a_kept_league_is_judged_loaded_and_played_learner_by_learner(tmp_path: Path) -> None:
    """S3, S6: each learner meets the judge; saved, each plays all agents, and the run itself means its main agent."""
    run = tmp_path / "run"
    kept = {"eval_every": 60, "eval_episodes": 6, "checkpoint_every": 60, "eval_train_ratio": 0.0}
    with trained(run, **kept) as trainer:
        result = trainer.train(env_steps=180, progress=False)
        policies = {name: trainer.workers.of(name).policy.weights() for name in LEARNERS}
        own = trainer.evaluate(2)
    assert result["eval_episodes"] == 3 * 6
    returns = [result[f"eval_return/{name}"] for name in LEARNERS]
    assert np.mean(returns) == pytest.approx(-result["eval_return/judge"])
    assert {"win_rate/main", "elo/league_exploiter", "updates/main_exploiter", "snapshots/main"} <= result.keys()

    saved, newest = flowrl.load(run, last=True), flowrl.load(sorted((run / "checkpoints").iterdir())[-1])
    for name in LEARNERS:
        assert same(saved.of(name).policy.weights(), policies[name])
        assert same(flowrl.load(f"{run}:{name}", last=True).policy.weights(), policies[name])
        assert same(newest.of(name).policy.weights(), policies[name])
    assert saved.evaluate(2) == saved.of("main").evaluate(2) == own
    board = saved.of("main").policy.observation_space.sample()
    assert saved.act(board) == saved.of("main").act(board)
    assert same(saved.players.weights(), policies["main"])

    told = command("evaluate", f"{run}:main", f"{run}:main_exploiter", "random", "--env", "flowrl:tic_tac_toe",
                   "--episodes", 2)  # fmt: skip
    assert told.exit_code == 0, told.output
    assert f"{run}:main_exploiter" in told.output
    for given in ([f"{run}:main_exploiter"], [run, "--policy", "league_exploiter"]):
        exported = command("export", *given, "--out", tmp_path / f"{len(given)}.pt2")
        assert exported.exit_code == 0, exported.output
    assert "--policy main" in command("export", run, "--out", tmp_path / "all.pt2").output
    with trained(opponents=[f"{run}:main_exploiter", str(run)]) as trainer:
        of = trainer.workers.league.policies
        best = flowrl.load(run)
        assert same(of[f"{run}:main_exploiter"].weights(), best.of("main_exploiter").policy.weights())
        assert same(of[str(run)].weights(), best.of("main").policy.weights())


def test_one_learner_is_filmed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The films of the others would replace its own."""
    films: list[Any] = []

    def noted(*args: Any, video: Path | None, **options: Any) -> Any:
        films.append(video)
        return evaluate(*args, **options)

    monkeypatch.setattr("flowrl.rollout.evaluate", noted)
    with trained() as trainer:
        Evaluate(trainer.workers, every=5, episodes=1, video=tmp_path)({"env_steps": 5})
    assert films == [tmp_path / "step-000000005", None, None]


def test_a_goal_names_learners(tmp_path: Path) -> None:
    """S6: each reaches its own, whoever the others are."""
    goal = {"main": -1.0, "league_exploiter": -1.0}
    with trained(tmp_path / "run", eval_every=40, eval_episodes=2, goal_episodes=30) as trainer:
        trainer.train(env_steps=400, goal=goal)
        assert {"confirmed_return/main", "confirmed_return/league_exploiter"} <= trainer.result.keys()
        assert trainer.result["env_steps"] < 400
        assert trainer.result["eval_episodes"] == 3 * 30, "nobody stops early because of a learner who plays elsewhere"
    with pytest.raises(ConfigError, match=r"no such agent: .*main"):
        trained(tmp_path / "other", eval_every=40).train(env_steps=80, goal={"nobody": 1.0})


def test_a_run_goes_on_with_all_its_learners(tmp_path: Path) -> None:
    """D3, L2, L3, L4: resumed by its directory, in the middle of matches, after a learner began anew."""
    settings = {"seed": 2, "checkpoint_every": 240}
    with trained(tmp_path / "whole", **settings) as trainer:
        trainer.train(env_steps=480)
        whole = trainer.run.state_dict()["resources"]
    with trained(tmp_path / "parted", **settings) as trainer:
        assert trainer.train(env_steps=240)["restarts"]
    with flowrl.resume(tmp_path / "parted") as trainer:
        trainer.train(env_steps=480)
        found = trainer.run.state_dict()["resources"]
    assert found.keys() == whole.keys()
    for name in found:
        if name != "WorkerSet":  # its matches are equal too, but it knows when it began
            assert same(found[name], whole[name])


@pytest.mark.slow
def test_the_same_groups_over_processes_learn_the_same(ray_cluster: None) -> None:
    """D2, L3: odds, past selves and guests are those of one process."""
    here, one = final("league", 4, env_groups=2, envs_per_worker=4)
    there, two = final("league", 4, num_workers=2, envs_per_worker=2)
    assert here == there
    assert same(weights(one), weights(two))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learners": {"mian": 1}}, "no role 'mian'.*'main'"),
        ({"learners": {"main_exploiter": 1}}, "at least one main agent"),
        ({"learners": {"main": 0}}, "a number of at least 1"),
        ({"learners": {"main": 1, "league_exploiter": -1}}, "a number of at least 0"),
        ({"learners": {"main": "one"}}, "learners"),
        ({"pfsp": 0.7, "self_play": 0.5}, "a sum of at most 1"),
        ({"env": "CartPole-v1"}, "has one agent: self-play and leagues take games of two agents"),
        ({"agents": {"x": "main"}}, "the league draws who plays whom; leave agents out"),
        ({"opponents": ["main_exploiter"]}, "opponents: the name 'main_exploiter' is that of a learner"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        trained(**settings)

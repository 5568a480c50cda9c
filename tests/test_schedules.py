"""Schedules as a configuration says them; the schedules themselves are shown in their doctests."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.errors import ConfigError
from flowrl.plans import DQN, PPO
from flowrl.runs.config import build_config, parse_value
from flowrl.schedules import cosine_schedule, linear_schedule, piecewise_schedule, schedule, value_at
from tests.plans.small import SMALL
from tests.plans.small import make as small


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("2e-3", 2e-3),
        ("linear(1e-3, 0, 100_000)", linear_schedule(1e-3, 0, 100_000)),
        ("linear(start=1, end=0, steps=10)", linear_schedule(1, 0, 10)),
        ("cosine(1, 0.1, 50)", cosine_schedule(1, 0.1, 50)),
        ("constant(0.5)", linear_schedule(0.5, None, 1)),
        ("piecewise((0, 1), (10, 0.5))", piecewise_schedule((0, 1), (10, 0.5))),
        ("[[0, 1], [10, 0.5]]", piecewise_schedule((0, 1), (10, 0.5))),
    ],
)
def test_a_schedule_is_written_as_a_number_as_a_call_or_as_points(text: str, made: Any) -> None:
    """As on the command line, `--set learning_rate=...`."""
    config = build_config(DQN.Config, {"learning_rate": parse_value(text)})
    assert schedule(config.learning_rate) == made


def test_a_number_goes_to_its_end_and_a_schedule_knows_its_own() -> None:
    assert schedule(1.0, 0.0, 10) == linear_schedule(1.0, 0.0, 10)
    assert schedule("constant(1)", 0.0, 10) == linear_schedule(1.0, None, 1)
    assert schedule(None) is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("linaer(1, 0, 10)", "did you mean 'linear'"),
        ("often", "is no schedule"),
        ("linear(1)", "missing"),
        ("linear(x, 0, 10)", "its arguments are numbers"),
        ("exponential(1, 0, 10)", "must be > 0"),
        ([[10, 1.0], [0, 0.5]], "sorted by count"),
        ([[1.0]], r"expected points \(count, value\)"),
        (-1.0, "it starts at -1"),
        ("linear(-1, 0, 10)", "it starts at -1"),
    ],
)
def test_what_is_no_schedule_is_refused_by_its_key(setting: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"learning_rate=.*{words}"):
        build_config(DQN.Config, {"learning_rate": setting})


def test_schedules_are_functions_of_env_steps_and_the_same_after_a_resume() -> None:
    """Q7, D3."""
    rate, epsilon = "exponential(1e-2, 1e-4, 200)", "piecewise((0, 1), (100, 0.1))"
    settings = {"learning_rate": rate, "epsilon_start": epsilon}

    def rates(run: Any, workers: Any, until: int) -> list[tuple[int, float]]:
        seen = []
        while run.counters.get("env_steps", 0) < until:
            run.step()
            version = workers.policy.version
            if version and (not seen or seen[-1][0] < version):
                seen.append((version, workers.policy.optimizer.param_groups[0]["lr"]))
        return seen

    workers, plan = small("dqn", **settings)
    with workers, plan.run(seed=0) as run:
        rates(run, workers, 120)
        saved = run.state_dict()
        expected = rates(run, workers, 180)
        assert expected[-1][1] == pytest.approx(value_at(schedule(rate), 180), rel=0.2)
        assert len({rate for _, rate in expected}) > 3
        weights = workers.policy.weights()
    again, plan = small("dqn", **settings)
    with again, plan.run(seed=0) as resumed:
        resumed.load_state_dict(saved)
        assert rates(resumed, again, 180) == expected
        assert all((again.policy.weights()[name] == value).all() for name, value in weights.items())


def test_a_schedule_lasts_as_long_as_the_run_in_every_process() -> None:
    """Q9: the budget is saved with the configuration; a length that the user set stays."""
    with PPO(config={**SMALL["ppo"], "schedule_steps": None}) as ppo:
        ppo.train(until={"env_steps": 40, "episode_return": 1})
        assert ppo.config.schedule_steps == 40
        for policy in (ppo.workers.policy, ppo.workers.policy_maker(gpus=False)()):
            policy.learn_mode.schedule(20)
            assert (policy.optimizer.param_groups[0]["lr"], policy.learn_mode.clip) == pytest.approx((0.0005, 0.1))
    with DQN(config={**SMALL["dqn prioritized"], "priority_beta_steps": None}) as dqn:
        dqn.train(until={"env_steps": 40})
        assert dqn.run is not None
        assert value_at(dqn.run.resources["PrioritizedReplayBuffer"].beta, 20) == pytest.approx(0.7)
    with PPO(config=SMALL["ppo"]) as own:
        own.train(until={"env_steps": 40})
        assert own.config.schedule_steps == 200


def test_without_a_budget_a_schedule_is_constant_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Q9."""
    with PPO(config={**SMALL["ppo"], "schedule_steps": None}) as ppo:
        ppo.train(until={"updates": 5})
        assert ppo.workers.policy.optimizer.param_groups[0]["lr"] == 1e-3
        ppo.train(until={"env_steps": 100})
        assert ppo.config.schedule_steps is None, "the run had begun"
    assert caplog.messages == [
        "clip and learning_rate stay constant, since the run has no budget in env steps: "
        "train(until={'env_steps': N}) sets one"
    ]

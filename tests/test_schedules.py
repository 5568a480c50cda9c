"""Schedules as a configuration says them; the schedules themselves are shown in their doctests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowrl.errors import ConfigError
from flowrl.plans import DQN, MARWIL, PPO
from flowrl.runs.config import build_config, parse_value
from flowrl.runs.run_schedules import late_start
from flowrl.schedules import cosine_schedule, linear_schedule, piecewise_schedule, schedule, value_at
from tests.cli.parts import flowrl
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


@pytest.mark.parametrize(
    ("config", "budget", "words"),
    [
        (
            PPO.Config(train_batch_size=2**31 - 1),
            2_000,
            "waits for 2,147,483,647 steps, beyond the budget of 2,000",
        ),
        (PPO.Config(train_batch_size=2_000), 2_000, ""),
        (PPO.Config(train_batch_size=2_000), None, ""),
        (DQN.Config(learning_starts=1_000_001), None, "learning_starts=1000001: learning from what is collected waits"),
        (MARWIL.Config(), 1, ""),
    ],
)
def test_a_run_that_is_long_in_beginning_to_learn_says_so(config: Any, budget: int | None, words: str) -> None:
    """X4: no setting is refused for it, since the item that reaches a budget is the last, however large it is."""
    assert words in late_start(config, budget)
    assert bool(words) == bool(late_start(config, budget))


def test_the_first_lines_say_what_a_run_waits_for(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """X4."""
    with DQN(config={**SMALL["dqn"], "learning_starts": 1_000_001}) as dqn:
        dqn.train(until={"env_steps": 20})
    assert caplog.messages[0].startswith("learning_starts=1000001: learning")
    (tmp_path / "small.json").write_text(json.dumps({**SMALL["dqn"], "learning_starts": 1_000}))
    done = flowrl("run", "dqn", "--config", tmp_path / "small.json", "--stop-steps", 20, "--out", tmp_path / "run")
    assert done.stdout.splitlines()[1].startswith("learning_starts=1000: learning"), done.output

"""DQN as a plan: exact, resumable, and it learns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flowrl import Plan
from flowrl.config import build_config
from flowrl.operators.metrics import CLOCK_KEYS
from flowrl.plans import dqn
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan, same

SMALL = {
    "hidden": (16,),
    "envs_per_worker": 2,
    "fragment_steps": 3,
    "batch_size": 8,
    "learning_starts": 50,
    "buffer_size": 100,  # wraps during the tests
    "replay_ratio": 2.0,
    "target_every": 7,
    "report_every": 20,
    "device": "cpu",
}


def make(seed: int = 0, edit: Callable[[Plan], Plan] = lambda plan: plan, **settings: Any) -> tuple[WorkerSet, Plan]:
    config = build_config(dqn.Config, {**SMALL, "seed": seed, **settings})
    workers = WorkerSet(
        config.env, lambda *spaces: dqn.policy(config, *spaces), envs_per_worker=config.envs_per_worker, seed=seed
    )
    return workers, edit(dqn.execution_plan(workers, config)).for_each(without_clock)


def without_clock(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in CLOCK_KEYS}


def final(results: int, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    workers, plan = make(**kwargs)
    with workers, plan.run(seed=kwargs.get("seed", 0)) as run:
        return [next(run) for _ in range(results)], run.state_dict()


def test_the_same_seed_gives_the_same_parameters() -> None:
    """D1: bit for bit; another seed gives others."""
    (first, state), (again, state_again), (_, other) = final(8), final(8), final(8, seed=1)
    assert same(first, again)
    assert same(state, state_again)
    assert not same(state["resources"]["DQNPolicy"], other["resources"]["DQNPolicy"])


def test_resumed_at_random_items_it_equals_the_uninterrupted_run() -> None:
    """D3, D5, Q7: mid-fragment, mid-round-robin, before and after learning starts; nothing is shared but the state."""
    results, end = final(10)
    workers, plan = make()
    draw = np.random.default_rng(5)
    with workers, plan.run(seed=0) as run:
        steps = int(draw.integers(40, 60))
        seen: list[Any] = []
        for at in sorted(draw.choice(600, 12, replace=False)):
            while steps < at:
                item = run.step()
                seen += [item] if isinstance(item, dict) else []
                steps += 1
            state = copy.deepcopy(run.state_dict())
            assert same(state, run.state_dict())  # D5
            if len(seen) >= 10:
                break
            other_workers, other = make(seed=0)
            with other_workers, other.run(seed=123) as resumed:
                resumed.load_state_dict(state)
                assert same([next(resumed) for _ in range(10 - len(seen))], results[len(seen) :])
                assert same(resumed.state_dict(), end)


@pytest.mark.parametrize(
    "where", ["Rollouts", "ParallelRollouts", "NStep", "StoreToReplay", "Replay", "TrainOneStep", "Concurrently"]
)
def test_a_tap_changes_nothing(where: str) -> None:
    """D4: neither items nor state."""
    seen: list[Any] = []
    (plain, state), (tapped, tapped_state) = final(6), final(6, edit=lambda plan: plan.tap(where, seen.append))
    assert seen
    assert same(plain, tapped)
    assert same(state, tapped_state)


def test_every_unit_is_counted_once() -> None:
    """F12, F11: env_steps are rows collected; trained = sampled = updates x batch size; the ratio is kept."""
    workers, plan = make()
    with workers, plan.run(seed=0) as run:
        for _ in range(10):
            result = next(run)
        counters = run.counters
        buffer = run.resources["ReplayBuffer"]
        assert counters["env_steps"] == workers.local.env_steps
        assert counters["trained"] == counters["sampled"] == buffer.samples == counters["updates"] * 8
        assert counters["inserted"] == buffer.inserts <= counters["env_steps"]
        assert counters["updates"] == workers.policy.version
        assert abs(buffer.samples - 2.0 * (buffer.inserts - 50)) <= buffer.limiter.slack
        assert result["ratio"] == pytest.approx(2.0, rel=0.5)


def test_evaluating_changes_nothing_in_training(tmp_path: Any) -> None:
    """S3: with and without evaluation, the parameters are the same."""
    from flowrl.operators import Evaluate

    _, plain = final(6)
    workers, plan = make()
    with workers, plan.for_each(Evaluate(workers, every=20, episodes=3)).run(seed=0) as run:
        results = [next(run) for _ in range(6)]
        assert all("eval_return" in result for result in results[1:])
        assert same(run.state_dict()["resources"], plain["resources"])


@pytest.mark.parametrize(
    "settings", [{"double": False}, {"dueling": False}, {"n_step": 1}, {"tau": 0.01, "target_every": 1}]
)
def test_its_variants_run(settings: dict[str, Any]) -> None:
    results, _ = final(4, **settings)
    assert np.isfinite(results[-1]["loss"])


QUICK = {"learning_rate": 0.03, "target_every": 15}  # so that the networks soon differ in what they prefer


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden", (8,)),
        ("dueling", False),
        ("double", False),
        ("gamma", 0.5),
        ("n_step", 1),
        ("learning_rate", 0.1),
        ("grad_clip", 0.01),
        ("batch_size", 4),
        ("target_every", 2),
        ("tau", 0.5),
        ("fragment_steps", 2),
        ("buffer_size", 60),
        ("learning_starts", 30),
        ("replay_ratio", 1.0),
        ("epsilon_start", 0.1),
        ("epsilon_end", 0.9),
        ("epsilon_steps", 20),
        ("envs_per_worker", 3),
    ],
)
def test_every_setting_matters(key: str, value: Any) -> None:
    """What the configuration says reaches the parts: another value gives other weights."""
    usual, other = final(10, **QUICK), final(10, **{**QUICK, key: value})
    assert not same(usual[1]["resources"]["DQNPolicy"], other[1]["resources"]["DQNPolicy"])


def test_global_generators_are_left_alone() -> None:
    """D6: flowrl draws from its own generators only."""
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    final(4)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(torch_before, torch.get_rng_state())


def test_the_plan_says_what_it_does() -> None:
    workers, plan = make()
    text = plan.explain()
    for name in (
        "store:",
        "train:",
        "NStep(n=3",
        "Replay(",
        "TrainOneStep",
        "Concurrently(round_robin 1:*",
    ):
        assert name in text
    assert "dqn.py:" in text
    workers.close()


def test_the_contract_of_plans() -> None:
    """D1, D3, D4, D5 at every single step, and a tap behind every operator at once."""
    check_plan(lambda: make()[1], items=5)

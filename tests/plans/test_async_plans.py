"""What is A3C's, IMPALA's, APPO's and Ape-X's own; what every plan must do is in test_every_plan.py."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from flowrl.plans import A3C, APPO, IMPALA, ApexDQN
from flowrl.trainer.trainer import Trainer
from tests.plans.small import SMALL, final, make


def lags(name: str, where: str, results: int = 12, **settings: Any) -> list[int]:
    """Of each item that comes out of an operator, how many versions its weights are behind those that learn then."""
    workers, plan = make(name, **settings)
    seen: list[int] = []

    def look(item: Any) -> None:
        version = item.version if hasattr(item, "version") else int(item.policy_version.min())
        seen.append(workers.policy.version - version)

    with workers, plan.tap(where, look).run(seed=0) as run:
        for _ in range(results):
            next(run)
    return seen


def test_a_worker_of_a3c_goes_on_with_the_weights_that_its_gradient_gave() -> None:
    """F3: with one request in flight nobody is further behind than there are other workers."""
    assert set(lags("a3c", "AsyncGradients")) == {0}
    assert max(lags("a3c", "AsyncGradients", env_groups=2, envs_per_worker=4)) == 1
    assert max(lags("a3c", "AsyncGradients", in_flight=3)) == 2


@pytest.mark.slow
def test_rows_are_never_trained_on_by_weights_that_are_too_new() -> None:
    """V4: fragments ten times smaller than the batch, of three workers with four requests each; none is dropped."""
    small = {"fragment_steps": 2, "envs_per_worker": 3, "env_groups": 3, "in_flight": 12}
    impala, appo = {**small, "train_batch_size": 20}, {**small, "train_batch_size": 16, "minibatch_size": 4}
    assert max(lags("impala", "ParallelRollouts", **impala)) > 1
    for name, bound, settings in (
        ("impala", 0, impala),
        ("impala", 1, impala),
        ("impala", 2, {**impala, "num_learners": 1}),
        ("impala replayed", 0, impala),
        ("appo", 0, appo),
        ("appo", 9, appo),
    ):
        assert max(lags(name, "ParallelRollouts", max_weight_lag=bound, **settings)) <= bound
        results, state = final(name, 6, max_weight_lag=bound, **settings)
        assert name == "impala replayed" or max(each["policy_lag_max"] for each in results) <= bound
        assert "discarded_items" not in state["ledger"]["counters"]


def test_every_unit_of_impala_is_counted_once() -> None:
    """F12: what is trained is what was collected, and what was replayed; one update a batch of two fragments."""
    results, _ = final("impala", 5)
    assert [results[-1][unit] for unit in ("env_steps", "trained", "updates")] == [100, 100, 5]
    results, _ = final("impala replayed", 5)
    last = results[-1]
    assert last["sampled"] == pytest.approx(0.5 * last["env_steps"], abs=20)
    assert last["trained"] == pytest.approx(last["env_steps"] + last["sampled"], abs=20)


def test_learners_of_impala_train_on_everything_that_was_collected() -> None:
    """F12: in a thread of their own, on fragments that they correct themselves."""
    workers, plan = make("impala", num_learners=1)
    with workers, plan.run(seed=0) as run:
        for _ in range(6):
            result = next(run)
        assert 0 <= run.counters["env_steps"] - run.counters["trained"] <= 4 * 20
        assert run.counters["updates"] * 20 == run.counters["trained"]
        assert np.isfinite(result["value_loss"])
        answered = run.counters["updates"]
    assert answered <= workers.policy.version <= answered + 2, "those that were still asked for"


def test_the_target_policy_of_appo_follows_its_updates() -> None:
    """Q2: it is the policy of a multiple of `target_every` updates, and no other."""
    workers, plan = make("appo", target_every=12)  # 6 updates a batch
    policy: Any = workers.policy
    ages: list[int] = []

    def look(scalars: Any) -> None:
        same = all(
            (a == b).all() for a, b in zip(policy.target.state_dict().values(), policy.model.state_dict().values())
        )
        ages.append(0 if same else 1)

    with workers, plan.tap("UpdateTargetNetwork", look).run(seed=0) as run:
        for _ in range(6):
            next(run)
    assert ages[:6] == [1, 0, 1, 0, 1, 0]


def test_every_unit_of_ape_x_is_counted_once() -> None:
    """F11, F12: the ratio is kept over two memories, which both take part; every row drawn is learned from."""
    workers, plan = make("apex_dqn", env_groups=2)
    shards: Counter[int] = Counter()
    with workers, plan.tap("train.Replay", lambda drawn: shards.update(drawn.shard.tolist())).run(seed=0) as run:
        for _ in range(10):
            next(run)
        counters = run.counters
        assert counters["trained"] == 8 * counters["updates"] == sum(shards.values())
        assert 0 <= counters["sampled"] - counters["trained"] <= 2 * 8
        assert counters["sampled"] == pytest.approx(2.0 * (counters["inserted"] - 50), abs=40)
        assert counters["updates"] == workers.policy.version
    assert set(shards) == {0, 1}


def test_the_plans_show_who_does_what() -> None:
    """What runs on the workers is said to."""
    for name, there in {"a3c": "ComputeGradients", "apex_dqn": "NStep"}.items():
        workers, plan = make(name)
        (line,) = [line for line in plan.explain().splitlines() if there in line]
        assert "this process: 2 x CartPole-v1" in line
        workers.close()


PLANS: dict[str, type[Trainer]] = {"a3c": A3C, "impala": IMPALA, "appo": APPO, "apex_dqn": ApexDQN}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_it_runs_on_worker_processes(name: str, ray_cluster: None) -> None:
    """F12, V3: both workers take part, all that they counted is here, and weights reach them."""
    seen: Counter[int] = Counter()
    versions: set[int] = set()

    def look(item: Any) -> None:
        if name == "a3c":
            seen[item.worker] += item.rows
            versions.add(item.version)
        elif name != "apex_dqn":  # whose experience goes from the workers to the memories
            seen.update(item.worker.ravel().tolist())
            versions.update(item.policy_version.ravel().tolist())

    where = {"a3c": "AsyncGradients", "apex_dqn": "train.TrainOneStep"}.get(name, "ParallelRollouts")
    with PLANS[name](**{**SMALL[name], "num_workers": 2}) as trainer:
        trainer.plan = trainer.plan.tap(where, look)
        for _ in range(15):
            result = trainer.train()
        assert np.isfinite(result["loss"])
        assert result["updates"] == trainer.workers.policy.version
        if name != "apex_dqn":
            assert set(seen) == {0, 1}
            assert sum(seen.values()) <= result["env_steps"]
            assert len(versions) > 1
        else:
            assert result["sampled"] >= result["trained"] > 0

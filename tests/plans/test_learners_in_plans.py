"""IMPALA with learners of their own: the driver sends batches, and passes weights on that it does not look at."""

from __future__ import annotations

import os
import signal
from itertools import islice
from typing import Any

import pytest

from flowrl.engine.graph import graph
from flowrl.learners import LearnerGroup
from flowrl.testing import same
from tests.plans.small import make


def learners_of(plan: Any) -> Any:
    (found,) = [node.op.worker for node in graph(plan) if isinstance(getattr(node.op, "worker", None), LearnerGroup)]
    return found


@pytest.mark.slow
def test_batches_go_from_workers_to_learners(ray_cluster: None) -> None:
    """F12, F3: fragments are joined and learned from elsewhere; what is counted is what one process would count, and
    what is acted with is what was published."""
    workers, plan = make("impala", num_learners=2, num_aggregators=1, num_workers=1)
    with workers, plan.run(seed=0) as run:
        results = list(islice(run, 5))
        assert results[-1]["updates"] >= 4
        assert results[-1]["trained"] == 20 * results[-1]["updates"]
        assert results[-1]["env_steps"] >= results[-1]["trained"]
        assert workers.version == run.counters["updates"]
        learner = learners_of(plan).members[0]
        state = run.state_dict()
        assert same(state["resources"]["LearnerGroup"], learner.submit("state_dict").result(30))


@pytest.mark.slow
def test_the_death_of_a_learner_costs_its_requests_alone(ray_cluster: None) -> None:
    """F10, F2, F12: of one of two, and of both; counters never go back, and no batch is learned twice or lost."""
    workers, plan = make("impala", num_learners=2, num_workers=2, report_every=1)
    with workers, plan.run(seed=0) as run:
        results = list(islice(run, 5))
        for index in (1, 0):
            os.kill(learners_of(plan).members[index].submit("process").result(60), signal.SIGKILL)
            results += islice(run, 10)
        for name in ("env_steps", "trained", "updates"):
            counted = [result[name] for result in results]
            assert counted == sorted(counted)
        assert run.counters["learner_restarts"] == 2
        assert 2 <= run.counters["lost_requests"] <= 4
        assert results[-1]["trained"] == 20 * results[-1]["updates"]
        first, second = (each.submit("state_dict").result(60) for each in learners_of(plan).members)
        assert same(first, second)
        assert "worker_restarts" not in run.counters

"""A script: train with a worker on each of two machines, of which one is lost; argument: a folder for notes."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from flowrl.actors.resources import Resources
from flowrl.operators import ParallelRollouts, TrainOneStep
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from tests.chaos import Workers

#: How soon a machine that says nothing is given up.
QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 5}


def train(machines: list[Any], there: Workers) -> None:
    """Two workers, each on the machine that has room for it; the machine of the first one is lost."""
    resources = Resources(cpus=1)
    with WorkerSet("CartPole-v1", policy, num_workers=2, envs_per_worker=2, resources=resources) as workers:
        rollouts = ParallelRollouts(workers, steps=8).for_each(TrainOneStep(workers))
        with there.noted(rollouts).run() as run:
            for _ in range(10):
                next(run)
            raylets = [machine.all_processes["raylet"][0].process.pid for machine in machines]
            homes = [raylet_of(there.process(worker)) for worker in (0, 1)]
            assert sorted(homes) == sorted(raylets), "one on each"
            os.kill(homes[0], signal.SIGKILL)
            for _ in range(10):
                next(run)
            assert raylet_of(there.process(0)) == raylet_of(there.process(1)) == homes[1]
            assert run.counters["env_steps"] == 20 * 2 * 2 * 8
            assert run.counters["updates"] == 20
            # Ray may make it again on the machine that is about to be given up, and then once more.
            times = run.counters["worker_restarts"]
            assert times in (1, 2)
            assert run.counters["lost_requests"] == times
            assert run.counters["cut_episodes"] == 2 * times


def raylet_of(process: int) -> int:
    """Whose child it is."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"PPid:\s+(\d+)", status)[0])


def policy(*spaces: Any) -> PPOPolicy:
    return PPOPolicy(*spaces, hidden=(4,), device="cpu")


def main(folder: Path) -> None:
    store = 80 * 2**20
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": store, "_system_config": QUICK}
    )
    machines = [cluster.add_node(num_cpus=2, object_store_memory=store) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        train(machines, Workers(folder))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

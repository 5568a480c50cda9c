"""What does the plan cost DQN, beside the loop that a reader would write with the same parts?

Both train the same policy from the same seed on CartPole-v1 with the settings of plans/dqn.py and must end with
bit-equal parameters; pairs are interleaved. Aim: the plan has 0.98 of the loop's speed.

    python benchmarks/loop_overhead.py [--updates 2000] [--rounds 12]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from common import Pair, Row, compare, interleaved, print_machine

from flowrl.data import RateLimiter, ReplayBuffer
from flowrl.engine.seeds import SeedTree
from flowrl.envs import make_manager
from flowrl.operators import NStep
from flowrl.plans import dqn
from flowrl.rollout import RolloutWorker, WorkerSet


def through_the_plan(config: dqn.Config, updates: int) -> Any:
    workers = WorkerSet(
        config.env, lambda *spaces: dqn.policy(config, *spaces), envs_per_worker=config.envs_per_worker, seed=0
    )
    with workers, dqn.execution_plan(workers, config).run(seed=0) as run:
        while run.counters.get("updates", 0) < updates:
            run.step()
        return workers.policy


def written_by_hand(config: dqn.Config, updates: int) -> Any:
    manager = make_manager(config.env, config.envs_per_worker)
    policy = dqn.policy(config, manager.observation_space, manager.action_space)
    worker = RolloutWorker(manager, policy, seed=0)
    adder = NStep(config.n_step, config.gamma)
    limiter = RateLimiter(
        config.replay_ratio,
        config.learning_starts,
        sample_batch=config.batch_size,
        insert_batch=config.fragment_steps * config.envs_per_worker * config.n_step,
    )
    buffer = ReplayBuffer(
        config.buffer_size, gamma=config.gamma, limiter=limiter, seed=SeedTree(0).integer("ReplayBuffer/sample")
    )
    returns: list[float] = []
    losses: list[float] = []
    while True:
        rows = adder(worker.sample(config.fragment_steps))
        returns += [episode.return_ for episode in worker.episodes()]
        buffer.add(rows)
        while buffer.can_sample(config.batch_size):
            batch = buffer.sample(config.batch_size)
            losses.append(policy.learn_mode.learn_from(batch)["loss"])
            if policy.version % config.target_every == 0:
                policy.update_target(config.tau)
            if policy.version == updates:
                manager.close()
                return policy


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_machine("numpy", "torch", "gymnasium")
    config = dqn.Config(device="cpu")
    policies: dict[str, Any] = {}

    def contest(name: str, make: Any) -> None:
        policies[name] = make(config, options.updates)

    contest("plan", through_the_plan)  # the first one pays for imports
    seconds = interleaved(
        {
            "plan": lambda: contest("plan", through_the_plan),
            "by hand": lambda: contest("by hand", written_by_hand),
        },
        options.rounds,
    )
    plan, hand = policies["plan"].model.state_dict(), policies["by hand"].model.state_dict()
    assert all(torch.equal(plan[name], hand[name]) for name in plan), "parameters differ"
    print(f"parameters after {options.updates} updates: bit-equal")
    each = {name: taken / options.updates for name, taken in seconds.items()}
    return compare("DQN on CartPole-v1", each, [Pair("plan", "by hand", 0.98, bound=True)], "updates/s")


if __name__ == "__main__":
    main()

"""What does a plan cost, beside the loop that a reader would write with the same parts?

Both train the same policy from the same seed with the settings of plans/dqn.py, ppo.py (CartPole-v1) or sac.py
(Pendulum-v1) and must end with bit-equal parameters; pairs are interleaved. SAC learns from its first batch on: in a
long run its thousand random steps do not count. Aim: the plan has 0.98 of the loop's speed.

    python benchmarks/loop_overhead.py [dqn] [ppo] [sac] [--rounds 12] [--scale 1]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from common import Pair, Row, compare, interleaved, print_machine

from flowrl.data import Batch, RateLimiter, ReplayBuffer
from flowrl.data.steps import joined
from flowrl.engine.seeds import SeedTree
from flowrl.envs import make_manager
from flowrl.operators import GAE, NStep
from flowrl.plans import dqn, ppo, sac
from flowrl.rollout import RolloutWorker, WorkerSet

MODULES: dict[str, Any] = {"dqn": dqn, "ppo": ppo, "sac": sac}

#: Updates of a round.
UPDATES = {"dqn": 2000, "ppo": 1600, "sac": 400}


def through_the_plan(module: Any, config: Any, updates: int) -> Any:
    workers = WorkerSet(
        config.env, lambda *spaces: module.policy(config, *spaces), envs_per_worker=config.envs_per_worker, seed=0
    )
    plan = dqn.execution_plan if module is sac else module.execution_plan
    with workers, plan(workers, config).run(seed=0) as run:
        while run.counters.get("updates", 0) < updates:
            run.step()
        return workers.policy


def written_by_hand(module: Any, config: Any, updates: int) -> Any:
    manager = make_manager(config.env, config.envs_per_worker)
    policy = module.policy(config, manager.observation_space, manager.action_space)
    worker = RolloutWorker(manager, policy, seed=0)
    (on_policy if module is ppo else off_policy)(worker, policy, config, updates)
    manager.close()
    return policy


def on_policy(worker: RolloutWorker, policy: Any, config: Any, updates: int) -> None:
    adder, learn = GAE(config.gamma, config.lam), policy.learn_mode
    returns: list[float] = []
    scalars: list[Any] = []
    while policy.version < updates:
        waiting: list[Batch] = []
        while sum(batch.rows for batch in waiting) < config.train_batch_size:
            waiting.append(adder(worker.sample(config.fragment_steps)))
            returns += [episode.return_ for episode in worker.episodes()]
        learn.schedule(worker.env_steps)
        rows = learn.tensors(learn.prepare(joined(waiting)))
        learn.over_batch(rows)
        scalars += [learn.update(rows) for _ in range(config.num_sgd_iter)]  # a minibatch is the whole batch


def off_policy(worker: RolloutWorker, policy: Any, config: Any, updates: int) -> None:
    adder = NStep(config.n_step, config.gamma)
    limiter = RateLimiter(
        config.replay_ratio,
        config.learning_starts,
        sample_batch=config.batch_size,
        insert_batch=config.fragment_steps * config.envs_per_worker * config.n_step,
    )
    seed = SeedTree(0).integer("ReplayBuffer/sample")
    buffer = ReplayBuffer(config.buffer_size, gamma=config.gamma, limiter=limiter, seed=seed)
    returns: list[float] = []
    scalars: list[Any] = []
    while True:
        rows = adder(worker.sample(config.fragment_steps))
        returns += [episode.return_ for episode in worker.episodes()]
        buffer.add(rows)
        while buffer.can_sample(config.batch_size):
            scalars.append(policy.learn_mode.learn_from(buffer.sample(config.batch_size)))
            if policy.version % config.target_every == 0:
                policy.update_target(config.tau)
            if policy.version == updates:
                return


def measure(name: str, rounds: int, scale: float) -> list[Row]:
    module = MODULES[name]
    at_once = {"random_steps": 0, "learning_starts": 256} if module is sac else {}
    config, updates = module.Config(device="cpu", **at_once), int(UPDATES[name] * scale)
    policies: dict[str, Any] = {}

    def contest(way: str) -> None:
        train = {"plan": through_the_plan, "by hand": written_by_hand}[way]
        policies[way] = train(module, config, updates)

    contest("plan")  # the first one pays for imports
    seconds = interleaved({way: partial(contest, way) for way in ("plan", "by hand")}, rounds)
    plan, hand = policies["plan"].model.state_dict(), policies["by hand"].model.state_dict()
    assert all(torch.equal(plan[key], hand[key]) for key in plan), f"{name}: parameters differ"
    updates = policies["plan"].version
    print(f"{name}: parameters after {updates} updates: bit-equal")
    each = {way: taken / updates for way, taken in seconds.items()}
    return compare(f"{name} on {config.env}", each, [Pair("plan", "by hand", 0.98, bound=True)], "updates/s")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("plans", nargs="*", default=list(MODULES), metavar="PLAN")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--scale", type=float, default=1.0, help="of the updates in a round")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_machine("numpy", "torch", "gymnasium")
    return [row for name in options.plans for row in measure(name, options.rounds, options.scale)]


if __name__ == "__main__":
    main()

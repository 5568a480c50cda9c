"""How many gradient updates a second does a learner make, beside Stable-Baselines3 and Tianshou?

One thread of torch; what an update needs belongs to it: drawing from the buffer, the loss, the optimiser step and what
the library keeps of it. flowrl's updates are those of a plan that a run pulls item by item. All contestants are given
the same rows, and take turns in one run. Aim: 1.5x of each peer.

DQN: observations of CartPole, two layers of 64, batches of 64; Huber loss, Adam and clipping by norm, neither double
Q-learning nor dueling networks. SAC: observations of Pendulum, two layers of 256 in the actor and in both critics,
batches of 256, a learned temperature, targets that move in every update. Beside it stands a bound: flowrl's 16 products
between wide layers alone.

    python benchmarks/learner.py [dqn] [sac] [--rounds 15] [--updates 300] [--only flowrl] [--cpu]

`--cpu` counts the processor's seconds instead of the clock's, for a machine that others use too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from common import interleaved, print_machine, ratio_with_interval
from learner_peers import PEERS, Task, Update

from flowrl.data import Batch, ReplayBuffer
from flowrl.operators import Replay, TrainOneStep, UpdateTargetNetwork
from flowrl.rollout import WorkerSet

TASKS = {
    "dqn": Task("CartPole-v1", hidden=(64, 64), batch_size=64),
    "sac": Task("Pendulum-v1", hidden=(256, 256), batch_size=256, learning_rate=3e-4),
}


def flowrl_dqn(task: Task) -> Update:
    """`Replay`, `TrainOneStep` and `UpdateTargetNetwork`, as in the plan."""
    from flowrl.policies import DQNPolicy

    def policy(observation_space: Any, action_space: Any) -> DQNPolicy:
        settings = {"hidden": task.hidden, "gamma": task.gamma, "learning_rate": task.learning_rate}
        return DQNPolicy(
            observation_space, action_space, dueling=False, double=False, grad_clip=task.grad_clip, **settings
        )

    return flowrl_plan(task, policy, every=task.target_every)


def flowrl_sac(task: Task) -> Update:
    """The same operators; the target critics move in every update."""
    from flowrl.policies import SACPolicy

    def policy(observation_space: Any, action_space: Any) -> SACPolicy:
        settings = {"hidden": task.hidden, "gamma": task.gamma, "learning_rate": task.learning_rate}
        return SACPolicy(observation_space, action_space, **settings)

    return flowrl_plan(task, policy, every=1, tau=0.005)


def flowrl_plan(task: Task, policy: Callable[[Any, Any], Any], **target: Any) -> Update:
    """A run that draws, learns, and moves the target network as `UpdateTargetNetwork(workers, **target)`."""
    buffer = ReplayBuffer(task.rows, gamma=task.gamma)
    for rows in task.experience():
        buffer.add(Batch.of(rows))
    workers = WorkerSet(task.env, policy, num_workers=0, envs_per_worker=1)
    train = Replay(buffer, task.batch_size).for_each(TrainOneStep(workers))
    run = train.for_each(UpdateTargetNetwork(workers, **target)).run(seed=0)

    def update(count: int) -> None:
        for _ in range(count):
            next(run)

    return update


def products_of_sac(task: Task) -> Update:
    """The products between two wide layers in an update of SAC, 8 forward and 8 backward, and nothing else.

    Forward: the actor of both observations, two critics of both actions, two targets. Backward: to the weights and to
    what came in, of the actor and of both critics; of the critics as they judge the actor to what came in alone.
    """
    rows, weights = torch.ones(task.batch_size, task.hidden[0]), torch.ones(*task.hidden)
    out = torch.empty(task.batch_size, task.hidden[1])

    def update(count: int) -> None:
        for _ in range(16 * count):
            torch.mm(rows, weights, out=out)

    return update


CONTESTANTS: dict[str, dict[str, Callable[[Task], Update]]] = {
    "dqn": {"flowrl": flowrl_dqn, **PEERS["dqn"]},
    "sac": {"flowrl": flowrl_sac, **PEERS["sac"], "its products": products_of_sac},
}
"""Who makes an update of a task, by name."""


def compare(name: str, rounds: int, updates: int, only: list[str], clock: Callable[[], float]) -> None:
    """Time those that are installed, and print a line for each."""
    task, ready = TASKS[name], {}
    print(f"\n{name}: {task.env}, hidden {task.hidden}, batch {task.batch_size}")
    for who, make in CONTESTANTS[name].items():
        if only and who not in only:
            continue
        try:
            update = make(task)
        except ImportError as error:
            print(f"  {who:<18} missing ({error})")
            continue
        update(min(updates, 100))  # warm up
        ready[who] = lambda update=update: update(updates)
    seconds = interleaved(ready, rounds, clock)
    for who, taken in seconds.items():
        each = float(np.median(taken)) / updates
        line = f"  {who:<18} {1e6 * each:>7.0f} us an update  {1 / each:>7,.0f} a second"
        if who != "flowrl" and "flowrl" in seconds:
            median, low, high = ratio_with_interval(taken, seconds["flowrl"])
            line += f"   flowrl is {median:.2f}x as fast ({low:.2f} to {high:.2f})"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help="of " + ", ".join(TASKS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=300, help="of each contestant in a round")
    parser.add_argument("--only", nargs="+", default=[], metavar="CONTESTANT", help="by the names that are printed")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("numpy", "torch", "stable-baselines3", "tianshou")
    for name in options.tasks:
        compare(name, options.rounds, options.updates, options.only, process_time if options.cpu else perf_counter)


if __name__ == "__main__":
    main()

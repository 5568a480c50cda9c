"""How many gradient updates a second does a learner make, beside Stable-Baselines3 and Tianshou?

One thread of torch; what an update needs belongs to it: drawing from the buffer, the loss, the optimiser step and what
the library keeps of it. flowrl's updates are those of a plan that a run pulls item by item. All contestants are given
the same rows, and take turns in one run. Aim: 1.5x of each peer.

DQN: observations of CartPole, two layers of 64, batches of 64; Huber loss, Adam and clipping by norm, neither double
Q-learning nor dueling networks. SAC: observations of Pendulum, two layers of 256 in the actor and in both critics,
batches of 256, a learned temperature, targets that move in every update. Beside it stands a bound: flowrl's 16 products
between wide layers alone.

    python benchmarks/learner.py [dqn] [sac] [--rounds 15] [--updates 300] [--only flowrl] [--cpu]
    python benchmarks/learner.py --checks [dqn] [sac] [ppo] [--rounds 101] [--updates 60] [--cpu]

`--checks` compares flowrl with itself instead, with and without the checks that loss, gradients and weights are finite:
what do they cost an update? Aim: at most 1 %. One learner takes turns with both, in short rounds, so that what else the
machine does hits both alike.

`--cpu` counts the processor's seconds instead of the clock's, for a machine that others use too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import repeat
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from common import interleaved, print_machine, ratio_with_interval
from learner_peers import PEERS, Task, Update

from flowrl import from_items
from flowrl.data import Batch, ReplayBuffer
from flowrl.operators import GAE, ParallelRollouts, Replay, TrainOneStep, UpdateTargetNetwork
from flowrl.policies import learning
from flowrl.rollout import WorkerSet

TASKS = {
    "dqn": Task("CartPole-v1", hidden=(64, 64), batch_size=64),
    "sac": Task("Pendulum-v1", hidden=(256, 256), batch_size=256, learning_rate=3e-4),
    "ppo": Task("CartPole-v1", hidden=(64, 64), batch_size=64, learning_rate=3e-4, grad_clip=0.5),
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


def flowrl_ppo(task: Task) -> Update:
    """`TrainOneStep` on minibatches of one batch of experience, again and again."""
    from flowrl.policies import PPOPolicy

    def policy(observation_space: Any, action_space: Any) -> PPOPolicy:
        settings = {"hidden": task.hidden, "learning_rate": task.learning_rate, "grad_clip": task.grad_clip}
        return PPOPolicy(observation_space, action_space, **settings)

    workers = WorkerSet(task.env, policy, num_workers=0, envs_per_worker=8)
    with ParallelRollouts(workers, steps=32).for_each(GAE(task.gamma, 0.95)).run(seed=0) as run:
        batch = next(run)
    train = TrainOneStep(workers, num_sgd_iter=1, minibatch_size=task.batch_size)
    run, updates = from_items(lambda: repeat(batch)).for_each(train).run(seed=0), len(batch.flat()) // task.batch_size

    def update(count: int) -> None:
        for _ in range(count // updates):
            next(run)

    return update


CONTESTANTS: dict[str, dict[str, Callable[[Task], Update]]] = {
    "dqn": {"flowrl": flowrl_dqn, **PEERS["dqn"]},
    "sac": {"flowrl": flowrl_sac, **PEERS["sac"], "its products": products_of_sac},
}
"""Who makes an update of a task, by name."""

CHECKED = {**{name: makers["flowrl"] for name, makers in CONTESTANTS.items()}, "ppo": flowrl_ppo}
"""The learners whose checks are timed."""


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


def unchecked() -> dict[str, Callable[..., Any]]:
    """The checks of `flowrl.policies.learning` by name, without their effect; gradients are clipped all the same."""
    clip = learning.clip_norm
    return {
        "check_loss": lambda model, loss: None,
        "check_step": lambda model, optimizer: None,
        "clip_norm": lambda parameters, limit: limit is None or clip(parameters, limit),
    }


def compare_checks(name: str, rounds: int, updates: int, clock: Callable[[], float]) -> None:
    """Time one learner with and without its checks in turn, and print what they cost."""
    update = CHECKED[name](TASKS[name])
    kinds = {"without checks": unchecked()}
    kinds["with checks"] = {check: vars(learning)[check] for check in kinds["without checks"]}
    update(max(updates, 100))  # warm up

    def turn(checks: dict[str, Callable[..., Any]]) -> None:
        vars(learning).update(checks)
        update(updates)

    seconds = interleaved({kind: partial(turn, checks) for kind, checks in kinds.items()}, rounds, clock)
    for kind, taken in seconds.items():
        low, median, high = np.quantile(taken / updates * 1e6, [0.25, 0.5, 0.75])
        print(f"  {name:<4} {kind:<15} {median:>7.1f} us an update  (half of the rounds {low:.1f} to {high:.1f})")
    median, low, high = ratio_with_interval(seconds["with checks"], seconds["without checks"])
    print(f"  {name:<4} the checks cost {median - 1:+.2%}  ({low - 1:+.2%} to {high - 1:+.2%})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", help="of " + ", ".join(TASKS))
    parser.add_argument("--checks", action="store_true")
    parser.add_argument("--rounds", type=int, help="15; 101 with --checks")
    parser.add_argument("--updates", type=int, help="of each contestant in a round: 300; 60 with --checks")
    parser.add_argument("--only", nargs="+", default=[], metavar="CONTESTANT", help="by the names that are printed")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("numpy", "torch", "stable-baselines3", "tianshou")
    clock = process_time if options.cpu else perf_counter
    if options.checks:
        for name in options.tasks or CHECKED:
            compare_checks(name, options.rounds or 101, options.updates or 60, clock)
        return
    for name in options.tasks or CONTESTANTS:
        compare(name, options.rounds or 15, options.updates or 300, options.only, clock)


if __name__ == "__main__":
    main()

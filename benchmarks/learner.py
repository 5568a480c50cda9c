"""How many gradient updates a second does a learner make, beside Stable-Baselines3, Tianshou and its matrix products?

One thread of torch; what an update needs belongs to it: drawing from the buffer, the loss, the optimiser step and what
the library keeps of it. flowrl's updates are those of a plan that a run pulls item by item. All contestants are given
the same rows, and take turns in one run. Beside them stand flowrl with a setting that makes it quicker, `compile`, or
for PPO `learn_backend="numpy"`, and a bound: the matrix products of an update alone, forward and backward, in torch and
in numpy. Aims beside Stable-Baselines3, with that setting: 2.5x for DQN, 2x for SAC and PPO.

DQN: observations of CartPole, two layers of 64, batches of 64; Huber loss, Adam and clipping by norm, neither double
Q-learning nor dueling networks. SAC: observations of Pendulum, two layers of 256 in the actor and in both critics,
batches of 256, a learned temperature, targets that move in every update. PPO: minibatches of 64 of 256 steps of
CartPole, an actor and a critic of two layers of 64.

    python benchmarks/learner.py [dqn] [sac] [ppo] [--rounds 15] [--updates 300] [--only flowrl] [--cpu]
    python benchmarks/learner.py --parts [dqn] [sac] [ppo] [--rounds 15] [--updates 300]
    python benchmarks/learner.py --checks [dqn] [sac] [ppo] [--rounds 101] [--updates 60] [--cpu]

`--parts` tells what of flowrl's update each part takes instead.

`--checks` compares flowrl with itself instead, with and without the checks that loss, gradients and weights are finite:
what do they cost an update? Aim: at most 1 %. One learner takes turns with both, in short rounds, so that what else the
machine does hits both alike.

`--cpu` counts the processor's seconds instead of the clock's, for a machine that others use too.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from itertools import pairwise, repeat
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from common import Pair, Row, compare, installed, interleaved, print_machine
from learner_peers import PEERS, Task, Update

from flowrl import from_items
from flowrl.data import Batch, ReplayBuffer
from flowrl.operators import GAE, ParallelRollouts, Replay, TrainOneStep, UpdateTargetNetwork
from flowrl.policies import learning
from flowrl.policies.dqn import DQNLearning
from flowrl.policies.ppo import PPOLearning
from flowrl.policies.sac import SACLearning
from flowrl.rollout import WorkerSet

TASKS = {
    "dqn": Task("CartPole-v1", hidden=(64, 64), batch_size=64),
    "sac": Task("Pendulum-v1", hidden=(256, 256), batch_size=256, learning_rate=3e-4),
    "ppo": Task("CartPole-v1", hidden=(64, 64), batch_size=64, learning_rate=3e-4, grad_clip=0.5),
}


def flowrl_dqn(task: Task, **how: Any) -> Update:
    """`Replay`, `TrainOneStep` and `UpdateTargetNetwork`, as in the plan."""
    from flowrl.policies import DQNPolicy

    def policy(observation_space: Any, action_space: Any) -> DQNPolicy:
        settings = {"hidden": task.hidden, "gamma": task.gamma, "learning_rate": task.learning_rate, **how}
        return DQNPolicy(
            observation_space, action_space, dueling=False, double=False, grad_clip=task.grad_clip, **settings
        )

    return flowrl_plan(task, policy, every=task.target_every)


def flowrl_sac(task: Task, **how: Any) -> Update:
    """The same operators; the target critics move in every update."""
    from flowrl.policies import SACPolicy

    def policy(observation_space: Any, action_space: Any) -> SACPolicy:
        settings = {"hidden": task.hidden, "gamma": task.gamma, "learning_rate": task.learning_rate, **how}
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


def products(name: str, task: Task) -> Iterator[tuple[int, int, int]]:
    """The products of an update, `[rows, inner] @ [inner, columns]` each, where there are gradients."""
    observed, acted = task.spaces
    obs, batch = observed.shape[0], task.batch_size

    def forward(*sizes: int) -> Iterator[tuple[int, int, int]]:
        yield from ((batch, n, m) for n, m in pairwise(sizes))

    def to_weights(*sizes: int) -> Iterator[tuple[int, int, int]]:
        yield from ((n, batch, m) for n, m in pairwise(sizes))

    def to_inputs(*sizes: int) -> Iterator[tuple[int, int, int]]:
        yield from ((batch, m, n) for n, m in pairwise(sizes))

    def learned(*sizes: int) -> Iterator[tuple[int, int, int]]:
        yield from (*forward(*sizes), *to_weights(*sizes), *to_inputs(*sizes[1:]))

    if name == "sac":
        size = acted.shape[0]
        actor, critic = (obs, *task.hidden, 2 * size), (obs + size, *task.hidden, 1)
        yield from (*forward(*actor), *learned(*actor))  # of the next observations, and of these
        for _ in range(2):  # the target, the critic, and as it judges the actor
            yield from (*forward(*critic), *learned(*critic), *forward(*critic), *to_inputs(*critic))
        return
    yield from learned(obs, *task.hidden, acted.n)
    yield from forward(obs, *task.hidden, acted.n) if name == "dqn" else learned(obs, *task.hidden, 1)


def products_alone(name: str, task: Task, *, in_torch: bool) -> Update:
    """The products of an update, and nothing else."""
    made = [
        (
            np.ones((rows, inner), np.float32),
            np.ones((inner, columns), np.float32),
            np.empty((rows, columns), np.float32),
        )
        for rows, inner, columns in products(name, task)
    ]
    if in_torch:
        tensors = [tuple(map(torch.from_numpy, each)) for each in made]

    def update(count: int) -> None:
        for _ in range(count):
            if in_torch:
                for left, right, out in tensors:
                    torch.mm(left, right, out=out)
            else:
                for left, right, out in made:
                    np.matmul(left, right, out=out)

    return update


def flowrl_ppo(task: Task, **how: Any) -> Update:
    """`TrainOneStep` on minibatches of one batch of experience, again and again."""
    from flowrl.policies import PPOPolicy

    def policy(observation_space: Any, action_space: Any) -> PPOPolicy:
        settings = {"hidden": task.hidden, "learning_rate": task.learning_rate, "grad_clip": task.grad_clip}
        return PPOPolicy(observation_space, action_space, **settings, **how)

    workers = WorkerSet(task.env, policy, num_workers=0, envs_per_worker=8)
    with ParallelRollouts(workers, steps=32).for_each(GAE(task.gamma, 0.95)).run(seed=0) as run:
        batch = next(run)
    train = TrainOneStep(workers, num_sgd_iter=1, minibatch_size=task.batch_size)
    run, updates = from_items(lambda: repeat(batch)).for_each(train).run(seed=0), len(batch.flat()) // task.batch_size

    def update(count: int) -> None:
        for _ in range(count // updates):
            next(run)

    return update


FLOWRL: dict[str, Callable[..., Update]] = {"dqn": flowrl_dqn, "sac": flowrl_sac, "ppo": flowrl_ppo}

QUICKER: dict[str, tuple[str, dict[str, Any], float]] = {
    "dqn": ("flowrl, compiled", {"compile": True}, 2.5),
    "sac": ("flowrl, compiled", {"compile": True}, 2.0),
    "ppo": ("flowrl, numpy", {"learn_backend": "numpy"}, 2.0),
}
"""The same learner with a setting that makes it quicker: its name, the setting, the aim beside Stable-Baselines3."""

PARTS: dict[str, list[tuple[type, str]]] = {
    "drawing": [(ReplayBuffer, "sample")],
    "loss and gradients": [
        (DQNLearning, "_differentiate"),
        (SACLearning, "_differentiate"),
        (PPOLearning, "_differentiate"),
    ],
    "clipping, Adam, checks": [(learning.Learning, "_step")],
}
"""The methods whose seconds are a part of an update."""


def race(name: str, rounds: int, updates: int, only: list[str], clock: Callable[[], float]) -> list[Row]:
    """Time those that are installed."""
    task = TASKS[name]
    print(f"\n{name}: {task.env}, hidden {task.hidden}, batch {task.batch_size}")
    bounds = {
        "its products, torch": partial(products_alone, name, in_torch=True),
        "its products, numpy": partial(products_alone, name, in_torch=False),
    }
    quicker, how, aim = QUICKER[name]
    makers = {"flowrl": FLOWRL[name], quicker: partial(FLOWRL[name], **how), **PEERS[name], **bounds}
    ready = installed({who: partial(make, task) for who, make in makers.items() if not only or who in only})
    for update in ready.values():
        update(min(updates, 100))  # warm up
    seconds = interleaved({who: partial(update, updates) for who, update in ready.items()}, rounds, clock)
    pairs = [
        *(Pair("flowrl", peer) for peer in PEERS[name]),
        Pair(quicker, "stable-baselines3", aim),
        Pair(quicker, "flowrl"),
        *(Pair("flowrl", bound, bound=True) for bound in bounds),
    ]
    return compare(f"{name} updates", {who: taken / updates for who, taken in seconds.items()}, pairs, "updates/s")


def parts(name: str, rounds: int, updates: int) -> list[Row]:
    """Time the parts of flowrl's update."""
    update, spent = FLOWRL[name](TASKS[name]), dict.fromkeys(PARTS, 0.0)
    update(min(updates, 100))  # warm up

    def timed(part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                spent[part] += perf_counter() - began

        return call

    replaced = [(kind, method, getattr(kind, method)) for methods in PARTS.values() for kind, method in methods]
    costs: dict[str, list[float]] = {part: [] for part in ("an update", *PARTS, "the rest")}
    try:
        for part, methods in PARTS.items():
            for kind, method in methods:
                setattr(kind, method, timed(part, getattr(kind, method)))
        for _ in range(rounds):
            spent.update(dict.fromkeys(spent, 0.0))
            began = perf_counter()
            update(updates)
            whole = perf_counter() - began
            for part, seconds in {**spent, "an update": whole, "the rest": whole - sum(spent.values())}.items():
                costs[part].append(1e6 * seconds / updates)
    finally:
        for kind, method, was in replaced:
            setattr(kind, method, was)
    found = {part: np.array(cost) for part, cost in costs.items() if any(cost)}
    return compare(
        f"{name}, of an update", found, [Pair("an update", part, bound=True) for part in list(found)[1:]], "us"
    )


def unchecked() -> dict[str, Callable[..., Any]]:
    """The checks of `flowrl.policies.learning` by name, without their effect; gradients are clipped all the same."""
    clip = learning.clip_norm
    return {
        "check_loss": lambda model, loss: None,
        "check_step": lambda model, optimizer: None,
        "clip_norm": lambda parameters, limit: limit is None or clip(parameters, limit),
    }


def checks(name: str, rounds: int, updates: int, clock: Callable[[], float]) -> list[Row]:
    """Time one learner with and without its checks in turn."""
    update = FLOWRL[name](TASKS[name])
    kinds = {"without checks": unchecked()}
    kinds["with checks"] = {check: vars(learning)[check] for check in kinds["without checks"]}
    update(max(updates, 100))  # warm up

    def turn(chosen: dict[str, Callable[..., Any]]) -> None:
        vars(learning).update(chosen)
        update(updates)

    seconds = interleaved({kind: partial(turn, chosen) for kind, chosen in kinds.items()}, rounds, clock)
    each = {kind: taken / updates for kind, taken in seconds.items()}
    return compare(name, each, [Pair("with checks", "without checks", 0.99, bound=True)], "updates/s")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", help="of " + ", ".join(TASKS))
    parser.add_argument("--checks", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--rounds", type=int, help="15; 101 with --checks")
    parser.add_argument("--updates", type=int, help="of each contestant in a round: 300; 60 with --checks")
    parser.add_argument("--only", nargs="+", default=[], metavar="CONTESTANT", help="by the names that are printed")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_machine("numpy", "torch", "stable-baselines3", "tianshou")
    clock = process_time if options.cpu else perf_counter
    if options.checks:
        one: Callable[[str], list[Row]] = partial(
            checks, rounds=options.rounds or 101, updates=options.updates or 60, clock=clock
        )
    elif options.parts:
        one = partial(parts, rounds=options.rounds or 15, updates=options.updates or 300)
    else:
        one = partial(race, rounds=options.rounds or 15, updates=options.updates or 300, only=options.only, clock=clock)
    return [row for name in options.tasks or TASKS for row in one(name)]


if __name__ == "__main__":
    main()

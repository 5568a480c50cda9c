"""How fast do workers on Ray collect, beside RLlib's, and beside what the cores can give?

CartPole-v1, 2 workers with 8 environments each, fragments of 128 steps, separate 2x64 tanh networks,
nobody learns: `ParallelRollouts` in both modes, RLlib's EnvRunners in the ways of its PPO (all at a time) and of its
IMPALA (who is ready), and as many processes without Ray, each with a plan of its own that nobody waits for, which is
the bound. flowrl also computes values and action noise per environment, which RLlib leaves to its learner. Aim: twice
RLlib's rate. Then environments that work for 100 microseconds a step: aim 1.6 times one process. Last, how long the
weights of a network of 100 MB take to 8 workers, which load them, beside `ray.put` and 8 bare actors that copy them.

    pip install flowrl-engine[bench]
    PYTHONPATH=. python benchmarks/ray_sampling.py [--fragments 20] [--rounds 9] [--workers 2] [--backend numpy]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from common import Pair, Row, compare, installed, interleaved, local_ray, print_machine

from flowrl.operators import ParallelRollouts
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from tests.timed_envs import TimedEnv

STEPS, ENVS, HIDDEN = 128, 8, (64, 64)

PAIRS = [
    Pair("flowrl bulk_sync", "RLlib sync", 2),
    Pair("flowrl async", "RLlib async", 2),
    Pair("flowrl bulk_sync", "the cores", 0.8, bound=True),
    Pair("flowrl async", "the cores", bound=True),
]
SLOW_PAIRS = [Pair("flowrl bulk_sync", "one process", 1.6), Pair("flowrl bulk_sync", "the cores", 0.8, bound=True)]
#: Takes so many fragments of every worker.
Contestant = Callable[[int], None]


def flowrl(workers: int, mode: Any, backend: str, env: Any, stack: ExitStack) -> Contestant:
    """A plan that collects; the answers that it has asked for ahead are there when the clock stops."""

    def policy(*spaces: Any) -> PPOPolicy:
        return PPOPolicy(*spaces, hidden=HIDDEN, seed=0, device="cpu", act_backend=backend)

    made = WorkerSet(env, policy, num_workers=workers, envs_per_worker=ENVS)
    stack.callback(made.close)
    ahead = {"in_flight": 2} if mode == "async" else {}
    run = stack.enter_context(ParallelRollouts(made, mode, steps=STEPS, **ahead).run())

    def take(fragments: int) -> None:
        rows = 0
        while rows < fragments * STEPS * ENVS * max(workers, 1):
            rows += next(run).rows
        for stage in run.stages:
            stage.drain()

    return take


def processes(count: int, backend: str, env: Any, stack: ExitStack) -> Contestant:
    """So many processes that collect at the same time, without Ray."""
    context = get_context("spawn")
    pipes = []
    for _ in range(count):
        pipe, theirs = context.Pipe()
        process = context.Process(target=collect, args=(theirs, backend, env))
        process.start()
        pipes.append(pipe)
        stack.callback(process.join)
        stack.callback(pipe.send, 0)

    def take(fragments: int) -> None:
        for pipe in pipes:
            pipe.send(fragments)
        for pipe in pipes:
            pipe.recv()

    return take


def collect(pipe: Any, backend: str, env: Any) -> None:
    """What one of these processes does: as many fragments as it is asked for, until these are 0."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        take = flowrl(0, "bulk_sync", backend, env, stack)
        while fragments := pipe.recv():
            take(fragments)
            pipe.send(None)


def env_runners(workers: int, stack: ExitStack) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    networks = DefaultModelConfig(fcnet_hiddens=list(HIDDEN), fcnet_activation="tanh", vf_share_layers=False)
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=networks)
    config.env_runners(num_env_runners=workers, num_envs_per_env_runner=ENVS, rollout_fragment_length=STEPS)
    group = EnvRunnerGroup(config=config.copy(copy_frozen=False), local_env_runner=False)
    stack.callback(group.stop)
    return group


def rllib_sync(workers: int, stack: ExitStack) -> Contestant:
    """RLlib's workers as its PPO asks them: all, again and again."""
    from ray.rllib.execution.rollout_ops import synchronous_parallel_sample

    group = env_runners(workers, stack)

    def take(fragments: int) -> None:
        steps = fragments * STEPS * ENVS * workers
        episodes = synchronous_parallel_sample(
            worker_set=group, max_env_steps=steps, concat=True, _uses_new_env_runners=True
        )
        assert sum(map(len, episodes)) >= steps

    return take


def rllib_async(workers: int, stack: ExitStack) -> Contestant:
    """RLlib's workers as its IMPALA asks them: each again as soon as it has answered, two requests at a time."""
    group = env_runners(workers, stack)
    group.foreach_env_runner_async("sample")

    def answers(wait: float) -> Iterator[Any]:
        for _, episodes in group.fetch_ready_async_reqs(timeout_seconds=wait):
            yield episodes

    def take(fragments: int) -> None:
        steps, due = 0, fragments * STEPS * ENVS * workers
        while steps < due:
            group.foreach_env_runner_async("sample")
            steps += sum(len(episode) for episodes in answers(0.01) for episode in episodes)

    return take


def weights_to_workers(receivers: int, width: int, stack: ExitStack) -> Contestant:
    """Publishes so many versions of the weights, each of which every worker loads."""

    def policy(*spaces: Any) -> PPOPolicy:
        return PPOPolicy(*spaces, hidden=(width, width), seed=0, device="cpu")

    workers = stack.enter_context(WorkerSet("CartPole-v1", policy, num_workers=receivers, envs_per_worker=1))
    workers.start()

    def take(versions: int) -> None:
        for _ in range(versions):
            workers.policy.version += 1
            found = workers.foreach_worker(lambda worker: worker.policy.version)
            assert found == [workers.policy.version] * receivers

    return take


def weights_to_actors(receivers: int, width: int, stack: ExitStack) -> Contestant:
    """The same by Ray alone, as arrays."""
    import ray

    class Receiver:
        def __init__(self) -> None:
            self.held: list[np.ndarray] = []

        def load(self, sent: list[np.ndarray]) -> None:
            self.held = self.held or [np.empty_like(array) for array in sent]
            for mine, array in zip(self.held, sent):
                np.copyto(mine, array)

    actors = [ray.remote(Receiver).remote() for _ in range(receivers)]
    weights = [np.ones((width, width), np.float32) for _ in range(2)]  # of the policy and of the value

    def take(versions: int) -> None:
        for _ in range(versions):
            sent = ray.put([array.copy() for array in weights])
            ray.get([actor.load.remote(sent) for actor in actors])

    return take


def weights(receivers: int, megabytes: float, rounds: int) -> list[Row]:
    """How long a version of the weights takes."""
    width = round((megabytes * 1e6 / 4 / 2) ** 0.5)
    with ExitStack() as stack:
        stack.enter_context(local_ray(4 * receivers, store=round(1e9)))
        contestants = {
            "flowrl": weights_to_workers(receivers, width, stack),
            "ray.put": weights_to_actors(receivers, width, stack),
        }
        for take in contestants.values():
            take(1)
        costs = interleaved({name: partial(take, 1) for name, take in contestants.items()}, rounds)
    what = f"{megabytes:g} MB to {receivers} workers"
    return compare(what, costs, [Pair("flowrl", "ray.put", bound=True)], "s")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fragments", type=int, default=20, help="of each worker in a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", choices=("torch", "numpy"), default="torch", help="what computes flowrl's actions")
    parser.add_argument("--receivers", type=int, default=8, help="workers that the weights go to")
    parser.add_argument("--megabytes", type=float, default=100, help="of weights")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_machine("ray", "torch", "gymnasium")
    count = options.workers
    rows = []
    for env in ("CartPole-v1", partial(TimedEnv, 1e-4, busy=True)):
        with ExitStack() as stack:
            stack.enter_context(local_ray(4 * count))
            made = partial(flowrl, backend=options.backend, env=env, stack=stack)
            contestants: dict[str, Contestant] = {
                "flowrl bulk_sync": made(count, "bulk_sync"),
                "flowrl async": made(count, "async"),
                "one process": made(0, "bulk_sync"),
                "the cores": processes(count, options.backend, env, stack),
            }
            if env == "CartPole-v1":
                peers = {
                    "RLlib sync": partial(rllib_sync, count, stack),
                    "RLlib async": partial(rllib_async, count, stack),
                }
                rows += measure(f"{count} workers on Ray", contestants | installed(peers), PAIRS, count, options)
            else:
                rows += measure(f"{count} workers, 100 us a step", contestants, SLOW_PAIRS, count, options)
    return rows + weights(options.receivers, options.megabytes, options.rounds)


def measure(
    what: str, contestants: dict[str, Contestant], pairs: list[Pair], count: int, options: argparse.Namespace
) -> list[Row]:
    """The rates, of which that of one process is of a share of the work."""
    for take in contestants.values():
        take(2)  # warm up
    seconds = interleaved(
        {name: partial(take, options.fragments) for name, take in contestants.items()}, options.rounds
    )
    print(
        f"{what}, {ENVS} environments each, fragments of {STEPS}, {options.fragments} a round, {options.rounds} rounds"
    )
    steps = options.fragments * STEPS * ENVS
    per_step = {name: taken / (steps * (1 if name == "one process" else count)) for name, taken in seconds.items()}
    return compare(what, per_step, pairs, "env steps/s")


if __name__ == "__main__":
    main()

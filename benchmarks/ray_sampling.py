"""How fast do workers on Ray collect, beside RLlib's?

CartPole-v1, 2 workers with 8 environments each, fragments of 128 steps, separate 2x64 tanh networks,
nobody learns: `ParallelRollouts` in both modes, RLlib's EnvRunners in the ways of its PPO (all at a time) and of its
IMPALA (who is ready), and a worker in this process, which is the bound for each of two on two cores. flowrl also
computes values and action noise per environment, which RLlib leaves to its learner. Aim: twice RLlib's rate.

    pip install flowrl-engine[bench]
    python benchmarks/ray_sampling.py [--fragments 20] [--rounds 9] [--workers 2] [--backend numpy]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from common import Pair, Row, compare, installed, interleaved, local_ray, print_machine

from flowrl.operators import ParallelRollouts
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet

STEPS, ENVS, HIDDEN = 128, 8, (64, 64)

#: Takes so many fragments of every worker.
Contestant = Callable[[int], None]


def flowrl(workers: int, mode: Any, backend: str, stack: ExitStack) -> Contestant:
    """A plan that collects; the answers that it has asked for ahead are there when the clock stops."""

    def policy(*spaces: Any) -> PPOPolicy:
        return PPOPolicy(*spaces, hidden=HIDDEN, seed=0, device="cpu", act_backend=backend)

    made = WorkerSet("CartPole-v1", policy, num_workers=workers, envs_per_worker=ENVS)
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


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fragments", type=int, default=20, help="of each worker in a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", choices=("torch", "numpy"), default="torch", help="what computes flowrl's actions")
    options = parser.parse_args(arguments)
    print_machine("ray", "torch", "gymnasium")
    count = options.workers
    with ExitStack() as stack:
        stack.enter_context(local_ray(4 * count))
        contestants: dict[str, Contestant] = {
            "flowrl bulk_sync": flowrl(count, "bulk_sync", options.backend, stack),
            "flowrl async": flowrl(count, "async", options.backend, stack),
            "flowrl in this process": flowrl(0, "bulk_sync", options.backend, stack),
        }
        peers = {"RLlib sync": partial(rllib_sync, count, stack), "RLlib async": partial(rllib_async, count, stack)}
        contestants |= installed(peers)
        return measure(contestants, count, options.fragments, options.rounds)


def measure(contestants: dict[str, Contestant], count: int, fragments: int, rounds: int) -> list[Row]:
    """The rates, beside RLlib's and beside what the cores can give."""
    for take in contestants.values():
        take(2)  # warm up
    seconds = interleaved({name: partial(take, fragments) for name, take in contestants.items()}, rounds)
    print(f"{count} workers x {ENVS} environments, fragments of {STEPS} steps, {fragments} a round, {rounds} rounds")
    here = seconds.pop("flowrl in this process") / (fragments * STEPS * ENVS)
    per_step = {name: taken / (fragments * STEPS * ENVS * count) for name, taken in seconds.items()}
    # As many workers as cores are as many times as fast as one in this process, at best.
    per_step |= {"flowrl in this process": here, "the cores": here / min(count, os.cpu_count() or 1)}
    pairs = [
        Pair("flowrl bulk_sync", "RLlib sync", 2),
        Pair("flowrl async", "RLlib async", 2),
        Pair("flowrl bulk_sync", "the cores", 0.8, bound=True),
    ]
    return compare(f"{count} workers on Ray", per_step, pairs, "env steps/s")


if __name__ == "__main__":
    main()

"""How long does an adder take, relative to collecting its input?

Fragments of 128 steps of 8 CartPole-v1, collected with PPO's policy of 2x64 units, one thread. A share is the time of
the adder over that of the collection, the median of paired rounds with its 95 % interval. For HindsightRelabel a
part of the observation stands for the goals. Aim: at most 0.1.

    python benchmarks/adders.py [--rounds 15]
"""

from __future__ import annotations

import argparse

import numpy as np
from common import interleaved, print_machine, ratio_with_interval

from flowrl.data import Batch
from flowrl.data.steps import real_steps
from flowrl.engine.context import Context
from flowrl.operators import GAE, Episodes, HindsightRelabel, NStep, Unroll, VTrace
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet

ENVS, STEPS = 8, 128


def with_goals(episodes: Batch) -> Batch:
    def split(obs: np.ndarray) -> dict[str, np.ndarray]:
        return {"observation": obs, "achieved_goal": obs[..., :1], "desired_goal": obs[..., 1:2]}

    return episodes.replace(obs=split(episodes.obs), next_obs=split(episodes.next_obs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print_machine("numpy", "torch", "gymnasium")
    workers = WorkerSet("CartPole-v1", lambda *spaces: PPOPolicy(*spaces, device="cpu"), envs_per_worker=ENVS)
    with workers:
        workers.start(Context())
        fragment = workers.local.sample(STEPS)
        goals = with_goals(workers.local.sample(episodes=ENVS * STEPS // 22))  # as many rows, about
        distance = HindsightRelabel(
            lambda achieved, desired, info: -abs(achieved - desired)[:, 0],
            lambda achieved, desired, info: (achieved == desired)[:, 0],
            gamma=0.99,
        )
        adders = {
            "NStep": (NStep(3, 0.99), fragment),
            "GAE": (GAE(0.99, 0.95), fragment),
            "Unroll": (Unroll(16, "pad", burn_in=4), fragment),
            "Episodes": (Episodes(), fragment),
            "HindsightRelabel": (distance, goals),
            "VTrace": (VTrace(workers, 0.99), fragment),
        }
        timed = {name: (lambda adder=adder, given=given: adder(given)) for name, (adder, given) in adders.items()}
        seconds = interleaved({"collect": lambda: workers.local.sample(STEPS), **timed}, rounds)
    collected = seconds.pop("collect")
    print(f"{'collecting':18} {1e6 * np.median(collected) / (ENVS * STEPS):6.2f} us a row")
    for name, taken in seconds.items():
        share, low, high = ratio_with_interval(taken, collected)
        row = 1e6 * np.median(taken) / real_steps(adders[name][1])
        print(f"{name:18} {row:6.2f} us a row, share {share:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()

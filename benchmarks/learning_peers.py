"""The result of another library in a task of learning.py, with the settings of the plan and the same seed.

    python benchmarks/learning_peers.py TASK [--budget STEPS] [--seed 0] [--episodes 100] [--out FILE]

Prints the mean return of the policy that it ends with, without noise, over `--episodes` episodes in a separate
environment, and the seconds that learning took, with one thread of torch.
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from learning_tasks import TASKS, Task


class Learned(NamedTuple):
    """What a seed came to."""

    score: float  #: mean return of the episodes
    env_steps: int
    seconds: float


def sb3(task: Task, seed: int, episodes: int) -> Learned:
    """Stable-Baselines3's SAC, or sb3-contrib's TQC, CrossQ or TRPO; what `SB3` does not name is a default of both."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    name, settings = SB3[task.plan]
    algorithm = getattr(import_module(task.peer.replace("-", "_")), name)
    model = algorithm("MlpPolicy", task.env, seed=seed, device="cpu", **settings)
    started = perf_counter()
    model.learn(task.budget)
    seconds = perf_counter() - started
    envs = make_vec_env(task.env, n_envs=8, seed=1_000_000 + seed)
    returns, _ = evaluate_policy(model, envs, episodes, deterministic=True, return_episode_rewards=True)
    return Learned(float(np.mean(returns)), model.num_timesteps, seconds)


_FROM_REPLAY: dict[str, Any] = {"learning_starts": 10_000, "policy_kwargs": {"net_arch": [256, 256]}}
#: The plans that have it as a peer: its name of each, and its settings.
SB3: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("SAC", _FROM_REPLAY),
    "tqc": ("TQC", _FROM_REPLAY),
    "crossq": ("CrossQ", _FROM_REPLAY),
    "trpo": ("TRPO", {}),
}
#: Who learns it besides, by task.
PEERS = {f"{plan}-halfcheetah": sb3 for plan in SB3}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=PEERS, metavar="TASK", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--budget", type=int, metavar="STEPS", help="instead of the task's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=100, help="that are evaluated (default 100)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there too")
    options = parser.parse_args()
    task = TASKS[options.task]
    torch.set_num_threads(1)
    learned = PEERS[options.task](task._replace(budget=options.budget or task.budget), options.seed, options.episodes)
    print(json.dumps(learned._asdict()))
    if options.out:
        options.out.write_text(json.dumps(learned._asdict()))


if __name__ == "__main__":
    main()

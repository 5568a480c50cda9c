"""Do mixed precision and compiled losses make learning faster on this machine?

Updates of DQN as in benchmarks/learner.py, of a small network and of a large one, with each of the options, in one
thread of torch (on a GPU with --device cuda). Contestants take turns in one run; compiling comes before.

    python benchmarks/precision.py [--rounds 9] [--updates 40] [--device cpu] [--cpu]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from common import interleaved, print_machine, ratio_with_interval
from learner import flowrl_plan
from learner_peers import Task, Update

TASKS = {
    "2 x 64, batches of 64": Task("CartPole-v1", hidden=(64, 64), batch_size=64),
    "2 x 1024, batches of 512": Task("CartPole-v1", hidden=(1024, 1024), batch_size=512),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
    "float32, compiled": {"compile": True},
    "bfloat16, compiled": {"precision": "bfloat16", "compile": True},
}


def made(task: Task, device: str, **options: Any) -> Update:
    from flowrl.policies import DQNPolicy

    def policy(observation_space: Any, action_space: Any) -> DQNPolicy:
        return DQNPolicy(observation_space, action_space, hidden=task.hidden, device=device, **options)

    return flowrl_plan(task, policy, every=task.target_every)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=40, help="of each contestant in a round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cpu", action="store_true", help="the processor's seconds, where others use the machine too")
    options = parser.parse_args()
    clock = process_time if options.cpu else perf_counter
    torch.set_num_threads(1)
    print_machine("numpy", "torch")
    print(f"bfloat16 in hardware: {torch.cpu._is_avx512_bf16_supported()}" if options.device == "cpu" else "")
    tried = OPTIONS | ({"float16": {"precision": "float16"}} if options.device != "cpu" else {})
    for title, task in TASKS.items():
        ready: dict[str, Callable[[], object]] = {}
        for name, asked in tried.items():
            update = made(task, options.device, **asked)
            update(3)
            ready[name] = lambda update=update: update(options.updates)
        print(title)
        seconds = interleaved(ready, options.rounds, clock)
        for name, taken in seconds.items():
            median, low, high = ratio_with_interval(seconds["float32"], taken)
            each = float(np.median(taken)) / options.updates
            print(f"  {name:<20} {1e6 * each:>8.0f} us an update   {median:.2f}x ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()

"""How long does a checkpoint stop a run whose replay buffer is full? Milliseconds for which the run waits.

    python benchmarks/checkpoint_pause.py [PLAN ...] [--rows 1000000] [--checkpoints 10]

The run is in this process. A pause is all that `flowrl run` does for a checkpoint before it goes on: waiting for
answers, copying the state, and files that are written at once. The rest is written by a thread meanwhile. The first
pause copies the whole buffer and is told apart; the aim is at most 50 ms for each of the others.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter as clock
from time import thread_time
from typing import Any

import numpy as np
from common import Pair, Row, compare, print_machine

import flowrl.plans
from flowrl.data import Batch, ReplayActors, ReplayBuffer
from flowrl.engine.run import resources_of
from flowrl.runs.kept import KeptRun

PLANS = {"dqn": ("DQN", "CartPole-v1"), "apex_dqn": ("ApexDQN", "CartPole-v1"), "sac": ("SAC", "Pendulum-v1")}
#: Env steps between two checkpoints, and before the buffer is filled.
EVERY, BEGIN = 1_000, 400


def buffers(plan: Any) -> list[ReplayBuffer]:
    """The replay buffers of a plan in this process."""
    found: list[ReplayBuffer] = []
    for store in resources_of(plan).values():
        if isinstance(store, ReplayActors):
            found += [shard.target.store for shard in store._actors.members]
        elif isinstance(store, ReplayBuffer):
            found.append(store)
    return found


def fill(buffer: ReplayBuffer) -> None:
    """Fill a buffer with copies of its rows."""
    columns = buffer.state_dict(copy_rows=False)["columns"]
    held = Batch(columns) if buffer._rings.envs > 1 else Batch(columns)[:, 0]
    more = ReplayBuffer(buffer.capacity, seed=0)
    while more.size < buffer.capacity:
        more.add(held[np.arange(10_000) % len(held)])
    buffer.update(more)


def measure(name: str, rows: int, checkpoints: int) -> list[Row]:
    """The pauses of a plan."""
    pauses: list[tuple[float, float]] = []  # by the clock, and of the processor
    pause = KeptRun._checkpoint

    def timed(kept: KeptRun) -> None:
        kept._await_checkpoint()  # a run whose checkpoints are further apart than writing takes does not wait
        began, worked = clock(), thread_time()
        pause(kept)
        pauses.append((1e3 * (clock() - began), 1e3 * (thread_time() - worked)))

    kind, env = PLANS[name]
    settings = {"buffer_size": rows, "replay_ratio": 0.01, "report_every": EVERY // 4, "learning_starts": 256}
    KeptRun._checkpoint = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = getattr(flowrl.plans, kind)(
                env, out=Path(folder, "run"), checkpoint_every=EVERY, eval_every=0, **settings
            )
            with made as trainer:
                trainer.train(env_steps=BEGIN, progress=False)
                for buffer in buffers(trainer.algorithm):
                    fill(buffer)
                pauses.clear()
                trainer.train(env_steps=(checkpoints + 2) * EVERY, progress=False)
    finally:
        KeptRun._checkpoint = pause  # type: ignore[method-assign]
    (first, _), later = pauses[0], np.array(pauses[1 : checkpoints + 1])
    print(
        f"{name}: the first pause {first:.0f} ms; in the later ones the thread worked {np.median(later[:, 1]):.1f} ms"
    )
    costs = {"a pause": later[:, 0], "the aim": np.full(len(later), 50.0)}
    return compare(f"{name}, {rows:,} rows", costs, [Pair("a pause", "the aim", 1.0, bound=True)], "ms")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plans", nargs="*", default=list(PLANS), metavar="PLAN")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--checkpoints", type=int, default=10)
    options = parser.parse_args(arguments)
    print_machine("torch", "numpy")
    return [row for name in options.plans for row in measure(name, options.rows, options.checkpoints)]


if __name__ == "__main__":
    main()

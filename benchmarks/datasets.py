"""How fast are datasets written and read, beside bare numpy files?

python benchmarks/datasets.py [--batches 1000] [--rounds 5]

Fragments [32, 8] of CartPole with provenance: 11 columns, 90 bytes a row. Bare numpy writes a batch as one .npz file,
without a checksum, and draws rows from columns in memory: what disk, index and checksums cost is seen beside it.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import numpy as np
from common import interleaved, print_machine

from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.operators import FromDataset

STEPS, ENVS, ROWS = 32, 8, 256


def fragment() -> Batch:
    draw, shape = np.random.default_rng(0), (STEPS, ENVS)
    numbers = ("action", "policy_version", "worker", "env_id", "episode_id", "t")
    return Batch(
        {name: draw.integers(9, size=shape) for name in numbers},
        **{name: draw.random((*shape, 4), np.float32) for name in ("obs", "next_obs")},
        **{name: draw.random(shape) < 0.1 for name in ("terminated", "truncated")},
        reward=draw.random(shape),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print_machine("flowrl-engine", "numpy")
    batch, number = fragment(), itertools.count()
    rows = args.batches * STEPS * ENVS
    columns = Batch.cat([batch.flat()] * args.batches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)

        def write(flush: bool = False) -> Path:
            writer = DatasetWriter(path / str(next(number)))
            for _ in range(args.batches):
                writer.add(batch)
            if flush:
                writer.flush()
            return writer.path

        def write_npz() -> None:
            target = path / str(next(number))
            target.mkdir()
            for i in range(args.batches):
                np.savez(target / f"{i}.npz", **batch.to_dict())

        dataset = Dataset(write())

        def draw_rows() -> None:
            order = np.random.default_rng(0).permutation(rows)
            for start in range(0, rows, ROWS):
                columns[order[start : start + ROWS]]

        contestants = {
            "write": write,
            "write and flush": lambda: write(flush=True),
            "write, one .npz a batch": write_npz,
            "verify": lambda: dataset.verify(),
            "read batches as recorded": lambda: sum(1 for _ in FromDataset(dataset, verify=False)),
            f"read shuffled rows, {ROWS} a batch": lambda: sum(1 for _ in FromDataset(dataset, ROWS, verify=False)),
            "the same from memory, bare": draw_rows,
        }
        for name, seconds in interleaved(contestants, args.rounds).items():
            median = float(np.median(seconds))
            print(f"{name:<34} {args.batches / median:>9,.0f} batches/s {rows / median / 1e6:>8.2f} million rows/s")


if __name__ == "__main__":
    main()

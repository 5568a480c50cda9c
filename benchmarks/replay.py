"""How quickly are rows added to a replay buffer and drawn from it, beside the peers?

Capacity 1e6 with float32[4] observations, and pixels uint8[4, 84, 84] with next_obs stored twice and once; batches of
256 drawn, adds of 8 and of 256. All hold the same five columns and are full. "all on" is flowrl with provenance, use
counts and a rate limiter; "pool" draws into arrays that nobody holds any more. The bare numpy ring is the bound.
Contestants take turns in one run. Aims: drawing 2x cpprb, pixels 2x Stable-Baselines3 with the pool, adds of 8
1.5 million rows/s and of 256 20 million, memory within 5 % of the columns.

    python benchmarks/replay.py [--rounds 15] [--only rows pixels pixels-once] [--capacity 1000000] [--pixels 20000]
                                [--among flowrl stable-baselines3 ...]

With `--among` only some take part: 100 000 rows of pixels are 5.6 GB for each.

    python benchmarks/replay.py --fill 1000000 --folder FOLDER

How much memory is resident after so many rows of DQN on stacks of four frames (eight environments, three-step windows,
episodes of 1000 steps, every frame another one), and how long do the first checkpoint and one 10 000 rows later take?
Aim: 8e9 bytes. The checkpoints are removed.
"""

from __future__ import annotations

import argparse
import gc
import resource
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from common import Pair, Row, compare, installed, interleaved, print_machine
from replay_peers import PEERS, Contest, Contestant, NumpyRing, Rows

from flowrl.data import Batch, RateLimiter, ReplayBuffer
from flowrl.operators import NStep

DRAWN = 256
PROVENANCE = ("policy_version", "worker", "env_id", "episode_id", "t")


class Flowrl:
    def __init__(self, contest: Contest, *, everything: bool = False, **settings: Any) -> None:
        self.everything = everything
        if everything:
            limiter = RateLimiter(1, 1, sample_batch=DRAWN, insert_batch=DRAWN, slack=1e15)
            settings |= {"track_uses": True, "limiter": limiter}
        self.buffer = ReplayBuffer(contest.capacity, store_next_obs=not contest.once, seed=0, **settings)

    def add(self, rows: Rows) -> None:
        self.buffer.add(Batch.of(rows))

    def prepared(self, rows: Rows) -> Rows:
        more = {name: np.arange(len(rows["reward"])) for name in PROVENANCE} if self.everything else {}
        return rows | more

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)


def contestants(contest: Contest) -> dict[str, Callable[[Contest], Contestant]]:
    """Who takes part, by name."""
    made: dict[str, Callable[[Contest], Contestant]] = {"numpy ring": NumpyRing, "flowrl": Flowrl}
    if contest.dtype is np.uint8:
        made["numpy ring, reused"] = lambda c: NumpyRing(c, reuse=True)
        made["flowrl, pool"] = lambda c: Flowrl(c, reuse=True)
    else:
        made["flowrl, all on"] = lambda c: Flowrl(c, everything=True)
    peers = dict(PEERS)
    if contest.once:
        del peers["torchrl"]  # which stores next_obs twice
    return made | peers


def filled(make: Callable[[Contest], Contestant], contest: Contest) -> Contestant:
    buffer, generator = make(contest), np.random.default_rng(0)
    rows = prepared(buffer, contest.rows(DRAWN, generator))
    for _ in range(contest.capacity // DRAWN + 1):
        buffer.add(rows)
    return buffer


def prepared(buffer: Contestant, rows: Rows) -> Rows:
    return buffer.prepared(rows) if isinstance(buffer, Flowrl) else rows


def measure(title: str, contest: Contest, rounds: int, repeats: dict[str, int], among: list[str]) -> list[Row]:
    """Time drawing and adding of all that are installed."""
    who = {name: make for name, make in contestants(contest).items() if not among or name in ("flowrl", *among)}
    buffers = installed({name: partial(filled, make, contest) for name, make in who.items()})
    rows: list[Row] = []
    for what, count in (("draw", DRAWN), ("add 256", DRAWN), ("add 8", 8)):
        given, times = contest.rows(count, np.random.default_rng(1)), repeats[what]

        def turn(
            buffer: Contestant, *, what: str = what, count: int = count, times: int = times, given: Rows = given
        ) -> None:
            ready = prepared(buffer, given)
            for _ in range(times):
                buffer.sample(count) if what == "draw" else buffer.add(ready)

        turns = {name: partial(turn, buffer) for name, buffer in buffers.items()}
        for warm_up in turns.values():
            warm_up()
        each = {name: taken / times / count for name, taken in interleaved(turns, rounds).items()}
        rows += compare(f"{title}, {what}", each, pairs_of(contest, what), "rows/s")
    size = sum(column[0].nbytes for column in contest.rows(1, np.random.default_rng(0)).values())
    mine = buffers["flowrl"]
    assert isinstance(mine, Flowrl)
    held = {"flowrl": mine.buffer.statistics()["bytes"] / contest.capacity, "the five columns": size}
    costs = {name: np.array([bytes_]) for name, bytes_ in held.items()}
    rows += compare(f"{title}, memory", costs, [Pair("flowrl", "the five columns", 0.95, bound=True)], "bytes/row")
    buffers.clear()
    gc.collect()
    return rows


def fill(rows: int, folder: Path) -> None:
    """Fill a buffer that shares frames, and print what is resident and what checkpoints take."""
    envs, steps, episode = 8, 32, 1000
    noise = np.random.default_rng(0).integers(0, 256, (64, 84, 84), np.uint8)
    buffer, windows, spent = ReplayBuffer(rows, share_frames=True, seed=0), NStep(3, 0.99), 0.0

    def stacks(time: np.ndarray) -> np.ndarray:
        """Those of all environments at times `[T]`: the first frame of an episode repeats."""
        time = time[:, None, None] - np.minimum(time[:, None, None] % (episode + 1), np.arange(3, -1, -1)[None, None])
        frames = noise[time.repeat(envs, 1) % len(noise)]
        frames[..., 0, :8] = np.array(time + (np.arange(envs) << 40)[:, None])[..., None].view(np.uint8)
        return frames

    def collect(more: int) -> None:
        nonlocal at, spent
        until = buffer.inserts + more
        while buffer.inserts < until:
            step = np.arange(at, at + steps)
            at += steps
            time = step + step // episode  # an episode of so many steps has one frame more
            ends = np.broadcast_to((step % episode == episode - 1)[:, None], (steps, envs))
            zeros = np.zeros((steps, envs))
            obs, after = stacks(time), stacks(time + 1)
            batch = Batch(
                obs=obs, action=zeros.astype(int), reward=zeros, next_obs=after, terminated=ends, truncated=ends & False
            )
            flat = windows(batch)
            start = perf_counter()
            buffer.add(flat)
            spent += perf_counter() - start

    at = 0
    collect(rows)
    size = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    print(f"{len(buffer):,} rows: {size / 1e9:.2f}e9 bytes resident; adding a row took {1e6 * spent / rows:.0f} us")
    for what in ("the first checkpoint", "one 10 000 rows later"):
        start = perf_counter()
        buffer.save(folder / "buffer")
        size = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        print(f"{what}: {perf_counter() - start:.1f} s, {size / 1e9:.2f}e9 bytes resident")
        collect(10_000)
    shutil.rmtree(folder / "buffer")


def pairs_of(contest: Contest, what: str) -> list[Pair]:
    """Who is compared; the fastest of flowrl with the peers."""
    best = "flowrl, pool" if contest.dtype is np.uint8 else "flowrl"
    bounds = {"numpy ring, reused": "flowrl, pool"} if contest.dtype is np.uint8 else {"numpy ring": "flowrl"}
    aimed = "stable-baselines3" if contest.dtype is np.uint8 else "cpprb"
    return [
        *(Pair(ours, ring, bound=True) for ring, ours in bounds.items()),
        *(
            Pair(best, peer, 2.0 if (what, peer) == ("draw", aimed) else None)
            for peer in contestants(contest)
            if peer in PEERS
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=["rows", "pixels", "pixels-once"])
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--pixels", type=int, default=20_000, help="56 kB a row and contestant where stored twice")
    parser.add_argument("--among", nargs="+", default=[], metavar="CONTESTANT", help="by the names that are printed")
    parser.add_argument("--fill", type=int, metavar="ROWS")
    parser.add_argument("--folder", type=Path, default=Path("."), help="of the checkpoints of --fill")
    options = parser.parse_args(arguments)
    print_machine("numpy", "torch", *PEERS)
    if options.fill:
        fill(options.fill, options.folder)
        return []
    quick = {"draw": 300, "add 256": 100, "add 8": 500}
    slow = {"draw": 20, "add 256": 10, "add 8": 100}
    pixels = Contest(options.pixels, (4, 84, 84), np.uint8, once=False)
    cases = {
        "rows": ("float32[4]", Contest(options.capacity, (4,), np.float32, once=False), quick),
        "pixels": ("pixels, next_obs twice", pixels, slow),
        "pixels-once": ("pixels, next_obs once", pixels._replace(once=True), slow),
    }
    rows: list[Row] = []
    for name in options.only:
        title, contest, repeats = cases[name]
        rows += measure(title, contest, options.rounds, repeats, options.among)
    return rows


if __name__ == "__main__":
    main()

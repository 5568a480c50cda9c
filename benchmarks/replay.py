"""How quickly are rows added to a replay buffer and drawn from it, beside the peers?

Capacity 1e6 with float32[4] observations, and pixels uint8[4, 84, 84] with next_obs stored twice and once; batches of
256 drawn, adds of 8 and of 256. All hold the same five columns and are full. "all on" is flowrl with provenance, use
counts and a rate limiter; "pool" draws into arrays that nobody holds any more. The bare numpy ring is the bound.
Contestants take turns in one run. Aims: drawing 2x cpprb, pixels 2x Stable-Baselines3 with the pool, adds of 8
1.5 million rows/s and of 256 20 million, memory within 5 % of the columns.

    python benchmarks/replay.py [--rounds 15] [--only rows pixels pixels-once] [--capacity 1000000] [--pixels 20000]
                                [--among flowrl stable-baselines3 ...]

With `--among` only some take part: 100 000 rows of pixels are 5.6 GB for each.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
from common import interleaved, print_machine, ratio_with_interval
from replay_peers import PEERS, Contest, Contestant, NumpyRing, Rows

from flowrl.data import Batch, RateLimiter, ReplayBuffer

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


def compare(title: str, contest: Contest, rounds: int, repeats: dict[str, int], among: list[str]) -> None:
    """Time drawing and adding of all that are installed, and print a line for each."""
    buffers: dict[str, Contestant] = {}
    print(f"\n{title}: capacity {contest.capacity:,}")
    for name, make in contestants(contest).items():
        if among and name not in ("flowrl", *among):
            continue
        try:
            buffers[name] = filled(make, contest)
        except ImportError as error:
            print(f"  {name:<20} missing ({error})")
    for what, count in (("draw", DRAWN), ("add 256", DRAWN), ("add 8", 8)):
        rows = contest.rows(count, np.random.default_rng(1))
        times = repeats[what]

        def turn(
            buffer: Contestant, *, what: str = what, count: int = count, times: int = times, rows: Rows = rows
        ) -> None:
            ready = prepared(buffer, rows)
            for _ in range(times):
                buffer.sample(count) if what == "draw" else buffer.add(ready)

        turns = {name: (lambda buffer=buffer: turn(buffer)) for name, buffer in buffers.items()}
        for each in turns.values():
            each()  # warm up
        report(what, interleaved(turns, rounds), times, count)
    size, mine = (
        sum(column[0].nbytes for column in contest.rows(1, np.random.default_rng(0)).values()),
        buffers["flowrl"],
    )
    assert isinstance(mine, Flowrl)
    print(f"  memory of flowrl / five columns: {mine.buffer.statistics()['bytes'] / size / contest.capacity:.3f}")
    buffers.clear()
    gc.collect()


def report(what: str, seconds: dict[str, np.ndarray], times: int, count: int) -> None:
    print(f"  {what}")
    for name, taken in seconds.items():
        each = float(np.median(taken)) / times
        line = f"    {name:<20} {1e6 * each:>9.1f} us  {1 / each:>9,.0f} a second  {count / each:>12,.0f} rows/s"
        if name in PEERS:
            best = "flowrl, pool" if "flowrl, pool" in seconds else "flowrl"
            median, low, high = ratio_with_interval(taken, seconds[best])
            line += f"   {best} is {median:.2f}x as fast ({low:.2f} to {high:.2f})"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=["rows", "pixels", "pixels-once"])
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--pixels", type=int, default=20_000, help="56 kB a row and contestant where stored twice")
    parser.add_argument("--among", nargs="+", default=[], metavar="CONTESTANT", help="by the names that are printed")
    options = parser.parse_args()
    print_machine("numpy", "torch", *PEERS)
    quick = {"draw": 300, "add 256": 100, "add 8": 500}
    slow = {"draw": 20, "add 256": 10, "add 8": 100}
    pixels = Contest(options.pixels, (4, 84, 84), np.uint8, once=False)
    if "rows" in options.only:
        compare(
            "float32[4]", Contest(options.capacity, (4,), np.float32, once=False), options.rounds, quick, options.among
        )
    if "pixels" in options.only:
        compare("uint8[4, 84, 84], next_obs stored twice", pixels, options.rounds, slow, options.among)
    if "pixels-once" in options.only:
        compare(
            "uint8[4, 84, 84], next_obs stored once", pixels._replace(once=True), options.rounds, slow, options.among
        )


if __name__ == "__main__":
    main()

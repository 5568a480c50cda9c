"""How many simulations a second does tree search make, beside a loop over one tree at a time?

Positions of a game at random, with two networks' worth of opinions: one hidden layer of 64 units after another, in
numpy, one thread. The loop is the recursion of `tests/policies/one_tree.py`, which finds the same visits; it calls the
network with one state at a time. Aim: 20 000 simulations a second in 64 trees, ten times the loop.

    PYTHONPATH=. python benchmarks/search.py [--trees 1 16 64 256] [--simulations 100] [--rounds 9]
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from common import Pair, Row, compare, interleaved, print_machine

from flowrl.envs.games import GameModel, make
from flowrl.policies.in_numpy import log_softmax
from flowrl.policies.masks import action_mask, masked
from flowrl.policies.sampling import Array
from flowrl.policies.search import Evaluate, tree_search
from tests.policies import one_tree

#: Trees that the loop searches in a round.
BY_LOOP = 4


def network(model: GameModel, hidden: int = 64) -> Evaluate:
    """A network of two hidden layers with random weights."""
    draw, sizes = np.random.default_rng(0), (model.longest, hidden, hidden, model.actions + 1)
    first, second, last = (draw.normal(size=size, scale=0.2).astype(np.float32) for size in pairwise(sizes))

    def evaluate(states: Array) -> tuple[Array, Array]:
        obs = model.observe(states)
        outputs = np.maximum(np.maximum(obs["board"] @ first, 0) @ second, 0) @ last
        logits: Array = masked(outputs[:, :-1], action_mask(obs))
        return np.exp(log_softmax(logits)), np.tanh(outputs[:, -1])

    return evaluate


def openings(model: GameModel, count: int) -> Array:
    """Positions after the first two moves, at random."""
    draw, states = np.random.default_rng(1), np.zeros((count, 2), np.uint64)
    for _ in range(2):
        noise = draw.random((count, model.actions)) * model.legal(states)
        states, _, _ = model.play(states, noise.argmax(1))
    return states


def by_loop(model: GameModel, roots: Array, evaluate: Evaluate, simulations: int) -> None:
    """One tree after another."""
    for root in roots:
        one_tree.search(model, root, evaluate, simulations, 1.5)


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args(arguments)
    print_machine("numpy")
    rows: list[Row] = []
    for name in ("tic_tac_toe", "connect_four"):
        model = make(name).model()
        assert model is not None
        evaluate, most = network(model), max(*args.trees, BY_LOOP)
        roots = openings(model, most)
        contestants = {"loop": partial(by_loop, model, roots[:BY_LOOP], evaluate, args.simulations)}
        trees = {"loop": BY_LOOP}
        for count in args.trees:
            label = f"{count} trees"
            trees[label] = count
            contestants[label] = partial(
                tree_search, model, roots[:count], evaluate, simulations=args.simulations, c_puct=1.5
            )
        seconds = interleaved(contestants, args.rounds)
        of_one = {label: times / (trees[label] * args.simulations) for label, times in seconds.items()}
        pairs = [Pair(label, "loop", 10 if label == "64 trees" else None) for label in list(trees)[1:]]
        rows += compare(name, of_one, pairs, "simulations/s")
    return rows


if __name__ == "__main__":
    main()

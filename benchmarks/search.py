"""How many simulations a second does tree search make, beside a loop over one tree at a time, and beside LightZero?

By the rules: positions of a game at random, with two networks' worth of opinions: one hidden layer of 64 units after
another, in numpy, one thread. The loop is the recursion of `tests/policies/one_tree.py`, which finds the same visits;
it calls the network with one state at a time. Aim: 20 000 simulations a second in 64 trees, ten times the loop.

In a learned model: a latent state of 64 numbers, one hidden layer of 64 units to the next, nine actions; the same one
for all, whatever they search by. LightZero's trees are those of its release, see search_peers.py.

    PYTHONPATH=. python benchmarks/search.py [--trees 1 16 64 256] [--simulations 100] [--rounds 9]
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import cast

import numpy as np
from common import Pair, Row, compare, installed, interleaved, print_machine
from search_peers import DISCOUNT, PEERS

from flowrl.envs.games import GameModel, make
from flowrl.networks.in_numpy import log_softmax
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.sampling import Array
from flowrl.policies.search import Evaluate, ModelStep, gumbel_search, softmax, tree_search
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


class Learned:
    """A learned model with random weights; `tree_search` takes it for the rules of a game without an end."""

    actions = 9

    def __init__(self) -> None:
        draw, shapes = np.random.default_rng(0), ((73, 64), (64, 64 + 1 + 9 + 1))
        self._first, self._second = (draw.normal(size=shape, scale=0.2).astype(np.float32) for shape in shapes)
        self._one_hot = np.eye(9, dtype=np.float32)
        self._met: ModelStep

    def imagine(self, latent: Array, action: Array) -> ModelStep:
        outputs = np.maximum(np.concatenate([latent, self._one_hot[action]], 1) @ self._first, 0) @ self._second
        latent, reward, logits, value = np.split(outputs, (64, 65, 74), 1)
        return ModelStep(np.tanh(latent), reward[:, 0], logits, np.tanh(value[:, 0]))

    def roots(self, trees: int) -> ModelStep:
        """What it thinks of states at random."""
        before = np.random.default_rng(1).normal(size=(trees, 64)).astype(np.float32)
        return self.imagine(before, np.zeros(trees, np.int64))

    def play(self, states: Array, actions: Array) -> tuple[Array, Array, Array]:
        self._met = self.imagine(states, actions)
        return self._met.latent, self._met.reward, np.zeros(len(states), np.bool_)

    def evaluate(self, _states: Array) -> tuple[Array, Array]:
        """Of the states that it has just come to, as one call of the model says all."""
        return softmax(self._met.logits), self._met.value

    def legal(self, states: Array) -> Array:
        return np.ones((len(states), self.actions), np.bool_)


def by_rules(name: str, counts: Sequence[int], simulations: int, rounds: int) -> list[Row]:
    """A game's rows."""
    model = make(name).model()
    assert model is not None
    evaluate, roots = network(model), openings(model, max(*counts, BY_LOOP))
    contestants: dict[str, Callable[[], object]] = {
        "loop": partial(by_loop, model, roots[:BY_LOOP], evaluate, simulations)
    }
    trees = {"loop": BY_LOOP} | {f"{count} trees": count for count in counts}
    for count in counts:
        contestants[f"{count} trees"] = partial(
            tree_search, model, roots[:count], evaluate, simulations=simulations, c_puct=1.5
        )
    seconds = interleaved(contestants, rounds)
    of_one = {label: times / (trees[label] * simulations) for label, times in seconds.items()}
    pairs = [Pair(label, "loop", 10 if label == "64 trees" else None) for label in list(trees)[1:]]
    return compare(name, of_one, pairs, "simulations/s")


def in_learned(trees: int, simulations: int, rounds: int) -> list[Row]:
    """The rows of a learned model."""
    model = Learned()
    root = model.roots(trees)
    contestants: dict[str, Callable[[], object]] = {
        "Gumbel": partial(gumbel_search, root, model.imagine, simulations=simulations, discount=DISCOUNT),
        "PUCT": partial(
            tree_search,
            cast(GameModel, model),
            root.latent,
            model.evaluate,
            prior=softmax(root.logits),
            simulations=simulations,
            c_puct=1.25,
        ),
    }
    for name, search in installed(PEERS).items():
        contestants[name] = partial(search, root, model.imagine, simulations)
    seconds = interleaved(contestants, rounds)
    of_one = {label: times / (trees * simulations) for label, times in seconds.items()}
    pairs = [Pair(label.split(",")[0], label) for label in PEERS]
    return compare(f"learned, {trees} trees", of_one, pairs, "simulations/s")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args(arguments)
    print_machine("numpy", "LightZero")
    rows: list[Row] = []
    for name in ("tic_tac_toe", "connect_four"):
        rows += by_rules(name, args.trees, args.simulations, args.rounds)
    for count in args.trees:
        rows += in_learned(count, args.simulations, args.rounds)
    return rows


if __name__ == "__main__":
    main()

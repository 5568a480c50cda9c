"""Monte-Carlo tree search over the moves of a game, in many positions at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flowrl.envs.games.model import GameModel
from flowrl.policies.sampling import Array

Evaluate = Callable[[Array], tuple[Array, Array]]
"""What a network thinks of states `[N, ...]`: the prior of each move `[N, A]`, and the value for who moves `[N]`."""


class Searched(NamedTuple):
    """What a search found at its roots: how often it tried each move `[N, A]`, and the mean value of that `[N]`."""

    visits: Array
    value: Array


def tree_search(
    model: GameModel, roots: Array, evaluate: Evaluate, *, simulations: int, c_puct: float, prior: Array | None = None
) -> Searched:
    """Search from each of the states `roots [N, ...]` alone; every simulation evaluates one state of each tree at once.

    A simulation follows the moves of the largest Q(s, a) + U(s, a), up to a move that was never made or that ends the
    game:

        U(s, a) = c_puct · P(s, a) · √(1 + Σ_b N(s, b)) / (1 + N(s, a))

    Q is the mean of what simulations through the move found for the agent who makes it, 0 before the first. The value
    of the state that is reached, or what the game gives at its end, then counts for all moves on the way: for one
    agent as it is, for the other with the opposite sign.

    Args:
        evaluate: Called with N states each time, of which those at the end of a game do not count.
        simulations: That of each root.
        prior: `[N, A]`, that of the roots, in place of what `evaluate` says; None: that.

    Returns: Visits sum to the simulations, or are all 0 where no move is legal (K2). A row depends on its own root
        alone, as far as `evaluate` does (K1).

    Source: Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go through
    self-play", Methods, "Search"; Rosin 2011, "Multi-armed bandits with episode context", for the bound.
    """
    trees, nodes, actions = len(roots), simulations + 1, model.actions
    every = np.arange(trees)
    # A tree's node k is row k * trees + tree, so that each simulation fills the next rows.
    states = np.empty((nodes * trees, *roots.shape[1:]), roots.dtype)
    priors = np.empty((nodes * trees, actions))
    value = np.empty((nodes * trees, actions))  # Q, or -inf where a move is illegal
    total, visits = np.zeros((nodes * trees, actions)), np.zeros((nodes * trees, actions))
    child = np.full(nodes * trees * actions, -1)
    totals, values, counts = total.reshape(-1), value.reshape(-1), visits.reshape(-1)

    def add(rows: slice, found: Array, prior: Array) -> None:
        states[rows], priors[rows] = found, prior
        value[rows] = np.where(model.legal(found), 0.0, -np.inf)

    add(slice(trees), roots, evaluate(roots)[0] if prior is None else prior)
    for new in range(trees, nodes * trees, trees):
        rows = slice(new, new + trees)
        walking, node = every, every
        last, depth = np.empty(trees, np.int64), np.zeros(trees, np.int64)
        path = []
        while len(walking):
            tried = visits.take(node, 0)
            bonus = priors.take(node, 0) * (c_puct * np.sqrt(1.0 + tried.sum(1, keepdims=True))) / (1.0 + tried)
            edge = node * actions + (value.take(node, 0) + bonus).argmax(1)
            path.append((walking, edge))
            last[walking], depth[walking] = edge, len(path)
            node = child.take(edge)
            on = node >= 0
            walking, node = walking[on], node[on]
        found, gain, over = model.play(states.take(last // actions, 0), last % actions)
        prior_there, value_there = evaluate(found)
        add(rows, found, prior_there)
        child[last] = np.where(over, -1, every + new)
        # What each simulation is worth to who made its last move, then with a sign for each move on the way.
        worth = np.where(over, gain, -value_there)
        moves = np.concatenate([edges for _, edges in path])
        whose = np.concatenate([whose_edges for whose_edges, _ in path])
        at = np.repeat(np.arange(1, len(path) + 1), [len(edges) for _, edges in path])
        totals[moves] += np.where((depth[whose] - at) % 2, -worth[whose], worth[whose])
        counts[moves] += 1
        values[moves] = totals[moves] / counts[moves]
    of_root = np.where(model.legal(roots), visits[:trees], 0.0)
    return Searched(of_root.astype(np.int64), total[:trees].sum(1) / simulations)

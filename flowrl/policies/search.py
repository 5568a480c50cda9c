"""Monte-Carlo tree search over actions, in many states at once: with the rules of a game, or with a learned model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flowrl.envs.games.model import GameModel
from flowrl.networks.masks import masked
from flowrl.networks.sampling import Array

Evaluate = Callable[[Array], tuple[Array, Array]]
"""What a network thinks of states `[N, ...]`: the prior of each move `[N, A]`, and the value for who moves `[N]`."""

Choose = Callable[[Array, Array], Array]
"""The actions `[W]` that a simulation takes in these rows of a `Forest`, of these trees."""


class Forest:
    """Search trees side by side, one for each root: node k of a tree is row `k * trees + tree` of the arrays.

    So each simulation fills the next rows. `visits` and `value`, the mean of what simulations through an action came
    to, are those of the actions of each row.
    """

    def __init__(self, trees: int, actions: int, simulations: int) -> None:
        self.trees, self.actions, self.rows = trees, actions, (simulations + 1) * trees
        self.visits, self.total, self.value = (np.zeros((self.rows, actions)) for _ in range(3))
        self.reward = np.zeros(self.rows * actions)  # by edge, that is row * actions + action
        self._child = np.full(self.rows * actions, -1)
        self._every = np.arange(trees)

    def walk(self, choose: Choose) -> list[tuple[Array, Array]]:
        """Follow the actions that `choose` takes from the roots, up to those that lead nowhere yet.

        Returns: By depth, the trees that are still on their way, and the edges that they take.
        """
        walking, row = self._every, self._every
        path = []
        while len(walking):
            edge = row * self.actions + choose(row, walking)
            path.append((walking, edge))
            row = self._child.take(edge)
            on = row >= 0
            walking, row = walking[on], row[on]
        return path

    def last(self, path: list[tuple[Array, Array]]) -> Array:
        """The last edge of each tree's path `[trees]`."""
        last = np.empty(self.trees, np.int64)
        for walking, edge in path:
            last[walking] = edge
        return last

    def grow(self, first: int, edge: Array, reward: Array, over: Array | None = None) -> None:
        """Let these edges lead to the rows from `first` on, except where all is over."""
        self.reward[edge] = reward
        child = self._every + first
        self._child[edge] = child if over is None else np.where(over, -1, child)

    def back_up(self, path: list[tuple[Array, Array]], found: Array, discount: float) -> None:
        """Count what each tree `found` at the end of its path for all edges on the way: G = r + discount · G."""
        gained, gains = found.astype(np.float64), []
        for walking, edges in reversed(path):
            gain = self.reward.take(edges) + discount * gained.take(walking)
            gained[walking] = gain
            gains.append(gain)
        edge, gain = np.concatenate([edges for _, edges in reversed(path)]), np.concatenate(gains)
        total, visits, value = (each.reshape(-1) for each in (self.total, self.visits, self.value))
        total[edge] = summed = total.take(edge) + gain  # a tree takes an edge once
        visits[edge] = count = visits.take(edge) + 1
        value[edge] = summed / count


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
    trees, actions = len(roots), model.actions
    forest = Forest(trees, actions, simulations)
    states = np.empty((forest.rows, *roots.shape[1:]), roots.dtype)
    priors = np.empty((forest.rows, actions))

    def add(first: int, found: Array, prior: Array) -> None:
        rows = slice(first, first + trees)
        states[rows], priors[rows] = found, prior
        forest.value[rows] = np.where(model.legal(found), 0.0, -np.inf)

    def choose(row: Array, walking: Array) -> Array:
        tried = forest.visits.take(row, 0)
        bonus = priors.take(row, 0) * (c_puct * np.sqrt(1.0 + tried.sum(1, keepdims=True))) / (1.0 + tried)
        best: Array = (forest.value.take(row, 0) + bonus).argmax(1)
        return best

    add(0, roots, evaluate(roots)[0] if prior is None else prior)
    for new in range(trees, forest.rows, trees):
        path = forest.walk(choose)
        last = forest.last(path)
        found, gain, over = model.play(states.take(last // actions, 0), last % actions)
        prior_there, value_there = evaluate(found)
        add(new, found, prior_there)
        forest.grow(new, last, np.where(over, gain, 0.0), over)
        forest.back_up(path, np.where(over, 0.0, value_there), discount=-1.0)
    visits = np.where(model.legal(roots), forest.visits[:trees], 0.0)
    return Searched(visits.astype(np.int64), forest.total[:trees].sum(1) / simulations)


class ModelStep(NamedTuple):
    """States in a learned model `[N, ...]`, and what it thinks of them: the reward on the way there, logits, value."""

    latent: Array
    reward: Array
    logits: Array
    value: Array


Imagine = Callable[[Array, Array], ModelStep]
"""The states that follow latent states `[N, L]` after actions `[N]`, in a learned model."""


class Planned(NamedTuple):
    """What `gumbel_search` found at its roots: the action to take, an improved policy, its value, and visits."""

    action: Array  #: `[N]`
    policy: Array  #: `[N, A]`, of probabilities
    value: Array  #: `[N]`
    visits: Array  #: `[N, A]`


def gumbel_search(
    root: ModelStep,
    imagine: Imagine,
    *,
    simulations: int,
    discount: float,
    considered: int = 16,
    gumbel: Array | None = None,
    legal: Array | None = None,
    visit_offset: float = 50.0,
    q_scale: float = 0.1,
    extent: float | None = None,
) -> Planned:
    """Search in a learned model from each root alone; every simulation imagines one state of each tree at once.

    At the root, the `considered` actions of the largest g(a) + logit(a) are sampled without replacement, g being Gumbel
    noise; sequential halving then spends the simulations on ever fewer of them, those of the largest

        g(a) + logit(a) + σ(q(a))    with    σ(q) = (visit_offset + max_b N(b)) · q_scale · q

    The best of those with the most visits is the action. Below the root, a simulation takes the action of the largest
    π'(a) − N(a) / (1 + Σ_b N(b)), where π' = softmax(logit + σ(q)) is the improved policy there. In σ, q is scaled to
    0 .. 1, among the actions of a state or with `extent` from −extent .. extent; of an action without visits it is a
    mix of the network's value v and of the actions that have some:

        v_mix = (v + Σ_b N(b) · Σ_b∈visited p(b) q(b) / Σ_b∈visited p(b)) / (1 + Σ_b N(b))

    Args:
        discount: Of the value after a step; −1 where the agents of a game for two take turns and values are those of
            who moves.
        gumbel: `[N, A]`; None: no noise, so that the action is the best one found.
        legal: bool `[N, A]`, of the roots; None: all actions. In imagined states all are tried.
        extent: The largest |q| that there can be. With it actions that are about equally good stay about equally
            likely; without it the best action of a state always has the same lead over the worst.

    Returns: `policy` is π' of the root, which is 0 where an action is not legal, and `value` = Σ_a π'(a) q(a). Visits
        sum to the simulations, of legal actions alone (K2). A row depends on its own root alone, as far as `imagine`
        does (K1).

    Source: Danihelka et al. 2022, "Policy improvement by planning with Gumbel", sections 2 to 5, appendix D. There q is
    scaled by the extremes of the whole tree; scaled in each state, as in DeepMind's mctx, a small difference between
    good actions counts although the tree has bad ones.
    """
    trees, actions = root.logits.shape
    forest = Forest(trees, actions, simulations)
    latent = np.empty((forest.rows, *root.latent.shape[1:]), root.latent.dtype)
    logits, value = np.empty((forest.rows, actions)), np.empty(forest.rows)

    def add(first: int, found: ModelStep) -> None:
        rows = slice(first, first + trees)
        latent[rows], logits[rows], value[rows] = found.latent, found.logits, found.value

    def improved(row: Array) -> tuple[Array, Array, Array, Array]:
        """Of these rows: visits, completed q, σ of it, and the improved policy."""
        visits, own = forest.visits.take(row, 0), logits.take(row, 0)
        tried, total = visits > 0, visits.sum(1, keepdims=True)
        prior = softmax(own) * tried
        mean = (prior * forest.value.take(row, 0)).sum(1, keepdims=True) / np.maximum(prior.sum(1, keepdims=True), TINY)
        mixed = (value.take(row)[:, None] + total * mean) / (1.0 + total)
        q = np.where(tried, forest.value.take(row, 0), mixed)
        low, high = (q.min(1, keepdims=True), q.max(1, keepdims=True)) if extent is None else (-extent, extent)
        scaled = (q - low) / np.maximum(high - low, EQUAL)
        sigma = (visit_offset + visits.max(1, keepdims=True)) * q_scale * scaled
        return visits, q, sigma, softmax(own + sigma)

    def choose(row: Array, tree: Array) -> Array:
        visits, _, sigma, policy = improved(row)
        if row[0] < trees:  # all are at their roots
            score = np.where((visits == turn) & allowed, noisy + sigma, -np.inf)
        else:
            score = policy - visits / (1.0 + visits.sum(1, keepdims=True))
        best: Array = score.argmax(1)
        return best

    allowed = np.ones((trees, actions), bool) if legal is None else legal
    add(0, root._replace(logits=masked(root.logits, legal)))
    noisy = logits[:trees] if gumbel is None else logits[:trees] + gumbel
    counts = np.minimum(allowed.sum(1), considered).tolist()
    turns = np.array([halving(count, simulations) for count in counts])
    for number, new in enumerate(range(trees, forest.rows, trees)):
        turn = turns[:, [number]]
        path = forest.walk(choose)
        last = forest.last(path)
        found = imagine(latent.take(last // actions, 0), last % actions)
        add(new, found)
        forest.grow(new, last, found.reward)
        forest.back_up(path, found.value, discount)
    visits, q, sigma, policy = improved(np.arange(trees))
    finalist = (visits == visits.max(1, keepdims=True)) & allowed
    action = np.where(finalist, noisy + sigma, -np.inf).argmax(1)
    return Planned(action, policy, (policy * q).sum(1), np.where(allowed, visits, 0.0).astype(np.int64))


#: Keeps sums of probabilities that are 0 from being divided by.
TINY = 1e-30
#: Values that differ by less do so by rounding, which is not to be blown up to the whole scale; as in mctx.
EQUAL = 1e-8


def softmax(scores: Array) -> Array:
    """Probabilities `[N, A]`."""
    likely = np.exp(scores - scores.max(1, keepdims=True))
    shares: Array = likely / likely.sum(1, keepdims=True)
    return shares


@functools.cache
def halving(considered: int, simulations: int) -> tuple[int, ...]:
    """Sequential halving: how many visits the action has that each simulation tries.

    With equally many simulations in each round, all `considered` actions take turns in the first round, then the better
    half of them, down to two.

    Source: Karnin et al. 2013, "Almost optimal exploration in multi-armed bandits"; Danihelka et al. 2022, figure 1.

    >>> halving(4, 8)
    (0, 0, 0, 0, 1, 1, 2, 2)
    """
    if considered <= 1:
        return tuple(range(simulations))
    rounds, left = int(np.ceil(np.log2(considered))), considered
    turns: list[int] = []
    visits = 0
    while len(turns) < simulations:
        for _ in range(max(1, simulations // (rounds * left))):
            turns += [visits] * left
            visits += 1
        left = max(2, left // 2)
    return tuple(turns[:simulations])

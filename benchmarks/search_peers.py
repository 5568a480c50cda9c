"""LightZero's search trees in a learned model, behind the one call that benchmarks/search.py times.

    pip install --no-deps LightZero==0.2.0

LightZero as a whole wants numpy below 2 and an older gymnasium than flowrl; its trees do not, so they are loaded
without the rest. The loop around them is that of its `tree_search`: states in a list, one call of the model for a
simulation in each tree, lists of numbers for the trees.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flowrl.policies.search import Imagine, ModelStep

Search = Callable[[ModelStep, Imagine, int], Any]
"""Makes so many simulations from roots, and returns their visits `[N, A]`."""

DISCOUNT = 0.99
#: What LightZero's searches have for it by default.
C_BASE, C_INIT, DELTA = 19652, 1.25, 0.01
#: As many actions of a root as flowrl's Gumbel search considers: here all of them.
CONSIDERED = 16


def trees(name: str) -> Any:
    """A module of `lzero.mcts`, without that package's own import, which wants DI-engine."""
    found = find_spec("lzero")
    if found is None or found.origin is None:
        raise ImportError("LightZero is not installed")
    bare = sys.modules.setdefault("lzero.mcts", ModuleType("lzero.mcts"))
    bare.__path__ = [str(Path(found.origin).parent / "mcts")]
    return import_module(f"lzero.mcts.{name}")


def search(
    roots: Any,
    walk: Callable[..., Any],
    results: Any,
    back_up: Any,
    bounds: Any,
    root: ModelStep,
    imagine: Imagine,
    n: int,
) -> Any:
    """Make n simulations: `walk` to a leaf of each tree, imagine what follows, and `back_up`."""
    count, pool = len(root.value), [root.latent]
    for index in range(1, n + 1):
        met = results(num=count)
        depth, tree, action, player = walk(met, [-1] * count)
        found = imagine(np.asarray([pool[d][t] for d, t in zip(depth, tree, strict=True)]), np.asarray(action))
        pool.append(found.latent)
        told = (each.tolist() for each in (found.reward, found.value, found.logits))
        back_up(index, DISCOUNT, *told, bounds, met, player)
    return roots.get_distributions()


def planted(tree: Any, root: ModelStep, *told: Any) -> Any:
    """Roots where all actions are legal, without noise."""
    count, actions = root.logits.shape
    roots = tree.Roots(count, [list(range(actions))] * count)
    roots.prepare_no_noise(*(each.tolist() for each in told), [-1] * count)
    return roots


def bounded(tree: Any, root: ModelStep) -> Any:
    """What a tree in C++ knows of the smallest and the largest values."""
    bounds = tree.MinMaxStatsList(len(root.value))
    bounds.set_delta(DELTA)
    return bounds


def puct(python: bool) -> Search:
    """MuZero's search, with the tree in Python or in C++."""
    tree = trees("ptree.ptree_mz" if python else "ctree.ctree_muzero.mz_tree")
    results = tree.SearchResults if python else tree.ResultsWrapper

    def searched(root: ModelStep, imagine: Imagine, simulations: int) -> Any:
        bounds = trees("ptree.minimax").MinMaxStatsList(len(root.value)) if python else bounded(tree, root)
        roots = planted(tree, root, root.reward, root.logits)
        walk = partial(tree.batch_traverse, roots, C_BASE, C_INIT, DISCOUNT, bounds)
        return search(roots, walk, results, tree.batch_backpropagate, bounds, root, imagine, simulations)

    return searched


def gumbel() -> Search:
    """Gumbel MuZero's search, with the tree in C++; there is none in Python."""
    tree = trees("ctree.ctree_gumbel_muzero.gmz_tree")

    def searched(root: ModelStep, imagine: Imagine, simulations: int) -> Any:
        bounds = bounded(tree, root)
        roots = planted(tree, root, root.reward, root.value, root.logits)
        walk = partial(tree.batch_traverse, roots, simulations, CONSIDERED, DISCOUNT)
        return search(roots, walk, tree.ResultsWrapper, tree.batch_back_propagate, bounds, root, imagine, simulations)

    return searched


PEERS: dict[str, Callable[[], Search]] = {
    "Gumbel, LightZero's C++": gumbel,
    "PUCT, LightZero's C++": partial(puct, python=False),
    "PUCT, LightZero's Python": partial(puct, python=True),
}

"""Gumbel search of one state in a learned model by recursion: what the search of many at once must find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

OFFSET, SCALE = 50.0, 0.1


class Node:
    """A state, with the statistics of its actions."""

    def __init__(self, found: Any) -> None:
        self.latent, self.reward = found.latent, float(found.reward[0]) if len(found.reward) else 0.0
        self.logits, self.value = found.logits[0].astype(float), float(found.value[0])
        self.visits, self.total = [0] * len(self.logits), [0.0] * len(self.logits)
        self.children: dict[int, Node] = {}


def search(
    root: Any,
    imagine: Callable[..., Any],
    simulations: int,
    discount: float,
    considered: int,
    gumbel: Any,
    legal: list[int],
    extent: float | None,
) -> tuple[int, Any, float, list[int]]:
    """Action, improved policy, value and visits: see `gumbel_search`."""
    top = Node(root)
    top.logits[[action for action in range(len(top.logits)) if action not in legal]] = -1e30

    def q(node: Node) -> list[float]:
        prior = np.exp(node.logits - node.logits.max())
        prior /= prior.sum()
        mean = [total / visits if visits else 0.0 for total, visits in zip(node.total, node.visits)]
        if not sum(node.visits):
            return [node.value] * len(mean)
        tried = [action for action, visits in enumerate(node.visits) if visits]
        known = sum(prior[action] * mean[action] for action in tried) / sum(prior[action] for action in tried)
        mixed = (node.value + sum(node.visits) * known) / (1 + sum(node.visits))
        return [mean[action] if action in tried else mixed for action in range(len(mean))]

    def sigma(node: Node) -> list[float]:
        found = q(node)
        low, high = (min(found), max(found)) if extent is None else (-extent, extent)
        scaled = [(each - low) / (high - low) if high > low else 0.0 for each in found]
        return [(OFFSET + max(node.visits)) * SCALE * each for each in scaled]

    def improved(node: Node) -> Any:
        scores = node.logits + sigma(node)
        likely = np.exp(scores - scores.max())
        return likely / likely.sum()

    def simulate(node: Node, action: int) -> float:
        if action in node.children:
            child = node.children[action]
            policy, tried = improved(child), sum(child.visits)
            scores = [policy[each] - visits / (1 + tried) for each, visits in enumerate(child.visits)]
            worth = simulate(child, int(np.argmax(scores)))
        else:
            node.children[action] = child = Node(imagine(node.latent, np.array([action])))
            worth = child.value
        gain = child.reward + discount * worth
        node.total[action] += gain
        node.visits[action] += 1
        return gain

    def best(among: list[int]) -> list[int]:
        scores = top.logits + gumbel + sigma(top)
        return sorted(among, key=lambda action: -scores[action])

    candidates, size, spent = list(legal), min(considered, len(legal)), 0
    rounds = max(1, math.ceil(math.log2(size)))
    while spent < simulations:
        for _ in range(max(1, simulations // (rounds * size)) if size > 1 else simulations):
            waiting, candidates = candidates, []
            while len(candidates) < size and spent < simulations:  # the best so far, as each simulation says it
                candidates.append(best(waiting)[0])
                waiting.remove(candidates[-1])
                simulate(top, candidates[-1])
                spent += 1
        size = max(2, size // 2)
    most = [action for action in legal if top.visits[action] == max(top.visits)]
    policy = improved(top)
    return best(most)[0], policy, float(policy @ q(top)), top.visits

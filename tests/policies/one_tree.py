"""Monte-Carlo tree search of one position by recursion: what the search of many at once must find."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowrl.envs.games.model import GameModel
from flowrl.policies.search import Evaluate


class Node:
    """A state, with the statistics of its moves."""

    def __init__(self, model: GameModel, state: Any, evaluate: Evaluate) -> None:
        self.state = state
        (self.prior,), (self.value,) = evaluate(state[None])
        self.legal = np.flatnonzero(model.legal(state[None])[0]).tolist()
        self.visits, self.total = [0] * model.actions, [0.0] * model.actions
        self.children: dict[int, Node] = {}


def search(model: GameModel, state: Any, evaluate: Evaluate, simulations: int, c_puct: float) -> Node:
    """The root of a search, see `tree_search`."""

    def simulate(node: Node) -> float:
        """One more simulation from a node; returns what it is worth to who moves there."""
        explore = c_puct * math.sqrt(1 + sum(node.visits))

        def score(move: int) -> float:
            tried = node.visits[move]
            found = node.total[move] / tried if tried else 0.0
            return found + float(node.prior[move]) * explore / (1 + tried)

        move = max(node.legal, key=score)
        if move in node.children:
            worth = -simulate(node.children[move])
        else:
            (state,), (gain,), (over,) = model.play(node.state[None], np.array([move]))
            if over:
                worth = float(gain)
            else:
                node.children[move] = child = Node(model, state, evaluate)
                worth = -float(child.value)
        node.visits[move] += 1
        node.total[move] += worth
        return worth

    root = Node(model, state, evaluate)
    for _ in range(simulations):
        simulate(root)
    return root

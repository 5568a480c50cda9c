"""Match-making: who plays against whom in a league, drawn for each match when it begins (L2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from flowrl.engine.seeds import SeedTree
from flowrl.rollout.policy_map import Match

Rates = npt.NDArray[np.float64]

Weighting = Callable[[Rates], Rates]
"""From the shares of games `[members]` that a learner wins against members, the oldest first, to their weights."""


def uniform(win_rates: Rates) -> Rates:
    """Every member is as likely: fictitious self-play (Heinrich et al. 2015)."""
    return np.ones_like(win_rates)


def latest(win_rates: Rates) -> Rates:
    """The newest member."""
    newest: Rates = (np.arange(len(win_rates)) == len(win_rates) - 1).astype(np.float64)
    return newest


def pfsp_squared(win_rates: Rates) -> Rates:
    """Prioritized fictitious self-play, f(p) = (1 - p)^2: the harder a member is to beat, the likelier it is.

    Source: Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning", methods.
    """
    weights: Rates = (1.0 - win_rates) ** 2
    return weights


def pfsp_variance(win_rates: Rates) -> Rates:
    """Prioritized fictitious self-play, f(p) = p (1 - p): the closer a member is in strength, the likelier it is.

    Source: see `pfsp_squared`.
    """
    return win_rates * (1.0 - win_rates)


def pfsp_linear_capped(win_rates: Rates) -> Rates:
    """Prioritized fictitious self-play, f(p) = min(1/2, 1 - p): all members that are not beaten yet, as likely.

    Source: see `pfsp_squared`; the pseudocode of its supplement, for league exploiters.
    """
    return np.minimum(0.5, 1.0 - win_rates)


def pfsp_forgotten(win_rates: Rates) -> Rates:
    """`pfsp_squared` of the members that a learner has forgotten how to beat; 0 of the others.

    Newer members are harder to beat, so that win rates fall from member to member. Where they rise instead, an older
    one has become harder than a newer: members up to the last such rise count.

    Source: see `pfsp_linear_capped`, for main agents.
    """
    rises = np.flatnonzero(win_rates[1:] > win_rates[:-1])
    weights = pfsp_squared(win_rates)
    weights[rises[-1] + 2 if len(rises) else 0 :] = 0.0
    return weights


#: The weightings that a plan of one learner may have, by name.
MATCH_MAKING: dict[str, Weighting] = {each.__name__: each for each in (uniform, latest, pfsp_squared, pfsp_variance)}


def probabilities(weighting: Weighting, win_rates: Rates) -> Rates:
    """The probabilities of members; equal ones where none has any weight, as of a learner that beats them all.

    >>> probabilities(pfsp_squared, np.array([1.0, 0.5, 0.0])).tolist(), probabilities(uniform, np.ones(2)).tolist()
    ([0.0, 0.2, 0.8], [0.5, 0.5])
    """
    weights = weighting(win_rates)
    total = weights.sum()
    return np.full(len(weights), 1.0 / len(weights)) if total <= 0 else weights / total


class Rival(NamedTuple):
    """Who a learner may meet: the policy that plays, the name of the player, and how likely it is."""

    policy: str
    player: str
    probability: float


@attrs.define(eq=False)
class MatchMaker:
    """Draws the players of each match of a game for two, where it begins: a part of `flowrl.rollout.policy_map.Agents`.

    Every match is one of a learner, each as likely, which alone learns from it. It plays either agent, as likely,
    against an opponent by `odds`.
    The draw follows from the seed and the match alone, and from the odds at its beginning, so that it does not depend
    on how many processes play (D2).

    Args:
        agents: The two agents of the game.
        odds: The opponents of each learner.
        seed: Seed of all draws.

    Attributes:
        version: Changes with the odds, which travel to other processes as weights of a policy do.
    """

    agents: tuple[str, ...] = ()
    odds: Mapping[str, Sequence[Rival]] = attrs.field(factory=dict)
    seed: int = 0
    version: int = 0

    def __call__(self, agent: str, match: Match) -> str:
        """The policy that plays an agent."""
        return self.drawn(match)[self.agents.index(agent)].policy

    def drawn(self, match: Match) -> tuple[Rival, Rival]:
        """The players of both agents."""
        which, side, who = self._numbers(match)
        learner = self._learner(which)
        opponents = self.odds[learner]
        ends = np.cumsum([each.probability for each in opponents])
        at = min(int(np.searchsorted(ends, who * ends[-1], side="right")), len(opponents) - 1)
        sides = Rival(learner, learner, 1.0), opponents[at]
        return sides if side < 0.5 else sides[::-1]

    def learner(self, match: Match) -> str:
        """The learner whose match it is."""
        return self._learner(self._numbers(match)[0]) if len(self.odds) > 1 else next(iter(self.odds))

    def _numbers(self, match: Match) -> Rates:
        sequence = SeedTree(self.seed).sequence(f"match/{match.group}/{match.env_id}/{match.episode_id}")
        return np.random.Generator(np.random.PCG64(sequence)).random(3)

    def _learner(self, number: float) -> str:
        return list(self.odds)[int(number * len(self.odds))]

    def use(self, odds: Mapping[str, Sequence[Rival]]) -> None:
        """Draw by other odds from now on."""
        if odds != self.odds:
            self.odds, self.version = odds, self.version + 1

    def weights(self) -> dict[str, Any]:
        """What other processes need."""
        return {"odds": self.odds}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Use those of another process."""
        self.odds = weights["odds"]

"""Evaluating a policy: whole episodes in its eval mode, in environments of their own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from flowrl.envs import Episode, make_manager
from flowrl.policies import Policy
from flowrl.rollout.acting import Actor
from flowrl.rollout.noise import split_seed
from flowrl.rollout.worker import shares_of

log = logging.getLogger("flowrl")

#: Steps after which an episode that is evaluated is taken to be one that never ends.
ENDLESS = 10_000


def evaluate(
    policy: Policy,
    env: Any,
    *,
    episodes: int,
    seed: int,
    num_envs: int = 8,
    env_args: dict[str, Any] | None = None,
    limit: int = ENDLESS,
) -> list[Episode]:
    """Play `episodes` whole episodes and return them.

    Every environment plays a fixed share of them, which differ by at most one (S2). The environments and the
    noise follow from `seed` alone, so evaluating changes nothing in training (S3), and two policies that are
    evaluated with one seed meet the same starts.

    An episode that has not ended after `limit` steps is cut, with a warning: a policy that never acts at random may
    go in circles for ever. It counts with the return so far and says `cut`; its environment, which cannot begin
    another one, plays no more, so there are fewer episodes then.
    """
    with make_manager(env, min(num_envs, episodes), env_args) as manager:
        env_seed, noise_seed = split_seed(seed)
        manager.launch(env_seed)
        actor = Actor(manager, policy.eval_mode, noise_seed)
        missing = shares_of(episodes, manager.num_envs)
        played: list[Episode] = []
        lengths, returns = np.zeros(manager.num_envs, np.int64), np.zeros(manager.num_envs)
        while missing.any():
            _, step = actor.step()
            lengths += 1 if step.acted is None else step.acted
            returns += step.reward
            for episode in manager.drain():
                if missing[episode.env_id]:
                    missing[episode.env_id] -= 1
                    played.append(episode)
                lengths[episode.env_id], returns[episode.env_id] = 0, 0.0
            for i in np.flatnonzero((lengths >= limit) & (missing > 0)).tolist():
                played.append(Episode(i, int(manager.episode_id[i]), float(returns[i]), int(lengths[i]), cut=True))
                missing[i] = 0
    if cut := sum(episode.cut for episode in played):
        log.warning(
            "evaluating %s: %d of %d episodes had not ended after %d steps and were cut; give it a time limit",
            *(env, cut, len(played), limit),
        )
    return played


@attrs.frozen
class Scores:
    """What some episodes say of the policy that played them.

    `reward_per_step` is all reward over all steps, so long episodes count for more. `win_rate` is the share of
    successes among the episodes that say whether they were one, None if none does; `judged` is how many do.
    `cut` is how many never ended (see `evaluate`); they count with what they had so far.
    Standard deviations are those of the episodes played (divided by n).
    """

    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    length_std: float
    reward_per_step: float
    win_rate: float | None
    judged: int
    cut: int = 0


def scores(episodes: Sequence[Episode]) -> Scores:
    """The three kinds of score: total return, mean reward per step, win rate (S5), all of raw rewards (S1).

    Raises:
        ValueError: no episodes.

    >>> found = scores([Episode(0, 0, 6.0, 2, True), Episode(0, 1, 2.0, 6, False), Episode(0, 2, 1.0, 1)])
    >>> found.return_mean, found.reward_per_step, found.win_rate, found.judged
    (3.0, 1.0, 0.5, 2)
    """
    if not episodes:
        raise ValueError("there is no score of no episodes")
    returns = np.array([episode.return_ for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    judged = [episode.success for episode in episodes if episode.success is not None]
    return Scores(
        episodes=len(episodes),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        return_min=float(returns.min()),
        return_max=float(returns.max()),
        length_mean=float(lengths.mean()),
        length_std=float(lengths.std()),
        reward_per_step=float(returns.sum() / lengths.sum()),
        win_rate=float(np.mean(judged)) if judged else None,
        judged=len(judged),
        cut=sum(episode.cut for episode in episodes),
    )

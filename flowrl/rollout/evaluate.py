"""Evaluating a policy: whole episodes in its eval mode, in environments of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.envs import Episode, make_manager
from flowrl.errors import FlowError
from flowrl.policies import Policy
from flowrl.rollout.noise import NoiseStreams, split_seed
from flowrl.rollout.worker import shares_of

#: Steps after which an episode that is evaluated is taken to be one that never ends.
ENDLESS = 200_000


def evaluate(
    policy: Policy, env: Any, *, episodes: int, seed: int, num_envs: int = 8, env_args: dict[str, Any] | None = None
) -> list[Episode]:
    """Play `episodes` whole episodes and return them.

    Every environment plays a fixed share of them, which differ by at most one (S2). The environments and the
    noise follow from `seed` alone, so evaluating changes nothing in training (S3), and two policies that are
    evaluated with one seed meet the same starts.

    Raises:
        FlowError: an episode that never ends.
    """
    with make_manager(env, min(num_envs, episodes), env_args) as manager:
        env_seed, noise_seed = split_seed(seed)
        manager.launch(env_seed)
        noise = NoiseStreams(noise_seed, manager.num_envs, policy.eval_mode.draws)
        missing = shares_of(episodes, manager.num_envs)
        played: list[Episode] = []
        while missing.any():
            columns = policy.eval_mode.act(manager.obs, noise.next(), 0)
            manager.step(columns.get("env_action", columns["action"]))
            if manager.t.max() > ENDLESS:
                raise FlowError(f"an episode of {env} has not ended after {ENDLESS} steps; give it a time limit")
            for episode in manager.drain():
                if missing[episode.env_id]:
                    missing[episode.env_id] -= 1
                    played.append(episode)
    return played


def mean_return(episodes: Sequence[Episode]) -> float:
    """The mean of the episodes' raw returns (S1)."""
    return float(np.mean([episode.return_ for episode in episodes]))

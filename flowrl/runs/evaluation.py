"""`flowrl evaluate`: what the saved policy of a run scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from flowrl.rollout import Scores
from flowrl.seeds import SeedTree
from flowrl.trained import load


@attrs.frozen
class Evaluation:
    """The scores of one saved policy and what it played."""

    run: Path
    policy: str
    env: str
    env_args: dict[str, Any]
    seed: int
    scores: Scores

    def values(self) -> dict[str, Any]:
        """All of it, flat, as plain values."""
        about = attrs.asdict(self, filter=attrs.filters.exclude("scores"))
        return {**about, "run": str(self.run), **attrs.asdict(self.scores)}

    def lines(self) -> list[str]:
        """For people."""
        found = self.scores
        wins = "unknown: no episode ended with is_success in its info"
        if found.win_rate is not None:
            some = f" of the {found.judged} episodes that say" if found.judged < found.episodes else ""
            wins = f"{100 * found.win_rate:.1f} %{some}"
        cut = f", {found.cut} of them cut: they did not end" if found.cut else ""
        return [
            f"{self.run / self.policy} on {self.env}: {found.episodes} episodes{cut}, seed {self.seed}",
            f"  return           {found.return_mean:,.2f} ± {found.return_std:,.2f}"
            f"  (min {found.return_min:,.2f}, max {found.return_max:,.2f})",
            f"  steps            {found.length_mean:,.2f} ± {found.length_std:,.2f}",
            f"  reward per step  {found.reward_per_step:,.4f}",
            f"  win rate         {wins}",
        ]


def evaluate_run(
    run: Path,
    *,
    episodes: int = 100,
    seed: int = 0,
    last: bool = False,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Play whole episodes with the saved policy of a run, in its eval mode.

    The starts follow from `seed`, and are others than those of any training or evaluation within a run (S3);
    policies that are evaluated with one seed meet the same starts.

    Args:
        run, last, env, env_args: See `flowrl.load`.
        episodes: Played in all, an equal share in each environment (S2).
        seed: Of environments and action noise.

    Raises:
        ConfigError, CheckpointError: see `flowrl.load`.
    """
    trained = load(run, last=last, env=env, env_args=env_args)
    found = trained.play(episodes, SeedTree(seed).integer("evaluation/command"))
    policy = "policy_last.pt" if last else "policy.pt"
    return Evaluation(run, policy, trained.config.env, trained.config.env_args, seed, found)

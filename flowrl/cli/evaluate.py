"""`flowrl evaluate`: the scores of saved policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from flowrl.cli.curves import RunRecord, find_runs, grouped, is_run
from flowrl.cli.seeds import middle, middle_text
from flowrl.engine.seeds import SeedTree
from flowrl.errors import CheckpointError, ConfigError
from flowrl.rollout import Scores
from flowrl.trainer.loading import load
from flowrl.trainer.trust import Trust


@attrs.frozen
class Evaluation:
    """The scores of one saved policy, with its environment and seed."""

    left_out: ClassVar[Sequence[str]] = ()
    run: Path
    policy: str
    env: str
    env_args: dict[str, Any]
    seed: int
    scores: Scores
    #: In a game, those of each agent.
    agents: Mapping[str, Scores] = attrs.field(factory=dict)

    def values(self) -> dict[str, Any]:
        """A flat dict of plain values."""
        about = attrs.asdict(self, filter=attrs.filters.exclude("scores", "agents"))
        of_agents = {"agents": {name: attrs.asdict(of) for name, of in self.agents.items()}} if self.agents else {}
        return {**about, "run": str(self.run), **attrs.asdict(self.scores), **of_agents}

    def lines(self) -> list[str]:
        """The report, line by line."""
        scores = self.scores
        wins = "unknown: no episode ended with is_success in its info"
        if scores.win_rate is not None:
            some = f" of the {scores.judged} episodes that say" if scores.judged < scores.episodes else ""
            wins = f"{100 * scores.win_rate:.1f} %{some}"
        cut = f", {scores.cut} of them cut: they did not end" if scores.cut else ""
        return [
            f"{self.run / self.policy} on {self.env}: {scores.episodes} episodes{cut}, seed {self.seed}",
            f"  return           {scores.return_mean:,.2f} ± {scores.return_std:,.2f}"
            f"  (min {scores.return_min:,.2f}, max {scores.return_max:,.2f})",
            f"  steps            {scores.length_mean:,.2f} ± {scores.length_std:,.2f}",
            f"  reward per step  {scores.reward_per_step:,.4f}",
            f"  win rate         {wins}",
            *(
                f"  {name:<16} return {of.return_mean:,.2f} ± {of.return_std:,.2f}"
                + ("" if of.win_rate is None else f", win rate {100 * of.win_rate:.1f} %")
                for name, of in self.agents.items()
            ),
        ]


def evaluate_run(
    run: Path,
    *,
    episodes: int = 100,
    seed: int = 0,
    last: bool = False,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    max_steps: int | None = None,
    video: Path | None = None,
    trusted: Trust = False,
) -> Evaluation:
    """Play whole episodes with the saved policy of a run, in its eval mode.

    The starts follow from `seed`, and differ from those of any training or evaluation within a run (S3); policies
    evaluated with the same seed meet the same starts.

    Args:
        run, last, env, env_args, trusted: See `flowrl.load`.
        episodes: Number of episodes, an equal share in each environment (S2).
        seed: Seed of environments and action noise.
        max_steps: Steps after which an episode is cut; None: `eval_max_steps` of the run.
        video: Folder for videos of the first episodes; see `flowrl.rollout.video`.

    Raises:
        ConfigError, CheckpointError: see `flowrl.load`.
    """
    trained = load(run, last=last, env=env, env_args=env_args, trusted=trusted)
    found = trained.play(episodes, SeedTree(seed).integer("evaluation/command"), max_steps, video)
    assert trained.source is not None
    played = trained.evaluation_env
    source = trained.source
    inside = source.is_relative_to(run) and source != run
    where = (run, str(source.relative_to(run))) if inside else (source.parent, source.name)
    return Evaluation(*where, str(played), dict(played.env_args), seed, found.pop(""), found)


@attrs.frozen
class Comparison:
    """Several runs evaluated from the same starts, in groups that share plan and configuration except for the seed.

    `left_out` names the runs in a folder that cannot be evaluated, and the reasons.
    """

    groups: Mapping[str, Sequence[Evaluation]]
    left_out: Sequence[str] = ()

    def values(self) -> dict[str, Any]:
        """Per group the runs, and the middle of each score with its interval (S4), as plain values."""
        return {
            label: {"runs": [each.values() for each in group], **_middles(group)}
            for label, group in self.groups.items()
        }

    def lines(self) -> list[str]:
        """The report, line by line."""
        lines = []
        for label, group in self.groups.items():
            lines.append(f"{label}: {group[0].scores.episodes} episodes each, seed {group[0].seed}")
            for each in group:
                wins = "" if each.scores.win_rate is None else f", win rate {100 * each.scores.win_rate:.1f} %"
                lines.append(
                    f"  {each.run / each.policy}: return {each.scores.return_mean:,.2f} ± {each.scores.return_std:,.2f}"
                    f", reward per step {each.scores.reward_per_step:,.4f}{wins}"
                )
            lines += [
                f"  {_WORDS[name]:<16} {middle_text(scores, _DIGITS[name])}"
                for name, scores in _middles(group).items()
                if scores is not None
            ]
        return lines


_WORDS = {"return_mean": "return", "reward_per_step": "reward per step", "win_rate": "win rate"}
_DIGITS = {"return_mean": 2, "reward_per_step": 4, "win_rate": 3}


def _middles(group: Sequence[Evaluation]) -> dict[str, Any]:
    scores = [attrs.asdict(each.scores) for each in group]
    return {name: middle([each[name] for each in scores]) for name in _WORDS}


def evaluate_given(paths: Sequence[Path], **options: Any) -> Evaluation | Comparison:
    """Evaluate one run, or compare several or a folder of them. See `evaluate_run` and `evaluate_runs`."""
    several = len(paths) > 1 or (not is_run(paths[0]) and any(paths[0].rglob("metrics.jsonl")))
    return evaluate_runs(paths, **options) if several else evaluate_run(paths[0], **options)


def evaluate_runs(paths: Sequence[Path], **options: Any) -> Comparison:
    """Evaluate each run directory among `paths`, and those inside folders such as that of `flowrl run --seeds`.

    Args:
        paths: Run directories, and folders of them.
        options: See `evaluate_run`; a video needs a single run.

    Raises:
        ConfigError, CheckpointError: see `evaluate_run`; for a run listed in `paths`, or if no run is left.
    """
    if options.get("video") is not None:
        raise ConfigError("--video records the policy of one run: give one run directory")
    evaluations: dict[Path, Evaluation] = {}
    left_out = []
    for path in find_runs(paths):
        try:
            evaluations[path] = evaluate_run(path, **options)
        except (ConfigError, CheckpointError) as error:
            if path in paths:
                raise
            left_out.append(str(error))
    if not evaluations:
        raise ConfigError(f"no run can be evaluated: {left_out[0]}")
    groups = grouped([RunRecord.read(path) for path in evaluations])
    return Comparison({label: [evaluations[run.path] for run in runs] for label, runs in groups.items()}, left_out)

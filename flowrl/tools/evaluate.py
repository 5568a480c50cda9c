"""`flowrl evaluate`: the scores of saved policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from flowrl.engine.seeds import SeedTree
from flowrl.envs import Environments
from flowrl.errors import CheckpointError, ConfigError
from flowrl.networks.devices import torch_threads
from flowrl.rollout import NashConv, Payoffs, Scores, payoffs
from flowrl.rollout import nash_conv as judge
from flowrl.rollout.evaluation import MAX_STEPS
from flowrl.runs.init_from import one_of_several
from flowrl.runs.trust import Trust
from flowrl.tools.curves import RunRecord, find_runs, grouped, is_run
from flowrl.tools.plot import check_plot, plot_payoffs
from flowrl.tools.statistics import middle, middle_text
from flowrl.trainer.loading import load
from flowrl.trainer.players import scripted


@attrs.frozen
class Evaluation:
    """The scores of one saved policy, with its environment and seed, and how it acted (S8)."""

    left_out: ClassVar[Sequence[str]] = ()
    run: Path
    policy: str
    env: str
    env_args: dict[str, Any]
    seed: int
    deterministic: bool
    scores: Scores
    #: In a game, those of each agent.
    agents: Mapping[str, Scores] = attrs.field(factory=dict)
    nash_conv: NashConv | None = None

    def values(self) -> dict[str, Any]:
        """A flat dict of plain values."""
        about = attrs.asdict(self, filter=attrs.filters.exclude("scores", "agents", "nash_conv"))
        if self.nash_conv is not None:
            about |= {"nash_conv": self.nash_conv.total, "best_response_gains": dict(self.nash_conv.gains)}
        of_agents = {"agents": {name: attrs.asdict(of) for name, of in self.agents.items()}} if self.agents else {}
        return {**about, "run": str(self.run), **attrs.asdict(self.scores), **of_agents}

    def lines(self) -> list[str]:
        """The report, line by line."""
        scores = self.scores
        wins = "unknown: no episode ended with is_success in its info"
        if scores.win_rate is not None:
            wins = _wins(scores)
        cut = f", {scores.cut} of them cut: they did not end" if scores.cut else ""
        return [
            f"{self.run / self.policy} on {self.env}: {scores.episodes} episodes{cut}, seed {self.seed}, "
            f"{_acting(self.deterministic)}",
            f"  return           {scores.return_mean:,.2f} ± {scores.return_std:,.2f}"
            f"  (min {scores.return_min:,.2f}, max {scores.return_max:,.2f})",
            f"  steps            {scores.length_mean:,.2f} ± {scores.length_std:,.2f}",
            f"  reward per step  {scores.reward_per_step:,.4f}",
            f"  win rate         {wins}",
            *(
                f"  {name:<16} return {of.return_mean:,.2f} ± {of.return_std:,.2f}"
                + ("" if of.win_rate is None else f", win rate {_wins(of)}")
                for name, of in self.agents.items()
            ),
            *([] if self.nash_conv is None else [f"  NashConv         {self.nash_conv}"]),
        ]


def evaluate_run(
    run: Path,
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool | None = None,
    last: bool = False,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    max_steps: int | None = None,
    video: Path | None = None,
    nash_conv: bool = False,
    settings: Mapping[str, Any] | None = None,
    trusted: Trust = False,
) -> Evaluation:
    """Play whole episodes with the saved policy of a run.

    The starts follow from `seed`, and differ from those of any training or evaluation within a run (S3); policies
    evaluated with the same seed meet the same starts.

    Args:
        run, last, env, env_args, settings, trusted: See `flowrl.load`.
        episodes: Number of episodes, an equal share in each environment (S2).
        seed: Seed of environments and action noise.
        deterministic: Act by the eval mode, or by the collect mode; None: `eval_deterministic` of the run.
        max_steps: Steps after which an episode is cut; None: `eval_max_steps` of the run.
        video: Folder for videos of the first episodes; see `flowrl.rollout.video`.
        nash_conv: Tell the NashConv of the policy too, or the policies, as they draw; see `flowrl.rollout.nash_conv`.

    Raises:
        ConfigError, CheckpointError: see `flowrl.load`, and `flowrl.rollout.nash_conv`.
    """
    trained = load(run, last=last, env=env, env_args=env_args, trusted=trusted, **(settings or {}))
    greedy = trained.config.eval_deterministic if deterministic is None else deterministic
    start = SeedTree(seed).integer("evaluation/command")
    found = trained.play(episodes, start, max_steps, video, deterministic=greedy)
    assert trained.source is not None
    played = trained.evaluation_env
    source = trained.source
    folder, name = one_of_several(run)
    inside = source.is_relative_to(folder) and source != folder
    where = (run, str(source.relative_to(folder))) if inside else (source.parent, source.name)
    if name is not None and not inside:
        where = source.parent, f"{source.name}:{name}"
    judged = judge(trained.players, played) if nash_conv else None
    return Evaluation(*where, str(played), dict(played.env_args), seed, greedy, found.pop(""), found, judged)


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
            acting = _acting(group[0].deterministic)
            lines.append(f"{label}: {group[0].scores.episodes} episodes each, seed {group[0].seed}, {acting}")
            for each in group:
                wins = "" if each.scores.win_rate is None else f", win rate {_wins(each.scores)}"
                lines.append(
                    f"  {each.run / each.policy}: return {each.scores.return_mean:,.2f} ± {each.scores.return_std:,.2f}"
                    f", reward per step {each.scores.reward_per_step:,.4f}{wins}"
                    + ("" if each.nash_conv is None else f", NashConv {each.nash_conv.total:.4f}")
                )
            lines += [
                f"  {_WORDS[name]:<16} {middle_text(scores, _DIGITS[name])}"
                for name, scores in _middles(group).items()
                if scores is not None
            ]
        return lines


def _acting(deterministic: bool) -> str:
    """How policies act, in a word."""
    return "deterministic" if deterministic else "stochastic"


def _wins(scores: Scores) -> str:
    """A win rate, with the share judged where some episodes do not say (S9)."""
    some = f" of the {scores.judged} episodes that say" if scores.judged < scores.episodes else ""
    return f"{100 * (scores.win_rate or 0.0):.1f} %{some}"


_WORDS = {
    "return_mean": "return",
    "reward_per_step": "reward per step",
    "win_rate": "win rate",
    "nash_conv": "NashConv",
}
_DIGITS = {"return_mean": 2, "reward_per_step": 4, "win_rate": 3, "nash_conv": 4}


def _middles(group: Sequence[Evaluation]) -> dict[str, Any]:
    scores = [each.values() for each in group]
    return {name: middle([each.get(name) for each in scores]) for name in _WORDS}


@attrs.frozen
class Tournament:
    """The pay-offs of players in a game."""

    left_out: ClassVar[Sequence[str]] = ()
    env: str
    seed: int
    deterministic: bool
    payoffs: Payoffs

    def values(self) -> dict[str, Any]:
        """Plain values."""
        about = {"env": self.env, "seed": self.seed, "deterministic": self.deterministic}
        return {**about, "players": self.payoffs.values()}

    def lines(self) -> list[str]:
        """The report, line by line."""
        table, ranked = self.payoffs, self.payoffs.ranked
        first, second = table.agents
        games = 2 * table.returns.shape[2]
        head = f"{self.env}: each pair plays {games} games, half of them as {first!r} and half as {second!r}"
        of_returns = [["return of", *ranked, "all others"]]
        of_games = [["more / equal / less", *ranked]]
        for player in ranked:
            against = [table.mean(player, other) for other in ranked]
            shares = [table.shares(player, other) for other in ranked]
            overall = f"{table.overall(player):,.3f}"
            of_returns.append([player, *(f"{mean:,.3f} ± {half:.3f}" for mean, half in against), overall])
            of_games.append([player, *(" / ".join(f"{100 * share:.1f}" for share in each) + " %" for each in shares)])
        head += f", seed {self.seed}, {_acting(self.deterministic)}"
        return [head, *_aligned(of_returns), "", *_aligned(of_games)]


#: Games side by side in a tournament: players that search make many moves at once almost as quickly as one.
GAMES = 64


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def play_each_other(
    players: Sequence[str],
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool | None = None,
    max_steps: int | None = None,
    last: bool = False,
    video: Path | None = None,
    nash_conv: bool = False,
    plot: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    trusted: Trust = False,
) -> Tournament:
    """Let saved policies and the players of `SCRIPTED` play a game of two agents against each other.

    Args:
        players: Runs, checkpoints and policy files, and names of `SCRIPTED`.
        episodes: Games of each ordered pair. The others: see `evaluate_run`.
        deterministic: Act by the eval mode, also if it is None, or by the collect mode.
        plot: A .png or .svg file for a picture of the table.

    Raises: ConfigError, CheckpointError: see `flowrl.load` and `flowrl.rollout.payoffs`.
    """
    if env is None:
        raise ConfigError(f"{', '.join(players)}: to let them play each other give the game, --env GAME")
    if video is not None:
        raise ConfigError("--video records the policy of one run: give one run directory")
    if nash_conv:
        raise ConfigError("--nash-conv judges each run alone: give runs, without --env GAME if there are several")
    if twice := [name for at, name in enumerate(players) if name in players[:at]]:
        raise ConfigError(f"{twice[0]} is given twice: every player plays itself anyway")
    if plot is not None:
        check_plot(plot)
    found, env_steps, greedy = dict[str, Any](), dict[str, int](), deterministic is not False
    for name in players:
        found[name] = scripted(name)
        if found[name] is None:
            policy = load(name, last=last, env=env, env_args=env_args, trusted=trusted, **(settings or {}))
            found[name], env_steps[name] = policy.players, policy.env_steps
    start = SeedTree(seed).integer("evaluation/command")
    how: dict[str, Any] = {"num_envs": GAMES, "max_steps": max_steps or MAX_STEPS, "deterministic": greedy}
    with torch_threads(1):
        table = payoffs(found, env, env_args=env_args, episodes=episodes, seed=start, env_steps=env_steps, **how)
    if plot is not None:
        plot_payoffs(table, env, plot)
    return Tournament(env, seed, greedy, table)


def evaluate_given(names: Sequence[str], **options: Any) -> Evaluation | Comparison | Tournament:
    """Evaluate one run, compare several or a folder of them, or let several play each other in a game.

    See `evaluate_run`, `evaluate_runs` and `play_each_other`.
    """
    env = options.get("env")
    if any(map(scripted, names)) or (len(names) > 1 and env is not None and _is_game(env, options["env_args"])):
        return play_each_other(names, **options)
    if options.pop("plot", None) is not None:
        raise ConfigError(f"{', '.join(names)}: --plot draws a table of several players of a game, --env GAME")
    paths = [Path(name) for name in names]
    several = len(paths) > 1 or (not is_run(paths[0]) and any(paths[0].rglob("metrics.jsonl")))
    return evaluate_runs(paths, **options) if several else evaluate_run(paths[0], **options)


def _is_game(env: str, env_args: Mapping[str, Any]) -> bool:
    try:
        return Environments(env, env_args).look(1).seating is not None
    except ConfigError:  # as of spaces that the runs' wrappers make usable, which games do not have
        return False


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

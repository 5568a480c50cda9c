"""Pictures: curves and profiles, of `flowrl plot`, and the pay-off table of `flowrl evaluate --plot`."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.errors import ConfigError
from flowrl.tools.curves import POINTS, Curve, RunRecord, curves, find_runs
from flowrl.tools.scores import SURE, ScoreTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flowrl.rollout import Payoffs

#: Axis labels, with units; other keys are their own labels.
AXES = {
    "env_steps": "environment steps",
    "seconds": "training time [s]",
    "updates": "optimiser updates",
    "episode_return": "return of training episodes (mean of the last 100)",
    "episode_length": "length of training episodes [steps] (mean of the last 100)",
    "eval_return": "return in evaluation",
    "steps_per_second": "environment steps per second",
}
#: Colours for all kinds of colour vision: Okabe & Ito 2008, without black and yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
#: Where there are more curves than colours, these tell them apart.
DASHES = ("-", "--", ":", "-.")
#: Height of a figure, and what a line of its legend adds to it beyond the sixth, in inches.
HEIGHT, LINE = 5.0, 0.22
#: Characters of a title, and of a label in the legend, that fit into the width of a figure.
TITLE, LABEL = 70, 90
SUFFIXES = (".png", ".svg")


def plot(paths: Sequence[Path], *, x: str, y: str, out: Path | None = None) -> tuple[list[Path], list[str]]:
    """Draw the learning curves of run directories and folders of them.

    Args:
        paths: Run directories, and folders of them.
        x, y: Keys of the results.
        out: A .png or .svg file; None: curve.png and curve.svg in the first of `paths`.

    Returns: the files written, and the runs inside folders that were left out, with the reason: they cannot be read,
    or have nothing to show.

    Raises:
        ConfigError: matplotlib is missing, another suffix, no such run, an unknown key, a run listed in `paths`
            without anything to show, or a file that cannot be written.
    """
    files, runs, left_out = _begin(paths, "curve", out)
    shown = [run for run in runs if run.path in paths or run.numbers(x, y).size]
    save(draw(curves(shown or runs, x, y), x, y), files)
    return files, [*left_out, *_empty(runs, shown)]


def plot_profile(
    paths: Sequence[Path], *, y: str, scale: Mapping[str, tuple[float, float]], out: Path | None = None
) -> tuple[list[Path], list[str], ScoreTable]:
    """Draw the performance profiles of the last number under a key of each run.

    Args:
        scale: See `ScoreTable`.
        paths, y, out: As for `plot`; None: profile.png and profile.svg.

    Returns: the files written, the runs left out, and the scores.

    Raises: ConfigError: as `plot`; or the scores of several environments have no scale.
    """
    files, runs, left_out = _begin(paths, "profile", out)
    shown = [run for run in runs if run.path in paths or run.numbers(y).size]
    scores = ScoreTable.read(shown or runs, y, scale)
    save(draw_profiles(scores, y), files)
    return files, [*left_out, *_empty(runs, shown)], scores


def _begin(paths: Sequence[Path], name: str, out: Path | None) -> tuple[list[Path], list[RunRecord], list[str]]:
    """The files to write, the runs that can be read, and what is left out of folders, with the reason."""
    files = [paths[0] / f"{name}{suffix}" for suffix in SUFFIXES] if out is None else [out]
    check_plot(files[0])
    runs, left_out = [], []
    for path in find_runs(paths):
        try:
            runs.append(RunRecord.read(path))
        except ConfigError as error:
            if path in paths:
                raise
            left_out.append(str(error))
    if not runs:
        raise ConfigError("no run that can be read: " + "; ".join(left_out))
    return files, runs, left_out


def _empty(runs: Sequence[RunRecord], shown: Sequence[RunRecord]) -> list[str]:
    return [f"{run.path} has nothing to show yet" for run in runs if run not in shown]


def check_plot(file: Path) -> None:
    """Raises: ConfigError: matplotlib is missing, or the file has another suffix."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plotting needs a package: pip install matplotlib")
    if file.suffix not in SUFFIXES:
        raise ConfigError(f"{file}: expected a file that ends with {' or '.join(SUFFIXES)}")


def plot_payoffs(table: Payoffs, title: str, out: Path) -> None:
    """Draw a pay-off table: for each player and other the mean return, and half of its interval.

    Raises: ConfigError: see `check_plot`; or the file cannot be written.
    """
    check_plot(out)
    save(draw_payoffs(table, title), [out])


def draw_payoffs(table: Payoffs, title: str) -> Figure:
    """A pay-off table in one figure: the rows gain from the columns, blue is more than 0 and red less."""
    from matplotlib.figure import Figure

    ranked = table.ranked
    cells = np.array([[table.mean(player, other) for other in ranked] for player in ranked])
    size = 2.5 + 1.2 * len(ranked)
    figure = Figure(figsize=(size + 1.0, size), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    most = max(float(np.abs(cells[..., 0]).max()), 1e-9)
    image = axes.imshow(cells[..., 0], cmap="RdBu", vmin=-most, vmax=most)
    for (row, column), mean in np.ndenumerate(cells[..., 0]):
        colour = "white" if abs(mean) > 0.6 * most else "black"
        text = f"{mean:,.3f}\n± {cells[row, column, 1]:.3f}"
        axes.text(column, row, text, ha="center", va="center", color=colour, gid=f"payoff-{row}-{column}")
    axes.set_xticks(range(len(ranked)), ranked, rotation=30, ha="right")
    axes.set_yticks(range(len(ranked)), ranked)
    axes.set(xlabel="against", title=title)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=f"mean return, ± half of the {SURE} interval", shrink=0.8)
    return figure


def draw(curves: Sequence[Curve], x: str, y: str) -> Figure:
    """Draw curves in one figure: thin lines for single runs, a thick one for their middle, a band for its interval."""
    figure, axes = _axes()
    for index, curve in enumerate(curves):
        _add(axes, curve, _style(index), f"curve-{index}")
    axes.set(xlabel=AXES.get(x, x), ylabel=AXES.get(y, y))
    title = f"{curves[0].label}: {y}" if len(curves) == 1 else f"{y} over {x}"
    axes.set_title(textwrap.fill(title, TITLE))
    _legend(figure)
    return figure


def draw_profiles(scores: ScoreTable, y: str) -> Figure:
    """Draw the performance profile of each algorithm, with its band: higher and further right is better."""
    figure, axes = _axes()
    for index, each in enumerate(scores.profiles(POINTS)):
        style, name = _style(index), f"profile-{index}"
        tasks = scores.runs[each.algorithm].values()
        label = f"{each.algorithm}: {sum(map(len, tasks))} runs" + (f" in {len(tasks)} tasks" if len(tasks) > 1 else "")
        if each.low is not None and each.high is not None:
            axes.fill_between(each.thresholds, each.low, each.high, step="pre", **_band(style, name))
            label += f", {SURE} interval"
        axes.step(each.thresholds, each.share, linewidth=2.2, label=label, gid=name, **style)
    scaled = ", 0 and 1 as in the scale" if scores.scale else ""
    axes.set(xlabel=f"score: {AXES.get(y, y)}{scaled}", ylabel="share of runs with a higher score", ylim=(-0.02, 1.02))
    axes.set_title("performance profile")
    _legend(figure)
    return figure


def _axes() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, HEIGHT), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.margins(x=0.02)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(_thousands)
    return figure, axes


def _legend(figure: Figure) -> None:
    """Below the axes, where long labels hide no curve."""
    texts = figure.legend(loc="outside lower center", ncols=1, frameon=False).get_texts()
    for text in texts:
        text.set_text(_wrapped(text.get_text()))
    lines = sum(text.get_text().count("\n") + 1 for text in texts)
    figure.set_figheight(HEIGHT + LINE * max(0, lines - len(COLOURS)))


def _wrapped(label: str) -> str:
    """In lines that fit, and an interval in one of them."""
    whole = f"{SURE} interval"
    bound = whole.replace(" ", "\N{NO-BREAK SPACE}")
    return textwrap.fill(label.replace(whole, bound), LABEL).replace(bound, whole)


def _style(index: int) -> dict[str, Any]:
    """The colour and the dashes of a curve."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def _band(style: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The look of the interval around it."""
    return {"color": style["color"], "alpha": 0.18, "linewidth": 0, "gid": f"{name}-band"}


def _add(axes: Axes, curve: Curve, common: Mapping[str, Any], name: str) -> None:
    """Add one group to the axes; the names of its lines become ids in an SVG."""
    label = f"{curve.label}: {curve.statistic}"
    alone = curve.middle is None
    for index, (xs, ys) in enumerate(curve.lines):
        style: dict[str, Any] = {"linewidth": 1.6} if alone else {"linewidth": 0.7, "alpha": 0.45}
        if alone and index == 0:
            style["label"] = label if len(curve.lines) == 1 else f"{label}, no x in common"
        axes.plot(xs, ys, gid=f"{name}-run-{index}", marker="." if len(xs) == 1 else None, **common, **style)
    if curve.grid is None or curve.middle is None:
        return
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.grid, curve.low, curve.high, **_band(common, name))
        label += f", {SURE} interval"
    axes.plot(curve.grid, curve.middle, linewidth=2.2, label=label, gid=f"{name}-middle", **common)


def save(figure: Figure, files: Sequence[Path]) -> None:
    """Write the picture; without a date, so that equal runs give equal files. Raises: ConfigError: it cannot be."""
    import matplotlib

    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Text stays text in an SVG: it can be read and searched.
            with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "flowrl"}):
                figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
        except OSError as error:
            raise ConfigError(f"cannot write {file}: {error.strerror or error}") from error


def _thousands(value: float, _position: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:g}"

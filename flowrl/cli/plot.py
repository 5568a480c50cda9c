"""Pictures: learning curves, of `flowrl plot`, and the pay-off table of `flowrl evaluate --plot`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.cli.curves import Curve, RunRecord, curves, find_runs
from flowrl.cli.statistics import CONFIDENCE
from flowrl.errors import ConfigError

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
    files = [paths[0] / f"curve{suffix}" for suffix in SUFFIXES] if out is None else [out]
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
    shown = [run for run in runs if run.path in paths or run.numbers(x, y).size]
    figure = draw(curves(shown or runs, x, y), x, y)
    for file in files:
        _save(figure, file)
    return files, [*left_out, *(f"{run.path} has nothing to show yet" for run in runs if run not in shown)]


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
    _save(draw_payoffs(table, title), out)


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
    figure.colorbar(image, ax=axes, label=f"mean return, ± half of the {100 * CONFIDENCE:g} % interval", shrink=0.8)
    return figure


def draw(curves: Sequence[Curve], x: str, y: str) -> Figure:
    """Draw curves in one figure: thin lines for single runs, a thick one for their middle, a band for its interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for index, curve in enumerate(curves):
        _add(axes, curve, COLOURS[index % len(COLOURS)], f"curve-{index}")
    axes.set(xlabel=AXES.get(x, x), ylabel=AXES.get(y, y))
    axes.margins(x=0.02)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(_thousands)
    axes.set_title(f"{curves[0].label}: {y}" if len(curves) == 1 else f"{y} over {x}")
    # Below the axes, where long labels hide no curve.
    figure.legend(loc="outside lower center", ncols=1, frameon=False)
    return figure


def _add(axes: Axes, curve: Curve, colour: str, name: str) -> None:
    """Add one group to the axes; the names of its lines become ids in an SVG."""
    label = f"{curve.label}: {curve.statistic}"
    alone = curve.middle is None
    for index, (xs, ys) in enumerate(curve.lines):
        style: dict[str, Any] = {"linewidth": 1.6} if alone else {"linewidth": 0.7, "alpha": 0.45}
        if alone and index == 0:
            style["label"] = label if len(curve.lines) == 1 else f"{label}, no x in common"
        axes.plot(xs, ys, color=colour, gid=f"{name}-run-{index}", marker="." if len(xs) == 1 else None, **style)
    if curve.grid is None or curve.middle is None:
        return
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.grid, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0, gid=f"{name}-band")
        label += f", {100 * CONFIDENCE:g} % interval"
    axes.plot(curve.grid, curve.middle, color=colour, linewidth=2.2, label=label, gid=f"{name}-middle")


def _save(figure: Figure, file: Path) -> None:
    """Write the picture; without a date, so that equal runs give equal files. Raises: ConfigError: it cannot be."""
    import matplotlib

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Text stays text in an SVG: it can be read and searched.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "flowrl"}):
            figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from error


def _thousands(value: float, _position: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:g}"

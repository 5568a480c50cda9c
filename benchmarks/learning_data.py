"""The datasets of the tasks that learn without an environment: episodes of policies that are trained more or less.

python benchmarks/learning_data.py NAME FOLDER
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flowrl.data import Dataset, DatasetWriter


class Recipe(NamedTuple):
    """`flowrl run PLAN SETTINGS`, and what is recorded of it on its way, while it explores, and of random actions."""

    plan: str
    env: str
    settings: str
    snapshots: tuple[tuple[int, int], ...]  #: after so many steps, so many episodes of the policy as it is then
    random: int = 0  #: episodes


#: Settings of SAC that learn Pendulum-v1 in about 4 000 steps.
SAC = "--set hidden=[64,64] --set batch_size=128 --set replay_ratio=128 --set learning_rate=1e-3"

RECIPES = {
    "cartpole": Recipe(
        *("dqn", "CartPole-v1", "--set hidden=[64,64] --set replay_ratio=16 --set epsilon_end=0.2"),
        snapshots=((6_000, 50),),
        random=100,
    ),
    # Medium and expert, as D4RL mixes them.
    "pendulum": Recipe("sac", "Pendulum-v1", SAC, snapshots=((3_400, 50), (8_000, 50))),
    # Of two action numbers; it learns soon.
    "reacher": Recipe("sac", "Reacher-v5", SAC, snapshots=((1_500, 200), (8_000, 200))),
}


def make(name: str, out: Path) -> Path:
    """Make a dataset, if it is not there."""
    recipe = RECIPES[name]
    if not out.exists():
        with tempfile.TemporaryDirectory() as folder:
            parts = list(recorded(recipe, Path(folder)))
            unfinished = out.with_suffix(".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            join(parts, unfinished)
            unfinished.rename(out)
    return out


def recorded(recipe: Recipe, folder: Path) -> Iterator[Path]:
    """The parts of a dataset, one after another."""
    run, where = folder / "run", ["--env", recipe.env]
    often = f"--set report_every=100 --set eval_every={recipe.snapshots[-1][0]} --set eval_episodes=5"
    words = [recipe.plan, *where, *recipe.settings.split(), *often.split(), "--set", "act_backend=numpy", "--out", run]
    for i, (steps, episodes) in enumerate(recipe.snapshots):
        _flowrl("run", *(["--resume", run] if i else words), "--stop-steps", steps)
        _flowrl("record", run, "--trust", "--last", "--collect", "--episodes", episodes, "--out", folder / f"part-{i}")
        yield folder / f"part-{i}"
    if recipe.random:
        _flowrl("record", "--policy", "random", *where, "--episodes", recipe.random, "--out", folder / "random")
        yield folder / "random"


def join(parts: list[Path], out: Path) -> None:
    """Datasets of whole episodes as one, whose episodes have numbers of their own."""
    writer, number = DatasetWriter(out, Dataset(parts[0]).about), 0
    for part in parts:
        for episode in Dataset(part):
            writer.add(episode.replace(episode_id=np.full(episode.shape, number)))
            number += 1
    writer.flush()


def returns(out: Path) -> np.ndarray:
    """Of each episode."""
    return np.array([episode.reward.sum() for episode in Dataset(out)])


def _flowrl(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "flowrl", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("out", type=Path, metavar="FOLDER")
    chosen = parser.parse_args()
    found = returns(make(chosen.name, chosen.out))
    print(f"{chosen.out}: {len(found)} episodes, mean return {found.mean():.1f}, best {found.max():.1f}")

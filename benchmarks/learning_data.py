"""The datasets of the tasks that learn without an environment: episodes of a half-trained policy, and random ones.

python benchmarks/learning_data.py NAME FOLDER
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flowrl.data import Dataset, DatasetWriter


class Recipe(NamedTuple):
    """`flowrl run PLAN SETTINGS --stop-steps STEPS`, and what is recorded of it and of random actions."""

    plan: str
    env: str
    steps: int
    settings: str
    trained: int  #: episodes of the policy at its end, which explores
    random: int  #: episodes


#: Settings of SAC that learn Pendulum-v1 in about 4 000 steps.
SAC = "--set hidden=[64,64] --set batch_size=128 --set replay_ratio=128 --set learning_rate=1e-3"

RECIPES = {
    "cartpole": Recipe(
        "dqn", "CartPole-v1", 6_000, "--set hidden=[64,64] --set replay_ratio=16 --set epsilon_end=0.2", 50, 100
    ),
    "pendulum": Recipe("sac", "Pendulum-v1", 4_000, SAC, 50, 50),
    "pendulum-half": Recipe("sac", "Pendulum-v1", 3_500, SAC, 60, 0),
}


def make(name: str, out: Path) -> Path:
    """Make a dataset, if it is not there."""
    recipe = RECIPES[name]
    if not out.exists():
        with tempfile.TemporaryDirectory() as folder:
            run, parts = Path(folder) / "run", [Path(folder) / each for each in ("trained", "random")]
            where = ["--env", recipe.env]
            often = f"--set report_every=100 --set eval_every={recipe.steps} --set eval_episodes=5"
            words = [*where, *recipe.settings.split(), *often.split(), "--set", "act_backend=numpy"]
            _flowrl("run", recipe.plan, *words, "--stop-steps", recipe.steps, "--out", run)
            _flowrl("record", run, "--last", "--collect", "--episodes", recipe.trained, "--out", parts[0])
            if recipe.random:
                _flowrl("record", "--policy", "random", *where, "--episodes", recipe.random, "--out", parts[1])
            unfinished = out.with_suffix(".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            join(parts[: 1 + bool(recipe.random)], unfinished)
            unfinished.rename(out)
    return out


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

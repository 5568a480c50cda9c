"""What demonstrations are for: without the margin, or with actions that nobody took, little is learned from them."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.plans import SQIL, DQfD
from flowrl.runs.run_info import read_results
from tests.demonstrations import cartpole, mountain_car_episodes, pendulum, recorded
from tests.plans.small import SMALL, make, without_clock

QUICK: dict[str, Any] = {"env": "CartPole-v1", "device": "cpu", "act_backend": "numpy", "hidden": (64,)}


def after_pretraining(demonstrations: str, seed: int, **settings: Any) -> float:
    """Mean return of 20 episodes after learning from demonstrations alone, before the first step."""
    given = {"pretrain_updates": 800, "batch_size": 64, "learning_rate": 1e-2, "margin_weight": 10.0, **settings}
    with DQfD(demonstrations=demonstrations, seed=seed, **QUICK | {"env": "MountainCar-v0"}, **given) as trainer:
        trainer.train(until={"updates": 800})
        return float(trainer.evaluate(episodes=20)["return_mean"])


def shuffled(demonstrations: str, path: Path) -> str:
    """The same episodes with their actions in another order."""
    writer, draw = DatasetWriter(path), np.random.default_rng(0)
    for episode in Dataset(demonstrations):
        writer.add(episode.replace(action=draw.permutation(episode.action)))
    writer.flush()
    return str(path)


@pytest.mark.parametrize("fraction", [0.5, 0.3])
def test_rows_of_demonstrations_are_in_the_numbers_of_the_policy_and_in_every_batch(fraction: float) -> None:
    """F11, A2: the ratio within one row; actions, recorded from -2 to 2, from -1 to 1."""
    drawn: list[Batch] = []
    workers, plan = make("sacfd", demonstration_fraction=fraction, edit=lambda plan: plan.tap("Replay", drawn.append))
    with workers, plan.run(seed=0) as run:
        list(islice(run, 6))
    recorded = np.unique(Dataset(pendulum())[0].action)
    assert recorded.min() < -1.5
    assert recorded.max() > 1.5
    for batch in drawn:
        assert abs((batch.part == 1).sum() - fraction * len(batch)) < 1
        shown = 2 * batch.action[batch.part == 1].ravel()
        assert np.isclose(shown[:, None], recorded, atol=1e-5).any(1).all()
    assert abs(sum((batch.part == 1).sum() for batch in drawn) - fraction * sum(map(len, drawn))) < 1


def test_learning_from_demonstrations_alone_is_reported_evaluated_and_saved(tmp_path: Path) -> None:
    """S6, D3: by updates, until the first env step; then by env steps; and a run killed in between goes on."""
    more: dict[str, Any] = {"report_every": 20, "eval_every": 40, "eval_episodes": 1, "pretrain_updates": 100}
    with DQfD(out=tmp_path / "run", **{**SMALL["dqfd"], **more, "demonstrations": cartpole()}) as trainer:
        trainer.train(updates=90, progress=False)
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
        trainer.train(env_steps=100, progress=False)
    results = read_results(tmp_path / "run")
    found = [(result["env_steps"], result["updates"], "eval_return" in result) for result in results]
    assert found[:6] == [(0, 20, False), (0, 40, True), (0, 60, False), (0, 80, True), (0, 90, False), (0, 100, False)]
    assert [(steps, evaluated) for steps, _, evaluated in found[6:10]] == [
        (24, False), (42, True), (60, False), (84, True),
    ]  # fmt: skip
    names = [path.name for path in sorted((tmp_path / "killed" / "checkpoints").iterdir())]
    assert names == ["step-000000000-2", "step-000000000-3", "step-000000000-4"], "at 40, 80 and the end, after 20"
    with flowrl.resume(tmp_path / "killed") as trainer:
        trainer.train(env_steps=100, progress=False)
    assert [*map(without_clock, read_results(tmp_path / "killed"))] == [*map(without_clock, results)]


@pytest.mark.exhaustive
def test_the_margin_and_who_demonstrates_make_the_difference(tmp_path: Path) -> None:
    """Where each step costs 1, actions that nobody took look best without the margin. Without an end in time: -200."""
    shown = recorded(mountain_car_episodes(4, 400))
    nonsense = shuffled(shown, tmp_path / "shuffled")
    for seed in range(3):
        assert after_pretraining(shown, seed) > -160
        assert after_pretraining(shown, seed, margin_weight=0.0) == -200
        assert after_pretraining(nonsense, seed) < -190


@pytest.mark.exhaustive
def test_sqil_learns_without_any_reward_of_the_environment() -> None:
    """In 3 000 steps better than chance, of which CartPole's return is about 22."""
    with SQIL(demonstrations=cartpole(), learning_starts=300, **QUICK) as trainer:
        trainer.train(until={"env_steps": 3_000})
        assert trainer.evaluate(episodes=20)["return_mean"] > 100

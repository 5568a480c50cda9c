"""What demonstrations are for: without the margin, or with actions that nobody took, little is learned from them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.plans import SQIL, DQfD
from tests.demonstrations import cartpole, mountain_car_episodes, pendulum, recorded
from tests.plans.small import make

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

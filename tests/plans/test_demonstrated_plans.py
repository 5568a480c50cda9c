"""What demonstrations are for: without the margin, or with actions that nobody took, little is learned from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.data import Dataset, DatasetWriter
from flowrl.plans import SQIL, DQfD
from tests.demonstrations import cartpole

QUICK: dict[str, Any] = {"env": "CartPole-v1", "device": "cpu", "act_backend": "numpy", "hidden": (64,)}


def after_pretraining(demonstrations: str, **settings: Any) -> float:
    """Mean return of 20 episodes after learning from demonstrations alone, before the first step."""
    given = {"pretrain_updates": 800, "batch_size": 64, "margin_weight": 10.0, **settings}
    with DQfD(demonstrations=demonstrations, **QUICK, **given) as trainer:
        trainer.train(until={"updates": 800})
        return float(trainer.evaluate(episodes=20)["return_mean"])


def shuffled(path: Path) -> str:
    """The same episodes with their actions in another order."""
    writer, draw = DatasetWriter(path), np.random.default_rng(0)
    for episode in Dataset(cartpole()):
        writer.add(episode.replace(action=draw.permutation(episode.action)))
    writer.flush()
    return str(path)


@pytest.mark.slow
def test_the_margin_and_who_demonstrates_make_the_difference(tmp_path: Path) -> None:
    """Two ablations: no margin tells nothing of other actions, and shuffled actions demonstrate nothing."""
    with_it, without = after_pretraining(cartpole()), after_pretraining(cartpole(), margin_weight=0.0)
    nonsense = after_pretraining(shuffled(tmp_path / "shuffled"))
    assert with_it > 200
    assert without < 0.6 * with_it
    assert nonsense < 100


@pytest.mark.slow
def test_sqil_learns_without_any_reward_of_the_environment() -> None:
    """In 3 000 steps better than chance, of which CartPole's return is about 22."""
    with SQIL(demonstrations=cartpole(), learning_starts=300, **QUICK) as trainer:
        trainer.train(until={"env_steps": 3_000})
        assert trainer.evaluate(episodes=20)["return_mean"] > 100

"""Plans without an environment learn: from data of mixed quality, which cql and iql exceed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowrl.data import Dataset, DatasetWriter
from flowrl.envs import make_manager
from flowrl.plans import BC, CQL, IQL, MARWIL
from flowrl.policies import ScriptedPolicy
from flowrl.rollout import RolloutWorker
from tests.offline_data import offline_data

SMALL = {"hidden": (64, 64), "batch_size": 128, "learning_rate": 1e-3, "device": "cpu", "act_backend": "numpy"}


def clumsy(draw: np.random.Generator) -> object:
    """Pushes the cart under the pole in seven of ten steps, and anywhere in the others."""

    def act(obs: np.ndarray) -> np.ndarray:
        good = (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(int)
        return np.where(draw.random(len(obs)) < 0.3, draw.integers(2, size=len(obs)), good)

    return act


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty episodes of somebody clumsy, and a hundred random ones."""
    path = tmp_path_factory.mktemp("data") / "mixed"
    writer, number = DatasetWriter(path, Dataset(offline_data()).about), 0
    for act, episodes in ((clumsy(np.random.default_rng(0)), 30), (None, 100)):
        manager = make_manager("CartPole-v1", 10)
        draw = np.random.default_rng(1)
        chosen = act or (lambda obs, draw=draw: draw.integers(2, size=len(obs)))
        policy = ScriptedPolicy(chosen, manager.observation_space, manager.action_space)
        worker = RolloutWorker(manager, policy, seed=3)
        batch = worker.sample(episodes=episodes)
        for i, length in enumerate(batch.pop("mask").sum(0).tolist()):
            episode = batch[:length, i : i + 1]
            writer.add(episode.replace(episode_id=np.full(episode.shape, number)))
            number += 1
        worker.close()
    writer.flush()
    return path


@pytest.mark.exhaustive
@pytest.mark.parametrize(("plan", "factor"), [(BC, 1.0), (MARWIL, 1.0), (CQL, 2.0), (IQL, 2.0)])
def test_they_learn_from_data_of_mixed_quality(plan: type, factor: float, mixed: Path) -> None:
    """S6: at least its mean return, and those that know what came of actions more than that."""
    mean = np.mean([episode.reward.sum() for episode in Dataset(mixed)])
    with plan(data=str(mixed), **SMALL) as trainer:
        trainer.train(until={"updates": 2_000})
        found = trainer.evaluate(episodes=40)["return_mean"]
    assert found >= factor * mean

"""Demonstrations: what was recorded must fit who is to learn from it, before anything is learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.errors import DatasetError
from flowrl.operators import Demonstrations, FromDataset
from tests.minari_episodes import minari_dataset

BOX, TWO = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)


class Learner:
    """What is asked of a policy."""

    def __init__(self, observation_space: Any = BOX, action_space: Any = TWO) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def recorded(path: Path, **columns: Any) -> Path:
    """Six steps of two environments, with other columns where they are given; None leaves one out."""
    rows = {
        "obs": np.zeros((3, 2, 4), np.float32),
        "action": np.tile(np.arange(2), (3, 1)),
        "reward": np.ones((3, 2)),
        **columns,
    }
    DatasetWriter(path / "data").add(Batch({name: column for name, column in rows.items() if column is not None}))
    return path / "data"


def test_they_come_as_they_were_recorded_or_as_shuffled_rows(tmp_path: Path) -> None:
    """F14."""
    path = recorded(tmp_path)
    assert list(Demonstrations(path, Learner())) == list(Dataset(path))
    drawn = list(Demonstrations(path, Learner(), batch_size=4, epochs=2))
    assert [len(batch) for batch in drawn] == [4, 2, 4, 2]
    assert sum(float(batch.reward.sum()) for batch in drawn) == 12
    assert "Demonstrations(data=" in Demonstrations(path, Learner()).explain()


DICT = spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "goal": spaces.Discrete(3)})


@pytest.mark.parametrize(
    ("columns", "learner", "words"),
    [
        ({"action": None}, Learner(), "has no column 'action', which learning needs: it has obs, reward"),
        ({"obs": np.zeros((3, 2, 5), np.float32)}, Learner(), r"its column 'obs' is float32\[5\], but the observation"),
        ({"obs": np.full((3, 2, 4), 1j)}, Learner(), r"its column 'obs' is complex128\[4\]"),
        ({}, Learner(DICT), "has no column 'obs.at', but the observation space is Dict"),
        ({}, Learner(action_space=BOX), r"its column 'action' is int64\[\], but the action space is Box"),
        ({"action": np.full((3, 2), 2)}, Learner(), r"has the action 2 in row 0, but the action space is Discrete"),
        ({"action": np.zeros((3, 2), int)}, Learner(action_space=spaces.Discrete(2, start=1)), "has the action 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, columns: Any, learner: Learner, words: str) -> None:
    """Before anything runs."""
    with pytest.raises(DatasetError, match=words):
        Demonstrations(recorded(tmp_path, **columns), learner)


def test_a_plan_says_which_columns_it_needs(tmp_path: Path) -> None:
    """Behavioural cloning needs two, Q-learning more."""
    Demonstrations(recorded(tmp_path), Learner(), needs=("obs", "action", "reward"))
    with pytest.raises(DatasetError, match="has no column 'next_obs'"):
        Demonstrations(tmp_path / "data", Learner(), needs=("obs", "next_obs"))


def test_a_dataset_without_rows_is_refused(tmp_path: Path) -> None:
    """With the way out."""
    DatasetWriter(tmp_path / "data").add(Batch(obs=np.zeros((0, 1, 4), np.float32), action=np.zeros((0, 1), int)))
    with pytest.raises(DatasetError, match="is empty: record some episodes first"):
        Demonstrations(tmp_path / "data", Learner())


def test_nested_observations_fit_by_their_parts(tmp_path: Path) -> None:
    """A Dict is a nested batch."""
    obs = Batch(at=np.zeros((3, 2, 2), np.float32), goal=np.zeros((3, 2), int))
    assert len(list(Demonstrations(recorded(tmp_path, obs=obs), Learner(DICT)))) == 1


def test_episodes_of_minari_are_demonstrations_too() -> None:
    """Whole, or as rows of all of them."""
    from flowrl.data.datasets.minari import MinariEpisodes

    episodes = MinariEpisodes(minari_dataset())
    whole = list(Demonstrations(episodes, Learner()))
    rows = list(FromDataset(episodes, batch_size=16, shuffle=False))
    assert Batch.cat(rows) == Batch.cat([episode[:, 0] for episode in whole])
    assert len(rows[0]) == 16
    assert episodes.real_rows(2).size == len(whole[0]) + len(whole[1])

"""What stands in a dataset: numbers that are none, and actions that could not be, are found before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.envs.dataset_spaces import check_bounds, check_rows
from flowrl.errors import DatasetError

CHOICES, BOX = spaces.Discrete(3, start=1), spaces.Box(-2, 2, (2,), np.float32)
NAMES = ("obs", "action", "reward")


def recorded(path: Path, space: Any = CHOICES, *, row: int | None = None, **wrong: Any) -> Dataset:
    """Two episodes of 5 and 6 steps, in `row` of which something is wrong."""
    draw = np.random.default_rng(0)
    actions = draw.uniform(-2, 2, (11, 2)).astype(np.float32) if space is BOX else draw.integers(1, 4, 11)
    rows = Batch(
        obs=Batch(at=draw.normal(size=(11, 2)).astype(np.float32), action_mask=np.ones((11, 3), np.int8)),
        action=actions,
        reward=draw.normal(size=11),
        episode_id=np.array([0] * 5 + [7] * 6),
        t=np.array([*range(5), *range(6)]),
    )
    for name, value in wrong.items():
        column = rows["obs"][name] if name in ("at", "action_mask") else rows[name]
        column[row] = value
    writer = DatasetWriter(path)
    for part in (rows[:5], rows[5:]):
        writer.add(part)
    return Dataset(path)


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("at", [0, 4, 9])
def test_what_is_no_number_is_found(tmp_path: Path, at: int, rows: int) -> None:
    """Wherever it is, and however many rows are looked at together: which column, which row."""
    where = rf"in row {at} \(episode {0 if at < 5 else 7}, step {at if at < 5 else at - 5}\)"
    wrong = [
        ("reward", np.nan, r"its column 'reward' has nan "),
        ("reward", 1e39, r"its column 'reward' has 1e\+39 "),  # X3: which float32 does not hold
        ("at", [0.5, -np.inf], r"its column 'obs.at' has -inf "),
    ]
    for n, (name, value, words) in enumerate(wrong):
        data = recorded(tmp_path / str(n), row=at, **{name: value})
        with pytest.raises(DatasetError, match=words + where + ".* leave out such episodes"):
            check_rows(data, CHOICES, NAMES, rows)
    check_rows(recorded(tmp_path / "sound"), CHOICES, NAMES, rows)
    check_rows(data, CHOICES, ("action", "reward"), rows)  # what nobody learns from may be anything


def test_actions_that_there_are_not_are_found(tmp_path: Path) -> None:
    """Counted from where the space begins."""
    for i, action in enumerate((0, 4)):
        data = recorded(tmp_path / str(i), row=6, action=action)
        words = (
            rf"has the action {action} in row 6 \(episode 7, step 1\), but the action space is Discrete\(3, start=1\)"
        )
        with pytest.raises(DatasetError, match=words):
            check_rows(data, CHOICES, NAMES, 4)
    far = recorded(tmp_path / "far", BOX, row=8, action=[0, 2.5])
    words = r"has the action \[0.  2.5\] in row 8 \(episode 7, step 3\), beyond the bounds of the action space Box"
    with pytest.raises(DatasetError, match=words):
        check_bounds(far, BOX, 4)
    check_bounds(recorded(tmp_path / "near", BOX, row=8, action=[0, 2.00001]), BOX, 4)
    lost = recorded(tmp_path / "lost", BOX, row=8, action=[0, np.nan])
    with pytest.raises(DatasetError, match="its column 'action' has nan in row 8"):
        check_rows(lost, BOX, NAMES, 4)


def test_actions_that_were_not_valid_are_found(tmp_path: Path) -> None:
    """Q1: by the mask of the row's own observation; of several choices each has its part of it."""
    data = recorded(tmp_path / "one", row=6, action=3, action_mask=[1, 1, 0])
    words = r"row 6 \(episode 7, step 1\) has the action 3, which the action_mask of its observation forbids, \[1 1 0\]"
    with pytest.raises(DatasetError, match=words):
        check_rows(data, CHOICES, NAMES, 4)
    check_rows(recorded(tmp_path / "other", row=6, action=2, action_mask=[0, 1, 0]), CHOICES, NAMES, 4)

    def several(path: Path, mask: list[int]) -> Dataset:
        rows = Batch(obs=Batch(action_mask=np.array([[1] * 5, mask], np.int8)), action=np.array([[0, 2], [1, 2]]))
        rows = rows.replace(reward=np.zeros(2))
        writer = DatasetWriter(path)
        writer.add(rows)
        return Dataset(path)

    space = spaces.MultiDiscrete([2, 3])
    check_rows(several(tmp_path / "valid", [0, 1, 0, 0, 1]), space, ("obs", "action"))
    for i, mask in enumerate(([1, 0, 1, 1, 1], [1, 1, 1, 1, 0])):
        with pytest.raises(DatasetError, match=r"row 1 has the action \[1 2\], which the action_mask"):
            check_rows(several(tmp_path / str(i), mask), space, ("obs", "action"))


def test_padding_may_be_anything(tmp_path: Path) -> None:
    """N6: nobody learns from it."""
    rows = Batch(reward=np.array([[1.0], [np.nan]]), action=np.array([[0], [9]]), mask=np.array([[1.0], [0.0]]))
    writer = DatasetWriter(tmp_path / "data")
    writer.add(rows)
    check_rows(Dataset(tmp_path / "data"), spaces.Discrete(2), ("reward", "action"))

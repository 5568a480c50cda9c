"""Returns of whole episodes, against a loop over each."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.data.datasets.returns_view import ContextView, ReturnsView
from flowrl.engine.plan import Plan
from flowrl.engine.schema import mismatches
from flowrl.errors import DatasetError
from flowrl.operators.datasets import Recorded
from flowrl.testing import same


def recorded(path: Path, envs: int = 3, steps: int = 40, cut: int = 7, padded: bool = False) -> Dataset:
    """Fragments of `cut` steps of environments whose episodes end at random, and go on from one to the next."""
    draw, writer = np.random.default_rng(4), DatasetWriter(path)
    shape = steps, envs
    ended, kind = draw.random(shape) < 0.15, draw.random(shape) < 0.5
    episode, t = np.zeros(shape, int), np.zeros(shape, int)
    for at in range(1, steps):
        episode[at] = episode[at - 1] + ended[at - 1]
        t[at] = np.where(ended[at - 1], 0, t[at - 1] + 1)
    columns: dict[str, Any] = {
        "obs": draw.normal(size=shape),
        "action": draw.normal(size=shape),
        "next_obs": draw.normal(size=shape),
        "reward": draw.normal(size=shape),
        "terminated": ended & kind,
        "truncated": ended & ~kind,
        "episode_id": episode,
        "env_id": np.tile(np.arange(envs), (steps, 1)),
        "t": t,
    }
    if padded:
        columns["mask"] = np.ones(shape, int)
        columns["mask"][-3:, 0] = 0
    for start in range(0, steps, cut):
        writer.add(Batch(columns)[start : start + cut])
    return Dataset(path)


def test_rows_that_are_no_steps_of_their_own_are_refused(tmp_path: Path) -> None:
    """N4: sums would be summed again, and episodes mixed up."""
    data = recorded(tmp_path / "data")
    windows, twice = DatasetWriter(tmp_path / "windows"), DatasetWriter(tmp_path / "twice")
    for batch in data:
        windows.add(batch.replace(discount=np.full(batch.shape, 0.9)))
        twice.add(batch)
        twice.add(batch)
    with pytest.raises(DatasetError, match="has windows of several steps"):
        ReturnsView(Dataset(tmp_path / "windows"), 0.9)
    with pytest.raises(DatasetError, match="several rows that say they are one step of one episode"):
        ReturnsView(Dataset(tmp_path / "twice"), 0.9)


@pytest.mark.parametrize("padded", [False, True])
def test_windows_against_a_loop(tmp_path: Path, padded: bool) -> None:
    """N1, N2, N3, N4, N6, T6: to the end of the episode, whatever batches it lies in, and no further."""
    data = recorded(tmp_path / "data", padded=padded)
    whole, real = ReturnsView(data, 0.9), data.real_rows()
    assert whole.real_rows().tolist() == real.tolist()
    steps, found = data.take(real), whole.take(real)
    place = {(steps.env_id[i], steps.episode_id[i], steps.t[i]): i for i in range(len(real))}
    for i in range(len(real)):
        key, k, return_ = (steps.env_id[i], steps.episode_id[i]), 0, 0.0
        while (j := place.get((*key, steps.t[i] + k))) is not None:
            return_, last, k = return_ + 0.9**k * steps.reward[j], j, k + 1
        assert found.reward[i] == pytest.approx(return_)
        assert found.discount[i] == pytest.approx(0 if steps.terminated[last] else 0.9**k)
        assert found.next_obs[i] == steps.next_obs[last]
        assert (found.terminated[i], found.truncated[i]) == (steps.terminated[last], steps.truncated[last])
        assert found.obs[i] == steps.obs[i]


def test_a_missing_step_cuts_an_episode(tmp_path: Path) -> None:
    """N1: what came after it is not known to have come of what was before."""
    writer = DatasetWriter(tmp_path / "data")
    no = np.zeros((4, 1), bool)
    writer.add(
        Batch(
            reward=np.ones((4, 1)),
            next_obs=np.arange(4.0)[:, None],
            terminated=no,
            truncated=no,
            episode_id=np.zeros((4, 1), int),
            t=np.array([[0], [1], [3], [4]]),
        )
    )
    found = ReturnsView(Dataset(tmp_path / "data"), 0.5).take(range(4))
    assert found.reward.tolist() == [1.5, 1.0, 1.5, 1.0]
    assert found.discount.tolist() == [0.25, 0.5, 0.25, 0.5]
    assert found.next_obs.tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("padded", [False, True])
def test_sequences_against_a_loop(tmp_path: Path, padded: bool) -> None:
    """A12, N1, N6: the steps of an episode up to a row, in whatever batches, and the rewards from each step on."""
    data = recorded(tmp_path / "data", padded=padded)
    view, real = ContextView(data, 6), data.real_rows()
    steps, found = data.take(real), view.take(real)
    assert mismatches(found, view.schema()) == []
    place = {(steps.env_id[i], steps.episode_id[i], steps.t[i]): i for i in range(len(real))}
    for i in range(len(real)):
        key = steps.env_id[i], steps.episode_id[i]
        for back in range(6):
            j = place.get((*key, steps.t[i] - back))
            assert found.mask[5 - back, i] == (j is not None)
            j = place[(*key, 0)] if j is None else j
            rest = [steps.reward[k] for (*other, t), k in place.items() if (*other,) == key and t >= steps.t[j]]
            assert found.return_to_go[5 - back, i] == pytest.approx(sum(rest))
            assert (found.obs[5 - back, i], found.t[5 - back, i]) == (steps.obs[j], steps.t[j])
            assert found.action[5 - back, i] == steps.action[j]


def test_sequences_longer_than_all_episodes_are_refused(tmp_path: Path) -> None:
    """Acting would see more steps than it was ever shown."""
    data = recorded(tmp_path / "data")
    longest = int(max(batch.t.max() for batch in data)) + 1
    ContextView(data, longest)
    with pytest.raises(DatasetError, match=f"context={longest + 1}: the longest episode of .* has {longest} steps"):
        ContextView(data, longest + 1)


def test_it_is_read_as_a_dataset(tmp_path: Path) -> None:
    data = recorded(tmp_path / "data")
    whole = ReturnsView(data, 0.9)
    assert (len(whole), whole.rows, whole.path) == (len(data), data.rows, data.path)
    assert whole.verify() is whole.refresh() is whole
    assert whole[0] == data[0]
    rows = whole.schema().rows()
    taken = whole.take([0, 1])
    assert {name: str(taken[name].dtype) for name in taken} == {name: c.dtype for name, c in rows.columns.items()}


def test_a_dataset_that_grows_is_read_as_it_was_when_an_epoch_began(tmp_path: Path) -> None:
    """D3: an episode that goes on in what came later is cut till then, also in a run that is resumed after it came."""
    batches = list(recorded(tmp_path / "all"))
    writer = DatasetWriter(tmp_path / "data")
    for batch in batches[:2]:
        writer.add(batch)

    def plan() -> Plan:
        return Plan(Recorded(ReturnsView(Dataset(tmp_path / "data"), 0.9), 10, epochs=3))

    early = ReturnsView(Dataset(tmp_path / "data"), 0.9)
    with plan().run(seed=1) as run:
        items = [next(run)]
        state = copy.deepcopy(run.state_dict())
        for batch in batches[2:]:
            writer.add(batch)
        items += list(run)
    with plan().run(seed=2) as resumed:
        resumed.load_state_dict(state)
        assert same(list(resumed), items[1:])
    count, late = early.rows, ReturnsView(Dataset(tmp_path / "data"), 0.9)
    first, *others = np.split(np.concatenate([item.reward for item in items]), [count, count + late.rows])
    assert sorted(first) == sorted(early.take(np.arange(count)).reward)
    assert sorted(first) != sorted(late.take(np.arange(count)).reward)
    assert all(sorted(epoch) == sorted(late.take(np.arange(late.rows)).reward) for epoch in others)
    assert early.refresh() is early
    assert same(early.take(np.arange(late.rows)), late.take(np.arange(late.rows)))

"""Minari's datasets in flowrl's columns. Skipped where Minari, the extra `data`, is not installed."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest

from flowrl.data import Batch
from flowrl.data.datasets import hdf5
from flowrl.data.datasets.minari import MinariEpisodes
from flowrl.errors import DatasetError, SchemaError
from flowrl.operators import FromDataset, NStep, Record, from_minari
from tests.minari_episodes import minari_dataset, stored


@pytest.fixture(scope="module")
def dataset() -> Any:
    return minari_dataset()


def test_an_episode_is_a_fragment_with_its_true_last_observation(dataset: Any) -> None:
    """T2, T4, T6: played again, every row is the transition that the environment made."""
    env, ends = gymnasium.make("CartPole-v1", max_episode_steps=12), []
    for seed, batch in enumerate(from_minari(dataset)):
        obs, _ = env.reset(seed=seed)
        for t, row in enumerate(batch[:, 0].split(1)):
            np.testing.assert_array_equal(row.obs[0], obs)
            obs, reward, terminated, truncated, _ = env.step(row.action[0])
            np.testing.assert_array_equal(row.next_obs[0], obs)
            assert (row.reward[0], row.terminated[0], row.truncated[0]) == (reward, terminated, truncated)
            assert (row.episode_id[0], row.env_id[0], row.t[0]) == (seed, 0, t)
        assert batch.shape == (len(batch), 1)
        ends.append((bool(terminated), bool(truncated)))
    env.close()
    assert set(ends) == {(True, False), (False, True)}, "both kinds of ends are in it"


@pytest.mark.needs("jax")
def test_what_the_collector_of_minari_records(tmp_path: Path) -> None:
    """T6: as users make datasets."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        collector = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=5))
        seen = []
        for seed in range(3):
            obs, _ = collector.reset(seed=seed)
            for _ in range(5):
                seen.append(obs)
                obs, *_ = collector.step(1)
        collector.create_dataset("test/collected-v0")
        collector.close()
        del collector
        gc.collect()  # it leaves a folder to the collector of garbage, which warns
        plan = from_minari("test/collected-v0")
        assert "from_minari(data=test/collected-v0, 3 episodes)" in plan.explain()
        np.testing.assert_array_equal(np.concatenate([batch.obs[:, 0] for batch in plan]), seen)
        with pytest.raises(
            DatasetError, match=r"no Minari dataset 'test/colected-v0' .*did you mean 'test/collected-v0'"
        ):
            from_minari("test/colected-v0")


def test_spaces_of_dictionaries_are_nested_batches() -> None:
    from minari.data_collector import EpisodeBuffer

    spaces = {"position": gymnasium.spaces.Box(0, 9, (2,), np.float32), "door": gymnasium.spaces.Discrete(3)}
    whole, one = gymnasium.spaces.Dict(spaces), gymnasium.spaces.Discrete(2)
    observations = {"position": [np.full(2, t, np.float32) for t in range(4)], "door": [0, 1, 2, 0]}
    ends = {"terminations": [False] * 3, "truncations": [False] * 3}  # an episode that was cut
    buffer = EpisodeBuffer(id=0, observations=observations, actions=[0, 1, 0], rewards=[1.0, 2.0, 3.0], **ends)
    (batch,) = from_minari(stored([buffer], None, observation_space=whole, action_space=one))
    assert batch.next_obs.position[:, 0, 1].tolist() == [1, 2, 3]
    assert batch.obs.door[:, 0].tolist() == [0, 1, 2]
    assert not (batch.terminated | batch.truncated).any()


def test_it_can_be_checked_and_learned_from(dataset: Any, tmp_path: Path) -> None:
    """Recorded once, its rows are drawn in any order."""
    plan = from_minari(dataset).for_each(NStep(3, 0.9)).for_each(Record(tmp_path / "rows"))
    assert str(plan.check()["NStep"].columns["obs"]) == "float32[B, 4]"
    recorded = Batch.cat(list(plan))
    drawn = Batch.cat(list(FromDataset(tmp_path / "rows", 16)))
    assert drawn.rows == recorded.rows == sum(len(batch) for batch in from_minari(dataset))
    assert sorted(drawn.obs.tolist()) == sorted(recorded.obs.tolist())


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", tempfile.mkdtemp())
        with pytest.raises(DatasetError, match=r"no Minari dataset 'a/b-v0' on this machine .*there are none"):
            from_minari("a/b-v0")
    with pytest.raises(DatasetError, match="expected a Minari dataset or the id of one, got 5"):
        MinariEpisodes(5)


def changed(episode: Any, name: str, **declared: Any) -> None:
    """Declare an array of an episode anew, without writing it."""
    if name in episode:
        del episode[name]
    episode.create_dataset(name, **declared)


def many_of_one(episode: Any) -> None:
    """Texts of variable length, all of which refer to the first one's bytes."""
    del episode["actions"]
    made = episode.create_dataset("actions", (10**5,), h5py.string_dtype(), fillvalue=b"x" * 60_000)
    assert made.id.get_storage_size() == 0


PACKED_TWICE = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
PACKED_TWICE.set_chunk((8,))
PACKED_TWICE.set_deflate(9)
PACKED_TWICE.set_deflate(9)

HOSTILE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "declared": (
        lambda e: changed(e, "rewards", shape=(10**12,), dtype="f8", chunks=(1_000,)),
        "with episode 0 it would take over 64 times its own bytes",
    ),
    "not chunked": (lambda e: changed(e, "rewards", shape=(10**12,), dtype="f8"), "over 64 times"),
    "large chunks": (
        lambda e: changed(e, "rewards", shape=(9,), dtype="f8", chunks=(2**28,), maxshape=(None,), compression="gzip"),
        "over 64 times",
    ),
    "beside": (lambda e: e.create_dataset("infos/x", (10**12,), "f8", chunks=(9,)), "over 64 times"),
    "many of one": (many_of_one, "over 64 times"),
    "elsewhere": (
        lambda e: e.create_dataset("infos/x", (9,), "f8", external=[("/dev/zero", 0, 72)]),
        "episode_0/infos/x is in another file or packed twice",
    ),
    "packed twice": (
        lambda e: h5py.h5d.create(e.id, b"x", h5py.h5t.NATIVE_INT8, h5py.h5s.create_simple((9,)), PACKED_TWICE),
        "episode_0/x is in another file or packed twice",
    ),
    "linked": (lambda e: e.__setitem__("x", h5py.ExternalLink("/dev/zero", "/")), "episode_0/x is a link"),
    "in itself": (lambda e: e.__setitem__("infos/x", e), "episode_0/infos/x is in an episode twice"),
    "lacking": (lambda e: e.__delitem__("rewards"), "test/cartpole-v0 cannot be read: KeyError"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_reading_takes_what_the_file_justifies(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D19: whatever it says of itself, nothing is read before that is known."""
    monkeypatch.setattr(hdf5, "MOST", 64)
    episodes = MinariEpisodes(minari_dataset.__wrapped__(2))
    change, message = HOSTILE[case]
    with h5py.File(Path(episodes.dataset.storage.data_path, "main_data.hdf5"), "a") as file:
        change(file["episode_0"])
    tracemalloc.start()
    for read in (lambda: episodes[0], lambda: episodes.take([0])):
        with pytest.raises(DatasetError, match=message) as error:
            read()
        assert "\n" not in str(error.value)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    assert len(episodes[1])


def test_pictures_take_what_they_are_once_decoded() -> None:
    """D19: many pictures of variable length may be the same bytes of a file."""
    from minari.data_collector import EpisodeBuffer

    space = gymnasium.spaces.Box(0, 255, (256, 256, 3), np.uint8)
    pictures = [np.full((256, 256, 3), t, np.uint8) for t in range(4)]
    ends = {"terminations": [False] * 3, "truncations": [False] * 3}
    buffer = EpisodeBuffer(id=0, observations=pictures, actions=[0, 1, 0], rewards=[1.0, 2.0, 3.0], **ends)
    spaces = {"observation_space": space, "action_space": gymnasium.spaces.Discrete(2)}
    episodes = MinariEpisodes(stored([buffer], None, **spaces))
    assert episodes[0].obs.shape == (3, 1, 256, 256, 3)
    with h5py.File(Path(episodes.dataset.storage.data_path, "main_data.hdf5"), "a") as file:
        picture = file["episode_0/observations"][0]
        changed(
            file["episode_0"],
            "observations",
            shape=(1_000, len(picture)),
            dtype="u1",
            fillvalue=picture[0],
            chunks=(1, 9),
        )
        file["episode_0/observations"][0] = picture
    with pytest.raises(DatasetError, match="over 1,032 times"):
        episodes[0]
    for side, message in ((9_000, "over 1,032 times"), (60_000, "cannot be read: DecompressionBombError")):
        with h5py.File(Path(episodes.dataset.storage.data_path, "main_data.hdf5"), "a") as file:
            wide = picture.copy()
            at = wide.tobytes().index(b"\xff\xc0") + 5  # where a JPEG says its height and width
            wide[at : at + 4] = np.frombuffer(np.array([side, side], ">u2").tobytes(), np.uint8)
            changed(file["episode_0"], "observations", data=np.stack([picture, picture, picture, wide]))
        with pytest.raises(DatasetError, match=message):
            episodes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_episodes": 10**12}, "total_episodes is 1000000000000, which its files cannot hold"),
        ({"total_steps": -1}, "total_steps is -1, which its files cannot hold"),
        ({"total_steps": None}, "total_steps is None, which its files cannot hold"),
        ({"action_space": ...}, "has no action_space; make the dataset again"),
        ({"data_format": "parquet"}, "how much memory 'parquet' takes"),
        ({"data_format": None}, "how much memory None takes"),
    ],
)
def test_metadata_are_believed_as_far_as_the_files_go(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D19; D17: nor is an environment made that they name."""
    storage = minari_dataset.__wrapped__(1).storage
    file = Path(storage.data_path, "metadata.json")
    told = {name: each for name, each in {**json.loads(file.read_text()), **changes}.items() if each is not ...}
    file.write_text(json.dumps(told))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(file.parents[3]))
    with pytest.raises(DatasetError, match=message):
        MinariEpisodes("test/cartpole-v0")


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_what_cannot_be_told_before_it_is_unpacked_is_read_if_python_brings_it(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D19: by a name, which a stranger may have written, it is refused."""
    made = minari_dataset(2, data_format=form)
    assert MinariEpisodes(made)[1].obs.tobytes() == MinariEpisodes(minari_dataset(2))[1].obs.tobytes()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(Path(made.storage.data_path).parents[2]))
    with pytest.raises(DatasetError, match=f"'{form}' takes cannot be told"):
        MinariEpisodes("test/cartpole-v0")


def test_observations_without_columns_are_refused() -> None:
    from minari.dataset.episode_data import EpisodeData

    from flowrl.data.datasets.minari import episode_batch

    ends = {"terminations": np.zeros(1, bool), "truncations": np.zeros(1, bool), "infos": {}}
    pair = (np.zeros(2), np.zeros(2))
    episode = EpisodeData(id=0, observations={"both": pair}, actions=np.zeros(1), rewards=np.zeros(1), **ends)
    with pytest.raises(SchemaError, match=r"obs.both of the Minari dataset is a tuple of values, which has no column"):
        episode_batch(episode)


def test_without_minari_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(DatasetError, match=r"install Minari: pip install 'flowrl-engine\[data\]'"):
        from_minari("D4RL/pen/human-v2")

"""Writers of datasets, buffers and checkpoints that are killed at random moments."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from flowrl.data import Batch, Dataset, DatasetWriter, ReplayBuffer
from flowrl.storage.checkpoint import Checkpoints

pytestmark = pytest.mark.exhaustive
KILLS = 70


def record(path: Path) -> None:
    writer = DatasetWriter(path)
    for i in count(len(writer)):
        writer.add(Batch(reward=np.full((5, 3), i), obs=np.full((5, 3, 400), i)))


def recorded(path: Path) -> int:
    dataset = Dataset(path).verify()
    assert [batch.reward[0, 0] for batch in dataset] == list(range(len(dataset)))
    return len(dataset)


def keep(path: Path) -> None:
    """A buffer that is replaced again and again."""
    for i in count(stored(path)):
        buffer = ReplayBuffer(50, seed=i)
        buffer.add(Batch(obs=np.full((50, 200), i), reward=np.zeros(50)))
        buffer.save(path)


def stored(path: Path) -> int:
    if not path.exists():
        return 0
    rows = ReplayBuffer.load(path)[:].obs
    assert (rows == rows[0, 0]).all()
    return int(rows[0, 0]) + 1


def save(path: Path) -> None:
    for i in count(saved(path)):
        Checkpoints(path).save({"numbers": np.full(20_000, i)}, step=i)


def saved(path: Path) -> int:
    """What the checkpoints that are there came to; each of them is whole."""
    found = [Checkpoints(path).load(each)["numbers"] for each in Checkpoints(path).paths()]
    assert all((numbers == numbers[0]).all() for numbers in found)
    return int(found[-1][0]) + 1 if found else 0


@pytest.mark.parametrize(("write", "read"), [(record, recorded), (keep, stored), (save, saved)])
def test_what_a_killed_writer_leaves_is_whole(
    write: Callable[[Path], None], read: Callable[[Path], int], tmp_path: Path
) -> None:
    """F2, B5: at any moment; the next one goes on from it."""
    path, draw, before = tmp_path / "written", np.random.default_rng(7), 0
    for _ in range(KILLS):
        if (pid := os.fork()) == 0:
            try:
                signal.setitimer(signal.ITIMER_REAL, float(draw.uniform(0.002, 0.2)))  # SIGALRM ends it, unheard
                write(path)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        draw.random()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGALRM
        if path.exists():
            now = read(path)
            assert now >= before
            before = now
    assert before > 10

"""Every way to fail at every stage of an environment's life, in every manager that goes on."""

from __future__ import annotations

import functools
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from flowrl.envs import AsyncSubprocessEnvManager, Manager, SubprocessEnvManager
from tests.clock_envs import TERMINATED, EchoEnv
from tests.faulty_envs import (
    AUTOMATIC_RESET,
    BUSY,
    CONSTRUCTION,
    FIRST_STEP,
    KINDS,
    LAST_STEP,
    RESET,
    STEP,
    STEPS,
    WHEN,
    Player,
    footprint,
    limits,
    one_faulty,
)

MANAGERS = {
    "together": functools.partial(SubprocessEnvManager, envs_per_process=2),
    "apart": functools.partial(SubprocessEnvManager, envs_per_process=1),
    "async": functools.partial(AsyncSubprocessEnvManager, wait_num=2),
    "async together": functools.partial(AsyncSubprocessEnvManager, envs_per_process=2, wait_num=3),
    "one process": functools.partial(SubprocessEnvManager, envs_per_process=4),
}
#: The other environments in the process of the one that fails.
BESIDE = {"together": (0,), "async together": (0,), "one process": (0, 2, 3)}
#: Each stage, each way to fail and each manager at least once; all of them are slow.
QUICK = {
    ("together", AUTOMATIC_RESET, "c_block"),
    ("together", RESET, "killed"),
    ("apart", STEP, "garbage"),
    ("apart", CONSTRUCTION, "exit"),
    ("async", STEP, "hang"),
    ("async", AUTOMATIC_RESET, "exception"),
}
#: Like "killed" and "c_block", like the step between, and like the managers before.
RARE = {"segfault", "stopped", FIRST_STEP, LAST_STEP, "async together", "one process"}


def tier(*case: str) -> Any:
    """The mark of a case."""
    return [] if case in QUICK else pytest.mark.exhaustive if RARE & {*case} else pytest.mark.slow


CASES = [
    pytest.param(*case, id="-".join(case), marks=tier(*case))
    for case in itertools.product(MANAGERS, (*WHEN, FIRST_STEP, LAST_STEP), KINDS)
]


@pytest.mark.parametrize(("kind", "when", "what"), CASES)
def test_one_fault_costs_its_episode_and_nothing_else(kind: str, when: str, what: str, tmp_path: Path) -> None:
    """F10, F15, T11: it survives, counts, names, leaves nothing behind, and waits for the deadline and no longer."""
    before = footprint()
    start = time.monotonic()
    manager: Manager = MANAGERS[kind](one_faulty(when, what, tmp_path), **limits(what))
    with manager:
        manager.launch(0)
        Player(manager).until(8)
        took = time.monotonic() - start
        [fault] = manager.drain_faults()
        episodes = manager.drain()
        assert fault.env_id == 1
        assert fault.during == {AUTOMATIC_RESET: "reset"}.get(when, "step" if when in STEPS else when)
        assert fault.kind == kind_of(when, what)
        assert (fault.seed is None) is (when == CONSTRUCTION)
        assert (fault.episode_id, fault.t) == (int(when == AUTOMATIC_RESET), STEPS.get(when, 1) - 1)
        assert "\n" not in fault.message
        if what == "exception":
            assert fault.message == "ArithmeticError: out of cheese"
            assert "_raise" in fault.traceback
        alone = what in ("exception", "garbage")
        assert fault.collateral == (() if alone else BESIDE.get(kind, ()))
        cut = 0 if when == CONSTRUCTION else 1 + len(fault.collateral)
        assert manager.cut_episodes == cut
        assert len(episodes) + cut == manager.episode_id.sum()
        assert [episode.length for episode in episodes] == [
            3 + episode.env_id * (episode.env_id != 1) for episode in episodes
        ]
        assert all(episode.return_ == sum_of_clocks(episode) for episode in episodes if not cut)
    assert took < max(limits(what).values()) + BUSY
    assert footprint() == before


def kind_of(when: str, what: str) -> str:
    if what == "garbage":
        return "exception" if when == CONSTRUCTION else "observation"
    return what if what in ("exception", "exit") else "exit" if what in ("killed", "segfault") else "timeout"


def sum_of_clocks(episode: Any) -> int:
    """What a ClockEnv gives that lives from the first episode on: its clock goes on, and jumps at each reset."""
    first = (episode.episode_id + 1) * 1000 + episode.episode_id * episode.length
    return sum(range(first + 1, first + 1 + episode.length))


class Broken(EchoEnv):
    """Once it has failed it fails for ever, as a simulator does whose connection is gone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0, [(3, TERMINATED)])
        self.folder, self.broken = folder, False

    def reset(self, **kwargs: Any) -> Any:
        if self.episode == 1 and not (self.folder / "broken").exists():
            (self.folder / "broken").touch()
            self.broken = True
        if self.broken:
            raise ConnectionError
        return super().reset(**kwargs)


def test_a_failed_reset_makes_the_environment_anew(tmp_path: Path) -> None:
    """F10: what cannot even be reset is not asked again."""
    with SubprocessEnvManager([functools.partial(Broken, tmp_path)]) as manager:
        manager.launch(0)
        Player(manager).until(9)
        assert len(manager.drain_faults()) == 1

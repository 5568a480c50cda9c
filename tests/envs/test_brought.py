"""What people bring, under every kind of manager: rows, returns and refusals are those of a plain loop."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from flowrl.data import Batch
from flowrl.envs import Manager, make_manager
from tests.brought_envs import CASES, Case, Played, Row, Running
from tests.clock_envs import around, plain

STEPS = 40
SLOW = ("async", "brought-masks", "brought-async")
_MARKS = {kind: [pytest.mark.slow] for kind in SLOW}
_MARKS["brought-async"].append(pytest.mark.filterwarnings("ignore:.*ERROR"))  # gymnasium's log of an error
CELLS = [pytest.param(name, kind, marks=_MARKS.get(kind, ())) for name, case in CASES.items() for kind in case.kinds]


#: What the user makes of several environments.
BROUGHT = {
    "brought-same": functools.partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
    "brought-next": SyncVectorEnv,
    "brought-masks": functools.partial(SyncVectorEnv, autoreset_mode=AutoresetMode.DISABLED),
    "brought-around": functools.partial(around, autoreset_mode=AutoresetMode.SAME_STEP),
    "brought-async": functools.partial(AsyncVectorEnv, context="fork"),
}


@contextmanager
def managed(case: Case, kind: str) -> Iterator[Manager]:
    """Two of its environments, launched; a vector environment of them for kinds that are brought."""
    if make := BROUGHT.get(kind):
        manager = make_manager(lambda: make([case.wrapped] * 2), 2)
    else:
        manager = make_manager(case.made, 2, case.args, wrappers=case.wrappers, kind=kind)
    with manager:
        manager.launch(seed=0)
        yield manager


def collected(manager: Manager) -> tuple[list[list[Row]], list[list[Played]], set[Running]]:
    """Rows and episodes of each environment, when each has enough steps; and how the latter stood before they ended."""
    rows: list[list[Row]] = [[] for _ in range(manager.num_envs)]
    episodes: list[list[Played]] = [[] for _ in range(manager.num_envs)]
    stood = set()
    before = [plain(manager.obs[i]) for i in range(manager.num_envs)]
    while min(map(len, rows)) < STEPS:
        result = manager.step(np.zeros((manager.num_envs, *manager.action_space.shape), manager.action_space.dtype))
        for i in range(manager.num_envs):
            if result.acted is None or result.acted[i]:
                outcome = float(result.reward[i]), bool(result.terminated[i]), bool(result.truncated[i])
                rows[i].append(Row(before[i], *outcome, plain(result.next_obs[i])))
        before = [plain(manager.obs[i]) for i in range(manager.num_envs)]
        for each in manager.drain():
            episodes[each.env_id].append(Played(each.return_, each.length, each.success))
        for i in np.flatnonzero((True if result.acted is None else result.acted) & ~manager.done).tolist():
            stood.add(Running(len(episodes[i]), *manager.so_far(i)))
    return rows, episodes, stood


def plainly(row: Row) -> Row:
    """With an observation of arrays as managers give it."""
    return row._replace(obs=plain(_rows(row.obs)), next_obs=plain(_rows(row.next_obs)))


def _rows(obs: object) -> object:
    if isinstance(obs, tuple):
        obs = {str(at): part for at, part in enumerate(obs)}
    return Batch({name: _rows(part) for name, part in obs.items()}) if isinstance(obs, dict) else np.asarray(obs)


@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_what_is_brought_is_learned_from_and_reported_as_in_a_plain_loop(name: str, kind: str) -> None:
    """R1, R3, R6, S9, T3: rows are those of what was brought; returns and wins those of the environment alone."""
    case = CASES[name]
    args = copy.deepcopy(case.args)
    if message := case.refused.get(kind, case.refused.get(family(kind))):
        with pytest.raises(Exception, match=message), managed(case, kind) as manager:
            collected(manager)
        return
    with managed(case, kind) as manager:
        rows, episodes, stood = collected(manager)
    learned, as_learned = case.learned(STEPS)
    known = kind not in case.as_learned and family(kind) not in case.as_learned
    right = case.episodes(STEPS)[: len(episodes[0])] if known else as_learned
    assert len(right) > 2
    assert stood <= case.stood(known)
    for mine, ended in zip(rows, episodes):
        assert mine[:STEPS] == list(map(plainly, learned))
        assert ended[: len(right)] == right
    assert manager.raw_returns is (known and case.sure(kind))
    assert case.args == args


def family(kind: str) -> str:
    return kind.partition("-")[0]

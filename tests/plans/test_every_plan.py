"""Every built-in plan: deterministic, blind to taps, and continued from disk in another run as if nothing had been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from flowrl import Plan, Run
from flowrl.checkpoint import load_checkpoint, save_checkpoint
from flowrl.operators.metrics import CLOCK_KEYS
from flowrl.paths import paths
from flowrl.plan_file import builtin_plans, load_plan_file
from flowrl.rollout import WorkerSet
from flowrl.testing import same

#: What makes a plan quick, where it has such a setting.
SMALLER = {"envs_per_worker": 2, "learning_starts": 20, "batch_size": 8, "replay_ratio": 4.0, "report_every": 20}
ITEMS = 4


def make(name: str) -> tuple[WorkerSet, Plan]:
    plan_file = load_plan_file(name)
    known = {field.name for field in attrs.fields(plan_file.Config)}
    return plan_file.build(plan_file.Config(**{key: value for key, value in SMALLER.items() if key in known}))


def take(run: Run, count: int) -> list[dict[str, Any]]:
    results = [next(run) for _ in range(count)]
    return [{key: value for key, value in result.items() if key not in CLOCK_KEYS} for result in results]


def look(item: Any) -> None:
    """A tap that does nothing."""


@pytest.mark.parametrize("name", builtin_plans())
@pytest.mark.parametrize(("after", "steps"), [(0, 3), (1, 0), (2, 7)])
def test_it_goes_on_from_disk(name: str, after: int, steps: int, tmp_path: Path) -> None:
    """D1, D3, D5: from between two results and from between two steps; nothing is shared but the file."""
    workers, plan = make(name)
    with workers, plan.run(seed=0) as run:
        whole, end = take(run, ITEMS), run.state_dict()
    workers, plan = make(name)
    with workers, plan.run(seed=0) as run:
        assert same(take(run, after), whole[:after])
        for _ in range(steps):
            after += isinstance(run.step(), dict)
        state = run.state_dict()
        first, second = (save_checkpoint(tmp_path / each, run.state_dict()) for each in "ab")
    assert [path.read_bytes() for path in sorted(first.glob("[0-9]*"))] == [
        path.read_bytes() for path in sorted(second.glob("[0-9]*"))
    ], "D5"
    loaded = load_checkpoint(first, trusted=True)
    assert same(loaded, state)
    workers, plan = make(name)
    with workers, plan.run(seed=123) as run:
        run.load_state_dict(loaded)
        assert same(take(run, ITEMS - after), whole[after:])
        assert same(run.state_dict(), end)


@pytest.mark.parametrize("name", builtin_plans())
def test_taps_change_nothing(name: str) -> None:
    """D4: neither results nor state, behind any operator."""
    found = []
    for tapped in (False, True):
        workers, plan = make(name)
        for path in paths(plan).values() if tapped else ():
            plan = plan.tap(path, look)
        with workers, plan.run(seed=0) as run:
            found.append((take(run, 2), run.state_dict()))
    assert same(*found)

"""GameWorker: every row of every seat against an obvious loop over whole games, whoever steps them."""

from __future__ import annotations

import pytest

from flowrl.data.multi_agent import MultiAgentBatch
from flowrl.data.steps import real_steps
from tests.games import ARRANGEMENTS, Seats, steps_of
from tests.managers import FROM_FACTORIES, SLOW

CASES = [pytest.param("local", name, id=f"local-{name}") for name in ARRANGEMENTS]
CASES += [
    pytest.param(manager, name, id=f"{manager}-{name}", marks=pytest.mark.slow if manager in SLOW else ())
    for manager in FROM_FACTORIES
    if manager != "local"
    for name in ("memory", "by match")
]


@pytest.mark.parametrize(("manager", "name"), CASES)
def test_every_row_is_that_of_an_obvious_loop(manager: str, name: str) -> None:
    """M1, M2, M4, M5, M7, T7, T8, T11: rewards add up between own turns, over the ends of fragments; env_steps are
    those of games, rows those of seats."""
    how, seats = ARRANGEMENTS[name], Seats()
    worker, lengths = how.worker(FROM_FACTORIES[manager]), dict[int, int]()
    before = [0, 0, 0]
    try:
        for amount in ({"steps": 1}, {"steps": 4}, {"rows": 23}, {"steps": 60}, {"rows": 9}, {"steps": 2}):
            batch = worker.sample(**amount)
            now = steps_of(worker, lengths)
            assert worker.env_steps_of(batch) == sum(now) - sum(before)
            assert worker.env_steps == sum(now)
            assert isinstance(batch, MultiAgentBatch) == (len(worker.policies) > 1)
            rows = batch.rows if isinstance(batch, MultiAgentBatch) else real_steps(batch)
            if "rows" in amount:
                assert amount["rows"] <= rows < amount["rows"] + 9
            elif len(worker.policies) > 1:
                assert batch.env_steps == worker.env_steps_of(batch)
                assert [b - a for a, b in zip(before, now)] == [amount["steps"]] * 3
            before = now
            seats.add(batch)
            seats.check(how, now)
    finally:
        worker.close()

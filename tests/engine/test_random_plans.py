"""Random plans: what they emit, and that every resume goes on as if nothing had been."""

from __future__ import annotations

import pytest

from flowrl.errors import Deadlock
from flowrl.testing import check_plan
from tests.engine.random_plans import Maker


def emits_what_it_must(seeds: range) -> None:
    for seed in seeds:
        plan, expected = Maker(seed, exact=True).plan()
        with plan.run() as run:
            assert list(run) == expected, f"the plan of seed {seed}:\n{plan.explain()}"


def resumes(seeds: range, steps: int) -> int:
    """The number of plans that come to an end; forks whose readers drift too far apart do not."""
    ended = 0
    for seed in seeds:
        try:
            with Maker(seed, exact=False).plan()[0].run(seed=seed) as run:
                list(run)
        except Deadlock:
            continue
        try:
            check_plan(lambda: Maker(seed, exact=False).plan()[0], steps=steps, seed=seed)  # noqa: B023
        except AssertionError as error:
            raise AssertionError(f"the plan of seed {seed}: {error}") from error
        ended += 1
    return ended


def test_random_plans_emit_what_plain_python_computes() -> None:
    """F2: item by item, through forks, joins, turns by weights, batches, calls and prefetches."""
    emits_what_it_must(range(25))


def test_random_plans_resume_exactly() -> None:
    """D1, D3, D4, D5: with queues, blocked branches and random numbers too."""
    assert resumes(range(12), steps=3) > 6


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_many_random_plans_emit_what_plain_python_computes(part: int) -> None:
    """F2."""
    emits_what_it_must(range(1_000 + 500 * part, 1_500 + 500 * part))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_many_random_plans_resume_exactly(part: int) -> None:
    """D1, D3, D4, D5: at ten places each."""
    assert resumes(range(1_000 + 320 * part, 1_320 + 320 * part), steps=10) > 200

"""Every built-in plan: exact, resumable and counted; test_settings.py is about what governs it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl import Run
from flowrl.engine.graph import paths
from flowrl.operators import Evaluate
from flowrl.policies import Policy
from flowrl.storage.checkpoint import load_checkpoint, save_checkpoint
from flowrl.testing import check_plan, same
from flowrl.trainer.plan_file import builtin_plans
from tests.plans.small import FAMILIES, KINDS, SMALL, final, first, make

PLANS = sorted(SMALL)
RESULTS = 6

#: Of each kind one: replay with priorities, a memory, old fragments, sequences beside demonstrations, actor and critic.
SHAPES = ("dqn prioritized", "ppo recurrent", "impala replayed", "r2d3", "sac")


def test_none_is_forgotten() -> None:
    assert {name.split()[0] for name in PLANS} == set(builtin_plans())
    assert kinds(KINDS) == kinds(PLANS)


def kinds(names: Iterable[str]) -> set[type]:
    """The classes of the policies of these variants."""
    return {type(each) for name in names for each in make(name)[0].resources if isinstance(each, Policy)}


@pytest.mark.parametrize("name", first(PLANS, of=FAMILIES, rest="slow"))
def test_the_contract_of_plans(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1, D3, D4, D5, D6, D12, P6, Q7, S3: the same seed gives the same run, and another seed another one; resumed
    from the disk at steps drawn from all of it, before and after learning starts, it ends as if nothing had happened;
    taps behind every operator, and evaluation, change nothing; global generators are left alone.
    """
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no machine dies here
    before = global_generators()
    results, state = check_plan(lambda: make(name)[1], items=RESULTS, steps=6, through=partial(through_disk, tmp_path))
    assert same(before, global_generators()), "a global generator was drawn from (D6)"

    others, _ = final(name, 3, seed=1)
    assert not same(others, results[:3]), "another seed gives the same results (D1)"

    workers, plan = make(name)
    plan = plan.for_each(Evaluate(workers, every=2 * SMALL[name]["report_every"], episodes=2, train_ratio=0.0))
    with workers, plan.run(seed=0) as run:
        evaluated = [next(run) for _ in range(RESULTS)]
        taken = run.state_dict()
        assert same(taken["resources"], state["resources"]), "evaluation changes training (S3)"
        kept = copy.deepcopy(taken)
        next(run)
        assert same(taken, kept), "the run changes a state that was taken from it (D12)"
    assert sum("eval_return" in result for result in evaluated) > 1


def through_disk(folder: Path, run: Run) -> dict[str, Any]:
    """The state of a run as it is read from one of two checkpoints of it."""
    saved = [save_checkpoint(folder / name, run.state_dict()) for name in ("once", "twice")]
    once, twice = ([path.read_bytes() for path in sorted(each.glob("[0-9]*"))] for each in saved)
    assert once == twice != [], "two checkpoints taken in a row differ (D5)"
    return load_checkpoint(saved[0], trusted=True)


def global_generators() -> Any:
    return copy.deepcopy((np.random.get_state(), torch.get_rng_state()))  # noqa: NPY002


@pytest.mark.parametrize(
    "name",
    [
        *first(SHAPES, of=["impala replayed"], rest="slow"),
        *first([name for name in PLANS if name not in SHAPES], of=()),
    ],
)
def test_the_contract_of_plans_at_every_step(name: str) -> None:
    """D1, D3, D4, D5."""
    check_plan(lambda: make(name)[1], items=4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PLANS)
def test_a_tap_alone_changes_nothing(name: str) -> None:
    """D4: neither items nor state, behind each operator."""
    plain, state = final(name, 6)
    workers, plan = make(name)
    workers.close()
    for where in list(paths(plan).values())[:-1]:
        seen: list[Any] = []
        tapped, tapped_state = final(name, 6, edit=lambda plan, where=where, seen=seen: plan.tap(where, seen.append))
        assert seen
        assert same(plain, tapped)
        assert same(state, tapped_state)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PLANS)
def test_resumed_at_many_items_it_equals_the_uninterrupted_run(name: str) -> None:
    """D3, D5, P6, Q7: three times as many steps, of a longer run."""
    check_plan(lambda: make(name)[1], items=10, steps=24, seed=5)

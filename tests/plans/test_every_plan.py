"""Every built-in plan: exact, resumable, counted, and governed by its configuration."""

from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.engine.graph import paths
from flowrl.storage.checkpoint import load_checkpoint, save_checkpoint
from flowrl.testing import check_plan, same
from flowrl.trainer.config import Configuration
from flowrl.trainer.offline import OfflineConfig
from flowrl.trainer.plan_file import builtin_plans, load_plan_file
from tests.plans.matters import MATTERS, OTHERS
from tests.plans.small import SMALL, final, make, weights

PLANS = sorted(SMALL)


def test_none_is_forgotten() -> None:
    assert {name.split()[0] for name in PLANS} == set(builtin_plans())


@pytest.mark.parametrize("name", PLANS)
def test_the_same_seed_gives_the_same_parameters(name: str) -> None:
    """D1: bit for bit; another seed gives others."""
    (first, state), (again, state_again), (_, other) = final(name, 8), final(name, 8), final(name, 8, seed=1)
    assert same(first, again)
    assert same(state, state_again)
    assert not same(weights(state), weights(other))


@pytest.mark.parametrize("name", PLANS)
def test_resumed_at_random_items_it_equals_the_uninterrupted_run(name: str) -> None:
    """D3, D5, P6, Q7: mid-fragment, mid-round-robin, before and after learning starts; only the state is shared."""
    results, end = final(name, 10)
    workers, plan = make(name)
    draw = np.random.default_rng(5)
    with workers, plan.run(seed=0) as run:
        steps, resumes = 0, 0
        seen: list[Any] = []
        for at in sorted(draw.choice(600, 24, replace=False)):
            while steps < at and len(seen) < 10:
                item = run.step()
                seen += [item] if isinstance(item, dict) else []
                steps += 1
            if len(seen) >= 10:
                break
            state = copy.deepcopy(run.state_dict())
            assert same(state, run.state_dict())  # D5
            other_workers, other = make(name)
            with other_workers, other.run(seed=123) as resumed:
                resumed.load_state_dict(state)
                assert same([next(resumed) for _ in range(10 - len(seen))], results[len(seen) :])
                assert same(resumed.state_dict(), end)
            resumes += 1
        assert resumes


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("after", "steps"), [(0, 3), (1, 0), (2, 7)])
def test_it_goes_on_from_disk(name: str, after: int, steps: int, tmp_path: Path) -> None:
    """D3, D5: from between two results and from between two steps; nothing is shared but the files."""
    whole, end = final(name, 7)
    workers, plan = make(name)
    with workers, plan.run(seed=0) as run:
        assert same(list(islice(run, after)), whole[:after])
        for _ in range(steps):
            after += isinstance(run.step(), dict)
        state = run.state_dict()
        first, second = (save_checkpoint(tmp_path / each, run.state_dict()) for each in "ab")
    parts = [[path.read_bytes() for path in sorted(folder.glob("[0-9]*"))] for folder in (first, second)]
    assert parts[0]
    assert parts[0] == parts[1]  # D5
    loaded = load_checkpoint(first, trusted=True)
    assert same(loaded, state)
    workers, plan = make(name)
    with workers, plan.run(seed=123) as run:
        run.load_state_dict(loaded)
        assert same(list(islice(run, 7 - after)), whole[after:])
        assert same(run.state_dict(), end)


@pytest.mark.parametrize("name", PLANS)
def test_a_tap_changes_nothing(name: str) -> None:
    """D4: neither items nor state, behind any operator."""
    plain, state = final(name, 6)
    workers, plan = make(name)
    workers.close()
    for where in list(paths(plan).values())[:-1]:
        seen: list[Any] = []
        tapped, tapped_state = final(name, 6, edit=lambda plan, where=where, seen=seen: plan.tap(where, seen.append))
        assert seen
        assert same(plain, tapped)
        assert same(state, tapped_state)


@pytest.mark.parametrize("name", PLANS)
def test_the_contract_of_plans(name: str) -> None:
    """D1, D3, D4, D5 at every single step, and a tap behind every operator at once."""
    check_plan(lambda: make(name)[1], items=4)


@pytest.mark.parametrize("name", PLANS)
def test_evaluating_changes_nothing_in_training(name: str) -> None:
    """S3: with and without evaluation, the parameters are the same."""
    from flowrl.operators import Evaluate

    _, plain = final(name, 6)
    workers, plan = make(name)
    with workers, plan.for_each(Evaluate(workers, every=SMALL[name]["report_every"], episodes=3)).run(seed=0) as run:
        results = [next(run) for _ in range(6)]
        assert all("eval_return" in result for result in results[1:])
        assert same(run.state_dict()["resources"], plain["resources"])


@pytest.mark.parametrize("name", PLANS)
def test_global_generators_are_left_alone(name: str) -> None:
    """D6: flowrl draws from its own generators only."""
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    final(name, 4)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(torch_before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "changed", "beside"), [(name, *case) for name, cases in MATTERS.items() for case in cases]
)
def test_every_setting_matters(name: str, changed: dict[str, Any], beside: dict[str, Any]) -> None:
    """What the configuration says reaches the parts: another value gives other weights."""
    usual, other = final(name, 10, **beside), final(name, 10, **{**beside, **changed})
    assert not same(weights(usual[1]), weights(other[1]))


# Settings of which a plan takes one value alone, and why is tested elsewhere.
FIXED = {"rnd_dqn": {"n_step"}}


@pytest.mark.parametrize("name", builtin_plans())
def test_no_setting_is_forgotten(name: str) -> None:
    """What one plan has of another's settings is a case of that one."""
    import attrs

    config = load_plan_file(name).Config
    anothers = config.__base__ not in (Configuration, OfflineConfig)
    known = {field.name for field in attrs.fields(config) if not (anothers and field.inherited)}
    cases = [case for variant in PLANS if variant.split()[0] == name for case in MATTERS.get(variant, [])]
    known -= {"envs_per_worker"} if config.clock == "updates" else set()  # of those that evaluate
    assert known - OTHERS - FIXED.get(name, set()) == {key for changed, _ in cases for key in changed}

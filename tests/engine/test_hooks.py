"""Hooks are taps: before and after an operator, before and after a run."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl import from_items, from_workers
from flowrl.errors import PlanError
from tests.plans.small import final
from tests.plans.small import weights as weights_in


def double(item: int) -> int:
    return 2 * item


def test_a_tap_looks_at_what_comes_to_an_operator_or_at_what_leaves_it() -> None:
    seen: list[tuple[str, int]] = []
    plan = from_items([1, 2]).for_each(double).for_each(str)
    plan = plan.tap("double", lambda item: seen.append(("before", item)), before=True)
    plan = plan.tap("double", lambda item: seen.append(("after", item)))
    assert list(plan) == ["2", "4"]
    assert seen == [("before", 1), ("after", 2), ("before", 2), ("after", 4)]


def test_there_must_be_one_place_before_it() -> None:
    with pytest.raises(PlanError, match="has 0 inputs"):
        from_items([1], name="source").tap("source", print, before=True)


def test_a_run_is_begun_and_ended_around_its_items() -> None:
    seen: list[Any] = []
    plan = from_items([1, 2]).for_each(seen.append)
    plan = plan.around(lambda run: seen.append(("opened", run.closed)), lambda run: seen.append(("ends", run.closed)))
    with plan.run() as run:
        assert list(run) == [None, None]
    run.close()
    assert seen == [("opened", False), 1, 2, ("ends", False)]


def test_what_ends_a_run_is_called_after_an_error_too_and_can_read_it() -> None:
    seen: list[dict[str, int]] = []
    plan = (
        from_items([1, 0]).for_each(lambda x: 1 // x).around(after=lambda run: seen.append(run.state_dict()["items"]))
    )
    with pytest.raises(ZeroDivisionError), plan.run() as run:
        list(run)
    assert len(seen) == 1


def test_a_run_that_a_hook_refuses_is_closed() -> None:
    plan = from_items([1]).around(before=lambda run: 1 // 0, after=lambda run: pytest.fail("it never began"))
    with pytest.raises(ZeroDivisionError):
        plan.run()


def test_an_error_of_the_last_hook_leaves_the_run_closed() -> None:
    """F15: what it began has ended."""
    run = from_items([1]).around(after=lambda run: 1 // 0).run()
    with pytest.raises(ZeroDivisionError):
        run.close()
    assert run.closed


def test_a_run_is_around_what_is_gathered() -> None:
    plan = from_workers(object(), [1])
    with pytest.raises(PlanError, match="on the workers"):
        plan.around()


def test_hooks_around_each_update_and_the_run_change_nothing() -> None:
    """D4."""
    updates: list[str] = []

    def edit(plan: Any) -> Any:
        plan = plan.tap("TrainOneStep", lambda batch: updates.append("before"), before=True)
        plan = plan.tap("TrainOneStep", lambda scalars: updates.append("after"))
        return plan.around(lambda run: updates.append("begin"), lambda run: updates.append("end"))

    plain, hooked = final("dqn", 4), final("dqn", 4, edit=edit)
    assert hooked[0] == plain[0]
    assert hooked[1]["items"] == plain[1]["items"]
    for name, value in weights_in(plain[1])["modules"]["model"].items():
        assert (weights_in(hooked[1])["modules"]["model"][name] == value).all()
    assert updates[:3] == ["begin", "before", "after"]
    assert updates[-1] == "end"
    assert updates.count("before") == updates.count("after") == weights_in(plain[1])["version"]

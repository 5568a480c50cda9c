"""Results: the end of a plan."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from flowrl import Plan, context, from_items, operator
from flowrl.data import Batch
from flowrl.engine.context import Context
from flowrl.engine.merge import FromBranch
from flowrl.errors import SchemaError
from flowrl.learners.training import LAG
from flowrl.operators import (
    Concurrently,
    ParallelRollouts,
    Report,
    Sequentially,
    StandardMetricsReporting,
    debug_print,
)
from flowrl.operators.metrics import CLOCK_KEYS, LONG_WITHOUT_EPISODE, TIMERS
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan
from tests.clock_envs import TERMINATED, TRUNCATED, clock_envs
from tests.scripted import ScriptedPolicy


def report_with(context: Context, every: int = 10) -> Report:
    report = Report(every)
    report.context = context
    return report


def test_a_result_has_counters_recent_episodes_and_mean_scalars() -> None:
    """F12, S1: counters by unit; means of episodes and of the learner's scalars since the last result."""
    context = Context()
    report = report_with(context)
    assert report({"loss": 1.0}) == []
    context.count("env_steps", 12)
    context.count("inserted", 4)
    context.count("sampled", 8)
    context.record("episode_return", 1.0, 3.0)
    context.record("episode_length", 5, 7)
    (result,) = report({"loss": 2.0})
    assert all(result.pop(key) >= 0 for key in ("seconds", "steps_per_second"))
    assert result == {
        "env_steps": 12,
        "inserted": 4,
        "sampled": 8,
        "episodes": 2,
        "episode_return": 2.0,
        "episode_length": 6.0,
        "ratio": 2.0,
        "loss": 1.5,
    }
    context.count("env_steps", 8)
    context.count("inserted", 5)
    context.count("sampled", 5)
    (result,) = report({"loss": 5.0})
    assert (result["loss"], result["episodes"], result["episode_return"], result["ratio"]) == (5.0, 2, 2.0, 1.0)


def test_what_operators_record_is_in_the_results() -> None:
    """F12: the mean since the last result of every name, of its numbers; counters and scalars keep their names."""
    context = Context()
    report = report_with(context)
    context.count("env_steps", 10)
    context.record("entropy", 1.0, np.float32(2.0), 3)
    context.record("note", "a word")
    context.record("env_steps", 99)
    context.record("loss", 99.0)
    (result,) = report({"loss": 1.0})
    assert (result["entropy"], result["env_steps"], result["loss"]) == (2.0, 10, 1.0)
    assert "note" not in result
    context.count("env_steps", 10)
    (result,) = report({"loss": 1.0})
    assert "entropy" not in result, "nothing since"


@operator
class Learn:
    """One update of a learner per item."""

    provides = ("scalars",)
    learns: Any
    loss: float
    context: Context = context()

    def __call__(self, item: Any) -> dict[str, float]:
        self.context.learned({"updates": 1}, {LAG: [np.array([self.loss])]})
        return {"loss": self.loss}


def learners() -> dict[str, tuple[Plan, dict[str, float]]]:
    """Plans, with what their results say about losses and updates."""
    ppo, dqn = object(), object()

    def of(learner: Any, loss: float, updates: int) -> Plan:
        return from_items([0] * updates).for_each(Learn(learner, loss))

    apart = {"ppo": of(ppo, 1.0, 2), "dqn": of(dqn, 100.0, 3)}
    counted = {"updates": 5, "updates/ppo": 2, "updates/dqn": 3}
    scalars = {"loss/ppo": 1.0, "loss/dqn": 100.0}
    nested = Concurrently({"ppo": of(ppo, 1.0, 2), "other": Concurrently([of(dqn, 100.0, 3), from_items([0])])})
    plain = {"ppo": from_items([{"loss": 1.0}] * 2), "dqn": from_items([{"loss": 100.0}] * 3)}
    names = {"ppo": plain["ppo"], "model": from_items([{"loss_of_model": 5.0}])}
    deeper = {"a2c": from_items([{"loss": 7.0}]), "both": Concurrently(plain)}
    one = {"first": of(ppo, 1.0, 1), "then": of(ppo, 4.0, 2)}
    three = Concurrently({"a2c": of(object(), 7.0, 1), "both": Concurrently(apart)})
    return {
        "two": (Concurrently(apart), scalars | counted),
        "two, one after the other": (Sequentially(apart), scalars | counted),
        "two, of which one is heard": (Concurrently(apart, output_indexes=["dqn"]), {"loss": 100.0} | counted),
        "a branch of branches": (
            nested,
            {"loss/ppo": 1.0, "loss/other": 100.0, "updates": 5, "updates/ppo": 2, "updates/other": 3},
        ),
        "three, merged in twos": (
            three,
            {"loss/a2c": 7.0, "loss/both.ppo": 1.0, "loss/both.dqn": 100.0}
            | {"updates": 6, "updates/a2c": 1, "updates/both.ppo": 2, "updates/both.dqn": 3},
        ),
        "one in two phases": (
            Sequentially({"first": of(ppo, 1.0, 1), "then": of(ppo, 4.0, 2)}),
            {"loss": 3.0, "updates": 3},
        ),
        "two functions": (Concurrently(plain), scalars),
        "two functions behind a tap and a filter": (Concurrently(plain).tap("Concurrently", str).filter(bool), scalars),
        "three functions, merged in twos": (
            Concurrently(deeper),
            {"loss/a2c": 7.0, "loss/both.ppo": 1.0, "loss/both.dqn": 100.0},
        ),
        "two functions in two phases": (Sequentially(plain), {"loss": 302 / 5}),
        "two functions with scalars of other names": (Concurrently(names), {"loss": 1.0, "loss_of_model": 5.0}),
        "two functions before another one": (Concurrently(plain).for_each(dict), {"loss": 302 / 5}),
        "one in two branches": (Concurrently(one), {"loss": 3.0, "updates": 3}),
        "one in two branches, and a function": (
            Concurrently({**one, "dqn": plain["dqn"]}),
            {"loss/then": 3.0, "loss/dqn": 100.0, "updates": 3},
        ),
        "two that train themselves": (
            Concurrently([of(None, 1.0, 1), of(None, 3.0, 1)]),
            {"loss/0": 1.0, "loss/1": 3.0, "updates": 2, "updates/0": 1, "updates/1": 1},
        ),
    }


@pytest.mark.parametrize("case", learners())
def test_several_learners_have_scalars_and_counters_of_their_own(case: str) -> None:
    """F16, D3: each by its branch; one learner's have no such name."""
    plan, expected = learners()[case]
    (result,) = plan.combine(Report(1_000))
    assert {name: value for name, value in result.items() if name.startswith(("loss", "updates"))} == expected
    counted = {name for name in expected if name.startswith("updates")}
    lags = {name.replace("updates", LAG) for name in (counted - {"updates"} or counted)}
    assert {name for name in result if name.partition("/")[0] == LAG} == lags
    timeless = lambda item: {name: value for name, value in item.items() if name not in CLOCK_KEYS}  # noqa: E731
    check_plan(lambda: learners()[case][0].combine(Report(1_000)).for_each(timeless))


def test_scalars_of_branches_stay_apart_from_the_first_result_that_both_are_in() -> None:
    """F16: also in a result with those of one of them."""
    report, results = Report(1_000), []
    for branches in (["ppo"], ["dqn", "ppo"], ["dqn"], []):
        for branch in branches:
            report(FromBranch({"loss": len(branch + branches[0])}, branch))
        results.append({name: value for name, value in report.result().items() if "loss" in name})
    assert results == [{"loss": 6.0}, {"loss/dqn": 6.0, "loss/ppo": 6.0}, {"loss/dqn": 6.0}, {}]


def test_timers_are_the_seconds_that_operators_were_busy() -> None:
    """D4: of each operator of this process since the last result; all else stays."""
    results: dict[bool, list[Any]] = {}
    busy: dict[str, float] = {}
    for timers in (True, False):
        branches = {"left": from_items([{"loss": 1.0}] * 8).for_each(Learn(None, 1.0)), "right": from_items([1, 2])}
        plan = Concurrently(branches).tap("Concurrently", str)
        with plan.combine(Report(2, unit="updates", timers=timers)).run() as run:
            results[timers] = list(run)
            busy = busy or {meter.path: meter.busy for meter in run.meters()}
    timed = [{key: result.pop(key) for key in list(result) if key.startswith(TIMERS)} for result in results[True]]
    names = {"left.Items", "left.Learn", "right.Items", "Concurrently", "Report"}
    assert [set(each) for each in timed] == [{TIMERS + name for name in names}] * 4
    assert all(seconds >= 0 for each in timed for seconds in each.values())
    assert sum(each[f"{TIMERS}left.Learn"] for each in timed) == pytest.approx(busy["left.Learn"])
    keep = lambda result: {name: value for name, value in result.items() if name not in CLOCK_KEYS}  # noqa: E731
    assert list(map(keep, results[True])) == list(map(keep, results[False]))


@pytest.mark.parametrize(
    ("scalars", "message"),
    [
        ({"priorities/dqn": Batch(index=np.arange(2))}, "'priorities/dqn' is a Batch.*: put UpdatePriorities"),
        ({"best": "first"}, "'best' is a str: remove it"),
        ({"loss": 1.0, "kl": None}, "'kl' is a NoneType: remove it"),
    ],
)
def test_what_is_no_number_is_refused(scalars: Any, message: str) -> None:
    """F9: such as priorities that no operator writes back."""
    with pytest.raises(SchemaError, match=f"Report averages numbers, but {message}"):
        Report(10)(scalars)


def test_all_episodes_are_counted() -> None:
    """F12: more of them between two results than the records keep."""
    with WorkerSet(clock_envs([[(1, TERMINATED)]]), lambda *spaces: ScriptedPolicy(), envs_per_worker=1) as workers:
        plan = StandardMetricsReporting(ParallelRollouts(workers, steps=50), workers, {"report_every": 12_000})
        with plan.run() as run:
            assert next(run)["episodes"] == run.counters["episodes"] == 12_000


def test_results_keep_to_their_schedule_and_one_closes_the_stream() -> None:
    """The first at or after every multiple; what is left comes at the end, and nothing twice."""
    context = Context()
    report = report_with(context)
    steps = []
    for _ in range(10):
        context.count("env_steps", 7)
        steps += [result["env_steps"] for result in report("no scalars")]
    assert steps == [14, 21, 35, 42, 56, 63, 70]
    assert report.finish() == []
    context.count("env_steps", 3)
    assert [result["env_steps"] for result in report.finish()] == [73]


def test_a_bound_of_the_budget_is_reported_at_once_and_updates_count_before_the_first_step() -> None:
    """F12: so that a run ends there, and that learning from demonstrations alone is seen."""
    context = Context()
    report, found = report_with(context), []
    context.bounds |= {("updates", 27), ("env_steps", 13)}
    for _ in range(9):
        context.count("updates", 4)
        found += [(result["env_steps"], result["updates"]) for result in report({"loss": 1.0})]
    assert found == [(0, 12), (0, 20), (0, 28), (0, 32)], "every ten, and 27"
    for _ in range(6):
        context.count("env_steps", 4)
        found += [(result["env_steps"], result["updates"]) for result in report({"loss": 1.0})]
    assert found[4:] == [(12, 36), (16, 36), (20, 36)], "every ten, and 13"


def test_the_share_of_wins_stands_beside_the_share_that_is_judged() -> None:
    """S9: of the environment and of agents; nothing where no episode says."""
    context = Context()
    report = report_with(context)
    context.count("env_steps", 10)
    context.record("success_rate", None)
    assert not {"success_rate", "judged"} & report(None)[0].keys()
    context.count("env_steps", 10)
    context.record("success_rate", 1.0, 0.0, 1.0)
    context.record("win_rate/left", 1.0, None)
    (result,) = report(None)
    assert (result["success_rate"], result["judged"]) == (pytest.approx(2 / 3), 0.75)
    assert (result["win_rate/left"], result["judged/left"]) == (1.0, 0.5)


def test_training_tells_its_wins() -> None:
    """S9, S5: of the episodes of the clock, those that terminate are won."""
    ends = clock_envs([[(1, TERMINATED)], [(3, TRUNCATED)]])
    with WorkerSet(ends, lambda *spaces: ScriptedPolicy(), envs_per_worker=2) as workers:
        plan = StandardMetricsReporting(ParallelRollouts(workers, steps=8), workers, {"report_every": 12})
        with plan.run() as run:
            result = next(run)
    assert (result["episodes"], result["success_rate"], result["judged"]) == (10, 0.8, 1.0)


def test_before_the_first_episode_there_is_no_return() -> None:
    """T10: None, not zero; and after a long time without one the log says so."""
    context = Context()
    context.count("env_steps", 10)
    (result,) = report_with(context)(None)
    assert result["episode_return"] is None
    assert result["episodes"] == 0


def test_a_long_time_without_an_episode_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """T10."""
    context = Context()
    context.count("env_steps", LONG_WITHOUT_EPISODE)
    with caplog.at_level(logging.WARNING, "flowrl"):
        report_with(context)(None)
    assert "no episode has ended in 100000 env steps" in caplog.text


SUMMARIES: dict[str, tuple[Any, str]] = {
    "numbers": ({"loss": 0.53125, "updates": 3, "goal": None}, "loss=0.5312  updates=3  goal=None"),
    "inner tables": ({"a": {"loss": np.float32(0.5)}, "b": {"loss": torch.tensor(2.0)}}, "a.loss=0.5  b.loss=2"),
    "columns": (
        Batch(obs=np.arange(6, dtype=np.float32).reshape(2, 3), done=[True, False], info={"x": [-1, 5]}),
        "Batch\n  obs     float32[2, 3]  min 0  mean 2.5  max 5\n"
        "  done    bool[2]        min 0  mean 0.5  max 1\n  info.x  int64[2]       min -1  mean 2  max 5",
    ),
    "both": ({"n": 1, "x": torch.tensor([1, 2])}, "dict n=1\n  x  torch.int64[2]  min 1  mean 1.5  max 2"),
    "not finite": ({"x": np.array([np.inf, -np.inf])}, "dict\n  x  float64[2]  min -inf  mean nan  max inf"),
    "no rows, no numbers": (
        {"x": np.zeros((0, 2)), "s": np.array(["a"])},
        "dict\n  x  float64[0, 2]\n  s  <U1[1]",
    ),
    "a list": ([{"loss": 1.5}, {}], "list of 2, the first of which is loss=1.5"),
    "something large": ({"x": list(range(99))}, "x=list of 99"),
}


@pytest.mark.parametrize("case", SUMMARIES)
def test_debug_print_shows_values_and_passes_on(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    item, text = SUMMARIES[case]
    assert debug_print(item) is item
    assert capsys.readouterr().out == f"{text}\n"

"""Results, evaluation inside a plan, and when to stop."""

from __future__ import annotations

import itertools
import logging
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl import Plan, context, from_items, operator
from flowrl.data import Batch
from flowrl.engine.context import Context
from flowrl.errors import PlanError, SchemaError
from flowrl.learners.training import LAG
from flowrl.operators import (
    Concurrently,
    Confirm,
    Evaluate,
    ParallelRollouts,
    Report,
    Sequentially,
    StandardMetricsReporting,
    StopWhen,
    debug_print,
)
from flowrl.operators.metrics import CLOCK_KEYS, LONG_WITHOUT_EPISODE, TIMERS
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan, same
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
    assert all(result.pop(key) >= 0 for key in CLOCK_KEYS)
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


def test_stop_when_a_bound_is_reached() -> None:
    results = [{"env_steps": n, "eval_return": score} for n, score in [(1, None), (2, 5.0), (3, 9.0), (4, 9.0)]]
    assert list(from_items(results).for_each(StopWhen({"eval_return": 9}))) == results[:3]
    assert list(from_items(results).for_each(StopWhen({"confirmed_return": 9, "env_steps": 2}))) == results[:2]
    assert list(from_items(results).for_each(StopWhen({}, seconds=0))) == results[:1]


@pytest.fixture
def workers() -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, hidden=(8,), device="cpu"))


def test_evaluate_when_due(workers: WorkerSet, tmp_path: Path) -> None:
    """S6, S3: the first result of every period; the best policy's weights are saved; nothing else changes."""
    evaluate = Evaluate(workers, every=10, episodes=4, save=tmp_path / "policy.pt")
    before = torch.get_rng_state()
    out = [evaluate({"env_steps": n}) for n in (3, 12, 15, 20, 41, 49)]
    assert ["eval_return" in result for result in out] == [False, True, False, True, True, False]
    assert out[1]["eval_return"] == out[3]["eval_return"] == evaluate.best, "the same policy meets the same starts"
    assert torch.equal(before, torch.get_rng_state())
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


def test_an_evaluation_has_all_kinds_of_score(workers: WorkerSet) -> None:
    """S5: the win rate only where the environment knows it."""
    result = Evaluate(workers, every=1, episodes=2)({"env_steps": 1})
    assert result["eval_reward_per_step"] == 1.0
    assert "eval_win_rate" not in result
    ends = clock_envs([[(1, TERMINATED)], [(3, TRUNCATED)]])
    with WorkerSet(ends, lambda *spaces: ScriptedPolicy(), envs_per_worker=2) as clocks:
        assert Evaluate(clocks, every=1, episodes=4)({"env_steps": 1})["eval_win_rate"] == 0.5


def test_a_plan_ends_when_an_evaluation_reaches_a_value(workers: WorkerSet) -> None:
    """DI-engine's stop_value. A later run with a higher one goes on, one with the same ends at once (D3)."""

    def plan(stop_value: float | None) -> Plan:
        steps = from_items([{"env_steps": n} for n in range(10, 60, 10)])
        return steps.for_each(Evaluate(workers, every=20, episodes=2, stop_value=stop_value))

    assert len(list(plan(None))) == len(list(plan(501))) == 5
    with plan(5).run() as run:
        results = [next(run), next(run)]
        ended = run.state_dict()
        assert list(run) == [], "the first result that reaches it is the last"
    assert results[-1]["eval_return"] >= 5
    for value, left in (5, 0), (501, 3):
        with plan(value).run() as run:
            run.load_state_dict(ended)
            assert len(list(run)) == left


def test_evaluations_are_as_long_as_the_operator_says(workers: WorkerSet, tmp_path: Path) -> None:
    """And are filmed into a folder of their own, if it says so; that changes no score."""
    evaluate = Evaluate(workers, every=5, episodes=3, max_steps=4)
    result = evaluate({"env_steps": 5})
    assert (result["eval_return"], result["eval_cut_episodes"]) == (4, 3)
    evaluate.video = tmp_path / "films"
    assert evaluate({"env_steps": 10}) == {**result, "env_steps": 10}
    assert [file.name for file in (tmp_path / "films" / "step-000000010").iterdir()] == ["eval-episode-0.mp4"]
    confirm = Confirm(workers, goal=0.0, path=tmp_path / "policy.pt", episodes=2, max_steps=3)
    assert confirm({"env_steps": 5, "eval_return": 1.0})["confirmed_return"] == 3


def test_a_goal_is_confirmed_on_the_saved_policy_and_fresh_seeds(workers: WorkerSet, tmp_path: Path) -> None:
    """S6: each policy that reaches the goal within the budget is saved, loaded and tried once, on fresh seeds."""
    path = tmp_path / "policy.pt"
    confirm = Confirm(workers, goal=9.0, path=path, within=50, episodes=8)
    result = {"env_steps": 50, "eval_return": 9.0}
    workers.policy.eval_mode = None  # type: ignore[assignment]  # what plays is the file, in a policy of its own
    path.write_bytes(b"the best so far")
    confirm.goal = 0.0
    first, second = confirm(result)["confirmed_return"], confirm(result)["confirmed_return"]
    assert first != second, "each try has fresh seeds"
    assert same(torch.load(path, weights_only=True), workers.policy.weights())
    confirm.goal = 9.0
    for other in ({"eval_return": 8.9}, {"env_steps": 51}, {"eval_return": None}):
        given = {**result, **other}
        if given["eval_return"] is None:
            del given["eval_return"]
        assert confirm(given) == given
    assert confirm.tries == 2


def test_a_candidate_that_is_not_confirmed_replaces_nothing(workers: WorkerSet, tmp_path: Path) -> None:
    """S6: luck on the fixed seeds leaves the best policy where it is."""
    path = tmp_path / "policy.pt"
    path.write_bytes(b"the best so far")
    confirm = Confirm(workers, goal=400.0, path=path, episodes=2)
    assert confirm({"env_steps": 50, "eval_return": 460.0})["confirmed_return"] < 400
    assert path.read_bytes() == b"the best so far"
    assert list(tmp_path.iterdir()) == [path]


def test_an_evaluation_that_is_not_finite_ends_the_run_and_is_not_the_best(tmp_path: Path) -> None:
    """X2, S6: the saved policy stays."""
    rewards = itertools.chain((2.0, 0.0), (1.0, math.inf))

    class Twice(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_: Any) -> Any:
            self.t = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return np.zeros(1, np.float32), next(rewards), self.t == 2, False, {}

    path = tmp_path / "policy.pt"
    with WorkerSet(Twice, lambda *spaces: DQNPolicy(*spaces, device="cpu"), envs_per_worker=1) as alone:
        evaluate = Evaluate(alone, every=1, episodes=1, save=path)
        assert evaluate({"env_steps": 1})["best_eval_return"] == 2.0
        before = path.stat()
        with pytest.raises(SchemaError, match="the reward is inf"):
            evaluate({"env_steps": 2})
    assert (evaluate.best, path.stat()) == (2.0, before)


def test_what_is_no_result_passes_through(workers: WorkerSet) -> None:
    """Whoever pulls the plan has the clear words for it."""
    plan = from_items([1, 2]).for_each(Evaluate(workers, every=1)).for_each(Confirm(workers, 1.0, Path("p.pt")))
    assert list(plan.for_each(StopWhen({"env_steps": 1}))) == [1, 2]


def test_evaluation_needs_environments_of_its_own() -> None:
    """S3: of a vector environment that was passed as an object there is no second one."""
    envs = gymnasium.make_vec("CartPole-v1", 2)
    with WorkerSet(envs, lambda *spaces: DQNPolicy(*spaces), envs_per_worker=2) as workers:
        with pytest.raises(PlanError, match="its own environments"):
            Evaluate(workers, every=1)
        with pytest.raises(PlanError, match="its own environments"):
            Confirm(workers, goal=1.0, path=Path("policy.pt"))


def test_debug_print_shows_shapes_and_passes_on(capsys: pytest.CaptureFixture[str]) -> None:
    item: Any = {"obs": np.zeros((2, 3), np.float32), "n": 1}
    assert debug_print(item) is item
    assert capsys.readouterr().out == "dict(obs: float32[2, 3], n: int)\n"

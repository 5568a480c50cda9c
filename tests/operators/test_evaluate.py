"""Evaluation inside a plan, when it is due, and when to stop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch

from flowrl import Plan, context, from_items, operator
from flowrl.engine import context as of_runs
from flowrl.engine.context import Context
from flowrl.envs import Episode
from flowrl.errors import PlanError, SchemaError
from flowrl.operators import Confirm, Evaluate, Report, StopWhen
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan, same
from tests.clock_envs import TERMINATED, TRUNCATED, clock_envs
from tests.plans.small import without_clock
from tests.scripted import ScriptedPolicy

#: Steps of an episode of `Paid`.
LENGTH = 10


class Paid(gymnasium.Env[Any, Any]):
    """Episodes of ten steps, whose returns follow from the number of episodes before, in all environments together."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    begun = 0
    pay: Callable[[int], float] = staticmethod(lambda begun: 1.0)
    spend: Callable[[], None] = staticmethod(lambda: None)

    def reset(self, **_: Any) -> Any:
        self.t, self.return_ = 0, Paid.pay(Paid.begun)
        Paid.begun += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        Paid.spend()
        return np.zeros(1, np.float32), self.return_ / LENGTH, self.t == LENGTH, False, {}


class Case(NamedTuple):
    """The `eval_episodes` of the results at some env steps, None where no evaluation is due."""

    episodes: dict[int, int | None]
    settings: dict[str, Any]
    pay: Callable[[int], float] = lambda begun: 1.0
    clock: str = "env_steps"


#: Four episodes without a goal, which are 40 steps. With one up to fifty, in eight environments: at the third round,
#: of 24, returns around 1 make 5 implausible, where they have no floor.
CASES = {
    "every so many steps": Case({50: None, 100: 4, 150: None, 200: 4, 310: 4, 390: None, 400: 4}, {"train_ratio": 0.0}),
    "not before training has taken a multiple": Case({100: 4, 200: None, 299: None, 300: 4}, {"train_ratio": 5.0}),
    "a fraction of a step is a step": Case({100: 4, 202: None, 203: 4}, {"train_ratio": 2.56}),
    "a goal that is missed": Case({100: 24, 199: None, 200: 24}, {"goal": 5.0}, lambda begun: 1.0 + begun % 3 / 4),
    "a goal that a floor may hide": Case({100: 50, 199: None, 200: 50}, {"goal": 5.0}),
    "a goal that is reached": Case({100: 50, 199: None, 200: 50}, {"goal": 5.0}, lambda begun: 5.0),
    "a wait as for four episodes": Case({100: 50, 299: None, 300: 50}, {"goal": 5.0, "train_ratio": 5.0}),
    "a value to stop at": Case({100: 24, 340: 24}, {"stop_value": 5.0}, lambda begun: 1.0 + begun % 3 / 4),
    "a value to stop at that is reached": Case({100: 50}, {"stop_value": 5.0}, lambda begun: 5.0),
    "in updates there are no steps of training": Case({100: 4, 200: 4}, {"train_ratio": 99.0}, clock="updates"),
}


@pytest.mark.parametrize("case", CASES)
def test_counts_decide_when_an_evaluation_is_due_and_how_long_it_is(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6, D3: many episodes decide about a goal, unless it is out of reach; and a resume anywhere changes nothing."""
    episodes, settings, pay, clock = CASES[case]
    monkeypatch.setattr(Paid, "pay", staticmethod(pay))
    monkeypatch.setattr(WorkerSet, "clock", clock)
    settings = {"every": 100, "episodes": 4, "goal_episodes": 50, **settings}

    def plan() -> Plan:
        workers = WorkerSet(Paid, lambda *spaces: ScriptedPolicy(), envs_per_worker=2)
        results = from_items([{clock: n} for n in episodes]).for_each(Evaluate(workers, **settings))
        return results.for_each(lambda result: (result[clock], result.get("eval_episodes")))

    monkeypatch.setattr(Paid, "begun", 0)
    assert dict(plan()) == episodes
    if pay(0) == pay(1):
        check_plan(plan)


@operator
class Learns:
    """Passes results on, and learns from the env step `begin` on."""

    provides = ()
    begin: int
    learns: Any
    context: Context = context()

    def __call__(self, result: Any) -> Any:
        if result["env_steps"] >= self.begin:
            self.context.learned({"updates": 1}, {})
        return result


@pytest.mark.parametrize(("learns", "first"), [("a policy", 30), (None, 10)])
def test_there_is_no_evaluation_before_the_first_update(learns: Any, first: int, workers: WorkerSet) -> None:
    """S6: of a plan that learns; another one has nothing to wait for."""
    results = from_items([{"env_steps": n} for n in range(10, 60, 10)]).for_each(Learns(30, learns))
    evaluated = results.for_each(Evaluate(workers, every=10, episodes=1, train_ratio=0.0))
    assert [each["env_steps"] for each in evaluated if "eval_return" in each] == list(range(first, 60, 10))


@operator
class Works:
    """Takes ten seconds per item."""

    wait: Callable[[float], None]
    context: Context = context()

    def __call__(self, item: Any) -> Any:
        self.wait(10.0)
        self.context.count("env_steps", 100)
        return {}


@pytest.mark.parametrize(("step", "said"), [(0.1, 0), (1.0, 1)])
def test_the_seconds_of_evaluation_are_not_those_of_training(
    step: float, said: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S6: its time is told apart, and once if it is more than a quarter."""
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(of_runs, "clock", lambda: now)
    monkeypatch.setattr(Paid, "spend", staticmethod(lambda: wait(step)))
    with WorkerSet(Paid, lambda *spaces: ScriptedPolicy(), envs_per_worker=1) as workers, caplog.at_level("WARNING"):
        reported = from_items([None] * 3).for_each(Works(wait)).combine(Report(100))
        plan = reported.for_each(Evaluate(workers, every=100, episodes=1, train_ratio=0.0))
        results = list(plan.for_each(Confirm(workers, goal=2.0, path=Path("none"))))
    taken = [LENGTH * step * n for n in (1, 2, 3)]
    assert [each["seconds"] for each in results] == pytest.approx([10, 20, 30])
    assert [each["steps_per_second"] for each in results] == pytest.approx([10, 10, 10])
    assert [each["eval_seconds"] for each in results] == pytest.approx(taken)
    assert [each["eval_share"] for each in results] == pytest.approx(
        [each / (10 * n + each) for n, each in enumerate(taken, 1)]
    )
    assert caplog.text.count("raise eval_train_ratio or eval_every, or lower eval_episodes") == said


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
    evaluate = Evaluate(workers, every=10, episodes=4, train_ratio=0.0, save=tmp_path / "policy.pt")
    before = torch.get_rng_state()
    out = [evaluate({"env_steps": n}) for n in (3, 12, 15, 20, 41, 49)]
    assert ["eval_return" in result for result in out] == [False, True, False, True, True, False]
    assert len({result["eval_return"] for result in out if "eval_return" in result}) > 1, "each has starts of its own"
    again = Evaluate(workers, every=10, episodes=4, train_ratio=0.0)
    assert [again({"env_steps": n})["eval_return"] for n in (10, 20)] == [out[n]["eval_return"] for n in (1, 3)]
    assert torch.equal(before, torch.get_rng_state())
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


def test_updates_decide_as_long_as_there_are_no_env_steps(workers: WorkerSet) -> None:
    """S6: in a phase of learning from demonstrations alone, and a resume anywhere changes nothing (D3)."""

    @operator
    class Counts:
        """Counts what a result has."""

        context: Context = context()

        def __call__(self, result: Any) -> Any:
            for unit, n in result.items():
                self.context.count(unit, n - self.context.counters.get(unit, 0))
            return result

    counts = [(0, 6), (0, 10), (0, 19), (0, 24), (4, 30), (9, 40), (10, 40)]

    def plan() -> Plan:
        results = from_items([{"env_steps": steps, "updates": updates} for steps, updates in counts])
        return results.for_each(Counts()).for_each(Evaluate(workers, every=10, episodes=1, train_ratio=0.0))

    evaluated = [(each["env_steps"], each["updates"]) for each in plan() if "eval_return" in each]
    assert evaluated == [(0, 10), (0, 24), (10, 40)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_evaluation_is_greedy_or_draws_and_says_which(deterministic: bool) -> None:
    """S8: drawing follows the schedules of exploration, and leaves training alone (S3)."""
    seen = []

    def act(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> np.ndarray:
        seen.append((noise.shape[1], env_steps))
        return (noise[:, 0] < 0.5).astype(np.int64)

    policy = ScriptedPolicy(act, draws=1)
    policy.eval_mode = ScriptedPolicy()
    with WorkerSet("CartPole-v1", lambda *spaces: policy) as workers:
        evaluate = Evaluate(workers, every=1, episodes=2, deterministic=deterministic)
        evaluate.context.count("env_steps", 70)
        result = evaluate({"env_steps": 70})
    assert result["eval_deterministic"] is deterministic
    assert set(seen) == (set() if deterministic else {(1, 70)})


def test_evaluations_go_on_by_their_number(workers: WorkerSet) -> None:
    """S6, D3: after a resume the starts are those of the evaluation that it is."""

    def plan(steps: range) -> Plan:
        return from_items([{"env_steps": n} for n in steps]).for_each(Evaluate(workers, every=1, train_ratio=0.0))

    def returns(run: Any) -> list[float]:
        return [result["eval_return"] for result in run]

    whole = returns(plan(range(1, 5)))
    with plan(range(1, 5)).run() as run:
        begun = [next(run)["eval_return"], next(run)["eval_return"]]
        saved = run.state_dict()
    with plan(range(1, 5)).run() as run:
        run.load_state_dict(saved)
        assert [*begun, *returns(run)] == whole
    assert len(set(whole)) > 1


def test_a_policy_is_the_best_over_as_many_episodes_as_the_one_before(
    workers: WorkerSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: 20 episodes that ended early had luck; with the 30 that are missing they have a mean of 2."""
    of = {
        "1": [3.0] * 50,
        "2": [5.0] * 20,
        "2/more": [0.0] * 30,
        "3": [2.9] * 20,
        "4": [5.0] * 20,
        "4/more": [3.0] * 30,
    }
    asked = []

    def play(*given: Any, episodes: int, **_: Any) -> Any:
        asked.append((purpose := given[-1], episodes))
        return [Episode(0, n, return_, 1) for n, return_ in enumerate(of[purpose])], {}

    monkeypatch.setattr("flowrl.operators.evaluate._play", play)
    evaluate = Evaluate(workers, every=1, goal=9.0, goal_episodes=50, train_ratio=0.0)
    results = [evaluate({"env_steps": 100 * n}) for n in (1, 2, 3, 4)]
    assert asked == [("1", 50), ("2", 50), ("2/more", 30), ("3", 50), ("4", 50), ("4/more", 30)]
    assert [each["eval_return"] for each in results] == pytest.approx([3.0, 2.0, 2.9, 3.8])
    assert [each["best_eval_return"] for each in results] == pytest.approx([3.0, 3.0, 3.0, 3.8])
    assert [each["eval_episodes"] for each in results] == [50, 50, 20, 50]


def test_an_evaluation_has_all_kinds_of_score(workers: WorkerSet) -> None:
    """S5, S9: the win rate only where the environment knows it, with the share of episodes that say."""
    result = Evaluate(workers, every=1, episodes=2)({"env_steps": 1})
    assert result["eval_reward_per_step"] == 1.0
    assert "eval_win_rate" not in result
    ends = clock_envs([[(1, TERMINATED)], [(3, TRUNCATED)]])
    with WorkerSet(ends, lambda *spaces: ScriptedPolicy(), envs_per_worker=2) as clocks:
        result = Evaluate(clocks, every=1, episodes=4)({"env_steps": 1})
    assert (result["eval_win_rate"], result["eval_judged"]) == (0.5, 1.0)


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
    """And are filmed into a folder of their own, if it says so, with the same scores. A goal is reached at R (S6)."""
    evaluate = Evaluate(workers, every=5, episodes=3, train_ratio=0.0, max_steps=4)
    result = without_clock(evaluate({"env_steps": 5}))
    assert (result["eval_return"], result["eval_cut_episodes"]) == (4, 3)
    evaluate.video = tmp_path / "films"
    assert without_clock(evaluate({"env_steps": 10})) == {**result, "env_steps": 10}
    films = {file.name for file in (tmp_path / "films" / "step-000000010").iterdir()}
    assert films == {f"eval-episode-{k}.mp4" for k in range(3)}
    confirm = Confirm(workers, goal=3.0, path=tmp_path / "policy.pt", episodes=2, max_steps=3)
    assert confirm({"env_steps": 5, "eval_return": 3.0})["confirmed_return"] == 3
    assert (tmp_path / "policy.pt").exists(), "the goal itself is enough (S6)"


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


def test_a_goal_may_be_that_of_agents_by_name(tmp_path: Path) -> None:
    """S6: every agent that it names reaches it, in the evaluation and again on fresh seeds; another one need not."""
    path = tmp_path / "policy.pt"
    result = {"env_steps": 1, "eval_return/left": 5.0, "eval_return/right": 5.0, "eval_return": 10.0}
    make = partial(DQNPolicy, hidden=(8,), device="cpu")
    with WorkerSet("flowrl:two_cartpoles", make) as workers:
        ends: dict[str, Any] = {"workers": workers, "path": path, "episodes": 4}
        found = Evaluate(workers, every=1, episodes=4, goal={"left": 1e3})({"env_steps": 1})
        assert found["best_eval_return"] == found["eval_return/left"] < found["eval_return"]
        assert Confirm(goal={"left": 5.0, "right": 6.0}, **ends)(result) == result, "not reached: nothing is played"
        missed = Confirm(goal={"left": 5.0, "right": 1e3}, **ends)({**result, "eval_return/right": 1e3})
        assert missed["confirmed_return/left"] >= 5.0
        assert missed["confirmed_return/right"] < 1e3
        assert "confirmed_return" not in missed
        assert not path.exists()
        both = Confirm(goal={"left": 5.0, "right": 5.0}, **ends)(result)
    assert both["confirmed_return"] == both["confirmed_return/left"] + both["confirmed_return/right"] >= 10
    assert path.exists()


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
        evaluate = Evaluate(alone, every=1, episodes=1, train_ratio=0.0, save=path)
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

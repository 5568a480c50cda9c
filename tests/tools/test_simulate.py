"""flowrl simulate: throughput, fills and lag for sizes that are not there, for profiles whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowrl.engine.recording.ledger import Ledger
from flowrl.engine.workers.accounts import DRIVER, FULL, NO_REQUEST, Account
from flowrl.errors import ConfigError
from flowrl.inspect.profile import Profile
from flowrl.tools.simulate import simulate
from tests.cli.parts import SMALL, flowrl


def inline(kind: str = "gather_async", in_flight: int = 2, *more: Account, **stages: dict[str, object]) -> Profile:
    """10 s of one process: 100 items, 1,000 env steps, 100 updates; acting takes 8 s, learning 2 s."""
    driver = Account(DRIVER, "driver", 10, {"act": 8.0, "learn": 2.0}, items={"g": 100, "act": 100, "learn": 100})
    about = {"g": {"kind": kind, "in_flight": in_flight, "workers": 1, "part": ["act"]}, **stages}
    return Profile(Ledger([driver, *more], {"env_steps": 1_000, "updates": 100}, about))


@pytest.mark.parametrize(
    ("kind", "workers", "pace", "cause"),
    [
        ("gather_async", 0, 100, "act"),
        ("gather_async", 1, 1_000 / 8, "act"),
        ("gather_async", 2, 1_000 / 4, "act"),
        ("gather_async", 4, 1_000 / 2, "act"),
        ("gather_async", 100, 1_000 / 2, "learn"),
        ("gather_sync", 1, 1_000 / 11, "act"),
        ("gather_sync", 4, 1_000 / (2 + 9 / 4), "learn"),
        ("gather_sync", 100, 1_000 / (2 + 9 / 100), "learn"),
    ],
)
def test_the_pace_is_that_of_the_slowest_chain(kind: str, workers: int, pace: float, cause: str) -> None:
    """E9: at least as long as workers need for their share, and as the thread of the run for all; latency: 10 ms."""
    there = simulate(inline(kind), workers, latency=0.01)
    assert there.pace == pytest.approx(pace)
    assert len(there.workers) == workers
    if workers != 4 or kind == "gather_sync":
        assert there.values()["cause"] == cause


def test_work_is_neither_lost_nor_doubled_by_another_size() -> None:
    """E9, E1: each account sums to the time of all, and so do the seconds of an operator to what was measured."""
    for kind in ("gather_async", "gather_sync"):
        there = simulate(inline(kind), 5, latency=0.01).profile
        assert {round(each.wall, 9) for each in there.ledger.accounts} == {round(there.seconds, 9)}
        assert sum(each.busy.get("act", 0.0) for each in there.ledger.accounts) == pytest.approx(8)
        again = simulate(there, 2)
        assert again.pace == pytest.approx(simulate(inline(kind), 2, latency=0.01).pace), "the way was measured"
        assert simulate(there, 0).pace == pytest.approx(100)


def test_what_is_in_flight_and_how_old_it_becomes_follow_from_the_pace() -> None:
    """E9: Little's law. A row is behind all others in flight, each of which is an update here."""
    many = simulate(inline(), 100, latency=0.01)
    assert many.lag == 199
    assert many.fills["g"] == (pytest.approx(200 - 100 / 2 * 0.09, rel=0.01), 200)
    few = simulate(inline(), 1, latency=0.01)
    assert (few.lag, few.fills["g"]) == (1, (0.0, 2))
    assert simulate(inline("gather_sync"), 8).lag == 0


def test_a_slow_learner_elsewhere_has_full_hands() -> None:
    learner = Account("worker of train", "callee", 10, {"train": 9.0}, {NO_REQUEST: 1.0}, "train", DRIVER, 100)
    reader = Account("thread of p", "thread", 10, {"read": 1.0}, {FULL: 9.0}, "p", DRIVER, 100)
    stages = {
        name: {"kind": kind, "in_flight": 3, "workers": 1} for name, kind in (("train", "call"), ("p", "prefetch"))
    }
    there = simulate(inline("gather_async", 2, learner, reader, **stages), 16)
    assert there.pace == pytest.approx(1_000 / 9)
    assert (there.values()["cause"], there.fills["train"], there.fills["p"]) == ("train", (3, 3), (3, 3))


def test_costs_replace_what_was_measured() -> None:
    """E9: of the driver and of workers, for a run that had some already, too."""
    costs = {"learn": 0.3, "act": 2.0}
    workers = [
        Account(
            f"worker {i} of g", "worker", 10, {"act": 4.0}, {NO_REQUEST: 6.0}, "g", DRIVER, 50, 4, items={"act": 50}
        )
        for i in range(2)
    ]
    over = inline("gather_async", 2, *workers)
    over.ledger.accounts[0] = Account(DRIVER, "driver", 10, {"learn": 2.0}, {"g": 8.0}, items={"learn": 100})
    for measured in (inline(), over):
        there = simulate(measured, 100, costs=costs)
        assert (there.pace, there.values()["cause"]) == (pytest.approx(1_000 / 30), "learn")
        assert simulate(measured, 2, costs={"act": 2.0}).pace == pytest.approx(1_000 / 100)
    with pytest.raises(ConfigError, match=r"^--cost lern=1: no single operator has this name; did you mean 'learn'"):
        simulate(inline(), 2, costs={"lern": 1.0})


def test_a_plan_is_simulated_and_the_profile_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.tools.simulate.MEASURED", 0.05)
    done = flowrl("simulate", "dqn", *SMALL, "--workers", 100, "--cost", "TrainOneStep=0.3", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["workers"], told["cause"]) == (100, "train.TrainOneStep")
    (tmp_path / "profile.json").write_text(json.dumps(inline().values()))
    done = flowrl("simulate", tmp_path, "--workers", 4)
    assert done.stdout.startswith("500 env_steps per second with 4 workers\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--workers: expected how many workers to simulate, 0 or more"),
        (["--workers", "-1"], "--workers -1: expected how many workers to simulate, 0 or more"),
        (["--workers", "2", "--cost", "learn"], "--cost 'learn': expected KEY=VALUE"),
        (
            ["--workers", "2", "--cost", "learn=soon"],
            "--cost learn=soon: expected seconds, a finite number of at least 0",
        ),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str) -> None:
    done = flowrl("simulate", "dqn", *words)
    assert (done.exit_code, done.stderr) == (2, f"Error: {said}\n")


def test_a_plan_without_workers_is_refused() -> None:
    profile = Profile(Ledger([Account(DRIVER, "driver", 10, {"learn": 9.0})], {"updates": 10}, {}))
    with pytest.raises(ConfigError, match="no gather, whose workers could be more"):
        simulate(profile, 2)

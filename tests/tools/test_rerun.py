"""`flowrl rerun`: the same run again, from its journal, in one process (J1, J2, J3)."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowrl.plans import A3C, APPO, DDPPO, IMPALA, ApexDQN
from flowrl.runs.config import build_config
from flowrl.tools.rerun import Rerun, by_clock
from flowrl.trainer.plan_file import load_plan_file
from flowrl.trainer.trainer import Trainer
from tests.cli.parts import SMALL as QUICK
from tests.cli.parts import flowrl
from tests.plans.small import SMALL
from tests.thread_actors import Threads, use_threads

PLANS: dict[str, type[Trainer]] = {"impala": IMPALA, "appo": APPO, "apex_dqn": ApexDQN, "a3c": A3C}
#: Environments of which some answer a step, each in a process of its own.
ASYNC = {"env_manager": "async", "env_manager_args": {"wait_num": 1}, "envs_per_worker": 4}


def record(plan: str, out: Path, kill: str = "", workers: int = 0, results: int = 12, **more: Any) -> dict[str, int]:
    """Train with a journal, and kill a worker's process, or that of an environment, in the middle: the counters."""
    counters: dict[str, int] = {}
    with {**PLANS, "ddppo": DDPPO}[plan](
        **{**SMALL[plan], "num_workers": workers, "journal": True, **more}, out=out
    ) as trainer:
        for number in range(400):
            if number == results // 2 and kill in Threads.living:
                Threads.living[kill].kill()
            elif number == results // 2 and kill:
                (*_, process) = trainer.workers.foreach_worker(lambda _: os.getpid())  # type: ignore[attr-defined]
                here = psutil.Process(process)
                children = here.children() if kill == "environment" else [here]
                # The newest: not Ray, which another test may have started, whatever the process IDs are.
                max(children, key=psutil.Process.create_time).send_signal(signal.SIGKILL)
            trainer.train()
            counters = trainer.counters
            died = {"": None, "environment": "env_faults", "replay 1": "replay_restarts"}
            noticed = died.get(kill, "worker_restarts")
            if number >= results and (noticed is None or counters.get(noticed)):
                break
    return counters


def again(run: Path) -> Rerun:
    found = Rerun.of(run)
    found.run()
    assert found.same, found.lines()
    assert found.replay is not None
    assert found.replay.taken == found.replay.size
    then, now = found.parameters
    assert then == now is not None
    return found


@pytest.fixture(scope="module")
def impala(tmp_path_factory):
    """A run of IMPALA with a journal, whose environments answer as they like; one of them died in the middle."""
    path = tmp_path_factory.mktemp("journal") / "run"
    assert record("impala", path, "environment", **ASYNC)["env_faults"] == 1
    return path


@pytest.fixture
def run(impala, tmp_path):
    shutil.copytree(impala, tmp_path / "run")
    return tmp_path / "run"


def test_it_comes_out_the_same_bit_for_bit(run):
    """J1: every result, every item of every operator, and the parameters."""
    done = flowrl("rerun", run)
    assert done.exit_code == 0
    parameters = json.loads((run / "summary.json").read_text())["parameters"]
    assert done.stdout.splitlines()[-1] == f"the same, bit for bit, parameters {parameters}"


def test_it_stops_where_it_is_told_to(run):
    done = flowrl("rerun", run, "--to", "3")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "it stopped at result 3")
    done = flowrl("rerun", run, "--to", "TrainOneStep:5")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "it stopped at item 5 of TrainOneStep")


def test_it_stops_at_an_operator_of_a_worker_at_the_prompt(run, monkeypatch):
    """Workers, too, are in this process."""
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)  # which Ray sets
    done = flowrl("rerun", run, "--break", "Rollouts", "--to", "Rollouts:4")
    assert "(flowrl)" in done.stdout
    assert "Rollouts  item 4" in done.stdout


def test_a_run_that_was_killed_comes_again_as_far_as_its_journal_is_whole(run):
    """J3."""
    journal = run / "journal"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size * 2 // 3])
    assert "has no end, though the run has ended: the file is cut off" in flowrl("rerun", run).stdout
    (run / "summary.json").unlink()
    done = flowrl("rerun", run)
    assert done.exit_code == 0, done.stdout
    assert "its journal has no end, since the run was killed" in done.stdout


def test_a_resumed_run_appends_to_its_journal(tmp_path):
    """J3, D3: what came after the checkpoint that it goes on from is cut, and the whole comes again."""
    run, steps = tmp_path / "run", ("--set", "report_every=40", "--set", "checkpoint_every=80", "--set", "eval_every=0")
    clocked = ("--env-manager", "async", "--envs", "4", "--set", 'env_manager_args={"wait_num": 1}')
    small = ("--set", "hidden=[8]", "--set", "fragment_steps=5", "--set", "train_batch_size=20", "--journal")
    begun = flowrl("run", "impala", *clocked, *small, *steps, "--stop-steps", 300, "--out", run, "--quiet")
    assert begun.exit_code == 0, begun.output
    shutil.rmtree(max((run / "checkpoints").iterdir()))
    (run / "summary.json").unlink()
    resumed = flowrl("run", "--resume", run, "--stop-steps", 500, "--quiet")
    assert resumed.exit_code == 0, resumed.output
    assert again(run).reached > 10


def test_a_run_whose_journal_has_another_version_goes_on_without_it(tmp_path):
    """J3: again and again, and says so."""
    run = tmp_path / "run"
    begun = flowrl("run", "impala", "--journal", "--set", "eval_every=0", "--stop-steps", 300, "--out", run, "--quiet")
    assert begun.exit_code == 0, begun.output
    journal = run / "journal"
    journal.write_bytes(written := journal.read_bytes().replace(b'"journal": 2', b'"journal": 1'))
    for steps in (600, 900):
        resumed = flowrl("run", "--resume", run, "--stop-steps", steps, "--quiet")
        assert resumed.exit_code == 0, resumed.output
        assert "journal has another version of the format: the run goes on" in (run / "log.txt").read_text()
        (run / "log.txt").unlink()
    assert journal.read_bytes() == written


def test_a_result_that_was_changed_is_named(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[4] = json.dumps({**json.loads(lines[4]), "loss": 0.25})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    done = flowrl("rerun", run)
    assert done.exit_code == 1
    assert "it differs in result 5: loss is" in done.stdout


def test_what_cannot_be_followed_is_refused_in_one_line(run, tmp_path):
    """J3: no journal, one of another plan, of another version, or no journal at all."""

    def refused(*words: str) -> str:
        done = flowrl("rerun", run, *words)
        assert done.exit_code == 2
        return str(done.stderr.strip())

    assert "--to here: expected a number of results, or OPERATOR:N" in refused("--to", "here")
    journal = run / "journal"
    header, rest = journal.read_bytes().split(b"\n", 1)
    journal.write_bytes(header.replace(b'"plan": "', b'"plan": "0') + b"\n" + rest)
    assert "has the journal of another plan, of hash 0" in refused()
    journal.write_bytes(b'{"journal": 99}\n' + rest)
    assert "has version 99 of the format, and this flowrl reads 2: run it again with the flowrl" in refused()
    journal.write_bytes(b"what is this")
    assert "is no journal of flowrl" in refused()
    journal.write_bytes(header + b"\nwhat is this")
    assert "is damaged in its part 1" in refused()
    journal.unlink()
    assert "has no journal: a run writes one with --journal (journal=True)" in refused()


@pytest.fixture(scope="module")
def dqn(tmp_path_factory):
    """A run that depends on nothing but its seed, and has no journal."""
    path = tmp_path_factory.mktemp("verify") / "run"
    options = (*QUICK, "--stop-steps", 400, "--set", "report_every=100", "--set", "eval_episodes=2")
    assert flowrl("run", "dqn", *options, "--out", path, "--quiet").exit_code == 0
    return path


def test_published_numbers_come_out_without_a_journal(dqn, tmp_path):
    """J4: to the last bit, with this processor and these versions."""
    done = flowrl("verify", dqn)
    assert (done.exit_code, "the same, bit for bit, parameters" in done.stdout) == (0, True)
    shutil.copytree(dqn, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    better = {**json.loads(lines[-1]), "episode_return": 500.0}
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(better)]) + "\n")
    done = flowrl("verify", tmp_path / "run")
    assert done.exit_code == 1
    assert "episode_return is" in done.stdout
    assert "and was 500.0" in done.stdout
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary = json.loads((dqn / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").write_text(json.dumps({**summary, "parameters": "another"}))
    done = flowrl("verify", tmp_path / "run")
    assert (done.exit_code, "and they were another" in done.stdout) == (1, True)


def test_elsewhere_they_come_out_within_a_tolerance(dqn, tmp_path):
    """J4: what is another there is said, and the last bits do not count."""
    shutil.copytree(dqn, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "processor": "an abacus"}))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])

    def verified(**changed: Any) -> Any:
        written = [*lines[:-1], json.dumps(last | changed)]
        (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(written) + "\n")
        return flowrl("verify", tmp_path / "run")

    done = verified(episode_return=last["episode_return"] * 1.01, loss=0.0)
    assert done.exit_code == 0
    assert done.stdout.startswith("processor was an abacus and is ")
    assert done.stdout.splitlines()[-1] == "the same counters, and returns within 5%"
    assert "ends with episode_return" in verified(episode_return=last["episode_return"] * 1.2).stdout
    assert "ends with env_steps" in verified(env_steps=last["env_steps"] + 1).stdout


def test_a_run_by_the_clock_is_verified_by_its_journal(run):
    """J4."""
    assert flowrl("verify", run).exit_code == 0
    (run / "journal").unlink()
    done = flowrl("verify", run)
    assert done.exit_code == 2
    assert "has no journal, and without one nothing says which environments answered a step" in done.stderr


def test_what_a_run_decides_by_the_clock_is_told():
    """J4: which is why it cannot be verified without a journal."""
    for name, settings, words in (
        ("impala", {"num_workers": 2}, "in which order ParallelRollouts took what 2 workers sent"),
        ("impala", {"num_learners": 1}, "when train was done"),
        ("dqn", {"env_manager": "async"}, "which environments answered a step"),
        ("impala", {}, ""),
    ):
        plan_file = load_plan_file(name)
        config = build_config(plan_file.Config, {**SMALL[name], **settings})
        assert by_clock(plan_file.build(config)[1], config) == words


#: Who dies in the middle of which plan.
DEATHS = [(plan, "worker 1") for plan in PLANS] + [("apex_dqn", "replay 1")]


def test_a_worker_that_dies_dies_again(tmp_path, monkeypatch):
    """J1, F10: workers that answer when they are ready, here in threads."""
    use_threads(monkeypatch)
    assert record("impala", tmp_path / "run", "worker 1", workers=2)["worker_restarts"] == 1
    again(tmp_path / "run")


@pytest.mark.parametrize(("plan", "settings"), [("impala", {"num_learners": 2}), ("ddppo", {"workers": 2})])
def test_those_who_learn_together_do_so_again(plan, settings, tmp_path, monkeypatch):
    """J1, F13: in one process each has a thread, since they wait for each other."""
    use_threads(monkeypatch)
    record(plan, tmp_path / "run", results=2, **settings)
    again(tmp_path / "run")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("plan", "who"), DEATHS, ids=[f"{plan} {who}" for plan, who in DEATHS])
def test_whoever_dies_in_whichever_plan_dies_again(plan, who, seed, tmp_path, monkeypatch):
    """J1, F10."""
    use_threads(monkeypatch)
    assert record(plan, tmp_path / "run", who, workers=2, seed=seed)[
        "replay_restarts" if who.startswith("replay") else "worker_restarts"
    ]
    again(tmp_path / "run")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_an_environment_that_dies_dies_again(seed, tmp_path):
    """J1."""
    assert record("impala", tmp_path / "run", "environment", seed=seed, **ASYNC)["env_faults"] == 1
    again(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_a_run_over_workers_one_of_which_dies_comes_again(plan, tmp_path, ray_cluster):
    """J1, F10."""
    assert record(plan, tmp_path / "run", "worker", workers=2)["worker_restarts"] == 1
    again(tmp_path / "run")


@pytest.mark.slow
def test_a_run_over_workers_whose_environments_die_comes_again(tmp_path, ray_cluster):
    """J1."""
    assert record("impala", tmp_path / "run", "environment", workers=2, **ASYNC)["env_faults"] == 1
    again(tmp_path / "run")

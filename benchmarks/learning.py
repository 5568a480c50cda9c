"""Do the built-in plans learn, and in how many steps and seconds? A table, beside what others have published.

A seed is one `flowrl run`. It ends when 100 evaluation episodes reach the task's return, and 100 more on fresh seeds do
so for the saved policy (S6), or else with the task's budget; then its return is that of the best policy it saved, on
100 fresh seeds too. A task is passed if the interquartile mean of its seeds' returns reaches the task's (S4), or, where
the task says so, if such a share of the seeds does. Settings were chosen with the seeds 0 to 4 in sight; `--seed 10
--seeds 10` are fresh ones. Tasks that end in "-2-workers" sample in two processes on Ray.

A task with a peer has no return to reach but the peer's, which learns with the same settings and seeds in the same run.
Both use up the budget, and are judged by the policies that they end with. So is a task of an equilibrium: its return is
minus the NashConv of these policies, or of the average policy of past selves in self-play. And a task with an opponent:
its return is the share of 1,000 games won against it, half of them from either side, or won and drawn.

With --keep, seeds that have ended are not run again, and those that were interrupted go on.

    python benchmarks/learning.py [TASK ...] [--plans dqn ...] [--seeds 5] [--seed 0] [--keep DIR] [--out table.md]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import learning_data
from common import print_machine
from learning_tasks import EXPERTS, TASKS, Task

import flowrl
from flowrl.cli.statistics import interquartile_mean, interval
from flowrl.rollout import NashConv, nash_conv, payoffs
from flowrl.trainer.players import scripted
from flowrl.trainer.progress import score_text

#: Where environments of the tasks are found.
HERE = str(Path(__file__).parent)
#: Outcomes of a run that is not to go on.
ENDED = ("goal", "budget", "done")
#: The module that tells whether an extra is installed.
MODULES = {"box2d": "Box2D", "mujoco": "mujoco", "minigrid": "minigrid", "openspiel": "pyspiel"}
#: Seconds after which a seed is given up; with --keep it goes on the next time.
DEADLINE = 4 * 3600
#: Seeds that run at a time make demonstrations once.
RECORDING = Lock()
#: What the last column of the table says of a task that is passed, and of one that is not.
VERDICT = {True: "yes", False: "NO"}


class Outcome(NamedTuple):
    """What one seed came to."""

    seed: int
    score: float  #: mean return of 100 episodes on fresh seeds, or minus the NashConv
    env_steps: int
    seconds: float


def options_of(task: Task) -> list[str]:
    """What `flowrl run` is given, but for seed and directory."""
    goals = [] if task.judged_at_end else [f"{agent}={task.goal}" for agent in task.agents] or [f"{task.goal}"]
    stop = [*(word for goal in goals for word in ("--stop-return", goal)), "--stop-steps", f"{task.budget}"]
    return [task.plan, "--env", task.env, *task.settings.split(), *stop]


def run_seed(task: Task, folder: Path, seed: int) -> Outcome:
    """Run one seed, or go on with it, or read what it came to."""
    out = folder / f"seed-{seed}"
    if outcome_in(out) not in ENDED:
        run = ["--resume", f"{out}"] if (out / "run.json").exists() else [*options_of(task), "--seed", f"{seed}"]
        if task.demonstrations and run[0] != "--resume":
            run += ["--set", f"{task.shown_as}={recorded(task, folder)}"]
        where = [] if run[0] == "--resume" else ["--out", f"{out}"]
        done = python("-m", "flowrl", "run", *run, *where, "--quiet")
        if outcome_in(out) not in ENDED:
            raise SystemExit(f"seed {seed} ended with exit code {done.returncode}:\n{done.stderr}")
    summary = json.loads((out / "summary.json").read_text())
    score = summary["confirmed_return"]
    if task.nash_conv:
        score = -nash_conv_of(out, task).total
    elif task.opponent:
        score = share_won(out, task)
    elif summary["outcome"] != "goal":
        trained = flowrl.load(out, last=bool(task.peer), trusted=True)
        score = trained.evaluate(episodes=100, seed=1_000_000 + seed)["return_mean"]
    last = summary["last"]
    steps = last["env_steps" if "env_steps" in last else "updates"]  # there are none without an environment
    return Outcome(seed, score, steps, summary["seconds"] + summary["eval_seconds"])


def nash_conv_of(out: Path, task: Task) -> NashConv:
    """That of the policies at the end of a run, or of the average of past selves."""
    if task.plan != "self_play":
        return nash_conv(flowrl.load(out, last=True, trusted=True).players, task.env)
    with flowrl.resume(out) as trainer:
        league = trainer.workers.league
        return nash_conv([league.policies[past.policy] for past in league.pool("*")], task.env)


def share_won(out: Path, task: Task) -> float:
    """The share of 1,000 games that the policy at the end of a run wins against the task's opponent."""
    players = {"learner": flowrl.load(out, last=True, trusted=True).players, task.opponent: scripted(task.opponent)}
    won, drawn, _ = payoffs(players, task.env, episodes=500, num_envs=64).shares("learner", task.opponent)
    return won + drawn if task.draws else won


def run_peer(name: str, task: Task, folder: Path, seed: int) -> Outcome:
    """Let the task's peer learn it, or read what it came to."""
    out = folder / f"{task.peer}-seed-{seed}.json"
    if not out.exists():
        options = ("--budget", f"{task.budget}", "--seed", f"{seed}", "--out", f"{out}")
        done = python(f"{HERE}/learning_peers.py", name, *options)
        if not out.exists():
            raise SystemExit(f"seed {seed} of {task.peer} ended with exit code {done.returncode}:\n{done.stderr}")
    return Outcome(seed, **json.loads(out.read_text()))


def python(*command: str) -> subprocess.CompletedProcess[str]:
    """What a command of Python came to, which finds the environments of the tasks."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=DEADLINE)


def recorded(task: Task, folder: Path) -> Path:
    """Episodes of the expert of an environment, which every seed learns from; made by the first that needs them."""
    place = folder.parent / f"demonstrations-{task.env}"
    expert, episodes = place / "expert", place / f"{task.demonstrations}-episodes"
    unfinished = episodes.with_suffix(".part")
    with RECORDING:
        if not episodes.exists():
            shutil.rmtree(place, ignore_errors=True)
            train = ["run", *options_of(TASKS[EXPERTS[task.env]]), "--seed", "100", "--out", f"{expert}", "--quiet"]
            number = f"{task.demonstrations}"
            record = ["record", f"{expert}", "--trust", "--episodes", number, "--out", f"{unfinished}"]
            for command in (train, record):
                if (done := python("-m", "flowrl", *command)).returncode:
                    raise SystemExit(f"no demonstrations: exit code {done.returncode}:\n{done.stderr}")
            unfinished.rename(episodes)
    return episodes


def outcome_in(out: Path) -> str | None:
    """How the run in a directory ended; None if it has not."""
    summary = out / "summary.json"
    return str(json.loads(summary.read_text())["outcome"]) if summary.exists() else None


def claim(folder: Path, task: Task) -> None:
    """Let a folder be of this task alone: seeds of other settings must not be taken for its own."""
    folder.mkdir(parents=True, exist_ok=True)
    kept, options = folder / "options.json", options_of(task)
    options += [f"{task.demonstrations} demonstrations"] if task.demonstrations else []
    if kept.exists() and json.loads(kept.read_text()) != options:
        raise SystemExit(f"{folder} has runs of {' '.join(json.loads(kept.read_text()))}: remove it, or keep elsewhere")
    kept.write_text(json.dumps(options))


def run_task(
    name: str, task: Task, seeds: Sequence[int], jobs: int, folder: Path
) -> tuple[list[Outcome], list[Outcome]]:
    """Run the seeds of one task, so many at a time, and print a line for each: those of the plan, and of its peer."""
    if task.data:
        made = learning_data.make(task.data, folder.parent / f"data-{task.data}")
        task = task._replace(settings=f"{task.settings} --set data={made}")
    claim(folder, task)
    print(f"\n{name}: flowrl run {' '.join(options_of(task))}")
    print(f"{'seed':>4}  {'return':>9}  {'env steps':>9}  {'seconds':>7}", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        peers = pool.map(partial(run_peer, name, task, folder), seeds if task.peer else ())
        plans = pool.map(partial(run_seed, task, folder), seeds)
        beside = [told(one, f"  {task.peer}") for one in peers]
        return [told(one, below(task, one)) for one in plans], beside


def told(one: Outcome, mark: str) -> Outcome:
    """The outcome of a seed, printed."""
    print(f"{one.seed:>4}  {score_text(one.score):>9}  {one.env_steps:>9,}  {one.seconds:7.1f}{mark}", flush=True)
    return one


def below(task: Task, one: Outcome) -> str:
    """A mark of seeds that have not reached the goal, where it is known before."""
    return "  below the goal" if one.score < task.least else ""


def beside_peer(task: Task, peers: Sequence[Outcome]) -> Task:
    """The task with the goal that its peer has set."""
    goal = interquartile_mean([one.score for one in peers])
    seconds = interquartile_mean([one.seconds for one in peers])
    return task._replace(goal=goal, published=f"{score_text(goal)} ({task.peer} beside it, {seconds:.1f} s)")


HEADER = ("task", "environment", "budget", "pass", "return (IQM)", "95 % interval", "seeds", "env steps", "seconds")


def row(name: str, task: Task, outcomes: Sequence[Outcome]) -> list[str]:
    """A task's line of the table; steps and seconds are interquartile means too."""
    scores = [one.score for one in outcomes]
    bounds = interval([scores])
    steps = interquartile_mean([one.env_steps for one in outcomes])
    seconds = interquartile_mean([one.seconds for one in outcomes])
    goal = "the peer's" if task.peer else f"{task.goal:g}"
    goal += f", {task.share:.0%} of seeds" if task.share else " each" if task.agents else ""
    return [
        *(name, task.env, f"{task.budget:,}", goal, score_text(interquartile_mean(scores))),
        *("-" if bounds is None else f"{score_text(bounds[0])} .. {score_text(bounds[1])}", f"{len(scores)}"),
        *(f"{steps:,.0f}", f"{seconds:.1f}", task.published, VERDICT[passes(task, outcomes)]),
    ]


def passes(task: Task, outcomes: Sequence[Outcome]) -> bool:
    """Whether the seeds come to what is expected of them."""
    if task.share:
        reached = sum(one.score >= task.least for one in outcomes) >= task.share * len(outcomes)
    else:
        reached = bool(interquartile_mean([one.score for one in outcomes]) >= task.least)
    return reached != task.control


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of padded cells, the first row its header."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |" for cells in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]) + "\n"


def missing(task: Task) -> list[str]:
    """What pip is to install before the task can be run."""
    extra = [f"-e '.[{task.extra}]'"] if task.extra and find_spec(MODULES[task.extra]) is None else []
    return extra + ([task.peer] if task.peer and find_spec(task.peer.replace("-", "_")) is None else [])


def chosen_of(options: argparse.Namespace) -> dict[str, Task]:
    """The tasks that were asked for, without those whose extra is not installed."""
    chosen = {}
    for name, task in TASKS.items():
        if (options.tasks and name not in options.tasks) or (options.plans and task.plan not in options.plans):
            continue
        if needs := missing(task):
            print(f"{name} is left out; it needs: pip install -c constraints.txt {' '.join(needs)}")
            continue
        chosen[name] = task._replace(budget=options.budget) if options.budget else task
    return chosen


def main() -> None:
    plans = sorted({task.plan for task in TASKS.values()})
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all if none is given")
    parser.add_argument("--plans", nargs="+", choices=plans, metavar="PLAN", help=f"their tasks: {', '.join(plans)}")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="how many (default 5)")
    parser.add_argument("--seed", type=int, default=0, metavar="K", help="the first of them (default 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="seeds that run at a time (default 1)")
    parser.add_argument("--budget", type=int, metavar="STEPS", help="instead of each task's own")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run directories here, and use what is there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there too, after each task")
    options = parser.parse_args()
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    print_machine("numpy", "torch", "gymnasium", "ray")
    rows, passed = [[*HEADER, "published", "passed"]], True
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as folder:
        for name, task in chosen_of(options).items():
            seeds = range(options.seed, options.seed + options.seeds)
            outcomes, peers = run_task(name, task, seeds, options.jobs, Path(folder) / name)
            task = beside_peer(task, peers) if peers else task
            rows.append(row(name, task, outcomes))
            passed &= passes(task, outcomes)
            if options.out:
                options.out.write_text(markdown(rows))
    print(f"\n{markdown(rows)}", end="")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()

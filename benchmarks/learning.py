"""Do the built-in plans learn, and in how many steps and seconds? A table, beside what others have published.

A seed is one `flowrl run`. It ends when 100 evaluation episodes reach the task's return, and 100 more on fresh seeds do
so for the saved policy (S6), or else with the task's budget; then its return is that of the best policy it saved, on
100 fresh seeds too. A task is passed if the interquartile mean of its seeds' returns reaches the task's (S4), or, where
the task says so, if such a share of the seeds does. Settings were chosen with the seeds 0 to 4 in sight; `--seed 10
--seeds 10` are fresh ones. Tasks that end in "-2-workers" sample in two processes on Ray.

A task with a peer has no return to reach but the peer's, which learns with the same settings and seeds in the same run.
Both use up the budget, and are judged by the policies that they end with. So is a task of an equilibrium: its return is
minus the NashConv of these policies, or of the average policy of past selves in self-play. And a task with an opponent:
its return is the share of 1,000 games won against it, half of them from either side, or won and drawn. A task without
a goal, as those of MinAtar, has the return of the last policy, and is not judged.

With --keep, seeds that have ended are not run again, and those that were interrupted go on. With --record, a file
gets a line for each seed as it ends, and seeds that it has with the same settings are not run again. So a table can be
made in pieces, and on several machines; the core-hours that are left are printed first.

    python benchmarks/learning.py [TASK ...] [--plans dqn ...] [--seeds 5] [--seed 0] [--keep DIR] [--out table.md]
                                  [--record benchmarks/learning.csv]

With --whole, nothing ends at a goal, and each run is evaluated up to 20 times on the way, which makes learning curves:

    python benchmarks/learning.py trpo-cartpole --seed 10 --whole --keep runs/whole
    flowrl plot runs/whole/trpo-cartpole --y eval_return --out docs/trpo-cartpole.svg

--report runs nothing. From the lines that were recorded with today's settings it prints the statistics that the field
asks for (S4, S7): interquartile means, tolerance intervals of single runs, probabilities of improvement in return and
in env steps until the goal, and with --profile draws performance profiles. It leaves out seeds that settings were
chosen on. Scores over tasks are on a scale from 0, the return of random actions, to 1, the highest goal that a task has
in that environment.

    python benchmarks/learning.py [TASK ...] --report benchmarks/learning.csv [--out tables.md] [--profile profile.svg]
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import learning_data
from common import print_machine
from learning_tasks import EXPERTS, RANDOM, TASKS, Task

import flowrl
from flowrl.cli.seeds import ChildProcesses
from flowrl.rollout import NashConv, nash_conv, payoffs
from flowrl.runs.progress import score_text
from flowrl.storage.files import write
from flowrl.tools.plot import draw_profiles, save
from flowrl.tools.scores import ScoreTable, between, markdown
from flowrl.tools.statistics import interquartile_mean, interval
from flowrl.trainer.players import scripted

#: Where environments of the tasks are found.
HERE = str(Path(__file__).parent)
#: Outcomes of a run that is not to go on.
ENDED = ("goal", "budget", "done")
#: The module that tells whether an extra is installed.
MODULES = {name: name for name in ("minatar", "minigrid", "mujoco")} | {"box2d": "Box2D", "openspiel": "pyspiel"}
#: Seeds that were run, a line each.
RECORD = Path(HERE) / "learning.csv"
#: The runs, which end at their next step if this process is told to, and at once if it is gone.
CHILDREN = ChildProcesses()
#: Seconds after which a peer's seed is given up.
DEADLINE = 4 * 3600
#: Seeds that run at a time make demonstrations once.
RECORDING = Lock()
#: What the last column of the table says of a task that is passed, and of one that is not.
VERDICT = {True: "yes", False: "NO"}


class Recorded(NamedTuple):
    """A line of the record."""

    task: str
    by: str  #: flowrl, or the task's peer
    settings: str  #: what tells them from others of the task
    seed: int
    score: float
    env_steps: int
    seconds: float
    ended: str


class Outcome(NamedTuple):
    """What one seed came to."""

    seed: int
    score: float  #: mean return of 100 episodes on fresh seeds, or minus the NashConv
    env_steps: int
    seconds: float
    ended: str = "done"  #: of `ENDED`


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
            run += ["--set", f"{task.shown_as}={demonstrations(task, folder)}"]
        where = [] if run[0] == "--resume" else ["--out", f"{out}"]
        code = CHILDREN.run(["run", *run, *where, "--quiet"], silent=True)
        if outcome_in(out) not in ENDED:
            raise SystemExit(f"seed {seed} has not ended, exit code {code}; with --keep it goes on the next time")
    summary = json.loads((out / "summary.json").read_text())
    score = summary["confirmed_return"]
    if task.nash_conv:
        score = -nash_conv_of(out, task).total
    elif task.opponent:
        score = share_won(out, task)
    elif summary["outcome"] != "goal":
        trained = flowrl.load(out, last=task.judged_at_end, trusted=True)
        score = trained.evaluate(episodes=100, seed=1_000_000 + seed)["return_mean"]
    last = summary["last"]
    steps = last["env_steps" if "env_steps" in last else "updates"]  # there are none without an environment
    return Outcome(seed, score, steps, summary["seconds"] + summary["eval_seconds"], summary["outcome"])


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
    out = peer_file(task, folder, seed)
    if not out.exists():
        options = ("--budget", f"{task.budget}", "--seed", f"{seed}", "--out", f"{out}")
        code = CHILDREN.run_script(f"{HERE}/learning_peers.py", [name, *options], silent=True, timeout=DEADLINE)
        if not out.exists():
            raise SystemExit(
                f"seed {seed} of {task.peer} has not ended, exit code {code}; it begins anew the next time"
            )
    return Outcome(seed, **json.loads(out.read_text()))


def demonstrations(task: Task, folder: Path) -> Path:
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
                if code := CHILDREN.run(command, silent=True):
                    raise SystemExit(f"no demonstrations: exit code {code}")
            unfinished.rename(episodes)
    return episodes


def outcome_in(out: Path) -> str | None:
    """How the run in a directory ended; None if it has not."""
    summary = out / "summary.json"
    return str(json.loads(summary.read_text())["outcome"]) if summary.exists() else None


def settings_of(task: Task) -> list[str]:
    """What makes runs comparable with others of the task."""
    return [*options_of(task), *([f"{task.demonstrations} demonstrations"] if task.demonstrations else [])]


def fingerprint(task: Task) -> str:
    """The settings of a task in eight digits."""
    return hashlib.sha256(json.dumps(settings_of(task)).encode()).hexdigest()[:8]


def read_record(file: Path) -> list[Recorded]:
    """The lines of a record; none if there is no file."""
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return [
            Recorded(
                *(line["task"], line["by"], line["settings"], int(line["seed"])),
                *(float(line["score"]), int(line["env_steps"]), float(line["seconds"]), line["ended"]),
            )
            for line in csv.DictReader(lines)
        ]


def record(file: Path, name: str, settings: str, by: str, one: Outcome) -> None:
    """Add a seed of a task with some settings to a record, in the place of an earlier line of its own."""
    line = Recorded(name, by, settings, *one)
    with claimed(file.parent):
        known = {each[:4]: each for each in read_record(file)}
        known[line[:4]] = line._replace(score=round(one.score, 4), seconds=round(one.seconds, 1))
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([Recorded._fields, *(known[key] for key in sorted(known))])
        write(file, text.getvalue())


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Whoever else writes a record there waits, in any thread or process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lines_of(file: Path | None, name: str, settings: str) -> dict[tuple[str, int], Outcome]:
    """By whom and seed, what a record has of a task with some settings."""
    lines = read_record(file) if file else []
    found = [line for line in lines if (line.task, line.settings) == (name, settings)]
    return {(line.by, line.seed): Outcome(*line[3:]) for line in found}


def core_hours(chosen: Mapping[str, Task], seeds: Sequence[int], folder: Path, file: Path | None) -> str:
    """How long the seeds will take that have not ended, by the seconds of recorded ones, or of a pilot."""
    left, whole, hours, unknown = 0, 0, 0.0, []
    for name, task in chosen.items():
        done, own = (lines_of(each, name, fingerprint(task)) for each in (file, RECORD))
        parties = [by for by in ("flowrl", task.peer) if by]
        for by in parties:
            more = sum((by, seed) not in done and not has_ended(task, folder / name, by, seed) for seed in seeds)
            seconds = [one.seconds for (who, _), one in own.items() if who == by]
            if seconds:
                hours += more * interquartile_mean(seconds) / 3600
            elif task.pilot:
                hours += more * task.budget / task.pilot / len(parties) / 3600
            elif more:
                unknown.append(name)
            left, whole = left + more, whole + len(seeds)
    text = f"{left} of {whole} seeds are left: {hours:.2f} core-hours"
    return text + (f", and those of {', '.join(unknown)}, of which none is recorded" if unknown else "")


def has_ended(task: Task, folder: Path, by: str, seed: int) -> bool:
    """Whether a folder has what a seed of a task, or of its peer, came to."""
    if by == "flowrl":
        return outcome_in(folder / f"seed-{seed}") in ENDED
    return peer_file(task, folder, seed).exists()


def peer_file(task: Task, folder: Path, seed: int) -> Path:
    """What the task's peer came to."""
    return folder / f"{task.peer}-seed-{seed}.json"


def claim(folder: Path, task: Task) -> None:
    """Let a folder be of this task alone: seeds of other settings must not be taken for its own."""
    folder.mkdir(parents=True, exist_ok=True)
    kept, options = folder / "options.json", settings_of(task)
    if kept.exists() and json.loads(kept.read_text()) != options:
        raise SystemExit(f"{folder} has runs of {' '.join(json.loads(kept.read_text()))}: remove it, or keep elsewhere")
    kept.write_text(json.dumps(options))


def run_task(
    name: str, task: Task, seeds: Sequence[int], jobs: int, folder: Path, file: Path | None = None
) -> tuple[list[Outcome], list[Outcome]]:
    """Run the seeds of one task, so many at a time, and print a line for each: those of the plan, and of its peer.

    With a record, lines that it has are taken from there, and the others written to it.
    """
    settings = fingerprint(task)
    done = lines_of(file, name, settings)

    def outcome(by: str, run: Callable[[int], Outcome], seed: int) -> Outcome:
        if (by, seed) in done:
            return done[by, seed]
        one = run(seed)
        if file:
            record(file, name, settings, by, one)
        return one

    if task.data:
        made = learning_data.make(task.data, folder.parent / f"data-{task.data}")
        task = task._replace(settings=f"{task.settings} --set data={made}")
    claim(folder, task)
    print(f"\n{name}: flowrl run {' '.join(options_of(task))}")
    print(f"{'seed':>4}  {'return':>9}  {'env steps':>9}  {'seconds':>7}", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        peer, plan = partial(run_peer, name, task, folder), partial(run_seed, task, folder)
        peers = pool.map(partial(outcome, task.peer, peer), seeds if task.peer else ())
        plans = pool.map(partial(outcome, "flowrl", plan), seeds)
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
    steps = interquartile_mean([one.env_steps for one in outcomes])
    seconds = interquartile_mean([one.seconds for one in outcomes])
    goal = "the peer's" if task.peer else "-" if task.goal is None else f"{task.goal:g}"
    goal += f", {task.share:.0%} of seeds" if task.share else " each" if task.agents else ""
    return [
        *(name, task.env, f"{task.budget:,}", goal, score_text(interquartile_mean(scores))),
        *(between(interval([scores])), f"{len(scores)}", f"{steps:,.0f}", f"{seconds:.1f}", task.published),
        "-" if task.goal is None else VERDICT[passes(task, outcomes)],
    ]


def passes(task: Task, outcomes: Sequence[Outcome]) -> bool:
    """Whether the seeds come to what is expected of them."""
    if task.share:
        reached = sum(one.score >= task.least for one in outcomes) >= task.share * len(outcomes)
    else:
        reached = bool(interquartile_mean([one.score for one in outcomes]) >= task.least)
    return reached != task.control


def world_of(task: Task) -> str:
    """The environment of a task with its arguments and wrappers, and the opponent."""
    words = task.settings.split()
    more = [words[i + 1] for i, word in enumerate(words) if word in ("--env-arg", "--wrapper")]
    return " ".join([task.env, *more, *(["against", task.opponent] if task.opponent else [])])


def scales() -> dict[str, tuple[float, float]]:
    """Of each environment the returns that are 0 and 1: of random actions, and the highest goal of its tasks."""
    found: dict[str, tuple[float, float]] = {}
    for task in TASKS.values():
        if task.env in RANDOM and not task.judged_at_end:
            scale = RANDOM[task.env], task.least
            found[world_of(task)] = max(scale, found.get(world_of(task), scale))
    return found


def algorithms() -> dict[str, str]:
    """The algorithm of each task: its plan; the task's own name if another one of the plan has this environment."""
    named: dict[tuple[str, str], str] = {}
    for name, task in TASKS.items():
        named.setdefault((task.plan, world_of(task)), name)
    return {name: task.plan if named[task.plan, world_of(task)] == name else name for name, task in TASKS.items()}


def report(file: Path, chosen: Mapping[str, Task], profile: Path | None) -> str:
    """The statistics of the recorded seeds of some tasks, as text."""
    lines = [line for line in read_record(file) if line.task in chosen]
    now = [line for line in lines if line.settings == fingerprint(chosen[line.task])]
    fresh = [line for line in now if line.seed not in chosen[line.task].seen]
    if not fresh:
        raise SystemExit(f"{file} has no seed of these tasks with today's settings that these were not chosen on")
    names, goals = algorithms(), scales()
    returns: dict[str, dict[str, list[float]]] = {}
    steps: dict[str, dict[str, list[float]]] = {}
    for line in fresh:
        task = chosen[line.task]
        algorithm = names[line.task] if line.by == "flowrl" else f"{names[line.task]} of {line.by}"
        returns.setdefault(algorithm, {}).setdefault(world_of(task), []).append(line.score)
        if not task.judged_at_end and not task.data:
            reached = -line.env_steps if line.ended == "goal" else float("-inf")
            steps.setdefault(algorithm, {}).setdefault(f"{world_of(task)} to {task.goal:g}", []).append(reached)
    scaled = {name: {world: of[world] for world in of if world in goals} for name, of in returns.items()}
    on_scale = ScoreTable({name: of for name, of in scaled.items() if of}, goals)
    if profile and not on_scale.runs:
        raise SystemExit("a profile needs a task with a goal, in one of " + ", ".join(RANDOM))
    if profile:
        save(draw_profiles(on_scale, "return"), [profile])
    seen = len(now) - len(fresh)
    left_out = f"Left out: {len(lines) - len(now)} of other settings, {seen} that settings were chosen on."
    titled = [
        (f"{len(fresh)} seeds. {left_out}", ScoreTable(returns).by_task()),
        ("Over tasks, from 0, the return of random actions, to 1, the highest goal:", on_scale.over_tasks()),
        ("More return:", ScoreTable(returns).improvements()),
        ("Fewer env steps until the goal, which a run without it takes for ever:", ScoreTable(steps).improvements()),
    ]
    return "\n".join(f"{title}\n\n{markdown(rows)}" for title, rows in titled if len(rows) > 1)


def whole(task: Task) -> Task:
    """A task without a goal, evaluated on the way to its budget, against its opponent if it has one."""
    against = (
        f"--set eval_opponent={task.opponent} --set eval_episodes=100" if task.opponent else "--set eval_episodes=20"
    )
    settings = f"{task.settings} {against} --set eval_every={max(1, task.budget // 20)} --set eval_train_ratio=0"
    return task._replace(goal=None, control=False, settings=settings)


def missing(task: Task) -> list[str]:
    """What pip is to install before the task can be run."""
    extra = [f"-e '.[{task.extra}]'"] if task.extra and find_spec(MODULES[task.extra]) is None else []
    return extra + ([task.peer] if task.peer and find_spec(task.peer.replace("-", "_")) is None else [])


def chosen_of(options: argparse.Namespace, *, installed: bool = True) -> dict[str, Task]:
    """The tasks that were asked for, without those whose extra is not installed if it must be."""
    chosen = {}
    for name, task in TASKS.items():
        if (options.tasks and name not in options.tasks) or (options.plans and task.plan not in options.plans):
            continue
        if installed and (needs := missing(task)):
            print(f"{name} is left out; it needs: pip install -c constraints.txt {' '.join(needs)}")
            continue
        task = task._replace(budget=options.budget) if options.budget else task
        chosen[name] = whole(task) if options.whole else task
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
    parser.add_argument("--whole", action="store_true", help="use budgets up, with evaluations on the way, for curves")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run directories here, and use what is there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there too, after each task")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="keep a line for each seed in this file, and use them"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="run nothing: the statistics of this record")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of a report: draw performance profiles there")
    options = parser.parse_args()
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    if options.record and not options.record.parent.is_dir():
        parser.error(f"--record {options.record}: there is no folder {options.record.parent}")
    if options.report:
        tables = report(options.report, chosen_of(options, installed=False), options.profile)
        if options.out:
            options.out.write_text(tables)
        print(tables, end="")
        return
    print_machine("numpy", "torch", "gymnasium", "ray")
    rows, passed = [[*HEADER, "published", "passed"]], True
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as folder, CHILDREN:
        chosen, seeds = chosen_of(options), range(options.seed, options.seed + options.seeds)
        print(core_hours(chosen, seeds, Path(folder), options.record), flush=True)
        for name, task in chosen.items():
            outcomes, peers = run_task(name, task, seeds, options.jobs, Path(folder) / name, options.record)
            task = beside_peer(task, peers) if peers else task
            rows.append(row(name, task, outcomes))
            passed &= passes(task, outcomes)
            if options.out:
                options.out.write_text(markdown(rows))
    print(f"\n{markdown(rows)}", end="")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()

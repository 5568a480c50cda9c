"""Does a ledger tell the truth, and does `flowrl profile` name the bottleneck and foresee what a change gives?

Thirty plans of operators that sleep or compute for a known time: in one thread, over workers in step and out of step,
in threads, with learners elsewhere. For each: the largest error of a share, in points of the wall time; the operator
that is named, beside the one that it is; and for two changes the gain that was foreseen and the gain once made.
Workers are threads, so that sleeps overlap on any machine; with --ray they are processes.

    python benchmarks/profile_truth.py [--seconds 1.5] [--only NAME] [--ray]

With --plans, it trains PPO and DQN on CartPole-v1 instead, and foresees the pace if TrainOneStep were two or four times
as slow. The change is then made by training copies of the policy on each batch too, whose results are discarded. The
three runs of the same steps take turns, and the pace is by seconds of the processor, so that other programs count less.

    python benchmarks/profile_truth.py --plans [--rounds 9]

With a checkout of another version, it measures instead what the difference costs DQN on CartPole-v1: seconds of the
processor for the same training, in pairs of processes.

    python benchmarks/profile_truth.py --against ../before [--steps 3000] [--rounds 9]
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from common import interleaved, print_machine, ratio_with_interval

from flowrl import Context, Plan, Queue, context, from_items, from_workers, operator
from flowrl.engine.recording.ledger import ledger
from flowrl.engine.workers.local import ThreadWorker
from flowrl.engine.workers.subplan import SubplanWorker, packed, unpacked
from flowrl.inspect.profile import Change, Profile
from flowrl.learners.training import Training
from flowrl.operators import Concurrently, Dequeue, Enqueue
from flowrl.plans import DQN, PPO

#: Names of operators that worked in this process, with the seconds that they have measured themselves.
WORKED: list[tuple[str, float]] = []


@operator
class Work:
    """Takes milliseconds, those of its worker if there are several; by sleeping or by computing."""

    name: str
    ms: Any
    spin: bool = False
    context: Context = context()

    def __call__(self, item: Any) -> Any:
        begun = time.perf_counter()
        ms = self.ms if isinstance(self.ms, (int, float)) else self.ms[self.context.worker.index]
        if self.spin:
            end = time.thread_time() + ms / 1e3
            while time.thread_time() < end:
                pass
        else:
            time.sleep(ms / 1e3)
        WORKED.append((self.name, time.perf_counter() - begun))
        return item

    def train(self, item: Any) -> Any:
        return self(item)


class Host(SubplanWorker):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def open_plan(self, key: str, plan: Any, *rest: Any) -> None:
        super().open_plan(key, unpacked(plan) if isinstance(plan, bytes) else plan, *rest)


@attrs.frozen
class Remote:
    """A worker in another process, to which the part of a plan goes pickled."""

    worker: Any

    def submit(self, method: str, *args: Any) -> Any:
        if method == "open_plan":
            key, plan, paths, *rest = args
            args = (key, packed(plan, paths), paths, *rest)
        return self.worker.submit(method, *args)


class Workers:
    """Threads that run a part of a plan, or processes."""

    ray = False

    def __init__(self, count: int) -> None:
        if self.ray:
            from flowrl.actors.actors import Actors

            self._actors = Actors([partial(Host, index) for index in range(count)], kind="worker", remote=True)
            self._actors.start()
            self.members = [Remote(each) for each in self._actors.members]
        else:
            self.members = [ThreadWorker(Host(index), f"worker {index}") for index in range(count)]

    def close(self) -> None:
        if self.ray:
            self._actors.close()
        else:
            for member in self.members:
                member.close()


Costs = Mapping[str, Any]
#: The workers of the plan that is built now, to be closed.
OPEN: list[Workers] = []


def workers(costs: Costs) -> Workers:
    OPEN.append(Workers(costs["workers"]))
    return OPEN[-1]


def numbers() -> Plan:
    return from_items(range(10**9))


def then(plan: Plan, costs: Costs, *names: str, spin: bool = False) -> Plan:
    for name in names:
        plan = plan.for_each(Work(name, costs[name], spin), name=name)
    return plan


def line(*names: str, spin: bool = False) -> Callable[[Costs], Plan]:
    return lambda costs: then(numbers(), costs, *names, spin=spin)


def half(costs: Costs) -> Plan:
    return then(then(numbers(), costs, "a").filter(lambda i: i % 2), costs, "b")


def batches(costs: Costs) -> Plan:
    return then(then(numbers(), costs, "a").batch(4), costs, "b")


def turns(costs: Costs) -> Plan:
    return Concurrently({"x": then(numbers(), costs, "a"), "y": then(numbers(), costs, "b")}, output_indexes=["y"])


def queued(costs: Costs) -> Plan:
    queue = Queue(4)
    store, train = then(numbers(), costs, "a").for_each(Enqueue(queue)), then(Dequeue(queue), costs, "b")
    return Concurrently({"x": store, "y": train}, round_robin_weights=[1, "*"], output_indexes=["y"])


def forked(costs: Costs) -> Plan:
    left, right = numbers().duplicate(2)
    return Concurrently({"x": then(left, costs, "a"), "y": then(right, costs, "b")}, output_indexes=["y"])


def part(costs: Costs, *names: str) -> Plan:
    return then(from_workers(workers(costs), Endless()), costs, *names)


@operator
class Endless:
    """A source on a worker."""

    def pull(self) -> int:
        return 1


def sync(*names: str, rounds: bool = False) -> Callable[[Costs], Plan]:
    """The last operator in the run's thread, the others on workers."""
    gathered = (lambda plan: plan.gather_sync(list)) if rounds else (lambda plan: plan.gather_sync())
    return lambda costs: then(gathered(part(costs, *names[:-1])), costs, names[-1])


def free(*names: str, in_flight: int = 1) -> Callable[[Costs], Plan]:
    return lambda costs: then(part(costs, *names[:-1]).gather_async(in_flight), costs, names[-1])


def threads(*stages: str) -> Callable[[Costs], Plan]:
    """Each but the last, of operators with spaces between, in a thread."""

    def make(costs: Costs) -> Plan:
        plan = numbers()
        for stage in stages[:-1]:
            plan = then(plan, costs, *stage.split()).prefetch(2, thread=True)
        return then(plan, costs, *stages[-1].split())

    return make


def learner(in_flight: int, *before: str) -> Callable[[Costs], Plan]:
    return lambda costs: then(numbers(), costs, *before).call(
        Work("train", costs["train"]), "train", in_flight=in_flight, thread=True
    )


def all_of_it(costs: Costs) -> Plan:
    plan = then(part(costs, "act").gather_async(), costs, "a")
    return plan.call(Work("train", costs["train"]), "train", in_flight=2, thread=True)


def forked_threads(costs: Costs) -> Plan:
    left, right = then(numbers(), costs, "a").duplicate(2)
    slow = then(left, costs, "b").prefetch(2, thread=True)
    return Concurrently({"x": slow, "y": then(right, costs, "c")}, output_indexes=["y"])


@attrs.frozen
class Case:
    """A plan by its costs in milliseconds, and the operator that bounds it."""

    name: str
    make: Callable[[Costs], Plan]
    costs: Costs
    cause: str
    other: Change  #: a change that is tried beside that of the cause


def case(name: str, make: Callable[[Costs], Plan], cause: str, other: str, **costs: Any) -> Case:
    change = Change("", workers=1) if other == "worker" else Change(other)
    return Case(name, make, costs, cause, change)


CASES = [
    case("line", line("a", "b", "c"), "a", "b", a=8, b=4, c=2),
    case("fork, threads", forked_threads, "b", "c", a=4, b=12, c=6),
    case("computing", line("a", "b", spin=True), "a", "b", a=6, b=3),
    case("filter", half, "b", "a", a=4, b=16),
    case("batches", batches, "b", "a", a=4, b=24),
    case("batches, fill", batches, "a", "b", a=8, b=12),
    case("turns", turns, "b", "a", a=6, b=10),
    case("queue", queued, "b", "a", a=4, b=10),
    case("fork", forked, "b", "a", a=6, b=12),
    case("sync, workers", sync("act", "b"), "act", "worker", act=16, b=4, workers=2),
    case("sync, driver", sync("act", "b"), "b", "act", act=8, b=10, workers=2),
    case("sync, 3", sync("act", "b"), "act", "worker", act=20, b=2, workers=3),
    case("sync, uneven", sync("act", "b"), "act", "b", act=(8, 20), b=3, workers=2),
    case("sync, rounds", sync("act", "b", rounds=True), "b", "act", act=8, b=12, workers=2),
    case("sync, 2 operators", sync("act", "encode", "b"), "encode", "act", act=6, encode=12, b=2, workers=2),
    case("async, workers", free("act", "b"), "act", "worker", act=16, b=2, workers=2),
    case("async, driver", free("act", "b"), "b", "act", act=8, b=10, workers=2),
    case("async, 2 in flight", free("act", "b", in_flight=2), "act", "worker", act=24, b=4, workers=3),
    case("async, 1 worker", free("act", "b"), "act", "b", act=12, b=6, workers=1),
    case("async, 1 worker ahead", free("act", "b", in_flight=2), "act", "b", act=12, b=6, workers=1),
    case("async, 3 for a slow driver", free("act", "b"), "b", "worker", act=8, b=6, workers=3),
    case("async, uneven", free("act", "b"), "act", "b", act=(8, 24), b=2, workers=2),
    case("thread", threads("a", "b"), "a", "b", a=12, b=6),
    case("thread, driver", threads("a", "b"), "b", "a", a=6, b=12),
    case("2 threads", threads("a", "b", "c"), "b", "c", a=4, b=14, c=6),
    case("thread of 2 operators", threads("a more", "b"), "a", "more", a=10, more=4, b=8),
    case("learner", learner(2, "a"), "train", "a", a=6, train=16),
    case("learner, in step", learner(1, "a"), "train", "a", a=6, train=12),
    case("learner, slow input", learner(2, "a"), "a", "train", a=14, train=6),
    case("workers and learner", all_of_it, "train", "act", act=20, a=2, train=16, workers=2),
]


@contextmanager
def opened(case: Case, costs: Costs) -> Iterator[Any]:
    OPEN.clear()
    try:
        with case.make(costs).run() as run:
            yield run
    finally:
        for each in OPEN:
            each.close()


def measured(case: Case, costs: Costs, seconds: float) -> tuple[Profile, float, dict[str, float]]:
    """The profile of some seconds, items per second, and the seconds of each operator by itself."""
    with opened(case, costs) as run:
        for _ in range(8):
            next(run)
        WORKED.clear()
        before, start, items = ledger(run), time.perf_counter(), 0
        while time.perf_counter() < start + seconds:
            next(run)
            items += 1
        passed, worked = time.perf_counter() - start, dict[str, float]()
        for name, each in WORKED:
            worked[name] = worked.get(name, 0.0) + each
        return Profile(ledger(run).since(before)), items / passed, worked


def changed(costs: Costs, change: Change) -> dict[str, Any]:
    """The costs after a change."""
    if change.workers:
        return {**costs, "workers": costs["workers"] + change.workers}
    name = change.path.rpartition(".")[2]
    ms = costs[name]
    return {**costs, name: ms / 2 if isinstance(ms, (int, float)) else tuple(each / 2 for each in ms)}


def error_of_shares(profile: Profile, worked: Mapping[str, float]) -> float:
    """The largest difference of an operator's seconds from its own measurement, as a share of the wall time."""
    errors = [0.0]
    for name, seconds in worked.items():
        found = sum(
            each.busy[path] * profile.seconds / each.wall
            for each in profile.ledger.accounts
            for path in each.busy
            if path.rpartition(".")[2] == name
        )
        errors.append(abs(found - seconds) / profile.seconds)
    return max(errors)


def try_case(case: Case, seconds: float) -> tuple[float, bool, list[tuple[str, float, float]]]:
    """Error of the shares, whether the cause is right, and the changes with the gains foreseen and made."""
    profile, pace, worked = measured(case, case.costs, seconds)
    path = profile.cause()[0]
    found, gains = path.rpartition(".")[2], []
    stage = next((p for p, about in profile.ledger.stages.items() if "gather" in about["kind"]), "")
    for change in (Change(path), attrs.evolve(case.other, path=stage if case.other.workers else case.other.path)):
        full = change
        if not change.workers:
            every = {p for each in profile.ledger.accounts for p in each.busy}
            full = Change(
                next((p for p in every if p.rpartition(".")[2] == change.path.rpartition(".")[2]), change.path)
            )
            if full.path.rpartition(".")[2] not in case.costs:
                continue
        _, after, _ = measured(case, changed(case.costs, full), seconds)
        gains.append((str(full), profile.gain(full), after / pace - 1))
    shares = error_of_shares(profile, worked)
    print(f"{case.name:<28} {shares:>7.1%}  {found:>8} {case.cause:>8}  ", end="")
    print("; ".join(f"{words}: {foreseen:+.0%} {made:+.0%}" for words, foreseen, made in gains), flush=True)
    return shares, found == case.cause, gains


#: The copies of what learns that are trained too, by `id` of what learns.
COPIES: dict[int, list[Any]] = {}


class Repeated(Training):
    """Training that is done on each copy first, for nothing."""

    def __call__(self, learn: Any, batch: Any, generator: Any, *rest: Any) -> Any:
        for each in COPIES.get(id(learn), ()):
            super().__call__(each, batch, np.random.default_rng(0), *rest)
        return super().__call__(learn, batch, generator, *rest)


def slowed(kind: Any, times: int, warm_up: int) -> Any:
    """An open run of a plan whose TrainOneStep takes so many times as long."""
    trainer = kind(env="CartPole-v1", seed=0, report_every=256)
    learn = trainer.workers.policy.learn_mode
    COPIES[id(learn)] = [copy.deepcopy(learn) for _ in range(times - 1)]
    run = trainer.algorithm.run(seed=0)
    (step,) = (meter.op for meter in run.meters() if meter.path.endswith("TrainOneStep"))
    step.training = Repeated(**attrs.asdict(step.training))
    while run.counters.get("env_steps", 0) < warm_up:
        next(run)
    return run


def try_plan(kind: Any, warm_up: int, steps: int, rounds: int) -> None:
    """Foreseen and measured paces of a plan whose TrainOneStep is slower, in so many rounds of so many env steps."""
    runs = {str(times): slowed(kind, times, warm_up) for times in (1, 2, 4)}
    foreseen: dict[str, list[float]] = {"2": [], "4": []}

    def train(times: str) -> None:
        run = runs[times]
        before, end = ledger(run), run.counters["env_steps"] + steps
        while run.counters["env_steps"] < end:
            next(run)
        profile = Profile(ledger(run).since(before))
        path = next(path for path in profile.ledger.driver.busy if path.endswith("TrainOneStep"))
        for slower in foreseen if times == "1" else ():
            foreseen[slower].append(1 + profile.gain(Change(path, 1 / int(slower))))

    seconds = interleaved({times: partial(train, times) for times in runs}, rounds, time.thread_time)
    for times, paces in foreseen.items():
        made, low, high = ratio_with_interval(seconds["1"], seconds[times])
        pace = float(np.median(paces))
        print(f"{kind.__name__}, TrainOneStep {times} times as slow: {pace:.3f} of the pace foreseen,", end=" ")
        print(f"{made:.3f} made  (95 % interval {low:.3f} to {high:.3f}), {pace / made - 1:+.1%}", flush=True)
    for run in runs.values():
        run.close()


#: Trains in the checkout of the current folder, in a run directory, where a run writes its profile while it goes, and
#: prints the seconds of the processor.
TRAIN = """
import sys, tempfile, time
sys.path.insert(0, "")
from flowrl.plans import DQN
with tempfile.TemporaryDirectory() as folder, DQN(env="CartPole-v1", seed=0, out=f"{folder}/run") as trainer:
    trainer.train(until={"env_steps": 1100})
    begun = time.process_time()
    trainer.train(until={"env_steps": %d})
    print(time.process_time() - begun)
"""


def compare(other: Path, steps: int, rounds: int) -> None:
    """The cost of this version against another one."""
    seconds: dict[Path, list[float]] = {Path(__file__).parents[1]: [], other: []}
    for turn in range(rounds):
        for folder in list(seconds)[:: 1 if turn % 2 else -1]:
            words = [sys.executable, "-c", TRAIN % steps]
            done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
            seconds[folder].append(float(done.stdout.split()[-1]))
    here, there = map(np.array, seconds.values())
    ratio, low, high = ratio_with_interval(here, there)
    print(f"DQN, {steps} env steps, {rounds} pairs: {np.median(here):.2f} s here, {np.median(there):.2f} s there")
    print(f"ratio {ratio:.4f}  (95 % interval {low:.4f} to {high:.4f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", default="")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print_machine("flowrl-engine")
    if options.against is not None:
        compare(options.against, options.steps, options.rounds)
        return
    if options.plans:
        torch.set_num_threads(1)
        try_plan(PPO, 2048, 4096, options.rounds)
        try_plan(DQN, 1280, 512, options.rounds)
        return
    Workers.ray = options.ray
    chosen = [
        case for case in CASES if case.name.startswith(options.only) and (not options.ray or "workers" in case.costs)
    ]
    print(f"{'plan':<28} {'shares':>7}  {'named':>8} {'is':>8}  change: foreseen, made")
    results = [try_case(case, options.seconds) for case in chosen]
    gains = [(1 + foreseen) / (1 + made) - 1 for _, _, tried in results for _, foreseen, made in tried]
    right, near = sum(right for _, right, _ in results), sum(abs(each) <= 0.1 for each in gains)
    print(f"{len(results)} plans: shares within {max(shares for shares, _, _ in results):.1%} of the wall time, the")
    print(f"cause right {right} times, {near} of {len(gains)} paces within 10 %, the worst {max(gains, key=abs):+.0%}")


if __name__ == "__main__":
    main()

"""From measured times to a manager: how many steps per second each may give."""

from __future__ import annotations

import math
from typing import Any

from flowrl.cli.doctor.findings import Suggestion, Times

#: Seconds that it costs, beside the environment's own time (benchmarks/env_managers.py shows them): a step in this
#: process; waking a process; handing a step to one that nobody waits for; waking a thread.
IN_PROCESS, PROCESS, ANSWER, THREAD = 3e-6, 8e-5, 2e-4, 5e-5
#: How much faster a manager must be to be suggested in place of a simpler one.
WORTH = 1.25
#: The share of its time that an environment must wait for threads to be of use.
WAITS = 0.5


def suggest(times: Times, num_envs: int, cores: int, native: Times | None = None) -> Suggestion:
    """The simplest manager that is nearly as fast as any.

    Args:
        times: Of a single environment.
        num_envs: That are stepped together.
        cores: For this process and others.
        native: Times of the environment's own vectorised implementation, if it has one.
    """
    work = times.mean * (1 - times.waiting)
    few = min(cores, num_envs)
    each = math.ceil(num_envs / few)
    rates: dict[str, float] = {"local": 1 / (times.mean + IN_PROCESS)}
    reasons = {"local": f"a step takes {_ms(times.mean)}, and waking a process about {_ms(PROCESS)}: nothing is gained"}
    args: dict[str, dict[str, Any]] = {}
    if native is not None:
        rates["vector"] = native.num_envs / float(native.steps.mean())
        reasons["vector"] = f"its own vectorised implementation steps {native.num_envs} in {_ms(native.steps.mean())}"
    groups = {each: math.ceil(num_envs / each), 1: num_envs}
    for size, processes in groups.items():
        seconds = max(times.slowest(processes, size), num_envs * work / cores) + processes * PROCESS
        if num_envs / seconds > rates.get("subprocess", 0.0):
            rates["subprocess"], args["subprocess"] = num_envs / seconds, {"envs_per_process": size}
            waits = "wait at the same time" if times.waiting > WAITS else f"share the work on {cores} cores"
            reasons["subprocess"] = f"a step takes {_ms(times.mean)}: {processes} processes {waits}"
    if times.waiting > WAITS:
        rates["thread"] = num_envs / (max(times.slowest(num_envs), num_envs * work) + num_envs * THREAD)
        reasons["thread"] = f"it waits {100 * times.waiting:.0f} % of its time, which threads do at the same time"
    rates["async"] = min(num_envs / (times.mean + ANSWER), cores / (work + ANSWER), 1 / ANSWER)
    slowest = times.slowest(num_envs)
    reasons["async"] = (
        f"the slowest of {num_envs} steps takes {_ms(slowest)}, {slowest / times.mean:.1f} times the mean: nobody "
        "waits for it; the order of what is collected follows the clock then"
    )
    best = "local"
    for kind in ("vector", "subprocess", "thread", "async"):
        if rates.get(kind, 0.0) > WORTH * rates[best]:
            best = kind
    return Suggestion(best, args.get(best, {}), reasons[best], rates)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"

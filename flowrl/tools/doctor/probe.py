"""Random steps in an environment under examination: its answers, and their times."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import perf_counter, process_time
from typing import Any, NamedTuple

import attrs
import gymnasium
import numpy as np

from flowrl.envs import EnvFactory, VectorEnvManager
from flowrl.envs.make import beside
from flowrl.envs.masks import valid_sample
from flowrl.envs.spaces import plain_copy
from flowrl.errors import SchemaError
from flowrl.tools.doctor.report import Times

Env = gymnasium.Env[Any, Any]

#: Steps before timing begins.
WARM_UP = 20


class Step(NamedTuple):
    """Step `t` of the episode that began with `seed`, or its reset as step 0; `spent` is the seconds in all, and
    working. For a VectorEnv, the fields after `spent` are columns."""

    seed: int
    t: int
    spent: tuple[float, float]
    obs: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    info: Any = None

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return bool(self.terminated or self.truncated)

    @property
    def place(self) -> str:
        """The step in words."""
        return f"at step {self.t} after reset(seed={self.seed})" if self.t else f"at reset(seed={self.seed})"


@attrs.define
class Probe:
    """Takes `steps` random valid actions, or as many as fit into `seconds`; at least two."""

    factory: EnvFactory
    steps: int
    seconds: float
    deterministic: bool = True

    def another(self) -> Env:
        """One more beside that under examination. Raises: ConfigError if a process can hold only one."""
        with beside(1, self.factory.spec):
            return self.factory()

    def episodes(
        self, env: Env, steps: int = 0, seed: int = 0, actions: int | None = None, last: Step | None = None
    ) -> Iterator[Step]:
        """Yield steps, and resets as steps 0; each episode has a new seed. The first goes on after `last`, if given.

        Equal seeds give equal actions, and so do equal `actions`, a seed of their own.
        """
        space = copy.deepcopy(env.action_space)
        space.seed(seed if actions is None else actions)
        until, left = perf_counter() + self.seconds, steps or self.steps
        step = last and last._replace(t=0)
        for taken in range(left):
            if taken >= 2 and perf_counter() >= until:
                return
            if step is None or step.over:
                seed = seed if step is None else step.seed + 1
                answer, spent = _timed(env.reset, seed=seed)
                obs, info = _unpacked(answer, "reset", "observation", "info")
                step = Step(seed, 0, spent, obs, info=info)
                yield step
            answer, spent = _timed(env.step, valid_sample(space, step.obs))
            _unpacked(answer, "step", "observation", "reward", "terminated", "truncated", "info")
            step = Step(step.seed, step.t + 1, spent, *answer)
            yield step

    def vector_steps(self, manager: VectorEnvManager, steps: int = 0) -> Iterator[Step]:
        """The same for a VectorEnv, through the manager that would step it."""
        space, until = manager.action_space, perf_counter() + self.seconds
        space.seed(0)
        _, spent = _timed(manager.launch, seed=0)
        yield Step(0, 0, spent, plain_copy(manager.obs))
        for t in range(1, 1 + (steps or self.steps)):
            if t > 2 and perf_counter() >= until:
                return
            actions = [valid_sample(space, manager.obs[env_id]) for env_id in range(manager.num_envs)]
            answer, spent = _timed(manager.step, actions)
            yield Step(0, t, spent, plain_copy(answer.next_obs), *map(np.copy, answer[1:4]))


def dispose(env: Any) -> None:
    """Close one that was examined beside the first, whose own close says whether it fails."""
    with suppress(Exception):
        env.close()


def measured(steps: Iterable[Step], num_envs: int = 1) -> Times:
    """The times of steps and resets, and the share of waiting in them."""
    spent: tuple[list[tuple[float, float]], ...] = [], []
    for step in steps:
        spent[step.t > 0].append(step.spent)
    resets, taken = map(np.array, spent)
    seconds, worked = (resets.sum(0) + taken.sum(0)).tolist()
    ended = num_envs == 1 and (len(resets) > 1 or step.over)
    return Times(
        steps=taken[WARM_UP if len(taken) > WARM_UP else 0 :, 0],
        resets=resets[:, 0],
        episode=len(taken) / len(resets) if ended else None,
        waiting=max(0.0, 1 - worked / seconds),
        num_envs=num_envs,
    )


def _unpacked(answer: Any, of: str, *expected: str) -> Any:
    if isinstance(answer, tuple) and len(answer) == len(expected):
        return answer
    what = f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
    raise SchemaError(
        f"{of} returned {what}, expected {len(expected)}: {', '.join(expected)}; environments of "
        "classic gym are named gym:ID"
    )


def _timed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, tuple[float, float]]:
    """The result of a call, its seconds without those spent waiting for a core, and its working seconds."""
    queued, worked, begun = _queued(), process_time(), perf_counter()
    answer = call(*args, **kwargs)
    seconds, worked = perf_counter() - begun, process_time() - worked
    return answer, (max(seconds - (_queued() - queued), worked), worked)


def _queued() -> float:
    """Seconds that this process was ready to run but had no core, as Linux counts them."""
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0

"""An environment under examination: what is made of it, and what it answers to random actions."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

import attrs
import gymnasium
import numpy as np

from flowrl.cli.doctor.places import own_line
from flowrl.envs import EnvFactory
from flowrl.envs.masks import valid_sample
from flowrl.errors import SchemaError

Env = gymnasium.Env[Any, Any]


_ANSWER = ("observation", "reward", "terminated", "truncated", "info")


class Step(NamedTuple):
    """One step: from the seed of its episode, the number of the step in it, and what came of it."""

    seed: int
    t: int
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any

    @property
    def place(self) -> str:
        """In words."""
        return f"at step {self.t} after reset(seed={self.seed})" if self.t else f"at reset(seed={self.seed})"


@attrs.define
class Patient:
    """An environment, and how much of it is looked at: steps of each check, and seconds."""

    factory: EnvFactory
    steps: int
    seconds: float
    env: Env
    deterministic: bool = True

    def another(self) -> Env:
        """One more environment of the same kind."""
        return self.factory()

    def episodes(self, env: Env, seed: int = 0, steps: int | None = None, draw: int | None = None) -> Iterator[Step]:
        """Steps with random valid actions, and resets as steps 0; a new seed for each episode.

        Equal seeds have equal actions, and so has an equal `draw`. It ends after `steps` steps, or when the seconds are
        over.
        """
        actions = copy.deepcopy(env.action_space)
        actions.seed(seed if draw is None else draw)
        until, t, left = perf_counter() + self.seconds, -1, steps or self.steps
        while left and perf_counter() < until:
            if t < 0:
                obs, info = _unpacked(env.reset(seed=seed), "reset", ("observation", "info"))
                yield Step(seed, 0, obs, 0.0, False, False, info)
                t = 0
            found = _unpacked(env.step(valid_sample(actions, obs)), "step", _ANSWER)
            obs = found[0]
            t, left = t + 1, left - 1
            yield Step(seed, t, *found)
            if found[2] or found[3]:
                t, seed = -1, seed + 1


def _unpacked(given: Any, of: str, expected: tuple[str, ...]) -> Any:
    if isinstance(given, tuple) and len(given) == len(expected):
        return given
    what = f"{len(given)} values" if isinstance(given, tuple) else f"a {type(given).__name__}"
    raise SchemaError(
        f"{of} gave {what}, expected {len(expected)}: {', '.join(expected)}; an environment of classic gym is named "
        "gym:ID"
    )


def copied(value: Any) -> Any:
    """An observation that the environment cannot write into."""
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    return np.array(value)


def described(error: BaseException) -> str:
    """An error in one line, with the line of the environment that raised it; ours need none."""
    if isinstance(error, SchemaError):
        return str(error)
    line = own_line(
        [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    )
    where = f", {line}" if line else ""
    return f"{type(error).__name__}: {str(error) or 'no message'}{where}".replace("\n", " ")

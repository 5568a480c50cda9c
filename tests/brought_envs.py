"""Environments as people bring them, each with its right values from a plain loop that knows nothing of flowrl.

To add a case: a class, or a function that makes the environment, and one line in `CASES`.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections import UserDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs
import gymnasium
import numpy as np

#: The kinds of manager: those that flowrl makes environments for, and vector environments that the user makes. What a
#: case says of "brought" holds for each of these.
BROUGHT = ("brought-same", "brought-next", "brought-masks", "brought-around", "brought-async")
KINDS = ("local", "subprocess", "async", "thread", "vector", *BROUGHT)
#: Those that see what each environment returns before gymnasium puts it into arrays.
SEEING = KINDS[:-2]


class Points(gymnasium.Env[Any, Any]):
    """Observes the step; a game of 6 steps is worth 1 + 2 + ... + 6, the next one of 7 steps a step more, and so on."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(0, 1000, (1,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)
    games = 5

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.games = 0, self.games + 1
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.obs(), self.reward(), self.t == self.games, False, self.info()

    def obs(self) -> Any:
        return np.array([self.t], np.float32)

    def reward(self) -> Any:
        return float(self.t)

    def info(self) -> Any:
        return {}


class Played(NamedTuple):
    """An episode: its return, its length and whether it was won; None: nobody says."""

    return_: float
    length: int
    won: bool | None = None


class Row(NamedTuple):
    """A step: what was acted from, and what came of it."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    next_obs: Any


class Running(NamedTuple):
    """How an episode stands: how many have ended before it, its return and its length so far."""

    ended: int
    return_: float
    length: int


@attrs.frozen
class Case:
    """What somebody brings to flowrl.

    Args:
        made: Makes what is brought, with `args`; flowrl puts it into `wrappers`.
        alone: Makes the environment whose returns are to be reported; None: as brought, without `wrappers`.
        args: The arguments of `made`.
        as_learned: The kinds of manager that cannot know the returns of the environment alone; they say so, and report
            what is learned from.
        refused: What the error says, by kind of manager.
        kinds: Those to try: the others cannot see that anything is wrong.
        sure: Of the kinds that report the right values, those that say that they do.
    """

    made: Callable[..., gymnasium.Env[Any, Any]]
    alone: Callable[..., gymnasium.Env[Any, Any]] | None = None
    wrappers: Sequence[Any] = ()
    args: dict[str, Any] = attrs.field(factory=dict)
    as_learned: Sequence[str] = ()
    refused: dict[str, str] = attrs.field(factory=dict)
    kinds: Sequence[str] = KINDS
    sure: Callable[[str], bool] = lambda kind: kind != "brought-async"

    def wrapped(self) -> gymnasium.Env[Any, Any]:
        """What is learned from, made by hand."""
        return functools.reduce(lambda env, wrapper: wrapper(env), self.wrappers, self.made(**copy.deepcopy(self.args)))

    def learned(self, steps: int) -> tuple[list[Row], list[Played]]:
        """The first steps, and the episodes in them, of what is learned from."""
        return played(self.wrapped(), steps)

    def episodes(self, steps: int) -> list[Played]:
        """The first episodes of the environment alone."""
        return played(self._alone(), steps)[1]

    def stood(self, alone: bool) -> set[Running]:
        """How the first episodes stand after each step: of the environment alone, or of what is learned from."""
        env, found, stands = self._alone() if alone else self.wrapped(), set(), Running(0, 0.0, 0)
        env.reset()
        while stands.ended < 100:
            _, reward, *ends, _ = env.step(0)
            stands = Running(stands.ended, stands.return_ + float(reward), stands.length + 1)
            found.add(stands)
            if any(np.all(end) for end in ends):
                env.reset()
                stands = Running(stands.ended + 1, 0.0, 0)
        return found

    def _alone(self) -> gymnasium.Env[Any, Any]:
        return (self.alone or functools.partial(self.made, **copy.deepcopy(self.args)))()


def said_won(info: Any) -> bool | None:
    told = (info or {}).get("is_success", (info or {}).get("success"))
    return None if told is None or isinstance(told, str) else bool(np.all(told))


def played(env: gymnasium.Env[Any, Any], steps: int) -> tuple[list[Row], list[Played]]:
    """So many steps of an environment with action 0, and the episodes that ended in them."""
    rows: list[Row] = []
    episodes: list[Played] = []
    obs, return_, length = env.reset()[0], 0.0, 0
    for _ in range(steps):
        before = obs
        obs, reward, *ends, info = env.step(0)
        terminated, truncated = (bool(np.all(end)) for end in ends)  # which may be in a list
        rows.append(Row(before, float(reward), terminated, truncated, obs))
        return_, length = return_ + float(reward), length + 1
        if terminated or truncated:
            episodes.append(Played(return_, length, said_won(info)))
            obs, return_, length = env.reset()[0], 0.0, 0
    return rows, episodes


class Says(Points):
    """Puts into the info of every step what it gets, made from the step if it is callable."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], self.info()

    def info(self) -> Any:
        return self.said(self) if callable(self.said) else self.said


def won(env: Points) -> bool:
    return env.games % 2 == 0


def at_the_end(said: Callable[[Points], Any]) -> Callable[[Points], Any]:
    return lambda env: said(env) if env.t == env.games else {}


def in_steps(said: Callable[[Points], Any]) -> Callable[[Points], Any]:
    return lambda env: said(env) if env.t else {}


class Lives(Points):
    """Three lives of two or three steps."""

    def lives(self) -> int:
        return 3 - self.t // (self.games // 3)


class EachLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends with each life, and goes on with the same game by a step of its own, as Stable-Baselines3's does."""

    over = True
    lives = 3

    def step(self, action: Any) -> Any:
        obs, reward, over, cut, info = self.env.step(action)
        before, self.lives, self.over = self.lives, self.unwrapped.lives(), over or cut  # type: ignore[attr-defined]
        return obs, reward, over or 0 < self.lives < before, cut, info

    def reset(self, **how: Any) -> Any:
        goes_on = not self.over
        if goes_on:
            obs, _, over, _, info = self.env.step(0)
        if not goes_on or over:
            obs, info = self.env.reset(**how)
        self.lives, self.over = self.unwrapped.lives(), False  # type: ignore[attr-defined]
        return obs, info


class Halved(gymnasium.RewardWrapper[Any, Any]):
    """Rewards to learn from."""

    def reward(self, reward: Any) -> float:
        return 0.5 * float(reward)


class Hides(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Changes rewards where nobody would expect it."""

    def observation(self, observation: Any) -> Any:
        return observation

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, -reward, *rest


class Two(Points):
    """Two rewards at a step."""

    def reward(self) -> Any:
        return np.array([self.t, -1.0])


class Summed(gymnasium.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return float(np.sum(reward))


class TakesApart(Points):
    """Takes its arguments apart, as environments for RLlib do."""

    def __init__(self, config: dict[str, Any], scales: list[float]) -> None:
        self.scale = config.pop("inner", {"scale": 0.0}).pop("scale", 0.0) * scales.pop()

    def reward(self) -> Any:
        return self.scale * self.t


class ImportsLate(Points):
    """Imports a module that does not exist, when its method `at` is called."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.need("__init__")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.need("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.need("step")
        return super().step(action)

    def need(self, at: str) -> None:
        if at == self.at:
            importlib.import_module("tests.not_there")


def imports_late(at: str) -> Case:
    return Case(ImportsLate, args={"at": at}, refused=dict.fromkeys(KINDS, "No module named 'tests.not_there'"))


def recorded(env: Any) -> Any:
    return gymnasium.wrappers.RecordEpisodeStatistics(env)


def says(said: Any, **how: Any) -> Case:
    return Case(Says, args={"said": said}, **how)


class OneInfo(Points):
    """Keeps one info, and empties it at a reset."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.told.clear()
        return super().reset(seed=seed)[0], self.told

    def info(self) -> Any:
        self.told["is_success"] = self.t == self.games
        return self.told


class EndsAs(Points):
    """Says in a form of its own that an episode has ended."""

    def __init__(self, form: Callable[[bool], Any]) -> None:
        self.form = form

    def step(self, action: Any) -> Any:
        obs, reward, over, cut, info = super().step(action)
        return obs, reward, self.form(over), cut, info


class Overflows(Points):
    """Observes a number that the dtype of its space does not hold, on the third step."""

    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)

    def obs(self) -> Any:
        return np.array([self.t * 100], np.uint16)


class OldReset(Points):
    """Has `reset` return an observation of two numbers alone, as in classic gym."""

    observation_space = gymnasium.spaces.Box(0, 1000, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]

    def obs(self) -> Any:
        return np.array([self.t, self.t], np.float32)


class OldResetOfTwo(OldReset):
    """Has `reset` return a dictionary of two observations alone."""

    observation_space = gymnasium.spaces.Dict(a=Points.observation_space, b=Points.observation_space)

    def obs(self) -> Any:
        return {"a": super().obs()[:1], "b": super().obs()[1:]}


class Leaves(Points):
    """Leaves the program where its window would be closed."""

    def obs(self) -> Any:
        return super().obs() if self.t < 3 else sys.exit(0)


class Pair(NamedTuple):
    t: int
    twice: list[int]


class Pairs(Points):
    """Observes a tuple with names, which is a member of its space."""

    observation_space = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Discrete(99), gymnasium.spaces.Box(0, 99, (1,), np.int64)]
    )

    def obs(self) -> Any:
        return Pair(self.t, [2 * self.t])


class Unrendered(Points):
    """Has no attribute `render_mode`."""

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        raise AttributeError("no render_mode")


#: What is said of the error that gymnasium raises.
NO_INFO = "gymnasium found an info that is no dictionary"
OF_RECORDERS = {"r": -99.0, "l": 1}

CASES = {
    "plain": Case(Points),
    "time limit": Case(lambda: gymnasium.wrappers.TimeLimit(Points(), 4)),
    "reward wrapper": Case(Points, wrappers=[Halved], as_learned=["brought"]),
    "reward wrapper inside": Case(lambda: gymnasium.wrappers.TimeLimit(Halved(Points()), 50), as_learned=KINDS),
    "rewards changed by another kind of wrapper": Case(lambda: Hides(Points()), as_learned=KINDS),
    "lives": Case(Lives, wrappers=[EachLife], as_learned=["brought"]),
    "lives and a limit": Case(
        Lives, wrappers=[EachLife, lambda env: gymnasium.wrappers.TimeLimit(env, 1)], as_learned=["brought"]
    ),
    "lives inside": Case(lambda: EachLife(Lives()), as_learned=KINDS),
    "lives above a recorder": Case(
        lambda: EachLife(recorded(Lives())), alone=Lives, sure=lambda kind: kind != "brought-async"
    ),
    "recorder around": Case(Points, wrappers=[Halved, recorded], as_learned=["brought"]),
    "recorder inside": Case(
        lambda: Halved(recorded(Points())), alone=Points, sure=lambda kind: kind != "brought-async"
    ),
    "two rewards": Case(
        Two, alone=lambda: Summed(Two()), wrappers=[Summed], sure=lambda kind: not kind.startswith("brought")
    ),
    "arguments taken apart": Case(TakesApart, args={"config": {"inner": {"scale": 3.0}}, "scales": [1.0, 2.0]}),
    "an import that fails as it is made": imports_late("__init__"),
    "an import that fails in reset": imports_late("reset"),
    "an import that fails in step": imports_late("step"),
    "won": says(at_the_end(lambda env: {"is_success": won(env)})),
    "won as an array": says(lambda env: {"is_success": np.array([won(env)])}),
    "won as a number": says(lambda env: {"is_success": float(won(env))}),
    "success": says(lambda env: {"success": won(env)}),
    "won in a dictionary of its own kind": says(lambda env: UserDict(is_success=won(env))),
    "won, unlike success": says(lambda env: {"is_success": won(env), "success": not won(env)}),
    "success of something else": says({"success": "of the last trial"}),
    "a number for episode": says(lambda env: {"episode": env.games}),
    "a record for episode": says({"episode": OF_RECORDERS}),
    "a whole record for episode": says({"episode": {**OF_RECORDERS, "t": 0.5}}),
    "a record under rewards that change": says(
        {"episode": {**OF_RECORDERS, "t": 0.5}}, wrappers=[Halved], as_learned=["brought"]
    ),
    "arrays for episode": says(lambda env: {"episode": {"r": np.zeros(3), "l": np.ones(3), "t": np.ones(3)}}),
    "a text for episode": says({"episode": "the first"}),
    "nothing for episode": says({"episode": None}),
    "no info": says(in_steps(lambda env: None), refused=dict.fromkeys(KINDS[-2:], NO_INFO)),
    "a final_obs of its own": says(in_steps(lambda env: {"final_obs": np.float32([777]), "final_info": {}})),
    "a final_obs of its own in a reset": says(
        lambda env: {"final_obs": np.float32([777])}, refused={"brought-around": "info of a reset has 'final_obs'"}
    ),
    "a time limit that says so": says(lambda env: {"TimeLimit.truncated": True, "terminal_observation": np.zeros(1)}),
    "one info": Case(OneInfo),
    "one info under rewards that change": Case(OneInfo, wrappers=[Halved], as_learned=["brought"]),
    "one info with a record": Case(
        lambda: Halved(recorded(OneInfo())), alone=OneInfo, sure=lambda kind: kind != "brought-async"
    ),
    "a share for won": says({"is_success": 0.5}, refused=dict.fromkeys(KINDS, r"is_success")),
    "won by agents": says({"is_success": {"a": True}}, refused=dict.fromkeys(KINDS, r"is_success")),
    "an end in an array": Case(
        lambda: EndsAs(lambda over: np.array([over])),
        refused={"brought-async": r"terminations have shape \(2, 1\), expected one for each of 2"},
    ),
    "an end in a list": Case(lambda: EndsAs(lambda over: [over]), kinds=SEEING),
    "an end by agent": Case(
        lambda: EndsAs(lambda over: {"__all__": over}),
        refused=dict.fromkeys(KINDS, "terminated is {'__all__': False}"),
        kinds=SEEING,
    ),
    "an integer too large": Case(
        Overflows, refused=dict.fromkeys(KINDS, "300 in the observation: uint8"), kinds=SEEING
    ),
    "an observation alone": Case(
        OldReset,
        refused=dict.fromkeys(KINDS, NO_INFO)
        | dict.fromkeys(SEEING, r"reset returned float32\[2\], expected \(observation, info\)"),
    ),
    "a dictionary alone": Case(
        OldResetOfTwo,
        refused={"brought-around": NO_INFO, "brought-async": "string indices"}
        | dict.fromkeys(SEEING, "reset returned {'a': .*, expected .observation, info.: return both"),
    ),
    "an exit": Case(Leaves, refused=dict.fromkeys(KINDS, r"SystemExit(: |\()0"), kinds=KINDS[:-1]),
    "a tuple with names": Case(Pairs),
    "no render mode": Case(Unrendered, refused={"brought": "no render_mode"}),  # gymnasium's, before flowrl has any
    "wins of several": says({"is_success": [True, False]}, refused=dict.fromkeys(KINDS, r"is_success")),
    "info of a list": says(
        in_steps(lambda env: [1, 2]),
        refused=dict.fromkeys(KINDS, NO_INFO) | dict.fromkeys(SEEING, "info is .1, 2., expected a dictionary"),
    ),
}

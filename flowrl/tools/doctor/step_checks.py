"""Checks of an environment's steps. Each yields findings; an exception is a problem too."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, get_args

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from flowrl.data.finite import EXPECTED, LARGEST
from flowrl.envs import Environments, Manager, VectorEnvManager
from flowrl.envs.adapters.gym import ClassicEnv
from flowrl.envs.games.seats import SUCCESS, TABLE, GameEnv
from flowrl.envs.infos import success_of
from flowrl.envs.masks import UNASKED, ActionsOfMany, unasked_mask
from flowrl.envs.pictures import remarks
from flowrl.envs.spaces import checked_row, dict_form, find_unusable, fits, make_store, row_shape, shared_memory
from flowrl.envs.wrappers import layers, pack, unpack
from flowrl.errors import ConfigError, SchemaError
from flowrl.rollout.video import check_video
from flowrl.testing import same
from flowrl.tools.doctor.probe import Env, Probe, Step, dispose
from flowrl.tools.doctor.report import Finding, Level

Findings = Iterator[Finding]
ok, note, problem = (partial(Finding, level) for level in get_args(Level))

#: Steps over which two environments are compared, and seeds that should differ.
COMPARED, SEEDS = 200, (0, 1, 2)


def spaces(manager: Manager) -> Findings:
    """The spaces, whose manager exists: it rejects those for which no policy can be built."""
    if isinstance(manager, VectorEnvManager):
        yield ok("autoreset", manager.autoreset)
    actions = manager.action_space
    if isinstance(actions, ActionsOfMany):
        yield note("spaces", "a game: the agents' stacked observations, the table of seats, and all actions in one row")
    elif isinstance(actions, gymnasium.spaces.Box) and not actions.is_bounded():
        yield note("spaces", f"actions are not bounded ({actions}): nothing is clipped or rescaled")
    yield ok("spaces", _plain(f"observations {manager.observation_space}, actions {actions}"))


def network(manager: Manager, env: Any) -> Findings:
    """What PPO's network is for the observations, of each agent in a game, and what to know of it."""
    from flowrl.networks.networks import in_words
    from flowrl.policies import PPOPolicy  # and torch

    each: dict[str, Any] = {"": (manager.observation_space, manager.action_space)}
    if isinstance(env, GameEnv):
        each = {f"{kind.agents[0]}: ": (kind.observation_space, kind.action_space) for kind in env.seating.kinds}
    for agent, (seen, chosen) in each.items():
        try:
            yield ok("network", f"{agent}{in_words(PPOPolicy(seen, chosen, device='cpu').model)} for PPO")
        except ConfigError as error:
            yield note("network", f"{agent}none for PPO: {error}")
        else:
            yield from (note("network", f"{agent}{line}") for line in remarks(seen))


def values(probe: Probe, env: Env) -> Findings:
    """Whether answers fit the spaces, and whether episodes end."""
    space, reported, steps, ended = dict_form(env.observation_space), set[str](), 0, list[Step]()
    for step in probe.episodes(env):
        steps += step.t > 0
        if unasked_mask(step.info, space) and "mask" not in reported:
            reported.add("mask")
            yield note("mask", UNASKED)
        for what, level, text in _flaws(step, space):
            if what not in reported:
                reported.add(what)
                yield Finding(level, what.split(":")[0], f"{step.place}: {text}")
        if step.over:
            ended.append(step)
    if not reported - {"mask"}:
        yield ok("values", f"{steps} steps in {len(ended) + 1} episodes: all values fit the spaces")
    limits = [layer._max_episode_steps for layer in layers(env) if isinstance(layer, TimeLimit)]
    yield from _endings(ended, steps, min(limits, default=None), isinstance(env.action_space, ActionsOfMany))


Flaw = tuple[str, Level, str]


def _kind(value: Any) -> str:
    """What one value is, of numpy's kinds; "" for several. Other libraries' arrays without axes are values too."""
    return "" if np.ndim(value) else np.asarray(value).dtype.kind


def _flaws(step: Step, space: gymnasium.Space[Any]) -> Iterator[Flaw]:
    """Flaws of a step as (topic, level, text); the caller reports each topic once."""
    try:
        row = checked_row(step.obs, row_shape(make_store(space, 1)))
    except (SchemaError, ValueError) as error:
        yield "observations", "problem", str(error)
    else:
        yield from _observation(row, space, "observation")
    reward = step.reward
    if _kind(reward) not in ("b", "i", "u", "f"):
        text = f"the reward is a {type(reward).__name__} of shape {np.shape(reward)}, expected a number"
        yield "rewards", "problem", text
    elif not abs(float(reward)) <= LARGEST:
        yield "rewards: numbers", "problem", f"the reward is {reward}, {EXPECTED}"
    for name, flag in (("terminated", step.terminated), ("truncated", step.truncated)):
        if _kind(flag) != "b":
            yield f"flags: {name}", "problem", f"{name} is {flag!r} ({type(flag).__name__}), expected a bool"
    if not isinstance(step.info, dict):
        yield "info", "problem", f"info is a {type(step.info).__name__}, expected a dict"


def _observation(row: Any, space: Any, what: str) -> Iterator[Flaw]:
    if isinstance(space, gymnasium.spaces.Dict):
        for key, part in space.spaces.items():
            yield from _observation(row[key], part, f"{what}[{key!r}]")
        return
    array = np.asarray(row)
    if array.dtype != space.dtype:
        text = f"the {what} is {array.dtype}, but its space says {space.dtype}"
        if not fits(array.dtype, space.dtype):
            yield f"dtypes: {what}", "problem", text
            return
        yield f"dtypes: {what}", "note", f"{text}: it is converted at every step"
    if found := find_unusable(array[np.newaxis], what):
        yield f"numbers: {what}", "problem", found[1]
    elif not space.contains(array.astype(space.dtype)):
        numbers = np.array2string(array, threshold=8, precision=4).replace("\n", " ")
        yield f"bounds: {what}", "problem", f"the {what} is {numbers}, which is not in its space {space}"


def _endings(ended: list[Step], steps: int, limit: int | None, game: bool) -> Findings:
    known = f"its time limit is {limit} steps" if limit else "it has no TimeLimit of gymnasium's"
    if not ended:
        way_out = "" if limit else ": evaluation would wait long for an end; the wrapper TimeLimit(1000) sets one"
        yield (ok if limit else note)("endings", f"no episode ended in {steps} steps, {known}{way_out}")
        return
    lengths, terminated = [step.t for step in ended], sum(bool(step.terminated) for step in ended)
    least, most = min(lengths), max(lengths)
    took = f"{least}" if least == most else f"{least} to {most}"
    yield ok("endings", f"{terminated} of {len(ended)} episodes terminated, after {took} steps; {known}")
    if terminated == len(ended) > 2 and 1 < least == most:
        text = f"every episode terminated after exactly {least} steps: if that is a time limit, step must return "
        yield note("endings", f"{text}truncated instead, so that the value of the last state counts")
    try:
        say = sum(_says_success(step, game) for step in ended)
    except SchemaError as error:
        yield problem("success", f"{error}")
        return
    if say:
        yield ok("success", f"{say} of {len(ended)} episodes say whether they succeeded: win rates are known")
    else:
        yield ok("success", "info has no is_success at an episode's end: no win rates")


def _says_success(step: Step, game: bool) -> bool:
    """Whether an episode's end says if it was a success, that of a game for any of its agents."""
    told = isinstance(step.info, dict) and success_of(step.info) >= 0
    return told or (game and bool((step.obs[TABLE][:, SUCCESS] >= 0).any()))


def determinism(probe: Probe, env: Env) -> Findings:
    """Whether the seed determines the steps."""
    one, other = probe.another(), probe.another()
    first, second, again = (_transcript(probe, each) for each in (one, other, one))
    hint = "draw from self.np_random, which reset(seed=seed) seeds, and from no global generator"
    probe.deterministic = False
    if place := _difference(first, second):
        yield problem("determinism", f"two environments with one seed differ {place}: {hint}")
    elif place := _difference(first, again):
        yield problem("determinism", f"the same environment with the same seed differs {place}: {hint}")
    else:
        probe.deterministic = True
        steps = sum(step.t > 0 for step in first)
        yield ok("determinism", f"the same seed gave the same {steps} steps, three times")
        if not any(_difference(first, _transcript(probe, one, seed)) for seed in SEEDS[1:]):
            yield note("determinism", f"seeds {SEEDS} give equal steps: episodes differ by the policy's noise alone")
    dispose(one)
    dispose(other)


def memory(probe: Probe, env: Env) -> Findings:
    """Whether the environment overwrites an observation that it returned before."""
    pairs = pairwise(probe.episodes(env, 20))
    if part := next(filter(None, (shared_memory(one.obs, other.obs) for one, other in pairs)), ""):
        text = f"the {part} is one array that every step overwrites: flowrl copies it; a SyncVectorEnv in SAME_STEP "
        yield note("memory", f"{text}mode, and code that keeps observations, must copy it too")
    else:
        yield ok("memory", "every observation is a new array")


def saving(probe: Probe, env: Env) -> Findings:
    """Whether a run can be resumed in the middle of an episode."""
    env = probe.another()
    *_, last = probe.episodes(env, 10)
    packed = pack(env)
    if packed is None:
        why = "it cannot be pickled, its pickle is only its constructor's arguments (EzPickle), or it has a destructor"
        yield note("saving", f"{why}: a resumed run cuts the running episodes and begins new ones")
    elif (restored := unpack(packed, "the environment")) is None:
        yield problem("saving", "its pickle cannot be loaded: a resumed run cuts the running episodes")
    else:
        place = _difference(*(_copied(probe.episodes(each, 10, last=last)) for each in (env, restored)))
        dispose(restored)
        if place and probe.deterministic:
            yield problem("saving", f"a pickled copy goes on differently {place}: a resume would not be exact")
        else:
            yield ok("saving", "it can be saved in the middle of an episode: a resumed run is exact")
    dispose(env)


def rendering(probe: Probe, env: Env) -> Findings:
    """Whether evaluation can film it: a picture is rendered."""
    modes = env.metadata.get("render_modes", [])
    if "rgb_array" not in modes:
        yield note("rendering", f"render modes {modes} have no rgb_array: it cannot be filmed")
        return
    try:
        check_video(Environments(probe.factory.spec, probe.factory.env_args, probe.factory.wrappers))
    except ConfigError as error:
        yield note("rendering", f"render modes {modes}, but {error}")
    else:
        yield ok("rendering", f"render modes {modes}: flowrl evaluate --video can film it")


def gymnasium_checker(probe: Probe, env: Env) -> Findings:
    """Findings of gymnasium's own checker."""
    if isinstance(env.action_space, ActionsOfMany):
        return  # it judges what single agents can learn from
    env = probe.another().unwrapped
    if isinstance(env, ClassicEnv):  # the checker expects attributes that only gymnasium's environments have
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except Exception as error:
            yield note("check_env", f"gymnasium's checker rejects it: {_plain(error)}")
    for text in dict.fromkeys(_plain(warning.message) for warning in said):
        yield note("check_env", f"gymnasium's checker says: {text}")


CHECKS: dict[str, Callable[[Probe, Env], Findings]] = {
    "it takes random actions": values,
    "seeds are compared": determinism,
    "its observations are kept": memory,
    "it is saved": saving,
    "gymnasium's checker looks at it": gymnasium_checker,
}
"""The checks, by a description of each."""


def check_vector(manager: VectorEnvManager, probe: Probe, env: VectorEnv[Any, Any, Any]) -> Findings:
    """The checks of a VectorEnv that its manager does not make itself: endings, determinism."""
    first = list(probe.vector_steps(manager, COMPARED))
    if manager.unasked_mask:
        yield note("mask", UNASKED)
    if lengths := [episode.length for episode in manager.drain()]:
        yield ok("endings", f"{len(lengths)} episodes ended, after {min(lengths)} to {max(lengths)} steps")
    else:
        yield note("endings", f"no episode ended in {len(first) - 1} steps of each of {env.num_envs}")
    other: Any = probe.factory.first_of(env.num_envs)
    again = list(probe.vector_steps(VectorEnvManager(other), COMPARED))
    dispose(other)
    if differing := [step.t for step, twin in zip(first, again) if _difference([step], [twin])]:
        yield problem("determinism", f"two vector environments with one seed differ at step {differing[0]}")
    else:
        yield ok("determinism", f"the same seed gave the same {len(first) - 1} steps, twice")


def _transcript(probe: Probe, env: Env, seed: int = 0) -> list[Step]:
    return _copied(probe.episodes(env, COMPARED, seed, actions=0))


def _copied(steps: Iterator[Step]) -> list[Step]:
    """The steps with copies of the observations, which the environment cannot overwrite."""
    return [step._replace(obs=copy.deepcopy(step.obs)) for step in steps]


def _difference(one: list[Step], other: list[Step]) -> str:
    """Where two transcripts begin to differ; "" if they agree, as far as both go."""
    for ours, theirs in zip(one, other):
        mine, yours = ours._asdict(), theirs._asdict()
        for name in ("obs", "reward", "terminated", "truncated"):
            if not same(mine[name], yours[name]):
                return f"{ours.place}, in {name}"
    return ""


def _plain(message: object) -> str:
    """The message in one line, without gymnasium's colors."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[\d*m|WARN: ", "", str(message))).strip()

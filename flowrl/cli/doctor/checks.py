"""What is looked at in a single environment. Each check gives findings; what it raises is a problem too."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit

from flowrl.cli.doctor.findings import Finding
from flowrl.cli.doctor.observing import flaws
from flowrl.cli.doctor.patient import Patient, Step, copied
from flowrl.envs.adapters.gym import ClassicEnv
from flowrl.envs.masks import UNASKED, unasked_mask, valid_sample
from flowrl.envs.spaces import array_form, dict_form, make_store, row_shape, shared_memory
from flowrl.envs.wrappers import layers, pack, unpack
from flowrl.errors import ConfigError
from flowrl.testing import same

Findings = Iterator[Finding]
Check = Callable[[Patient], Findings]

UNASKED_MASK = Finding("note", "mask", UNASKED)

#: Steps that two environments are compared over, and seeds that should differ.
COMPARED, SEEDS = 200, (0, 1, 2)


def spaces(patient: Patient) -> Findings:
    """Whether policies can be built for them."""
    env, supported = patient.env, True
    for role, space, look in (
        ("observation", env.observation_space, lambda space: make_store(dict_form(space), 1)),
        ("action", env.action_space, lambda space: array_form(space, "action")),
    ):
        try:
            look(space)
        except ConfigError as error:
            supported = False
            yield Finding("problem", "spaces", str(error))
        if role == "action" and isinstance(space, gymnasium.spaces.Box) and not space.is_bounded():
            yield Finding("note", "spaces", f"actions are not bounded ({space}): nothing is clipped or rescaled")
    if supported:
        yield Finding("ok", "spaces", _plain(f"observations {env.observation_space}, actions {env.action_space}"))


def episodes(patient: Patient) -> Findings:
    """Whether what comes back is what the spaces say, and whether episodes end."""
    space = dict_form(patient.env.observation_space)
    shape, seen = row_shape(make_store(space, 1)), set[str]()
    ended: list[Step] = []
    steps, last = 0, None
    for step in patient.episodes(patient.env):
        steps += step.t > 0
        if unasked_mask(step.info, space) and "mask" not in seen:
            seen.add("mask")
            yield UNASKED_MASK
        for about, level, text in flaws(step, space, shape):
            if about not in seen:
                seen.add(about)
                yield Finding(level, about.split(":")[0], f"{step.place}: {text}")
        if step.terminated or step.truncated:
            ended.append(step)
        last = step
    if not seen - {"mask"}:
        yield Finding("ok", "values", f"{steps} steps in {len(ended) + 1} episodes: all is as the spaces say")
    assert last is not None
    yield from _endings(patient, ended, steps)


def _endings(patient: Patient, ended: list[Step], steps: int) -> Findings:
    limit = _time_limit(patient.env)
    known = f"its time limit is {limit} steps" if limit else "it has no TimeLimit of gymnasium's"
    way_out = "" if limit else ": evaluation would wait long for it; TimeLimit(1000) as a wrapper ends it"
    if not ended:
        yield Finding("ok" if limit else "note", "endings", f"no episode ended in {steps} steps, {known}{way_out}")
        return
    lengths = [step.t for step in ended]
    counts = f"{sum(map(_terminated, ended))} of {len(ended)} episodes terminated"
    took = f"{min(lengths)}" if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    yield Finding("ok", "endings", f"{counts}, after {took} steps; {known}")
    if len(ended) > 2 and len(set(lengths)) == 1 and all(map(_terminated, ended)) and lengths[0] > 1:
        yield Finding(
            "note",
            "endings",
            f"every episode terminated after exactly {lengths[0]} steps: if that is a time limit it must be said by "
            "truncated, since the value of what would have come counts then",
        )
    won = sum(isinstance(step.info, dict) and "is_success" in step.info for step in ended)
    if won:
        yield Finding(
            "ok", "success", f"{won} of {len(ended)} episodes say whether they succeeded: win rates are known"
        )
    else:
        yield Finding("ok", "success", "info has no is_success at an episode's end: no win rates")


def determinism(patient: Patient) -> Findings:
    """Whether a seed decides what happens."""
    env, another = patient.another(), patient.another()
    first, other, again = (_transcript(patient, each) for each in (env, another, env))
    alike = not any(_difference(first, _transcript(patient, env, seed)) for seed in SEEDS[1:])
    env.close()
    another.close()
    hint = "draw from self.np_random, which reset(seed=seed) seeds, and from no global generator"
    patient.deterministic = not (_difference(first, other) or _difference(first, again))
    if place := _difference(first, other):
        yield Finding("problem", "determinism", f"two environments with one seed differ {place}: {hint}")
    elif place := _difference(first, again):
        yield Finding("problem", "determinism", f"the same environment with the same seed differs {place}: {hint}")
    else:
        steps = sum(step.t > 0 for step in first)
        yield Finding("ok", "determinism", f"the same seed gave the same {steps} steps, three times")
        if alike:
            yield Finding(
                "note", "determinism", f"seeds {SEEDS} are alike: episodes differ by the policy's noise alone"
            )


def memory(patient: Patient) -> Findings:
    """Whether an observation that was handed out is written again."""
    previous = None
    for step in patient.episodes(patient.env, steps=20):
        if previous is not None and (part := shared_memory(previous, step.obs)):
            yield Finding(
                "note",
                "memory",
                f"the {part} is one array that is written again: flowrl copies it; a SyncVectorEnv in SAME_STEP mode, "
                "and whoever keeps observations, must copy it too",
            )
            return
        previous = step.obs
    yield Finding("ok", "memory", "every observation is an array of its own")


def saving(patient: Patient) -> Findings:
    """Whether a run can be resumed in the middle of an episode."""
    env = patient.another()
    *_, last = patient.episodes(env, steps=10)
    packed = pack(env)
    if packed is None:
        why = "it cannot be pickled, or its pickle is only its constructor's arguments (EzPickle)"
        yield Finding("note", "saving", f"{why}: a resumed run cuts the running episodes and begins new ones")
    else:
        restored = unpack(packed, "the environment")
        place = _difference(_going_on(env, last), _going_on(restored, last))
        restored.close()
        if place and patient.deterministic:
            yield Finding(
                "problem", "saving", f"a pickled copy goes on differently {place}: a resume would not be exact"
            )
        else:
            yield Finding("ok", "saving", "it can be saved in the middle of an episode: a resumed run is exact")
    env.close()


def rendering(patient: Patient) -> Findings:
    """Whether evaluation can film it."""
    modes = patient.env.metadata.get("render_modes", [])
    if "rgb_array" in modes:
        yield Finding("ok", "rendering", f"render modes {modes}: flowrl evaluate --video can film it")
    else:
        yield Finding("note", "rendering", f"render modes {modes} have no rgb_array: it cannot be filmed")


def gymnasium_checker(patient: Patient) -> Findings:
    """What gymnasium's own checker adds."""
    env = patient.another()
    if isinstance(env.unwrapped, ClassicEnv):  # it looks for what only gymnasium's own have
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            check_env(env.unwrapped, skip_render_check=True)
        except Exception as error:
            yield Finding("note", "check_env", f"gymnasium's checker refuses it: {_plain(error)}")
    for text in dict.fromkeys(_plain(warning.message) for warning in said):
        yield Finding("note", "check_env", f"gymnasium's checker says: {text}")


CHECKS: dict[str, Check] = {
    "its spaces are looked at": spaces,
    "it takes random actions": episodes,
    "seeds are compared": determinism,
    "its observations are kept": memory,
    "it is saved": saving,
    "its render modes are looked at": rendering,
    "gymnasium's checker looks at it": gymnasium_checker,
}
"""By what happens meanwhile."""


def _terminated(step: Step) -> bool:
    return bool(step.terminated)


def _time_limit(env: Any) -> int | None:
    limits = [layer._max_episode_steps for layer in layers(env) if isinstance(layer, TimeLimit)]
    return min(limits, default=None)


def _transcript(patient: Patient, env: Any, seed: int = 0) -> list[Step]:
    steps = patient.episodes(env, seed, COMPARED, draw=0)
    return [step._replace(obs=copied(step.obs), info={}) for step in steps]


def _difference(one: list[Step], other: list[Step]) -> str:
    """Where two transcripts begin to differ; "" if they do not, as far as both go."""
    for ours, theirs in zip(one, other):
        for name in ("obs", "reward", "terminated", "truncated"):
            if not same(getattr(ours, name), getattr(theirs, name)):
                return f"{ours.place}, in {name}"
    return ""


def _going_on(env: Any, last: Step) -> list[Step]:
    """Some more steps of a running episode, or of the next one."""
    actions = np.random.default_rng(0).integers(2**31, size=10)
    space, steps, obs, over = env.action_space, [], last.obs, last.terminated or last.truncated
    for t, seed in enumerate(actions.tolist(), 1):
        if over:
            obs, _ = env.reset(seed=seed)
        space.seed(seed)
        obs, reward, terminated, truncated, _ = env.step(valid_sample(space, obs))
        over = terminated or truncated
        steps.append(Step(0, t, copied(obs), reward, terminated, truncated, {}))
    return steps


def _plain(message: object) -> str:
    """Without gymnasium's colours, in one line."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[\d*m|WARN: ", "", str(message))).strip()

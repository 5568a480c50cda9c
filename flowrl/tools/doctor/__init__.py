"""`flowrl doctor`: examines an environment and suggests a manager for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gymnasium.vector import VectorEnv

from flowrl.envs import EnvFactory, Environments, EnvManager, VectorEnvManager
from flowrl.envs.make import is_object
from flowrl.envs.managers.supervisor import cores
from flowrl.envs.spec import is_native
from flowrl.errors import ConfigError
from flowrl.frames import one_line
from flowrl.rollout.video import NO_DISPLAY
from flowrl.tools.doctor.child import run_in_child
from flowrl.tools.doctor.probe import Probe, measured
from flowrl.tools.doctor.report import Diagnosis, Finding, Suggestion, Times, suggest
from flowrl.tools.doctor.step_checks import CHECKS, check_vector, network, rendering, spaces

__all__ = ["Diagnosis", "Finding", "Suggestion", "Times", "diagnose", "suggest"]

MAKING, RENDERING = "it is made", "a picture of it is rendered"


def diagnose(
    spec: Any,
    env_args: Mapping[str, Any] | None = None,
    *,
    wrappers: Sequence[Any] = (),
    num_envs: int = 8,
    steps: int = 1_000,
    seconds: float = 2.0,
    timeout: float = 30.0,
) -> Diagnosis:
    """Examine an environment in a separate process, so that a hang or a crash becomes a finding.

    Args:
        spec, env_args, wrappers: See `flowrl.envs.EnvFactory`.
        num_envs: Number of environments per worker, for the suggestion.
        steps, seconds: Limits of each check and of the timing.
        timeout: Seconds without an answer after which the environment counts as hanging.

    Raises:
        ConfigError: an unknown environment, argument or wrapper.
    """
    if is_object(spec):
        raise ConfigError(f"{spec!r} is an object, but the checks need several: give its id or a function")
    factory = EnvFactory(spec, dict(env_args or {}), tuple(wrappers))
    factory.check()
    answers, trouble = run_in_child(partial(_examine, Probe(factory, steps, seconds), num_envs), timeout + seconds)
    by_type: dict[type, list[Any]] = {kind: [] for kind in (str, Finding, Times, Suggestion, ConfigError)}
    for each in answers:
        by_type[type(each)].append(each)
    for error in by_type[ConfigError]:
        raise error
    if trouble:
        doing = (by_type[str] or ["its process starts"])[-1]
        found = Finding("problem", "process", f"while {doing}: {trouble}")
        if doing == RENDERING:  # which nothing needs to learn
            found = Finding("note", "rendering", f"no video: {found.text}; {NO_DISPLAY}")
        by_type[Finding].append(found)
    return Diagnosis(str(Environments(spec)), tuple(by_type[Finding]), *by_type[Times], *by_type[Suggestion])


def _examine(probe: Probe, num_envs: int) -> Iterator[Any]:
    """Yields a description of each step before it, and its results: findings, times, a suggestion."""
    doing = ""
    try:
        for each in _steps(probe, num_envs):
            doing = each if isinstance(each, str) else doing
            yield each
    except Exception as error:  # any exception of the environment is a finding
        if doing == MAKING and isinstance(error, ConfigError):
            yield error
        else:
            about = "making" if doing == MAKING else "errors"
            yield Finding("problem", about, f"while {doing}: {one_line(error)}")


def _steps(probe: Probe, num_envs: int) -> Iterator[Any]:
    yield MAKING
    factory = probe.factory
    env: Any = factory.first_of(num_envs)
    yield "its spaces are looked at"
    vector = isinstance(env, VectorEnv)
    try:
        manager: Any = VectorEnvManager(env) if vector else EnvManager([env])
    except ConfigError as error:
        silent = vector and env.metadata.get("autoreset_mode") is None
        yield Finding("problem", "autoreset" if silent else "spaces", str(error))
        return  # the other checks need a manager
    yield from spaces(manager)
    yield "a network is made for it"
    yield from network(manager, env)
    checks = {"it takes random actions": partial(check_vector, manager)} if vector else CHECKS
    for doing, check in checks.items():
        yield doing
        yield from check(probe, env)
    yield "its steps are timed"
    if vector:
        times = measured(probe.vector_steps(VectorEnvManager(env)), num_envs)
        reason = "it is a VectorEnv, and steps all of its environments itself"
        suggestion = Suggestion("vector", {}, reason, {"vector": num_envs / times.mean})
    else:
        times, native = measured(probe.episodes(env)), None
        if is_native(factory.spec) and not factory.wrappers:
            own: Any = factory.first_of(num_envs, vectorized=True)
            native = measured(probe.vector_steps(VectorEnvManager(own)), num_envs)
        suggestion = suggest(times, num_envs, cores(), native)
    yield from (times.finding(), times, suggestion)
    if not vector:
        yield RENDERING  # last, since it may crash
        yield from rendering(probe, env)
    yield "it is closed"
    env.close()

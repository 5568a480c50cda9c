"""`flowrl doctor`: examines an environment, and suggests a manager for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gymnasium.vector import VectorEnv

from flowrl.cli.doctor.checks import CHECKS, spaces
from flowrl.cli.doctor.child import Tell, run_in_child
from flowrl.cli.doctor.findings import Diagnosis, Finding, Suggestion, Times
from flowrl.cli.doctor.patient import Patient, described
from flowrl.cli.doctor.suggest import suggest
from flowrl.cli.doctor.timing import measure, measure_vector
from flowrl.cli.doctor.vector_checks import check_vector
from flowrl.envs import EnvFactory, Environments
from flowrl.envs.make import is_object
from flowrl.envs.managers.supervisor import cores
from flowrl.envs.spec import is_native
from flowrl.errors import ConfigError

__all__ = ["Diagnosis", "Finding", "Suggestion", "Times", "diagnose", "suggest"]


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
    """Examine an environment in a process of its own, so that one that hangs or crashes is told and not waited for.

    Args:
        spec, env_args, wrappers: See `flowrl.envs.EnvFactory`.
        num_envs: That a worker would step together; the suggestion is for so many.
        steps: Of each check and of the timing, at most.
        seconds: Likewise.
        timeout: After so many seconds without an answer it hangs.

    Raises:
        ConfigError: an unknown environment, argument or wrapper.
    """
    if is_object(spec):
        raise ConfigError(
            f"{spec!r} is made already, and several are compared: give its id or a callable that makes it"
        )
    factory = EnvFactory(spec, dict(env_args or {}), tuple(wrappers))
    factory.check()
    told, trouble = run_in_child(partial(_examine, factory, num_envs, steps, seconds), timeout + seconds)
    findings, doing, found = list[Finding](), "its process starts", dict[type, Any]()
    for each in told:
        if isinstance(each, ConfigError):
            raise each
        if isinstance(each, Finding):
            findings.append(each)
        elif isinstance(each, str):
            doing = each
        else:
            found[type(each)] = each
    if trouble:
        findings.append(Finding("problem", "process", f"while {doing}: {trouble}"))
    return Diagnosis(str(Environments(spec)), tuple(findings), found.get(Times), found.get(Suggestion))


def _examine(factory: EnvFactory, num_envs: int, steps: int, seconds: float, tell: Tell) -> None:
    tell("it is made")
    try:
        env = factory.first_of(num_envs)
    except ConfigError as error:
        tell(error)
        return
    except Exception as error:
        tell(Finding("problem", "making", described(error)))
        return
    if isinstance(env, VectorEnv):
        _examine_vector(env, factory, steps, seconds, tell)
        return
    patient = Patient(factory, steps, seconds, env)
    if not _checked(patient, tell):
        return
    tell("its steps are timed")
    times = measure(patient)
    native = None
    if is_native(factory.spec) and not factory.wrappers:
        native = measure_vector(factory.first_of(num_envs, vectorised=True), steps, seconds)  # type: ignore[arg-type]
    _tell_times(times, suggest(times, num_envs, cores(), native), tell)
    tell("it is closed")
    env.close()


def _checked(patient: Patient, tell: Tell) -> bool:
    """Whether all checks were made."""
    for doing, check in CHECKS.items():
        tell(doing)
        problems = 0
        try:
            for finding in check(patient):
                tell(finding)
                problems += finding.level == "problem"
        except Exception as error:  # whatever an environment raises is what is looked for
            tell(Finding("problem", "errors", f"while {doing}: {described(error)}"))
            return False
        if check is spaces and problems:
            return False  # nothing else can be understood then
    return True


def _tell_times(times: Times, suggestion: Suggestion, tell: Tell) -> None:
    for each in (times.finding(), times, suggestion):
        tell(each)


def _examine_vector(env: VectorEnv[Any, Any, Any], factory: EnvFactory, steps: int, seconds: float, tell: Tell) -> None:
    tell("it takes random actions")
    try:
        for finding in check_vector(env, factory):
            tell(finding)
    except Exception as error:
        tell(Finding("problem", "errors", described(error)))
        return
    tell("its steps are timed")
    times = measure_vector(env, steps, seconds)
    rate = {"vector": times.num_envs / float(times.steps.mean())}
    reason = "it is a VectorEnv, and steps all of its environments itself"
    _tell_times(times, Suggestion("vector", {}, reason, rate), tell)
    tell("it is closed")
    env.close()

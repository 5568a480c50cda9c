"""What a run directory says of its run, and the settings that a resumed run may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flowrl.errors import ConfigError
from flowrl.runs.config import Configuration, grouping
from flowrl.runs.progress import Budget
from flowrl.saved import fits, shown, words
from flowrl.settings import resumable
from flowrl.storage.files import parse_json, plain, read_file, read_json, read_lines

if TYPE_CHECKING:
    from flowrl.engine.run import Run
    from flowrl.rollout import Workers

#: The folder of the built-in plans; a link in a checkout, so it is compared resolved.
BUILTIN = Path(__file__).parents[1] / "plans"


#: What a run.json may have, besides what nobody reads.
_ABOUT: dict[str, Any] = {
    **dict.fromkeys(("plan", "path", "processor", "plan_hash"), str),
    "builtin": bool,
    "stop": dict[str, Any],
    "versions": dict[str, str | None],
    "inserts": list[str],
    "earlier": list[dict[str, Any]],
    "fork": dict[str, Any],
    "again": int,
}


def may_differ(config: Configuration, then: Mapping[str, Any]) -> set[str]:
    """The settings that a run resumed with `config` may change from the values `then` of the earlier run.

    Each setting declares this itself, see `flowrl.settings.setting`.

    >>> here = Configuration(num_workers=2, envs_per_worker=8)
    >>> "num_workers" in may_differ(here, {"num_workers": 0, "envs_per_worker": 16, "env_groups": 2})
    True
    >>> "num_workers" in may_differ(here, {"num_workers": 0, "envs_per_worker": 8})
    False
    """
    alike = config.grouping == grouping({"envs_per_worker": config.envs_per_worker, **then})
    free = resumable(type(config), "free", "rounding", "fork")
    return free | (resumable(type(config), "grouping") if alike else set())


def described(run: Run, owner: Workers) -> dict[str, Any]:
    """What a checkpoint says of its policy: see `Workers.about_policy`, and the part of the state that it is."""
    from flowrl.policies import Policies

    policy = owner.policy
    if isinstance(policy, Policies):
        found = {name: _part(run, each) for name, each in policy.items()}
        return {**owner.about_policy(), "part": None if None in found.values() else found}
    return {**owner.about_policy(), "part": _part(run, policy)}


def _part(run: Run, policy: Any) -> str | None:
    parts = [name for name, resource in run.resources.items() if resource is policy]
    return f"resources/{parts[0]}" if parts else None


def may_change(cls: type[Configuration]) -> str:
    """The settings that a resumed run may change, in words."""
    settings = ", ".join(sorted(resumable(cls, "free", "rounding", "fork")))
    return f"{settings}, and {', '.join(sorted(resumable(cls, 'grouping')))} where they form the same groups"


class Changes(NamedTuple):
    """The settings that differ at a resume: those that may not, those that change the last bits, and those that fork.

    A fork has the values before and after, {"learning_rate": {"from": 1e-3, "to": 1e-4}}.
    """

    refused: list[str]
    rounding: list[str]
    forked: dict[str, dict[str, Any]]


def changes(config: Configuration, then: Mapping[str, Any]) -> Changes:
    """Compare a configuration with the values, as plain data, of the run that is resumed."""
    now, allowed = plain(config.to_dict()), may_differ(config, then)
    changed = [key for key in now if key in then and not same_setting(key, then[key], now[key])]
    rounding, forking = resumable(type(config), "rounding"), resumable(type(config), "fork")
    return Changes(
        [key for key in changed if key not in allowed],
        [key for key in changed if key in rounding],
        {key: {"from": then[key], "to": now[key]} for key in changed if key in forking},
    )


def in_words(forked: Mapping[str, Mapping[str, Any]]) -> str:
    """The settings of a fork.

    >>> in_words({"learning_rate": {"from": 1e-3, "to": 1e-4}})
    'learning_rate=0.0001 (it was 0.001)'
    """
    return ", ".join(f"{key}={values['to']!r} (it was {values['from']!r})" for key, values in forked.items())


def forks_in(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The forks that the run.json of a run records, oldest first."""
    return [part["fork"] for part in (*about.get("earlier", ()), about) if "fork" in part]


def same_setting(key: str, then: Any, now: Any) -> bool:
    """Whether two values of a key are the same; __main__ matches any module, since an imported script changes name."""
    if key == "env" and isinstance(then, str) and isinstance(now, str):
        (there, _, factory), (here, _, other) = then.partition(":"), now.partition(":")
        if "__main__" in (there, here):
            return factory == other
    return bool(then == now)


def counts_of_budgets(about: Mapping[str, Any], clock: str) -> set[tuple[str, float]]:
    """The counts that the budgets of a run had, also those before it was resumed: see `Budget.counts`."""
    return set().union(*(budget.counts(clock) for budget in _budgets(about)))


def _budgets(about: Mapping[str, Any]) -> list[Budget]:
    stops = [stop for each in (*about.get("earlier", ()), about) for stop in (*each.get("stops", ()), each.get("stop"))]
    return [Budget(**(stop or {})) for stop in stops]


def read_about(path: Path) -> dict[str, Any]:
    """Read the run.json of a run directory; it holds at least `plan` and the plan's `path`.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    file = path / "run.json"
    try:
        about: dict[str, Any] = dict(read_json(file))
        for name, kind in _ABOUT.items():
            if (name in about or name in ("plan", "path")) and not fits(about[name], kind):
                raise ValueError(f"{name} is {shown(about[name])}, expected {words(kind)}")
        budgets = _budgets(about)
        if not fits([(each, each.goal) for each in budgets], list[tuple[Budget, float | dict[str, float] | None]]):
            raise ValueError(f"stop is {shown(about.get('stop'))}, expected the bounds of a run")
        return about
    except OSError as error:
        raise ConfigError(f"{path} does not say which plan it ran: {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is malformed: {error}") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file} is malformed: {error!r}") from error


def plan_text(path: Path) -> str:
    """The text of a plan's file. Raises: ConfigError: it cannot be read."""
    try:
        return read_file(path).decode()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: {error}") from error


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the results in a run's metrics.jsonl, without a last line that is still being written.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    file = path / "metrics.jsonl"
    try:
        return [_result(line, f"{file}, line {number}") for number, line in enumerate(read_lines(file), 1)]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error


def _result(line: bytes, where: str) -> dict[str, Any]:
    try:
        result = parse_json(line)
    except ValueError as error:
        raise ConfigError(f"{where} is malformed: {error}") from error
    if not isinstance(result, dict):
        raise ConfigError(f"{where} is malformed: it is a {type(result).__name__}, expected a result")
    return dict(plain(result))  # NaN, which JSON does not have, is no value

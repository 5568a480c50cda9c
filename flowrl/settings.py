"""Settings, declared once where they are used: by policies, by options that cut across plans, by plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs
from attrs import validators

from flowrl.errors import ConfigError
from flowrl.schedules import Setting, schedule, value_at

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan

_Settings = TypeVar("_Settings")

#: What a field is that was not made yet: of `attrs.field`, and so of the functions below.
_Field = type(attrs.field())


#: What another value than before means for a run that goes on: see `setting`.
Resume = Literal["free", "grouping", "rounding"]


def setting(default: Any, meaning: str = "", *, range: str = "", resume: Resume | None = None, **how: Any) -> Any:
    """A setting of any value of its type; `meaning` says in one line what it is.

    Args:
        range: The values that its validator lets pass, in words.
        resume: What another value means for a run that goes on. None: it would be another run, and is refused. "free":
            no parameter of the policy changes. "grouping": none does while the environments form the same groups (D2).
            "rounding": the last bits change, which is warned of.
        how: As of `attrs.field`.
    """
    said = {"meaning": meaning, "range": range, "resume": resume}
    return attrs.field(default=default, metadata={name: text for name, text in said.items() if text}, **how)


def positive(default: Any, meaning: str = "", **how: Any) -> Any:
    """A setting whose value is above 0, or None where its annotation allows that."""
    return setting(default, meaning, range="> 0", validator=validators.optional(validators.gt(0)), **how)


def at_least_one(default: int | None, meaning: str = "", **how: Any) -> Any:
    """A setting whose value is at least 1, or None where its annotation allows that."""
    return setting(default, meaning, range=">= 1", validator=validators.optional(validators.ge(1)), **how)


def fraction(default: float, meaning: str = "") -> Any:
    """A setting whose value lies in 0 .. 1."""
    return setting(default, meaning, range="0 .. 1", validator=validators.and_(validators.ge(0), validators.le(1)))


def proper_fraction(default: float, meaning: str = "") -> Any:
    """A setting whose value lies between 0 and 1, and is neither."""
    within = validators.and_(validators.gt(0), validators.lt(1))
    return setting(default, meaning, range="> 0, < 1", validator=within)


def not_negative(default: Any, meaning: str = "", **how: Any) -> Any:
    """A setting whose value is at least 0, or None where its annotation allows that."""
    return setting(default, meaning, range=">= 0", validator=validators.optional(validators.ge(0)), **how)


def scheduled(default: Setting | None, meaning: str = "", *, least: float = 0.0, most: float = float("inf")) -> Any:
    """A setting that is a number or a schedule (see `flowrl.schedules.schedule`) that begins between two bounds."""

    def begins_within(config: Any, field: attrs.Attribute[Any], given: Any) -> None:
        if given is None or callable(given):
            return  # whether it may be None is a matter of types; a function is called when a policy learns
        try:
            first = value_at(schedule(given), 0)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not least <= first <= most:
            raise ValueError(f"it begins with {first:g}, expected {least:g} .. {most:g}")

    limits = f">= {least:g}" if most == float("inf") else f"{least:g} .. {most:g}"
    return setting(default, meaning, range=limits, validator=begins_within)


def sizes(*default: int, meaning: str = "") -> Any:
    """A setting of one or more sizes, each at least 1."""
    one = validators.and_(validators.instance_of(int), validators.ge(1))
    each: Any = validators.and_(validators.min_len(1), validators.deep_iterable(one))
    return setting(default, meaning, range="each >= 1", validator=each)


@attrs.frozen(kw_only=True, slots=False)
class Settings:
    """Base of what is declared once, where it is used, and taken from there: by policies, options and plans.

    A subclass that only wants another default writes it down; all else is as it was declared:

    >>> @attrs.frozen(kw_only=True, slots=False)
    ... class Discounted(Settings):
    ...     gamma: float = fraction(0.99, "discount per step")
    >>> @attrs.frozen(kw_only=True, slots=False)
    ... class Short(Discounted):
    ...     gamma: float = 0.9
    >>> construct(Short, {"gamma": 2})
    Traceback (most recent call last):
    flowrl.errors.ConfigError: gamma=2: 'gamma' must be <= 1: 2
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in [name for name in vars(cls).get("__annotations__", {}) if name in vars(cls)]:
            declared, given = _declaration(cls.__mro__[1:], name), vars(cls)[name]
            if declared is None:
                continue
            if isinstance(given, _Field):
                given.metadata = {**declared.metadata, "range": "", **given.metadata}
            else:
                how: dict[str, Any] = {"validator": declared.validator, "metadata": declared.metadata}
                setattr(cls, name, attrs.field(default=given, **how))


def _declaration(bases: Iterable[type], name: str) -> attrs.Attribute[Any] | None:
    """The nearest one of a setting."""
    fields = (field for base in bases for field in vars(base).get("__attrs_attrs__", ()))
    return next((field for field in fields if field.name == name), None)


def resumable(cls: type[Settings], *kinds: Resume) -> set[str]:
    """The settings of a class that a run may go on with other values of, of these kinds: see `setting`."""
    return {field.name for field in attrs.fields(cls) if field.metadata.get("resume") in kinds}


@attrs.frozen(kw_only=True, slots=False)
class Option(Settings):
    """Settings that cut across plans, and the edit of a plan that follows from them.

    A `Trainer` has the options of its configuration edit the plan, in the order in which the bases of its `Config` are
    listed: after `execution_plan`, which so shows the algorithm alone.
    """

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """The plan with this option, and the next ones: a subclass returns `super().edit(plan, workers)`."""
        return plan


@attrs.frozen(kw_only=True, slots=False)
class ForPolicy(Settings):
    """What every policy takes."""

    seed: int = not_negative(0, "root of all random streams of a run")
    device: str = setting("auto", "where the networks live: auto, cpu, cuda ...", resume="rounding")
    #: "numpy" is faster for small dense networks, and equal to rounding.
    act_backend: str = setting("torch", "what computes actions: torch, or numpy on the CPU", resume="rounding")
    network: str | None = setting(None, "module:Class that encodes observations, in the place of the built-in one")
    precision: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "what learning computes in: bfloat16 where it pays, float16 on a GPU"
    )
    compile: bool = setting(
        False, "learn with networks that torch.compile has made faster; takes a minute at first", resume="rounding"
    )
    grad_clip_value: float | None = positive(None, "largest absolute value of a gradient, before its norm is clipped")


#: Settings that are arguments of the same name of every policy.
FOR_POLICY = tuple(field.name for field in attrs.fields(ForPolicy))


def construct(cls: type[_Settings], given: Mapping[str, Any]) -> _Settings:
    """An instance of an attrs class of these values, whose types are taken as they are.

    Raises:
        ConfigError: a validator refuses a value, or the class all of them.
    """
    attrs_class: Any = cls
    fields = {field.name: field for field in attrs.fields(attrs_class) if field.init}
    values = {fields[name].alias: value for name, value in given.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError, AssertionError) as error:
        blamed = _blamed(cls, values, fields)
        where = "the configuration is refused" if blamed is None else f"{blamed}={given.get(blamed, 'default')!r}"
        reason = error.args[0] if error.args else type(error).__name__
        raise ConfigError(f"{where}: {reason}") from error


def _blamed(cls: type[Any], values: dict[str, Any], fields: Mapping[str, attrs.Attribute[Any]]) -> str | None:
    """The key whose validator refuses its value; None if the reason is another one."""
    try:
        with validators.disabled():
            config = cls(**values)
    except Exception:  # __attrs_post_init__ refuses, so that no single key is to blame
        return None
    for name, field in fields.items():
        try:
            if field.validator is not None:
                field.validator(config, field, getattr(config, name))
        except Exception:
            return name
    return None

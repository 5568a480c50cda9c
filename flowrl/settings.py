"""Settings. Each is declared once, where it is used: by a policy, by an option that cuts across plans, or by a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs
from attrs import validators

from flowrl.errors import ConfigError, PlanError
from flowrl.saved import shown
from flowrl.schedules import NumberOrSchedule, not_finite, schedule, value_at

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan

_Settings = TypeVar("_Settings")

#: No setting is a whole number of this size: a seed has 64 bits.
LARGEST = 2**64
#: The most of what is held, made or repeated, unless a setting says otherwise; and of env steps and bytes.
COUNT, STEPS = 2**31 - 1, 2**53

#: The value of `network` for the network of the Atari papers.
NATURE = "nature"

#: A field that attrs has not built yet: what `attrs.field` and the functions below return.
_Field = type(attrs.field())


#: What another value than before means for a resumed run: see `setting`.
Resume = Literal["free", "grouping", "rounding", "fork"]


def setting(
    default: Any,
    meaning: str = "",
    *,
    range: str = "",
    unbounded: bool = False,
    most: int | None = None,
    resume: Resume | None = None,
    span: bool = False,
    **how: Any,
) -> Any:
    """A setting that takes any value of its type; `meaning` describes it in one line. Numbers are finite (X3).

    Args:
        range: The values that its validator accepts, in words.
        most: Of a whole number, so that a slip of the keyboard neither runs for ever nor asks for all memory. None:
            `COUNT`.
        unbounded: Whether infinity is a value too, which stands for no bound.
        resume: What another value means for a resumed run. None: it would be another run, and is refused. "free": no
            parameter of the policy changes. "grouping": none changes while the environments form the same groups (D2).
            "rounding": the last bits change; the run warns. "fork": it learns differently from there on, from the same
            state; the run records it.
        span: Whether it is how long schedules last, and None stands for the run's budget.
        how: Passed to `attrs.field`.
    """
    limits = f"{range}; inf: no bound" if unbounded else range
    if most is not None and most < COUNT:
        limits = f"{limits}, <= {most}" if limits else f"<= {most}"
    said = {"meaning": meaning, "range": limits, "most": most, "unbounded": unbounded, "resume": resume, "span": span}
    return attrs.field(default=default, metadata={name: text for name, text in said.items() if text}, **how)


def positive(default: Any, meaning: str = "", *, most: int | str | None = None, **how: Any) -> Any:
    """A setting whose value is above 0, or None where its annotation allows that.

    `most` may be the name of another setting, whose value it does not exceed.
    """
    within, most = (most, None) if isinstance(most, str) else ("", most)

    def at_most(config: Any, _field: attrs.Attribute[Any], given: Any) -> None:
        if within and given > config.get(within):
            raise ValueError(f"expected at most {within}, which is {config.get(within)}")

    bounded = validators.optional(validators.and_(validators.gt(0), at_most))
    limits = f"> 0, <= {within}" if within else "> 0"
    return setting(default, meaning, range=limits, most=most, validator=bounded, **how)


def at_least_one(default: int | None, meaning: str = "", **how: Any) -> Any:
    """A setting whose value is at least 1, or None where its annotation allows that."""
    return setting(default, meaning, range=">= 1", validator=validators.optional(validators.ge(1)), **how)


def fraction(default: float, meaning: str = "", **how: Any) -> Any:
    """A setting whose value lies in 0 .. 1."""
    within = validators.and_(validators.ge(0), validators.le(1))
    return setting(default, meaning, range="0 .. 1", validator=within, **how)


def proper_fraction(default: float | None, meaning: str = "") -> Any:
    """A setting whose value lies strictly between 0 and 1, or None where its annotation allows that."""
    within = validators.optional(validators.and_(validators.gt(0), validators.lt(1)))
    return setting(default, meaning, range="> 0, < 1", validator=within)


def not_negative(default: Any, meaning: str = "", **how: Any) -> Any:
    """A setting whose value is at least 0, or None where its annotation allows that."""
    return setting(default, meaning, range=">= 0", validator=validators.optional(validators.ge(0)), **how)


def scheduled(default: NumberOrSchedule | None, meaning: str = "", *, most: float = float("inf")) -> Any:
    """A number, or a schedule (see `flowrl.schedules.schedule`), whose first value lies between 0 and `most`."""

    def begins_within(config: Any, field: attrs.Attribute[Any], given: Any) -> None:
        if given is None or callable(given):
            return  # the type says whether None is allowed; a function is called when a policy learns
        try:
            first = value_at(schedule(given), 0)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not 0 <= first <= most:
            raise ValueError(f"it starts at {first:g}, expected 0 .. {most:g}")

    limits = ">= 0" if most == float("inf") else f"0 .. {most:g}"
    return setting(default, meaning, range=limits, validator=begins_within, resume="fork")


def span(meaning: str) -> Any:
    """A setting of how many env steps schedules last; None: as long as the run, see `Configuration.over`."""
    return positive(None, f"{meaning}; None: the run's budget", span=True, most=STEPS, resume="fork")


def sizes(*default: int, meaning: str = "") -> Any:
    """A setting of one or more sizes, each at least 1."""
    one = validators.and_(validators.instance_of(int), validators.ge(1))
    each: Any = validators.and_(validators.min_len(1), validators.deep_iterable(one))
    return setting(default, meaning, range="each >= 1", validator=each)


@attrs.frozen(kw_only=True, slots=False)
class Settings:
    """Base of groups of settings, which policies and options declare and plans inherit.

    A subclass that only changes a default assigns it; type, range and meaning stay as declared:

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

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting by its name; the default where there is none of that name."""
        return getattr(self, name, default)


def _declaration(bases: Iterable[type], name: str) -> attrs.Attribute[Any] | None:
    """The nearest declaration of a setting along the bases."""
    fields = (field for base in bases for field in vars(base).get("__attrs_attrs__", ()))
    return next((field for field in fields if field.name == name), None)


def resumable(cls: type[Settings], *kinds: Resume) -> set[str]:
    """The settings of a class whose values may change at a resume in one of these ways: see `setting`."""
    return {field.name for field in attrs.fields(cls) if field.metadata.get("resume") in kinds}


@attrs.frozen(kw_only=True, slots=False)
class Option(Settings):
    """Settings that cut across plans, and the edit of the plan that implements them.

    `execution_plan` shows the algorithm alone: a `Trainer` has its plan `edited` afterwards.
    """

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """The plan with this option, and no other, applied."""
        return plan

    def edited(self, plan: Plan, workers: Any) -> Plan:
        """The plan with all options applied, in the order of the bases: of (A, B), what B inserts is nearer the source.

        Raises: PlanError, which names the option, for a plan without the operators that it edits.
        """
        for option in type(self).__mro__:
            if "edit" in vars(option):
                try:
                    plan = vars(option)["edit"](self, plan, workers)
                except PlanError as error:
                    names = ", ".join(vars(option).get("__annotations__", {}))
                    raise PlanError(f"the option {option.__name__} ({names}) cannot edit the plan: {error}") from error
        return plan


@attrs.frozen(kw_only=True, slots=False)
class PolicySettings(Settings):
    """Settings of every policy."""

    seed: int = setting(
        0,
        "seed of the run; every random stream derives from it",
        range="0 .. 2**64 - 1",
        most=LARGEST - 1,
        validator=validators.and_(validators.ge(0), validators.lt(2**64)),
    )
    device: str = setting(
        "auto", "device of the networks: cpu, cuda ...; auto: a GPU if there is one", resume="rounding"
    )
    #: "numpy" is faster for small dense networks; results agree up to rounding.
    act_backend: str = setting(
        "torch", "library that computes actions: torch; numpy; auto: numpy on the CPU if it can", resume="rounding"
    )
    network: str | None = setting(
        None, "nature: the network of the Atari papers; module:Class of an encoder that replaces the built-in one"
    )
    #: A table has the orders of the entries of a Dict, by name. See `flowrl.envs.pictures`.
    image_axes: str | dict[str, Any] | None = setting(
        None, "order of the axes of pictures, as HWC or SCHW (S: a stack); none: numbers; None: what their shape says"
    )
    precision: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "number format of learning: float32, bfloat16, or float16 (GPU only)"
    )
    compile: bool = setting(
        False, "compile the loss and its gradients: faster updates, other last bits", resume="rounding"
    )
    grad_clip_value: float | None = positive(
        None, "largest magnitude of a gradient entry, clipped before the norm", resume="fork"
    )


#: Settings that every policy takes as arguments of the same name.
POLICY_SETTINGS = tuple(field.name for field in attrs.fields(PolicySettings))


def construct(cls: type[_Settings], given: Mapping[str, Any]) -> _Settings:
    """An instance of an attrs class with these values; their types are not checked.

    Numbers are finite (X3), but for defaults and settings that are `unbounded`. Tables are not looked into: arguments
    of an environment may be infinite.

    Raises:
        ConfigError: a number is not finite, a validator rejects a value, or the class rejects their combination.
    """
    attrs_class: Any = cls
    fields = {field.name: field for field in attrs.fields(attrs_class) if field.init}
    values = {fields[name].alias: value for name, value in given.items()}
    for name, value in given.items():
        unbounded = fields[name].metadata.get("unbounded", False)
        if any(math.isnan(each) or not (unbounded or each == fields[name].default) for each in not_finite(value)):
            expected = "a number, or inf for no bound" if unbounded else "finite numbers"
            raise ConfigError(f"{name}={value!r}: expected {expected}")
        about = fields[name].metadata
        most = about.get("most", COUNT if "meaning" in about else LARGEST - 1)
        if any(type(each) is int and each > most for each in (value if isinstance(value, (list, tuple)) else [value])):
            raise ConfigError(f"{name}={shown(value)}: expected at most {most:,}")
    try:
        return cls(**values)
    except (TypeError, ValueError, AssertionError) as error:
        blamed = _blamed(cls, values, fields)
        where = "the configuration is refused" if blamed is None else f"{blamed}={given.get(blamed, 'default')!r}"
        reason = error.args[0] if error.args else type(error).__name__
        raise ConfigError(f"{where}: {reason}") from error


def _blamed(cls: type[Any], values: dict[str, Any], fields: Mapping[str, attrs.Attribute[Any]]) -> str | None:
    """The key whose validator rejects its value; None if the reason is another one."""
    try:
        with validators.disabled():
            config = cls(**values)
    except Exception:  # __attrs_post_init__ rejects the combination: no single key is to blame
        return None
    for name, field in fields.items():
        try:
            if field.validator is not None:
                field.validator(config, field, getattr(config, name))
        except Exception:
            return name
    return None

"""Configurations: one attrs class per plan, built from layers of plain values and checked before any work."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import attrs
from attrs import validators
from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from flowrl.errors import ConfigError, did_you_mean
from flowrl.schedules import Setting, schedule, value_at

_Config = TypeVar("_Config")


def positive(default: Any) -> Any:
    """A field whose value is above 0, or None where its annotation allows that."""
    return attrs.field(default=default, validator=validators.optional(validators.gt(0)))


def fraction(default: float) -> Any:
    """A field whose value lies in 0 .. 1."""
    return attrs.field(default=default, validator=validators.and_(validators.ge(0), validators.le(1)))


def proper_fraction(default: float) -> Any:
    """A field whose value lies between 0 and 1, and is neither."""
    return attrs.field(default=default, validator=validators.and_(validators.gt(0), validators.lt(1)))


def not_negative(default: Any) -> Any:
    """A field whose value is at least 0, or None where its annotation allows that."""
    return attrs.field(default=default, validator=validators.optional(validators.ge(0)))


def scheduled(default: Setting | None, least: float = 0.0, most: float = float("inf")) -> Any:
    """A field of a number or a schedule (see `flowrl.schedules.schedule`) that begins between two bounds."""

    def begins_within(config: Any, field: attrs.Attribute[Any], setting: Setting | None) -> None:
        if setting is None:
            return  # whether it may be is a matter of types
        try:
            first = value_at(schedule(setting), 0)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not least <= first <= most:
            raise ValueError(f"it begins with {first:g}, expected {least:g} .. {most:g}")

    return attrs.field(default=default, validator=begins_within)


def sizes(*default: int) -> Any:
    """A field of one or more sizes, each at least 1."""
    one = validators.and_(validators.instance_of(int), validators.ge(1))
    return attrs.field(default=default, validator=validators.and_(validators.min_len(1), validators.deep_iterable(one)))


#: Settings that are arguments of the same name of every policy.
FOR_POLICY = ("seed", "device", "act_backend", "network", "precision", "compile", "grad_clip_value")


@attrs.frozen(kw_only=True)
class Configuration:
    """What every plan has; a plan's own `Config` adds the settings of its algorithm.

    A configuration does not change, since plans and policies are made of it: `attrs.evolve(config, seed=3)` is another
    one. So it is for subclasses, whether they say so or not.

    >>> @attrs.define(kw_only=True)
    ... class Config(Configuration):
    ...     learn_rate: float = 1e-3
    >>> config = build_config(Config, {"learn_rate": 1, "seed": 3})
    >>> config.learn_rate, config["seed"], config.env
    (1.0, 3, 'CartPole-v1')
    """

    #: The counter that budgets, evaluations, checkpoints and results follow.
    clock: ClassVar[str] = "env_steps"

    #: What `gymnasium.make` knows, "module:factory", or of another library "gym:ID", "pettingzoo:ID", "envpool:ID".
    env: str = "CartPole-v1"
    #: Keyword arguments of the environment.
    env_args: dict[str, Any] = attrs.field(factory=dict)
    #: Wrappers around each environment, the first one innermost: names of gymnasium.wrappers or "module:Wrapper", with
    #: arguments as in a call, "FrameStackObservation(4)".
    wrappers: list[str] = attrs.field(factory=list)
    #: Who steps the environments: "local", "subprocess", "async", "thread" or "vector".
    env_manager: str = "local"
    #: Keyword arguments of that manager.
    env_manager_args: dict[str, Any] = attrs.field(factory=dict)
    #: Seeds of the episodes in turn; None: fresh ones that follow from `seed`.
    episode_seeds: list[int] | None = attrs.field(default=None, validator=validators.optional(validators.min_len(1)))
    #: The environment that evaluates; None: as for collecting.
    eval_env: str | None = None
    #: Its keyword arguments; None: as for collecting, but none with another `eval_env`.
    eval_env_args: dict[str, Any] | None = None
    #: Wrappers around each that evaluates; None: as for collecting.
    eval_wrappers: list[str] | None = None
    #: Who steps those that evaluate; None: as for collecting, with the same arguments.
    eval_env_manager: str | None = None
    #: Root of all random streams of a run.
    seed: int = attrs.field(default=0, validator=validators.ge(0))
    #: Processes that sample, on Ray; 0: this one does.
    num_workers: int = attrs.field(default=0, validator=validators.ge(0))
    #: Environments of each of them.
    envs_per_worker: int = attrs.field(default=8, validator=validators.ge(1))
    #: Groups that the environments of all workers form, each acted in with one batch; None: one a worker. The same
    #: groups over another number of workers give the same stream.
    env_groups: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(1)))
    #: Logical cores that each worker process takes of its machine, or a part of one.
    worker_cpus: float = attrs.field(default=1.0, validator=validators.ge(0))
    #: GPUs that each takes, or a part of one; without any its policy acts on the CPU.
    worker_gpus: float = attrs.field(default=0.0, validator=validators.ge(0))
    #: Bytes of memory that each takes; 0: it is not said.
    worker_memory: int = attrs.field(default=0, validator=validators.ge(0))
    #: Other resources of the cluster's machines that each takes, by name.
    worker_resources: dict[str, float] = attrs.field(factory=dict)
    #: How often each worker process may be made again after its death.
    max_worker_restarts: int = attrs.field(default=10, validator=validators.ge(0))
    #: After the death of one that may not: "stop" the run, or "go_on" with the others while there are any.
    on_worker_death: Literal["stop", "go_on"] = "stop"
    #: The Ray cluster that these and other actors run on: "host:port", "ray://host:port", or "auto" on a machine of it;
    #: None: a Ray of this machine, for as long as it is needed.
    address: str | None = None
    #: Where the networks live: "auto", "cpu", "cuda" ...
    device: str = "auto"
    #: What computes actions: "torch", or "numpy" on the CPU, faster for small dense networks and equal to rounding.
    act_backend: str = "torch"
    #: The network that encodes observations, "module:Class", in the place of the built-in one.
    network: str | None = None
    #: What learning computes in: "float32", "bfloat16" where it pays, or "float16" on a GPU.
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    #: Learn with networks that `torch.compile` has made faster; it takes a minute at first.
    compile: bool = False
    #: Largest absolute value of a gradient, before its norm is clipped.
    grad_clip_value: float | None = attrs.field(default=None, validator=validators.optional(validators.gt(0)))
    #: Threads of torch in this process while it trains or evaluates; more than one pays only for large networks.
    torch_threads: int = attrs.field(default=1, validator=validators.ge(1))
    #: Episodes of one evaluation.
    eval_episodes: int = attrs.field(default=100, validator=validators.ge(1))
    #: Steps after which an episode that is evaluated is cut, as one that never ends.
    eval_max_steps: int = attrs.field(default=10_000, validator=validators.ge(1))
    #: Env steps between two evaluations; None: 1/20 of the budget of `flowrl run`, and none in a `Trainer`.
    eval_every: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(1)))
    #: Of `flowrl run` alone, a `Trainer` saves when told to: env steps between two checkpoints; None: as between
    #: evaluations, 10 000 where there are none.
    checkpoint_every: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(1)))

    def __getitem__(self, key: str) -> Any:
        names = [field.name for field in attrs.fields(type(self))]
        if key not in names:
            raise ConfigError(f"no configuration key {key!r}; {did_you_mean(key, names)}")
        return getattr(self, key)

    @property
    def num_envs(self) -> int:
        """Environments of all workers together."""
        return self.envs_per_worker * max(self.num_workers, 1)

    @property
    def grouping(self) -> tuple[int, int]:
        """Groups of environments, and environments in each: equal ones give equal streams, wherever they are (D2)."""
        return grouping(self.to_dict())

    @property
    def evaluation(self) -> dict[str, Any]:
        """How evaluations inside a run play, as `flowrl.operators.Evaluate` takes it."""
        return {"episodes": self.eval_episodes, "seed": self.seed, "max_steps": self.eval_max_steps}

    @property
    def for_policy(self) -> dict[str, Any]:
        """What every policy takes, whatever it learns: `DQNPolicy(..., **config.for_policy)`."""
        return {name: getattr(self, name) for name in FOR_POLICY}

    def to_dict(self) -> dict[str, Any]:
        """All keys and values, as `build_config` takes them."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}


def grouping(values: Mapping[str, Any]) -> tuple[int, int]:
    """`Configuration.grouping` of a configuration's values.

    >>> grouping({"num_workers": 2, "envs_per_worker": 8}), grouping({"envs_per_worker": 16, "env_groups": 2})
    ((2, 8), (2, 8))
    """
    workers = max(values.get("num_workers", 0), 1)
    groups = values.get("env_groups") or workers
    return groups, workers * values["envs_per_worker"] // groups


def build_config(cls: type[_Config], *layers: Mapping[str, Any]) -> _Config:
    """A configuration from the defaults of its class and layers of values; later layers override.

    An int is taken for a float, and a list for a tuple: JSON and TOML have no other way to write them.

    Raises:
        ConfigError: a key that there is not (with the closest one), a value of the wrong type or that the
            key's validator refuses, a key without a default that has no value.
    """
    attrs_class: Any = cls
    try:
        fields = {field.name: field for field in attrs.fields(attrs.resolve_types(attrs_class)) if field.init}
    except NameError as error:
        raise ConfigError(f"the annotations of {cls.__qualname__} cannot be resolved: {error}") from error
    given: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key not in fields:
                raise ConfigError(f"unknown configuration key {key!r}; {did_you_mean(key, fields)}")
            given[key] = _checked(key, value, fields[key].type)
    missing = [name for name, field in fields.items() if field.default is attrs.NOTHING and name not in given]
    if missing:
        raise ConfigError(f"no value for {', '.join(missing)}: {cls.__qualname__} has no default for it")
    values = {fields[name].alias: value for name, value in given.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError, AssertionError) as error:
        blamed = _blamed(cls, values, fields)
        where = "the configuration is refused" if blamed is None else f"{blamed}={given.get(blamed, 'default')!r}"
        reason = error.args[0] if error.args else type(error).__name__
        raise ConfigError(f"{where}: {reason}") from error


def parse_value(text: str) -> Any:
    """A value as it is written on the command line: JSON, then a Python literal, else the text itself.

    >>> [parse_value(text) for text in ("1e-4", "true", "None", "[64, 64]", "(64, 64)", "relu", "1e6")]
    [0.0001, True, None, [64, 64], (64, 64), 'relu', 1000000]
    """
    if re.fullmatch(r"\d+e\d{1,2}", text.strip()):
        return int(float(text))  # counts are written like this, and a float field takes an int
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def load_config_file(path: str | Path) -> dict[str, Any]:
    """The values in a .json or .toml file.

    Raises:
        ConfigError: no such file, another suffix, malformed content, or something else than a table of keys.
    """
    path = Path(path)
    readers: dict[str, Any] = {".json": json.loads, ".toml": tomllib.loads}
    if path.suffix not in readers:
        raise ConfigError(f"configuration file {path}: expected a .json or .toml file")
    try:
        values = readers[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror or error}") from error
    except ValueError as error:  # both decoders' errors, and text that is not UTF-8
        raise ConfigError(f"configuration file {path} is malformed: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"configuration file {path}: expected a table of keys, got a {type(values).__name__}")
    return values


def _checked(key: str, value: Any, expected: Any) -> Any:
    if expected is None:
        return value
    try:
        value = _convert(value, expected)
        check_type(value, expected, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
    except TypeCheckError as error:
        text = f"{key}={value!r}: expected {_type_name(expected)}, got {type(value).__name__}"
        if isinstance(value, (list, tuple, dict)):
            text += f" ({error})"
        if expected is str:
            text += f"""; for text write {key}='"{value}"' on the command line"""
        raise ConfigError(text) from error
    return value


def _convert(value: Any, expected: Any) -> Any:
    """The value in the type that its key wants, where nothing is lost; refuses a bool for a number."""
    origin, args = get_origin(expected), get_args(expected)
    if expected in (int, float) and isinstance(value, bool):
        raise TypeCheckError("a bool is no number")
    if expected is float and isinstance(value, int):
        return float(value)
    if origin in (Union, UnionType):
        return _convert_union(value, args)
    if isinstance(value, (list, tuple)) and origin in (list, tuple):
        if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
            inner = [_convert(v, arg) for v, arg in zip(value, args)] + list(value[len(args) :])
        else:
            inner = [_convert(v, args[0]) for v in value]
        # A tuple is not taken for a list: only JSON's lack of tuples is made up for.
        return tuple(inner) if origin is tuple or isinstance(value, tuple) else inner
    if isinstance(value, list) and expected is tuple:
        return tuple(value)
    if isinstance(value, dict) and origin is dict:
        return {k: _convert(v, args[1]) for k, v in value.items()}
    return value


def _convert_union(value: Any, args: tuple[Any, ...]) -> Any:
    """The alternative that keeps the value's type, else the first that takes it at all."""
    fits = []
    for arg in args:
        try:
            converted = _convert(value, arg)
            check_type(converted, arg, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
            fits.append(converted)
        except TypeCheckError:
            continue
    if not fits:
        raise TypeCheckError("none of the alternatives")
    return next((fit for fit in fits if type(fit) is type(value)), fits[0])


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


def _type_name(expected: Any) -> str:
    if isinstance(expected, type) and not get_args(expected):
        return expected.__name__
    return str(expected).replace("typing.", "")

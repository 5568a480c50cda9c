"""Configurations of plans: settings of every plan, layers of values, configuration files and command-line values."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

import attrs
from attrs import validators
from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from flowrl.engine.workers.local import WORKER_TIMEOUT
from flowrl.errors import ConfigError, did_you_mean
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import (
    LARGEST,
    POLICY_SETTINGS,
    STEPS,
    Option,
    PolicySettings,
    at_least_one,
    construct,
    not_negative,
    positive,
    setting,
)
from flowrl.storage.files import read_file, read_json, read_yaml

_Config = TypeVar("_Config")
_FACTORY: Any = attrs.Factory  # a class, which attrs annotates as a function


@attrs.frozen(kw_only=True, slots=False)
class Configuration(PolicySettings, Option):
    """Settings of every plan.

    A plan's own `Config` adds the settings of its algorithm. A configuration is immutable, since plans and policies
    are built from it: `attrs.evolve(config, seed=3)` returns a changed copy. Subclasses are immutable too, even with
    `attrs.define`.

    >>> @attrs.define(kw_only=True)
    ... class Config(Configuration):
    ...     learn_rate: float = 1e-3
    >>> config = build_config(Config, {"learn_rate": 1, "seed": 3})
    >>> config.learn_rate, config["seed"], config.env
    (1.0, 3, 'CartPole-v1')
    """

    #: The counter that budgets, evaluations, checkpoints and results follow.
    clock: ClassVar[str] = "env_steps"

    #: An id of `gymnasium.make`, "module:factory", a game "flowrl:NAME", or in another library "gym:ID" and so on.
    env: str = setting("CartPole-v1", "gymnasium id, module:factory, flowrl:GAME, or LIBRARY:ID, as openspiel:GAME")
    env_args: dict[str, Any] = setting(attrs.Factory(dict), "keyword arguments of the environment")
    #: Names of agents, or patterns such as "prey_*", of which the first that fits counts; a function gets the agent and
    #: a `flowrl.rollout.policy_map.Match`.
    agents: dict[str, str] | str = setting(
        attrs.Factory(dict), "in a game: the policy that plays each agent, or module:function; empty: one plays all"
    )
    policies: list[str] = setting(attrs.Factory(list), "names of the policies that a function `agents` chooses from")
    #: Names of gymnasium.wrappers or "module:Wrapper", with arguments as in a call, "FrameStackObservation(4)".
    wrappers: list[str] = setting(attrs.Factory(list), "wrappers around each environment, the first one innermost")
    env_manager: str = setting("local", "what steps the environments: local, subprocess, async, thread or vector")
    env_manager_args: dict[str, Any] = setting(attrs.Factory(dict), "keyword arguments of the manager")
    episode_seeds: list[int] | None = setting(
        None,
        "seeds of the episodes, dealt to the environments in turn and repeated; None: new ones derived from seed",
        range="one or more",
        most=LARGEST - 1,
        validator=validators.optional(validators.min_len(1)),
    )
    #: A table says what stands where a key is missing, {"lives": 0}; else that is an error.
    info_keys: list[str] | dict[str, Any] = setting(
        attrs.Factory(list), "keys of info whose numbers become columns, info.KEY; a table: with fills for missing ones"
    )
    eval_env: str | None = setting(None, "environment of evaluations; None: env")
    eval_env_args: dict[str, Any] | None = setting(
        None, "keyword arguments of eval_env; None: env_args, or none if eval_env is set"
    )
    eval_wrappers: list[str] | None = setting(None, "wrappers of evaluation environments; None: wrappers")
    eval_env_manager: str | None = setting(None, "env_manager of evaluations; None: env_manager with its arguments")
    num_workers: int = not_negative(
        0, "Ray processes that sample; 0: this process samples", most=10_000, resume="grouping"
    )
    envs_per_worker: int = at_least_one(8, "environments per worker", most=1_000_000, resume="grouping")
    #: The stream depends on the groups, not on the number of workers.
    env_groups: int | None = at_least_one(
        None,
        "groups that the environments of all workers form, each acting as one batch; None: one per worker",
        most=10_000,
        resume="grouping",
    )
    worker_cpus: float = not_negative(1.0, "logical cores that each worker process reserves", resume="free")
    worker_gpus: float = not_negative(0.0, "GPUs that each worker reserves; with 0 it acts on the CPU", resume="free")
    worker_memory: int = not_negative(
        0, "bytes of memory that each worker reserves; 0: no reservation", most=STEPS, resume="free"
    )
    worker_resources: dict[str, float] = setting(
        attrs.Factory(dict), "custom Ray resources that each worker reserves, by name", resume="free"
    )
    max_worker_restarts: int = not_negative(10, "restarts allowed per worker process that dies", resume="free")
    on_worker_death: Literal["stop", "go_on"] = setting(
        "stop", "once a worker has no restarts left: stop, or go_on with the others", resume="free"
    )
    worker_timeout: float = positive(
        WORKER_TIMEOUT, "seconds that a process on Ray may take for a request; then it counts as dead", resume="free"
    )
    #: "host:port", "ray://host:port", or "auto" on one of its machines; None: a local Ray, for as long as needed.
    address: str | None = setting(None, "Ray cluster that actors run on; None: a local Ray", resume="free")
    torch_threads: int = at_least_one(
        1,
        "threads of torch and numpy in this process; more than one pays for large networks only",
        most=1_024,
        resume="rounding",
    )
    eval_episodes: int = at_least_one(
        5, "episodes of an evaluation; with --stop-return there are goal_episodes", most=1_000_000, resume="free"
    )
    goal_episodes: int = at_least_one(
        100,
        "episodes of an evaluation that decides about --stop-return, and as many more on fresh seeds",
        most=1_000_000,
        resume="free",
    )
    eval_train_ratio: float = not_negative(
        1.0, "env steps of training for each env step of an evaluation, before the next evaluation", resume="free"
    )
    eval_max_steps: int = at_least_one(10_000, "steps after which an evaluation cuts an episode", resume="free")
    eval_deterministic: bool = setting(
        True, "evaluations act greedily; false: they draw or explore, as in collecting", resume="free"
    )
    eval_every: int | None = not_negative(
        None,
        "least env steps between evaluations, 0: none; None: 1/10 of the budget; none in a Trainer without out",
        most=STEPS,
        resume="free",
    )
    #: A `Trainer` saves only in `save`.
    checkpoint_every: int | None = at_least_one(
        None,
        "env steps between checkpoints of `flowrl run`; None: none with checkpoint_seconds, else eval_every or 10 000",
        most=STEPS,
        resume="free",
    )
    checkpoint_seconds: float | None = positive(
        None, "seconds after which the next result is followed by a checkpoint; None: no matter", resume="free"
    )
    checkpoint_keep: int = at_least_one(3, "checkpoints to keep, the newest ones", resume="free")

    journal: bool = setting(False, "keep a journal of what the run decides, for `flowrl rerun`")
    report_timers: bool = setting(
        False, "results have the seconds that each operator was busy: timers/OPERATOR", resume="free"
    )

    def __getitem__(self, key: str) -> Any:
        values = self.to_dict()
        if key not in values:
            raise ConfigError(f"no configuration key {key!r}; {did_you_mean(key, values)}")
        return values[key]

    @property
    def policy_names(self) -> list[str]:
        """The policies that `agents` names, or `policies` for a function. Raises: ConfigError: the other one, or none.

        >>> Configuration(agents={"left": "one", "*": "two"}).policy_names
        ['one', 'two']
        """
        if isinstance(self.agents, str):
            if len(set(self.policies)) < 2:
                raise ConfigError(
                    f"agents={self.agents!r} is a function: name the policies that it chooses from, at least two, "
                    f'policies=["one", "two"], not {self.policies}'
                )
            return self.policies
        names = list(dict.fromkeys(self.agents.values()))
        if self.policies and set(self.policies) != set(names):
            raise ConfigError(
                f"policies={self.policies}: agents is a table, which names the policies {names}: leave policies out"
            )
        return names

    @property
    def num_envs(self) -> int:
        """Environments of all workers together."""
        return self.envs_per_worker * max(self.num_workers, 1)

    @property
    def grouping(self) -> tuple[int, int]:
        """Number of groups, and environments per group: equal ones give equal streams on any number of workers (D2)."""
        return grouping(self.to_dict())

    def wrapped(self, wrappers: Any) -> Any:
        """Wrappers of environments, or None, with those that stand for other settings."""
        return wrappers

    def over(self, steps: int) -> Self:
        """The configuration of a run of so many env steps: schedules without a length of their own last as long.

        >>> from flowrl.plans import PPO
        >>> PPO.Config().over(100_000).schedule_steps, PPO.Config(schedule_steps=500).over(100_000).schedule_steps
        (100000, 500)
        """
        lengths: dict[str, Any] = dict.fromkeys(self.open_spans, steps)
        return attrs.evolve(self, **lengths)

    @property
    def open_spans(self) -> list[str]:
        """The settings that stand for the run's budget, which is not known yet."""
        return [name for name, steps in self.spans.items() if steps is None]

    @property
    def spans(self) -> dict[str, int | None]:
        """The settings of how long schedules last."""
        return {field.name: self[field.name] for field in attrs.fields(type(self)) if field.metadata.get("span")}

    @property
    def evaluation(self) -> dict[str, Any]:
        """Arguments of `flowrl.operators.Evaluate` for evaluations inside a run."""
        return {
            "every": self.eval_every,
            "episodes": self.eval_episodes,
            "goal_episodes": self.goal_episodes,
            "train_ratio": self.eval_train_ratio,
            "seed": self.seed,
            "max_steps": self.eval_max_steps,
            "deterministic": self.eval_deterministic,
        }

    @property
    def for_policy(self) -> dict[str, Any]:
        """Arguments that every policy takes: `DQNPolicy(..., **config.for_policy)`."""
        values = self.to_dict()
        return {name: values[name] for name in POLICY_SETTINGS}

    @property
    def for_actors(self) -> dict[str, Any]:
        """Arguments that everything on Ray takes: `Aggregators(2, **config.for_actors)`."""
        return {"address": self.address, "worker_timeout": self.worker_timeout}

    def to_dict(self) -> dict[str, Any]:
        """All keys and values, in the form that `build_config` reads."""
        return attrs.asdict(self, recurse=False)


def grouping(values: Mapping[str, Any]) -> tuple[int, int]:
    """`Configuration.grouping` of a configuration's values.

    >>> grouping({"num_workers": 2, "envs_per_worker": 8}), grouping({"envs_per_worker": 16, "env_groups": 2})
    ((2, 8), (2, 8))
    """
    workers = max(values.get("num_workers", 0), 1)
    groups = values.get("env_groups") or workers
    return groups, workers * values["envs_per_worker"] // groups


def sections(cls: type[Configuration]) -> list[tuple[str, list[attrs.Attribute[Any]]]]:
    """The settings of a plan, grouped by the class that declares them, under its title: the plan's own come first.

    >>> [(title, len(fields)) for title, fields in sections(Configuration)]
    [('Settings of every plan.', 36), ('Settings of every policy.', 8)]
    """
    attrs_class: Any = cls
    fields = {field.name: field for field in attrs.fields(attrs.resolve_types(attrs_class)) if field.init}
    common, groups = {field.name for field in attrs.fields(Configuration)}, []
    for part in _parts(cls):
        names = dict.fromkeys(name for base in reversed(part.__mro__) for name in vars(base).get("__annotations__", ()))
        hidden = set() if issubclass(Configuration, part) else set(common)
        if issubclass(part, Configuration):  # its bases have sections of their own
            hidden |= {field.name for base in part.__bases__ for field in attrs.fields(base)}
        if shown := [fields.pop(name) for name in names if name in fields and name not in hidden]:
            own = issubclass(part, Configuration) and "__slots__" in vars(part)
            groups.append(("The plan." if own else (part.__doc__ or part.__name__).partition("\n")[0], shown))
    return groups


def settings_text(cls: type[Configuration]) -> str:
    """The `sections` of a plan as text, a line for each setting, with type, values, default and meaning.

    >>> print(settings_text(Configuration).splitlines()[2])
        env (str) = 'CartPole-v1': gymnasium id, module:factory, flowrl:GAME, or LIBRARY:ID, as openspiel:GAME
    """
    lines = []
    for title, fields in sections(cls):
        lines += ["", title]
        for field in fields:
            kind = ", ".join(filter(None, [type_text(field.type), field.metadata.get("range", "")]))
            default = default_of(field)
            value = "" if default is attrs.NOTHING else f" = {default!r}"
            lines.append(f"    {field.name} ({kind}){value}: {field.metadata.get('meaning', '')}".rstrip(": "))
    return "\n".join(lines)


def default_of(field: attrs.Attribute[Any]) -> Any:
    """The default of a setting; `attrs.NOTHING` if the setting is required."""
    default: Any = field.default
    return default.factory() if isinstance(default, _FACTORY) else default


def _parts(cls: Any) -> Iterator[Any]:
    """A class and its bases, recursively for those that are configurations."""
    yield cls
    for base in cls.__bases__ if issubclass(cls, Configuration) else ():
        yield from _parts(base)


def type_text(expected: Any) -> str:
    """A type in the words of a user.

    >>> type_text(NumberOrSchedule | None), type_text(Literal["lstm", "gru"]), type_text(tuple[int, ...])
    ('number, schedule or None', 'lstm or gru', 'tuple of int')
    """
    origin, args = get_origin(expected), get_args(expected)
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin in (Union, UnionType):
        parts = [
            type_text(arg)
            for arg in args
            if arg not in get_args(NumberOrSchedule) or not set(get_args(NumberOrSchedule)) <= {*args}
        ]
        parts = [*(("number", "schedule") if set(get_args(NumberOrSchedule)) <= {*args} else ()), *parts]
        return " or ".join([", ".join(parts[:-1]), parts[-1]])
    if origin in (list, tuple):
        return f"{origin.__name__} of {type_text(args[0])}"
    if origin is dict:
        return "table"
    return "None" if expected is type(None) else _type_name(expected)


def build_config(cls: type[_Config], *layers: Mapping[str, Any]) -> _Config:
    """Build a configuration from the defaults of its class and layers of values; later layers override.

    An int is accepted for a float, and a list for a tuple: JSON and TOML have no other way to write them.

    Raises:
        ConfigError: an unknown key (with the closest one), a value of the wrong type or that the key's
            validator rejects, or a missing value of a key without default.
    """
    attrs_class: Any = cls
    try:
        fields = {field.name: field for field in attrs.fields(attrs.resolve_types(attrs_class)) if field.init}
    except NameError as error:
        raise ConfigError(f"the annotations of {cls.__qualname__} cannot be resolved: {error}") from error
    values: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key not in fields:
                here = _ELSEWHERE.get(key)
                way_out = f"here it is {here!r}" if here in fields else did_you_mean(key, fields)
                raise ConfigError(f"unknown configuration key {key!r}; {way_out}")
            values[key] = _checked(key, value, fields[key].type)
    missing = [name for name, field in fields.items() if field.default is attrs.NOTHING and name not in values]
    if missing:
        raise ConfigError(f"no value for {', '.join(missing)}: {cls.__qualname__} has no default for it")
    return construct(cls, values)


#: Settings by their names in Stable-Baselines3, CleanRL, RLlib and Tianshou.
_ELSEWHERE = {
    **dict.fromkeys(("clip_range", "clip_param", "clip_coef", "eps_clip"), "clip"),
    **dict.fromkeys(("clip_range_vf", "vf_clip_param"), "value_clip"),
    **dict.fromkeys(("ent_coef", "entropy_coeff"), "entropy_coef"),
    **dict.fromkeys(("vf_coef", "vf_loss_coeff"), "value_coef"),
    **dict.fromkeys(("gae_lambda", "lambda"), "lam"),
    **dict.fromkeys(("n_epochs", "update_epochs"), "num_sgd_iter"),
    **dict.fromkeys(("n_steps", "num_steps", "rollout_fragment_length"), "fragment_steps"),
    **dict.fromkeys(("n_envs", "num_envs", "num_envs_per_worker", "num_envs_per_env_runner"), "envs_per_worker"),
    **dict.fromkeys(("train_freq", "gradient_steps"), "replay_ratio"),
    **dict.fromkeys(("target_update_interval", "target_network_frequency"), "target_every"),
    **dict.fromkeys(("exploration_initial_eps", "start_e"), "epsilon_start"),
    **dict.fromkeys(("exploration_final_eps", "end_e"), "epsilon_end"),
    **dict.fromkeys(("net_arch", "hidden_sizes", "fcnet_hiddens"), "hidden"),
    "exploration_fraction": "epsilon_steps",
    "max_grad_norm": "grad_clip",
    "lr": "learning_rate",
    "sgd_minibatch_size": "minibatch_size",
    "kl_coeff": "kl_coef",
    "num_env_runners": "num_workers",
    "env_config": "env_args",
}


def parse_value(text: str) -> Any:
    """Parse a value of the command line: JSON, then a Python literal, else the text itself.

    >>> [parse_value(text) for text in ("1e-4", "true", "None", "[64, 64]", "(64, 64)", "relu", "1e6")]
    [0.0001, True, None, [64, 64], (64, 64), 'relu', 1000000]
    """
    if re.fullmatch(r"\d{1,200}e\d{1,2}", text.strip()):
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
    """Read the values in a .json, .toml or .yaml file.

    Raises:
        ConfigError: no such file, another suffix, malformed content, or content that is not a table of keys.
    """
    path = Path(path)
    readers: dict[str, Any] = {
        ".json": read_json,
        ".toml": lambda path: tomllib.loads(read_file(path).decode()),
        **dict.fromkeys((".yaml", ".yml"), lambda path: {} if (values := read_yaml(path)) is None else values),
    }
    if path.suffix not in readers:
        raise ConfigError(f"configuration file {path}: expected a .json, .toml or .yaml file")
    try:
        values = readers[path.suffix](path)
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # both decoders' errors, and text that is not UTF-8
        raise ConfigError(f"configuration file {path} is malformed: {error}") from error
    if isinstance(values, dict) and (others := [key for key in values if not isinstance(key, str)]):
        raise ConfigError(f"configuration file {path}: expected texts for keys, got {others[0]!r}")
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
    """Convert a value to the type of its key if that is lossless; rejects a bool for a number."""
    origin, args = get_origin(expected), get_args(expected)
    if expected in (int, float) and isinstance(value, bool):
        raise TypeCheckError("a bool is no number")
    if expected is float and isinstance(value, int):
        if abs(value) >= LARGEST:
            raise TypeCheckError("a number that large")
        return float(value)
    if origin in (Union, UnionType):
        return _convert_union(value, args)
    if isinstance(value, (list, tuple)) and origin in (list, tuple):
        if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
            inner = [_convert(v, arg) for v, arg in zip(value, args)] + list(value[len(args) :])
        else:
            inner = [_convert(v, args[0]) for v in value]
        # Lists become tuples, since JSON has none, but tuples never become lists.
        return tuple(inner) if origin is tuple or isinstance(value, tuple) else inner
    if isinstance(value, list) and expected is tuple:
        return tuple(value)
    if isinstance(value, dict) and origin is dict:
        return {k: _convert(v, args[1]) for k, v in value.items()}
    return value


def _convert_union(value: Any, args: tuple[Any, ...]) -> Any:
    """Convert to the alternative that keeps the value's type, else to the first that accepts the value."""
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


def _type_name(expected: Any) -> str:
    if isinstance(expected, type) and not get_args(expected):
        return expected.__name__
    return str(expected).replace("typing.", "")

"""From the name of an environment to a manager of several of them."""

from __future__ import annotations

import atexit
import logging
import shlex
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import attrs
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from flowrl.envs.adapters.by_agent import WAY_OUT, looks_like_agents
from flowrl.envs.adapters.convert import converted
from flowrl.envs.closing import closing
from flowrl.envs.games.model import GameModel
from flowrl.envs.games.seats import TABLE, TURN, GameEnv, Seating
from flowrl.envs.goals import GoalFunctions, goal_functions
from flowrl.envs.hybrid import of_arrays
from flowrl.envs.infos import InfoKeys, fills_of
from flowrl.envs.managers.async_subprocess import AsyncSubprocessEnvManager
from flowrl.envs.managers.base import Manager
from flowrl.envs.managers.children import Children
from flowrl.envs.managers.faults import ONE_EACH
from flowrl.envs.managers.local import EnvManager
from flowrl.envs.managers.subprocess import SubprocessEnvManager
from flowrl.envs.managers.thread import ThreadEnvManager
from flowrl.envs.managers.vector import Copies, VectorEnvManager
from flowrl.envs.pictures import carry, declare_known
from flowrl.envs.spec import call, factory_of, importable, is_native, name_of, native, own, parameters
from flowrl.envs.wrappers import layers
from flowrl.envs.wrapping import Wrap, wrap, wrap_vector, wrapper_of
from flowrl.errors import ConfigError, FlowError, did_you_mean, out_of_memory
from flowrl.frames import one_line, outgrown

log = logging.getLogger("flowrl")

#: The managers that take one callable per environment.
_OF_FACTORIES: dict[str, Any] = {
    "subprocess": SubprocessEnvManager,
    "async": AsyncSubprocessEnvManager,
    "thread": ThreadEnvManager,
}
#: The values of `env_manager`.
KINDS = ("local", *_OF_FACTORIES, "vector")
_NEXT_STEP = AutoresetMode.NEXT_STEP  # gymnasium's default


class Seen(NamedTuple):
    """Facts about an environment, found without acting."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    goals: GoalFunctions | str = "was not looked at"  #: see `goal_functions`
    seating: Seating | None = None  #: of a game of several agents


@attrs.frozen
class Environments:
    """Environments and the kind of their manager: the arguments of `make_manager` but for the number."""

    spec: Any
    env_args: Mapping[str, Any] = attrs.field(factory=dict)
    wrappers: Sequence[str | Wrap] = ()
    kind: str = "local"
    options: Mapping[str, Any] = attrs.field(factory=dict)
    episode_seeds: Sequence[int] | None = None
    info_keys: InfoKeys = ()
    agents: bool = False  #: see `EnvFactory`

    def __str__(self) -> str:
        return self.spec if isinstance(self.spec, str) else name_of(self.spec)

    @property
    def is_one_object(self) -> bool:
        """Whether `spec` is an existing environment object, of which there is only one."""
        return is_object(self.spec)

    def for_evaluation(
        self,
        spec: Any = None,
        env_args: Mapping[str, Any] | None = None,
        wrappers: Sequence[str | Wrap] | None = None,
        kind: str | None = None,
    ) -> Environments:
        """The environments of evaluations, with new seeds (S3): like these but for the arguments given.

        Another environment does not inherit `env_args`, and another manager does not inherit the manager's arguments.
        """
        changed: dict[str, Any] = {"episode_seeds": None, "info_keys": ()}
        if spec is not None:
            changed |= {"spec": spec, "env_args": {}}
        if env_args is not None:
            changed["env_args"] = dict(env_args)
        if wrappers is not None:
            changed["wrappers"] = tuple(wrappers)
        if kind is not None:
            changed |= {"kind": kind, "options": {}}
        return attrs.evolve(self, **changed)

    @property
    def factory(self) -> EnvFactory:
        """The factory of single environments."""
        return EnvFactory(self.spec, self.env_args, self.wrappers, self.agents)

    def manager(self, num_envs: int) -> Manager:
        """A manager of `num_envs` environments, not launched yet. Raises: see `make_manager`."""
        fills = {key: None if fill is None else fill.tolist() for key, fill in fills_of(self.info_keys).items()}
        wrappers = [*self.wrappers, *([f"InfoColumns({fills})"] if fills else [])]
        how: dict[str, Any] = {"kind": self.kind, "wrappers": wrappers, "episode_seeds": self.episode_seeds}
        how["agents"] = self.agents
        made = make_manager(self.spec, num_envs, self.env_args, **how, **self.options)
        made.way_out = self._way_out()
        return made

    def _way_out(self) -> str:
        """How to examine one of them, if it has a name."""
        if (name := importable(self.spec)) is None:
            return ""
        words = [name, *(f"--env-arg={key}={value}" for key, value in self.env_args.items())]
        words += [f"--wrapper={each}" for each in self.wrappers if isinstance(each, str)]
        return f"; to examine it alone: flowrl doctor {shlex.join(words)}"

    def spaces(self, num_envs: int) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """The observation and the action space of each: see `look`."""
        return self.look(num_envs)[:2]

    def look(self, num_envs: int) -> Seen:
        """Facts about the environments before any acts; it makes one environment for that, and closes it.

        Raises: ConfigError if `manager` would.
        """
        _check(num_envs, self.kind, self.options)
        fills_of(self.info_keys)
        if self.is_one_object and self.kind in _OF_FACTORIES:
            raise _made_already(self.kind, self.spec)
        try:
            with beside(_there(self.spec), self.spec):
                first = self.factory.first_of(num_envs, vectorized=self.kind == "vector")
        except FlowError:
            raise  # it says what to do
        except Exception as error:
            error.add_note(f"in environment 0, when it is made{outgrown(error)}{self._way_out()}")
            raise
        try:
            for remark in _remarks(first, self.kind):
                log.warning("%s: %s", self, remark)
            if isinstance(first, VectorEnv):
                manager: Manager = _of_vector(first, self.spec, self.kind, self.options, self.episode_seeds)
            else:
                manager = EnvManager([first], episode_seeds=self.episode_seeds)
            seating = first.seating if isinstance(first, GameEnv) else None
            return Seen(manager.observation_space, manager.action_space, goal_functions(first), seating)
        finally:
            if not self.is_one_object:
                with closing(name_of(self.spec), self._way_out()):
                    first.close()


@contextmanager
def _made_to_look(spec: Any, env_args: Mapping[str, Any] | None, wrappers: Sequence[str | Wrap]) -> Iterator[Any]:
    made = EnvFactory(spec, env_args or {}, wrappers).first_of(1)
    try:
        yield made
    finally:
        if not is_object(spec):
            with closing(name_of(spec)):
                made.close()


def model_of(spec: Any, env_args: Mapping[str, Any] | None = None, wrappers: Sequence[str | Wrap] = ()) -> GameModel:
    """The rules of a game, for a search; it makes the game for that, and closes it.

    Raises: ConfigError like `EnvFactory`, and for an environment that is no game or a game without a model.
    """
    with _made_to_look(spec, env_args, wrappers) as made:
        model = made.game.model() if isinstance(made, GameEnv) else None
    if model is None:
        what = "the game has none" if isinstance(made, GameEnv) else "it is no game"
        raise ConfigError(
            f"{name_of(spec)}: a search needs a model of the game, and {what}: take flowrl:tic_tac_toe or "
            "flowrl:connect_four without wrappers, or give a Game of your own a method model()"
        )
    return model


def who_begins(
    spec: Any, env_args: Mapping[str, Any] | None = None, wrappers: Sequence[str | Wrap] = ()
) -> tuple[str, ...]:
    """The agents that act first in a game, in its order; it makes the game for that, and closes it.

    Raises: ConfigError like `EnvFactory`.
    """
    with _made_to_look(spec, env_args, wrappers) as game:
        obs, _ = game.reset(seed=0)
        return tuple(np.array(game.seating.agents)[obs[TABLE][:, TURN] > 0].tolist())


def make_manager(
    spec: Any,
    num_envs: int,
    env_args: Mapping[str, Any] | None = None,
    *,
    wrappers: Sequence[str | Wrap] = (),
    kind: str = "local",
    episode_seeds: Sequence[int] | None = None,
    agents: bool = False,
    **options: Any,
) -> Manager:
    """A manager of `num_envs` environments, not launched yet.

    `spec` is that of `EnvFactory`, called once per environment; or a gymnasium VectorEnv, or a factory of one, called
    once, with `num_envs` if it has such an argument; or a single environment object. `agents` is that of `EnvFactory`.

    `kind` selects where environments step: "local", in this process; "subprocess", in other processes, all together;
    "async", in other processes, each at its own pace; "thread", in threads; "vector", as one gymnasium VectorEnv: the
    vectorized implementation of an id if it has one. "local" takes a VectorEnv too. `options` are keyword arguments of
    the manager; "vector" has `autoreset_mode`.

    Raises: ConfigError like `EnvFactory`, and for less than one environment, a VectorEnv of another size, an unknown
    manager or option, and a manager that does not fit the environment.
    """
    _check(num_envs, kind, options)
    factory = EnvFactory(spec, env_args or {}, wrappers, agents)
    if kind in _OF_FACTORIES:
        if is_object(spec):
            raise _made_already(kind, spec)
        factory.check()
        made: Manager = _OF_FACTORIES[kind]([factory] * num_envs, episode_seeds=episode_seeds, **options)
        return made
    children = Children()
    with children.noted():
        here = _made_here(factory, spec, num_envs, kind, options, episode_seeds)
    here.children = children
    if not is_object(spec):
        here.spec = spec
        _here.add(here)
    return here


#: Managers of environments in this process, to close when it ends.
_here: weakref.WeakSet[Manager] = weakref.WeakSet()


def _there(spec: Any) -> int:
    """The number of such environments that managers have in this process."""
    alike = (each for each in _here if each.spec is spec or (isinstance(spec, str) and each.spec == spec))
    return sum(each.num_envs for each in alike if each.is_open)


@contextmanager
def beside(others: int, spec: Any) -> Iterator[None]:
    """Make one more environment in a process that has others. Raises: ConfigError with the way out if it cannot be."""
    try:
        yield
    except Exception as error:
        if not others or out_of_memory(error):
            raise
        raise ConfigError(
            f"{name_of(spec)}: no further one can be made in a process that has {others}: {one_line(error)}; {ONE_EACH}"
        ) from error


def _made_here(
    factory: EnvFactory,
    spec: Any,
    num_envs: int,
    kind: str,
    options: Mapping[str, Any],
    episode_seeds: Sequence[int] | None,
) -> Manager:
    others = _there(spec)
    with beside(others, spec):
        first = factory.first_of(num_envs, vectorized=kind == "vector")
    made_here: list[Env | AnyVectorEnv] = [] if is_object(spec) else [first]
    try:
        if isinstance(first, VectorEnv):
            return _of_vector(first, spec, kind, options, episode_seeds)
        for env_id in range(1, num_envs):
            with beside(others + env_id, spec):
                made_here.append(factory())
        envs: list[Any] = [first, *made_here[1:]]
        if kind == "local":
            return EnvManager(envs, episode_seeds=episode_seeds)
        return _of_vector(Copies(envs, _mode(options) or _NEXT_STEP), spec, kind, options, episode_seeds)
    except BaseException:
        for env in made_here:
            with closing(name_of(spec)):
                env.close()
        raise


@atexit.register
def _close_those_here() -> None:
    """Close environments that nobody closed: they may have started processes, which would stay."""
    for manager in list(_here):
        manager.close()


def _of_vector(
    env: AnyVectorEnv, spec: Any, kind: str, options: Mapping[str, Any], episode_seeds: Sequence[int] | None
) -> VectorEnvManager:
    if kind in _OF_FACTORIES:
        raise ConfigError(
            f"env_manager={kind!r} steps single environments, but {name_of(spec)} gives a {type(env).__name__}, which "
            "steps all of its own: use env_manager='vector'"
        )
    asked, found = _mode(options), env.metadata.get("autoreset_mode")
    if asked is not None and found is not None and AutoresetMode(found) is not asked:
        raise ConfigError(
            f"autoreset_mode={options['autoreset_mode']!r}: {type(env.unwrapped).__name__} resets itself in its own "
            f"mode, {AutoresetMode(found).name}: leave it out"
        )
    return VectorEnvManager(env, asked, episode_seeds=episode_seeds)


def _remarks(first: Env | AnyVectorEnv, kind: str) -> Iterator[str]:
    """What somebody should know of environments, once, though they are served."""
    if kind == "vector" and not isinstance(first, VectorEnv):
        yield (
            "it has no vectorized implementation of its own, so copies of it step one after another, no faster than "
            "with env_manager=local"
        )
    if looks_like_agents(first.unwrapped):
        yield f"its Dict or Tuple spaces are taken for the sensors and motors of one agent (R2); {WAY_OUT}"
    ours = {"NormalizeObservation": "normalize_obs", "NormalizeReward": "normalize_rewards"}
    for name in {type(layer).__name__ for layer in layers(first)} & ours.keys():
        yield (
            f"{name} keeps its statistics to itself, so that environments that evaluate have others (O1); the setting "
            f"{ours[name]} keeps them with the policy"
        )


def _made_already(kind: str, spec: Any) -> ConfigError:
    return ConfigError(f"env_manager={kind!r} makes environments of its own, but {name_of(spec)} is made already")


def _check(num_envs: int, kind: str, options: Mapping[str, Any]) -> None:
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}: a manager needs at least one environment")
    if kind not in KINDS:
        raise ConfigError(f"unknown env_manager {kind!r}: {did_you_mean(str(kind), KINDS)}")
    known = {"local": [], "vector": ["autoreset_mode"]}.get(kind) or parameters(_OF_FACTORIES.get(kind))
    known = [name for name in known if name not in ("factories", "episode_seeds")]
    for name in options:
        if name not in known:
            raise ConfigError(f"env_manager={kind!r} has no argument {name!r}: {did_you_mean(name, known)}")
    _mode(options)


def _mode(options: Mapping[str, Any]) -> AutoresetMode | None:
    given = options.get("autoreset_mode")
    modes = {mode.name.lower(): mode for mode in AutoresetMode}
    if given is None or isinstance(given, AutoresetMode):
        return given
    if str(given).lower() not in modes:
        raise ConfigError(f"unknown autoreset_mode {given!r}: {did_you_mean(str(given).lower(), modes)}")
    return modes[str(given).lower()]


Env: TypeAlias = gymnasium.Env[Any, Any]
AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]


@attrs.frozen
class EnvFactory:
    """Makes one environment in its wrappers each time it is called, in any process.

    `spec` is a gymnasium id, a `module:factory` string, or a callable that returns an environment; `env_args` go to
    `gymnasium.make` or to the factory; of `wrappers` the first is the innermost (see `flowrl.envs.wrapping`). An id
    is made with its TimeLimit and without gymnasium's checks at every step. `agents`: the entries of Dict or Tuple
    spaces are agents, though the environment does not say so.

    Raises: ConfigError for an id, module, factory, argument or wrapper that does not exist or is rejected.
    """

    spec: Any
    env_args: Mapping[str, Any] = attrs.field(factory=dict)
    wrappers: Sequence[str | Wrap] = ()
    agents: bool = False

    def __call__(self) -> Env:
        made = self.first_of(1)
        if isinstance(made, gymnasium.Env):
            return made
        raise ConfigError(f"{name_of(self.spec)} made a {type(made).__name__}, expected a gymnasium.Env")

    def check(self) -> None:
        """Raises: ConfigError if nothing has this name, or arguments cannot be copied; makes no environment."""
        factory_of(self.spec)
        own(self.env_args, self.spec)
        for each in self.wrappers:
            wrapper_of(each)

    def first_of(self, num_envs: int, *, vectorized: bool = False) -> Env | AnyVectorEnv:
        """The first of `num_envs` environments, or all of them if they are one VectorEnv.

        `vectorized`: take the vectorized implementation of an id, if it has one.
        """
        made = self._made(num_envs, vectorized)
        try:
            if isinstance(made, VectorEnv):  # tested first: EnvPool's environments are both
                if made.num_envs != num_envs:
                    raise ConfigError(
                        f"{name_of(self.spec)} holds {made.num_envs} environments, but num_envs={num_envs}: "
                        f"ask for {made.num_envs} (--envs, envs_per_worker)"
                    )
                return wrap_vector(made, self.wrappers)
            if isinstance(made, gymnasium.Env):
                _check_spaces(made)
                made = wrap(made, self.wrappers)
                innermost, *_ = around = list(layers(made))[::-1]
                declare_known(innermost, [innermost.observation_space])
                carry(around)
                return of_arrays(made)
            if is_object(self.spec):
                raise ConfigError(f"{made!r} is no environment: pass a gymnasium id, 'module:factory' or a callable")
            raise ConfigError(f"{name_of(self.spec)} made a {type(made).__name__}, expected a gymnasium.Env")
        except BaseException:
            if not is_object(self.spec) and hasattr(made, "close"):
                with closing(name_of(self.spec)):
                    made.close()
            raise

    def _made(self, num_envs: int, vectorized: bool) -> Any:
        args = dict(self.env_args)
        if is_object(self.spec):
            if args:
                raise ConfigError(f"env_args {args} come too late: {name_of(self.spec)} is made already")
            made = converted(self.spec, self.agents or None)
            if num_envs > 1 and not isinstance(made, VectorEnv) and isinstance(made, gymnasium.Env):
                raise ConfigError(
                    f"{name_of(self.spec)} is one environment: pass a callable that makes a new one each time"
                )
            return made
        if vectorized and is_native(self.spec):
            return call(native(self.spec, num_envs), args, self.spec)
        factory = factory_of(self.spec)
        if "num_envs" in parameters(factory):
            args.setdefault("num_envs", num_envs)
        again = partial(call, factory, args, self.spec)
        return converted(again(), self.agents or None, again)


def _check_spaces(env: Env) -> None:
    """Raises: ConfigError for an environment that does not say its spaces."""
    for name in ("observation_space", "action_space"):
        try:
            known = attrgetter(name)(env)
        except AttributeError:
            known = None
        if known is None:
            raise ConfigError(f"{type(env.unwrapped).__name__} has no {name}: set it in the class, or in its __init__")


def make_env(
    spec: Any,
    env_args: Mapping[str, Any] | None = None,
    *,
    wrappers: Sequence[str | Wrap] = (),
    agents: bool = False,
) -> Env:
    """One environment: see `EnvFactory`.

    >>> make_env("CartPole-v1").spec.max_episode_steps
    500
    >>> make_env("CartPole-v1", wrappers=["FrameStackObservation(4)"]).observation_space.shape
    (4, 4)
    >>> make_env("CartPool-v1")
    Traceback (most recent call last):
    flowrl.errors.ConfigError: no environment 'CartPool-v1' in gymnasium: did you mean 'CartPole-v1'? ...
    """
    return EnvFactory(spec, env_args or {}, wrappers, agents)()


def is_object(spec: Any) -> bool:
    """Whether `spec` is an existing environment object."""
    return not isinstance(spec, str) and not callable(spec)

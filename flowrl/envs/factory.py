"""From what a user names (an id, `module:factory`, a callable, an object) to one environment in its wrappers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

import attrs
import gymnasium
from gymnasium.vector import VectorEnv

from flowrl.envs.border import converted
from flowrl.envs.names import call, factory_of, is_native, name_of, native, parameters
from flowrl.envs.wrapping import Wrap, wrap, wrap_vector, wrapper_of
from flowrl.errors import ConfigError

Env: TypeAlias = gymnasium.Env[Any, Any]
AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]


@attrs.frozen
class EnvFactory:
    """Makes one environment in its wrappers each time it is called, in any process.

    `spec` is a gymnasium id, a `module:factory` string, or a callable that returns an environment; `env_args` go to
    `gymnasium.make` or to the factory; of `wrappers` the first is the innermost (see `flowrl.envs.wrapping`). An id
    is made with its TimeLimit and without gymnasium's checks at every step.

    Raises: ConfigError for an id, module, factory, argument or wrapper that there is not, or that is refused.
    """

    spec: Any
    env_args: Mapping[str, Any] = attrs.field(factory=dict)
    wrappers: Sequence[str | Wrap] = ()

    def __call__(self) -> Env:
        made = self.first_of(1)
        if isinstance(made, gymnasium.Env):
            return made
        raise ConfigError(f"{name_of(self.spec)} made a {type(made).__name__}, expected a gymnasium.Env")

    def check(self) -> None:
        """Raises: ConfigError for a name of nothing; none is made to find out."""
        factory_of(self.spec)
        for each in self.wrappers:
            wrapper_of(each)

    def first_of(self, num_envs: int, *, vectorised: bool = False) -> Env | AnyVectorEnv:
        """The first of so many environments, or all of them where they are made as one VectorEnv.

        `vectorised`: an id's own vectorised implementation, where it has one.
        """
        made = self._made(num_envs, vectorised)
        try:
            if isinstance(made, VectorEnv):  # asked first, since EnvPool's own are both
                if made.num_envs != num_envs:
                    raise ConfigError(
                        f"{name_of(self.spec)} holds {made.num_envs} environments, but num_envs={num_envs}: "
                        f"ask for {made.num_envs} (--envs, envs_per_worker)"
                    )
                return wrap_vector(made, self.wrappers)
            if isinstance(made, gymnasium.Env):
                return wrap(made, self.wrappers)
            if is_object(self.spec):
                raise ConfigError(f"{made!r} is no environment: pass a gymnasium id, 'module:factory' or a callable")
            raise ConfigError(f"{name_of(self.spec)} made a {type(made).__name__}, expected a gymnasium.Env")
        except BaseException:
            if not is_object(self.spec) and hasattr(made, "close"):
                made.close()
            raise

    def _made(self, num_envs: int, vectorised: bool) -> Any:
        args = dict(self.env_args)
        if is_object(self.spec):
            if args:
                raise ConfigError(f"env_args {args} come too late: {name_of(self.spec)} is made already")
            made = converted(self.spec, num_envs, self._no_other)
            if num_envs > 1 and not isinstance(made, VectorEnv) and isinstance(made, gymnasium.Env):
                self._no_other()
            return made
        if vectorised and is_native(self.spec):
            return call(native(self.spec, num_envs), args, self.spec)
        factory = factory_of(self.spec)
        if "num_envs" in parameters(factory):
            args.setdefault("num_envs", num_envs)
        another = partial(call, factory, args, self.spec)
        return converted(another(), num_envs, another)

    def _no_other(self) -> NoReturn:
        raise ConfigError(f"{name_of(self.spec)} is one environment: pass a callable that makes a new one each time")


def make_env(spec: Any, env_args: Mapping[str, Any] | None = None, *, wrappers: Sequence[str | Wrap] = ()) -> Env:
    """One environment: see `EnvFactory`.

    >>> make_env("CartPole-v1").spec.max_episode_steps
    500
    >>> make_env("CartPole-v1", wrappers=["FrameStackObservation(4)"]).observation_space.shape
    (4, 4)
    >>> make_env("CartPool-v1")
    Traceback (most recent call last):
    flowrl.errors.ConfigError: no environment 'CartPool-v1' in gymnasium: did you mean 'CartPole-v1'? ...
    """
    return EnvFactory(spec, env_args or {}, wrappers)()


def is_object(spec: Any) -> bool:
    """Whether it is an environment that was made already."""
    return not isinstance(spec, str) and not callable(spec)

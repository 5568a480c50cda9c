"""Facts about an environment's wrappers: which change rewards, which record returns, which can be pickled."""

from __future__ import annotations

import copyreg
import io
import logging
import pickle
import sys
import weakref
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any, SupportsFloat

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import numpy as np
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorActionWrapper,
    VectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from gymnasium.wrappers import (
    AddRenderObservation,
    AtariPreprocessing,
    DelayObservation,
    FrameStackObservation,
    HumanRendering,
    MaxAndSkipObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    RecordVideo,
    RenderCollection,
    StickyAction,
    TimeAwareObservation,
    TimeLimit,
)
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecordEpisodeStatistics

from flowrl.envs.adapters.envpool import EnvPool
from flowrl.envs.adapters.gym import ClassicEnv
from flowrl.envs.infos import InfoColumns, RecordsEpisodes, VectorInfoColumns, ends_of, episode_of
from flowrl.envs.masks import ActionMask, VectorActionMask
from flowrl.errors import CheckpointError
from flowrl.storage.codec import Pickled

log = logging.getLogger("flowrl")


class RawRecorder(gymnasium.Wrapper[Any, Any, Any, Any], RecordsEpisodes):
    """Return and length of each episode, below all wrappers that may change rewards (S1).

    `info` stays the environment's own (R6). Unlike gymnasium's recorder it has no clock, so equal states have equal
    pickles (D5). It does not count rewards that are not one number, which a wrapper above makes one.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.episode_returns, self.episode_lengths = 0.0, 0
        self._over = False

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps and counts."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        try:
            self.episode_returns += float(reward)
        except (TypeError, ValueError):
            _say_as_learned(str(self.unwrapped))
            return obs, reward, terminated, truncated, info
        self.episode_lengths += 1
        self._over = bool(terminated or truncated) and any(ends_of(terminated, truncated))
        if self._over:
            self.ended = self.episode_returns, self.episode_lengths
        return obs, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment and the counts."""
        if self.episode_lengths and not self._over:
            self.ended = self.episode_returns, self.episode_lengths
        self.episode_returns, self.episode_lengths, self._over = 0.0, 0, False
        return self.env.reset(seed=seed, options=options)


@lru_cache
def _say_as_learned(env: str) -> None:
    log.warning("%s gives several rewards at a step: returns are those that are learned from", env)


_RECORDERS = (RecordsEpisodes, RecordEpisodeStatistics)

KEEP_REWARDS = (
    *(TimeLimit, OrderEnforcing, PassiveEnvChecker, RawRecorder),
    *(RecordEpisodeStatistics, VectorRecordEpisodeStatistics),
    *(gymnasium.ObservationWrapper, gymnasium.ActionWrapper, VectorObservationWrapper, VectorActionWrapper),
    # These repeat or delay actions and observations, and return the sum of the rewards.
    *(AtariPreprocessing, FrameStackObservation, MaxAndSkipObservation, DelayObservation, StickyAction),
    *(vars(gymnasium.wrappers)[name] for name in ["RepeatAction"] if name in gymnasium.wrappers.__all__),  # from 1.3
    *(TimeAwareObservation, AddRenderObservation, RecordVideo, RenderCollection, HumanRendering),
    *(ActionMask, VectorActionMask, InfoColumns, VectorInfoColumns),
)


def layers(env: Any) -> Iterator[Any]:
    """The layers of an environment, from the outermost wrapper inwards."""
    yield env
    while isinstance(env, gymnasium.Wrapper | VectorWrapper):
        env = env.env
        yield env


def recorder(env: gymnasium.Env[Any, Any]) -> Any:
    """The innermost layer that records returns, if there is one: see `recorded` and `running`."""
    found = [layer for layer in layers(env) if isinstance(layer, _RECORDERS) or _is_monitor(layer)]
    return found[-1] if found else None


def recorded(inner: Any, info: Mapping[str, Any]) -> tuple[float, int] | None:
    """Return and length that a recorder has of an ended episode, `info` being that of the step that ended it (R6)."""
    if isinstance(inner, RecordsEpisodes):
        return inner.ended
    return episode_of(info.get(stats_key(inner)))


def stats_key(inner: Any) -> str:
    """Where a recorder of other libraries puts its record in `info`."""
    return getattr(inner, "_stats_key", "episode")


def running(inner: Any) -> tuple[float, int]:
    """Return and length so far of the episode that a recorder counts; 0 steps without one."""
    if inner is None:
        return 0.0, 0
    if not isinstance(inner, _RECORDERS) and _is_monitor(inner):
        return float(sum(inner.rewards)), len(inner.rewards)
    return inner.episode_returns, inner.episode_lengths


def _is_monitor(layer: Any) -> bool:
    """Whether a layer is the recorder of Stable-Baselines3, whose record has gymnasium's form."""
    return any(
        kind.__name__ == "Monitor" and kind.__module__.startswith("stable_baselines3") for kind in type(layer).__mro__
    )


def keeps_rewards(kind: object) -> bool:
    """Whether a class of wrappers is known to keep rewards and ends: a subclass with a step of its own may not."""
    if not isinstance(kind, type) or not issubclass(kind, KEEP_REWARDS):
        return False
    owner = next(base for base in kind.__mro__ if "step" in vars(base))
    return owner.__module__.partition(".")[0] in ("gymnasium", "flowrl")


def has_raw_returns(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> bool:
    """Whether recorded returns are certainly raw (S1): no layer below the recorder changes rewards or ends."""
    all_layers = list(layers(env))
    base = all_layers[-1]
    singles = base.envs if isinstance(base, SyncVectorEnv) else []
    if singles and all(recorder(single) and has_raw_returns(single) for single in singles):
        return True
    recorders = [depth for depth, layer in enumerate(all_layers) if is_recorder(layer)]
    below = all_layers[recorders[-1] + 1 if recorders else 0 : -1]
    if isinstance(base, AsyncVectorEnv):  # its environments live in other processes
        return False
    # Classic gym has its own wrappers, and EnvPool its own options.
    keeps = base.keeps_rewards if isinstance(base, ClassicEnv | EnvPool) else True
    return all(keeps_rewards(type(layer)) for layer in below) and keeps and all(map(has_raw_returns, singles))


def is_recorder(layer: Any) -> bool:
    """Whether what a layer records is right."""
    if isinstance(layer, VectorRecordEpisodeStatistics):
        # The recorder of gymnasium 1.4 clears the counts of all environments when a reset mask names some of them:
        # the inner reset removes the mask from the options that both share.
        return layer.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED
    return isinstance(layer, _RECORDERS) or (isinstance(layer, EnvPool) and layer.records) or _is_monitor(layer)


def without_order_enforcing(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment without OrderEnforcing, which costs a call per step for what managers guarantee anyway."""
    if isinstance(env, OrderEnforcing):
        return env.env
    for layer in layers(env):
        if isinstance(layer, gymnasium.Wrapper) and isinstance(layer.env, OrderEnforcing):
            layer.env = layer.env.env
    return env


def pack(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> Pickled | None:
    """The pickled environment with its whole state; None if pickling fails, would lose state, or would give a copy of
    what only one can own (R4).
    """
    # cloudpickle handles what pickle cannot, such as lambdas in wrappers; other failures come from resources of
    # the simulator (a process, a handle), and each library raises its own kind of error.
    for pickler in (_Pickler, _CloudPickler):
        try:
            packed, is_plain = _dumps(env, pickler)
            # A round trip proves that the pickle can be loaded, and makes the bytes of equal states equal, whatever
            # objects they share (D5). Where it would run code of others, a second owner would come to life (R4).
            return Pickled(_dumps(pickle.loads(packed), pickler)[0] if is_plain else packed)
        except _Lossy:
            return None
        except Exception:
            continue
    return None


class _Lossy(Exception):
    """A part of the environment pickles as its constructor's arguments, which would silently lose the episode, or owns
    what its destructor ends, which a copy would own too.
    """


class _Pickler(pickle.Pickler):
    is_plain = True  #: whether loading runs no code but that of `_TRUSTED`

    def reducer_override(self, value: Any) -> Any:
        return _reduced(value, self)


class _CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    is_plain = True

    def reducer_override(self, value: Any) -> Any:
        reduced = _reduced(value, self)
        return super().reducer_override(value) if reduced is NotImplemented else reduced


#: Packages whose own ways of pickling open nothing, but for classes with destructors.
_TRUSTED = {*sys.stdlib_module_names, "numpy", "gymnasium", "gym", "flowrl", "torch"}
#: Kinds of objects that are pickled by their names, not copied.
_BY_NAME = (type, FunctionType, ModuleType)


@lru_cache(maxsize=1024)  # asked for each object in each environment, at each checkpoint
def _is_rebuilt(kind: type) -> bool:
    """Whether a class is gymnasium's EzPickle, gym's, or that of another library, by its way to be pickled."""
    for method in ("__getstate__", "__setstate__"):
        owner = next((base for base in kind.__mro__ if method in vars(base)), object)
        if owner.__name__ == "EzPickle":
            return True
    return False


@lru_cache(maxsize=1024)
def _ends(kind: type) -> bool:
    """Whether a class has a destructor, which ends what a copy would share, or is an address."""
    owner = next((base for base in kind.__mro__ if "__del__" in vars(base)), None)
    warns = owner is not None and owner.__module__.startswith("gymnasium.wrappers.")  # and does nothing else
    return kind.__module__ in ("ctypes", "_ctypes") or (owner is not None and not warns)


@lru_cache(maxsize=1024)
def _says_how(kind: type) -> str:
    """The package of the class that says how objects of this kind are pickled; "": none does."""
    methods = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")
    owners = (base for base in kind.__mro__[:-1] if any(method in vars(base) for method in methods))
    owner = kind if kind in copyreg.dispatch_table else next(owners, None)
    if owner is None or owner.__name__ == "cython_function_or_method":  # pickled by its name
        return ""
    return owner.__module__.partition(".")[0]


def _is_finalized(value: Any) -> bool:
    references = () if isinstance(value, _BY_NAME) else weakref.getweakrefs(value)
    return any(isinstance(reference.__callback__, weakref.finalize) for reference in references)


def _reduced(value: Any, pickler: Any) -> Any:
    """The reduction of an object, wherever the environment holds it: as a layer, in a list, as an attribute."""
    kind: Any = type(value)
    says, ends = _says_how(kind), _ends(kind) or _is_finalized(value)
    if _is_rebuilt(kind) or (ends and not says):
        raise _Lossy
    if ends or (says and says not in _TRUSTED):
        pickler.is_plain = False
    if isinstance(value, np.dtype) and value.isbuiltin == 1 and value.metadata is None:
        return np.dtype, (value.str,)  # numpy's reduction creates new objects, which changes sharing (D5)
    return NotImplemented


def _dumps(env: Any, kind: Any) -> tuple[bytes, bool]:
    """The pickle, and whether loading it only fills plain objects."""
    file = io.BytesIO()
    pickler = kind(file)
    pickler.dump(env)
    return file.getvalue(), pickler.is_plain


def unpack(packed: bytes, what: str) -> Any:
    """The environment that `pack` saved; None, with a warning, when it cannot be rebuilt here.

    Raises: CheckpointError for foreign bytes.
    """
    if not isinstance(packed, Pickled):  # foreign bytes must not run
        raise CheckpointError(f"{what} in the state is a {type(packed).__name__}, which flowrl does not save")
    try:
        return pickle.loads(packed)
    except Exception as error:
        log.warning("%s was saved but cannot be rebuilt here, so its episode is cut: %r", what, error)
        return None

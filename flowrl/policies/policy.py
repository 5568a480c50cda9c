"""The policy: one shared model with three modes, collect, learn and eval."""

from __future__ import annotations

import abc
import copy
import inspect
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import attrs
import gymnasium
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.envs.masks import check_mask
from flowrl.envs.pictures import declared
from flowrl.errors import ConfigError, did_you_mean
from flowrl.networks.devices import pick_device
from flowrl.networks.in_numpy import InNumpy, to_numpy
from flowrl.networks.loading import check_numbers, load_optimizer
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.noisy import noise_of
from flowrl.networks.normalize import Normalizer
from flowrl.networks.precision import Precision
from flowrl.networks.sampling import Array
from flowrl.networks.torch_private import writes
from flowrl.networks.torch_rng import TorchStream
from flowrl.policies.compiled import CompiledLoss
from flowrl.policies.learning import Learning
from flowrl.policies.protocols import HasTarget
from flowrl.saved import Saved, load_whole
from flowrl.schedules import NumberOrSchedule, Schedule, schedule, value_at
from flowrl.settings import NATURE, PolicySettings, construct, positive, scheduled

log = logging.getLogger("flowrl")

#: The backends that compute actions: the torch model; its numpy twin; the twin on the CPU if the model has one.
ACT_BACKENDS = ("torch", "numpy", "auto")

_NOTHING = nullcontext()  # torch's contexts cost as much as a layer


class ActMode(Protocol):
    """How a policy acts: it takes `draws` uniform numbers per row and returns columns."""

    @property
    def draws(self) -> int: ...

    def act(self, obs: Array, noise: Array, env_steps: int) -> dict[str, Array]:
        """Columns for `obs [N, ...]`: `action [N, ...]` and further columns to store with it.

        `obs` is a nested `Batch` of such arrays if the observation space is a Dict. `noise [N, draws]` is uniform
        in [0, 1); `env_steps` counts the steps of the acting worker so far. The environments get the column
        `env_action` (the action clipped, or in the environment's scale) if there is one; stored is always `action`,
        as the policy drew it (G6).
        """
        ...

    def value(self, obs: Array) -> Array:
        """Values `[B]` of observations `[B, ...]`; called only on modes that return a column `value`."""
        ...


class RecurrentMode(Protocol):
    """An `ActMode` of a recurrent policy: each environment has a state, arrays or nested batches of them `[N, ...]`.

    The caller keeps the states: the initial state where an episode begins, else the `next_state` of the step before
    (T8). A stored row holds the state before its action.
    """

    @property
    def draws(self) -> int: ...

    def initial_state(self) -> Any:
        """The state that an episode begins with, `[1, ...]`."""
        ...

    def act(self, obs: Array, noise: Array, env_steps: int, state: Any) -> dict[str, Any]:
        """The columns of an `ActMode`, and `next_state [N, ...]`."""
        ...

    def value(self, obs: Array, state: Any) -> Array:
        """Values `[B]` of observations `[B, ...]` in these states."""
        ...


class Policy(abc.ABC):
    """Base of policies. Subclasses build `model`, `optimizer` and the three modes inside `_build`.

    A policy declares its options as `Settings`. Each is a keyword argument, and `configured` reads them by name from a
    configuration. An argument for a scheduled setting may also be any function of env steps, and `network` may be a
    class.

    `version` counts the updates of the weights; every collected row records it.

    Args:
        observation_space, action_space: The spaces of one environment.
        learning_rates: Rates of single parameter groups, by the `name` of the group.
        normalize_obs: Normalize the numbers in observations by running statistics; images are left alone.
        normalize_rewards: Keep running statistics of discounted returns, which scale rewards.
        settings: The fields of `Settings`; each is also an attribute of the policy.

    The seed determines the initialization and `stream`; a model that draws random numbers in `forward` must run in
    that stream. Statistics are part of the weights (O1); the operators `GatherStatistics` and `UpdateStatistics`
    collect and apply them.

    Raises:
        ConfigError: an unknown setting (names the closest one), a bad value, an unknown device or backend, or a model
            that the backend does not support.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(PolicySettings):
        """Settings of learning that every policy has."""

        learning_rate: NumberOrSchedule = scheduled(1e-3, "learning rate of Adam")
        grad_clip: float | None = positive(None, "largest norm of the gradient; None: no limit", resume="fork")

        def schedule_of(self, name: str) -> Schedule:
            """A setting as a schedule: towards `NAME_end` over `schedule_steps`, if the policy has these settings.

            It is open while `schedule_steps` is None: see `flowrl.schedules.end_schedules`.
            """
            return schedule(self.get(name), self.get(f"{name}_end"), self.get("schedule_steps", 1))

    settings: Settings
    model: nn.Module
    parameters: list[nn.Parameter]  #: of the model, and what else the optimizer moves
    normalizers: dict[str, Normalizer]  #: of the model, by name: those of observations, and `returns`
    returns: Normalizer | None  #: statistics of discounted returns
    optimizer: torch.optim.Optimizer
    collect_mode: ActMode | RecurrentMode
    learn_mode: Learning
    eval_mode: ActMode | RecurrentMode
    _in_numpy: InNumpy | None = None
    _auto_is_numpy = False  #: what act_backend="auto" stands for

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        learning_rates: Mapping[str, Schedule] | None = None,
        normalize_obs: bool = False,
        normalize_rewards: bool = False,
        **settings: Any,
    ) -> None:
        known = [field.name for field in attrs.fields(self.Settings)]
        for name in settings.keys() - set(known):
            raise ConfigError(f"{type(self).__name__} has no setting {name!r}; {did_you_mean(name, known)}")
        self.settings = given = construct(self.Settings, settings)
        if given.act_backend not in ACT_BACKENDS:
            raise ConfigError(f"act_backend={given.act_backend!r} is no backend; take one of {', '.join(ACT_BACKENDS)}")
        observation_space = declared(observation_space, given.image_axes)
        check_mask(observation_space, action_space)
        self.observation_space, self.action_space = observation_space, action_space
        self.learning_rate, self.learning_rates = given.schedule_of("learning_rate"), dict(learning_rates or {})
        self.normalize_obs, self.normalize_rewards = normalize_obs, normalize_rewards
        self.device = pick_device(given.device)
        if self.device.type == "mps" and (normalize_obs or normalize_rewards):
            raise ConfigError("statistics need float64, which device='mps' lacks: take 'cpu', or do not normalize")
        self.mixed = Precision(given.precision, self.device)
        self.version = 0
        self.stream = TorchStream(given.seed)
        with self.stream.swapped_in():
            self._build()
        moved = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        self.parameters = list(dict.fromkeys([*self.model.parameters(), *moved]))
        self._keep_statistics()
        if given.compile:
            self.learn_mode.compiled = CompiledLoss(self.learn_mode)
        if given.act_backend == "auto" and self.device.type == "cpu":
            try:
                self._in_numpy = InNumpy(self.model)
            except ConfigError as error:  # the model has a part without a numpy form
                log.info("%s acts in torch: %s", type(self).__name__, error)
            self._auto_is_numpy = self._in_numpy is not None
        self.acting()  # raises if the backend does not support the model

    @classmethod
    def configured(cls, config: Any, observation_space: Any, action_space: Any, **others: Any) -> Self:
        """A policy with the settings and arguments that a configuration has under the same names, and with `others`."""
        asked = {name: getattr(config, name, attrs.NOTHING) for name in cls.arguments()}  # it may derive some
        taken = {name: value for name, value in asked.items() if value is not attrs.NOTHING}
        return cls(observation_space, action_space, **{**taken, **others})

    @classmethod
    def arguments(cls) -> list[str]:
        """The names of its settings, and of its other keyword arguments."""
        names = []
        for base in cls.__mro__:
            if "__init__" not in vars(base):
                continue
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
            names += [*by_position[3:], *(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)]
            if not any(each.kind is each.VAR_KEYWORD for each in parameters):
                return names  # it takes no further arguments
        return names + [field.name for field in attrs.fields(cls.Settings)]

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a setting, which would have no effect, while what is derived from settings may be set."""
        own = vars(self)
        if name not in own and "normalizers" in own and name in attrs.fields_dict(self.Settings):
            raise AttributeError(
                f"{name} is a setting of {type(self).__name__}: pass it to the constructor, or replace `settings`"
            )
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # falls back to `settings`; hidden from type checkers, which then report misspelt names

        def __getattr__(self, name: str) -> Any:
            settings = vars(self).get("settings")
            if settings is not None and name in vars(settings):
                return settings.get(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @abc.abstractmethod
    def _build(self) -> None:
        """Build the model, the optimizer and the modes; random numbers come from the policy's stream."""

    def _keep_statistics(self) -> None:
        observed = [part for part in self.model.modules() if isinstance(part, Normalizer)]
        if self.normalize_obs and not observed:
            raise ConfigError(
                f"normalize_obs=True, but {self.observation_space} has no numbers to normalize: images are scaled "
                "and discrete values are one-hot vectors already; set normalize_obs=False"
            )
        self.returns = Normalizer().to(self.device) if self.normalize_rewards else None
        if self.returns is not None:
            self.model.add_module("returns", self.returns)  # sent and saved with the weights
        named = self.model.named_modules()
        self.normalizers = {name: part for name, part in named if isinstance(part, Normalizer)}

    @contextmanager
    def learning(self) -> Iterator[None]:
        """The context of forwards in learning: a user's network is in train mode and draws from the stream (D6)."""
        if self.settings.network in (None, NATURE):  # built-in networks have no train mode, and draw nothing
            yield
            return
        self.model.train()
        try:
            with self.stream.swapped_in():
                yield
        finally:
            self.model.eval()

    def rate(self, group: str = "") -> float:
        """The initial learning rate of the parameter group of this name."""
        return value_at(self.learning_rates.get(group, self.learning_rate), 0)

    def _constant_rates(self) -> dict[str, float | None]:
        """The learning rates that settings give the parameter groups, by name; None for one that follows a schedule."""
        names = [group.get("name", "") for group in self.optimizer.param_groups]
        rates = {name: self.learning_rates.get(name, self.learning_rate) for name in names}
        return {name: None if callable(rate) else float(rate) for name, rate in rates.items()}

    @property
    def actor_space(self) -> gymnasium.Space[Any]:
        """The part of the observations that its eval mode reads; here all of it."""
        return self.observation_space

    def collect_mode_of(self, worker: int) -> ActMode | RecurrentMode:
        """The collect mode of the worker of this index; here the same for all."""
        return self.collect_mode

    def from_env(self, action: Array) -> Array:
        """Convert actions `[B, ...]` from the environment's scale to the stored one; here they are equal."""
        return action

    def for_env(self, action: Array) -> Array:
        """Convert stored actions `[..., *shape]` to the environment's scale, within its bounds; here they are equal."""
        return action

    def gather_statistics(self, obs: Any, returns: Array | None) -> None:
        """Add observations `[B, ...]` and discounted returns `[B]` to the statistics that wait for the next update.

        Only the very first returns apply at once: nothing was scaled by others before, and the first rewards to learn
        from need a scale.
        """
        for normalizer in self.normalizers.values():
            if normalizer is not self.returns:
                numbers = obs
                for key in normalizer.path:
                    numbers = numbers[key]
                normalizer.gather(numbers, "obs" + "".join(f"[{key!r}]" for key in normalizer.path))
        if self.returns is not None and returns is not None:
            self.returns.gather(returns, "the discounted return")
            if not self.returns.count:
                self.returns.update()

    def update_statistics(self) -> None:
        """Apply the waiting statistics, for acting and learning.

        Until the first update of the weights, to a target network too: it is a copy of the online network until then.
        """
        for normalizer in self.normalizers.values():
            normalizer.update()
        if not self.version and isinstance(self, HasTarget):
            self.update_target(1.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(version={self.version})"

    @property
    def caveat(self) -> str:
        """See `ResourceContract`."""
        return "compiled: other last bits" if self.settings.compile else ""

    def modules(self) -> dict[str, nn.Module]:
        """The networks that a checkpoint holds, by name."""
        return {"model": self.model}

    @property
    def stamp(self) -> tuple[int, ...]:
        """A value that changes with any write to weights or statistics, unlike `version`.

        Fused optimizers change the version, all other writes the counts of the tensors.
        """
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        return (self.version, *writes(tensors))

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of the tensors that acting needs."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        """A copy of networks, statistics, optimizer, version and random stream."""
        return copy.deepcopy(
            {
                "version": self.version,
                "modules": {name: dict(module.state_dict()) for name, module in self.modules().items()},
                "optimizer": self.optimizer.state_dict(),
                "stream": self.stream.state_dict(),
                "rates": self._constant_rates(),
                "precision": self.mixed.state_dict(),
                "waiting": {name: each.waiting_state() for name, each in self.normalizers.items()},
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Raises: CheckpointError; the policy is then as it was (D7)."""
        what = f"the saved {type(self).__name__}"
        load_whole(lambda each: self._load(Saved(each, what)), state, self.state_dict(), what)

    def _load(self, saved: Saved) -> None:
        """Restore a saved state of which nothing was checked yet; what it changes is put back if it raises."""
        version, modules = saved.count("version"), saved.inside("modules")
        for name, module in self.modules().items():
            check_numbers(module, modules.get(name), f"{modules.what}, {name}")
            module.load_state_dict(modules.get(name))
        load_optimizer(self.optimizer, saved.inside("optimizer"))
        rates, then = self._constant_rates(), saved.get("rates", dict[str, float | None], otherwise={})
        for group in self.optimizer.param_groups:  # constant rates are in the optimiser's state, scheduled ones follow
            name = group.get("name", "")
            if name in then and rates[name] not in (None, then[name]):
                group["lr"] = rates[name]
        self.stream.load_state_dict(saved.get("stream"))
        self.mixed.load_state_dict(saved.get("precision"))
        for name, normalizer in self.normalizers.items():
            normalizer.load_waiting_state(saved.inside("waiting").get(name))
        self.version = version

    def tensor(self, obs: Any) -> Any:
        """Observations `[N, ...]`, an array or a `Batch` of arrays, on the policy's device."""
        return obs.to_torch(self.device) if isinstance(obs, Batch) else torch.from_numpy(obs).to(self.device)

    @property
    def acts_in_numpy(self) -> bool:
        """Whether numpy computes the actions, by `act_backend`."""
        backend = self.settings.act_backend
        return backend == "numpy" or (backend == "auto" and self._auto_is_numpy)

    def acting(self) -> Any:
        """The function that computes actions: the model, or its equivalent on arrays."""
        if not self.acts_in_numpy:
            return self.model
        if self._in_numpy is None:
            self._in_numpy = InNumpy(self.model)
        return self._in_numpy(self.model, self.version)

    def export(self, path: str | Path) -> None:
        """Write the greedy policy to a ".pt2" or ".onnx" file: see `flowrl.policies.export.export`."""
        from flowrl.policies.export import export

        export(self, path)

    def inference(self) -> AbstractContextManager[Any]:
        """The context of acting: without gradients, which numpy does not know."""
        return _NOTHING if self.acts_in_numpy else torch.inference_mode()

    def observed(self, obs: Any) -> Any:
        """Observations `[N, ...]` as the act backend takes them."""
        return obs if self.acts_in_numpy else self.tensor(obs)

    def __getstate__(self) -> dict[str, Any]:
        # A numpy backend reads this policy's weights, so a copy must build its own.
        return {**self.__dict__, "_in_numpy": None}


@attrs.frozen
class ValueActing:
    """Acts by a wrapper on a model's action values `[N, A]`, among the valid actions.

    With `noise_draws`, each row has its own noise in the weights, see `flowrl.networks.noisy`, drawn from the
    environment's stream, so actions do not depend on which environments act together (D2). With `records_value`, there
    is a column `value`, that of the best valid action.
    """

    policy: Policy
    sample: Any
    noise_draws: int = 0
    records_value: bool = False

    @property
    def draws(self) -> int:
        return int(self.sample.draws) + self.noise_draws

    def act(self, obs: Array, noise: Array, env_steps: int) -> dict[str, Array]:
        policy, drawn = self.policy, self.sample.draws
        in_weights = {"noise": policy.observed(noise_of(noise[:, drawn:]))} if self.noise_draws else {}
        with policy.inference():
            value = to_numpy(policy.acting()(policy.observed(obs), **in_weights))
        mask = action_mask(obs)
        columns = {"action": self.sample(value, noise[:, :drawn], env_steps, mask=mask)}
        return {**columns, "value": masked(value, mask).max(1)} if self.records_value else columns

    def in_torch(self, model: Any, obs: Any) -> torch.Tensor:
        """The best actions `[B]`, for `Policy.export`."""
        best: torch.Tensor = masked(model(obs), action_mask(obs)).argmax(1)
        return best

    def value(self, obs: Array) -> Array:
        """The value of the best valid action."""
        with self.policy.inference():
            values = to_numpy(self.policy.acting()(self.policy.observed(obs)))
        best: Array = masked(values, action_mask(obs)).max(1)
        return best

"""The policy: one shared model with three modes, collect, learn and eval."""

from __future__ import annotations

import abc
import copy
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import attrs
import gymnasium
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.columns import PLACE
from flowrl.data.steps import real_steps
from flowrl.envs.masks import check_mask
from flowrl.errors import ConfigError, PlanError
from flowrl.policies.clipping import clip_norm
from flowrl.policies.devices import compile_networks, pick_device
from flowrl.policies.in_numpy import InNumpy, host
from flowrl.policies.masks import action_mask, masked
from flowrl.policies.noisy import noise_of
from flowrl.policies.normalize import Normalizer
from flowrl.policies.precision import Precision
from flowrl.policies.streams import TorchStream
from flowrl.policies.wrappers import Array
from flowrl.schedules import Schedule, value_at
from flowrl.training import AllReduce

log = logging.getLogger("flowrl")

#: Makes a network of one's own for observations of a space: a module with `features`.
NetworkClass = Callable[[gymnasium.Space[Any]], nn.Module]

#: What can compute actions: the model itself, or what it is in numpy.
ACT_BACKENDS = ("torch", "numpy")


class ActMode(Protocol):
    """How a policy acts: `draws` uniform numbers a row in, columns out."""

    @property
    def draws(self) -> int: ...

    def act(self, obs: Array, noise: Array, env_steps: int) -> dict[str, Array]:
        """Columns for `obs [N, ...]`: `action [N, ...]` and what else should be stored with it.

        `obs` is a nested `Batch` of such arrays where the observation space is a Dict. `noise [N, draws]` is uniform
        in [0, 1); `env_steps` counts the steps so far of the worker that acts. Where there is a column `env_action`
        (the action clipped, or in the environment's own scale), the environments are given that one; `action`, what
        the policy drew, is what is stored (G6), and `env_action` is not.
        """
        ...

    def value(self, obs: Array) -> Array:
        """Values `[B]` of observations `[B, ...]`; asked only of modes whose columns have a `value`."""
        ...


class RecurrentMode(Protocol):
    """An `ActMode` with a memory: a state for each environment, arrays or nested batches of them `[N, ...]`.

    Whoever acts keeps it. `state` is the initial one where an episode begins, else the `next_state` of the step before
    (T8). What is stored with a row is the state that was acted from.
    """

    @property
    def draws(self) -> int: ...

    def initial_state(self) -> Any:
        """The state that an episode begins with, `[1, ...]`."""
        ...

    def act(self, obs: Array, noise: Array, env_steps: int, state: Any) -> dict[str, Any]:
        """Columns as those of an `ActMode`, and `next_state [N, ...]`."""
        ...

    def value(self, obs: Array, state: Any) -> Array:
        """Values `[B]` of observations `[B, ...]` met in these states."""
        ...


@attrs.frozen(eq=False)
class Gradients:
    """Gradients of a loss that is a mean over `rows` rows, by parameter; and the scalars to report of it.

    `worker` is the index of the worker that computed them; None: this process, or several workers. `version` is that of
    the weights that they were computed with.
    """

    values: dict[str, torch.Tensor]
    rows: int
    scalars: dict[str, float]
    worker: int | None = None
    version: int = 0


class Learning(abc.ABC):
    """How a policy learns: a subclass has the `loss` and the `columns` that it reads, the rest follows.

    A batch is prepared once, and may then be taken apart into minibatches.
    """

    #: Columns that the loss reads, and those that it reads where they are there.
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()

    #: Words and columns without which `prepare` and `loss` cannot work, for `plan.check()`: see `flowrl.schema`.
    requires: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()

    #: Whether the loss of rows with a `weight`, drawn by priority, reports their new `priority` beside the scalars.
    reports_priority: ClassVar[bool] = False

    #: Whether it learns from sequences `[T, B, ...]`, so that minibatches are whole ones; else from rows `[B, ...]`.
    in_sequences: ClassVar[bool] = False

    _zero_since: int | None = None  #: env steps at which a scheduled rate was first seen to be 0
    _said = False

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def prepare(self, batch: Batch) -> Batch:
        """Add the columns that the loss needs and the batch lacks; the batch itself if there are none."""
        return batch

    def tensors(self, batch: Batch) -> Batch:
        """The columns of a prepared batch that the loss reads, on the policy's device.

        And `index` and `generation` where the loss reports whose priority is what.
        """
        drawn = PLACE if self.reports_priority and "weight" in batch else ()
        names = [*self.columns, *(name for name in (*self.optional, *drawn) if name in batch)]
        return batch.select(names).to_torch(self.policy.device)

    def schedule(self, env_steps: int) -> None:
        """Set what follows a schedule: here the learning rates that are functions of env steps (Q7).

        A group of the optimiser's parameters with a `name` may have its own, in the policy's `learning_rates`.
        """
        policy, rates = self.policy, []
        for group in policy.optimizer.param_groups:
            rate = policy.learning_rates.get(group.get("name", ""), policy.learning_rate)
            if callable(rate):
                group["lr"] = rate(env_steps)
            rates.append(group["lr"])
        if callable(policy.learning_rate) or policy.learning_rates:
            self._say_if_over(max(rates), env_steps)

    def _say_if_over(self, rate: float, env_steps: int) -> None:
        """Warn, once, of a run that goes on after its learning rate has become 0."""
        if rate != 0:
            self._zero_since = None
        elif self._zero_since is None:
            self._zero_since = env_steps
        elif env_steps > self._zero_since and not self._said:
            self._said = True
            log.warning(
                "the learning rate has been 0 since %d env steps: nothing more is learned. Give a schedule as long as "
                "the run (schedule_steps), or one that does not end at 0 (learning_rate_end)",
                self._zero_since,
            )

    @abc.abstractmethod
    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, a mean over rows `[B, ...]` of `tensors`, and scalars to report.

        Where rows have a `weight`, the loss is the mean of weighted ones, and `priority [B]` may be among the scalars:
        how much there was to learn from each row, such as |TD error|, before the step and not weighted.
        """

    def describe(self, rows: Batch) -> dict[str, torch.Tensor]:
        """Scalars to report of a whole batch of `tensors`, before it is learned from."""
        return {}

    def over_minibatch(self, rows: Batch) -> Batch:
        """What is computed over all `tensors` of a minibatch before several learners share its rows."""
        return rows

    def update(self, batch: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        """One optimiser step on the rows of a prepared batch; what `loss` reports, as tensors without a gradient.

        With `all_reduce`, the step and the scalars are those of all learners' rows; a `priority` is of these alone.
        """
        scalars = self._backward(batch, all_reduce)
        self._step()
        return scalars

    def gradients(self, batch: Batch) -> Gradients:
        """The gradients of a prepared batch, without a step.

        Raises: PlanError in float16, whose gradients are scaled for the step of this policy alone.
        """
        if self.policy.mixed.scaler is not None:
            raise PlanError("gradients that are applied elsewhere cannot be of float16: take precision='bfloat16'")
        scalars = self._backward(batch)
        parameters = self.policy.model.named_parameters()
        values = {name: p.grad.clone() for name, p in parameters if p.grad is not None}
        scalars.pop("priority", None)
        reported = {name: float(value) for name, value in scalars.items()}
        return Gradients(values, real_steps(batch), reported, version=self.policy.version)

    def apply(self, gradients: Gradients) -> None:
        """One optimiser step with these gradients."""
        for name, parameter in self.policy.model.named_parameters():
            # A copy: clipping works in place, and the gradients belong to whoever made them, on whichever device.
            given = gradients.values.get(name)
            parameter.grad = None if given is None else given.to(parameter.device, copy=True)
        self._step()

    def _backward(self, batch: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        policy = self.policy
        rows = self.over_minibatch(self.tensors(batch))
        if all_reduce is not None:
            rows = all_reduce.share(rows)
        with policy.learning(), policy.mixed.forward():
            loss, scalars = self.loss(rows)
        for parameter in policy.parameters:
            parameter.grad = None
        scaler = policy.mixed.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        scalars = {name: value.detach() for name, value in scalars.items()}
        return scalars if all_reduce is None else self._agreed(scalars, real_steps(rows), all_reduce)

    def _agreed(self, scalars: dict[str, torch.Tensor], rows: int, all_reduce: AllReduce) -> dict[str, torch.Tensor]:
        """Give every learner the gradients and scalars of all their rows."""
        parameters = self.policy.parameters
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        means = {name: value for name, value in scalars.items() if name != "priority"}
        values = [*gradients, *means.values()]
        mean = all_reduce.mean(torch.cat([value.flatten().float() for value in values]), rows)
        parts = torch.split(mean, [value.numel() for value in values])
        for parameter, part in zip(parameters, parts):
            if parameter.grad is not None or part.any():  # one that no learner's loss reads has no gradient
                parameter.grad = part.view_as(parameter).to(parameter.dtype)
        return {**scalars, **{name: part[0] for name, part in zip(means, parts[len(parameters) :])}}

    def _step(self) -> None:
        policy, scaler = self.policy, self.policy.mixed.scaler
        if scaler is not None:
            scaler.unscale_(policy.optimizer)
        if policy.grad_clip_value is not None:
            nn.utils.clip_grad_value_(policy.parameters, policy.grad_clip_value)
        if policy.grad_clip is not None:
            clip_norm(policy.parameters, policy.grad_clip, finite=scaler is None)
        if scaler is None:
            policy.optimizer.step()
        else:
            scaler.step(policy.optimizer)
            scaler.update()
        policy.version += 1


class Policy(abc.ABC):
    """Base of policies. Subclasses build `model`, `optimizer` and the three modes inside `_build`.

    `version` counts the updates of the weights; every row that was collected knows its version.

    Args:
        observation_space, action_space: Of one environment.
        learning_rate: Of the optimiser; a number, or a function of env steps.
        learning_rates: Those of parameter groups that have one of their own, by the `name` of the group.
        grad_clip: Largest norm of the gradient; None for no limit.
        grad_clip_value: Largest absolute value of each of its numbers, before that; None for no limit.
        network: What encodes observations in the place of the built-in encoders: a class, or its name
            "module:Class", see `flowrl.policies.networks.encoder`.
        precision: What learning computes in, see `Precision`.
        compile: Learn with networks that `torch.compile` has made faster. Acting is as without it.
        normalize_obs: Normalise the numbers in observations by running statistics; images are left alone.
        normalize_rewards: Keep running statistics of discounted returns, by which rewards are scaled.
        seed: Of the initialisation, and of `stream`, in which a model that draws in its forward must run.
        device: "auto" takes a GPU if there is one.
        act_backend: What computes actions. "torch": the model, on its device. "numpy": the same function in numpy on
            the CPU, equal to rounding: faster for small dense networks, of which torch's cost per call is most.

    Statistics are part of the weights (O1). What they are made of, and when they move, the operators
    `GatherStatistics` and `UpdateStatistics` say.

    Raises:
        ConfigError: no such device or backend, or a model that the backend cannot serve.
    """

    model: nn.Module
    parameters: list[nn.Parameter]  #: of the model
    normalizers: dict[str, Normalizer]  #: of the model, by name; of observations, and `returns`
    returns: Normalizer | None  #: statistics of discounted returns
    optimizer: torch.optim.Optimizer
    collect_mode: ActMode | RecurrentMode
    learn_mode: Learning
    eval_mode: ActMode | RecurrentMode
    _in_numpy: InNumpy | None = None
    _eager: nn.Module | None = None  #: the model as it acts, where it learns compiled

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        learning_rate: Schedule = 1e-3,
        learning_rates: Mapping[str, Schedule] | None = None,
        grad_clip: float | None = None,
        grad_clip_value: float | None = None,
        network: NetworkClass | str | None = None,
        precision: str = "float32",
        compile: bool = False,
        normalize_obs: bool = False,
        normalize_rewards: bool = False,
        seed: int = 0,
        device: str = "auto",
        act_backend: str = "torch",
    ) -> None:
        if act_backend not in ACT_BACKENDS:
            raise ConfigError(f"act_backend={act_backend!r} is none; take one of {', '.join(ACT_BACKENDS)}")
        check_mask(observation_space, action_space)
        self.observation_space, self.action_space = observation_space, action_space
        self.act_backend = act_backend
        self.learning_rate, self.learning_rates = learning_rate, dict(learning_rates or {})
        self.grad_clip, self.grad_clip_value, self.network, self.compile = grad_clip, grad_clip_value, network, compile
        self.normalize_obs, self.normalize_rewards = normalize_obs, normalize_rewards
        self.device = pick_device(device)
        if self.device.type == "mps" and (normalize_obs or normalize_rewards):
            raise ConfigError("statistics need float64, which device='mps' has not: take 'cpu', or do not normalise")
        self.precision, self.mixed = precision, Precision(precision, self.device)
        self.version = 0
        self.stream = TorchStream(seed)
        with self.stream.swapped_in():
            self._build()
        if network is not None:
            for module in self.modules().values():
                module.eval()
        self.parameters = list(self.model.parameters())
        self._keep_statistics()
        if compile:
            self._compile()
        self.acting()  # refuses what the backend cannot serve

    @abc.abstractmethod
    def _build(self) -> None:
        """Make the model, the optimiser and the modes; random numbers come from the policy's stream."""

    def _keep_statistics(self) -> None:
        observed = [part for part in self.model.modules() if isinstance(part, Normalizer)]
        if self.normalize_obs and not observed:
            raise ConfigError(
                f"normalize_obs=True, but no numbers of {self.observation_space} pass a Normalizer: images are scaled "
                "and choices are one-hot vectors already"
            )
        self.returns = Normalizer().to(self.device) if self.normalize_rewards else None
        if self.returns is not None:
            self.model.add_module("returns", self.returns)  # so that it is sent and saved with the weights
        named = self.model.named_modules()
        self.normalizers = {name: part for name, part in named if isinstance(part, Normalizer)}

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Forwards of learning: in them alone a network of one's own drops out, and draws, from the stream (D6)."""
        if self.network is None:  # others do in learning what they do in acting, and draw nothing
            yield
            return
        self.model.train()
        try:
            with self.stream.swapped_in():
                yield
        finally:
            self.model.eval()

    def rate(self, group: str = "") -> float:
        """The learning rate that a parameter group of this name begins with."""
        return value_at(self.learning_rates.get(group, self.learning_rate), 0)

    def _compile(self) -> None:
        """Compile the networks where losses call them; what acts stays as it was, for batches of any size."""
        self._eager = copy.copy(self.model)  # shares weights and parts
        compile_networks(self.modules().values())

    def collect_mode_of(self, worker: int) -> ActMode | RecurrentMode:
        """How the worker of this index collects, where workers explore differently; here as all of them do."""
        return self.collect_mode

    def gather_statistics(self, obs: Any, returns: Array | None) -> None:
        """Let observations `[B, ...]` and discounted returns `[B]` wait for the next update.

        Only the very first returns come into use at once: nobody acted by their scale, and without it the first
        rewards that are learned from would not be scaled.
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
        """Put the statistics that wait into use, for acting and for learning."""
        for normalizer in self.normalizers.values():
            normalizer.update()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(version={self.version})"

    def modules(self) -> dict[str, nn.Module]:
        """The networks that a checkpoint holds, by name."""
        return {"model": self.model}

    @property
    def stamp(self) -> tuple[int, ...]:
        """Another one after any write to weights or statistics, which `version` alone does not tell.

        Fused optimisers change the version, all else the tensors' own counts.
        """
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        return (self.version, *(tensor._version for tensor in tensors))

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of what acting needs."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        """Networks, statistics, optimiser, version and random stream, copied."""
        return copy.deepcopy(
            {
                "version": self.version,
                "modules": {name: dict(module.state_dict()) for name, module in self.modules().items()},
                "optimizer": self.optimizer.state_dict(),
                "stream": self.stream.state_dict(),
                "precision": self.mixed.state_dict(),
                "waiting": {name: each.waiting_state() for name, each in self.normalizers.items()},
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = state["version"]
        for name, module in self.modules().items():
            module.load_state_dict(state["modules"][name])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.stream.load_state_dict(state["stream"])
        self.mixed.load_state_dict(state["precision"])
        for name, normalizer in self.normalizers.items():
            normalizer.load_waiting_state(state["waiting"][name])

    def tensor(self, obs: Any) -> Any:
        """Observations `[N, ...]`, an array or a `Batch` of several, on the policy's device."""
        return obs.to_torch(self.device) if isinstance(obs, Batch) else torch.from_numpy(obs).to(self.device)

    def acting(self) -> Any:
        """What computes actions, as `act_backend` says: the model, or a function of arrays that is equal to it."""
        if self.act_backend == "torch":
            return self.acting_model
        if self._in_numpy is None:
            self._in_numpy = InNumpy(self)
        return self._in_numpy()

    @property
    def acting_model(self) -> nn.Module:
        """The model as it acts, not compiled."""
        return self.model if self._eager is None else self._eager

    def export(self, path: str | Path) -> None:
        """Write the greedy policy as a program, ".pt2" or ".onnx": see `flowrl.policies.export.export`."""
        from flowrl.policies.export import export

        export(self, path)

    def observed(self, obs: Any) -> Any:
        """Observations `[N, ...]` as what computes actions takes them."""
        return self.tensor(obs) if self.act_backend == "torch" else obs

    def __getstate__(self) -> dict[str, Any]:
        # It reads this policy's weights, not those of a copy.
        return {**self.__dict__, "_in_numpy": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.compile:  # compiled code is not copied
            self._compile()


@attrs.frozen
class ValueActing:
    """Acts on a model's values `[N, A]` of the actions through a wrapper, among the valid ones.

    With `noise_draws` each row's values are those of weights with noise of its own, see `flowrl.policies.noisy`: it
    comes from the environment's stream, so that actions do not depend on which environments act together (D2).
    """

    policy: Policy
    sample: Any
    noise_draws: int = 0

    @property
    def draws(self) -> int:
        return int(self.sample.draws) + self.noise_draws

    def act(self, obs: Array, noise: Array, env_steps: int) -> dict[str, Array]:
        policy, drawn = self.policy, self.sample.draws
        in_weights = {"noise": policy.observed(noise_of(noise[:, drawn:]))} if self.noise_draws else {}
        with torch.inference_mode():
            value = host(policy.acting()(policy.observed(obs), **in_weights))
        return {"action": self.sample(value, noise[:, :drawn], env_steps, mask=action_mask(obs))}

    def in_torch(self, model: Any, obs: Any) -> torch.Tensor:
        """The best actions `[B]`, for `Policy.export`."""
        best: torch.Tensor = masked(model(obs), action_mask(obs)).argmax(1)
        return best

    def value(self, obs: Array) -> Array:
        """The value of the best valid action."""
        with torch.inference_mode():
            values = host(self.policy.acting()(self.policy.observed(obs)))
        best: Array = masked(values, action_mask(obs)).max(1)
        return best

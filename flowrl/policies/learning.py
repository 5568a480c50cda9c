"""Learning: the part of the learn mode that all algorithms share; and gradients as data."""

from __future__ import annotations

import abc
import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import attrs
import gymnasium
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.data.columns import PLACE
from flowrl.data.steps import real_rows, real_steps, tells_fragments
from flowrl.errors import ConfigError, NotFinite, PlanError
from flowrl.networks.adam import Adam
from flowrl.networks.clipping import blamed, check_loss, check_step, clip_norm, culprit
from flowrl.networks.precision import Precision
from flowrl.schedules import Schedule

log = logging.getLogger("flowrl")

#: Where a loss scale has halved to this, 32 times in a row from its first value, it is not at fault for overflows.
LEAST_SCALE = 2.0**-16
#: How many batches old the rows of a loss for fresh ones may be before a run says so.
MOST_BATCHES = 2


class Trainable(Protocol):
    """A policy as its `Learning` sees it."""

    model: Any
    parameters: list[nn.Parameter]
    optimizer: Any
    settings: Any
    learning_rate: Schedule
    learning_rates: dict[str, Schedule]
    observation_space: gymnasium.Space[Any]
    device: torch.device
    mixed: Precision
    version: int

    def learning(self) -> AbstractContextManager[None]: ...


class AllReduce(Protocol):
    """Reductions over several learners of the same policy; all of them must call in the same order."""

    #: Whether all learners get the same batch and each takes its share of every minibatch; else each has its own.
    one_batch: bool

    def mean(self, values: torch.Tensor, rows: int) -> torch.Tensor:
        """The mean `[n]` of all learners' `values [n]`, weighted by their rows (F13); bit-identical for all."""
        ...

    def least_and_most(self, number: int) -> tuple[int, int]:
        """The minimum and maximum of all learners' numbers."""
        ...

    def share(self, rows: Batch, sequences: bool = False) -> Batch:
        """The rows `[B, ...]`, or sequences `[T, B, ...]`, of a minibatch of one batch that this learner computes."""
        ...


@attrs.frozen(eq=False)
class Gradients:
    """Gradients, by parameter, of a loss that is a mean over `rows` rows; and the scalars to report.

    `worker` is the index of the worker that computed them; None: this process, or several workers. `version` is the
    version of the weights that computed them.
    """

    values: dict[str, torch.Tensor]
    rows: int
    scalars: dict[str, float]
    worker: int | None = None
    version: int = 0


class Learning(abc.ABC):
    """How a policy learns: a subclass defines the `loss` and the `columns` that it reads.

    A batch is prepared once, and may then be split into minibatches.
    """

    #: Columns that the loss reads, and those that it reads if the batch has them.
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()

    #: Words and columns without which `prepare` and `loss` cannot work, for `plan.check()`: see `flowrl.engine.schema`.
    requires: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()

    #: What an update changes that `gradients` do not hold, as words for the error; "": nothing.
    beyond_gradients: ClassVar[str] = ""

    #: Whether the loss reports the new `priority` of rows with a `weight`, which were drawn by priority.
    reports_priority: ClassVar[bool] = False

    #: Whether it learns from sequences `[T, B, ...]`, which minibatches keep whole; else from rows `[B, ...]`.
    recurrent: ClassVar[bool] = False

    #: Whether `compile` serves it; each class says so for itself. What the loss reads and is neither a tensor nor a
    #: setting is in `phase`, and it draws no random numbers.
    compiles: ClassVar[bool] = False

    #: What computes the loss and its gradients in place of `loss` and autograd.
    compiled: Callable[[Batch], tuple[torch.Tensor, dict[str, torch.Tensor]]] | None = None
    _zero_since: int | None = None  #: env steps at which a scheduled rate first was 0
    _said = _said_old = False

    def __init__(self, policy: Trainable) -> None:
        self.policy = policy

    def prepare(self, batch: Batch) -> Batch:
        """Add the columns that the loss needs and the batch lacks; return the batch itself if none is missing."""
        return batch

    def steps(self, prepared: Batch) -> int:
        """The number of steps of a prepared batch, or of its `tensors`, without padding.

        Not by the axes that columns share: observations and actions may have equally many entries.
        """
        told = self.recurrent or tells_fragments(prepared)
        return real_steps(prepared) if told or not len(prepared.keys()) else len(prepared)

    def real_rows(self, batch: Batch) -> Batch:
        """The steps of a batch as rows `[B, ...]`; if no column tells what it is, the observation space does."""
        if tells_fragments(batch):
            return real_rows(batch)
        space, column = self.policy.observation_space, batch["obs"]
        while isinstance(space, spaces.Dict):
            name = next(iter(space))
            space, column = space[name], column[name]
        return real_rows(batch, fragment=len(column.shape) - len(space.shape or ()) >= 2)

    def tensors(self, batch: Batch) -> Batch:
        """The columns of a prepared batch that the loss reads, on the policy's device.

        With `index` and `generation` if the loss reports priorities.
        """
        drawn = PLACE if self.reports_priority and "weight" in batch else ()
        names = [*self.columns, *(name for name in (*self.optional, *drawn) if name in batch)]
        return batch.select(names).to_torch(self.policy.device)

    def schedule(self, env_steps: int) -> None:
        """Set the settings that follow a schedule: here the learning rates that are functions of env steps (Q7).

        A parameter group with a `name` may have its own rate, in the policy's `learning_rates`.
        """
        policy, rates = self.policy, []
        if not policy.learning_rates and not callable(policy.learning_rate):
            return
        for group in policy.optimizer.param_groups:
            rate = policy.learning_rates.get(group.get("name", ""), policy.learning_rate)
            if callable(rate):
                group["lr"] = _checked(rate(env_steps), group.get("name", ""), env_steps)
            rates.append(group["lr"])
        self._say_if_over(max(rates), env_steps)

    def _say_if_over(self, rate: float, env_steps: int) -> None:
        """Warn once if a run goes on after its learning rate became 0."""
        if rate != 0:
            self._zero_since = None
        elif self._zero_since is None:
            self._zero_since = env_steps
        elif env_steps > self._zero_since and not self._said:
            self._said = True
            log.warning(
                "the learning rate has been 0 since env step %d: the policy learns nothing more. Make the schedule as "
                "long as the run (schedule_steps), or end it above 0 (learning_rate_end)",
                self._zero_since,
            )

    def say_if_old(self, lags: Sequence[Any], updates: int) -> None:
        """Warn once if rows of a loss for fresh ones are more than two batches of `updates` old (D15)."""
        if self._said_old or "on_policy" not in self.requires:
            return
        if (lag := max((int(each.max(initial=0)) for each in lags), default=0)) > MOST_BATCHES * updates:
            self._said_old = True
            log.warning(
                "%s learns on-policy, but from rows that are %d versions of the weights old, at %d versions a batch: "
                "look for a prefetch, a queue or a gather_async that holds them, and make it smaller",
                type(self.policy).__name__,
                lag,
                updates,
            )

    @abc.abstractmethod
    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, a mean over rows `[B, ...]` of `tensors`, and scalars to report.

        If rows have a `weight`, the loss is the weighted mean, and the scalars may hold `priority [B]`: how much there
        was to learn from each row, such as |TD error|, before the step and not weighted.
        """

    def phase(self) -> Hashable:
        """Which of several losses the next update takes, if there are several."""
        return None

    def describe(self, rows: Batch) -> dict[str, torch.Tensor]:
        """Scalars to report of a whole batch of `tensors`, before learning from it."""
        return {}

    def over_batch(self, rows: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        """Learn from the rows of a whole batch, before its minibatches; scalars to report, detached."""
        return {}

    def stepped(self) -> None:  # noqa: B027 - most move nothing else
        """Move what is not learned by gradients, after an optimizer step that was finite."""

    def over_minibatch(self, rows: Batch) -> Batch:
        """Compute what needs all rows of a minibatch, before several learners share them."""
        return rows

    def learn_from(self, batch: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        """`over_batch` and `update` on a whole batch as it was collected."""
        rows = self.tensors(self.prepare(batch))
        return {**self.over_batch(rows, all_reduce), **self.update(rows, all_reduce)}

    def update(self, rows: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        """Take one optimizer step on rows of `tensors`; return the scalars of `loss`, detached.

        With `all_reduce`, the step and the scalars cover the rows of all learners; a `priority` covers these alone.

        Raises: NotFinite, with the rows, for a loss, a gradient or weights that are not finite (X1). A loss or gradient
            changes no weights.
        """
        try:
            scalars = self._backward(rows, all_reduce)
            self._step()
        except NotFinite as error:
            raise blamed(error, rows) from None
        return scalars

    def gradients(self, batch: Batch) -> Gradients:
        """The gradients of a prepared batch, without a step.

        Raises: PlanError where an update is more than its gradients, and in float16, whose gradients carry the loss
            scale of this policy; NotFinite as `update`.
        """
        if self.beyond_gradients:
            raise PlanError(f"{self.beyond_gradients}, which gradients do not hold: learn with TrainOneStep")
        if self.policy.mixed.scaler is not None:
            raise PlanError("float16 gradients cannot be applied elsewhere: take precision='bfloat16'")
        rows = self.tensors(batch)
        try:
            scalars = self._backward(rows)
            self._check_gradients()
        except NotFinite as error:
            raise blamed(error, rows) from None
        parameters = self.policy.model.named_parameters()
        values = {name: p.grad.clone() for name, p in parameters if p.grad is not None}
        scalars.pop("priority", None)
        reported = {name: float(value) for name, value in scalars.items()}
        return Gradients(values, self.steps(batch), reported, version=self.policy.version)

    def apply(self, gradients: Gradients) -> None:
        """Take one optimizer step with these gradients."""
        self._clear_gradients()
        for name, parameter in self.policy.model.named_parameters():
            # A copy: clipping works in place, and the gradients belong to the caller, on whichever device.
            given = gradients.values.get(name)
            parameter.grad = None if given is None else given.to(parameter.device, copy=True)
        self._step()

    def _backward(self, rows: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        policy = self.policy
        rows = self.over_minibatch(rows)
        if all_reduce is not None:
            rows = all_reduce.share(rows, self.recurrent)
        self._clear_gradients()
        loss, scalars = self._differentiate(rows)
        check_loss(policy.model, loss)
        if all_reduce is None:
            return scalars
        self._check_gradients()  # here it is known whose rows are to blame
        return self._agreed(scalars, self.steps(rows), all_reduce)

    def _differentiate(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Set the parameters' gradients, which are empty, to those of the loss; return it and its scalars, detached."""
        policy = self.policy
        if self.compiled is not None:
            return self.compiled(rows)
        with policy.learning(), policy.mixed.forward():
            loss, scalars = self.loss(rows)
        scaler = policy.mixed.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), {name: value.detach() for name, value in scalars.items()}

    def _clear_gradients(self) -> None:
        """Leave nothing of another loss in this step or its norm (D16): a saved state has no gradients."""
        policy = self.policy
        for parameters in (policy.parameters, *(group["params"] for group in policy.optimizer.param_groups)):
            for parameter in parameters:
                parameter.grad = None

    def _agreed(self, scalars: dict[str, torch.Tensor], rows: int, all_reduce: AllReduce) -> dict[str, torch.Tensor]:
        """Give every learner the gradients and scalars of all learners' rows."""
        parameters = self.policy.parameters
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        means = {name: value for name, value in scalars.items() if name != "priority"}
        values = [*gradients, *means.values()]
        mean = all_reduce.mean(torch.cat([value.flatten().float() for value in values]), rows)
        parts = torch.split(mean, [value.numel() for value in values])
        for parameter, part in zip(parameters, parts):
            if parameter.grad is not None or part.any():  # a parameter that no learner's loss reads keeps no gradient
                parameter.grad = part.view_as(parameter).to(parameter.dtype)
        return {**scalars, **{name: part[0] for name, part in zip(means, parts[len(parameters) :])}}

    def _step(self) -> None:
        policy, scaler = self.policy, self.policy.mixed.scaler
        if scaler is not None:
            scaler.unscale_(policy.optimizer)
        if policy.settings.grad_clip_value is not None:
            self._check_gradients()  # clipping would hide what is infinite
            nn.utils.clip_grad_value_(policy.parameters, policy.settings.grad_clip_value)
        self._check_gradients(policy.settings.grad_clip)
        if scaler is not None:
            scaler.step(policy.optimizer)
            scaler.update()
            if scaler.get_scale() < LEAST_SCALE:
                raise NotFinite(f"the gradients overflow float16 at a loss scale of {scaler.get_scale():g} still")
        elif isinstance(policy.optimizer, Adam):
            policy.optimizer.advance()
        else:
            policy.optimizer.step()
        policy.version += 1
        check_step(policy.model, policy.optimizer)
        self.stepped()

    def _check_gradients(self, limit: float | None = None) -> None:
        """Clip the gradients to `limit`. Raises: NotFinite; in float16 the scaler skips such a step instead."""
        if not clip_norm(self.policy.parameters, limit) and self.policy.mixed.scaler is None:
            raise culprit(self.policy.model)


def _checked(rate: float, group: str, env_steps: int) -> float:
    """A learning rate that a schedule gave. Raises: ConfigError for one that cannot be."""
    if not math.isfinite(rate):
        of = f" of the group {group!r}" if group else ""
        raise ConfigError(f"the learning rate{of} is {rate} at env step {env_steps}: a schedule gives finite numbers")
    return rate

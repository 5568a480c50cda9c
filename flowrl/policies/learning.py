"""Learning: what every algorithm's learn mode does around its own loss; and gradients on their way."""

from __future__ import annotations

import abc
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

import attrs
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.columns import PLACE
from flowrl.data.steps import real_steps
from flowrl.errors import PlanError
from flowrl.policies.adam import Adam
from flowrl.policies.clipping import clip_norm

if TYPE_CHECKING:
    from flowrl.policies.policy import Policy

log = logging.getLogger("flowrl")


class AllReduce(Protocol):
    """What several learners that hold the same policy agree by; every one of them must ask in the same order."""

    #: Every learner is given the same batch, and takes its share of each minibatch; else each has a batch of its own.
    one_batch: bool

    def mean(self, values: torch.Tensor, rows: int) -> torch.Tensor:
        """The mean `[n]` of everybody's `values [n]`, each weighted by its rows (F13); the same bits for all."""
        ...

    def least_and_most(self, number: int) -> tuple[int, int]:
        """Of everybody's numbers."""
        ...

    def share(self, rows: Batch) -> Batch:
        """The rows of a minibatch of one batch that this learner computes."""
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

    #: Words and columns without which `prepare` and `loss` cannot work, for `plan.check()`: see `flowrl.engine.schema`.
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

    def learn_from(self, batch: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        """`update` on all of a batch as it was collected."""
        return self.update(self.tensors(self.prepare(batch)), all_reduce)

    def update(self, rows: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        """One optimiser step on rows of `tensors`; what `loss` reports, as tensors without a gradient.

        With `all_reduce`, the step and the scalars are those of all learners' rows; a `priority` is of these alone.
        """
        scalars = self._backward(rows, all_reduce)
        self._step()
        return scalars

    def gradients(self, batch: Batch) -> Gradients:
        """The gradients of a prepared batch, without a step.

        Raises: PlanError in float16, whose gradients are scaled for the step of this policy alone.
        """
        if self.policy.mixed.scaler is not None:
            raise PlanError("gradients that are applied elsewhere cannot be of float16: take precision='bfloat16'")
        scalars = self._backward(self.tensors(batch))
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

    def _backward(self, rows: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        policy = self.policy
        rows = self.over_minibatch(rows)
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
        if policy.settings.grad_clip_value is not None:
            nn.utils.clip_grad_value_(policy.parameters, policy.settings.grad_clip_value)
        if policy.settings.grad_clip is not None:
            clip_norm(policy.parameters, policy.settings.grad_clip, finite=scaler is None)
        if scaler is not None:
            scaler.step(policy.optimizer)
            scaler.update()
        elif isinstance(policy.optimizer, Adam):
            policy.optimizer.advance()
        else:
            policy.optimizer.step()
        policy.version += 1

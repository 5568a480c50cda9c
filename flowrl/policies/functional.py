"""A policy from a model and a loss function, without writing a class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs
import gymnasium
import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.steps import real_rows
from flowrl.envs.spaces import first_members
from flowrl.errors import ConfigError, PlanError
from flowrl.networks.in_numpy import log_softmax, to_numpy
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.networks import actions_of
from flowrl.networks.sampling import Array, argmax_sample, eps_greedy_sample, multinomial_sample
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy
from flowrl.settings import POLICY_SETTINGS

Space: TypeAlias = gymnasium.Space[Any]
#: (space of observations, space of actions) -> the network.
ModelFactory: TypeAlias = Callable[[Space, Space], nn.Module]
#: (model, batch) -> the loss, a mean over the rows; optionally with scalars to report by name.
Loss: TypeAlias = Callable[[Any, Batch], torch.Tensor | tuple[torch.Tensor, Mapping[str, Any]]]

#: Wrappers that choose one of A discrete actions by A scores.
DISCRETE = (argmax_sample, eps_greedy_sample, multinomial_sample)


def adam(learning_rate: float = 1e-3) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """A function that builds Adam over parameters."""
    return lambda parameters: torch.optim.Adam(parameters, lr=learning_rate)


def policy_from(
    model: ModelFactory,
    loss: Loss,
    *,
    prepare: Callable[[Batch], Batch] | None = None,
    collect: Any = multinomial_sample(),  # noqa: B008  frozen
    eval: Any = argmax_sample(),  # noqa: B008  frozen
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = adam(),  # noqa: B008  frozen
    grad_clip: float | None = None,
    name: str = "FunctionalPolicy",
) -> type[Policy]:
    """A `Policy` class, for `Trainer(policy=...)`, for a Trainer's `policy`, or for `WorkerSet(policy=...)`.

    Args:
        model: Called with both spaces. The network maps float32 observations `[B, ...]` to scores `[B, A]` (logits,
            action values: the input of the wrappers), or to `(scores, value)` with values `[B]`. It is in
            train mode in the loss and in eval mode when acting.
        loss: Called with the model and rows `[B, ...]`, tensors on the model's device, floats and observations in
            float32. Returns a scalar, or a scalar and a dict of scalars to report, with `priority [B]` among
            them if rows are drawn by priority, see `Learning.loss`.
        prepare: Adds columns that the loss needs and experience lacks: called with a batch of numpy columns as
            collected (`[T, N, ...]` from rollouts, `[B, ...]` from replay), before it is cut into rows.
        collect, eval: Model wrappers, see `flowrl.networks.sampling`: called with the scores as an array, the noise
            and the env steps, and with `mask=` `[N, A]` if observations have an action mask; they return actions
            `[N, ...]`, or a dict of columns that includes `action`.
        optimizer: Called with the parameters.
        grad_clip: Largest norm of the gradient; None for no limit.
        name: Name of the class.

    `multinomial_sample` adds the column `logp`; a value adds the columns `value` and `next_value`.

    Raises:
        PlanError: the model or the loss is not a function; or, when the policy is built, the function returns no
            module, or its scores do not give actions of the action space.
    """
    if not name.isidentifier():
        raise PlanError(f"policy_from: name={name!r} is not a valid class name")
    if isinstance(model, nn.Module) or not callable(model):
        raise PlanError(
            f"policy_from: the model is the {type(model).__name__} {model!r}, expected a function "
            "(observation_space, action_space) -> torch.nn.Module, so that each policy has its own network"
        )
    if not callable(loss):
        raise PlanError(f"policy_from: the loss is {loss!r}, expected a function (model, batch) -> tensor")
    parts = {
        "make_model": staticmethod(model),
        "loss": staticmethod(loss),
        "prepare": staticmethod(prepare or _as_it_is),
        "collect": collect,
        "eval": eval,
        "make_optimizer": staticmethod(optimizer),
        "clip": grad_clip,
    }
    return type(name, (_Functional,), parts)


def _as_it_is(batch: Batch) -> Batch:
    return batch


class _Functional(Policy):
    """Base of the classes of `policy_from`; the arguments are attributes of the class."""

    make_model: ModelFactory
    loss: Loss
    prepare: Callable[[Batch], Batch]
    collect: Any
    eval: Any
    collect_mode: FunctionalActing
    eval_mode: FunctionalActing
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    clip: float | None

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        **settings: Any,
    ) -> None:
        if settings.get("network") is not None:
            raise ConfigError(f"network={settings['network']!r}: {type(self).__name__} has its own network")
        super().__init__(observation_space, action_space, grad_clip=self.clip, **settings)

    @classmethod
    def arguments(cls) -> list[str]:
        """See `Policy.arguments`; the functions determine how it learns."""
        return [*POLICY_SETTINGS, "normalize_obs", "normalize_rewards"]

    def _build(self) -> None:
        model = self.make_model(self.observation_space, self.action_space)
        if not isinstance(model, nn.Module):
            raise PlanError(f"{type(self).__name__}: the model is a {type(model).__name__}, expected a torch.nn.Module")
        self.model = model.to(self.device).eval()
        self.collect_mode = FunctionalActing(self, self.collect)
        self.eval_mode = FunctionalActing(self, self.eval)
        self.learn_mode = FunctionalLearning(self)
        # Before the optimizer: lazy layers get their sizes from it.
        self._try_out()
        self.optimizer = self.make_optimizer(self.model.parameters())

    def _try_out(self) -> None:
        """Act once on an observation of zeros, to reject a model that does not fit before any work."""
        name, space = type(self).__name__, self.action_space
        empty: Any = first_members(self.observation_space, 1)
        zeros: Any = Batch(empty) if isinstance(empty, Mapping) else empty
        try:
            with torch.no_grad():  # not inference mode: lazy layers would get weights that cannot learn
                output = self.model(_floats(self.tensor(zeros)))
            modes = (self.collect_mode, self.eval_mode)
            acted = [(mode.sample, mode.act(zeros, np.full((1, mode.draws), 0.5), 0)) for mode in modes]
        except Exception as error:
            error.add_note(f"while {name} acted on an observation of zeros of {self.observation_space}")
            raise
        scores = output[0] if isinstance(output, tuple) else output
        for sample, columns in acted:
            if isinstance(sample, DISCRETE) and scores.shape[1:] != (actions_of(space, name),):
                raise PlanError(
                    f"{name}: the model gives {list(scores.shape[1:])} scores, expected one for each of {space}"
                )
            for column, shape in (("action", (1, *(space.shape or ()))), ("value", (1,))):
                if column in columns and columns[column].shape != shape:
                    raise PlanError(
                        f"{name}: the {column} for one observation has the shape {list(columns[column].shape)}, "
                        f"expected {list(shape)}; the observations are {self.observation_space}, the actions {space}"
                    )


@attrs.frozen
class FunctionalActing:
    """Acts by a wrapper on the scores of a model; for the columns see `policy_from`."""

    policy: Policy
    sample: Any

    @property
    def draws(self) -> int:
        return int(self.sample.draws)

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        scores, value = self._forward(obs)
        mask = action_mask(obs)
        if mask is not None and isinstance(self.sample, DISCRETE):
            scores = masked(to_numpy(scores), mask)
        scores = log_softmax(scores) if isinstance(self.sample, multinomial_sample) else to_numpy(scores)
        made = self.sample(scores, noise, env_steps, **({} if mask is None else {"mask": mask}))
        columns = dict(made) if isinstance(made, Mapping) else {"action": made}
        if isinstance(self.sample, multinomial_sample):
            columns["logp"] = np.take_along_axis(scores, columns["action"][..., None], -1)[..., 0]
        if value is not None:
            columns["value"] = to_numpy(value)
        return columns

    def in_torch(self, model: Any, obs: Any) -> torch.Tensor:
        """The actions of the highest scores, for `Policy.export`.

        Raises: ConfigError unless the wrapper is `argmax_sample`; others work on arrays.
        """
        if not isinstance(self.sample, argmax_sample):
            raise ConfigError(f"only argmax_sample() can be exported, but this policy acts by {self.sample!r}")
        output = model(_floats(obs))
        best: torch.Tensor = (output[0] if isinstance(output, tuple) else output).argmax(1)
        return best

    def value(self, obs: Any) -> Array:
        """The model's values `[B]`."""
        _, value = self._forward(obs)
        assert value is not None, "called only if acting returns values"
        return to_numpy(value)

    def _forward(self, obs: Any) -> tuple[Any, Any]:
        with torch.inference_mode():
            output = self.policy.acting()(_floats(self.policy.observed(obs)))
        return output if isinstance(output, tuple) else (output, None)


class FunctionalLearning(Learning):
    """Learns with the functions of `policy_from`."""

    policy: _Functional
    reports_priority = True  # if the loss function does

    def prepare(self, batch: Batch) -> Batch:
        """The output of the function `prepare` as rows, without padded steps (`mask` 0, N6)."""
        prepared = self.policy.prepare(batch)
        if not isinstance(prepared, Batch):
            raise PlanError(f"prepare returned a {type(prepared).__name__}, expected a Batch")
        return self.real_rows(prepared) if "obs" in prepared else real_rows(prepared)

    def tensors(self, batch: Batch) -> Batch:
        """All columns as tensors on the policy's device; floats and observations in float32."""
        rows = batch.to_torch(self.policy.device).map(_single)
        return rows.replace(**{name: _floats(rows[name]) for name in ("obs", "next_obs") if name in rows})

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        policy = self.policy
        policy.model.train()
        try:
            with policy.stream.swapped_in():  # dropout and the like draw from the policy's stream
                made = policy.loss(policy.model, rows)
        finally:
            policy.model.eval()
        loss, scalars = made if isinstance(made, tuple) else (made, {})
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            what = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise PlanError(f"the loss is {what}, expected a scalar tensor: the mean over the rows")
        reported = {"loss": loss, **scalars}
        return loss, {name: torch.as_tensor(value).detach() for name, value in reported.items()}


def _single(column: torch.Tensor) -> torch.Tensor:
    """Convert doubles to float32, the precision of models."""
    return column.float() if column.dtype == torch.float64 else column


def _floats(obs: Any) -> Any:
    """Observations for the model: float32, a nested batch if observations are dictionaries."""
    if isinstance(obs, Batch):
        return obs.map(_floats)
    return obs.float() if isinstance(obs, torch.Tensor) else obs.astype(np.float32, copy=False)

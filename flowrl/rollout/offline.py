"""OfflineWorkers: a policy that learns from a dataset, without acting; environments only serve evaluation."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np
from gymnasium.spaces import Box

from flowrl.engine.context import Context
from flowrl.engine.schema import Schema
from flowrl.envs import Environments
from flowrl.envs.dataset_spaces import Source, spaces_of
from flowrl.errors import ConfigError, DatasetError, PlanError
from flowrl.rollout.worker_set import PolicyFactory, WorkerSet


def no_environment() -> NoReturn:
    """The factory in place of a missing environment: raises."""
    raise ConfigError(
        "there is no environment, since the dataset does not say which it was recorded in: give one, with --env "
        "(or env=...)"
    )


class OfflineWorkers(WorkerSet):
    """The workers of a plan without an environment: the policy that learns, and environments to evaluate it.

    The policy has the spaces of the dataset. Only if the dataset does not record them, an environment is created to
    look them up, and closed again.

    Args:
        data: The dataset, or a run's description of it.
        env: Environment of evaluations; None: no evaluation.
        policy: Called with the observation and the action space.
        settings: Settings of the evaluation environments, see `WorkerSet`.

    Raises:
        DatasetError: the dataset does not record its spaces, and there is no `env`.
        ConfigError: the policy does not support the spaces; at evaluation, the environment has other spaces, or there
            is none.
    """

    clock: ClassVar[str] = "updates"

    def __init__(self, data: Source, env: Any, policy: PolicyFactory, **settings: Any) -> None:
        self.data = data
        spaces = spaces_of(data)
        if spaces is None and env is None:
            raise DatasetError(
                f"{data.path} does not know the spaces of its observations and actions, as what `flowrl record` "
                "writes does: give the environment that it is of, with --env (or env=...), or record it again"
            )
        super().__init__(no_environment if env is None else env, policy, spaces=spaces, **settings)

    def __repr__(self) -> str:
        return f"{self.policy!r}, which learns from {self.data!r}"

    @cached_property
    def _checked(self) -> Environments:
        self._check_evaluation()
        ours, theirs = self._spaces[1], self._evaluation_env.spaces(self.envs_per_worker)[1]
        if isinstance(ours, Box) and isinstance(theirs, Box) and not _same_bounds(ours, theirs):
            raise ConfigError(
                f"eval_env: the action space of {self._evaluation_env} is {theirs}, that of {self._learned_in} is "
                f"{ours}: give the environment with the wrappers that it was recorded in"
            )
        return self._evaluation_env

    @property
    def evaluation_env(self) -> Environments:
        """The evaluation environments; the first access creates one to compare its spaces with the dataset's.

        Raises: ConfigError if they differ, or there is no environment.
        """
        if self._evaluation_env.spec is no_environment:
            no_environment()
        return self._checked

    @property
    def _learned_in(self) -> object:
        return self.data.path

    def about(self) -> dict[str, Any]:
        """The description of the dataset that a run stores, so that its policy can be used without the dataset."""
        return {"dataset": {"path": str(self.data.path), **self.origin()}}

    def origin(self) -> dict[str, Any]:
        """See `WorkerSet`."""
        found = super().origin()
        return {**found, "env": None} if self.environments.spec is no_environment else found

    def start(self, context: Context) -> None:
        """Does nothing."""
        self._earlier, self._context = self.env_steps, context

    def schema(self) -> Schema:
        """The schema of rollouts, which there are none of. Raises: PlanError."""
        raise PlanError(
            f"nobody acts here: these workers have a policy that learns from {self.data.path}, and no environment"
        )


def _same_bounds(one: Box, other: Box) -> bool:
    return bool(np.allclose(one.low, other.low) and np.allclose(one.high, other.high))

"""OfflineWorkers: a policy that learns from a dataset, without acting; environments only serve evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np
from gymnasium.spaces import Box

from flowrl.envs import Environments
from flowrl.envs.dataset_spaces import Source, spaces_of
from flowrl.errors import ConfigError, DatasetError
from flowrl.rollout.workers import PolicyFactory, Workers


def no_environment() -> NoReturn:
    """The factory in place of a missing environment: raises."""
    raise ConfigError(
        "there is no environment, since the dataset does not say which it was recorded in: give one, with --env "
        "(or env=...)"
    )


class OfflineWorkers(Workers):
    """The workers of a plan without an environment: the policy that learns, and environments to evaluate it.

    The policy has the spaces of the dataset. Only if the dataset does not record them, an environment is created to
    look them up, and closed again.

    Args:
        data: The dataset, or a run's description of it.
        env: Environment of evaluations; None: no evaluation.
        policy: Called with the observation and the action space.
        num_envs: Evaluation environments stepped together.
        env_args, wrappers, env_manager, env_manager_args: See `WorkerSet`.
        agents: See `flowrl.envs.make.EnvFactory`.
        eval_env, eval_env_args, eval_wrappers, eval_env_manager: See `WorkerSet`.

    Raises:
        DatasetError: the dataset does not record its spaces, and there is no `env`.
        ConfigError: the policy does not support the spaces; at evaluation, the environment has other spaces, or there
            is none.
    """

    clock: ClassVar[str] = "updates"

    def __init__(
        self,
        data: Source,
        env: Any,
        policy: PolicyFactory,
        num_envs: int = 8,
        *,
        env_args: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] = (),
        env_manager: str = "local",
        env_manager_args: Mapping[str, Any] | None = None,
        eval_env: Any = None,
        eval_env_args: Mapping[str, Any] | None = None,
        eval_wrappers: Sequence[Any] | None = None,
        eval_env_manager: str | None = None,
        agents: bool = False,
    ) -> None:
        self.data = data
        spaces = spaces_of(data)
        if spaces is None and env is None:
            raise DatasetError(
                f"{data.path} does not know the spaces of its observations and actions, as what `flowrl record` "
                "writes does: give the environment that it is of, with --env (or env=...), or record it again"
            )
        place = no_environment if env is None else env
        environments = Environments(
            *(place, dict(env_args or {}), tuple(wrappers), env_manager, dict(env_manager_args or {})), agents=agents
        )
        evaluation = environments.for_evaluation(eval_env, eval_env_args, eval_wrappers, eval_env_manager)
        super().__init__(policy, spaces or environments.spaces(num_envs), environments, evaluation, num_envs)

    def __repr__(self) -> str:
        return f"{self.policy!r}, which learns from {self.data!r}"

    @cached_property
    def _checked(self) -> Environments:
        self.check_evaluation(self.data.path)
        ours, theirs = self._spaces[1], self._evaluation_env.spaces(self.num_eval_envs)[1]
        if isinstance(ours, Box) and isinstance(theirs, Box) and not _same_bounds(ours, theirs):
            raise ConfigError(
                f"eval_env: the action space of {self._evaluation_env} is {theirs}, that of {self.data.path} is "
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

    def about(self) -> dict[str, Any]:
        """The description of the dataset that a run stores, so that its policy can be used without the dataset."""
        return {"dataset": {"path": str(self.data.path), **self.origin()}}

    def origin(self) -> dict[str, Any]:
        """See `Workers`."""
        found = super().origin()
        return {**found, "env": None} if self.environments.spec is no_environment else found

    def state_dict(self) -> dict[str, Any]:
        """Empty: the policy is a resource of its own."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Ignore the state, which older versions filled."""


def _same_bounds(one: Box, other: Box) -> bool:
    return bool(np.allclose(one.low, other.low) and np.allclose(one.high, other.high))

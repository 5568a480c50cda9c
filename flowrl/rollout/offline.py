"""OfflineWorkers: a policy that learns from a dataset. Nobody acts; environments are made to evaluate, if at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np
from gymnasium.spaces import Box

from flowrl.envs import Environments
from flowrl.envs.dataset_spaces import Source, spaces_of
from flowrl.errors import ConfigError, DatasetError
from flowrl.rollout.base_workers import BaseWorkers, PolicyFactory


def no_environment() -> NoReturn:
    """In the place of an environment where there is none."""
    raise ConfigError(
        "there is no environment, since the dataset does not say which it was recorded in: give one, with --env "
        "(or env=...)"
    )


class OfflineWorkers(BaseWorkers):
    """What a plan without an environment has for workers: the policy that learns, and where it may be evaluated.

    The spaces of the policy are those of the dataset. Only where it does not know them is an environment asked, which
    is then made and closed again.

    Args:
        data: What is learned from, or what a run remembers of it.
        env: Where the policy is evaluated; None: nowhere.
        policy: Called with the observation and the action space.
        num_envs: Environments that evaluate it, stepped together.
        env_args, wrappers, env_manager, env_manager_args: See `WorkerSet`.
        eval_env, eval_env_args, eval_wrappers, eval_env_manager: See `WorkerSet`.

    Raises:
        DatasetError: the dataset does not know its spaces, and there is no `env` to ask.
        ConfigError: spaces that the policy cannot serve; when somebody evaluates, an environment of other spaces, or
            none.
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
            place, dict(env_args or {}), tuple(wrappers), env_manager, dict(env_manager_args or {})
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
        """Those that evaluate; the first who asks has one made, to see whether its spaces are the dataset's.

        Raises: ConfigError where they are not, or where there is none.
        """
        if self._evaluation_env.spec is no_environment:
            no_environment()
        return self._checked

    def about(self) -> dict[str, Any]:
        """What a run is to remember of its dataset, so that what it learned can be used without."""
        return {"dataset": {"path": str(self.data.path), **self.origin()}}

    def origin(self) -> dict[str, Any]:
        """See `BaseWorkers`."""
        found = super().origin()
        return {**found, "env": None} if self.environments.spec is no_environment else found

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the policy is a resource of its own."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing, nor what was written when these were workers without members."""


def _same_bounds(one: Box, other: Box) -> bool:
    return bool(np.allclose(one.low, other.low) and np.allclose(one.high, other.high))

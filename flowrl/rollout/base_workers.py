"""BaseWorkers: a policy that learns, and where it is evaluated; whether anybody acts with it is said by subclasses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import gymnasium

from flowrl.envs import Environments
from flowrl.envs.dataset_spaces import origin
from flowrl.envs.spaces import are_alike
from flowrl.errors import ConfigError
from flowrl.policies import Policy
from flowrl.rollout.broadcast import Broadcast

Space = gymnasium.Space[Any]
PolicyFactory = Callable[[Space, Space], Policy]


class BaseWorkers:
    """What operators that learn or evaluate ask of workers, and what a `Trainer` does.

    Args:
        policy: Called with the spaces; what it returns learns, as `policy`.
        spaces: Of observations and actions.
        environments: Those that the policy is made for.
        evaluation: Those that evaluate it.
        num_eval_envs: How many of them are stepped together.
        worker_policy: Makes the policies of other processes, if not `policy`, which may take a device they lack.
        address: Of a Ray cluster; see `flowrl.actors.actors.Actors`.

    Attributes:
        clock: The counter of a run that results, evaluations and schedules follow.
        environments, num_eval_envs, address: As given.
    """

    clock: ClassVar[str] = "env_steps"

    def __init__(
        self,
        policy: PolicyFactory,
        spaces: tuple[Space, Space],
        environments: Environments,
        evaluation: Environments,
        num_eval_envs: int,
        *,
        worker_policy: PolicyFactory | None = None,
        address: str | None = None,
    ) -> None:
        self.environments, self.num_eval_envs, self.address = environments, num_eval_envs, address
        self._spaces, self._evaluation_env = spaces, evaluation
        self._policy_factory, self._worker_policy = policy, worker_policy or policy
        self._policy = self.new_policy()
        self._broadcast = Broadcast(self._policy)

    @property
    def policy(self) -> Policy:
        """What learns, with the newest weights: also those that somebody published who learns elsewhere."""
        self._broadcast.take()
        return self._policy

    @property
    def version(self) -> int:
        """Of the weights that a request asked now would act with."""
        return self._broadcast.version

    def publish(self, version: int, weights: Any, *, everywhere: bool = False) -> None:
        """Say that these weights, a state as of `policy.weights()` or a `Remote` one, are the newest.

        They ride with the next requests, unless the workers have them `everywhere`. `policy` takes them when it is
        asked for.
        """
        self._broadcast.publish(version, weights, everywhere)

    def new_policy(self) -> Policy:
        """A policy like the one the workers share, as it is before any learning."""
        return self._policy_factory(*self._spaces)

    def policy_maker(self, *, gpus: bool) -> Callable[[], Policy]:
        """What makes such a policy in another process: on the device of this one's, or without its `gpus`."""
        return partial(self._policy_factory if gpus else self._worker_policy, *self._spaces)

    @property
    def resources(self) -> list[Any]:
        """What a checkpoint holds besides: the policy."""
        return [self.policy]

    @property
    def evaluation_env(self) -> Environments:
        """Those that evaluate (S3)."""
        return self._evaluation_env

    def origin(self) -> dict[str, Any]:
        """What a dataset of their experience says of where it was recorded: see `flowrl.envs.dataset_spaces.origin`."""
        return origin(self.environments, *self._spaces)

    def about(self) -> dict[str, Any]:
        """What the run.json of a run is to say of them."""
        return {}

    def check_evaluation(self, learned_in: object) -> None:
        """Raise ConfigError where the spaces of those that evaluate are others than those that it has learned in."""
        found = self._evaluation_env.spaces(self.num_eval_envs)
        for role, ours, theirs in zip(("observation", "action"), self._spaces, found):
            if not are_alike(ours, theirs):
                raise ConfigError(
                    f"eval_env: the {role} space of {self._evaluation_env} is {theirs}, that of {learned_in} is "
                    f"{ours}: the policy cannot act in both"
                )

    def close(self) -> None:
        """Close the environments that were made here; an object that was given belongs to whoever made it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

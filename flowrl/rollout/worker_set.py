"""WorkerSet: which policy acts in which environments, and where. Nothing acts before a run starts it (F1)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium

from flowrl.context import Context
from flowrl.envs import Environments
from flowrl.envs.spaces import are_alike
from flowrl.errors import CheckpointError, ConfigError, PlanError
from flowrl.policies import Policy
from flowrl.rollout.worker import RolloutWorker
from flowrl.schema import Schema
from flowrl.workers import InlineWorker

log = logging.getLogger("flowrl")

PolicyFactory = Callable[[gymnasium.Space[Any], gymnasium.Space[Any]], Policy]


class WorkerSet:
    """A policy and the workers that act with it.

    Args:
        env: A gymnasium id, "module:factory", a callable, or an environment that was made already, a VectorEnv say.
        policy: Called with the observation and the action space; what it returns is shared by acting and
            learning, as `policy`.
        num_workers: 0 samples in this process.
        envs_per_worker: Environments of each worker.
        env_args: Keyword arguments for the environment.
        wrappers: Around each, the first one innermost: see `flowrl.envs.wrapping`.
        env_manager, env_manager_args: Who steps them, and its keyword arguments: see `flowrl.envs.make_manager`.
        episode_seeds: Of the episodes in turn, instead of fresh ones.
        eval_env, eval_env_args, eval_wrappers, eval_env_manager: Of the environments that evaluate, if they are
            others; another environment has arguments of its own, another manager has none.
        seed: Of the environments and the action noise; follows from the run's seed if not given.

    Raises:
        ConfigError: an unknown environment, or spaces that the policy cannot serve.

    State: that of the worker (environments mid-episode, noise); the policy is a resource of its own.
    """

    _started: ClassVar[weakref.WeakSet[WorkerSet]] = weakref.WeakSet()

    def __init__(
        self,
        env: Any,
        policy: PolicyFactory,
        *,
        num_workers: int = 0,
        envs_per_worker: int = 8,
        env_args: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] = (),
        env_manager: str = "local",
        env_manager_args: Mapping[str, Any] | None = None,
        episode_seeds: Sequence[int] | None = None,
        eval_env: Any = None,
        eval_env_args: Mapping[str, Any] | None = None,
        eval_wrappers: Sequence[Any] | None = None,
        eval_env_manager: str | None = None,
        seed: int | None = None,
    ) -> None:
        if num_workers != 0:
            raise ConfigError(f"num_workers={num_workers}: only 0 so far, which samples in this process")
        if envs_per_worker < 1:
            raise ConfigError(f"envs_per_worker={envs_per_worker}: a worker needs at least one environment")
        self.num_workers, self.envs_per_worker, self.seed = num_workers, envs_per_worker, seed
        #: Those that collect, and those that evaluate (S3).
        self.environments = Environments(
            env, dict(env_args or {}), tuple(wrappers), env_manager, dict(env_manager_args or {}), episode_seeds
        )
        self._policy_factory = policy
        self._spaces = self.environments.spaces(envs_per_worker)
        others = eval_env, eval_env_args, eval_wrappers, eval_env_manager
        self.evaluation_env = self.environments.for_evaluation(*others)
        if any(given is not None for given in others):
            self._check_evaluation()
        self.policy = self.new_policy()
        self.members: list[InlineWorker] = []
        #: What the last load could not continue, by counter.
        self.lost: dict[str, int] = {}

    def __repr__(self) -> str:
        where = f"{self.num_workers} workers" if self.num_workers else "this process"
        how = ", acts in numpy" if getattr(self.policy, "act_backend", "torch") == "numpy" else ""
        return f"{where}: {self.envs_per_worker} x {self.env}{how}"

    @property
    def env(self) -> Any:
        """The environment as it was given."""
        return self.environments.spec

    @property
    def env_args(self) -> dict[str, Any]:
        """Its keyword arguments."""
        return dict(self.environments.env_args)

    def _check_evaluation(self) -> None:
        found = self.evaluation_env.spaces(self.envs_per_worker)
        for role, ours, theirs in zip(("observation", "action"), self._spaces, found):
            if not are_alike(ours, theirs):
                raise ConfigError(
                    f"eval_env: the {role} space of {self.evaluation_env} is {theirs}, that of {self.environments} is "
                    f"{ours}: the policy cannot act in both"
                )

    def new_policy(self) -> Policy:
        """A policy like the one the workers share, as it is before any learning."""
        return self._policy_factory(*self._spaces)

    @property
    def resources(self) -> list[Any]:
        """What a checkpoint holds besides: the policy."""
        return [self.policy]

    def schema(self) -> Schema:
        """What its workers collect, from the spaces and what the policy answers to an observation of zeros."""
        from flowrl.rollout.worker import collected

        return collected(self.policy, self._spaces[0])

    @property
    def local(self) -> RolloutWorker:
        """The worker of this process; there once a run has started the set."""
        worker: RolloutWorker = self.members[0].target
        return worker

    @property
    def is_one_object(self) -> bool:
        """The environment was given as an object, of which no second one can be made."""
        return self.environments.is_one_object

    def start(self, context: Context) -> None:
        """Begin the first episodes, unless an earlier run did: then the environments go on where they were.

        Raises:
            PlanError: another worker set acts in the same environment object, and is not closed.
        """
        if not self.members:
            if any(self._shares_environment(other) for other in list(WorkerSet._started)):
                raise PlanError(
                    f"{self.env} is in use by another worker set, and each would reset the other's episodes: "
                    "close() that one first, or give each an environment of its own"
                )
            seed = context.seed("workers") if self.seed is None else self.seed
            manager = self.environments.manager(self.envs_per_worker)
            if not manager.raw_returns:
                log.warning(
                    "%s: wrappers may change rewards before flowrl adds them up to returns; those that it is given as "
                    "`wrappers` (--wrapper) do not",
                    self.env,
                )
            self.members = [InlineWorker(RolloutWorker(manager, self.policy, seed=seed))]
            WorkerSet._started.add(self)

    def _shares_environment(self, other: WorkerSet) -> bool:
        if not (other.members and self.is_one_object and other.is_one_object):
            return False
        return bool(other.env.unwrapped is self.env.unwrapped)

    def close(self) -> None:
        """Close the environments that were made here; an object that was given belongs to whoever made it."""
        for worker in self.members if not self.is_one_object else ():
            worker.target.close()
        self.members = []

    def __enter__(self) -> WorkerSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        return {"workers": [worker.target.state_dict() for worker in self.members]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        cut = 0
        if len(state["workers"]) != len(self.members):
            raise CheckpointError(
                f"the state is that of {len(state['workers'])} workers, {self!r} has {len(self.members)}"
                + ("" if self.members else ": it is started by a run")
            )
        for worker, saved in zip(self.members, state["workers"]):
            worker.target.load_state_dict(saved)
            cut += worker.target.manager.cut_episodes - saved["manager"]["cut_episodes"]
        self.lost = {"cut_episodes": cut} if cut else {}
        if cut:
            log.warning("%d running episodes of %s could not be saved: they are cut, new ones begin", cut, self.env)

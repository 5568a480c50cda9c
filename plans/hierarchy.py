"""Hierarchy: a manager chooses options or subgoals, a worker acts on them; each learns by PPO at its own pace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from flowrl.engine.plan import Plan
from flowrl.engine.seeds import SeedTree
from flowrl.errors import ConfigError
from flowrl.operators import Unroll
from flowrl.operators.options import EarlyStoppingSettings, Recurrent
from flowrl.plans import ippo, ppo
from flowrl.policies import Policy, PPOPolicy
from flowrl.policies.hierarchical import MANAGER, WORKER, HierarchicalPolicy
from flowrl.rollout import WorkerSet
from flowrl.rollout.workers import Workers
from flowrl.runs.config import build_config
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import POLICY_SETTINGS, at_least_one, not_negative, positive, setting, span
from flowrl.trainer.trainer import ActingConfig, Trainer

PARTS = (MANAGER, WORKER)
#: Decisions are fewer than steps; and a worker need not look far beyond its goal.
DEFAULTS: dict[str, dict[str, Any]] = {
    MANAGER: {"train_batch_size": 256, "minibatch_size": 64},
    WORKER: {"gamma": 0.9, "learning_rate": 3e-3, "minibatch_size": 128},
}


@attrs.define(kw_only=True)
class PartSettings(PPOPolicy.Settings, Recurrent, EarlyStoppingSettings, ActingConfig):
    """PPO's settings of one part."""

    gamma: float = 0.99
    train_batch_size: int = 1_024
    num_sgd_iter: int = 10
    entropy_coef: NumberOrSchedule = 0.01
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0

    def __attrs_post_init__(self) -> None:
        if self.recurrent and self.act_backend == "numpy":
            raise ConfigError('act_backend=\'numpy\' has no memory: set "act_backend": "torch" beside "recurrent"')


@attrs.define(kw_only=True)
class Config(ActingConfig):
    """Subgoals are places in a corridor, which the worker is to walk to."""

    env: str = "flowrl.envs.corridor:key_corridor"
    agents: dict[str, str] | str = attrs.Factory(lambda: dict(zip(PARTS, PARTS)))
    options: int = not_negative(0, "number of options that the manager chooses from; 0: subgoals")
    subgoal: tuple[int, ...] = setting((0,), "entries of the observation that subgoals are values of")
    reach: float | None = positive(None, "largest change that a subgoal asks for; None: values within the bounds")
    tolerance: float = positive(0.05, "distance at which a subgoal is reached")
    interval: int = at_least_one(20, "env steps after which the manager decides again, or when the subgoal is reached")
    intrinsic: str | None = setting(
        None, "the worker's own reward: distance, success or module:function; None: distance, none for options"
    )
    extrinsic: float | None = setting(
        None, "weight of the environment's reward in the worker's; None: 1 for options, else 0"
    )
    manager: dict[str, Any] = setting(attrs.Factory(dict), "settings of the manager's PPO")
    worker: dict[str, Any] = setting(attrs.Factory(dict), "settings of the worker's PPO")
    schedule_steps: int | None = span("env steps over which settings with an _end change")

    def __attrs_post_init__(self) -> None:
        if self.agents != dict(zip(PARTS, PARTS)):
            raise ConfigError(f"agents={self.agents}: a hierarchy has a policy of its own for each part: leave it out")
        for name in PARTS:
            self.of(name)

    def of(self, name: str) -> Any:
        """The settings of one part: those of the run, and those in its table. Raises: ConfigError."""
        of_run = {field.name for field in attrs.fields(ActingConfig)} - set(POLICY_SETTINGS)
        if refused := sorted(of_run & self[name].keys()):
            raise ConfigError(f"{name}: {refused[0]!r} is of the whole run: set it beside, not in {name!r}")
        run: dict[str, Any] = {field.name: self[field.name] for field in attrs.fields(ActingConfig)}
        own = {"seed": SeedTree(self.seed).integer(f"policy/{name}"), "schedule_steps": self.schedule_steps}
        try:
            return build_config(PartSettings, {**run, **own, **DEFAULTS[name]}, self[name])
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    @property
    def choices(self) -> dict[str, Any]:
        """What the manager may choose, and when: the arguments of `Levels`."""
        return {name: self[name] for name in ("options", "subgoal", "reach", "tolerance", "interval")}

    def as_one(self, parts: Mapping[str, Policy]) -> HierarchicalPolicy:
        """The policy that both parts make."""
        return HierarchicalPolicy.of(parts, self.choices)

    @property
    def in_parts(self) -> Config:
        """These settings, with the wrapper that makes two agents of the environment's one."""
        rewards = {"intrinsic": self.intrinsic, "extrinsic": self.extrinsic}
        discounts = {"gamma": self.of(MANAGER).gamma, "worker_gamma": self.of(WORKER).gamma}
        arguments = ", ".join(f"{name}={value!r}" for name, value in {**self.choices, **rewards, **discounts}.items())
        wrapper = f"Hierarchy({arguments})"
        evaluated = None if self.eval_wrappers is None else [*self.eval_wrappers, wrapper]
        return attrs.evolve(self, wrappers=[*self.wrappers, wrapper], eval_wrappers=evaluated)

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`: parts with a memory learn from sequences."""
        for name in PARTS:
            if (of := self.of(name)).recurrent:
                plan = plan.insert_after(f"{name}.GAE", Unroll(of.sequence_length, last="pad", across=False))
        return plan


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """That of independent PPO. A row of the manager spans k env steps, which GAE discounts by gamma**k."""
    return ippo.plan_of(workers, config, {name: config.of(name) for name in PARTS})


class Hierarchical(Trainer):
    """`Hierarchical(env="CartPole-v1", options=4).train(until={"env_steps": 20_000})`."""

    Config = Config
    execution_plan = staticmethod(execution_plan)

    @classmethod
    def policies(cls, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Trainer.policies`."""
        return {name: (ppo.policy, config.of(name)) for name in PARTS}

    @classmethod
    def make_workers(cls, config: Any, env: Any = None, policy: Any = None) -> Workers:
        """See `Trainer.make_workers`; both parts together act in the environment itself."""
        workers: Any = super().make_workers(config.in_parts, env, policy)
        workers.as_one = config.as_one
        return cast("Workers", workers)

    @classmethod
    def workers_of_run(cls, config: Any, env: Any, about: Any, spaces: Any) -> Workers:
        """See `Trainer.workers_of_run`."""
        workers: Any = super().workers_of_run(config if spaces is None else config.in_parts, env, about, spaces)
        workers.as_one = config.as_one
        return cast("Workers", workers)

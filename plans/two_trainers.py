"""Two trainers: PPO and DQN learn from one stream, each from the experience of its own agents of a game."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.engine.seeds import SeedTree
from flowrl.errors import ConfigError
from flowrl.operators import (
    GAE,
    ConcatBatches,
    Concurrently,
    NStep,
    OfPolicy,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.operators.options import NStepReplay
from flowrl.plans import ippo
from flowrl.policies import DQNPolicy
from flowrl.policies.dqn import EpsilonSettings
from flowrl.rollout import WorkerSet
from flowrl.runs.config import build_config
from flowrl.settings import POLICY_SETTINGS, setting, span
from flowrl.trainer.trainer import ActingConfig, Trainer


@attrs.define(kw_only=True)
class DQNSettings(DQNPolicy.Settings, EpsilonSettings, NStepReplay, ActingConfig):
    """DQN's own settings."""

    hidden: tuple[int, ...] = (128, 128)


@attrs.define(kw_only=True)
class Config(ActingConfig):
    """Two agents that have nothing to do with each other."""

    env: str = "flowrl:two_cartpoles"
    agents: dict[str, str] | str = attrs.Factory(lambda: {"left": "ppo", "right": "dqn"})
    fragment_steps: int = 4
    ppo: dict[str, Any] = setting(attrs.Factory(dict), "settings of PPO, as the plan ippo has them")
    dqn: dict[str, Any] = setting(attrs.Factory(dict), "settings of DQN, as the plan dqn has them")
    schedule_steps: int | None = span("env steps over which settings with an _end change")

    def __attrs_post_init__(self) -> None:
        known = self.policies or POLICIES if isinstance(self.agents, str) else self.policy_names
        if set(known) != set(POLICIES):
            raise ConfigError(f"agents={self.agents!r}: expected agents of 'ppo' and of 'dqn', and of no other policy")
        for name in POLICIES:
            self.of(name)

    def of(self, name: str) -> Any:
        """The settings of one of the two: those of the run, and those in its table. Raises: ConfigError."""
        of_run = {field.name for field in attrs.fields(ActingConfig)} - set(POLICY_SETTINGS)
        if refused := sorted(of_run & self[name].keys()):
            raise ConfigError(f"{name}: {refused[0]!r} is of the whole run: set it beside, not in {name!r}")
        kind, over = POLICIES[name]
        run: dict[str, Any] = {field.name: self[field.name] for field in attrs.fields(ActingConfig)}
        own = {"seed": SeedTree(self.seed).integer(f"policy/{name}"), **over(self.schedule_steps)}
        try:
            return build_config(kind, {**run, **own}, self[name])
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`: those of both, such as priorities."""
        for name in POLICIES:
            plan = self.of(name).edited(plan, workers.of(name))
        return plan


def _of_dqn(steps: int | None) -> dict[str, Any]:
    """DQN's learning rate falls to 0, as PPO's does: late in a run both shall be good at the same time."""
    return {"priority_beta_steps": steps, "learning_rate": f"linear(1e-3, 0, {steps})"}


#: The settings of each policy, and those that depend on how long schedules last: None is as long as the run.
POLICIES: dict[str, tuple[type, Callable[[int | None], dict[str, Any]]]] = {
    "ppo": (ippo.PPOSettings, lambda steps: {"schedule_steps": steps}),
    "dqn": (DQNSettings, _of_dqn),
}


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Sampling happens once; the branch `ppo` learns from it at once, and `dqn` through a replay buffer."""
    ppo, dqn = config.of("ppo"), config.of("dqn")
    buffer = dqn.replay_buffer(agents=workers.num_agents("dqn"))

    # (1) Act with the newest weights of both; each learner gets the whole stream.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    for_ppo, for_dqn = rollouts.duplicate(2)

    # (2) PPO: estimate advantages, and learn in several epochs.
    samples = for_ppo.combine(OfPolicy("ppo")).for_each(GAE(ppo.gamma, ppo.lam))
    epochs: dict[str, Any] = {"num_sgd_iter": ppo.num_sgd_iter, "minibatch_size": ppo.minibatch_size}
    on_policy = samples.combine(ConcatBatches(ppo.train_batch_size)).for_each(
        TrainOneStep(workers.of("ppo"), **epochs, target_kl=ppo.target_kl)
    )

    # (3) DQN: store n-step transitions, and learn from the buffer; the target network follows.
    transitions = for_dqn.combine(OfPolicy("dqn")).for_each(NStep(dqn.n_step, dqn.gamma))
    store = transitions.for_each(StoreToReplay(buffer))
    replay = Replay(buffer, dqn.batch_size).for_each(TrainOneStep(workers.of("dqn")))
    replay = replay.for_each(UpdateTargetNetwork(workers.of("dqn"), every=dqn.target_every, tau=dqn.tau))

    # (4) In turn, DQN as far as its ratio allows; a result every `report_every` env steps.
    train_op = Concurrently({"ppo": on_policy, "store": store, "dqn": replay}, round_robin_weights=[1, 1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class TwoTrainers(Trainer):
    """`TwoTrainers(dqn={"replay_ratio": 32.0}).train(until={"env_steps": 20_000})`."""

    Config = Config
    execution_plan = staticmethod(execution_plan)

    @classmethod
    def policies(cls, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Trainer.policies`."""
        return {"ppo": (ippo.policy, config.of("ppo")), "dqn": (DQNPolicy.configured, config.of("dqn"))}

"""A3C: gradients computed where experience is collected, applied one by one as they arrive."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import ApplyGradients, AsyncGradients, StandardMetricsReporting
from flowrl.operators.options import InFlightSettings
from flowrl.policies import A2CPolicy
from flowrl.policies.actor_critic import ActorCriticPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = A2CPolicy.configured  # A3C has the loss of A2C


@attrs.define(kw_only=True)
class Config(ActorCriticPolicy.Settings, InFlightSettings, ActingConfig):
    """Defaults that solve CartPole-v1 within 500 000 env steps."""

    fragment_steps: int = 16
    in_flight: int = 1
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: workers compute gradients, this process applies them, report."""
    # (1) Every worker acts, and computes the gradient of its own fragment.
    gradients = AsyncGradients(workers, config.in_flight, steps=config.fragment_steps)

    # (2) One step per gradient; its worker goes on with the new weights, the others keep theirs.
    train_op = gradients.for_each(ApplyGradients(workers, update_all=False))

    # (3) A result every `report_every` env steps.
    return StandardMetricsReporting(train_op, workers, config)


class A3C(Trainer):
    """`A3C(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

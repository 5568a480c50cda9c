"""PPO: clipped policy gradients, several epochs over each batch of fresh experience; recurrent on request."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import GAE, ConcatBatches, ParallelRollouts, StandardMetricsReporting, TrainOneStep
from flowrl.operators.options import EarlyStoppingSettings, KLPenalty, NormalizedRollouts, Recurrent, ScaledRewards
from flowrl.policies import PPOPolicy, RecurrentPPOPolicy
from flowrl.policies.ppo import LearnBackend
from flowrl.rollout import WorkerSet
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import ActingConfig, Trainer


@attrs.define(kw_only=True)
class Config(
    PPOPolicy.Settings, Recurrent, ScaledRewards, KLPenalty, NormalizedRollouts, EarlyStoppingSettings, ActingConfig
):
    """Defaults that solve CartPole-v1 within 100 000 env steps."""

    fragment_steps: int = 32
    gamma: float = 0.98
    lam: float = 0.8
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0
    clip_end: float | None = 0.0
    act_backend: str = "auto"
    learn_backend: LearnBackend = "auto"


def policy(config: Config, observation_space: Any, action_space: Any) -> PPOPolicy:
    """The policy that acts and learns."""
    kind = RecurrentPPOPolicy if config.recurrent else PPOPolicy
    return kind.configured(config, observation_space, action_space)


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: act, estimate advantages, learn, report. Plans with other rewards insert them before `GAE`."""
    # (1) Act with the newest weights; estimate advantages per environment and fragment.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    samples = rollouts.for_each(GAE(config.gamma, config.lam))

    # (2) Several epochs over each batch.
    epochs: dict[str, Any] = {"num_sgd_iter": config.num_sgd_iter, "minibatch_size": config.minibatch_size}
    batches = samples.combine(ConcatBatches(config.train_batch_size))
    train_op = batches.for_each(TrainOneStep(workers, **epochs, target_kl=config.target_kl))

    # (3) A result every `report_every` env steps.
    return StandardMetricsReporting(train_op, workers, config)


class PPO(Trainer):
    """`PPO(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

"""PQN: Q-learning from fresh experience of many environments, without a replay buffer or a target network."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import GAE, ConcatBatches, ParallelRollouts, StandardMetricsReporting, TrainOneStep
from flowrl.operators.options import EpochSettings, NormalizedRollouts, ScaledRewards
from flowrl.policies import PQNPolicy
from flowrl.policies.dqn import EpsilonSettings
from flowrl.policies.pqn import LambdaSettings
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = PQNPolicy.configured


@attrs.define(kw_only=True)
class Config(
    PQNPolicy.Settings, LambdaSettings, EpsilonSettings, ScaledRewards, NormalizedRollouts, EpochSettings, ActingConfig
):
    """Defaults that solve CartPole-v1 within 100 000 env steps."""

    fragment_steps: int = 32
    num_sgd_iter: int = 4
    minibatch_size: int = 64


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch, as of PPO: act, compute returns, learn, report."""
    # (1) Act with the newest weights; returns Q(λ) per environment and fragment: the targets of `GAE`.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    samples = rollouts.for_each(GAE(config.gamma, config.lam))

    # (2) A few epochs over each batch, which is then thrown away.
    batches = samples.combine(ConcatBatches(config.train_batch_size))
    train_op = batches.for_each(
        TrainOneStep(workers, num_sgd_iter=config.num_sgd_iter, minibatch_size=config.minibatch_size)
    )

    # (3) A result every `report_every` env steps.
    return StandardMetricsReporting(train_op, workers, config)


class PQN(Trainer):
    """`PQN(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

"""ICM with PPO: what cannot be predicted of what one's own actions do is rewarded too."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import CombineRewards, EstimateReward, TrainReward
from flowrl.plans import ppo
from flowrl.rewards import ICM
from flowrl.rollout import WorkerSet
from flowrl.trainer.config import fraction, not_negative, positive, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(ppo.Config):
    """PPO's, and those of the rewards."""

    extrinsic_weight: float = not_negative(1.0)  #: of the environment's reward
    intrinsic_weight: float = not_negative(10.0)  #: of the reward for what was not predicted
    forward_share: float = fraction(0.2)  #: β, of the forward model in the loss; the inverse model has the rest
    reward_hidden: tuple[int, ...] = sizes(64, 64)  #: hidden layers of ICM's networks
    reward_features: int = positive(32)  #: numbers that an observation becomes
    reward_learning_rate: float = positive(1e-4)  #: of the models' Adam
    reward_sgd_iter: int = positive(1)  #: their epochs over a fragment
    reward_minibatch_size: int | None = positive(None)  #: rows of their optimiser steps; None: the whole fragment


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """PPO's plan with three operators before its advantages."""
    icm = ICM(
        workers.policy.observation_space,
        workers.policy.action_space,
        features=config.reward_features,
        beta=config.forward_share,
        gamma=config.gamma,
        hidden=config.reward_hidden,
        learning_rate=config.reward_learning_rate,
        for_env=workers.policy.for_env,
        seed=config.seed,
        device=config.device,
    )

    # (1) Act, as in PPO.
    rollouts = ppo.experience(workers, config)

    # (2) What was not predicted is rewarded; then it is learned, and expected.
    rewarded = (
        rollouts.for_each(EstimateReward(icm))
        .for_each(TrainReward(icm, config.reward_sgd_iter, config.reward_minibatch_size))
        .for_each(CombineRewards(config.extrinsic_weight, intrinsic_reward=config.intrinsic_weight))
    )

    # (3) Advantages of both rewards together; learn and report, as in PPO.
    return ppo.learn(rewarded, workers, config)


class ICMPPO(Trainer):
    """`ICMPPO(env="MountainCar-v0").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(ppo.policy)
    execution_plan = staticmethod(execution_plan)

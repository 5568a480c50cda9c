"""RND with PPO: what is new is rewarded too, so that sparse rewards are found."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import CombineRewards, EstimateReward, TrainReward
from flowrl.plans import ppo
from flowrl.rewards import RND
from flowrl.rollout import WorkerSet
from flowrl.trainer.config import not_negative, positive, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(ppo.Config):
    """PPO's, and those of the rewards."""

    extrinsic_weight: float = not_negative(1.0)  #: of the environment's reward
    intrinsic_weight: float = not_negative(10.0)  #: of the reward for what is new
    reward_hidden: tuple[int, ...] = sizes(64, 64)  #: hidden layers of RND's networks
    reward_features: int = positive(64)  #: numbers that are to be predicted
    reward_learning_rate: float = positive(1e-4)  #: of the predictor's Adam
    reward_sgd_iter: int = positive(1)  #: its epochs over a fragment
    reward_minibatch_size: int | None = positive(None)  #: rows of its optimiser steps; None: the whole fragment


def reward_model(workers: WorkerSet, config: Any) -> RND:
    """What is new to it."""
    return RND(
        workers.policy.observation_space,
        workers.policy.action_space,
        features=config.reward_features,
        gamma=config.gamma,
        hidden=config.reward_hidden,
        learning_rate=config.reward_learning_rate,
        seed=config.seed,
        device=config.device,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """PPO's plan with three operators before its advantages."""
    rnd = reward_model(workers, config)

    # (1) Act, as in PPO.
    rollouts = ppo.experience(workers, config)

    # (2) What is new is rewarded; then it is learned, and is new no more.
    rewarded = (
        rollouts.for_each(EstimateReward(rnd))
        .for_each(TrainReward(rnd, config.reward_sgd_iter, config.reward_minibatch_size))
        .for_each(CombineRewards(config.extrinsic_weight, intrinsic_reward=config.intrinsic_weight))
    )

    # (3) Advantages of both rewards together; learn and report, as in PPO.
    return ppo.learn(rewarded, workers, config)


class RNDPPO(Trainer):
    """`RNDPPO(env="MountainCar-v0").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(ppo.policy)
    execution_plan = staticmethod(execution_plan)

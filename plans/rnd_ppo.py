"""RND with PPO: adds a reward for novelty, so that the agent finds sparse rewards."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.models import RND
from flowrl.operators import CombineRewards, EstimateReward, TrainReward
from flowrl.operators.options import IntrinsicRewardSettings
from flowrl.plans import ppo
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import Trainer

policy = ppo.policy


@attrs.define(kw_only=True)
class Config(IntrinsicRewardSettings, ppo.Config):
    """The settings of PPO and of the rewards."""

    intrinsic_weight: float = 10.0


def reward_model(workers: WorkerSet, config: Any) -> RND:
    """The model that measures novelty."""
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
    """PPO's plan, with three operators before its advantages, which then count both rewards."""
    rnd, plan = reward_model(workers, config), ppo.execution_plan(workers, config)

    # Reward novelty first, then learn these steps, which makes them less novel.
    plan = plan.insert_before("GAE", EstimateReward(rnd))
    plan = plan.insert_before("GAE", TrainReward(rnd, config.reward_sgd_iter, config.reward_minibatch_size))
    combine = CombineRewards(config.extrinsic_weight, intrinsic_reward=config.intrinsic_weight)
    return plan.insert_before("GAE", combine)


class RNDPPO(Trainer):
    """`RNDPPO(env="MountainCar-v0").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

"""ICM with PPO: adds a reward where the agent cannot predict the effect of its own actions."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.models import ICM
from flowrl.operators import CombineRewards, EstimateReward, TrainReward
from flowrl.operators.options import IntrinsicRewardSettings
from flowrl.plans import ppo
from flowrl.rollout import WorkerSet
from flowrl.settings import fraction
from flowrl.trainer.trainer import Trainer

policy = ppo.policy


@attrs.define(kw_only=True)
class Config(IntrinsicRewardSettings, ppo.Config):
    """The settings of PPO and of the rewards."""

    intrinsic_weight: float = 10.0
    reward_features: int = 32
    forward_share: float = fraction(0.2, "β, the forward model's share of the loss; the inverse model has the rest")


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """PPO's plan, with three operators before its advantages, which then count both rewards."""
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
    plan = ppo.execution_plan(workers, config)

    # Reward prediction errors first, then learn to predict these steps.
    plan = plan.insert_before("GAE", EstimateReward(icm))
    plan = plan.insert_before("GAE", TrainReward(icm, config.reward_sgd_iter, config.reward_minibatch_size))
    combine = CombineRewards(config.extrinsic_weight, intrinsic_reward=config.intrinsic_weight)
    return plan.insert_before("GAE", combine)


class ICMPPO(Trainer):
    """`ICMPPO(env="MountainCar-v0").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

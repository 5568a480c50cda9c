"""RND with DQN: adds a reward for novelty, which the model estimates when rows are drawn from replay."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError
from flowrl.operators import CombineRewards, EstimateReward, TrainReward
from flowrl.operators.options import IntrinsicRewardSettings
from flowrl.plans import dqn
from flowrl.plans.rnd_ppo import reward_model
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import Trainer

policy = dqn.policy


@attrs.define(kw_only=True)
class Config(IntrinsicRewardSettings, dqn.Config):
    """The settings of DQN and of the rewards."""

    n_step: int = 1  # novelty belongs to single steps, so no other value works


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """DQN's plan with an operator before its buffer, and two behind it."""
    if config.n_step != 1:
        raise ConfigError(
            f"n_step={config.n_step}: RND rewards single steps when they are drawn from the buffer: take n_step=1"
        )
    rnd, plan = reward_model(workers, config), dqn.execution_plan(workers, config)

    # (1) Act and store, as in DQN; the model learns each fragment, which makes it less novel.
    teach = TrainReward(rnd, config.reward_sgd_iter, config.reward_minibatch_size)
    plan = plan.insert_before("NStep", teach)

    # (2) The newest model rewards the novelty of the rows drawn; learn and report, as in DQN.
    plan = plan.insert_before("TrainOneStep", EstimateReward(rnd))
    combine = CombineRewards(config.extrinsic_weight, intrinsic_reward=config.intrinsic_weight)
    return plan.insert_before("TrainOneStep", combine)


class RNDDQN(Trainer):
    """`RNDDQN(env="MountainCar-v0").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

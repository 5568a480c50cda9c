"""GAIL with PPO: rewards from a discriminator that tells the agent's steps from demonstrated ones."""

from __future__ import annotations

from typing import Literal

import attrs

from flowrl.engine.plan import Plan
from flowrl.models import GAIL
from flowrl.operators import CombineRewards, Demonstrations, EstimateReward, PolicyActions, TrainReward
from flowrl.operators.options import ImitationRewardSettings
from flowrl.plans import ppo
from flowrl.rollout import WorkerSet
from flowrl.settings import not_negative, setting
from flowrl.trainer.trainer import Trainer

policy = ppo.policy


@attrs.define(kw_only=True)
class Config(ImitationRewardSettings, ppo.Config):
    """The settings of PPO, of demonstrations and of rewards."""

    reward_form: Literal["positive", "negative", "both"] = setting("positive", "-log(1 - D), log D, or their sum")
    gradient_penalty: float = not_negative(0.1, "weight of the gradient penalty on the discriminator")
    reward_learning_rate: float = 1e-3


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """PPO's plan; a second path, of demonstrations, joins it before the advantages."""
    gail = GAIL(
        workers.policy.observation_space,
        workers.policy.action_space,
        form=config.reward_form,
        gradient_penalty=config.gradient_penalty,
        hidden=config.reward_hidden,
        learning_rate=config.reward_learning_rate,
        for_env=workers.policy.for_env,
        seed=config.seed,
        device=config.device,
    )

    # (1) Act, as in PPO; pair each fragment with demonstrations.
    shown = Demonstrations(config.demonstrations, workers.policy, config.demonstration_batch_size, epochs=None)
    plan = ppo.execution_plan(workers, config)
    plan = plan.rewire(
        "GAE", lambda rollouts: rollouts.zip(shown.for_each(PolicyActions(workers)), names=("agent", "shown"))
    )

    # (2) The discriminator learns from both; the agent's fragment goes on, with its reward. The rest is PPO.
    plan = plan.insert_before("GAE", TrainReward(gail, config.reward_sgd_iter, config.reward_minibatch_size))
    plan = plan.insert_before("GAE", EstimateReward(gail))
    combine = CombineRewards(config.extrinsic_weight, imitation_reward=config.imitation_weight)
    return plan.insert_before("GAE", combine)


class GAILPPO(Trainer):
    """`GAILPPO(demonstrations="FOLDER").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

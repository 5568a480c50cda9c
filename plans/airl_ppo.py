"""AIRL with PPO: rewards that explain demonstrations, from a discriminator that uses the policy's probabilities."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError
from flowrl.models import AIRL
from flowrl.operators import CombineRewards, Demonstrations, EstimateLogp, EstimateReward, PolicyActions, TrainReward
from flowrl.operators.options import ImitationRewardSettings
from flowrl.plans import ppo
from flowrl.rollout import WorkerSet
from flowrl.settings import setting
from flowrl.trainer.trainer import Trainer

#: The columns read from demonstrations.
NEEDS = ("obs", "action", "next_obs", "terminated")

policy = ppo.policy


@attrs.define(kw_only=True)
class Config(ImitationRewardSettings, ppo.Config):
    """The settings of PPO, of demonstrations and of rewards."""

    state_only: bool = setting(True, "the learned reward depends on the state alone")
    absorbing: bool = setting(True, "terminated episodes go on in an absorbing state with a learned reward")


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """PPO's plan; a second path, of demonstrations, joins it before the advantages."""
    if config.recurrent:
        raise ConfigError(
            f"recurrent={config.recurrent!r}: AIRL needs the probabilities of demonstrated actions, which a "
            "recurrent policy cannot tell from single rows; leave it out, or take gail_ppo, which does not need them"
        )
    airl = AIRL(
        workers.policy.observation_space,
        workers.policy.action_space,
        gamma=config.gamma,
        state_only=config.state_only,
        absorbing=config.absorbing,
        hidden=config.reward_hidden,
        learning_rate=config.reward_learning_rate,
        for_env=workers.policy.for_env,
        seed=config.seed,
        device=config.device,
    )

    # (1) Act, as in PPO; pair each fragment with demonstrations and their log-probability under the policy.
    size = config.demonstration_batch_size
    shown = Demonstrations(config.demonstrations, workers.policy, size, epochs=None, needs=NEEDS)
    judged = shown.for_each(PolicyActions(workers)).for_each(EstimateLogp(workers))
    plan = ppo.execution_plan(workers, config)
    plan = plan.rewire("GAE", lambda rollouts: rollouts.zip(judged, names=("agent", "shown")))

    # (2) The discriminator learns from both; the agent's fragment goes on, with its reward. The rest is PPO.
    plan = plan.insert_before("GAE", TrainReward(airl, config.reward_sgd_iter, config.reward_minibatch_size))
    plan = plan.insert_before("GAE", EstimateReward(airl))
    combine = CombineRewards(config.extrinsic_weight, imitation_reward=config.imitation_weight)
    return plan.insert_before("GAE", combine)


class AIRLPPO(Trainer):
    """`AIRLPPO(demonstrations="FOLDER").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

"""AIRL with PPO: rewards that explain demonstrations, by a discriminator that knows how probable actions are."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError
from flowrl.operators import CombineRewards, Demonstrations, EstimateLogp, EstimateReward, PolicyActions, TrainReward
from flowrl.plans import ppo
from flowrl.rewards import AIRL
from flowrl.rollout import WorkerSet
from flowrl.trainer.config import not_negative, positive, sizes
from flowrl.trainer.trainer import Trainer

#: What is read of demonstrations.
NEEDS = ("obs", "action", "next_obs", "terminated")


@attrs.define(kw_only=True)
class Config(ppo.Config):
    """PPO's, and those of demonstrations and rewards."""

    demonstrations: str | None = None  #: the folder of a dataset, or "minari:ID"; there is no learning without
    demonstration_batch_size: int = positive(256)  #: rows of them beside each fragment
    extrinsic_weight: float = not_negative(0.0)  #: of the environment's reward
    imitation_weight: float = not_negative(1.0)  #: of the discriminator's
    state_only: bool = True  #: whether the reward that explains depends on the state alone
    absorbing: bool = True  #: whether what comes after the end of an episode has a reward too
    reward_hidden: tuple[int, ...] = sizes(64, 64)  #: hidden layers of the discriminator's networks
    reward_learning_rate: float = positive(1e-4)  #: of its Adam
    reward_sgd_iter: int = positive(1)  #: its epochs over a fragment and the demonstrations beside it
    reward_minibatch_size: int | None = positive(None)  #: rows of its optimiser steps, of each; None: all


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """PPO's plan; before its advantages a second path, of demonstrations, comes in."""
    if config.recurrent:
        raise ConfigError(
            f"recurrent={config.recurrent!r}: AIRL asks how probable demonstrated actions are, and a policy with a "
            "memory cannot say that of single rows; leave it out, or take gail_ppo, which does not ask"
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

    # (1) Act, as in PPO; beside that goes what was demonstrated, and how probable it is now.
    rollouts = ppo.experience(workers, config)
    size = config.demonstration_batch_size
    shown = Demonstrations(config.demonstrations, workers.policy, size, epochs=None, needs=NEEDS)
    judged = shown.for_each(PolicyActions(workers)).for_each(EstimateLogp(workers))

    # (2) The discriminator learns from both; what the agent did goes on, with its reward.
    rewarded = (
        rollouts.zip(judged, names=("agent", "shown"))
        .for_each(TrainReward(airl, config.reward_sgd_iter, config.reward_minibatch_size))
        .for_each(EstimateReward(airl))
        .for_each(CombineRewards(config.extrinsic_weight, imitation_reward=config.imitation_weight))
    )

    # (3) Advantages, learn and report, as in PPO.
    return ppo.learn(rewarded, workers, config)


class AIRLPPO(Trainer):
    """`AIRLPPO(demonstrations="FOLDER").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(ppo.policy)
    execution_plan = staticmethod(execution_plan)

"""GAIL with PPO: rewards by a discriminator that tells the agent's steps from demonstrated ones."""

from __future__ import annotations

from typing import Literal

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import CombineRewards, Demonstrations, EstimateReward, PolicyActions, TrainReward
from flowrl.plans import ppo
from flowrl.rewards import GAIL
from flowrl.rollout import WorkerSet
from flowrl.trainer.config import not_negative, positive, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(ppo.Config):
    """PPO's, and those of demonstrations and rewards."""

    demonstrations: str | None = None  #: the folder of a dataset, or "minari:ID"; there is no learning without
    demonstration_batch_size: int = positive(256)  #: rows of them beside each fragment
    extrinsic_weight: float = not_negative(0.0)  #: of the environment's reward
    imitation_weight: float = not_negative(1.0)  #: of the discriminator's
    reward_form: Literal["positive", "negative", "both"] = "positive"  #: -log(1 - D), log D, or both
    gradient_penalty: float = not_negative(0.1)  #: weight of what keeps the discriminator flat
    reward_hidden: tuple[int, ...] = sizes(64, 64)  #: hidden layers of the discriminator
    reward_learning_rate: float = positive(1e-3)  #: of its Adam
    reward_sgd_iter: int = positive(1)  #: its epochs over a fragment and the demonstrations beside it
    reward_minibatch_size: int | None = positive(None)  #: rows of its optimiser steps, of each; None: all


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """PPO's plan; before its advantages a second path, of demonstrations, comes in."""
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

    # (1) Act, as in PPO; beside that goes what was demonstrated.
    rollouts = ppo.experience(workers, config)
    shown = Demonstrations(config.demonstrations, workers.policy, config.demonstration_batch_size, epochs=None)
    shown = shown.for_each(PolicyActions(workers))

    # (2) The discriminator learns from both; what the agent did goes on, with its reward.
    rewarded = (
        rollouts.zip(shown, names=("agent", "shown"))
        .for_each(TrainReward(gail, config.reward_sgd_iter, config.reward_minibatch_size))
        .for_each(EstimateReward(gail))
        .for_each(CombineRewards(config.extrinsic_weight, imitation_reward=config.imitation_weight))
    )

    # (3) Advantages, learn and report, as in PPO.
    return ppo.learn(rewarded, workers, config)


class GAILPPO(Trainer):
    """`GAILPPO(demonstrations="FOLDER").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(ppo.policy)
    execution_plan = staticmethod(execution_plan)

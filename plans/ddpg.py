"""DDPG: a deterministic actor climbs the values of one critic; both have targets that follow slowly."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.plans import dqn
from flowrl.policies import DDPGPolicy
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import Configuration, fraction, not_negative, positive, scheduled, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(Configuration):
    """Defaults for one environment: an update for each of its steps."""

    env: str = "Pendulum-v1"
    envs_per_worker: int = positive(1)

    # The networks
    hidden: tuple[int, ...] = sizes(256, 256)  #: sizes of the hidden layers of the actor and of each critic

    # Learning
    gamma: float = fraction(0.99)  #: discount per step
    n_step: int = positive(1)  #: steps of a return before it bootstraps
    learning_rate: Setting = scheduled(1e-3)  #: of Adam
    critic_learning_rate: Setting | None = scheduled(None)  #: of the critics; None: the same
    grad_clip: float | None = positive(None)  #: largest norm of the gradient
    batch_size: int = positive(256)  #: rows of an update
    target_every: int = positive(1)  #: updates between moves of the target networks
    tau: float = fraction(0.005)  #: how far they move then

    # Experience; noise is in the scale of actions from -1 to 1
    fragment_steps: int = positive(1)  #: steps of each environment between two looks at the learner
    random_steps: int = not_negative(1_000)  #: env steps of uniform actions at first
    exploration_noise: Setting = scheduled(0.1)  #: deviation of the normal noise on actions after that
    buffer_size: int = positive(1_000_000)  #: rows kept
    learning_starts: int = positive(1_000)  #: rows stored before the first update
    replay_ratio: float = positive(256.0)  #: rows trained on per row collected
    prioritized: bool = False  #: draw rows the more often, the larger their TD error was
    priority_alpha: float = fraction(0.6)  #: how much more often: 0 uniformly, 1 in proportion
    priority_beta: Setting = scheduled(0.4, most=1)  #: how much of that the loss's weights make up for, at first
    priority_beta_end: float = fraction(1.0)  #: and at the end of its schedule
    priority_beta_steps: int = positive(50_000)  #: env steps of the schedule
    normalize_obs: bool = False  #: observations to mean 0 and deviation 1, by running statistics
    normalize_rewards: bool = False  #: rewards divided by the running deviation of the discounted return
    report_every: int = positive(1_000)  #: env steps between results


def policy_settings(config: Config) -> dict[str, Any]:
    """The settings of the policy, of which TD3 has some more."""
    return {
        "hidden": config.hidden,
        "gamma": config.gamma,
        "random_steps": config.random_steps,
        "exploration_noise": schedule(config.exploration_noise),
        "learning_rate": schedule(config.learning_rate),
        "critic_learning_rate": schedule(config.critic_learning_rate),
        "grad_clip": config.grad_clip,
        "normalize_obs": config.normalize_obs,
        "normalize_rewards": config.normalize_rewards,
        **config.for_policy,
    }


def policy(config: Config, observation_space: Any, action_space: Any) -> DDPGPolicy:
    """The policy that acts and learns."""
    return DDPGPolicy(observation_space, action_space, **policy_settings(config))


class DDPG(Trainer):
    """`DDPG(env="Pendulum-v1").train(until={"env_steps": 10_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)

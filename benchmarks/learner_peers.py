"""Learners of other libraries, behind the one call that benchmarks/learner.py times: a number of updates.

Each does what its own training does for an update, drawing included. One that is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

Update = Callable[[int], Any]
"""Makes so many updates."""

PORTION = 10_000
"""Rows that buffers are filled with at a time."""


class Task(NamedTuple):
    """What is learned, by everybody with the same settings."""

    env: str
    hidden: tuple[int, ...]
    batch_size: int
    rows: int = 50_000
    gamma: float = 0.99
    learning_rate: float = 1e-3
    grad_clip: float = 10.0
    target_every: int = 500
    """Updates between two copies to the target network."""

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Of observations and of actions."""
        env = gymnasium.make(self.env)
        return env.observation_space, env.action_space

    def experience(self) -> Iterator[dict[str, np.ndarray]]:
        """The rows that fill a buffer; random ones, as updates take as long whatever they learn."""
        generator, (observed, acted) = np.random.default_rng(0), self.spaces
        for _ in range(self.rows // PORTION):
            obs = generator.standard_normal((PORTION + 1, *observed.shape), np.float32)
            if isinstance(acted, gymnasium.spaces.Discrete):
                action = generator.integers(0, acted.n, PORTION)
            else:
                action = generator.uniform(acted.low, acted.high, (PORTION, *acted.shape)).astype(np.float32)
            yield {
                "obs": obs[:-1],
                "action": action,
                "reward": generator.standard_normal(PORTION),
                "next_obs": obs[1:],
                "terminated": generator.random(PORTION) < 0.01,
                "truncated": np.zeros(PORTION, np.bool_),
            }


def sb3_updates(model: Any, task: Task) -> Update:
    """`model.train`, on a full buffer."""
    from stable_baselines3.common.logger import Logger

    model.set_logger(Logger(None, []))
    for rows in task.experience():
        for row in zip(rows["obs"], rows["next_obs"], rows["action"], rows["reward"], rows["terminated"]):
            obs, next_obs, action, reward, terminated = map(np.asarray, row)
            model.replay_buffer.add(obs, next_obs, action, reward[None], terminated[None], [{}])
    return lambda count: model.train(count, task.batch_size)


def sb3_dqn(task: Task) -> Update:
    """Its target network is copied while it collects, which is left out here."""
    from stable_baselines3 import DQN

    model = DQN(
        "MlpPolicy",
        task.env,
        learning_rate=task.learning_rate,
        buffer_size=task.rows,
        gamma=task.gamma,
        max_grad_norm=task.grad_clip,
        policy_kwargs={"net_arch": list(task.hidden)},
        device="cpu",
        seed=0,
    )
    return sb3_updates(model, task)


def tianshou_updates(algorithm: Any, task: Task) -> Update:
    """`algorithm.update`, on a full buffer."""
    from tianshou.data import Batch, ReplayBuffer
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    buffer = ReplayBuffer(task.rows)
    for rows in task.experience():
        names = {"obs": "obs", "act": "action", "rew": "reward", "obs_next": "next_obs"}
        columns = {theirs: rows[ours] for theirs, ours in names.items()}
        for i in range(PORTION):
            row = {name: column[i] for name, column in columns.items()}
            buffer.add(Batch(**row, terminated=rows["terminated"][i], truncated=False, info={}))

    def update(count: int) -> None:
        with policy_within_training_step(algorithm.policy), torch_train_mode(algorithm):
            for _ in range(count):
                algorithm.update(buffer, task.batch_size)

    return update


def tianshou_dqn(task: Task) -> Update:
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net

    class Clipped(DQN):  # only an algorithm itself can ask for clipping
        def _create_policy_optimizer(self, optim: Any) -> Any:
            return self._create_optimizer(self.policy, optim, max_grad_norm=task.grad_clip)

    observed, acted = task.spaces
    net = Net(state_shape=observed.shape, action_shape=acted.n, hidden_sizes=task.hidden)
    algorithm: Any = Clipped(
        policy=DiscreteQLearningPolicy(model=net, action_space=acted, observation_space=observed),
        optim=AdamOptimizerFactory(lr=task.learning_rate),
        gamma=task.gamma,
        target_update_freq=task.target_every,
        is_double=False,
        huber_loss_delta=1.0,
    )
    return tianshou_updates(algorithm, task)


def sb3_sac(task: Task) -> Update:
    """It moves its target critics while it learns."""
    from stable_baselines3 import SAC

    model = SAC(
        "MlpPolicy",
        task.env,
        learning_rate=task.learning_rate,
        buffer_size=task.rows,
        batch_size=task.batch_size,
        gamma=task.gamma,
        policy_kwargs={"net_arch": list(task.hidden)},
        device="cpu",
        seed=0,
    )
    return sb3_updates(model, task)


def tianshou_sac(task: Task) -> Update:
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    observed, acted = task.spaces
    adam = AdamOptimizerFactory(lr=task.learning_rate)
    state: dict[str, Any] = {"state_shape": observed.shape, "hidden_sizes": task.hidden}
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(**state), action_shape=acted.shape, unbounded=True, conditioned_sigma=True
    )
    critics = [ContinuousCritic(preprocess_net=Net(**state, action_shape=acted.shape, concat=True)) for _ in range(2)]
    algorithm: Any = SAC(
        policy=SACPolicy(actor=actor, action_space=acted, observation_space=observed),
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        gamma=task.gamma,
        alpha=AutoAlpha(-float(np.prod(acted.shape)), 0.0, adam),
    )
    return tianshou_updates(algorithm, task)


def sb3_ppo(task: Task) -> Update:
    """Its epochs of 4 minibatches over one rollout of 8 environments, again and again."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import Logger

    model = PPO(
        "MlpPolicy",
        make_vec_env(task.env, 8, seed=0),
        n_steps=4 * task.batch_size // 8,
        batch_size=task.batch_size,
        n_epochs=1,
        learning_rate=task.learning_rate,
        max_grad_norm=task.grad_clip,
        policy_kwargs={"net_arch": list(task.hidden)},
        device="cpu",
        seed=0,
    )
    model.set_logger(Logger(None, []))
    model.learn(4 * task.batch_size)

    def update(count: int) -> None:
        for _ in range(count // 4):
            model.train()

    return update


PEERS: dict[str, dict[str, Callable[[Task], Update]]] = {
    "dqn": {"stable-baselines3": sb3_dqn, "tianshou": tianshou_dqn},
    "sac": {"stable-baselines3": sb3_sac, "tianshou": tianshou_sac},
    "ppo": {"stable-baselines3": sb3_ppo},
}
"""By task, and by their package's name."""

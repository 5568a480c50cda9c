"""What the plans are to learn, in how many steps, and what others have come to: the rows of learning.py's table."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np


class Task(NamedTuple):
    """`flowrl run PLAN --env ENV SETTINGS --stop-return GOAL --stop-steps BUDGET`."""

    plan: str
    goal: float
    budget: int  #: env steps
    env: str = "CartPole-v1"
    settings: str = ""  #: options, separated by spaces
    published: str = "-"  #: return of somebody else's plan of that name; of one tuned run of RL-Zoo unless said
    extra: str = ""  #: of setup.cfg, which the environment needs
    demonstrations: int = 0  #: episodes of a DQN trained to 475 in `env`, recorded once: `--set demonstrations=DIR`
    control: bool = False  #: nobody is expected to learn it: it shows what a setting of another task is for


def pendulum_in_other_units() -> gymnasium.Env[Any, Any]:
    """Pendulum-v1: positions and rewards are a hundred times as large, speeds a hundredth."""
    env, factor = gymnasium.make("Pendulum-v1"), np.array([100.0, 100.0, 0.01], np.float32)
    space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    scaled = gymnasium.wrappers.TransformObservation(env, lambda obs: obs * factor, space)
    return gymnasium.wrappers.TransformReward(scaled, lambda reward: 100 * float(reward))


#: Settings of PPO for Pendulum-v1: a shorter horizon, fragments longer than its episodes, no gradient clipping. They,
#: and the scale of its rewards, were chosen with the seeds 0 to 4 in sight.
PENDULUM = (
    "--envs 4 --set fragment_steps=256 --set train_batch_size=1024 --set minibatch_size=64 --set num_sgd_iter=10 "
    "--set gamma=0.95 --set lam=0.9 --set hidden=[128,128] --set clip_end=null --set grad_clip=null"
)
NORMALIZED = f"{PENDULUM} --set normalize_obs=true --set normalize_rewards=true"
OTHER_UNITS = "learning_tasks:pendulum_in_other_units"

#: Acting is faster so, with networks as small as these.
NUMPY = "--set act_backend=numpy"
DQN_ACROBOT = "--set learning_rate=6.3e-4 --set target_every=250 --set epsilon_end=0.05"
#: Little exploration: whoever fires an engine by accident does not come to rest.
DQN_LANDER = (
    f"--set learning_rate=6.3e-4 --set target_every=250 --set epsilon_end=0.02 --set epsilon_steps=15000 {NUMPY}"
)
#: Settings of PPO for LunarLander: many environments, a far horizon, and some entropy.
LANDER = (
    "--envs 16 --set fragment_steps=128 --set train_batch_size=2048 --set minibatch_size=128 --set num_sgd_iter=6 "
    "--set gamma=0.995 --set lam=0.95 --set entropy_coef=0.01 --set learning_rate=7e-4 --set clip_end=null "
    f"--set schedule_steps=500000 {NUMPY}"
)
#: Settings of DQN that RL-Zoo has for MountainCar-v0: one environment, and a rate of learning so large that what seems
#: best changes often, for nobody gets to the goal by acting at random. And observations whose speeds can be told apart.
MOUNTAIN_CAR = (
    "--envs 1 --set fragment_steps=16 --set learning_rate=4e-3 --set target_every=300 --set gamma=0.98 "
    "--set buffer_size=10000 --set epsilon_end=0.07 --set epsilon_steps=24000 --set normalize_obs=true "
    f"{NUMPY}"
)
#: Settings of SAC, TD3 and DDPG: an update for each step, of networks that are large enough for Pendulum-v1.
SMALL = f"--set hidden=[64,64] --set batch_size=128 --set replay_ratio=128 --set learning_rate=1e-3 {NUMPY}"
#: Of discrete SAC for CartPole-v1, the best found so far: an update for every second step, a fixed small temperature,
#: and a rate of learning that falls.
DISCRETE = (
    f"{SMALL} --set replay_ratio=64 --set n_step=3 --set tau=0.01 --set temperature=0.05 --set learn_temperature=false "
    "--set learning_rate=linear(1e-3,1e-4,50_000)"
)
#: CartPole-v1 that does not show velocities: for policies with a memory.
POSITIONS = "flowrl.envs.cartpole:without_velocities"
MEMORY = "--set normalize_obs=true"

TASKS = {
    "dqn-cartpole": Task("dqn", 475, 50_000, published="500"),
    "c51-cartpole": Task("c51", 475, 50_000),
    "qrdqn-cartpole": Task("qrdqn", 475, 50_000, published="500"),
    "rainbow-cartpole": Task("rainbow", 475, 50_000),
    "a2c-cartpole": Task("a2c", 475, 500_000, published="500"),
    "ppo-cartpole": Task("ppo", 475, 100_000, published="500"),
    "ppo-positions": Task("ppo", 450, 100_000, POSITIONS, f"{MEMORY} --set recurrent=lstm", "500 (recurrent PPO)"),
    "r2d2-positions": Task("r2d2", 450, 200_000, POSITIONS, MEMORY),
    "dqn-acrobot": Task("dqn", -100, 100_000, "Acrobot-v1", DQN_ACROBOT, "-76.6"),
    "a2c-acrobot": Task("a2c", -100, 500_000, "Acrobot-v1", NUMPY, "-83.4"),
    "ppo-acrobot": Task("ppo", -100, 500_000, "Acrobot-v1", NUMPY, "-86.4 (CleanRL)"),
    "dqn-mountaincar": Task("dqn", -110, 120_000, "MountainCar-v0", MOUNTAIN_CAR, "-100.8"),
    # Not reached so far: it learns to hover, not to land.
    "dqn-lunarlander": Task("dqn", 100, 100_000, "LunarLander-v3", DQN_LANDER, "154 (v2)", extra="box2d"),
    "ppo-lunarlander": Task("ppo", 200, 500_000, "LunarLander-v3", LANDER, "242 (v2, at 1M)", extra="box2d"),
    "ppo-pendulum": Task("ppo", -200, 100_000, "Pendulum-v1", f"{PENDULUM} --set reward_scale=0.1", "-172"),
    "ppo-pendulum-normalized": Task("ppo", -200, 100_000, "Pendulum-v1", NORMALIZED, "-172"),
    "sac-pendulum": Task("sac", -200, 20_000, "Pendulum-v1", SMALL, "-157"),
    "td3-pendulum": Task("td3", -200, 20_000, "Pendulum-v1", SMALL, "-152"),
    "ddpg-pendulum": Task("ddpg", -200, 20_000, "Pendulum-v1", SMALL, "-152"),
    "sac-cartpole": Task("sac", 475, 50_000, settings=DISCRETE),
    # The same goal in other units, with and without normalisation; without it nobody reaches it.
    "ppo-units-normalized": Task("ppo", -20_000, 100_000, OTHER_UNITS, NORMALIZED),
    "ppo-units": Task("ppo", -20_000, 100_000, OTHER_UNITS, PENDULUM, control=True),
    **{
        f"{plan}-2-workers": Task(plan, 475, 1_000_000, settings="--workers 2")
        for plan in ("a3c", "impala", "appo", "apex_dqn", "ddppo")
    },
}

#: From demonstrations of a DQN. R2D3 has come to 471 with one seed.
SHOWN = {"sqil": NUMPY, "rbc": NUMPY, "dqfd": NUMPY, "r2d3": ""}
TASKS |= {f"{plan}-cartpole": Task(plan, 475, 50_000, settings=of, demonstrations=10) for plan, of in SHOWN.items()}

"""The tasks of learning.py: what the plans should learn, in how many steps, and the results of others."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from torch import nn

from flowrl.networks.networks import Pixels

#: The mean return of 1,000 episodes of random actions.
RANDOM = {"CartPole-v1": 22.2, "Acrobot-v1": -499.1, "MountainCar-v0": -200.0, "Pendulum-v1": -1_230.7}


class Task(NamedTuple):
    """`flowrl run PLAN --env ENV SETTINGS --stop-return GOAL --stop-steps BUDGET`."""

    plan: str
    goal: float | None  #: return; None: what the peer comes to in the same run, if there is one
    budget: int  #: env steps
    env: str = "CartPole-v1"
    settings: str = ""  #: options, separated by spaces
    published: str = "-"  #: return of somebody else's plan of that name; of one tuned run of RL-Zoo unless said
    extra: str = ""  #: of setup.cfg, which the environment needs
    data: str = ""  #: what a plan without an environment learns from, a recipe of learning_data.py; steps are updates
    demonstrations: int = 0  #: episodes of the expert of `env`, recorded once: `--set demonstrations=DIR`
    shown_as: str = "demonstrations"  #: the setting of the plan that names their folder
    share: float = 0.0  #: of the seeds that must come to the goal; 0: their interquartile mean must
    control: bool = False  #: nobody is expected to learn it: it shows what a setting of another task is for
    peer: str = ""  #: package that learns the task besides, see learning_peers.py; the budget is then used up by both
    agents: tuple[str, ...] = ()  #: of a game: each must come to the goal; the return is that of all together
    nash_conv: bool = False  #: the return is minus the NashConv at the end, of the average of past selves if there are
    opponent: str = ""  #: the return is the share of games won against this player at the end, half from either side
    draws: bool = False  #: draws count as won
    seen: tuple[int, ...] = (0, 1, 2, 3, 4)  #: seeds that settings were chosen on, which a report leaves out
    pilot: float = 0.0  #: env steps per second of a short run, of plan and peer together, until a seed is recorded

    @property
    def judged_at_end(self) -> bool:
        """Whether the budget is used up, and the policies that the run ends with are judged."""
        return self.goal is None or self.nash_conv or bool(self.opponent)

    @property
    def least(self) -> float:
        """The return of a seed that has come to the goal."""
        return float("-inf") if self.goal is None else self.goal * max(1, len(self.agents))


def pendulum_in_other_units() -> gymnasium.Env[Any, Any]:
    """Pendulum-v1: positions and rewards are a hundred times as large, speeds a hundredth."""
    env, factor = gymnasium.make("Pendulum-v1"), np.array([100.0, 100.0, 0.01], np.float32)
    space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    scaled = gymnasium.wrappers.TransformObservation(env, lambda obs: obs * factor, space)
    return gymnasium.wrappers.TransformReward(scaled, lambda reward: 100 * float(reward))


class Planes(nn.Sequential):
    """The convolution that the authors of MinAtar took for its planes `[B, 10, 10, channels]`; 128 units follow.

    Source: Young & Tian 2019, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning
    Experiments"; there with other activations.
    """

    features = 16 * 8 * 8

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(Pixels(space), nn.Conv2d(space.shape[2], 16, 3), nn.ReLU(), nn.Flatten())


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
#: What RL-Zoo has for LunarLander: one environment, and for each of its steps an update, of wide networks.
DQN_LANDER = (
    "--envs 1 --set hidden=[256,256] --set replay_ratio=128 --set learning_starts=128 --set learning_rate=6.3e-4 "
    "--set target_every=250 --set n_step=1 --set dueling=false --set double=false --set epsilon_end=0.1 "
    f"--set epsilon_steps=12000 {NUMPY}"
)
#: Settings of PPO for LunarLander: many environments, a far horizon, some entropy, and normalised rewards; with raw
#: ones seeds 0 to 4 came to 166.
LANDER = (
    "--envs 16 --set fragment_steps=128 --set train_batch_size=2048 --set minibatch_size=128 --set num_sgd_iter=6 "
    "--set gamma=0.995 --set lam=0.95 --set entropy_coef=0.01 --set learning_rate=7e-4 --set clip_end=null "
    f"--set normalize_rewards=true {NUMPY}"
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
#: Twenty updates per env step; an evaluation of twenty episodes is as long as the whole budget.
EAGER = f"{SMALL} --set replay_ratio=2560 --set eval_every=250 --set eval_train_ratio=0"
#: Of MBPO: ten updates per env step, from short rollouts of a small model; and what looks as often at SAC.
OFTEN = "--set eval_every=250 --set eval_train_ratio=0"
IMAGINING = (
    f"{SMALL} --set replay_ratio=1280 --set learning_starts=200 --set random_steps=200 --set model_every=125 "
    f"--set model_hidden=[64,64] --set horizon=5 --set imagined_branches=50 --set imagined_ratio=250 "
    f"--set imagined_size=50000 {OFTEN}"
)
DROQ = "--set dropout=0.01 --set layer_norm=true"
#: Of discrete SAC for CartPole-v1: environments, network and targets as DQN has them; and against a slow drift off the
#: track observations of one scale, and a far horizon.
DISCRETE = (
    "--envs 8 --set fragment_steps=4 --set hidden=[128,128] --set batch_size=128 --set replay_ratio=64 "
    "--set learning_rate=1e-3 --set grad_clip=10 --set n_step=3 --set target_every=100 --set tau=1 "
    f"--set gamma=0.995 --set normalize_obs=true {NUMPY}"
)
#: Beside Stable-Baselines3 and sb3-contrib. Of SAC, TQC and CrossQ: RL-Zoo's, which are the defaults of both sides, but
#: for how long they act at random, and for CrossQ's critics, which are as wide as the others'. Of TRPO: the defaults
#: of sb3-contrib, with its one environment; its divergence is the mean over the six numbers of an action, not the sum.
JUDGED = "--set eval_every=25000 --set eval_episodes=10"
CHEETAH = f"--set learning_starts=10000 --set random_steps=10000 {JUDGED} {NUMPY}"
CHEETAH_ALONE = f"--envs 1 --set fragment_steps=2048 --set max_kl=0.06 --set cg_damping=0.6 {JUDGED} {NUMPY}"
#: Of PPO for MinAtar: what Schulman et al. 2017 have for Atari, with the network and the frames of MinAtar's authors;
#: nothing was tuned. Five core-hours are 15 such runs.
ARCADE = (
    "--env-arg use_minimal_action_set=true --envs 8 --set fragment_steps=128 --set train_batch_size=1024 "
    "--set minibatch_size=256 --set num_sgd_iter=3 --set learning_rate=2.5e-4 --set gamma=0.99 --set lam=0.95 "
    "--set clip=0.1 --set entropy_coef=0.01 --set value_coef=1 --set network=learning_tasks:Planes --set hidden=[128] "
    "--set eval_every=1000000"
)
#: Environments of goals, whose mean return is the share of successes, and the settings of HER for plans without it: as
#: many updates for each env step.
BITS, POINT = "flowrl.envs.goals:bit_flipping", "flowrl.envs.goals:point_reach"
NEAR = f"--env-arg radius=0.05 --set hidden=[64,64] {NUMPY}"
SEVENTHS = "DiscretizeAction(7,multidiscrete=True)"  # of each axis
AS_HER_DQN = f"--set gamma=0.9 --set n_step=1 --set hidden=[256] --set replay_ratio=80 {NUMPY}"
AS_HER_SAC = (
    "--set gamma=0.95 --set hidden=[64,64] --set learning_rate=1e-3 --set batch_size=128 --set temperature=0.1 "
    f"--set replay_ratio=80 {NUMPY}"
)
#: CartPole-v1 that does not show velocities: for policies with a memory.
POSITIONS = "flowrl.envs.cartpole:without_velocities"
MEMORY = "--set normalize_obs=true"

#: What was shown is asked for 80 steps later: a transformer, which sees it then, and recurrent layers, which carry it.
RECALL = (
    "--envs 16 --set fragment_steps=81 --set train_batch_size=1296 --set minibatch_size=324 --set sequence_length=81 "
    "--set num_sgd_iter=4 --set gamma=0.99 --set lam=0.95 --set schedule_steps=400000 --set eval_every=10000 "
    "--set memory_size=32"
)

#: Corridors whose reward is two walks away, or whose first observation alone tells where it is; and a memory for that.
#: A walk from end to end takes 80 steps and more.
KEY, CUE = "flowrl.envs.corridor:key_corridor", "flowrl.envs.corridor:cue_corridor"
FAR = "--env-arg length=40"
LEVELS = f"{FAR} --set interval=100"
GRU = '{"recurrent":"gru","memory_size":16,"sequence_length":16}'
#: Of PPO for them: what each part of a hierarchy has, in networks with no fewer weights than both parts have.
FLAT = (
    f"{FAR} --set hidden=[96,96] --set fragment_steps=128 --set train_batch_size=1024 --set minibatch_size=128 "
    "--set num_sgd_iter=10 --set gamma=0.99 --set lam=0.95 --set clip_end=null --set entropy_coef=0.05"
)
#: Of PPO for equilibria of zero-sum games: a penalty of fixed weight on the KL divergence, and an entropy bonus.
TOWARD_EQUILIBRIUM = "--set kl_target=null --set standardize=false --set clip_end=null --set gamma=1 --set eval_every=0"
#: One policy that plays itself alone. Its past selves do not play: the average of the newest is judged.
POKER = (
    f"{TOWARD_EQUILIBRIUM} --envs 128 --set self_play=1 --set fragment_steps=8 --set minibatch_size=1024 "
    "--set hidden=[64,64] --set learning_rate_end=null --set entropy_coef_end=null "
    f"{NUMPY}"
)
PENNIES = (
    f"{TOWARD_EQUILIBRIUM} --envs 64 --set fragment_steps=4 --set minibatch_size=256 --set num_sgd_iter=10 "
    f'--set hidden=[16] --set agents={{"player_0":"even","player_1":"odd"}} {NUMPY}'
)
KUHN = (
    f"{POKER} --set kl_coef=3 --set clip=1 --set entropy_coef=0.07 --set learning_rate=5e-3 --set num_sgd_iter=16 "
    "--set snapshot_every=2000 --set pool_size=170"
)
LEDUC = (
    f"{POKER} --set kl_coef=5 --set entropy_coef=0.2 --set learning_rate=3e-3 "
    "--set snapshot_every=4000 --set pool_size=84"
)

#: Of self-play, which also meets a random player now and then: only there does it see moves that no good player makes.
NOUGHTS = f'--set match_making=uniform --set pool_size=1 --set opponents=["random"] --set eval_every=0 {NUMPY}'

#: Of AlphaZero, whose policies are judged at the end, where they search too.
SEARCH = f"--set learning_rate_end=0 --set eval_every=0 {NUMPY}"
#: Connect four has more games than a network sees: the policy that is judged searches four times as long.
FOUR = f"--set hidden=[256,256] --set q_ratio=0.5 --set exploring_moves=12 --set eval_simulations=200 {SEARCH}"
#: Of MuZero, which has to find out the rules: some moves at random for the whole run, so that it also knows positions
#: that no good player comes to, and values that bootstrap from the next search, so that later ones do not count.
UNTOLD = (
    "--set longest_game=9 --set gamma=1 --set support_size=1 --set n_step=1 --set epsilon_end=0.2 --set q_scale=0.2 "
    "--set simulations=25 --set hidden=[256] --set unroll_steps=3 --set normalize_obs=false --set envs_per_worker=64 "
    "--set sequence_length=10 --set overlap=0 --set batch_size=24 --set replay_ratio=24 --set buffer_size=60000 "
    "--set reanalysed_sequences=192 --set learning_rate=3e-3 --set learning_rate_end=1e-4 --set schedule_steps=90000 "
    f"--set eval_every=0 {NUMPY}"
)

#: Small networks, for small data.
OFFLINE = f"--set hidden=[64,64] --set batch_size=128 --set learning_rate=1e-3 {NUMPY}"
#: Of a small transformer, which is asked for what SAC gets at its end.
ASKED = (
    "--set context=10 --set units=64 --set layers=2 --set learning_rate=1e-3 --set target_return=-150 "
    "--set eval_every=500"
)
#: Settings of PPO for MountainCar-v0 with a reward model: a far horizon, long fragments, and constant rates.
CURIOUS_CAR = (
    "--envs 16 --set fragment_steps=128 --set train_batch_size=2048 --set num_sgd_iter=10 --set gamma=0.99 "
    f"--set lam=0.95 --set learning_rate_end=null --set clip_end=null {NUMPY}"
)
CURIOUS = f"{CURIOUS_CAR} --set reward_minibatch_size=512"
#: Without some entropy actions become one, and ICM's inverse model has nothing to tell apart.
CURIOUS_OF_ACTIONS = f"{CURIOUS} --set entropy_coef=0.01"
#: Settings of DQN for the same, with and without one.
SEARCHING_CAR = f"--set normalize_obs=true --set replay_ratio=32 --set eval_every=5000 {NUMPY}"
#: MiniGrid's agent sees a few cells, as numbers; the return is 1 less what the way took, 0.96 at best in an empty room.
GRID = "minigrid:MiniGrid-Empty-8x8-v0"
IN_GRID = (
    "--wrapper minigrid.wrappers:ImgObsWrapper --wrapper FlattenObservation --envs 8 --set fragment_steps=64 "
    "--set train_batch_size=512 --set minibatch_size=128 --set num_sgd_iter=4 --set gamma=0.99 --set lam=0.95 "
    f"--set eval_every=4000 --set schedule_steps=100000 {NUMPY}"
)
CURIOUS_IN_GRID = f"{IN_GRID} --set intrinsic_weight=0.1 --set reward_learning_rate=1e-3 --set reward_minibatch_size=64"

#: Looked at often: there are few updates.
CLONING = f"--set eval_every=1000 {NUMPY}"

TASKS = {
    "dqn-cartpole": Task("dqn", 475, 50_000, published="500"),
    "dqn-munchausen": Task("dqn", 475, 50_000, settings="--set munchausen=0.9 --set n_step=1"),
    "c51-cartpole": Task("c51", 475, 50_000),
    "qrdqn-cartpole": Task("qrdqn", 475, 50_000, published="500"),
    "iqn-cartpole": Task("iqn", 475, 50_000, settings=NUMPY),
    "pqn-cartpole": Task("pqn", 475, 100_000, settings=NUMPY),
    "rainbow-cartpole": Task("rainbow", 475, 50_000),
    "a2c-cartpole": Task("a2c", 475, 500_000, published="500"),
    "ppo-cartpole": Task("ppo", 475, 100_000, published="500"),
    "trpo-cartpole": Task("trpo", 475, 100_000, settings=NUMPY, published="500"),
    "ppo-positions": Task("ppo", 450, 100_000, POSITIONS, f"{MEMORY} --set recurrent=lstm", "500 (recurrent PPO)"),
    **{
        f"{plan}-cartpoles": Task(plan, 475, 100_000, "flowrl:two_cartpoles", agents=("left", "right"))
        for plan in ("ippo", "two_trainers")
    },
    # The return is that of both agents, who get 8 each at best.
    **{f"{plan}-two-step": Task(plan, 16, 20_000, "flowrl:two_step", NUMPY) for plan in ("mappo", "masac")},
    # Agents begin near the equilibrium, which they leave without penalty and entropy.
    "ippo-pennies": Task(
        *("ippo", -0.1, 50_000, "openspiel:matrix_mp", f"{PENNIES} --set kl_coef=10 --set entropy_coef=0.2"),
        extra="openspiel",
        nash_conv=True,
    ),
    "ippo-pennies-free": Task(
        "ippo", -0.1, 50_000, "openspiel:matrix_mp", PENNIES, extra="openspiel", nash_conv=True, control=True
    ),
    # Uniform play has a NashConv of 0.917 in Kuhn poker, and of 4.747 in Leduc poker.
    "self_play-kuhn": Task(
        "self_play", -0.05, 600_000, "openspiel:kuhn_poker", KUHN, extra="openspiel", nash_conv=True
    ),
    "self_play-leduc": Task(
        "self_play", -1.0, 450_000, "openspiel:leduc_poker", LEDUC, extra="openspiel", nash_conv=True
    ),
    # Nobody wins against perfect play.
    "self_play-noughts-random": Task(
        "self_play", 1.0, 1_000_000, "flowrl:tic_tac_toe", NOUGHTS, opponent="random", draws=True
    ),
    "self_play-noughts-perfect": Task(
        "self_play", 0.9, 1_000_000, "flowrl:tic_tac_toe", NOUGHTS, opponent="perfect", draws=True
    ),
    "alphazero-noughts-random": Task(
        "alphazero", 1.0, 80_000, "flowrl:tic_tac_toe", SEARCH, opponent="random", draws=True
    ),
    "alphazero-noughts-perfect": Task(
        "alphazero", 1.0, 80_000, "flowrl:tic_tac_toe", SEARCH, opponent="perfect", draws=True
    ),
    "alphazero-four-one_ply": Task("alphazero", 0.95, 160_000, "flowrl:connect_four", FOUR, opponent="one_ply"),
    "alphazero-four-mcts": Task("alphazero", 0.5, 160_000, "flowrl:connect_four", FOUR, opponent="mcts"),
    "muzero-noughts-random": Task("muzero", 1.0, 90_000, "flowrl:tic_tac_toe", UNTOLD, opponent="random", draws=True),
    "muzero-noughts-perfect": Task("muzero", 0.9, 90_000, "flowrl:tic_tac_toe", UNTOLD, opponent="perfect", draws=True),
    "muzero-cartpole": Task("muzero", 475, 100_000, settings=NUMPY, seen=(*range(4), *range(10, 21))),
    "dreamer-cartpole": Task("dreamer", 475, 8_000, settings="--set eval_every=1000", seen=(0, 1, 10, 20, 40)),
    "dreamer-minatar-breakout": Task(
        *("dreamer", None, 16_000, "minatar.gym:BaseEnv"),
        "--env-arg game=breakout --env-arg use_minimal_action_set=true --set normalize_obs=false "
        "--set entropy_coef=0.003 --set eval_every=4000",
        **{"extra": "minatar", "seen": (0,)},
    ),
    "r2d2-positions": Task("r2d2", 450, 200_000, POSITIONS, MEMORY),
    "dqn-acrobot": Task("dqn", -100, 100_000, "Acrobot-v1", DQN_ACROBOT, "-76.6"),
    "a2c-acrobot": Task("a2c", -100, 500_000, "Acrobot-v1", NUMPY, "-83.4"),
    "ppo-acrobot": Task("ppo", -100, 500_000, "Acrobot-v1", f"--set schedule_steps=100000 {NUMPY}", "-86.4 (CleanRL)"),
    "dqn-mountaincar": Task("dqn", -110, 120_000, "MountainCar-v0", MOUNTAIN_CAR, "-100.8"),
    "dqn-lunarlander": Task("dqn", 100, 100_000, "LunarLander-v3", DQN_LANDER, "154 (v2)", extra="box2d"),
    "ppo-lunarlander": Task("ppo", 200, 500_000, "LunarLander-v3", LANDER, "242 (v2, at 1M)", extra="box2d"),
    "ppo-pendulum": Task("ppo", -200, 100_000, "Pendulum-v1", f"{PENDULUM} --set reward_scale=0.1", "-172"),
    "ppo-pendulum-normalized": Task("ppo", -200, 100_000, "Pendulum-v1", NORMALIZED, "-172"),
    "sac-pendulum": Task("sac", -200, 20_000, "Pendulum-v1", SMALL, "-157"),
    "redq-pendulum": Task("redq", -200, 4_000, "Pendulum-v1", f"{EAGER} --set critics=10"),
    "droq-pendulum": Task("redq", -200, 4_000, "Pendulum-v1", f"{EAGER} --set critics=2 {DROQ}"),
    "mbpo-pendulum": Task("mbpo", -200, 4_000, "Pendulum-v1", IMAGINING),
    "sac-pendulum-often": Task("sac", -200, 20_000, "Pendulum-v1", f"{SMALL} {OFTEN}"),
    "mbpo-inverted": Task("mbpo", 950, 4_000, "InvertedPendulum-v5", IMAGINING, extra="mujoco", seen=(0,)),
    "sac-inverted": Task("sac", 950, 40_000, "InvertedPendulum-v5", f"{SMALL} {OFTEN}", extra="mujoco", seen=(0,)),
    "tqc-pendulum": Task("tqc", -200, 20_000, "Pendulum-v1", SMALL),
    "crossq-pendulum": Task("crossq", -200, 20_000, "Pendulum-v1", f"{SMALL} --set critic_hidden=[64,64]"),
    "td3-pendulum": Task("td3", -200, 20_000, "Pendulum-v1", SMALL, "-152"),
    "ddpg-pendulum": Task("ddpg", -200, 20_000, "Pendulum-v1", SMALL, "-152"),
    **{
        f"{plan}-halfcheetah": Task(
            *(plan, None, 100_000, "HalfCheetah-v5", settings),
            **{"extra": "mujoco", "peer": peer, "seen": (), "pilot": pilot},
        )
        for plan, peer, pilot, settings in (
            ("sac", "stable-baselines3", 36.0, CHEETAH),
            ("tqc", "sb3-contrib", 24.0, CHEETAH),
            ("crossq", "sb3-contrib", 26.0, CHEETAH),
            ("trpo", "sb3-contrib", 600.0, CHEETAH_ALONE),
        )
    },
    "sac-cartpole": Task("sac", 475, 50_000, settings=DISCRETE),
    **{
        f"ppo-minatar-{game}": Task(
            *("ppo", None, 5_000_000, "minatar.gym:BaseEnv", f"--env-arg game={game} {ARCADE}"),
            **{"extra": "minatar", "seen": (), "pilot": 5_500.0},
        )
        for game in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
    },
    # The same goal in other units, with and without normalisation; without it nobody reaches it.
    "ppo-units-normalized": Task("ppo", -20_000, 100_000, OTHER_UNITS, NORMALIZED),
    "ppo-units": Task("ppo", -20_000, 100_000, OTHER_UNITS, PENDULUM, control=True),
    # Without relabelled goals nobody reaches a third of them, or half of them.
    "her_dqn-10-bits": Task("her_dqn", 0.9, 20_000, BITS, f"--env-arg bits=10 {NUMPY}"),
    "dqn-10-bits": Task("dqn", 0.3, 20_000, BITS, f"--env-arg bits=10 {AS_HER_DQN}", control=True),
    "her_dqn-15-bits": Task("her_dqn", 0.9, 150_000, BITS, f"--env-arg bits=15 {NUMPY}", "solved (DI-engine)"),
    "dqn-15-bits": Task("dqn", 0.3, 150_000, BITS, f"--env-arg bits=15 {AS_HER_DQN}", control=True),
    "her_dqn-point-choices": Task(
        "her_dqn", 0.9, 20_000, POINT, f"--env-arg radius=0.05 --wrapper {SEVENTHS} --set hidden=[64,64] {NUMPY}"
    ),
    # Beside it: one choice among all 49 pairs, and the axes themselves.
    "her_dqn-point-pairs": Task("her_dqn", 0.9, 20_000, POINT, f"--wrapper DiscretizeAction(7) {NEAR}"),
    "her_sac-point-near": Task("her_sac", 0.9, 20_000, POINT, NEAR),
    "her_sac-point": Task("her_sac", 0.9, 20_000, POINT, NUMPY),
    "sac-point": Task("sac", 0.5, 20_000, POINT, AS_HER_SAC, control=True),
    **{
        f"{plan}-2-workers": Task(plan, 475, budget, settings="--workers 2 --journal --set eval_every=50000")
        for plan, budget in (
            ("a3c", 500_000),
            ("impala", 500_000),
            ("appo", 500_000),
            ("apex_dqn", 1_000_000),
            ("ddppo", 100_000),
        )
    },
    # Without an environment: data whose mean return is 64 on CartPole-v1, and on Pendulum-v1 -355, half of it of a
    # policy that is half trained, and half of what that became.
    **{
        f"{plan}-{data}-data": Task(plan, goal, budget, env, f"{OFFLINE} --set eval_every=1000 {more}", data=data)
        for plan, goal, budget, env, data, more in (
            ("bc", 64, 4_000, "CartPole-v1", "cartpole", ""),
            ("marwil", 64, 4_000, "CartPole-v1", "cartpole", ""),
            ("cql", 150, 4_000, "CartPole-v1", "cartpole", ""),
            ("iql", 150, 4_000, "CartPole-v1", "cartpole", ""),
            ("bc", -355, 4_000, "Pendulum-v1", "pendulum", ""),
            ("marwil", -355, 4_000, "Pendulum-v1", "pendulum", ""),
            ("cql", -320, 4_000, "Pendulum-v1", "pendulum", "--set conservatism=10 --set learning_rate=3e-4"),
            ("iql", -280, 8_000, "Pendulum-v1", "pendulum", "--set beta=0.1"),
            ("td3_bc", -280, 8_000, "Pendulum-v1", "pendulum", ""),
        )
    },
    # Of two action numbers; many critics in the place of CQL's penalty, with and without that of EDAC.
    **{
        f"{name}-reacher-data": Task(
            *(plan, None, 8_000, "Reacher-v5", f"{OFFLINE} --set eval_every=8000 {more}"),
            **{"extra": "mujoco", "data": "reacher", "seen": (0,)},
        )
        for name, plan, more in (
            ("bc", "bc", ""),
            ("iql", "iql", ""),
            ("td3_bc", "td3_bc", ""),
            ("cql", "cql", "--set learning_rate=3e-4"),
            ("sac_n", "cql", "--set conservatism=0 --set critics=10"),
            ("edac", "cql", "--set conservatism=0 --set critics=10 --set diversity=1"),
        )
    },
    "decision_transformer-pendulum-data": Task(
        "decision_transformer", -250, 3_000, "Pendulum-v1", ASKED, data="pendulum"
    ),
    # The goal is found by reward models; without them nobody reaches it.
    "rnd-mountaincar": Task("rnd_ppo", -150, 300_000, "MountainCar-v0", CURIOUS, share=0.8),
    "icm-mountaincar": Task("icm_ppo", -150, 300_000, "MountainCar-v0", CURIOUS_OF_ACTIONS, share=0.8),
    "ppo-mountaincar": Task("ppo", -150, 300_000, "MountainCar-v0", CURIOUS_CAR, control=True),
    "rnd_dqn-mountaincar": Task(
        "rnd_dqn", -150, 50_000, "MountainCar-v0", f"{SEARCHING_CAR} --set intrinsic_weight=100", share=0.8
    ),
    "dqn-mountaincar-alone": Task(
        "dqn", -150, 50_000, "MountainCar-v0", f"{SEARCHING_CAR} --set n_step=1", control=True
    ),
    "rnd-minigrid": Task("rnd_ppo", 0.95, 40_000, GRID, CURIOUS_IN_GRID, "solved (DI-engine)", extra="minigrid"),
    "ppo-minigrid": Task("ppo", 0.95, 40_000, GRID, IN_GRID, extra="minigrid"),
    # A manager and a worker; without them nobody brings the key to the door, or remembers the cue.
    "hierarchy-key": Task("hierarchy", 0.9, 100_000, KEY, f"{LEVELS} {NUMPY}", share=0.8),
    "ppo-key": Task("ppo", 0.9, 100_000, KEY, f"{FLAT} {NUMPY}", control=True),
    **{
        f"ppo-recall-{memory}": Task(
            *("ppo", 0.95, 200_000, "flowrl.envs.recall:Recall", f"{RECALL} --set recurrent={memory}{more}"),
            control=memory != "gtrxl",
        )
        for memory, more in (("gtrxl", " --set memory_steps=96"), ("lstm", ""))
    },
    "hierarchy-cue": Task("hierarchy", 0.9, 60_000, CUE, f"{LEVELS} --set manager={GRU}", share=0.8),
    "ppo-cue": Task("ppo", 0.9, 60_000, CUE, f"{FLAT} --set recurrent=gru --set memory_size=16", control=True),
    # From ten recorded episodes, without the environment's reward.
    "gail-cartpole": Task("gail_ppo", 475, 150_000, settings=NUMPY, demonstrations=10),
    "airl-cartpole": Task("airl_ppo", 475, 150_000, settings=NUMPY, demonstrations=10),
    "bc-cartpole": Task("bc", 475, 4_000, settings=CLONING, demonstrations=10, shown_as="data"),
}

#: Whose episodes are demonstrations in an environment: the task that it was trained in, to the task's return.
EXPERTS = {"CartPole-v1": "dqn-cartpole", "Pendulum-v1": "sac-pendulum"}

#: Of policies with a memory for CartPole-v1 itself, where velocities are shown: less exploration, and more updates.
SHORT = f"{MEMORY} --set epsilon_steps=10000 --set replay_ratio=96 --set eval_every=1000"
#: From demonstrations; and R2D2 without them, in the same settings.
SHOWN = {"sqil": NUMPY, "rbc": NUMPY, "dqfd": NUMPY, "r2d3": SHORT}
TASKS |= {f"{plan}-cartpole": Task(plan, 475, 50_000, settings=of, demonstrations=10) for plan, of in SHOWN.items()}
TASKS |= {"r2d2-cartpole": Task("r2d2", 475, 50_000, settings=SHORT)}
TASKS |= {"sacfd-pendulum": Task("sacfd", -200, 20_000, "Pendulum-v1", SMALL, demonstrations=10)}

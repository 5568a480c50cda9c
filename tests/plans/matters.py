"""Settings of the plans that change what is learned, each beside what it needs for that, and the others."""

from __future__ import annotations

from typing import Any

from tests.demonstrations import fewer_of_pendulum, one_episode, swapped_steps
from tests.plans import matters_offline

# Settings of SAC and DDPG.
OFF_POLICY: dict[str, Any] = {
    "hidden": (8,),
    "gamma": 0.5,
    "n_step": 3,
    "learning_rate": 0.1,
    "critic_learning_rate": 0.1,
    "grad_clip": 0.01,
    "batch_size": 4,
    "target_every": 5,
    "tau": 0.5,
    "fragment_steps": 2,
    "random_steps": 0,
    "exploration_noise": 0.5,
    "buffer_size": 60,
    "learning_starts": 30,
    "replay_ratio": 1.0,
    "envs_per_worker": 3,
    "prioritized": True,
    "normalize_obs": True,
    "normalize_rewards": True,
}
PRIORITY = {"priority_alpha": 0.1, "priority_beta": 0.9, "priority_beta_end": 0.5, "priority_beta_steps": 50}

# Settings of plans with reward models.
REWARDS: dict[str, Any] = {
    "extrinsic_weight": 0.5,
    "reward_hidden": (4,),
    "reward_learning_rate": 0.1,
    "reward_sgd_iter": 1,
    "reward_minibatch_size": None,
}
CURIOSITY = {"intrinsic_weight": 0.1, "reward_features": 3}
IMITATION = {"imitation_weight": 0.1, "demonstration_batch_size": 5, "demonstrations": swapped_steps}

# Another value of every setting of learning, and the settings beside which it shows.
MATTERS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "dqn": [
        ({key: value}, {"learning_rate": 0.03, "target_every": 15})  # the networks soon differ in what they prefer
        for key, value in {
            "hidden": (8,),
            "dueling": False,
            "double": False,
            "noisy": True,
            "gamma": 0.5,
            "n_step": 1,
            "learning_rate": 0.1,
            "grad_clip": 0.01,
            "batch_size": 4,
            "target_every": 2,
            "tau": 0.5,
            "fragment_steps": 2,
            "buffer_size": 60,
            "learning_starts": 30,
            "replay_ratio": 1.0,
            "epsilon_start": 0.1,
            "epsilon_end": 0.9,
            "epsilon_steps": 20,
            "envs_per_worker": 3,
            "prioritized": True,
            "normalize_obs": True,
            "normalize_rewards": True,
        }.items()
    ],
    "dqn prioritized": [
        ({"priority_alpha": 0.1}, {}),
        ({"priority_beta": 0.9}, {}),
        ({"priority_beta_end": 0.5}, {}),
        ({"priority_beta_steps": 50}, {}),
    ],
    "c51": [({key: value}, {}) for key, value in {"atoms": 5, "v_min": -1.0, "v_max": 20.0}.items()],
    "qrdqn": [({"quantiles": 3}, {}), ({"grad_clip": 0.01}, {}), ({"learning_rate": 0.1}, {})],
    "rainbow": [
        ({key: value}, {"epsilon_steps": 20})
        for key, value in {
            "noisy": False,
            "prioritized": False,
            "priority_alpha": 0.1,
            "epsilon_end": 1.0,
        }.items()
    ],
    "r2d2": [
        *(
            ({key: value}, {"learning_rate": 0.03, "target_every": 3})
            for key, value in {
                "recurrent": "gru",
                "memory_size": 4,
                "hidden": (8,),
                "dueling": False,
                "double": False,
                "sequence_length": 5,
                "burn_in": 0,
                "overlap": 0,
                "stored_state": False,
                "gamma": 0.5,
                "n_step": 1,
                "rescale": False,
                "learning_rate": 0.1,
                "grad_clip": 0.01,
                "batch_size": 4,
                "target_every": 2,
                "tau": 0.5,
                "fragment_steps": 2,
                "buffer_size": 60,
                "learning_starts": 30,
                "replay_ratio": 1.0,
                "priority_alpha": 0.1,
                "priority_beta": 0.9,
                "priority_eta": 0.1,
                "epsilon_start": 0.1,
                "epsilon_end": 0.9,
                "epsilon_steps": 20,
                "envs_per_worker": 3,
                "normalize_obs": True,
                "normalize_rewards": True,
            }.items()
        ),
    ],
    "her_dqn": [
        ({key: value}, {"learning_rate": 0.03, "target_every": 15})
        for key, value in {
            "her_k": 3,
            "her_strategy": "final",
            "hidden": (8,),
            "gamma": 0.5,
            "n_step": 2,
            "replay_ratio": 1.0,
        }.items()
    ],
    "her_sac": [
        ({key: value}, {})
        for key, value in {
            "her_k": 3,
            "her_strategy": "episode",
            "hidden": (8,),
            "gamma": 0.5,
            "learning_rate": 0.1,
            "batch_size": 4,
            "temperature": 0.5,
            "replay_ratio": 1.0,
        }.items()
    ],
    **{
        name: [({key: value}, {}) for key, value in {**REWARDS, **CURIOSITY, **more}.items()]
        for name, more in {"rnd_ppo": {}, "icm_ppo": {"forward_share": 0.9}, "rnd_dqn": {}}.items()
    },
    **{
        name: [({key: value}, {}) for key, value in {**REWARDS, **IMITATION, **more}.items()]
        for name, more in {
            "gail_ppo": {"reward_form": "both", "gradient_penalty": 0.0},
            "airl_ppo": {"state_only": False, "absorbing": False},
        }.items()
    },
    "sqil": [
        ({key: value}, {"learning_rate": 0.03, "target_every": 15})
        for key, value in {
            "demonstrations": one_episode,
            "demonstration_fraction": 0.25,
            "hidden": (8,),
            "dueling": False,
            "gamma": 0.5,
            "temperature": 0.2,
            "learning_rate": 0.1,
            "grad_clip": 0.01,
            "batch_size": 4,
            "target_every": 2,
            "tau": 0.5,
            "fragment_steps": 2,
            "buffer_size": 60,
            "learning_starts": 30,
            "replay_ratio": 1.0,
            "envs_per_worker": 3,
            "normalize_obs": True,
        }.items()
    ],
    "dqfd": [
        ({key: value}, {"learning_rate": 0.03, "target_every": 15})
        for key, value in {
            "demonstrations": one_episode,
            "demonstration_fraction": 0.5,
            "pretrain_updates": 0,
            "margin": 0.1,
            "margin_weight": 0.0,
            "n_step_weight": 0.0,
            "l2": 0.1,
            "prioritized": False,
            "epsilon_start": 0.9,
        }.items()
    ],
    "r2d3": [
        ({key: value}, {"learning_rate": 0.03, "target_every": 3})
        for key, value in {"demonstrations": one_episode, "demonstration_fraction": 0.5}.items()
    ],
    "sacfd": [({"demonstrations": fewer_of_pendulum}, {}), ({"demonstration_fraction": 0.25}, {})],
    "rbc": [({"bellman_weight": 0.5}, {"learning_rate": 0.03})],
    "ppo recurrent": [
        ({"recurrent": None}, {}),
        ({"recurrent": "gru"}, {}),
        ({"memory_size": 4}, {}),
        ({"sequence_length": 5}, {}),
        ({"normalize_obs": True}, {}),
    ],
    "ddpg": [
        *(({key: value}, {}) for key, value in OFF_POLICY.items()),
        *(({key: value}, {"prioritized": True}) for key, value in PRIORITY.items()),
    ],
    "td3": [
        ({"target_every": 5}, {}),
        ({"policy_delay": 1}, {}),
        ({"target_noise": 0.5}, {}),
        ({"target_noise_clip": 0.01}, {}),
    ],
    "sac": [
        *(({key: value}, {}) for key, value in OFF_POLICY.items() if key != "exploration_noise"),
        *(({key: value}, {"prioritized": True}) for key, value in PRIORITY.items()),
        ({"temperature": 0.2}, {}),
        ({"learn_temperature": False}, {"learning_rate": 0.1}),
        ({"target_entropy": -3.0}, {"learning_rate": 0.1}),
    ],
    "sac discrete": [({"entropy_fraction": 0.9}, {"learning_rate": 0.1})],
    "dqn normalized": [({"gamma": 0.5}, {"normalize_obs": False}), ({"gamma": 0.5}, {"normalize_rewards": False})],
    "ppo normalized": [({"reward_scale": 0.5}, {})],
    "ppo": [
        *(
            ({key: value}, {})
            for key, value in {
                "hidden": (8,),
                "fragment_steps": 4,
                "train_batch_size": 30,
                "gamma": 0.5,
                "lam": 0.5,
                "reward_scale": 0.5,
                "normalize_obs": True,
                "normalize_rewards": True,
                "num_sgd_iter": 3,
                "minibatch_size": 5,
                "learning_rate": 0.1,
                "learning_rate_end": None,
                "clip": 0.001,
                "entropy_coef": 0.1,
                "schedule_steps": 50,
                "value_coef": 0.1,
                "value_clip": 1e-4,
                "standardize": False,
                "target_kl": 1e-9,
                "kl_coef": 1.0,
                "grad_clip": 0.01,
                "envs_per_worker": 3,
            }.items()
        ),
        ({"clip_end": None}, {"learning_rate": 0.03}),
        ({"entropy_coef_end": 0.0}, {"entropy_coef": 0.1}),
        ({"kl_target": 1e-6}, {"kl_coef": 1.0}),
        ({"squash": True}, {"env": "Pendulum-v1"}),
        ({"log_std": 1.0}, {"env": "Pendulum-v1"}),
    ],
    "ddppo": [
        *(
            ({key: value}, {})
            for key, value in {
                "hidden": (8,),
                "fragment_steps": 4,
                "train_batch_size": 30,
                "gamma": 0.5,
                "lam": 0.5,
                "reward_scale": 0.5,
                "num_sgd_iter": 3,
                "minibatch_size": 5,
                "learning_rate": 0.1,
                "learning_rate_end": None,
                "clip": 0.001,
                "entropy_coef": 0.1,
                "schedule_steps": 50,
                "value_coef": 0.1,
                "value_clip": 1e-4,
                "standardize": False,
                "target_kl": 1e-9,
                "grad_clip": 0.01,
                "envs_per_worker": 3,
            }.items()
        ),
        ({"clip_end": None}, {"learning_rate": 0.03}),
        ({"entropy_coef_end": 0.0}, {"entropy_coef": 0.1}),
        ({"squash": True}, {"env": "Pendulum-v1"}),
        ({"log_std": 1.0}, {"env": "Pendulum-v1"}),
    ],
    "a2c": [
        *(
            ({key: value}, {})
            for key, value in {
                "hidden": (8,),
                "fragment_steps": 4,
                "train_batch_size": 30,
                "gamma": 0.5,
                "lam": 0.5,
                "reward_scale": 0.5,
                "normalize_obs": True,
                "normalize_rewards": True,
                "learning_rate": 0.1,
                "learning_rate_end": None,
                "entropy_coef": 0.1,
                "schedule_steps": 50,
                "value_coef": 0.1,
                "grad_clip": 0.01,
                "envs_per_worker": 3,
            }.items()
        ),
        ({"entropy_coef_end": 0.0}, {"entropy_coef": 0.1}),
        ({"squash": True}, {"env": "Pendulum-v1"}),
        ({"log_std": 1.0}, {"env": "Pendulum-v1"}),
    ],
    "a3c": [
        *(
            ({key: value}, {})
            for key, value in {
                "hidden": (8,),
                "fragment_steps": 4,
                "in_flight": 2,
                "gamma": 0.5,
                "lam": 0.5,
                "learning_rate": 0.1,
                "learning_rate_end": None,
                "entropy_coef": 0.1,
                "schedule_steps": 50,
                "value_coef": 0.1,
                "grad_clip": 0.01,
                "envs_per_worker": 3,
            }.items()
        ),
        ({"squash": True}, {"env": "Pendulum-v1"}),
        ({"log_std": 1.0}, {"env": "Pendulum-v1"}),
    ],
    "impala": [
        *(
            ({key: value}, {"in_flight": 4, "learning_rate": 0.03})  # what is learned from is old
            for key, value in {
                "hidden": (8,),
                "fragment_steps": 4,
                "in_flight": 1,
                "train_batch_size": 30,
                "gamma": 0.5,
                "lam": 0.5,
                "reward_scale": 0.5,
                "rho_bar": 0.5,
                "c_bar": 0.5,
                "rho_pg_bar": 0.5,
                "learning_rate": 0.1,
                "learning_rate_end": None,
                "entropy_coef": 0.1,
                "schedule_steps": 50,
                "value_coef": 0.1,
                "grad_clip": 0.01,
                "envs_per_worker": 3,
                "replay_ratio": 1.0,
            }.items()
        ),
        ({"entropy_coef_end": 0.0}, {"entropy_coef": 0.1}),
        ({"squash": True}, {"env": "Pendulum-v1"}),
        ({"log_std": 1.0}, {"env": "Pendulum-v1"}),
    ],
    "impala replayed": [({"replay_slots": 1}, {})],
    "appo": [
        *(
            ({key: value}, {"in_flight": 4, "learning_rate": 0.03})
            for key, value in {
                "hidden": (8,),
                "fragment_steps": 4,
                "in_flight": 1,
                "train_batch_size": 30,
                "gamma": 0.5,
                "lam": 0.5,
                "reward_scale": 0.5,
                "rho_bar": 0.5,
                "c_bar": 0.5,
                "rho_pg_bar": 0.5,
                "old_weight": 0.5,
                "target_every": 8,
                "tau": 0.5,
                "num_sgd_iter": 3,
                "minibatch_size": 5,
                "learning_rate": 0.1,
                "learning_rate_end": None,
                "clip": 0.001,
                "entropy_coef": 0.1,
                "schedule_steps": 50,
                "value_coef": 0.1,
                "standardize": False,
                "kl_coef": 1.0,
                "grad_clip": 0.01,
                "envs_per_worker": 3,
            }.items()
        ),
        ({"entropy_coef_end": 0.0}, {"entropy_coef": 0.1}),
        ({"kl_target": 1e-6}, {"kl_coef": 1.0}),
        ({"squash": True}, {"env": "Pendulum-v1"}),
        ({"log_std": 1.0}, {"env": "Pendulum-v1"}),
    ],
    "apex_dqn": [
        *(
            ({key: value}, {"learning_rate": 0.1, "target_every": 15})
            for key, value in {
                "hidden": (8,),
                "dueling": False,
                "double": False,
                "noisy": True,
                "fragment_steps": 2,
                "in_flight": 1,
                "epsilon": 0.9,
                "gamma": 0.5,
                "n_step": 1,
                "replay_shards": 3,
                "buffer_size": 60,
                "learning_starts": 30,
                "replay_ratio": 1.0,
                "priority_alpha": 0.1,
                "priority_beta": 0.9,
                "batch_size": 4,
                "learning_rate": 0.01,
                "grad_clip": 0.01,
                "target_every": 2,
                "tau": 0.5,
                "envs_per_worker": 3,
            }.items()
        ),
        ({"draws_in_flight": 1}, {"replay_shards": 1, "learning_rate": 0.1}),
        ({"epsilon_alpha": 1.0}, {"env_groups": 2}),
    ],
}

MATTERS |= matters_offline.MATTERS

# What every configuration has, and what changes no weights.
OTHERS = {"env", "env_args", "seed", "num_workers", "device", "torch_threads", "eval_episodes", "eval_every"}
OTHERS |= {"num_learners", "learn_in_flight", "max_weight_lag"}  # see test_async_plans
OTHERS |= {"act_backend", "eval_max_steps", "checkpoint_every", "report_every", "microbatches"}
OTHERS |= {"wrappers", "env_manager", "env_manager_args", "episode_seeds"}  # of the environment, see tests/rollout
OTHERS |= {"env_groups", "worker_cpus", "worker_gpus", "worker_memory", "worker_resources"}  # see tests/rollout
OTHERS |= {"max_worker_restarts", "on_worker_death", "address", "num_aggregators"}
OTHERS |= {"network", "precision", "compile", "grad_clip_value"}  # see tests/policies/test_learner_options.py
OTHERS |= {"eval_env", "eval_env_args", "eval_wrappers", "eval_env_manager"}
OTHERS |= {"data", "epochs"}  # see tests/trainer/test_offline.py

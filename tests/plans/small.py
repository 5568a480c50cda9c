"""The built-in plans, small enough that a test sees every part of them at work in a few hundred steps.

What follows a plan's name is a variant of it. A setting that is a function is what that gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import pytest

from flowrl import Plan
from flowrl.operators.metrics import CLOCK_KEYS
from flowrl.rollout import WorkerSet
from flowrl.runs.config import build_config
from flowrl.trainer.plan_file import load_plan_file
from tests.demonstrations import cartpole, few_steps, pendulum
from tests.offline_data import offline_data

SMALL: dict[str, dict[str, Any]] = {
    "dqn": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 3,
        "batch_size": 8,
        "learning_starts": 50,
        "buffer_size": 100,  # wraps during the tests
        "replay_ratio": 2.0,
        "target_every": 7,
        "report_every": 20,
        "device": "cpu",
    },
    "ppo": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "train_batch_size": 20,
        "minibatch_size": 8,
        "num_sgd_iter": 2,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "ippo": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "train_batch_size": 20,
        "minibatch_size": 8,
        "num_sgd_iter": 2,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "mappo": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "train_batch_size": 20,
        "minibatch_size": 8,
        "num_sgd_iter": 2,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "self_play": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "train_batch_size": 20,
        "minibatch_size": 8,
        "num_sgd_iter": 2,
        "pool_size": 2,
        "snapshot_every": 20,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "muzero": {
        "hidden": (16,),
        "latent_size": 8,
        "support_size": 4,
        "simulations": 4,
        "considered_actions": 1,
        "unroll_steps": 2,
        "n_step": 3,
        "sequence_length": 4,
        "overlap": 2,
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "batch_size": 4,
        "reanalysed_sequences": 2,
        "epsilon_steps": 200,
        "learning_starts": 30,
        "buffer_size": 100,  # wraps during the tests
        "replay_ratio": 2.0,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "dreamer": {
        "hidden": (16,),
        "memory_size": 8,
        "latent_groups": 3,
        "latent_classes": 4,
        "bins": 11,
        "spread_decay": 0.5,
        "sequence_length": 4,
        "overlap": 2,
        "horizon": 3,
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "batch_size": 4,
        "learning_starts": 30,
        "buffer_size": 100,  # wraps during the tests
        "replay_ratio": 2.0,
        "target_every": 3,
        "report_every": 20,
        "device": "cpu",
    },
    "alphazero": {
        "hidden": (16,),
        "simulations": 4,
        "exploring_moves": 3,
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "batch_size": 8,
        "learning_starts": 30,
        "buffer_size": 60,  # wraps during the tests
        "replay_ratio": 2.0,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "two_trainers": {
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "ppo": {"hidden": (16,), "train_batch_size": 20, "minibatch_size": 8, "num_sgd_iter": 2},
        "dqn": {"hidden": (16,), "batch_size": 8, "buffer_size": 200, "learning_starts": 40, "target_every": 7},
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "hierarchy": {
        "env_args": {"length": 4},
        "envs_per_worker": 2,
        "interval": 2,
        "fragment_steps": 5,
        "manager": {"hidden": (16,), "train_batch_size": 8, "minibatch_size": 4, "num_sgd_iter": 2},
        "worker": {"hidden": (16,), "train_batch_size": 20, "minibatch_size": 8, "num_sgd_iter": 2},
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "qmix": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "mixer_width": 8,
        "fragment_steps": 3,
        "batch_size": 8,
        "learning_starts": 50,
        "buffer_size": 100,
        "replay_ratio": 2.0,
        "target_every": 7,
        "report_every": 20,
        "device": "cpu",
    },
    "vdn": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 3,
        "batch_size": 8,
        "learning_starts": 50,
        "buffer_size": 100,
        "replay_ratio": 2.0,
        "target_every": 7,
        "report_every": 20,
        "device": "cpu",
    },
    "ddppo": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "train_batch_size": 20,
        "minibatch_size": 8,
        "num_sgd_iter": 2,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "a2c": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "train_batch_size": 20,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "a3c": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "impala": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "train_batch_size": 20,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "appo": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 5,
        "train_batch_size": 20,
        "minibatch_size": 8,
        "num_sgd_iter": 2,
        "target_every": 4,
        "schedule_steps": 200,
        "report_every": 20,
        "device": "cpu",
    },
    "apex_dqn": {
        "hidden": (16,),
        "envs_per_worker": 2,
        "fragment_steps": 3,
        "batch_size": 8,
        "learning_starts": 50,
        "buffer_size": 100,  # wraps during the tests
        "replay_ratio": 2.0,
        "target_every": 7,
        "report_every": 20,
        "device": "cpu",
    },
    **{
        name: {
            "env": "Pendulum-v1",
            "hidden": (16,),
            "envs_per_worker": 2,
            "fragment_steps": 3,
            "batch_size": 8,
            "random_steps": 30,
            "learning_starts": 50,
            "buffer_size": 100,  # wraps during the tests
            "replay_ratio": 2.0,
            "report_every": 20,
            "device": "cpu",
        }
        for name in ("sac", "td3", "ddpg")
    },
}

SMALL["dreamer images"] = {
    **SMALL["dreamer"],
    "env": "tests.spaces_envs:Pictures",
    "normalize_obs": False,
    "image_depth": 2,
}
SMALL["muzero turns"] = {
    **SMALL["muzero"],
    "env": "flowrl:tic_tac_toe",
    "longest_game": 9,
    "gamma": 1.0,
    "sequence_length": 9,
    "n_step": 8,
    "buffer_size": 60,
}
SMALL["masac"] = {**SMALL["qmix"], "random_steps": 30}
del SMALL["masac"]["mixer_width"]
SMALL["redq"] = {**SMALL["sac"], "critics": 3, "policy_delay": 2}
SMALL["redq droq"] = {**SMALL["redq"], "critics": 2, "dropout": 0.1, "layer_norm": True}
SMALL["tqc"] = {**SMALL["sac"], "critics": 2, "quantiles": 5}
SMALL["crossq"] = {**SMALL["sac"], "critic_hidden": (12,), "policy_delay": 2, "renorm_warmup": 3}
SMALL["mbpo"] = {
    **SMALL["sac"],
    "target_every": 3,
    "model_hidden": (8,),
    "model_members": 3,
    "model_elites": 2,
    "model_every": 12,
    "model_minibatch_size": 20,
    "model_epochs": 4,
    "model_patience": 1,
    "horizon": 3,
    "imagined_branches": 5,
    "imagined_ratio": 5.0,
    "imagined_size": 60,  # wraps during the tests
    "real_fraction": 0.25,
}
SMALL["sac discrete"] = {**SMALL["sac"], "env": "CartPole-v1"}
SMALL["mbpo discrete"] = {**SMALL["mbpo"], "env": "CartPole-v1"}
SMALL["r2d2"] = {
    **SMALL["dqn"],
    "memory_size": 8,
    "sequence_length": 4,
    "burn_in": 2,
    "overlap": 2,
    "priority_beta": 0.4,
    "epsilon_steps": 200,
}
# For plans of many steps, or of costly ones: the tests that look at every step reach learning sooner.
OFTEN = {"report_every": 12, "learning_starts": 25}
SMALL["her_dqn"] = {
    **SMALL["dqn"],
    **OFTEN,
    "env": "flowrl.envs.goals:bit_flipping",
    "env_args": {"bits": 3},
    "her_k": 2,
}
SMALL["her_sac"] = {
    **SMALL["sac"],
    **OFTEN,
    "env": "flowrl.envs.goals:point_reach",
    "env_args": {"radius": 0.3, "max_steps": 8},
    "her_k": 2,
}
SMALL["r2d3"] = {**SMALL["r2d2"], "demonstrations": cartpole}
SMALL["ppo recurrent"] = {**SMALL["ppo"], "recurrent": "lstm", "memory_size": 8, "sequence_length": 3}
SMALL["hierarchy recurrent"] = {
    **SMALL["hierarchy"],
    "manager": {**SMALL["hierarchy"]["manager"], "recurrent": "gru", "memory_size": 8, "sequence_length": 3},
}
TRANSFORMER = {"recurrent": "gtrxl", "memory_size": 8, "memory_steps": 4, "memory_layers": 2}
SMALL["ppo transformer"] = {**SMALL["ppo recurrent"], **TRANSFORMER}
SMALL["r2d2 transformer"] = {**SMALL["r2d2"], **TRANSFORMER}
SMALL["ppo hybrid"] = {**SMALL["ppo"], "env": "tests.spaces_envs:Throws"}
SMALL["dqn choices"] = {**SMALL["dqn"], "env": "tests.spaces_envs:Choices"}
SMALL["dqn prioritized"] = {**SMALL["dqn"], "prioritized": True, "priority_beta_steps": 200}
SMALL["dqn munchausen"] = {**SMALL["dqn"], "munchausen": 0.9, "n_step": 1}
SMALL["qrdqn"] = {**SMALL["dqn"], **OFTEN, "quantiles": 5}
SMALL["pqn"] = {**SMALL["ppo"], "epsilon_steps": 200}
SMALL["trpo"] = {**SMALL["ppo"], "max_kl": 0.3, "cg_damping": 1e-3, "line_search_steps": 4}  # some lengths will not do
SMALL["iqn"] = {**SMALL["dqn"], **OFTEN, "quantiles": 3, "target_quantiles": 4, "acting_quantiles": 5, "cosines": 6}
SMALL["c51"] = {**SMALL["dqn"], **OFTEN, "atoms": 7, "v_max": 10.0}
SMALL["rainbow"] = {**SMALL["c51"], "priority_beta_steps": 200}
SMALL["impala replayed"] = {**SMALL["impala"], "replay_ratio": 0.5, "replay_slots": 3}
SMALL["ppo in torch"] = {**SMALL["ppo"], "act_backend": "torch", "learn_backend": "torch"}
SMALL |= {
    f"{name} normalized": {**SMALL[name], "normalize_obs": True, "normalize_rewards": True}
    for name in ("dqn", "ppo", "ippo")
}
SMALL["sqil"] = {**SMALL["dqn"], "demonstrations": cartpole}
SMALL["rbc"] = SMALL["sqil"]
SMALL["sacfd"] = {**SMALL["sac"], "demonstrations": pendulum}
SMALL["dqfd"] = {**SMALL["sqil"], **OFTEN, "pretrain_updates": 5, "priority_beta_steps": 200}

#: Plans without an environment learn from a few random episodes of CartPole-v1, or of Pendulum-v1.
SMALL["bc"] = {"hidden": (16,), "batch_size": 8, "report_every": 5, "device": "cpu"}
SMALL |= {name: {**SMALL["bc"]} for name in ("bc continuous", "marwil", "cql", "cql continuous", "iql")}
SMALL |= {"iql continuous": {**SMALL["iql"]}}
SMALL["cql continuous"] |= {"candidates": 3}
SMALL["cql diverse"] = {
    **SMALL["cql continuous"],
    "data": partial(offline_data, "tests.spaces_envs:Arms"),
    "env": "tests.spaces_envs:Arms",
    "critics": 3,
    "diversity": 1.0,
}
SMALL["td3_bc"] = {**SMALL["bc"], "data": partial(offline_data, "Pendulum-v1")}
SMALL["decision_transformer"] = {
    "units": 8,
    "layers": 1,
    "context": 4,
    "batch_size": 4,
    "report_every": 5,
    "device": "cpu",
}
SMALL["decision_transformer continuous"] = {**SMALL["decision_transformer"]}
SMALL["iql normalized"] = {**SMALL["iql"], "normalize_obs": True}
SMALL["league"] = {**SMALL["self_play"], "envs_per_worker": 6, "snapshot_every": 40, "restart": 0.5}
SMALL["self_play selective"] = {**SMALL["self_play"], "snapshot_every": 60, "snapshot_win_rate": 0.4}
SMALL["league selective"] = {**SMALL["league"], "snapshot_every": 200, "snapshot_win_rate": 0.4, "report_every": 60}
# Fragments are shorter than a batch, so that the model learns in between.
CURIOUS = {"reward_hidden": (8,), "reward_features": 4, "reward_sgd_iter": 2, "reward_minibatch_size": 5}
SMALL["rnd_ppo"] = {**SMALL["ppo"], **CURIOUS, "reward_learning_rate": 1e-2}
SMALL["icm_ppo"] = {**SMALL["rnd_ppo"]}
SMALL["rnd_dqn"] = {**SMALL["dqn"], **CURIOUS, "reward_learning_rate": 1e-2, "learning_rate": 0.03}
SMALL["gail_ppo"] = {
    **SMALL["ppo"],
    "demonstrations": few_steps,
    "demonstration_batch_size": 8,
    "reward_hidden": (8,),
    "reward_learning_rate": 1e-2,
    "reward_sgd_iter": 2,
    "reward_minibatch_size": 5,
}
SMALL["airl_ppo"] = {**SMALL["gail_ppo"]}
SMALL["gail_ppo recurrent"] = {**SMALL["gail_ppo"], "recurrent": "lstm", "memory_size": 8, "sequence_length": 3}

#: One plan of each kind of policy, and of DQN's other heads and noisy weights. What a policy promises is tested with
#: these; the exhaustive tests take all.
KINDS = (
    "dqn",
    "dqn choices",
    "c51",
    "iqn",
    "rainbow",
    "apex_dqn",
    "r2d2",
    "dqfd",
    "sqil",
    "rbc",
    "ppo",
    "ppo recurrent",
    "a2c",
    "impala",
)
KINDS += (
    "qmix",
    "mappo",
    "masac",
    "appo",
    "sac",
    "redq droq",
    "tqc",
    "crossq",
    "td3",
    "ddpg",
    "bc",
    "marwil",
    "cql",
    "cql continuous",
    "iql",
    "td3_bc",
    "decision_transformer",
    "alphazero",
    "muzero",
    "dreamer",
    "pqn",
    "trpo",
)

#: One for each way to store, to learn and to be resumed. What every plan promises is tested quickly with these; the
#: slow tests take all.
FAMILIES = ("dqn prioritized", "her_dqn", "dqfd", "apex_dqn", "r2d2", "rnd_dqn", "ppo recurrent", "ppo normalized")
FAMILIES += ("ddppo", "a3c", "impala replayed", "gail_ppo", "sac", "cql continuous", "bc")
FAMILY_PLANS = frozenset(name.split()[0] for name in FAMILIES)

Edit = Callable[[Plan], Plan]


def first(names: Iterable[str], of: Collection[str], rest: str = "exhaustive") -> list[Any]:
    """Parameters of a test; those that are not `of` these are for the exhaustive tests, or for another tier."""
    return [name if name in of else pytest.param(name, marks=getattr(pytest.mark, rest)) for name in names]


def settings_of(name: str, **settings: Any) -> dict[str, Any]:
    """What a variant is configured with, and other settings."""
    if load_plan_file(name.split()[0]).Config.clock == "updates" and "data" not in SMALL[name]:
        settings.setdefault("data", offline_data("Pendulum-v1" if "continuous" in name else "CartPole-v1"))
    return {key: value() if callable(value) else value for key, value in {**SMALL[name], **settings}.items()}


def make(name: str, seed: int = 0, edit: Edit = lambda plan: plan, **settings: Any) -> tuple[WorkerSet, Plan]:
    """A plan and its workers; what its results say of the clock is left out."""
    plan_file = load_plan_file(name.split()[0])
    config = build_config(plan_file.Config, {"seed": seed, **settings_of(name, **settings)})
    workers, plan = plan_file.build(config)
    return workers, edit(plan).for_each(without_clock)


def without_clock(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in CLOCK_KEYS}


def final(name: str, results: int, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The first results of a run, and its state after them."""
    workers, plan = make(name, **kwargs)
    with workers, plan.run(seed=kwargs.get("seed", 0)) as run:
        return [next(run) for _ in range(results)], run.state_dict()


def weights(state: dict[str, Any]) -> Any:
    """The policy's part of a run's state, or those of several."""
    found = [part for name, part in state["resources"].items() if name.endswith("Policy")]
    return found[0] if len(found) == 1 else found

"""Every built-in plan: exact, resumable, counted, and governed by its configuration."""

from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.checkpoint import load_checkpoint, save_checkpoint
from flowrl.config import Configuration
from flowrl.paths import paths
from flowrl.plan_file import builtin_plans, load_plan_file
from flowrl.testing import check_plan, same
from tests.demonstrations import cartpole
from tests.plans.small import SMALL, final, make, weights

PLANS = sorted(SMALL)


def test_none_is_forgotten() -> None:
    assert {name.split()[0] for name in PLANS} == set(builtin_plans())


@pytest.mark.parametrize("name", PLANS)
def test_the_same_seed_gives_the_same_parameters(name: str) -> None:
    """D1: bit for bit; another seed gives others."""
    (first, state), (again, state_again), (_, other) = final(name, 8), final(name, 8), final(name, 8, seed=1)
    assert same(first, again)
    assert same(state, state_again)
    assert not same(weights(state), weights(other))


@pytest.mark.parametrize("name", PLANS)
def test_resumed_at_random_items_it_equals_the_uninterrupted_run(name: str) -> None:
    """D3, D5, P6, Q7: mid-fragment, mid-round-robin, before and after learning starts; only the state is shared."""
    results, end = final(name, 10)
    workers, plan = make(name)
    draw = np.random.default_rng(5)
    with workers, plan.run(seed=0) as run:
        steps, resumes = 0, 0
        seen: list[Any] = []
        for at in sorted(draw.choice(600, 24, replace=False)):
            while steps < at and len(seen) < 10:
                item = run.step()
                seen += [item] if isinstance(item, dict) else []
                steps += 1
            if len(seen) >= 10:
                break
            state = copy.deepcopy(run.state_dict())
            assert same(state, run.state_dict())  # D5
            other_workers, other = make(name)
            with other_workers, other.run(seed=123) as resumed:
                resumed.load_state_dict(state)
                assert same([next(resumed) for _ in range(10 - len(seen))], results[len(seen) :])
                assert same(resumed.state_dict(), end)
            resumes += 1
        assert resumes


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("after", "steps"), [(0, 3), (1, 0), (2, 7)])
def test_it_goes_on_from_disk(name: str, after: int, steps: int, tmp_path: Path) -> None:
    """D3, D5: from between two results and from between two steps; nothing is shared but the files."""
    whole, end = final(name, 7)
    workers, plan = make(name)
    with workers, plan.run(seed=0) as run:
        assert same(list(islice(run, after)), whole[:after])
        for _ in range(steps):
            after += isinstance(run.step(), dict)
        state = run.state_dict()
        first, second = (save_checkpoint(tmp_path / each, run.state_dict()) for each in "ab")
    parts = [[path.read_bytes() for path in sorted(folder.glob("[0-9]*"))] for folder in (first, second)]
    assert parts[0]
    assert parts[0] == parts[1]  # D5
    loaded = load_checkpoint(first, trusted=True)
    assert same(loaded, state)
    workers, plan = make(name)
    with workers, plan.run(seed=123) as run:
        run.load_state_dict(loaded)
        assert same(list(islice(run, 7 - after)), whole[after:])
        assert same(run.state_dict(), end)


@pytest.mark.parametrize("name", PLANS)
def test_a_tap_changes_nothing(name: str) -> None:
    """D4: neither items nor state, behind any operator."""
    plain, state = final(name, 6)
    workers, plan = make(name)
    workers.close()
    for where in list(paths(plan).values())[:-1]:
        seen: list[Any] = []
        tapped, tapped_state = final(name, 6, edit=lambda plan, where=where, seen=seen: plan.tap(where, seen.append))
        assert seen
        assert same(plain, tapped)
        assert same(state, tapped_state)


@pytest.mark.parametrize("name", PLANS)
def test_the_contract_of_plans(name: str) -> None:
    """D1, D3, D4, D5 at every single step, and a tap behind every operator at once."""
    check_plan(lambda: make(name)[1], items=4)


@pytest.mark.parametrize("name", PLANS)
def test_evaluating_changes_nothing_in_training(name: str) -> None:
    """S3: with and without evaluation, the parameters are the same."""
    from flowrl.operators import Evaluate

    _, plain = final(name, 6)
    workers, plan = make(name)
    with workers, plan.for_each(Evaluate(workers, every=20, episodes=3)).run(seed=0) as run:
        results = [next(run) for _ in range(6)]
        assert all("eval_return" in result for result in results[1:])
        assert same(run.state_dict()["resources"], plain["resources"])


@pytest.mark.parametrize("name", PLANS)
def test_global_generators_are_left_alone(name: str) -> None:
    """D6: flowrl draws from its own generators only."""
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    final(name, 4)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(torch_before, torch.get_rng_state())


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
    "sqil": [
        ({key: value}, {"learning_rate": 0.03, "target_every": 15})
        for key, value in {
            "demonstrations": cartpole(1),
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
            "demonstrations": cartpole(1),
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
        for key, value in {"demonstrations": cartpole(1), "demonstration_fraction": 0.5}.items()
    ],
    "rbc": [({"bellman_weight": 0.5}, {"learning_rate": 0.03}), ({"learning_rate": 0.1}, {})],
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

# What every configuration has, and what changes no weights.
OTHERS = {"env", "env_args", "seed", "num_workers", "device", "torch_threads", "eval_episodes", "eval_every"}
OTHERS |= {"num_learners", "learn_in_flight", "max_weight_lag"}  # see test_async_plans
OTHERS |= {"act_backend", "eval_max_steps", "checkpoint_every", "report_every", "microbatches"}
OTHERS |= {"wrappers", "env_manager", "env_manager_args", "episode_seeds"}  # of the environment, see tests/rollout
OTHERS |= {"env_groups", "worker_cpus", "worker_gpus", "worker_memory", "worker_resources"}  # see tests/rollout
OTHERS |= {"max_worker_restarts", "on_worker_death", "address", "num_aggregators"}
OTHERS |= {"network", "precision", "compile", "grad_clip_value"}  # see tests/policies/test_learner_options.py
OTHERS |= {"eval_env", "eval_env_args", "eval_wrappers", "eval_env_manager"}


@pytest.mark.parametrize(
    ("name", "changed", "beside"), [(name, *case) for name, cases in MATTERS.items() for case in cases]
)
def test_every_setting_matters(name: str, changed: dict[str, Any], beside: dict[str, Any]) -> None:
    """What the configuration says reaches the parts: another value gives other weights."""
    usual, other = final(name, 10, **beside), final(name, 10, **{**beside, **changed})
    assert not same(weights(usual[1]), weights(other[1]))


@pytest.mark.parametrize("name", builtin_plans())
def test_no_setting_is_forgotten(name: str) -> None:
    """What one plan has of another's settings is a case of that one."""
    import attrs

    config = load_plan_file(name).Config
    anothers = config.__base__ is not Configuration
    known = {field.name for field in attrs.fields(config) if not (anothers and field.inherited)}
    cases = [case for variant in PLANS if variant.split()[0] == name for case in MATTERS.get(variant, [])]
    assert known - OTHERS == {key for changed, _ in cases for key in changed}

"""A Trainer as a trainable of Ray Tune: its steps, checkpoints and resources, and a search."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.errors import CheckpointError, ConfigError
from flowrl.plans import DQN
from flowrl.storage.checkpoint import verify_checkpoint
from tests.plans.small import without_clock

with warnings.catch_warnings():  # what Ray's own imports say
    warnings.simplefilter("ignore")
    from flowrl.trainer.tune import TrainerTrainable, trainable

SMALL = {
    "hidden": (16,),
    "envs_per_worker": 2,
    "fragment_steps": 5,
    "learning_starts": 20,
    "report_every": 10,
    "device": "cpu",
}


@pytest.fixture
def handlers() -> Iterator[None]:
    """Those of signals before: a search of Tune leaves its own, which would take the Ctrl-C of a later test."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes trials, as Tune does in its processes, and ends them."""
    trials: list[TrainerTrainable] = []

    def make(chosen: dict[str, Any], **settings: Any) -> TrainerTrainable:
        trials.append(trainable(DQN, **SMALL | settings)(config=chosen))
        return trials[-1]

    yield make
    for trial in trials:
        trial.stop()


def results(trial: TrainerTrainable, count: int) -> list[dict[str, Any]]:
    return [without_clock(trial.step()) for _ in range(count)]


def test_a_step_goes_on_to_the_next_result_that_has_the_metric(made: Any) -> None:
    first, second = results(made({}), 2)
    assert first["episode_return"] is not None
    assert first["env_steps"] > 10, "no episode has ended at the first result"
    assert second["env_steps"] == first["env_steps"] + 10
    evaluated = results(made({}, metric="eval_return", eval_every=50, eval_episodes=2), 2)
    assert [result["env_steps"] for result in evaluated] == [50, 100]


def test_what_tune_chose_overrides_the_settings(made: Any) -> None:
    trial = made({"learning_rate": 0.5, "seed": 3}, learning_rate=0.1)
    assert (trial.configuration(trial.config).learning_rate, trial.configuration(trial.config).seed) == (0.5, 3)


def test_a_trial_goes_on_bit_for_bit_where_it_was_saved(made: Any, tmp_path: Path) -> None:
    """D3: also in a trial that has been another one before."""
    trial = made({"seed": 1})
    results(trial, 3)
    trial.save_checkpoint(str(tmp_path))
    other = made({"seed": 2})
    results(other, 1)
    assert other.reset_config({"seed": 1})
    other.load_checkpoint(str(tmp_path))
    assert results(other, 5) == results(trial, 5)


def test_a_trial_goes_on_from_another_ones_checkpoint_with_its_own_learning_rate(made: Any, tmp_path: Path) -> None:
    """D9: as population-based training asks; what does not fit a checkpoint stays refused."""
    better = made({"learning_rate": 1e-3})
    results(better, 3)
    better.save_checkpoint(str(tmp_path))
    worse = made({"learning_rate": 1e-9})
    worse.reset_config({"learning_rate": 8e-4})
    worse.load_checkpoint(str(tmp_path))
    assert worse._trainer.forks[0]["settings"] == {"learning_rate": {"from": 1e-3, "to": 8e-4}}
    assert worse._trainer.workers.policy.optimizer.param_groups[0]["lr"] == 8e-4
    assert results(worse, 1)[0]["env_steps"] == results(better, 1)[0]["env_steps"]
    with pytest.raises(CheckpointError, match=r"gamma=0\.99"):
        made({"gamma": 0.5}).load_checkpoint(str(tmp_path))


def test_a_reset_trial_is_a_new_one(made: Any) -> None:
    """D1: nothing of the one before is left."""
    trial = made({"seed": 2})
    results(trial, 2)
    trial.reset_config({"seed": 1})
    assert results(trial, 3) == results(made({"seed": 1}), 3)


def test_a_trial_takes_what_its_trainer_and_its_workers_take() -> None:
    """Each worker process has a bundle of its own, wherever the number of them comes from."""
    asks = trainable(DQN, num_workers=1, worker_cpus=0.5).default_resource_request
    assert asks({}).bundles == [{"CPU": 1.0}, {"CPU": 0.5}]
    given = {"num_workers": 2, "worker_gpus": 0.25, "worker_resources": {"fast": 1.0}, "device": "cuda"}
    worker = {"CPU": 0.5, "GPU": 0.25, "fast": 1.0}
    assert asks(given).bundles == [{"CPU": 1.0, "GPU": 1.0}, worker, worker]


def test_bad_input_is_refused_before_anything_runs(made: Any) -> None:
    with pytest.raises(ConfigError, match="'learnin_rate'; did you mean 'learning_rate'"):
        trainable(DQN, learnin_rate=1e-3)
    with pytest.raises(ConfigError, match="no plan 'dqm'; did you mean 'dqn'"):
        trainable("dqm")
    with pytest.raises(ConfigError, match="'episode_retrun'; did you mean 'episode_return'"):
        made({}, metric="episode_retrun").step()
    with pytest.raises(ConfigError, match="eval_every=N"):
        made({}, metric="eval_return").step()


@pytest.mark.slow
@pytest.mark.usefixtures("handlers")
@pytest.mark.filterwarnings("ignore")  # Tune's own
def test_a_search_stops_the_trials_that_do_worse(ray_cluster: None, tmp_path: Path) -> None:
    """Two learning rates for CartPole, one of which learns nothing, each with a worker process of its own."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    settings = {"num_workers": 1, "report_every": 1_000, "learning_starts": 500, "eval_every": 1_000}
    settings |= {"epsilon_steps": 1_000}
    search = tune.Tuner(
        trainable("dqn", metric="eval_return", device="cpu", eval_episodes=10, **settings),
        param_space={"learning_rate": tune.grid_search([1e-3, 1e-9])},
        tune_config=tune.TuneConfig(
            metric="eval_return",
            mode="max",
            max_concurrent_trials=2,
            scheduler=ASHAScheduler("env_steps", grace_period=2_000, max_t=4_000, reduction_factor=2),
            time_budget_s=300,
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), verbose=0, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True)
        ),
    )
    found = search.fit()
    assert not found.errors
    best = found.get_best_result()
    assert best.config == {"learning_rate": 1e-3}
    assert best.metrics["env_steps"] >= 4_000
    worse = min(found, key=lambda result: result.metrics["eval_return"])
    assert worse.metrics["eval_return"] < best.metrics["eval_return"]
    with DQN(
        config={**settings, "device": "cpu", "eval_episodes": 10, "num_workers": 0, "env_groups": 1} | best.config
    ) as trainer:
        trainer.restore(Path(best.checkpoint.path) / "trainer")
        assert trainer.result["env_steps"] == best.metrics["env_steps"]


@pytest.mark.slow
@pytest.mark.usefixtures("handlers")
@pytest.mark.filterwarnings("ignore")  # Tune's own
def test_population_based_training_gives_the_worse_trial_the_better_ones_policy(
    ray_cluster: None, tmp_path: Path
) -> None:
    """D9: with another learning rate, from there on; the checkpoint says which."""
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    scheduler = PopulationBasedTraining(
        "env_steps",
        perturbation_interval=2_000,
        hyperparam_mutations={"learning_rate": [5e-4, 1e-3, 2e-3]},
        quantile_fraction=0.5,
        resample_probability=0.0,
        synch=True,
    )
    search = tune.Tuner(
        trainable("ppo", device="cpu", report_every=1_000),
        param_space={"learning_rate": tune.grid_search([1e-3, 1e-9])},
        tune_config=tune.TuneConfig(metric="episode_return", mode="max", scheduler=scheduler, time_budget_s=900),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            verbose=0,
            stop={"env_steps": 6_000},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    )
    found = search.fit()
    assert not found.errors
    assert all(result.metrics["env_steps"] >= 6_000 for result in found)
    assert all(result.config["learning_rate"] > 1e-9 for result in found), "the one that learned nothing is replaced"
    forks = [verify_checkpoint(Path(each.checkpoint.path) / "trainer")["about"]["forks"] for each in found]
    assert any("learning_rate" in fork["settings"] for each in forks for fork in each)

"""Plans that normalise: who acted and who learns see the same numbers, replay is raw, evaluation moves nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flowrl
from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.data.datasets.open import parts_of
from flowrl.operators import DatasetStatistics
from flowrl.plans import A2C, DQN, PPO
from flowrl.testing import same
from flowrl.trainer.trainer import Trainer
from tests.offline_data import offline_data
from tests.plans.small import SMALL, final, make

ON = {"normalize_obs": True, "normalize_rewards": True}


def statistics(policy: Any) -> dict[str, Any]:
    """In use, by their names among the weights, and those that wait."""
    names = [f"{name}.{part}" for name in policy.normalizers for part in ("count", "mean", "var", "std")]
    weights = policy.weights()
    return {name: weights[name] for name in names} | policy.state_dict()["waiting"]


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_what_acted_is_what_learns(name: str) -> None:
    """O1, G6: at the first minibatch the weights, statistics among them, are those that acted: every ratio is 1.

    A batch is two fragments, between which nothing may move either.
    """
    workers, plan = make(name, **ON)
    policy: Any = workers.policy
    means: list[torch.Tensor] = []

    def compare(batch: Any) -> None:
        logp, value, next_value = policy.learn_mode.evaluate(batch)
        np.testing.assert_allclose(logp, batch.logp, atol=1e-5)
        np.testing.assert_allclose(value, batch.value, atol=1e-5)
        np.testing.assert_allclose(next_value, batch.next_value, atol=1e-5)
        means.append(policy.model.encoder.normalizer.mean.clone())

    with workers, plan.tap("ConcatBatches", compare).run(seed=0) as run:
        for _ in range(5):
            next(run)
    assert len(means) == 5
    assert not torch.equal(means[1], means[2])  # they do move, in between


def test_a_batch_of_fragments_is_scaled_by_one_number() -> None:
    """O1, O3: the one in use when the policy acted, also of the very first batch; never 1."""
    workers, plan = make("ppo", **ON)
    raw: list[Any] = []
    scaled: list[Any] = []
    plan = plan.tap("ParallelRollouts", raw.append).tap("NormalizeRewards", scaled.append)
    with workers, plan.run(seed=0) as run:
        for _ in range(4):
            next(run)
    factors = [float((b.reward / a.reward).mean()) for a, b in zip(raw, scaled)]
    assert len(factors) == 8
    assert factors[0::2] == factors[1::2]
    assert len(set(factors)) == 4
    assert 1 not in factors


def test_replay_is_raw_and_scaled_by_the_newest_statistics() -> None:
    """O1: stored as collected; what is drawn is divided by the deviation in use at that moment."""
    workers, plan = make("dqn", **ON, n_step=1)
    policy: Any = workers.policy
    stored: list[Any] = []
    drawn: list[Any] = []
    factors: set[float] = set()

    def scaled(batch: Any) -> None:
        std = float(policy.returns.std)
        np.testing.assert_allclose(batch.reward, drawn[-1].reward / std)
        factors.add(std)

    plan = plan.tap("StoreToReplay", stored.append).tap("Replay", drawn.append).tap("NormalizeRewards", scaled)
    with workers, plan.run(seed=0) as run:
        while len(drawn) < 20:
            next(run)
        steps = run.counters["env_steps"]
    observed = np.concatenate([batch.obs for batch in stored])
    rewards = np.concatenate([batch.reward for batch in stored])
    assert (rewards == 1).all()
    assert len(factors) > 3
    normalizer = policy.model.trunk[0].normalizer
    assert int(normalizer.count) == int(policy.returns.count) == len(observed) == steps
    np.testing.assert_allclose(normalizer.mean, observed.mean(0, np.float64), atol=1e-6)


@pytest.mark.parametrize("kind", [A2C, DQN, PPO])
def test_evaluation_moves_no_statistics(kind: type[Trainer]) -> None:
    """O1, S3: neither those in use nor those that wait, nor does acting with what was learnt."""
    with kind(**SMALL[kind.__name__.lower()], **ON) as trainer:
        trainer.train()
        assert trainer.run is not None
        for _ in range(3):  # into the next batch, of two fragments
            trainer.run.step()
        before = statistics(trainer.workers.policy)
        assert any(each.waiting.count for each in trainer.workers.policy.normalizers.values()) or kind is DQN
        trainer.evaluate(episodes=3)
        trainer.act(np.ones(4, np.float32), deterministic=False)
        assert same(statistics(trainer.workers.policy), before)
        assert len(before) == 10
    with kind(**SMALL[kind.__name__.lower()]) as plain:
        assert plain.workers.policy.normalizers == {}


def test_returns_are_reported_raw() -> None:
    """S1, O3: in CartPole-v1 they are the lengths of the episodes."""
    results, _ = final("ppo", 6, **ON)
    assert results[-1]["episode_return"] == results[-1]["episode_length"]


def test_a_run_that_is_loaded_acts_by_its_statistics(tmp_path: Any) -> None:
    """O1: `policy.pt` has them."""
    from click.testing import CliRunner

    from flowrl.cli.main import cli

    words = "run ppo --stop-steps 2000 --quiet --set normalize_obs=true --set eval_episodes=2 --set num_sgd_iter=1"
    out = str(tmp_path / "run")
    done = CliRunner().invoke(cli, [*words.split(), "--out", out], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    policy: Any = flowrl.load(out).policy
    normalizer = policy.model.encoder.normalizer
    assert 0 < int(normalizer.count) <= 2048  # what had been learned from when it was the best
    assert (normalizer.std != 1).all()


def test_a_trainer_saves_and_restores_them(tmp_path: Any) -> None:
    """D3, O1: what waits too."""
    settings = {**SMALL["ppo"], **ON, "seed": 3}
    with PPO(**settings) as whole, PPO(**settings) as again:
        whole.train()
        again.restore(whole.save(tmp_path / "saved"))
        assert same(statistics(again.workers.policy), statistics(whole.workers.policy))
        assert same(again.train()["loss"], whole.train()["loss"])
        assert same(statistics(again.workers.policy), statistics(whole.workers.policy))


@pytest.mark.parametrize("name", ["bc", "marwil", "cql", "iql", "decision_transformer"])
def test_a_dataset_is_normalised_by_its_own_statistics(name: str) -> None:
    """O1: they are part of the weights, do not move while one learns, and are those of the target network too."""
    data = Dataset(offline_data())
    obs = data.take(data.real_rows())["obs"]
    workers, plan = make(name, normalize_obs=True)
    policy: Any = workers.policy
    before = policy.weights()
    with workers, plan.run(seed=0) as run:
        found = []
        for _ in range(2):
            next(run)
            found.append(statistics(policy))
    assert same(*found)
    for path in policy.normalizers:
        assert before[f"{path}.count"] == 0
        assert found[0][f"{path}.count"] == len(obs)
        np.testing.assert_allclose(found[0][f"{path}.mean"], obs.mean(0), atol=1e-6)
        np.testing.assert_allclose(found[0][f"{path}.var"], obs.astype(np.float64).var(0), rtol=1e-6)
        for kept in (policy.target.state_dict() if hasattr(policy, "target") else {}).items():
            if kept[0].endswith("normalizer.mean"):
                np.testing.assert_allclose(kept[1], obs.mean(0), atol=1e-6)
    assert len(policy.normalizers) >= 1


def test_the_statistics_of_a_dataset_do_not_depend_on_how_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """O2, N6: some rows at a time, and no padded ones."""
    draw = np.random.default_rng(0)
    rows = Batch(obs=draw.normal(3, 5, (40, 2, 4)).astype(np.float32), mask=(draw.random((40, 2)) < 0.7).astype(int))
    writer = DatasetWriter(tmp_path / "data")
    writer.add(rows.replace(obs=np.where(rows["mask"][..., None], rows.obs, 1e6).astype(np.float32)))
    real = rows.obs[rows["mask"] != 0].astype(np.float64)
    for count in (7, 1_000):
        monkeypatch.setattr("flowrl.operators.normalize.parts_of", partial(parts_of, rows=count))
        workers, _ = make("bc", normalize_obs=True)
        assert DatasetStatistics(workers, Dataset(tmp_path / "data"))(3) == 3
        normalizer: Any = next(iter(workers.policy.normalizers.values()))
        np.testing.assert_allclose(normalizer.mean, real.mean(0), rtol=1e-9)
        np.testing.assert_allclose(normalizer.var, real.var(0), rtol=1e-9)

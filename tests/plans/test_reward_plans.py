"""Plans with reward models: what the models change, what they leave alone, and what agents learn of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flowrl.data import Batch, Dataset
from flowrl.engine.graph import graph
from flowrl.errors import ConfigError, DatasetError
from flowrl.operators import TrainReward
from flowrl.plans import AIRLPPO, GAILPPO, RNDDQN, RNDPPO
from flowrl.testing import same
from flowrl.trainer.trainer import Trainer
from tests.demonstrations import cartpole_episodes, recorded
from tests.offline_data import offline_data
from tests.plans.small import SMALL, final, first, make, weights


@pytest.mark.parametrize(
    "name", first(["rnd_ppo", "icm_ppo", "gail_ppo", "airl_ppo", "rnd_dqn"], of=["rnd_ppo", "gail_ppo", "rnd_dqn"])
)
def test_a_weight_of_0_is_the_plan_without_a_model(name: str) -> None:
    """D6: bit for bit, the model learning all the while; with another weight it is not."""
    plain = name.rpartition("_")[2]
    alike = {"learning_rate": 0.03, "n_step": 1, "target_every": 15} if plain == "dqn" else {}
    curious = {"intrinsic_weight": 0.0}
    imitating = {"imitation_weight": 0.0, "extrinsic_weight": 1.0}
    _, without = final(plain, 8, **alike)
    _, silent = final(name, 8, **(imitating if "demonstrations" in SMALL[name] else curious), **alike)
    _, heard = final(name, 8, **alike)
    assert same(weights(silent), weights(without))
    assert not same(weights(heard), weights(without))


def test_what_is_stored_is_what_was_collected() -> None:
    """O1: the model says of drawn rows what it says now; in the buffer they are as the environment rewarded them."""
    workers, plan = make("rnd_dqn")
    fresh: list[Batch] = []
    stored: list[Batch] = []
    drawn: list[Batch] = []
    learned: list[Batch] = []
    plan = plan.tap("ParallelRollouts", lambda batch: fresh.append(batch.map(np.copy)))
    plan = plan.tap("StoreToReplay", lambda batch: stored.append(batch.map(np.copy)))
    plan = plan.tap("Replay", lambda batch: drawn.append(batch.map(np.copy))).tap("CombineRewards", learned.append)
    with workers, plan.run(seed=0) as run:
        for _ in range(8):
            next(run)
        buffer: Any = run.resources["ReplayBuffer"]
        held = buffer[:]
    assert all("intrinsic_reward" not in batch for batch in (*stored, *drawn, held))
    for before, after in zip(fresh, stored):
        np.testing.assert_array_equal(before.reward.ravel(), after.reward)
    assert set(held.reward.tolist()) == {1.0}
    assert len(learned) > 20
    for before, after in zip(drawn, learned):
        np.testing.assert_array_equal(after.extrinsic_reward, before.reward)
        np.testing.assert_allclose(after.reward, before.reward + after.intrinsic_reward, rtol=1e-6)
        assert (after.intrinsic_reward > 0).all()


def test_windows_of_several_steps_are_refused() -> None:
    """N4."""
    with pytest.raises(ConfigError, match=r"n_step=3: RND rewards single steps"):
        make("rnd_dqn", n_step=3)


@pytest.mark.parametrize("kind", [GAILPPO, AIRLPPO])
def test_demonstrations_must_be_there_and_fit(kind: type[Trainer], tmp_path: Path) -> None:
    """Before anything is learned: which column, and what there is."""
    small = {**SMALL["gail_ppo"], "demonstrations": None}
    with pytest.raises(ConfigError, match="demonstrations=None: this plan learns from recorded episodes"):
        kind(**small)
    with pytest.raises(DatasetError):
        kind(**{**small, "demonstrations": str(tmp_path / "nowhere")})
    batch = cartpole_episodes(2, 10)
    for missing in ("obs", "action") if kind is GAILPPO else ("obs", "action", "next_obs", "terminated"):
        path = recorded(batch.select([name for name in batch if name != missing]), tmp_path / missing)
        with pytest.raises(DatasetError, match=f"has no column '{missing}', which learning needs"):
            kind(**{**small, "demonstrations": str(path)})
    other = recorded(batch.replace(obs=batch.obs[..., :3]), tmp_path / "other")
    with pytest.raises(DatasetError, match=r"its column 'obs' is float32\[3\]"):
        kind(**{**small, "demonstrations": str(other)})


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("name", ["gail_ppo", "airl_ppo", "icm_ppo"])
def test_models_see_the_actions_that_the_environment_got(name: str, squash: bool) -> None:
    """G6: as demonstrations have them; the policy learns from what it drew."""
    data = {} if name == "icm_ppo" else {"demonstrations": offline_data("Pendulum-v1")}
    workers, plan = make(name, env="Pendulum-v1", log_std=2.0, squash=squash, **data)
    (model,) = [node.op.model for node in graph(plan) if isinstance(node.op, TrainReward)]
    seen: list[tuple[Batch, ...]] = []
    drawn: list[Batch] = []
    update = model.update
    model.update = lambda *rows: seen.append(rows) or update(*rows)
    with workers, plan.tap("ConcatBatches", drawn.append).run(seed=0) as run:
        next(run)
    assert np.abs(np.concatenate([batch.action for batch in drawn])).max() > 2.5
    agent = np.concatenate([rows[0].action for rows in seen])
    assert np.abs(agent).max() <= 2
    assert (np.abs(agent) > 1.9).any()
    if data:
        shown = Dataset(data["demonstrations"]).take(np.arange(400)).action.ravel()
        for rows in seen:
            assert np.abs(rows[1].action.numpy() - shown).min(1).max() < 1e-3


def test_a_memory_and_airl_do_not_go_together() -> None:
    """Before anything is learned, with the way out; GAIL is taught beside a memory, see `SMALL`."""
    with pytest.raises(ConfigError, match=r"recurrent='gru': AIRL needs the probabilities .* or take gail_ppo"):
        make("airl_ppo", recurrent="gru")


@pytest.mark.parametrize("kind", [GAILPPO, AIRLPPO])
@pytest.mark.parametrize("changed", [{"reward_scale": 0.5}, {"normalize_rewards": True}])
def test_what_changes_a_reward_that_counts_for_nothing_is_refused(kind: type[Trainer], changed: dict[str, Any]) -> None:
    small = {**SMALL["gail_ppo"], "demonstrations": recorded(cartpole_episodes(2, 10)), **changed}
    ((name, value),) = changed.items()
    with pytest.raises(ConfigError, match=f"{name}={value} with extrinsic_weight=0: the environment's reward"):
        kind(**small)
    with kind(**small, extrinsic_weight=0.5) as trainer:
        assert trainer.config.extrinsic_weight == 0.5


# -- what is learned

Rule = Callable[[np.ndarray], np.ndarray]


class Signs(gymnasium.Env[Any, Any]):
    """Numbers at random, 16 steps of them, whatever is done; no reward at all."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._seen(), 0.0, False, self.steps == 16, {}

    def _seen(self) -> Any:
        return self.np_random.normal(size=2).astype(np.float32)


def shown_signs(path: Path, rule: Rule) -> str:
    obs = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    rows = Batch(obs=obs, action=rule(obs), next_obs=obs, reward=np.zeros(500), terminated=np.zeros(500, bool))
    return str(recorded(rows, path))


def positive(obs: np.ndarray) -> np.ndarray:
    return (obs[:, 0] > 0).astype(np.int64)


def agreement(kind: type[Trainer], demonstrations: str, **settings: Any) -> float:
    """The share of actions that are those of the rule `positive`, after learning."""
    given = {"demonstrations": demonstrations, "learning_rate_end": None, "clip_end": None, "device": "cpu"}
    given |= {"reward_learning_rate": 3e-3, "reward_minibatch_size": 64, "gamma": 0.0, "num_sgd_iter": 10}
    with kind(env="tests.plans.test_reward_plans:Signs", **given, **settings) as trainer:
        trainer.train(until={"env_steps": 8_000})
        obs = np.random.default_rng(1).normal(size=(400, 2)).astype(np.float32)
        return float((np.asarray(trainer.act(obs)) == positive(obs)).mean())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "settings"), [(GAILPPO, {"reward_form": "positive"}), (GAILPPO, {"reward_form": "both"}), (AIRLPPO, {})]
)
def test_what_was_shown_is_imitated(kind: type[Trainer], settings: dict[str, Any], tmp_path: Path) -> None:
    """Where no action is rewarded and none ends an episode: a rule and its opposite; shuffled actions teach neither."""
    settings = {**settings, **({"state_only": False} if kind is AIRLPPO else {})}
    opposite = shown_signs(tmp_path / "opposite", lambda obs: 1 - positive(obs))
    shuffled = shown_signs(tmp_path / "shuffled", lambda obs: np.random.default_rng(3).permutation(positive(obs)))
    assert agreement(kind, shown_signs(tmp_path / "rule", positive), **settings) > 0.85
    assert agreement(kind, opposite, **settings) < 0.15
    assert 0.2 < agreement(kind, shuffled, **settings) < 0.8


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [GAILPPO, AIRLPPO])
def test_imitating_ten_episodes_holds_the_pole_up(kind: type[Trainer], tmp_path: Path) -> None:
    """Ten times what acting at random comes to, without any reward of the environment's."""
    shown = recorded(cartpole_episodes(10, 500), tmp_path / "shown")
    with kind(demonstrations=shown, act_backend="numpy", schedule_steps=60_000) as trainer:
        best = 0.0
        for steps in range(10_000, 60_000, 5_000):
            trainer.train(until={"env_steps": steps})
            best = max(best, trainer.evaluate(episodes=20)["return_mean"])
            if best > 200:
                break
    assert best > 200


@pytest.mark.exhaustive
def test_what_is_new_leads_to_the_goal_from_replay_too() -> None:
    """MountainCar-v0 within 20 000 steps; where what is new has no weight, the goal is not reached by then."""
    best = dict.fromkeys((100.0, 0.0), -200.0)
    for weight in best:
        settings = {"normalize_obs": True, "replay_ratio": 32.0, "intrinsic_weight": weight, "act_backend": "numpy"}
        with RNDDQN(env="MountainCar-v0", device="cpu", **settings) as trainer:
            for steps in range(5_000, 20_001, 5_000):
                trainer.train(until={"env_steps": steps})
                best[weight] = max(best[weight], trainer.evaluate(episodes=20)["return_mean"])
                if best[weight] > -150:
                    break
    assert best[100.0] > -150
    assert best[0.0] == -200


@pytest.mark.exhaustive
def test_what_is_new_leads_to_the_goal() -> None:
    """MountainCar-v0, whose goal nobody finds by acting at random: it has been there within 130 000 steps."""
    settings = {"envs_per_worker": 16, "fragment_steps": 128, "train_batch_size": 2048, "num_sgd_iter": 10}
    settings |= {"gamma": 0.99, "lam": 0.95, "learning_rate_end": None, "clip_end": None, "reward_minibatch_size": 512}
    with RNDPPO(env="MountainCar-v0", act_backend="numpy", **settings) as trainer:
        for steps in range(10_000, 130_001, 10_000):
            result = trainer.train(until={"env_steps": steps})
            if (result["episode_return"] or -200) > -199:
                break
    assert result["episode_return"] > -199

"""`flowrl record RUN`: what the saved policy does, as a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.data import Batch, Dataset
from flowrl.operators import FromDataset
from tests.cli.parts import flowrl as command

SCRIPT = ("--env", "CartPole-v1", "--policy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of dqn, which still explores."""
    run = tmp_path_factory.mktemp("runs") / "dqn"
    settings = ("hidden=[8]", "learning_starts=100", "replay_ratio=1", "eval_episodes=2")
    options = [word for setting in settings for word in ("--set", setting)]
    done = command("run", "dqn", *options, "--stop-steps", 300, "--envs", 4, "--out", run, "--quiet")
    assert done.exit_code == 0, done.output
    return run


def recorded(run: Path, out: Path, *options: Any) -> tuple[list[Batch], str]:
    done = command("record", run, "--out", out, *options)
    assert done.exit_code == 0, done.output
    return list(Dataset(out).verify()), done.stdout


def test_episodes_are_whole_and_played_as_in_evaluation(run: Path, tmp_path: Path) -> None:
    """S2, T2: a fixed share of each environment; every row is greedy, and leads to the next."""
    episodes, printed = recorded(run, tmp_path / "data", "--episodes", 10)
    policy = flowrl.load(run)
    for batch in episodes:
        steps = len(batch)
        assert batch.shape == (steps, 1)
        assert batch.t[:, 0].tolist() == list(range(steps))
        ended = (batch.terminated | batch.truncated)[:, 0].tolist()
        assert ended == [False] * (steps - 1) + [True]
        np.testing.assert_array_equal(batch.next_obs[:-1], batch.obs[1:])
        assert policy.act(batch.obs[:, 0]).tolist() == batch.action[:, 0].tolist()
    assert np.unique([batch.env_id[0, 0] for batch in episodes], return_counts=True)[1].tolist() == [3, 3, 2, 2]
    rows, mean = sum(map(len, episodes)), np.mean([batch.reward.sum() for batch in episodes])
    assert printed == f"{tmp_path / 'data'}: {rows:,} steps in 10 batches, 10 episodes, mean return {mean:,.2f}\n"
    about = Dataset(tmp_path / "data").about
    assert (about["env"], about["mode"], about["policy"], about["seed"]) == ("CartPole-v1", "eval", "policy.pt", 0)
    assert sum(batch.rows for batch in FromDataset(tmp_path / "data", 16)) == rows


def test_steps_are_fragments_in_which_episodes_go_on(run: Path, tmp_path: Path) -> None:
    """T7: rounded up to fill the environments; in collect mode the policy explores."""
    batches, printed = recorded(run, tmp_path / "data", "--steps", 599, "--collect")
    assert [batch.shape for batch in batches] == [(128, 4), (22, 4)]
    assert "600 steps in 2 batches" in printed
    both = Batch.cat(batches)
    ended = (both.terminated | both.truncated)[:-1]
    assert (np.diff(both.episode_id, axis=0) == ended).all()
    assert (both.t[1:] == np.where(ended, 0, both.t[:-1] + 1)).all()
    greedy = flowrl.load(run).act(both.obs.reshape(-1, 4)).reshape(-1, 4)
    assert 0.05 < (greedy != both.action).mean() < 0.95


def test_it_follows_from_the_seed(run: Path, tmp_path: Path) -> None:
    """S3, D1"""
    first, again, other = (
        recorded(run, tmp_path / str(i), "--episodes", 3, "--seed", seed, *more)[0]
        for i, (seed, more) in enumerate([(7, ()), (7, ()), (8, ("--last", "--env-arg", "max_episode_steps=9"))])
    )
    assert first == again
    assert [len(batch) for batch in other] == [9, 9, 9]
    assert all(batch.truncated[-1, 0] for batch in other)
    assert not any((batch.obs[0] == first[0].obs[0]).any() for batch in other)


def upright(obs: Any) -> Any:
    """Pushes the cart under the pole."""
    return (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(int)


def test_a_policy_without_a_run_demonstrates(tmp_path: Path) -> None:
    """A function of one's own, and random actions to compare it with."""
    options = ("--env", "CartPole-v1", "--env-arg", "max_episode_steps=60", "--episodes", 4)
    lengths = {}
    for name in (f"{__name__}:upright", "random"):
        out = tmp_path / name.rpartition(":")[2]
        done = command("record", "--policy", name, "--out", out, *options)
        assert done.exit_code == 0, done.output
        episodes, about = list(Dataset(out).verify()), Dataset(out).about
        assert (about["policy"], about["env"], about["env_args"]) == (name, "CartPole-v1", {"max_episode_steps": 60})
        assert "run" not in about
        lengths[out.name] = [len(batch) for batch in episodes]
    assert np.mean(lengths["upright"]) > 1.5 * np.mean(lengths["random"])


def test_what_cannot_be_recorded_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for words, message in [
        ((run, "--out", tmp_path / "new"), "give --episodes N or --steps N"),
        ((run, "--out", tmp_path / "new", "--episodes", 1, "--steps", 1), "give --episodes N or --steps N"),
        ((run, "--out", run, "--steps", 1), "exists already; give a new folder"),
        ((run, "--out", tmp_path / "taken", "--steps", 1), "is a file"),
        ((tmp_path / "nowhere", "--out", tmp_path / "new", "--steps", 1), "nowhere is not there"),
        ((run, "--out", tmp_path / "taken" / "new", "--steps", 1), "cannot be written: Not a directory"),
        ((run, "--steps", 1), "Missing option '--out'"),
        (("--out", tmp_path / "new", "--steps", 1), "give the directory of a run, or --policy"),
        ((run, "--policy", "random", "--out", tmp_path / "new", "--steps", 1), "give the directory of a run, or"),
        (("--policy", "random", "--out", tmp_path / "new", "--steps", 1), "--policy random needs --env"),
        ((*SCRIPT, "math:cosine", "--out", tmp_path / "new", "--steps", 1), "no attribute 'cosine'. Expected 'random'"),
        ((*SCRIPT, "math:pi", "--out", tmp_path / "new", "--steps", 1), "expected a function of observations"),
        ((run, "--out", tmp_path / "new", "--steps", 0), "'0' is not a whole number of at least 1"),
    ]:
        done = command("record", *words)
        assert done.exit_code == 2
        assert message in done.output
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "taken").read_text() == "mine"


def test_the_manifest_says_of_which_spaces_they_are(run: Path, tmp_path: Path) -> None:
    """What learns without an environment needs them."""
    import gymnasium

    from flowrl.envs.dataset_spaces import spaces_of

    recorded(run, tmp_path / "data", "--episodes", 1)
    env = gymnasium.make("CartPole-v1")
    assert spaces_of(Dataset(tmp_path / "data")) == (env.observation_space, env.action_space)


def test_actions_are_as_the_environment_gets_them(tmp_path: Path) -> None:
    """G6: whatever scale a policy draws in; and no log-probability is kept of what was not recorded."""
    settings = {
        "sac": ("hidden=[8]", "random_steps=0", "learning_starts=1000"),
        "ppo": ("hidden=[8]", "log_std=1.0", "train_batch_size=1024"),
    }
    for plan, given in settings.items():
        words = [word for setting in (*given, "eval_episodes=1") for word in ("--set", setting)]
        out = tmp_path / plan
        done = command("run", plan, "--env", "Pendulum-v1", *words, "--stop-steps", 40, "--out", out, "--quiet")
        assert done.exit_code == 0, done.output
        batches, _ = recorded(out, tmp_path / f"{plan}-data", "--steps", 64, "--collect")
        action = Batch.cat(batches).action
        assert 1.5 < abs(action).max() <= 2.0
        assert "logp" not in batches[0]
        played, _ = recorded(out, tmp_path / f"{plan}-played", "--steps", 8)
        greedy = flowrl.load(out).act(played[0].obs.reshape(-1, 3))
        np.testing.assert_allclose(greedy, played[0].action.reshape(-1, 1), rtol=1e-5)

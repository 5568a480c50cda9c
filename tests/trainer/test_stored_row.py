"""Where a stored row came from, and its episode played again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl.errors import ConfigError
from flowrl.plans import DQN, PPO, SAC, TwoTrainers
from flowrl.trainer.stored_row import stored_row
from tests.cli.parts import flowrl

SMALL: dict[str, Any] = {
    **{"hidden": (8,), "learning_starts": 50, "replay_ratio": 4, "batch_size": 16, "n_step": 1, "seed": 3},
    **{"report_every": 100, "envs_per_worker": 4, "torch_threads": 1, "device": "cpu"},
}


class Restless(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations that no seed determines."""

    steps = 0

    def step(self, action: Any) -> Any:
        Restless.steps += 1
        obs, *rest = self.env.step(action)
        return obs + np.float32(Restless.steps), *rest


def trained(kind: type[DQN], out: Path, env: str = "CartPole-v1", steps: int = 300, **settings: Any) -> Path:
    with kind(env, out=out, **{**SMALL, **settings}) as trainer:
        trainer.train(env_steps=steps, progress=False)
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run over two groups of environments."""
    return trained(DQN, tmp_path_factory.mktemp("stored") / "run", env_groups=2)


def test_every_stored_episode_plays_again(run: Path) -> None:
    """D11: the run's seed and the row's worker, env_id and episode_id give the seed; the stored actions the rest."""
    newest = stored_row(run)
    columns = newest.buffer.columns("worker", "env_id", "episode_id")
    which = np.stack([columns[name] for name in ("worker", "env_id", "episode_id")], 1)
    _, slots = np.unique(which, axis=0, return_index=True)
    assert set(columns["worker"].tolist()) == {0, 1}
    assert len(slots) > 8
    played = [stored_row(run, slot).play_again() for slot in slots.tolist()]
    assert sum(played) == len(newest.buffer)


@pytest.mark.parametrize(
    "settings", [{"env_manager": "subprocess"}, {"episode_seeds": [7, 8, 9]}], ids=["processes", "fixed seeds"]
)
def test_whoever_steps_and_seeds_the_environments(settings: dict[str, Any], tmp_path: Path) -> None:
    """D11: in processes of their own, and with seeds that are given."""
    row = stored_row(trained(DQN, tmp_path / "run", **settings))
    assert int(row.row["episode_id"]) > 0
    assert row.play_again() > 0


def test_actions_are_played_as_the_environment_got_them(tmp_path: Path) -> None:
    """G6: a row has the action that the policy drew."""
    settings = {"random_steps": 0, "episode_seeds": None}
    run = trained(SAC, tmp_path / "run", "Pendulum-v1", 400, **settings)
    assert stored_row(run).play_again() > 0


def test_an_environment_that_is_not_deterministic_is_found_out(tmp_path: Path) -> None:
    """D11: at which step, and what it gave instead."""
    run = trained(DQN, tmp_path / "run", wrappers=["tests.trainer.test_stored_row:Restless"])
    with pytest.raises(ConfigError, match=r"its episode differs at step 1: .* not deterministic given its seed"):
        stored_row(run, trusted=True).play_again()


def test_what_cannot_be_told_is_refused(run: Path, tmp_path: Path) -> None:
    """F10: what is missing, in one line."""
    small = trained(DQN, tmp_path / "small", buffer_size=64, learning_starts=20)
    oldest = stored_row(small)
    slot = int(oldest.buffer.slots(0))
    with pytest.raises(ConfigError, match="the buffer no longer has the steps before"):
        stored_row(small, slot).play_again()
    with pytest.raises(ConfigError, match=r"row 64: the rows of ReplayBuffer in .* have the slots 0 to 63"):
        stored_row(small, 64)
    with pytest.raises(ConfigError, match="buffer 'other': dqn has ReplayBuffer"):
        stored_row(small, buffer="other")
    with pytest.raises(ConfigError, match=r"--film film\.gif: expected a file that ends in \.mp4"):
        stored_row(run).play_again("film.gif")
    with PPO("CartPole-v1", out=tmp_path / "ppo", hidden=(8,), torch_threads=1, device="cpu") as trainer:
        trainer.train(env_steps=100, progress=False)
    with pytest.raises(ConfigError, match="ppo has no replay buffer"):
        stored_row(tmp_path / "ppo")
    shutil.rmtree(small / "checkpoints")
    with pytest.raises(ConfigError, match="has no checkpoint"):
        stored_row(small)


def test_neither_games_nor_native_vectors_play_again(tmp_path: Path) -> None:
    """F10, D11: a row has the actions of one agent; and who steps all environments at once seeds their episodes."""
    with TwoTrainers(out=tmp_path / "game", dqn={"learning_starts": 50}, torch_threads=1, device="cpu") as trainer:
        trainer.train(env_steps=1_000, progress=False)
    game = stored_row(tmp_path / "game")
    assert game.seed >= 0
    with pytest.raises(ConfigError, match="a game of several agents, which cannot be played again"):
        game.play_again()
    native = stored_row(trained(DQN, tmp_path / "native", env_manager="vector"))
    with pytest.raises(ConfigError, match="CartPole-v1 steps all its environments at once, and seeds their episodes"):
        native.play_again()


def test_the_command_tells_and_films(run: Path, tmp_path: Path) -> None:
    row = stored_row(run, 5)
    film = tmp_path / "film.mp4"
    done = flowrl("show", run, "--row", 5, "--film", film)
    assert done.exit_code == 0, done.output
    first, origin, *_, last = done.output.splitlines()
    assert first == f"slot 5 of ReplayBuffer in {row.checkpoint}, of {len(row.buffer)} rows"
    assert origin.startswith(f"worker {row.row.worker}, env_id {row.row.env_id}, episode_id {row.row.episode_id}, ")
    assert origin.endswith(f"its episode began with the seed {row.seed}")
    assert last == f"played again: {len(row.episode)} steps, with the stored observations, in {film}"
    assert film.stat().st_size > 1000

"""Videos of evaluation episodes: which are filmed, and what cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.errors import ConfigError
from flowrl.rollout import evaluate, video
from tests import broken_envs as broken
from tests.clock_envs import TERMINATED, ClockEnv
from tests.scripted import ScriptedPolicy


class Pictured(ClockEnv):
    """A clock that shows its time as a shade of grey, if asked to."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        super().__init__(0, [(length, TERMINATED)])
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((32, 32, 3), self.clock % 256, np.uint8)


def frames(file: Path) -> int:
    from moviepy.video.io.VideoFileClip import VideoFileClip

    with VideoFileClip(str(file)) as clip:
        return round(clip.duration * clip.fps)


def test_three_episodes_are_filmed(tmp_path: Path) -> None:
    """The first ones of the first environments, from the first observation to the last; no score changes (S6)."""
    policy = ScriptedPolicy()
    found = evaluate(policy, Pictured, episodes=9, seed=0, num_envs=2, video=tmp_path / "nine")
    assert found == evaluate(policy, Pictured, episodes=9, seed=0, num_envs=2)
    names = ["eval-episode-0.mp4", "eval-episode-1.mp4", "eval-episode-2.mp4"]
    assert sorted(file.name for file in (tmp_path / "nine").iterdir()) == names
    assert [frames(tmp_path / "nine" / name) for name in names] == [6, 6, 6]
    evaluate(policy, Pictured, episodes=3, seed=0, num_envs=3, video=tmp_path / "three")
    assert sorted(file.name for file in (tmp_path / "three").iterdir()) == names
    evaluate(policy, Pictured, episodes=3, seed=0, num_envs=3, video=tmp_path / "three")  # films are replaced


def test_a_film_ends_before_memory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are held until the episode ends, so they are bounded; one that is cut has its film too."""
    monkeypatch.setattr(video, "FRAMES", 4)
    evaluate(ScriptedPolicy(), Pictured, episodes=1, seed=0, video=tmp_path / "long")
    assert frames(tmp_path / "long" / "eval-episode-0.mp4") == 5
    monkeypatch.undo()
    evaluate(ScriptedPolicy(), lambda **args: Pictured(50, **args), episodes=1, seed=0, max_steps=7, video=tmp_path)
    assert frames(tmp_path / "eval-episode-0.mp4") == 8


class Blind(Pictured):
    def render(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Blind, r"gives no pictures as arrays; its render modes are \['rgb_array'\]"),
        (lambda render_mode: ClockEnv(0, [(1, TERMINATED)]), r"gives no pictures as arrays; its render modes are \[\]"),
        (lambda: Pictured(render_mode=None), 'the environment must take render_mode="rgb_array"'),
    ],
)
def test_what_cannot_be_filmed_is_refused(env: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(ScriptedPolicy(), env, episodes=1, seed=0, video=tmp_path / "films")
    assert not (tmp_path / "films").exists()


def test_without_a_display_the_way_out_is_told(tmp_path: Path) -> None:
    """At once: MuJoCo does not survive a second try."""
    before = broken.RaisesInRender.tries
    with pytest.raises(ConfigError, match=r"^no video: OSError: cannot connect .*broken_envs.py:.*; .* MUJOCO_GL=egl"):
        evaluate(ScriptedPolicy(), broken.RaisesInRender, episodes=1, seed=0, video=tmp_path)
    assert broken.RaisesInRender.tries == before + 1


def test_of_what_a_process_holds_once_one_environment_is_filmed(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"environment 1 cannot .* multiple emulator .*; a film of one episode needs one"
    ):
        evaluate(ScriptedPolicy(), broken.OneAtATime, episodes=2, seed=0, video=tmp_path)
    assert len(evaluate(ScriptedPolicy(), broken.OneAtATime, episodes=1, seed=0, video=tmp_path)) == 1


@pytest.mark.parametrize(("package", "env"), [("moviepy", Pictured), ("pygame", "CartPole-v1")])
def test_a_missing_package_is_named(package: str, env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one command that brings it, and without a folder for films that there are not."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"{package} is not installed: pip install 'flowrl-engine\[envs\]'$"):
        evaluate(ScriptedPolicy(), env, episodes=1, seed=0, video=tmp_path / "films")
    assert not (tmp_path / "films").exists()

"""Environments whose first one records videos of its episodes, with gymnasium's RecordVideo."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy as np
from gymnasium.wrappers import RecordVideo

from flowrl.envs import EnvFactory, Environments, EnvManager
from flowrl.errors import ConfigError

Env = gymnasium.Env[Any, Any]

#: Episodes to film, and frames of each: all frames of an episode stay in memory until it ends.
EPISODES, FRAMES = 3, 1_000


class _Film(RecordVideo[Any, Any]):
    """One film per episode: with a `video_length`, gymnasium's would continue into the next episode."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self.recording:
            self.stop_recording()  # type: ignore[no-untyped-call]
        return super().reset(**options)


def filmed(environments: Environments, num_envs: int, folder: Path, episodes: int = EPISODES) -> EnvManager:
    """Environments in this process; the first one's first `episodes` become folder/eval-episode-0.mp4 and so on.

    Raises: ConfigError if the environment renders no pictures, or a package for them is not installed.
    """
    if environments.is_one_object:
        raise ConfigError("no video: films are of environments of their own, but there is one environment object")
    plain = environments.factory
    camera = attrs.evolve(plain, env_args={**environments.env_args, "render_mode": "rgb_array"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's, of what is refused here or of videos that are replaced
        try:
            _look(_made(camera))
            first: Env = _Film(
                *(_made(camera), str(folder)),
                episode_trigger=lambda episode: episode < episodes,
                video_length=FRAMES,
                name_prefix="eval",
                gc_trigger=None,
            )
        except gymnasium.error.DependencyNotInstalled as error:
            raise ConfigError(f"videos need what the extra `envs` of flowrl-engine brings: {error}") from error
    return EnvManager([first, *(plain() for _ in range(num_envs - 1))])


def _made(camera: EnvFactory) -> Env:
    try:
        return camera()
    except ConfigError as error:
        raise ConfigError(f'no video: the environment must take render_mode="rgb_array": {error}') from error


def _look(env: Env) -> None:
    """Render one picture of a disposable environment."""
    try:
        env.reset(seed=0)
        picture = None if env.render_mode is None else env.render()
    except NotImplementedError:
        picture = None
    finally:
        env.close()
    if not isinstance(picture, np.ndarray):
        modes = env.metadata.get("render_modes", [])
        raise ConfigError(f"no video: the environment gives no pictures as arrays; its render modes are {modes}")

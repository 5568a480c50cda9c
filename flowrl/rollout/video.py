"""Environments whose first ones record videos of their episodes, with gymnasium's RecordVideo."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import RecordVideo

from flowrl.envs import EnvFactory, Environments, EnvManager, Manager
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


def filmed(environments: Environments, num_envs: int, folder: Path, shares: Sequence[int]) -> Manager:
    """Environments in this process, which play as many episodes each as `shares` says; three of these are filmed.

    They are the first ones of the first environment, eval-episode-0.mp4 and so on, and, where it plays fewer, those of
    the next ones, eval-env-1-episode-0.mp4. All agents of a game are in one film.

    Raises: ConfigError if the environment renders no pictures, or a package for them is not installed.
    """
    if environments.is_one_object:
        raise ConfigError("no video: films are of environments of their own, but there is one environment object")
    plain = environments.factory
    camera = attrs.evolve(plain, env_args={**environments.env_args, "render_mode": "rgb_array"})

    counts = [min(share, max(0, EPISODES - sum(shares[:i]))) for i, share in enumerate(shares)]

    def film(env: Env, env_id: int = 0) -> _Film:
        return _Film(
            *(env, str(folder)),
            episode_trigger=lambda episode: episode < counts[env_id],
            video_length=FRAMES,
            name_prefix=f"eval-env-{env_id}" if env_id else "eval",
            gc_trigger=None,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's, of what is refused here or of videos that are replaced
        try:
            _look(_made(camera, num_envs))
            seen = film(_shown(_made(camera, num_envs)))
            others = [i for i in range(1, num_envs) if counts[i]]
            films = [seen, *(film(_shown(_made(camera, num_envs)), i) for i in others)]
        except gymnasium.error.DependencyNotInstalled as error:
            raise ConfigError(f"videos need what the extra `envs` of flowrl-engine brings: {error}") from error
    return EnvManager([*films, *(plain() for _ in range(num_envs - len(films)))])


def _made(camera: EnvFactory, num_envs: int) -> Any:
    try:
        return camera.first_of(num_envs)
    except ConfigError as error:
        raise ConfigError(f'no video: the environment must take render_mode="rgb_array": {error}') from error


def _shown(env: Any) -> Env:
    """The environment that a film is of."""
    if not isinstance(env, VectorEnv):
        return env  # type: ignore[no-any-return]
    raise ConfigError(f"no video: {env} steps its environments itself; name a single environment of that kind")


def _look(made: Any) -> None:
    """Render one picture of a disposable environment."""
    try:
        env = _shown(made)
        env.reset(seed=0)
        picture = None if env.render_mode is None else env.render()
    except NotImplementedError:
        picture = None
    finally:
        made.close()
    if not isinstance(picture, np.ndarray):
        modes = env.metadata.get("render_modes", [])
        raise ConfigError(f"no video: the environment gives no pictures as arrays; its render modes are {modes}")

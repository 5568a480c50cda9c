"""Environments whose first ones record videos of their episodes, with gymnasium's RecordVideo."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
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


def missing(package: str = "moviepy") -> str:
    """The extra that films need, with the command that installs it, if the package is not there; else ""."""
    found = find_spec(package) is not None
    return "" if found else f"the extra `envs`, since {package} is not installed: pip install 'flowrl-engine[envs]'"


class _Film(RecordVideo):  # of other parameters below 1.3
    """One film per episode: with a `video_length`, gymnasium's would continue into the next episode."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self.recording:
            self.stop_recording()  # type: ignore[no-untyped-call]
        return super().reset(**options)


def filmed(environments: Environments, num_envs: int, folder: Path, shares: Sequence[int]) -> Manager:
    """Environments in this process, which play as many episodes each as `shares` says; three of these are filmed.

    They are the first ones of the first environment, eval-episode-0.mp4 and so on, and, where it plays fewer, those of
    the next ones. All agents of a game are in one film.

    Raises: ConfigError if the environment renders no pictures, or a package for them is not installed.
    """
    if lacking := missing():
        raise ConfigError(f"no video: it needs {lacking}")
    if environments.is_one_object:
        raise ConfigError("no video: films are of environments of their own, but there is one environment object")
    plain = environments.factory
    camera = attrs.evolve(plain, env_args={**environments.env_args, "render_mode": "rgb_array"})

    counts = [min(share, max(0, EPISODES - sum(shares[:i]))) for i, share in enumerate(shares)]

    def film(env: Env, env_id: int = 0) -> _Film:
        first = sum(counts[:env_id])
        made = _Film(
            *(env, str(folder)),
            episode_trigger=lambda episode: episode < first + counts[env_id],
            video_length=FRAMES,
            name_prefix="eval",
            gc_trigger=None,
        )
        made.episode_id += first  # the number in the name of the next film, less one
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's, of what is refused here or of videos that are replaced
        try:
            _look(_made(camera, num_envs))
            seen = film(_shown(_made(camera, num_envs)))
            filming = [i for i in range(1, num_envs) if counts[i]]
            films = [seen, *(film(_shown(_made(camera, num_envs)), i) for i in filming)]
        except gymnasium.error.DependencyNotInstalled as error:
            lacking = missing("pygame") if "pygame" in str(error) else ""
            raise ConfigError(f"no video: {f'it needs {lacking}' if lacking else error}") from error
    others = [plain() for _ in range(num_envs - len(films))]
    return EnvManager([*films, *others], episode_seeds=environments.episode_seeds)


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

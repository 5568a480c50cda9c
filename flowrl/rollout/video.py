"""Environments whose first ones record videos of their episodes, with gymnasium's RecordVideo."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
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
from flowrl.frames import one_line

Env = gymnasium.Env[Any, Any]

#: What to do where a picture cannot be rendered.
NO_DISPLAY = "without a display, set MUJOCO_GL=egl or MUJOCO_GL=osmesa for MuJoCo, and run others under xvfb-run"

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
    the next ones. All agents of a game are in one film. `check_video` has passed.

    Raises: ConfigError if a process can hold one environment alone.
    """
    counts = [min(share, max(0, EPISODES - sum(shares[:i]))) for i, share in enumerate(shares)]

    def film(env: Env, env_id: int) -> _Film:
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

    plain, camera = environments.factory, _camera(environments)
    envs: list[Env] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium's, of videos that are replaced
            envs.extend(film(camera(), i) if i == 0 or counts[i] else plain() for i in range(num_envs))
    except Exception as error:
        for env in envs:
            env.close()
        raise ConfigError(
            f"no video: environment {len(envs)} cannot be made beside the others in this process: {one_line(error)}; a "
            "film of one episode needs one environment"
        ) from error
    return EnvManager(envs, episode_seeds=environments.episode_seeds)


def check_video(environments: Environments, num_envs: int = 1) -> None:
    """Render one picture of a disposable environment, once: some libraries do not survive a second failure.

    Raises: ConfigError, with the way out, if there is no picture, or a package for films is not installed.
    """
    if lacking := missing():
        raise ConfigError(f"no video: it needs {lacking}")
    if environments.is_one_object:
        raise ConfigError("no video: films are of environments of their own, but there is one environment object")
    made: Any = None
    picture, modes = None, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's, and those of libraries that miss a display
        try:
            made = _camera(environments).first_of(num_envs)
            if isinstance(made, VectorEnv):
                raise ConfigError(f"{made} steps its environments itself; name a single environment of that kind")
            made.reset(seed=0)
            modes = made.metadata.get("render_modes", [])
            picture = None if made.render_mode is None else made.render()
        except NotImplementedError:
            pass
        except gymnasium.error.DependencyNotInstalled as error:
            lacking = missing("pygame") if "pygame" in str(error) else ""
            raise ConfigError(f"no video: {f'it needs {lacking}' if lacking else error}") from error
        except ConfigError as error:
            must = 'the environment must take render_mode="rgb_array": ' if made is None else ""
            raise ConfigError(f"no video: {must}{error}") from error
        except Exception as error:
            raise ConfigError(f"no video: {one_line(error)}; {NO_DISPLAY}") from error
        finally:
            with suppress(Exception):  # what cannot render may not close either
                made.close()
    if not isinstance(picture, np.ndarray):
        raise ConfigError(f"no video: the environment gives no pictures as arrays; its render modes are {modes}")


def _camera(environments: Environments) -> EnvFactory:
    return attrs.evolve(environments.factory, env_args={**environments.env_args, "render_mode": "rgb_array"})

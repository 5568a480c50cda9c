"""Atari games in the setups of the papers, of ale_py."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
from gymnasium.wrappers import AtariPreprocessing, ClipReward, FrameStackObservation

from flowrl.envs.pictures import NETWORK
from flowrl.envs.wrappers import RawRecorder
from flowrl.errors import ConfigError, closest
from flowrl.settings import NATURE

#: What differs between the two conventions.
CONVENTIONS: dict[str, dict[str, Any]] = {
    "v5": {"repeat_action_probability": 0.25, "noop_max": 0, "fire": False, "episodic_life": False},
    "v4": {"repeat_action_probability": 0.0, "noop_max": 30, "fire": True, "episodic_life": True},
}


def make(
    game: str,
    /,
    *,
    frame_skip: int = 4,
    frame_stack: int = 4,
    screen_size: int = 84,
    clip_reward: bool = True,
    noop_max: int | None = None,
    fire: bool | None = None,
    episodic_life: bool | None = None,
    **args: Any,
) -> gymnasium.Env[Any, Any]:
    """A game as the papers play it: `Pong`, `Pong-v5`, or `Pong-v4`. Observations are `[4, 84, 84]`, uint8, stacks of
    grey pictures, of which each is the maximum of the last two of four frames; rewards are clipped to [-1, 1].

    `v5`, the default, repeats the last action in a frame with probability 0.25 and ends with the game (Machado et al.,
    2018, section 5). `v4` does not, begins with up to 30 frames without action, presses FIRE where a game waits for it,
    and ends an episode for learning with each life (Mnih et al., 2015; Baselines' `wrap_deepmind`). Both count returns
    and lengths in the emulator: of the whole game, unclipped, in frames (S1, T9). Policies have the network of the
    papers, as by `network=nature`. `args` are those of ale_py.

    Raises: ConfigError if ale_py or OpenCV is not installed, or there is no such game.
    """
    name, _, version = game.partition("-")
    if version and version not in CONVENTIONS:
        raise ConfigError(f"'atari:{game}': expected atari:{name}, with sticky actions as -v5, or atari:{name}-v4")
    for module, package in (("ale_py", "ale-py"), ("cv2", "opencv-python-headless")):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"'atari:{game}' needs {package}: pip install 'flowrl-engine[atari]'") from error
    known = [each[4:-3] for each in gymnasium.registry if each.startswith("ALE/") and each.endswith("-v5")]
    if name not in known:
        raise ConfigError(f"no game {name!r} in ale_py: {closest(name, known)}")
    convention = CONVENTIONS[version or "v5"]
    noops, fires, lives = (
        convention[key] if given is None else given
        for key, given in (("noop_max", noop_max), ("fire", fire), ("episodic_life", episodic_life))
    )
    sticky = {"repeat_action_probability": convention["repeat_action_probability"]}
    made = gymnasium.make(f"ALE/{name}-v5", disable_env_checker=True, **{**sticky, **args, "frameskip": 1})
    how: dict[str, Any] = {"noop_max": noops, "frame_skip": frame_skip, "screen_size": screen_size}
    env: gymnasium.Env[Any, Any] = AtariPreprocessing(RawRecorder(made.unwrapped), **how)
    env = EpisodicLife(env) if lives else env
    meanings = made.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    env = FireReset(env) if fires and meanings[1] == "FIRE" and len(meanings) > 2 else env
    env = ClipReward(env, -1, 1) if clip_reward else env
    env = FrameStackObservation(env, frame_stack)
    vars(env.observation_space)[NETWORK] = NATURE
    return env


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each life; the game goes on at the next reset, by a step without action.

    Source: `EpisodicLifeEnv` of OpenAI Baselines, `common/atari_wrappers.py`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.lives, self.game_over = 0, True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps; terminated if a life is lost."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.game_over = terminated or truncated
        lost = 0 < info["lives"] < self.lives
        self.lives = info["lives"]
        return obs, reward, terminated or lost, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins the next life, or a new game if it is over."""
        if not self.game_over:
            obs, _, terminated, truncated, info = self.env.step(0)
            self.game_over = terminated or truncated
        if self.game_over:
            obs, info = self.env.reset(seed=seed, options=options)
            self.game_over = False
        self.lives = info["lives"]
        return obs, info


class FireReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE, which some games wait for, and the next key, after each reset.

    Source: `FireResetEnv` of OpenAI Baselines, `common/atari_wrappers.py`.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets, and presses both."""
        obs, info = self.env.reset(seed=seed, options=options)
        for key in (1, 2):
            obs, _, terminated, truncated, info = self.env.step(key)
            if terminated or truncated:
                obs, info = self.env.reset(seed=seed, options=options)
        return obs, info

"""Functions that make environments of packages whose own ones need a few lines: see docs/environments.md."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


def crafter_env() -> Any:
    """Crafter has the interface of classic gym, and its own spaces."""
    import crafter

    return crafter.Env()


def speaker_listener() -> Any:
    """A game whose agents SuperSuit makes alike."""
    import supersuit
    from mpe2 import simple_speaker_listener_v4

    env = simple_speaker_listener_v4.parallel_env()
    return supersuit.pad_action_space_v0(supersuit.pad_observations_v0(env))


def gymnax_cartpole() -> Any:
    """One of gymnax's environments with the interface of gymnasium."""
    import gymnax
    from gymnax.wrappers.gym import GymnaxToGymWrapper

    env, params = gymnax.make("CartPole-v1")
    return GymnaxToGymWrapper(env, params)


class BraxEnv(gymnasium.Env[Any, Any]):
    """One environment of Brax, whose state it holds."""

    def __init__(self, name: str) -> None:
        import jax
        from brax import envs

        self.env = envs.create(name, episode_length=200, auto_reset=False)
        self.start, self.go, self.key = jax.jit(self.env.reset), jax.jit(self.env.step), jax.random.PRNGKey
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.env.observation_size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (self.env.action_size,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = self.start(self.key(int(self.np_random.integers(2**31))))
        return np.asarray(self.state.obs, np.float32), {}

    def step(self, action: Any) -> Any:
        self.state = self.go(self.state, action)
        over = bool(self.state.done)
        cut = bool(self.state.info["truncation"])
        return np.asarray(self.state.obs, np.float32), float(self.state.reward), over and not cut, over and cut, {}


def brax_fast() -> Any:
    return BraxEnv("fast")

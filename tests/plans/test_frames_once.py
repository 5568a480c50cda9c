"""Plans whose environment stacks frames store each frame once, and learn what they learn with all of them stored."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.plans.built import described
from tests.plans.small import final, make, weights


class Noise(gymnasium.Env):
    """Random pixels; the first one says which action is rewarded."""

    observation_space = spaces.Box(0, 255, (12, 12), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.frame = self.np_random.integers(0, 256, (12, 12), np.uint8)
        return self.frame, {}

    def step(self, action):
        reward = float(action == self.frame[0, 0] % 2)
        self.frame = self.np_random.integers(0, 256, (12, 12), np.uint8)
        return self.frame, reward, bool(self.frame[0, 1] < 20), bool(self.frame[0, 2] < 10), {}


class ChannelsLast(gymnasium.ObservationWrapper):
    """As Stable-Baselines3 and SuperSuit stack."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (12, 12, 4), np.uint8)

    def observation(self, observation):
        return np.moveaxis(np.asarray(observation), 0, -1)


def stacked(padding_type="reset", last=False):
    env = gymnasium.wrappers.FrameStackObservation(Noise(), 4, padding_type=padding_type)
    return ChannelsLast(env) if last else env


def zeros_first():
    return stacked("zero")


def last():
    return stacked(last=True)


@pytest.mark.parametrize(
    ("plan", "env"),
    [
        ("dqn", "last"),
        ("r2d2", "stacked"),
        *(pytest.param(name, "last", marks=pytest.mark.slow) for name in ("rainbow", "apex_dqn")),
        *(pytest.param(name, "zeros_first", marks=pytest.mark.slow) for name in ("dqn", "r2d2")),
    ],
)
def test_parameters_equal_those_of_full_storage(plan, env):
    """B13: bit for bit, once the buffer has wrapped; nothing of a draw depends on how frames are stored."""
    once, full = (final(plan, 6, env=f"{__name__}:{env}", share_frames=how) for how in (True, False))
    assert once[0] == full[0]
    assert described(weights(once[1])) == described(weights(full[1]))


@pytest.mark.parametrize("plan", ["dqn", "r2d2", "apex_dqn"])
def test_explain_says_what_is_stored_once(plan):
    """B13: and nothing where observations are small, or all is stored."""
    env = {"env": f"{__name__}:stacked"}
    for settings, said in ((env, True), ({**env, "share_frames": False}, False), ({}, False)):
        workers, made = make(plan, **settings)
        with workers:
            assert ("frames stored once: 4 x 12 x 12 as 12 x 12" in made.explain()) == said

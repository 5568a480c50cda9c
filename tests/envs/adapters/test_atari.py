"""Atari in the setups of the papers, beside the emulator played by a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.envs import make_env, make_manager
from flowrl.envs.wrappers import recorder
from flowrl.errors import ConfigError

STEPS = 700


def emulated(game: str, sticky: float, actions: list[int], seed: int, keys: tuple[int, ...]) -> list[tuple[float, int]]:
    """Returns and lengths of the games that `actions` play, each for four frames, in the emulator alone: the first
    begins with `seed`, no-ops drawn as gymnasium does, and `keys`; each lost life is followed by a no-op and the keys.
    """
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env: Any = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=sticky).unwrapped
    queue, games, total, lives = list(actions), list[tuple[float, int]](), 0.0, 0
    seeds = iter([seed])

    def hold(action: int) -> str:
        """Whether the game goes on ("") after four frames, or a "life" or the "game" is over."""
        nonlocal total, lives
        lives = env.ale.lives()
        for _ in range(4):
            _, reward, ended, _, info = env.step(action)
            total += reward
            if ended:
                games.append((total, info["episode_frame_number"]))
                return "game"
        return "life" if info["lives"] < lives else ""

    ended = "game"
    while queue:
        if ended == "game":
            env.reset(seed=next(seeds, None))
            total = 0.0
            for _ in range(env.np_random.integers(1, 31) if keys else 0):
                total += env.step(0)[1]
        if ended and keys:
            after = [hold(key) for key in ((0,) if ended == "life" else ()) + keys]
            assert "game" not in after
        ended = hold(queue.pop(0))
        ended = ended if keys else ended.replace("life", "")
    return games


@pytest.mark.needs("ale_py")
@pytest.mark.parametrize(("name", "sticky", "keys"), [("Breakout", 0.25, ()), ("Breakout-v4", 0.0, (1, 2))])
def test_returns_and_lengths_are_those_of_the_emulator(name: str, sticky: float, keys: tuple[int, ...]) -> None:
    """S1, T9: whole games, unclipped, in frames, though v4 learns from lives."""
    actions = np.random.default_rng(1).integers(4, size=STEPS).tolist()
    env = make_env(f"atari:{name}")
    obs, _ = env.reset(seed=5)
    counted: Any = recorder(env)
    assert obs.shape == (4, 84, 84)
    assert obs.dtype == np.uint8 == env.observation_space.dtype
    found, ends = [], 0
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
        assert reward in (-1, 0, 1)
        if terminated or truncated:
            ends += 1
            if counted.ended is not None:
                found.append(counted.ended)
                counted.ended = None
            env.reset()
    assert found == emulated("Breakout", sticky, actions, 5, keys)
    assert len(found) > 1
    assert (ends > 2 * len(found)) is bool(keys)


@pytest.mark.needs("ale_py")
def test_a_manager_reports_games() -> None:
    """T9: the life that ends is no episode of the statistics, and what is reported is raw."""
    with make_manager("atari:Breakout-v4", 1) as manager:
        assert manager.raw_returns
        manager.launch(seed=0)
        ends = sum(int(manager.step([t % 4]).terminated[0]) for t in range(STEPS))
        games = manager.drain()
    assert 0 < len(games) <= ends // 5 + 1
    assert all(each.length > 4 * 5 for each in games)


@pytest.mark.needs("ale_py")
def test_arguments_are_those_of_the_setup_and_of_the_emulator() -> None:
    env = make_env("atari:Pong-v4", {"frame_stack": 2, "clip_reward": False, "full_action_space": True})
    assert env.observation_space.shape == (2, 84, 84)
    assert env.action_space.n == 18  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no game 'Pongg' in ale_py: did you mean 'Pong'"):
        make_env("atari:Pongg")
    with pytest.raises(ConfigError, match="refuses env_args"):
        make_env("atari:Pong", {"sticky": True})


def test_a_convention_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected atari:Pong, with sticky actions as -v5, or atari:Pong-v4"):
        make_env("atari:Pong-v3")

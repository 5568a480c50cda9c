"""X2: a number that is not finite, or that float32 does not hold, is a fault of the environment that returned it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from flowrl.envs import EnvManager, Manager
from flowrl.errors import SchemaError
from tests.clock_envs import TERMINATED, ClockEnv, DictClockEnv, End
from tests.managers import EVERY, FROM_FACTORIES, Make, vector

NAN, INF, WIDE = float("nan"), float("inf"), 1e39
LENGTH = 3

#: What is returned, when, and how the message describes it.
FLAWS: list[tuple[str, float, str]] = [
    ("step", NAN, "the observation is nan"),
    ("step", -INF, "the observation is -inf"),
    ("step", WIDE, "the observation is inf"),  # as float32, which its space says
    ("last", INF, "the observation is inf"),
    ("reset", NAN, "the observation is nan"),
    ("reward", NAN, "the reward is nan"),
    ("reward", 10**400, "the reward is 100000000000000000...0000000000000000000"),
    ("reward", INF, "the reward is inf"),
    ("reward", -WIDE, "the reward is -1e+39"),
]


class Flawed(ClockEnv):
    """Returns one bad number in its second episode."""

    def __init__(self, index: int, ends: Sequence[End], noisy: bool = False, flaws: Any = ()) -> None:
        super().__init__(index, ends, noisy)
        self.place, self.value, _ = flaws[index]

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        bad = self.episode == 1 and self.step_in_episode == (LENGTH if self.place == "last" else 2)
        return obs, self.value if bad and self.place == "reward" else reward, *rest

    def _obs(self) -> Any:
        at = {"step": 2, "last": LENGTH, "reset": 0}.get(self.place)
        if self.episode == 1 and self.step_in_episode == at:
            return np.array([0.0, self.value, 0.0])  # float64, which is converted
        return super()._obs()


def flawed(make: Make, flaws: list[tuple[str, float, str]]) -> Any:
    return make([[(LENGTH, TERMINATED)]] * len(flaws), kind=functools.partial(Flawed, flaws=flaws))


def played(manager: Manager, steps: int) -> None:
    manager.launch(0)
    for _ in range(steps):
        manager.step(np.zeros(manager.num_envs, np.int64))


@pytest.mark.parametrize("kind", sorted(FROM_FACTORIES.keys() - {"local", "subprocess-each", "async-two"}))
def test_it_costs_an_episode_like_any_fault(kind: str) -> None:
    """X2: in processes and threads; and it counts towards `max_retry`, as faults do."""
    with flawed(EVERY[kind], FLAWS) as manager:
        manager.launch(0)
        faults: dict[int, Any] = {}
        for _ in range(500):  # an asynchronous manager answers in any order
            manager.step(np.zeros(len(FLAWS), np.int64))
            faults |= {fault.env_id: fault for fault in reversed(manager.drain_faults())}
            if len(faults) == len(FLAWS):
                break
        for env_id, (place, _, words) in enumerate(FLAWS):
            fault = faults[env_id]
            assert f"SchemaError: {words}, expected a finite number" in fault.message
            assert (fault.kind, fault.during) == ("observation", "reset" if place == "reset" else "step")
        assert manager.cut_episodes >= len(FLAWS)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # by gymnasium's vector environments
@pytest.mark.parametrize("kind", ["local", *(mode.name for mode in AutoresetMode)])
def test_in_this_process_it_ends_the_run(kind: str) -> None:
    """X2: with the name of the environment, wherever the number is: at an episode's end and at its start too."""
    for flaw in FLAWS:
        with flawed(EVERY[kind], [("none", 0.0, ""), flaw]) as manager:
            with pytest.raises(SchemaError, match=re.escape(f"{flaw[2]}, expected a finite number")) as caught:
                played(manager, 3 * LENGTH)
            assert "environment 1" in "\n".join([str(caught.value), *caught.value.__notes__])


def test_it_is_named_by_its_key() -> None:
    """X2: of dictionaries; whole numbers need no look."""

    class Blind(DictClockEnv):
        def _obs(self) -> Any:
            obs = super()._obs()
            obs["goal"]["vector"][1] = INF if self.clock == 1002 else 0
            return obs

    manager = EnvManager([Blind(0, [(9, TERMINATED)])])
    with pytest.raises(SchemaError, match=r"the observation\['goal'\]\['vector'\] is inf"):
        played(manager, 2)


def test_the_largest_numbers_of_float32_pass() -> None:
    """X2: their sum and their squares overflow, they do not."""
    largest = np.finfo(np.float32).max

    class Wide(ClockEnv):
        def step(self, action: Any) -> Any:
            return np.array([largest, -largest, 1]), -float(largest), *super().step(action)[2:]

    manager = EnvManager([Wide(0, [(9, TERMINATED)])])
    manager.launch(0)
    assert manager.step([0]).next_obs[0].tolist() == [largest, -largest, 1]


def test_a_reward_that_nobody_reads_is_not_looked_at() -> None:
    """T1, X2: the one beside the reset of a NEXT_STEP environment."""
    manager = vector(AutoresetMode.NEXT_STEP)([[(1, TERMINATED)]])
    step = manager._env.step  # type: ignore[attr-defined]
    fill: list[float] = [0.0, NAN]
    manager._env.step = lambda actions: (  # type: ignore[attr-defined]
        lambda obs, reward, *rest: (obs, np.array([fill.pop(0)]), *rest)
    )(*step(actions))
    manager.launch(0)
    manager.step([0])
    acted = manager.step([0]).acted
    assert acted is not None
    assert not acted.any()


def test_an_action_that_is_not_finite_is_the_policys() -> None:
    """X2: no environment gets it."""

    class Pushed(ClockEnv):
        def __init__(self, index: int, ends: Sequence[End]) -> None:
            super().__init__(index, ends)
            self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    manager = EnvManager([Pushed(i, [(9, TERMINATED)]) for i in range(2)])
    manager.launch(0)
    with pytest.raises(SchemaError, match=r"environment 1: the action is nan, .*; the policy gave it"):
        manager.step([[0, 0], [0, NAN]])

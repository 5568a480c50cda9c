"""dm_env's interface as gymnasium's, by a chain that has specs of each kind, and no package of theirs."""

from __future__ import annotations

import enum
import logging
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs import make_env, make_manager
from flowrl.envs.wrappers import pack, unpack
from flowrl.errors import ConfigError


class StepType(enum.IntEnum):
    FIRST = 0
    MID = 1
    LAST = 2


class TimeStep(NamedTuple):
    step_type: StepType
    reward: Any
    discount: Any
    observation: Any

    def last(self) -> bool:
        return self.step_type is StepType.LAST


@attrs.frozen
class Array:
    shape: tuple[int, ...] = ()
    dtype: Any = np.float64


@attrs.frozen
class BoundedArray(Array):
    minimum: Any = 0
    maximum: Any = 1


@attrs.frozen
class DiscreteArray(BoundedArray):
    num_values: int = 2


class StringArray(Array):
    pass


@attrs.define(slots=False)
class Chain:
    """Counts its steps; episodes end after 3 with the discounts given, in turn."""

    discounts: tuple[Any, ...] = (0.0, 1.0)
    inside: float = 1.0
    reward: Any = Array()
    action: Any = DiscreteArray((), np.int32, 0, 2, 3)
    seen: Any = attrs.Factory(lambda: {"clock": BoundedArray((), np.int32, 0, 3), "draw": Array((2,), np.float32)})
    rng: Any = attrs.Factory(lambda: np.random.RandomState(0))
    clock: int = 0
    episode: int = -1
    acted: list[Any] = attrs.Factory(list)

    def action_spec(self) -> Any:
        return self.action

    def observation_spec(self) -> Any:
        return self.seen

    def reward_spec(self) -> Any:
        return self.reward

    def discount_spec(self) -> Any:
        return BoundedArray()

    def close(self) -> None:
        pass

    def reset(self) -> TimeStep:
        self.clock, self.episode = 0, self.episode + 1
        return TimeStep(StepType.FIRST, None, None, self.observed())

    def step(self, action: Any) -> TimeStep:
        self.clock += 1
        self.acted.append(action)
        if self.clock < 3:
            return TimeStep(StepType.MID, np.array(0.5), self.inside, self.observed())
        return TimeStep(StepType.LAST, 2.0, self.discounts[self.episode % len(self.discounts)], self.observed())

    def observed(self) -> Any:
        return {"clock": np.int32(self.clock), "draw": self.rng.random_sample(2).astype(np.float32)}


@attrs.define(slots=False)
class Outer:
    """A wrapper as bsuite has them."""

    _env: Any
    _rng: Any = attrs.Factory(lambda: np.random.default_rng(0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: Any) -> TimeStep:
        found = self._env.step(action)
        return found._replace(reward=float(found.reward + self._rng.random()))


@pytest.mark.parametrize("kind", ["local", "vector"])
def test_a_last_step_terminates_by_a_discount_of_0_and_is_truncated_by_any_other(kind: str) -> None:
    """T4: and the reset that follows loses no step."""
    with make_manager(lambda: Chain((0.0, 1.0, 0.5)), 1, kind=kind) as manager:
        manager.launch(seed=0)
        rows = []
        while len(rows) < 9:
            found = manager.step([1])
            if found.acted is None or found.acted[0]:
                rows.append([float(each[0]) for each in (found.next_obs.clock, *found[1:4])])
        assert [(each.return_, each.length) for each in manager.drain()] == [(3.0, 3)] * 3
    inside = [[1, 0.5, 0, 0], [2, 0.5, 0, 0]]
    assert rows == [*inside, [3, 2, 1, 0], *inside, [3, 2, 0, 1], *inside, [3, 2, 0, 1]]


def test_specs_become_spaces_and_actions_have_the_dtype_of_their_spec() -> None:
    parts = {
        "wheel": BoundedArray((2,), np.float32, [-1, 0], 1),
        "gear": BoundedArray((), np.int32, 1, 5),
        "lights": BoundedArray((2,), np.int8, 0, [1, 2]),
        "on": Array((), np.bool_),
        "any": Array((1,), np.uint8),
    }
    env = make_env(lambda: Chain(seen=parts, action=[parts["wheel"], parts["gear"]]))
    seen = env.observation_space
    assert isinstance(seen, spaces.Dict)
    assert seen["wheel"] == spaces.Box(np.array([-1, 0], np.float32), 1, (2,), np.float32)
    assert (seen["gear"], seen["on"]) == (spaces.Box(1, 5, (), np.int32), spaces.Box(0, 1, (), np.bool_))
    assert seen["any"] == spaces.Box(0, 255, (1,), np.uint8)
    chain = Chain(action=parts["lights"])
    env = make_env(lambda: chain)
    assert env.action_space == spaces.MultiDiscrete([2, 3])
    env.reset()
    env.step(np.array([1, 2]))
    assert chain.acted[0].dtype == np.int8
    assert make_env(lambda: Chain(action=parts["gear"])).action_space == spaces.Discrete(5, start=1)
    env = make_env(lambda: Chain())
    env.reset()
    env.step(2)
    obs = env.reset()[0]
    assert env.observation_space.contains(obs)


def test_a_seed_reaches_every_generator_of_the_layers() -> None:
    """D6: equal seeds give equal episodes, others others, though dm_env knows no seed."""

    def played(seed: int) -> list[Any]:
        obs, _ = env.reset(seed=seed)
        steps = [env.step(0) for _ in range(3)]
        return [obs["draw"].tolist(), *([each[0]["draw"].tolist(), each[1]] for each in steps)]

    env = make_env(lambda: Outer(Chain()))
    first = played(7)
    assert played(8) != first
    assert played(7) == first


def test_it_is_saved_in_the_middle_of_an_episode() -> None:
    """D3: a copy goes on as it does."""
    env = make_env(lambda: Chain())
    env.reset(seed=1)
    env.step(0)
    packed = pack(env)
    assert packed is not None
    copy = unpack(packed, "it")
    assert str(copy.step(1)) == str(env.step(1))


def test_a_discount_inside_an_episode_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    env = make_env(lambda: Chain(inside=0.9))
    env.reset(seed=0)
    with caplog.at_level(logging.WARNING, "flowrl"):
        assert [env.step(0)[4]["discount"] for _ in range(2)] == [0.9, 0.9]
    assert caplog.text.count("a discount of 0.9 inside an episode") == 1


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (Chain(reward=Array((2,))), "reward_spec of Chain .*expected one number"),
        (Chain(seen={"word": StringArray((), np.str_)}), r"\['word'\].*expected a dm_env spec of numbers"),
        (Chain(seen={"z": Array((), np.complex64)}), r"\['z'\].*expected a dm_env spec of numbers"),
        (Chain(reward={"left": Array(), "right": Array()}), "reward_spec of Chain .*expected one number"),
        (Chain(seen={"size": 3}), "expected a dm_env spec of numbers"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(chain: Chain, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_env(lambda: chain)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dm_env:catch", "expected bsuite/ID, as in dm_env:bsuite/catch/0, or dm_control/DOMAIN/TASK"),
        ("dm_env:bsuite/catch/0", "needs bsuite: pip install bsuite"),
        ("dm_env:dm_control/cartpole/swingup", "needs dm_control: pip install dm-control"),
    ],
)
def test_a_name_that_is_not_there_says_the_way_out(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_env(name)

"""Dictionaries of observations: every manager gives nested batches, each leaf true to its step and its dtype."""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.data import Batch
from flowrl.envs import EnvManager, Manager, SubprocessEnvManager, VectorEnvManager, make_manager
from flowrl.errors import CheckpointError, ConfigError, SchemaError
from tests.clock_envs import (
    BOTH,
    TERMINATED,
    TRUNCATED,
    ClockEnv,
    DictClockEnv,
    ReusedDictClockEnv,
    Table,
    actions_at,
    around,
    assert_one_tick,
    clock_envs,
    clock_vector,
    clocks_of,
    collect,
    plain,
)
from tests.clock_envs import SHORT_TABLE as TABLE

SAME_STEP = AutoresetMode.SAME_STEP


def own(table: Table, *, kind: type[ClockEnv] = DictClockEnv, **kwargs: Any) -> Manager:
    make = clock_envs(table, kind=kind, **kwargs)
    return EnvManager([make() for _ in table])


def vector(mode: AutoresetMode, **how: Any) -> Callable[..., Manager]:
    return lambda table, kind=DictClockEnv, **kwargs: VectorEnvManager(
        clock_vector(table, mode, kind=kind, **how, **kwargs)
    )


def in_processes(table: Table, *, kind: type[ClockEnv] = DictClockEnv) -> Manager:
    return SubprocessEnvManager([functools.partial(kind, index, ends) for index, ends in enumerate(table)])


MANAGERS = {"own": own, **{mode.name: vector(mode) for mode in AutoresetMode}}
MANAGERS |= {f"{mode.name}-around": vector(mode, make=around) for mode in AutoresetMode}
every_manager = pytest.mark.parametrize("make", MANAGERS.values(), ids=MANAGERS)
tables = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([TERMINATED, TRUNCATED, BOTH])), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)

# -- rows


@every_manager
@given(table=tables)
def test_every_leaf_of_every_row_is_one_step_further(make: Callable[..., Manager], table: Table) -> None:
    """T1, T2, T6: each leaf is a clock of its own, and none is left behind at an episode's end."""
    with make(table) as manager:
        manager.launch(0)
        for step in range(12):
            before = manager.obs
            result = manager.step(actions_at(step, len(table)))
            acted = np.ones(len(table), bool) if result.acted is None else result.acted
            assert_one_tick(before[acted], result.next_obs[acted])
            np.testing.assert_array_equal(result.next_obs.where[:, 0], np.arange(len(table)))
            shown = clocks_of(manager.obs)
            assert all((shown[leaf] == shown["count"]).all() for leaf in ("goal.vector", "goal.bits", "where"))
            assert (shown["image"] == shown["count"] % 256).all()


@given(table=tables)
@settings(max_examples=10)
def test_all_modes_give_the_same_sequences(table: Table) -> None:
    """T3: and those of the same environments with array observations."""

    def rows(name: str, **kwargs: Any) -> Any:
        with MANAGERS[name](table, **kwargs) as manager:
            manager.launch(7)
            collected = collect(manager, 14)
        return [[(*row[:3], *row[4:]) for row in each] for each in collected]

    sequences = {name: rows(name) for name in MANAGERS}
    arrays = rows("SAME_STEP", kind=ClockEnv)
    for i in range(len(table)):
        length = min(len(each[i]) for each in sequences.values())
        reference = sequences["SAME_STEP"][i][:length]
        assert all(each[i][:length] == reference for each in sequences.values())
        assert [(row[2]["goal"]["vector"], row[-1]["goal"]["vector"]) for row in reference] == [
            (row[2], row[-1]) for row in arrays[i][:length]
        ]


@every_manager
def test_columns_have_the_spaces_dtypes_and_names(make: Callable[..., Manager]) -> None:
    """B6: uint8 stays uint8; the columns are [N, ...], nested as the space is."""
    with make(TABLE) as manager:
        manager.launch(0)
        for obs in (manager.obs, manager.step([0, 0, 0]).next_obs, manager.obs):
            assert repr(obs) == (
                "Batch[3](image=uint8[3, 2, 3, 1], count=int64[3], "
                "goal=Batch[3](vector=float32[3, 3], bits=int8[3, 20]), where=int64[3, 2])"
            )


@every_manager
def test_buffers_last_as_long_as_promised(make: Callable[..., Manager]) -> None:
    """The observation acted from survives the step, in every leaf."""
    with make(TABLE) as manager:
        manager.launch(0)
        for step in range(8):
            before, copy = manager.obs, plain(manager.obs)
            result = manager.step(actions_at(step, 3))
            assert plain(before) == copy
            if not manager.done.any():
                assert result.next_obs is manager.obs


@pytest.mark.parametrize("mode", AutoresetMode)
def test_subprocesses_give_the_sequences_of_this_process(mode: AutoresetMode) -> None:
    """T2, T3: AsyncVectorEnv hands its dictionaries out of shared memory."""
    fork = functools.partial(AsyncVectorEnv, context="fork")
    with vector(mode)(TABLE, noisy=True, make=fork) as manager, vector(mode)(TABLE, noisy=True) as reference:
        manager.launch(4)
        reference.launch(4)
        assert collect(manager, 9) == collect(reference, 9)


@every_manager
def test_environments_that_reuse_dictionary_and_arrays(make: Callable[..., Manager]) -> None:
    """T2: rows are copies; where the last observation is lost to the reset, that is said."""
    with make(TABLE, kind=ReusedDictClockEnv) as manager, make(TABLE) as reference:
        manager.launch(0)
        reference.launch(0)
        if make is MANAGERS["SAME_STEP-around"]:
            with pytest.raises(SchemaError, match=r"environment 2 reuses the memory of its observation, .*EnvManager"):
                manager.step([0, 0, 0])
        else:
            assert collect(manager, 9) == collect(reference, 9)


class TupleClockEnv(ClockEnv):
    """Observes a tuple with a dictionary in it that holds another tuple; each leaf shows the clock."""

    def __init__(self, index: int, ends: Any, noisy: bool = False) -> None:
        super().__init__(index, ends, noisy)
        pair = spaces.Tuple([spaces.MultiBinary(20), spaces.Discrete(10**6)])
        self.observation_space = spaces.Tuple([self.observation_space, spaces.Dict(pair=pair)])

    def _obs(self) -> Any:
        return super()._obs(), {"pair": (self.clock >> np.arange(20) & 1, self.clock)}


@pytest.mark.parametrize("make", [*MANAGERS.values(), in_processes], ids=[*MANAGERS, "subprocess"])
def test_tuples_are_read_as_dictionaries_of_numbered_keys(make: Callable[..., Manager]) -> None:
    """T2: in every manager, true last observations included."""
    with make(TABLE, kind=TupleClockEnv) as manager, make(TABLE) as reference:
        assert list(manager.observation_space.spaces) == ["0", "1"]
        manager.launch(0)
        reference.launch(0)
        for step in range(9):
            ours, theirs = (each.step(actions_at(step, 3)).next_obs for each in (manager, reference))
            for mine, other in ((ours, theirs), (manager.obs, reference.obs)):
                np.testing.assert_array_equal(mine["0"], other.goal.vector)
                np.testing.assert_array_equal(mine["1"].pair["0"], other.goal.bits)
                np.testing.assert_array_equal(mine["1"].pair["1"], other["count"])


class OneGoal(DictClockEnv):
    """A dictionary made anew each time, with the same array in it."""

    bits = np.zeros(20, np.int8)

    def _obs(self) -> Any:
        obs = super()._obs()
        return obs | {"goal": obs["goal"] | {"bits": self.bits}}


def test_the_part_that_is_reused_is_named() -> None:
    """T2: it may be the same for ever, or overwritten by the reset; only the environment knows."""
    with MANAGERS["SAME_STEP-around"](TABLE, kind=OneGoal) as manager:
        manager.launch(0)
        with pytest.raises(
            SchemaError, match=r"environment 2 reuses the memory of its observation\['goal'\]\['bits'\]"
        ):
            manager.step([0, 0, 0])


class Native(VectorEnv[Any, Any, Any]):
    """Two environments at once that end together at every second step; final_obs is one dictionary of arrays."""

    num_envs = 2
    single_observation_space = spaces.Dict(x=spaces.Box(0, 9999, (1,)), in_=spaces.Dict(n=spaces.Discrete(9999)))
    single_action_space = spaces.Discrete(2)

    def __init__(self, **change: Any) -> None:
        self.metadata = {"autoreset_mode": SAME_STEP}
        self.clock, self.change = 0, change

    def _obs(self) -> Any:
        return {"x": np.full((2, 1), self.clock, np.float32), "in_": {"n": np.full(2, self.clock)}} | self.change

    def reset(self, **kwargs: Any) -> Any:
        self.clock += 1000
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.clock += 1
        over = np.full(2, self.clock % 2 == 0)
        infos = {"final_obs": self._obs(), "_final_obs": over} if over.all() else {}
        if over.all():
            self.reset()
        return self._obs(), np.ones(2), over, ~over & False, infos


def test_native_environments_may_give_final_observations_as_a_dictionary_of_arrays() -> None:
    """T2."""
    manager = VectorEnvManager(Native())
    manager.launch(0)
    manager.step([0, 0])
    result = manager.step([0, 0])
    assert plain(result.next_obs) == {"in_": {"n": [1002, 1002]}, "x": [[1002], [1002]]}
    assert plain(manager.obs) == {"in_": {"n": [2002, 2002]}, "x": [[2002], [2002]]}


# -- state


@every_manager
@pytest.mark.parametrize("saved_at", range(6))
def test_a_resumed_manager_goes_on_as_if_nothing_happened(make: Callable[..., Manager], saved_at: int) -> None:
    """D3, D5: mid-episode, through a pickle, into a manager that was never launched; the state is plain data."""
    with make(TABLE, noisy=True) as manager, make(TABLE, noisy=True) as resumed:
        manager.launch(3)
        collect(manager, saved_at)
        state, again = manager.state_dict(), manager.state_dict()
        np.testing.assert_equal(state, again)
        assert type(state["obs"]) is type(state["obs"]["goal"]) is dict
        packed = pickle.dumps(state)
        resumed.load_state_dict(state)
        assert collect(resumed, 8, saved_at) == collect(manager, 8, saved_at)
        np.testing.assert_equal(state, pickle.loads(packed))  # what happens later does not reach it
        resumed.load_state_dict(pickle.loads(packed))
        manager.load_state_dict(state)
        assert collect(resumed, 3, saved_at) == collect(manager, 3, saved_at)


def test_a_state_of_other_observations_is_refused() -> None:
    with own(TABLE) as manager, own(TABLE, kind=ClockEnv) as arrays, own(TABLE) as fewer:
        manager.launch(0)
        arrays.launch(0)
        with pytest.raises(CheckpointError, match=r"holds observations float32\[3, 3\].*are Batch\[3\]\(image=uint8"):
            manager.load_state_dict(arrays.state_dict())
        with pytest.raises(CheckpointError, match=r"holds observations Batch\[3\].*are float32\[3, 3\]"):
            arrays.load_state_dict(manager.state_dict())
        state = manager.state_dict()
        del state["obs"]["goal"]["bits"]
        with pytest.raises(CheckpointError, match=r"goal=Batch\[3, 3\]\(vector=float32\[3, 3\]\)"):
            fewer.load_state_dict(state)


# -- what is refused

GOAL = spaces.Dict(goal=spaces.Dict(at=spaces.Box(-1, 1, (3,), np.float32), near=spaces.Discrete(2)))


class Scripted(gymnasium.Env[Any, Any]):
    """Observes what it is told to."""

    action_space = spaces.Discrete(2)

    def __init__(self, observation_space: Any, observations: Any = ()) -> None:
        self.observation_space, self.observations = observation_space, iter(observations)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return next(self.observations), {}

    def step(self, action: Any) -> Any:
        return next(self.observations), 0.0, False, False, {}


class Mission(spaces.Space[str]):
    """A kind of space that gymnasium does not know."""


BITS = spaces.MultiBinary(3)


def observation(**change: Any) -> Any:
    return {"goal": {"at": np.zeros(3, np.float32), "near": 1} | change}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (observation(at=np.zeros(2)), r"the observation\['goal'\]\['at'\] has shape \(2,\), but its space says \(3,\)"),
        ({"goal": {"at": np.zeros(3)}}, r"observation\['goal'\] lacks 'near'; expected columns: at, near"),
        (observation(far=1), r"observation\['goal'\] has extra 'far'"),
        ({}, "observation lacks 'goal'"),
        (np.zeros(3), r"observation: got ndarray, but its space says a dictionary of 'goal'"),
        ({"goal": 3}, r"observation\['goal'\]: got int, but its space says a dictionary of 'at', 'near'"),
    ],
)
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_wrong_observation_names_its_key_environment_and_step(wrong: Any, message: str, step: int) -> None:
    fine = Scripted(GOAL, [observation()] * 9)
    manager = EnvManager([fine, Scripted(GOAL, [*[observation()] * step, wrong])])

    def run() -> None:
        manager.launch(0)
        for _ in range(step):
            manager.step([0, 0])

    with pytest.raises(SchemaError, match=message) as caught:
        run()
    assert caught.value.__notes__ == [f"in environment 1, episode 0, step {max(0, step - 1)}"]


def test_a_wrong_kind_of_number_names_its_key() -> None:
    manager = EnvManager([Scripted(GOAL, [observation(at=np.zeros(3, complex))])])
    with pytest.raises(SchemaError, match=r"observation\['goal'\]\['at'\] is complex128, but its space says float32"):
        manager.launch(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros(2, np.float32)}, r"observations\['x'\] have shape \(2,\), expected \(2, 1\)"),
        ({"in_": {"n": np.zeros(2)}}, r"observations\['in_'\]\['n'\] are float64, expected int64"),
        ({"in_": {"n": np.full(2, 2**63, np.uint64)}}, r"9223372036854775808 in the observations\['in_'\]\['n'\]"),
        ({"in_": {}}, r"observations\['in_'\] lacks 'n'"),
        ({"y": np.zeros(2)}, "observations has extra 'y'"),
    ],
)
def test_wrong_rows_of_a_vector_environment_name_their_key(change: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        VectorEnvManager(Native(**change)).launch(0)


def test_a_wrong_final_observation_names_its_key() -> None:
    """T2."""

    class Short(Native):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            return *rest, infos | ({"final_obs": {"x": np.zeros((2, 1))}} if infos else {})

    manager = VectorEnvManager(Short())
    manager.launch(0)
    manager.step([0, 0])
    with pytest.raises(SchemaError, match="final_obs of environment 0 lacks 'in_'"):
        manager.step([0, 0])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Tuple([spaces.Text(2)]), r"the observation\['0'\] space Text.* is not one array: .*FlattenObservation"),
        (spaces.Text(3), r"observation space Text.*FlattenObservation"),
        (spaces.Sequence(spaces.Discrete(2)), r"observation space Sequence.*TransformObservation"),
        (spaces.Graph(spaces.Discrete(2), None), r"observation space Graph.*TransformObservation"),
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=spaces.Tuple([spaces.Text(2)]))),
            r"the observation\['b'\]\['c'\]\['0'\] space Text.* is not one array",
        ),
        (spaces.Dict(a=BITS, b=Mission()), r"\['b'\] space Mission .*leave .* FilterObservation\(\['a'\]\)"),
        (Mission(), "observation space .*Mission.*TransformObservation"),
        (spaces.Box(-1, 1, (0,)), "observation space .* holds no number"),
        (None, "the observation space is None, expected a space: set observation_space in the environment"),
        (spaces.Dict(), "is empty: a Dict of observations needs at least one entry"),
        (spaces.Dict({1: spaces.Discrete(2)}), "has the key 1: a column is named by a string"),
    ],
)
def test_other_observation_spaces_are_refused_with_the_way_out(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnvManager([Scripted(space)])


@pytest.mark.parametrize("space", [spaces.Dict(a=spaces.Discrete(2), why=Mission()), spaces.Tuple([Mission(), BITS])])
def test_a_member_of_an_unknown_kind_can_be_left_out(space: Any) -> None:
    """With the wrapper that the message names."""
    seen: Any = {"a": 1, "why": "go"} if isinstance(space, spaces.Dict) else ("go", np.ones(3, np.int8))
    with pytest.raises(ConfigError) as refused:
        EnvManager([Scripted(space)])
    wrapper = re.findall(r"FilterObservation\(.*?\)", str(refused.value))
    with make_manager(lambda: Scripted(space, [seen]), 1, wrappers=wrapper) as manager:
        manager.launch(0)
        assert len(manager.obs.keys()) == 1


@pytest.mark.parametrize("kind", ["FlattenObservation", "TransformObservation"])
def test_the_way_out_is_one(kind: str) -> None:
    """What the message advises leads to a manager that runs."""
    if kind == "FlattenObservation":
        space: Any = spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))])
        env: Any = gymnasium.wrappers.FlattenObservation(Scripted(space, [space.sample()]))
    else:
        box = spaces.Box(0, 9, (1,), np.float32)
        inner = Scripted(spaces.Sequence(spaces.Discrete(2)), [(1, 0, 1)])
        env = gymnasium.wrappers.TransformObservation(inner, lambda obs: np.array([len(obs)], np.float32), box)
    with EnvManager([env]) as manager:
        manager.launch(0)
        assert manager.obs.shape == ((1, 4) if kind == "FlattenObservation" else (1, 1))


def test_environments_must_have_the_same_leaves() -> None:
    def env(**leaves: Any) -> Scripted:
        return Scripted(spaces.Dict(a=spaces.Dict(leaves)))

    small, large = spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,))
    EnvManager([env(x=small), env(x=small)])
    for other in (env(x=large), env(y=small), env(x=small, y=small), env(x=spaces.MultiBinary(2))):
        with pytest.raises(ConfigError, match=r"environment 1 has the observation space Dict.*0 has Dict"):
            EnvManager([env(x=small), other])


def test_keys_that_are_methods_of_a_batch() -> None:
    """Such a column is reached by its key."""
    space = spaces.Dict(items=spaces.Discrete(9), shape=spaces.Box(0, 1, (2,)))
    with EnvManager([Scripted(space, [{"items": 3, "shape": np.ones(2)}])]) as manager:
        manager.launch(0)
        assert isinstance(manager.obs, Batch)
        assert manager.obs["items"].tolist() == [3]
        assert manager.obs["shape"].tolist() == [[1, 1]]


# -- actions


class Keeper(gymnasium.Env[Any, Any]):
    """Keeps the actions it gets."""

    observation_space = spaces.Dict(n=spaces.Discrete(9))

    def __init__(self, action_space: Any) -> None:
        self.action_space, self.actions = action_space, []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return {"n": 0}, {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return {"n": 1}, 0.0, False, False, {}


ACTIONS = [
    (spaces.Box(-1, 1, (2,), np.float32), [[0.5, -0.25], [0.0, 1.0]]),
    (spaces.Box(-1, 1, (), np.float32), [0.5, -0.25]),
    (spaces.Box(-1, 1, (2, 2), np.float64), [[[0.5, 0], [1, 0]], [[0, 0], [0, 0.25]]]),
    (spaces.MultiDiscrete([3, 4]), [[2, 3], [0, 1]]),
    (spaces.MultiBinary(3), [[0, 1, 1], [1, 0, 0]]),
    (spaces.MultiBinary([2, 2]), [[[0, 1], [1, 1]], [[1, 0], [0, 0]]]),
    (spaces.Discrete(3, start=-1), [-1, 1]),
]


@pytest.mark.parametrize("kind", ["own", "vector", "made"])
@pytest.mark.parametrize(("space", "actions"), ACTIONS, ids=[str(space) for space, _ in ACTIONS])
def test_actions_of_every_array_space_reach_their_environment(kind: str, space: Any, actions: Any) -> None:
    """T11: each environment gets its own row, a member of its space."""
    envs = [Keeper(space), Keeper(space)]
    if kind == "own":
        manager: Any = EnvManager(envs)
    elif kind == "vector":
        manager = VectorEnvManager(SyncVectorEnv([functools.partial(lambda env: env, env) for env in envs]))
    else:
        left = iter(envs)
        manager = make_manager(lambda: next(left), 2)
    with manager:
        manager.launch(0)
        given = np.array(actions)
        manager.step(given)
        manager.step(given.tolist())
        given[:] = 0
        for env, expected in zip(envs, actions):
            assert all(np.asarray(action) in space for action in env.actions)
            np.testing.assert_array_equal(np.array(env.actions), np.array([expected] * 2))
        with pytest.raises(SchemaError, match="actions are"):
            manager.step(np.zeros((3, *space.shape), space.dtype))

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from flowrl.envs import Environments, EnvManager, VectorEnvManager, make_env, make_manager
from flowrl.envs.wrappers import layers
from flowrl.errors import ConfigError, EnvFault
from tests.broken_envs import OneAtATime
from tests.clock_envs import TERMINATED, ClockEnv
from tests.envs.adapters.test_gym import OldClock


def factory(length: int = 3) -> ClockEnv:
    return ClockEnv(0, [(length, TERMINATED)])


def make_vector(num_envs: int) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")


def broken(length: int = 3) -> ClockEnv:
    raise TypeError("a mistake of its own")


def test_an_id_is_made_without_the_wrappers_that_cost_time() -> None:
    env = make_env("CartPole-v1", {"max_episode_steps": 7})
    assert not any(isinstance(layer, OrderEnforcing | PassiveEnvChecker) for layer in layers(env))
    env.reset(seed=0)
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    env.unwrapped.theta_threshold_radians = 100  # type: ignore[attr-defined]
    assert [env.step(k % 2)[3] for k in range(7)] == [False] * 6 + [True]


def test_the_passive_checker_can_be_asked_for() -> None:
    env = make_env("CartPole-v1", {"disable_env_checker": False})
    assert any(isinstance(layer, PassiveEnvChecker) for layer in layers(env))


class Spaceless(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    "spec", [factory, "tests.envs.test_make:factory", "gymnasium.envs.classic_control:CartPole-v1"]
)
def test_what_names_an_environment(spec: Any) -> None:
    assert isinstance(make_env(spec), gymnasium.Env)
    with make_manager(spec, 2) as manager:
        assert isinstance(manager, EnvManager)
        manager.launch(0)
        assert manager.num_envs == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("CartPool-v1", "no environment 'CartPool-v1' in gymnasium: did you mean 'CartPole-v1'"),
        ("CartPole-v7", "did you mean 'CartPole-v1'.*There are: CartPole-v0, CartPole-v1$"),
        ("nothing like it", "cannot make 'nothing like it': Malformed"),
        ("Nope-v0", "no name there is like it"),
        (lambda: Spaceless(), "Spaceless has no action_space: set it in the class, or in its __init__"),
        (
            "Nowhere/Zzqx-v0",
            "no environment 'Nowhere/Zzqx-v0' in gymnasium: no name there is like it; name the module that reg",
        ),
        ("ALE/Zaxxon-v5", "ale_py registers it, so name both: ale_py:ALE/Zaxxon-v5"),
        ("PongNoFrameskip-v4", "name both: ale_py:PongNoFrameskip-v4; or atari:Pong-v4, with what papers put around"),
        ("dm_control/walker-walk-v0", "dm_control's environments are dm_env:dm_control/DOMAIN/TASK"),
        ("highway-v0", "highway_env registers it, so name both: highway_env:highway-v0"),
        ("highway_env:highway-v0", "No module named 'highway_env'. Install it: pip install highway-env"),
        ("MiniGrid-Empty-5x5-v0", "minigrid registers it, so name both: minigrid:MiniGrid-Empty-5x5-v0"),
        ("ale_py:ALE/Zaxxon-v5", "'ale_py:ALE/Zaxxon-v5': .* Install it: pip install 'flowrl-engine.atari.'"),
        ("LunarLander-v3", r"it needs the extra box2d: pip install 'flowrl-engine\[box2d\]'"),
        ("HalfCheetah-v5", r"it needs the extra mujoco: pip install 'flowrl-engine\[mujoco\]'"),
        ("math:sqrt", "'math:sqrt' fails when it is called without arguments: TypeError: .*one argument"),
        ("sys:exit", r"'sys:exit' leaves the program when it is made, by SystemExit"),
        (
            "tests.envs.test_make:broken",
            "test_make:broken' fails when .*: TypeError: a mistake of its own, in broken, .*test_make.py:[0-9]+$",
        ),
        ("no_such_module:thing", "'no_such_module:thing': No module named 'no_such_module'"),
        ("math:zzzz", "module 'math' has no environment 'zzzz': no name there is like it$"),
        ("tests.envs.test_make:factoy", "no environment 'factoy': did you mean 'factory'"),
        (3, "3 is no environment"),
        (dict, "dict made a dict, expected a gymnasium.Env"),
    ],
)
def test_what_names_none(spec: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ale_py", "minigrid", "Box2D", "mujoco"):  # as where they are not installed
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=message):
        make_env(spec)
    with pytest.raises(ConfigError, match=message):
        make_manager(spec, 2)


@pytest.mark.parametrize(
    ("spec", "args", "message"),
    [
        ("CartPole-v1", {"sutton_barto": True}, "env_args 'sutton_barto': did you mean 'sutton_barto_reward'"),
        ("CartPole-v1", {"max_episode_steps": -2}, "refuses env_args .*positive"),
        (factory, {"lenght": 3}, "factory refuses env_args 'lenght': did you mean 'length'"),
        ("tests.envs.test_make:factory", {"lenght": 3}, "refuses env_args 'lenght': did you mean 'length'"),
        (broken, {"length": 3}, "refuses env_args .*a mistake of its own"),
    ],
)
def test_bad_arguments(spec: Any, args: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(spec, args)


def test_bad_arguments_of_an_ids_own_vectorised_implementation() -> None:
    with pytest.raises(ConfigError, match="env_args 'sutton_barto': did you mean 'sutton_barto_reward'"):
        make_manager("CartPole-v1", 2, {"sutton_barto": True}, kind="vector")


def test_a_factorys_own_error_keeps_its_type() -> None:
    with pytest.raises(TypeError, match="a mistake of its own"):
        make_env(broken)


def test_outdated_versions_warn() -> None:
    with pytest.warns(DeprecationWarning, match="out of date"):
        make_env("CartPole-v0")


@pytest.mark.parametrize(
    "spec", [make_vector, lambda: make_vector(4), CartPoleVectorEnv, "tests.envs.test_make:make_vector"]
)
def test_factories_of_vector_environments(spec: Any) -> None:
    with make_manager(spec, 4) as manager:
        assert isinstance(manager, VectorEnvManager)
        assert manager.num_envs == 4


def test_a_vector_environment_of_another_size_is_refused() -> None:
    env = make_vector(3)
    assert make_manager(env, 3).num_envs == 3
    with pytest.raises(ConfigError, match="holds 3 environments, but num_envs=2: ask for 3"):
        make_manager(env, 2)
    with pytest.raises(ConfigError, match="come too late"):
        make_manager(env, 3, {"max_episode_steps": 3})


def test_one_environment_that_was_made_already_is_the_only_one() -> None:
    env = factory()
    with pytest.raises(ConfigError, match="is one environment: pass a callable that makes a new one each time"):
        make_manager(env, 2)
    with pytest.raises(ConfigError, match=r"env_args .* come too late"):
        make_manager(env, 1, {"length": 2})
    assert make_env(env) is env
    manager = make_manager(env, 1)
    manager.launch(0)
    assert manager.step([0]).next_obs[0, 2] == env.clock


def of_library(module: str, name: str, **members: Any) -> Any:
    """An object like those of a library that is not installed."""
    base = type(name, (), {"__module__": module, **members})
    parts = dict.fromkeys(("reset", "step", "observation_space", "action_space"))
    return type("Theirs", (base,), parts)()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            of_library("stable_baselines3.common.vec_env.base_vec_env", "VecEnv"),
            "Theirs is a vector environment of St",
        ),
        (of_library("torchrl.envs.common", "EnvBase"), "Theirs is an environment of TorchRL, which steps TensorDicts"),
        (
            of_library("envpool.x", "Pool", config={"num_envs": 8, "batch_size": 2}),
            "answers for 2 of its 8",
        ),
    ],
)
def test_vector_environments_of_other_libraries_are_named(env: Any, message: str) -> None:
    for spec in (env, lambda: env):
        with pytest.raises(ConfigError, match=message):
            make_manager(spec, 8)


@pytest.mark.parametrize("num_envs", [0, -1])
def test_no_environments(num_envs: int) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        make_manager("CartPole-v1", num_envs)


@pytest.mark.parametrize("make", [factory, OldClock])
def test_metadata_of_none_is_none(make: Callable[[], Any]) -> None:
    """As environments of earlier years have it that do not render."""
    made = make()
    made.metadata = None
    assert make_env(lambda: made).metadata == {}


def test_environments_are_closed_when_a_later_one_fails() -> None:
    made: list[ClockEnv] = []

    def make() -> ClockEnv:
        if len(made) == 2:
            raise RuntimeError("no more")
        made.append(factory())
        return made[-1]

    with pytest.raises(ConfigError, match=r"that has 2: RuntimeError: no more, in make, .*envs_per_process': 1"):
        make_manager(make, 3)
    assert [env.closed for env in made] == [1, 1]


@pytest.mark.parametrize("kind", ["local", "vector", "thread", "subprocess"])
def test_where_a_process_holds_one_the_way_out_is_a_process_for_each(kind: str) -> None:
    """Whatever the manager, and also where an evaluation's is beside that of training."""
    one = {"envs_per_process": 1}
    with pytest.raises((ConfigError, EnvFault), match=f"(?s)Cannot create multiple .* with env_manager_args={one}"):
        make_manager(OneAtATime, 2, kind=kind, **({"envs_per_process": 2} if kind == "subprocess" else {}))
    OneAtATime.emulators = 0  # of threads
    with make_manager(OneAtATime, 2, kind="subprocess", envs_per_process=1) as manager:
        manager.launch(0)
    with make_manager(OneAtATime, 1), pytest.raises(ConfigError, match=f"in a process that has 1: .*{one}"):
        Environments(OneAtATime).manager(1)


def test_importing_loads_neither_torch_nor_ray() -> None:
    code = "import sys, flowrl.envs; print(sorted({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"

"""Trainer: what a user does with an algorithm, from making one to stopping it."""

from __future__ import annotations

import inspect
import math
import signal
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy as np
import pytest
import torch

import flowrl
from flowrl import Plan, Trainer, from_items
from flowrl.data import ReplayActors, ReplayBuffer
from flowrl.errors import ConfigError, PlanError, SchemaError
from flowrl.operators import Evaluate, ParallelRollouts, StoreToReplay
from flowrl.plans import DQN, PPO
from flowrl.runs.config import build_config
from flowrl.settings import setting
from flowrl.testing import same
from flowrl.trainer.trained_policy import _rows
from tests.broken_envs import Pairs
from tests.plans import small as small_plans
from tests.plans.small import without_clock

SMALL = {**small_plans.SMALL["dqn"], "eval_episodes": 4}


def small(env: Any = "CartPole-v1", **settings: Any) -> DQN:
    return DQN(env, SMALL, **settings)


def results(trainer: Trainer, count: int) -> list[dict[str, Any]]:
    return [without_clock(trainer.train()) for _ in range(count)]


class Numbers(Trainer):
    """Results 10, 20, 30 and the end, without learning."""

    policy = DQN.policy
    Config = DQN.Config

    @staticmethod
    def execution_plan(workers: Any, config: Any) -> Plan:
        return from_items([{"env_steps": n, "score": -n} for n in (10, 20, 30)])


def test_three_lines() -> None:
    """Train, use: the actions fit the environment."""
    dqn = small()
    result = dqn.train(until={"env_steps": 100})
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    assert 100 <= result["env_steps"] < 130
    assert env.action_space.contains(dqn.act(obs))
    assert {"return_mean", "length_mean", "reward_per_step", "win_rate"} <= dqn.evaluate(episodes=3).keys()
    dqn.stop()
    env.close()


def test_flowrl_gives_it_when_asked() -> None:
    from flowrl.trainer.trainer import Trainer as There

    assert flowrl.Trainer is There
    assert {"Trainer", "load"} <= set(flowrl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        flowrl.Trainr  # noqa: B018


@pytest.mark.parametrize("name", ["Batch", "Trainer", "load"])
def test_no_file_shadows_what_is_loaded_when_asked_for(name: str) -> None:
    """Importing a module of that name would put it in place of the function or class."""
    assert not (Path(flowrl.__file__).parent / f"{name}.py").exists()


# -- configuration


def test_help_and_completion_know_the_settings_of_a_class() -> None:
    @attrs.define(kw_only=True)
    class Settings(DQN.Config):
        width: int = setting(3, "how wide", range="1 .. 9")
        gamma: float = 0.5

    class Wide(DQN):
        """Twice as wide."""

        Config = Settings

        def __init__(self, env: Any = None, twice: bool = True, **settings: Any) -> None:
            super().__init__(env, **settings)

    assert str(Wide.__doc__).startswith("Twice as wide.\n\nSettings")
    assert "\n    width (int, 1 .. 9) = 3: how wide\n" in str(Wide.__doc__)
    assert "\n    gamma (float, 0 .. 1) = 0.5: discount per step\n" in str(Wide.__doc__)
    taken = inspect.signature(Wide).parameters
    assert list(taken)[:2] == ["env", "twice"]
    assert {name: taken[name].default for name in ("width", "gamma", "batch_size")} == {
        "width": 3, "gamma": 0.5, "batch_size": 128
    }  # fmt: skip
    assert set(taken) - {"twice"} == {field.name for field in attrs.fields(Settings)}
    assert inspect.signature(DQN).parameters["gamma"].default == 0.99


def test_settings_override_a_mapping_or_a_configuration() -> None:
    with small(gamma=0.5) as trainer:
        assert (trainer.config.gamma, trainer.config.hidden) == (0.5, (16,))
    config = build_config(DQN.Config, SMALL, {"seed": 4})
    with DQN(config=config, tau=0.5) as trainer:
        assert (trainer.config.seed, trainer.config.tau, trainer.config.batch_size) == (4, 0.5, 8)
        assert config.tau == 1.0
    with DQN(config={"seed": 4}, seed=5) as trainer:
        assert trainer.config.seed == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gama": 0.9}, "unknown configuration key 'gama'; did you mean 'gamma'"),
        ({"lr": 0.9}, "unknown configuration key 'lr'; here it is 'learning_rate'$"),
        ({"gamma": 2}, "gamma=2"),
        ({"env": "CartPool-v1"}, "did you mean 'CartPole-v1'"),
        ({"env": "Pendulum-v1"}, "discrete actions"),
        ({"env_args": {"gravity": 1}}, "gravity"),
    ],
)
def test_bad_input_is_refused_before_any_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQN(**settings)


def test_the_configuration_of_a_trainer_does_not_change() -> None:
    """Nor does that of a class of one's own, which is not said to be frozen."""

    class Own(DQN):
        @attrs.define(kw_only=True)
        class Config(DQN.Config):
            width: int = 3

    with made(Own) as trainer:
        for name, value in (("gamma", 0.5), ("width", 4), ("seed", 1)):
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(trainer.config, name, value)
        assert attrs.evolve(trainer.config, width=4).width == 4


def test_a_file_of_values_is_read_by_the_one_who_has_it() -> None:
    with pytest.raises(ConfigError, match=r"config='x.json': expected a mapping or a Config; .*load_config_file"):
        DQN("CartPole-v1", "x.json")  # type: ignore[arg-type]


def cart_pole(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **kwargs)


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium.envs.classic_control:CartPoleEnv", cart_pole])
def test_environments_are_named_or_made_by_a_function(env: Any) -> None:
    with small(env) as trainer:
        trainer.train(until={"env_steps": 40})
        assert "CartPole" in trainer.config.env or "cart_pole" in trainer.config.env
        assert trainer.evaluate(episodes=2)["episodes"] == 2


def test_a_vector_environment_says_how_many_it_holds() -> None:
    env = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    with small(env, **{"envs_per_worker": 3}) as trainer:
        trainer.train()
    env = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    with DQN(env) as trainer:
        assert trainer.config.envs_per_worker == 3
        with pytest.raises(PlanError, match="separate environments"):
            trainer.evaluate()


def test_a_vector_environment_that_was_given_stays_open() -> None:
    """It belongs to whoever made it; another trainer may have it next."""
    env = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    for train in (False, True, True):
        with small(env) as trainer:
            if train:
                trainer.train(until={"env_steps": 40})
        assert not env.closed
    env.close()


@pytest.mark.parametrize("before", [1, 3])
def test_torch_has_as_many_threads_as_before(before: int) -> None:
    """Training sets its own number, also where two trainers take turns."""
    found, seen = torch.get_num_threads(), []
    torch.set_num_threads(before)
    try:
        with small(torch_threads=1) as one, small(torch_threads=2) as two:
            assert torch.get_num_threads() == before
            for trainer in (one, two, one):
                trainer.train(until=lambda _: bool(seen.append(torch.get_num_threads())) or True)
                trainer.evaluate(episodes=1)
                assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(found)
    assert seen == [1, 2, 1]


# -- training


def test_nothing_acts_before_the_first_result() -> None:
    """F1: making one opens no run, begins no episode and draws nothing."""

    class Counting(gymnasium.Wrapper[Any, Any, Any, Any]):
        resets = 0

        def reset(self, **kwargs: Any) -> Any:
            Counting.resets += 1
            return super().reset(**kwargs)

    with small(lambda: Counting(cart_pole())) as trainer:
        assert (trainer.run, trainer.counters, trainer.result, Counting.resets) == (None, {}, {}, 0)
        assert repr(trainer.plan).endswith("not running")
        trainer.train()
        assert trainer.run is not None
        assert trainer.counters["env_steps"] == trainer.result["env_steps"]
        assert Counting.resets > 0


def test_the_same_seed_gives_the_same_results_and_weights() -> None:
    """D1: also when two trainers take turns in one process; each run has resources of its own."""
    with small(seed=1) as alone:
        expected, weights = results(alone, 8), alone.workers.policy.weights()
    with small(seed=1) as one, small(seed=1) as two, small(seed=2) as other:
        turns = [(results(one, 1), results(two, 1), results(other, 1)) for _ in range(8)]
        assert same([a for (a,), _, _ in turns], expected)
        assert same([b for _, (b,), _ in turns], expected)
        assert same(one.workers.policy.weights(), weights)
        assert not same(other.workers.policy.weights(), weights)


def test_evaluating_and_acting_change_nothing_in_training() -> None:
    """S3: nor does drawing actions."""
    with small() as plain:
        expected = results(plain, 6)
    with small() as trainer:
        seen = []
        for _ in range(6):
            trainer.evaluate(episodes=2)
            trainer.act(np.zeros((5, 4)), deterministic=False)
            seen += results(trainer, 1)
    assert same(seen, expected)


def test_global_generators_are_left_alone() -> None:
    """D6: flowrl draws from its own generators only."""
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    with small() as trainer:
        trainer.train(until={"env_steps": 80})
        trainer.evaluate(episodes=2)
        trainer.act(np.zeros(4), deterministic=False)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(torch_before, torch.get_rng_state())


class WithNetwork(Numbers):
    """Its plan brings a network and numbers of its own, from the global generators."""

    @staticmethod
    def execution_plan(workers: Any, config: Any) -> Plan:
        drawn = [*torch.nn.Linear(2, 1).weight.flatten().tolist(), *np.random.rand(2).tolist()]  # noqa: NPY002
        return from_items([{"env_steps": 1, "drawn": drawn}])


def test_what_execution_plan_draws_follows_from_the_seed() -> None:
    """D6, D1: from the global generators of torch and numpy, which stay as they were."""
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    made = {}
    for name, seed in {"one": 1, "again": 1, "another": 2}.items():
        with WithNetwork("CartPole-v1", SMALL, seed=seed) as trainer:
            made[name] = trainer.train()["drawn"]
    assert made["one"] == made["again"]
    assert set(made["one"]).isdisjoint(made["another"])
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002


def test_evaluation_has_the_starts_of_the_plans_own() -> None:
    with small() as trainer:
        trainer.train(until={"env_steps": 80})
        inside = Evaluate(trainer.workers, every=1, episodes=4, seed=trainer.config.seed)({"env_steps": 80})
        assert trainer.evaluate(episodes=4)["return_mean"] == inside["eval_return"]
        assert trainer.evaluate() == trainer.evaluate(episodes=100, seed=0)
        assert trainer.evaluate(episodes=20, seed=7) != trainer.evaluate(episodes=20)


def test_an_evaluation_may_draw_where_one_says_so_and_as_the_setting_says() -> None:
    """S8, Q7: DQN explores as after its training, here at random."""
    with small(eval_deterministic=False, epsilon_start=0.0, epsilon_end=1.0, epsilon_steps=40) as trainer:
        greedy, drawn = (trainer.evaluate(20, deterministic=each) for each in (True, False))
        assert {**greedy, "deterministic": False} == drawn, "epsilon is 0 yet"
        trainer.train(env_steps=60)
        greedy, drawn = trainer.evaluate(20, deterministic=True), trainer.evaluate(20)
    assert (greedy.pop("deterministic"), drawn.pop("deterministic")) == (True, False)
    assert greedy != drawn


# -- until


def test_training_ends_at_the_first_result_that_reaches_a_bound() -> None:
    with small() as trainer:
        steps = trainer.train(until={"env_steps": 70, "episode_return": 1e9})["env_steps"]
        assert 70 <= steps < 90
        assert trainer.train(until={"env_steps": 70})["env_steps"] == steps  # nothing to do
        assert trainer.train(until={"env_steps": 1e9, "episodes": np.int64(1)})["env_steps"] == steps
        assert trainer.train(until=lambda result: result["env_steps"] > 110)["env_steps"] > 110
        assert trainer.train()["env_steps"] > steps


def test_a_bound_may_name_what_comes_with_learning() -> None:
    with small() as trainer:
        assert "updates" not in trainer.train()
        assert trainer.train(until={"updates": 5})["updates"] >= 5
        assert trainer.train(until={"q": -1e9})["q"] is not None


def test_a_bound_that_no_result_has_is_refused_at_the_first_result() -> None:
    with small() as trainer:
        with pytest.raises(ConfigError, match="no result has 'env_step'; did you mean 'env_steps'"):
            trainer.train(until={"env_step": 100})
        assert trainer.counters["env_steps"] < 50
        for nothing in (0, -5, True, math.inf):
            with pytest.raises(ConfigError, match=f"the bound of 'updates' is {nothing}, expected a number above 0"):
                trainer.train(updates=nothing)
        with pytest.raises(ConfigError, match=r"until=lambda result: result.get\('win', 0\) >= 475"):
            trainer.train(until={"win": 475})
        with pytest.raises(ConfigError, match=r"'eval_return', .* set eval_every=N, .* DQN\(..., eval_every=5_000\)"):
            trainer.train(until={"eval_return": 475})
        assert trainer.train()["env_steps"] > 20  # it goes on


def test_a_bound_that_learning_does_not_bring_is_refused_when_it_has_begun() -> None:
    class Plain(DQN):
        @staticmethod
        def execution_plan(workers: Any, config: Any) -> Plan:
            return DQN.execution_plan(workers, config).for_each(
                lambda result: {name: value for name, value in result.items() if name != "sampled"}
            )

    with (
        made(Plain) as trainer,
        pytest.raises(ConfigError, match="no result has 'sampled'"),
    ):
        trainer.train(until={"sampled": 1_000_000})


def made(cls: type[Trainer]) -> Trainer:
    return cls("CartPole-v1", SMALL)


def test_a_bound_may_name_what_an_evaluation_in_the_plan_adds() -> None:
    class Evaluated(DQN):
        @classmethod
        def execution_plan(cls, workers: Any, config: Any) -> Plan:
            plan = super().execution_plan(workers, config)
            return plan.for_each(Evaluate(workers, every=60, episodes=2))

    with made(Evaluated) as trainer:
        result = trainer.train(until={"eval_return": 1})
        assert result["env_steps"] >= 60
        assert result["eval_return"] >= 1


@pytest.mark.parametrize("deterministic", [True, False])
def test_eval_every_evaluates_the_results_and_changes_nothing_else(deterministic: bool) -> None:
    """S3, S8: as `flowrl run` does; a plan that evaluates by itself is left as it is."""
    with small() as plain:
        expected = results(plain, 8)
    with small(eval_every=60, eval_episodes=2, eval_deterministic=deterministic) as trainer:
        seen = results(trainer, 8)
        assert [{k: v for k, v in result.items() if k in expected[0] or "eval" not in k} for result in seen] == expected
        assert 0 < sum("eval_return" in result for result in seen) < 8
        assert trainer.train(until={"best_eval_return": 1})["eval_return"] >= 1
        assert "Evaluate(" in trainer.plan.explain()

    class Own(DQN):
        @classmethod
        def execution_plan(cls, workers: Any, config: Any) -> Plan:
            plan = super().execution_plan(workers, config)
            return plan.for_each(Evaluate(workers, every=config.eval_every, episodes=3))

    with Own("CartPole-v1", SMALL, eval_every=60) as own:
        assert own.plan.explain().count("Evaluate(") == 1


@pytest.mark.parametrize("until", [{}, {"env_steps": "many"}, {"env_steps": float("nan")}, {"done": True}, 500])
def test_bad_bounds_are_refused_before_any_step(until: Any) -> None:
    with small() as trainer:
        with pytest.raises(ConfigError, match="until"):
            trainer.train(until=until)
        assert trainer.counters.get("env_steps", 0) == 0


# -- the end


def test_a_plan_that_ends_gives_its_last_result_from_then_on() -> None:
    with Numbers() as trainer:
        assert trainer.train() == {"env_steps": 10, "score": -10}
        assert not trainer.done
        assert trainer.train(until={"env_steps": 1000}) == {"env_steps": 30, "score": -30}
        assert trainer.done
        assert trainer.train() == {"env_steps": 30, "score": -30}


def test_items_that_are_no_results_are_refused() -> None:
    class Wrong(Numbers):
        @staticmethod
        def execution_plan(workers: Any, config: Any) -> Plan:
            return from_items([1, 2])

    with Wrong() as trainer, pytest.raises(PlanError, match="must be result dicts, got int from Items"):
        trainer.train()


def test_stopping_closes_the_environments_and_leaves_the_policy() -> None:
    """F15: everything is closed, a second stop does nothing, and what was learnt may still be used."""
    closed = []

    class Closing(gymnasium.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append(self)
            super().close()

    trainer = small(lambda: Closing(cart_pole()))
    trainer.train()
    before = trainer.evaluate(episodes=2)
    closed.clear()
    trainer.stop()
    trainer.stop()
    assert len(closed) == 2
    assert trainer.run is not None
    assert trainer.run.closed
    assert trainer.evaluate(episodes=2) == before
    assert trainer.act(np.zeros(4)) in (0, 1)
    for refused in (trainer.train, lambda: trainer.save("x"), lambda: trainer.restore("x")):
        with pytest.raises(PlanError, match="DQN was stopped"):
            refused()


def test_stopping_ends_what_the_plan_has_started() -> None:
    """F15: replay shards may be processes, of which nobody but the plan knows."""
    made: list[ReplayActors] = []

    class Sharded(DQN):
        @staticmethod
        def execution_plan(workers: Any, config: Any) -> Plan:
            made.append(ReplayActors(lambda: ReplayBuffer(100), 2))
            rollouts = ParallelRollouts(workers, steps=2).for_each(StoreToReplay(made[0]))
            return rollouts.for_each(lambda batch: {"env_steps": batch.rows})

    trainer = Sharded("CartPole-v1", SMALL)
    trainer.train()
    assert len(made[0]._actors.members) == 2
    trainer.stop()
    assert made[0]._actors.members == []


def test_leaving_the_block_stops_it_and_keeps_the_error() -> None:
    with pytest.raises(ZeroDivisionError), small() as trainer:
        trainer.train(until=lambda result: 1 / 0)
    with pytest.raises(PlanError, match="stopped"):
        trainer.train()


def test_ctrl_c_ends_a_step_and_training_may_go_on() -> None:
    """D3: interrupted and continued, the results are those of an uninterrupted run."""
    with small() as plain:
        expected = results(plain, 8)
    handler = signal.getsignal(signal.SIGINT)
    seen: list[Any] = []

    def interrupting(result: dict[str, Any]) -> bool:
        seen.append(without_clock(result))
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)
        return len(seen) == 3

    with small() as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.train(until=interrupting)
        assert signal.getsignal(signal.SIGINT) is handler
        assert not trainer.done
        assert same(seen + results(trainer, 5), expected)
    seen.clear()
    with small() as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.train(until=lambda result: interrupting(result) and False)
        assert same(seen + results(trainer, 5), expected)


# -- acting


def test_acting_takes_one_observation_or_several() -> None:
    with small() as trainer:
        many = trainer.act(np.random.default_rng(0).normal(size=(6, 4)))
        assert (many.shape, many.dtype) == ((6,), np.int64)
        assert np.ndim(trainer.act([0.0, 0, 0, 0])) == 0
        assert isinstance(trainer.act(np.zeros(4)), np.int64)
        assert trainer.act(torch.zeros(4)) == trainer.act(np.zeros(4))
        for wrong in (np.zeros(3), np.zeros((2, 2, 4)), np.zeros((4, 1)), 0.0, np.array(["a"] * 4)):
            with pytest.raises(SchemaError, match=r"expected float32\[4\], or \[N, ...\]"):
                trainer.act(wrong)


def test_what_an_environment_returns_beside_an_observation_is_refused() -> None:
    env = gymnasium.make("CartPole-v1")
    with small() as trainer:
        with pytest.raises(SchemaError, match=r"the observation alone, the first element of env.reset\(\)"):
            trainer.act(env.reset(seed=0))
        with pytest.raises(SchemaError, match=r"the first element of env.step"):
            trainer.act(env.step(0))
        with pytest.raises(SchemaError, match=r"cannot be an array of float32\[4\]"):
            trainer.act([[0.0, 1.0], 2.0])
        assert trainer.act(torch.zeros(4, requires_grad=True)) == trainer.act(np.zeros(4))
    env.close()


def test_a_list_of_dictionaries_is_several_observations() -> None:
    one, two = ({"goal": np.full(2, x), "near": x > 0} for x in (-1.0, 1.0))
    space = gymnasium.spaces.Dict(goal=gymnasium.spaces.Box(-1, 1, (2,)), near=gymnasium.spaces.Discrete(2))
    rows, count = _rows([one, two], space)
    assert (rows["goal"].tolist(), rows["near"].tolist(), count) == ([[-1, -1], [1, 1]], [0, 1], 2)
    assert _rows(one, space)[1] is None
    with pytest.raises(SchemaError, match=r"with the keys goal, near, got goal$"):
        _rows([one, {"goal": two["goal"]}], space)


def test_tuples_are_observations_of_tuple_spaces() -> None:
    """As the environment gives them, one or several, and as the dictionary that workers make of them."""
    with PPO(env=Pairs) as trainer:
        one, two = (Pairs().reset(seed=seed)[0] for seed in (0, 1))
        alone = [trainer.act(obs) for obs in (one, two)]
        several = tuple(np.stack(parts) for parts in ((one[0], two[0]), (one[1]["speed"], two[1]["speed"])))
        for obs in ([one, two], (several[0], {"speed": several[1]}), {"0": several[0], "1": {"speed": several[1]}}):
            assert trainer.act(obs).tolist() == alone
        for wrong in ((one[0],), one[0], Pairs().reset(seed=0)):
            with pytest.raises(SchemaError):
                trainer.act(wrong)


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"episodes": -1}, {"episodes": 2.5}, {"seed": -1}])
def test_no_episodes_have_no_score(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with small() as trainer, pytest.raises(ConfigError, match=f"{name}={value}: expected a whole number of at least"):
        trainer.evaluate(**wrong)


def test_stochastic_acting_explores_as_the_schedule_says_and_draws_from_its_own_stream() -> None:
    obs = np.zeros((200, 4), np.float32)
    with small(epsilon_start=1.0, epsilon_end=0.0, epsilon_steps=40) as trainer, small(epsilon_start=1.0) as twin:
        greedy = trainer.act(obs)
        drawn = trainer.act(obs, deterministic=False)
        assert len(set(greedy)) == 1
        assert set(drawn) == {0, 1}
        assert np.array_equal(drawn, twin.act(obs, deterministic=False))
        assert not np.array_equal(drawn, trainer.act(obs, deterministic=False))
        trainer.train(until={"env_steps": 40})
        assert np.array_equal(trainer.act(obs, deterministic=False), trainer.act(obs))

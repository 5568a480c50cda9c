"""A Trainer of one's own: a parent's plan edited by name, another policy, another configuration."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch

from flowrl import Plan, Trainer, operator, state
from flowrl.data import Batch
from flowrl.errors import ConfigError, PlanError
from flowrl.plans import DQN, RNDPPO
from flowrl.policies import DQNPolicy
from flowrl.settings import positive
from flowrl.testing import same
from tests.clock_envs import TERMINATED, ClockEnv
from tests.plans import small as small_plans

SMALL = small_plans.SMALL["dqn"]


@operator
class Scale:
    """Multiplies the rewards, and counts the batches."""

    by: float
    batches: int = state(default=0)

    def __call__(self, batch: Batch) -> Batch:
        self.batches += 1
        return batch.replace(reward=self.by * batch.reward)


class ByStaticMethod(DQN):
    @staticmethod
    def execution_plan(workers: Any, config: Any) -> Plan:
        return DQN.execution_plan(workers, config).insert_after("NStep", Scale(0.0))


class BySuper(DQN):
    @classmethod
    def execution_plan(cls, workers: Any, config: Any) -> Plan:
        return super().execution_plan(workers, config).insert_after("NStep", Scale(0.0))


class Undecorated(DQN):
    def execution_plan(workers: Any, config: Any) -> Plan:  # type: ignore[override,misc]
        return DQN.execution_plan(workers, config).insert_after("NStep", Scale(0.0))


class OfTheInstance(DQN):
    def execution_plan(self, workers: Any, config: Any) -> Plan:  # type: ignore[override]
        return super().execution_plan(workers, config).insert_after("NStep", Scale(0.0))


class Grandchild(BySuper):
    @classmethod
    def execution_plan(cls, workers: Any, config: Any) -> Plan:
        return super().execution_plan(workers, config).replace("Scale", Scale(0.0))


@pytest.mark.parametrize("cls", [ByStaticMethod, BySuper, Undecorated, OfTheInstance, Grandchild])
def test_an_operator_inserted_by_name_into_a_parents_plan_works_in_its_place(cls: type[DQN]) -> None:
    """Rewards of 0 come to the buffer; the parent itself is as it was."""
    with cls("CartPole-v1", SMALL) as trainer, DQN("CartPole-v1", SMALL) as parent:
        text = trainer.plan.explain().splitlines()
        (at,) = [i for i, line in enumerate(text) if "Scale(by=0.0)" in line]
        assert "NStep" in text[at - 1]
        assert "StoreToReplay" in text[at + 1]
        assert "test_override.py:" in text[at]
        for each in (trainer, parent):
            each.train(until={"updates": 10})
        assert not trainer.run.resources["ReplayBuffer"].sample(8).reward.any()
        assert parent.run.resources["ReplayBuffer"].sample(8).reward.all()
        assert trainer.run.state_dict()["operators"]["store.Scale"]["batches"] > 0
        assert "Scale" not in parent.plan.explain()


def test_an_edit_that_names_no_operator_is_refused_with_the_closest() -> None:
    class Wrong(DQN):
        @staticmethod
        def execution_plan(workers: Any, config: Any) -> Plan:
            return DQN.execution_plan(workers, config).insert_after("NSteps", Scale(0.0))

    with pytest.raises(PlanError, match=r"did you mean 'store.NStep'"):
        Wrong("CartPole-v1", SMALL)


class Doubled(DQN):
    """A further setting, and a policy and a plan that follow it."""

    @attrs.define(kw_only=True)
    class Config(DQN.Config):
        width: int = positive(4)

    @staticmethod
    def policy(config: Any, observation_space: Any, action_space: Any) -> DQNPolicy:
        return DQN.policy(attrs.evolve(config, hidden=(config.width,)), observation_space, action_space)


def test_the_policy_and_the_configuration_can_be_overridden() -> None:
    with Doubled("CartPole-v1", SMALL, width=7) as trainer:
        assert (trainer.config.width, trainer.config.gamma) == (7, 0.99)
        assert trainer.workers.policy.hidden == (7,)
    with pytest.raises(ConfigError, match="did you mean 'width'"):
        Doubled("CartPole-v1", SMALL, widht=7)


def test_a_policy_given_stands_for_the_classs_own() -> None:
    """A function like the one it stands for, or a Policy class, which gets the settings that it declares."""
    made = []

    def policy(config: Any, observation_space: Any, action_space: Any) -> DQNPolicy:
        made.append(config)
        return DQNPolicy(observation_space, action_space, hidden=(5,), seed=config.seed, device="cpu")

    with DQN("CartPole-v1", SMALL, policy=policy) as trainer:
        assert made == [trainer.config]
        assert trainer.workers.policy.hidden == (5,)
    with (
        DQN("CartPole-v1", SMALL, policy=DQNPolicy, seed=3) as one,
        DQN("CartPole-v1", SMALL, policy=DQNPolicy, seed=4) as other,
    ):
        spaces = one.workers.policy.observation_space, one.workers.policy.action_space
        alone = DQNPolicy(*spaces, seed=3, hidden=SMALL["hidden"])
        assert same(one.workers.policy.weights(), alone.weights())
        assert not same(one.workers.policy.weights(), other.workers.policy.weights())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("MlpPolicy", "policy='MlpPolicy' is no policy: expected a Policy class, a function"),
        (torch.nn.Linear(4, 2), r"policy=Linear\(.*\) is no policy: .* or the result of policy_from\(model, loss\)"),
        (torch.nn.Linear, "is no policy: expected a Policy class"),
        (lambda *_: None, "policy: lambda returned a NoneType, expected a Policy class"),
        (lambda *_: torch.nn.Linear(4, 2), "policy: lambda returned a Linear, expected a Policy class"),
    ],
)
def test_what_is_no_policy_is_refused(policy: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        DQN("CartPole-v1", SMALL, policy=policy)


def test_a_policy_must_act_as_the_configuration_says() -> None:
    """Whoever makes one passes `act_backend` on; a class of one's own need not know of the default."""

    def forgets(config: Any, *spaces: Any) -> DQNPolicy:
        return DQNPolicy(*spaces, hidden=(8,), device="cpu")

    with DQN(config=SMALL, policy=DQNPolicy, act_backend="numpy") as trainer:
        assert trainer.workers.policy.act_backend == "numpy"
    with DQN(config=SMALL, policy=forgets) as trainer:
        assert trainer.workers.policy.act_backend == "torch"
    with pytest.raises(ConfigError, match=r"act_backend=config\.act_backend, or \*\*config\.for_policy, in .*forgets"):
        DQN(config=SMALL, policy=forgets, act_backend="numpy")
    with pytest.raises(ConfigError, match="act_backend='numpi' is no backend; take one of torch, numpy"):
        DQN(config=SMALL, act_backend="numpi")


def test_super_needs_a_class_method_and_says_so_where_the_class_is_made() -> None:
    with pytest.raises(PlanError, match=r"Bare.execution_plan calls super\(\): make it a class method, with @classm"):

        class Bare(DQN):
            def execution_plan(workers: Any, config: Any) -> Plan:  # type: ignore[override,misc]
                return super().execution_plan(workers, config)  # type: ignore[misc]


def test_without_a_plan_of_ones_own_it_acts_learns_and_reports() -> None:
    """The plan of Trainer itself: each row trains once."""
    with Trainer(policy=DQNPolicy, envs_per_worker=2, fragment_steps=5, report_every=30, device="cpu") as trainer:
        result = trainer.train(until={"env_steps": 60})
        assert result["trained"] == result["env_steps"] == 60
        assert result["updates"] == 6
        assert np.isfinite(result["loss"])


def test_without_a_policy_it_says_how_to_give_one() -> None:
    with pytest.raises(PlanError, match=r"pass policy=\.\.\., or override `policy`"):
        Trainer("CartPole-v1")


def test_a_plan_that_is_none_is_refused_and_the_environments_are_closed() -> None:
    class NoPlan(DQN):
        @staticmethod
        def execution_plan(workers: Any, config: Any) -> Plan:
            seen.append(workers)
            return [1, 2]  # type: ignore[return-value]

    seen: list[Any] = []
    made = [ClockEnv(0, [(3, TERMINATED)]) for _ in range(9)]
    envs = iter(made)
    with pytest.raises(PlanError, match=r"NoPlan.execution_plan returned a list, expected a Plan"):
        NoPlan(lambda: next(envs), SMALL)
    assert seen[0].members == []
    assert [env.closed for env in made] == [1, *[0] * 8]  # the first one told the spaces, no other was made
    assert next(envs) is made[1]


class Forgetful(RNDPPO):
    """Asks what is new, and makes no reward of it."""

    @staticmethod
    def execution_plan(workers: Any, config: Any) -> Plan:
        return RNDPPO.execution_plan(workers, config).remove("CombineRewards")


def test_a_plan_that_must_go_wrong_is_refused_before_anything_starts() -> None:
    """F1: every problem is said where the run would begin; the plan can be looked at."""
    made = [ClockEnv(0, [(3, TERMINATED)]) for _ in range(2)]
    envs = iter(made)
    with Forgetful(lambda: next(envs), small_plans.SMALL["rnd_ppo"]) as trainer:
        for begin in (trainer.train, lambda: trainer.save("nowhere")):
            with pytest.raises(
                PlanError, match=r"EstimateReward \(.*no reward includes its intrinsic_reward: put Combine"
            ):
                begin()
        assert trainer.run is None
        assert trainer.workers.members == []
        assert "EstimateReward" in trainer.plan.explain()
    assert next(envs) is made[1]


def test_a_config_that_is_none_is_refused_where_the_class_is_made() -> None:
    with pytest.raises(ConfigError, match=r"must be a subclass of flowrl.runs.config.Configuration"):

        class Foreign(DQN):
            Config = dict  # type: ignore[assignment]

    with pytest.raises(ConfigError, match=r"needs the decorator @attrs.define"):

        class Bare(DQN):
            class Config(DQN.Config):
                width: int = 3

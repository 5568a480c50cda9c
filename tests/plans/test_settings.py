"""Every setting of every built-in plan matters: another value of it builds something else, which learns otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
import gymnasium
import numpy as np
import pytest

from flowrl.errors import ConfigError, DatasetError, PlanError
from flowrl.plans import DQN
from flowrl.policies import DQNPolicy
from flowrl.runs.config import Configuration
from flowrl.settings import construct
from flowrl.trainer.plan_file import builtin_plans, load_plan_file
from flowrl.trainer.trainer import Trainer
from tests.demonstrations import cartpole, fewer_of_pendulum, one_episode
from tests.plans.built import built, described
from tests.plans.small import FAMILY_PLANS, SMALL, final, first, settings_of, weights

Settings = dict[str, Any]
Field = attrs.Attribute

SPACES = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)

#: Other values of settings that are texts or tables, of which one is needed here; what does not fit is refused.
TEXTS: dict[str, Callable[[], list[Any]]] = {
    **dict.fromkeys(("ppo", "dqn", "manager", "worker"), lambda: [{"gamma": 0.5}]),
    **dict.fromkeys(("privileged", "critic_obs"), lambda: [("obs",), ("agent",), ("nothing",)]),
    "frozen": lambda: [["left"]],
    "team": lambda: [["first"], ["left"]],
    "learners": lambda: [{"main": 1, "main_exploiter": 1}],
    "subgoal": lambda: [(1,)],
    "intrinsic": lambda: ["success"],
    "data": lambda: [cartpole()],
    "eval_opponent": lambda: ["one_ply", None],
    "opponents": lambda: [("random",)],
    "demonstrations": lambda: [one_episode(), fewer_of_pendulum()],
}

#: Sizes of a memory that the plan refuses; what a sum lacks; and what counts for discrete actions only.
UNUSED = {"airl_ppo": ["memory_size", "memory_steps", "memory_layers", "sequence_length"], "vdn": ["mixer_width"]}
#: They refuse Munchausen rewards.
TEAMS = ("qmix", "vdn")
UNUSED |= {name: ["munchausen_temperature", *UNUSED.get(name, [])] for name in TEAMS}
UNUSED |= {name: ["entropy_fraction"] for name in ("her_sac", "sacfd", "redq", "tqc")}
#: Their data here are of one agent.
ONE_AGENT = {name: ["agent"] for name in ("bc", "marwil", "cql", "iql", "td3_bc", "decision_transformer")}
UNUSED |= ONE_AGENT

#: With these a few hundred steps show what a setting does: networks soon differ in what they prefer.
LIVELY = {"learning_rate": 0.03, "target_every": 7, "epsilon_steps": 100, "priority_beta_steps": 100}

#: Where settings show that do nothing in CartPole-v1 with one group of environments, or with another memory.
PLACES: list[Settings] = [
    {"env": "Pendulum-v1", "agents": {}},
    {"env_groups": 2, "envs_per_worker": 4},
    {"recurrent": "gtrxl", "memory_size": 8},
]

#: Who learns where, and how long, and what is stored once: see test_async_plans.py, test_on_policy_plans.py,
#: test_frames_once.py and tests/trainer/test_offline.py.
NOT_LEARNED = {
    "eval_opponent",
    "eval_simulations",
    "num_learners",
    "learn_in_flight",
    "num_aggregators",
    "max_weight_lag",
    "microbatches",
    "data",
    "epochs",
    "prefetch",
    "share_frames",
    "target_return",
}


@pytest.mark.parametrize("plan", first(builtin_plans(), of=FAMILY_PLANS, rest="slow"))
def test_every_setting_shapes_what_is_built(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches operators, policy, buffers or workers, by itself or beside another that is switched on.

    Or the policy asks its settings for it while it learns.
    """
    assert deaf(load_plan_file(plan).trainer, variants(plan), monkeypatch) == UNUSED.get(plan, [])


def test_a_setting_that_is_read_nowhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can fail."""

    @attrs.define(kw_only=True)
    class WithOthers(DQN.Config):
        number: int = 3
        limit: float | None = None
        switch: bool = False
        kind: Literal["one", "another"] = "one"
        text: str = "whatever"

    class Deaf(DQN):
        Config = WithOthers

    plain, *_, munchausen = variants("dqn")
    assert deaf(Deaf, [plain, munchausen], monkeypatch) == ["number", "limit", "switch", "kind", "text"]


def test_what_a_policy_asks_its_settings_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else, so that the first test can fail there too."""
    asked = asked_for(monkeypatch)
    policy = DQNPolicy(*SPACES, double=False)
    assert "dueling" in asked
    asked.clear()
    assert (policy.settings.double, policy.gamma) == (False, 0.99)
    assert {"double", "gamma"} <= asked
    assert "dueling" not in asked


def asked_for(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of all settings that policies made from now on ask for."""
    asked: set[str] = set()

    def construct_watched(cls: type, given: Mapping[str, Any]) -> Any:
        class Watched(cls):  # type: ignore[misc]
            def __getattribute__(self, name: str) -> Any:
                asked.add(name)
                return super().__getattribute__(name)

        settings = construct(cls, given)
        object.__setattr__(settings, "__class__", Watched)
        return settings

    monkeypatch.setattr("flowrl.policies.policy.construct", construct_watched)
    return asked


@pytest.mark.exhaustive
@pytest.mark.parametrize("plan", builtin_plans())
def test_every_setting_changes_what_is_learned(plan: str) -> None:
    """Another value gives other weights; what a plan has of another's settings is seen there."""
    config = load_plan_file(plan).Config
    lively = {name: value for name, value in LIVELY.items() if name in attrs.fields_dict(config)}
    anothers = {
        field.name
        for other in builtin_plans()
        for field in attrs.fields(load_plan_file(other).Config)
        if load_plan_file(other).Config in config.__mro__[1:]
    }
    fields = [field for field in own_settings(config) if field.name not in anothers | NOT_LEARNED]

    def learned(settings: Settings) -> Any:
        return described(weights(final(plan, 8, **settings)[1]))

    usual = {**settings_of(plan), **lively}
    besides = [{}, *variants(plan), *PLACES, *switches(fields, usual)]
    # The games of a league have discrete actions here.
    games = "opponents" in attrs.fields_dict(config)
    unseen = {"squash", "log_std"} if games else set(ONE_AGENT.get(plan, []))
    assert set(without_effect(fields, learned, usual, besides)) == unseen & {field.name for field in fields}


def variants(plan: str) -> list[Settings]:
    """The settings of a plan's small variants; of DQN's family one is with Munchausen rewards."""
    found = [settings_of(name) for name in SMALL if name.split()[0] == plan]
    has = "munchausen" in attrs.fields_dict(load_plan_file(plan).Config) and plan not in TEAMS
    return [*found, {**found[0], "munchausen": 0.9, "n_step": 1}] if has else found


def deaf(kind: type[Trainer], variants: Sequence[Settings], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The settings of a plan that nothing that is built shows, and that no policy asks for when it learns."""
    asked = asked_for(monkeypatch)
    for settings in variants:
        with kind(config=settings) as trainer:
            while not (trainer.done or "updates" in trainer.counters):
                trainer.train()
    fields = [field for field in own_settings(kind.Config) if field.name not in asked]
    besides = [*variants, *switches(fields, variants[0])]
    return without_effect(fields, lambda settings: built(kind, settings), variants[0], besides)


def own_settings(config: type[Configuration]) -> list[Field]:
    """What not every plan has."""
    every = attrs.fields_dict(Configuration)
    return [field for field in attrs.fields(attrs.resolve_types(config)) if field.name not in every]


def without_effect(
    fields: Sequence[Field], make: Callable[[Settings], Any], usual: Settings, besides: Sequence[Settings]
) -> list[str]:
    """The settings for each of whose other values `make` gives the same, whatever stands beside.

    One that is refused whatever else it says has an effect.
    """
    plain: dict[int, Any] = {}

    def has_effect(field: Field) -> bool:
        outcomes = []
        for i, beside in enumerate(besides):
            settings = {**usual, **beside}
            if i not in plain:
                plain[i] = _made(make, settings)
            if plain[i] is None:
                continue
            for value in other_values(field, settings.get(field.name, field.default)):
                outcomes.append(_made(make, {**settings, field.name: value}))
                if outcomes[-1] not in (None, plain[i]):
                    return True
        return bool(outcomes) and not any(outcomes)

    return [field.name for field in fields if not has_effect(field)]


def _made(make: Callable[[Settings], Any], settings: Settings) -> Any:
    """None if it is refused."""
    try:
        return make(settings)
    except (ConfigError, DatasetError, PlanError, ValueError):
        return None


def switches(fields: Sequence[Field], usual: Settings) -> list[Settings]:
    """Each setting that is off, switched on."""
    off = [field for field in fields if not usual.get(field.name, field.default)]
    return [{field.name: value} for field in off for value in list(other_values(field, field.default))[:1]]


def other_values(field: Field, value: Any) -> list[Any]:
    """Other values of the setting's type; validators may refuse some of them."""
    if field.name in TEXTS:
        return TEXTS[field.name]()
    found: list[Any] = []
    for kind in get_args(field.type) if get_origin(field.type) in (Union, UnionType) else (field.type,):
        if get_origin(kind) is Literal:
            found += get_args(kind)
        elif kind is bool:
            found.append(not value)
        elif kind in (int, float):
            number = value if isinstance(value, int | float) else 1
            found += [kind(each) for each in (number / 2, number * 2, number + 1, number - 1, number / 1000)]
        elif get_origin(kind) is tuple:
            found.append(tuple(2 * each for each in value))
        elif kind is NoneType:
            found.append(None)
    return [each for each in found if each != value]

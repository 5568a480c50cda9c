"""`flowrl settings`: what a plan can be configured with; and how settings are declared and taken."""

from __future__ import annotations

import re
from typing import Any

import attrs
import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

from flowrl import Trainer
from flowrl.cli.main import cli
from flowrl.engine.graph import select
from flowrl.engine.plan import Plan, from_items
from flowrl.errors import ConfigError, PlanError
from flowrl.operators import GatherStatistics, ScaleRewards, UpdatePriorities, UpdateStatistics
from flowrl.plans import DQN, IMPALA, PPO
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.runs.config import Configuration, build_config, sections
from flowrl.settings import Option, fraction, positive, setting
from flowrl.trainer.plan_file import builtin_plans, load_plan_file

INF, NAN = float("inf"), float("nan")
SPACES = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)


def shown(plan: str) -> dict[str, list[str]]:
    """The cells of every setting, by its name, in the order in which they are printed."""
    done = CliRunner().invoke(cli, ["settings", plan], catch_exceptions=False)
    assert done.exit_code == 0
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines() if "  " in line.strip()]
    return {row[0]: row[1:] for row in rows if row[0] != "setting"}


@pytest.mark.parametrize("plan", builtin_plans())
def test_every_setting_of_a_built_in_plan_is_declared_with_its_meaning_and_shown_once(plan: str) -> None:
    listed = [field for _, fields in sections(load_plan_file(plan).Config) for field in fields]
    assert sorted(field.name for field in listed) == sorted(load_plan_file(plan).Config().to_dict())
    assert [field.name for field in listed if not field.metadata.get("meaning")] == []


@pytest.mark.parametrize("plan", builtin_plans())
def test_every_whole_number_of_a_plan_has_a_most(plan: str) -> None:
    """X4: one that is a slip of the keyboard neither runs for ever nor asks for all memory, but for seeds."""
    config = load_plan_file(plan).Config
    fields = [field for _, fields in sections(config) for field in fields if "int" in str(field.type)]
    for field in fields:
        if field.name not in ("seed", "episode_seeds") and "dict" not in str(field.type):
            several = "tuple" in str(field.type) or "list" in str(field.type)
            with pytest.raises(ConfigError, match=f"^{field.name}=.*: expected at most [0-9,]+$"):
                build_config(config, {field.name: [10**18] if several else 10**18})


def test_type_default_range_and_meaning_are_shown_the_plans_own_first() -> None:
    rows = shown("dqn")
    assert rows["gamma"] == ["float", "0.99", "0 .. 1", "discount per step"]
    assert rows["learning_rate"][:3] == ["number or schedule", "0.001", ">= 0"]
    assert rows["dueling"] == ["bool", "True", "split the Q-network into value and advantage: Q = V + A - mean A"]
    names = list(rows)
    assert max(map(names.index, ("noisy", "prioritized", "normalize_obs"))) < names.index("env") < names.index("seed")


def test_a_file_of_ones_own_has_its_settings_shown(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import attrs\nfrom flowrl.settings import positive\nfrom flowrl.plans import dqn\n\n"
        "@attrs.define(kw_only=True)\nclass Config(dqn.Config):\n"
        "    width: int = positive(3, 'how wide')\n"
        "    plain: bool = True  #: without a meaning\n    gamma: float = 0.5\n\n"
        "class Mine(dqn.DQN):\n    Config = Config\n"
    )
    rows = shown(str(file))
    assert rows["width"] == ["int", "3", "> 0", "how wide"]
    assert rows["plain"] == ["bool", "True"]
    assert rows["gamma"] == ["float", "0.5", "0 .. 1", "discount per step"]
    assert list(rows)[:2] == ["width", "plain"]


def test_another_default_keeps_what_was_declared() -> None:
    """Validator, range and meaning are those of the nearest declaration, whichever way a subclass is made."""

    @attrs.define(kw_only=True)
    class Config(Configuration):
        share: float = fraction(0.5, "of all")
        count: int = positive(3, "how many")

    @attrs.define(kw_only=True)
    class Other(Config):
        share: float = 0.25
        count: int = positive(4)

    fields = {field.name: field for field in attrs.fields(Other)}
    assert build_config(Other).share == 0.25
    assert dict(fields["share"].metadata) == {"meaning": "of all", "range": "0 .. 1"}
    assert dict(fields["count"].metadata) == {"meaning": "how many", "range": "> 0"}
    with pytest.raises(ConfigError, match=r"share=2.0: 'share' must be <= 1"):
        build_config(Other, {"share": 2})


@pytest.mark.parametrize(
    ("plan", "given", "message"),
    [
        (DQN, {"learning_rate": INF}, "learning_rate=inf: expected finite numbers"),
        (DQN, {"learning_rate": NAN}, "learning_rate=nan: expected finite numbers"),
        (DQN, {"grad_clip": INF}, "grad_clip=inf: expected finite numbers"),
        (DQN, {"priority_beta": NAN}, "priority_beta=nan: expected finite numbers"),
        (PPO, {"log_std": NAN}, "log_std=nan: expected finite numbers"),
        (PPO, {"learning_rate_end": -INF}, "learning_rate_end=-inf: expected finite numbers"),
        (PPO, {"clip": [[0, 0.2], [100, INF]]}, r"clip=\[\[0.*inf\]\]: expected finite numbers"),
        (PPO, {"clip": "linear(0.2, 1e999, 10)"}, r"the schedule 'linear\(.*': expected finite numbers, got inf"),
        (IMPALA, {"rho_bar": NAN}, "rho_bar=nan: expected a number, or inf for no bound"),
    ],
)
def test_numbers_are_finite_unless_infinity_stands_for_no_bound(plan: Any, given: Any, message: str) -> None:
    """X3: of every setting; arguments of an environment are its own."""
    with pytest.raises(ConfigError, match=message):
        build_config(plan.Config, given)
    unbounded = build_config(IMPALA.Config, {"rho_bar": INF, "env_args": {"healthy_z_range": [0.2, INF]}})
    assert (unbounded.rho_bar, unbounded.env_args) == (INF, {"healthy_z_range": [0.2, INF]})
    assert shown("impala")["rho_bar"][2] == "> 0; inf: no bound"
    with pytest.raises(ConfigError, match="gamma=nan: expected finite numbers"):
        DQNPolicy(*SPACES, gamma=NAN)


def test_a_policy_takes_its_settings_by_name_and_refuses_others() -> None:
    policy = DQNPolicy(*SPACES, hidden=(5,), dueling=False, learning_rate=lambda steps: 0.5 if steps else 1.0, seed=3)
    assert (policy.settings.hidden, policy.settings.dueling, policy.settings.seed) == ((5,), False, 3)
    assert policy.optimizer.param_groups[0]["lr"] == 1.0
    assert policy.dueling is False  # it can be asked itself
    with pytest.raises(AttributeError, match="'DQNPolicy' object has no attribute 'duelling'"):
        policy.duelling  # noqa: B018
    with pytest.raises(ConfigError, match="DQNPolicy has no setting 'duelling'; did you mean 'dueling'"):
        DQNPolicy(*SPACES, duelling=True)
    with pytest.raises(ConfigError, match="gamma=2: 'gamma' must be <= 1"):
        DQNPolicy(*SPACES, gamma=2)


class Mirrored(DQNPolicy):
    """With a setting of its own."""

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(DQNPolicy.Settings):
        mirror: bool = setting(False, "whether")

    settings: Settings


class Halved(PPOPolicy):
    """With an argument of its own, as classes had them before they declared settings."""

    def __init__(self, *spaces: Any, half: float = 0.5, **settings: Any) -> None:
        self.half = half
        super().__init__(*spaces, **settings)


def test_a_class_of_policies_is_made_of_the_settings_that_a_configuration_has_for_it() -> None:
    class Mine(DQN):
        @attrs.define(kw_only=True)
        class Config(Mirrored.Settings, DQN.Config):  # type: ignore[name-defined,misc]
            mirror: bool = True

        policy = Mirrored

    with Mine(hidden=(7,), epsilon_start=0.5, epsilon_end=0.5, device="cpu") as mine:
        policy = mine.workers.policy
        assert (policy.settings.mirror, policy.settings.hidden, policy.epsilon(0)) == (True, (7,), 0.5)

    class Other(PPO):
        @attrs.define(kw_only=True)
        class Config(PPO.Config):  # type: ignore[name-defined,misc]
            half: float = 0.25

        policy = Halved

    with Other(hidden=(7,), device="cpu") as other:
        assert (other.workers.policy.half, other.workers.policy.settings.hidden) == (0.25, (7,))


@attrs.frozen(kw_only=True, slots=False)
class Doubled(Option):
    """An option of one's own."""

    doubles: bool = setting(False, "whether rewards are doubled")

    def edit(self, plan: Plan, workers: Any) -> Plan:
        if self.doubles:
            plan = plan.insert_before("GAE", ScaleRewards(2.0))
        return plan


def test_an_option_edits_what_execution_plan_gave() -> None:
    """After what a subclass makes of it, in the order of the bases of `Config`; the plan alone is as it was."""

    class Mine(PPO):
        @attrs.define(kw_only=True)
        class Config(Doubled, PPO.Config):  # type: ignore[name-defined,misc]
            doubles: bool = True

        @classmethod
        def execution_plan(cls, workers: Any, config: Any) -> Plan:
            plan = super().execution_plan(workers, config)
            assert "Normalize" not in plan.explain()
            return plan.insert_before("GAE", ScaleRewards(0.5))

    with Mine(normalize_rewards=True, device="cpu") as mine:
        names = [line.split()[0] for line in mine.plan.explain().splitlines()]
    at = names.index("GatherStatistics(gamma=0.98)")
    assert names[at + 1 : at + 4] == ["NormalizeRewards", "ScaleRewards(scale=0.5)", "ScaleRewards-2(scale=2.0)"]
    assert names[-2:] == ["UpdateStatistics", "Report(every=1000)"]


def test_of_two_options_the_later_base_is_nearer_the_rollouts() -> None:
    with PPO(normalize_rewards=True, reward_scale=0.5, device="cpu") as ppo:
        names = [line.split("(")[0].split()[0] for line in ppo.plan.explain().splitlines()]
    at = names.index("ParallelRollouts")
    assert names[at + 1 : at + 4] == ["GatherStatistics", "NormalizeRewards", "ScaleRewards"]


@pytest.mark.parametrize(
    ("settings", "missing", "option"),
    [
        ({"doubles": True}, "GAE", r"Doubled \(doubles\)"),
        ({"reward_scale": 0.5}, "Rollouts", r"ScaledRewards \(reward_scale\)"),
    ],
)
def test_an_option_that_finds_nothing_to_edit_is_named(settings: dict[str, Any], missing: str, option: str) -> None:
    class Other(PPO):
        @attrs.define(kw_only=True)
        class Config(Doubled, PPO.Config):  # type: ignore[name-defined,misc]
            pass

        def execution_plan(workers: Any, config: Any) -> Plan:  # type: ignore[override,misc]
            return from_items([1])

    with pytest.raises(PlanError, match=f"the option {option} cannot edit the plan: no operator is named .*{missing}"):
        Other(**settings)


def test_a_plan_that_has_the_operators_of_an_option_is_left_as_it_is() -> None:
    """As a plan of one's own that asks the configuration itself."""

    class Mine(DQN):
        @classmethod
        def execution_plan(cls, workers: Any, config: Any) -> Plan:
            plan = super().execution_plan(workers, config)
            buffer = select(plan, "Replay").op.buffer
            plan = plan.insert_after("TrainOneStep", UpdatePriorities(buffer))
            return plan.insert_before("NStep", GatherStatistics(workers)).insert_before(
                "NStep", UpdateStatistics(workers)
            )

    with Mine(prioritized=True, normalize_obs=True, device="cpu") as mine:
        text = mine.plan.explain()
    assert [text.count(name) for name in ("UpdatePriorities", "GatherStatistics", "UpdateStatistics")] == [1, 1, 1]


def test_options_of_a_plan_need_no_place_of_their_own_in_a_trainer() -> None:
    """The base's configuration has none; its plan is what `execution_plan` gave."""
    with Trainer(policy=DQNPolicy, device="cpu") as trainer:
        assert trainer.plan is trainer.algorithm


def test_a_setting_of_a_policy_is_not_set_afterwards() -> None:
    """It would have no effect; what is derived from settings may be set."""
    policy = PPOPolicy(*SPACES, device="cpu")
    with pytest.raises(AttributeError, match="value_coef is a setting of PPOPolicy: pass it to the constructor"):
        policy.value_coef = 1.0
    policy.clip = 0.1
    assert (policy.clip, policy.settings.value_coef) == (0.1, 0.5)


@pytest.mark.parametrize("text", ["tau=1" + "0" * 400, "batch_size=1" + "0" * 400 + "e99", "torch_threads=" + "9" * 20])
def test_a_number_that_no_setting_takes_is_refused_in_a_line(text: str) -> None:
    """X4: before anything is made of it."""
    done = CliRunner().invoke(cli, ["explain", "dqn", "--set", text])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {text[:5]}")

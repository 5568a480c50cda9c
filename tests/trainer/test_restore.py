"""Saving a trainer and restoring it, in this process and in another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import pytest

from flowrl.errors import CheckpointError
from flowrl.plans import DQN
from flowrl.settings import setting
from flowrl.testing import same
from tests.forked import PIPE, Python
from tests.plans import small as small_plans
from tests.plans.small import without_clock

SMALL = small_plans.SMALL["dqn"]


def small(**settings: Any) -> DQN:
    return DQN("CartPole-v1", SMALL, **settings)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_restored_it_equals_the_uninterrupted_one(after: int, tmp_path: Path) -> None:
    """D3: before the first result and later."""
    with small(seed=1) as trainer:
        for _ in range(after):
            trainer.train()
        place = trainer.save(tmp_path / "point")
        expected = [without_clock(trainer.train()) for _ in range(8 - after)]
        end = trainer.run.state_dict()
    with small(seed=1) as restored:
        restored.restore(place)
        assert restored.counters.get("env_steps", 0) < expected[0]["env_steps"]
        assert same([without_clock(restored.train()) for _ in range(8 - after)], expected)
        assert same(restored.run.state_dict()["resources"], end["resources"])


def test_a_new_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """D3: with nothing shared but the files."""
    with small(seed=1) as trainer:
        trainer.train(until={"updates": 5})
        trainer.save(tmp_path / "point")
        expected = [without_clock(trainer.train()) for _ in range(3)]
    code = f"""
import json
from flowrl.plans import DQN
from flowrl.settings import setting
with DQN("CartPole-v1", {SMALL!r}, seed=1) as trainer:
    trainer.restore({str(tmp_path / "point")!r})
    print(json.dumps([trainer.train() for _ in range(3)]))
"""
    with Python(["-c", code], stdout=PIPE) as process:
        printed, _ = process.communicate()
    assert [without_clock(result) for result in json.loads(printed)] == expected


def test_restoring_goes_back_within_one_trainer(tmp_path: Path) -> None:
    """Its results, and what `until` compares with, are those of the checkpoint."""
    with small() as trainer:
        trainer.train(until={"env_steps": 60})
        saved = trainer.result
        trainer.save(tmp_path / "point")
        first = without_clock(trainer.train(until={"env_steps": 120}))
        trainer.restore(tmp_path / "point")
        assert trainer.result == saved
        assert trainer.train(until={"env_steps": 60}) == saved
        assert without_clock(trainer.train(until={"env_steps": 120})) == first


def test_the_checkpoint_of_another_plan_is_refused(tmp_path: Path) -> None:
    class Other(DQN):
        @staticmethod
        def execution_plan(workers: Any, config: Any) -> Any:
            from flowrl.operators import StopWhen

            return DQN.execution_plan(workers, config).for_each(StopWhen({"env_steps": 1e9}))

    with small() as trainer, Other("CartPole-v1", SMALL) as other:
        trainer.save(tmp_path / "point")
        with pytest.raises(CheckpointError, match=r"another plan.*StopWhen.* was saved by DQN$"):
            other.restore(tmp_path / "point")
        with pytest.raises(CheckpointError, match="nowhere"):
            trainer.restore(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": 0.5}, r"gamma=0.99 \(here it is 0.5\)"),
        ({"seed": 9}, r"seed=0 \(here it is 9\)"),
        ({"env": "CartPole-v1", "env_args": {"max_episode_steps": 9}}, r"env_args=\{\} \(here it is \{'max_ep"),
        ({"env": "Acrobot-v1", "tau": 0.5}, r"tau=1.0 \(here it is 0.5\), env='CartPole-v1' \("),
    ],
)
def test_the_checkpoint_of_another_configuration_is_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Before anything of it is loaded; a class of another name with those settings is named as well."""

    class Other(DQN):
        pass

    with small() as trainer:
        trainer.train()
        place = trainer.save(tmp_path / "point")
    for cls, who in ((DQN, "was saved with"), (Other, "was saved by DQN with")):
        with cls(config={**SMALL, **changed}) as another:
            with pytest.raises(CheckpointError, match=f"{who} {message}"):
                another.restore(place)
            assert another.result == {}


def test_settings_that_change_no_parameter_may_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Evaluation may be asked for anew; torch's threads and acting in numpy change the last bits, which is said."""
    with small() as trainer:
        trainer.train(until={"env_steps": 40})
        place = trainer.save(tmp_path / "point")
        expected = trainer.train()["env_steps"]
    with small(eval_every=20, eval_episodes=2, checkpoint_every=5, torch_threads=2, act_backend="numpy") as restored:
        restored.restore(place)
        again = restored.save(tmp_path / "evaluated")
        result = restored.train()
        assert result["env_steps"] == expected
        assert "eval_return" in result
    with small() as restored:
        restored.restore(again)
        result = restored.train()
        assert result["env_steps"] == expected
        assert "eval_return" not in result
    assert "act_backend and torch_threads changed: training goes on, but not bit for bit" in caplog.text


def test_learning_rates_and_schedules_may_change_as_a_fork_that_is_recorded(tmp_path: Path) -> None:
    """D9: from the same state on; a constant rate follows its setting though the optimiser's state has the old one."""
    with small() as trainer:
        trainer.train(until={"env_steps": 80})
        steps = trainer.counters["env_steps"]
        place = trainer.save(tmp_path / "point")
        same = trainer.train()
    with small(learning_rate=0.5, epsilon_end=0.5) as fork:
        fork.restore(place)
        before = {"learning_rate": {"from": 1e-3, "to": 0.5}, "epsilon_end": {"from": 0.04, "to": 0.5}}
        assert fork.forks == [{"env_steps": steps, "settings": before}]
        assert fork.workers.policy.optimizer.param_groups[0]["lr"] == 0.5
        result = fork.train()
        assert result["env_steps"] == same["env_steps"]
        assert result["loss"] != same["loss"]
        again = fork.save(tmp_path / "again")
    with small(learning_rate="linear(1, 0, 1000)", epsilon_end=0.5) as fork:
        fork.restore(again)
        assert [each["settings"].keys() for each in fork.forks] == [before.keys(), {"learning_rate"}]
        fork.train()
        assert 0.5 < fork.workers.policy.optimizer.param_groups[0]["lr"] < 1


def test_a_setting_of_ones_own_may_say_that_it_changes_no_parameter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever adds a setting says it there, and nowhere else; what an old checkpoint has besides is left alone."""

    @attrs.frozen(kw_only=True)
    class Config(DQN.Config):  # type: ignore[misc, name-defined]
        comment: str = setting("", "is printed", resume="free")
        digits: int = setting(8, "that are computed", resume="rounding")
        width: int = setting(4, "of what is learned")

    class Own(DQN):
        pass

    Own.Config = Config
    values = {**SMALL, "hidden": [4]}
    with Own(config=values) as trainer:
        place = trainer.save(tmp_path / "point")
    with Own(config={**values, "comment": "again", "digits": 9}) as restored:
        restored.restore(place)
    assert "digits changed: training goes on, but not bit for bit" in caplog.text
    with Own(config={**values, "width": 5}) as other, pytest.raises(CheckpointError, match=r"with width=4 \(here"):
        other.restore(place)
    with DQN(config=values) as parent:  # which has none of them
        parent.restore(place)


def test_a_function_of_a_script_is_the_same_environment_when_the_script_is_imported(tmp_path: Path) -> None:
    def cart_pole() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1")

    cart_pole.__module__ = "__main__"
    with DQN(cart_pole, SMALL) as trainer:
        place = trainer.save(tmp_path / "point")
    cart_pole.__module__ = "train"
    with DQN(cart_pole, SMALL) as trainer:
        trainer.restore(place)

"""flowrl autotune: what it may choose, how it searches, what it writes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowrl.engine.recording.ledger import Ledger
from flowrl.engine.workers.accounts import DRIVER, Account
from flowrl.inspect.profile import Profile
from flowrl.runs.config import build_config
from flowrl.testing import same
from flowrl.tools import autotune
from flowrl.tools.autotune import Measurement, Tuner, knobs
from flowrl.trainer.plan_file import load_plan_file
from tests.cli.parts import SMALL, flowrl
from tests.plans.small import final, first, settings_of, weights

#: Plans with the settings beside their small ones. Over several groups, so that there is more to choose.
PLANS: dict[str, dict[str, Any]] = {
    "dqn prioritized": {"env_groups": 2},
    "ppo normalized": {"env_groups": 2},
    "bc": {},
    "ppo recurrent": {"env_groups": 2},
    "a2c": {"env_groups": 2},
    "sac": {"env_groups": 2},
    "r2d2": {"env_groups": 2},
    "impala": {},
    "apex_dqn": {},
    "rnd_ppo": {},
    "cql continuous": {},
    "iql normalized": {},
}


def exact(name: str, **settings: Any) -> list[dict[str, Any]]:
    """What autotune may choose for a plan without being asked for what is inexact."""
    plan_file = load_plan_file(name.split()[0])
    config = build_config(plan_file.Config, settings_of(name, **settings))
    workers, plan = plan_file.build(config)
    workers.close()
    return [each.settings for knob in knobs(config, plan) for each in knob.options if not each.changes]


@pytest.mark.parametrize("name", first(PLANS, of=("dqn prioritized", "ppo normalized", "bc"), rest="slow"))
def test_what_is_chosen_by_default_leaves_parameters_equal(name: str) -> None:
    """E8: managers, their processes, and prefetch."""
    settings = PLANS[name]
    _, state = final(name, 3, **settings)
    chosen = [each for each in exact(name, **settings) if not each.get("num_workers")]
    assert len(chosen) >= (2 if "prefetch" in chosen[-1] else 3)
    for each in chosen:
        assert same(weights(state), weights(final(name, 3, **settings | each)[1])), each


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ppo normalized"])
def test_workers_that_are_chosen_by_default_leave_parameters_equal(ray_cluster: None, name: str) -> None:
    """E8, D2."""
    settings = {"env_groups": 2, "envs_per_worker": 4}
    _, state = final(name, 3, **settings)
    (over,) = [each for each in exact(name, **settings) if each.get("num_workers")]
    assert over == {"num_workers": 2, "envs_per_worker": 2, "env_groups": 2}
    assert same(weights(state), weights(final(name, 3, **over)[1]))


def test_what_changes_results_says_what_it_changes() -> None:
    """E8: fragments that are taken as they arrive make workers inexact, D2 does not hold then."""
    found = {}
    for name, more in {"dqn": {"env_groups": 2}, "impala": {"env_groups": 2}}.items():
        plan_file = load_plan_file(name)
        config = build_config(plan_file.Config, more)
        workers, plan = plan_file.build(config)
        workers.close()
        found[name] = {str(each): each.changes for knob in knobs(config, plan) for each in knob.options}
    two = "num_workers=2, envs_per_worker=4, env_groups=2"
    assert (found["dqn"][two], found["impala"][two]) == ("", "in which order fragments arrive")
    assert "order of rows" in found["dqn"]["env_manager=async"]
    assert found["dqn"]["act_backend=numpy"] == "the last bits of what is computed"


class Scripted:
    """A trial whose pace a function of the configuration says."""

    pace: Callable[[Any], float]
    begun: list[Any]
    repeats = True

    def __init__(self, plan_file: Any, config: Any) -> None:
        self.config = config
        self.workers, self.plan = plan_file.build(config)
        self.workers.close()
        self.begun.append(config)
        self.parameters = "other" if config.env_manager == "thread" and config.seed == 1 else "these"

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None: ...

    def warm_up(self, seconds: float) -> None:
        if config_size(self.config) == 2:
            raise OSError("cannot be pickled\nat all")
        acting = {"kind": "gather_sync", "in_flight": 1, "workers": 1, "part": ["act"]}
        driver = Account(DRIVER, "driver", 10, {"act": 8.0, "learn": 2.0})
        self.profile = Profile(Ledger([driver], {"env_steps": 8_000}, {"g": acting}))

    def turn(self) -> Measurement:
        return Measurement(type(self).pace(self.config), 1.0)


def config_size(config: Any) -> int:
    return int(config.env_manager_args.get("envs_per_process", 0))


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tuner]:
    """A search that has run, over trials of a scripted pace."""

    def run(pace: Callable[[Any], float], allow_inexact: bool = False, **settings: Any) -> Tuner:
        monkeypatch.setattr(Scripted, "pace", staticmethod(pace), raising=False)
        monkeypatch.setattr(Scripted, "begun", [], raising=False)
        monkeypatch.setattr(autotune, "Trial", Scripted)
        monkeypatch.setattr(Tuner, "_probe", lambda _: None)
        plan_file = load_plan_file("dqn")
        made = Tuner(plan_file, build_config(plan_file.Config, settings), allow_inexact)
        made.run()
        return made

    return run


def test_the_fastest_neighbor_is_chosen_again_and_again(search: Callable[..., Tuner]) -> None:
    """E8: among what is exact, unless asked for more."""

    def pace(config: Any) -> float:
        times = {"local": 1.0, "thread": 1.5, "subprocess": 2.0, "async": 9.0}[config.env_manager]
        return times * (1 + config.num_workers) * (3.0 if config.act_backend == "numpy" else 1.0)

    found = search(pace, env_groups=2)
    chosen = found.chosen
    assert (chosen.env_manager, chosen.num_workers, chosen.act_backend) == ("subprocess", 2, "torch")
    assert not any(each.env_manager == "async" for each in Scripted.begun)
    assert found.rows[found.best].measured == pytest.approx(6.0)
    wild = search(pace, allow_inexact=True, env_groups=2).chosen
    assert (wild.env_manager, wild.act_backend) == ("async", "numpy")


def test_within_the_noise_the_given_and_the_simpler_settings_stay(search: Callable[..., Tuner]) -> None:
    noise = itertools.cycle([0.98, 1.03, 1.0, 1.01, 0.97])
    assert search(lambda _: next(noise)).chosen.env_manager == "local"
    sizes = search(lambda config: 2.0 if config.env_manager == "subprocess" else 1.0)
    assert config_size(sizes.chosen) == 4, "the fewest processes"


def test_what_cannot_run_or_learns_otherwise_is_left_out(search: Callable[..., Tuner]) -> None:
    """E8: the parameters of each trial are compared, too."""
    found = search(lambda config: 3.0 if config.env_manager == "thread" else 1.0, seed=1)
    assert found.chosen.env_manager == "local"
    words = {row.options: row.words for row in found.rows.values()}
    assert words["env_manager=thread"] == "left out: parameters differ"
    assert words["env_manager=subprocess, envs_per_process=2"] == "refused: cannot be pickled"


def test_the_choice_is_written_for_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the settings that were given; everything is measured here, for a moment."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"TURN": 0.01, "TURNS": 1, "PROBE": 0.05}.items():
        monkeypatch.setattr(autotune, name, value)
    done = flowrl("autotune", "dqn", *SMALL, "--envs", 2)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("flowrl run dqn --config dqn.tuned.json\n")
    assert re.search(r"^Chosen: ", done.stdout, re.MULTILINE)
    written = json.loads((tmp_path / "dqn.tuned.json").read_text())
    assert (written["envs_per_worker"], written["hidden"]) == (2, [8])
    assert flowrl("explain", "dqn", "--config", "dqn.tuned.json").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds", "90"], "--seconds 90: a calibration takes at most 60 s"),
        (["--out", "no/a.json"], "--out no/a.json: expected a .json file in a folder that exists"),
        (["--out", "a.toml"], "--out a.toml: expected a .json file in a folder that exists"),
        (["--env", "CartPool-v1"], "no environment 'CartPool-v1' in gymnasium: did you mean 'CartPole-v1'?"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str) -> None:
    done = flowrl("autotune", "dqn", *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {said}")
    assert done.stderr.count("\n") == 1

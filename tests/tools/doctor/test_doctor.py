"""`flowrl doctor`: every problem has an environment that has it, and a healthy one has none."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.envs import EnvFactory
from flowrl.errors import ConfigError
from flowrl.tools.doctor import Diagnosis, diagnose
from flowrl.tools.doctor.probe import Probe
from flowrl.tools.doctor.step_checks import rendering
from tests import broken_envs as broken
from tests.cli.parts import flowrl


def examined(env: Any, **options: Any) -> Diagnosis:
    return diagnose(env, **{"num_envs": 2, "steps": 100, "seconds": 1.0, "timeout": 20.0, **options})


def about(found: Diagnosis, level: str) -> list[str]:
    return [finding.about for finding in found.findings if finding.level == level]


def test_a_healthy_environment_has_no_problem() -> None:
    """And nothing to note; all that was looked at is said."""
    found = examined(broken.Healthy)
    assert (found.problems, about(found, "note")) == (0, []), found.lines()
    looked_at = ["spaces", "network", "values", "endings", "success", "determinism", "memory", "saving"]
    assert about(found, "ok") == [*looked_at, "times", "rendering"]
    assert found.times is not None
    assert found.suggestion is not None
    assert (found.suggestion.env_manager, found.options()) == ("local", "--env-manager local")


def test_episodes_that_begin_alike_but_go_on_differently_are_no_note() -> None:
    found = diagnose("FrozenLake-v1", steps=50)
    assert about(found, "note") == [], found.lines()


def test_observations_in_pairs_and_dictionaries_are_healthy() -> None:
    found = examined(broken.Pairs)
    assert (found.problems, about(found, "note")) == (0, []), found.lines()


@pytest.mark.parametrize(
    ("env", "what", "words"),
    [
        (broken.TextSpace, "spaces", "is not one array"),
        (broken.WrongMask, "spaces", "observation['action_mask'] is MultiBinary(3), but the action space"),
        (broken.WrongShape, "observations", "the observation has shape (1,), but its space says (2,)"),
        (broken.WrongDtype, "dtypes", "at reset(seed=0): the observation is complex128, but its space says float32"),
        (broken.NanObs, "numbers", "at step 2 after reset(seed=0): the observation['speed'] is nan"),
        (broken.OutOfBounds, "bounds", "the observation is [3. 3.], which is not in its space"),
        (broken.ArrayReward, "rewards", "at step 1 after reset(seed=0): the reward is a ndarray of shape (1,)"),
        (broken.NanReward, "rewards", "the reward is nan"),
        (broken.InfiniteReward, "rewards", "the reward is -inf"),
        (broken.IntegerFlags, "flags", "(int), expected a bool"),
        (broken.NoInfo, "info", "info is a NoneType, expected a dict"),
        (
            broken.OldStep,
            "errors",
            "step returned 4 values, expected 5: observation, reward, terminated, truncated, info",
        ),
        (broken.OldReset, "errors", "reset returned a ndarray, expected 2: observation, info"),
        (broken.GlobalGenerator, "determinism", "two environments with one seed differ at reset(seed=0), in obs"),
        (broken.Remembers, "determinism", "the same environment with the same seed differs at reset(seed=0), in obs"),
        (broken.ForgetsItsState, "saving", "a pickled copy goes on differently at step 1"),
        (broken.RaisesInStep, "errors", "while it takes random actions: KeyError: 'a joint that is not there'"),
        (broken.RaisesInClose, "errors", "while it is closed: RuntimeError: there is no window"),
        (broken.RaisesWhenMade, "making", "OSError: no such simulator"),
        (broken.OneAtATime, "errors", "take env_manager='subprocess' with env_manager_args={'envs_per_process': 1}"),
        (broken.silent_vector, "autoreset", "metadata['autoreset_mode'] is missing"),
        (broken.random_vector, "determinism", "two vector environments with one seed differ at step 0"),
    ],
)
def test_a_problem_is_found(env: Any, what: str, words: str) -> None:
    found = examined(env)
    assert found.problems == 1, found.lines()
    (problem,) = [finding for finding in found.findings if finding.level == "problem"]
    assert problem.about == what
    assert words in problem.text


@pytest.mark.parametrize(
    ("env", "what", "words"),
    [
        (broken.Float64, "dtypes", "the observation is float64, but its space says float32: it is converted"),
        (broken.AlwaysAlike, "determinism", r"seeds \(0, 1, 2\) give equal steps"),
        (broken.Endless, "endings", "no episode ended in 100 steps, it has no TimeLimit"),
        (broken.TerminatesOnTime, "endings", "every episode terminated after exactly 20 steps"),
        (broken.Reuses, "memory", "the observation is one array that every step overwrites"),
        (broken.Rebuilt, "saving", "EzPickle"),
        (broken.NoPictures, "rendering", "have no rgb_array"),
        (
            broken.RaisesInRender,
            "rendering",
            r"but no video: OSError: cannot connect to a display, in render, .*broken_envs.py:\d+; .* MUJOCO_GL=egl or",
        ),
        (
            broken.CrashesInRender,
            "rendering",
            "no video: while a picture of it is rendered: its process ended by signal SIGSEGV, in render, .*=egl or",
        ),
        (lambda: broken.Healthy(), "rendering", 'the environment must take render_mode="rgb_array"'),
        (broken.Unbounded, "spaces", "actions are not bounded"),
        (broken.endless_vector, "endings", "no episode ended in 200 steps of each of 2"),
    ],
)
def test_what_is_worth_knowing_is_noted(env: Any, what: str, words: str) -> None:
    found = examined(env)
    assert found.problems == 0, found.lines()
    notes = [finding for finding in found.findings if finding.level == "note" and finding.about != "check_env"]
    assert [note.about for note in notes] == [what]
    assert re.search(words, notes[0].text)
    assert found.suggestion is not None


@pytest.mark.parametrize(
    ("env", "doing", "words"),
    [
        (broken.HangsWhenMade, "it is made", "no answer within 1.25 s, in __init__"),
        (broken.HangsInReset, "it takes random actions", "no answer within 1.25 s, in reset"),
        (broken.HangsInStep, "it takes random actions", "no answer within 1.25 s, in step"),
        (broken.Exits, "it takes random actions", "its process ended with code 3"),
        (broken.Crashes, "it takes random actions", "its process ended by signal SIGSEGV, in step"),
    ],
)
def test_what_hangs_or_crashes_is_told_and_not_waited_for(env: Any, doing: str, words: str) -> None:
    """Where it was, with the line of the environment, and what was found before."""
    found = examined(env, seconds=0.25, timeout=1.0)
    assert found.problems == 1, found.lines()
    text = found.findings[-1].text
    assert text.startswith(f"while {doing}: {words}")
    if ", in " in words:
        assert "broken_envs.py:" in text
    assert doing == "it is made" or about(found, "ok")[0] == "spaces"


def test_what_it_starts_ends_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    """F15"""
    examined(broken.StartsAnother, seconds=0.25, timeout=0.25)
    pid = int(capfd.readouterr().err.split("pid ")[1].split()[0])
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_a_film_may_lack_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the report names, with the command that brings it."""
    probe, env = Probe(EnvFactory(broken.Healthy), steps=2, seconds=1.0), broken.Healthy()
    assert [found.level for found in rendering(probe, env)] == ["ok"]
    monkeypatch.setitem(sys.modules, "moviepy", None)
    (found,) = rendering(probe, env)
    assert found.level == "note"
    assert found.text.endswith("moviepy is not installed: pip install 'flowrl-engine[envs]'")


def test_success_is_optional() -> None:
    texts = [finding.text for finding in examined(broken.NoSuccess).findings if finding.about == "success"]
    assert texts == ["info has no is_success at an episode's end: no win rates"]


def test_of_a_game_its_agents_say_whether_they_won() -> None:
    (told,) = [finding.text for finding in examined("flowrl:tic_tac_toe").findings if finding.about == "success"]
    assert told.endswith("episodes say whether they succeeded: win rates are known")


def test_gymnasium_s_checker_is_heard() -> None:
    found = diagnose("CartPole-v1", steps=50)
    assert "check_env" in about(found, "note")
    assert "minimum value is -infinity" in "".join(found.lines())
    assert "\x1b" not in "".join(found.lines())
    assert "its time limit is 500 steps" in "".join(found.lines())


def test_a_vector_environment_says_when_it_resets() -> None:
    found = examined(broken.healthy_vector)
    looked_at = ["autoreset", "spaces", "network", "endings", "determinism", "times"]
    assert (found.problems, about(found, "ok")) == (0, looked_at)
    assert "SAME_STEP" in found.findings[0].text
    assert found.suggestion is not None
    assert found.suggestion.env_manager == "vector"


def test_classic_gym_is_examined_as_what_it_becomes() -> None:
    """gymnasium's own checker has nothing to say of it."""
    found = diagnose("gym:CartPole-v1", steps=50)
    assert (found.problems, about(found, "note")) == (0, []), found.lines()


def test_wrappers_and_arguments_are_examined_too() -> None:
    found = diagnose("CartPole-v1", {"max_episode_steps": 7}, wrappers=["FrameStackObservation(2)"], steps=50)
    text = "\n".join(found.lines())
    assert "(2, 4)" in text
    assert "its time limit is 7 steps" in text
    assert found.suggestion is not None
    assert "vector" not in found.suggestion.expected, "its own implementation knows no wrappers"


def test_the_command_tells_people_and_programs() -> None:
    """Exit codes: 0 without a problem, 1 with one, 2 for what is no environment."""
    done = flowrl("doctor", "tests.broken_envs:Healthy", "--steps", 50)
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "tests.broken_envs:Healthy: no problems")
    assert "suggested: --env-manager " in done.output
    done = flowrl("doctor", "tests.broken_envs:NanReward", "--steps", 50, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["problems"] == 1
    assert {"level": "problem", "about": "rewards"}.items() <= found["findings"][2].items()
    assert found["times"]["step_median"] <= found["times"]["step_percentile_99"]
    assert found["suggestion"]["env_manager"] in found["suggestion"]["expected"]
    for arguments, message in [
        (("CartPol-v1",), "did you mean 'CartPole-v1'"),
        (("CartPole-v1", "--env-arg", "sutton=1"), "sutton"),
        (("CartPole-v1", "--wrapper", "FrameStakObservation"), "FrameStackObservation"),
        (("nowhere:Env",), "No module named 'nowhere'"),
    ]:
        done = flowrl("doctor", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import gymnasium.nothing", "ModuleNotFoundError: No module named 'gymnasium.nothing', in <module>, {file}:1"),
        ("def f(:\n    pass", "SyntaxError: invalid syntax, {file}:1"),
        ("def f():\n    raise OSError('no\\nlicense')\nf()", "OSError: no license, in f, {file}:2"),
        ("import sys\nsys.exit('no license')", "SystemExit: no license, in <module>, {file}:2"),
    ],
)
@pytest.mark.parametrize("command", [("doctor",), ("run", "ppo", "--env"), ("profile", "ppo", "--env")])
def test_a_module_that_fails_is_told_with_its_line(
    command: tuple[str, ...], code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, for every command."""
    file = tmp_path / "their_module.py"
    file.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = flowrl(*command, "their_module:Env")
    expected = f"Error: 'their_module:Env': their_module fails when it is imported: {words.format(file=file)}\n"
    assert (done.exit_code, done.stderr) == (2, expected)


def test_a_library_that_mujoco_has_left_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is installed: nothing more is imported for it."""
    (tmp_path / "metaworld").mkdir()
    (tmp_path / "metaworld/__init__.py").write_text("def make():\n    return object().no_more_there\n")
    (tmp_path / "mujoco-3.9.dist-info").mkdir()
    metadata = tmp_path / "mujoco-3.9.dist-info/METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: mujoco\nVersion: 3.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "pip install" not in examined("metaworld:make").findings[0].text
    metadata.write_text("Metadata-Version: 2.1\nName: mujoco\nVersion: 4.0.1\n")
    (found,) = examined("metaworld:make").findings
    assert found.text.endswith("; metaworld needs MuJoCo 3, but 4.0.1 is installed: pip install 'mujoco<4'")


def test_what_an_environment_prints_is_no_part_of_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    examined(broken.Prints)
    assert capfd.readouterr().out == ""


def test_diagnose_raises_for_what_is_no_environment() -> None:
    with pytest.raises(ConfigError, match="did you mean 'CartPole-v1'"):
        diagnose("CartPol-v1")
    with pytest.raises(ConfigError, match="is an object, but the checks need several"):
        diagnose(broken.Healthy())
    with pytest.raises(ConfigError, match="max_episode_stps"):
        diagnose("CartPole-v1", {"max_episode_stps": np.int64(3)})

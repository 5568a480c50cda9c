"""Looking into a plan from the command line: check, draw, --debug, and --break as a terminal program."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import termios
import xml.etree.ElementTree as ET
from pathlib import Path
from time import monotonic

import pytest

from flowrl.trainer.plan_file import builtin_plans, load_plan_file
from tests.cli.parts import flowrl
from tests.demonstrations import options
from tests.forked import PIPE, Python
from tests.offline_data import data_for

DEADLINE = 60.0
SMALL = (
    *("--set", "device=cpu", "--set", "learning_starts=16", "--set", "replay_ratio=2", "--set", "report_every=50"),
    *("--set", "eval_episodes=2", "--stop-steps", "200", "--envs", "2"),
)

OFF_POLICY = '''"""A plan that learns on policy from a replay buffer."""
from flowrl.data import ReplayBuffer
from flowrl.operators import Concurrently, ParallelRollouts, Replay, StandardMetricsReporting, StoreToReplay
from flowrl.operators import TrainOneStep
from flowrl.plans.dqn import Config
from flowrl.plans.dqn import policy as dqn_policy


def policy(config, *spaces):
    made = dqn_policy(config, *spaces)
    made.learn_mode.requires = {"on_policy": "take it from ParallelRollouts"}
    return made


def execution_plan(workers, config):
    buffer = ReplayBuffer(100)
    store = ParallelRollouts(workers).for_each(StoreToReplay(buffer))
    train = Replay(buffer).for_each(TrainOneStep(workers))
    return StandardMetricsReporting(Concurrently({"store": store, "train": train}), workers, config)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(OFF_POLICY)
    return tmp_path


# -- check and draw


@pytest.mark.parametrize("name", builtin_plans())
def test_the_built_in_plans_are_sound_and_can_be_drawn(folder, name):
    offline = load_plan_file(name).Config.clock == "updates"
    given = ("--set", f"data={data_for(name)}") if offline else options(name)
    done = flowrl("check", name, *given)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "ok"
    for suffix in ("svg", "mmd"):
        assert flowrl("draw", name, *given, f"plan.{suffix}").exit_code == 0
    texts = [text.text for text in ET.parse("plan.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert ("Demonstrations" if offline else "Rollouts") in texts
    assert (folder / "plan.mmd").read_text().startswith("flowchart TB\n")


def test_check_shows_columns_and_words_on_the_edges(folder):
    lines = flowrl("check", "dqn").stdout.splitlines()
    assert "│      -> experience, fragments, on_policy [T, N]: obs float32[4], action int64, reward float64," in lines
    assert "│      -> experience, on_policy, rows, windows [B]: the same, + discount float32" in lines
    assert max(map(len, lines)) < 120


def test_check_ends_with_2_and_says_what_is_wrong(folder):
    done = flowrl("check", "wrong.py")
    assert done.exit_code == 2
    assert "train.TrainOneStep (" in done.stderr
    assert "needs 'on_policy', which is lost in train.Replay (" in done.stderr
    assert "wrong.py:18): take it from ParallelRollouts" in done.stderr
    assert "Replay" in done.stdout


def test_run_checks_before_any_work(folder):
    done = flowrl("run", "wrong.py")
    assert done.exit_code == 2
    assert "needs 'on_policy'" in done.stderr
    assert not (folder / "runs").exists()


def test_draw_refuses_other_files(folder):
    done = flowrl("draw", "dqn", "plan.png")
    assert done.exit_code == 2
    assert "must end with .svg or .mmd" in done.stderr


def test_a_run_directory_has_the_picture(folder):
    assert flowrl("run", "dqn", *SMALL, "--out", "out").exit_code == 0
    texts = [text.text for text in ET.parse("out/plan.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"Rollouts", "ReplayBuffer", "TrainOneStep", "Evaluate", "StopWhen"} <= set(texts)


# -- debug


def test_debug_checks_every_item_and_changes_no_result(folder):
    """D4."""
    assert flowrl("run", "dqn", *SMALL, "--out", "plain").exit_code == 0
    assert flowrl("run", "dqn", *SMALL, "--debug", "--out", "debug").exit_code == 0
    assert results("plain") == results("debug")
    assert "EdgeCheck" not in Path("debug/plan.txt").read_text()


def results(run):
    lines = Path(run, "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if "second" not in k and k != "eval_share"} for line in lines]


# -- a breakpoint, as a terminal program


def take_terminal():
    """It becomes the terminal of the new session first, so that Ctrl-C is a signal there."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """`flowrl` at a terminal of its own; every wait has a deadline."""

    def __init__(self, *arguments):
        self.main, side = pty.openpty()
        env = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
        env.pop("PYTHONBREAKPOINT", None)
        self.process = Python(
            ["-m", "flowrl", *arguments],
            stdin=side, stdout=side, stderr=side, env=env, start_new_session=True, begin=take_terminal,
        )  # fmt: skip
        os.close(side)
        self.seen = ""

    def expect(self, text):
        """Read until a text comes; what came until then."""
        return self._read(lambda: text in self.seen, text)

    def say(self, line):
        os.write(self.main, f"{line}\n".encode())

    def end(self):
        """The exit code and the rest of what it showed."""
        rest = self._read(lambda: False, None)
        return self.process.wait(DEADLINE), rest

    def _read(self, found, text):
        until = monotonic() + DEADLINE
        while not found():
            ready = select.select([self.main], [], [], max(0.0, until - monotonic()))[0]
            assert ready, f"no {text!r} in {self.seen!r}"
            try:
                more = os.read(self.main, 65536)
            except OSError:  # how a terminal ends
                more = b""
            if not more:
                assert text is None, f"it ended without {text!r}: {self.seen!r}"
                break
            self.seen += more.decode(errors="replace").replace("\r\n", "\n")
        end = len(self.seen) if text is None else self.seen.index(text) + len(text)
        before, self.seen = self.seen[:end], self.seen[end:]
        return before

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.main)


PROMPT = "(flowrl) "


def test_a_breakpoint_at_a_terminal(folder):
    with Terminal("run", "dqn", *SMALL, "--break", "TrainOneStep", "--out", "out") as terminal:
        shown = terminal.expect(PROMPT)
        assert "train.TrainOneStep  item 1  " in shown
        assert re.search(r"dqn\.py:\d+\n", shown)
        assert re.search(r"loss=\d", shown)
        assert "\x1b[?25l" not in shown, "no live display while a prompt is up"
        terminal.say("item loss")
        assert float(terminal.expect(PROMPT).split("\n")[-2]) > 0
        terminal.say("where")
        assert "-> │  TrainOneStep" in terminal.expect(PROMPT)
        terminal.say("counters")
        assert "trained" in terminal.expect(PROMPT)
        terminal.say("step")
        assert "train.UpdateTargetNetwork  item 1" in terminal.expect(PROMPT)
        terminal.say("state")
        assert "last = 0" in terminal.expect(PROMPT)
        terminal.say("continue")
        assert "train.TrainOneStep  item 2" in terminal.expect(PROMPT)
        terminal.say("next")
        assert "train.TrainOneStep  item 3" in terminal.expect(PROMPT)
        terminal.say("leave")
        code, rest = terminal.end()
    assert code == 130
    assert "interrupted: " in rest
    assert json.loads(Path("out/summary.json").read_text())["outcome"] == "interrupted"


@pytest.mark.slow
def test_experience_shows_where_it_comes_from_and_ctrl_c_leaves(folder):
    with Terminal("run", "dqn", *SMALL, "--break", "ParallelRollouts", "--out", "out") as terminal:
        assert "worker 0, env_id 0..1, episode_id 0, t 0..3, policy_version 0" in terminal.expect(PROMPT)
        os.write(terminal.main, b"\x03\n")  # a prompt that had not yet begun to wait sees the newline
        code, rest = terminal.end()
    assert code == 130
    assert "interrupted: " in rest


@pytest.mark.slow
def test_breakpoints_change_no_result(folder):
    """D4: continued to its end, a run with breakpoints has the results of one without."""
    assert flowrl("run", "dqn", *SMALL, "--out", "plain").exit_code == 0
    with Terminal("run", "dqn", *SMALL, "--break", "Report", "--debug", "--out", "out") as terminal:
        for _ in results("plain"):
            terminal.expect(PROMPT)
            terminal.say("continue")
        code, rest = terminal.end()
    assert code == 0
    assert "done: " in rest
    assert results("plain") == results("out")


def test_without_a_terminal_the_end_of_the_input_leaves(folder):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"}
    words = ["-m", "flowrl", "run", "dqn", *SMALL, "--break", "NStep", "--out", "out"]
    with Python(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env) as process:
        out, err = process.communicate("counters\n")
    assert process.returncode == 130, err
    assert "(flowrl) env_steps  8\n(flowrl) leave\n" in out


def test_an_unknown_node_is_refused_before_any_work(folder):
    done = flowrl("run", "dqn", "--break", "TrainOneStp")
    assert done.exit_code == 2
    assert "no operator is named 'TrainOneStp'; did you mean 'train.TrainOneStep'" in done.stderr
    assert not (folder / "runs").exists()

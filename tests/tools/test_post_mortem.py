"""What a failed run keeps of its last item, and `flowrl replay-item`, which gives it to the operator again."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from flowrl import from_items
from flowrl.data import Batch
from flowrl.engine.failure import failure_of
from flowrl.engine.recording.recorder import Recorder, with_recorder
from flowrl.operators.contracts import CheckFinite
from flowrl.storage.checkpoint import load_checkpoint
from tests.cli.parts import flowrl

SMALL = (
    *("--set", "device=cpu", "--set", "hidden=[8]", "--set", "eval_every=0", "--envs", "2", "--quiet"),
    *("--stop-steps", "600", "--set", "checkpoint_every=100"),
)

MINE = '''
import gymnasium
import numpy as np

from flowrl import operator, state

FIXED = False


def log_bonus(batch):
    with np.errstate(invalid="ignore"):
        bonus = np.log(np.maximum(0.1, 0.3 - batch.next_obs[..., 2]) if FIXED else 0.05 - batch.next_obs[..., 2])
    return batch.replace(reward=batch.reward + bonus)


def third(batch):
    return batch.replace(action=np.where(batch.t == 9, 2, batch.action))


def in_place(batch):
    batch.reward[:] = -5.0
    raise ValueError(f"the reward was {batch.reward.sum()}")


@operator
class Counts:
    """Its error tells its state, which it has changed by then."""
    seen: int = state(default=0)

    def __call__(self, batch):
        self.seen += 1
        if self.seen == 4:
            raise ValueError(f"item {self.seen}")
        return batch


@operator
class Later:
    """Leaves out a step between two items, which each item by itself does not show."""
    provides = ()
    seen: int = state(default=0)

    def __call__(self, batch):
        self.seen += 1
        return batch.replace(t=batch.t + 1) if self.seen == 3 else batch


def no_advantage(batch):
    advantage = batch.advantage.copy()
    advantage[batch.t == 12] = np.nan
    return batch.replace(advantage=advantage)


class NoReward(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        self.steps += 1
        return obs, float("nan") if self.steps == 200 else reward, *rest


def no_reward():
    return NoReward(gymnasium.make("CartPole-v1"))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def failed(*arguments: str) -> str:
    """What a run that fails says."""
    done = flowrl("run", *arguments, *SMALL, "--out", "run")
    assert done.exit_code == 1, done.output
    assert ("to run it again: flowrl replay-item run" in done.stderr) != ("to examine it alone: flowrl" in done.stderr)
    return done.stderr


def replayed(*options: str) -> Result:
    return flowrl("replay-item", "run", *options)


#: The arguments of a run, and what it and its replay say.
FAILURES = {
    "a contract": (
        ("dqn", "--insert", "NStep=mine:log_bonus", "--debug"),
        "CheckFinite on the edge store.log_bonus -> store.StoreToReplay: reward is nan in row ",
        "store.log_bonus (flowrl run --insert) makes it of Batch(",
    ),
    "an action outside of the space": (
        ("ppo", "--insert", "ParallelRollouts=mine:third", "--debug"),
        "CheckActions on the edge third -> GAE: action is 2 in row [9, 0] (worker 0, env_id 0, episode_id 0, t 9, ",
        "third (flowrl run --insert) makes it of Batch(",
    ),
    "a contract of two items": (
        ("ppo", "--insert", "GAE=mine:Later", "--debug"),
        "CheckEpisodes on the edge Later -> ConcatBatches: a step is missing or doubled in row [0, 0] (worker 0",
        "Later (flowrl run --insert) makes it of Batch(",
    ),
    "an operator with a state": (
        ("ppo", "--insert", "GAE=mine:Counts", "--debug"),
        "ValueError: item 4",
        "Counts (flowrl run --insert), item 4, failed with ValueError: item 4",
    ),
    "an operator that changes its item": (
        ("ppo", "--insert", "GAE=mine:in_place", "--debug"),
        "ValueError: the reward was -320.0",
        "reward          float64[32, 2]     min 1  mean 1  max 1",
    ),
    "a learner that shuffles its rows": (
        ("ppo", "--insert", "GAE=mine:no_advantage", "--set", "minibatch_size=4", "--set", "num_sgd_iter=3"),
        "the loss is nan; its rows have advantage[",
        "the item and the state are those after the failure",
    ),
    "a source": (
        ("ppo", "--env", "mine:no_reward", "--trust", "--set", "report_every=100"),
        "the reward is nan, expected a finite number",
        "it had no item: running from step-000000",
    ),
    "a source before the first checkpoint": (
        ("dqn", "--env", "mine:no_reward", "--trust", "--set", "report_every=500"),
        "the reward is nan, expected a finite number",
        "it had no item: running from the beginning to where it failed",
    ),
}
SHUFFLED = "a learner that shuffles its rows"


@pytest.mark.parametrize("name", FAILURES)
def test_a_replay_gives_the_same_error(folder: Path, name: str) -> None:
    """Y3: of an operator, a contract, a source."""
    arguments, message, shown = FAILURES[name]
    assert message in failed(*arguments)
    again = replayed("--no-debugger")
    assert again.exit_code == 1
    assert shown in again.stdout
    assert "its rows have advantage[" in again.stderr if name == SHUFFLED else again.stderr.endswith("the same error\n")


def test_the_state_that_is_kept_is_that_in_which_the_operator_got_the_item(folder: Path) -> None:
    """Y3: the rows of a minibatch, and so the message, follow from random streams that the failure has moved on."""
    arguments, message, _ = FAILURES[SHUFFLED]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckFinite, "_check", lambda *_: None)  # which would find it first
        assert message in failed(*arguments, "--debug")
        again = replayed()
    assert again.stderr.endswith("the same error\n"), again.stderr


def test_a_mended_operator_takes_the_item(folder: Path) -> None:
    """Y3: and then the exit code is 0."""
    failed(*FAILURES["a contract"][0])
    (folder / "mine.py").write_text(MINE.replace("FIXED = False", "FIXED = True"))
    del sys.modules["mine"]
    mended = replayed()
    assert mended.exit_code == 0, mended.output
    assert "no error: store.log_bonus makes Batch(" in mended.stdout


def test_workers_are_not_needed(folder: Path) -> None:
    """Y3: what ran on one of several workers runs here, as one of as many groups of environments."""
    message = "ValueError: item 4"
    assert message in failed("a3c", "--insert", "Rollouts=mine:Counts", "--set", "env_groups=2", "--debug")
    config = folder / "run" / "config.json"
    there = {"num_workers": 2, "envs_per_worker": 1, "env_groups": None}  # the same two groups, in two processes
    config.write_text(json.dumps(json.loads(config.read_text()) | there))
    again = replayed()
    assert message in again.stderr
    assert again.stderr.endswith("the same error\n")


def test_at_a_terminal_the_debugger_opens_at_the_failing_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or, for an item that broke a contract, in the operator that made it."""
    opened: list[Any] = []

    def called(op: Any, item: Any) -> Any:
        opened.append(op)
        return op(item)

    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    monkeypatch.setattr("pdb.post_mortem", opened.append)
    monkeypatch.setattr("pdb.runcall", called)
    failed(*FAILURES["an operator with a state"][0])
    replayed()
    (last,) = opened
    while last.tb_next is not None:
        last = last.tb_next
    assert last.tb_frame.f_locals["self"].seen == 4
    replayed("--no-debugger")
    assert opened == [opened[0]]
    shutil.rmtree("run")
    failed(*FAILURES["a contract"][0])
    replayed()
    assert opened[1].__name__ == "log_bonus"


BAD = {
    "no run": (("nowhere",), "nowhere is not there: expected the directory of a run with a failed_item"),
    "no failure": ((".",), ". has no failed_item: a run writes it when one of its operators fails"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_a_line(folder: Path, name: str) -> None:
    arguments, message = BAD[name]
    refused = flowrl("replay-item", *arguments)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_another_plan_and_a_damaged_file_are_refused(folder: Path) -> None:
    failed(*FAILURES["an operator with a state"][0])
    other = replayed("--plan", "a2c")
    assert other.exit_code == 2
    assert "did you mean" in other.stderr or "this plan has no operator" in other.stderr
    (folder / "run" / "failed_item" / "00-item.json").write_text("[]")
    damaged = replayed()
    assert damaged.exit_code == 2
    assert "truncated" in damaged.stderr or "damaged" in damaged.stderr


# -- the recorder


def test_the_newest_items_of_an_edge_are_kept_within_their_bytes() -> None:
    """Y3: copies of when they passed, an equal share for each edge, the newest one always."""
    big = [Batch(reward=np.full(1_000, float(number))) for number in range(40)]
    recorder = Recorder(most_bytes=100_000)

    def cleared(batch: Batch) -> Batch:
        batch.reward[:] = 0.0
        return batch

    list(with_recorder(from_items(big, name="items").for_each(cleared), recorder))
    assert [kept.copy.reward[0] for kept in recorder.edges["items"]] == [37.0, 38.0, 39.0]  # of 8 kB, twice, in 50 kB
    list(with_recorder(from_items(big[:2], name="items"), recorder := Recorder(most_bytes=1)))
    assert len(recorder.edges["items"]) == 1


def test_an_error_arrives_from_another_process_whatever_its_item_is() -> None:
    """Y3, F9: with the item and the state if they can be sent, else without."""

    def fails(item: Any) -> Any:
        raise ValueError("no")

    for item, kept in ((np.ones(3), True), ((n for n in [1]), False)):
        with pytest.raises(ValueError, match="no") as raised:
            list(from_items([item]).for_each(fails))
        sent = failure_of(pickle.loads(pickle.dumps(raised.value)))
        assert sent is not None
        assert sent.operator == "fails"
        assert sent.has_item is kept


def test_what_is_kept_is_read_without_the_run(folder: Path) -> None:
    """Y3: `--debug` keeps the newest items of every edge."""
    failed(*FAILURES["an operator with a state"][0])
    parts = load_checkpoint("run/failed_item", trusted=True)
    assert {"Rollouts", "ParallelRollouts", "GAE", "Counts"} <= set(parts["edges"])
    assert len(parts["edges"]["GAE"]) == 4


def test_items_that_cannot_be_kept_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Y3."""
    items = [threading.Lock(), threading.Lock()]
    list(with_recorder(from_items(items, name="locks"), Recorder()))
    (told,) = caplog.messages
    assert told.startswith("locks: a failure behind it can only be told, not repeated: its lock cannot be copied")

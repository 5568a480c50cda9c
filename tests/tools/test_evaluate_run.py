"""`flowrl evaluate RUN`: the saved policy plays as `flowrl.rollout.evaluate` has it play."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from flowrl.engine.seeds import SeedTree
from flowrl.errors import ConfigError
from flowrl.rollout import evaluate, scores
from flowrl.tools.evaluate import evaluate_given, evaluate_run
from flowrl.tools.statistics import interquartile_mean, interval
from flowrl.trainer.plan_file import load_plan_file
from tests.cli.parts import TINY, flowrl

#: An environment that knows who has won: with probability 1/2, whatever is done.
COIN = """
import gymnasium
import numpy as np


class Coin(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, prize=1.0):
        self.prize = prize

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        won = bool(self.np_random.random() < 0.5)
        return np.zeros(4, np.float32), self.prize * won, True, False, {"is_success": won}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of dqn, whose last policy is another than its best one."""
    run = tmp_path_factory.mktemp("runs") / "dqn"
    settings = ("hidden=[8]", "learning_starts=100", "replay_ratio=8", "report_every=100", "eval_every=300")
    options = [word for setting in (*settings, "eval_episodes=3") for word in ("--set", setting)]
    done = flowrl("run", "dqn", *options, "--stop-steps", 500, "--out", run, "--quiet")
    assert done.exit_code == 0, done.output
    best, last = (torch.load(run / name, weights_only=True) for name in ("policy.pt", "policy_last.pt"))
    assert not all(torch.equal(best[name], last[name]) for name in best)
    return run


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "coin.py").write_text(COIN)
    assert flowrl("run", "tiny.py", "--env", "coin:Coin", "--out", "run", "--quiet").exit_code == 0
    return tmp_path / "run"


def found(*arguments: Any) -> dict[str, Any]:
    done = flowrl("evaluate", *arguments, "--json", "--trust")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(("options", "weights"), [((), "policy.pt"), (("--last",), "policy_last.pt")])
def test_it_is_what_evaluate_finds_with_the_saved_weights(run: Path, options: tuple[str, ...], weights: str) -> None:
    """S5, S6"""
    plan_file = load_plan_file("dqn")
    workers, _ = plan_file.build(plan_file.Config(hidden=(8,)))
    with workers:
        workers.policy.load_weights(torch.load(run / weights, weights_only=True))
        seed = SeedTree(5).integer("evaluation/command")
        expected = scores(evaluate(workers.policy, "CartPole-v1", episodes=10, seed=seed))
    evaluation = evaluate_run(run, episodes=10, seed=5, last=bool(options))
    assert evaluation.scores == expected
    printed = found(run, "--episodes", 10, "--seed", 5, *options)
    assert printed == evaluation.values()
    drawn = found(run, "--episodes", 10, "--seed", 5, *options, "--stochastic")
    assert (printed["deterministic"], drawn["deterministic"]) == (True, False), "S8"
    assert drawn["return_mean"] != printed["return_mean"]
    assert (printed["policy"], printed["return_mean"]) == (weights, expected.return_mean)


def test_the_starts_are_others_than_in_training_and_follow_from_the_seed(run: Path) -> None:
    """S3: the run's own seed does not lead to the starts that its training or its evaluations had."""
    plan_file = load_plan_file("dqn")
    workers, _ = plan_file.build(plan_file.Config(hidden=(8,)))
    with workers:
        workers.policy.load_weights(torch.load(run / "policy.pt", weights_only=True))
        seeds = [0, SeedTree(0).integer("evaluation/1"), SeedTree(0).integer("evaluation/fresh-1")]
        others = [scores(evaluate(workers.policy, "CartPole-v1", episodes=30, seed=seed)) for seed in seeds]
    assert evaluate_run(run, episodes=30, seed=0).scores not in others
    assert found(run, "--episodes", 9) == found(run, "--episodes", 9) != found(run, "--episodes", 9, "--seed", 1)


def test_people_get_the_three_kinds_of_score(run: Path, tiny: Path) -> None:
    """S5"""
    text = flowrl("evaluate", run, "--episodes", 4).stdout.splitlines()
    assert text[0] == f"{run}/policy.pt on CartPole-v1: 4 episodes, seed 0, deterministic"
    assert [line.split()[0] for line in text[1:]] == ["return", "steps", "reward", "win"]
    assert text[3].split() == ["reward", "per", "step", "1.0000"]
    assert text[4].endswith("unknown: no episode ended with is_success in its info")
    won = found(tiny, "--episodes", 50)
    assert 0.2 < won["win_rate"] == won["return_mean"] == won["reward_per_step"] < 0.8
    assert flowrl("evaluate", tiny, "--trust").stdout.splitlines()[4].endswith(" %")


def test_another_environment_and_other_arguments_of_the_same(tiny: Path) -> None:
    played = found(tiny, "--env-arg", "prize=3", "--episodes", 20)
    assert (played["env"], played["env_args"]) == ("coin:Coin", {"prize": 3})
    assert played["return_max"] == 3
    played = found(tiny, "--env", "CartPole-v1", "--episodes", 2)
    assert (played["env"], played["env_args"], played["win_rate"]) == ("CartPole-v1", {}, None)


def test_the_plan_is_the_one_that_was_run(tiny: Path) -> None:
    """If its file has changed or is gone, the copy in the run directory is it."""
    (tiny.parent / "tiny.py").write_text("raise ImportError('another file by now')")
    assert found(tiny, "--episodes", 2)["episodes"] == 2


def test_episodes_that_never_end_are_cut_where_one_says(run: Path) -> None:
    """Otherwise where the run's configuration says: `eval_max_steps`."""
    assert found(run, "--episodes", 4, "--max-steps", 5)["length_mean"] == 5
    assert found(run, "--episodes", 4, "--max-steps", 5)["cut"] == 4


def test_videos_are_made_on_request(run: Path, tiny: Path, tmp_path: Path) -> None:
    """By gymnasium's recorder, and no score changes."""
    films = tmp_path / "films"
    assert found(run, "--episodes", 2, "--video", films) == found(run, "--episodes", 2)
    assert sorted(file.name for file in films.iterdir()) == ["eval-episode-0.mp4", "eval-episode-1.mp4"]
    done = flowrl("evaluate", tiny, "--video", films, "--trust")
    assert done.exit_code == 2
    assert 'must take render_mode="rgb_array"' in done.stderr


def test_several_runs_have_a_middle(tiny: Path, tmp_path: Path) -> None:
    """S4: runs that differ only in their seed are one group; each score has its interval."""
    for seed in range(1, 4):
        arguments = ("tiny.py", "--env", "coin:Coin", "--seed", seed, "--out", tmp_path / "runs" / f"seed-{seed}")
        assert flowrl("run", *arguments, "--quiet").exit_code == 0
    assert flowrl("run", "tiny.py", "--env", "CartPole-v1", "--out", tmp_path / "other", "--quiet").exit_code == 0
    compared = found(tiny, tmp_path / "runs", tmp_path / "other", "--episodes", 6)
    assert list(compared) == ["tiny coin:Coin", "tiny CartPole-v1"]
    alike, alone = compared.values()
    assert [Path(run["run"]).name for run in alike["runs"]] == ["run", "seed-1", "seed-2", "seed-3"]
    each = [found(run["run"], "--episodes", 6) for run in alike["runs"]]
    assert each == alike["runs"]
    for name in ("return_mean", "reward_per_step", "win_rate"):
        scores = [run[name] for run in each]
        low, high = interval([scores])
        assert (alike[name]["iqm"], alike[name]["low"]) == (interquartile_mean(scores), low)
        assert (alike[name]["high"], alike[name]["runs"]) == (high, 4)
    assert (alone["win_rate"], alone["return_mean"]["low"]) == (None, None)
    text = flowrl("evaluate", tmp_path / "runs", "--episodes", 6, "--trust").stdout.splitlines()
    assert text[0] == "tiny coin:Coin: 6 episodes each, seed 0, deterministic"
    assert [line.partition(":")[0].strip() for line in text[1:4]] == [
        f"{tmp_path}/runs/seed-{seed}/policy.pt" for seed in (1, 2, 3)
    ]
    assert [line.split("mean")[0].strip() for line in text[4:]] == ["return", "reward per step", "win rate"]


def test_a_run_that_cannot_be_evaluated_is_left_out_if_it_was_not_named(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    tiny.rename(tmp_path / "runs" / "whole")
    early = tmp_path / "runs" / "early"
    shutil.copytree(tmp_path / "runs" / "whole", early)
    (early / "policy.pt").unlink()
    done = flowrl("evaluate", tmp_path / "runs", "--episodes", 2, "--trust")
    assert done.exit_code == 0
    assert f"left out: {early} has no policy.pt" in done.stderr
    assert "1 run)" in done.stdout
    for arguments, message in [
        ((tmp_path / "runs", early), f"{early} has no policy.pt"),
        ((tmp_path / "runs", "--video", "films"), "--video records the policy of one run"),
    ]:
        done = flowrl("evaluate", *arguments)
        assert done.exit_code == 2
        assert message in done.stderr


def test_what_cannot_be_evaluated_is_bad_input(run: Path, tiny: Path, tmp_path: Path) -> None:
    for name in ("empty", "damaged", "lost"):
        (tmp_path / name).mkdir()
    for name in ("config.json", "run.json", "plan.py"):
        for folder in ("damaged", "lost"):
            (tmp_path / folder / name).write_bytes((run / name).read_bytes())
    (tmp_path / "damaged" / "policy.pt").write_bytes(b"nonsense")
    for arguments, message in [
        (("nowhere",), "nowhere is not there; give the directory that a run printed at its end"),
        (("empty",), "empty has no config.json"),
        (("lost",), "lost has no policy.pt"),
        (("lost", "--last"), "lost has no policy_last.pt"),
        (("damaged",), "damaged/policy.pt holds no readable weights"),
        ((run, "--env", "Acrobot-v1"), "the policy cannot act in both"),
        ((run, "--env", "CartPol-v1"), "did you mean 'CartPole-v1'"),
        ((run, "--env-arg", "x"), "--env-arg 'x': expected KEY=VALUE"),
        ((run, "--episodes", 0), "'0' is not a whole number of at least 1"),
        ((run, "--seed", -1), "-1 is not in the range"),
    ]:
        done = flowrl("evaluate", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr


def test_several_play_each_other_in_a_game(tmp_path: Path) -> None:
    """The table of `flowrl.rollout.payoffs`, saved policies and players by name alike."""
    settings = ("--env", "flowrl:tic_tac_toe", "--set", "fragment_steps=8", "--set", "report_every=16")
    assert flowrl("run", "ppo", *settings, "--stop-steps", 32, "--out", tmp_path / "run", "--quiet").exit_code == 0
    play = ("evaluate", tmp_path / "run", "perfect", "random", "--env", "flowrl:tic_tac_toe", "--episodes", 4)
    done = flowrl(*play, "--json")
    found = json.loads(done.stdout)["players"]
    assert set(found) == {str(tmp_path / "run"), "perfect", "random"}
    assert found["perfect"]["against"]["random"]["less"] == 0
    assert found["perfect"]["overall"] == max(each["overall"] for each in found.values())
    shown = flowrl(*play, "--plot", tmp_path / "table.svg").stdout
    picture = (tmp_path / "table.svg").read_text()
    for row, player in enumerate(found):
        assert player in picture
        mean, (low, high) = (found[player]["against"]["random"][key] for key in ("return_mean", "interval"))
        cell = picture.partition(f'id="payoff-{row}-{list(found).index("random")}"')[2].partition("</g>")[0]
        assert f"{abs(mean):.3f}" in cell
        assert f"± {(high - low) / 2:.3f}" in cell
    assert "each pair plays 8 games, half of them as 'x' and half as 'o', seed 0, deterministic" in shown
    drawn = json.loads(flowrl(*play, "--json", "--stochastic").stdout)
    assert drawn["deterministic"] is False
    assert drawn["players"] != found
    done = flowrl("evaluate", "random", "perfect")
    assert (done.exit_code, "random, perfect: to let them play each other give the game" in done.stderr) == (2, True)
    done = flowrl("evaluate", "random", "random", "--env", "flowrl:tic_tac_toe")
    assert "random is given twice" in done.stderr
    done = flowrl(*play, "--plot", tmp_path / "table.gif")
    assert "table.gif: expected a file that ends with .png or .svg" in done.stderr
    done = flowrl("evaluate", tmp_path / "run", "--plot", tmp_path / "table.svg")
    assert "--plot draws a table of several players of a game" in done.stderr


def test_runs_are_compared_in_an_environment_that_only_their_wrappers_make_usable() -> None:
    """It is no game: the comparison is asked, and not refused before."""
    with pytest.raises(ConfigError, match="is not there; expected a run directory"):
        evaluate_given(["a", "b"], env="tests.tools.test_evaluate_run:Worded", env_args={})


class Worded(gymnasium.Env[Any, Any]):
    """Its observations are texts, which a wrapper has to turn into numbers."""

    observation_space = gymnasium.spaces.Text(3)
    action_space = gymnasium.spaces.Discrete(2)

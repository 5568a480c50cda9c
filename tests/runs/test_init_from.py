"""A run that begins with what another one has learned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.errors import ConfigError
from flowrl.plans import DQN, PPO, SAC
from flowrl.testing import same
from flowrl.trainer.trainer import Trainer
from tests.cli.parts import flowrl
from tests.plans.small import SMALL

NORMALIZED = {**SMALL["dqn"], "normalize_obs": True}


def trained(kind: type[Trainer], config: Mapping[str, Any], place: Path, steps: int = 80) -> dict[str, torch.Tensor]:
    """Train and save; returns the weights."""
    with kind(config=config) as trainer:
        trainer.train(until={"env_steps": steps})
        trainer.save(place)
        return trainer.workers.policy.weights()


def test_weights_alone_begin_another_run(tmp_path: Path) -> None:
    """With other settings and a fresh optimiser; a target network is equal, and other processes hear of them."""
    weights = trained(DQN, SMALL["dqn"], tmp_path / "point")
    with DQN(config={**SMALL["dqn"], "gamma": 0.5, "seed": 7}, init_from=tmp_path / "point") as tuned:
        assert same(tuned.workers.policy.weights(), weights)
        assert same(dict(tuned.workers.policy.target.state_dict()), weights)
        assert tuned.parent is not None
        assert tuned.parent["env_steps"] >= 80
        assert (tuned.parent["with"], tuned.parent["left_out"]) == ([], [])
        assert tuned.parent["path"] == str(tmp_path / "point")
        assert len(tuned.parent["sha256"]) == 64
        tuned.train()
        point = json.loads((tuned.save(tmp_path / "own") / "manifest.json").read_text())
        assert point["about"]["from"] == tuned.parent


def test_a_buffer_comes_with_its_priorities_and_rows_that_follow_begin_new_episodes(tmp_path: Path) -> None:
    """B3, B8: learning goes on at once, and in the ratio of rows drawn to rows added."""
    config = {**SMALL["dqn prioritized"], "buffer_size": 1000}
    trained(DQN, config, tmp_path / "point", 200)
    with DQN(config=config) as parent:
        parent.restore(tmp_path / "point")
        assert parent.run is not None
        theirs = parent.run.resources["PrioritizedReplayBuffer"]
        rows, masses = theirs[:], theirs.state_dict()["masses"]
    with DQN(config={**config, "seed": 5}, init_from=tmp_path / "point", init_with=["buffer"]) as tuned:
        assert tuned.workers.policy.version == parent.workers.policy.version
        result = tuned.train()
        assert tuned.run is not None
        ours = tuned.run.resources["PrioritizedReplayBuffer"]
        assert same(ours[: len(rows)].obs, rows.obs)
        assert result["updates"] > 0, "it does not collect learning_starts rows first"
        assert result["sampled"] <= config["replay_ratio"] * result["env_steps"] + 100, "no debt of the parent's rows"
        assert not same(ours.state_dict()["masses"][: len(masses)], masses), "priorities go on"


def test_statistics_come_on_request_and_are_named_where_they_stay_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """O1."""
    trained(DQN, NORMALIZED, tmp_path / "point")

    def mean(**how: Any) -> Any:
        with DQN(config=NORMALIZED, init_from=tmp_path / "point", **how) as tuned:
            (normalizer,) = tuned.workers.policy.normalizers.values()
            return normalizer.mean.numpy()

    assert np.all(mean() == 0)
    assert "statistics of what its policy saw" in caplog.text
    assert np.all(mean(init_with=["statistics"]) != 0)


def test_what_does_not_fit_is_named_and_stays_behind_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D7: nothing is loaded then; partial: layers of other shapes keep their own."""
    weights = trained(DQN, SMALL["dqn"], tmp_path / "point")
    acrobot = {**SMALL["dqn"], "env": "Acrobot-v1"}
    with pytest.raises(ConfigError, match=r"\[16, 4\] there, \[16, 6\] here.*partial"):
        DQN(config=acrobot, init_from=tmp_path / "point")
    with DQN(config=acrobot, init_from=tmp_path / "point", init_with=["partial"]) as tuned:
        ours = tuned.workers.policy.weights()
        kept = [name for name in weights if ours[name].shape == weights[name].shape]
        assert 0 < len(kept) < len(weights)
        assert all(torch.equal(ours[name], weights[name]) for name in kept)
        assert tuned.parent is not None
        assert "[16, 4] there, [16, 6] here" in tuned.parent["left_out"][0]
        tuned.train()
    assert "left out of" in caplog.text


@pytest.mark.parametrize(
    ("kind", "config", "how", "words"),
    [
        (DQN, {"buffer_size": 101}, {"init_with": ["buffer"]}, "the ReplayBuffer of .* does not fit.*capacity"),
        (DQN, {"normalize_obs": True}, {"init_with": ["statistics"]}, "no statistics"),
        (PPO, SMALL["ppo"], {"init_with": ["buffer", "partial"]}, "do not fit|this plan has none"),
        (SAC, SMALL["sac"], {}, "do not fit this SACPolicy.*nothing of it fits"),
        (DQN, {}, {"init_with": ["bufer"]}, "did you mean 'buffer'"),
        (DQN, {}, {"init_from": None, "init_with": ["buffer"]}, "needs init_from"),
        (DQN, {}, {"init_from": "nowhere"}, "nowhere does not exist"),
    ],
)
def test_bad_input_is_refused(
    kind: type[Trainer], config: dict[str, Any], how: dict[str, Any], words: str, point: Path
) -> None:
    """D7, X3."""
    with pytest.raises(ConfigError, match=words):
        kind(config={**(SMALL["dqn"] if kind is DQN else {}), **config}, **{"init_from": point, **how})


@pytest.fixture(scope="module")
def point(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small DQN."""
    place = tmp_path_factory.mktemp("parent") / "point"
    trained(DQN, SMALL["dqn"], place)
    return place


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a run's best policy, and its newest checkpoint's buffer; run.json says so, also after a resume."""
    monkeypatch.chdir(tmp_path)
    Path("small.json").write_text(json.dumps({**SMALL["dqn"], "eval_every": 100, "eval_episodes": 2}))
    run = ("run", "dqn", "--config", "small.json", "--quiet")
    assert flowrl(*run, "--stop-steps", 100, "--out", "first").exit_code == 0
    tuned = flowrl(*run, "--from", "first", "--from-with", "buffer", "--stop-steps", 60, "--out", "second")
    assert tuned.exit_code == 0, tuned.output
    parent = json.loads(Path("second/run.json").read_text())["from"]
    assert (parent["path"], parent["with"]) == (str(tmp_path / "first"), ["buffer"])
    assert parent["env_steps"] >= 100
    assert flowrl("run", "--resume", "second", "--stop-steps", 80, "--quiet").exit_code == 0
    assert json.loads(Path("second/run.json").read_text())["from"] == parent
    assert flowrl(*run, "--from", "first/policy.pt", "--stop-steps", 60, "--out", "third").exit_code == 0
    for more, words in (
        (("--from-with", "buffer"), "--from-with buffer needs --from RUN"),
        (("--from", "first/policy.pt", "--from-with", "buffer"), "only checkpoints hold buffers"),
        (("--resume", "first", "--from", "second"), "use only one of them"),
    ):
        refused = flowrl("run", "dqn", "--config", "small.json", *more)
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.output

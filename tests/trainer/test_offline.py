"""Learning without an environment: where spaces come from, what is made when, what is refused before training."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import flowrl
from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.errors import ConfigError, DatasetError, PlanError
from flowrl.operators import OfflineRows, ParallelRollouts, PolicyActions, Record
from flowrl.plans import BC, MARWIL
from flowrl.policies import BCPolicy, RandomPolicy
from flowrl.policies.policy import Policy
from flowrl.rollout import WorkerSet
from flowrl.trainer.offline import OfflineTrainer
from tests.cli.parts import flowrl as command
from tests.minari_episodes import minari_dataset
from tests.offline_data import offline_data
from tests.plans.small import without_clock

SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 32, "report_every": 10, "device": "cpu"}

made: list[str] = []


def never() -> Any:
    """An environment that must not be made."""
    raise AssertionError("an environment was made")


def counted(name: str = "CartPole-v1") -> Any:
    """One whose making is noticed."""
    made.append(name)
    return gymnasium.make(name)


def rewritten(
    path: Path, drop: tuple[str, ...] = (), about: Any = None, env: str = "CartPole-v1", **columns: Any
) -> Path:
    """The dataset, without some columns or with others, and with another manifest."""
    source = Dataset(offline_data(env))
    writer = DatasetWriter(path, source.about if about is None else about)
    for batch in source:
        kept = batch.select([name for name in batch if name not in drop]).map(np.array)
        writer.add(kept.replace(**{name: change(kept[name]) for name, change in columns.items()}))
    return path


def unknown(path: Path) -> Path:
    """The dataset without its spaces, as `Record` writes it."""
    return rewritten(path, about={})


def test_no_environment_is_made(tmp_path: Path) -> None:
    """Neither to build it nor to train, act, save or load: the spaces are those of the dataset."""
    with BC(env=never, data=offline_data(), **SMALL) as bc:
        result = bc.train(until={"updates": 30})
        assert (result["updates"], "env_steps" in result) == (30, False)
        assert bc.act(np.zeros(4, np.float32)) in (0, 1)
        bc.save(tmp_path / "saved")
        assert repr(bc).endswith(":never, seed 0, 30 updates)")
    with BC(env=never, data=offline_data(), **SMALL) as again:
        again.restore(tmp_path / "saved")
        assert again.train(until={"updates": 40})["updates"] == 40
    words = ["--set", f"data={offline_data()}", "--set", "hidden=[8]", "--env", f"{__name__}:never"]
    done = command("run", "bc", *words, "--stop-steps", 40, "--out", tmp_path / "run", "--quiet")
    assert done.exit_code == 0, done.output
    assert flowrl.load(tmp_path / "run", trusted=True).act(np.zeros((3, 4), np.float32)).shape == (3,)


def test_evaluation_is_where_it_was_recorded_or_where_one_says(tmp_path: Path) -> None:
    """S3, S6: every so many updates; what nobody asked for is not made before somebody asks."""
    made.clear()
    with BC(data=offline_data(), **SMALL, eval_every=20, eval_episodes=2) as bc:
        results = [bc.train() for _ in range(4)]
    assert ["eval_return" in result for result in results] == [False, True, False, True]
    with BC(env=counted, data=offline_data(), **SMALL) as bc:
        bc.train()
        assert made == []
        assert bc.evaluate(episodes=2)["episodes"] == 2
        assert made
    with pytest.raises(ConfigError, match="eval_env: the observation space of Pendulum-v1 is Box"):
        BC(env="Pendulum-v1", data=offline_data(), **SMALL, eval_every=20)


def test_actions_beyond_where_it_was_recorded_are_refused() -> None:
    """The same kind of numbers, but of other bounds: a wrapper is missing, say."""
    narrow = partial(gymnasium.wrappers.RescaleAction, gymnasium.make("Pendulum-v1"), np.float32(-1), np.float32(1))
    with pytest.raises(ConfigError, match="give the environment with the wrappers that it was recorded in"):
        BC(env=narrow, data=offline_data("Pendulum-v1"), **SMALL, eval_every=20)


def test_workers_have_nothing_to_do() -> None:
    """Who asks for some is told."""
    with pytest.raises(ConfigError, match="num_workers=2: an offline plan does not sample"):
        BC(data=offline_data(), num_workers=2, **SMALL)
    with pytest.raises(
        ConfigError, match=r"agents=.*: an offline plan trains one policy.*left, right: leave agents out"
    ):
        BC(data=offline_data(), agents={"a": "left", "b": "right"}, **SMALL)


def test_a_run_of_the_command_counts_updates(tmp_path: Path) -> None:
    """D3, S6: budgets, checkpoints, results and evaluations; a resumed run is the whole one."""
    settings = [f"data={offline_data()}", "hidden=[8]", "report_every=20", "eval_every=40", "eval_episodes=2"]
    words = [word for setting in settings for word in ("--set", setting)]
    for out, steps in (("whole", 120), ("parts", 60)):
        done = command("run", "bc", *words, "--stop-steps", steps, "--out", tmp_path / out)
        assert done.exit_code == 0, done.output
    assert "done: best eval return" in done.output
    assert "60 updates" in done.output
    done = command("run", "--resume", tmp_path / "parts", "--stop-steps", 120)
    assert "resumed at 60 updates" in done.output
    whole, parts = (
        [without_clock(json.loads(line)) for line in (tmp_path / out / "metrics.jsonl").read_text().splitlines()]
        for out in ("whole", "parts")
    )
    assert whole == parts
    assert [result["updates"] for result in whole] == [20, 40, 60, 80, 100, 120]
    assert sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())[-1] == "step-000000120"
    done = command("run", "bc", *words, "--stop-return", 1, "--stop-steps", 80, "--out", tmp_path / "goal")
    assert done.exit_code == 0, done.output
    assert "goal reached" in done.output


def test_an_end_of_the_data_is_an_end_of_the_run() -> None:
    """F12: every row of every epoch is learned from once."""
    with BC(data=offline_data(), **SMALL, epochs=2) as bc:
        while not bc.done:
            result = bc.train()
    assert result["trained"] == 2 * Dataset(offline_data()).rows


def test_schedules_follow_updates() -> None:
    """Q7: there are no env steps that they could follow."""
    with BC(data=offline_data(), **SMALL, learning_rate="linear(1e-2, 1e-3, 100)") as bc:
        rates = []
        for _ in range(3):
            bc.train()
            rates.append(bc.workers.policy.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-2 - 9e-5 * n for n in (9, 19, 29)], rel=1e-6)  # before updates 10, 20, 30


def test_a_dataset_that_does_not_know_its_spaces(tmp_path: Path) -> None:
    """The environment is asked; without one it is refused, with the way out."""
    path = str(unknown(tmp_path / "data"))
    with pytest.raises(DatasetError, match=r"does not know the spaces .* with --env .* or record it again"):
        BC(data=path, **SMALL)
    made.clear()
    with BC(env=counted, data=path, **SMALL) as bc:
        bc.train()
        assert made == ["CartPole-v1"]
        assert bc.evaluate(episodes=1)["episodes"] == 1
    known = {name: Dataset(offline_data()).about[name] for name in ("observation_space", "action_space")}
    with BC(data=str(rewritten(tmp_path / "nowhere", about=known)), **SMALL) as bc:
        bc.train()
        with pytest.raises(ConfigError, match=r"there is no environment, .*: give one, with --env"):
            bc.evaluate(episodes=1)
    with pytest.raises(ConfigError, match="there is no environment"):
        BC(data=str(tmp_path / "nowhere"), **SMALL, eval_every=10)
    with pytest.raises(DatasetError, match="is damaged: its manifest has malformed spaces"):
        BC(data=str(rewritten(tmp_path / "odd", about={**known, "action_space": {"kind": "Odd"}})), **SMALL)


def test_what_cannot_be_learned_from_is_refused_before_training(tmp_path: Path) -> None:
    """Which column is missing, which space does not fit, and what to do."""
    with pytest.raises(DatasetError, match="no column 'action', which learning needs: it has env_id, episode_id"):
        BC(data=str(rewritten(tmp_path / "a", drop=("action",))), **SMALL)
    with pytest.raises(DatasetError, match="its column 'obs' is float32"):
        BC(data=str(rewritten(tmp_path / "b", obs=lambda obs: obs[..., :3])), **SMALL)
    with pytest.raises(DatasetError, match="is not there: a dataset is a folder that Record or `flowrl record` wrote"):
        BC(data=str(tmp_path / "none"), **SMALL)
    empty = DatasetWriter(tmp_path / "c", Dataset(offline_data()).about)
    empty.add(Batch(obs=np.zeros((0, 1, 4), np.float32), action=np.zeros((0, 1), int)))
    with pytest.raises(DatasetError, match="is empty"):
        BC(data=str(tmp_path / "c"), **SMALL)
    far = rewritten(tmp_path / "d", env="Pendulum-v1", action=lambda action: action * 1.5)
    with pytest.raises(DatasetError, match="beyond the bounds of the action space Box"):
        BC(data=str(far), **SMALL)
    lost = rewritten(tmp_path / "e", env="Pendulum-v1", action=lambda action: action * np.nan)
    with pytest.raises(DatasetError, match="its column 'action' has nan in row 0"):
        BC(data=str(lost), **SMALL)
    lost = rewritten(tmp_path / "f", reward=lambda reward: reward * np.inf)
    with pytest.raises(DatasetError, match="its column 'reward' has inf in row 0"):
        MARWIL(data=str(lost), **SMALL)
    done = command("run", "bc", "--set", f"data={tmp_path / 'none'}", "--stop-steps", 10)
    assert done.exit_code == 2


def test_nobody_can_be_asked_to_act() -> None:
    """A plan that samples needs another set of workers, and is told so."""
    with BC(data=offline_data(), **SMALL) as bc, pytest.raises(PlanError, match="nobody acts here"):
        ParallelRollouts(bc.workers).check()


def test_actions_are_converted_exactly_once() -> None:
    """G6, A2: from the environment's numbers, as the dataset has them, into -1 .. 1, and no second time."""
    path = offline_data("Pendulum-v1")
    recorded = Dataset(path).take(range(100))["action"]
    assert abs(recorded).max() > 1.5  # within -2 .. 2
    with BC(data=path, **SMALL) as bc:
        policy: Policy = bc.workers.policy
        rows = OfflineRows(bc.workers, path, 400, epochs=1)
        (batch,) = list(rows)
        every = np.sort(Dataset(path).take(Dataset(path).real_rows())["action"].ravel())
        np.testing.assert_allclose(np.sort(batch.action.ravel()), every / 2, atol=1e-6)
        assert "policy_version" not in batch  # which is of another run's weights
        with pytest.raises(PlanError, match="are in the policy's scale already"):
            rows.for_each(PolicyActions(bc.workers)).check()
        rows.check()
        np.testing.assert_allclose(policy.from_env(recorded), recorded / 2, atol=1e-6)
        sent = bc.act(batch.obs)
        assert sent.shape == batch.action.shape
    uneven = BCPolicy(
        gymnasium.spaces.Box(-1, 1, (2,)),
        gymnasium.spaces.Box(np.array([0.0, -1.0], np.float32), np.array([10.0, 1.0], np.float32)),
        device="cpu",
    )
    there = np.array([[0.0, -1.0], [5.0, 0.5], [10.0, 1.0]], np.float32)
    np.testing.assert_allclose(uneven.from_env(there), [[-1, -1], [0, 0.5], [1, 1]], atol=1e-6)
    np.testing.assert_allclose(uneven.choosing.for_env(uneven.from_env(there)), there, atol=1e-6)


def test_choices_are_converted_too(tmp_path: Path) -> None:
    """Those of a space that begins elsewhere become 0 .. n-1, and are sent as the environment numbers them."""
    about = {**Dataset(offline_data()).about}
    about["action_space"] = {**about["action_space"], "start": 3}
    path = rewritten(tmp_path / "data", about=about, action=lambda action: action + 3)
    with BC(data=str(path), **SMALL) as bc:
        (batch,) = list(OfflineRows(bc.workers, path, 1_000, epochs=1))
        assert set(batch.action.tolist()) == {0, 1}
        bc.train()
        assert set(bc.act(batch.obs).tolist()) <= {3, 4}


def test_minari_knows_its_spaces_and_its_environment() -> None:
    """The same from a dataset of somebody else's."""
    from flowrl.data.datasets.minari import MinariEpisodes
    from flowrl.envs.dataset_spaces import environment_of, spaces_of

    data = MinariEpisodes(minari_dataset())
    env = gymnasium.make("CartPole-v1")
    assert spaces_of(data) == (env.observation_space, env.action_space)
    made = environment_of(data)
    assert made is not None
    assert made["env"]().spec.max_episode_steps == 12


def recorded_in_a_plan(path: Path, **settings: Any) -> Path:
    """What random actions do in CartPole, recorded by an operator."""
    with WorkerSet("CartPole-v1", RandomPolicy, envs_per_worker=2, **settings) as workers:
        plan = ParallelRollouts(workers, steps=40).for_each(Record(path, workers=workers))
        with plan.run() as run:
            next(run)
    return path


def test_evaluation_is_in_the_wrappers_that_were_recorded(tmp_path: Path) -> None:
    """S6: in those, and with the arguments, of which the dataset knows; others are refused, unless asked for."""
    wrappers = ["TimeLimit(7)"]
    path = str(recorded_in_a_plan(tmp_path / "short", env_args={"max_episode_steps": 30}, wrappers=wrappers))
    about = Dataset(path).about
    assert (about["env"], about["env_args"], about["wrappers"]) == ("CartPole-v1", {"max_episode_steps": 30}, wrappers)

    def length(**settings: Any) -> float:
        with BC(data=path, **SMALL, **settings) as bc:
            return float(bc.evaluate(episodes=4)["length_mean"])

    assert length() == length(wrappers=wrappers) == length(env="CartPole-v1") == 7
    assert length(env_args={"max_episode_steps": 5}) == 5
    assert 7 < length(eval_wrappers=[]) <= 30
    for others in (["TimeLimit(8)"], [*wrappers, "FlattenObservation"]):
        with pytest.raises(
            ConfigError, match=r"was recorded in CartPole-v1 with \['TimeLimit\(7\)'\], .*leave them out"
        ):
            BC(data=path, **SMALL, wrappers=others)
    with pytest.raises(ConfigError, match="was recorded in CartPole-v1 with none"):
        BC(data=str(recorded_in_a_plan(tmp_path / "plain")), **SMALL, wrappers=wrappers)
    older = {name: value for name, value in about.items() if name != "wrappers"}
    path = str(rewritten(tmp_path / "older", about=older))
    assert 7 < length() <= 30
    assert length(wrappers=wrappers) == 7


def test_what_has_no_name_is_not_said(tmp_path: Path) -> None:
    """An environment or a wrapper that no other process could make: the spaces are known all the same."""
    nameless = partial(gymnasium.wrappers.TimeLimit, max_episode_steps=7)
    path = recorded_in_a_plan(tmp_path / "data", wrappers=[nameless])
    assert Dataset(path).about["env"] is None
    with BC(data=str(path), **SMALL) as bc:
        bc.train()
        with pytest.raises(ConfigError, match="there is no environment"):
            bc.evaluate(episodes=1)
    named = recorded_in_a_plan(tmp_path / "named", wrappers=[gymnasium.wrappers.FlattenObservation])
    (wrapper,) = Dataset(named).about["wrappers"]
    with BC(data=str(named), **SMALL, wrappers=[wrapper]) as bc:
        assert bc.evaluate(episodes=1)["episodes"] == 1


def trained_run(folder: Path, data: str | Path) -> Path:
    """The directory of a short run on a dataset."""
    words = ["--set", f"data={data}", "--set", "hidden=[8]", "--stop-steps", 10, "--out", folder, "--quiet"]
    done = command("run", "bc", *words)
    assert done.exit_code == 0, done.output
    return folder


def test_a_run_needs_no_dataset_any_more(tmp_path: Path) -> None:
    """S6: it remembers spaces, environment and wrappers, so the policy acts, is evaluated, exported and recorded."""
    data = recorded_in_a_plan(tmp_path / "data", wrappers=["TimeLimit(7)"])
    run = trained_run(tmp_path / "run", data)
    obs = np.zeros((3, 4), np.float32)
    before = flowrl.load(run).act(obs)
    shutil.rmtree(data)
    trained = flowrl.load(run)
    assert trained.act(obs).tolist() == before.tolist()
    assert trained.evaluate(episodes=2)["length_mean"] == 7
    assert command("evaluate", run, "--episodes", 2).exit_code == 0
    assert command("export", run, "--out", tmp_path / "policy.pt2").exit_code == 0
    assert command("record", run, "--episodes", 2, "--out", tmp_path / "again").exit_code == 0
    about = Dataset(tmp_path / "again").about
    assert (about["env"], about["wrappers"]) == ("CartPole-v1", ["TimeLimit(7)"])
    with BC(data=str(tmp_path / "again"), **SMALL) as bc:
        assert bc.evaluate(episodes=2)["length_mean"] == 7
    done = command("run", "--resume", run, "--stop-steps", 20)
    assert done.exit_code == 2
    assert "is not there" in done.output


def test_a_run_of_an_earlier_version_needs_its_dataset(tmp_path: Path) -> None:
    """Which knows the spaces of the policy."""
    data = shutil.copytree(offline_data(), tmp_path / "data")
    run = trained_run(tmp_path / "run", data)
    about = json.loads((run / "run.json").read_text())
    del about["dataset"]
    (run / "run.json").write_text(json.dumps(about))
    assert flowrl.load(run).act(np.zeros((3, 4), np.float32)).shape == (3,)
    shutil.rmtree(data)
    with pytest.raises(ConfigError, match=r"cannot be loaded here: .* is not there"):
        flowrl.load(run)


def test_where_no_environment_is_known_none_is_recorded(tmp_path: Path) -> None:
    """Its name would be missing in the manifest."""
    known = {name: Dataset(offline_data()).about[name] for name in ("observation_space", "action_space")}
    run = trained_run(tmp_path / "run", rewritten(tmp_path / "nowhere", about=known))
    done = command("record", run, "--episodes", 1, "--out", tmp_path / "new")
    assert done.exit_code == 2
    assert "give one, with --env" in done.output
    done = command("record", run, "--episodes", 1, "--out", tmp_path / "new", "--env", "CartPole-v1")
    assert done.exit_code == 0, done.output
    assert Dataset(tmp_path / "new").about["env"] == "CartPole-v1"


def test_the_environment_of_a_minari_dataset_has_no_name() -> None:
    """Recording in it needs one."""
    from flowrl.data.datasets.minari import MinariEpisodes

    with BC(data=offline_data(), **SMALL) as bc:
        workers = OfflineTrainer._workers(bc.config, None, BC.policy, MinariEpisodes(minari_dataset()))
    assert workers.evaluation_env.look(1).action_space == bc.workers.policy.action_space
    assert workers.about()["dataset"]["env"] is None

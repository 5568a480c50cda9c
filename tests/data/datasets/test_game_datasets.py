"""Datasets of games: recorded by policy, with the names of agents, and read of some agents alone."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.data import Dataset
from flowrl.data.steps import real_rows
from flowrl.errors import ConfigError, DatasetError
from flowrl.operators import FromDataset, ParallelRollouts, Record
from flowrl.plans import BC, CQL, IPPO, IQL, MARWIL
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import Trainer
from tests.cli.parts import flowrl as command
from tests.plans.small import SMALL

GAME, AGENTS = "flowrl:two_cartpoles", ["left", "right"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of one policy that plays all agents."""
    out = tmp_path_factory.mktemp("data") / "shared"
    done = command("record", "--policy", "random", "--env", GAME, "--episodes", 20, "--out", out)
    assert done.exit_code == 0, done.output
    assert "20 episodes, mean return" in done.output
    assert "(left " in done.output
    return out


def workers_of_both() -> WorkerSet:
    policies = {"ppo": partial(PPOPolicy, hidden=(8,), seed=1), "dqn": partial(DQNPolicy, hidden=(8,), seed=1)}
    layout: dict[str, Any] = {"envs_per_worker": 3, "env_groups": 1, "seed": 0}
    return WorkerSet(GAME, policies=policies, agents={"left": "ppo", "right": "dqn"}, **layout)


def test_a_recording_names_the_agents_and_is_read_of_some_alone(shared: Path) -> None:
    """M4: by name or pattern."""
    data, every = Dataset(shared), Dataset(shared, "*")
    assert data.about["agents"] == AGENTS
    assert data.real_rows().tolist() == every.real_rows().tolist()
    for number, pattern in enumerate(("left", "r*t")):
        of_one = pickle.loads(pickle.dumps(Dataset(shared, pattern)))
        rows = of_one.take(of_one.real_rows())
        assert (rows.agent == number).all()
        assert len(rows) == np.count_nonzero(data.take(data.real_rows()).agent == number) > 100
    with pytest.raises(DatasetError, match="no agent 'lift': did you mean 'left'"):
        Dataset(shared, "lift")


@pytest.mark.parametrize("plan", [BC, MARWIL, CQL, IQL])
def test_one_policy_learns_from_all_agents_or_from_one(plan: type[Trainer], shared: Path) -> None:
    """F12: an epoch has each of their rows once."""
    settings = {"batch_size": 1000, "report_every": 1, "hidden": [8], "device": "cpu", "epochs": 1, "data": str(shared)}
    for agent in (None, "left"):
        with plan(config={**settings, "agent": agent}) as trainer:
            read = 0
            while not trainer.done:
                read = trainer.train().get("read", read)
        assert read == len(Dataset(shared, agent or "*").real_rows())
    with pytest.raises(DatasetError, match="no agent 'lift'"):
        plan(config={**settings, "agent": "lift"})


def test_a_dataset_without_agents_has_none_to_choose(tmp_path: Path) -> None:
    out = tmp_path / "data"
    assert command("record", "--policy", "random", "--env", "CartPole-v1", "--steps", 20, "--out", out).exit_code == 0
    with pytest.raises(DatasetError, match=r"names no agents.*leave 'left' out"):
        Dataset(out, "left")


def test_several_policies_record_a_dataset_each(tmp_path: Path) -> None:
    """F2, M4: the rows of each policy's own agents; a resumed run goes on after its checkpoint."""
    out, given = tmp_path / "both", {"ppo": list[Any](), "dqn": list[Any]()}
    with workers_of_both() as workers:
        rollouts = ParallelRollouts(workers, steps=5)
        plan = rollouts.for_each(Record(out, workers=workers))
        with plan.run(seed=0) as run:
            for _ in range(2):
                for name, part in next(run).items():
                    given[name].append(part)
            state = run.state_dict()
            next(run)
    with workers_of_both() as workers:
        plan = ParallelRollouts(workers, steps=5).for_each(Record(out, workers=workers))
        with plan.run(seed=0) as run:
            run.load_state_dict(state)
            for name, part in next(run).items():
                given[name].append(part)
    for number, name in enumerate(given):
        data = Dataset(out / name).verify()
        assert data.about["agents"] == AGENTS
        assert len(data) == 3
        for recorded, batch in zip(data, given[name]):
            assert (recorded.agent == number).all()
            assert real_rows(recorded.select(["obs", "reward", "t"])) == real_rows(batch.select(["obs", "reward", "t"]))
        assert Dataset(out / name).about["observation_space"]["shape"] == [4]
    with pytest.raises(DatasetError, match="for each of the policies dqn, ppo: give one"):
        FromDataset(out)


def test_a_run_of_several_policies_is_recorded_by_policy(tmp_path: Path) -> None:
    """S2: whole games; one of its policies may be learned from it."""
    run, out = tmp_path / "run", tmp_path / "data"
    with IPPO(config=SMALL["ippo"], out=run) as trainer:
        trainer.train(env_steps=40, progress=False)
    done = command("record", run, "--episodes", 4, "--out", out)
    assert done.exit_code == 0, done.output
    for number, name in enumerate(AGENTS):
        data = Dataset(out / name)
        rows = data.take(data.real_rows())
        assert (rows.agent == number).all()
        assert np.count_nonzero(rows.terminated | rows.truncated) == 4
    with BC(config={"data": str(out / "left"), "hidden": [8], "device": "cpu", "report_every": 1}) as cloned:
        assert np.isfinite(cloned.train()["loss"])


def test_one_policy_cannot_record_agents_that_differ(tmp_path: Path) -> None:
    done = command(
        "record", "--policy", "random", "--env", "tests.games:Unlike", "--episodes", 1, "--out", tmp_path / "x"
    )
    assert done.exit_code != 0
    assert "plays 'ann'" in done.output
    assert "'bob'" in done.output
    with pytest.raises(ConfigError, match="plays 'ann'"):
        WorkerSet("tests.games:Unlike", PPOPolicy)

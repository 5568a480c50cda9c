"""Columns of `info`: the numbers of each step's own info, whichever manager steps, and none that is not there."""

from __future__ import annotations

from collections import UserDict
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from flowrl.data import Dataset, ReplayBuffer
from flowrl.engine.schema import mismatches
from flowrl.envs import Environments
from flowrl.errors import ConfigError, SchemaError
from flowrl.operators import ParallelRollouts, Record, StoreToReplay
from flowrl.plans import DQN
from flowrl.rollout import RolloutWorker, WorkerSet
from tests.scripted import ScriptedPolicy

LENGTH = 3
KEYS = {"tenfold": None, "odd": -1, "pair": [7, 8]}


def told(step: int) -> dict[str, Any]:
    """The info of a step: `odd` and `pair` are in every other one."""
    return {"tenfold": 10 * step} | ({"odd": np.float32(step), "pair": np.array([step, -step])} if step % 2 else {})


class Told(gymnasium.Env[Any, Any]):
    """Observes the step of its episode; the info of a reset has another one, which is no step's."""

    observation_space: gymnasium.Space[Any] = spaces.Box(0, 99, (1,), np.float32)
    action_space: gymnasium.Space[Any] = spaces.Discrete(2)

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), told(999)

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == self.length, False, told(self.t)


class Poisoned(VectorWrapper):
    """What masks exclude is nonsense (T10)."""

    def step(self, actions: Any) -> Any:
        *rest, infos = self.env.step(actions)
        for part in (infos, infos.get("final_info", {})):
            for key in KEYS.keys() & part.keys():
                part[key][~part[f"_{key}"]] = 666
        return *rest, infos


def poisoned(num_envs: int, mode: str) -> Poisoned:
    lengths = range(LENGTH, LENGTH + num_envs)  # so that one is told what another is not
    return Poisoned(SyncVectorEnv([partial(Told, length) for length in lengths], autoreset_mode=AutoresetMode(mode)))


class OwnMapping(Told):
    """Its infos are no dictionaries of Python's, of which gymnasium keeps the last ones as they are."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, UserDict(info)


def policy(*spaces: Any) -> Any:
    return ScriptedPolicy()


MANAGERS: dict[str, dict[str, Any]] = {kind: {"spec": Told, "kind": kind} for kind in ("local", "subprocess", "async")}
MANAGERS |= {"thread": {"spec": Told, "kind": "thread"}, "copies": {"spec": Told, "kind": "vector"}}
MANAGERS["own mapping"] = {
    "spec": lambda num_envs: SyncVectorEnv([OwnMapping] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
}
MANAGERS |= {mode: {"spec": poisoned, "env_args": {"mode": mode}} for mode in ("NextStep", "SameStep", "Disabled")}


@pytest.mark.parametrize("name", MANAGERS)
def test_every_row_has_the_numbers_of_its_own_step(name: str) -> None:
    """T12, T1, T2, T10: at the ends of episodes too, and a fill where a key is missing."""
    manager = Environments(**MANAGERS[name], info_keys=KEYS).manager(2)
    worker = RolloutWorker(manager, ScriptedPolicy(), seed=0)
    try:
        rows = worker.sample(2 * LENGTH + 1)
    finally:
        worker.close()
    assert rows.obs.shape == (2 * LENGTH + 1, 2, 1)
    for step, tenfold, odd, pair in zip(
        rows.next_obs.ravel().tolist(), rows.info.tenfold.ravel(), rows.info.odd.ravel(), rows.info.pair.reshape(-1, 2)
    ):
        assert (tenfold, odd) == (10 * step, step if step % 2 else -1)
        assert pair.tolist() == ([step, -step] if step % 2 else [7, 8])


def test_a_resumed_worker_goes_on_with_its_columns() -> None:
    """D3."""

    def worker() -> RolloutWorker:
        return RolloutWorker(Environments(Told, info_keys=KEYS).manager(2), ScriptedPolicy(), seed=0)

    first, second = worker(), worker()
    first.sample(2)
    second.load_state_dict(first.state_dict())
    assert first.sample(4) == second.sample(4)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (["odd"], SchemaError, r"info has no 'odd' at this step; .* as in info_keys=\{'odd': 0\}"),
        (["pair"], SchemaError, r"info\['pair'\] is array\(\[ 1, -1\]\), expected a number; a fill .* gives the shape"),
        ({"tenfold": [1, 2, 3]}, SchemaError, r"info\['tenfold'\] is 10, expected numbers of the shape \[3\]"),
        ({"odd": "none"}, ConfigError, "the fill of 'odd' is 'none', expected a finite number"),
        ({"odd": np.nan}, ConfigError, "the fill of 'odd' is nan"),
        ("odd", ConfigError, "info_keys='odd': expected a list of keys"),
        ({1: 2}, ConfigError, "expected a list of keys of info, or a table of keys and fills"),
    ],
)
def test_what_cannot_be_a_column_is_refused(keys: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RolloutWorker(Environments(Told, info_keys=keys).manager(1), policy(), seed=0).sample(2)


def test_columns_are_foretold_stored_recorded_and_replayed(tmp_path: Path) -> None:
    workers = WorkerSet(Told, policy, envs_per_worker=2, info_keys=KEYS)
    buffer = ReplayBuffer(100, store_next_obs=False, seed=0)
    foretold = workers.schema()
    assert foretold.columns["info.pair"].shape == ("T", "N", 2)
    stream = ParallelRollouts(workers, steps=5).for_each(StoreToReplay(buffer)).for_each(Record(tmp_path / "data"))
    with workers, stream.run(seed=0) as run:
        batch = next(run)
    assert mismatches(batch, foretold) == []
    recorded = Dataset(tmp_path / "data").take(np.arange(10))
    drawn = buffer.sample(50)
    for rows in (drawn, recorded):
        assert (rows.info.tenfold == 10 * rows.next_obs[:, 0]).all()


class Silent(Told):
    """Has no info."""

    def step(self, action: Any) -> Any:
        return *super().step(action)[:-1], {}


def test_evaluation_does_not_look_for_them() -> None:
    with DQN(env=Told, info_keys=["tenfold"], learning_starts=10, hidden=(4,), eval_env=f"{__name__}:Silent") as dqn:
        dqn.train(until={"env_steps": 64})
        assert dqn.evaluate(episodes=2)["return_mean"] == LENGTH

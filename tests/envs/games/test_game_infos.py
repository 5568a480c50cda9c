"""Columns of `info` in games: the numbers that each agent was told between its action and its next turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.data import Dataset, ReplayBuffer
from flowrl.data.steps import real_rows
from flowrl.engine.schema import mismatches
from flowrl.envs import Environments
from flowrl.envs.games import Turn
from flowrl.envs.games.seats import Of
from flowrl.errors import SchemaError
from flowrl.operators import NStep, ParallelRollouts, Record, StoreToReplay
from flowrl.plans import IPPO
from flowrl.rollout import WorkerSet
from tests.games import AGENTS, SEEDS, Following, RandomGame
from tests.plans.small import SMALL

KEYS = {"clock": -1, "odd": [7, 8]}


class Telling(RandomGame):
    """Tells agents its clock, and of odd steps their number too; most of them in a step, whether they act or not."""

    def step(self, actions: Mapping[str, Any]) -> Turn:
        turn, told = super().step(actions), dict[str, Any]()
        for number, agent in enumerate(AGENTS):
            if (self.clock + number) % 3:
                odd = {"odd": np.array([self.clock, number])} if self.clock % 2 else {}
                told[agent] = {**turn.info.get(agent, {}), "clock": self.clock, **odd}
        return turn._replace(info={**turn.info, **told})


@pytest.mark.parametrize("kind", ["local", "subprocess", "async", "thread"])
def test_every_answer_has_the_newest_numbers_since_the_action(kind: str) -> None:
    """T12, M5: with every manager, against a loop over the games; a fill where the agent was told nothing."""
    environments = Environments(Telling, kind=kind, episode_seeds=SEEDS, info_keys=KEYS)
    game, seeds, draw = Telling(), iter(SEEDS), np.random.default_rng(0)
    seen, told, waiting = game.reset(next(seeds)), {agent: dict[str, Any]() for agent in AGENTS}, set[str]()
    answers = 0
    with environments.manager(1) as manager:
        manager.launch(0)
        for _ in range(200):
            actions = draw.integers(7, size=3)
            result = manager.step(actions[None])
            while result.acted is not None and not result.acted.all():
                result = manager.step(actions[None])
            turn = game.step({agent: actions[AGENTS.index(agent)] for agent in seen})
            for agent in AGENTS:
                told[agent] = {**({} if agent in seen else told[agent]), **turn.info.get(agent, {})}
            waiting |= set(seen)
            over = {*turn.terminated, *turn.truncated}
            seen = {agent: obs for agent, obs in turn.obs.items() if agent not in over}
            assert manager.info is not None
            for at, agent in enumerate(AGENTS):
                if answered := agent in waiting and (agent in turn.obs or agent in over):
                    waiting.remove(agent)
                    answers += 1
                    assert manager.info.clock[0, at] == told[agent].get("clock", -1)
                    assert manager.info.odd[0, at].tolist() == list(told[agent].get("odd", [7, 8]))
                assert answered == bool(result.next_obs["seats"][0, at, Of.ANSWERED])
            seen = seen or game.reset(next(seeds))
    assert answers > 100


def workers_of(**settings: Any) -> WorkerSet:
    return WorkerSet(Telling, lambda *spaces: Following(), envs_per_worker=2, info_keys=KEYS, seed=0, **settings)


def test_columns_are_foretold_stored_and_recorded(tmp_path: Path) -> None:
    """T12: beside the rows of their seats, in several batches too."""
    workers, buffer = workers_of(), ReplayBuffer(500, seed=0)
    foretold = workers.schema()
    assert foretold.columns["info.odd"].shape == ("T", "N", 2)
    stream = ParallelRollouts(workers, steps=30).for_each(Record(tmp_path / "data"))
    with workers, stream.for_each(NStep(1, 0.9)).for_each(StoreToReplay(buffer)).run(seed=0) as run:
        next(run)
        batch = workers.sample(steps=30)
    assert mismatches(batch, foretold) == []
    for rows in (real_rows(batch), Dataset(tmp_path / "data").take(np.arange(20)), buffer.sample(50)):
        odd = rows[rows.info.odd[:, 0] != 7]
        assert len(odd) > 3
        assert (odd.info.odd[:, 1] == odd.agent).all()

    several = {"first": lambda *spaces: Following(1), "second": lambda *spaces: Following(2)}
    apart = WorkerSet(Telling, policies=several, agents={"bob": "second", "*": "first"}, info_keys=KEYS, seed=0)
    with apart:
        apart.start()
        both = apart.sample(steps=20)
    assert set(both["second"].info.odd[..., 1].flatten().tolist()) <= {0, 1, 8}


def test_a_resumed_worker_goes_on_with_its_columns() -> None:
    """D3: between an action and its answer too."""
    with workers_of() as first, workers_of() as second:
        for each in (first, second):
            each.start()
        for _ in range(6):
            first.sample(steps=3)
            second.load_state_dict(first.state_dict())
            assert first.sample(steps=4) == second.sample(steps=4)


def test_a_missing_number_names_the_agent() -> None:
    """T12."""
    with WorkerSet(Telling, lambda *spaces: Following(), info_keys=["clock"], seed=0) as workers:
        workers.start()
        with pytest.raises(SchemaError, match=r"Telling, agent '\w+': info has no 'clock' .* info_keys=\{'clock': 0\}"):
            workers.sample(steps=9)


def test_a_player_has_the_numbers_of_its_agents() -> None:
    """M11, T12: by their names; in a plan that learns, whose evaluations do not look for them."""
    settings = {"agents": {"bob": "one", "pair": "two"}, "env": f"{__name__}:together", "eval_every": 20}
    keys = {"pair/clock": -1} | {f"{agent}/clock": -1 for agent in AGENTS}
    joined = IPPO(
        config={**SMALL["ippo"], **settings}, info_keys=keys, wrappers=['JoinAgents({"pair": ["ann", "cid"]})']
    )
    with joined as trainer:
        trainer.train(env_steps=40)
        rows = real_rows(trainer.workers.sample(steps=20)["two"])
    assert (rows.info["pair/clock"] == -1).all()
    assert len(set(rows.info["ann/clock"].tolist())) > 3


def together() -> Telling:
    """Agents that act together."""
    return Telling("together")

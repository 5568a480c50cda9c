"""JoinTeam: the rows of all agents of a game as those of their team."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.data import Batch, Dataset
from flowrl.data.steps import real_rows
from flowrl.engine.schema import Schema, mismatches
from flowrl.envs.games import Game, Turn
from flowrl.errors import ConfigError, SchemaError
from flowrl.operators import JoinTeam, NStep, ParallelRollouts, Record
from flowrl.rollout import WorkerSet
from tests.games import Following

TEAM = ("ann", "bob", "cid")
OURS = ("obs", "next_obs", "action")


class Rally(Game):
    """All act in each of a number of steps that the seed says, and gain what they do, plus a gain for all.

    An observation is [the agent, the step, the seed % 997, its last action].
    """

    possible_agents = TEAM
    observation_spaces: Mapping[str, Any] = dict.fromkeys(TEAM, spaces.Box(-np.inf, np.inf, (4,), np.float32))
    action_spaces: Mapping[str, Any] = dict.fromkeys(TEAM, spaces.Discrete(7))

    def reset(self, seed: int) -> Mapping[str, Any]:
        self.seed, self.clock, self.length = seed % 997, 0, 1 + seed % 5
        return self._seen(dict.fromkeys(TEAM, 0))

    def step(self, actions: Mapping[str, Any]) -> Turn:
        self.clock += 1
        over = TEAM if self.clock == self.length else ()
        ends = {"truncated" if self.seed % 2 else "terminated": over}
        return Turn(self._seen(actions), {name: 10.0 * self.clock + float(actions[name]) for name in TEAM}, **ends)

    def _seen(self, last: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: np.array([at, self.clock, self.seed, last[name]], np.float32) for at, name in enumerate(TEAM)}


class Turns(Rally):
    """One after the other."""

    def reset(self, seed: int) -> Mapping[str, Any]:
        return {"ann": super().reset(seed)["ann"]}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        self.clock += 1
        name = TEAM[self.clock % 3]
        return Turn(
            {} if self.clock == 30 else {name: self._seen(dict.fromkeys(TEAM, 0))[name]},
            terminated=TEAM if self.clock == 30 else (),
        )


def collected(game: Callable[[], Game] = Rally, count: int = 6, **amount: int) -> list[Batch]:
    settings: dict[str, Any] = {"envs_per_worker": 4, "env_groups": 2, "seed": 5}
    with WorkerSet(game, lambda *_: Following(), **settings) as workers:  # type: ignore[arg-type, return-value]
        workers.start()
        return [workers.sample(**amount or {"steps": 3}) for _ in range(count)]


def by_loop(batch: Batch) -> list[dict[str, Any]]:
    """The steps of all games, in their order in the batch, each with the rows of its agents."""
    rows, steps = real_rows(batch), dict[Any, dict[int, Batch]]()
    for i in range(len(rows)):
        row = rows[i]
        key = int(row.worker), int(row.env_id), int(row.episode_id), int(row.t)
        steps.setdefault(key, {})[int(row.agent)] = row
    return [
        {
            "key": key,
            "reward": sum(float(each.reward) for each in by_agent.values()) / 3,
            **{name: [by_agent[agent][name].tolist() for agent in range(3)] for name in OURS},
            **{name: by_agent[0][name].item() for name in ("terminated", "truncated")},
        }
        for key, by_agent in steps.items()
    ]


@pytest.mark.parametrize(
    ("amount", "n"),
    [({"steps": 3}, None), ({"episodes": 5}, None), ({"rows": 30}, None), ({"steps": 3}, 1), ({"steps": 3}, 3)],
)
def test_rows_of_a_team_are_those_of_a_loop_over_all_games(amount: dict[str, int], n: int | None) -> None:
    """M8, M4, T6: of fragments, of whole games, of rows, and of windows."""
    seen, adder, join = 0, None if n is None else NStep(n, 0.5), JoinTeam(TEAM)
    for batch in collected(**amount):
        given = batch if adder is None else adder(batch)
        joint, expected = join(given), by_loop(given)
        assert len(joint) == len(expected)
        seen += len(joint)
        for at, hand in enumerate(expected):
            row = joint[at]
            assert (int(row.worker), int(row.env_id), int(row.episode_id), int(row.t)) == hand["key"]
            assert row.reward == pytest.approx(hand["reward"])
            for name in OURS:
                assert row[name].tolist() == hand[name]
            assert (row.terminated, row.truncated) == (hand["terminated"], hand["truncated"])
            assert row.obs[:, 0].tolist() == [0, 1, 2]  # the game says who saw it
        assert not {"agent", "mask"} & set(joint)
    assert seen > 50


def test_the_schema_is_that_of_the_rows() -> None:
    """M8: what `plan.check` predicts."""
    with WorkerSet(Rally, lambda *_: Following()) as workers:  # type: ignore[arg-type, return-value]
        assert workers.game_agents == TEAM
    batch = collected(count=1)[0]
    columns = {name: f"{c.dtype}[{', '.join(['T', 'N', *map(str, c.shape[2:])])}]" for name, c in batch.leaves()}
    made = JoinTeam(TEAM).schema(Schema.of_columns("fragments", **columns))
    joint = JoinTeam(TEAM)(batch)
    assert mismatches(joint, made) == []
    assert set(made.columns) == set(joint)
    assert made.has("team")
    assert made.has("rows")


def test_a_batch_without_rows_is_no_row() -> None:
    """M8: as an n-step adder gives them."""
    batch = collected(count=1)[0]
    joint = JoinTeam(TEAM)(batch.flat()[:0])
    assert joint.obs.shape == (0, 3, 4)
    assert joint.reward.shape == (0,)


def test_recorded_rows_are_joined_like_new_ones(tmp_path: Path) -> None:
    """M8: whatever order a dataset has them in."""
    with WorkerSet(Rally, lambda *spaces: Following(), envs_per_worker=2, seed=0) as workers:
        stream = ParallelRollouts(workers, steps=7).for_each(Record(tmp_path / "data"))
        with stream.for_each(JoinTeam(TEAM)).run(seed=0) as run:
            new = [next(run) for _ in range(2)]
    data = Dataset(tmp_path / "data")
    joined = JoinTeam(TEAM)(data.take(range(data.rows)))
    assert len(joined) == sum(map(len, new)) == 28
    for name in OURS:
        assert (joined[name] == np.concatenate([batch[name] for batch in new])).all()


def test_who_acts_in_turn_is_no_team() -> None:
    """M8: the first agent without a row is named."""
    with pytest.raises(SchemaError, match=r"agent 'cid' has no row of step 0 of episode \d+ of game 0, but 'ann' has"):
        JoinTeam(TEAM)(collected(Turns, 1, steps=4)[0])


def test_who_ends_otherwise_is_named() -> None:
    """M8: one terminated, the others truncated; or one has left."""
    batch = collected(count=1)[0]
    batch["terminated"][1, 1] = ~batch["terminated"][1, 1]
    with pytest.raises(SchemaError, match=r"terminated of agent 'bob' is (True|False) in step .*, and .* of 'ann'"):
        JoinTeam(TEAM)(batch)
    with pytest.raises(SchemaError, match=r"agent number 2 acts in step .* the team has ann, bob alone"):
        JoinTeam(TEAM[:2])(collected(count=1)[0])
    rows = collected(count=1)[0].flat()
    with pytest.raises(SchemaError, match="agent 'ann' has several rows of step 0"):
        JoinTeam(TEAM)(Batch.cat([rows, rows[:1]]))


def test_what_is_missing_is_named() -> None:
    """M8: a column, and a game."""
    with pytest.raises(SchemaError, match="needs the column 'agent': collect in a game of several agents"):
        JoinTeam(TEAM)(Batch(reward=np.zeros((1, 1))))
    with pytest.raises(ValueError, match="name those of the team"):
        JoinTeam(())
    alone = WorkerSet("CartPole-v1", lambda *_: Following())  # type: ignore[arg-type, return-value]
    with alone, pytest.raises(ConfigError, match="a team needs a game of several agents"):
        _ = alone.game_agents

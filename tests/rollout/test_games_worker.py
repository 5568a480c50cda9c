"""GamesWorker: every row of every seat against an obvious loop over whole games, whoever steps them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy as np
import pytest

from flowrl.data.multi_agent import MultiAgentBatch
from flowrl.data.steps import real_rows, real_steps
from flowrl.engine.context import Context
from flowrl.envs import Episode
from flowrl.envs.games import Game, Turn
from flowrl.envs.games.seats import GameEnv, Seating
from flowrl.envs.managers.games import GameManager
from flowrl.envs.managers.games import Seats as Rows
from flowrl.envs.managers.local import EnvManager
from flowrl.errors import FlowError
from flowrl.policies import PPOPolicy
from flowrl.rollout import RolloutWorker, WorkerSet
from flowrl.rollout.games_worker import GamesWorker
from flowrl.rollout.policy_map import PolicyMap
from flowrl.testing import same
from tests.clock_envs import TABLE, EchoEnv, clock_factories
from tests.faulty_envs import KINDS, limits
from tests.games import (
    AGENTS,
    ARRANGEMENTS,
    SEEDS,
    Following,
    Played,
    RandomGame,
    Seats,
    by_hand,
    read,
    steps_of,
    two,
)
from tests.managers import FROM_FACTORIES, SLOW, Make, from_factories

CASES = [pytest.param("local", name, id=f"local-{name}") for name in ARRANGEMENTS]
CASES += [
    pytest.param(manager, name, id=f"{manager}-{name}", marks=pytest.mark.slow if manager in SLOW else ())
    for manager in FROM_FACTORIES
    if manager != "local"
    for name in ("memory", "by match")
]


@pytest.mark.parametrize(("manager", "name"), CASES)
def test_every_row_is_that_of_an_obvious_loop(manager: str, name: str) -> None:
    """M1, M2, M4, M5, M7, T7, T8, T11, T13: rewards add up between own turns, over the ends of fragments; env_steps are
    those of games, rows those of seats."""
    how, seats = ARRANGEMENTS[name], Seats()
    worker, lengths = how.worker(FROM_FACTORIES[manager]), dict[int, int]()
    before = [0, 0, 0]
    try:
        for amount in ({"steps": 1}, {"steps": 4}, {"rows": 23}, {"steps": 30}, {"rows": 9}, {"steps": 2}):
            batch = worker.sample(**amount)
            now = steps_of(worker, lengths)
            assert worker.env_steps_of(batch) == sum(now) - sum(before)
            assert worker.env_steps == sum(now)
            assert isinstance(batch, MultiAgentBatch) == (len(worker.policies) > 1)
            rows = batch.rows if isinstance(batch, MultiAgentBatch) else real_steps(batch)
            if "rows" in amount:
                assert amount["rows"] <= rows < amount["rows"] + 9
            elif len(worker.policies) > 1:
                assert batch.env_steps == worker.env_steps_of(batch)
                assert [b - a for a, b in zip(before, now)] == [amount["steps"]] * 3
            before = now
            seats.add(batch)
            seats.check(how, now)
    finally:
        worker.close()


@pytest.mark.parametrize("name", ["memory", "unlike", "by match"])
@from_factories
def test_whole_games_in_fixed_shares(make: Make, name: str) -> None:
    """S2, M4, M5, M6, T8: each game plays its share of new episodes, of which every row is there, and no other one."""
    how = ARRANGEMENTS[name]
    worker = how.worker(make)
    try:
        worker.sample(2)
        worker.episodes()
        cut, first = worker.manager.cut_episodes, (worker.manager.episode_id + 1).tolist()
        batch = worker.sample(episodes=7)
        assert worker.manager.cut_episodes - cut <= 3  # those of the sample before
        games = [(env_id, first[env_id] + k) for env_id, share in enumerate((3, 2, 2)) for k in range(share)]
        played = {game: by_hand(how, *game) for game in games}
        assert worker.env_steps_of(batch) == sum(game.length for game in played.values())
        found: dict[tuple[int, int, str], Any] = {}
        for policy, columns in batch.items() if isinstance(batch, MultiAgentBatch) else [("default_policy", batch)]:
            assert len(columns) == columns.mask.sum(0).max()
            for column in range(columns.reward.shape[1]):
                rows = columns[:, column][columns.mask[:, column]]
                seat = int(rows.env_id[0]), int(rows.episode_id[0]), AGENTS[int(rows.agent[0])]
                assert seat not in found
                found[seat] = [row._replace(at=0) for _, row in read(rows, policy)]
        for game, hand in played.items():
            for agent, expected in hand.rows.items():
                assert found.pop((*game, agent), []) == [row._replace(at=0) for row in expected]
            assert sum(row.reward for rows in hand.rows.values() for row in rows) == 0
        assert not found
        assert sorted(told(worker.episodes())) == sorted(each for game in games for each in of_game(game, played[game]))
        assert sum(steps_of(worker, {})) == 0
    finally:
        worker.close()


def told(episodes: list[Episode]) -> list[Any]:
    return [(each.env_id, each.episode_id, each.agent, each.return_, each.length, each.success) for each in episodes]


def of_game(game: tuple[int, int], played: Played) -> list[Any]:
    """The episodes of a game, and of each agent that acted in it."""
    own = [
        (*game, agent, played.returns[agent], len(rows), played.success[agent])
        for agent, rows in played.rows.items()
        if rows
    ]
    return [(*game, "", 0.0, played.length, None), *own]


@from_factories
def test_a_game_resumes_in_the_middle(make: Make) -> None:
    """D3, D5, M7, T8: with actions that wait for their answer, rewards between turns, memory, and who plays whom."""
    noisy = {"policies": partial(two, memory=True, draws=2)}
    worker, other = (ARRANGEMENTS["by match"]._replace(**noisy).worker(make) for _ in range(2))  # type: ignore[arg-type]
    try:
        for steps in (1, 3, 8, 2, 1):
            worker.sample(steps)
            state = copy.deepcopy(worker.state_dict())
            assert same(worker.state_dict(), state)
            assert other.load(state) == 0
            assert same(other.state_dict(), state)
            assert same(other.sample(7), expected := worker.sample(7))
            assert expected.rows
            assert sorted(told(other.episodes())) == sorted(told(worker.episodes()))
    finally:
        worker.close()
        other.close()


class ByNoise(Following):
    """Acts by the noise alone."""

    def act(self, obs: Any, noise: Any, env_steps: int, state: Any = None) -> dict[str, Any]:
        return {**super().act(obs, noise, env_steps, state), "action": (noise[:, 0] * 7).astype(np.int64)}


class ReadOnly(Following):
    """Answers with arrays that nobody may write to."""

    def act(self, *args: Any) -> dict[str, Any]:
        row = super().act(*args)
        for column in row.values():
            column.flags.writeable = False
        return row


def test_what_a_policy_answers_is_not_written_to() -> None:
    """M5: some seats act after all of them have, and their rows are kept beside those of the others."""
    usual = ARRANGEMENTS["two"]._replace(order="together")
    batches = []
    for how in (usual, usual._replace(policies=lambda: {"first": ReadOnly(1), "second": ReadOnly(2)})):
        with how.worker() as worker:
            batches.append(worker.sample(steps=50))
    assert same(*batches)


def test_noise_belongs_to_the_seat() -> None:
    """D1, D2: each has a stream of its own, whoever steps the games."""
    how = ARRANGEMENTS["mixed"]._replace(policies=lambda: {"default_policy": ByNoise(draws=1)})
    rows = []
    for name in ("local", "thread", "async"):
        seats, worker = Seats(), how.worker(FROM_FACTORIES[name])
        try:
            for _ in range(4):
                seats.add(worker.sample(20))
        finally:
            worker.close()
        rows.append(seats.rows)
    assert rows[0] == rows[1] == rows[2]
    drawn = {tuple(row.action for _, row in seat[:30]) for seat in rows[0].values()}
    assert len(drawn) == 9


class Broken(RandomGame):
    """The first game of those with a file in a folder: in its third step this happens, once."""

    def __init__(self, folder: Path, what: str, order: str = "mixed") -> None:
        super().__init__(order)
        self.folder, self.what = folder, what

    def step(self, actions: Mapping[str, Any]) -> Turn:
        turn = super().step(actions)
        if (
            self.seed == SEEDS[LOST[1] * 3 + LOST[0]]
            and self.clock == 3
            and not (flag := self.folder / "failed").exists()
        ):
            flag.touch()
            KINDS[self.what]()
        return turn


#: The game that is lost (env_id, episode_id), which lasts longer than three steps.
LOST = next((env_id, k) for k in range(9) for env_id in (1,) if by_hand(ARRANGEMENTS["by match"], env_id, k).length > 5)


@pytest.mark.parametrize(
    ("manager", "what"),
    [
        ("subprocess-each", "exception"),
        pytest.param("subprocess-each", "hang", marks=pytest.mark.slow),
        ("subprocess-each", "killed"),
        pytest.param("async", "exit", marks=pytest.mark.slow),
        ("thread", "exception"),
    ],
)
def test_a_fault_costs_one_game(manager: str, what: str, tmp_path: Path) -> None:
    """F10, M5: what its seats had done and had no answer to vanishes; a new game begins, and others go on."""
    how, seats, lengths = ARRANGEMENTS["by match"], Seats(), dict[int, int]()
    game = partial(_broken, tmp_path, what)
    limit = {} if manager == "thread" else limits(what)
    worker = how.worker(FROM_FACTORIES[manager], game=game, **limit)
    try:
        for _ in range(12):
            seats.add(worker.sample(5))
            steps = steps_of(worker, lengths)
        (fault,) = worker.faults()
        assert (fault.env_id, fault.episode_id) == LOST
        assert worker.manager.cut_episodes == 1
        for policy, k in (("first", 0), ("second", 1)):  # each seat goes on with who plays it
            assert worker.policies[policy].k == k + 1
    finally:
        worker.close()
    steps[LOST[0]] += 2  # of the game that was lost
    assert min(steps) >= 60
    assert worker.env_steps == sum(steps)
    seats.check(how, steps, lost={LOST: 2})


def _broken(folder: Path, what: str, order: str = "mixed") -> GameEnv:
    return GameEnv(Broken(folder, what, order))


@pytest.mark.parametrize("manager", ["thread", "subprocess-each"])
def test_the_noise_of_a_lost_action_is_drawn_again(manager: str, tmp_path: Path) -> None:
    """D2: in a game whose agents act together each seat's k-th row has its stream's k-th number, faults or not."""
    how = ARRANGEMENTS["together"]._replace(policies=lambda: {"default_policy": ByNoise(draws=1)})
    drawn = []
    for game in (None, partial(_broken, tmp_path, "exception", "together")):
        seats, worker = Seats(), how.worker(FROM_FACTORIES[manager], game=game)
        try:
            for _ in range(8):
                seats.add(worker.sample(10))
            assert len(worker.faults()) == (game is not None)
        finally:
            worker.close()
        drawn.append({seat: [row.action for _, row in rows] for seat, rows in seats.rows.items()})
    for seat, undisturbed in drawn[0].items():
        both = min(len(undisturbed), len(drawn[1][seat]))
        assert both > 10
        assert drawn[1][seat][:both] == undisturbed[:both]


class Locked(RandomGame):
    """A game that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_game_that_cannot_be_saved_begins_anew() -> None:
    """D3, M5: no row of the old game is mixed with one of the new; noise, memory and fragments go on."""
    how = ARRANGEMENTS["by match"]

    def locked() -> GameEnv:
        return GameEnv(Locked())

    worker, other, seats = how.worker(game=locked), how.worker(game=locked), Seats()
    seats.add(worker.sample(4))
    state = copy.deepcopy(worker.state_dict())
    running = worker.manager.episode_id.tolist()
    steps = worker.manager.t.tolist()
    assert other.load(state) == 3
    assert other.manager.episode_id.tolist() == [k + 1 for k in running]
    seats.add(other.sample(30))
    now = [4 + 30] * 3
    seats.check(how, now, lost={(env_id, k): steps[env_id] for env_id, k in enumerate(running)})


def test_a_game_of_one_agent_is_the_plain_environment() -> None:
    """M4, D2: row by row, bit for bit, whoever steps it, and also of a recurrent policy that draws noise."""
    for name in ("local", "subprocess", "thread"):  # asynchronous environments step as the clock has it
        make = FROM_FACTORIES[name]
        for memory in (False, True):
            policies: list[Any] = [Following(memory=memory, draws=2) for _ in range(2)]
            plain = RolloutWorker(make([partial(clock, i) for i in range(3)]), policies[0], seed=5)
            games = make([partial(clock_game, i) for i in range(3)])
            seating = Seating.of(OneAgent(clock(0)))
            worker = GamesWorker(
                GameManager(games, seating), {"it": policies[1]}, PolicyMap(seating, ("it",), {"*": "it"}), seed=5
            )
            try:
                for amounts in ({"steps": 1}, {"steps": 9}, {"episodes": 5}, {"steps": 3}):
                    theirs, expected = worker.sample(**amounts), plain.sample(**amounts)
                    expected["truncated"] &= ~expected.terminated  # of a game that says both, one is known (T4)
                    assert (theirs.agent == 0).all()
                    left = ["agent"] if "mask" in expected else ["agent", "mask"]
                    assert theirs.select([key for key in theirs if key not in left]) == expected
                    assert worker.env_steps_of(theirs) == plain.env_steps_of(expected)
                    ours = [attrs.evolve(each, agent="") for each in worker.episodes() if each.agent]
                    assert told(ours) == told(plain.episodes())
            finally:
                worker.close()
                plain.close()


class OneAgent(Game):
    """A gymnasium environment as a game."""

    possible_agents = ("it",)

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_spaces, self.action_spaces = {"it": env.observation_space}, {"it": env.action_space}

    def reset(self, seed: int) -> Mapping[str, Any]:
        return {"it": self.env.reset(seed=seed)[0]}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        obs, reward, terminated, truncated, info = self.env.step(actions["it"])
        over = (["it"] * terminated, ["it"] * truncated)
        return Turn({"it": obs}, {"it": reward}, *over, {"it": info})


def clock(i: int) -> Any:
    return clock_factories(TABLE, noisy=True, kind=EchoEnv)[i]()


def clock_game(i: int) -> GameEnv:
    return GameEnv(OneAgent(clock(i)))


def test_another_policy_acts_from_now_on() -> None:
    """T8, M7: under one name; its memory begins anew, the others go on."""
    worker = ARRANGEMENTS["two"]._replace(policies=partial(two, memory=True)).worker()
    worker.sample(6)
    assert worker.policies["second"].k == 2
    another: Any = Following(5, memory=True)
    another.version = 9
    worker.reset_policy(another, "second")
    batch = worker.sample(8)
    assert set(real_rows(batch["first"]).policy_version) == {0}
    assert set(real_rows(batch["second"]).policy_version[3:]) == {9}
    with pytest.raises(FlowError, match="needs the name of one of its policies, got 'third'"):
        worker.reset_policy(another, "third")
    with pytest.raises(FlowError, match="needs the name of one of its policies, got None"):
        worker.reset_policy(another)
    with pytest.raises(FlowError, match=r"several policies: ask for policies\['first'\]"):
        worker.get_weights()
    alone = ARRANGEMENTS["mixed"].worker()
    alone.reset_policy(another)
    assert alone.policy is alone.policies["default_policy"] is another
    assert alone.get_weights() == {"k": 5}


def test_new_games_begin_without_rows_of_the_old() -> None:
    """M5, T8: reset_env cuts running games."""
    worker, seats = ARRANGEMENTS["by match"].worker(), Seats()
    seats.add(worker.sample(3))
    begun = [(env_id, int(k)) for env_id, k in enumerate(worker.manager.episode_id)]
    lost = dict(zip(begun, worker.manager.t.tolist()))
    worker.reset_env()
    seats.add(worker.sample(20))
    seats.check(ARRANGEMENTS["by match"], [23] * 3, lost=lost)
    with pytest.raises(ValueError, match=r"sample needs steps >= 1"):
        worker.sample()


class Late(Game):
    """The second agent joins after a step, and both act in all that follow."""

    possible_agents = ("first", "second")
    observation_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Box(0, 1, (1,)))
    action_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(5))

    def reset(self, seed: int) -> Mapping[str, Any]:
        return {"first": np.zeros(1, np.float32)}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        return Turn(dict.fromkeys(self.possible_agents, np.zeros(1, np.float32)), dict.fromkeys(actions, 1.0))


def test_a_new_game_asks_only_whose_turn_it_is() -> None:
    """M4: also after steps in which everyone acted and was answered."""
    games = GameManager(EnvManager([GameEnv(Late()) for _ in range(2)]), Seating.of(Late()))
    seats = Rows(games, ["first", "second"])
    games.launch(0)
    for _ in range(2):
        assert seats.ready.tolist() == [True, False] * 2
        assert seats.result(games.step()).acted.tolist() == [True, False] * 2
        assert seats.result(games.step()).acted is None
        assert seats.ready.all()
        state = games.state_dict()
        games.reset()
    games.load_state_dict(state)
    assert seats.ready.all()


class FromThree(Game):
    """Two agents in turn, of whom the first has two turns in a row, and see how many there were, from 3 on."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(9, start=3))
    action_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(2))

    def reset(self, seed: int) -> dict[str, Any]:
        self.turns = 0
        return {"a": 3}

    def step(self, actions: Mapping[str, Any]) -> Turn:
        self.turns += 1
        if self.turns == 7:
            return Turn({}, {}, self.possible_agents)
        return Turn({"b" if self.turns % 3 == 2 else "a": 3 + self.turns}, {})


def test_turns_that_an_agent_has_not_had_are_members_of_its_space() -> None:
    """R7: the rows that stand for them are padding, and 0 is no member."""
    with WorkerSet(FromThree, PPOPolicy, envs_per_worker=2) as workers:
        workers.start(Context())
        fragment = workers.local.sample(8)
    assert 0 < fragment.mask.sum() < fragment.mask.size
    space = FromThree.observation_spaces["a"]
    assert all(map(space.contains, [*fragment.obs.ravel(), *fragment.next_obs.ravel()]))

"""GameEnv against an obvious loop over scripted games, and what it says of games that break their contract."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs.games import Game, Turn
from flowrl.envs.games.seats import GameEnv, Of
from flowrl.envs.spaces import make_store
from flowrl.envs.wrappers import pack, unpack
from flowrl.errors import ConfigError, SchemaError

NUMBER = spaces.Box(-np.inf, np.inf, (2,), np.float32)
NESTED = spaces.Dict(seen=NUMBER, inner=spaces.Dict(first=spaces.Discrete(10**6)))
FLAT = spaces.Dict(seen=NUMBER, action_mask=spaces.MultiBinary(4))
AGENTS: dict[str, tuple[Any, Any]] = {
    "ann": (FLAT, spaces.Discrete(4)),
    "bob": (NUMBER, spaces.Discrete(4, start=5)),
    "cid": (FLAT, spaces.Discrete(4)),
    "dee": (spaces.Tuple([NUMBER, spaces.Discrete(10**6)]), spaces.MultiDiscrete([3, 4])),
    "eve": (NESTED, spaces.Box(-1, 1, (2, 1), np.float32)),
}


class Scripted(Game):
    """Plays a script of turns, the first of which are the observations of `reset`, and keeps what it was told."""

    def __init__(self, scripts: Sequence[Any], agents: Mapping[str, tuple[Any, Any]] = AGENTS) -> None:
        self.possible_agents = list(agents)
        self.observation_spaces = {agent: seen for agent, (seen, _) in agents.items()}
        self.action_spaces = {agent: done for agent, (_, done) in agents.items()}
        self.scripts, self.told, self.seeds = iter(scripts), list[Any](), list[int]()

    def reset(self, seed: int) -> Any:
        self.seeds.append(seed)
        self.script = iter(next(self.scripts))
        return next(self.script)

    def step(self, actions: Mapping[str, Any]) -> Any:
        self.told.append(dict(actions))
        return next(self.script)


def observation(agent: str, mark: int) -> Any:
    """One that names its agent and its moment."""
    seen = np.array([list(AGENTS).index(agent), mark], np.float32)
    if AGENTS[agent][0] is FLAT:
        return {"action_mask": np.ones(4, np.int8), "seen": seen}
    return {"bob": seen, "dee": (seen, mark), "eve": {"seen": seen, "inner": {"first": mark}}}[agent]


def script(draw: np.random.Generator) -> list[Any]:
    """A random game: who acts, gains, comes late and ends early, also without ever having acted."""
    marks = iter(range(10**6))
    ended, acted = set[str](), set[str]()

    def some(agents: Any, chance: float) -> list[str]:
        return [agent for agent in agents if draw.random() < chance]

    def seen(agents: list[str]) -> dict[str, Any]:
        return {agent: observation(agent, next(marks)) for agent in draw.permutation(agents).tolist()}

    turns: list[Any] = [seen(some(AGENTS, 0.5) or ["bob"])]
    acting, left = list(turns[0]), draw.integers(1, 12)
    while acting:
        acted.update(acting)
        left -= 1
        alive = [agent for agent in AGENTS if agent not in ended]
        gainers = some(alive, 0.4)
        gains = draw.integers(-3, 4, len(gainers)).astype(np.float64)
        if len(gains):
            gains[-1] -= gains.sum()  # M6: what one gains others lose
        over = some(alive, 0.15) if left else [agent for agent in alive if agent in acted or draw.random() < 0.5]
        ended.update(over)
        acting = [] if not left else some([agent for agent in alive if agent not in over], 0.5)
        if not acting:
            over += [agent for agent in acted if agent not in ended]
            ended.update(over)
        terminated, truncated = some(over, 0.7), some(over, 0.5)
        terminated += [agent for agent in over if agent not in {*terminated, *truncated}]
        info = {agent: {"is_success": bool(draw.integers(2))} for agent in some(AGENTS, 0.5)}
        rewards = dict(zip(gainers, gains.tolist()))
        turns.append(Turn(seen([*acting, *some(over, 0.5)]), rewards, terminated, tuple(truncated), info))
    return turns


def by_hand(turns: list[Any], actions: list[Any]) -> dict[str, Any]:
    """The rows, return and success of each agent: one loop for each, over the whole game."""
    found = {}
    for agent in AGENTS:
        rows, row, newest = [], None, None
        gained = return_ = 0.0
        success, terminated, truncated = -1, False, False
        seen = turns[0].get(agent)
        for turn, action in zip(turns[1:], actions):
            if seen is not None:  # its turn
                newest, row = seen, [seen, action[agent]]
            gained += turn.reward.get(agent, 0.0)
            return_ += turn.reward.get(agent, 0.0)
            ends = agent in turn.terminated or agent in turn.truncated
            seen = turn.obs.get(agent)
            if ends:
                terminated = agent in turn.terminated
                truncated = not terminated
                success = turn.info.get(agent, {}).get("is_success", -1)
            if row and (ends or seen is not None):
                rows.append((*row, gained, newest if seen is None else seen, ends and terminated, ends and truncated))
                row, gained = None, 0.0
            if ends:
                break
        found[agent] = [rows, return_, success, terminated, truncated]
    return found


def through_seats(env: GameEnv, draw: np.random.Generator, seed: int) -> tuple[dict[str, Any], list[Any], float]:
    """The same read from observations of GameEnv, the actions it was given, and the sum of its rewards."""
    found: dict[str, Any] = {agent: [[], 0.0, -1, False, False] for agent in AGENTS}
    open_: dict[str, Any] = {}
    given, total, over = [], 0.0, False
    obs, _ = env.reset(seed=seed)
    while not over:
        assert env.observation_space.contains(obs)
        table = obs["seats"]
        turn = [agent for agent, row in zip(AGENTS, table) if row[Of.TURN]]
        actions = {agent: env.game.action_spaces[agent].sample() for agent in turn}
        flat = draw.normal(size=env.action_space.shape)  # what nobody reads
        for agent, action in actions.items():
            flat[env.seating.action_slices[agent]] = np.ravel(action)
            open_[agent] = seen(env, obs, agent), action
        given.append(actions)
        before = {
            name: np.copy(stack["seen"]) for name, stack in obs.items() if isinstance(stack, dict) and "seen" in stack
        }
        last = obs
        obs, reward, terminated, truncated, _ = env.step(flat)
        for name, kept in before.items():
            assert (last[name]["seen"] == kept).all()  # observations handed out stay as they are
        total += reward
        over = terminated or truncated
        for agent, row in zip(AGENTS, obs["seats"]):
            if row[Of.ANSWERED]:
                ends = bool(row[Of.TERMINATED]), bool(row[Of.TRUNCATED])
                found[agent][0].append((*open_.pop(agent), row[Of.REWARD], seen(env, obs, agent), *ends))
            assert row[Of.ANSWERED] or row[Of.REWARD] == 0
            found[agent][1:3] = row[Of.RETURN], row[Of.SUCCESS]  # of who has ended too
            if row[Of.TERMINATED] or row[Of.TRUNCATED]:
                assert not row[Of.TURN]
                assert found[agent][3:] == [False, False]
                found[agent][3:] = bool(row[Of.TERMINATED]), bool(row[Of.TRUNCATED])
    assert not open_
    return found, given, total


def seen(env: GameEnv, obs: Any, agent: str) -> Any:
    kind = env.seating.kind_of(agent)
    stack, at = obs[kind.name], kind.agents.index(agent)
    if agent == "eve":
        return {"seen": stack["seen"][at], "inner": {"first": stack["inner"]["first"][at]}}
    return stack[at] if agent == "bob" else {key: column[at] for key, column in stack.items()}


def plain(value: Any) -> Any:
    """For comparison: lists in place of arrays, a dictionary in place of an observation's tuple."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.ndarray):
        value = {"0": value[0], "1": value[1]}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else np.asarray(value).tolist()


def test_every_transition_is_that_of_an_obvious_loop() -> None:
    """M1, M2, M5, M6, S5: rewards add up between own turns, agents come and go, games begin anew."""
    draw = np.random.default_rng(0)
    scripts = [script(draw) for _ in range(300)]
    game = Scripted(scripts)
    env = GameEnv(game)
    for seed, turns in enumerate(scripts):
        game.told.clear()
        found, actions, total = through_seats(env, draw, seed)
        assert plain(game.told) == plain(actions)
        assert plain(found) == plain(by_hand(turns, actions))
        acted = [agent for agent in AGENTS if found[agent][0]]
        assert all(sum(row[2] for row in found[agent][0]) == found[agent][1] for agent in acted)
        assert total == sum(return_ for _, return_, *_ in found.values()) == 0
    assert game.seeds == list(range(300))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-7),
        spaces.Discrete(3, dtype=np.int32),
        spaces.MultiDiscrete([2, 5, 9], start=[3, 0, -4]),
        spaces.MultiDiscrete([[2, 5], [9, 2]]),
        spaces.MultiBinary(4),
        spaces.MultiBinary((2, 2)),
        spaces.Box(-(2**53), 2**53, (2,), np.int64),
        spaces.Box(0, 255, (2, 3), np.uint8),
        spaces.Box(0, 1, (3,), np.bool_),
        spaces.Box(-np.inf, np.inf, (), np.float32),
        spaces.Box(-1, 1, (2, 2), np.float64),
    ],
    ids=str,
)
def test_an_action_reaches_its_agent_as_it_was(space: Any) -> None:
    """In the kind, shape and dtype of the agent's space, beside one of another kind."""
    agents = {"first": (NUMBER, spaces.Box(-1, 1, (3,), np.float32)), "second": (NUMBER, space)}
    obs = {"second": np.zeros(2, np.float32)}
    space.seed(0)
    game = Scripted([[obs, *[Turn(obs)] * 20]], agents)
    env = GameEnv(game)
    env.reset(seed=0)
    for _ in Leaving.possible_agents:
        action = space.sample()
        flat = np.full(env.action_space.shape, np.nan)
        flat[env.seating.action_slices["second"]] = np.ravel(action)
        env.step(flat)
        (told,) = game.told[-1].values()
        assert space.contains(np.asarray(told))
        np.testing.assert_array_equal(told, action)


def test_games_begin_with_seeds_of_the_first_one() -> None:
    """D1: a reset without a seed goes on from the last one, and seeds differ."""
    begun = []
    for _ in range(2):
        game = Scripted([[{"bob": observation("bob", 0)}]] * 4)
        env = GameEnv(game)
        for seed in (3, None, None, None):
            env.reset(seed=seed)
        begun.append(game.seeds)
    assert begun[0] == begun[1]
    assert len(set(begun[0])) == 4
    assert begun[0][0] == 3


NOTHING = np.zeros(2, np.float32)
HERE = {"bob": NOTHING}


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([{}], "nobody acts first"),
        ([(HERE, {})], r"reset\(\) returned a tuple, expected the observations of who acts first"),
        ([{"zoe": NOTHING}], "an observation for agent 'zoe', which is not in possible_agents .*list there all"),
        ([{"bob": np.zeros(3, np.float32)}], r"agent 'bob': the observation has shape \(3,\)"),
        ([{"ann": {"seen": NOTHING}}], "agent 'ann': .*'action_mask'"),
        ([HERE, None], r"step\(\) returned a NoneType, expected a Turn"),
        ([HERE, Turn({})], "nobody acts next, but agent 'bob' has neither terminated nor been truncated"),
        ([HERE, Turn(HERE, {"zoe": 1.0})], "a reward for agent 'zoe'"),
        ([HERE, Turn(HERE, {"bob": [1, 2]})], r"agent 'bob': the reward is \[1, 2\], expected a number"),  # type: ignore[dict-item]
        ([HERE, Turn(HERE, {"bob": np.nan})], "agent 'bob': the reward is nan"),
        ([HERE, Turn(HERE, terminated=["zoe"])], "an end for agent 'zoe'"),
        ([HERE, Turn(HERE, terminated={"bob": False})], "terminated is a dict, expected the names of those who end"),
        ([HERE, Turn(HERE, truncated=True)], "truncated is a bool, expected the names of those who end"),  # type: ignore[arg-type]
        (
            [HERE, Turn(HERE, terminated=["ann"]), Turn({**HERE, "ann": observation("ann", 0)})],
            r"agent 'ann' has ended, but has an observation to act from",
        ),
        (
            [HERE, Turn(HERE, terminated=["ann"]), Turn(HERE, {"ann": 1.0})],
            r"agent 'ann' gets a reward of 1.0 after its end: .* in which it ends",
        ),
    ],
)
def test_a_game_that_breaks_its_contract_is_told_for_which_agent(turns: Any, message: str) -> None:
    """M1, M2: nothing is stored wrongly."""
    env = GameEnv(Scripted([turns]))

    def play() -> None:
        env.reset(seed=0)
        for _ in turns[1:]:
            env.step(np.zeros(env.action_space.shape))

    with pytest.raises(SchemaError, match=message):
        play()


def without(name: str) -> Game:
    game = Scripted([])
    delattr(game, name)
    return game


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scripted([], {}), r"possible_agents is \[\], expected the names of its agents, each once"),
        (lambda: without("possible_agents"), r"possible_agents is \(\)"),
        (lambda: without("action_spaces"), "action_spaces has no entry for agent 'ann'"),
        (lambda: Scripted([], {"ann": (NUMBER, spaces.Dict())}), "agent 'ann': the action space Dict.* not one array"),
        (
            lambda: Scripted([], {"ann": (spaces.Dict(), spaces.Discrete(2))}),
            "agent 'ann': the observation space .*empty",
        ),
        (lambda: Scripted([], {"ann": (FLAT, spaces.Discrete(3))}), r"agent 'ann': .*action_mask.* has 3 actions"),
    ],
)
def test_a_game_without_usable_spaces_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GameEnv(make())


def test_a_saved_game_goes_on_where_it_was() -> None:
    """D3: with its open rewards, and with stores that its copy writes to."""
    draw = np.random.default_rng(1)
    for turns in [script(draw) for _ in range(5)]:
        env = GameEnv(Scripted([[*turns]]))
        env.reset(seed=0)
        over, action = False, np.zeros(env.action_space.shape)
        while not over:
            copied = unpack(pack(env), "a game")  # type: ignore[arg-type]
            answer, again = env.step(action), copied.step(action)
            assert plain(answer) == plain(again)
            over = answer[2] or answer[3]
            env = copied


class Leaving(Game):
    """One agent stays and acts; in every step the next one in `order` leaves."""

    possible_agents = tuple(f"agent {n}" for n in range(19))  # 18 leave: a set of them is as full as it gets
    observation_spaces = dict.fromkeys(possible_agents, spaces.Box(0, 1, (1,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, spaces.Discrete(2))

    def reset(self, seed: int) -> Any:
        self.order: list[str] = []
        return {"agent 0": np.zeros(1, np.float32)}

    def step(self, actions: Any) -> Turn:
        return Turn({"agent 0": np.zeros(1, np.float32)}, {}, [self.order.pop()] if self.order else ())


def test_equal_games_have_equal_bytes() -> None:
    """D5: in whatever order their agents have ended, and whatever this process hashes names by."""
    saved = []
    for direction in (1, -1):
        env = GameEnv(Leaving())
        env.reset(seed=0)
        env.game.order = list(Leaving.possible_agents[1:])[::direction]
        for _ in Leaving.possible_agents:
            env.step(np.zeros(19, np.int64))
        saved.append(pickle.dumps(env))
    assert saved[0] == saved[1]


@pytest.mark.parametrize("alone", [True, False])
def test_agents_who_act_in_every_step_gain_what_that_step_gave(alone: bool) -> None:
    """M1, M6: each answer has its own step's reward, and the return is their sum; whether others gain too or not."""
    gains = [{"bob": gain} if alone else {"ann": -gain, "bob": gain} for gain in (1.0, 2.0, 3.0)]
    env = GameEnv(Scripted([[HERE, *(Turn(HERE, gain) for gain in gains)]]))
    env.reset(seed=0)
    ann, bob = np.stack([env.step(np.zeros(env.action_space.shape))[0]["seats"][:2] for _ in range(3)], 1)
    assert bob[:, Of.REWARD].tolist() == [1, 2, 3]
    assert bob[:, Of.RETURN].tolist() == [1, 3, 6]
    assert (bob[:, (Of.TURN, Of.ANSWERED)] == 1).all()
    assert not ann[:, (Of.TURN, Of.ANSWERED, Of.REWARD)].any()  # she has not acted yet


def test_a_game_in_memory_of_others_plays_as_in_its_own() -> None:
    """M4, D3: its row has what it would return, and a copy of it does not write there."""
    draw = np.random.default_rng(2)
    for turns in [script(draw) for _ in range(20)]:
        env, placed = (GameEnv(Scripted([[*turns]])) for _ in range(2))
        memory = make_store(env.observation_space, 3)
        placed.write_into(memory[1])
        assert plain(env.reset(seed=0)[0]) == plain(placed.reset(seed=0)[0].to_dict())
        over, action = False, np.zeros(env.action_space.shape)
        while not over:
            copied = unpack(pack(placed), "a game")  # type: ignore[arg-type]
            obs, *answer = env.step(action)
            assert plain(copied.step(action)) == plain((obs, *answer))
            _, *again = placed.step(action)
            assert plain(answer) == plain(again)
            assert plain(memory[1].to_dict()) == plain(obs)
            over = answer[1] or answer[2]
        assert all(not column[[0, 2]].any() for _, column in memory.leaves())


def test_a_game_saved_by_an_earlier_version_goes_on() -> None:
    """It had another name for the table, which held only what outlasts a step."""
    draw = np.random.default_rng(3)
    for turns in [script(draw) for _ in range(5)]:
        env = GameEnv(Scripted([[*turns]]))
        env.reset(seed=0)
        over, action = False, np.zeros(env.action_space.shape)
        while not over:
            state = copy.deepcopy(env).__getstate__()
            state["_standing"] = table = state.pop("_table")
            table[:, : Of.RETURN] = 0
            del state["_steady"], state["_row"]
            loaded = GameEnv.__new__(GameEnv)
            loaded.__setstate__(state)
            answer = env.step(action)
            assert plain(loaded.step(action)) == plain(answer)
            over = answer[2] or answer[3]


def test_a_reward_of_nothing_after_the_end_is_no_reward() -> None:
    """As libraries give to all agents at every step."""
    env = GameEnv(Scripted([[HERE, Turn(HERE, terminated=["ann"]), Turn(HERE, {"ann": 0.0, "bob": 1.0})]]))
    env.reset(seed=0)
    for _ in range(2):
        obs, *_ = env.step(np.zeros(env.action_space.shape))
    assert obs["seats"][:2, Of.RETURN].tolist() == [0, 1]

"""A random game, the rows of its seats by an obvious loop, and policies that the loop can follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.data.multi_agent import MultiAgentBatch
from flowrl.data.steps import real_rows
from flowrl.envs.games import Game, Turn
from flowrl.envs.games.seats import GameEnv, Seating
from flowrl.envs.managers.games import GameManager
from flowrl.rollout.games_worker import GamesWorker
from flowrl.rollout.policy_map import SHARED, Agents, Match, PolicyMap
from tests.managers import FROM_FACTORIES, Make

AGENTS = ("ann", "bob", "cid")
ACTIONS = 7
#: Seeds of the episodes of all games in turn.
SEEDS = [int(seed) for seed in np.random.default_rng(0).integers(2**31, size=600)]


class RandomGame(Game):
    """Its seed and the actions determine it: who acts, comes late, ends early, and what it gains, which others lose.

    An observation is [agent, clock, seed % 997, the agent's last action, a random number].

    Args:
        order: "turns", "together", or "mixed", where anyone may act next, again too.
        alike: Whether all agents have the same spaces; otherwise bob sees one number more.
    """

    possible_agents = AGENTS

    def __init__(self, order: str = "mixed", alike: bool = True) -> None:
        self.order, self.alike = order, alike
        self.observation_spaces = {
            agent: spaces.Box(-np.inf, np.inf, (5 if alike or agent != "bob" else 6,), np.float32) for agent in AGENTS
        }
        self.action_spaces = {agent: spaces.Discrete(ACTIONS) for agent in AGENTS}

    def reset(self, seed: int) -> Mapping[str, Any]:
        self.seed, self.draw, self.clock = seed, np.random.default_rng(seed), 0
        self.length, self.arrival = self.draw.integers(1, 14), self.draw.integers(0, 6)
        self.ended: dict[str, None] = {}  # not sets, whose bytes depend on their history
        self.acted: dict[str, None] = {}
        self.last = dict.fromkeys(AGENTS, 0)
        self.turn = self._next(["ann", "bob"]) or ["ann"]
        return self._seen(self.turn)

    def step(self, actions: Mapping[str, Any]) -> Turn:
        assert set(actions) == set(self.turn), (actions, self.turn)
        assert all(self.action_spaces[agent].contains(action) for agent, action in actions.items())
        self.last.update({agent: int(action) for agent, action in actions.items()})
        self.acted.update(dict.fromkeys(actions))
        self.clock += 1
        alive = [agent for agent in AGENTS if agent not in self.ended]
        over = [agent for agent in alive if self.draw.random() < 0.1]
        here = [agent for agent in alive if agent not in over and (agent != "cid" or self.clock >= self.arrival)]
        self.turn = self._next(here) if self.clock < self.length else []
        if not self.turn:
            over = alive
        self.ended.update(dict.fromkeys(over))
        gainers = [agent for agent in alive if agent in self.acted or agent in self.turn]
        gains = self.draw.integers(-3, 4, len(gainers)) + sum(map(int, actions.values()))
        gains[-1] -= gains.sum()
        terminated = [agent for agent in over if self.draw.random() < 0.6]
        truncated = [agent for agent in over if agent not in terminated or self.draw.random() < 0.3]
        info = {agent: {"is_success": bool(self.draw.integers(2))} for agent in over if self.draw.random() < 0.7}
        also = [agent for agent in over if self.draw.random() < 0.5]
        return Turn(self._seen([*self.turn, *also]), dict(zip(gainers, gains.tolist())), terminated, truncated, info)

    def _next(self, agents: list[str]) -> list[str]:
        if self.order == "together" or not agents:
            return agents
        if self.order == "turns":
            return [agents[self.clock % len(agents)]]
        return [agent for agent in agents if self.draw.random() < 0.6] or agents[:1]

    def _seen(self, agents: list[str]) -> dict[str, Any]:
        seen = {}
        for agent in agents:
            numbers = [AGENTS.index(agent), self.clock, self.seed % 997, self.last[agent], self.draw.integers(100)]
            (size,) = self.observation_spaces[agent].shape
            seen[agent] = np.array([0, *numbers][-size:], np.float32)
        return seen


class Unlike(RandomGame):
    """Its agents differ in their spaces."""

    def __init__(self) -> None:
        super().__init__(alike=False)


# -- policies


class Following:
    """Acts by an observation and its own number `k`; with `memory`, by those before and by the rewards got too.

    With `draws` the noise has a part as well, which only comparisons can follow.
    """

    def __init__(self, k: int = 0, *, memory: bool = False, draws: int = 0) -> None:
        self.k, self.version, self.draws = k, 0, draws
        self.collect_mode = self.eval_mode = self
        if memory:
            self.initial_state = lambda: np.full((1, 1), 2.0)
            self.rewarded = lambda state, reward: (state + 10 * reward[:, None]) % 1000

    def act(self, obs: Any, noise: Any, env_steps: int, state: Any = None) -> dict[str, Any]:
        before = np.zeros((len(obs), 1)) if state is None else state
        memory = (before + obs[:, 1:2] + 1) % 1000
        action = (obs[:, 0] * 2 + obs[:, -1] + memory[:, 0] + (noise * ACTIONS).sum(1) // 1 + self.k) % ACTIONS
        row = {"action": action.astype(np.int64), "value": obs[:, -1] + before[:, 0]}
        return row if state is None else {**row, "next_state": memory}

    def value(self, obs: Any, state: Any = None) -> Any:
        return obs[:, -1] + (0 if state is None else state[:, 0])

    def weights(self) -> dict[str, Any]:
        return {"k": self.k}

    def load_weights(self, weights: Any) -> None:
        self.k = weights["k"]

    def state_dict(self) -> dict[str, Any]:
        return {"k": self.k, "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.k, self.version = state["k"], state["version"]


def by_match(agent: str, match: Match) -> str:
    """Another seating in every episode."""
    return ("first", "second")[(AGENTS.index(agent) + match.env_id + match.episode_id) % 2]


class Arrangement(NamedTuple):
    """Who plays a game: see `PolicyMap`."""

    policies: Callable[[], dict[str, Any]]
    agents: Agents = SHARED
    order: str = "mixed"
    alike: bool = True

    @property
    def game(self) -> Callable[[], GameEnv]:
        return partial(made, self.order, self.alike)

    @property
    def policy_map(self) -> PolicyMap:
        seating = Seating.of(RandomGame(self.order, self.alike))
        return PolicyMap(seating, tuple(self.policies()), self.agents)

    def worker(self, make: Make = FROM_FACTORIES["local"], game: Any = None, **options: Any) -> GamesWorker:
        manager = make([game or self.game] * 3, episode_seeds=SEEDS, **options)
        policy_map = self.policy_map
        return GamesWorker(GameManager(manager, policy_map.seating), self.policies(), policy_map, seed=3, index=4)


def made(order: str, alike: bool) -> GameEnv:
    return GameEnv(RandomGame(order, alike))


def one() -> dict[str, Any]:
    return {"default_policy": Following()}


def two(**settings: Any) -> dict[str, Any]:
    return {"first": Following(1, **settings), "second": Following(2, **settings)}


ARRANGEMENTS = {
    "turns": Arrangement(one, order="turns"),
    "together": Arrangement(one, order="together"),
    "mixed": Arrangement(one),
    "memory": Arrangement(lambda: {"default_policy": Following(memory=True)}),
    "two": Arrangement(two, {"bob": "second", "*": "first"}),
    "unlike": Arrangement(partial(two, memory=True), {"bob": "second", "*": "first"}, alike=False),
    "by match": Arrangement(partial(two, memory=True), by_match),
}


# -- the loop


class Row(NamedTuple):
    """What one action of a seat led to; `at` is the number of the game's step that answered it."""

    policy: str
    obs: list[float]
    action: int
    value: float
    state: list[float] | None
    reward: float
    next_obs: list[float]
    terminated: bool
    truncated: bool
    next_value: float
    t: int
    at: int


class Played(NamedTuple):
    """One game: its rows, and the return and success of each agent."""

    rows: dict[str, list[Row]]
    returns: dict[str, float]
    success: dict[str, bool | None]
    length: int


def by_hand(how: Arrangement, env_id: int, episode_id: int) -> Played:
    """One episode of one of three games, step by step."""
    game, policies = RandomGame(how.order, how.alike), how.policies()
    agents = how.agents if callable(how.agents) else {agent: _named(how.agents, agent) for agent in AGENTS}
    who = {a: agents(a, Match(env_id, episode_id)) if callable(agents) else agents[a] for a in AGENTS}
    state = {a: p.initial_state() if hasattr(p := policies[who[a]], "initial_state") else None for a in AGENTS}
    rows: dict[str, list[Row]] = {agent: [] for agent in AGENTS}
    returns, gained = dict.fromkeys(AGENTS, 0.0), dict.fromkeys(AGENTS, 0.0)
    success: dict[str, bool | None] = dict.fromkeys(AGENTS)
    sent: dict[str, Any] = {}
    acting = dict(game.reset(SEEDS[episode_id * 3 + env_id]))
    newest = dict(acting)
    length = 0
    while acting:
        for agent, obs in acting.items():
            memory = () if state[agent] is None else (state[agent],)
            policy = policies[who[agent]]
            sent[agent] = obs, policy.act(obs[None], np.zeros((1, policy.draws)), 0, *memory), state[agent]
            if memory:
                state[agent] = sent[agent][1]["next_state"]
        turn = game.step({agent: sent[agent][1]["action"].item() for agent in acting})
        length += 1
        newest |= turn.obs
        over = {*turn.terminated, *turn.truncated}
        for agent, gain in turn.reward.items():
            gained[agent] += gain
            returns[agent] += gain
        for agent in [agent for agent in sent if agent in turn.obs or agent in over]:
            obs, did, before = sent.pop(agent)
            ends = agent in turn.terminated, agent in turn.truncated and agent not in turn.terminated
            row = [who[agent], obs.tolist(), did["action"].item(), did["value"].item()]
            row += [None if before is None else before[0].tolist(), gained[agent], newest[agent].tolist(), *ends]
            if before is not None:
                state[agent] = policies[who[agent]].rewarded(state[agent], np.array([gained[agent]]))
            after = policies[who[agent]].value(newest[agent][None], state[agent]).item()
            rows[agent].append(Row(*row, after, len(rows[agent]), length))
            gained[agent] = 0.0
        for agent in over:
            success[agent] = turn.info.get(agent, {}).get("is_success")
        acting = {agent: obs for agent, obs in turn.obs.items() if agent not in over}
    assert not sent
    return Played(rows, returns, success, length)


def _named(agents: Mapping[str, str], agent: str) -> str:
    return agents.get(agent) or agents["*"]


def read(rows: Batch, policy: str) -> Iterator[tuple[int, Row]]:
    """Rows `[B, ...]` of a batch, with their episode."""
    for i in range(len(rows)):
        row: Any = rows[i]
        state = row.state.tolist() if "state" in row else None
        known = [row.obs.tolist(), row.action.item(), row.value.item(), state, row.reward.item()]
        ends = row.next_obs.tolist(), bool(row.terminated), bool(row.truncated), row.next_value.item()
        yield int(row.episode_id), Row(policy, *known, *ends, int(row.t), 0)


class Seats:
    """The rows of batches, by seat (env_id, agent), in the order in which they came."""

    def __init__(self, worker: int = 4) -> None:
        self.rows: dict[tuple[int, str], list[tuple[int, Row]]] = {}
        self.worker = worker

    def add(self, batch: Batch | MultiAgentBatch, only: str = "default_policy") -> None:
        for policy, part in batch.items() if isinstance(batch, MultiAgentBatch) else [(only, batch)]:
            rows = real_rows(part)
            assert (rows.worker == self.worker).all()
            for env_id, agent, (episode_id, row) in zip(rows.env_id.tolist(), rows.agent.tolist(), read(rows, policy)):
                self.rows.setdefault((env_id, AGENTS[agent]), []).append((episode_id, row))

    def check(self, how: Arrangement, steps: list[int], *, lost: Mapping[tuple[int, int], int] = {}) -> None:
        """They are those of the first so many steps of each game, in their order, and no others.

        A seat that several policies play in turn has its episodes in their order, though batches have them by policy.

        Args:
            lost: Games (env_id, episode_id) that were cut, and the steps that they had by then.
        """
        for env_id, left in enumerate(steps):
            expected: dict[str, list[Any]] = {agent: [] for agent in AGENTS}
            episode_id = 0
            while left > 0:
                played = by_hand(how, env_id, episode_id)
                length = lost.get((env_id, episode_id), played.length)
                for agent, rows in played.rows.items():
                    done = [row for row in rows if row.at <= min(left, length)]
                    expected[agent] += [(episode_id, row._replace(at=0)) for row in done]
                left -= length
                episode_id += 1
            for agent in AGENTS:
                found = self.rows.get((env_id, agent), [])
                assert (sorted(found, key=lambda each: each[0]) if callable(how.agents) else found) == expected[agent]


def steps_of(worker: GamesWorker, lengths: dict[int, int]) -> list[int]:
    """The steps of each game so far; `lengths` keeps those of finished ones from call to call."""
    for episode in worker.manager.drain():
        lengths[episode.env_id] = lengths.get(episode.env_id, 0) + episode.length
    return [lengths.get(env_id, 0) + worker.manager.t.item(env_id) for env_id in range(worker.manager.num_envs)]

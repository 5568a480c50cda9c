"""GameManager: the seats of games that a manager of any kind steps, as rows of experience (M4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs
import gymnasium
import numpy as np
import numpy.typing as npt

from flowrl.data.batch import Batch
from flowrl.engine.protocols import Decisions
from flowrl.envs.games.seats import ANSWERED, DISCOUNT, RETURN, REWARD, SUCCESS, TABLE, TRUNCATED, TURN, Seating
from flowrl.envs.managers.base import Episode, Manager, StepResult
from flowrl.envs.spaces import Observations
from flowrl.saved import Saved

Mask = npt.NDArray[np.bool_]


class Seats:
    """The seats of some agents of one kind, in all games: what a policy that plays them acts from.

    Rows are the agents of the first game in their order, then those of the next. Like a `Manager` between two steps it
    has `obs [N, ...]`, `ready [N]` (whose turn it is, in games that take an action in the next step), `episode_id [N]`
    and `t [N]`, the steps that the seat has taken in its episode.
    """

    def __init__(self, games: GameManager, agents: Sequence[str]) -> None:
        kind = games.seating.kind_of(agents[0])
        self.games, self.agents, self._kind = games, tuple(agents), kind.name
        self.observation_space, self.action_space = kind.observation_space, kind.action_space
        #: Indexes of the agents among all of the game.
        self.agent_ids = np.array([games.seating.agents.index(agent) for agent in agents])
        self._in_kind = _slice_of([kind.agents.index(agent) for agent in agents])
        self._in_game = _slice_of(self.agent_ids.tolist())
        places = [games.seating.action_slices[agent] for agent in agents]
        self._numbers = _slice_of([number for place in places for number in range(place.start, place.stop)])
        self.num_envs = games.num_envs * len(agents)
        #: `[N]`: the game and the agent of each row.
        self.env_id = np.repeat(np.arange(games.num_envs), len(agents))
        self.agent = np.tile(self.agent_ids, games.num_envs)
        #: `[games, agents]`: seats that others play in this episode (M7); None: none.
        self.others: Mask | None = None
        self._everyone, self._nobody = np.ones(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)

    @property
    def obs(self) -> Observations:
        """`[N, ...]`: the newest observation of each seat."""
        return self._of(self.games.games.obs)

    @property
    def ready(self) -> Mask:
        """`[N]`: the seats that take an action in the next step."""
        return self._everyone if self._steady else self.rows(self.games.turn)

    @property
    def _steady(self) -> bool:
        return self.games.steady and self.others is None

    @property
    def ready_obs(self) -> dict[int, Observations]:
        """See `Manager.ready_obs`."""
        obs = self.obs
        return {row: obs[row] for row in np.flatnonzero(self.ready).tolist()}

    @property
    def episode_id(self) -> npt.NDArray[np.int64]:
        """`[N]`: the game's episode."""
        return np.repeat(self.games.games.episode_id, len(self.agents))

    @property
    def t(self) -> npt.NDArray[np.int64]:
        """`[N]`: the number of the seat's next step in its episode."""
        return self.games.t[:, self._in_game].reshape(-1)

    def rows(self, of_all: Mask) -> Mask:
        """`[games, all agents]` as `[N]`, without the seats that others play."""
        ours = of_all[:, self._in_game]
        return (ours if self.others is None else ours & ~self.others).reshape(-1)

    def put(self, actions: npt.NDArray[Any], ready: Mask) -> None:
        """Note the actions `[N, ...]` of ready seats for the next step of the games."""
        rows, into = actions.reshape(self.games.num_envs, -1), self.games.actions
        if self.others is not None:  # who write there too; else nobody reads the actions of seats that are not ready
            mine = np.repeat(ready, actions.size // self.num_envs).reshape(rows.shape)
            rows = np.where(mine, rows, into[:, self._numbers])
        into[:, self._numbers] = rows

    def leave_to_others(self, game: int, which: Mask) -> None:
        """Others play these of the agents in the running episode of a game (M7)."""
        if self.others is None:
            self.others = np.zeros((self.games.num_envs, len(self.agents)), np.bool_)
        self.others[game] = which

    def result(self, stepped: StepResult) -> StepResult:
        """What a step of all games means for these seats: `acted` marks those that have an answer; None: all have."""
        table = stepped.next_obs[TABLE]
        if self._steady:
            reward = table[:, self._in_game, REWARD].reshape(-1)
            return StepResult(self._of(stepped.next_obs), reward, self._nobody, self._nobody, None)
        answered = self.rows(table[..., ANSWERED] != 0)
        if stepped.acted is not None:
            answered &= np.repeat(stepped.acted, len(self.agents))
        outcome = table[:, self._in_game, REWARD : TRUNCATED + 1].reshape(-1, 3)
        if not answered.all():
            outcome = np.where(answered[:, None], outcome, 0.0)
        reward, terminated, truncated = outcome.T
        return StepResult(self._of(stepped.next_obs), reward, terminated != 0, truncated != 0, answered)

    def discount(self, stepped: StepResult) -> npt.NDArray[np.float64] | None:
        """`[N]`: what all that follows a seat's answer counts; None in games without `discounts`."""
        if not self.games.seating.discounts:
            return None
        found: npt.NDArray[np.float64] = stepped.next_obs[TABLE][:, self.agent_ids, DISCOUNT].reshape(-1)
        return found

    @property
    def info(self) -> Observations | None:
        """Columns `[N, ...]` of the answered seats' own `info`; see `Manager.info`."""
        info = self.games.games.info
        return None if info is None else _flat(info, self._in_game)

    def _of(self, obs: Observations) -> Observations:
        return _flat(obs[self._kind], self._in_kind)


def _slice_of(indexes: list[int]) -> slice | list[int]:
    """Indexes that follow each other as a slice, which takes views."""
    first, past = indexes[0], indexes[-1] + 1
    return slice(first, past) if indexes == list(range(first, past)) else indexes


def _flat(stack: Observations, agents: slice | list[int]) -> Observations:
    """`[games, agents, ...]` as `[N, ...]`, of some agents."""
    if isinstance(stack, Batch):
        return stack.map(lambda column: _flat(column, agents))
    return stack[:, agents].reshape(-1, *stack.shape[2:])


def is_of_games(manager: Manager) -> bool:
    """Whether a manager steps games of several agents, `GameEnv`."""
    space = manager.observation_space
    return isinstance(space, gymnasium.spaces.Dict) and TABLE in space.spaces


class MatchResult(NamedTuple):
    """How a game ended: the player of each agent, and what the agent gained."""

    env_id: int
    episode_id: int
    players: list[str]
    returns: list[float]


class GameManager:
    """The games of a manager of any kind, seat by seat; see `flowrl.envs.games.seats` for what a game tells.

    An agent's return is all that it gained since its game began. A game's is that of all its agents together, and its
    length that of the game.

    Args:
        games: A manager of `GameEnv`, not launched yet.

    Attributes:
        t: `[games, agents]`: the steps of each seat in its episode.
        finished: The episodes ended since the last `drain()`: of each game one, and one for each agent that acted in
            it, with its name.
        began: The games that a new episode began in since this was last emptied.
        players: Of running games, by number, who plays each agent, if that differs from match to match.
        results: How such games ended since the last `drain_results()`.
        steady: Whether in the newest step every agent of every game acted, was answered and acts next.
        timed: `[games]`: those whose newest step was an env step: not those that did not step, nor those whose agents
            decided in no time (M10).
        steps: `[games]`: the env steps of the running episode.
        actions: `[games, numbers]`: all agents' actions, of which the next step reads those whose turn it is.

    State: that of the games; steps of the seats; env steps, in games with `instant` agents.
    """

    def __init__(self, games: Manager, seating: Seating) -> None:
        self.games, self.seating, self.num_envs = games, seating, games.num_envs
        self.t = np.zeros((games.num_envs, len(seating.agents)), np.int64)
        self._episode = np.zeros(games.num_envs, np.int64)  # that `t` belongs to
        self._instant = np.array([agent in seating.instant for agent in seating.agents])
        self._all = np.ones(games.num_envs, np.bool_)
        self._steps = np.zeros(games.num_envs, np.int64)
        self.timed = self._all
        self.steady = False
        actions = seating.action_space
        self.actions = np.zeros((games.num_envs, *actions.shape), actions.dtype)
        self.finished: list[Episode] = []
        self.began = list(range(games.num_envs))
        self.players: dict[int, list[str]] = {}
        self.results: list[MatchResult] = []

    @property
    def turn(self) -> Mask:
        """`[games, agents]`: whose turn it is, in games that take an action in the next step."""
        turn: Mask = self.games.obs[TABLE][..., TURN] != 0
        return turn if self.games.ready is None else turn & self.games.ready[:, None]

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """See the class."""
        return self._steps if self.seating.instant else self.games.t

    def follow(self, decisions: Decisions) -> None:
        """See `Manager.follow`."""
        self.games.follow(decisions)

    def launch(self, seed: int) -> None:
        """See `Manager.launch`."""
        self.games.launch(seed)
        self._follow()

    def reset(self, seed: int | None = None) -> None:
        """See `Manager.reset`."""
        self.games.reset(seed)
        self._follow()

    def step(self, wait: Mask | None = None) -> StepResult:
        """Step the games with the noted actions: those of everyone whose turn it is.

        Args:
            wait: Mask of games that get no action yet, for asynchronous managers.
        """
        games: Any = self.games
        timed = (games.obs[TABLE][..., TURN] != 0)[:, ~self._instant].any(1) if self.seating.instant else self._all
        stepped: StepResult = games.step(self.actions) if games.ready is None else games.step(self.actions, wait)
        table = stepped.next_obs[TABLE]
        self.timed = timed if stepped.acted is None else timed & stepped.acted
        if self.seating.instant:
            self._steps += self.timed
        flags = table[..., :REWARD]  # TURN and ANSWERED
        self.steady = stepped.acted is None and np.count_nonzero(flags) == flags.size
        if self.steady:
            self.t += 1
            return stepped
        answered = table[..., ANSWERED] != 0
        over = stepped.terminated | stepped.truncated
        if stepped.acted is not None:
            answered &= stepped.acted[:, None]
            over = over & stepped.acted
        self.t += answered
        for game in np.flatnonzero(over).tolist():
            self._finish(game, table[game])
        self._follow()
        return stepped

    def cut(self, game: int) -> None:
        """Add what the agents of a running game have so far to `finished`, as of one that ended here."""
        self._finish(game, self.games.obs[TABLE][game], cut=True)

    def drain(self) -> list[Episode]:
        """The episodes finished since the last drain: see `finished`."""
        drained, self.finished = [*self.games.drain(), *self.finished], []
        return drained

    def drain_results(self) -> list[MatchResult]:
        """The results since the last call: see `results`."""
        drained, self.results = self.results, []
        return drained

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.games.state_dict(),
            "seats": {
                "t": self.t.tolist(),
                "episode": self._episode.tolist(),
                "finished": [attrs.astuple(episode) for episode in self.finished],
                "results": [tuple(result) for result in self.results],
                **({"steps": self._steps.tolist()} if self.seating.instant else {}),
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved games").inside("seats")
        t, episode = saved.get("t", list[list[int]]), saved.get("episode", list[int])
        if np.shape(t) != self.t.shape or len(episode) != self.num_envs:
            saved.refuse("t", f"a number for each of {self.t.shape[1]} agents of {self.num_envs} games")
        finished = [Episode(*fields) for fields in saved.get("finished", list)]
        results = [MatchResult(*fields) for fields in saved.get("results", list, otherwise=[])]
        steps = saved.get("steps", list[int], otherwise=[0] * self.num_envs)
        self.games.load_state_dict(state)
        self.began, self.results = [], results
        self.t, self._episode, self.finished = np.array(t), np.array(episode), finished
        self._steps = np.array(steps)
        self._follow()  # episodes that could not be saved are cut

    def _follow(self) -> None:
        """Count the steps of new episodes from 0 in games that have begun one."""
        self.steady = False
        began = self._episode != self.games.episode_id
        if self.games.ready is not None:
            began &= self.games.ready  # the answer that ended the one before may not be here yet
        for game in np.flatnonzero(began).tolist():
            self.t[game], self._episode[game] = 0, self.games.episode_id[game]
            self._steps[game] = 0
            self.began.append(game)

    def _finish(self, game: int, table: npt.NDArray[np.float64], cut: bool = False) -> None:
        if game in self.players:
            returns = table[:, RETURN].tolist()
            self.results.append(MatchResult(game, self._episode.item(game), self.players[game], returns))
        for agent, name in enumerate(self.seating.agents):
            if length := self.t.item(game, agent):
                success = table.item(agent, SUCCESS)
                won = None if success < 0 else success > 0
                return_ = table.item(agent, RETURN)
                self.finished.append(Episode(game, self._episode.item(game), return_, length, won, cut, agent=name))
        self._episode[game] = -1

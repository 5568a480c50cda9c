"""GamesWorker: several policies act in the games of one manager, and each collects the rows of its seats (M4-M7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import STEP_DISCOUNT
from flowrl.data.multi_agent import MultiAgentBatch
from flowrl.data.steps import pad, real_rows
from flowrl.data.trajectories import side_by_side
from flowrl.envs import Episode
from flowrl.envs.managers.games import GameManager
from flowrl.errors import FlowError
from flowrl.policies import Policy
from flowrl.rollout.fragment import Fragment
from flowrl.rollout.noise import split_seed
from flowrl.rollout.players import Player, Players
from flowrl.rollout.policy_map import PolicyMap
from flowrl.rollout.worker import Array, RolloutWorker, checked, collect_mode_of, completed, shares_of
from flowrl.saved import Saved


class GamesWorker(RolloutWorker):
    """Policies act in the games of one manager; see `RolloutWorker` for what is the same in one that plays alone.

    `sample` returns a `MultiAgentBatch` of the experience of each policy that has any; one policy that plays all agents
    gets a plain batch. A row is one action of one seat and what it led to, until the agent's next turn (M1). Columns
    are `[T, N]` with a seat in each, T the most turns that one had, and a `mask` (N6). Beside `env_id`, the copy of the
    game, there is `agent`, the number of the agent in the game.

    Args:
        games: Their manager, not launched yet.
        policies: Policies by name.
        policy_map: Which of them plays which agent.
        seed, index: See `RolloutWorker`.
    """

    def __init__(
        self, games: GameManager, policies: Mapping[str, Policy], policy_map: PolicyMap, *, seed: int, index: int = 0
    ) -> None:
        self._games, self._shared, self._named = games, policy_map.shared, dict(policies)
        self._learner = policy_map.learners[0]
        env_seed, noise_seed = split_seed(seed)
        games.launch(env_seed)
        self._begin(games.games, index)
        self._players = Players(games, policies, policy_map, self._mode_of, noise_seed, index)
        self._fragments = {name: Fragment(self._players.of[name].seats.num_envs) for name in policy_map.learners}
        self._steps = 0  # of games, in the newest sample

    def __repr__(self) -> str:
        return f"GamesWorker({self.manager.num_envs} games, {', '.join(self._named)})"

    @property
    def policy(self) -> Policy:
        """The policy that acts. Raises: FlowError: there are several."""
        if not self._shared:
            raise FlowError(
                f"{self!r} has several policies: ask for policies[{next(iter(self._named))!r}], for example"
            )
        return self._named[self._learner]

    @property
    def policies(self) -> Mapping[str, Policy]:
        """See `RolloutWorker.policies`."""
        return self._named

    def sample(self, steps: int | None = None, *, rows: int | None = None, episodes: int | None = None) -> Any:
        """Collect `steps` steps of each game; running ones go on next time, as do actions without an answer yet.

        Where one needs more time than the others, after a fault for example, those that cannot wait play on.

        With `rows` instead: steps of all games until there are this many rows, as rows `[B, ...]`. With `episodes`
        instead: this many whole new games, `[T, seats, ...]`.

        Raises: see `RolloutWorker.sample`.
        """
        amounts = [n for n in (steps, rows, episodes) if n is not None]
        if len(amounts) != 1 or amounts[0] < 1:
            raise ValueError(f"sample needs steps >= 1, rows >= 1 or episodes >= 1, got {steps=}, {rows=}, {episodes=}")
        self._steps = 0
        if episodes is not None:
            return self._collected(self._whole_games(episodes))
        if steps is not None:
            missing = np.full(self.manager.num_envs, steps)
            while not (complete := missing <= 0).all() or (self._shared and not self._rows()):
                self._step_games(complete)
                missing -= self._games.timed
            return self._collected({name: self._cut(name) for name in self._with_rows()})
        while self._rows() < amounts[0]:
            self._step_games()
        return self._collected({name: _without_mask(self._cut(name)) for name in self._with_rows()})

    def env_steps_of(self, batch: Any) -> int:
        """See `RolloutWorker.env_steps_of`: steps of games (M4)."""
        return self._steps

    def episodes(self) -> list[Episode]:
        """The episodes that ended since the last call, of games and of their agents."""
        return self._games.drain()

    def games(self) -> list[Any]:
        """See `RolloutWorker.games`."""
        return self._games.drain_results()

    def reset_env(self, seed: int | None = None) -> None:
        """Cut the running games and begin new ones; a `seed` starts new streams of seeds."""
        self._games.reset(seed)
        self._players.assign()
        for fragment in self._fragments.values():
            fragment.clear()

    def reset_policy(self, policy: Policy, name: str | None = None) -> None:
        """Let another policy of this name act from now on; without a name, the only one."""
        if name is None and self._shared:
            name = self._learner
        if name is None or name not in self._named:
            raise FlowError(f"{self!r}: reset_policy needs the name of one of its policies, got {name!r}")
        self._named[name] = self._players.of[name].policy = policy
        self._players.of[name].actor.use(self._mode_of(policy))

    def state_dict(self) -> dict[str, Any]:
        return {
            "manager": self._games.state_dict(),
            "fragments": {name: fragment.state_dict() for name, fragment in self._fragments.items()},
            "actors": self._players.state_dict(),
            "matches": [list(map(tuple, self._players.matches[game])) for game in sorted(self._players.matches)],
            "env_steps": self.env_steps,
            **self._learned(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved worker")
        fragments, actors, env_steps = saved.get("fragments", dict), saved.get("actors", dict), saved.count("env_steps")
        matches = saved.get("matches", list[list[tuple[str, str] | tuple[str, str, bool]]], otherwise=[])
        if fragments.keys() != self._fragments.keys() or actors.keys() != self._named.keys():
            saved.refuse("fragments", f"the policies {', '.join(self._fragments)}, which play with {self!r}")
        for name, fragment in self._fragments.items():
            fragment.load_state_dict(fragments[name])
        self._players.load_state_dict(actors)
        self._games.load_state_dict(saved.get("manager", dict))
        self.env_steps = env_steps
        self._players.assign_all(matches)
        if "policy" in state:
            self.policy.load_state_dict(state["policy"])

    def _mode_of(self, policy: Policy) -> Any:
        return collect_mode_of(policy, self.index)

    def _step_games(self, wait: Array | None = None, *, count_all: bool = True) -> Array:
        """One step of the games that are ready; returns the mask `[games]` of those that ended.

        Args:
            wait: Mask of the games that wait, if their manager lets them and not all do.
            count_all: Whether those that cannot wait count; else neither the returned mask has them, nor are rows kept.
        """
        held = None if wait is None or self.manager.ready is None or wait.all() else wait
        stepped = self._players.step(self.env_steps, held)
        moved, timed = stepped.acted, self._games.timed
        if wait is not None and not count_all:
            moved, timed = ~wait if moved is None else moved & ~wait, timed & ~wait
        for name, fragment in self._fragments.items():
            player = self._players.of[name]
            row, result = player.actor.sent, player.seats.result(stepped)
            answered: Any = result.acted
            if moved is not None:
                answered = moved[player.seats.env_id] if answered is None else answered & moved[player.seats.env_id]
            answered = player.learns(answered)
            if answered is None or answered.any():
                row["next_obs"], row["reward"], row["terminated"], row["truncated"], _ = result
                if (discount := player.seats.discount(stepped)) is not None:
                    row[STEP_DISCOUNT] = discount
                if (info := player.seats.info) is not None:
                    row["info"] = info
                if "value" not in row:
                    row.pop("next_state", None)
                fragment.write(row, answered)
        self._players.assign()
        steps = int(np.count_nonzero(timed))
        self._steps += steps
        self.env_steps += steps
        done: Array = self.manager.done
        return done if moved is None else done & moved

    def _rows(self) -> int:
        return sum(int(fragment.lengths().sum()) for fragment in self._fragments.values())

    def _with_rows(self) -> list[str]:
        """Those who have acted since the last sample; all agents of another may have ended, or wait for their turn."""
        return [name for name, fragment in self._fragments.items() if fragment.lengths().any()]

    def _cut(self, name: str) -> Batch:
        """All rows of a policy, as columns with a `mask`: seats have different numbers of turns."""
        written, rows = self._fragments[name].lengths(), self._fragments[name].cut_all()
        real = np.arange(len(rows))[:, None] < written
        pad(rows, real)
        rows["mask"] = real
        seats = self._players.of[name].seats
        return self._completed(rows, self._players.of[name], seats.env_id, seats.agent)

    def _cut_games(self, name: str, played: Collection[tuple[int, int]]) -> Batch:
        """The whole episodes of these games, (env_id, episode_id), as columns, padded, with a `mask`."""
        written, rows = self._fragments[name].lengths(), self._fragments[name].cut_all()
        table, seats, columns = rows.flat(), self._players.of[name].seats, []
        for seat, (game, count) in enumerate(zip(seats.env_id.tolist(), written.tolist())):
            columns += [each for each in _ended(rows, count, seat) if (game, int(table.episode_id[each[0]])) in played]
        padded = side_by_side(table, columns, max(map(len, columns), default=0))
        whose = np.array([column[0] % len(written) for column in columns], np.int64)
        return self._completed(padded, self._players.of[name], seats.env_id[whose], seats.agent[whose])

    def _completed(self, rows: Batch, player: Player, env_id: Array, agent: Array) -> Batch:
        rows["agent"] = np.broadcast_to(agent, rows["reward"].shape)
        return checked(completed(rows, env_id, self.index, player.policy))

    def _collected(self, batches: Mapping[str, Batch]) -> Batch | MultiAgentBatch:
        if self._shared:
            return next(iter(batches.values()))
        return MultiAgentBatch(batches, self._steps, frozenset(self._fragments))

    def _whole_games(self, episodes: int) -> dict[str, Batch]:
        if self.manager.t.any() or self._rows():
            self.reset_env()
        missing, before = shares_of(episodes, self.manager.num_envs), self._games.drain()
        played: set[tuple[int, int]] = set()
        while (missing > 0).any():
            numbers = self.manager.episode_id.copy()
            ended = self._step_games(missing <= 0, count_all=False)
            played |= {(game, int(numbers[game])) for game in np.flatnonzero(ended).tolist()}
            missing -= ended
        batches = {name: self._cut_games(name, played) for name in self._with_rows()}
        # Games with a complete share may have played on, which does not count.
        counted = [episode for episode in self._games.drain() if (episode.env_id, episode.episode_id) in played]
        cut = self.manager.cut_episodes
        self.reset_env()
        self.manager.cut_episodes = cut  # those beyond the shares were never experience
        self._games.finished = [*before, *counted]
        self._games.results = [each for each in self._games.results if (each.env_id, each.episode_id) in played]
        return batches


def _without_mask(batch: Batch) -> Batch:
    """The rows of columns with a `mask`, without it."""
    rows = real_rows(batch)
    return rows.select([name for name in rows if name != "mask"])


def _ended(rows: Batch, count: int, seat: int) -> Iterator[Array]:
    """The flat row numbers of each episode that ended in the first `count` rows of a seat."""
    seats = rows["reward"].shape[1]
    for end in np.flatnonzero((rows.terminated | rows.truncated)[:count, seat]).tolist():
        yield (end + 1 - np.arange(int(rows.t[end, seat]) + 1, 0, -1)) * seats + seat

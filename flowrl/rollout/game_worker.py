"""GameWorker: several policies act in the games of one manager, and each collects the rows of its seats (M4-M7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from flowrl.data import Batch
from flowrl.data.multi_agent import MultiAgentBatch
from flowrl.data.steps import real_rows
from flowrl.data.trajectories import side_by_side
from flowrl.engine.seeds import SeedTree
from flowrl.envs import Episode, StepResult
from flowrl.envs.managers.games import GameManager, Seats
from flowrl.errors import FlowError
from flowrl.policies import Policy
from flowrl.rollout.acting import Actor
from flowrl.rollout.fragment import Fragment
from flowrl.rollout.noise import split_seed
from flowrl.rollout.policy_map import Match, PolicyMap
from flowrl.rollout.worker import Array, RolloutWorker, checked, collect_mode_of, completed, shares_of
from flowrl.saved import Saved

Experience = Batch | MultiAgentBatch


class _Player:
    """A policy, the seats that it plays, and their rows that are not collected yet."""

    def __init__(self, policy: Policy, seats: Seats, seed: int, worker: int) -> None:
        self.policy, self.seats, self.worker = policy, seats, worker
        streams = seats.env_id * len(seats.games.seating.agents) + seats.agent
        self.actor = Actor(seats, collect_mode_of(policy, worker), seed, streams.tolist())
        self.fragment = Fragment(seats.num_envs)

    def send(self, env_steps: int, wait: Array | None) -> None:
        """Act in the seats whose turn it is."""
        held = None if wait is None else np.repeat(wait, len(self.seats.agents))
        ready, actions = self.actor.send(env_steps, self.policy.version, held)
        if actions is not None:
            self.seats.put(actions, ready)

    def take(self, stepped: StepResult, wanted: Array | None = None) -> Array:
        """Keep the answered rows, of wanted games; returns the mask `[N]` of seats whose episode ended."""
        row, result = self.actor.sent, self.seats.result(stepped)
        answered: Any = result.acted
        if wanted is not None:
            answered = answered & np.repeat(wanted, len(self.seats.agents))
        if answered.any():
            row["next_obs"], row["reward"], row["terminated"], row["truncated"], _ = result
            if "value" not in row:
                row.pop("next_state", None)
            self.fragment.write(row, answered)
        ended: Array = (result.terminated | result.truncated) & answered
        return ended

    def cut(self) -> Batch:
        """All rows, as columns `[T, N, ...]` with a `mask`: seats have different numbers of turns."""
        written, rows = self.fragment.lengths(), self.fragment.cut_all()
        rows["mask"] = np.arange(int(written.max()))[:, None] < written
        rows[~rows["mask"]] = 0
        return self.complete(rows, self.seats.env_id, self.seats.agent)

    def cut_games(self, played: Collection[tuple[int, int]]) -> Batch:
        """The whole episodes of these games, (env_id, episode_id), as columns, padded, with a `mask`."""
        written, rows = self.fragment.lengths(), self.fragment.cut_all()
        table, columns = rows.flat(), []
        for seat, (game, count) in enumerate(zip(self.seats.env_id.tolist(), written.tolist())):
            columns += [each for each in _ended(rows, count, seat) if (game, int(table.episode_id[each[0]])) in played]
        padded = side_by_side(table, columns, max(map(len, columns), default=0))
        whose = np.array([column[0] % len(written) for column in columns], np.int64)
        return self.complete(padded, self.seats.env_id[whose], self.seats.agent[whose])

    def complete(self, rows: Batch, env_id: Array, agent: Array) -> Batch:
        """The rows with provenance and `next_value`, checked."""
        rows["agent"] = np.broadcast_to(agent, rows["reward"].shape)
        return checked(completed(rows, env_id, self.worker, self.policy))


class GameWorker(RolloutWorker):
    """Policies act in the games of one manager; see `RolloutWorker` for what is the same in one that plays alone.

    `sample` returns a `MultiAgentBatch` of the experience of each policy; one policy that plays all agents gets a plain
    batch. A row is one action of one seat and what it led to, until the agent's next turn (M1). Columns are `[T, N]`
    with a seat in each, T the most turns that one had, and a `mask` (N6). Beside `env_id`, the copy of the game, there
    is `agent`, the number of the agent in the game.

    Args:
        games: Their manager, not launched yet.
        policies: Policies by name.
        policy_map: Which of them plays which agent.
        seed, index: See `RolloutWorker`.
    """

    def __init__(
        self, games: GameManager, policies: Mapping[str, Policy], policy_map: PolicyMap, *, seed: int, index: int = 0
    ) -> None:
        self._policies, self.policy_map, self._games = dict(policies), policy_map, games
        env_seed, noise_seed = split_seed(seed)
        games.launch(env_seed)
        self._begin(games.games, next(iter(policies.values())), index)
        tree = SeedTree(noise_seed)
        self._players = {
            name: _Player(
                *(policy, Seats(games, policy_map.agents_of(name))),
                *(noise_seed if policy_map.shared else tree.integer(f"policy/{name}"), index),
            )
            for name, policy in self.policies.items()
        }
        self._steps = 0  # of games, in the newest sample
        self._assign()

    def __repr__(self) -> str:
        return f"GameWorker({self.manager.num_envs} games, {', '.join(self.policies)})"

    @property
    def policies(self) -> Mapping[str, Policy]:
        """See `RolloutWorker.policies`."""
        return self._policies

    def sample(self, steps: int | None = None, *, rows: int | None = None, episodes: int | None = None) -> Any:
        """Collect `steps` steps of each game; running ones go on next time, and so do actions that wait for an answer.

        With `rows` instead: steps of all games until there are this many rows, as rows `[B, ...]`. With `episodes`
        instead: this many whole new games, `[T, seats, ...]`.

        Raises: see `RolloutWorker.sample`.
        """
        amounts = [n for n in (steps, rows, episodes) if n is not None]
        if len(amounts) != 1 or amounts[0] < 1:
            raise ValueError(f"sample needs steps >= 1, rows >= 1 or episodes >= 1, got {steps=}, {rows=}, {episodes=}")
        self._steps = 0
        if steps is not None:
            missing = np.full(self.manager.num_envs, steps)
            while (missing > 0).any() or (self.policy_map.shared and not self._rows()):
                missing -= self._step_games(missing > 0 if (missing > 0).any() else None)
            return self._collected({name: player.cut() for name, player in self._with_rows().items()})
        if rows is not None:
            while self._rows() < rows:
                self._step_games()
            return self._collected({name: real_rows_of(player.cut()) for name, player in self._with_rows().items()})
        return self._collected(self._whole_games(amounts[0]))

    def env_steps_of(self, batch: Any) -> int:
        """See `RolloutWorker.env_steps_of`: steps of games (M4)."""
        return self._steps

    def episodes(self) -> list[Episode]:
        """The episodes that ended since the last call, of games and of their agents."""
        return self._games.drain()

    def reset_env(self, seed: int | None = None) -> None:
        """Cut the running games and begin new ones; a `seed` starts new streams of seeds."""
        self._games.reset(seed)
        self._assign()
        for player in self._players.values():
            player.fragment.clear()

    def reset_policy(self, policy: Policy, name: str | None = None) -> None:
        """Let another policy of this name act from now on; without a name, the only one."""
        if name is None and self.policy_map.shared:
            name = next(iter(self.policies))
        if name is None or name not in self.policies:
            raise FlowError(f"{self!r}: reset_policy needs the name of one of its policies, got {name!r}")
        self._policies[name] = self._players[name].policy = policy
        self._players[name].actor.use(collect_mode_of(policy, self.index))

    def state_dict(self) -> dict[str, Any]:
        return {
            "games": self._games.state_dict(),
            "players": {
                name: {"fragment": player.fragment.state_dict(), "actor": player.actor.state_dict()}
                for name, player in self._players.items()
            },
            "env_steps": self.env_steps,
            # As in the state of other workers, whose episodes are counted there.
            "manager": {"cut_episodes": self.manager.cut_episodes},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved worker")
        players, env_steps = saved.get("players", dict), saved.count("env_steps")
        if players.keys() != self._players.keys():
            saved.refuse("players", f"the policies {', '.join(self._players)}")
        for name, player in self._players.items():
            of = Saved(players[name], f"the saved worker, policy {name!r}")
            player.fragment.load_state_dict(of.get("fragment"))
            player.actor.load_state_dict(of.get("actor"))
        self._games.load_state_dict(saved.get("games", dict))
        self.env_steps = env_steps
        self._games.began = list(range(self.manager.num_envs))
        self._assign()

    def _step_games(self, wanted: Array | None = None) -> Array:
        """One step of the games that are ready; returns the mask `[games]` of those that stepped.

        Args:
            wanted: Mask of the games that count; the others wait, if their manager lets them.
        """
        wait = None if wanted is None or self.manager.ready is None else ~wanted
        for player in self._players.values():
            player.send(self.env_steps, wait)
        stepped = self._games.step(wait)
        moved: Array = np.ones(self.manager.num_envs, np.bool_) if stepped.acted is None else stepped.acted
        if wanted is not None:
            moved = moved & wanted
        for player in self._players.values():
            player.take(stepped, wanted)
        self._assign()
        self._steps += int(moved.sum())
        self.env_steps += int(moved.sum())
        return moved

    def _assign(self) -> None:
        """Fix who plays in the games that have begun (M7)."""
        for game in self._games.began:
            found = self.policy_map.players(Match(game, int(self.manager.episode_id[game])))
            if found is None:
                break
            for number, player in enumerate(self._players.values()):
                player.seats.leave_to_others(game, found != number)
        self._games.began.clear()

    def _with_rows(self) -> dict[str, _Player]:
        """Those who have acted since the last sample; all others' agents may have ended, or wait for their turn."""
        return {name: player for name, player in self._players.items() if player.fragment.lengths().any()}

    def _rows(self) -> int:
        return sum(int(player.fragment.lengths().sum()) for player in self._players.values())

    def _collected(self, batches: Mapping[str, Batch]) -> Experience:
        if self.policy_map.shared:
            return next(iter(batches.values()))
        return MultiAgentBatch(batches, self._steps)

    def _whole_games(self, episodes: int) -> dict[str, Batch]:
        if self.manager.t.any() or self._rows():
            self.reset_env()
        missing, before, played = shares_of(episodes, self.manager.num_envs), self._games.drain(), set()
        while (missing > 0).any():
            numbers = self.manager.episode_id.copy()
            ended = self._step_games(missing > 0) & self.manager.done
            played |= {(game, int(numbers[game])) for game in np.flatnonzero(ended & (missing > 0)).tolist()}
            missing -= ended
        batches = {name: player.cut_games(played) for name, player in self._with_rows().items()}
        # Games with a complete share may have played on, which does not count.
        counted = [episode for episode in self._games.drain() if (episode.env_id, episode.episode_id) in played]
        cut = self.manager.cut_episodes
        self.reset_env()
        self.manager.cut_episodes = cut  # those beyond the shares were never experience
        self._games.finished = [*before, *counted]
        return batches


def real_rows_of(batch: Batch) -> Batch:
    """The rows of columns with a `mask`, without it."""
    rows = real_rows(batch)
    return rows.select([name for name in rows if name != "mask"])


def _ended(rows: Batch, count: int, seat: int) -> Iterator[Array]:
    """The flat row numbers of each episode that ended in the first `count` rows of a seat."""
    seats = rows["reward"].shape[1]
    for end in np.flatnonzero((rows.terminated | rows.truncated)[:count, seat]).tolist():
        yield (end + 1 - np.arange(int(rows.t[end, seat]) + 1, 0, -1)) * seats + seat

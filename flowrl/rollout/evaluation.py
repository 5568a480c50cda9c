"""Evaluating a policy: whole episodes in its eval mode, in separate environments."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy as np

from flowrl.data.multi_agent import DEFAULT_POLICY
from flowrl.envs import Environments, Episode, Manager, StepResult
from flowrl.envs.infos import rate_of
from flowrl.envs.managers.games import GameManager, MatchResult, is_of_games
from flowrl.errors import ConfigError, NotFinite
from flowrl.policies import Policy
from flowrl.rollout.acting import Actor
from flowrl.rollout.noise import split_seed
from flowrl.rollout.players import Players
from flowrl.rollout.policy_map import Agents, policy_map
from flowrl.rollout.video import check_video, filmed
from flowrl.rollout.worker import shares_of

log = logging.getLogger("flowrl")

Array = np.ndarray[Any, np.dtype[Any]]

Goal = float | Mapping[str, float]
"""A mean return to reach; of a game, that of all agents together, or those of agents by name."""

PolicyMaker = Callable[[gymnasium.Space[Any], gymnasium.Space[Any]], Any]
"""What makes a policy for an observation and an action space, such as its class."""

#: Default number of steps after which an evaluation cuts an episode.
MAX_STEPS = 10_000
#: An evaluation looks whether its goal is out of reach after so many episodes, and once more after twice as many.
LOOK, LOOKS = 20, 2
#: How far below a goal, see `implausible`, ends an evaluation; and the error of a look at returns with a floor.
FAR, ERROR = 4.2, 5e-4
#: The least share of episodes above a floor that is thought of where nothing else is known.
RARE = 1 / 12


def evaluate(
    policy: Policy | PolicyMaker | Mapping[str, Policy | PolicyMaker],
    env: Any,
    *,
    episodes: int,
    seed: int,
    num_envs: int = 8,
    env_args: Mapping[str, Any] | None = None,
    max_steps: int = MAX_STEPS,
    video: Path | None = None,
    goal: Goal | None = None,
    agents: Agents | None = None,
    deterministic: bool = True,
    env_steps: int | Mapping[str, int] = 0,
) -> list[Episode]:
    """Play `episodes` whole episodes and return them, environment by environment.

    With a `goal` the episodes end early where a mean of it is `implausible` (S6): after the first round of all
    environments by which there are `LOOK` episodes, or after as many rounds again.

    `env` is what `flowrl.envs.make_manager` takes, made with `env_args`, or the `Environments` of a worker set.

    Every environment plays a fixed share of them; shares differ by at most one (S2). There are at most `num_envs`
    environments, and no more than are busy in every round. The k-th episode of the i-th environment begins the same for
    every policy evaluated with one `seed`; environments and noise derive from it alone, so evaluation does not change
    training (S3).

    An episode longer than `max_steps` steps is cut, with a warning: a deterministic policy may go in circles for ever.
    It counts with the return so far and is marked `cut`; its environment plays no further episodes, so there are fewer
    in total. An episode that a fault cuts does not count: it is played again.

    `policy` may also be what makes one for an observation and an action space, such as `RandomPolicy`.

    In a game of several agents the policy plays all of them; or several policies, by name, of which `agents` says who
    plays whom (see `flowrl.rollout.policy_map`). An episode is then one of the game, followed by those of its agents.

    Policies act by their eval mode; if not `deterministic`, by their collect mode (S8), after `env_steps` env steps of
    training, which schedules of exploration follow: those of each by name, or of all.

    With `video` three episodes are filmed into that folder, see `flowrl.rollout.video`.
    """
    environments = env if isinstance(env, Environments) else Environments(env, env_args or {}, agents=bool(agents))

    def make(count: int) -> Manager:
        if video is None:
            return environments.manager(count)
        return filmed(environments, count, video, shares_of(episodes, count).tolist())

    mode_of = attrgetter("eval_mode" if deterministic else "collect_mode")
    if video is not None:
        check_video(environments, num_envs)
    rounds = -(-episodes // num_envs)
    with _fewest(make, -(-episodes // rounds), num_envs) as manager:
        of_agents: list[Episode] = []
        if isinstance(policy, Mapping) or is_of_games(manager):
            policies = policy if isinstance(policy, Mapping) else {DEFAULT_POLICY: policy}
            actor: Actor | _InGames = _InGames(manager, environments, policies, agents, seed, of_agents, mode_of)
        else:
            env_seed, noise_seed = split_seed(seed)
            manager.launch(env_seed)
            alone = made(policy, manager.observation_space, manager.action_space)
            actor = Actor(manager, mode_of(alone), noise_seed)

        def missed(counted: list[Episode]) -> bool:
            found = [*counted, *_of_agents(of_agents, counted)]
            return any(
                implausible([each.return_ for each in found if each.agent == name], least)
                for name, least in by_agent(goal if goal is not None else {}).items()
            )

        played = _play(actor, manager, episodes, max_steps, None if goal is None else missed, env_steps)
    if cut := sum(episode.cut for episode in played):
        log.warning(
            "evaluating %s: %d of %d episodes had not ended after %d steps and were cut; give it a time limit",
            *(environments, cut, len(played), max_steps),
        )
    told = [episode.success for episode in played if episode.success is not None]
    if told and all(told) and len(told) < len(played):
        _say_only_wins(f"{environments}", len(told), len(played))
    return [*played, *_of_agents(of_agents, played)]


@lru_cache
def _say_only_wins(env: str, told: int, episodes: int) -> None:
    log.warning(
        "evaluating %s: %d of %d episodes say that they were won, and the others say nothing, so they are not judged; "
        "if they were lost, let info['is_success'] be False at their end",
        *(env, told, episodes),
    )


def made(policy: Any, *spaces: gymnasium.Space[Any]) -> Any:
    """A policy, or the one that a `PolicyMaker` makes."""
    return policy(*spaces) if callable(policy) else policy


def _of_agents(episodes: Sequence[Episode], games: Sequence[Episode]) -> list[Episode]:
    """Those of the agents in these games."""
    counted = {(game.env_id, game.episode_id) for game in games}
    return [each for each in episodes if (each.env_id, each.episode_id) in counted]


class _InGames:
    """Policies that act in the games of a manager, as an `Actor` does in environments; collects agents' episodes."""

    def __init__(
        self,
        manager: Manager,
        environments: Environments,
        policies: Mapping[str, Policy | PolicyMaker],
        agents: Agents | None,
        seed: int,
        episodes: list[Episode],
        mode_of: Callable[[Policy], Any],
    ) -> None:
        self._policy_map = policy_map(
            environments, environments.look(manager.num_envs).seating, tuple(policies), agents
        )
        if self._policy_map is None:
            raise ConfigError(f"{environments} has one agent: pass its policy, not several by name")
        self._games, self._episodes = GameManager(manager, self._policy_map.seating), episodes
        env_seed, noise_seed = split_seed(seed)
        self._games.launch(env_seed)
        named = {name: made(policy, *self._policy_map.spaces_of(name)) for name, policy in policies.items()}
        self._players = Players(self._games, named, self._policy_map, mode_of, noise_seed)

    @property
    def steps(self) -> Array:
        """`[games]`: the env steps of the running episodes."""
        return self._games.steps

    def step(self, env_steps: int | Mapping[str, int], *, wait: Array) -> tuple[None, StepResult]:
        stepped = self._players.step(env_steps, None if self._games.games.ready is None else wait)
        self._players.assign()
        self._collect()
        return None, stepped

    def cut(self, game: int) -> None:
        """Let a running game count as one that ended here."""
        self._games.cut(game)
        self._collect()

    def _collect(self) -> None:
        self._episodes += self._games.finished
        self._episodes += self._of_policies(self._games.finished, self._games.drain_results())
        self._games.finished = []

    def _of_policies(self, finished: Sequence[Episode], results: Sequence[MatchResult]) -> list[Episode]:
        """The agents' episodes once more as those of the policies, where these differ from match to match."""
        assert self._policy_map is not None
        agents = self._policy_map.seating.agents
        who = {(each.env_id, each.episode_id): dict(zip(agents, each.players)) for each in results}
        if not who or set(self._policy_map.policies) & set(agents):
            return []
        return [attrs.evolve(each, agent=who[each.env_id, each.episode_id][each.agent]) for each in finished]


def _fewest(make: Callable[[int], Manager], needed: int, num_envs: int) -> Manager:
    """A manager of no more environments than needed; of `num_envs` where they cannot be fewer, as of several agents."""
    try:
        return make(needed)
    except ConfigError:
        if needed == num_envs:
            raise
    return make(num_envs)


def _play(
    actor: Actor | _InGames,
    manager: Manager,
    episodes: int,
    max_steps: int,
    missed: Callable[[list[Episode]], bool] | None,
    env_steps: Any,
) -> list[Episode]:
    """Each environment's share of the episodes, or of the first ones if these have missed the goal at a look."""
    played: list[list[Episode]] = [[] for _ in range(manager.num_envs)]
    counts, most = np.zeros(manager.num_envs, np.int64), shares_of(episodes, manager.num_envs)
    looks = [] if missed is None else [-(-LOOK // manager.num_envs) * times for times in range(1, LOOKS + 1)]

    def keep(episode: Episode) -> None:
        played[episode.env_id].append(episode)
        counts[episode.env_id] += 1

    while True:
        rounds = looks.pop(0) if looks else int(most.max())
        share = np.minimum(rounds, most)
        while (counts < share).any():
            actor.step(env_steps, wait=counts >= share)
            # Environments that cannot wait play on: these episodes count if their shares grow.
            for episode in manager.drain():
                if counts[episode.env_id] < most[episode.env_id]:
                    keep(episode)
            lengths = actor.steps
            for i in np.flatnonzero((lengths >= max_steps) & (counts < most)).tolist():
                keep(Episode(i, int(manager.episode_id[i]), *manager.so_far(i), cut=True))
                if isinstance(actor, _InGames):
                    actor.cut(i)
                most[i] = counts[i]  # it plays no more
                share[i] = min(share[i], most[i])
        counted = [episode for of, n in zip(played, share.tolist()) for episode in of[:n]]
        if rounds >= most.max() or (missed is not None and missed(counted)):
            break
    for fault in manager.drain_faults():
        log.warning("evaluating: %s", fault)
    return counted


@attrs.frozen
class Scores:
    """Scores of a policy from the episodes that it played.

    `steps` are those of all episodes together. `reward_per_step` is total reward over them, so long episodes count
    more. `win_rate` is the fraction of successes among the episodes that report success, None if none does; `judged` is
    their number. `cut` is the number of episodes that were cut (see `evaluate`), which count with their return so far.
    Standard deviations are those of the episodes played (divided by n).
    """

    episodes: int
    steps: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    length_std: float
    reward_per_step: float
    win_rate: float | None
    judged: int
    cut: int = 0


def scores(episodes: Sequence[Episode], agent: str = "") -> Scores:
    """The three kinds of score: total return, mean reward per step, win rate (S5), all of raw rewards (S1).

    They are those of the environments, or of games with the returns of all agents together; with `agent`, its own.

    Raises:
        ValueError: no episodes.
        NotFinite: the return of an episode is not finite, and so no score is (X1).

    >>> found = scores([Episode(0, 0, 6.0, 2, True), Episode(0, 1, 2.0, 6, False), Episode(0, 2, 1.0, 1)])
    >>> found.return_mean, found.reward_per_step, found.win_rate, found.judged
    (3.0, 1.0, 0.5, 2)
    """
    episodes = [episode for episode in episodes if episode.agent == agent]
    if not episodes:
        raise ValueError("there is no score of no episodes")
    for episode in episodes:
        if not math.isfinite(episode.return_):
            raise NotFinite(
                f"the raw return of an evaluated episode is {episode.return_} (environment {episode.env_id}, episode "
                f"{episode.episode_id}, {episode.length} steps): the rewards below all wrappers must be finite (S1); "
                "make them so where the environment is made"
            )
    returns = np.array([episode.return_ for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    win_rate, judged = rate_of(episode.success for episode in episodes)
    return Scores(
        episodes=len(episodes),
        steps=int(lengths.sum()),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        return_min=float(returns.min()),
        return_max=float(returns.max()),
        length_mean=float(lengths.mean()),
        length_std=float(lengths.std()),
        reward_per_step=float(returns.sum() / lengths.sum()),
        win_rate=win_rate,
        judged=judged,
        cut=sum(episode.cut for episode in episodes),
    )


def implausible(returns: Sequence[float], goal: float) -> bool:
    """Whether these returns `[n]` make it implausible that the policy's mean return is the goal R.

    With d_i = R - x_i they do where ``Σ d_i ≥ FAR √(Σ d_i²)``. Of a policy of mean R whose returns are symmetric about
    it that happens with a probability of at most exp(-FAR²/2), 1.5e-4 at each look, whatever their distribution. Longer
    lower tails are safer; `FAR` leaves room for a longer upper tail, as far as that of an exponential distribution,
    where simulation finds less than 1 in 1,000 too.

    Where most returns equal the lowest one x, as with 0/1, high ones may just not have been seen. Then those above x
    must also be so few that it is an event of at most `ERROR` if a share q of all is: ``q = (R - x) / (-2 x)`` where
    x < R < -x, for returns that are at most as high above 0 as x is below it; else `RARE`, which no look can tell.

    Source: Efron 1969, Student's t-test under symmetry conditions; de la Peña, Lai and Shao 2009, Self-normalized
    processes.

    >>> implausible([-1300.0, -1100.0, -1500.0, -1250.0] * 5, -200), implausible([-260.0, -140.0] * 10, -195)
    (True, False)
    >>> implausible([0.0] * 20, 0.1), implausible([-500.0] * 20, -100)
    (False, True)
    """
    below = goal - np.asarray(returns, float)
    if not len(below) or not below.sum() >= FAR * np.sqrt((below**2).sum()):
        return False
    lowest, n = min(returns), len(returns)
    above = sum(each > lowest for each in returns)
    if 2 * above >= n:
        return True
    share = (goal - lowest) / (-2 * lowest) if lowest < goal < -lowest else RARE
    return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(above + 1)) <= ERROR


def by_agent(goal: Goal) -> Mapping[str, float]:
    """The least mean return of each agent that a goal names; "" stands for all of them together."""
    return goal if isinstance(goal, Mapping) else {"": goal}


def bounds_of(goal: Goal, entry: str) -> dict[str, float]:
    """What a goal asks of a result: the least value of `entry`, or of `entry/NAME` for each agent that it names.

    >>> bounds_of(475, "eval_return"), bounds_of({"left": 475}, "eval_return")
    ({'eval_return': 475}, {'eval_return/left': 475})
    """
    return {f"{entry}/{name}" if name else entry: least for name, least in by_agent(goal).items()}


def return_of(goal: Goal, episodes: Sequence[Episode]) -> float:
    """The mean return of the agents that a goal names, together; NaN if one of them ended no episode."""
    known = {episode.agent for episode in episodes}
    return sum(scores(episodes, name).return_mean if name in known else math.nan for name in by_agent(goal))


def reaches(goal: Goal, episodes: Sequence[Episode]) -> bool:
    """Whether each mean return that a goal names is at least as large in these episodes.

    >>> both = [Episode(0, 0, 5.0, 2, agent="left"), Episode(0, 0, 1.0, 2, agent="right")]
    >>> reaches({"left": 4, "right": 1}, both), reaches({"left": 4, "right": 2}, both)
    (True, False)
    """
    return all(return_of({name: least}, episodes) >= least for name, least in by_agent(goal).items())

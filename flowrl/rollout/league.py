"""League: learners, a bounded pool of their past selves, who meets whom, and how their games end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from flowrl.envs.games.seats import Seating
from flowrl.errors import ConfigError
from flowrl.policies import Policy
from flowrl.policies.protocols import HasWeights
from flowrl.rollout.broadcast import Broadcast
from flowrl.rollout.match_making import MatchMaker, Rival, Weighting, probabilities, uniform
from flowrl.rollout.policy_map import Match
from flowrl.saved import Saved

Result = tuple[Sequence[str], Sequence[float]]
"""A game: the players of its agents, and what each gained."""

#: The name of the policy that evaluations meet.
JUDGE = "judge"
#: What remains of a pair's earlier games with each new one, so that the table follows learners as they improve.
DECAY = 0.99
#: The rating of a player that begins, and the most that one game moves it.
FIRST_RATING, MOST_PER_GAME = 1000.0, 16.0


@attrs.frozen
class Share:
    """A part of a learner's matches, and who may be the opponent in these.

    Args:
        weight: Its weight among the learner's shares.
        now: Learners as they are now; the learner's own name is self-play.
        past: Or members of the pool: the learners whose past selves they are, "*" for everybody, fixed players too.
        match_making: How likely each of them is, see `flowrl.rollout.match_making`.
        above: It holds while the learner wins more than this share of its games against each of them; None: always.
        below: It holds while the learner wins less than this share against one that it may draw; None: always.
        otherwise: What takes its place while it does not hold, or while there is no such opponent; its own weight does
            not matter. None: nothing, and the learner's other shares grow.
    """

    weight: float
    now: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    match_making: Weighting = uniform
    above: float | None = None
    below: float | None = None
    otherwise: Share | None = None


@attrs.frozen
class Member:
    """A player that does not learn: a past self, or one from elsewhere."""

    name: str  #: of a past self the learner's and the number of its updates then: "main:120"
    policy: str  #: that plays it
    learner: str = ""  #: whose past self it is


@attrs.define
class Tally:
    """Games of one player against another, of which each new one leaves `DECAY` of those before."""

    games: float = 0.0
    won: float = 0.0
    drawn: float = 0.0

    def add(self, score: float) -> None:
        """Count a game; `score`: 1 if it was won, 0.5 if drawn, 0 if lost."""
        self.games = DECAY * self.games + 1.0
        self.won = DECAY * self.won + (score == 1.0)
        self.drawn = DECAY * self.drawn + (score == 0.5)


class League:
    """Learners of a game for two, and a pool of players that act but do not learn.

    A `WorkerSet(env, policies={"main": ...}, league=League({"main": [...]}))` acts with all of them. The operators
    `RecordGames` and `AddSnapshot` keep the table and the pool.

    Every match is that of one learner, each as likely, which plays it against an opponent of its shares and alone
    learns from it: what its shares say holds of its experience too.

    The pool of each learner holds its `pool_size` newest snapshots: when another one joins, the oldest leaves. It plays
    its running matches to their end, until the next one joins; a game that lasts even longer goes on against that one,
    and does not count. So every process holds `pool_size` + 1 policies more for each learner, with the memory of a
    policy that acts, and a checkpoint the weights of those in use.

    The table holds the games between each two players: those of a learner as it is now, and those of members. Of a
    pair's earlier games each new one leaves 99 %, so that the rates follow a learner. Ratings are Elo's:
    R ← R + 16 (S − E), with the score S of a game, and E = 1 / (1 + 10^((R_other − R) / 400)). A snapshot begins with
    the rating of its learner.

    Args:
        learners: The shares of each learner's matches, by name. A share whose opponents do not exist yet is left out; a
            learner without any opponent plays itself.
        pool_size: The most past selves of each learner.
        opponents: Factories of further players, by name, which are members from the start and for ever.
        judge: Factory of the player that evaluations of each learner meet, from either side in turn; None: the first
            learner plays all agents alone.
        restarts: Learners that may `restart`; what they begin with is kept for it.

    State: members with their weights, the table, ratings, what learners restart with. Who plays in running matches is
    in the workers' state (L2).

    Source: Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning", with the
    pseudocode of its supplement for the table; Elo 1978, "The Rating of Chessplayers, Past and Present".
    """

    def __init__(
        self,
        learners: Mapping[str, Sequence[Share]],
        *,
        pool_size: int = 8,
        opponents: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        judge: Callable[[Any, Any], Any] | None = None,
        restarts: Iterable[str] = (),
    ) -> None:
        self.learners, self.pool_size = dict(learners), pool_size
        if pool_size < 1:
            raise ConfigError(f"pool_size={pool_size}: expected at least 1")
        self._makes, self._make_judge = dict(opponents or {}), judge
        self.judge: Any = None
        # One more than members, so that the one that leaves ends its matches.
        self._slots = {name: [f"{name}_{k}" for k in range(pool_size + 1)] for name in self.learners}
        self._joined = dict.fromkeys(self.learners, 0)  # snapshots so far
        self.matches = MatchMaker()
        self.policies: dict[str, Any] = {}  #: those that do not learn, by name
        self.members = [Member(name, name) for name in self._makes]
        self.records: dict[tuple[str, str], Tally] = {}
        self.ratings = dict.fromkeys([*self.learners, *self._makes], FIRST_RATING)
        self._first: dict[str, Any] = dict.fromkeys(restarts)  # states of the learners that may restart
        for name, shares in self.learners.items():
            for share in shares:
                self._check(name, share)
        if unknown := self._first.keys() - self.learners.keys():
            raise ConfigError(f"restarts: no learner {min(unknown)!r}, but {', '.join(self.learners)}")
        past = {slot for slots in self._slots.values() for slot in slots}
        if taken := past & self.learners.keys() | self._makes.keys() & {*self.learners, *past}:
            what = "learners" if min(taken) in self.learners and min(taken) not in self._makes else "opponents"
            raise ConfigError(f"{what}: the name {min(taken)!r} is that of a learner or of its past selves")
        self._update()

    def _check(self, learner: str, share: Share) -> None:
        if bool(share.now) == bool(share.past):
            raise ConfigError(f"league: a share of {learner!r} is of learners as they are now or of past ones")
        for name in {*share.now, *share.past} - {"*"}:
            if name not in self.learners and name not in self._makes:
                raise ConfigError(f"league: {learner!r} meets {name!r}, but the players are {', '.join(self.ratings)}")
        if share.otherwise is not None:
            self._check(learner, share.otherwise)

    def play(self, env: object, seating: Seating | None, policies: Iterable[str], agents: object) -> None:
        """Take a game for the league's.

        Raises: ConfigError: it is not a game of two agents that are alike; other policies than the learners; `agents`
            says who plays whom.
        """
        if seating is None or len(seating.agents) != 2 or len(seating.kinds) != 1:
            who = "one agent" if seating is None else f"the agents {', '.join(seating.agents)}"
            raise ConfigError(f"{env} has {who}: self-play and leagues take games of two agents with the same spaces")
        if agents:
            raise ConfigError(f"agents={agents}: the league draws who plays whom; leave agents out")
        if set(policies) != set(self.learners):
            raise ConfigError(f"policies are {', '.join(policies)}, but the league has {', '.join(self.learners)}")
        self.matches.agents = seating.agents
        self._spaces = seating.kinds[0].observation_space, seating.kinds[0].action_space
        self.judge = None if self._make_judge is None else self._make_judge(*self._spaces)

    @property
    def lead(self) -> str:
        """The first learner, which stands for the league where one policy plays alone."""
        return next(iter(self.learners))

    def sides(self, learner: str, agent: str, match: Match) -> str:
        """Who plays an agent in evaluations: a learner and the judge change sides from game to game."""
        first = (match.env_id + match.episode_id) % 2 == self.matches.agents.index(agent)
        return learner if first else JUDGE

    @property
    def frozen(self) -> tuple[str, ...]:
        """The names of the policies that act but do not learn."""
        return (*self._makes, *(slot for slots in self._slots.values() for slot in slots))

    def makers(self, of: Mapping[str, Callable[[], Policy]]) -> dict[str, Callable[[], Any]]:
        """Factories of the policies that do not learn, for any process; `of`: those of the learners."""
        fixed = {name: partial(make, *self._spaces) for name, make in self._makes.items()}
        return {**fixed, **{slot: of[name] for name, slots in self._slots.items() for slot in slots}}

    def create(self, of: Mapping[str, Callable[[], Policy]]) -> None:
        """Create the policies that do not learn; `of`: factories of those of the learners."""
        self.policies = {name: make() for name, make in self.makers(of).items()}
        self.broadcasts = {name: Broadcast(policy) for name, policy in self.policies.items()}

    @property
    def restarts(self) -> tuple[str, ...]:
        """The learners that may begin anew."""
        return tuple(self._first)

    def start(self, learners: Mapping[str, Any]) -> None:
        """Keep what learners begin with, at the first run that the league is in."""
        for name, kept in self._first.items():
            if kept is None:
                self._first[name] = learners[name].state_dict()

    # -- the pool

    def add(self, learner: str, policy: Policy) -> Member:
        """Let a copy of a learner's policy join the pool; the oldest leaves if it is full.

        Returns: the member that joined.
        """
        slots = self._slots[learner]
        slot = slots[self._joined[learner] % len(slots)]
        self._joined[learner] += 1
        self._remove([each for each in self.members if each.policy == slot])
        copy = self.policies[slot]
        copy.load_weights(policy.weights())
        copy.version = policy.version
        name = f"{learner}:{policy.version}"
        if any(each.name == name for each in self.members):  # it has not learned since
            name += f"/{self._joined[learner]}"
        member = Member(name, slot, learner)
        self.members.append(member)
        self.ratings[name] = self.ratings[learner]
        self._update()
        return member

    def restart(self, learner: str, policy: Any) -> None:
        """Let a learner begin anew: with the weights that it had before the first run, no games and the first rating.

        `learner` must be one of `restarts`, and a run have started the workers.
        """
        policy.load_state_dict({**self._first[learner], "version": policy.version + 1})
        self.records = {pair: record for pair, record in self.records.items() if learner not in pair}
        self.ratings[learner] = FIRST_RATING
        self._update()

    def pool(self, *learners: str) -> list[Member]:
        """The members who may be drawn, the oldest first: past selves of these learners, or players of that name."""
        every = "*" in learners
        active = [*(each for each in self.members if not each.learner)]
        for name in self.learners:
            active += [each for each in self.members if each.learner == name][-self.pool_size :]
        return [each for each in active if every or each.learner in learners or each.name in learners]

    def _remove(self, members: Iterable[Member]) -> None:
        for member in members:
            self.members.remove(member)
            del self.ratings[member.name]
            self.records = {pair: record for pair, record in self.records.items() if member.name not in pair}

    # -- the table

    def count(self, games: Iterable[Result]) -> None:
        """Enter games into the table, each once (L1). Those of a player against itself, or of one that left, do not."""
        for (first, second), (of_first, of_second) in games:
            if first == second or not {first, second} <= self.ratings.keys():
                continue
            score = 1.0 if of_first > of_second else 0.5 if of_first == of_second else 0.0
            self.records.setdefault((first, second), Tally()).add(score)
            self.records.setdefault((second, first), Tally()).add(1.0 - score)
            expected = 1.0 / (1.0 + 10.0 ** ((self.ratings[second] - self.ratings[first]) / 400.0))
            self.ratings[first] += MOST_PER_GAME * (score - expected)
            self.ratings[second] -= MOST_PER_GAME * (score - expected)
        self._update()

    def win_rate(self, player: str, other: str) -> float:
        """The share of games won against another player, a draw as half of one; 0.5 before the first."""
        record = self.records.get((player, other))
        return 0.5 if record is None else (record.won + record.drawn / 2.0) / record.games

    def beats(self, learner: str, win_rate: float, now: Iterable[str], past: Iterable[str]) -> bool:
        """Whether a learner wins more than this share of its games against each of some players, if there are any.

        They are other learners as they are `now`, and members that are `past` selves of these learners.
        """
        players = [*(name for name in now if name != learner), *(each.name for each in self.pool(*past))]
        return bool(players) and min(self.win_rate(learner, name) for name in players) > win_rate

    # -- matches

    def _update(self) -> None:
        """Let the odds of matches follow the pool and the table."""
        self.matches.use({learner: self._opponents(learner, shares) for learner, shares in self.learners.items()})

    def _opponents(self, learner: str, shares: Sequence[Share]) -> tuple[Rival, ...]:
        found = [each for share in shares for each in self._of_share(learner, share, share.weight)]
        return tuple(each for each in found if each.probability > 0) or (Rival(learner, learner, 1.0),)

    def _of_share(self, learner: str, share: Share, weight: float) -> list[Rival]:
        who = [(name, name) for name in share.now] or [(each.policy, each.name) for each in self.pool(*share.past)]
        rates = np.array([self.win_rate(learner, player) for _, player in who])
        holds = bool(who) and (share.above is None or rates.min() > share.above)
        if holds and share.below is not None:
            holds = bool((rates[share.match_making(rates) > 0] < share.below).any())
        if not holds:
            return [] if share.otherwise is None else self._of_share(learner, share.otherwise, weight)
        odds = weight * probabilities(share.match_making, rates)
        return [Rival(policy, player, float(p)) for (policy, player), p in zip(who, odds)]

    # -- state

    def state_dict(self) -> dict[str, Any]:
        playing = {each.policy for each in self.members}
        return {
            "members": [attrs.astuple(each) for each in self.members],
            "joined": dict(self._joined),
            "records": [(*pair, *attrs.astuple(record)) for pair, record in self.records.items()],
            "ratings": dict(self.ratings),
            "versions": {name: self.policies[name].version for name in playing},
            "weights": {
                name: policy.weights()
                for name, policy in self.policies.items()
                if name in playing and isinstance(policy, HasWeights)
            },
            **({"first": self._first} if self._first else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved league")
        members = [Member(*each) for each in saved.get("members", list[tuple[str, str, str]])]
        joined, ratings = saved.get("joined", dict[str, int]), saved.get("ratings", dict[str, float])
        records = saved.get("records", list[tuple[str, str, float, float, float]])
        weights, versions = saved.get("weights", dict[str, Any]), saved.get("versions", dict[str, int])
        first = saved.get("first", dict[str, Any], otherwise=self._first)
        if first.keys() != self._first.keys():
            saved.refuse("first", f"the states of {', '.join(self._first) or 'no learner'}")
        if joined.keys() != self._joined.keys():
            saved.refuse("joined", f"a number for each of {', '.join(self._joined)}")
        if unknown := [each.policy for each in members if each.policy not in self.policies]:
            saved.refuse("members", f"players of {', '.join(self.policies)}, not {unknown[0]!r}")
        for name, values in weights.items():
            self.policies[name].load_weights(values)
            self.policies[name].version = versions[name]
        self.members, self._joined, self.ratings, self._first = members, joined, ratings, first
        self.records = {(first, second): Tally(*rest) for first, second, *rest in records}
        self._update()

"""Leagues: the table against the rows of experience, matches over resumes and processes, and who is in the pool."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest

from flowrl.data import Batch
from flowrl.errors import CheckpointError, ConfigError, PlanError
from flowrl.learners import LearnerGroup
from flowrl.operators import AddSnapshot, Concurrently, OfPolicy, ParallelRollouts, RecordGames, TrainOneStep
from flowrl.operators.adders import GAE
from flowrl.policies import PPOPolicy, RandomPolicy
from flowrl.rollout import WorkerSet, league
from flowrl.rollout.league import League, Share
from flowrl.rollout.match_making import (
    MatchMaker,
    Rival,
    latest,
    pfsp_forgotten,
    pfsp_linear_capped,
    pfsp_squared,
    pfsp_variance,
    probabilities,
    uniform,
)
from flowrl.rollout.policy_map import Match
from flowrl.rollout.remote_groups import RemoteGroups
from flowrl.testing import same

SHARES = (Share(0.4, now=("main",)), Share(0.6, past=("*",), match_making=uniform))
SHARES_OF_ALL = Share(0.3, past=("*",), match_making=uniform)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are objects of this one."""
    monkeypatch.setattr(RemoteGroups, "remote", False)


class Noted(PPOPolicy):
    """Notes when it was sent weights."""

    def load_weights(self, weights: Any) -> None:
        super().load_weights(weights)
        self.loads = getattr(self, "loads", 0) + 1


def learner(*spaces: Any, **settings: Any) -> Noted:
    return Noted(*spaces, hidden=(4,), device="cpu", learning_rate=0.05, **settings)


def make(
    num_workers: int = 0, envs: int = 4, *, pool_size: int = 2, opponents: Any = None, env: Any = "flowrl:tic_tac_toe"
) -> WorkerSet:
    of = League({"main": SHARES}, pool_size=pool_size, opponents=opponents)
    where = {"num_workers": num_workers, "envs_per_worker": envs, "env_groups": 2, "seed": 3}
    return WorkerSet(env, policies={"main": learner}, league=of, **where)


def collecting(workers: WorkerSet, seen: list[Any], every: int = 60, **options: Any) -> Any:
    """A plan that learns, counts games and fills the pool; what it collects goes to `seen`."""
    rollouts = ParallelRollouts(workers, steps=7).tap("ParallelRollouts", seen.append)
    learned = rollouts.for_each(RecordGames(workers)).for_each(GAE(1.0, 1.0)).for_each(TrainOneStep(workers))
    return learned.for_each(AddSnapshot(workers, "main", every, **options))


def played(rounds: int, state: Any = None, num_workers: int = 0, envs: int = 4) -> tuple[Any, ...]:
    """What a plan collects, who plays then, its state, and the weights that each policy was sent."""
    seen: list[Any] = []
    with make(num_workers, envs) as workers, collecting(workers, seen).run(seed=5) as run:
        if state is not None:
            run.load_state_dict(state)
        for _ in range(rounds):
            next(run)
        loads = workers.foreach_worker(
            lambda worker: {name: getattr(policy, "loads", 0) for name, policy in worker.policies.items()}
        )
        matches = workers.foreach_worker(lambda worker: dict(worker._players.matches))
        return seen, matches, run.state_dict(), loads


def test_each_game_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """L1, M6: the table holds what the learner's rows say of every game against another player, once."""
    monkeypatch.setattr(league, "DECAY", 1.0)
    seen: list[Batch] = []
    with make(pool_size=6, opponents={"random": RandomPolicy}) as workers:
        with collecting(workers, seen, every=150).run(seed=5) as run:
            for _ in range(25):
                next(run)
            counters = dict(run.context.counters)
        records = workers.league.records
    ends: dict[tuple[int, ...], list[float]] = {}
    for batch in seen:
        for t, n in zip(*np.nonzero(batch.mask & batch.terminated)):
            game = tuple(int(batch[key][t, n]) for key in ("worker", "env_id", "episode_id"))
            ends.setdefault(game, []).append(float(batch.reward[t, n]))
    assert all(sum(of) == 0 for of in ends.values() if len(of) == 2)
    expected = Counter(of[0] for of in ends.values() if len(of) == 1)  # against itself it has both seats
    own = [record for (player, other), record in records.items() if player == "main"]
    found = {1.0: sum(r.won for r in own), 0.0: sum(r.drawn for r in own)}
    found[-1.0] = sum(r.games for r in own) - found[1.0] - found[0.0]
    assert found == {score: expected[score] for score in found}
    assert counters["matches"] == sum(expected.values()) > 20
    assert {other for player, other in records if player == "main"} > {"random"}
    for (player, other), record in records.items():
        back = records[other, player]
        assert (record.games, record.drawn) == (back.games, back.drawn)
        assert record.won + record.drawn + back.won == record.games


def test_a_resume_goes_on_against_the_same_opponents() -> None:
    """L2, D3, D5, M7: though the pool has changed since the running matches began, and is drawn from anew later."""
    seen, _, _, _ = played(12)
    _, matches, state, _ = played(6)
    other = played(6, copy.deepcopy(state))
    drawn = {seat.policy for of in matches for match in of.values() for seat in match}
    assert len(drawn) > 1  # past selves play at this moment
    assert played(0, copy.deepcopy(state))[1] == matches
    assert same(other[0], seen[6:])


def test_the_odds_of_running_matches_change_nothing() -> None:
    """L2: who plays in a running match is the worker's, whatever the league has become."""
    with make() as workers:
        workers.start()
        before = [each.target._players.matches.copy() for each in workers.members]
        states = workers.state_dict()
        workers.league.add("main", workers.policy)
        workers.load_state_dict(states)
        assert [each.target._players.matches for each in workers.members] == before
        for state in states["workers"]:  # before there were several learners
            state["matches"] = [[seat[:2] for seat in match] for match in state["matches"]]
        workers.load_state_dict(states)
        assert [each.target._players.matches for each in workers.members] == before


def test_the_same_groups_over_processes_meet_the_same_opponents(apart: None) -> None:
    """D2, L2: draws follow from the game and the episode; past selves and odds travel with requests."""
    here, there = played(10), played(10, num_workers=2, envs=2)
    assert same(there[0], here[0])
    assert there[1] == here[1]
    assert same(there[2]["resources"]["League"], here[2]["resources"]["League"])


def test_the_weights_of_a_member_travel_once(apart: None) -> None:
    """A member's weights are sent to a process when it joins, and after a restart, not with every request."""
    with make(2, 2, pool_size=3) as workers, collecting(workers, []).run(seed=5) as run:
        for _ in range(9):
            next(run)

        def loads() -> list[Any]:
            return workers.foreach_worker(
                lambda worker: {n: p.loads for n, p in worker.policies.items() if n != "main"}
            )

        joined = run.context.counters["snapshots"]
        once = Counter({f"main_{k}": 1 for k in range(4)}) + Counter(f"main_{k % 4}" for k in range(joined))
        assert joined >= 3
        assert loads() == [once, once]
        assert loads() == [once, once]
        workers.restart(1)
        assert loads() == [once, dict.fromkeys(once, 1)]


def test_the_oldest_leaves_a_full_pool_and_its_matches_end_first() -> None:
    """A member that leaves is drawn no more; its policy is that of another one only when the next one joins."""
    with make() as workers:
        of, policy = workers.league, workers.policy
        for version in (5, 6, 7):
            policy.version = version
            of.add("main", policy)
        assert [each.name for each in of.pool("*")] == ["main:6", "main:7"]
        assert [each.policy for each in of.matches.odds["main"]] == ["main", "main_1", "main_2"]
        assert of.policies["main_0"].version == 5
        of.count([(("main:5", "main"), (1.0, -1.0))])  # a match that began before
        assert of.win_rate("main", "main:5") == 0.0
        policy.version = 8
        of.add("main", policy)
        assert of.policies["main_0"].version == 8
        assert [each.name for each in of.pool("*")] == ["main:7", "main:8"]
        of.count([(("main:5", "main"), (1.0, -1.0))])
        assert ("main:5", "main") not in of.records
        assert "main:5" not in of.ratings


def test_elo_and_rates_by_hand() -> None:
    """L1: R ← R + 16 (S − E); of earlier games each new one leaves 99 %."""
    of = League({"main": SHARES}, opponents={"random": RandomPolicy})
    of.count([(("main", "random"), (1.0, -1.0)), (("random", "main"), (0.0, 0.0)), (("main", "main"), (1.0, -1.0))])
    first = 1000 + 16 * 0.5
    expected = 1 / (1 + 10 ** ((2000 - first - first) / 400))
    assert of.ratings["main"] == pytest.approx(first + 16 * (0.5 - expected))
    assert sum(of.ratings.values()) == pytest.approx(2000)
    assert of.win_rate("main", "random") == pytest.approx((0.99 + 0.5) / 1.99)
    assert of.win_rate("random", "main") == pytest.approx(0.5 / 1.99)
    assert of.records.keys() == {("main", "random"), ("random", "main")}, "of a player against itself there is no rate"


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        (uniform, [1, 1, 1, 1]),
        (latest, [0, 0, 0, 1]),
        (pfsp_squared, [1, 0.25, 0, 0.81]),
        (pfsp_variance, [0, 0.25, 0, 0.09]),
        (pfsp_linear_capped, [0.5, 0.5, 0, 0.5]),
    ],
)
def test_weightings(weighting: Any, expected: list[float]) -> None:
    """Of members against which a learner wins none, half, all and a tenth of its games."""
    weights = weighting(np.array([0.0, 0.5, 1.0, 0.1]))
    assert weights.tolist() == pytest.approx(expected)
    assert probabilities(weighting, np.ones(2)).sum() == 1


def test_matches_are_drawn_by_the_odds_and_from_both_sides() -> None:
    """L2, D2: as often as the odds say, from either seat, and by the match alone."""
    odds = {
        "main": (Rival("main", "main", 0.25), Rival("main_3", "main:9", 0.75)),
        "other": (Rival("o", "o", 1),),
    }
    maker = MatchMaker(("x", "o"), odds, seed=1)
    matches = [Match(env, episode, group) for env in range(10) for episode in range(100) for group in range(2)]
    drawn = Counter(tuple(each.player for each in maker.drawn(match)) for match in matches)
    assert drawn == Counter(tuple(each.player for each in copy.deepcopy(maker).drawn(match)) for match in matches)
    assert maker.drawn(Match(3, 5, 0)) != maker.drawn(Match(3, 5, 1))  # groups differ
    share = {players: count / 2000 for players, count in drawn.items()}
    assert share.pop(("main", "main")) == pytest.approx(0.125, abs=0.03)
    assert share == pytest.approx(
        {("main", "main:9"): 0.1875, ("main:9", "main"): 0.1875, ("other", "o"): 0.25, ("o", "other"): 0.25}, abs=0.03
    )


def test_a_snapshot_joins_before_it_is_due_once_the_learner_beats_all() -> None:
    """`win_rate` counts against each past self; a new one, which nobody has beaten yet, stops it."""
    with make() as workers:
        add, of = AddSnapshot(workers, "main", 1000, 0.7), workers.league
        add.context.count("env_steps", 1000)
        add("item")
        assert len(of.pool("*")) == 1
        add("item")
        assert len(of.pool("*")) == 1
        of.count([(("main", of.members[0].name), (1.0, 0.0))])
        add("item")
        assert len(of.pool("*")) == 2
        add("item")
        assert add.context.counters["snapshots"] == 2


def test_errors_say_what_a_league_needs() -> None:
    with pytest.raises(ConfigError, match="self-play and leagues take games of two agents with the same spaces"):
        make(env="CartPole-v1")
    with pytest.raises(ConfigError, match="policies are a, but the league has main"):
        WorkerSet("flowrl:tic_tac_toe", policies={"a": learner}, league=League({"main": SHARES}))
    with pytest.raises(ConfigError, match="the league draws who plays whom"):
        WorkerSet("flowrl:tic_tac_toe", learner, league=League({"main": SHARES}), agents={"*": "main"})
    with pytest.raises(ConfigError, match="'main' meets 'mian', but the players are main"):
        League({"main": [Share(1.0, now=("mian",))]})
    with pytest.raises(PlanError, match="RecordGames needs workers with a league"):
        RecordGames(WorkerSet("flowrl:tic_tac_toe", learner))


def two_learners(num_workers: int = 0, envs: int = 4, a: Any = None) -> WorkerSet:
    """Two learners, of which `b` may begin anew; `a`: other shares of that one."""
    own = [Share(0.5, now=("a",)), Share(0.5, now=("b",))]
    shares = {"a": a or own, "b": [Share(0.7, now=("a",)), SHARES_OF_ALL]}
    of = League(shares, pool_size=2, restarts=["b"])
    makes = {name: partial(learner, seed=seed) for seed, name in enumerate(shares)}
    where = {"num_workers": num_workers, "envs_per_worker": envs, "env_groups": 2, "seed": 3}
    return WorkerSet("flowrl:tic_tac_toe", policies=makes, league=of, **where)


def both_learn(workers: WorkerSet, seen: list[Any], restart: float = 0.0) -> Any:
    """A plan in which both learn; what it collects goes to `seen`."""
    rollouts = ParallelRollouts(workers, steps=5).tap("ParallelRollouts", seen.append).for_each(RecordGames(workers))
    branches = {}
    for (name, chance), stream in zip({"a": 0.0, "b": restart}.items(), rollouts.duplicate(2, max_lag=1)):
        learned = stream.combine(OfPolicy(name)).for_each(GAE(1.0, 1.0)).for_each(TrainOneStep(workers.of(name)))
        branches[name] = learned.for_each(AddSnapshot(workers, name, 80, restart=chance))
    return Concurrently(branches, round_robin_weights=[1, 1])


def learned(rounds: int, state: Any = None, num_workers: int = 0, envs: int = 4) -> tuple[list[Any], Any, int]:
    """What both collect, the state of the run after it, and how often `b` began anew."""
    seen: list[Any] = []
    with two_learners(num_workers, envs) as workers, both_learn(workers, seen, 0.7).run(seed=5) as run:
        if state is not None:
            run.load_state_dict(state)
        for _ in range(rounds):
            next(run)
        return seen, run.state_dict(), run.counters["restarts"]


def test_only_the_learner_of_a_match_learns_from_it() -> None:
    """L3: of each match the rows of its learner, from both seats if it plays itself, and of no other."""
    seen: list[Any] = []
    with two_learners() as workers:
        with both_learn(workers, seen).run(seed=5) as run:
            for _ in range(24):
                next(run)
        matches = workers.league.matches
    rows, seats = Counter[str](), Counter[tuple[Any, ...]]()
    for name, batch in (each for both in seen for each in both.items()):
        for t, n in zip(*np.nonzero(batch.mask)):
            group, env, episode = (int(batch[key][t, n]) for key in ("worker", "env_id", "episode_id"))
            assert matches.learner(Match(env, episode, group)) == name
            rows[name] += 1
            seats[name, group, env, episode] |= 1 << int(batch.agent[t, n])
    assert min(rows.values()) > 50
    assert {both for (name, *_), both in seats.items() if name == "a"} == {1, 2, 3}
    assert {both for (name, *_), both in seats.items() if name == "b"} == {1, 2}


def test_several_learners_go_on_and_learn_over_processes_as_in_one(apart: None) -> None:
    """D2, D3, L2, L3, L4: guests are guests still, and a learner that began anew goes on so."""
    (seen, whole, restarts), (_, half, before) = learned(24), learned(12)
    assert 1 <= before < restarts
    rest, end, _ = learned(12, copy.deepcopy(half))
    assert same(rest, seen[len(seen) - len(rest) :])
    assert same(end["resources"], whole["resources"])
    there, over, _ = learned(24, num_workers=2, envs=2)
    assert same(there, seen)
    assert same(over["resources"]["League"], whole["resources"]["League"])


def test_a_learner_begins_anew_as_the_run_began() -> None:
    """L4: weights and optimizer are those of the beginning, whatever it was; it has no games, but its past selves."""
    with two_learners() as workers:
        policy, of = workers.of("b").policy, workers.league
        policy.load_weights({name: value + 1.0 for name, value in policy.weights().items()})  # as --from does
        first = policy.state_dict()
        with both_learn(workers, []).run(seed=5) as run:
            for _ in range(12):
                next(run)
            of.count([(("a", "b"), (1.0, -1.0))])
            version, members = policy.version, list(of.members)
            assert version > 1
            assert not same(policy.weights(), first["modules"]["model"])
            of.restart("b", policy)
            assert same({**policy.state_dict(), "version": 0}, {**first, "version": 0})
            assert policy.version > version
            assert of.ratings["b"] == 1000.0
            assert all("b" not in pair for pair in of.records)
            assert of.members == members
            state = run.state_dict()
        with both_learn(workers, []).run(seed=5):  # of the same workers
            of.restart("b", policy)
        assert same({**policy.state_dict(), "version": 0}, {**first, "version": 0})
    with two_learners() as others, both_learn(others, []).run(seed=5) as run:
        run.load_state_dict(state)
        others.league.restart("b", others.of("b").policy)
        assert same({**others.of("b").policy.state_dict(), "version": 0}, {**first, "version": 0})


@pytest.mark.parametrize(
    ("share", "games", "expected"),
    [
        (Share(1, now=("b",), above=0.3, otherwise=Share(9, past=("b",))), [], ["b"]),
        (Share(1, now=("b",), above=0.3, otherwise=Share(9, past=("b",))), [("b", 0)], ["b:1", "b:2"]),
        (Share(1, past=("b",), below=0.3, otherwise=Share(9, now=("b",))), [], ["b"]),
        (Share(1, past=("b",), below=0.3, otherwise=Share(9, now=("b",))), [("b:2", 0)], ["b:1", "b:2"]),
        (Share(1, past=("b",), match_making=latest, below=0.3), [("b:1", 0)], []),
        (Share(1, past=("a",), otherwise=Share(9, past=("a",), otherwise=Share(9, now=("b",)))), [], ["b"]),
        (Share(1, past=("a",)), [], []),
    ],
)
def test_shares_hold_while_the_learner_wins_as_often_as_they_say(share: Any, games: Any, expected: Any) -> None:
    """And keep their weight in what takes their place."""
    with two_learners(a=[share, Share(3, now=("a",))]) as workers:
        of, policy = workers.league, workers.of("b").policy
        for policy.version in (1, 2):
            of.add("b", policy)
        of.count([(("a", name), (score, 1.0 - score)) for name, score in games])
    odds = {each.player: each.probability for each in of.matches.odds["a"]}
    assert odds.pop("a") == 3
    assert odds == pytest.approx(dict.fromkeys(expected, 1 / max(1, len(expected))))


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], []),
        ([0.9, 0.8, 0.5], [0, 0, 0]),
        ([0.9, 0.4, 0.6, 0.5], [0.01, 0.36, 0.16, 0]),
        ([0.4, 0.9], [0.36, 0.01]),
    ],
)
def test_members_up_to_the_last_rise_are_forgotten(rates: list[float], expected: list[float]) -> None:
    assert pfsp_forgotten(np.array(rates)).tolist() == pytest.approx(expected)


def test_a_snapshot_waits_for_its_least_steps_and_looks_at_its_rivals() -> None:
    with two_learners() as workers:
        of = workers.league
        add = AddSnapshot(workers, "b", 1000, 0.7, least=400, now=("a",))
        of.count([(("b", "a"), (1.0, 0.0))])
        add("item")
        assert not of.members
        add.context.count("env_steps", 400)
        add("item")
        assert [each.learner for each in of.members] == ["b"]
        add.context.count("env_steps", 399)
        add("item")
        assert len(of.members) == 1
        add.context.count("env_steps", 1)
        add("item")
        assert dict(add.context.counters) == {"env_steps": 800, "snapshots": 2, "snapshots/b": 2}
        kept = of.state_dict()
        learners = LearnerGroup(workers.of("b"), 1, "inline")
        elsewhere = ParallelRollouts(workers, steps=5).combine(OfPolicy("b")).call(learners, "train")
        with pytest.raises(PlanError, match="would change the policy of the workers here, without effect"):
            elsewhere.for_each(AddSnapshot(workers, "b", 80, restart=1.0)).check()
        with pytest.raises(PlanError, match=r"'a' does not begin anew, but b: League\(\.\.\., restarts=\['a'\]\)"):
            AddSnapshot(workers, "a", 10, restart=0.5)
    with pytest.raises(CheckpointError, match=r"first is .*, expected the states of no learner"):
        League({"a": [Share(1, now=("a",))], "b": [Share(1, now=("b",))]}).load_state_dict(kept)
    with pytest.raises(ConfigError, match="restarts: no learner 'c', but main"):
        League({"main": SHARES}, restarts=["c"])
    with pytest.raises(ConfigError, match="learners: the name 'main_1' is that of a learner or of its past selves"):
        League({"main": SHARES, "main_1": SHARES})

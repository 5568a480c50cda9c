"""Contracts: what holds of the rows on an edge, and that nothing of flowrl's own is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from flowrl import from_items
from flowrl.data import Batch, MultiAgentBatch
from flowrl.engine.graph import graph
from flowrl.errors import ContractError
from flowrl.inspect.strict import strict
from flowrl.operators.contracts import (
    CheckActions,
    CheckEpisodes,
    CheckFinite,
    CheckLogRatios,
    CheckPriorities,
    OperatorCheck,
    with_contracts,
)
from flowrl.operators.rollout import ParallelRollouts
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.storage.fingerprint import fingerprint
from tests.plans.small import SMALL, final, first, make, weights

NAN = float("nan")
TWO = CheckActions(spaces.Discrete(2))
PAIRS = CheckActions(spaces.MultiDiscrete([2, 3]))


def steps(*rows: tuple[int, int, bool], env_id: int = 0, **more: Any) -> Batch:
    """Rows [B] of one environment: episode, t, and whether it is the last step."""
    episode, t, last = (np.array(column) for column in zip(*rows))
    ends = {"terminated": last, "truncated": np.zeros(len(rows), bool)}
    return Batch(env_id=np.full(len(rows), env_id), episode_id=episode, t=t, **ends, **more)


def masked(*actions: int) -> Batch:
    return Batch(action=np.array(actions), obs={"action_mask": np.array([[1, 0], [0, 1]])[: len(actions)]})


#: The contract, its item, and the end of the message; None: it passes.
CASES: dict[str, tuple[OperatorCheck, Any, str | None]] = {
    "finite numbers": (CheckFinite(), Batch(reward=[1.0, 2.0], action=[1, 2]), None),
    "NaN": (
        CheckFinite(),
        Batch(reward=[1.0, NAN], env_id=[4, 5], episode_id=[6, 7], t=[8, 9]),
        "CheckFinite: reward is nan in row 1 (env_id 5, episode_id 7, t 9); expected a finite number",
    ),
    "in a fragment [T, N]": (
        CheckFinite(),
        Batch(reward=np.ones((2, 2)), obs={"pixels": np.array([[[1.0], [1.0]], [[NAN], [1.0]]])}),
        "obs.pixels is nan in row [1, 0]; expected",
    ),
    "too large for float32": (CheckFinite(), Batch(reward=[1e39]), "reward is 1e+39 in row 0"),
    "of padding": (CheckFinite(), Batch(reward=[[NAN], [1.0]], mask=[[False], [True]]), None),
    "beside padding": (CheckFinite(), Batch(reward=[[0.0], [NAN]], mask=[[False], [True]]), "in row [1, 0];"),
    "of info": (CheckFinite(), Batch(reward=[1.0], info={"score": [NAN]}), None),
    "of one of several policies": (
        CheckFinite(),
        MultiAgentBatch({"cat": Batch(reward=[1.0]), "dog": Batch(reward=[NAN])}, env_steps=1),
        "reward is nan in row 0",
    ),
    "in a list": (CheckFinite(), [Batch(reward=[1.0]), Batch(reward=[NAN])], "reward is nan"),
    "what is no batch": (CheckFinite(), {"loss": NAN}, None),
    "an action": (TWO, Batch(action=[0, 1]), None),
    "an action too large": (TWO, Batch(action=[0, 2]), "action is 2 in row 1; expected one of Discrete(2)"),
    "a negative action": (TWO, Batch(action=[-1, 0]), "action is -1 in row 0"),
    "half an action": (TWO, Batch(action=[0.5]), "action is 0.5 in row 0"),
    "actions from 5 on": (CheckActions(spaces.Discrete(2, start=5)), Batch(action=[5, 6]), None),
    "several choices": (PAIRS, Batch(action=[[1, 2], [2, 0]]), "action is [2, 0] in row 1"),
    "of a team": (TWO, Batch(reward=[1.0, 1.0], action=[[0, 1], [1, 2]]), "action is 2 in row 1;"),
    "of padding, an action": (TWO, Batch(reward=[[1.0]], action=[[7]], mask=[[False]]), None),
    "an action that the mask allows": (TWO, masked(0, 1), None),
    "an action that the mask forbids": (TWO, masked(0, 0), "action is 0 in row 1; expected one that the action_mask"),
    "in bounds": (CheckActions(spaces.Box(-1, 1, (2,))), Batch(action=[[0.5, -1.0]]), None),
    "out of bounds": (CheckActions(spaces.Box(-1, 1, (2,))), Batch(action=[[0.5, -1.5]]), "action is [0.5, -1.5]"),
    "a step after a step": (CheckEpisodes(), steps((3, 6, False), (3, 7, True), (4, 0, False)), None),
    "a step missing": (CheckEpisodes(), steps((3, 6, False), (3, 8, True)), "missing or doubled in row 1 (env_id 0"),
    "a step doubled": (CheckEpisodes(), steps((3, 6, False), (3, 6, False)), "expected the step after t = 6"),
    "a row after the end": (CheckEpisodes(), steps((3, 6, True), (3, 7, False)), "a row follows the end of its ep"),
    "a late beginning": (CheckEpisodes(), steps((3, 6, True), (4, 1, False)), "begins in its middle in row 1"),
    "no end": (CheckEpisodes(), steps((3, 6, False), (4, 0, False)), "begins before the last one has ended in row 1"),
    "priorities": (CheckPriorities(), {"priorities": Batch(index=[3], priority=[0.0]), "loss": NAN}, None),
    "a negative priority": (CheckPriorities(), {"priorities": Batch(index=[3], priority=[-1.0])}, "row 0 (index 3)"),
    "an infinite priority": (CheckPriorities(), {"priorities": Batch(priority=[np.inf])}, "priority is inf"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_contract_names_the_row_that_breaks_it(name: str) -> None:
    """Y1: and passes what does not."""
    contract, item, message = CASES[name]
    if message is None:
        assert contract(item) is item
        return
    with pytest.raises(ContractError) as raised:
        contract(item)
    assert message in str(raised.value)


# -- episodes


@st.composite
def streams(draw: Any) -> list[tuple[int, int, int, bool]]:
    """Rows (env_id, episode, t, last) of some environments in any order of these, perhaps with one changed or gone."""
    counts = [[0, 0] for _ in range(draw(st.integers(1, 3)))]
    rows = []
    for _ in range(draw(st.integers(1, 14))):
        at = draw(st.integers(0, len(counts) - 1))
        last = draw(st.booleans())
        rows.append((at, *counts[at], last))
        counts[at] = [counts[at][0] + 1, 0] if last else [counts[at][0], counts[at][1] + 1]
    where = draw(st.integers(0, len(rows) - 1))
    env_id, episode, t, last = rows[where]
    changed = {"last": [(env_id, episode, t, not last)], "t": [(env_id, episode, t + 1, last)], "gone": []}
    changed |= {"twice": [rows[where]] * 2, "whole": [rows[where]]}
    rows[where : where + 1] = changed[draw(st.sampled_from(sorted(changed)))]
    return rows


def continuous(rows: list[tuple[int, int, int, bool]]) -> bool:
    """The obvious loop."""
    before: dict[int, tuple[int, int, bool]] = {}
    for env_id, episode, t, last in rows:
        if env_id in before:
            episode_before, t_before, ended = before[env_id]
            if (episode, t) != ((episode_before, t_before + 1) if not ended else (episode_before + 1, 0)):
                return False
        before[env_id] = episode, t, last
    return True


@given(streams(), st.integers(1, 5))
def test_episodes_are_followed_as_by_a_loop(rows: list[tuple[int, int, int, bool]], size: int) -> None:
    """Y1: over rows of several environments, and from item to item."""
    check = CheckEpisodes()

    def passes() -> bool:
        for at in range(0, len(rows), size):
            env_id, *columns = zip(*rows[at : at + size])
            batch = steps(*zip(*columns))
            try:
                check(batch.replace(env_id=np.array(env_id)))
            except ContractError:
                return False
        return True

    skipped = any(b[1] > a[1] + 1 for a in rows for b in rows if a[0] == b[0] and a is not b)  # a one-step episode gone
    assert passes() == continuous(rows) or skipped


def test_fragments_side_by_side_are_followed_column_by_column() -> None:
    """Y1: as ConcatBatches joins two fragments [T, 1] of an environment, and with the seats of a game."""
    columns = {"episode_id": [[0, 0]] * 2, "t": [[0, 2], [1, 3]], "terminated": np.zeros((2, 2), bool)}
    whole = Batch(env_id=[[7, 7]] * 2, truncated=np.zeros((2, 2), bool), reward=np.ones((2, 2)), **columns)
    assert CheckEpisodes()(whole) is whole
    seats = whole.replace(agent=np.array([[0, 1]] * 2), t=np.array([[0, 0], [1, 1]]))
    assert CheckEpisodes()(seats) is seats
    with pytest.raises(ContractError, match=r"row \[0, 1\] \(env_id 7, agent 0, episode_id 0, t 0\)"):
        CheckEpisodes()(seats.replace(agent=np.zeros((2, 2), int)))


def test_a_fault_may_cut_an_episode() -> None:
    """Y1: which a counter says, also one that has travelled on since; nothing else may."""
    check = CheckEpisodes()
    check.context.count("cut_episodes")
    check(steps((3, 6, False)))
    check.context.metrics.take()
    check(steps((4, 0, False)))


def test_items_between_which_some_are_dropped_are_looked_at_one_by_one() -> None:
    """Y1: also each run begins anew."""
    plan = from_items([steps((3, 6, False)), steps((3, 8, False))]).for_each(CheckEpisodes(across=False))
    assert len(list(plan)) == 2
    plan = from_items([steps((3, 6, False))]).for_each(CheckEpisodes())
    assert len(list(plan)) == len(list(plan)) == 1


# -- on every edge


def test_actions_that_the_policy_could_not_have_drawn_are_found() -> None:
    """Y1 for log-ratios: behavior log-probabilities of other weights."""
    with WorkerSet("CartPole-v1", lambda *of: PPOPolicy(*of, hidden=(4,), device="cpu"), envs_per_worker=2) as workers:
        (batch,) = ParallelRollouts(workers, steps=3).take(1)
        check = CheckLogRatios(workers, most=1.0)
        assert check(batch) is batch
        wrong = batch.logp.copy()
        wrong[2, 1] = -9.0
        with pytest.raises(ContractError, match=r"was -9 and is -0.\d+ now in row \[2, 1\].*; expected a difference"):
            check(batch.replace(logp=wrong))


QUICK = ("dqn", "ppo", "two_trainers")


@pytest.mark.parametrize("name", first(SMALL, QUICK))
def test_the_plans_break_no_contract_and_learn_the_same(name: str) -> None:
    """Y2, D4: whatever flowrl emits passes, and the results are those without contracts."""
    results, state = final(name, 4, edit=strict)
    checked, with_checks = final(name, 4, edit=lambda plan: with_contracts(strict(plan)))
    assert fingerprint(checked) == fingerprint(results)
    assert fingerprint(weights(with_checks)) == fingerprint(weights(state))


def edges(name: str) -> Iterator[tuple[str, str]]:
    """Each contract of a plan, and its edge, beside the other taps of `--debug`."""
    workers, plan = make(name)
    with workers:
        for node in graph(with_contracts(strict(plan))):
            if isinstance(node.op, OperatorCheck):
                yield type(node.op).__name__, node.op.edge


def test_contracts_stand_where_their_columns_flow() -> None:
    """Y2: on replayed rows, windows and sequences no episode is followed, and a learner's input has its log-ratios."""
    found = set(edges("dqn prioritized"))
    assert ("CheckEpisodes", "store.ParallelRollouts -> store.NStep") in found
    followed = {edge for contract, edge in found if contract == "CheckEpisodes"}
    assert {edge.partition(" -> ")[0] for edge in followed} == {"store.Rollouts", "store.ParallelRollouts"}
    assert ("CheckActions", "train.Replay -> train.TrainOneStep") in found
    assert ("CheckPriorities", "train.TrainOneStep -> train.UpdatePriorities") in found
    assert ("CheckLogRatios", "ConcatBatches -> TrainOneStep") in set(edges("ppo"))


def test_rows_of_a_reset_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Y2 for T1: a manager that keeps the step in which an environment only resets itself."""
    from flowrl.envs.managers.vector import VectorEnvManager

    step = VectorEnvManager.step
    monkeypatch.setattr(VectorEnvManager, "step", lambda self, actions: step(self, actions)._replace(acted=None))
    policy = lambda *of: PPOPolicy(*of, hidden=(4,), device="cpu")  # noqa: E731
    found = pytest.raises(ContractError, match="CheckEpisodes on the edge Rollouts -> gather_sync: ")
    with WorkerSet("CartPole-v1", policy, envs_per_worker=2, env_manager="vector") as workers, found:
        list(with_contracts(ParallelRollouts(workers, steps=60)).take(2))

"""Teaching, asking and combining: what each does to a batch, and where each belongs in a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl import Plan, from_items
from flowrl import operators as ops
from flowrl.data import Batch, ReplayBuffer
from flowrl.engine.context import Context
from flowrl.engine.operator import operator
from flowrl.errors import PlanError, SchemaError
from flowrl.inspect.check import examine
from flowrl.models import AIRL, RND, RewardModel
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from tests.models.test_reward_model import fragment, make, teach


def rnd(**settings: Any) -> RND:
    """For CartPole-v1."""
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return RND(space, spaces.Discrete(2), **{"hidden": (4,), "device": "cpu", **settings})


def workers(kind: Any = PPOPolicy) -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *found: kind(*found, hidden=(4,), device="cpu"), envs_per_worker=2)


class Sums(RewardModel):
    """The sum of an observation times a number that is learned, and what it was given to learn from."""

    column = "sum_reward"

    def _build(self) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.seen: list[Batch] = []
        self.updates: list[Any] = []

    def estimate(self, rows: Batch) -> torch.Tensor:
        return rows.next_obs.sum(1) * self.model.weight[0, 0]

    def observe(self, *batches: Batch) -> None:
        self.seen.append(batches[0])

    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        self.updates.append(rows[0].next_obs.clone())
        loss = self.model.weight.square().sum()
        return loss, {"sum_loss": loss}


def sums() -> Any:
    return Sums(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), device="cpu")


def test_teaching_passes_the_batch_on_and_counts_each_row_once() -> None:
    """F12: `reward_updates` are no `updates` of the policy; every epoch has every row, in minibatches of one size."""
    model, batch = sums(), fragment(steps=5)
    context = Context(path="TrainReward")
    teaching = ops.TrainReward(model, num_sgd_iter=2, minibatch_size=4)
    teaching.context = context
    assert teaching(batch) is batch
    assert [id(each) for each in model.seen] == [id(batch)]
    assert [len(rows) for rows in model.updates] == [4, 3, 3] * 2
    for epoch in (model.updates[:3], model.updates[3:]):
        rows = sorted(map(tuple, np.concatenate(epoch).tolist()))
        assert rows == sorted(map(tuple, batch.next_obs.reshape(-1, 3).tolist()))
    assert not torch.equal(model.updates[0], model.updates[3])
    assert context.counters == {"reward_updates": 6}
    (loss,) = context.metrics.drain("sum_loss")
    assert loss > 0


def test_without_minibatches_it_is_one_step_on_all() -> None:
    model, batch = sums(), fragment()
    mask = np.arange(8).reshape(4, 2) != 3
    ops.TrainReward(model)(batch.replace(mask=mask))
    (rows,) = model.updates
    np.testing.assert_array_equal(rows, batch.next_obs[mask])
    assert ops.TrainReward(model)(batch[:0]).is_empty
    assert len(model.updates) == 1


def test_asking_adds_a_column_and_changes_nothing_else() -> None:
    """O1: a new batch around the same columns; the model stays as it is."""
    model, batch = make(), fragment()
    teach(model, batch)
    state = model.state_dict()
    estimated = ops.EstimateReward(model)(batch)
    assert set(estimated) - set(batch) == {"intrinsic_reward"}
    assert "intrinsic_reward" not in batch
    assert all(estimated[name] is batch[name] for name in batch)
    np.testing.assert_array_equal(estimated.intrinsic_reward, model.reward(batch))
    assert same(model.state_dict(), state)


@pytest.mark.parametrize("tensors", [False, True])
def test_rewards_are_combined_by_weight(tensors: bool) -> None:
    """O1: by hand; the environment's is kept, and the rows that came in are as they were."""
    batch = Batch(reward=[1.0, 2.0], curious=np.array([4.0, 8.0], np.float32), imitated=[-1.0, 1.0])
    batch = batch.to_torch() if tensors else batch
    combined = ops.CombineRewards(0.5, {"curious": 0.25}, imitated=2.0)(batch)
    assert combined.reward.tolist() == [-0.5, 5.0]
    assert combined.extrinsic_reward is batch.reward
    assert batch.reward.tolist() == [1.0, 2.0]
    assert combined.reward.dtype == batch.reward.dtype
    assert list(ops.CombineRewards(curious=0.0)(batch).reward) == [1.0, 2.0]


def test_only_the_rows_that_it_saw_get_another_reward() -> None:
    """O1: what a model says changes the training reward of exactly the rows that it was asked about."""
    model = make()
    batches = [fragment(seed) for seed in range(4)]
    teach(model, batches[0])
    ask = ops.EstimateReward(model)
    combine = ops.CombineRewards(intrinsic_reward=0.5)
    combined = [combine(ask(batch)) for batch in batches[:2]]
    for batch, after in zip(batches, combined):
        np.testing.assert_allclose(after.reward, batch.reward + 0.5 * model.reward(batch))
        assert (after.reward != batch.reward).all()
        assert all(after[name] is batch[name] for name in batch if name != "reward")
    assert batches[2:] == [fragment(2), fragment(3)]


def test_stored_rows_keep_the_environments_reward() -> None:
    """O1, B10: drawn, estimated and combined again and again, the buffer is what it was; draws see the newest model."""
    model, buffer = make(), ReplayBuffer(16, seed=0)
    teach(model, fragment())
    for seed in range(2):
        buffer.add(fragment(seed).flat())
    ask, combine = ops.EstimateReward(model), ops.CombineRewards(intrinsic_reward=1.0)
    for _ in range(3):
        rows = buffer.sample(8)
        combined = combine(ask(rows))
        np.testing.assert_allclose(combined.reward, rows.reward + model.reward(rows))
        teach(model, fragment(5))
    stored = Batch.cat([fragment(seed).flat() for seed in range(2)])
    assert all(np.array_equal(buffer[:][name], stored[name]) for name in stored)


# -- where they belong

Step = Callable[[RewardModel, WorkerSet], Any]


def ask(model: RewardModel, of: WorkerSet) -> Any:
    return ops.EstimateReward(model)


def learn(model: RewardModel, of: WorkerSet) -> Any:
    return ops.TrainReward(model)


def combine(model: RewardModel, of: WorkerSet) -> Any:
    return ops.CombineRewards(intrinsic_reward=0.1)


def gae(model: RewardModel, of: WorkerSet) -> Any:
    return ops.GAE(0.9, 0.9)


def train(model: RewardModel, of: WorkerSet) -> Any:
    return ops.TrainOneStep(of)


def steps_of(n: int) -> Step:
    return lambda model, of: ops.NStep(n, 0.9)


ON_POLICY: dict[str, tuple[list[Step], str]] = {
    "as it should be": ([ask, learn, combine, gae, train], ""),
    "learned from before it is asked": ([learn, ask, combine, gae, train], ""),
    "never taught": ([ask, combine, gae, train], ""),
    "the policy's own advantages": ([ask, learn, combine, train], ""),
    "after advantages": ([ask, learn, gae, combine, train], "put CombineRewards before GAE or VTrace"),
    "nobody combines": ([ask, learn, gae, train], "no reward includes its intrinsic_reward: put CombineRewards(intrin"),
    "nobody asks": ([learn, combine, gae, train], "put EstimateReward of its model before it"),
    "twice": ([ask, combine, combine, train], "rewards are combined already"),
    "asked twice": ([ask, ask, combine, train], "the column 'intrinsic_reward' exists already"),
    "taught what is no fragment": ([steps_of(1), learn, ask, combine], "put it after ParallelRollouts"),
}


@pytest.mark.parametrize("case", ON_POLICY)
def test_where_they_belong_on_policy(case: str) -> None:
    """G2: rewards are combined before advantages are taken; each mistake is found by the check, and named."""
    steps, problem = ON_POLICY[case]
    of, model = workers(), rnd()
    plan = ops.ParallelRollouts(of, steps=2)
    for step in steps:
        plan = plan.for_each(step(model, of))
    problems = examine(plan).problems
    assert bool(problems) == bool(problem), problems
    assert not problem or any(problem in found for found in problems), problems


REPLAY: dict[str, tuple[list[Step], list[Step], str]] = {
    "as it should be": ([learn], [ask, combine], ""),
    "windows of one step": ([learn, steps_of(1)], [ask, combine], ""),
    "windows when writing": ([learn, steps_of(3)], [ask, combine], "rewards are summed over several steps already"),
    "combined before windows, and stored": (
        [learn, ask, combine, steps_of(3)],
        [],
        "buffers store raw rewards, and the newest model",
    ),
    "combined before it is stored": ([learn, ask, combine], [], "buffers store raw rewards, and the newest model"),
    "taught from replay": ([], [learn, ask, combine], "replay draws rows several times"),
    "nobody combines": ([learn], [ask], "no reward includes its intrinsic_reward"),
}


def with_replay(case: str, buffer: ReplayBuffer) -> list[str]:
    before, after, _ = REPLAY[case]
    of, model = workers(DQNPolicy), rnd()

    def through(plan: Plan, steps: list[Step]) -> Plan:
        for step in steps:
            plan = plan.for_each(step(model, of))
        return plan

    store = through(ops.ParallelRollouts(of, steps=2), before).for_each(ops.StoreToReplay(buffer))
    learned = through(ops.Replay(buffer, 4), after).for_each(ops.TrainOneStep(of))
    return examine(ops.Concurrently({"store": store, "train": learned})).problems


@pytest.mark.parametrize("case", REPLAY)
def test_where_they_belong_with_replay(case: str) -> None:
    """O1, N4: raw rows of single steps are stored; a window's reward is a sum already."""
    problem, problems = REPLAY[case][2], with_replay(case, ReplayBuffer(100))
    assert bool(problems) == bool(problem), problems
    assert not problem or any(problem in found for found in problems), problems


def test_windows_that_a_buffer_makes_are_windows() -> None:
    """N4."""
    problems = with_replay("as it should be", ReplayBuffer(100, n_step=3))
    assert any("rewards are summed over several steps already" in found for found in problems), problems


def test_batches_that_are_replayed_whole_are_kept_raw() -> None:
    """O1."""
    of, model = workers(), rnd()
    asked = ops.ParallelRollouts(of, steps=2).for_each(ops.TrainReward(model))
    late = asked.combine(ops.MixInReplay(4)).for_each(ask(model, of)).for_each(combine(model, of))
    assert examine(late).problems == []
    early = asked.for_each(ask(model, of)).for_each(combine(model, of)).combine(ops.MixInReplay(4))
    assert any("put EstimateReward and CombineRewards after" in found for found in examine(early).problems)


def test_what_an_operator_cannot_do_is_said() -> None:
    with pytest.raises(PlanError, match=r"TrainReward needs a RewardModel, such as RND\(...\), got 3"):
        ops.TrainReward(3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="EstimateReward needs a RewardModel"):
        ops.EstimateReward(workers())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="CombineRewards needs columns to combine"):
        ops.CombineRewards(2.0)
    with pytest.raises(ValueError, match="the weight curious=nan is not a finite number"):
        ops.CombineRewards(curious=float("nan"))
    with pytest.raises(SchemaError, match="needs the column 'curious': did you mean 'curiosity'"):
        ops.CombineRewards(curious=1.0)(Batch(reward=[1.0], curiosity=[1.0]))
    with pytest.raises(SchemaError, match="computed from rewards already: put CombineRewards before GAE"):
        ops.CombineRewards(curious=1.0)(Batch(reward=[1.0], curious=[1.0], advantage=[1.0]))
    with pytest.raises(SchemaError, match="rewards are combined already"):
        ops.CombineRewards(curious=1.0)(Batch(reward=[1.0], curious=[1.0], extrinsic_reward=[1.0]))
    with pytest.raises(SchemaError, match="the column 'intrinsic_reward' exists already"):
        ops.EstimateReward(make())(fragment().replace(intrinsic_reward=fragment().reward))


@pytest.mark.parametrize("operator", [ops.EstimateReward, ops.TrainReward])
def test_a_model_stays_where_it_learns(operator: Any) -> None:
    """F9: a worker would have another one, that nobody teaches."""
    of = workers()
    plan = ops.ParallelRollouts(of, mode="raw", steps=2).for_each(operator(rnd())).gather_sync()
    with of, plan.run() as run, pytest.raises(PlanError, match="put it after the gather"):
        next(run)


def test_a_batch_without_rows_passes() -> None:
    empty = fragment()[:0]
    plan = from_items([empty]).for_each(ops.TrainReward(make())).for_each(ops.EstimateReward(make()))
    (passed,) = list(plan.for_each(ops.CombineRewards(intrinsic_reward=1.0)))
    assert passed.is_empty


# -- pairs, of models that learn from demonstrations


def pairs(*columns: str, closer: str = "pair", logp: bool = True) -> list[str]:
    """What the check says of AIRL, taught with demonstrations of these columns."""
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    model = AIRL(space, spaces.Discrete(2), hidden=(4,), device="cpu")
    of = workers()
    buffer = ReplayBuffer(100)
    shown = ops.ParallelRollouts(workers(), steps=2).for_each(Narrowed(columns))
    shown = shown.for_each(ops.EstimateLogp(of)) if logp else shown
    rollouts = ops.ParallelRollouts(of, steps=2)
    if closer == "replayed":
        store, replay = rollouts.for_each(ops.StoreToReplay(buffer)), ops.Replay(buffer, 4)
        rollouts = ops.Concurrently([store, replay], output_indexes=[1])
    taught = rollouts if closer == "alone" else rollouts.zip(shown, names=("agent", "shown"))
    rewarded = taught.for_each(ops.TrainReward(model)).for_each(ops.EstimateReward(model))
    return examine(rewarded.for_each(ops.CombineRewards(imitation_reward=1.0)).for_each(gae(model, of))).problems


@operator
class Narrowed:
    """These columns alone."""

    columns: tuple[str, ...]

    def schema(self, given: Any) -> Any:
        return given.without(*[name for name in given.columns if name not in self.columns])

    def __call__(self, batch: Batch) -> Batch:
        return batch.select(self.columns)


ENOUGH = ("obs", "action", "next_obs", "terminated")


def test_pairs_are_checked_on_both_sides() -> None:
    """F9: the agent's schema goes on behind the pair; what a side lacks is named."""
    assert pairs(*ENOUGH) == []
    assert any("needs 'logp', which is not in the demonstrations" in each for each in pairs(*ENOUGH, logp=False))
    assert any("'terminated', which is not in the demonstrations" in each for each in pairs(*ENOUGH[:3]))
    assert any("put rollouts.zip(Demonstrations(...)) before it" in each for each in pairs(*ENOUGH, closer="alone"))
    assert any("replay draws rows several times" in each for each in pairs(*ENOUGH, closer="replayed"))


def test_each_minibatch_has_rows_of_both() -> None:
    """As many of each in every one, or one less; the agent's batch is what passes."""
    model = make("gail")
    agent, shown = fragment(0, steps=5), fragment(1, steps=8).flat()
    seen: list[tuple[Batch, ...]] = []
    model.update = lambda *rows: seen.append(rows) or {"loss": torch.zeros(())}
    assert ops.TrainReward(model, num_sgd_iter=2, minibatch_size=4)((agent, shown)) is agent
    assert [[len(part) for part in parts] for parts in seen] == [[4, 6], [3, 5], [3, 5]] * 2
    for number, batch in enumerate((agent.flat(), shown)):
        found = np.concatenate([parts[number].obs for parts in seen[:3]])
        assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, batch.obs.tolist()))
    assert ops.TrainReward(model)((agent, shown[:0])) is agent
    assert len(seen) == 6
    ops.TrainReward(model, minibatch_size=2)((agent, shown[:3]))  # five minibatches, but for that
    assert [[len(part) for part in parts] for parts in seen[6:]] == [[4, 1], [3, 1], [3, 1]]


def test_how_probable_actions_are_now() -> None:
    """G7: by the weights of this moment, whatever was recorded; of fragments and of rows."""
    of: Any = workers()
    batch = ops.ParallelRollouts(of, steps=3)
    with of, batch.run() as run:
        collected = next(run)
    judge = ops.EstimateLogp(of)
    without = collected.select(["obs", "action"])
    np.testing.assert_allclose(judge(collected.replace(logp=collected.reward)).logp, collected.logp, rtol=1e-5)
    np.testing.assert_allclose(judge(without.flat()).logp, collected.logp.ravel(), rtol=1e-5)
    with torch.no_grad():
        for each in of.policy.model.parameters():
            each += 0.1
    assert not np.allclose(judge(without.flat()).logp, collected.logp.ravel())
    with pytest.raises(SchemaError, match="EstimateLogp needs the column 'action'"):
        judge(without.select(["obs"]))
    with pytest.raises(
        PlanError, match="EstimateLogp needs the workers of an actor-critic policy that is not recurrent"
    ):
        ops.EstimateLogp(workers(DQNPolicy))


def test_branches_of_a_zip_have_names() -> None:
    agent, shown = from_items([1, 2]), from_items([3, 4])
    both = agent.zip(shown, names=("agent", "shown"))
    assert list(both) == [(1, 3), (2, 4)]
    assert "├─ shown:" in both.explain()
    for names in (("agent",), ("agent", "agent")):
        with pytest.raises(PlanError, match="zip needs 2 different names, one a plan"):
            agent.zip(shown, names=names)

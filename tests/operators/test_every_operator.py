"""Every operator keeps the contract: resumable at every step, its inputs left alone, a tap changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl import Plan, Queue, from_items
from flowrl import operators as ops
from flowrl.data import Batch, Dataset, MultiAgentBatch, PrioritizedReplayBuffer, ReplayBuffer, SequenceReplayBuffer
from flowrl.models import Dynamics
from flowrl.operators.metrics import CLOCK_KEYS
from flowrl.policies import BCPolicy, DQNPolicy, DreamerPolicy, MuZeroPolicy, PPOPolicy, R2D2Policy
from flowrl.rollout import WorkerSet
from flowrl.rollout.league import League, Share
from flowrl.storage.checkpoint import load_checkpoint, save_checkpoint
from flowrl.testing import check_operator, check_plan, same
from tests.goal_envs import BitFlip
from tests.minari_episodes import minari_dataset
from tests.models.test_reward_model import make as reward_model


def workers() -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, hidden=(4,), device="cpu"), envs_per_worker=2)


def with_a_memory() -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: R2D2Policy(*spaces, hidden=(4,), units=3, device="cpu"))


def ppo_workers() -> WorkerSet:
    policy = lambda *spaces: PPOPolicy(*spaces, hidden=(4,), kl_coef=1.0, device="cpu")  # noqa: E731
    return WorkerSet("CartPole-v1", policy, envs_per_worker=2)


def normalizing() -> WorkerSet:
    """With statistics in use, and others that wait."""
    policy = lambda *spaces: PPOPolicy(*spaces, normalize_obs=True, normalize_rewards=True, device="cpu")  # noqa: E731
    made = WorkerSet("CartPole-v1", policy, envs_per_worker=2)
    made.policy.gather_statistics(fragments()[0].flat().obs, np.arange(6.0))
    return made


def cloning() -> WorkerSet:
    """Of a policy that learns from what others did."""
    return WorkerSet("CartPole-v1", lambda *spaces: BCPolicy(*spaces, hidden=(4,), device="cpu"), envs_per_worker=2)


def fragments(count: int = 4, steps: int = 3, envs: int = 2) -> list[Batch]:
    draw = np.random.default_rng(3)
    return [
        Batch(
            obs=draw.normal(size=(steps, envs, 4)).astype(np.float32),
            action=draw.integers(2, size=(steps, envs)),
            reward=draw.normal(size=(steps, envs)),
            next_obs=draw.normal(size=(steps, envs, 4)).astype(np.float32),
            terminated=draw.random((steps, envs)) < 0.3,
            truncated=draw.random((steps, envs)) < 0.3,
        )
        for _ in range(count)
    ]


def results(count: int = 6) -> list[dict[str, Any]]:
    return [{"env_steps": 10 * i, "eval_return": float(i)} for i in range(1, count)]


def rows() -> list[Batch]:
    return [fragment.flat() for fragment in fragments()]


def valued() -> list[Batch]:
    return [batch.replace(value=batch.reward, next_value=batch.obs[..., 0]) for batch in fragments()]


def followed() -> list[Batch]:
    """One endless episode of each environment."""
    t = np.arange(3)[:, None] + np.zeros((3, 2), int)
    same = {"env_id": t * 0 + [0, 1], "episode_id": t * 0, "terminated": t < 0, "truncated": t < 0}
    return [batch.replace(t=t + 3 * number, **same) for number, batch in enumerate(fragments())]


def priorities() -> list[dict[str, Any]]:
    return [{"loss": 0.5, "priorities": Batch(index=[number], priority=[0.5])} for number in range(3)]


def recorded() -> list[Batch]:
    return [batch.replace(logp=batch.reward - 1) for batch in fragments()]


def hindsight() -> Any:
    env = BitFlip()
    return ops.HindsightRelabel(env.compute_reward, env.compute_terminated, 0.9, k=2)


def with_goals() -> list[Batch]:
    goals = [{"achieved_goal": batch.obs > 0, "desired_goal": batch.next_obs > 0} for batch in fragments()]
    never = np.zeros((3, 2), bool)
    return [
        b.replace(obs=goal, next_obs=goal, terminated=never, truncated=never) for b, goal in zip(fragments(), goals)
    ]


def of_a_team() -> list[Batch]:
    """Of two agents in one game."""
    one = {"env_id": np.zeros((3, 2), np.int64), "episode_id": np.zeros((3, 2), np.int64)}
    one |= {"t": np.array([[0, 0], [1, 1], [2, 2]]), "agent": np.array([[0, 1]] * 3)}
    never = np.zeros((3, 2), bool)
    return [batch.replace(**one, terminated=never, truncated=never) for batch in fragments()]


def of_games() -> list[Batch]:
    """Whole games of two, that the first one wins."""
    ends = np.arange(3)[:, None] == [2, 2]
    return [batch.replace(reward=ends * [1.0, -1.0], terminated=ends, mask=ends | True) for batch in of_a_team()]


def searched() -> SequenceReplayBuffer:
    """Sequences whose steps were searched."""
    buffer = SequenceReplayBuffer(60, length=2, seed=1)
    for batch in fragments():
        policy = np.full((*batch.reward.shape, 2), 0.5, np.float32)
        buffer.add(batch.replace(search_policy=policy, search_value=batch.reward.astype(np.float32)))
    return buffer


def searching() -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: MuZeroPolicy(*spaces, hidden=(4,), device="cpu"))


def dreaming() -> WorkerSet:
    sizes = {"hidden": (4,), "memory_size": 4, "latent_groups": 2, "latent_classes": 3, "bins": 5}
    return WorkerSet("CartPole-v1", lambda *spaces: DreamerPolicy(*spaces, **sizes, device="cpu"))


def remembered() -> list[Batch]:
    return [batch.replace(state=np.zeros((*batch.reward.shape, 4), np.float32)) for batch in fragments()]


def extra_rewards() -> list[Batch]:
    return [batch.replace(obs_reward=batch.obs[..., 0]) for batch in fragments()]


def curiosity() -> Any:
    """One that has learned from something."""
    model = reward_model(space=spaces.Box(-np.inf, np.inf, (4,), np.float32))
    ops.TrainReward(model)(fragments()[0])
    return model


def dynamics() -> Dynamics:
    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return Dynamics(box, spaces.Discrete(2), hidden=(4,), members=3, elites=2, device="cpu")


def many_agents() -> list[Batch | MultiAgentBatch]:
    alone: list[Batch | MultiAgentBatch] = [*rows()]
    return [*alone, MultiAgentBatch({"default_policy": rows()[0], "other": rows()[1]}, env_steps=6)]


def without_clock(plan: Plan) -> Plan:
    return plan.for_each(lambda item: {key: value for key, value in item.items() if key not in CLOCK_KEYS})


def gradients() -> list[Any]:
    compute = ops.ComputeGradients(workers())
    return [compute(batch) for batch in rows()]


def prioritized() -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(8, compiled=False, seed=1)
    buffer.add(rows()[0])
    return buffer


def with_priorities() -> list[dict[str, Any]]:
    of = Batch(index=np.array([0, 2]), generation=np.array([1, 0]), priority=np.array([3.0, 1.0], np.float32))
    return [{"loss": 1.0, "priorities": of}, {}, {"loss": 2.0, "priorities": of[:1]}]


def confirmed(path: Path) -> Any:
    of = workers()
    of.policy.version = 1
    from flowrl.policies.weights import save_weights

    save_weights(of.policy, path / "policy.pt")
    return ops.Confirm(of, goal=2.0, path=path / "policy.pt", episodes=2)


# Operators that go between two others: how to make one, on which items, by which verb.
TRANSFORMS: dict[str, tuple[Callable[[Path], Any], Callable[[], list[Any]], str]] = {
    "ApplyGradients": (lambda _: ops.ApplyGradients(workers()), gradients, "for_each"),
    "AverageGradients": (lambda _: ops.AverageGradients(3), gradients, "combine"),
    "CheckActions": (lambda _: ops.CheckActions(spaces.Discrete(2)), fragments, "for_each"),
    "CheckEpisodes": (lambda _: ops.CheckEpisodes(), followed, "for_each"),
    "CheckFinite": (lambda _: ops.CheckFinite(), many_agents, "for_each"),
    "CheckLogRatios": (lambda _: ops.CheckLogRatios(ppo_workers()), recorded, "for_each"),
    "CheckPriorities": (lambda _: ops.CheckPriorities(), priorities, "for_each"),
    "CollectBatches": (lambda _: ops.CollectBatches(14), fragments, "combine"),
    "CombineRewards": (lambda _: ops.CombineRewards(0.5, obs_reward=2.0), extra_rewards, "for_each"),
    "ComputeGradients": (lambda _: ops.ComputeGradients(workers()), rows, "for_each"),
    "ConcatBatches": (lambda _: ops.ConcatBatches(14), fragments, "combine"),
    "Confirm": (confirmed, results, "for_each"),
    "DatasetStatistics": (
        lambda _: ops.DatasetStatistics(normalizing(), Dataset(RECORDED[0])),
        lambda: [each.flat() for each in fragments()],
        "for_each",
    ),
    "Enqueue": (lambda _: ops.Enqueue(Queue(10)), lambda: [1, 2, 3], "for_each"),
    "EstimateLogp": (lambda _: ops.EstimateLogp(ppo_workers()), fragments, "for_each"),
    "EstimateReward": (lambda _: ops.EstimateReward(curiosity()), fragments, "for_each"),
    "Evaluate": (lambda _: ops.Evaluate(workers(), every=20, episodes=2), results, "for_each"),
    "FillColumn": (lambda _: ops.FillColumn("reward", 1.0), fragments, "for_each"),
    "FitModel": (
        lambda _: ops.FitModel(dynamics(), epochs=2),
        lambda: [each.flat() for each in fragments()],
        "for_each",
    ),
    "FollowWorkers": (lambda _: ops.FollowWorkers(workers()), lambda: [[{"kl": 1.0}, {"kl": 2.0}]] * 2, "for_each"),
    "GAE": (lambda _: ops.GAE(0.9, 0.8), valued, "for_each"),
    "Episodes": (lambda _: ops.Episodes(), fragments, "for_each"),
    "GatherStatistics": (lambda _: ops.GatherStatistics(normalizing(), 0.9), fragments, "for_each"),
    "HindsightRelabel": (lambda _: hindsight(), with_goals, "for_each"),
    "ImagineAhead": (
        lambda _: ops.ImagineAhead(dreaming(), 3),
        lambda: [Batch(latent=np.zeros((2, 10), np.float32))] * 3,
        "for_each",
    ),
    "InitialState": (lambda _: ops.InitialState(with_a_memory()), fragments, "for_each"),
    "JoinTeam": (lambda _: ops.JoinTeam(["left", "right"]), of_a_team, "for_each"),
    "JoinTurns": (lambda _: ops.JoinTurns(), of_games, "for_each"),
    "KeepOneStep": (lambda _: ops.KeepOneStep(0.9), fragments, "for_each"),
    "MixInReplay": (lambda _: ops.MixInReplay(2, 1.5), fragments, "combine"),
    "NStep": (lambda _: ops.NStep(2, 0.9), fragments, "for_each"),
    "NormalizeRewards": (lambda _: ops.NormalizeRewards(normalizing()), fragments, "for_each"),
    "Reanalyse": (lambda _: ops.Reanalyse(searching(), searched()), lambda: [searched().sample(3)] * 3, "for_each"),
    "Record": (lambda path: ops.Record(path / "data", overwrite=True), fragments, "for_each"),
    "ScaleRewards": (lambda _: ops.ScaleRewards(0.5), many_agents, "for_each"),
    "OfPolicy": (lambda _: ops.OfPolicy("default_policy"), many_agents, "combine"),
    "SelectExperiences": (lambda _: ops.SelectExperiences(["default_policy"]), many_agents, "for_each"),
    "SplitBatch": (lambda _: ops.SplitBatch(max_rows=4), fragments, "combine"),
    "StandardizeFields": (lambda _: ops.StandardizeFields(["reward"]), many_agents, "for_each"),
    "StopWhen": (lambda _: ops.StopWhen({"env_steps": 30}), results, "for_each"),
    "StoreToReplay": (lambda _: ops.StoreToReplay(ReplayBuffer(8, seed=1)), rows, "for_each"),
    "TrainOneStep": (lambda _: ops.TrainOneStep(workers()), rows, "for_each"),
    "TrainWorldModel": (lambda _: ops.TrainWorldModel(dreaming()), remembered, "for_each"),
    "TrainReward": (lambda _: ops.TrainReward(curiosity(), 2, 3), fragments, "for_each"),
    "Unroll": (lambda _: ops.Unroll(2, "pad", burn_in=1), fragments, "for_each"),
    "UpdateKL": (lambda _: ops.UpdateKL(ppo_workers()), lambda: [{"kl": 0.1}, {"kl": 0.001}], "for_each"),
    "UpdatePriorities": (lambda _: ops.UpdatePriorities(prioritized()), with_priorities, "for_each"),
    "PolicyActions": (
        lambda _: ops.PolicyActions(cloning()),
        lambda: [each.flat() for each in fragments()],
        "for_each",
    ),
    "UpdateStatistics": (lambda _: ops.UpdateStatistics(normalizing()), lambda: [1, 2], "for_each"),
    "UpdateTargetNetwork": (lambda _: ops.UpdateTargetNetwork(workers()), lambda: [1, 2], "for_each"),
    "VTrace": (lambda _: ops.VTrace(ppo_workers(), 0.9), recorded, "for_each"),
    "debug_print": (lambda _: ops.debug_print, fragments, "for_each"),
}


def store_and_replay() -> Plan:
    buffer = ReplayBuffer(12)
    return ops.Concurrently([from_items(rows()).for_each(ops.StoreToReplay(buffer)), ops.Replay(buffer, 4)])


def imagined() -> Plan:
    buffer, model = ReplayBuffer(12), dynamics()
    return ops.Concurrently(
        {
            "store": from_items(fragments()).for_each(ops.StoreToReplay(buffer)),
            "fit": ops.Snapshots(buffer, every=4).for_each(ops.FitModel(model, epochs=2)),
            "imagine": ops.ImaginedRollouts(workers(), model, buffer, branches=3, horizon=2),
        }
    )


def one_after_another() -> Plan:
    return ops.Sequentially({"first": from_items(fragments()).for_each(ops.NStep(2, 0.9)), "then": store_and_replay()})


def demonstrations_mixed_in() -> Plan:
    shown, steps = ReplayBuffer(100), from_items(fragments()).for_each(ops.NStep(2, 0.9))
    return ops.MixInDemonstrations(store_and_replay(), steps.for_each(ops.StoreToReplay(shown)), 0.5)


def through_a_queue() -> Plan:
    queue = Queue(2)
    put = from_items(range(9)).for_each(ops.Enqueue(queue))
    return ops.Concurrently({"put": put, "get": ops.Dequeue(queue)}, round_robin_weights=[2, 1])


def reported() -> Plan:
    of = workers()
    train = ops.ParallelRollouts(of, steps=4).for_each(lambda batch: {"loss": float(batch.reward.sum())})
    return without_clock(ops.StandardMetricsReporting(train, of, {"report_every": 20}))


def from_disk() -> Plan:
    return ops.FromDataset(RECORDED[0], 5, epochs=2)


def demonstrated() -> Plan:
    return ops.Demonstrations(RECORDED[0], workers().policy, 5, epochs=2, needs=("obs",))


def offline_rows() -> Plan:
    return ops.OfflineRows(cloning(), RECORDED[0], 5, epochs=2)


def from_minari() -> Plan:
    return ops.from_minari(minari_dataset())


RECORDED: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def recorded(tmp_path_factory: pytest.TempPathFactory) -> None:
    RECORDED[:] = [tmp_path_factory.mktemp("recorded") / "data"]
    list(from_items(fragments()).for_each(ops.Record(RECORDED[0])))


def gradients_of_workers() -> Plan:
    of = workers()
    return ops.AsyncGradients(of, steps=2).for_each(ops.ApplyGradients(of, update_all=False))


def learned_together() -> Plan:
    of = ppo_workers()
    fragments = ops.ParallelRollouts(of, mode="raw", steps=4).for_each(ops.GAE(0.9, 0.8))
    return fragments.for_each(ops.TrainAllReduce(num_sgd_iter=2)).gather_sync(ops.FollowWorkers(of))


def monte_carlo() -> Plan:
    of = ppo_workers()
    whole = ops.ParallelRollouts(of, episodes=1).for_each(ops.GAE(0.9, 1.0))
    return whole.combine(ops.ConcatBatches(60)).for_each(ops.TrainOneStep(of))


def against_past_selves() -> Plan:
    shares = [Share(0.3, now=("main",)), Share(0.7, past=("*",))]
    policy = lambda *spaces: PPOPolicy(*spaces, hidden=(4,), device="cpu")  # noqa: E731
    of = WorkerSet("flowrl:tic_tac_toe", policies={"main": policy}, league=League({"main": shares}, pool_size=2))
    return ops.ParallelRollouts(of, steps=3).for_each(ops.RecordGames(of)).for_each(ops.AddSnapshot(of, "main", 30))


# Functions that start, join or end a plan, and operators for a part of a plan that runs on workers.
PLANS: dict[str, tuple[Callable[[], Plan], int | None]] = {
    "AddSnapshot": (against_past_selves, 6),
    "AsyncGradients": (gradients_of_workers, 4),
    "Concurrently": (through_a_queue, None),
    "Demonstrations": (demonstrated, None),
    "Dequeue": (through_a_queue, None),
    "FromDataset": (from_disk, None),
    "ImaginedRollouts": (imagined, 8),
    "MixInDemonstrations": (demonstrations_mixed_in, 10),
    "OfflineRows": (offline_rows, None),
    "ParallelRollouts": (lambda: ops.ParallelRollouts(workers(), steps=2), 4),
    "ParallelRollouts, whole episodes": (monte_carlo, 2),
    "RecordGames": (against_past_selves, 4),
    "Replay": (store_and_replay, 10),
    "Sequentially": (one_after_another, 12),
    "Snapshots": (imagined, 4),
    "StandardMetricsReporting": (reported, 3),
    "TrainAllReduce": (learned_together, 4),
    "from_minari": (from_minari, None),
}


#: Operators whose results say how long they took.
TIMED = ("Confirm", "Evaluate")


def transformed(name: str, folder: Path) -> Plan:
    """The operator's items after it."""
    make, items, verb = TRANSFORMS[name]
    plan = from_items(items()).then(make(folder), verb)
    return without_clock(plan) if name in TIMED else plan


@pytest.mark.parametrize("name", TRANSFORMS)
def test_operators_keep_the_contract(name: str, tmp_path: Path) -> None:
    """D1, D3, D4, D5, F14."""
    make, items, verb = TRANSFORMS[name]
    if name in TIMED:
        check_plan(lambda: transformed(name, tmp_path))
    else:
        check_operator(lambda: make(tmp_path), items(), verb=verb)


@pytest.mark.parametrize("name", PLANS)
def test_plans_of_operators_keep_the_contract(name: str) -> None:
    """D1, D3, D4, D5."""
    make, items = PLANS[name]
    check_plan(make, items=items)


@pytest.mark.parametrize("name", [*TRANSFORMS, *PLANS])
def test_operators_continue_from_disk(name: str, tmp_path: Path) -> None:
    """D3, D5: from the middle, in another run, with fresh resources."""

    def plan() -> Plan:
        return PLANS[name][0]() if name in PLANS else transformed(name, tmp_path)

    count = PLANS[name][1] if name in PLANS else None
    with plan().run() as run:
        items = list(islice(run, count))
        final = run.state_dict()
    with plan().run() as run:
        assert same(list(islice(run, len(items) // 2)), items[: len(items) // 2])
        state = run.state_dict()
    loaded = load_checkpoint(save_checkpoint(tmp_path / "checkpoint", state), trusted=True)
    assert same(loaded, state)
    with plan().run() as resumed:
        resumed.load_state_dict(loaded)
        assert same(list(islice(resumed, None if count is None else count - len(items) // 2)), items[len(items) // 2 :])
        assert same(resumed.state_dict(), final)


def test_none_is_forgotten() -> None:
    """Report is inside StandardMetricsReporting."""
    public = {name for name in ops.__all__ if callable(getattr(ops, name))} - {"Report"}
    assert public == set(TRANSFORMS) | {name.partition(",")[0] for name in PLANS}
    assert all(inspect.getdoc(getattr(ops, name)) for name in ops.__all__)

"""VTrace: old experience, corrected for the policy that learns now."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from flowrl import from_items
from flowrl.data import Batch, ReplayBuffer
from flowrl.engine.context import Context
from flowrl.errors import PlanError, SchemaError
from flowrl.operators import GAE, ParallelRollouts, Replay, StoreToReplay, TrainOneStep, VTrace
from flowrl.policies import A2CPolicy, DQNPolicy
from flowrl.returns import v_trace
from flowrl.rollout import WorkerSet
from tests.goal_envs import BitFlip


def workers(env: Any = "CartPole-v1", **settings: Any) -> WorkerSet:
    made = lambda *spaces: A2CPolicy(*spaces, hidden=(8,), device="cpu", **settings)  # noqa: E731
    return WorkerSet(env, made, envs_per_worker=3)


def collected(of: WorkerSet, **how: Any) -> Batch:
    of.start(Context())
    return of.local.sample(**how or {"steps": 40})


def older(of: WorkerSet, batch: Batch) -> None:
    """Let the policy become another one than that which collected the batch."""
    for _ in range(5):
        of.policy.learn_mode.learn_from(batch)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", BitFlip])
def test_on_policy_it_is_gae(env: Any) -> None:
    """V1, V2, G1, G2: with lambda = 1 and the weights that collected; any kind of observations and actions."""
    with workers(env) as of:
        batch = collected(of)
        corrected, expected = VTrace(of, 0.9)(batch), GAE(0.9, 1.0)(batch)
        for name in ("target", "advantage", "value", "next_value"):
            np.testing.assert_allclose(corrected[name], expected[name], rtol=1e-3, atol=1e-3)
            assert corrected[name].dtype == np.float32
        assert list(corrected) == list(expected)
        assert all(corrected[name] is batch[name] for name in batch if "value" not in name)


@pytest.mark.parametrize("how", [{"steps": 40}, {"episodes": 5}])
def test_old_experience_is_that_of_the_loop_with_the_present_weights(how: dict[str, int]) -> None:
    """V1, V2, V3, G7, N6: step by step, asking the learner about one observation at a time; the input left alone."""
    with workers(learning_rate=0.02) as of:
        batch = collected(of, **how)
        older(of, batch)
        before = copy.deepcopy(batch)
        corrected = VTrace(of, 0.9, lam=0.8, rho_bar=1.1, c_bar=1.05, rho_pg_bar=1.2)(batch)
        assert batch == before, "the input was changed in place"
        model = of.policy.model
        ratios = []
        for env in range(batch.reward.shape[1]):
            length = int(batch.mask[:, env].sum()) if "mask" in batch else len(batch)
            one = batch[:length, env]
            with torch.no_grad():
                given, value = model(torch.from_numpy(one.obs))
                logp = torch.log_softmax(given, 1).numpy()[np.arange(length), one.action]
                next_value = model.value(torch.from_numpy(one.next_obs)).numpy()
            limits = {"rho_bar": 1.1, "c_bar": 1.05, "rho_pg_bar": 1.2}
            columns = [one.logp, logp, one.reward, value.numpy(), next_value, one.terminated, one.truncated]
            vs, advantage = v_trace(*columns, gamma=0.9, lam=0.8, **limits)
            np.testing.assert_allclose(corrected.target[:length, env], vs, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(corrected.advantage[:length, env], advantage, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(corrected.next_value[:length, env], next_value, rtol=1e-3, atol=1e-3)
            assert not corrected.target[length:, env].any()
            assert not corrected.advantage[length:, env].any()
            ratios += np.exp(logp - one.logp).tolist()
        assert max(ratios) > 1.2, "the weights did not change enough to tell"
        assert np.abs(corrected.target - GAE(0.9, 0.8)(batch).target).max() > 0.1


def test_an_episode_that_went_missing_ends_the_trace() -> None:
    """V2, N1: the learner's value of where it was cut."""
    with workers() as of:
        batch = collected(of, steps=6)
        batch["episode_id"] = batch.episode_id + (np.arange(6) >= 3)[:, None]
        corrected = VTrace(of, 0.9)(batch)
        first, second = VTrace(of, 0.9)(batch[:3]), VTrace(of, 0.9)(batch[3:])
        np.testing.assert_allclose(corrected.target, np.concatenate([first.target, second.target]), rtol=1e-5)


def test_a2c_learns_from_old_experience_after_it() -> None:
    """V1: the advantage is taken as it is, weight included."""
    with workers() as of:
        batch = collected(of)
        corrected = VTrace(of, 0.9)(batch)
        prepared = of.policy.learn_mode.prepare(corrected)
        np.testing.assert_array_equal(prepared.advantage, corrected.advantage.ravel())
        (scalars,) = from_items([batch]).for_each(VTrace(of, 0.9)).for_each(TrainOneStep(of))
        assert np.isfinite(scalars["loss"])


def off_policy(of: WorkerSet, *adders: Any) -> Any:
    """A stream of whole fragments, said to be of older weights."""
    from flowrl.engine.operator import declare

    old = declare(schema=lambda given: given.without("on_policy"))(lambda batch: batch)
    plan = ParallelRollouts(of).for_each(old)
    for adder in adders:
        plan = plan.for_each(adder)
    return plan.for_each(TrainOneStep(of))


def test_it_lifts_the_need_for_experience_of_the_present_weights() -> None:
    of = workers()
    with pytest.raises(PlanError, match=r"needs 'on_policy or corrected'.* put VTrace before it"):
        off_policy(of).check()
    with pytest.raises(PlanError, match="needs 'on_policy or corrected'"):
        off_policy(of, GAE(0.9, 0.8)).check()
    off_policy(of, VTrace(of, 0.9)).check()
    with pytest.raises(PlanError, match="VTrace makes the column 'advantage', which exists already: is there a GAE"):
        off_policy(of, GAE(0.9, 0.8), VTrace(of, 0.9)).check()


def test_rows_out_of_order_cannot_be_corrected() -> None:
    of = workers()
    buffer = ReplayBuffer(100)
    store = ParallelRollouts(of).for_each(StoreToReplay(buffer))
    replay = Replay(buffer).for_each(VTrace(of, 0.9)).for_each(TrainOneStep(of))
    with pytest.raises(PlanError, match=r"VTrace.* needs 'fragments', which is lost in"):
        store.union(replay).check()


def test_what_it_cannot_use_is_refused() -> None:
    with workers() as of:
        batch = collected(of, steps=3)
        with pytest.raises(SchemaError, match="needs the column 'logp': collect with a policy that records it"):
            VTrace(of, 0.9)(batch.select([name for name in batch if name != "logp"]))
        with pytest.raises(SchemaError, match=r"VTrace needs fragments \[T, N"):
            VTrace(of, 0.9)(batch.flat())
        with pytest.raises(PlanError, match="needs the learner's weights, which a worker may lack"):
            next(iter(ParallelRollouts(workers(), mode="raw").for_each(VTrace(of, 0.9)).gather_sync()))
        for bad in ({"gamma": 2}, {"gamma": 0.9, "lam": -1}, {"gamma": 0.9, "rho_bar": 0}, {"gamma": 0.9, "c_bar": -1}):
            with pytest.raises(ValueError, match=r"gamma|lam|rho_bar|c_bar"):
                VTrace(of, **bad)
    with pytest.raises(PlanError, match="VTrace needs the workers of an actor-critic policy"):
        VTrace(WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, device="cpu")), 0.9)
    with pytest.raises(PlanError, match="VTrace needs the workers of an actor-critic policy"):
        VTrace(3, 0.9)  # type: ignore[arg-type]

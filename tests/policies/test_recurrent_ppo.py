"""PPO with a memory: the loss against a loop over episodes, and what padding must not do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.learners.training import Training
from flowrl.operators import GAE, Unroll
from tests.policies.recurrent_parts import make, steps


def collected(policy: Any, count: int = 10, envs: int = 3) -> Batch:
    """Experience as the policy itself would collect it, from states in the middle of episodes."""
    draw, mode = np.random.default_rng(1), policy.collect_mode
    batch = steps(count, envs)
    state = draw.normal(size=(envs, 12)).astype(np.float32)
    rows = []
    for t in range(count):
        if t:
            state[batch.episode_id[t] != batch.episode_id[t - 1]] = 0
        row = mode.act(batch.obs[t], draw.random((envs, mode.draws)), 0, state)
        next_state = row.pop("next_state")
        next_value = mode.value(batch.next_obs[t], next_state)
        rows.append(Batch(row).replace(state=state.copy(), next_value=next_value))
        state = next_state
    return batch.replace(**dict(Batch.stack(rows).items()))


def by_loop(policy: Any, batch: Batch) -> list[dict[str, float]]:
    """What the loss is made of, of every step, each episode by itself."""
    found = []
    for env in range(batch.shape[1]):
        state = None
        for t in range(len(batch)):
            if state is None:
                state = torch.from_numpy(batch.state[t, env][None])
            elif batch.episode_id[t, env] != batch.episode_id[t - 1, env]:
                state = torch.zeros_like(state)
            with torch.no_grad():
                (given, value), state = policy.model.step(torch.from_numpy(batch.obs[t, env][None]), state)
            p = torch.softmax(given[0], 0)
            step = {name: float(batch[name][t, env]) for name in ("advantage", "target", "logp")}
            step |= {"entropy": -float((p * p.log()).sum()), "new": math.log(float(p[batch.action[t, env]]))}
            found.append({**step, "now": float(value), "old": float(batch.value[t, env])})
    return found


@pytest.mark.parametrize("unrolled", [None, 4, 3])
def test_the_loss_against_a_loop(unrolled: int | None) -> None:
    """G3, G5, N6, T8: on fragments in which episodes begin, and on padded sequences of one episode each.

    Those of the unroll begin with the states that the actor had, so with its own weights both are the same; with
    others an unroll begins with what the old ones remembered, so there the fragment alone is compared.
    """
    actor = make()
    policy = actor if unrolled else make(seed=4)
    policy.entropy_coef, policy.clip = 0.3, 0.1
    policy.learn_mode.schedule(0)
    batch = GAE(0.9, 0.8)(collected(actor))
    given = batch if unrolled is None else Unroll(unrolled, last="pad", across=False)(batch)
    rows = policy.learn_mode.tensors(policy.learn_mode.prepare(given))
    loss, scalars = policy.learn_mode.loss(policy.learn_mode.over_minibatch(rows))
    expected = by_loop(policy, batch)
    advantages = [step["advantage"] for step in expected]
    mean, deviation = np.mean(advantages), np.std(advantages, ddof=1)
    parts, kls = [], []
    for step in expected:
        ratio, advantage = math.exp(step["new"] - step["logp"]), (step["advantage"] - mean) / deviation
        surrogate = min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage)
        parts.append(-surrogate + 0.5 * (step["now"] - step["target"]) ** 2 - 0.3 * step["entropy"])
        kls.append((ratio - 1) - math.log(ratio))
    assert float(loss.detach()) == pytest.approx(np.mean(parts), rel=1e-4, abs=1e-5)
    assert float(scalars["kl"].detach()) == pytest.approx(np.mean(kls), rel=1e-3, abs=1e-6)
    spread = np.var([step["target"] for step in expected])
    explained = 1 - np.var([step["target"] - step["old"] for step in expected]) / spread
    assert float(policy.learn_mode.describe(rows)["explained_variance"]) == pytest.approx(explained, rel=1e-3)


def test_minibatches_are_whole_sequences_and_padding_is_not_counted() -> None:
    """N6, F12: every sequence once in an epoch; trained, and the lag that is recorded, are of the steps that count."""
    policy = make()
    batch = GAE(0.9, 0.8)(collected(policy)).replace(policy_version=np.full((10, 3), -3))
    sequences = Unroll(4, last="pad", across=False)(batch)
    assert (~sequences.mask).any()
    seen: list[Batch] = []
    update = policy.learn_mode.update
    policy.learn_mode.update = lambda part, all_reduce: seen.append(part) or update(part, all_reduce)  # type: ignore
    trained = Training(num_sgd_iter=2, minibatch_size=8)(policy.learn_mode, sequences, np.random.default_rng(0))
    assert trained.counters == {"trained": 60, "updates": len(seen)}
    assert len(seen) == 2 * math.ceil(30 / 8)
    np.testing.assert_array_equal(trained.records["policy_lag"][0], np.full(30, 3))
    half = seen[: len(seen) // 2]
    found = torch.cat([part.obs for part in half], 1)
    assert {each.numpy().tobytes() for each in found.unbind(1)} == {
        sequences.obs[:, i].tobytes() if sequences.mask[:, i].all() else each
        for i, each in enumerate(
            policy.learn_mode.prepare(sequences).obs[:, i].tobytes() for i in range(sequences.shape[1])
        )
    }


def test_a_sequence_of_a_fragment_ends_with_it() -> None:
    """N6, T8: nothing waits for the next fragment, every step counts once, and states are those of the first steps."""
    policy = make()
    unroll, batch = Unroll(4, last="pad", across=False), collected(policy)
    for _ in range(2):
        rows = unroll(batch)
        assert int(rows.mask.sum()) == 30
        assert sorted(rows.reward[rows.mask]) == sorted(batch.reward.ravel())
        begins = [np.argwhere((batch.obs == rows.obs[0, i]).all(2))[0] for i in range(rows.shape[1])]
        np.testing.assert_array_equal(rows.state[0], [batch.state[t, env] for t, env in begins])
    assert unroll.finish() == []

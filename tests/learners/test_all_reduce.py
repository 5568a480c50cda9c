"""Several learners with the same policy: their gradients are those of one, and so are their parameters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import Disconnected, SchemaError
from flowrl.learners.all_reduce import GroupAllReduce, Rendezvous, listen
from flowrl.learners.training import Training
from flowrl.networks.heads import CategoricalHead
from flowrl.policies import BCPolicy, CQLPolicy, DQNPolicy, IQLPolicy, MARWILPolicy, R2D2Policy, SACPolicy, TD3Policy
from flowrl.testing import same
from tests.operators.test_train import make
from tests.policies.recurrent_parts import make as make_recurrent
from tests.policies.test_ppo_policy import fragment
from tests.policies.test_ppo_policy import make as make_ppo
from tests.policies.test_r2d2_policy import sequences
from tests.scripted import transitions

OBS = spaces.Box(-5, 5, (4,), np.float32)


def together(size: int, work: Callable[[GroupAllReduce], Any], *, one_batch: bool = True, seconds: float = 20) -> list:
    """What each member of a group makes of `work`, each in a thread; an error in place of a result."""
    store = listen("127.0.0.1", seconds)
    rendezvous = Rendezvous("127.0.0.1", store.port, size, one_batch, seconds)

    joined: list[GroupAllReduce] = []

    def member(rank: int) -> Any:
        try:
            joined.append(group := GroupAllReduce(rendezvous, rank, store=store if rank == 0 else None))
            return work(group)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(member, range(size)))
    for group in joined:  # not before the last has its result: who leaves takes the others' connections along
        group.close()
    return results


def test_the_mean_divides_by_the_rows() -> None:
    """F13: Σ nᵢ vᵢ / Σ nᵢ, of uneven rows, the same bits for every member."""
    draw = np.random.default_rng(0)
    values, rows = draw.normal(size=(3, 7)), [1, 5, 2]
    expected = [sum(rows[r] * values[r, i] for r in range(3)) / 8 for i in range(7)]
    means = together(3, lambda group: group.mean(torch.tensor(values[group.rank]).float(), rows[group.rank]))
    assert means[0].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert same(means[0], means[1])
    assert same(means[0], means[2])


@pytest.mark.parametrize(("count", "sizes"), [(7, [2, 2, 3]), (3, [1, 1, 1]), (2, [2, 2, 2])])
def test_every_row_of_a_minibatch_is_somebodys(count: int, sizes: list[int]) -> None:
    """F13, F2: once each, unless there are fewer rows than learners: then each computes all of them."""
    shares = together(3, lambda group: group.share(transitions(count)).reward.tolist())
    assert [len(share) for share in shares] == sizes
    if count >= 3:
        assert [row for share in shares for row in share] == transitions(count).reward.tolist()


def test_fragments_are_shared_by_environments() -> None:
    batch = Batch(reward=np.arange(12).reshape(3, 4))
    first, second = together(2, lambda group: group.share(batch).reward.tolist())
    assert first == batch.reward[:, :2].tolist()
    assert second == batch.reward[:, 2:].tolist()


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_are_those_of_one_learner_on_the_joined_batch(size: int) -> None:
    """F13: 11 rows do not divide evenly."""
    batch = transitions(11)
    one = make().policy.learn_mode
    expected = one.gradients(one.prepare(batch))

    learners = [make().policy.learn_mode for _ in range(size)]  # not in the threads: torch has one generator

    def work(group: GroupAllReduce) -> Any:
        learn = learners[group.rank]
        scalars = learn._backward(learn.tensors(learn.prepare(batch)), group)
        return {name: p.grad for name, p in learn.policy.model.named_parameters()}, scalars

    for gradients, scalars in together(size, work):
        for name, value in expected.values.items():
            torch.testing.assert_close(gradients[name], value)
        assert float(scalars["loss"]) == pytest.approx(expected.scalars["loss"], rel=1e-5)


CHOICES, BOX = spaces.Discrete(2), spaces.Box(-2, 1, (2,), np.float32)
OFF_POLICY: dict[str, Callable[[], Any]] = {
    "sac": lambda: SACPolicy(OBS, BOX, hidden=(8,), device="cpu"),
    "sac of choices": lambda: SACPolicy(OBS, CHOICES, hidden=(8,), device="cpu"),
    "td3": lambda: TD3Policy(OBS, BOX, hidden=(8,), device="cpu"),
    "noisy c51": lambda: DQNPolicy(OBS, CHOICES, hidden=(8,), head=CategoricalHead(5, -1, 1), noisy=True, device="cpu"),
    "r2d2": lambda: make_recurrent(R2D2Policy),
}


@pytest.mark.parametrize("name", OFF_POLICY)
def test_what_is_drawn_for_a_minibatch_is_that_of_one_learner(name: str) -> None:
    """F13, D6, A6, N6, Q6: noise of all rows before they are shared, or one for all; an actor that is delayed waits on
    every learner; of sequences the steps that count. And priorities are those of the rows that each learned from."""
    if name == "r2d2":
        batch = sequences()
    else:
        batch = transitions(11)
        draw = np.random.default_rng(1)
        batch = batch.replace(weight=draw.random(11).astype(np.float32))
        if name in ("sac", "td3"):
            batch = batch.replace(action=draw.uniform(-1, 1, (11, 2)).astype(np.float32))
    shape = batch["weight"].shape
    index = np.arange(batch["weight"].size).reshape(shape)
    batch = batch.replace(index=index, generation=np.zeros(shape, np.int64))
    one, alone = trained(OFF_POLICY[name](), [batch] * 4)
    alike = [OFF_POLICY[name]() for _ in range(2)]
    first, second = together(2, lambda group: trained(alike[group.rank], [batch] * 4, group))
    assert same(first[1], second[1])
    for ours, theirs, (expected, *counted) in zip(first[0], second[0], one, strict=True):
        assert list(ours[1:]) == list(theirs[1:]) == counted
        told = [scalars.pop("priorities") for scalars in (ours[0], theirs[0])]
        whole = expected.pop("priorities")
        order = np.argsort(joined := np.concatenate([part["index"] for part in told]))
        assert sorted(joined) == sorted(whole["index"])
        priority = np.concatenate([part["priority"] for part in told])[order]
        np.testing.assert_allclose(priority, whole["priority"][np.argsort(whole["index"])], rtol=1e-3, atol=1e-5)
        assert ours[0] == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert theirs[0] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for part in alone["modules"]:
        for key, value in alone["modules"][part].items():
            torch.testing.assert_close(first[1]["modules"][part][key], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [BCPolicy, MARWILPolicy, IQLPolicy, CQLPolicy])
def test_learning_from_a_dataset_together_is_that_of_one_learner(kind: Any) -> None:
    """F13: also the size that advantages usually have, a statistic of all rows, which are unlike in the two shares."""
    draw = np.random.default_rng(1)
    batch = transitions(11).replace(action=draw.uniform(-1, 1, (11, 2)).astype(np.float32))
    batch = batch.replace(reward=batch.reward * np.where(np.arange(11) < 5, 1, 20))
    one, alone = trained(kind(OBS, BOX, hidden=(8,), device="cpu"), [batch] * 4)
    alike = [kind(OBS, BOX, hidden=(8,), device="cpu") for _ in range(2)]
    first, second = together(2, lambda group: trained(alike[group.rank], [batch] * 4, group))
    assert same(first[1], second[1])
    for ours, (expected, *counted) in zip(first[0], one, strict=True):
        assert list(ours[1:]) == counted
        assert ours[0] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for part in alone["modules"]:
        for key, value in alone["modules"][part].items():
            torch.testing.assert_close(first[1]["modules"][part][key], value, rtol=1e-3, atol=1e-5)


def trained(policy: Any, batches: list[Batch], group: Any = None, **settings: Any) -> Any:
    """Scalars and the policy after training on batches."""
    generator, train = np.random.default_rng(3), Training(**settings)
    made = [train(policy.learn_mode, batch, generator, group) for batch in batches]
    return [(each.scalars, each.counters["trained"], each.counters["updates"]) for each in made], policy.state_dict()


@pytest.mark.parametrize("target_kl", [None, 1e-5])
def test_many_steps_are_those_of_one_learner(target_kl: float | None) -> None:
    """F13, F12, G3, G5: epochs over minibatches of 5 of 18 rows, the last one of 3; advantages are standardised over a
    whole minibatch. After many steps the parameters are the same bits on every learner, and nearly those of one."""
    actor = make_ppo()
    batches = [fragment(actor, seed=seed) for seed in range(4)]
    settings: Any = {"num_sgd_iter": 3, "minibatch_size": 5, "target_kl": target_kl}
    one, alone = trained(make_ppo(kl_coef=0.1), batches, **settings)
    alike = [make_ppo(kl_coef=0.1) for _ in range(2)]
    first, second = together(2, lambda group: trained(alike[group.rank], batches, group, **settings))
    assert same(first, second)
    for (scalars, rows, updates), expected in zip(first[0], one, strict=True):
        assert (rows, updates) == expected[1:]
        assert scalars == pytest.approx(expected[0], rel=1e-3, abs=1e-5)
    assert first[1]["version"] == alone["version"] == (48 if target_kl is None else alone["version"])
    for name, value in alone["modules"]["model"].items():
        torch.testing.assert_close(first[1]["modules"]["model"][name], value, rtol=1e-3, atol=1e-5)


def test_learners_with_batches_of_their_own_take_equally_many_steps() -> None:
    """F13: 9 and 16 rows in minibatches of 4 make 4 steps for both, each the mean over the rows of both."""
    batches = [transitions(9), transitions(16, seed=1)]
    policies = [make().policy for _ in range(2)]

    def work(group: GroupAllReduce, **settings: Any) -> Any:
        return trained(policies[group.rank], [batches[group.rank]], group, **settings)

    first, second = together(2, lambda group: work(group, minibatch_size=4, num_sgd_iter=2), one_batch=False)
    assert [first[0][0][1:], second[0][0][1:]] == [(18, 8), (32, 8)]
    assert same(first[1], second[1])
    policies = [make().policy for _ in range(2)]
    whole = together(2, work, one_batch=False)
    _, alone = trained(make().policy, [Batch.cat(batches)])
    for name, value in alone["modules"]["model"].items():
        torch.testing.assert_close(whole[0][1]["modules"]["model"][name], value)


def test_a_learner_without_rows_is_refused_by_all() -> None:
    of = [(make().policy, [transitions(rows)]) for rows in (9, 0)]
    for error in together(2, lambda group: trained(*of[group.rank], group), one_batch=False):
        assert isinstance(error, SchemaError)
        assert "learners with 0 to 9 rows" in str(error)


def test_a_parameter_that_no_loss_reads_stays_without_a_gradient() -> None:
    """An optimiser step with a gradient of zeros would move it, by its momentum say."""

    policies = [make().policy for _ in range(2)]

    def work(group: GroupAllReduce) -> Any:
        policy = policies[group.rank]
        policy.model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
        policy.parameters = list(policy.model.parameters())
        policy.learn_mode.learn_from(transitions(4), group)
        return policy.model.unused.grad

    assert together(2, work) == [None, None]


def test_one_that_leaves_is_an_error_of_the_others_at_once() -> None:
    """F10: long before the deadline, and not only of those who were waiting."""
    left = threading.Event()

    def work(group: GroupAllReduce) -> Any:
        group.mean(torch.ones(2), 1)
        if group.rank == 1:
            group.close()
            left.set()
            return None
        left.wait(10)
        start = time.monotonic()
        with pytest.raises(Disconnected, match="of 2 joint learners is gone"):
            group.mean(torch.ones(2), 1)
        return time.monotonic() - start

    seconds, _ = together(2, work, seconds=60)
    assert seconds < 20


def test_one_that_does_not_come_or_answer_is_an_error_after_the_deadline() -> None:
    """F8, no hang: the meeting has a deadline, and so has every mean."""
    start = time.monotonic()
    store = listen("127.0.0.1", 1)
    with pytest.raises(Disconnected, match="member 1 of 2 waited for the others"):
        GroupAllReduce(Rendezvous("127.0.0.1", store.port, 2, True, 1.0), 1)
    over = threading.Event()

    def work(group: GroupAllReduce) -> Any:
        if group.rank == 1:
            return over.wait(30)
        try:
            return group.mean(torch.ones(2), 1)
        finally:
            over.set()

    error, waited = together(2, work, seconds=1)
    assert isinstance(error, Disconnected)
    assert waited
    assert time.monotonic() - start < 25

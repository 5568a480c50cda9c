"""Batches made larger, standardised, and chosen by policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl import from_items
from flowrl.data import Batch, MultiAgentBatch
from flowrl.errors import SchemaError
from flowrl.operators import GAE, ConcatBatches, ScaleRewards, SelectExperiences, SplitBatch, StandardizeFields

# -- ConcatBatches


def fragment(envs: tuple[int, ...], steps: int = 3, **more: Any) -> Batch:
    """`[steps, len(envs)]`; the reward tells the environment and the step."""
    return Batch(reward=np.arange(steps)[:, None] + 10.0 * np.array(envs), **more)


def test_fragments_go_side_by_side_until_there_are_enough() -> None:
    """G1: each environment stays a column of its own, in the order of arrival."""
    concat = ConcatBatches(min_batch_size=9)
    assert concat(fragment((0, 1))) == []
    (joined,) = concat(fragment((2,)))
    assert joined.reward.tolist() == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    assert concat(fragment((3,))) == [], "it begins anew"
    assert concat.finish() == [fragment((3,))], "what is left is emitted at the end"
    assert concat.finish() == []


def test_advantages_of_joined_fragments_are_those_of_each() -> None:
    """G1: an adder after ConcatBatches gives what it would have given before."""

    def of(env: int) -> Batch:
        draw = np.random.default_rng(env)
        columns = {name: draw.normal(size=(5, 2)) for name in ("reward", "value", "next_value")}
        ends = {name: draw.random((5, 2)) < 0.2 for name in ("terminated", "truncated")}
        return Batch(columns | ends)

    parts, adder = [of(0), of(2), of(4)], GAE(0.9, 0.8)
    (joined,) = from_items(parts).combine(ConcatBatches(30)).for_each(adder)
    assert [joined[:, columns] for columns in (slice(0, 2), slice(2, 4), slice(4, 6))] == [adder(b) for b in parts]


def test_rows_go_one_after_another() -> None:
    rows = [Batch(obs=np.full((n, 4), n), reward=np.arange(n)) for n in (2, 3, 1, 4)]
    joined = list(from_items(rows).combine(ConcatBatches(min_batch_size=5)))
    assert [batch.reward.tolist() for batch in joined] == [[0, 1, 0, 1, 2], [0, 0, 1, 2, 3]]
    assert joined[0].obs.shape == (5, 4)


def test_a_batch_that_is_enough_passes_as_it_is() -> None:
    whole, empty = fragment((0, 1)), fragment((0, 1), steps=0)
    concat = ConcatBatches(min_batch_size=6)
    assert concat(empty) == [], "an adder may have completed nothing"
    (same,) = concat(whole)
    assert same is whole
    assert concat.finish() == []


def test_padding_does_not_count() -> None:
    """N6: 4 real steps of 6."""
    padded = fragment((0, 1), mask=np.array([[1, 1], [1, 0], [1, 0]]))
    concat = ConcatBatches(min_batch_size=5)
    assert concat(padded) == []
    assert [batch.shape for batch in concat(padded)] == [(3, 4)]


def many(cats: int, mice: int, env_steps: int) -> MultiAgentBatch:
    batches = {"cat": Batch(reward=np.ones(cats)), "mouse": Batch(reward=np.ones(mice))}
    return MultiAgentBatch({name: batch for name, batch in batches.items() if batch.rows}, env_steps)


@pytest.mark.parametrize(("unit", "expected"), [("env_steps", [(12, 4), (4, 2)]), ("agent_steps", [(8, 2)] * 2)])
def test_many_agents_by_either_unit(unit: Any, expected: list[tuple[int, int]]) -> None:
    """F12: 3 agents of 2 policies; 4 env steps or 8 agent steps make a batch."""
    given = [many(2, 2, 1), many(4, 0, 1), many(2, 2, 2), many(0, 4, 2)] if unit == "env_steps" else [many(4, 4, 2)] * 2
    size = 4 if unit == "env_steps" else 8
    joined = list(from_items(given).combine(ConcatBatches(size, count_steps_by=unit)))
    assert [(batch.rows, batch.env_steps) for batch in joined] == expected


UNFIT: dict[str, tuple[Any, Any, str]] = {
    "unequal T": (fragment((0,)), fragment((0,), 2), r"fragments of 3 steps and of 2.* the same `steps`"),
    "rows after fragments": (fragment((0,)), fragment((0,)).flat(), r"fragments \[T, N, ...\] and rows .*Batch.flat"),
    "fragments after rows": (fragment((0,)).flat(), fragment((0,)), r"fragments \[T, N, ...\] and rows .*Batch.flat"),
    "other columns": (fragment((0,)), fragment((0,), action=np.ones((3, 1))), "has extra 'action'"),
    "one agent after many": (many(1, 1, 1), fragment((0,)), "got a MultiAgentBatch, then a Batch"),
    "many agents after one": (fragment((0,)), many(1, 1, 1), "got a Batch, then a MultiAgentBatch"),
    "a policy's columns": (
        many(1, 1, 1),
        MultiAgentBatch({"mouse": fragment((0,))}, 1),
        "policy 'mouse', got fragments",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_refused_and_what_waits_is_kept(name: str) -> None:
    first, second, message = UNFIT[name]
    concat = ConcatBatches(min_batch_size=100)
    concat(first)
    with pytest.raises(SchemaError, match=message):
        concat(second)
    assert concat.finish() == [first]


def test_sizes_and_units_are_checked() -> None:
    with pytest.raises(ValueError, match="min_batch_size"):
        ConcatBatches(0)
    with pytest.raises(ValueError, match="count_steps_by"):
        ConcatBatches(1, count_steps_by="steps")  # type: ignore[arg-type]


# -- StandardizeFields


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("shape", [(24,), (6, 4)])
def test_mean_zero_and_deviation_one_over_the_whole_batch(kind: Any, shape: tuple[int, ...]) -> None:
    """G3: the scope is the batch, fragments and rows alike; the other columns are shared, the input is left."""
    values = np.random.default_rng(0).normal(5, 3, 24).astype(np.float32).reshape(shape)
    batch = Batch(reward=kind(values.copy()), advantage=kind(values.copy()))
    result = StandardizeFields(["advantage"])(batch)
    assert type(result.advantage) is type(batch.advantage)
    assert result.advantage.dtype == batch.advantage.dtype
    np.testing.assert_allclose(np.asarray(result.advantage), (values - values.mean()) / values.std(), rtol=1e-4)
    assert result.reward is batch.reward
    assert np.array_equal(np.asarray(batch.advantage), values)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_padded_steps_neither_count_nor_stay(kind: Any) -> None:
    """G3, N6: what is in them, NaN included, reaches nothing; they become 0."""
    mask = np.array([[1, 1], [1, 0], [1, 0]])
    values = np.where(mask, [[1.0, 2.0], [3.0, 0], [6.0, 0]], np.nan)
    result = StandardizeFields(["x"])(Batch(x=kind(values), mask=kind(mask))).x
    real = np.array([1.0, 2.0, 3.0, 6.0])
    expected = (real - 3) / real.std()
    np.testing.assert_allclose(np.asarray(result), [[expected[0], expected[1]], [expected[2], 0], [expected[3], 0]])
    nobody = StandardizeFields(["x"])(Batch(x=kind(values), mask=kind(0 * mask))).x
    assert not np.asarray(nobody).any()


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("values", [[0.1], [0.1] * 7, [1e9 + 0.1] * 7, [3, 3], []])
def test_equal_numbers_become_zero(kind: Any, values: list[float]) -> None:
    """G3: a batch of one row gives no NaN, and a rounded mean no spurious deviations."""
    for dtype in (np.float32, np.float64):
        column = kind(np.array(values, dtype))
        assert np.asarray(StandardizeFields(["x"])(Batch(x=column)).x).tolist() == [0] * len(values)


def test_each_feature_and_each_policy_by_itself() -> None:
    """G3."""
    columns = StandardizeFields(["x", "n"])(Batch(x=[[1.0, 100.0], [3.0, 300.0]], n=[1, 2], reward=[0.0, 0.0]))
    np.testing.assert_allclose(columns.x, [[-1, -1], [1, 1]], rtol=1e-6)
    assert columns.n.dtype == np.float32, "whole numbers would be cut"
    policies = MultiAgentBatch({"a": Batch(x=[0.0, 2.0]), "b": Batch(x=[100.0, 200.0])}, env_steps=3)
    both = StandardizeFields(["x"])(policies)
    np.testing.assert_allclose(both["a"].x, both["b"].x, rtol=1e-6)
    assert both.env_steps == 3


def test_fields_that_there_are_not_are_refused() -> None:
    with pytest.raises(SchemaError, match="needs the column 'advantages': did you mean 'advantage'"):
        StandardizeFields(["advantages"])(Batch(advantage=[1.0]))
    with pytest.raises(SchemaError, match="'obs' is a nested batch"):
        StandardizeFields(["obs"])(Batch(obs={"x": [1.0]}))
    with pytest.raises(ValueError, match=r"write \['advantage'\]"):
        StandardizeFields("advantage")


# -- ScaleRewards


@pytest.mark.parametrize(
    "reward", [np.array([[1, -2]]), np.array([[1.0, -2.0]], np.float32), torch.tensor([1.0, -2.0])]
)
def test_rewards_are_scaled_and_nothing_else(reward: Any) -> None:
    """Arrays, tensors and whole numbers; the input and the other columns stay as they are."""
    batch = Batch(reward=reward, value=reward)
    scaled = ScaleRewards(0.25)(batch)
    assert scaled.reward.ravel().tolist() == [0.25, -0.5]
    assert scaled.value is batch.reward is reward
    assert reward.ravel().tolist() == [1, -2]


def test_the_rewards_of_every_policy_are_scaled() -> None:
    both = MultiAgentBatch({"cat": Batch(reward=[2.0]), "mouse": Batch(reward=[4.0, 6.0])}, env_steps=2)
    scaled = ScaleRewards(0.5)(both)
    assert [batch.reward.tolist() for batch in scaled.values()] == [[1.0], [2.0, 3.0]]
    with pytest.raises(SchemaError, match=r"needs the column 'reward': .*'rewards'"):
        ScaleRewards(0.5)(Batch(rewards=[1.0]))
    for scale in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="scale"):
            ScaleRewards(scale)


# -- SelectExperiences


def test_the_named_policies_with_all_env_steps() -> None:
    """M3: through a whole plan, env steps add up to those collected, whoever acted in them."""
    given = [many(2, 2, 1), many(4, 0, 1), many(0, 4, 3)]
    plan = from_items(given).for_each(SelectExperiences(["mouse"])).combine(ConcatBatches(5))
    (only,) = plan
    assert (list(only), only.rows, only.env_steps) == (["mouse"], 6, 5)


def test_a_plain_batch_is_that_of_the_default_policy() -> None:
    batch = fragment((0,))
    assert SelectExperiences(["default_policy", "other"])(batch) is batch
    with pytest.raises(SchemaError, match="belongs to the policy 'default_policy': leave SelectExperiences out, or"):
        SelectExperiences(["mouse"])(batch)
    with pytest.raises(ValueError, match="write"):
        SelectExperiences("mouse")
    with pytest.raises(ValueError, match="policy_ids"):
        SelectExperiences([])


def test_a_batch_is_split_into_rows_of_equal_parts() -> None:
    """N6, F13: time-major, the larger parts first, padded steps in none."""
    fragment = Batch(reward=np.arange(8).reshape(4, 2), mask=np.array([[1, 1], [1, 1], [1, 1], [1, 0]]))
    assert [part.reward.tolist() for part in SplitBatch(3)(fragment)] == [[0, 1, 2], [3, 4], [5, 6]]
    with pytest.raises(SchemaError, match=r"SplitBatch\(3\) got 2 rows"):
        SplitBatch(3)(fragment[:1])


def test_parts_of_at_most_so_many_rows() -> None:
    """N6: real rows count, in their order; of none there is no part."""
    split = SplitBatch(max_rows=3)
    for rows in range(10):
        parts = split(Batch(reward=np.arange(rows)))
        assert [each for part in parts for each in part.reward.tolist()] == list(range(rows))
        assert len(parts) == -(-rows // 3)
        assert all(0 < part.rows <= 3 for part in parts)
    padded = Batch(
        reward=np.arange(8).reshape(4, 2), mask=np.array([[True, True], [True, True], [True, False], [False] * 2])
    )
    assert [part.rows for part in split(padded)] == [3, 2]
    for neither in ({}, {"parts": 2, "max_rows": 2}):
        with pytest.raises(ValueError, match="SplitBatch needs either parts or max_rows, got"):
            SplitBatch(**neither)

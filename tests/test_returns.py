"""Returns against five-line loops that are obviously right, for arrays and tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flowrl.returns import discounted, n_step

GAMMA = 0.5  # powers and small whole rewards are exact in float32, so results are compared exactly


@st.composite
def experience(draw):
    shape = draw(st.one_of(st.tuples(st.integers(1, 9)), st.tuples(st.integers(1, 9), st.integers(1, 3))))
    mask = hnp.arrays(bool, shape, elements=st.sampled_from([False, False, True]))
    reward = draw(hnp.arrays(np.float32, shape, elements=st.integers(-4, 4)))
    return reward, draw(mask), draw(mask)


def window(reward, terminated, truncated, n):
    """The window of the first step of one environment's stream: return, steps, discount."""
    total = 0.0
    for i in range(min(n, len(reward))):
        total += GAMMA**i * reward[i]
        if terminated[i]:
            return total, i + 1, 0.0
        if truncated[i]:
            break
    return total, i + 1, GAMMA ** (i + 1)


@given(experience(), st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_n_step_is_the_loop_over_windows(experience, n):
    """N1, N2, N3, N4, T4: windows stop at ends and at T, sum k rewards, bootstrap with gamma**k unless terminated."""
    columns = [np.reshape(c, (len(c), -1)) for c in experience]
    expected = np.array(
        [[window(*(c[t:, e] for c in columns), n) for e in range(columns[0].shape[1])] for t in range(len(columns[0]))]
    )
    for i, result in enumerate(n_step(*experience, gamma=GAMMA, n=n)):
        np.testing.assert_array_equal(result, expected[..., i].reshape(experience[0].shape))


@given(experience(), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_tensors_give_what_arrays_give(experience, n):
    bootstrap = experience[0] + 7
    tensors = [torch.from_numpy(c) for c in experience]
    for of_array, of_tensor in zip(n_step(*experience, gamma=0.9, n=n), n_step(*tensors, gamma=0.9, n=n)):
        np.testing.assert_array_equal(of_array, of_tensor.numpy())
        assert of_tensor.numpy().dtype == of_array.dtype
    one, other = discounted(*experience, bootstrap, gamma=0.9), discounted(*tensors, tensors[0] + 7, gamma=0.9)
    np.testing.assert_allclose(one, other.numpy(), rtol=1e-6)


@given(experience())
@settings(max_examples=60, deadline=None)
def test_discounted_is_the_recursion(experience):
    """T4, T7: 0 follows a termination, the bootstrap a truncation and the end of the data."""
    reward, terminated, truncated = (np.reshape(c, (len(c), -1)) for c in experience)
    bootstrap = np.arange(reward.size, dtype=np.float32).reshape(reward.shape)

    def total(t, e):
        if terminated[t, e]:
            return reward[t, e]
        if truncated[t, e] or t == len(reward) - 1:
            return reward[t, e] + GAMMA * bootstrap[t, e]
        return reward[t, e] + GAMMA * total(t + 1, e)

    expected = [[total(t, e) for e in range(reward.shape[1])] for t in range(len(reward))]
    result = discounted(reward, terminated, truncated, bootstrap, gamma=GAMMA)
    np.testing.assert_array_equal(result, np.array(expected, np.float32))


NO = np.zeros(3, bool)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_keep_the_dtype_of_the_rewards_and_inputs_stay_unchanged(dtype):
    reward, terminated = np.ones(3, dtype), np.array([False, True, False])
    total, steps, discount = n_step(reward, terminated, NO, gamma=0.9, n=3)
    assert (total.dtype, steps.dtype, discount.dtype) == (dtype, np.int64, dtype)
    assert reward.tolist() == [1, 1, 1]
    assert terminated.tolist() == [False, True, False]


def test_whole_rewards_and_number_masks_are_understood():
    total, steps, discount = n_step(np.array([1, 2, 3]), NO.astype(np.uint8), np.array([0.0, 1.0, 0.0]), gamma=0.5, n=2)
    assert total.dtype == np.float32
    assert (total.tolist(), steps.tolist(), discount.tolist()) == ([2, 2, 3], [2, 1, 1], [0.25, 0.5, 0.5])


def test_what_lies_beyond_an_end_never_leaks_in():
    """N1: not even as NaN."""
    reward, end = np.array([1.0, np.nan]), np.array([True, False])
    assert n_step(reward, end, ~end & False, gamma=0.9, n=2)[0][0] == 1
    assert discounted(reward, end, ~end & False, reward, gamma=0.9)[0] == 1


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="n is 0"):
        n_step(np.ones(3), NO, NO, gamma=0.9, n=0)
    with pytest.raises(AssertionError, match=r"\(3,\), \(2,\)"):
        n_step(np.ones(3), NO[:2], NO, gamma=0.9, n=1)

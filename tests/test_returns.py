"""Returns against five-line loops that are obviously right, for arrays and tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flowrl.returns import discounted, gae, n_step, retrace, td_lambda, v_trace

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
def test_n_step_is_the_loop_over_windows(experience, n):
    """N1, N2, N3, N4, T4: windows stop at ends and at T, sum k rewards, bootstrap with gamma**k unless terminated."""
    columns = [np.reshape(c, (len(c), -1)) for c in experience]
    expected = np.array(
        [[window(*(c[t:, e] for c in columns), n) for e in range(columns[0].shape[1])] for t in range(len(columns[0]))]
    )
    for i, result in enumerate(n_step(*experience, gamma=GAMMA, n=n)):
        np.testing.assert_array_equal(result, expected[..., i].reshape(experience[0].shape))


@given(experience(), st.integers(1, 5))
def test_tensors_give_what_arrays_give(experience, n):
    bootstrap = experience[0] + 7
    tensors = [torch.from_numpy(c) for c in experience]
    for of_array, of_tensor in zip(n_step(*experience, gamma=0.9, n=n), n_step(*tensors, gamma=0.9, n=n)):
        np.testing.assert_array_equal(of_array, of_tensor.numpy())
        assert of_tensor.numpy().dtype == of_array.dtype
    one, other = discounted(*experience, bootstrap, gamma=0.9), discounted(*tensors, tensors[0] + 7, gamma=0.9)
    np.testing.assert_allclose(one, other.numpy(), rtol=1e-6)


@given(experience())
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


@st.composite
def valued_experience(draw):
    """reward, value, next_value, terminated, truncated of one shape, long enough for many passes."""
    shape = draw(st.tuples(st.integers(1, 40), st.integers(1, 3)))
    mask = hnp.arrays(bool, shape, elements=st.sampled_from([False, False, False, True]))
    number = hnp.arrays(np.float32, shape, elements=st.integers(-4, 4))
    return draw(number), draw(number), draw(number), draw(mask), draw(mask)


RATES = st.sampled_from([0.0, 0.5, 0.9, 1.0])


def gae_loop(reward, value, next_value, terminated, truncated, gamma, lam):
    """One environment's advantages, as the paper's recursion has it."""
    advantage, following = np.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        if terminated[t] or truncated[t]:
            following = 0.0
        bootstrap = 0.0 if terminated[t] else next_value[t]
        following = reward[t] + gamma * bootstrap - value[t] + gamma * lam * following
        advantage[t] = following
    return advantage


@given(valued_experience(), RATES, RATES)
def test_gae_is_the_recursion_in_every_environment(experience, gamma, lam):
    """T4, T5, T7, G1: terminated wins; truncations and the end of the data bootstrap; the trace is cut at all three."""
    result = gae(*experience, gamma=gamma, lam=lam)
    for env, column in enumerate(result.T):
        expected = gae_loop(*(c[:, env] for c in experience), gamma, lam)
        np.testing.assert_allclose(column, expected, rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(gae(*(c[:, env] for c in experience), gamma=gamma, lam=lam), column)


@given(valued_experience(), RATES, RATES)
def test_td_lambda_is_the_recursion_in_every_environment(experience, gamma, lam):
    """T4, T5, T7: (1 - lambda) of the value, lambda of what follows; the value alone at an episode's end."""
    reward, _, next_value, terminated, truncated = experience
    result = td_lambda(reward, next_value, terminated, truncated, gamma=gamma, lam=lam)
    for env in range(reward.shape[1]):
        following = None
        for t in reversed(range(len(reward))):
            bootstrap = float(next_value[t, env])
            if following is not None and not truncated[t, env]:
                bootstrap = (1 - lam) * bootstrap + lam * following
            following = reward[t, env] + gamma * (0.0 if terminated[t, env] else bootstrap)
            assert result[t, env] == pytest.approx(following, rel=1e-5, abs=1e-4)


@given(valued_experience(), RATES)
def test_gae_and_td_lambda_are_one_estimate(experience, lam):
    """G2: where the value arrived in is that of the next step, advantage + value is the TD(lambda) target."""
    reward, value, next_value, terminated, truncated = experience
    inside = ~(terminated | truncated)[:-1]
    next_value[:-1] = np.where(inside, value[1:], next_value[:-1])
    advantage = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lam=lam)
    target = td_lambda(reward, next_value, terminated, truncated, gamma=0.9, lam=lam)
    np.testing.assert_allclose(advantage + value, target, rtol=1e-5, atol=1e-4)


@given(valued_experience(), st.randoms(use_true_random=False))
def test_permuting_environments_permutes_columns_and_nothing_else(experience, random):
    """G1: to the last bit."""
    order = random.sample(range(experience[0].shape[1]), experience[0].shape[1])
    advantage = gae(*experience, gamma=0.9, lam=0.8)
    np.testing.assert_array_equal(gae(*(c[:, order] for c in experience), gamma=0.9, lam=0.8), advantage[:, order])


@given(valued_experience())
def test_estimators_take_tensors_too(experience):
    tensors = [torch.from_numpy(c) for c in experience]
    reward, _, next_value, terminated, truncated = range(5)
    for estimator, columns in ((gae, range(5)), (td_lambda, (reward, next_value, terminated, truncated))):
        of_arrays = estimator(*(experience[c] for c in columns), gamma=0.9, lam=0.8)
        of_tensors = estimator(*(tensors[c] for c in columns), gamma=0.9, lam=0.8)
        assert of_tensors.dtype == torch.float32
        np.testing.assert_allclose(of_tensors.numpy(), of_arrays, rtol=1e-5, atol=1e-5)


@st.composite
def old_experience(draw):
    """behaviour_logp, target_logp and `valued_experience` whose values arrived in are those of the next step."""
    reward, value, next_value, terminated, truncated = draw(valued_experience())
    inside = ~(terminated | truncated)[:-1]
    next_value[:-1] = np.where(inside, value[1:], next_value[:-1])
    logp = hnp.arrays(np.float32, reward.shape, elements=st.sampled_from([0.0, -0.5, -1.0, -2.0]))
    return draw(logp), draw(logp), reward, value, next_value, terminated, truncated


LIMITS = st.sampled_from([0.5, 1.0, 2.0, np.inf])


@given(old_experience(), RATES, RATES, LIMITS, LIMITS, LIMITS)
def test_v_trace_is_the_recursion_in_every_environment(experience, gamma, lam, rho_bar, c_bar, rho_pg_bar):
    """V1, V2, T4, T5, T7: weights of errors, traces and advantages; discount 0 at terminated only; cut at every end."""
    limits = {"rho_bar": rho_bar, "c_bar": c_bar, "rho_pg_bar": rho_pg_bar}
    vs, advantage = v_trace(*experience, gamma=gamma, lam=lam, **limits)
    for env in range(vs.shape[1]):
        mu, pi, reward, value, next_value, terminated, truncated = (c[:, env].astype(float) for c in experience)
        error = None  # vs - V of the step after, where it belongs to the same episode
        for t in reversed(range(len(reward))):
            ratio = np.exp(pi[t] - mu[t])
            discount = 0.0 if terminated[t] else gamma
            goes_on = error is not None and not terminated[t] and not truncated[t]
            own = min(rho_bar, ratio) * (reward[t] + discount * next_value[t] - value[t])
            q = next_value[t]
            if goes_on:
                q = lam * (value[t + 1] + error) + (1 - lam) * value[t + 1]
                own += discount * lam * min(c_bar, ratio) * error
            error = own
            weighted = min(rho_pg_bar, ratio) * (reward[t] + discount * q - value[t])
            assert vs[t, env] == pytest.approx(value[t] + error, rel=1e-4, abs=1e-3)
            assert advantage[t, env] == pytest.approx(weighted, rel=1e-4, abs=1e-3)


@given(old_experience(), st.sampled_from([0.5, 1.0]))
def test_v_trace_is_the_sum_of_the_paper(experience, lam):
    """V1: eq. 1 as it is written, from every step to its episode's end, with no recursion."""
    vs, _ = v_trace(*experience, gamma=0.5, lam=lam)
    mu, pi, reward, value, next_value, terminated, truncated = (c[:, 0].astype(float) for c in experience)
    ends = (terminated + truncated) > 0
    ends[-1] = True
    ratio = np.exp(pi - mu)
    for s in range(len(reward)):
        last = s + int(ends[s:].argmax())
        total = value[s]
        for t in range(s, last + 1):
            error = min(1, ratio[t]) * (reward[t] + 0.5 * (1 - terminated[t]) * next_value[t] - value[t])
            total += 0.5 ** (t - s) * np.prod(lam * np.minimum(1, ratio[s:t])) * error
        assert vs[s, 0] == pytest.approx(total, rel=1e-4, abs=1e-3)


@given(old_experience(), RATES)
def test_v_trace_on_policy_is_gae(experience, lam):
    """V1: with the same log-probabilities vs is the TD(lambda) target; with lambda = 1 the advantage is vs - V."""
    _, logp, reward, value, next_value, terminated, truncated = experience
    vs, _ = v_trace(logp, logp, *experience[2:], gamma=0.9, lam=lam)
    target = td_lambda(reward, next_value, terminated, truncated, gamma=0.9, lam=lam)
    np.testing.assert_allclose(vs, target, rtol=1e-4, atol=1e-3)
    vs, advantage = v_trace(logp, logp, *experience[2:], gamma=0.9)
    np.testing.assert_allclose(advantage, gae(*experience[2:], gamma=0.9, lam=1.0), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(vs, advantage + value, rtol=1e-4, atol=1e-3)


@given(old_experience(), RATES, RATES)
def test_retrace_is_the_recursion_in_every_environment(experience, gamma, lam):
    """T4, T5, T7: the weight is that of the next action; ends bootstrap from what they arrive in, and cut."""
    mu, pi, reward, q, arrived, terminated, truncated = experience
    result = retrace(q, arrived, mu, pi, reward, terminated, truncated, gamma=gamma, lam=lam)
    for env in range(reward.shape[1]):
        following = None
        for t in reversed(range(len(reward))):
            bootstrap = float(arrived[t, env])
            if following is not None and not truncated[t, env]:
                weight = lam * min(1.0, np.exp(float(pi[t + 1, env]) - float(mu[t + 1, env])))
                bootstrap += weight * (following - float(q[t + 1, env]))
            following = float(reward[t, env]) + gamma * (0.0 if terminated[t, env] else bootstrap)
            assert result[t, env] == pytest.approx(following, rel=1e-4, abs=1e-3)


def of_old(estimator, *columns):
    """V-trace or Retrace of (behaviour_logp, target_logp, reward, value, next_value, terminated, truncated)."""
    mu, pi, reward, value, next_value, terminated, truncated = columns
    if estimator is v_trace:
        return v_trace(*columns, gamma=0.9, lam=0.8)
    return (retrace(value, next_value, mu, pi, reward, terminated, truncated, gamma=0.9, lam=0.8),)


@pytest.mark.parametrize("estimator", [v_trace, retrace])
@given(experience=old_experience(), random=st.randoms(use_true_random=False))
def test_estimators_of_old_experience_take_tensors_and_one_environment(estimator, experience, random):
    """G1: environments permute to the last bit; [T] alone; the inputs stay as they are."""
    before = [c.copy() for c in experience]
    order = random.sample(range(experience[0].shape[1]), experience[0].shape[1])
    tensors = of_old(estimator, *(torch.from_numpy(c) for c in experience))
    results = of_old(estimator, *experience)
    for result, tensor, permuted, alone in zip(
        results,
        tensors,
        of_old(estimator, *(c[:, order] for c in experience)),
        of_old(estimator, *(c[:, 0] for c in experience)),
    ):
        assert (result.dtype, tensor.dtype) == (np.float32, torch.float32)
        np.testing.assert_allclose(tensor.numpy(), result, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(result[:, order], permuted)
        np.testing.assert_array_equal(result[:, 0], alone)
    for one, other in zip(experience, before):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("estimator", [v_trace, retrace])
@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_old_experience_beyond_an_end_does_not_leak_in(estimator, kind):
    """T5, V1: not even as NaN, nor through a weight; probabilities far apart overflow nowhere."""
    nan, ends = np.nan, np.array([0, 1, 0, 0])
    experience = [np.array(c, np.float32) for c in ([-200, 0, nan, nan], [0, -200, nan, 0], [1, 1, nan, nan])]
    experience += [np.array([1, 1, nan, 0], np.float32), np.array([1, 2 if kind == "truncated" else nan, nan, nan])]
    flags = (ends, 0 * ends) if kind == "terminated" else (0 * ends, ends)
    results = of_old(estimator, *experience, *flags)
    assert all(np.isfinite(result[:2]).all() for result in results)
    assert of_old(estimator, *(c[:2] for c in (*experience, *flags)))[0].tolist() == results[0][:2].tolist()


NO = np.zeros(3, bool)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_estimators_keep_the_dtype_of_the_rewards_and_leave_their_inputs(dtype):
    """Whatever the values' dtype; whole rewards count as float32."""
    reward, value, end = np.ones(3, dtype), np.ones(3, np.float32), np.array([0, 1, 0], np.uint8)
    expected = np.float32 if dtype is np.int64 else dtype
    for result in (
        gae(reward, value, value, end, NO, gamma=0.9, lam=0.8),
        gae(reward, value.astype(np.float64), value, NO, end, gamma=0.9, lam=0.8),
        td_lambda(reward, value, end, NO, gamma=0.9, lam=0.8),
    ):
        assert result.dtype == expected
        assert result.shape == (3,)
    assert (reward.tolist(), value.tolist(), end.tolist()) == ([1, 1, 1], [1, 1, 1], [0, 1, 0])


@pytest.mark.parametrize("nan", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_estimates_of_an_episode_ignore_the_one_after(nan, kind):
    """T5: not even as NaN; nor does the value arrived in where the episode terminated."""
    ends = {"terminated": np.zeros(4), "truncated": np.zeros(4), kind: np.array([0, 1, 0, 0])}
    reward, next_value = np.array([1, 1, nan, nan]), np.array([2, 2 if kind == "truncated" else nan, nan, nan])
    advantage = gae(reward, np.array([1, 1, 0, 0]), next_value, **ends, gamma=0.5, lam=0.5)
    target = td_lambda(reward, next_value, **ends, gamma=0.5, lam=0.5)
    last = 1.0 if kind == "truncated" else 0.0  # 1 + 0.5 * 2 - 1, or 1 - 1
    assert advantage[:2].tolist() == [1 + 0.25 * last, last]
    assert target[:2].tolist() == [1 + 0.5 * (1 + 0.5 * (1 + last)), 1 + last]


def test_no_steps_give_no_estimates():
    none = np.zeros((0, 2), np.float32)
    assert gae(none, none, none, none, none, gamma=0.9, lam=0.8).shape == (0, 2)


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


def test_a_window_of_any_length_takes_the_memory_of_the_data():
    class Rate(float):
        def __pow__(self, steps):
            assert steps <= 3
            return float(self) ** steps

    assert n_step(np.ones(3), NO, NO, gamma=Rate(0.5), n=10**6)[2].tolist() == [0.125, 0.25, 0.5]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="n is 0"):
        n_step(np.ones(3), NO, NO, gamma=0.9, n=0)
    with pytest.raises(AssertionError, match=r"\(3,\), \(2,\)"):
        n_step(np.ones(3), NO[:2], NO, gamma=0.9, n=1)
    with pytest.raises(AssertionError, match=r"\(3,\), \(3,\), \(2,\)"):
        gae(np.ones(3), np.ones(3), np.ones(2), NO, NO, gamma=0.9, lam=0.8)
    with pytest.raises(AssertionError, match=r"columns are \[T, N\] or \[T\], not \(1, 2, 3\)"):
        discounted(*[np.ones((1, 2, 3))] * 4, gamma=0.9)
    with pytest.raises(AssertionError, match=r"\(3,\), \(3, 1\)"):
        td_lambda(np.ones(3), np.ones((3, 1)), NO, NO, gamma=0.9, lam=0.8)


def test_rates_may_be_numbers_of_numpy():
    """As an array of settings, or a sweep over numpy.linspace, gives them."""
    no, ones = np.zeros(4, bool), np.ones(4, np.float32)
    found = gae(ones, ones, ones, no, no, gamma=np.float32(0.5), lam=np.float32(0.5))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, gae(ones, ones, ones, no, no, gamma=0.5, lam=0.5))


@given(valued_experience(), st.data(), st.integers(1, 5))
def test_a_discount_of_each_step_takes_the_place_of_gamma(experience, data, n):
    """M10: as the loop over steps has it, each with a discount of its own; arrays and tensors alike."""
    reward, value, next_value, terminated, truncated = experience
    each = data.draw(hnp.arrays(np.float32, reward.shape, elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])))
    windows, discounts = np.zeros(reward.shape), np.zeros(reward.shape)
    advantage, target, return_ = np.zeros(reward.shape), np.zeros(reward.shape), np.zeros(reward.shape)
    for e in range(reward.shape[1]):
        for t in reversed(range(len(reward))):
            last = terminated[t, e] or truncated[t, e] or t == len(reward) - 1
            gamma, arrived = each[t, e], 0.0 if terminated[t, e] else next_value[t, e]
            advantage[t, e] = reward[t, e] + gamma * arrived - value[t, e]
            target[t, e] = return_[t, e] = reward[t, e] + gamma * arrived
            if not last:
                advantage[t, e] += gamma * 0.5 * advantage[t + 1, e]
                target[t, e] = reward[t, e] + gamma * (0.5 * arrived + 0.5 * target[t + 1, e])
                return_[t, e] = reward[t, e] + gamma * return_[t + 1, e]
            discounts[t, e] = 1.0
            for i in range(t, min(t + n, len(reward))):
                windows[t, e] += discounts[t, e] * reward[i, e]
                discounts[t, e] *= each[i, e] * (not terminated[i, e])
                if terminated[i, e] or truncated[i, e]:
                    break
    ends = terminated, truncated
    for kind in (np.asarray, torch.from_numpy):
        of = [kind(column) for column in (reward, value, next_value, *ends, each)]
        found = n_step(of[0], *of[3:5], gamma=of[5], n=n)
        close = {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(found[0], windows, **close)
        np.testing.assert_allclose(found[2], discounts, **close)
        np.testing.assert_allclose(gae(*of[:5], gamma=of[5], lam=0.5), advantage, **close)
        np.testing.assert_allclose(td_lambda(of[0], of[2], *of[3:5], gamma=of[5], lam=0.5), target, **close)
        np.testing.assert_allclose(discounted(of[0], *of[3:5], of[2], gamma=of[5]), return_, **close)
        zero = of[0] * 0
        vs, _ = v_trace(zero, zero, *of[:5], gamma=of[5], lam=0.5)
        np.testing.assert_allclose(vs, advantage + value, **close)

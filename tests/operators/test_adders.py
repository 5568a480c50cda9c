"""Adders: tables of exact samples, and the loops over an episode that are obviously right."""

import copy
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data.batch import Batch
from flowrl.data.steps import joined, one_step_windows
from flowrl.engine.context import Context
from flowrl.engine.operator import state_fields
from flowrl.errors import SchemaError
from flowrl.operators.adders import GAE, NStep
from flowrl.rollout import WorkerSet
from tests import episodes
from tests.scripted import ScriptedPolicy

GAMMA = 0.5  # exact in float32


def fragment(ends, start=0, envs=(0,), **more):
    """One string per environment: `.` goes on, `T` terminated, `t` truncated, `*` both. Step s is obs s, reward s + 1.

    Observations of environment e are e * 100 + s, so every row can be told from every other.
    """
    marks = np.array([list(row) for row in ends]).T
    clock = start + np.arange(len(marks))[:, None] + 0 * np.arange(len(ends))
    obs = clock + 100 * np.array(envs)
    return Batch(
        obs=obs,
        action=-obs,
        reward=(clock + 1).astype(np.float32),
        next_obs=obs + 1,
        **episodes.flags(marks),
        **more,
    )


def table(batches):
    """(obs, reward, next_obs, terminated, truncated, discount) of every row."""
    names = ("obs", "reward", "next_obs", "terminated", "truncated", "discount")
    return [row for b in batches for row in zip(*(b[name].tolist() for name in names))]


def run(adder, fragments):
    return table([*(adder(f) for f in fragments), *adder.finish()])


# Rewards are 1, 2, 3 ...: a window of three from step 0 is 1 + 2/2 + 3/4 = 2.75.
EPISODES = {
    "in the middle of an episode (N4)": (
        ["...."],
        [
            (0, 2.75, 3, False, False, 0.125),
            (1, 4.5, 4, False, False, 0.125),
            (2, 5.0, 4, False, False, 0.25),
            (3, 4.0, 4, False, False, 0.5),
        ],
    ),
    "terminated: no bootstrap (N3)": (
        ["..T"],
        [(0, 2.75, 3, True, False, 0.0), (1, 3.5, 3, True, False, 0.0), (2, 3.0, 3, True, False, 0.0)],
    ),
    "truncated: bootstrap with gamma**k (N2, N3)": (
        [".t"],
        [(0, 2.0, 2, False, True, 0.25), (1, 2.0, 2, False, True, 0.5)],
    ),
    "both: terminated wins (T4)": (
        [".*"],
        [(0, 2.0, 2, True, True, 0.0), (1, 2.0, 2, True, True, 0.0)],
    ),
    "the next episode is another one (N1)": (
        ["Tt"],
        [(0, 1.0, 1, True, False, 0.0), (1, 2.0, 2, False, True, 0.5)],
    ),
}


@pytest.mark.parametrize("name", EPISODES)
@pytest.mark.parametrize("cut", [1, 2, 9])
def test_table_of_transitions(name, cut):
    """N1, N2, N3, N4, T4, F18: the same rows however the episode is cut into fragments (N8)."""
    (marks,), expected = EPISODES[name]
    fragments = [fragment([marks[i : i + cut]], start=i) for i in range(0, len(marks), cut)]
    adder, given = NStep(n=3, gamma=GAMMA), 0
    for each in fragments:
        given += each.rows - adder(each).rows
        assert adder.held_rows == given, "F18: what it will emit later is lost with its worker"
    assert sorted(run(NStep(n=3, gamma=GAMMA), fragments)) == expected


def test_rows_come_as_soon_as_they_are_complete_by_time_then_environment():
    """N8: a row waits for its window and for nothing else."""
    adder = NStep(n=2, gamma=GAMMA)
    assert [row[0] for row in table([adder(fragment([".", "T"], envs=(0, 1)))])] == [100]
    assert [row[0] for row in table([adder(fragment(["..", ".."], 1, envs=(0, 1)))])] == [0, 1, 101]
    assert [row[0] for row in table(adder.finish())] == [2, 102]
    assert adder.finish() == []


def test_other_columns_are_those_of_the_first_step():
    """N8: nested observations, actions and provenance too."""
    plain = fragment(["..T"])
    b = plain.replace(
        obs={"x": plain.obs[..., None]}, next_obs={"x": plain.next_obs[..., None]}, policy_version=plain.obs
    )
    rows = NStep(n=2, gamma=GAMMA)(b)
    assert list(rows) == [*(n for n in b if n not in ("next_obs", "terminated", "truncated")), *list(rows)[-4:]]
    assert rows.obs.x.tolist() == [[0], [1], [2]]
    assert rows.next_obs.x.tolist() == [[2], [3], [3]]
    assert rows.policy_version.tolist() == [0, 1, 2]
    assert rows.action.tolist() == [0, -1, -2]
    assert (rows.reward.dtype, rows.discount.dtype) == (np.float32, np.float32)


@st.composite
def streams(draw):
    """The marks of some environments, and where their stream is cut into fragments."""
    envs, steps = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    marks = [draw(st.text("...Tt*", min_size=steps, max_size=steps)) for _ in range(envs)]
    cuts = sorted(draw(st.sets(st.integers(1, steps - 1)))) if steps > 1 else []
    return marks, [0, *cuts, steps]


def windows(marks, env, n):
    """The expected rows of one environment, by the definition."""
    for start in range(len(marks)):
        k = next((k for k in range(1, n) if marks[start : start + k][-1] != "." or start + k == len(marks)), n)
        last = start + k - 1
        terminated, truncated = marks[last] in "T*", marks[last] in "t*"
        total = sum(GAMMA**i * (start + i + 1) for i in range(k))
        discount = 0.0 if terminated else GAMMA**k
        yield 100 * env + start, total, 100 * env + last + 1, terminated, truncated, discount


@given(streams(), st.integers(1, 4))
def test_any_stream_in_any_fragments_is_the_loop_over_windows(stream, n):
    """N1, N2, N3, N4, N8, T4: mixed ends, several environments, cut episodes; nothing lost, nothing doubled."""
    marks, cuts = stream
    envs = range(len(marks))
    fragments = [fragment([m[a:b] for m in marks], a, envs) for a, b in pairwise(cuts)]
    before = copy.deepcopy(fragments)
    expected = sorted(row for env in envs for row in windows(marks[env], env, n))
    assert sorted(run(NStep(n=n, gamma=GAMMA), fragments)) == expected
    assert fragments == before, "the input was changed in place"


@given(streams(), st.integers(2, 4))
def test_a_copy_of_the_state_goes_on_alike(stream, n):
    """D3, D5: the open rows are all the state there is, and reused input arrays do not reach into it."""
    marks, cuts = stream
    fragments = [fragment([m[a:b] for m in marks], a, range(len(marks))) for a, b in pairwise(cuts)]
    adder, again = NStep(n=n, gamma=GAMMA), NStep(n=n, gamma=GAMMA)
    adder(reused := copy.deepcopy(fragments[0]))
    again.tails = copy.deepcopy(adder.tails)
    reused.obs[:] = -1
    assert run(again, fragments[1:]) == run(adder, fragments[1:])


def test_workers_may_take_turns():
    """N1, N8: rows of two workers never meet in one window, and none is cut short by the other."""

    def of(worker, start):
        ids = {"worker": np.full((2, 1), worker), "env_id": np.zeros((2, 1), int)}
        return fragment([".."], start, (worker,), **ids)

    adder = NStep(n=3, gamma=GAMMA)
    rows = run(adder, [of(0, 0), of(1, 0), of(0, 2), of(1, 2)])
    assert sorted(rows) == sorted([*windows("....", 0, 3), *windows("....", 1, 3)])


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
@pytest.mark.parametrize("column", [{"episode_id": [7, 7, 8, 8]}, {"t": [5, 6, 0, 1]}])
def test_a_window_stops_where_an_episode_went_missing(cut, column):
    """N1, N2: an environment made anew after its worker died; its last episode was neither terminated nor truncated."""
    whole = fragment(["...."], **{name: np.array(values)[:, None] for name, values in column.items()})
    rows = run(NStep(n=3, gamma=GAMMA), [whole[:cut], whole[cut:]] if cut < 4 else [whole])
    short = [(0, 2.0, 2, False, False, 0.25), (1, 2.0, 2, False, False, 0.5)]
    assert sorted(rows) == [*short, (2, 5.0, 4, False, False, 0.25), (3, 4.0, 4, False, False, 0.5)]


def test_a_missing_episode_is_emitted_at_once_and_only_once():
    adder = NStep(n=3, gamma=GAMMA)
    assert len(adder(fragment([".."], episode_id=[[7], [7]]))) == 0
    assert table([adder(fragment(["."], 2, episode_id=[[8]]))])[0][0] == 0
    assert [row[0] for row in table([adder(fragment(["."], 3, episode_id=[[8]])), *adder.finish()])] == [2, 3]


@pytest.mark.parametrize("n", [1, 3])
def test_padded_steps_start_no_window(n):
    """N6: whole episodes come padded, `mask` says which steps are real; what they emit is what they would unpadded."""
    padded = fragment(["..T.", "t...", "...T"], envs=(0, 1, 2))
    mask = np.array([[True, True, True, False], [True, False, False, False], [True] * 4]).T
    rows = run(NStep(n=n, gamma=GAMMA), [padded.replace(mask=mask)] * 2)
    once = [*windows("..T", 0, n), *windows("t", 1, n), *windows("...T", 2, n)]
    assert sorted(rows) == sorted(2 * once)


@given(episodes.streams(), st.integers(1, 4))
def test_windows_stay_in_what_was_delivered_of_an_episode(stream, n):
    """N1, N2, N3, N8, T4, T6: workers that take turns, fragments and ends of episodes that went missing."""
    expected = []
    for run_ in stream.runs:
        for first, step in enumerate(run_.steps):
            held = run_.steps[first : first + n]
            total, last = sum(GAMMA**i * each for i, each in enumerate(held)), held[-1]
            end = run_.end if last == run_.steps[-1] else ""
            terminated, truncated = end in ("T", "*"), end in ("t", "*")
            expected.append((step, total, last + 0.5, terminated, truncated, 0 if terminated else GAMMA ** len(held)))
    got = run(
        NStep(n=n, gamma=GAMMA), [b.replace(obs=b.obs[..., 0], next_obs=b.next_obs[..., 0]) for b in stream.fragments]
    )
    assert sorted(got) == sorted(expected)


def test_padding_after_a_step_ends_its_window():
    """N6, N2: pieces of a long episode are padded without being over; what they arrive in is bootstrapped from."""
    padded = fragment(["....", "...."], envs=(0, 1), mask=np.array([[1, 1, 0, 0], [1, 1, 1, 1]]).T)
    adder = NStep(n=3, gamma=GAMMA)
    got = [row for row in run(adder, [padded]) if row[0] < 100]
    assert got == [*windows("..", 0, 3)]


def test_one_step_is_the_fragment_itself():
    """N8: n=1 copies nothing."""
    b = fragment(["..", "tT"], envs=(0, 1))
    rows = NStep(n=1, gamma=0.5)(b)
    assert np.shares_memory(rows.obs, b.obs)
    assert rows.discount.tolist() == [0.5, 0.5, 0.5, 0.0]
    assert "discount" not in b


def test_what_it_cannot_use_is_refused():
    adder = NStep(n=2, gamma=0.9)
    with pytest.raises(SchemaError, match=r"'next_obs': did you mean 'nextobs'"):
        adder(Batch(reward=np.ones((2, 1)), nextobs=np.ones((2, 1))))
    with pytest.raises(SchemaError, match=r"fragments \[T, N"):
        adder(fragment([".."]).flat())
    with pytest.raises(SchemaError, match="NStep before it"):
        adder(fragment([".."], discount=np.ones((2, 1))))
    adder(fragment([".."]))
    with pytest.raises(SchemaError, match="2 environments, after 1"):
        adder(fragment(["..", ".."], envs=(0, 1)))
    with pytest.raises(ValueError, match="n is 0"):
        NStep(n=0, gamma=0.9)
    with pytest.raises(ValueError, match="gamma is 99"):
        NStep(n=1, gamma=99)


@pytest.mark.parametrize(
    "use",
    [
        NStep(n=2, gamma=0.9),
        GAE(gamma=0.9, lam=0.9),
        lambda batch: one_step_windows(batch, 0.9),
        lambda batch: one_step_windows(batch[0], 0.9),
        lambda batch: joined([batch, batch]),
    ],
)
def test_several_rewards_per_step_are_refused_with_the_way_out(use):
    several = fragment(["...T"], value=np.ones((4, 1)), next_value=np.ones((4, 1)))
    several.reward = np.stack([several.reward] * 2, -1)
    with pytest.raises(SchemaError, match="expected one reward per step; weigh them first"):
        use(several)
    assert use(several.replace(reward=several.reward @ np.array([1.0, 0.5]))).rows


def test_only_the_open_rows_are_state():
    assert state_fields(NStep(n=3, gamma=0.9)) == ["tails", "open"]
    adder = NStep(n=3, gamma=0.9)
    adder(fragment(["." * 50]))
    (tail,) = adder.tails.values()
    assert tail.obs.shape == (2, 1)
    assert tail.obs.base is None, "a view would keep the whole fragment alive"


# -- GAE

# Every reward is 1. The value acted from is 2, the one arrived in 4, so with gamma 1/2 an error is 1 + 2 - 2 = 1 where
# it bootstraps and 1 - 2 = -1 where the episode terminated; with lambda 1/2 a quarter of what follows is added.
ADVANTAGES = {
    "a fragment that ends inside an episode bootstraps (T7)": (["..."], {}, [1.3125, 1.25, 1.0]),
    "terminated: no bootstrap": (["..T"], {}, [1.1875, 0.75, -1.0]),
    "truncated: bootstrap, and the trace is cut (T5)": ([".t."], {}, [1.25, 1.0, 1.0]),
    "both: terminated wins (T4)": ([".*."], {}, [0.75, -1.0, 1.0]),
    "the next episode is another one": (["T.T"], {}, [-1.0, 0.75, -1.0]),
    "an episode that went missing": (["..."], {"episode_id": [[7], [8], [8]]}, [1.0, 1.25, 1.0]),
    "padded after its end (N6)": (["T.."], {"mask": [[1], [0], [0]]}, [-1.0, 0.0, 0.0]),
    "padded inside an episode (N6)": (["..."], {"mask": [[1], [1], [0]]}, [1.25, 1.0, 0.0]),
}


def valued(ends, **more):
    """As `fragment`, with the rewards and values of the table."""
    b = fragment(ends, envs=range(len(ends)), **more)
    one = np.ones(b.reward.shape, np.float32)
    return b.replace(reward=one, value=2 * one, next_value=4 * one)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_table_of_advantages(name):
    """T4, T5, T7, N6, G2: target = advantage + value; the other columns are shared."""
    ends, more, expected = ADVANTAGES[name]
    b = valued(ends, **{column: np.array(values) for column, values in more.items()})
    rows = GAE(gamma=0.5, lam=0.5)(b)
    assert rows.advantage.tolist() == [[number] for number in expected]
    real = np.ravel(more.get("mask", [1, 1, 1]))
    assert rows.target.tolist() == [[number + 2 if r else 0] for number, r in zip(expected, real)]
    assert list(rows) == [*b, "advantage", "target"]
    assert all(rows[column] is b[column] for column in b)
    assert (rows.advantage.dtype, rows.target.dtype) == (np.float32, np.float32)


def test_environments_have_nothing_to_do_with_each_other():
    """G1: permuting them permutes columns and nothing else; what one diverges to stays its own."""
    adder, ends = GAE(gamma=0.9, lam=0.8), [".t..", "....", "..T.", "T*.."]
    b = valued(ends)
    b["value"] = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    rows, order = adder(b), [2, 0, 3, 1]
    assert adder(b[:, order]) == rows[:, order]
    b.reward[1, 1] = np.nan
    clean = [0, 2, 3]
    assert adder(b)[:, clean] == rows[:, clean]
    assert np.isnan(adder(b).advantage[:, 1]).tolist() == [True, True, False, False]


def test_padding_reaches_nothing_whatever_it_holds():
    """N6, T5: NaN in every column of a padded step."""
    b = valued(["..t.", "..T.", "T..."], mask=np.array([[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 0]]).T)
    clean = GAE(gamma=0.9, lam=0.8)(b)
    for name in ("reward", "value", "next_value"):
        b[name] = np.where(b.mask, b[name], np.nan)
    rows = GAE(gamma=0.9, lam=0.8)(b)
    assert rows.select(["advantage", "target"]) == clean.select(["advantage", "target"])


def test_whole_episodes_and_fragments_of_a_worker_agree():
    """T5, T7, N6: CartPole's episodes collected whole and padded, against the recursion over each."""
    with WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(with_value=True), envs_per_worker=3) as workers:
        workers.start(Context())
        for b in (workers.local.sample(40), workers.local.sample(episodes=5)):
            rows = GAE(gamma=0.9, lam=0.8)(b)
            for env in range(b.reward.shape[1]):
                following = 0.0
                for t in reversed(range(int(b.mask[:, env].sum()) if "mask" in b else 40)):
                    step = b[t, env]
                    if step.terminated or step.truncated:
                        following = 0.0
                    bootstrap = 0.0 if step.terminated else 0.9 * step.next_obs[-1]
                    following = step.reward + bootstrap - step.obs[-1] + 0.9 * 0.8 * following
                    assert rows.advantage[t, env] == pytest.approx(following, rel=1e-4, abs=1e-4)


def test_what_gae_cannot_use_is_refused():
    b = valued([".."])
    adder = GAE(gamma=0.9, lam=0.8)
    with pytest.raises(SchemaError, match="GAE needs the column 'value': collect with a policy that records values"):
        adder(fragment([".."]))
    with pytest.raises(SchemaError, match=r"GAE needs the column 'next_value': .* workers then add"):
        adder(b.select([name for name in b if name != "next_value"]))
    with pytest.raises(SchemaError, match="GAE needs the column 'truncated': did you mean"):
        adder(b.select([name for name in b if name != "truncated"]))
    with pytest.raises(SchemaError, match=r"GAE needs fragments \[T, N, ...\] in the order of time, not Batch\[2\]"):
        adder(b.flat())
    with pytest.raises(SchemaError, match="'advantage', which exists already: is there a GAE or VTrace before it"):
        adder(adder(b))
    with pytest.raises(ValueError, match="gamma is 99"):
        GAE(gamma=99, lam=0.9)
    with pytest.raises(ValueError, match="lam is -1"):
        GAE(gamma=0.9, lam=-1)

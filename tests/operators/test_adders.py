"""NStep: tables of exact transitions, and the loop over windows that is obviously right."""

import copy
from itertools import pairwise

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.data.batch import Batch
from flowrl.errors import SchemaError
from flowrl.operators.adders import NStep

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
        terminated=np.isin(marks, ["T", "*"]),
        truncated=np.isin(marks, ["t", "*"]),
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
    """N1, N2, N3, N4, T4: the same rows however the episode is cut into fragments (N8)."""
    (marks,), expected = EPISODES[name]
    fragments = [fragment([marks[i : i + cut]], start=i) for i in range(0, len(marks), cut)]
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
@settings(max_examples=80, deadline=None)
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
@settings(max_examples=30, deadline=None)
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
    with pytest.raises(SchemaError, match="NStep before this"):
        adder(fragment([".."], discount=np.ones((2, 1))))
    adder(fragment([".."]))
    with pytest.raises(SchemaError, match="2 environments, after 1"):
        adder(fragment(["..", ".."], envs=(0, 1)))
    with pytest.raises(ValueError, match="n is 0"):
        NStep(n=0, gamma=0.9)
    with pytest.raises(ValueError, match="gamma is 99"):
        NStep(n=1, gamma=99)


def test_only_the_open_rows_are_state():
    names = [field.name for field in attrs.fields(NStep) if not field.init]
    assert names == ["tails"]
    adder = NStep(n=3, gamma=0.9)
    adder(fragment(["." * 50]))
    (tail,) = adder.tails.values()
    assert tail.obs.shape == (2, 1)
    assert tail.obs.base is None, "a view would keep the whole fragment alive"

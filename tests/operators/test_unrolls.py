"""Unroll and Episodes: named tables, and the loops over episodes that are obviously right."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import from_items
from flowrl.data import Batch
from flowrl.engine.context import Context
from flowrl.errors import PlanError, SchemaError
from flowrl.operators import GAE, Episodes, NStep, ParallelRollouts, TrainOneStep, Unroll
from flowrl.policies import A2CPolicy
from flowrl.rollout import WorkerSet
from tests.episodes import Stream, fragment, streams
from tests.scripted import ScriptedPolicy
from tests.span_model import repeats_last


def columns(batches: list[Batch]) -> list[tuple[list[int], list[int]]]:
    """The numbers of the steps of every column, 0 where padded, and what counts."""
    return [
        (b.reward[:, i].astype(int).tolist(), b.mask[:, i].astype(int).tolist())
        for b in batches
        for i in range(b.reward.shape[1])
    ]


def run(adder: Any, fragments: list[Batch]) -> list[Batch]:
    return [*(adder(each) for each in fragments), *adder.finish()]


def cut(whole: Batch, length: int) -> list[Batch]:
    return [whole[i : i + length] for i in range(0, len(whole), length)]


# -- Unroll

# The steps of the stream are 1, 2, 3 ...; a sequence is its steps, 0 where padded, and its mask.
SEQUENCES: dict[str, tuple[str, dict[str, Any], list[tuple[list[int], list[int]]]]] = {
    "drop": ("....T", {"length": 2}, [([1, 2], [1, 1]), ([3, 4], [1, 1])]),
    "last overlaps with the piece before": (
        "....T",
        {"length": 2, "last": "last"},
        [([1, 2], [1, 1]), ([3, 4], [1, 1]), ([4, 5], [1, 1])],
    ),
    "pad": (
        "....T",
        {"length": 2, "last": "pad"},
        [([1, 2], [1, 1]), ([3, 4], [1, 1]), ([5, 0], [1, 0])],
    ),
    "shorter than one, last: padded": (".T", {"length": 3, "last": "last"}, [([1, 2, 0], [1, 1, 0])]),
    "shorter than one, drop": (".T", {"length": 3}, []),
    "nothing is left over": ("...t", {"length": 2, "last": "last"}, [([1, 2], [1, 1]), ([3, 4], [1, 1])]),
    "never across episodes": (
        ".T...t",
        {"length": 3, "last": "pad"},
        [([1, 2, 0], [1, 1, 0]), ([3, 4, 5], [1, 1, 1]), ([6, 0, 0], [1, 0, 0])],
    ),
    "nor across one that went missing": ("..x.T", {"length": 2}, [([1, 2], [1, 1]), ([4, 5], [1, 1])]),
    "overlap": ("...T", {"length": 2, "overlap": 1}, [([1, 2], [1, 1]), ([2, 3], [1, 1]), ([3, 4], [1, 1])]),
    "burn-in, and none where the episode begins": (
        ".....T",
        {"length": 2, "burn_in": 1},
        [([1, 2, 3], [1, 1, 1]), ([3, 4, 5], [0, 1, 1])],
    ),
    "burn-in, last": (
        ".....T",
        {"length": 2, "burn_in": 1, "last": "last"},
        [([1, 2, 3], [1, 1, 1]), ([3, 4, 5], [0, 1, 1]), ([4, 5, 6], [0, 1, 1])],
    ),
    "burn-in, pad": (
        ".....T",
        {"length": 2, "burn_in": 1, "last": "pad"},
        [([1, 2, 3], [1, 1, 1]), ([3, 4, 5], [0, 1, 1]), ([5, 6, 0], [0, 1, 0])],
    ),
    "the stream is over inside an episode": ("...", {"length": 2, "last": "pad"}, [([1, 2], [1, 1]), ([3, 0], [1, 0])]),
}


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_table_of_sequences(name: str, length: int) -> None:
    """N6, N7: the same however the stream is cut into fragments."""
    marks, settings_, expected = SEQUENCES[name]
    assert columns(run(Unroll(**settings_), cut(fragment([marks]), length))) == expected


def sequences(stream: Stream, length: int, last: str, burn_in: int, overlap: int) -> Any:
    """The expected sequences, run by run: a window moves over its steps, then what is left is dealt with."""
    whole = burn_in + length
    for each in stream.runs:
        steps, begin, covered = each.steps, 0, 0
        windows = []
        while begin + whole <= len(steps):
            windows.append((begin, steps[begin : begin + whole]))
            covered, begin = begin + whole, begin + length - overlap
        if covered < len(steps) and last == "pad":
            windows.append((begin, steps[begin:]))
        if covered < len(steps) and last == "last":
            windows.append((max(0, len(steps) - whole), steps[-whole:]))
        for first, window in windows:
            warm_up = 0 if each.t == first == 0 else burn_in
            mask = [int(warm_up <= i < len(window)) for i in range(whole)]
            if any(mask):
                yield window + [0] * (whole - len(window)), mask


@given(streams(), st.integers(1, 4), st.sampled_from(["drop", "last", "pad"]), st.integers(0, 3), st.data())
def test_any_stream_gives_the_windows_over_its_runs(
    stream: Stream, length: int, last: Any, burn_in: int, data: st.DataObject
) -> None:
    """N6, N7, T7, T8: mixed ends, lost fragments, workers that take turns; the input is left alone."""
    overlap = data.draw(st.integers(0, length - 1))
    before = copy.deepcopy(stream.fragments)
    got = run(Unroll(length, last, burn_in, overlap), [each.replace() for each in stream.fragments])
    assert sorted(columns(got)) == sorted(sequences(stream, length, last, burn_in, overlap))
    assert stream.fragments == before, "the input was changed in place"
    for b in got:
        real = b.reward != 0
        assert (b.state.h[..., 0] == -b.reward).all(), "every step has its own recurrent state, so the first too (T8)"
        assert (b.obs[..., 0][real] == b.reward[real]).all()
        assert repeats_last(b.obs, real)
        assert (b.next_obs[..., 0][real] == b.reward[real] + 0.5).all()
        assert not (b.mask & ~real).any()


@given(streams(lossy=False), st.integers(1, 4), st.integers(0, 3))
def test_every_step_counts_once(stream: Stream, length: int, burn_in: int) -> None:
    """N6, N7: padded steps and those of the burn-in count in no mean, the others once, whatever the burn-in."""
    got = run(Unroll(length, "pad", burn_in), stream.fragments)
    counted = sorted(number for b in got for number in b.reward[b.mask].tolist())
    assert counted == sorted(number for each in stream.fragments for number in each.reward.ravel().tolist())


@given(streams(), st.sampled_from(["drop", "last", "pad"]), st.integers(0, 2))
def test_a_copy_of_the_state_goes_on_alike(stream: Stream, last: Any, burn_in: int) -> None:
    """D3: what is held is all the state there is, and reused input arrays do not reach into it."""
    middle = len(stream.fragments) // 2
    for make in (lambda: Unroll(2, last, burn_in), lambda: Episodes()):
        adder, again = make(), make()
        for each in stream.fragments[:middle]:
            adder(reused := copy.deepcopy(each))
            reused.reward[:] = -1
        again.held, again.running = copy.deepcopy((adder.held, adder.running))
        assert run(again, stream.fragments[middle:]) == run(adder, stream.fragments[middle:])


def test_what_is_held_is_bounded() -> None:
    """N7: a stream that never ends keeps no more than the next sequence needs."""
    for last in ("drop", "last", "pad"):
        adder = Unroll(4, last, burn_in=2, overlap=1)
        for part in cut(fragment(["." * 200]), 5):
            adder(part)
            assert len(adder.held) <= 9


def test_padding_that_comes_in_is_not_there() -> None:
    """N6: padded episodes give what they would give unpadded."""
    padded = fragment(["..T..", "....T"]).replace(mask=np.array([[1, 1, 1, 0, 0], [1] * 5]).T)
    got = columns(run(Unroll(2, "pad"), [padded]))
    assert got == [
        ([1, 2], [1, 1]),
        ([3, 0], [1, 0]),
        ([1001, 1002], [1, 1]),
        ([1003, 1004], [1, 1]),
        ([1005, 0], [1, 0]),
    ]


def test_advantages_of_sequences_are_bootstrapped_at_their_ends() -> None:
    """T7, N6: GAE after Unroll; padding reaches nothing."""
    whole = fragment(["....T"])
    rows = Unroll(2, "pad")(whole.replace(value=whole.reward, next_value=whole.reward + 1))
    with_advantage = GAE(0.5, 1.0)(rows)
    delta = lambda r, bootstrap: r + 0.5 * bootstrap - r  # noqa: E731
    expected = [[delta(1, 2) + 0.5 * delta(2, 3), delta(2, 3)], [delta(3, 4) + 0.5 * delta(4, 5), delta(4, 5)], [0, 0]]
    assert with_advantage.advantage.T.tolist() == expected


def test_what_cannot_be_unrolled_is_refused() -> None:
    whole = fragment(["..T"])
    with pytest.raises(SchemaError, match=r"Unroll needs fragments \[T, N"):
        Unroll(2)(whole.flat())
    with pytest.raises(SchemaError, match="Unroll needs the column 'truncated'"):
        Unroll(2)(whole.select(["reward", "terminated"]))
    with pytest.raises(ValueError, match="overlap is 2"):
        Unroll(2, overlap=2)
    for bad in ({"length": 0}, {"length": 1, "last": "keep"}, {"length": 1, "burn_in": -1}):
        with pytest.raises(ValueError, match=r"length|last|burn_in"):
            Unroll(**bad)
    bare = [name for name in whole if name not in ("worker", "env_id")]
    adder = Unroll(2)
    adder(fragment(["."]).select(bare))
    with pytest.raises(SchemaError, match="no column env_id tells which is which"):
        adder(fragment([".", "."]).select(bare))


# -- Episodes

WHOLE: dict[str, tuple[list[str], list[list[int]]]] = {
    "one by one": (["..T.t"], [[1, 2, 3], [4, 5]]),
    "both ends at once": ([".*.."], [[1, 2]]),
    "several environments": (["..T", ".T."], [[1, 2, 3], [1001, 1002]]),
    "one that went missing": ([".x.T"], [[3, 4]]),
    "one that has not ended": (["...."], []),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_table_of_episodes(name: str, length: int) -> None:
    """H5, N6: unfinished episodes are left out."""
    marks, expected = WHOLE[name]
    got = run(Episodes(), cut(fragment(marks), length))
    assert sorted([n for n in steps if n] for steps, _ in columns(got)) == sorted(expected)


@given(streams(), st.one_of(st.none(), st.integers(1, 5)))
def test_any_stream_gives_its_whole_episodes(stream: Stream, size: int | None) -> None:
    """H5, N6: of what is incomplete nothing; of long ones pieces, all full but the last."""
    expected, dropped = [], 0
    for each in stream.runs:
        pieces = [each.steps] if size is None else [each.steps[i : i + size] for i in range(0, len(each.steps), size)]
        whole = each.t == 0 and each.end
        dropped += not whole
        if each.t == 0:
            expected += [piece for piece in pieces if whole or len(piece) == size]
    before = copy.deepcopy(stream.fragments)
    adder = Episodes(size)
    got = run(adder, stream.fragments)
    assert sorted(steps[: sum(mask)] for steps, mask in columns(got)) == sorted(expected)
    assert adder.context.counters.get("episodes_dropped", 0) == dropped
    assert stream.fragments == before, "the input was changed in place"
    for b in got:
        lengths = b.mask.sum(0)
        assert b.mask.shape[0] == max(lengths, default=0), "no longer than the longest"
        assert (b.mask == (np.arange(len(b.mask))[:, None] < lengths)).all(), "padding comes last"
        assert repeats_last(b.obs, b.mask)


def test_they_are_what_a_worker_collects_whole() -> None:
    """H5, T5: an adder after them gives what it gives for `sample(episodes=)`."""
    with WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(with_value=True), envs_per_worker=2) as workers:
        workers.start(Context())
        stream = [workers.local.sample(7) for _ in range(8)]
    adder = Episodes()
    lengths = []
    for b in filter(lambda b: not b.is_empty, run(adder, stream)):
        rows = GAE(0.9, 0.8)(b)
        for env in range(b.reward.shape[1]):
            one = rows[:, env][: int(b.mask[:, env].sum())]
            assert one.t.tolist() == list(range(len(one)))
            assert (one.terminated | one.truncated).tolist() == [False] * (len(one) - 1) + [True]
            alone = GAE(0.9, 0.8)(b[: len(one), env : env + 1])
            np.testing.assert_array_equal(one.advantage, alone.advantage[:, 0])
            lengths.append(len(one))
    assert len(lengths) > 4


@given(streams(), st.integers(1, 3))
def test_windows_of_sequences_end_with_them(stream: Stream, n: int) -> None:
    """N1, N2, N6: NStep after Unroll: every step starts one window, which its sequence holds."""
    adder, sequences_ = NStep(n, 0.5), run(Unroll(3, "pad"), stream.fragments)
    expected = []
    for steps, mask in columns(sequences_):
        real = steps[: sum(mask)]
        expected += [
            (step, sum(0.5**i * each for i, each in enumerate(real[at : at + n]))) for at, step in enumerate(real)
        ]
    got = [(o, r) for b in run(adder, sequences_) for o, r in zip(b.obs[:, 0].tolist(), b.reward.tolist())]
    assert sorted(got) == sorted(expected)


@given(streams(), st.integers(1, 3))
def test_windows_of_whole_episodes_are_those_of_the_stream(stream: Stream, n: int) -> None:
    """N1, N6, H5: NStep after Episodes; nothing stays open in it."""
    adder, whole = NStep(n, 0.5), {step for each in stream.runs if each.t == 0 and each.end for step in each.steps}
    episodes = run(Episodes(), stream.fragments)
    got = [rows for b in episodes for rows in [adder(b)]]
    assert adder.tails == {}
    assert adder.finish() == []
    alone = run(NStep(n, 0.5), stream.fragments)
    pick = lambda parts: sorted(  # noqa: E731
        (o, r, d) for b in parts for o, r, d in zip(b.obs[:, 0].tolist(), b.reward.tolist(), b.discount.tolist())
    )
    assert pick(got) == [row for row in pick(alone) if row[0] in whole]


def test_both_work_in_a_plan_and_alone() -> None:
    """F14."""
    parts = cut(fragment(["..T.t", "....T"]), 2)
    assert list(from_items(parts).for_each(Episodes())) == run(Episodes(), parts)
    assert list(from_items(parts).for_each(Unroll(2, "pad"))) == run(Unroll(2, "pad"), parts)


@pytest.mark.parametrize("make", [lambda: Unroll(4, "pad", burn_in=1), lambda: Episodes()])
def test_both_work_on_the_workers(make: Any) -> None:
    """F14, D2: before the gather they emit what they emit after it."""

    def of() -> WorkerSet:
        return WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(), envs_per_worker=2)  # type: ignore[arg-type]

    there = ParallelRollouts(of(), mode="raw", steps=7).for_each(make()).gather_async()
    here = ParallelRollouts(of(), mode="async", steps=7).for_each(make())
    with there.run() as one, here.run() as other:
        assert [next(one) for _ in range(8)] == [next(other) for _ in range(8)]


def test_what_follows_is_known_before_the_run() -> None:
    policy = lambda *spaces: A2CPolicy(*spaces, hidden=(4,), device="cpu")  # noqa: E731
    for adder in (Unroll(4), Episodes()):
        of = WorkerSet("CartPole-v1", policy)
        schemas = ParallelRollouts(of).for_each(adder).for_each(GAE(0.9, 0.8)).for_each(TrainOneStep(of)).check()
        assert str(schemas["GAE"].columns["mask"]) == "bool[T, N]"
        with pytest.raises(PlanError, match="needs 'fragments'"):
            ParallelRollouts(of).for_each(NStep(2, 0.9)).for_each(adder).check()

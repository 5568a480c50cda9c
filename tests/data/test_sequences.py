"""SequenceReplayBuffer: which sequences are drawn, what counts of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st
from span_model import SpanMachine, Step, case_of

from flowrl.data import SequenceReplayBuffer


def sequences(run: list[Step], length: int, burn_in: int, overlap: int) -> Iterator[tuple[int, int, int]]:
    """A window moves over a run; what is left at its end is one more."""
    whole, begin, covered = burn_in + length, 0, 0
    while begin + whole <= len(run):
        yield begin, whole, 0 if run[begin].t == 0 else burn_in
        begin, covered = begin + length - overlap, begin + whole
    if covered < len(run):
        warm_up = 0 if run[begin].t == 0 else burn_in
        if len(run) - begin > warm_up:
            yield begin, len(run) - begin, warm_up


class SequenceMachine(SpanMachine):
    """N6, N7, T8, B5, B9: sequences of random sizes."""

    def draw_sizes(self, draw: Callable[[Any], Any]) -> int:
        length, burn_in = draw(st.integers(1, 4)), draw(st.integers(0, 3))
        self.sizes = {"length": length, "burn_in": burn_in, "overlap": draw(st.integers(0, length - 1))}
        return length + burn_in + 1

    def make(self, capacity: int, **settings: Any) -> SequenceReplayBuffer:
        return SequenceReplayBuffer(capacity, **self.sizes, **settings)

    def spans(self, run: list[Step]) -> Iterator[tuple[int, int, int]]:
        return sequences(run, **self.sizes)


TestAnyUse = case_of(SequenceMachine)

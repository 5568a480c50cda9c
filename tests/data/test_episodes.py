"""EpisodeReplayBuffer: which episodes are drawn, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from span_model import SpanMachine, Step, case_of

from flowrl.data import EpisodeReplayBuffer


class EpisodeMachine(SpanMachine):
    """H5, N6, B5, B9."""

    def make(self, capacity: int, **settings: Any) -> EpisodeReplayBuffer:
        warnings.simplefilter("ignore")  # of episodes that do not fit
        return EpisodeReplayBuffer(capacity, **settings)

    def spans(self, run: list[Step]) -> Iterator[tuple[int, int, int]]:
        if run[0].t == 0 and run[-1].end in "Tt*":
            yield 0, len(run), 0


TestAnyUse = case_of(EpisodeMachine)

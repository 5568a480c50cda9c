"""Which lines of a traceback are the user's own."""

from __future__ import annotations

import traceback
from itertools import accumulate

import gymnasium
import numpy as np
import pytest

from flowrl.data import Batch
from flowrl.errors import SchemaError
from flowrl.frames import MOST, in_lines, own_frames


class Failing(gymnasium.ObservationWrapper):
    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def observation(self, obs: object) -> object:
        return list(accumulate([1, 0], lambda a, b: a // b))  # through the standard library, in C


def test_those_of_flowrl_gymnasium_and_python_are_left_out() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        Failing().reset()
    frames = own_frames("".join(traceback.format_exception(caught.value)))
    assert [frame.function for frame in frames] == [
        "test_those_of_flowrl_gymnasium_and_python_are_left_out",
        "observation",
        "<lambda>",
    ]
    assert {frame.file for frame in frames} == {__file__}
    assert frames[-1].code.startswith("return list(accumulate")
    with pytest.raises(SchemaError) as refused:
        Batch(a=np.zeros(2))["b"]
    assert [frame.file for frame in own_frames("".join(traceback.format_exception(refused.value)))] == [__file__]


def test_the_words_of_a_crash_are_read_too() -> None:
    """Those of faulthandler, which begins with the innermost."""
    text = (
        'Current thread 0x1 (most recent call first):\n  File "mine.py", line 7 in step\n'
        '  File "<string>", line 1 in x\n  File "main.py", line 2 in f\n'
    )
    assert [str(frame) for frame in own_frames(text)] == [
        '  File "main.py", line 2, in f',
        '  File "mine.py", line 7, in step',
    ]


def test_of_many_the_innermost_are_shown() -> None:
    frames = own_frames("".join(f'  File "mine.py", line {i}, in f\n' for i in range(MOST + 3)))
    lines = in_lines(frames)
    assert lines[0] == "  ... 3 more lines of yours"
    assert lines[1:] == [f'  File "mine.py", line {i}, in f' for i in range(3, MOST + 3)]

"""What commands take: bad values are refused, with what was expected."""

from __future__ import annotations

import math

import click
import pytest

from flowrl.cli.parameters import Count, Number, goal_of, pairs_of, scales_of, seconds_of
from flowrl.errors import ConfigError


def test_counts_are_whole_and_positive():
    """X4: and have a most, before anything is multiplied by one."""
    assert [Count().convert(text, None, None) for text in ("1", "5e4", "50_000")] == [1, 50_000, 50_000]
    for text in ("0", "-1", "1.5", "inf", "many"):
        with pytest.raises(click.BadParameter, match="whole number of at least 1"):
            Count().convert(text, None, None)
    for text in ("1e30", "2147483648"):
        with pytest.raises(click.BadParameter, match="is more than 2,147,483,647, the most"):
            Count().convert(text, None, None)


def test_numbers_are_finite_and_above_their_bound():
    assert Number(above=0).convert("0.5", None, None) == 0.5
    for text in ("0", "inf", "nan", "much"):
        with pytest.raises(click.BadParameter, match="finite number above 0"):
            Number(above=0).convert(text, None, None)


def test_costs_are_finite_seconds():
    assert seconds_of("Replay", 0) == 0
    for value in (-1, math.inf, True, "1"):
        with pytest.raises(ConfigError, match=r"--cost Replay=.*expected seconds"):
            seconds_of("Replay", value)


def test_a_scale_has_two_different_numbers():
    assert scales_of(("Pendulum-v1=-1200,-150",)) == {"Pendulum-v1": (-1200.0, -150.0)}
    for text in ("=0,1", "A=1,1", "A=0,inf", "A=0", "A=low,high"):
        with pytest.raises(ConfigError, match="expected ENV=LOW,HIGH"):
            scales_of((text,))


def test_a_goal_is_one_number_or_one_of_each_agent():
    assert [goal_of(()), goal_of(("475",)), goal_of(("a=1", "b=2"))] == [None, 475, {"a": 1, "b": 2}]
    for goals in (("1", "2"), ("a=1", "a=2"), ("1", "a=2")):
        with pytest.raises(ConfigError, match="expected one number, or AGENT=NUMBER"):
            goal_of(goals)


def test_pairs_have_a_key_and_a_value():
    assert pairs_of("--set", ("hidden=[64, 64]", "env=a=b")) == {"hidden": [64, 64], "env": "a=b"}
    for text in ("hidden", "=1"):
        with pytest.raises(ConfigError, match="expected KEY=VALUE"):
            pairs_of("--set", (text,))

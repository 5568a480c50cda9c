"""The seed tree: independent, reproducible streams."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

from flowrl.engine.seeds import SeedTree


def test_streams_follow_from_seed_and_path_alone() -> None:
    """D6: in whichever order and with whatever else they are asked for."""
    a, b = SeedTree(5), SeedTree(5)
    b.generator("other").random(9)
    assert a.generator("x").random() == b.generator("x").random()
    assert len({SeedTree(seed).integer(path) for seed in range(3) for path in "abc"}) == 9
    assert all(0 <= SeedTree(0).integer(str(i)) < 2**63 for i in range(99))


def test_streams_are_the_same_in_every_process() -> None:
    """D1: a path is hashed the same whatever PYTHONHASHSEED is."""
    code = "from flowrl.engine.seeds import SeedTree; print(SeedTree(3).integer('store.Noise/'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) == SeedTree(3).integer("store.Noise/")


def test_generators_go_on_where_they_were() -> None:
    """D6: restored in place, for whoever holds one; one that is not in the state starts afresh."""
    tree = SeedTree(1)
    generator = tree.generator("x")
    generator.random(3)
    saved = tree.state_dict()
    expected = copy.deepcopy(generator).random(4).tolist()
    generator.random(7)
    tree.generator("late").random(5)
    tree.load_state_dict(saved)
    assert generator.random(4).tolist() == expected
    assert tree.generator("late").random() == SeedTree(1).generator("late").random()
    other = SeedTree(9)
    other.load_state_dict(saved)
    assert other.seed == 1
    assert other.generator("x").random(4).tolist() == expected


@pytest.mark.parametrize("seed", [0, 2**40])
def test_any_size_of_seed(seed: int) -> None:
    assert SeedTree(seed).integer("x") == SeedTree(seed).integer("x")

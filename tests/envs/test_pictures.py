"""Which observations are pictures, by what axes and on what scale (R5)."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation

from flowrl.envs import make_env
from flowrl.envs.dataset_spaces import space_from_json, space_to_json
from flowrl.envs.pictures import declared, picture_of, remarks
from flowrl.errors import ConfigError
from flowrl.networks.networks import Pixels, encoder
from flowrl.plans import PPO
from flowrl.policies import PPOPolicy


def box(shape: tuple[int, ...], dtype: Any = np.uint8, low: float = 0, high: float = 255) -> spaces.Box:
    return spaces.Box(low, 1 if dtype is bool else high, shape, dtype)


#: A space, the declared order of its axes, and what is expected: channels, height, width, and the divisor; None: dense.
PICTURES: dict[str, tuple[Any, str | None, tuple[int, int, int, float] | None]] = {
    "stacked gray frames": (box((4, 84, 84)), None, (4, 84, 84, 255)),
    "stacked color": (box((4, 96, 90, 3)), None, (12, 96, 90, 255)),
    "stacked color, channels first": (box((4, 3, 96, 90)), None, (12, 96, 90, 255)),
    "stacked gray frames with an axis of one": (box((4, 84, 84, 1)), None, (4, 84, 84, 255)),
    "color stacked behind": (box((96, 90, 3, 4)), None, (12, 96, 90, 255)),
    "one gray frame": (box((84, 84)), None, (1, 84, 84, 255)),
    "glyphs": (box((21, 79), np.int16, high=5976), None, (1, 21, 79, 5976)),
    "depth": (box((60, 80, 1), np.uint16, high=65535), None, (1, 60, 80, 65535)),
    "color": (box((210, 160, 3)), None, (3, 210, 160, 255)),
    "planes of MinAtar": (box((10, 10, 4), bool), None, (4, 10, 10, 1)),
    "a cube of planes": (box((10, 10, 10), bool), None, (10, 10, 10, 1)),
    "chess": (box((8, 8, 111), bool), None, (111, 8, 8, 1)),
    "planes before a board": (box((17, 9, 9), bool), None, (17, 9, 9, 1)),
    "go": (box((13, 13, 17), bool), None, (17, 13, 13, 1)),
    "connect four": (box((6, 7, 2), np.int8, high=1), None, (2, 6, 7, 1)),
    "below zero": (box((6, 7, 2), np.int8, -4, 2), None, (2, 6, 7, 4)),
    "flags": (spaces.MultiBinary((5, 5, 3)), None, (3, 5, 5, 1)),
    "long integers": (box((9, 9, 3), np.int64, high=11), None, (3, 9, 9, 11)),
    "floats": (box((84, 84, 3), np.float32, high=1), None, None),
    "a small plane": (box((8, 8)), None, None),
    "RAM": (box((128,)), None, None),
    "stacked RAM": (box((4, 128)), None, None),
    "integers without bounds": (box((9, 9, 3), np.int64, -np.inf, np.inf), None, None),
    "five axes": (box((2, 2, 9, 9, 3)), None, None),
    "declared floats": (box((84, 80, 3), np.float32, high=1), "HWC", (3, 84, 80, 1)),
    "declared floats without bounds": (box((3, 84, 80), np.float32, -np.inf, np.inf), "CHW", (3, 84, 80, 1)),
    "a declared cube": (box((10, 10, 10), bool), "CHW", (10, 10, 10, 1)),
    "a declared small plane": (box((8, 7)), "HW", (1, 8, 7, 255)),
    "a stack behind": (box((9, 8, 3, 2)), "HWCS", (6, 9, 8, 255)),
    "a stack without channels": (box((9, 8, 7)), "SHW", (9, 8, 7, 255)),
    "declared numbers": (box((84, 84, 3)), "none", None),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_has_its_channels_its_sides_and_its_scale(name: str) -> None:
    """R5: a number planted in a picture is seen in its channel, row and column, over the largest that there may be."""
    space, axes, expected = PICTURES[name]
    space = declared(space, axes)
    if expected is None:
        assert picture_of(space) is None
        assert not list(encoder(space).parameters())
        return
    *shape, divisor = expected
    pixels = Pixels(space)
    assert [*pixels.shape, pixels.white] == [*shape, divisor]
    # Plain arithmetic: the letters of the axes say where an entry belongs.
    found = picture_of(space)
    assert found is not None
    order = axes or found.axes
    place = tuple(0 if letter == "C" and "S" in order else size - 1 for letter, size in zip(order, space.shape))
    at = dict(zip(order, place))
    sizes = dict(zip(order, space.shape))
    channel = at.get("S", 0) * sizes.get("C", 1) + at.get("C", 0)
    seen = np.zeros((2, *space.shape), space.dtype)
    seen[(1, *place)] = 1
    row = pixels(torch.from_numpy(seen))
    assert [each.tolist() for each in row.nonzero()] == [[1, channel, at["H"], at["W"]]]
    assert row.max().item() == pytest.approx(1 / divisor)


@pytest.mark.parametrize("planes", [4, 6, 7, 10])
def test_a_plane_of_minatar_is_seen_where_it_is(planes: int) -> None:
    """R5: plane, row and column of one set entry."""
    seen = np.zeros((1, 10, 10, planes), bool)
    seen[0, 2, 5, 3] = True
    assert Pixels(box((10, 10, planes), bool))(torch.from_numpy(seen))[0].nonzero().tolist() == [[3, 2, 5]]


class Camera(gymnasium.Env[Any, Any]):
    """One space for all its copies, as classes have it; a declaration as `axes`."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: Any = (16, 16, 3), dtype: Any = "uint8", axes: str | None = None) -> None:
        self.observation_space = box(tuple(shape), np.dtype(dtype).type, high=1 if dtype == "float32" else 255)
        if axes is not None:
            self.observation_space.image_axes = axes  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, True, {}


def test_a_declaration_goes_where_its_space_goes() -> None:
    """R5: through pickles, copies, files, and wrappers that stack or leave the shape; a guess stays what it was."""
    cube = declared(box((10, 10, 10)), "CHW")
    copies = [cube, copy.deepcopy(cube), pickle.loads(pickle.dumps(cube)), spaces.Dict({"a": cube})["a"]]
    copies.append(space_from_json(json.loads(json.dumps(space_to_json(cube)))))
    assert {picture_of(each).axes for each in copies} == {"CHW"}  # type: ignore[union-attr]
    guessed = space_from_json(space_to_json(box((10, 10, 10))))
    assert guessed.image_axes == "HWC"  # type: ignore[attr-defined]
    without = {key: value for key, value in space_to_json(cube).items() if key != "image_axes"}
    assert picture_of(space_from_json(without)).axes == "CHW", "as earlier versions learned it"  # type: ignore[union-attr]
    env = make_env(Camera, {"shape": (10, 10, 10), "axes": "CHW"}, wrappers=["FrameStackObservation(4)"])
    assert picture_of(env.observation_space).axes == "SCHW"  # type: ignore[union-attr]
    stacked = make_env(lambda: FrameStackObservation(Camera((9, 9, 9), "float32", "HWC"), 2))
    assert picture_of(stacked.observation_space).shape == (18, 9, 9)  # type: ignore[union-attr]
    gray = make_env(lambda: GrayscaleObservation(Camera((20, 18, 3), axes="HWC")))
    assert picture_of(gray.observation_space).shape == (1, 20, 18)  # type: ignore[union-attr]


def test_a_setting_declares_pictures_of_a_space_or_of_its_entries() -> None:
    """R5: for one policy; others in the same space keep theirs."""
    space = box((12, 12, 3), np.float32, high=1)
    choice = spaces.Discrete(2)
    policy = PPOPolicy(space, choice, image_axes="HWC")
    assert policy.model.encoder.pixels.shape == (3, 12, 12)
    assert picture_of(space) is None
    parts = spaces.Dict({"eye": space, "map": box((20, 20), np.int16), "speed": box((2,), np.float32)})
    both = PPOPolicy(parts, choice, image_axes={"eye": "HWC", "map": "none"}).observation_space
    assert [picture_of(each) is not None for each in both.values()] == [True, False, False]  # type: ignore[attr-defined]
    assert picture_of(declared(parts, "HWC")["eye"]).axes == "HWC"  # type: ignore[index, union-attr]
    for wrong, words in (("HW", "does not fit the 3 axes"), ("HHC", "does not fit"), ("XYZ", "expected an order")):
        with pytest.raises(ConfigError, match=words):
            PPOPolicy(space, choice, image_axes=wrong)
    with pytest.raises(ConfigError, match="nothing of eye, map, speed is 'ear'"):
        declared(parts, {"ear": "HWC"})


def test_what_stays_numbers_or_was_guessed_is_said_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """R5: once, with the way out; where there is nothing to say, nothing is."""
    told = {
        ("float32", (84, 84, 4)): "pass dense layers, as numbers; .*image_axes=HWC",
        ("float32", (4, 84, 84)): "pass dense layers, as numbers; .*image_axes=CHW",
        ("uint8", (8, 8)): "pass dense layers, as numbers; .*image_axes=HW",
        ("uint8", (10, 10, 10)): "are read as pictures by the axes HWC, which their shape leaves open",
    }
    for (dtype, shape), words in told.items():
        caplog.clear()
        with caplog.at_level(logging.WARNING), PPO(env=Camera, env_args={"shape": shape, "dtype": dtype}):
            pass
        (line,) = caplog.messages
        assert re.search(words, line), line
    caplog.clear()
    declared_one = {"shape": (10, 10, 10), "axes": "HWC"}
    with caplog.at_level(logging.WARNING), PPO(env=Camera, env_args=declared_one):
        pass
    with caplog.at_level(logging.WARNING), PPO(env=Camera, env_args={"shape": (9, 9, 9)}, image_axes="CHW"):
        pass
    with caplog.at_level(logging.WARNING), PPO(env=Camera):
        pass
    assert not caplog.messages
    assert "read as pictures by the axes HWCS" in next(remarks(box((84, 84, 3, 4))))
    assert "ReshapeObservation" in next(remarks(box((2, 4, 84, 84, 3))))
    assert "names of things" in next(remarks(box((21, 79), np.int16, high=5976)))


def test_pettingzoo_declares_its_boards(caplog: pytest.LogCaptureFixture) -> None:
    """R5: chess has eight rows, eight columns and 111 planes; a mask does not matter."""
    with caplog.at_level(logging.WARNING), PPO(env="pettingzoo:classic/connect_four_v3") as trainer:
        space = trainer.workers.policy.observation_space["observation"]
    assert (space.image_axes, picture_of(space).shape) == ("HWC", (2, 6, 7))
    assert not caplog.messages

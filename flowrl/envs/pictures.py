"""Which observations are pictures, by what order of axes and on what scale (R5)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import attrs
import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.errors import ConfigError
from flowrl.settings import NATURE

#: The attribute of a space that declares the order of its axes; the setting has the same name.
ATTRIBUTE = "image_axes"
#: The attribute of a space that asks for another network than the built-in one, as the setting `network` does.
NETWORK = "image_network"
#: The declaration that something is no picture.
DENSE = "none"
#: The letters of axes: stack, height, width, channels.
LETTERS = "SHWC"
#: The smallest sides of a picture of two axes.
SMALLEST = 16
#: Pictures from this side on pass the convolutions of the Atari papers.
NATURE_SIDE = 36
#: Packages of environments whose pictures and boards have height, width and channels.
CHANNELS_LAST = ("ale_py", "minatar", "pettingzoo")
#: Numbers of a picture beyond this are rarely brightness.
BRIGHTEST = 255

_ARRAYS = spaces.Box | spaces.MultiBinary
EXPECTED = f"an order of height, width, channels and stack, such as HWC, CHW, HW or SHWC; {DENSE!r} for no picture"


@attrs.frozen
class Picture:
    """How observations of a space are read as pictures."""

    axes: str  #: a letter for each axis of the space, such as "SHWC"
    shape: tuple[int, int, int]  #: channels with the stack, height, width
    scale: float  #: the largest magnitude that the space allows; 1 where there is none
    sure: bool  #: whether the order is declared, or the only likely one of the shape

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the space as stack, channels, height, width, without those that it lacks."""
        return tuple(self.axes.index(letter) for letter in "SCHW" if letter in self.axes)

    def __str__(self) -> str:
        scale = f", /{self.scale:g}" if self.scale != 1 else ""
        order = "" if self.sure else f" (read as {self.axes})"
        return f"pixels {'x'.join(map(str, self.shape))}{order}{scale}"


def picture_of(space: Any) -> Picture | None:
    """How a space is read as pictures; None for what stays numbers.

    Pictures are declared, see `declared`; or they are integers or booleans with three or four axes, or with two from
    16 x 16 on. The first of four axes is a stack, or the last if the first two are the long ones. Of three the channels
    are the one that differs from two equal ones; else the first or the last, whichever is shorter.

    >>> str(picture_of(spaces.Box(0, 255, (4, 84, 84, 3), np.uint8)))
    'pixels 12x84x84, /255'
    >>> picture_of(spaces.Box(0, 1, (84, 84, 3))), picture_of(spaces.Box(0, 9, (8, 8), np.int64))
    (None, None)

    Raises: ConfigError: a declaration that does not fit.
    """
    if not isinstance(space, _ARRAYS):
        return None
    axes, sure = declaration_of(space), True
    if axes is None:
        if not _is_whole(space) or math.isinf(_reach(space)):
            return None
        axes, sure = _guess(space.shape)
    if axes == DENSE:
        return None
    sizes = dict(zip(axes, space.shape))
    shape = sizes.get("S", 1) * sizes.get("C", 1), sizes["H"], sizes["W"]
    reach = _reach(space)
    return Picture(axes, shape, reach if reach and math.isfinite(reach) else 1, sure)


def declaration_of(space: Any) -> str | None:
    """The order of axes that a space declares; None if it declares none. Raises: ConfigError: it does not fit."""
    axes = _said(space)
    if isinstance(axes, str) and axes != DENSE:
        _check(axes, space)
    return axes if isinstance(axes, str) else None


def declared(space: gymnasium.Space[Any], axes: Any) -> gymnasium.Space[Any]:
    """The space with a declared order of axes: a letter each, S for a stack, H, W, C; "none": numbers, no picture.

    In a Dict, an order holds for all entries with as many axes; a table has the orders of entries by name.

    >>> picture_of(declared(spaces.Box(0, 1, (84, 84, 3)), "HWC")).shape
    (3, 84, 84)

    Raises: ConfigError: it fits nothing.
    """
    if axes is None:
        return space
    if isinstance(space, spaces.Dict):
        if isinstance(axes, str):
            table = {key: axes for key, part in space.spaces.items() if _takes(part, axes)}
        else:
            table = dict(axes)
        if unknown := [key for key in table if key not in space.spaces] or ([] if table else [axes]):
            raise ConfigError(f"{ATTRIBUTE}={axes!r}: nothing of {', '.join(space)} is {unknown[0]!r}: {EXPECTED}")
        return spaces.Dict([(key, declared(part, table.get(key))) for key, part in space.spaces.items()])
    if not isinstance(axes, str) or not isinstance(space, _ARRAYS):
        raise ConfigError(f"{ATTRIBUTE}={axes!r} does not fit the observation space {space}: expected {EXPECTED}")
    if axes != DENSE:
        _check(axes, space)
    changed = copy.copy(space)  # other environments may share the space, and keep theirs
    setattr(changed, ATTRIBUTE, axes)
    return changed


def _takes(space: Any, axes: str) -> bool:
    if isinstance(space, spaces.Dict):
        return any(_takes(part, axes) for part in space.spaces.values())
    return isinstance(space, _ARRAYS) and (len(space.shape) == len(axes) or (axes == DENSE and len(space.shape) > 1))


def _check(axes: str, space: Any) -> None:
    known = set(axes) <= set(LETTERS) and len(set(axes)) == len(axes) and {"H", "W"} <= set(axes)
    if not known or len(axes) != len(space.shape):
        raise ConfigError(
            f"{ATTRIBUTE}={axes!r} does not fit the {len(space.shape)} axes of {space}: expected {EXPECTED}"
        )


def declare_known(env: Any, observation_spaces: Iterable[Any]) -> None:
    """Declare the order of axes of an environment's pictures where its library is known to have one."""
    if type(env.unwrapped).__module__.partition(".")[0] in CHANNELS_LAST:
        for space in observation_spaces:
            if isinstance(space, spaces.Dict):
                declare_known(env, space.spaces.values())
            elif len(space.shape or ()) == 3 and picture_of(space) is not None:
                setattr(space, ATTRIBUTE, "HWC")


def carry(layers: list[Any]) -> None:
    """Give the spaces of wrappers, the innermost first, the declarations of what they wrap or stack."""
    for inner, outer in pairwise(layers):
        _carry(inner.observation_space, outer.observation_space)


def asks_for_nature(space: Any) -> bool:
    """Whether a space asks for the network of the Atari papers."""
    return bool(vars(space).get(NETWORK) == NATURE)


def _carry(inner: Any, outer: Any) -> None:
    if isinstance(inner, spaces.Dict) and isinstance(outer, spaces.Dict):
        for key in inner.spaces.keys() & outer.spaces.keys():
            _carry(inner[key], outer[key])
        return
    if asks_for_nature(inner) and isinstance(outer, _ARRAYS):
        setattr(outer, NETWORK, NATURE)
    axes = _said(inner)
    if axes is None or not isinstance(outer, _ARRAYS) or _said(outer) is not None:
        return
    if outer.shape == inner.shape:
        setattr(outer, ATTRIBUTE, axes)
    elif outer.shape[1:] == inner.shape and "S" not in axes:
        setattr(outer, ATTRIBUTE, axes if axes == DENSE else f"S{axes}")


def remarks(space: Any, name: str = "observations") -> Iterator[str]:
    """What somebody should know of how observations are read, and how to change it, a line for each array."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from remarks(part, f"observation[{key!r}]")
        return
    if not isinstance(space, _ARRAYS) or _said(space) is not None:
        return
    what = f"{name} of {space.dtype}{list(space.shape)}"
    picture = picture_of(space)
    if picture is None:
        if len(space.shape) > 4:
            yield f"{what} pass dense layers, as numbers; if they are pictures, ReshapeObservation makes it four axes"
        planes = len(space.shape) in (3, 4) or (len(space.shape) == 2 and min(space.shape) >= SMALLEST)
        if planes or (len(space.shape) == 2 and _is_whole(space)):
            likely = "HW" if len(space.shape) == 2 else _guess(space.shape)[0]
            yield (
                f"{what} pass dense layers, as numbers; if they are pictures, say so, with the order of their axes: "
                f"{ATTRIBUTE}={likely}, say"
            )
    elif not picture.sure:
        yield (
            f"{what} are read as pictures by the axes {picture.axes}, which their shape leaves open; "
            f"{ATTRIBUTE} says the order"
        )
    elif picture.scale > BRIGHTEST and space.dtype != np.uint16:
        yield (
            f"{what} are read as pictures, divided by {picture.scale:g}; if their numbers are names of things, make "
            f"planes of them, or {ATTRIBUTE}={DENSE}"
        )


def _said(space: Any) -> Any:
    return vars(space).get(ATTRIBUTE)


def _is_whole(space: Any) -> bool:
    return isinstance(space, spaces.MultiBinary) or space.dtype.kind in "biu"


def _reach(space: Any) -> float:
    """The largest magnitude that a space allows; infinite if it has no bound."""
    if isinstance(space, spaces.MultiBinary):
        return 1
    low, high = space.low.min().item(), space.high.max().item()
    reach = max(-low, +high)
    if space.dtype.kind in "iu" and space.dtype.itemsize >= 4 and reach >= np.iinfo(space.dtype).max - 2:
        return math.inf  # what gymnasium makes of infinity
    return reach  # type: ignore[no-any-return]


def _guess(shape: tuple[int, ...]) -> tuple[str, bool]:
    """The likely order of the axes of integers, and whether there is no other likely one."""
    if len(shape) == 2:
        return ("HW", True) if min(shape) >= SMALLEST else (DENSE, True)
    if len(shape) == 4:
        height, width, *short = shape
        if min(height, width) >= SMALLEST > max(short):  # frames were stacked behind their channels
            return "HWCS", False
        axes, sure = _guess(shape[1:])
        return f"S{axes}", sure
    if len(shape) != 3:
        return DENSE, True
    first, middle, last = shape
    shorter = "HWC" if last < first else "CHW"
    if first == middle == last:  # boards have planes behind; larger cubes are frames
        return ("HWC" if first < NATURE_SIDE else "CHW"), False
    if first == middle or middle == last:
        square = "HWC" if first == middle else "CHW"
        return square, square == shorter
    return shorter, min(first, last) <= 4 < max(first, last)

"""Fingerprints of what every small variant of a plan learns and reports, to compare two trees bit for bit.

Run it before and after a change that must not change results, on one machine, and compare what is printed:

    python tests/plans/fingerprints.py > before.txt
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

RESULTS = 8


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Every array and number in nested state, with its path, whatever the containers' classes are."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield f"{path}:{value.dtype}{list(value.shape)}", np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from leaves(value[key], f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from leaves(each, f"{path}.{at}")
    else:
        yield path, repr(value).encode()


def digest(value: Any) -> str:
    made = hashlib.sha256()
    for path, content in leaves(value):
        made.update(path.encode() + b"=" + content + b"\n")
    return made.hexdigest()[:16]


def main(names: list[str]) -> None:
    from tests.plans.small import SMALL, final, weights

    for name in names or sorted(SMALL):
        results, state = final(name, RESULTS)
        print(f"{name:24} parameters {digest(weights(state))}  metrics {digest(results)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

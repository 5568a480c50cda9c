"""Files that are there whole or not at all, and values as JSON has them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.storage.files import json_text, plain, replacing, write


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path / "a", "old")
    with pytest.raises(UnicodeEncodeError):
        write(tmp_path / "a", "new \ud800")
    with pytest.raises(KeyError), replacing(tmp_path / "a") as partial:
        partial.write_text({}["half of it"])
    assert (tmp_path / "a").read_text() == "old"


def test_values_become_json() -> None:
    values = {
        "none": None, "yes": True, "one": 1, "half": np.float64(0.5), "nan": np.float32("nan"),
        "minus": float("-inf"), "array": np.arange(2), "tensor": torch.tensor(1.5), "pair": (1, [2.0]), 3: object,
    }  # fmt: skip
    expected = {
        "none": None, "yes": True, "one": 1, "half": 0.5, "nan": None,
        "minus": None, "array": [0, 1], "tensor": 1.5, "pair": [1, [2.0]], "3": str(object),
    }  # fmt: skip
    assert plain(values) == json.loads(json_text(values)) == expected

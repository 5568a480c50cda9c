"""Files that are there whole or not at all, and values as JSON has them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.storage import files
from flowrl.storage.files import json_text, parse_json, plain, read_lines, replacing, write


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


def test_a_line_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E14, D19."""
    (tmp_path / "lines").write_text("one\ntwo\nunfinished")
    assert list(read_lines(tmp_path / "lines")) == [b"one\n", b"two\n"]
    monkeypatch.setattr(files, "LARGEST", 5)
    with pytest.raises(OSError, match="it has a line of more than 5 bytes"):
        list(read_lines(tmp_path / "lines"))


@pytest.mark.parametrize("number", [10**400, 2**64, -(2**64)])
def test_a_number_that_no_reader_could_count_with_is_refused(number: int) -> None:
    """E14."""
    assert parse_json(f"[{2**64 - 1}, -1]") == [2**64 - 1, -1]
    with pytest.raises(ValueError, match="it has a whole number of"):
        parse_json(f'{{"a": [{number}]}}')

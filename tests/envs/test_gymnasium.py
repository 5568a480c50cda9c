"""What is said of a gymnasium that is too old."""

from __future__ import annotations

import importlib
import logging

import gymnasium
import pytest

from flowrl.envs import _gymnasium


@pytest.mark.parametrize(
    ("version", "said"), [("1.4.0", ""), ("1.3.0a1", "1.3.0a1 is older than 1.4"), ("1.1.0", None)]
)
def test_an_old_gymnasium_is_told_in_one_line_with_the_remedy(
    version: str, said: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it cannot work nothing is imported, and where it is not tested a line says so."""
    monkeypatch.setattr(gymnasium, "__version__", version)
    with caplog.at_level(logging.WARNING, "flowrl"):
        if said is None:
            with pytest.raises(ImportError, match=r"needs gymnasium 1.1.1 or later.* pip install 'gymnasium>=1.4'"):
                importlib.reload(_gymnasium)
        else:
            importlib.reload(_gymnasium)
            assert said in caplog.text
            assert bool(said) is bool(caplog.records)

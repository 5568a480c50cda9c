"""The threads of numpy's matrix products are those of the setting, in runs alone, and those of a user who says so."""

from __future__ import annotations

import pytest
import threadpoolctl

from flowrl.blas import VARIABLES, blas_threads
from flowrl.networks.devices import torch_threads


def threads() -> set[int]:
    return {each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user has said anything."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_block_has_its_own_number_and_leaves_the_old_one() -> None:
    if not threads():
        pytest.skip("numpy multiplies by a library without threads of its own")
    with blas_threads(2):
        assert threads() == {2}
        with torch_threads(1):
            assert threads() == {1}
        assert threads() == {2}


@pytest.mark.parametrize("variable", VARIABLES)
def test_what_a_user_sets_stays(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with blas_threads(2):
        monkeypatch.setenv(variable, "2")
        before = threads()
        with torch_threads(1):
            assert threads() == before
        monkeypatch.delenv(variable)

"""What is planted, where, and who must notice."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """`old`, which is in `file` exactly once, becomes `new`, and `test` must fail."""

    rule: str
    file: str
    old: str
    new: str
    test: str

    @property
    def guard(self) -> str:
        """The file of the test."""
        return self.test.partition("::")[0]

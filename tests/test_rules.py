"""docs/rules.md: the names that docstrings, comments and errors cite."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs" / "rules.md").read_text(), re.MULTILINE)


def cited(*folders: str) -> set[str]:
    """The names of rules in comments, docstrings and texts."""
    families = "".join(sorted({rule[0] for rule in RULES}))
    found: set[str] = set()
    for folder in folders:
        for file in (ROOT / folder).rglob("*.py"):
            text = re.sub(r' d="[^"]*"', "", file.read_text())  # without the paths of pictures
            found |= set(re.findall(rf"(?<![\w.:])[{families}][1-9]\d?(?=[,:;) ]|\.\s)", text))
    return found


def test_every_rule_is_explained_once_and_has_a_guard() -> None:
    assert len(RULES) == len(set(RULES)) > 80
    assert set(RULES) - cited("tests") == set()


def test_what_the_source_cites_is_a_rule() -> None:
    assert cited("flowrl", "operators", "plans") <= set(RULES)

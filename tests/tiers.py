"""The three tiers of tests, and how the workers of `-n` share them.

Quick tests carry no marker and run by default; `-m slow` is what a change can break that takes long. `-m exhaustive` is
every test: quick and slow ones too, with more examples by hypothesis, and those that carry `exhaustive` alone. In no
tier are the tests that need a package which `dev` does not install: `-m needs`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.faults import FAULTS
from tests.faults.changed import concerned


def asked(config: pytest.Config, tier: str) -> bool:
    """If `-m` asks for these tests."""
    return tier in config.option.markexpr and f"not {tier}" not in config.option.markexpr


def pytest_report_header(config: pytest.Config) -> str | None:
    if not asked(config, "slow") or asked(config, "exhaustive"):
        return None
    chosen, why = concerned(FAULTS)
    return f"planted faults: {len(chosen)} of {len(FAULTS)}, {why}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    if asked(config, "exhaustive"):
        for item in items:
            if not item.get_closest_marker("needs"):
                item.add_marker("exhaustive")
    yield
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)  # the longest units of work first


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadGroupScheduling | None:
    """Quick tests go to workers by file, since those of a file share fixtures and imports; long ones one by one."""
    if config.option.dist != "loadgroup" or asked(config, "slow") or asked(config, "exhaustive"):
        return None
    config.option.loadscopereorder = False
    return _ByFile(config, log)


class _ByFile(LoadGroupScheduling):
    """Files with tests over Ray, which share one, go to one worker: xdist 3.8 loses its groups under pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "ray" if re.search("ray_cluster|ray_for_module", _text(self.config.rootpath / file)) else file


@functools.cache
def _text(file: Path) -> str:
    return file.read_text()

"""Long tiers in pieces: `--shard 2/5` runs one of five, and `--resume` leaves out what passed before."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.changed import tree

PASSED = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shards")
    group.addoption("--shard", type=_shard, metavar="I/N", help="run the I-th of N parts that take about equally long")
    words = "leave out what passed before with --resume, the same -m and the same files, by git's hash of them"
    group.addoption("--resume", action="store_true", help=words)


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise argparse.ArgumentTypeError(f"the first of {int(count)} shards is 1, the last {int(count)}; got {index}")
    return int(index), int(count)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.stash[PASSED] = set(config.workerinput.get("passed", ()))
    elif config.option.resume:
        config.pluginmanager.register(_Noting(config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    yield  # all others choose first
    kept = list(items)
    if config.option.shard:
        index, count = config.option.shard
        kept = kept[index - 1 :: count]  # dealt like cards: neighbours cost about the same
    passed = config.stash.get(PASSED, set())
    kept = [item for item in kept if _name(item.nodeid) not in passed]
    left_out = set(items) - set(kept)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = kept


class _Noting:
    """Writes down what passes, in a file of this state of the tree and this tier."""

    def __init__(self, config: pytest.Config) -> None:
        assert config.cache is not None
        tier = config.option.markexpr.replace(" ", "-")
        self.file = config.cache.mkdir("passed") / f"{tree(config.rootpath)}-{tier}"
        self.before = config.stash[PASSED] = set(self.file.read_text().splitlines()) if self.file.exists() else set()
        self._called: set[str] = set()

    def pytest_report_header(self) -> str:
        return f"passed before: {len(self.before)} tests"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Every worker of xdist leaves out the same."""
        node.workerinput["passed"] = sorted(self.before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _name(report.nodeid)
        if report.passed and report.when == "call":
            self._called.add(name)
        elif report.passed and report.when == "teardown" and name in self._called:
            with self.file.open("a") as file:
                file.write(name + "\n")


def _name(nodeid: str) -> str:
    """Without the group that xdist appends."""
    end = nodeid.rfind("@")
    return nodeid[:end] if end > nodeid.rfind("]") else nodeid

"""Tiers, shards and what of the planted faults a change concerns, on folders of a few tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import Fault
from tests.faults.changed import BASE, concerned, git

pytest_plugins = ["pytester"]

TESTS = """
    import pytest

    @pytest.mark.parametrize("i", range(7))
    def test_quick(i):
        pass

    @pytest.mark.slow
    @pytest.mark.xdist_group("heavy")
    def test_slow():
        pass

    @pytest.mark.exhaustive
    def test_exhaustive():
        import pathlib
        assert pathlib.Path("mended").exists()
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Nine tests in three tiers."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest('pytest_plugins = ["tests.shards", "tests.tiers"]')
    pytester.makeini(
        '[pytest]\naddopts = -p no:hypothesispytest -m "not slow and not exhaustive"\nmarkers = slow\n exhaustive\n'
    )
    pytester.makepyfile(TESTS)
    git(pytester.path, "init", "-q")
    (pytester.path / ".gitignore").write_text("__pycache__\n.pytest_cache\nmended\n")
    return pytester


@pytest.mark.parametrize(("tier", "count"), [(None, 7), ("slow", 1), ("exhaustive", 9), ("slow or exhaustive", 9)])
def test_exhaustive_tests_are_all_tests(folder: pytest.Pytester, tier: str | None, count: int) -> None:
    (folder.path / "mended").touch()
    folder.runpytest(*(["-m", tier] if tier else [])).assert_outcomes(passed=count, deselected=9 - count)


def test_shards_are_parts_of_the_whole(folder: pytest.Pytester) -> None:
    (folder.path / "mended").touch()
    shards = [folder.inline_run("-m", "exhaustive", f"--shard={i}/4").listoutcomes()[0] for i in (1, 2, 3, 4)]
    assert [len(passed) for passed in shards] == [3, 2, 2, 2]
    assert len({report.nodeid for passed in shards for report in passed}) == 9
    assert folder.runpytest("--shard=5/4").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.slow
def test_what_passed_is_left_out_until_a_file_changes(folder: pytest.Pytester) -> None:
    """Also in the processes of xdist; what failed is not."""
    run, processes = ["-m", "exhaustive", "--resume"], ["-n", "2", "--dist", "loadgroup"]
    folder.runpytest(*run, *processes).assert_outcomes(passed=8, failed=1)
    (folder.path / "mended").touch()
    folder.runpytest(*run, *processes).assert_outcomes(passed=1)
    assert folder.runpytest(*run).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    folder.runpytest("--resume").assert_outcomes(passed=7, deselected=2)  # that was another tier
    folder.makepyfile(test_other="def test_other(): pass")
    folder.runpytest(*run).assert_outcomes(passed=10)


def test_a_change_concerns_faults_by_source_guard_and_self(tmp_path: Path) -> None:
    """Committed or not; without a base that is known, all."""
    unchanged, in_source, in_guard, itself = faults = [
        Fault("D3", file, "old", "new", f"{guard}::test_it")
        for file, guard in (("a.py", "test_a.py"), ("b.py", "test_a.py"), ("a.py", "test_b.py"), ("c.py", "test_a.py"))
    ]
    shown = "from tests.faults.fault import Fault\n\nFAULTS = [\n    {},\n]\n"
    files = {
        name: tmp_path / name for name in ("a.py", "b.py", "c.py", "test_a.py", "test_b.py", "tests/faults/all.py")
    }
    files["tests/faults/all.py"].parent.mkdir(parents=True)
    for file in files.values():
        file.write_text("")
    files["tests/faults/all.py"].write_text(shown.format(",\n    ".join(map(str, faults[:3]))))
    author = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")

    assert concerned(faults, tmp_path) == (set(faults), f"{BASE} names no commit that is here")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "--all")
    git(tmp_path, *author, "commit", "-qm", "All were noticed")
    (tmp_path / BASE).write_text(git(tmp_path, "rev-parse", "HEAD"))
    assert concerned(faults[:3], tmp_path)[0] == set()

    files["b.py"].write_text("changed")
    git(tmp_path, *author, "commit", "-qam", "One of the sources")
    files["test_b.py"].rename(tmp_path / "moved.py")
    assert concerned(faults, tmp_path)[0] == {in_source, in_guard, itself}
    assert unchanged not in concerned(faults, tmp_path)[0]
    (tmp_path / BASE).write_text("0" * 40)
    assert concerned(faults, tmp_path)[0] == set(faults)

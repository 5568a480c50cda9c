"""All exhaustive tests, shard after shard: `python -m tests.exhaustive`. Stopped or failed, it goes on where it was.

When all have passed, the commit is written to `tests/exhaustive_base`: `-m slow` plants the faults that changes since
then concern.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.changed import BASE, ROOT, git, tree

SHARDS = 5  # a prime, so that no shard gets all the cases of one kind where kinds alternate


def main() -> str | None:
    """What is wrong, if anything."""
    begun, failed = tree(), []
    for index in range(1, SHARDS + 1):
        options = ["-m", "exhaustive", "-n", "2", "--dist", "loadgroup", "--resume", f"--shard={index}/{SHARDS}"]
        print(f"== pytest {' '.join(options)}", flush=True)
        code = subprocess.call([sys.executable, "-m", "pytest", *options], cwd=ROOT)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            failed.append(index)
    if failed:
        return f"shards {failed} of {SHARDS} failed"
    if not tree() == begun == git(ROOT, "rev-parse", "HEAD^{tree}").strip():
        return f"All passed, but not as committed, so {BASE} stays: commit, and run this again."
    (ROOT / BASE).write_text(git(ROOT, "rev-parse", "HEAD"))
    print(f"All passed. {BASE} names this commit now: commit it.")
    return None


if __name__ == "__main__":
    sys.exit(main())

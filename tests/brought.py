"""Packages of environments, as people bring them: `python -m tests.brought [GROUP or PACKAGE ...]`.

Of each package in `tests/brought.csv`, in a process of its own: a run of 2,048 env steps with a checkpoint on its way;
a resume from there, whose policy equals that of the run nobody stopped, bit for bit, where the doctor says that the
environment can be saved; the doctor; and `flowrl.load(...).act`. Each group has a virtual environment over the one that
runs this, in `--folder`: its pip sees the packages of both, so torch is neither copied nor downloaded. What came of it
is in `tests/brought_base.csv`. `--changed` tries the quick ones alone, if files that concern them have changed since
the commits there.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from tests.faults.changed import ROOT, git, tree

TABLE, BASE = ROOT / "tests/brought.csv", ROOT / "tests/brought_base.csv"
CONCERNED = ("flowrl/envs", "flowrl/tools/doctor", "tests/brought.csv", "tests/brought.py", "tests/brought_makers.py")
STEPS, SECONDS = 2_048, 600
#: Settings with which each plan learns, and is saved, within so few steps.
SMALL = {"ppo": "train_batch_size=512 minibatch_size=128", "dqn": "learning_starts=500", "sac": "learning_starts=500"}


def main() -> str | None:
    """What is wrong, if anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.brought", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="GROUP or PACKAGE")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "flowrl-brought"))
    parser.add_argument("--changed", action="store_true")
    asked = parser.parse_args()
    with TABLE.open() as file:
        rows = [row for row in csv.DictReader(file) if not asked.names or {*row.values()} & {*asked.names}]
    if asked.changed:
        before = recorded()
        rows = [row for row in rows if row["quick"] and _concerned(before.get(row["package"], {}).get("commit", ""))]
    failed = []
    for row in rows:
        began = time.monotonic()
        versions, came = _tried(row, asked.folder)
        print(f"{row['package']}: {came} ({time.monotonic() - began:.0f} s)", flush=True)
        if not came.startswith(("passed", "cannot be had")):  # the latter is told, and no fault of flowrl's
            failed.append(row["package"])
        if not asked.changed:
            commit = git(ROOT, "rev-parse", "HEAD").strip()
            _record({"package": row["package"], "versions": versions, "commit": commit, "came": came})
    print(f"{len(rows) - len(failed)} of {len(rows)} did not fail")
    return f"failed: {', '.join(failed)}" if failed else None


def recorded() -> dict[str, dict[str, str]]:
    """What came of packages when they were last tried, by name."""
    if not BASE.exists():
        return {}
    with BASE.open() as file:
        return {row["package"]: row for row in csv.DictReader(file)}


def _record(found: dict[str, str]) -> None:
    done = recorded() | {found["package"]: found}
    with BASE.open("w", newline="") as file:
        table = csv.DictWriter(file, list(found), lineterminator="\n")
        table.writeheader()
        table.writerows(done[name] for name in sorted(done, key=str.lower))


def _concerned(commit: str) -> bool:
    """Whether files that concern packages are others than at this commit; yes if git does not know it."""
    try:
        return not commit or bool(git(ROOT, "diff", "--name-only", commit, tree(), "--", *CONCERNED))
    except subprocess.CalledProcessError:
        return True


def _tried(row: dict[str, str], folder: Path) -> tuple[str, str]:
    """Versions, and how it came out: "passed ...", or the last line of what failed."""
    python, lacking = _overlay(folder / row["group"], shlex.split(row["install"]))
    if lacking:
        return "", f"cannot be had: {lacking}"
    with tempfile.TemporaryDirectory() as out:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.brought as b; b.trained({row!r}, {out!r})"
        try:
            done = subprocess.run([python, "-c", code], cwd=out, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return "", f"not done within {SECONDS} s"
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "Error" in line]
        return "", f"failed: {_last(errors[-1] if errors else done.stderr)}"
    versions, came = json.loads(_last(done.stdout))
    return versions, came


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it printed nothing"])[-1]


def _overlay(folder: Path, install: list[str]) -> tuple[Path, str]:
    """The Python of an environment with these packages over this one's, and what pip says if it has not got them."""
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "zz_over.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # after its own; another clone may have made it
    constraint = folder / "constraints.txt"
    constraint.write_text(f"torch=={version('torch').partition('+')[0]}\n")
    pip = [python, "-m", "pip", "install", "-q", "--no-input", "-c", constraint, *install]
    done = subprocess.run(pip, capture_output=True, text=True)
    for tests in folder.glob("lib/python*/site-packages/tests"):  # a package's own, which would hide these
        shutil.rmtree(tests)
    return python, "" if done.returncode == 0 else _last(done.stderr)


def trained(row: dict[str, str], out: str) -> None:
    """In the package's environment: prints versions and how it came out, as JSON, or raises."""
    import flowrl
    from flowrl.cli.main import cli
    from flowrl.envs import make_env
    from flowrl.envs.games.seats import GameEnv
    from flowrl.tools.doctor import diagnose

    whole, resumed = Path(out, "whole"), Path(out, "resumed")
    sets = [*SMALL[row["plan"]].split(), "checkpoint_every=500", "checkpoint_keep=9", "eval_every=0"]
    words = [*shlex.split(row["options"]), *(word for each in sets for word in ("--set", each))]
    words += ["--stop-steps", str(STEPS), "--out", str(whole), "--quiet"]
    cli.main(["run", row["plan"], "--env", row["env"], *words], standalone_mode=False)
    shutil.copytree(whole, resumed)
    first = min((resumed / "checkpoints").iterdir())
    cli.main(["run", "--resume", str(first), "--trust", "--quiet"], standalone_mode=False)
    equal = (whole / "policy_last.pt").read_bytes() == (resumed / "policy_last.pt").read_bytes()
    policy = flowrl.load(whole, trusted=True)
    config = policy.config
    came = "passed" if equal else "passed, but for episodes that a resume cuts"
    if config.env_manager != "vector":
        report = diagnose(config.env, config.env_args, wrappers=config.wrappers, steps=200, timeout=120)
        if any(each.about == "saving" and each.level == "ok" for each in report.findings) and not equal:
            raise SystemExit("the resumed run differs from the one that nobody stopped")
        if problems := [f"{each.about}: {each.text}" for each in report.findings if each.level == "problem"]:
            came += f"; the doctor finds {'; '.join(problems)}"
        with closing(make_env(config.env, config.env_args, wrappers=config.wrappers)) as env:
            if isinstance(env, GameEnv):
                agent, obs = next(iter(env.game.reset(0).items()))
                assert env.game.action_spaces[agent].contains(policy.act(obs))
            else:
                assert env.action_space.contains(policy.act(env.reset(seed=0)[0]))
    names = dict.fromkeys(re.split(r"[=<\[]", each)[0] for each in [*shlex.split(row["install"]), "gymnasium"])
    print(json.dumps([" ".join(f"{name} {version(name)}" for name in names), came]))


if __name__ == "__main__":
    sys.exit(main())

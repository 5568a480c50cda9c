"""What is shipped: the wheel, built from the sdist, holds every file and works away from the repository."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a release would: from an sdist of what git would ship."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in (
        "flowrl",
        "operators",
        "plans",
        "docs",
        "setup.cfg",
        "pyproject.toml",
        "MANIFEST.in",
        *PAGES,
        "LICENSE",
    ):
        subprocess.run(["cp", "-r", "--no-dereference", str(ROOT / name), str(source)], check=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    assert {*PAGES, *(f"docs/{page.name}" for page in (ROOT / "docs").iterdir())} <= shipped
    (built,) = out.glob("*.whl")
    return built


def test_every_package_is_listed() -> None:
    """In setup.cfg, one by one: what is not listed is not in the wheel."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    files = [file for name in ("flowrl", "flowrl/operators", "flowrl/plans") for file in (ROOT / name).rglob("*.py")]
    packages = {".".join(file.parent.relative_to(ROOT).parts) for file in files}
    assert set(settings["options"]["packages"].split()) == packages


@pytest.mark.slow
def test_no_file_is_missing(wheel: Path) -> None:
    folders = {"flowrl": ROOT / "flowrl", "flowrl/operators": ROOT / "operators", "flowrl/plans": ROOT / "plans"}
    expected = {
        f"{prefix}/{path.relative_to(folder).as_posix()}"
        for prefix, folder in folders.items()
        for path in folder.rglob("*.py")
        if not any(part.is_symlink() for part in [path, *path.parents])
    }
    shipped = set(zipfile.ZipFile(wheel).namelist())
    assert expected - shipped == set()
    assert "flowrl/py.typed" in shipped


def test_every_extra_is_told_where_it_is_told_how_to_install() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    listed = (ROOT / "README.md").read_text().partition("Extras, as in")[2].partition("\n\n")[0]
    assert set(settings["options.extras_require"]) == set(re.findall(r"`(\w+)`\s\(", listed))


@pytest.mark.slow
def test_a_plan_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Installed without dependencies over this environment's packages, outside the repository."""
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    env = {**os.environ, "PYTHONPATH": str(site)}
    where = "import flowrl, flowrl.plans, flowrl.operators as o; print(flowrl.__file__, o.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert all(path.startswith(str(site)) for path in found.stdout.split())
    command = [sys.executable, "-m", "flowrl", "run", "dqn", "--stop-steps", "1500", "--out", "run"]
    command += ["--set", "eval_episodes=2", "--set", "hidden=[16]"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 2


@pytest.mark.slow
def test_an_editable_install_is_a_path_that_type_checkers_see(tmp_path: Path) -> None:
    """Editors and mypy follow a plain path, not a hook that only Python's imports know."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    elsewhere = ["--ignore-installed", "--prefix", str(tmp_path)]  # without the first, what is here would go
    subprocess.run([*install, *elsewhere, "-e", str(ROOT)], check=True, timeout=300)
    (link,) = tmp_path.rglob("*.pth")
    assert Path(link.read_text().strip()) == ROOT
    program = tmp_path / "program.py"
    program.write_text(
        "from flowrl import Plan, from_items\nfrom flowrl.plans import DQN\n\nreveal_type(DQN(seed=1))\n"
    )
    env = {**os.environ, "MYPYPATH": link.read_text().strip()}
    command = [sys.executable, "-m", "mypy", "--follow-imports", "silent", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run([*command, str(program)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert 'Revealed type is "flowrl.plans.dqn.DQN"' in done.stdout

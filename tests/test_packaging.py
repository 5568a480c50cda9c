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

from flowrl._version import __version__

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", "constraints.txt", "mkdocs.yml")
FOLDERS = ("flowrl", "operators", "plans", "docs")
SOURCES = (*FOLDERS, "setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", *PAGES)


def build(source: Path, out: Path, *kinds: str, links: bool = True) -> None:
    """Build what git would ship, copied to an empty folder; without links, as git checks out on Windows."""
    for name in SOURCES:
        subprocess.run(["cp", "-r", "--no-dereference", str(ROOT / name), str(source)], check=True)
    for link in (source / "flowrl" / "operators", source / "flowrl" / "plans") if not links else ():
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    command = [sys.executable, "-m", "build", *kinds, "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a release would: from an sdist of what git would ship."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    build(source, out)
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
    assert {"flowrl/py.typed", "flowrl/plans/__init__.pyi"} <= shipped
    assert {f"flowrl/tools/ui/page.{kind}" for kind in ("html", "css", "js")} <= shipped
    assert {name for name in shipped if not name.startswith(("flowrl/", "flowrl_engine-"))} == set()


@pytest.mark.slow
def test_a_checkout_without_links_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    build(tmp_path / "source", tmp_path, "--wheel", links=False)
    (other,) = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(other).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_the_citation_is_of_this_version() -> None:
    (version,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == __version__


def test_every_extra_is_told_where_it_is_told_how_to_install() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    listed = (ROOT / "docs" / "install.md").read_text().partition("## Extras\n")[2].partition("## ")[0]
    assert set(settings["options.extras_require"]) == set(re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE))


THREE_PLANS = """
import sys
from flowrl.cli.main import cli
small = ["--stop-steps", "1200", "--set", "eval_episodes=2", "--set", "hidden=[16]", "--quiet"]
for plan in ("dqn", "ppo", "sac"):
    cli(["run", plan, "--out", plan, *small], standalone_mode=False)
assert "ray" not in sys.modules
"""


@pytest.mark.slow
def test_plans_run_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Installed without dependencies over this environment's packages, outside the repository; one process, no Ray."""
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    env = {**os.environ, "PYTHONPATH": str(site)}
    where = "import flowrl, flowrl.plans, flowrl.operators as o; print(flowrl.__file__, o.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert all(path.startswith(str(site)) for path in found.stdout.split())
    command = [sys.executable, "-c", THREE_PLANS]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for plan in ("dqn", "ppo", "sac"):
        assert (tmp_path / plan / "metrics.jsonl").read_text().strip()
    entry = [sys.executable, str(site / "bin" / "flowrl"), "--help"]
    done = subprocess.run(entry, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert "Commands:" in done.stdout, done.stderr


TYPED = """import flowrl
from flowrl.plans import DQN, PPO

reveal_type(PPO("CartPole-v1", seed=1, learning_rate="cosine(1e-3, 0, 9)", hidden=[64, 64]))
reveal_type(PPO(config={"seed": 1}).train(until={"env_steps": 10}))
reveal_type(flowrl.load("RUN"))
PPO(learning_rte=1)
DQN(learning_rate=None)
flowrl.lod


class Own(DQN):
    pass


Own(gamma=0.9).save("here")
"""
ERRORS = [
    'error: Unexpected keyword argument "learning_rte" for "PPO"; did you mean "learning_rate"',
    'error: Argument "learning_rate" to "DQN" has incompatible type "None"; expected "float | str | list[list[float]]"'
    "  [arg-type]",
    'error: Module has no attribute "lod"; maybe "load"',
]


@pytest.mark.slow
def test_an_editable_install_is_a_path_that_type_checkers_see(tmp_path: Path) -> None:
    """Editors and mypy follow a plain path, not a hook that only Python's imports know."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    elsewhere = ["--ignore-installed", "--prefix", str(tmp_path)]  # without the first, what is here would go
    subprocess.run([*install, *elsewhere, "-e", str(ROOT)], check=True, timeout=300)
    (link,) = tmp_path.rglob("*.pth")
    assert Path(link.read_text().strip()) == ROOT
    program = tmp_path / "program.py"
    program.write_text(TYPED)
    env = {**os.environ, "MYPYPATH": link.read_text().strip()}
    command = [sys.executable, "-m", "mypy", "--follow-imports", "silent", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run([*command, str(program)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    found = [line.partition(" ")[2] for line in done.stdout.splitlines() if ": " in line]
    errors = [line for line in found if line.startswith("error: ")]
    assert [line[: len(begin)] for line, begin in zip(errors, ERRORS, strict=True)] == ERRORS, done.stdout
    revealed = [line.partition("is ")[2] for line in found if line.startswith("note: Revealed")]
    assert revealed == ['"flowrl.plans.PPO"', '"dict[str, Any]"', '"flowrl.trainer.trained_policy.TrainedPolicy"']

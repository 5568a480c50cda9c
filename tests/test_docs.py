"""Every page's snippets run, its commands are those of the command line, and they show what it says they show."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowrl import data
from flowrl.cli.main import cli
from flowrl.runs.config import Configuration
from flowrl.trainer.plan_file import builtin_plans, load_plan_file
from tests.demonstrations import shown_to
from tests.offline_data import data_for
from tests.plans.small import FAMILY_PLANS, first, settings_of

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DOCS]
PROMPT = "(flowrl) "

#: Pages that learn for seconds.
LONG = {
    *("alphazero.md", "dqfd.md", "environments.md", "games.md", "league.md", "offline.md", "python.md", "r2d3.md"),
    *("rbc.md", "sac.md", "sacfd.md", "self_play.md", "sqil.md", "tune.md", "write-your-own-algorithm.md"),
}
#: Pages with a package that is not installed for development.
NEEDY = {"equilibria.md": "open_spiel"}


def _marks(page):
    """When what a page says is run."""
    if page.name in NEEDY:
        return pytest.mark.needs(NEEDY[page.name])
    return pytest.mark.slow if page.name in LONG else ()


def _blocks(text):
    """The kind and the text of each block of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def _folder(words):
    """The folder that a run of a page keeps; None for other commands."""
    return (
        words[words.index("--out") + 1] if words[0] == "run" and "--out" in words and "--seeds" not in words else None
    )


def _is_read(folder, blocks):
    """Whether one more of the snippets that are run names this folder."""
    snippets = [block for kind, block in blocks if kind in ("python", "console")]
    words = [each for kind, block in blocks if kind == "sh" for each in _commands(block)]
    snippets += [" ".join(each) for each in words if each[0] in ("run", "record")]
    return sum(re.search(rf"{re.escape(folder)}\b", each) is not None for each in snippets) > 1


def _commands(block):
    """The words of each line that runs flowrl, after its name."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "flowrl":
            yield words[1:]


def _cases():
    """Each page; where no snippet looks into some of its runs, these are for the slow tests."""
    for page in PAGES:
        whole = page.name in {*LONG, *NEEDY}
        yield pytest.param(page, whole, marks=_marks(page), id=page.name)
        blocks = _blocks(page.read_text())
        kept = [_folder(words) for kind, block in blocks if kind == "sh" for words in _commands(block)]
        if not whole and any(folder and not _is_read(folder, blocks) for folder in kept):
            yield pytest.param(page, True, marks=pytest.mark.slow, id=f"{page.name}, all runs")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of its own, with the plans where a page has them."""
    shutil.copytree(ROOT / "plans", tmp_path / "plans", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.breakpointhook", sys.__breakpointhook__)
    monkeypatch.setattr("sys.path", [*sys.path, ""])
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("page", "all_runs"), list(_cases()))
def test_a_page_does_what_it_says(page, all_runs, capsys):
    """Its blocks in order: Python in one namespace, commands with what they print, and runs that are looked into."""
    names: dict[str, Any] = {}
    blocks = _blocks(page.read_text())
    for kind, block in blocks:
        if kind == "python":
            file = re.match(r"# (\w+\.py)\n", block)
            if file is not None:  # a file of the reader's
                Path(file[1]).write_text(block)
            capsys.readouterr()
            short = re.sub(r"(env_steps\W+)\d{3}_\d{3}\b", r"\g<1>2_000", block)  # as long as shows that it works
            exec(compile(short, page.name, "exec", dont_inherit=True), names)
        elif kind == "output":  # of the block before; lines may be broken
            assert _placeless(capsys.readouterr().out) == _placeless(block)
        elif kind == "console":
            _compare(block)
        elif kind == "sh":
            for words in _commands(block):
                if folder := _folder(words):
                    if all_runs or _is_read(folder, blocks):
                        _run_shortly(words)
                elif words[0] == "record":
                    done = CliRunner().invoke(cli, words, catch_exceptions=False)
                    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_can_be_given(page):
    """Every command and option is one of the command line; nothing is run."""
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for name, *words in _commands(block):
            assert name in cli.commands, name
            with cli.commands[name].make_context(name, words) as given:
                plan = given.params.get("plan")
                assert plan is None or plan.endswith(".py") or plan in builtin_plans(), plan
                if plan in builtin_plans():
                    keys = {field.name for field in load_plan_file(plan).Config.__attrs_attrs__}
                    assert {setting.partition("=")[0] for setting in given.params.get("settings", ())} <= keys


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_ends(page):
    """One that does not would be left out of what is run here."""
    fences = re.findall(r"^ *```.*$", page.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert all(fence.strip() == "```" for fence in fences[1::2])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_page_is_in_the_navigation_of_the_site():
    """If this fails: a line in mkdocs.yml, in the section where readers look for the page."""
    import yaml

    nav = json.dumps(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert {page.name for page in DOCS} - set(re.findall(r'"([^"/]+\.md)"', nav)) == set()


def test_every_plan_is_in_the_table_of_algorithms():
    table = (ROOT / "docs" / "algorithms.md").read_text()
    assert set(builtin_plans()) - set(re.findall(r"\]\((\w+)\.md\)", table)) == set()


def _record_for(plan: str) -> None:
    """What a plan without an environment learns from where nothing else is said."""
    if load_plan_file(plan).Config.clock == "updates":
        shutil.copytree(data_for(plan), load_plan_file(plan).Config().data)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("plan", builtin_plans())
def test_a_plan_has_a_page_with_its_tree_and_settings(plan):
    """The tree but for places in files; every setting that the page names is one, with the default it says."""
    _record_for(plan)
    text = (ROOT / "docs" / f"{plan}.md").read_text()
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    printed, *_ = re.split(r"^network", CliRunner().invoke(cli, ["explain", plan, *_recorded(plan)]).stdout, flags=re.M)
    assert _words(shown) == _words(printed)
    config = load_plan_file(plan).Config()
    settings = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE)
    assert len(settings) > 5
    assert dict(settings) == {name: str(config[name]) for name, _ in settings}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("plan", first(builtin_plans(), of=FAMILY_PLANS, rest="slow"))
def test_a_page_explains_all_that_a_result_holds(plan):
    """The keys of the table are those of the results of a run."""
    text = (ROOT / "docs" / f"{plan}.md").read_text()
    table = text.partition("## What a result holds\n")[2]
    told = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([\w/]+)`", row)
    }
    offline = load_plan_file(plan).Config.clock == "updates"
    steps = 20 if offline else 500
    evaluated = {} if offline else {"eval_episodes": 1, "eval_every": steps // 2}
    Path("small.json").write_text(json.dumps(settings_of(plan, **evaluated)))
    done = CliRunner().invoke(cli, ["run", plan, "--config", "small.json", "--stop-steps", str(steps), "--out", "run"])
    assert done.exit_code == 0, done.output
    lines = (Path("run") / "metrics.jsonl").read_text().splitlines()
    assert told == set().union(*(json.loads(line) for line in lines))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("plan", builtin_plans())
def test_the_picture_is_what_draw_writes(plan):
    """If this fails: `flowrl draw NAME docs/NAME.svg`, with what the plan needs."""
    _record_for(plan)
    assert CliRunner().invoke(cli, ["draw", plan, "new.svg", *_recorded(plan)]).exit_code == 0
    assert Path("new.svg").read_text() == (ROOT / "docs" / f"{plan}.svg").read_text()


def test_the_arguments_of_others_are_told_in_keys_that_exist():
    """Every name on the right of the tables of arguments is a key of a plan."""
    text = (ROOT / "docs" / "coming-from.md").read_text()
    tables = re.findall(r"^The arguments of .*?(?=\n\n(?!\|))", text, re.DOTALL | re.MULTILINE)
    rows = [row.split(" | ")[1] for table in tables for row in table.splitlines() if row.startswith("| ")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    keys = {field.name for plan in builtin_plans() for field in load_plan_file(plan).Config.__attrs_attrs__}
    assert len(told) > 20
    assert told <= keys


@pytest.mark.parametrize("name", [name for name in data.__all__ if name.endswith("ReplayBuffer")])
def test_every_setting_of_a_replay_buffer_is_on_its_page(name):
    """As `setting=` or in a table; the settings of its base class are those of another case."""
    text = (ROOT / "docs" / "replay.md").read_text()
    settings = {*inspect.signature(getattr(data, name)).parameters} - {"others"}
    assert name in text
    assert {each for each in settings if not re.search(rf"\b{each}=|`{each}`", text)} == set()


def test_the_samples_of_clusters_are_ones_that_ray_takes():
    """The files for `ray up`, by its own check; options of `ray symmetric-run`; versions of a job on Kubernetes."""
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config
    from ray.scripts.scripts import start
    from ray.scripts.symmetric_run import symmetric_run

    text = (ROOT / "docs" / "cluster.md").read_text()
    job, *clusters = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert len(clusters) == 2
    for cluster in clusters:
        validate_config(prepare_config(cluster))
    (options,) = re.findall(r"ray symmetric-run (--.*?) -- ", text)
    known = {name for command in (start, symmetric_run) for option in command.params for name in option.opts}
    assert {word for word in shlex.split(options) if word.startswith("--")} <= known
    (pinned,) = re.findall(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == pinned
    assert f"FROM rayproject/ray:{pinned}-py3" in text
    scripts = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [job["spec"]["entrypoint"], *re.findall(r"flowrl run .*", "".join(scripts))]
    assert len(lines) == 3
    for _, name, *words in map(shlex.split, lines):
        with cli.commands[name].make_context(name, words):
            pass


def test_the_settings_of_a_cluster_are_those_of_every_plan():
    """The defaults in the table, and every setting that the page names."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    settings = dict(re.findall(r"^\| `(worker_\w+)` \| `([^`]+)` \|", text, re.MULTILINE))
    assert settings == {name: str(Configuration()[name]) for name in Configuration().to_dict() if "worker_" in name[:7]}
    assert {"on_worker_death", "max_worker_restarts"} <= set(Configuration().to_dict())


def _recorded(plan):
    """Ten episodes in the folder `episodes`, as pages have them, for a plan that learns from demonstrations."""
    shown = shown_to(plan, 10)
    if shown is None:
        return []
    shutil.copytree(shown, "episodes")
    return ["--set", "demonstrations=episodes"]


def _run_shortly(words):
    """A run for the snippets that load it: as long as shows that it works."""
    steps = int(words[words.index("--stop-steps") + 1]) if "--stop-steps" in words else 200
    short = ["--stop-steps", str(min(steps, 200)), "--set", "eval_episodes=2", "--quiet"]
    done = CliRunner().invoke(cli, [*words, *short], catch_exceptions=False)
    assert done.exit_code in (0, 3), done.output


def _compare(block):
    """Line by line, but for the places of files and the time; what was typed at a prompt is typed."""
    command, _, shown = block.partition("\n")
    typed = re.findall(rf"^{re.escape(PROMPT)}(.*)$", shown, re.MULTILINE)
    words = shlex.split(command.removeprefix("$ flowrl "))
    printed = CliRunner().invoke(cli, words, input="\n".join(typed) + "\n").stdout
    assert _plain(printed) == _plain(re.sub(rf"^{re.escape(PROMPT)}.*\n", PROMPT, shown, flags=re.MULTILINE))


def _plain(text):
    return re.sub(r"\S*(plans|operators)/(\w+\.py:)\d+", r"\1/\2", re.sub(r"\d+\.\d s", "0.0 s", text)).splitlines()


def _placeless(text):
    return re.sub(r"[^\s(]+\.(md|py):\d+", "PLACE", text).split()


def _words(tree):
    return [re.sub(r"\S+\.py:\d+", "", line).split() for line in tree.splitlines()]

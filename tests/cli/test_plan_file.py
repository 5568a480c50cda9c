"""Plan files: names, paths, one module per file, and what is said about a file that is no plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import flowrl
import flowrl.plans
from flowrl import Trainer
from flowrl.cli.main import cli
from flowrl.errors import ConfigError, PlanError
from flowrl.runs.config import build_config
from flowrl.trainer.plan_file import BUILTIN, builtin_plans, load_plan_file

GOOD = '''"""A plan of three numbers."""
from __future__ import annotations

import attrs

from flowrl import from_items
from flowrl.runs.config import Configuration


@attrs.define(kw_only=True)
class Config(Configuration):
    n: int = 3


def policy(config, observation_space, action_space):
    return (config.n, observation_space.shape, int(action_space.n))


def execution_plan(workers, config):
    return from_items([{"env_steps": i} for i in range(config.n)])
'''


@pytest.fixture
def write(tmp_path):
    def write(text, name="tiny.py"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_builtin_plans_are_listed_with_their_first_line():
    plans = builtin_plans()
    assert plans["dqn"].startswith("DQN")
    assert all(doc for doc in plans.values())
    assert not any(name.startswith("_") for name in plans)


def test_a_builtin_is_one_module_however_it_is_named():
    by_name = load_plan_file("dqn")
    assert by_name.module is load_plan_file(BUILTIN / "dqn.py").module
    assert by_name.module is load_plan_file(Path(flowrl.plans.__file__).parent / "dqn.py").module
    assert by_name.module is sys.modules["flowrl.plans.dqn"]
    assert by_name.text == (BUILTIN / "dqn.py").read_text()


def test_a_file_is_loaded_once_under_a_name_of_its_own(write):
    path = write(GOOD)
    plan_file = load_plan_file(path)
    assert (plan_file.name, plan_file.path, plan_file.text) == ("tiny", path.resolve(), GOOD)
    assert plan_file.module is load_plan_file(str(path)).module
    assert plan_file.module.__name__ != "tiny"
    assert build_config(plan_file.Config, {"n": 4}).n == 4  # its annotations resolve
    changed = load_plan_file(write(GOOD.replace("= 3", "= 5")))
    assert changed.Config().n == 5
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.py"]  # and nothing beside it


@pytest.mark.parametrize("pickler", ["cloudpickle", "ray.cloudpickle"])
def test_its_classes_reach_processes_that_cannot_import_it(write, pickler):
    """Actors of one's own, too: Ray pickles with a copy of its own."""
    packed = pytest.importorskip(pickler).dumps(load_plan_file(write(CLASS)).trainer)
    code = f"import {pickler}, sys; print({pickler}.loads(sys.stdin.buffer.read()).__name__)"
    assert subprocess.check_output([sys.executable, "-c", code], input=packed).split() == [b"Tiny"]


def test_a_file_may_import_its_neighbours(write):
    write("NUMBER = 7\n", "flowrl_test_neighbour.py")
    plan_file = load_plan_file(write(GOOD.replace("= 3", "= NUMBER").replace(
        "import attrs\n", "import attrs\nfrom flowrl_test_neighbour import NUMBER\n"
    )))  # fmt: skip
    assert plan_file.Config().n == 7


def test_build_gives_the_policy_its_spaces_and_runs_nothing(write):
    plan_file = load_plan_file(write(GOOD))
    workers, plan = plan_file.build(build_config(plan_file.Config, {"n": 2}))
    assert workers.policy == (2, (4,), 2)
    assert repr(plan) == "plan of 1 operator, not running"
    assert list(plan) == [{"env_steps": 0}, {"env_steps": 1}]
    workers.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dqnn", "no plan 'dqnn'; did you mean 'dqn'"),
        ("plans/dqnn.py", "no plan file plans/dqnn.py; .*did you mean 'dqn'"),
        ("dqn.py", "no plan file dqn.py; .*did you mean 'dqn'"),
        (".", "is a folder"),
    ],
)
def test_an_unknown_plan_is_refused_with_the_closest(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_plan_file(name)


def without(name):
    return GOOD.replace(f"def {name}(", f"def not_{name}(")


BROKEN = {
    "no plan at all": ("x = 1\n", "has no Config and no policy and no execution_plan"),
    "no policy": (without("policy"), "has no policy:"),
    "no execution_plan": (without("execution_plan"), "has no execution_plan:"),
    "a foreign Config": (GOOD.replace("(Configuration)", ""), r"must be a subclass of flowrl\.\S*Configuration"),
    "a bare Config": (GOOD.replace("@attrs.define(kw_only=True)\n", ""), "needs the decorator @attrs.define"),
    "no function": (GOOD + "\npolicy = 3\n", "policy must be a function, got 3"),
    "a syntax error": ("def f(:\n", r"cannot be imported: SyntaxError: invalid syntax.*line 1"),
    "a missing import": ("x = 1\nimport nowhere_to_be_found\n", "line 2: ModuleNotFoundError: No module named"),
    "an exit": ("raise SystemExit(0)\n", "line 1: SystemExit"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_no_plan_says_what_is_wrong(case, write):
    text, message = BROKEN[case]
    modules = set(sys.modules)
    with pytest.raises(ConfigError, match=message) as caught:
        load_plan_file(write(text))
    if "imported" in str(caught.value):
        assert caught.value.__cause__ is not None
        assert not any(name.startswith("flowrl_plan_tiny") for name in set(sys.modules) - modules)


def test_a_plan_that_cannot_be_built_says_where(write):
    text = GOOD.replace("    return from_items", "    raise ValueError('n is odd')\n    return from_items")
    plan_file = load_plan_file(write(text))
    line = text.splitlines().index("    raise ValueError('n is odd')") + 1
    with pytest.raises(ConfigError, match=rf"tiny\.py: line {line}: n is odd"):
        plan_file.build(plan_file.Config())
    plan_file = load_plan_file(write(GOOD.replace("return from_items", "return list")))
    with pytest.raises(PlanError, match="execution_plan returned a list, expected a Plan"):
        plan_file.build(plan_file.Config())


CLASS = (
    GOOD.partition("\n\ndef policy")[0].replace("from flowrl import", "from flowrl import Trainer,")
    + """

class Tiny(Trainer):
    Config = Config

    @staticmethod
    def policy(config, observation_space, action_space):
        return (config.n, observation_space.shape, int(action_space.n))

    @staticmethod
    def execution_plan(workers, config):
        return from_items([{"env_steps": i} for i in range(config.n)])
"""
)


def test_a_file_may_hold_a_trainer(write):
    """The same as the parts at module level, which become one."""
    by_class, by_parts = load_plan_file(write(CLASS)), load_plan_file(write(GOOD, "parts.py"))
    assert by_class.trainer is by_class.module.Tiny
    assert issubclass(by_parts.trainer, Trainer)
    assert by_parts.trainer.__name__ == "parts"
    assert str(by_parts.trainer.__doc__).startswith("A plan of three numbers.\n\nSettings")
    for plan_file in (by_class, by_parts):
        workers, plan = plan_file.build(build_config(plan_file.Config, {"n": 2}))
        assert workers.policy == (2, (4,), 2)
        assert list(plan) == [{"env_steps": 0}, {"env_steps": 1}]
        workers.close()


def test_a_trainer_that_is_imported_is_a_parent_and_not_the_plan(write):
    write(CLASS, "flowrl_test_parent.py")
    child = "from flowrl_test_parent import Tiny\n\n\nclass Child(Tiny):\n    pass\n"
    assert load_plan_file(write(child, "child.py")).trainer.__name__ == "Child"
    with pytest.raises(ConfigError, match=r"has no Config and no policy and no execution_plan: .* or a subclass of"):
        load_plan_file(write("from flowrl_test_parent import Tiny\n", "imports.py"))


def test_of_a_parent_and_its_child_the_child_is_meant(write):
    chain = CLASS + "\n\nclass Child(Tiny):\n    pass\n\n\nclass Grandchild(Child):\n    pass\n\n\nAlias = Tiny\n"
    assert load_plan_file(write(chain)).trainer.__name__ == "Grandchild"


def test_two_trainers_side_by_side_are_refused(write):
    two = CLASS + "\n\nclass Left(Tiny):\n    pass\n\n\nclass Right(Tiny):\n    pass\n"
    with pytest.raises(ConfigError, match="holds 2 trainers, Left and Right: keep one of them, or make one a subclass"):
        load_plan_file(write(two))


def test_a_file_with_a_trainer_runs_and_can_be_loaded(write, tmp_path):
    """The three lines of a user's class, from the command line."""
    path = write("""
from flowrl.plans import DQN


class Mine(DQN):
    @classmethod
    def execution_plan(cls, workers, config):
        return super().execution_plan(workers, config).insert_after("NStep", lambda batch: batch, name="Mine")
""")
    options = ["--stop-steps", "200", "--set", "eval_episodes=2", "--set", "device=cpu", "--quiet"]
    done = CliRunner().invoke(cli, ["run", str(path), "--out", str(tmp_path / "run"), *options])
    assert done.exit_code == 0, done.output
    assert "Mine" in (tmp_path / "run" / "plan.txt").read_text()
    assert flowrl.load(tmp_path / "run", trusted=True).act([0.0] * 4) in (0, 1)


def test_the_builtin_trainers_can_be_imported_from_the_package():
    trainers = [load_plan_file(name).trainer for name in builtin_plans()]
    assert [getattr(flowrl.plans, trainer.__name__) for trainer in trainers] == trainers
    assert {trainer.__name__ for trainer in trainers} == set(flowrl.plans.__all__)
    with pytest.raises(ImportError, match="DQNN"):
        from flowrl.plans import DQNN  # noqa: F401

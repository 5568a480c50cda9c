"""Plan files: from a built-in name or a path to its Trainer.

A plan file holds one subclass of `Trainer`; if it holds a parent and its child, the child counts. Or it defines at
module level `Config` (an attrs class over `Configuration`), `policy(config, observation_space, action_space)` and
`execution_plan(workers, config)`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import attrs
import cloudpickle  # type: ignore[import-untyped]

from flowrl.blas import blas_threads
from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError, did_you_mean
from flowrl.runs.config import Configuration
from flowrl.runs.run_info import BUILTIN, plan_text
from flowrl.trainer.trainer import Trainer

if TYPE_CHECKING:
    from flowrl.rollout import Workers

#: The names that a plan file without a Trainer class defines.
PARTS = ("Config", "policy", "execution_plan")


@attrs.frozen
class PlanFile:
    """A loaded plan file, with the `Trainer` class that it defines or that its parts form."""

    name: str
    path: Path
    module: ModuleType
    trainer: type[Trainer]
    text: str = attrs.field(repr=False)

    @property
    def Config(self) -> type[Configuration]:
        """The class of the plan's settings."""
        return self.trainer.Config

    def build(self, config: Configuration) -> tuple[Workers, Plan]:
        """Build the workers and the plan over them; starts no worker (F1). The caller closes the workers.

        Raises:
            ConfigError: no such environment, one that the policy cannot act in, or a value of the
                configuration that the policy or an operator rejects.
            PlanError: the plan cannot be built, or `execution_plan` returns something else.
        """
        import torch

        torch.set_num_threads(config.torch_threads)  # for the whole process, which only runs the plan
        blas_threads(config.torch_threads)
        try:
            trainer = self.trainer(config=config)
        except ValueError as error:  # operators and buffers reject arguments with it
            raise ConfigError(f"{self.path}: {_where(error, self.path)}{error}") from error
        return trainer.workers, trainer.algorithm  # the command evaluates by its own options


@functools.cache  # it parses every plan
def builtin_plans() -> Mapping[str, str]:
    """The built-in plans with the first line of their docstring, read without importing them."""
    plans = {}
    for name, path in _builtin_files().items():
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        plans[name] = doc.partition("\n")[0]
    return plans


def _builtin_files() -> dict[str, Path]:
    """The files of the built-in plans, by the plan's name."""
    return {path.stem: path for path in sorted(BUILTIN.resolve().glob("*.py")) if not path.name.startswith("_")}


def load_plan_file(name_or_path: str | Path) -> PlanFile:
    """Load a plan by its built-in name or from a file.

    A built-in plan is imported once, as `flowrl.plans.NAME`; any other file under a unique module name.

    Raises:
        ConfigError: no such plan (with the closest name), a file that cannot be imported, or one without a
            plan; chained to the cause.
    """
    path = _find(str(name_or_path))
    module = _import(path)
    return PlanFile(path.stem, path, module, _trainer(path, module), plan_text(path))


def _trainer(path: Path, module: ModuleType) -> type[Trainer]:
    """The Trainer of a plan file: the class that it defines, or one formed from its parts."""
    classes = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Trainer) and value.__module__ == module.__name__
    }
    leaves = [each for each in classes if not any(each in other.__mro__[1:] for other in classes)]
    if len(leaves) > 1:
        raise ConfigError(
            f"{path} holds {len(leaves)} trainers, {' and '.join(sorted(each.__name__ for each in leaves))}: "
            "keep one of them, or make one a subclass of the other"
        )
    if leaves:
        return leaves[0]
    parts = {name: vars(module)[name] for name in PARTS if name in vars(module)}
    missing = [name for name in PARTS if name not in parts]
    if missing:
        raise ConfigError(
            f"{path} has no {' and no '.join(missing)}: a plan file defines Config, "
            "policy(config, observation_space, action_space) and execution_plan(workers, config), "
            "or a subclass of flowrl.Trainer; a plan without a policy runs from Python, as list(plan) or plan.run()"
        )
    for name in ("policy", "execution_plan"):
        if not callable(parts[name]):
            raise ConfigError(f"{path}: {name} must be a function, got {parts[name]!r}")
    try:
        return type(path.stem, (Trainer,), {**parts, "__module__": module.__name__, "__doc__": module.__doc__})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _find(name: str) -> Path:
    names = _builtin_files()
    if name in names:
        return names[name]
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    if path.is_dir():
        raise ConfigError(f"{name} is a folder; give a plan file in it, or one of {', '.join(names) or 'no plans'}")
    if path.suffix == ".py" or path.name != name:
        raise ConfigError(f"no plan file {name}; among the built-in plans {did_you_mean(path.stem, names)}")
    raise ConfigError(f"no plan {name!r}; {did_you_mean(name, names)}, or give the path of a file")


def _import(path: Path) -> ModuleType:
    try:
        if path.parent == BUILTIN.resolve():
            return importlib.import_module(f"flowrl.plans.{path.stem}")
        return _import_file(path)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path} cannot be imported: {_where(error, path)}{type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    text = plan_text(path).encode()
    name = f"flowrl_plan_{path.stem}_{hashlib.sha256(str(path).encode() + text).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    # It can import its neighbors, as a script can; last in the path, so that they hide nothing.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module  # annotations are resolved there
    try:
        # Without a loader, which would leave a __pycache__ beside the user's file.
        exec(compile(text, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    for pickler in filter(None, (cloudpickle, sys.modules.get("ray.cloudpickle"))):  # Ray has a copy of its own
        pickler.register_pickle_by_value(module)  # other processes cannot import it
    return module


def _where(error: BaseException, path: Path) -> str:
    """The line of the plan file that failed; "" for a syntax error, whose message has it."""
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path]
    return f"line {lines[-1]}: " if lines else ""

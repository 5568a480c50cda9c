"""Old names of modules and classes, which still work: in files, and for one version in imports.

Importing an old module name gives the new module, with a DeprecationWarning that names it; docs/moved.md lists the
common ones. Checkpoints, buffers and datasets may use old names without a warning.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Old folder, new folder, and the modules: `old`, or `old:new` if the module was renamed too.
_FOLDERS = (
    ("", "", "signals:interrupts runs:cli"),
    (
        "",
        "engine",
        "plan paths:graph seeds transforms stages merge scheduler:run mapped:state_diff schema calls gather "
        "host:subplan hosting:members pace:members pickling queues workers futures remote link:meter",
    ),
    ("", "inspect", "explain check phases:check picture:layout draw debugger debug:strict"),
    ("", "storage", "checkpoint codec files manifest:files"),
    ("", "learners", "training"),
    ("", "trainer", "config plan_file policy_maker:policy_factory trained:trained_policy offline tune"),
    ("", "cli", "cli_types:main statistics doctor"),
    ("data", "data", "arrays:types"),
    (
        "data",
        "data.replay",
        "store:base foretold:buffer saved:buffer rings:ring_storage likeness:ring_storage aside:columnar "
        "packed:columnar leaves:tree pool prioritized sum_tree sum_tree_loops spans:segments sequences "
        "prioritized_sequences:sequences "
        "episodes transitions frames:frame_stack limits:eligibility limiter:rate_limiter mixed:mixture "
        "replay_actors:sharded routes:sharded shard objects",
    ),
    (
        "data",
        "data.datasets",
        "recording:writer dataset_layout:layout minari whole_episodes:returns_view sources:open",
    ),
    ("envs", "envs", "names:spec factory:make goal_functions:goals"),
    ("envs", "envs", "datasets:dataset_spaces saved_spaces:dataset_spaces dataset_contents:dataset_spaces"),
    (
        "envs",
        "envs.managers",
        "contract:base manager:local vector subprocess asynchronous:async_subprocess thread process:supervisor "
        "crew:supervisor child:worker_main hosted:env_runner memory:shared_memory faults",
    ),
    ("envs", "envs.adapters", "classic:gym pettingzoo envpool border:convert"),
    ("policies", "policies", "bounded:distributions custom:networks wrappers:sampling streams:torch_rng"),
    ("rollout", "engine", "parts:subplan"),
    ("rollout", "actors", "actors ray_workers:ray_backend actor_host:actor_process address"),
    ("rollout", "rollout", "hosts:remote_groups"),
    ("rollout", "learners", "learner learners:learner_group all_reduce aggregators"),
    ("runs", "cli", "seeds_run:seeds evaluation:evaluate plot curves record"),
    ("runs", "trainer", "session directory resume progress sinks"),
    ("cli", "trainer", "session directory resume progress sinks"),
)


def _paths() -> dict[str, str]:
    paths = {}
    for before, after, names in _FOLDERS:
        for old, _, new in (name.partition(":") for name in names.split()):
            paths[".".join(filter(None, ("flowrl", before, old)))] = ".".join(
                filter(None, ("flowrl", after, new or old))
            )
    return paths


#: Paths of modules, by their old paths.
MODULES = _paths()
#: Classes and functions that were renamed, or moved elsewhere than the rest of their module; "file:" marks names of
#: classes in files.
NAMES = {
    "file:batch": "flowrl.data.batch:Batch",
    "flowrl.calls:Receipt": "flowrl.engine.calls:Answer",
    "flowrl.gather:Answer": "flowrl.engine.gather:Arrival",
    "flowrl.mapped:LeftOut": "flowrl.engine.state_diff:IncompatibleKeys",
    "flowrl.debug:debugging": "flowrl.inspect.strict:strict",
    **{f"flowrl.config:{name}": f"flowrl.settings:{name}" for name in ("at_least_one", "fraction", "not_negative")},
    **{f"flowrl.config:{name}": f"flowrl.settings:{name}" for name in ("positive", "scheduled", "sizes")},
    "flowrl.schedules:Setting": "flowrl.schedules:NumberOrSchedule",
    "flowrl.rollout.match_making:Opponent": "flowrl.rollout.match_making:Rival",
    "flowrl.rollout:Aggregators": "flowrl.learners:Aggregators",
    "flowrl.rollout:LearnerGroup": "flowrl.learners:LearnerGroup",
}
#: Renamed fields of classes in files.
FIELDS = {"flowrl.gather:Answer": {"place": "worker", "receipt": "answer"}}


def find(module: str, name: str) -> Any:
    """The object that an old module had under a name, from its current module.

    Raises: ImportError, AttributeError: no such module or name, or it is gone.
    """
    module, _, name = NAMES.get(f"{module}:{name}", f"{module}:{name}").partition(":")
    new = MODULES.get(module, module)
    module, _, name = NAMES.get(f"{new}:{name}", f"{new}:{name}").partition(":")
    return getattr(importlib.import_module(module), name)


def attribute(module: str, name: str) -> Any:
    """`find` for the `__getattr__` of a module, with a warning; an AttributeError for a name that it never had."""
    new = NAMES.get(f"{module}:{name}")
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} is {new.replace(':', '.')} now", DeprecationWarning, stacklevel=3)
    return find(module, name)


class MovedFinder:
    """Finds modules by their old names, after all other finders have failed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Loader()) if name in MODULES else None  # type: ignore[arg-type]


class _Loader:
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} is {MODULES[spec.name]} now", DeprecationWarning, stacklevel=2)
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        module.__path__ = []  # the old module may have been a folder
        module.__getattr__ = lambda name: find(old, name)  # type: ignore[method-assign]


def install() -> None:
    """Let imports find old names."""
    if not any(finder is MovedFinder for finder in sys.meta_path):
        sys.meta_path.append(MovedFinder)

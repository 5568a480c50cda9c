"""Files whose lists derive from the source: doors of packages as type checkers read them, and the page of operators.

`python tests/derived.py` writes them; `tests/test_derived.py` fails while they are behind.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

DOORS = {"flowrl.plans": ROOT / "plans", "flowrl.policies": ROOT / "flowrl" / "policies"}
DERIVED = {folder / "__init__.pyi": package for package, folder in DOORS.items()}
DERIVED[ROOT / "docs" / "operators.md"] = "flowrl.operators"


def derived(file: Path) -> str:
    """What a file should say."""
    package = import_module(DERIVED[file])
    return operators_page(package) if file.suffix == ".md" else stub(package)


def stub(package: Any) -> str:
    """The names of a package whose door loads them on demand."""
    if package.__name__ == "flowrl.plans":
        return trainers(package)
    lines = [f"from {module} import {name} as {name}\n" for name, module in package._names.items()]
    return "# Written by tests/derived.py.\n\n" + "".join(sorted(lines))


def trainers(package: Any) -> str:
    """The algorithms, whose constructors take their settings by name and type.

    A type checker sees subclasses of the classes in the plans' files. Those take any setting, and so do their
    subclasses, which may have settings of their own.
    """
    from flowrl.runs.config import Configuration
    from flowrl.trainer.trainer import Trainer

    imports = {"from typing import TypedDict", "from typing import Unpack"}
    types, parameters = get_type_hints(Trainer.__init__), []
    for name, each in list(inspect.signature(Trainer.__init__).parameters.items())[1:-1]:
        if each.kind is Parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(f"{name}: {_type(types[name], imports)} = {each.default!r}")

    def settings(config: Any) -> dict[str, str]:
        fields = attrs.fields(attrs.resolve_types(config))
        return {each.name: _type(each.type, imports) for each in fields if each.init and each.name not in types}

    def typed_dict(name: str, base: str, keys: dict[str, str]) -> str:
        return f"class {name}({base}, total=False):\n" + "".join(f"    {key}: {keys[key]}\n" for key in sorted(keys))

    common = settings(Configuration)
    blocks = [typed_dict("_Settings", "TypedDict", common)]
    for name, module in sorted(package._names.items()):
        taken, file = settings(getattr(package, name).Config), module.rpartition(".")[2]
        assert common.items() <= taken.items(), f"{name} gives a setting of all plans another type"
        blocks.append(typed_dict(f"_{name}", "_Settings", {k: kind for k, kind in taken.items() if k not in common}))
        given = ", ".join(["self", *parameters, f"**settings: Unpack[_{name}]"])
        blocks.append(f"class {name}(_{file}.{name}):\n    def __init__({given}) -> None: ...\n")
        imports.add(f"from {package.__name__} import {file} as _{file}")
    text = "# Written by tests/derived.py.\n\n" + "\n".join([*sorted(imports), *blocks])
    for command in (["check", "--quiet", "--fix", "--select=I"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename=__init__.pyi", "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def _type(kind: Any, imports: set[str]) -> str:
    """A type as it is written, with lists for tuples, since `build_config` takes both."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or origin is Literal:
        imports.add(f"from typing import {'Any' if kind is Any else 'Literal'}")
        return "Any" if kind is Any else f"Literal[{', '.join(map(repr, args))}]"
    if kind is NoneType:
        return "None"
    if origin in (Union, UnionType):
        return " | ".join(_type(each, imports) for each in args)
    if origin is tuple and args[1:] == (...,):
        origin, args = Sequence, args[:1]
    cls = origin or kind
    if cls.__module__ != "builtins":
        imports.add(f"from {cls.__module__.partition('._')[0]} import {cls.__name__}")
    return cls.__name__ + (f"[{', '.join(_type(each, imports) for each in args)}]" if args else "")


def operators_page(package: object) -> str:
    """The operators by family, with the first lines of their docstrings."""
    families: dict[str, list[str]] = {}
    for name in vars(package)["__all__"]:
        operator = vars(package)[name]
        line = " ".join((inspect.getdoc(operator) or "").partition("\n\n")[0].split()).replace("|", "\\|")
        families.setdefault(operator.__module__.rpartition(".")[2], []).append(f"| `{name}` | {line} |")
    page = [
        "# Operators",
        "",
        "Everything in `flowrl.operators`, by family; `help(NAME)` says more. [plans.md](plans.md) has a plan's verbs.",
    ]
    page += ["Shapes: `T` time, `N` environments, `B` rows, `E` episodes. This page is written by `tests/derived.py`."]
    for family, rows in sorted(families.items()):
        page += ["", f"## [{family}](../operators/{family}.py)", "", "| operator | what it does |", "|---|---|", *rows]
    return "\n".join(page) + "\n"


if __name__ == "__main__":
    for file in DERIVED:
        file.write_text(derived(file))

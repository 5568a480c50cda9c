"""Files whose lists derive from the source: doors of packages as type checkers read them, and the page of operators.

`python tests/derived.py` writes them; `tests/test_derived.py` fails while they are behind.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

DOORS = {"flowrl.plans": ROOT / "plans", "flowrl.policies": ROOT / "flowrl" / "policies"}
DERIVED = {folder / "__init__.pyi": package for package, folder in DOORS.items()}
DERIVED[ROOT / "docs" / "operators.md"] = "flowrl.operators"


def derived(file: Path) -> str:
    """What a file should say."""
    package = import_module(DERIVED[file])
    return operators_page(package) if file.suffix == ".md" else stub(package)


def stub(package: object) -> str:
    """The names of a package whose door loads them on demand."""
    lines = [f"from {module} import {name} as {name}\n" for name, module in vars(package)["_names"].items()]
    return "# Written by tests/derived.py.\n\n" + "".join(sorted(lines))


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

"""The doors of packages whose lists derive from their files, as type checkers read them.

`python tests/doors.py` writes them; `tests/test_doors.py` fails while they are behind.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

DERIVED = {"flowrl.plans": ROOT / "plans", "flowrl.policies": ROOT / "flowrl" / "policies"}


def stub(package: str) -> str:
    """What `__init__.pyi` of a package should say."""
    names: dict[str, str] = import_module(package)._names
    lines = [f"from {module} import {name} as {name}\n" for name, module in names.items()]
    return "# Written by tests/doors.py.\n\n" + "".join(sorted(lines))


if __name__ == "__main__":
    for package, folder in DERIVED.items():
        (folder / "__init__.pyi").write_text(stub(package))

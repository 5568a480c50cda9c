"""How long are the plans to read? Source lines of each `execution_plan`, beside RLlib's for the same algorithm.

Lines as the formatter leaves them, from `def` to the end, but for docstrings, comments and empty lines; and how many
they would be at RLlib's line length. The functions of its own file that a plan calls are counted with it, so that
nothing is hidden in helpers; what it takes from another plan's file, and the operators that it uses, stand beside it
with their own lines, counted alike, and so do the edits of the options that its configuration has. Operators that only
this plan uses are marked with a star. A plan may differ from another one in its policy alone.

    python benchmarks/plan_lines.py
"""

from __future__ import annotations

import ast
import inspect
import io
import subprocess
import sys
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterator
from typing import Any

from flowrl.operators import __all__ as OPERATORS
from flowrl.runs.config import Configuration
from flowrl.settings import Option
from flowrl.trainer.plan_file import builtin_plans, load_plan_file

#: Source lines of RLlib's plans, of the releases that had them.
RLLIB = {"a2c": 18, "ppo": 30, "dqn": 52, "apex_dqn": 90, "impala": 91}
#: Columns of its lines.
RLLIB_COLUMNS = 80
#: Tokens that make no line one of code.
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines that hold code: no docstring, no comment, not empty."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def source_of(thing: Any) -> str:
    return textwrap.dedent(inspect.getsource(thing))


def mentioned(thing: Any) -> Iterator[tuple[str, Any]]:
    """Functions and classes of flowrl that the source of one mentions, by name; its settings are no part of it."""
    around = vars(sys.modules[thing.__module__])
    for node in ast.walk(ast.parse(source_of(thing))):
        if isinstance(node, ast.Name):
            name, found = node.id, around.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # of a module: ppo.learn
            name, home = node.attr, around.get(node.value.id)
            found = getattr(home, name, None) if inspect.ismodule(home) else None
        else:
            continue
        is_part = inspect.isfunction(found) or (inspect.isclass(found) and not issubclass(found, Configuration))
        if is_part and found.__module__.startswith("flowrl."):
            yield name, found


def with_helpers(thing: Any) -> list[Any]:
    """A plan or an operator, and what it is made of in its own package, but for other operators."""
    package, found = ".".join(thing.__module__.split(".")[:2]), [thing]
    for part in found:  # which grows
        for name, other in mentioned(part):
            if other.__module__.startswith(f"{package}.") and name not in OPERATORS and other not in found:
                found.append(other)
    return found


def narrow(source: str) -> str:
    """The source as the formatter would leave it in RLlib's columns."""
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(RLLIB_COLUMNS), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def name_of(part: Any) -> str:
    """With the file that it stands in."""
    return f"{part.__module__.rpartition('.')[2]}.{part.__name__}"


def main() -> None:
    plans = {name: load_plan_file(name).trainer.execution_plan for name in builtin_plans()}
    parts = {function: with_helpers(function) for function in plans.values()}
    users = Counter(part for found in parts.values() for part in found)
    operators = {
        function: {name: op for part in found for name, op in mentioned(part) if name in OPERATORS}
        for function, found in parts.items()
    }
    used = Counter(name for found in operators.values() for name in found)
    print(f"{'plan':<12} {'lines':>5}  {f'at {RLLIB_COLUMNS} columns':>13}  {'RLlib':>5}  operators and their lines")
    for plan, function in plans.items():
        if (home := function.__module__.rpartition(".")[2]) != plan:
            print(f"{plan:<12} that of {home}")
            continue
        here = [part for part in parts[function] if part.__module__ == function.__module__ or users[part] == 1]
        own = [source_of(part) for part in here]
        counts = [sum(map(code_lines, sources)) for sources in (own, map(narrow, own))]
        shared = {name_of(part): part for part in parts[function] if part not in here} | operators[function]
        lines = {name: sum(code_lines(source_of(part)) for part in with_helpers(op)) for name, op in shared.items()}
        beside = ", ".join(f"{name}{'*' if used[name] == 1 else ''} {lines[name]}" for name in sorted(lines))
        options = [kind for kind in load_plan_file(plan).Config.__mro__ if "edit" in vars(kind) and kind is not Option]
        edits = [f"{kind.__name__} {code_lines(source_of(vars(kind)['edit']))}" for kind in options]
        beside += f"; options: {', '.join(edits)}" if edits else ""
        print(f"{plan:<12} {counts[0]:>5}  {counts[1]:>13}  {RLLIB.get(plan, '-'):>5}  {beside}")
    helpers = {part: name_of(part) for found in parts.values() for part in found[1:]}
    alone = ", ".join(sorted(name for part, name in helpers.items() if users[part] == 1))
    print(f"helpers of one plan, counted with it: {alone or 'none'}")


if __name__ == "__main__":
    main()

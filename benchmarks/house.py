"""How large is the house, and how long are the ways in it? Counts of the source, and of two short runs.

    python benchmarks/house.py            this tree
    python benchmarks/house.py TREE ...   others beside it, as `git worktree add` makes them
    python benchmarks/house.py --check    fails if a room has more code than `.ci/code_lines.json` allows

Lines of code are lines of .py files without blank ones, comments and docstrings. A floor is a file above all that it
imports; a circle, files that import each other, where imports in functions and for annotations count too. `flowrl run
dqn` and a batch of PPO are counted by `sys.setprofile`: the files of flowrl that are entered, and the calls. The places
that know a setting, an operator and an algorithm are the files that name one.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

HERE = Path(__file__).parents[1]
BUDGET = HERE / ".ci" / "code_lines.json"
#: A setting, an operator and an algorithm, each by a name that nothing else has.
EXAMPLES = {"setting": "policy_delay", "operator": "ScaleRewards", "algorithm": "CrossQ"}

#: Runs in a tree, and prints how many files of flowrl a call of `job` enters, and how many calls there are.
COUNTED = """
import os, sys, tempfile
ROOT = os.getcwd() + os.sep
def counted(job):
    files, calls = set(), 0
    def enter(frame, event, _):
        nonlocal calls
        name = os.path.realpath(frame.f_code.co_filename)
        if event == "call" and name.startswith(ROOT) and not name.startswith(ROOT + ".venv"):
            files.add(name)
            calls += 1
    sys.setprofile(enter)
    try:
        job()
    finally:
        sys.setprofile(None)
    return len(files), calls
def command():
    from flowrl.cli.main import cli
    words = ["run", "dqn", "--stop-steps", "600", "--quiet", "--out", tempfile.mkdtemp() + "/run"]
    cli(words, standalone_mode=False)
from flowrl.plans import PPO
with PPO("CartPole-v1", seed=0, report_every=1) as trainer:
    trainer.train()
    batch = counted(trainer.train)
print(*batch, *counted(command), file=sys.stderr)
"""


def sources(root: Path) -> list[Path]:
    words = ["git", "-C", str(root), "ls-files", "flowrl", "operators", "plans"]
    names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return [root / name for name in names if name.endswith(".py") and (root / name).is_file()]


def room_of(file: Path, root: Path) -> str:
    parts = file.relative_to(root).parts
    return "/".join(parts[: 2 if parts[0] == "flowrl" and len(parts) > 2 else 1])


def code_lines(text: str, tree: ast.Module) -> int:
    told: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            told |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(number not in told and bool(line.strip()) and line.strip()[0] != "#" for number, line in lines)


def by_room(root: Path) -> dict[str, int]:
    rooms: Counter[str] = Counter()
    for file in sources(root):
        rooms[room_of(file, root)] += code_lines(text := file.read_text(), ast.parse(text))
    return dict(sorted(rooms.items()))


def arrows(tree: ast.Module, modules: set[str], *, at_once: bool) -> set[str]:
    """The modules of flowrl that a file imports: all, or those that are imported with it."""
    nodes, names = list(ast.walk(tree)), set()
    apart = [node for node in nodes if at_once and (isinstance(node, ast.FunctionDef) or _is_typing(node))]
    left = {id(each) for node in apart for each in ast.walk(node)}
    for node in nodes:
        if id(node) in left:
            continue
        if isinstance(node, ast.ImportFrom):
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= parts if parts <= modules else parts | {str(node.module)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & modules


def circles_of(graph: dict[str, set[str]]) -> int:
    """How many arrows have to go until no circle is left, one by one as they are found."""
    graph, found = {name: set(others) for name, others in graph.items()}, 0
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found, cycle = found + 1, error.args[1]
            graph[cycle[1]].discard(cycle[0])
        else:
            return found


def floors_of(graph: dict[str, set[str]]) -> int:
    floors: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        floors[name] = 1 + max((floors[other] for other in graph.get(name, ())), default=0)
    return max(floors.values())


def counts(root: Path) -> dict[str, int | str]:
    files = sources(root)
    trees = {file: ast.parse(file.read_text()) for file in files}
    nodes = {file: list(ast.walk(tree)) for file, tree in trees.items()}
    rooms: dict[str, set[str]] = defaultdict(set)
    public = 0
    for file, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_":
                public += 1
                if isinstance(node, ast.ClassDef) and node.name != "Config":
                    rooms[node.name].add(room_of(file, root))
    functions = [node for each in nodes.values() for node in each if isinstance(node, ast.FunctionDef)]
    classes = [node for each in nodes.values() for node in each if isinstance(node, ast.ClassDef)]
    late = {id(each) for node in functions for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)}
    names = {file: _module(file, root) for file in files}
    modules = {*names.values()} - {"flowrl"}  # its door imports nothing before it is asked
    all_, first = (
        {names[file]: arrows(tree, modules, at_once=at_once) - {names[file]} for file, tree in trees.items()}
        for at_once in (False, True)
    )
    ways = subprocess.run([sys.executable, "-c", COUNTED], cwd=root, capture_output=True, text=True, check=True)
    batch_files, batch_calls, run_files, run_calls = map(int, ways.stderr.split()[-4:])
    texts = [file.read_text() for file in files]
    return {
        "files": len(files),
        "lines of code": sum(by_room(root).values()),
        "public names": public,
        "class names in two rooms": sum(len(each) > 1 for each in rooms.values()),
        "classes above 15 methods": sum(_methods(each) > 15 for each in classes),
        "functions above 60 lines": sum(_length(each) > 60 for each in functions),
        "imports in functions": len(late),
        "floors": floors_of(first),
        "circles": circles_of(all_),
        "flowrl run dqn: files, calls": f"{run_files}, {run_calls:,}",
        "a batch of PPO: files, calls": f"{batch_files}, {batch_calls:,}",
        **{
            f"files that know the {kind} {name}": sum(bool(re.search(rf"\b{name}\b", each, re.I)) for each in texts)
            for kind, name in EXAMPLES.items()
        },
    }


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _module(file: Path, root: Path) -> str:
    name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("flowrl") else f"flowrl.{name}"


def _methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef) for each in node.body)


def _length(node: ast.FunctionDef) -> int:
    told = ast.get_docstring(node, clean=False)
    return (node.end_lineno or 0) - node.lineno - (0 if told is None else len(told.splitlines()))


def check() -> None:
    allowed, found = json.loads(BUDGET.read_text()), by_room(HERE)
    over = [
        f"{room} has {found[room]} lines of code, allowed are {allowed.get(room, 0)}"
        for room in found
        if found[room] > allowed.get(room, 0)
    ]
    print(f"lines of code: {sum(found.values())}, allowed: {sum(allowed.values())}")
    if over:
        sys.exit(
            "\n".join(
                [*over, f"make room, or say in the commit that changes {BUDGET.relative_to(HERE)} why it is worth it"]
            )
        )


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        check()
        return
    roots = [*(Path(each).resolve() for each in sys.argv[1:]), HERE]
    tables = [counts(root) for root in roots]
    width = max(map(len, tables[-1]))
    for name in tables[-1]:
        print(f"{name:<{width}}", *(f"{table[name]:>14}" for table in tables))
    rooms = [by_room(root) for root in roots]
    for room in sorted(set().union(*rooms)):
        print(f"{room:<{width}}", *(f"{each.get(room, 0):>14}" for each in rooms))


if __name__ == "__main__":
    main()

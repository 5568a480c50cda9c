"""Hooks of mkdocs: what the site has beside the pages of this folder.

- The README, the changelog, the guide for contributors, and every notebook, as pages.
- Every file of the repository that a page links to, as a page with its source.
- The reference: every public name, by room, with its signature and docstring.
- llms.txt: the pages by section, with what each says first, and each page's Markdown beside it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")

#: Pages of the top folder, by their name on the site.
TOP = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}

#: The rooms of the reference: modules whose public names each page has.
ROOMS = {
    "flowrl": ["flowrl"],
    "operators": ["flowrl.operators"],
    "plans": ["flowrl.plans"],
    "data": ["flowrl.data"],
    "environments": ["flowrl.envs"],
    "policies": ["flowrl.policies"],
    "models": ["flowrl.models"],
    "rollout": ["flowrl.rollout", "flowrl.learners"],
    "trainer": ["flowrl.runs.config", "flowrl.trainer.trained_policy", "flowrl.trainer.tune"],
    "engine": [
        "flowrl.engine.schema",
        "flowrl.engine.protocols",
        "flowrl.engine.workers.subplan",
        "flowrl.engine.workers.queues",
    ],
    "tools": ["flowrl.testing", "flowrl.returns", "flowrl.schedules", "flowrl.settings", "flowrl.errors"],
}


DOCTEST = re.compile(r"^(>>> .*(?:\n.*\S.*)*)", re.MULTILINE)


LABEL = re.compile(r"^(Blocks when|Counts|Emits|Raises|Records|Source|State): (?=\S)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Docstrings as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring whose doctests stand in fences, and whose labels begin paragraphs."""
    return LABEL.sub(r"\n**\1:** ", DOCTEST.sub(r"```pycon\n\1\n```", docstring))


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def on_config(config: MkDocsConfig) -> None:
    """Headings have the anchors that they have on a forge; notebooks are the end of the first section."""
    config.mdx_configs["toc"] = {"permalink": True, "slugify": slugify(case="lower"), "toc_depth": 3}
    if NOTEBOOKS:
        (first,) = config.nav[0].values()
        first.append({"Notebooks": [f"notebooks/{path.stem}.md" for path in NOTEBOOKS]})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in this folder."""
    for uri, name in TOP.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text("utf-8")))
    for path in NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content="\n\n".join(cells_of(path))))
    for room, modules in ROOMS.items():
        files.append(File.generated(config, f"api/{room}.md", content="".join(reference(room, modules))))
    sources = {source for page in files.documentation_pages() for source in sources_of(page)}
    for source in sorted(sources):
        text = (ROOT / source).read_text("utf-8")
        content = f"# {source}\n\n`````{source.suffix.removeprefix('.')}\n{text}`````\n"
        files.append(File.generated(config, f"source/{source.as_posix()}.md", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of this folder to the pages made of what they name."""

    def led(link: re.Match[str]) -> str:
        target, anchor = resolved(page.file, link[1]), link[2] or ""
        if target is None:
            return link[0]
        uri = next((uri for uri, name in TOP.items() if name == target.as_posix()), None)
        if uri is None and target.parts[:1] == ("docs",):
            uri = target.relative_to("docs").as_posix()
        if uri is None and (ROOT / target).is_file():
            uri, anchor = f"source/{target.as_posix()}.md", ""
        return f"]({posixpath.relpath(uri or target.as_posix(), posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    # A folder has no page: its name stays.
    text = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)\)", lambda m: m[1] if _folder(page.file, m[2]) else m[0], markdown)
    return LINK.sub(led, text)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write llms.txt and the Markdown of its pages."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}\n\n> {config.site_description}\n"]
    for section, pages in _sections:
        lines.append(f"\n## {section}\n\n")
        for page in pages:
            if page.markdown is None or page.file.src_uri.startswith("api/"):
                continue
            (site / page.file.src_uri).parent.mkdir(parents=True, exist_ok=True)
            (site / page.file.src_uri).write_text(page.markdown, "utf-8")
            lines.append(f"- [{page.title}]({page.file.src_uri}): {first_sentence(page.markdown)}\n")
    (site / "llms.txt").write_text("".join(lines), "utf-8")


_sections: list[tuple[str, list[Page]]] = []


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> None:
    """Keep the sections for llms.txt."""
    _sections[:] = [(item.title, list(_pages(item.children))) for item in nav.items if isinstance(item, Section)]


def _pages(items: Iterable[Any]) -> Iterator[Page]:
    for item in items:
        if isinstance(item, Section):
            yield from _pages(item.children)
        elif isinstance(item, Page):
            yield item


def first_sentence(markdown: str) -> str:
    """The first sentence below the heading, without links."""
    paragraphs = (" ".join(each.split()) for each in re.split(r"\n\s*\n", markdown) if each.strip()[:1].isalpha())
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", next(paragraphs, ""))
    return re.split(r"(?<=[.:]) (?=[A-Z])", text)[0]


def cells_of(notebook: Path) -> Iterator[str]:
    """The cells of a notebook as Markdown, with what they printed and showed."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                yield f"![What the cell shows](data:image/png;base64,{''.join(data['image/png'].split())})"
            else:
                yield f"```text\n{''.join(output.get('text') or data.get('text/plain', '')).rstrip()}\n```"


def resolved(file: File, link: str) -> Path | None:
    """The file of the repository that a page's link names; None if it stays on the site, or leaves the repository."""
    name = TOP.get(file.src_uri)
    link = re.sub(r"^(notebooks/)?(\w+)\.ipynb$", r"\1\2.md", link)
    folder = "." if name else posixpath.join("docs", posixpath.dirname(file.src_uri))
    target = posixpath.normpath(posixpath.join(folder, link))
    inside = "://" not in link and not target.startswith("..")
    return Path(target) if inside and (name or not target.startswith("docs/")) else None


def sources_of(file: File) -> Iterator[Path]:
    """The files that a page links to and that are no pages."""
    for link, _ in LINK.findall(file.content_string):
        target = resolved(file, link)
        if target and (ROOT / target).is_file() and target.parts[0] != "docs" and target.name not in TOP.values():
            yield target


def _folder(file: File, link: str) -> bool:
    target = resolved(file, link)
    return target is not None and (ROOT / target).is_dir()


def reference(room: str, modules: list[str]) -> Iterator[str]:
    """A page of the reference."""
    yield f"# {room}\n"
    for name in modules:
        module = importlib.import_module(name)
        yield f"\n{as_markdown(inspect.cleandoc(module.__doc__ or ''))}\n\n"
        yield f"Import these from `{name}`.\n"
        for each in public(module):
            thing = getattr(module, each)
            yield f"\n## {each}\n"
            if callable(thing):
                yield f"\n```python\n{signature(each, thing)}\n```\n"
            yield f"\n::: {where(module, each, thing)}\n"


def public(module: ModuleType) -> list[str]:
    """The names of a door, or what a module defines."""
    if hasattr(module, "__all__"):
        return sorted((name for name in module.__all__ if name[:1] != "_"), key=str.lower)
    found = {name: thing for name, thing in vars(module).items() if not isinstance(thing, Enum)}  # named by their class
    return [name for name in found if name[0] != "_" and getattr(found[name], "__module__", None) == module.__name__]


def signature(name: str, thing: Any) -> str:
    """The call, one argument a line if it is long."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    if inspect.isclass(thing):
        found = found.replace(return_annotation=inspect.Signature.empty)
    line = name + re.sub(r"(\b[a-z_]+\.)+(?=[A-Z])|<factory>", "", str(found)).replace("'", "")
    line = re.sub(r"<[^<>]*>", "...", line)  # defaults without a name
    return line if len(line) < 90 else name + "(\n" + "".join(f"    {each},\n" for each in _arguments(line)) + ")"


def _arguments(line: str) -> Iterator[str]:
    depth, begun = 0, line.index("(") + 1
    for at in range(begun, len(line)):
        if line[at] in "([{":
            depth += 1
        elif line[at] in ")]}":
            depth -= 1
        if (line[at] == "," and not depth) or depth < 0:
            if line[begun:at].strip():
                yield line[begun:at].strip()
            begun = at + 1
        if depth < 0:
            return


def where(module: ModuleType, name: str, thing: Any) -> str:
    """The path of the source that defines a name."""
    home = getattr(thing, "__module__", None)
    named = getattr(thing, "__name__", name) == name
    return f"{home}.{name}" if home and home.startswith("flowrl") and named else f"{module.__name__}.{name}"

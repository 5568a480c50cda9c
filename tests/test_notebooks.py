"""The notebooks under docs/ show what their cells print, wherever they run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)


@NOTEBOOKS
def test_a_notebook_has_run_from_top_to_bottom(path: Path) -> None:
    """Nothing in it is large, failed, or of the machine that it ran on; its links lead somewhere."""
    text = path.read_text()
    cells = json.loads(text)["cells"]
    ran = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert ran == list(range(1, len(ran) + 1))
    assert not any(output["output_type"] == "error" for output in outputs(cells))
    assert not re.search(r"/(tmp|home|root|Users|work)/|ipykernel_", text)
    assert len(text) < 60_000
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", "".join(map(source, cells))):
        assert (path.parent / target).exists(), target


@pytest.mark.needs("nbclient")
@NOTEBOOKS
def test_a_notebook_prints_anew_what_it_shows(path: Path, tmp_path: Path) -> None:
    """But for numbers, whose last bits depend on the processor."""
    import nbclient
    import nbformat

    shown = json.loads(path.read_text())["cells"]
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [forms(cell) for cell in notebook["cells"]] == [forms(cell) for cell in shown]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def outputs(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [output for cell in cells for output in cell.get("outputs", ())]


def forms(cell: dict[str, Any]) -> str:
    """What a cell shows, without numbers and spaces; of a picture, its type."""
    texts = ["".join(output.get("text", sorted(output.get("data", ())))) for output in outputs([cell])]
    return re.sub(r"[-\d.,]+", "#", "".join("".join(texts).split()))

"""The notebooks of the examples: stored without outputs, and each runs to its result."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
RESULTS = {"first_search": "'done'", "own_data": "'proxy_anchor'", "own_method": "'my_loss'"}
"""What the last cell shows."""


def test_they_are_stored_without_outputs() -> None:
    assert {path.stem for path in NOTEBOOKS} == RESULTS.keys()
    for path in NOTEBOOKS:
        code = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), path.name


@pytest.mark.slow
def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = (str(Path(sys.executable).parent), os.environ["PATH"], str(FOLDER.parent / ".uv" / "bin"))
    monkeypatch.setenv("PATH", os.pathsep.join(programs))
    for path in NOTEBOOKS:
        folder = tmp_path / path.stem
        folder.mkdir()
        book: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        NotebookClient(book, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
        (shown,) = (one for one in book.cells[-1].outputs if one.output_type == "execute_result")
        assert RESULTS[path.stem] in shown.data["text/plain"]

"""The tutorial runs from top to bottom, and shows what it has stored."""

from __future__ import annotations

import re

import pytest
from limits import WAIT_S

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def told(cell) -> list[str]:
    """Text that a cell shows, without pictures."""
    texts = [output.get("text") or output.data["text/plain"] for output in cell.outputs]
    return [re.sub(r"<Figure size .*>", "<Figure>", text) for text in texts]


@pytest.fixture(scope="module")
def stored(repo):
    return nbformat.read(repo / "docs" / "tutorial.ipynb", 4)


@pytest.fixture(scope="module")
def executed(stored, tmp_path_factory):
    """The cells, executed in an empty folder."""
    notebook = nbformat.from_dict(stored)
    folder = str(tmp_path_factory.mktemp("notebook"))
    nbclient.NotebookClient(
        notebook, timeout=WAIT_S, startup_timeout=WAIT_S, resources={"metadata": {"path": folder}}
    ).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_every_cell_shows_what_is_stored(stored, executed):
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [told(cell) for cell in executed] == [told(cell) for cell in cells]


@pytest.mark.slow
def test_progress_is_a_line_and_objects_and_figures_show_themselves(executed):
    first = executed[1].outputs
    assert first[0].data["text/plain"] == "first: 1 of 1 point"
    assert len(first) == 2 and "<table" in first[1].data["text/html"]
    outputs = [output for cell in executed for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", ()) for output in outputs) == 5


def test_stored_outputs_are_small(repo, stored):
    assert (repo / "docs" / "tutorial.ipynb").stat().st_size < 250_000
    counts = [cell.execution_count for cell in stored.cells if cell.cell_type == "code"]
    assert counts == [*range(1, len(counts) + 1)]

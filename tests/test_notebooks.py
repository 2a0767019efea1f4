"""The notebooks: what is committed agrees with the sources, and each runs from top to bottom."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from scripts.notebooks import FOLDER, rendered

SOURCES = sorted(FOLDER.glob("*.py"))
# What stands in place of the settings at a notebook's top: less text, fewer steps.
TINY = {
    "01_from_a_cpp_project_to_a_model": "headers = False; steps = 8; vocab_size = 400",
    "02_tokenizers_seen": "headers = False; sizes = [384, 400, 448]",
    "03_attention_and_induction": "headers = False; steps = 4",
    "04_one_tpu_chip_in_jax": 'project = "../examples/tinylib"; steps = 4',
    "05_compare_runs": 'project = "../examples/tinylib"; steps = 4',
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_committed_notebook_is_that_of_its_source(source: Path) -> None:
    committed = source.with_suffix(".ipynb").read_text()
    assert committed == rendered(source), "run 'make notebooks'"
    assert '"execution_count": 1' not in committed
    assert not re.search(r"/(home|root|work|Users|tmp)/", committed)


def test_every_notebook_has_a_source_and_tiny_settings() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in SOURCES} == set(TINY)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_notebook_runs(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = jupytext.read(source)
    place = next(n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ()))
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(TINY[source.stem]))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert kinds & {"image/png", "text/html"}, "a notebook without a picture"

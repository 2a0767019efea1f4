"""Write notebooks/*.ipynb anew from notebooks/*.py, without outputs: `make notebooks`."""

from __future__ import annotations

from pathlib import Path

import jupytext

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"


def rendered(source: Path) -> str:
    """The notebook of a source in percent format; the same source gives the same bytes."""
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # random otherwise
    return str(jupytext.writes(notebook, fmt="ipynb")).rstrip("\n") + "\n"


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.py")):
        path.with_suffix(".ipynb").write_text(rendered(path), encoding="utf-8")

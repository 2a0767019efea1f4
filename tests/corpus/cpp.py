"""Small C++ inputs, and g++ as the judge of what comes out."""

import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cpplm.corpus.document import Document
from cpplm.corpus.ingest.discovery import Project, find_files
from cpplm.corpus.project import BuildPlan, DiscoveredProject, build_project, unread_index
from cpplm.corpus.settings import Mode
from cpplm.corpus.slicing import documents as documents_module
from cpplm.corpus.slicing.build_headers import build_defaults
from cpplm.corpus.slicing.documents import SliceOptions, build_unit
from cpplm.corpus.slicing.measure import Measure
from cpplm.corpus.slicing.project_index import ProjectIndex
from cpplm.corpus.slicing.shortening import Shortener
from cpplm.corpus.slicing.units import Unit, make_units, scan

TINYLIB = Path(__file__).parents[2] / "examples" / "tinylib"
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is the judge")


def utf8_bytes(text: str) -> int:
    return len(text.encode())


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def index_of(
    folder: Path, *, merge: bool = True, closed: bool = True, unquotable: Collection[str] = ()
) -> tuple[list[Unit], ProjectIndex]:
    """The units of a project, and its index; text of the unquotable files may not be borrowed."""
    project = Project("p", (folder,), has_paths=closed)
    found, skips = find_files(project)
    files = [
        replace(file, makes_documents=False, may_be_borrowed=False) if file.name in unquotable else file
        for file in found
    ]
    scans = {file.name: scan(file) for file in files}
    discovered = DiscoveredProject(project, files, skips, defaults=build_defaults(project.roots))
    index = unread_index(discovered, scans)
    units = make_units(
        [file for file in files if file.makes_documents], scans, index.includes.resolve, merge=merge
    )
    return units, index


def documents_of(
    folder: Path,
    *,
    budget: int = 49_152,
    mode: Mode = "compilable",
    closed: bool = True,
    generous: bool = True,
    count: Callable[[str], int] = utf8_bytes,
    of: str = "",
    unquotable: Collection[str] = (),
) -> list[Document]:
    """All documents of a project, or those of the unit with the file `of`.

    Borrowed text is shortened where there is much more of it than of the unit's own; when `generous`, only
    where the budget asks for it.
    """
    units, index = index_of(folder, merge=mode != "file", closed=closed, unquotable=unquotable)
    options = SliceOptions(budget, Measure(count, most_bytes=1 if count is utf8_bytes else 16), mode)
    shortener = Shortener(index.macros, index.types | index.aliases)
    with patch.object(documents_module, "_GENEROUS", 1e9 if generous else documents_module._GENEROUS):
        return [
            document
            for unit in units
            if not of or of in [file.name for file in unit.files]
            for document in build_unit(unit, index, shortener, options)
        ]


def one_document(folder: Path, files: Mapping[str, str | bytes], of: str = "", **options: Any) -> Document:
    """The one document of a project, or of the unit with the file `of`."""
    documents = documents_of(write_files(folder, files), of=of, **options)
    assert len(documents) == 1, [document.files for document in documents]
    return documents[0]


def rows_of(project: Project, plan: BuildPlan) -> list[dict[str, Any]]:
    """The rows of a project, built in this process."""
    found = DiscoveredProject(project, *find_files(project))
    return [row for rows, _ in build_project(found, plan, map, {}) for row in rows]


def compile_errors(text: str, *include: Path, language: str = "c++", standard: str = "c++17") -> str:
    """The errors of g++ in a text; empty when it compiles."""
    standards = [f"-std={standard}"] if language == "c++" else []
    flags = [flag for folder in include for flag in ("-I", str(folder))]
    command = ["g++", "-x", language, *standards, *flags, "-fsyntax-only", "-w", "-"]
    return subprocess.run(
        command, input=text.encode(), capture_output=True, check=False, timeout=60
    ).stderr.decode()


def assert_compiles(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """The document of a project's file `use.c`, `use.cc` or `use.h`, the first of these, compiles."""
    name = next(name for name in files if Path(name).stem == "use")
    document = one_document(folder, files, of=name)
    assert compile_errors(document.text, language="c" if name.endswith(".c") else "c++") == ""


def in_order(text: str, *pieces: str) -> None:
    """Each piece is there once, and they follow each other."""
    missing = [piece for piece in pieces if text.count(piece) != 1]
    assert missing == [], f"not there once: {missing} in\n{text}"
    places = [text.index(piece) for piece in pieces]
    assert places == sorted(places), dict(zip(pieces, places, strict=True))

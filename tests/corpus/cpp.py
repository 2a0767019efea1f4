"""Small C++ inputs, and g++ as the judge of what comes out."""

import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from cpplm.corpus.document import Document
from cpplm.corpus.ingest.discovery import Project, find_files
from cpplm.corpus.slicing import documents as documents_module
from cpplm.corpus.slicing.closure import Index
from cpplm.corpus.slicing.documents import Options, build_unit
from cpplm.corpus.slicing.packing import Measure
from cpplm.corpus.slicing.units import Includes, Unit, make_units, scan
from cpplm.cpp.macros import MacroTable

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
    folder: Path, *, ordered: bool = True, unquotable: Collection[str] = ()
) -> tuple[list[Unit], Index]:
    """The units of a project, and all its files; text of the unquotable ones may not be borrowed."""
    files = [
        replace(file, makes_documents=False, may_be_borrowed=False) if file.name in unquotable else file
        for file in find_files(Project("p", (folder,)))[0]
    ]
    scans = {file.name: scan(file) for file in files}
    bodies: dict[bytes, set[bytes]] = {}
    for scanned in scans.values():
        for name, texts in scanned.bodies.items():
            bodies.setdefault(name, set()).update(texts)
    includes = Includes(scans)
    units = make_units([file for file in files if file.makes_documents], includes, merge=ordered)
    return units, Index({file.name: file for file in files}, includes, MacroTable.from_bodies(bodies))


def documents_of(
    folder: Path,
    *,
    budget: int = 49_152,
    ordered: bool = True,
    closed: bool = True,
    generous: bool = True,
    count: Callable[[str], int] = utf8_bytes,
    of: str = "",
    unquotable: Collection[str] = (),
) -> tuple[list[Document], int]:
    """All documents of a project, or those of the unit with the file `of`; its number of functions.

    Borrowed text is shortened where there is much more of it than of the unit's own; when `generous`, only
    where the budget asks for it.
    """
    units, index = index_of(folder, ordered=ordered, unquotable=unquotable)
    measure = Measure(count, most_bytes=1 if count is utf8_bytes else 16)
    options = Options(budget, measure, ordered, closed=closed)
    documents: list[Document] = []
    functions = 0
    for unit in units:
        if of and of not in [file.name for file in unit.files]:
            continue
        with patch.object(documents_module, "_GENEROUS", 1e9 if generous else documents_module._GENEROUS):
            made, defined = build_unit(unit, index, options)
        documents += made
        functions += defined
    return documents, functions


def one_document(folder: Path, files: Mapping[str, str | bytes], of: str = "") -> Document:
    """The one document of a project, or of the unit with the file `of`."""
    documents, _ = documents_of(write_files(folder, files), of=of)
    assert len(documents) == 1, [document.files for document in documents]
    return documents[0]


def compile_errors(text: str, *include: Path, language: str = "c++", standard: str = "c++17") -> str:
    """What g++ says against a text; empty when it compiles."""
    standards = [f"-std={standard}"] if language == "c++" else []
    flags = [flag for folder in include for flag in ("-I", str(folder))]
    command = ["g++", "-x", language, *standards, *flags, "-fsyntax-only", "-w", "-"]
    return subprocess.run(
        command, input=text.encode(), capture_output=True, check=False, timeout=60
    ).stderr.decode()


def in_order(text: str, *pieces: str) -> None:
    """Each piece is there once, and they follow each other."""
    missing = [piece for piece in pieces if text.count(piece) != 1]
    assert missing == [], f"not there once: {missing} in\n{text}"
    places = [text.index(piece) for piece in pieces]
    assert places == sorted(places), dict(zip(pieces, places, strict=True))

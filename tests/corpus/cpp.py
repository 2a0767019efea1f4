"""Small C++ inputs, and g++ as the judge of what comes out."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cpplm.corpus.documents import Document, Options, build_unit
from cpplm.corpus.masking import MacroTable
from cpplm.corpus.sources import Project, find_files
from cpplm.corpus.units import make_units, scan

TINYLIB = Path(__file__).parents[2] / "examples" / "tinylib"
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is the judge")


def utf8_bytes(text: str) -> int:
    return len(text.encode())


def write_files(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def documents_of(folder: Path, *, budget: int = 49_152, ordered: bool = True) -> tuple[list[Document], int]:
    """All documents of a project, and its number of function definitions."""
    files, _ = find_files(Project("p", (folder,)))
    scans = {file.name: scan(file) for file in files}
    bodies: dict[bytes, set[bytes]] = {}
    for scanned in scans.values():
        for name, texts in scanned.bodies.items():
            bodies.setdefault(name, set()).update(texts)
    options = Options(MacroTable.from_bodies(bodies), budget, utf8_bytes, ordered)
    documents: list[Document] = []
    functions = 0
    for unit in make_units(files, scans, merge=ordered):
        made, defined = build_unit(unit, options)
        documents += made
        functions += defined
    return documents, functions


def one_document(folder: Path, files: dict[str, str | bytes]) -> Document:
    documents, _ = documents_of(write_files(folder, files))
    assert len(documents) == 1, [document.files for document in documents]
    return documents[0]


def compile_errors(text: str, *include: Path, language: str = "c++") -> str:
    """What g++ says against a text; empty when it compiles."""
    standard = ["-std=c++17"] if language == "c++" else []
    flags = [flag for folder in include for flag in ("-I", str(folder))]
    command = ["g++", "-x", language, *standard, *flags, "-fsyntax-only", "-w", "-"]
    return subprocess.run(
        command, input=text.encode(), capture_output=True, check=False, timeout=60
    ).stderr.decode()


def in_order(text: str, *pieces: str) -> None:
    """Each piece is there once, and they follow each other."""
    places = [text.index(piece) for piece in pieces]
    assert places == sorted(places), dict(zip(pieces, places, strict=True))
    assert all(text.count(piece) == 1 for piece in pieces), {p: text.count(p) for p in pieces}

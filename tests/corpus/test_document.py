"""Documents know where each of their lines comes from."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.corpus.document import Document, SourceLines, chunk_documents, sources_of, split_text
from tests.corpus.cpp import documents_of, utf8_bytes, write_files
from tests.corpus.random_projects import marks, random_project

SEEDS = st.integers(0, 2**32)


def marks_at(files: dict[str, str], document: Document) -> set[int]:
    """The marks of the lines that a document says it is made of."""
    found: set[int] = set()
    for source in document.sources:
        lines = files[source.file].split("\n")
        assert 1 <= source.first <= source.last <= len(lines)
        found |= marks("\n".join(lines[source.first - 1 : source.last]))
    return found


def built(files: dict[str, str], **options: object) -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        return documents_of(write_files(Path(folder), files), **options)


@given(SEEDS)
@settings(max_examples=25)
def test_sources_are_the_very_lines_of_the_text(seed):
    files = random_project(random.Random(seed))
    for document in built(files):
        assert document.kind == "compilable"
        assert marks(document.text) == marks_at(files, document)
        assert {source.file for source in document.sources} == set(document.files)


@pytest.mark.parametrize("options", [{"generous": False}, {"budget": 900}, {"budget": 600, "mode": "file"}])
@given(seed=SEEDS)
@settings(max_examples=10)
def test_nothing_in_shortened_and_cut_documents_comes_from_elsewhere(options, seed):
    files = random_project(random.Random(seed))
    for document in built(files, **options):
        assert marks(document.text) <= marks_at(files, document)


@given(SEEDS)
@settings(max_examples=10)
def test_files_as_they_are_say_all_their_lines(seed):
    files = {name: "\n\n" + text for name, text in random_project(random.Random(seed), headers=2).items()}
    for document in built(files, mode="file"):
        (source,) = document.sources
        assert (
            document.text == "\n".join(files[source.file].split("\n")[source.first - 1 : source.last]) + "\n"
        )


def test_sources_are_sorted_and_joined_where_they_touch():
    lines = [("b", 9, 9), ("a", 4, 6), ("b", 2, 3), ("a", 1, 3), ("a", 5, 5), ("a", 9, 9), ("b", 4, 4)]
    borrowed = SourceLines("a", 7, 8, "Table in b:3")
    assert sources_of([*(SourceLines(*each) for each in lines), borrowed]) == (
        SourceLines("a", 1, 6),
        borrowed,
        SourceLines("a", 9, 9),
        SourceLines("b", 2, 4),
        SourceLines("b", 9, 9),
    )


@given(st.text("ab é面\n", max_size=200), st.integers(4, 40))
def test_cutting_loses_nothing_and_keeps_the_budget(text, budget):
    pieces = split_text(text, budget, utf8_bytes)
    assert "".join(pieces) == text
    assert all(utf8_bytes(piece) <= budget for piece in pieces)


@given(st.text("ab\n", max_size=200), st.integers(4, 40), st.integers(1, 9))
def test_chunks_know_their_lines(text, budget, line):
    whole = SourceLines("a.cc", line, line + text.count("\n"))
    lines = text.split("\n")
    for chunk in chunk_documents(text, whole, line, budget, utf8_bytes):
        (source,) = chunk.sources
        assert chunk.text.removesuffix("\n") in "\n".join(lines[source.first - line : source.last - line + 1])
        assert (chunk.kind, chunk.files, chunk.size) == ("chunk", ("a.cc",), utf8_bytes(chunk.text))


def test_pieces_of_a_long_function_know_their_lines():
    lines = ["namespace a {", "namespace b {", "", "// m1", "", "#if FAST", "// m2", "int f(int x) {  // m3"]
    lines += [f"  x += {number};  // m{number}" for number in range(4, 150)]
    lines += ["  return x;", "}", "#endif", "}", "}"]
    files = {"a.cc": "\n".join(lines) + "\n"}
    documents = built(files, budget=600)
    assert len(documents) > 4
    assert {document.kind for document in documents} == {"chunk"}
    assert set.union(*(marks(document.text) for document in documents)) == set(range(1, 150))
    for document in documents:
        assert marks(document.text) == marks_at(files, document)

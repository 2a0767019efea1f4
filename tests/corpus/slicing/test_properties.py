"""Properties of every document of whatever project: nothing is lost, too long, or in another order."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.corpus.document import Document
from cpplm.corpus.slicing.documents import SliceOptions, build_unit
from cpplm.corpus.slicing.measure import Measure
from cpplm.corpus.slicing.shortening import Shortener
from tests.corpus.cpp import compile_errors, documents_of, index_of, needs_gxx, utf8_bytes, write_files
from tests.corpus.random_projects import MARK, marks, random_project

SEEDS = st.integers(0, 2**32)


def built(files: dict[str, str], **options: object) -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        return documents_of(write_files(Path(folder), files), **options)


def awkward(seed: int) -> dict[str, str]:
    """A project with an unsound file, a very long item and a very long line besides."""
    files = random_project(random.Random(seed), headers=3, sources=2)
    long = "".join(f"  x += {number};  // m{90_000 + number}\n" for number in range(160))
    table = ", ".join(f'"面{number}"' for number in range(400))
    files["unsound.cc"] = "int a() { return 1; }  // m91000\n#if X\nvoid broken() {\n" + long
    function = f'#include "h0.h"\nint longest(int x) {{\n{long}  return x;\n}}\n'
    files["long.cc"] = f"{function}const char* t[] = {{{table}}};\n"
    return files


@pytest.mark.parametrize("mode", ["compilable", "file"])
@given(seed=SEEDS, budget=st.integers(512, 3_000))
@settings(max_examples=12)
def test_no_document_is_over_the_budget_and_no_line_is_lost(mode, seed, budget):
    files = awkward(seed)
    documents = built(files, budget=budget, mode=mode, generous=False)
    assert all(d.size == utf8_bytes(d.text) <= budget for d in documents)
    assert set().union(*map(marks, files.values())) <= set().union(*(marks(d.text) for d in documents))
    assert sum(d.text.count("面") for d in documents) >= 400
    assert {d.kind for d in documents} >= {"chunk"}
    assert all(d.text.endswith("\n") or d.kind == "chunk" for d in documents)


@pytest.mark.parametrize(("budget", "mode"), [(128, "compilable"), (300, "file")])
def test_the_tokenizer_counts_in_every_kind_of_document(tokenizer, mode, budget):
    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    files = awkward(5)
    documents = built(files, budget=budget, mode=mode, count=count)
    assert all(d.size == count(d.text) <= budget for d in documents)
    assert set().union(*map(marks, files.values())) <= set().union(*(marks(d.text) for d in documents))


def compiler_order(files: dict[str, str], name: str, seen: set[str]) -> list[int]:
    """The marks of a file and its includes in the order in which a compiler reads them."""
    found: list[int] = []
    for line in files[name].split("\n"):
        included = line.removeprefix('#include "').rstrip('"')
        if included != line and included not in seen:
            seen.add(included)
            found += compiler_order(files, included, seen)
        found += map(int, MARK.findall(line))
    return found


@given(SEEDS, st.sampled_from([1_200, 49_152]))
@settings(max_examples=25)
def test_the_order_is_one_that_the_compiler_saw(seed, budget):
    """But for own functions that stand together, and are put callees first."""
    files = random_project(random.Random(seed))
    for document in built(files, budget=budget, generous=False):
        name = document.files[0]
        order = compiler_order(files, name, {name})
        functions = {mark for line in files[name].split("\n") if " f" in line for mark in marks(line)}
        heads = [
            line
            for line in document.text.split("\n")
            if line.startswith(("struct ", "int f", "inline int f"))
        ]
        places = [order.index(mark) for line in heads for mark in marks(line) - functions]
        assert document.kind == "compilable" and places == sorted(places)


@given(SEEDS, st.sampled_from([700, 1_500, 49_152]))
@settings(max_examples=10)
def test_documents_depend_on_nothing_that_was_built_before(seed, budget):
    files = random_project(random.Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        units, index = index_of(write_files(Path(folder), files))
        options = SliceOptions(budget, Measure(utf8_bytes))
        shortener = Shortener(index.macros)
        for unit in reversed(units):
            shared = build_unit(unit, index, shortener, options)
            _, fresh = index_of(Path(folder))
            assert shared == build_unit(
                unit, fresh, Shortener(fresh.macros), SliceOptions(budget, Measure(utf8_bytes))
            )


@needs_gxx
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_is_called_compilable_compiles(seed):
    files = random_project(random.Random(seed), headers=4, sources=2)
    documents = built(files) + built(files, budget=1_200, generous=False)
    compilable = [document for document in documents if document.kind == "compilable"]
    assert len(compilable) >= len(documents) - 1
    for document in compilable:
        assert compile_errors(document.text) == "", document.text

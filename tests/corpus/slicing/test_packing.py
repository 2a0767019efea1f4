"""Documents within the budget: whole units, parts with what they need, chunks."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.corpus.document import Document
from cpplm.corpus.slicing.packing import Measure
from cpplm.cpp.segments import Condition, Scope
from tests.corpus.cpp import compile_errors, documents_of, needs_gxx, utf8_bytes, write_files
from tests.corpus.random_projects import marks, random_project

SEEDS = st.integers(0, 2**32)


def built(files: dict[str, str], **options: object) -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        return documents_of(write_files(Path(folder), files), **options)[0]


def awkward(seed: int) -> dict[str, str]:
    """A project with an unsound file, a very long item and a very long line besides."""
    files = random_project(random.Random(seed), headers=3, sources=2)
    long = "".join(f"  x += {number};  // m{90_000 + number}\n" for number in range(60))
    table = ", ".join(f'"面{number}"' for number in range(400))
    files["unsound.cc"] = "int a() { return 1; }  // m91000\n#if X\nvoid broken() {\n" + long
    function = f'#include "h0.h"\nint longest(int x) {{\n{long}  return x;\n}}\n'
    files["long.cc"] = f"{function}const char* t[] = {{{table}}};\n"
    return files


@pytest.mark.parametrize("ordered", [True, False])
@given(seed=SEEDS, budget=st.integers(512, 3_000))
@settings(max_examples=12)
def test_no_document_is_over_the_budget_and_no_line_is_lost(ordered, seed, budget):
    files = awkward(seed)
    documents = built(files, budget=budget, ordered=ordered, generous=False)
    assert all(d.size == utf8_bytes(d.text) <= budget for d in documents)
    assert set().union(*map(marks, files.values())) <= set().union(*(marks(d.text) for d in documents))
    assert sum(d.text.count("面") for d in documents) >= 400
    assert {d.kind for d in documents} >= {"chunk"}
    assert all(d.text.endswith("\n") or d.kind == "chunk" for d in documents)


@pytest.mark.parametrize(("budget", "ordered"), [(128, True), (300, False)])
def test_the_tokenizer_counts_in_every_kind_of_document(tokenizer, ordered, budget):
    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    files = awkward(5)
    documents = built(files, budget=budget, ordered=ordered, count=count)
    assert all(d.size == count(d.text) <= budget for d in documents)
    assert set().union(*map(marks, files.values())) <= set().union(*(marks(d.text) for d in documents))


@given(SEEDS, st.sampled_from([700, 1_500, 49_152]))
@settings(max_examples=10)
def test_the_same_project_gives_the_same_documents(seed, budget):
    files = random_project(random.Random(seed))
    assert built(files, budget=budget) == built(dict(reversed(files.items())), budget=budget)


@needs_gxx
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_is_called_compilable_compiles(seed):
    files = random_project(random.Random(seed), headers=4, sources=2)
    documents = built(files) + built(files, budget=1_200, generous=False)
    compilable = [d for d in documents if d.kind == "compilable"]
    assert len(compilable) >= len(documents) - 1
    for document in compilable:
        assert compile_errors(document.text) == "", document.text


def long_unit(count: int, need: str = "") -> str:
    """Functions in two namespaces and under conditions, each calling the one before."""
    parts = ["#include <string>\n#define TWICE(x) ((x) * 2)\nusing std::string;\n" + need]
    for number in range(count):
        called = f"n::f{number - 1}(t)" if number else "t.v"
        body = "  t.v += 1;  // more\n" * 12 + f"  return {called} + TWICE({number});\n"
        function = f"struct T{number} {{ int v = 1; }};\nint f{number}(T0 t) {{\n{body}}}\n"
        if number % 3 == 1:
            function = f"#if defined(__cplusplus)\n{function}#endif\n"
        parts.append(f"namespace n {{\n{function}}}\n")
    return "".join(parts)


@needs_gxx
def test_parts_repeat_what_they_need_in_short():
    documents = built({"a.cc": long_unit(20)}, budget=2_000)
    assert len(documents) > 3
    assert {d.kind for d in documents} == {"compilable"}
    for number, document in enumerate(documents):
        assert compile_errors(document.text) == "", document.text
        assert "#define TWICE" in document.text
        assert document.text.count("#include <string>") == 1
        if number:
            assert "struct T0" in document.text
    # What is there for others only is a declaration: no body is written twice.
    for number in range(20):
        assert sum(d.text.count(f"+ TWICE({number});") for d in documents) == 1
    functions = sum(d.functions for d in documents)
    assert functions == 20


def test_a_measure_asks_once_for_each_text():
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return len(text)

    measure = Measure(count)
    assert [measure.item(b"int a;"), measure.item(b"int a;"), measure.item("é".encode())] == [8, 8, 3]
    assert asked == ["int a;", "é"]
    inner = (Scope(b"namespace a {"), Condition((b"#if A", b"#else")))
    assert measure.scopes(inner) > measure.scopes(inner[:1]) > measure.scopes(())

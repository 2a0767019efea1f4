"""Documents with includes expanded: everything is covered, within the budget, with provenance and spans."""

import re
from pathlib import Path

import pytest

from cpplm.core.spans import SpanKind, unpack_spans
from cpplm.corpus.slicing.inlining import assign_guests
from tests.corpus.cpp import TINYLIB, compile_errors, index_of, needs_gxx, write_files
from tests.corpus.modes import INLINED, Row, rows_of


def kinds_of(rows: list[Row]) -> dict[str, str]:
    """The kind of document by the first file that it was built for."""
    return {row["files"][0]: row["kind"] for row in rows}


def big_project(folder: Path) -> Path:
    """Twelve headers that include the ones before, six sources; the later, the more they bring in."""
    files: dict[str, str] = {}
    for i in range(12):
        inner = f'#include "h{i - 1}.h"\n' if i else ""
        filler = "".join(f"  value += {i * 31 + k};\n" for k in range(30))
        files[f"h{i}.h"] = (
            f"#pragma once\n{inner}inline int inline_{i}(int value) {{\n{filler}  return value;\n}}\n"
        )
    for i in range(0, 12, 2):
        files[f"s{i}.cc"] = f'#include "h{i}.h"\nint source_{i}() {{ return inline_{i}(1); }}\n'
    return write_files(folder, files)


@pytest.mark.slow
@needs_gxx
def test_every_document_of_the_example_compiles():
    rows = rows_of(TINYLIB, INLINED)
    assert {row["kind"] for row in rows} == {"inlined"}
    for row in rows:
        language = "c" if row["files"][-1].endswith(".c") else "c++"
        assert compile_errors(row["text"], language=language) == "", row["files"]
        assert '#include "' not in row["text"]


def test_headers_that_are_somewhere_need_no_document(tmp_path):
    files = {
        "small.h": "#pragma once\nint small();\n",
        "pair.h": '#pragma once\n#include "small.h"\nint pair();\n',
        "pair.cc": '#include "pair.h"\nint pair() { return small(); }\n',
        "all.cc": '#include "pair.h"\nint all() { return pair(); }\n' + "int filler();\n" * 50,
        "facade.h": '#pragma once\n#include "detail.h"\nint facade();\n',
        "detail.h": "#pragma once\nint detail();\n",
        "alone.h": "#pragma once\nint alone();\n",
    }
    rows = rows_of(write_files(tmp_path, files), INLINED)
    assert {tuple(row["files"]) for row in rows} == {
        ("all.cc", "pair.h", "small.h"),
        ("alone.h",),
        ("facade.h", "detail.h"),
        ("pair.cc", "pair.h", "small.h"),
    }


def test_the_smallest_unit_that_includes_a_header_has_to_cover_it(tmp_path):
    files = {
        "a.h": "#pragma once\nint a();\n",
        "large.cc": '#include "a.h"\n' + "int filler();\n" * 50,
        "small.cc": '#include "a.h"\n',
    }
    units, index = index_of(write_files(tmp_path, files))
    found = assign_guests(units, index.includes, index.files)
    guests = {unit.name: [guest.name for guest in unit.guests] for unit in found}
    assert guests == {"large.cc": [], "small.cc": ["a.h"]}
    assert sum(unit.size for unit in found) == sum(file.size for file in index.files.values())


@pytest.mark.parametrize("budget", [900, 5_000, 49_152])
def test_the_budget_is_kept_and_every_function_is_somewhere(tmp_path, budget):
    rows = rows_of(big_project(tmp_path), INLINED, budget=budget)
    text = "\n".join(row["text"] for row in rows)
    assert max(len(row["text"].encode()) for row in rows) <= budget
    for i in range(12):
        assert f"int inline_{i}(int value) {{" in text
    for i in range(0, 12, 2):
        assert f"int source_{i}() {{" in text
    kinds = set(kinds_of(rows).values())
    assert kinds == ({"inlined"} if budget > 8_000 else {"inlined", "compilable"})


def test_spans_and_documented_functions_are_those_of_the_files(tmp_path):
    header = (
        "// Copyright Someone, long enough to shift everything that follows it.\n\n#pragma once\n"
        '#include "base.h"\n\n/// Adds one to what it is given.\ninline int plus_one(int value) {\n'
        "  int result = base(value);\n  return result + 1;\n}\n"
    )
    files = {
        "base.h": "#pragma once\n// Größe\ninline int base(int value) {\n  return value * 3 + 4;\n}\n",
        "plus.h": header,
        "main.cc": (
            '#include "plus.h"\n\nstatic int before() { return plus_one(41); }\n#include "base.h"\n'
            "/// Says what the program does.\nint main() {\n  return before() - base(7) + 12;\n}\n"
        ),
    }
    write_files(tmp_path, files)
    (row,) = rows_of(tmp_path, INLINED)
    text = row["text"].encode()
    spans = unpack_spans(row["spans"])
    functions = [text[a:b].decode() for a, b, kind in spans.tolist() if kind == SpanKind.FUNCTION]
    assert [function.split("(")[0] for function in functions] == [
        "inline int base", "inline int plus_one", "static int before", "int main",
    ]  # fmt: skip
    assert all(function.endswith("}") for function in functions)
    pairs = [
        (text[p["doc_start"] : p["doc_end"]], text[p["body_start"] : p["body_end"]])
        for p in row["docstrings"]
    ]
    assert pairs == [
        (b"/// Adds one to what it is given.", b"{\n  int result = base(value);\n  return result + 1;\n}"),
        (b"/// Says what the program does.", b"{\n  return before() - base(7) + 12;\n}"),
    ]
    assert row["num_functions"] == 4


def test_a_span_with_an_include_inside_is_left_out(tmp_path):
    files = {
        "table.inc": "1, 2, 3,\n",
        "main.cc": (
            'int first() {\n  static int table[] = {\n#include "table.inc"\n  };\n  return table[0];\n}\n'
            "int second() {\n  return first() + 1;\n}\n"
        ),
    }
    (row,) = rows_of(write_files(tmp_path, files), INLINED)
    text = row["text"].encode()
    body = b"{\n  return first() + 1;\n}"
    found = {text[a:b] for a, b, _ in unpack_spans(row["spans"]).tolist()}
    assert found == {b"int second() " + body, body}


def test_the_lines_that_are_named_are_those_that_are_there(tmp_path):
    write_files(tmp_path, {})
    for row in rows_of(TINYLIB, INLINED):
        named = []
        for source in row["sources"]:
            lines = (TINYLIB / source["file"]).read_text().splitlines()
            named += lines[source["first"] - 1 : source["last"]]
        written = [
            line for line in row["text"].splitlines() if not re.fullmatch(r"// \S+\.(?:h|cc|cpp|c)", line)
        ]
        assert sorted(filter(None, named)) == sorted(filter(None, written))

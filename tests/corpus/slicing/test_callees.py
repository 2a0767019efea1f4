"""Bodies come from where they are defined, with what they need, and never spoil the document."""

import json
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.corpus.build import build
from cpplm.corpus.settings import CorpusSettings
from tests.corpus.cpp import TINYLIB, compile_errors, in_order, needs_gxx, write_files
from tests.corpus.modes import COMPILABLE, CROSS_FILE, Row, row_of, rows_of

FILLER = "".join(f"int filler_{i}(int value) {{\n  return value * {i};\n}}\n" for i in range(40))


def text_of(folder: Path, files: dict[str, str], of: str = "main.cc", **changes: object) -> str:
    """The document of a file; it has to compile."""
    text = row_of(folder, files, CROSS_FILE, of, **changes)["text"]
    assert isinstance(text, str)
    assert compile_errors(text) == "", text
    return text


def main_with(call: str, *includes: str) -> str:
    """A source with enough of its own that callees are welcome."""
    lines = "".join(f'#include "{include}"\n' for include in includes)
    return f"{lines}{FILLER}int run() {{\n  return {call};\n}}\n"


@needs_gxx
def test_a_body_comes_with_what_it_needs_from_its_own_file(tmp_path):
    files = {
        "lib.h": "#pragma once\nint twice(int value);\n",
        "inner.h": "#pragma once\nstruct Inner { int x; };\n",
        "lib.cc": (
            '#include "lib.h"\n#include <algorithm>\n#include "inner.h"\n#define FACTOR 2\nnamespace {\n'
            "struct Local { int y; };\nint helper(Local local) { return local.y; }\n}\n"
            "static const int limit = 100;\nint unrelated() { return 7; }\n"
            "int twice(int value) {\n  Inner inner{helper(Local{value})};\n"
            "  return std::min(FACTOR * inner.x, limit);\n}\n"
        ),
        "main.cc": main_with("twice(21)", "lib.h"),
    }
    text = text_of(tmp_path, files)
    in_order(
        text, "#include <algorithm>", "struct Inner {", "int helper(Local local) {", "int twice(int value) {",
        "int run() {",
    )  # fmt: skip
    in_order(text, "#define FACTOR 2", "struct Local", "limit = 100", "int run() {")
    assert "unrelated" not in text
    plain = row_of(tmp_path, files, COMPILABLE, "main.cc")
    assert "int twice(int value) {" not in plain["text"]
    assert plain["kind"] == row_of(tmp_path, files, CROSS_FILE, "main.cc")["kind"] == "compilable"


@needs_gxx
@pytest.mark.parametrize("depth", [1, 3])
def test_calls_are_followed_as_deep_as_asked_nearest_first(tmp_path, depth):
    files = {"main.cc": main_with("f1(3)", "f1.h")}
    for i in range(1, 6):
        files[f"f{i}.h"] = f"#pragma once\nint f{i}(int value);\n"
        files[f"f{i}.cc"] = (
            f'#include "f{i}.h"\n#include "f{i + 1}.h"\n'
            f"int f{i}(int value) {{\n  return f{i + 1}(value);\n}}\n"
        )
    files["f6.h"] = "#pragma once\nint f6(int value);\n"
    text = text_of(tmp_path, files, cross_file_depth=depth)
    assert [f"int f{i}(int value) {{" in text for i in range(1, 6)] == [i <= depth for i in range(1, 6)]
    in_order(text, *(f"int f{i}(int value) {{" for i in range(depth, 0, -1)), "int run() {")
    assert f"int f{depth + 1}(int value);" in text


@needs_gxx
@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("static int helper() { return 1; }\n", "static int helper() { return 2; }\n"),
        ("struct helper { int x; };\n", "static int helper() { return 2; }\n"),
        ("#define helper() 1\n", "static int helper() { return 2; }\n"),
        ("static int helper() { return 1; }\n", "#define helper() 2\n"),
        ("static int other(int helper) { return helper; }\n", "#define helper() 2\n"),
    ],
)
def test_a_body_stays_out_where_a_name_of_it_means_something_else(tmp_path, own, theirs):
    files = {
        "lib.h": "#pragma once\nint lib();\n",
        "lib.cc": f'#include "lib.h"\n{theirs}int lib() {{\n  return helper();\n}}\n',
        "main.cc": own + main_with("lib()", "lib.h"),
    }
    text = text_of(tmp_path, files)
    assert "int lib();" in text
    assert "int lib() {" not in text
    assert (theirs in text) == (theirs == own)


@needs_gxx
def test_only_what_a_declaration_leads_to_is_called(tmp_path):
    files = {
        "lib.h": (
            "#pragma once\nnamespace lib {\nstruct A { int get() const; int other() const; };\n"
            "int size(const A& a);\nint work(int value);\n}\n"
        ),
        "a.cc": (
            '#include "lib.h"\nint lib::A::get() const {\n  return 1;\n}\n'
            "int lib::A::other() const {\n  return 2;\n}\n"
            "namespace lib {\nint work(int value) {\n  return value;\n}\n}\n"
        ),
        "b.cc": (
            "struct B { int get(); int x; };\nint B::get() {\n  return x;\n}\n"
            "static int size(int x) {\n  return x;\n}\nint work(int value) {\n  return -value;\n}\n"
        ),
        "main.cc": main_with("lib::A().get() + lib::work(3) + lib::size(lib::A())", "lib.h"),
    }
    text = text_of(tmp_path, files)
    in_order(text, "int lib::A::get() const {", "int run() {")
    in_order(text, "int work(int value) {\n  return value;", "int run() {")
    for absent in ("A::other() const {", "B::get", "static int size", "-value"):
        assert absent not in text


def test_callees_go_first_when_there_is_no_room(tmp_path):
    files = {
        "lib.h": "#pragma once\nint near(int value);\nint far(int value);\n",
        "near.cc": '#include "lib.h"\nint near(int value) {\n  return far(value);\n}\n',
        "far.cc": '#include "lib.h"\nint far(int value) {\n'
        + "  value += 1;\n" * 20
        + "  return value;\n}\n",
        "main.cc": main_with("near(1)", "lib.h"),
    }
    write_files(tmp_path, files)
    plain = row_of(tmp_path, files, COMPILABLE, "main.cc")["text"]
    seen = set()
    for room in range(0, 700, 50):
        budget = len(plain) + room
        text = row_of(tmp_path, files, CROSS_FILE, "main.cc", budget=budget)["text"]
        assert len(text) <= budget
        near, far = ("int near(int value) {" in text), ("int far(int value) {" in text)
        seen.add((near, far))
        assert near or not far
        if not near:
            assert text == plain
    assert seen == {(False, False), (True, False), (True, True)}


@pytest.mark.slow
@needs_gxx
def test_every_document_of_the_example_compiles():
    rows = rows_of(TINYLIB, CROSS_FILE)
    for row in rows:
        language = "c" if row["files"][-1].endswith(".c") else "c++"
        assert compile_errors(row["text"], language=language) == "", row["files"]
    plain: list[Row] = rows_of(TINYLIB, COMPILABLE)
    assert sum(len(row["text"]) for row in rows) > sum(len(row["text"]) for row in plain)


RECORDS = {
    "a.cc": "struct Point { int x; int y; };\nint length(Point point) {\n  return point.x;\n}\n",
    "b.cc": "static int one() { return 1; }\nint shared() {\n  return one();\n}\n",
    "c.cc": "int ambiguous() {\n  return 1;\n}\n",
    "d.cc": "int ambiguous() {\n  return 2;\n}\n",
    "e.cc": main_with("length(Point{1, 2}) + shared() + ambiguous() + [](int one) { return one; }(1)"),
}


@needs_gxx
def test_records_without_paths_see_one_another_by_name(tmp_path):
    lines = [json.dumps({"text": text}) for text in RECORDS.values()]
    (tmp_path / "code.jsonl").write_text("\n".join(lines) + "\n")
    settings = CorpusSettings(
        out=str(tmp_path / "out"), jsonl=(tmp_path / "code.jsonl",), mode="cross-file", workers=1,
        near_duplicates=0,
    )  # fmt: skip
    build(settings)
    reader = ShardReader(settings.out)
    texts = [text for split in ("train", "val") for _, text in reader.texts(split)]
    (text,) = [text for text in texts if "int run() {" in text]
    in_order(text, "struct Point {", "int length(Point point) {", "int run() {")
    in_order(text, "static int one() {", "int shared() {", "int run() {")
    assert "int ambiguous() {" not in text
    errors = compile_errors(text)
    assert ("ambiguous" in errors, errors.count("error:")) == (True, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "cross-file", "cross_file_depth": 0}, "follows no call"),
        ({"mode": "compilable", "cross_file_depth": 2}, "has no effect with --mode compilable"),
    ],
)
def test_a_depth_without_effect_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        CorpusSettings(out="o", projects=(Path("p"),), **values)

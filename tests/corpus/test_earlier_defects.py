"""What earlier indexers of C++ projects got wrong, each as a test of the documents that a build ends with.

One project that has it all is built once; where another test module says more about a defect, it is named.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.corpus.build import build
from cpplm.corpus.clang import references
from cpplm.corpus.clang.compile_commands import read_database
from cpplm.corpus.ingest.discovery import Project, find_files
from cpplm.corpus.settings import CorpusSettings
from cpplm.corpus.slicing.units import Includes, scan
from tests.corpus.cpp import compile_errors, in_order, needs_gxx, utf8_bytes, write_files
from tests.corpus.random_projects import marks

Row = dict[str, Any]

FILES: dict[str, str | bytes] = {
    "include/engine.h": """#pragma once
#include <string>
#include <vector>
#define ENGINE_LIMIT 100
namespace engine {
class Part {
 public:
  explicit Part(int size) : size_(size) {}
  int size() const { return size_; }

 private:
  int size_;
};
struct Machine {
  std::vector<Part> parts;
  int weight() const;
};
inline bool isLight(const Machine& m) { return m.weight() < ENGINE_LIMIT; }
int area(int side);
int area(int width, int height);
double area(double radius);
std::string name(const Machine& machine);
}  // namespace engine
""",
    "src/engine.cc": """#include "engine.h"
using std::string;
namespace engine {
static int helper() { return 1; }
int area(int side) { return side * side; }
int area(int width, int height) { return width * height; }
double area(double radius) { return 3.14 * radius * radius; }
int Machine::weight() const {
  int sum = helper();
  for (const Part& part : parts) sum += part.size();
  return sum;
}
string name(const Machine& machine) { return std::to_string(area(machine.weight())); }
}  // namespace engine
""",
    "src/start.cc": """#include "engine.h"
static int helper() { return 2; }
int freeList();
int exitCode();
bool odd(int n);
int leaf();
int top() { return freeList() + exitCode() + helper() + odd(3); }
bool even(int n) { return n == 0 || odd(n - 1); }
bool odd(int n) { return n != 0 && even(n - 1) && leaf(); }
int leaf() { return 0; }
int freeList() { return 3; }
int exitCode() { return 4; }
int x() { return 1; }
""",
    "src/windows.cc": "// Größe, 面積 🙂\r\nint before() {\r\n  return 10;\r\n}\r\n// é\r\n"
    "int after() {\r\n  return before() + 11;\r\n}\r\n",
    "src/api.cc": '#include "engine.h"\nextern "C" {\nint api_open(void) { return 20; }\n'
    "int api_close(void) { return engine::area(21); }\n}\n",
    "src/plain.c": "#include <stdlib.h>\nint *make(int new) {\n  int *class = malloc(sizeof *class);\n"
    "  *class = new;\n  return class;\n}\n",
    "test/engine_test.cc": '#include <gtest/gtest.h>\n#include "engine.h"\n'
    "TEST(Area, OfASquare) { EXPECT_EQ(engine::area(2), 4); }\n"
    "TEST(Area, OfARectangle) { EXPECT_EQ(engine::area(2, 3), 6); }\n"
    "TEST(Area, OfACircle) { EXPECT_GT(engine::area(1.0), 3); }\n",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("build") / "external" / "deps" / "machine", FILES)


def built(out: Path, project: Path, **settings: Any) -> list[Row]:
    build(CorpusSettings(out=str(out), projects=(project,), workers=1, near_duplicates=0, **settings))
    reader = ShardReader(out)
    return [
        row for split in ("train", "val") for s in reader.shards(split) for row in reader.table(s).to_pylist()
    ]


@pytest.fixture(scope="module")
def rows(project: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return built(tmp_path_factory.mktemp("out") / "corpus", project)


def text_of(rows: list[Row], file: str) -> str:
    (row,) = [row for row in rows if row["files"][0] == file]
    return row["text"]


# ---- what libclang was asked, and how ---------------------------------------------------------------------


def test_a_parser_without_its_own_headers_is_an_error_and_diagnostics_are_read(tmp_path, monkeypatch):
    """libclang from a wheel lacks stddef.h: nearly every file ended in a fatal error, which nobody read.

    More in test_semantic.
    """
    pytest.importorskip("clang.cindex")
    monkeypatch.setattr(references, "builtin_headers", lambda: [["-nostdinc", "-nostdinc"]])
    found = Project("p", (write_files(tmp_path, {"a.cc": "int a;\n"}),))
    files, _ = find_files(found)
    edges = {name: tuple(e.values()) for name, e in Includes({f.name: scan(f) for f in files}).edges.items()}
    with pytest.raises(UserError, match="no usable compiler headers"):
        references.read_semantics(found, files, edges, database=None, workers=1, quiet=True)


def test_flags_with_blanks_and_relative_paths_in_compile_commands(tmp_path):
    """Flags were split on blanks, relative include folders and the source itself left among them.

    More in test_compile_commands.
    """
    entry = {
        "directory": str(tmp_path / "out"),
        "command": "g++ -DTITLE='\"two words\"' -I../include -o a.o -c ../a.cc",
        "file": "../a.cc",
    }
    write_files(tmp_path, {"a.cc": "int a;\n", "compile_commands.json": json.dumps([entry])})
    (tmp_path / "out").mkdir()
    database = read_database(tmp_path / "compile_commands.json", [tmp_path])
    assert database.flags == {
        tmp_path / "a.cc": ('-DTITLE="two words"', "-I", str(tmp_path / "out" / ".." / "include"))
    }


# ---- what a document has to hold --------------------------------------------------------------------------


def test_documents_begin_with_includes_macros_and_usings(rows):
    """Preambles were never filled in."""
    text = text_of(rows, "include/engine.h")
    in_order(text, "#include <string>", "using std::string;", "class Part")
    in_order(text, "#define ENGINE_LIMIT", "class Part")


def test_documents_hold_the_types_of_their_functions(rows):
    """Only functions were ever written."""
    in_order(text_of(rows, "include/engine.h"), "class Part {", "struct Machine {", "int Machine::weight()")


def test_text_that_is_not_ascii_and_other_line_ends_shift_nothing(rows):
    """Offsets in bytes were applied to decoded text with folded line ends."""
    assert text_of(rows, "src/windows.cc") == FILES["src/windows.cc"].replace("\r\n", "\n").replace(
        "}\n// é", "}\n\n// é"
    )


def test_overloads_are_all_there(rows):
    """Functions with one qualified name overwrote each other."""
    in_order(
        text_of(rows, "include/engine.h"), "int area(int side) {", "int area(int width, int height) {",
        "double area(double radius) {",
    )  # fmt: skip


def test_statics_of_one_name_are_the_ones_of_their_file(rows):
    """A caller's document had the helper of another file in it."""
    assert "int helper() { return 1; }" in text_of(rows, "include/engine.h")
    assert "int helper() { return 2; }" not in text_of(rows, "include/engine.h")
    assert "int helper() { return 2; }" in text_of(rows, "src/start.cc")
    assert "int helper() { return 1; }" not in text_of(rows, "src/start.cc")


def test_functions_made_by_a_macro_are_all_there(rows):
    """Without the header of the test library, every test case was one function called TEST."""
    in_order(text_of(rows, "test/engine_test.cc"), "OfASquare", "OfARectangle", "OfACircle")


def test_functions_in_headers_are_there(rows):
    """Those of headers were ignored, even where others called them."""
    text = text_of(rows, "include/engine.h")
    in_order(text, "int size() const { return size_; }", "inline bool isLight(")


@pytest.mark.parametrize("name", ["freeList", "exitCode"])
def test_names_that_begin_like_a_library_call_are_callees(rows, name):
    """`free`, `exit`, `operator`, `assert` and `__` were taken for prefixes of names to skip.

    More in test_ordering.
    """
    in_order(text_of(rows, "src/start.cc"), f"int {name}() {{", "int top() {")


def test_extern_c_blocks_are_kept(rows):
    """What stood in them was dropped."""
    in_order(text_of(rows, "src/api.cc"), 'extern "C" {', "int api_open(void) {", "int api_close(void) {")


def test_c_is_read_as_c(rows):
    """C files were parsed as C++17, refused and dropped."""
    (row,) = [row for row in rows if row["files"] == ["src/plain.c"]]
    assert (row["kind"], row["num_functions"]) == ("compilable", 1)


def test_a_project_below_a_folder_called_build_is_found(rows):
    """Names of folders to skip were looked for in the absolute path."""
    assert {file for row in rows for file in row["files"]} == set(FILES)


def test_methods_stay_in_their_class(rows):
    """Methods that are defined in their class were written without it."""
    for row in rows:
        if "int size() const" in row["text"]:
            in_order(row["text"], "class Part {", "int size() const", "int size_;")


def test_namespaces_are_opened_again(rows):
    """Functions of a namespace were written outside it."""
    text = text_of(rows, "include/engine.h")
    assert text.index("namespace engine {") < text.index("int area(int side) {")
    assert text.count("{") == text.count("}")


def test_a_cycle_leaves_the_order_of_everything_around_it_alone(rows):
    """Whatever called into a cycle lost its order. More in test_ordering, figures in test_order_quality."""
    in_order(
        text_of(rows, "src/start.cc"),
        "int leaf() {",
        "bool even(int n) {",
        "bool odd(int n) {",
        "int top() {",
    )


def test_one_line_functions_are_there(rows):
    """Functions below 20 characters or tokens were left out."""
    assert "int x() { return 1; }" in text_of(rows, "src/start.cc")


@needs_gxx
def test_documents_compile(rows):
    """All of the above together: 3 of 100 documents did."""
    for row in rows:
        if row["files"][0] != "test/engine_test.cc":  # its library is not there
            language = "c" if row["files"][0].endswith(".c") else "c++"
            assert compile_errors(row["text"], language=language) == "", row["text"]


# ---- the whole --------------------------------------------------------------------------------------------


def test_the_budget_holds_and_the_nearest_callees_stay(tmp_path):
    """Documents had twice the budget; what was taken out to shorten them were the nearest callees first."""
    body = "".join(f"  value += {number};\n" for number in range(30))
    chain = "".join(
        f"int f{number}(int value) {{\n{body}  return {f'f{number - 1}(value)' if number else 'value'};\n}}\n"
        for number in range(30)
    )
    rows = built(
        tmp_path / "out", write_files(tmp_path / "p", {"a.cc": chain, "b.cc": "int b;\n"}), max_bytes=2_000
    )
    assert len(rows) > 5
    for row in rows:
        assert utf8_bytes(row["text"]) <= 2_000
        for number in range(1, 30):
            if f"int f{number}(int value) {{" in row["text"]:
                assert f"int f{number - 1}(int value)" in row["text"].split(f"int f{number}(int value) {{")[0]


def test_text_is_not_repeated_without_end(tmp_path):
    """A document per function, each with all its callees: text came up to 39 times."""
    levels = 40
    source = "".join(
        f"int f{i}(int a) {{  // m{i}\n"
        + "  a += 1;\n" * 20
        + f"  return {f'f{i - 1}(a)' if i else 'a'};\n}}\n"
        for i in range(levels)
    )
    header = '#pragma once\n#include "all.h"\n' + "".join(f"int f{i}(int a);\n" for i in range(levels))
    users = {f"use{i}.cc": f'#include "all.h"\nint use{i}() {{ return f{i}({i}); }}\n' for i in range(20)}
    files = {"all.h": header, "all.cc": '#include "all.h"\n' + source, **users}
    rows = built(tmp_path / "out", write_files(tmp_path / "p", files))
    size = sum(map(utf8_bytes, files.values()))
    assert sum(utf8_bytes(row["text"]) for row in rows) < 1.5 * size
    written = [mark for row in rows for mark in marks(row["text"])]
    assert sorted(written) == list(range(levels))


def test_rows_say_where_they_come_from(rows, project):
    """There was nothing but text."""
    for row in rows:
        assert row["project"] == "machine"
        assert len(row["id"]) == 64
        assert set(row["files"]) == {source["file"] for source in row["sources"]}
        for source in row["sources"]:
            lines = (project / source["file"]).read_bytes().count(b"\n")
            assert 1 <= source["first"] <= source["last"] <= lines
    assert {"kind", "license", "num_functions", "num_tokens"} <= rows[0].keys()
    assert sum(row["num_functions"] for row in rows) >= 20


def test_a_build_that_was_stopped_goes_on(tmp_path, project, monkeypatch):
    """A crash lost the project. More in test_build: kill -9 at any moment."""
    whole = built(tmp_path / "whole", project)
    with monkeypatch.context() as patch:
        patch.setattr("cpplm.corpus.build.write_splits", lambda *args, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            built(tmp_path / "out", project)
    with pytest.raises(UserError):
        ShardReader(tmp_path / "out")
    assert built(tmp_path / "out", project) == whole


def test_the_hash_seed_decides_nothing(tmp_path, project):
    """The order of a set decided the order of callees. More in test_build: any number of workers."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom cpplm.corpus.build import build\n"
        "from cpplm.corpus.settings import CorpusSettings\n"
        "build(CorpusSettings(out=sys.argv[1], projects=(Path(sys.argv[2]),), workers=1, max_bytes=700))\n"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", script, str(tmp_path / seed), str(project)]
        subprocess.run(command, check=True, timeout=120, env={**os.environ, "PYTHONHASHSEED": seed})
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / seed).iterdir() if path.is_file()}
        for seed in "12"
    )
    assert first == second

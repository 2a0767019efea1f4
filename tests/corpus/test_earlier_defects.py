"""Mistakes of earlier indexers of C++ projects, each as a test of the documents that a build ends with.

One project that has it all is built once; where another test module says more about a defect, it is named.
"""

from pathlib import Path
from typing import Any

import pytest

from cpplm.core.shards import ShardReader
from cpplm.corpus.build import build
from tests.corpus.cpp import compile_errors, in_order, needs_gxx, utf8_bytes, write_files
from tests.corpus.random_projects import marks
from tests.corpus.settings import compilable

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
    build(compilable(out=str(out), projects=(project,), workers=1, near_duplicates=0, **settings))
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


# ---- what a document has to hold --------------------------------------------------------------------------


def test_text_that_is_not_ascii_and_other_line_ends_shift_nothing(rows):
    """Offsets in bytes were applied to decoded text with folded line ends."""
    assert text_of(rows, "src/windows.cc") == FILES["src/windows.cc"].replace("\r\n", "\n")


def test_functions_made_by_a_macro_are_all_there(rows):
    """Without the header of the test library, every test case was one function called TEST."""
    in_order(text_of(rows, "test/engine_test.cc"), "OfASquare", "OfARectangle", "OfACircle")


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

"""What has to be in one document with an item: less than what the item has to follow."""

import pytest

from cpplm.corpus.slicing.ordering import Graph
from cpplm.cpp.items import read_items
from cpplm.cpp.macros import MacroTable
from tests.corpus.cpp import documents_of, write_files


def needed_by(source: str, last: int = -1) -> str:
    """The text of all that one item needs, through any number of steps."""
    items = read_items(source.encode(), MacroTable()).items
    graph = Graph(items)
    bits = graph.needs(last % len(items), graph, frugal=True)
    return "".join(item.text.decode() for index, item in enumerate(items) if bits >> index & 1)


TYPES = "struct A { int x; };\nstruct B { int y; };\n"


def test_an_overload_does_not_need_the_others_of_its_name():
    source = f"{TYPES}void swap(A& a, A& b) {{ int x = a.x; a.x = b.x; b.x = x; }}\nvoid swap(B& a, B& b);\n"
    needed = needed_by(source)
    assert "struct B" in needed
    assert "struct A" not in needed


def test_who_calls_an_overloaded_function_needs_all_of_them():
    source = f"{TYPES}void put(A a);\nvoid put(B b);\nvoid top() {{ put({{1}}); }}\n"
    needed = needed_by(source)
    assert "void put(A a)" in needed
    assert "void put(B b)" in needed


def test_an_overload_that_calls_another_needs_it():
    source = f"{TYPES}int size(A a) {{ return a.x; }}\nint size(B b) {{ return size(A{{b.y}}); }}\n"
    assert "int size(A a)" in needed_by(source)


OPERATORS = f"{TYPES}bool operator<(A a, A b);\nbool operator<(B a, B b);\n"


def test_an_operator_is_needed_for_its_operands_only():
    needed = needed_by(f"{OPERATORS}bool less(A a, A b) {{ return a < b; }}\n")
    assert "operator<(A" in needed
    assert "operator<(B" not in needed
    assert "operator" not in needed_by(f"{OPERATORS}template <class T> T same(T t) {{ return t; }}\n")


def test_an_operator_is_needed_where_its_operands_are_though_only_a_library_uses_it():
    source = f"#include <iostream>\n{TYPES}std::ostream& operator<<(std::ostream& s, A a);\nA make();\n"
    assert "operator<<" in needed_by(f"{source}TEST(Suite, Prints) {{ EXPECT_EQ(make(), make()); }}\n")


def test_the_values_of_a_scoped_enumeration_are_no_names():
    assert needed_by("enum class Set { c, s };\nint f(int c) { return c; }\n") == ""
    assert "Set" in needed_by("enum Set { c, s };\nint f() { return c; }\n")


def test_macros_that_declare_are_found_by_what_they_are_given():
    suite = "template <class T> class Suite {};\nTYPED_TEST_SUITE(Suite, Types);\n"
    source = suite + "int other;\nTYPED_TEST(Suite, Works) { other = 1; }\n"
    assert "TYPED_TEST_SUITE(Suite, Types);" in needed_by(source)
    assert "IsEven" in needed_by(
        'MATCHER(IsEven, "") {\n  return arg % 2 == 0;\n}\nint f() { return IsEven(); }\n'
    )
    assert needed_by("DEFINE_FLAG(int, level);\nint plain(int x) { return x; }\n") == ""


def test_what_a_macro_makes_by_pasting_is_needed_by_its_users():
    source = "#define LOG_FATAL 3\n#define LOG(severity) LOG_##severity\n#define CHECK(x) LOG(FATAL)\n"
    code = source + "int f() { return CHECK(1); }\n"
    bodies = {b"LOG": {b"(LOG_##severity"}, b"CHECK": {b"(LOG(FATAL)"}, b"LOG_FATAL": {b" 3"}}
    items = read_items(code.encode(), MacroTable.from_bodies(bodies)).items
    graph = Graph(items)
    assert graph.needs(len(items) - 1, graph, frugal=True) & 1


def test_chunks_keep_the_includes_of_their_files(tmp_path):
    fields = "".join(f"  int field{number} = {number};  // a field of the table\n" for number in range(60))
    files = {
        "table.h": f"#pragma once\nstruct Table {{\n{fields}}};\n",
        "use.cc": '#include <vector>\n#include "table.h"\nint first(const Table& t) { return t.field0; }\n'
        "int plain() { return 1; }\n",
    }
    documents, _ = documents_of(write_files(tmp_path, files), budget=1_000, of="use.cc")
    by_kind = {document.kind: document.text for document in documents}
    assert set(by_kind) == {"compilable", "chunk"}
    assert '#include "table.h"' in by_kind["chunk"]
    assert "int first(" in by_kind["chunk"]
    assert "int plain(" in by_kind["compilable"]
    assert '#include "table.h"' not in by_kind["compilable"]


@pytest.mark.parametrize("end", ["#endif\n", "#elif SETUP != 2\n#error other version\n#endif\n"])
def test_a_guard_may_be_defined_late_with_a_value_and_complain(end):
    source = f"#ifndef SETUP\n#include <cassert>\n#define TWO 2\n#define SETUP TWO\nint f();\nint g();\n{end}"
    parts = read_items(source.encode(), MacroTable())
    assert parts.lexed.guard == b"SETUP"
    assert [item.text.decode().strip() for item in parts.items] == source.split("\n")[1:6]
    assert not any(item.stack for item in parts.items)


def test_a_class_that_the_parser_cannot_read_has_its_own_name():
    source = "template <class T, Kind Q>\nstruct vec<4, T, Q>\n{\n  MAKE(a b +) int x int y;\n};\n"
    (item,) = read_items(source.encode(), MacroTable()).items
    assert item.names == (b"vec",)

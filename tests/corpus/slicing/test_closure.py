"""What a document brings from the other files of its project, and what it does not."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cpplm.corpus.document import Document
from tests.corpus.cpp import (
    compile_errors,
    documents_of,
    in_order,
    needs_gxx,
    one_document,
    write_files,
)

pytestmark = needs_gxx


def closed(
    folder: Path, files: Mapping[str, str | bytes], of: str = "use.cc", *, generous: bool = True
) -> Document:
    """The document of a file: it compiles alone, and no include of the project is left in it."""
    (document,), _ = documents_of(write_files(folder, files), of=of, generous=generous)
    assert document.kind == "compilable"
    assert compile_errors(document.text) == "", document.text
    assert '#include "' not in document.text
    return document


def test_what_is_named_comes_with_all_that_it_names_and_nothing_else(tmp_path):
    document = closed(
        tmp_path,
        {
            "deep.h": "#pragma once\nnamespace n {\nusing Word = unsigned;\nstruct Unused { int gone; };\n"
            "struct Base { Word word; };\nint never();\n}\n",
            "types.h": '#pragma once\n#include "deep.h"\nnamespace n {\nstruct Also { int gone_too; };\n'
            "struct Derived : Base { int more; };\n}\n",
            "use.cc": '#include "types.h"\nint use(const n::Derived& d) { return d.word + d.more; }\n',
        },
    )
    in_order(document.text, "using Word", "struct Base", "struct Derived", "int use(")
    assert not any(word in document.text for word in ("Unused", "Also", "gone", "never"))
    assert document.files == ("use.cc", "deep.h", "types.h")


def test_names_of_files_that_are_not_included_bring_nothing(tmp_path):
    document = one_document(
        tmp_path,
        {"other.h": "struct Thing { int x; };\n", "use.cc": "struct Thing;\nint use(Thing*) { return 1; }\n"},
        "use.cc",
    )
    assert document.files == ("use.cc",)
    assert "int x" not in document.text


def test_conditions_come_along(tmp_path):
    document = closed(
        tmp_path,
        {
            "config.h": "#pragma once\n#define WIDE 1\n#define UNUSED_SETTING 2\n",
            "types.h": '#pragma once\n#include "config.h"\n#if WIDE\ntypedef long Number;\n#else\n'
            "typedef int Number;\n#endif\n",
            "use.cc": '#include "types.h"\nstatic_assert(sizeof(Number) == sizeof(long), "wide");\n'
            "Number use() { return 1; }\n",
        },
    )
    in_order(document.text, "#define WIDE 1", "#if WIDE", "typedef long", "#else", "typedef int", "#endif")
    assert "UNUSED_SETTING" not in document.text


def test_an_include_under_a_condition_keeps_it(tmp_path):
    document = closed(
        tmp_path,
        {
            "extra.h": "#pragma once\n#include <missing_header.h>\ninline int value() { return 2; }\n",
            "use.cc": '#ifdef WITH_EXTRA\n#include "extra.h"\n#else\n'
            "static int value() { return 1; }\n#endif\n"
            "int use() { return value(); }\n",
        },
    )
    text = document.text
    in_order(text, "<missing_header.h>", "inline int value()", "int use()")
    assert compile_errors("#define WITH_EXTRA\n" + text.replace("#include <missing_header.h>\n", "")) == ""
    assert "missing_header" in compile_errors("#define WITH_EXTRA\n" + text)


def test_a_header_that_the_build_system_chooses(tmp_path):
    files = {
        "port.h": '#pragma once\n#if defined(LIB_WINDOWS)\n#include "port_windows.h"\n'
        '#elif defined(LIB_POSIX)\n#include "port_posix.h"\n#endif\n',
        "port_windows.h": "#pragma once\n#include <windows.h>\nclass Mutex { CRITICAL_SECTION section_; };\n",
        "port_posix.h": "#pragma once\n#include <mutex>\nclass Mutex { std::mutex mutex_; };\n",
        "use.cc": '#include "port.h"\nMutex mutex;\nMutex* use() { return &mutex; }\n',
    }
    document = closed(tmp_path, files)
    in_order(document.text, "#include <mutex>", "class Mutex { std::mutex", "Mutex mutex;")
    assert "windows" not in document.text


def test_macros_bring_what_their_bodies_name(tmp_path):
    document = closed(
        tmp_path,
        {
            "check.h": "#pragma once\n#include <cstdlib>\nnamespace detail {\n"
            "[[noreturn]] inline void fail() "
            "{ std::abort(); }\ninline void unrelated() {}\n}\n"
            "#define CHECK(x) ((x) ? (void)0 : FAILED())\n#define FAILED() detail::fail()\n",
            "use.cc": '#include "check.h"\nint use(int x) { CHECK(x > 0); return x; }\n',
        },
    )
    assert all(word in document.text for word in ("#define FAILED", "void fail()", "<cstdlib>"))
    assert "unrelated" not in document.text


def test_names_that_macros_paste_together(tmp_path):
    document = closed(
        tmp_path,
        {
            "flags.h": "#pragma once\nstruct FlagBase { int value; };\n"
            "#define DECLARE_FLAG(name) extern FlagBase flag_##name##_storage\n"
            "#define FLAG(name) (flag_##name##_storage.value)\n",
            "my_flags.h": '#pragma once\n#include "flags.h"\nDECLARE_FLAG(level);\nDECLARE_FLAG(other);\n',
            "use.cc": '#include "my_flags.h"\nint use() { return FLAG(level); }\n',
        },
    )
    in_order(document.text, "struct FlagBase", "DECLARE_FLAG(level);", "int use()")


@pytest.mark.parametrize(
    "macro",
    ['__attribute__((visibility("default")))', "inline", "[[nodiscard]]", ""],
)
def test_macros_that_hide_from_the_parser_are_still_defined(tmp_path, macro):
    document = closed(
        tmp_path,
        {
            "export.h": f"#pragma once\n#define MYLIB_PUB {macro}\n#define MYLIB_LOCAL\n",
            "use.cc": '#include "export.h"\nMYLIB_PUB int first() { return 1; }\n'
            "class MYLIB_LOCAL Thing { int x; };\nnamespace n {\nMYLIB_PUB int second() { return 2; }\n}\n",
        },
    )
    assert "#define MYLIB_PUB" in document.text
    assert "#define MYLIB_LOCAL" in document.text


def test_macros_that_open_and_close_scopes(tmp_path):
    document = closed(
        tmp_path,
        {
            "config.h": "#pragma once\n#define LIB_BEGIN namespace lib { inline namespace v1 {\n"
            "#define LIB_END } }\n",
            "types.h": '#pragma once\n#include "config.h"\nLIB_BEGIN\nstruct T { int x; };\n'
            "struct U {};\nLIB_END\n",
            "use.cc": '#include "types.h"\nLIB_BEGIN\nint use(T t) { return t.x; }\nLIB_END\n'
            "int out(lib::T t) { return lib::use(t); }\n",
        },
    )
    in_order(document.text, "#define LIB_BEGIN", "struct T", "int use(", "int out(")
    assert "struct U" not in document.text


def test_classes_that_are_defined_outside_their_class(tmp_path):
    document = closed(
        tmp_path,
        {
            "outer.h": "#pragma once\nclass Outer {\n public:\n  class Inner;\n"
            "  Inner* inner() { return inner_; }\n"
            "  Inner* inner_;\n};\nclass Outer::Inner {\n public:\n  int depth() const { return 3; }\n};\n",
            "use.cc": '#include "outer.h"\nint use(Outer& o) { return o.inner()->depth(); }\n',
        },
    )
    in_order(document.text, "class Outer {", "class Outer::Inner", "int use(")


def test_free_operators_and_specialisations_come_with_their_types(tmp_path):
    document = closed(
        tmp_path,
        {
            "point.h": "#pragma once\n#include <functional>\n#include <ostream>\n"
            "struct Point { int x, y; };\n"
            "inline bool operator==(const Point& a, const Point& b) { return a.x == b.x && a.y == b.y; }\n"
            "inline std::ostream& operator<<(std::ostream& out, const Point& p) { return out << p.x; }\n"
            "inline int norm(const Point& p) { return p.x + p.y; }\n"
            "namespace std {\ntemplate <> struct hash<Point> {\n"
            "  size_t operator()(const Point& p) const { return p.x; }\n};\n}\n",
            "use.cc": '#include "point.h"\n#include <iostream>\n#include <unordered_set>\n'
            "int use(const std::unordered_set<Point>& points) {\n"
            "  for (const auto& p : points) std::cout << p;\n  return points.count(Point{1, 2});\n}\n",
        },
    )
    in_order(document.text, "struct Point", "operator==", "int use(")
    assert "operator<<" in document.text
    assert "struct hash<Point>" in document.text
    assert "norm" not in document.text


def test_using_namespace_only_where_the_namespace_is_there(tmp_path):
    files = {
        "names.h": "#pragma once\nnamespace far { struct Far {}; }\n"
        "namespace near { struct Near { int x; }; }\n"
        "using namespace far;\nusing namespace near;\n",
        "use.cc": '#include "names.h"\nint use(Near n) { return n.x; }\n',
    }
    document = closed(tmp_path, files)
    in_order(document.text, "struct Near", "using namespace near", "int use(")
    assert "far" not in document.text


def test_includes_that_lead_out_of_the_project_come_once_and_first(tmp_path):
    document = closed(
        tmp_path,
        {
            "a.h": "#pragma once\n#include <string>\n#include <vector>\nstruct A { std::string s; };\n",
            "b.h": '#pragma once\n#include "a.h"\n#include <string>\n#include <map>\nstruct B { A a; };\n',
            "use.cc": '#include <vector>\n#include "b.h"\n#include <string>\n'
            "std::string use(B b) { return b.a.s; }\n",
        },
    )
    for name in ("string", "vector", "map"):
        in_order(document.text, f"#include <{name}>", "struct A", "struct B", "std::string use")


def test_macros_that_change_system_headers_come_before_them(tmp_path):
    document = closed(
        tmp_path,
        {
            "platform.h": "#pragma once\n#define _GNU_SOURCE 1\n#define LIB_UNRELATED 1\n",
            "use.cc": '#include "platform.h"\n#include <cmath>\ndouble use() { return std::cos(0); }\n',
        },
    )
    in_order(document.text, "#define _GNU_SOURCE", "#include <cmath>")
    assert "LIB_UNRELATED" not in document.text


def test_what_a_source_defines_before_an_include_decides_it(tmp_path):
    document = closed(
        tmp_path,
        {
            "table.h": "#ifdef WITH_TABLE\nstruct Table { int rows; };\n#endif\n",
            "use.cc": '#define WITH_TABLE\n#include "table.h"\nint use(Table t) { return t.rows; }\n',
        },
    )
    in_order(document.text, "#define WITH_TABLE", "struct Table", "int use(")


def test_a_fragment_stands_where_it_was_included(tmp_path):
    document = closed(
        tmp_path,
        {
            "colors.def": "COLOR(Red)\nCOLOR(Green)\n",
            "body.inc": "  total += 1;\n",
            "use.cc": 'enum Color {\n#define COLOR(name) k##name,\n#include "colors.def"\n#undef COLOR\n};\n'
            'int use(Color c) {\n  int total = c == kGreen;\n#include "body.inc"\n  return total;\n}\n',
        },
    )
    in_order(document.text, "COLOR(Red)", "total += 1;", "return total;")


def test_headers_that_a_build_writes_are_left_out(tmp_path):
    document = closed(
        tmp_path,
        {
            "version.h.in": "#define VERSION @VERSION@\n",
            "use.cc": '#include "version.h"\n#include "config.h"\nint use() { return 1; }\n',
        },
    )
    assert document.text == "int use() { return 1; }\n"


def test_a_name_means_what_the_file_that_uses_it_can_see(tmp_path):
    document = closed(
        tmp_path,
        {
            "one.h": "#pragma once\nstatic int helper() { return 1; }\n"
            "inline int one() { return helper(); }\n",
            "two.h": "#pragma once\nnamespace two {\nstatic int helper() { return 2; }\n"
            "inline int go() { return helper(); }\n}\n",
            "use.cc": '#include "one.h"\nint use() { return one(); }\n',
            "both.cc": '#include "one.h"\n#include "two.h"\nint both() { return one() + two::go(); }\n',
        },
    )
    assert "return 2" not in document.text
    both = closed(tmp_path, {}, "both.cc")
    in_order(both.text, "return 1;", "inline int one()")
    in_order(both.text, "return 2;", "inline int go()")


def test_statics_of_one_name_in_two_sources_stay_apart(tmp_path):
    files = {
        f"{name}.cc": f"static int helper() {{ return {number}; }}\nint {name}() {{ return helper(); }}\n"
        for number, name in enumerate(("first", "second"))
    }
    documents, functions = documents_of(write_files(tmp_path, files))
    assert functions == 4
    assert [(d.text.count("helper() {"), d.text.count(f"return {n};")) for n, d in enumerate(documents)] == [
        (1, 1),
        (1, 1),
    ]


def test_text_of_a_file_that_may_not_be_quoted_is_in_no_document(tmp_path):
    write_files(
        tmp_path,
        {
            "secret.h": "#pragma once\nstruct Secret { int hidden; };\n#define HIDDEN 7\n",
            "open.h": '#pragma once\n#include "secret.h"\nstruct Open { Secret* s; };\n',
            "use.cc": '#include "open.h"\nint use(Open o) { return o.s->hidden + HIDDEN; }\n',
        },
    )
    documents, _ = documents_of(tmp_path, unquotable={"secret.h"})
    assert {name for d in documents for name in d.files} == {"open.h", "use.cc"}
    assert all("struct Secret" not in d.text and "define HIDDEN" not in d.text for d in documents)
    use = next(d for d in documents if "int use(" in d.text)
    in_order(use.text, '#include "secret.h"', "struct Open", "int use(")  # it cannot stand without


def test_a_fragment_that_may_not_be_quoted_stays_an_include(tmp_path):
    write_files(tmp_path, {"rows.inc": "1, 2, 3\n", "use.cc": 'int rows[] = {\n#include "rows.inc"\n};\n'})
    (document,) = documents_of(tmp_path, of="use.cc", unquotable={"rows.inc"})[0]
    assert '#include "rows.inc"' in document.text
    assert "1, 2" not in document.text


def test_include_cycles_between_headers(tmp_path):
    document = closed(
        tmp_path,
        {
            "a.h": '#ifndef A_H\n#define A_H\n#include "b.h"\nstruct B;\nstruct A { B* b; };\n#endif\n',
            "b.h": '#ifndef B_H\n#define B_H\n#include "a.h"\nstruct A;\n'
            "struct B { A* a; int x; };\n#endif\n",
            "use.cc": '#include "a.h"\nint use(A& a) { return a.b->x; }\n',
        },
    )
    in_order(document.text, "struct A {", "int use(")
    in_order(document.text, "struct B {", "int use(")


def test_a_type_known_by_a_forward_declaration_comes_when_it_is_used(tmp_path):
    document = closed(
        tmp_path,
        {
            "forward.h": "#pragma once\nclass Engine;\nclass Unused;\nEngine& engine();\n",
            "engine.h": '#pragma once\n#include "forward.h"\nclass Unused { int u; };\n'
            "class Engine {\n public:\n  int start() { return 1; }\n};\n",
            "use.cc": '#include "forward.h"\n#include "engine.h"\nint use() { return engine().start(); }\n',
        },
    )
    in_order(document.text, "class Engine;", "class Engine {", "int use()")
    assert "int u;" not in document.text


def test_templates_and_their_out_of_class_members(tmp_path):
    document = closed(
        tmp_path,
        {
            "box.h": "#pragma once\ntemplate <class T>\nclass Box {\n public:\n  T get() const;\n"
            "  T value;\n};\n"
            '#include "box.tcc"\n',
            "box.tcc": "template <class T>\nT Box<T>::get() const {\n  return value;\n}\n",
            "use.cc": '#include "box.h"\nint use(Box<int> b) { return b.get(); }\n',
        },
    )
    in_order(document.text, "class Box", "int use(")


def test_c_projects(tmp_path):
    document = one_document(
        tmp_path,
        {
            "list.h": '#ifndef LIST_H\n#define LIST_H\n#ifdef __cplusplus\nextern "C" {\n#endif\n'
            "typedef struct list { struct list *next; int value; } list;\nint list_length(const list *l);\n"
            "#ifdef __cplusplus\n}\n#endif\n#endif\n",
            "list.c": '#include "list.h"\n'
            "int list_length(const list *l) { return l ? 1 + list_length(l->next) : 0; }\n",
            "use.c": '#include "list.h"\n#include <stdio.h>\nint class(int new) { return new; }\n'
            'int main(void) { list l = {0, 1}; printf("%d", list_length(&l)); return 0; }\n',
        },
        "use.c",
    )
    assert compile_errors(document.text, language="c") == ""
    in_order(document.text, "typedef struct list", "int list_length(", "int main(void)")

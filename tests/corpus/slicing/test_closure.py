"""What a document brings from the other files of its project, and what it does not."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cpplm.corpus.document import Document
from tests.corpus.cpp import compile_errors, documents_of, in_order, needs_gxx, one_document, write_files

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


@pytest.mark.parametrize("macro", ['__attribute__((visibility("default")))', "inline", "[[nodiscard]]", ""])
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

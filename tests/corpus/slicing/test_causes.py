"""Causes of documents that did not compile, with what a document is to hold or to leave out."""

from typing import Any

import pytest

from cpplm.corpus.slicing import documents
from cpplm.corpus.slicing.expansion import Expander
from cpplm.corpus.slicing.incomplete_types import needs_only_declared
from cpplm.corpus.slicing.shortening import Shortener
from cpplm.cpp.items import ItemKind, read_items
from cpplm.cpp.macros import MacroTable
from tests.corpus.cpp import (
    compile_errors,
    documents_of,
    needs_gxx,
    one_document,
    write_files,
)

pytestmark = needs_gxx


@pytest.mark.parametrize(
    ("header", "own", "gone"),
    [
        (
            "enum E {\n" + "".join(f"  FIRST_{number},\n" for number in range(200)) + "  LAST\n};\n",
            "int use() { return LAST; }\n",
            "FIRST_1,",
        ),
        (
            "struct S {\n"
            + "".join(f"  int data_{number};\n  int more_{number} = 0;\n" for number in range(100))
            + "  int last;\n};\n",
            "int use(S* s) { return s->last; }\n",
            "_1",
        ),
        (
            "struct S {\n  virtual ~S();\n"
            + "".join(f"  virtual int pure_{number}() const = 0;\n" for number in range(200))
            + "  virtual int last() = 0;\n};\nstruct T : S {\n"
            + "".join(f"  int pure_{number}() const override;\n" for number in range(200))
            + "  int last() override;\n};\n",
            "int use(T* t) { return t->last(); }\n",
            "pure_1()",
        ),
        (
            "struct S {\n"
            + "".join(f"  int f_{number}(bool b = false);\n" for number in range(200))
            + "  int last();\n};\n",
            "int use(S* s) { return s->last(); }\n",
            "f_1(",
        ),
    ],
    ids=["enumerators", "data members of a large structure", "pure virtual functions", "default arguments"],
)
def test_what_is_long_goes_where_nobody_names_it(tmp_path, header, own, gone):
    files = {"a.h": header, "use.cc": '#include "a.h"\n' + own}
    (document,) = documents_of(write_files(tmp_path, files), budget=900, of="use.cc")
    assert document.kind == "compilable"
    assert compile_errors(document.text) == ""
    assert gone not in document.text


def test_what_initializers_of_members_call_is_needed():
    text = b"struct Value : One {\n  constexpr Value(Op op) : One(nothing()), ops(&copy<Op>) {}\n};\n"
    assert needs_only_declared(text, ItemKind.TYPE).keys().isdisjoint((b"nothing", b"copy"))


def test_a_constant_that_a_macro_makes_is_no_function():
    members = "static const int a = TWO(8, 0);\n  static int g(int b = TWO(1, 2));\n  C& operator=(const C&);"
    items = read_items(f"class C {{\n  {members}\n}};\n".encode(), MacroTable(), language="c++").items
    short, gone = Shortener(MacroTable()).skeleton(items[0], frozenset(), bare=True)
    assert [member.name for member in gone] == [b"g"]
    assert b"TWO(8, 0)" in short.text


def test_members_that_are_pointers_to_functions_are_data(tmp_path):
    table = "struct S {\n  size_type (*send)(S*);\n  void (*close)(S*);\n};\n"
    own = "size_type f(S*) { return 0; }\nvoid g(S*) {}\nS table = {f, g};\n"
    files = {
        "a.h": "typedef long size_type;\n" + table + "".join(f"int unused_{n}();\n" for n in range(30)),
        "use.cc": '#include "a.h"\n' + own,
    }
    options: dict[str, Any] = {"budget": 330, "of": "use.cc"}
    documents = documents_of(write_files(tmp_path, files), **options)
    assert [compile_errors(document.text) for document in documents] == [""]


def test_what_a_program_generates_is_asked_for(tmp_path):
    """Without it the text means nothing; the include is what says why it does not compile."""
    files = {"use.cc": '#include "ui_form.h"\n#include "config.h"\nvoid use(Ui::Form*) {}\n'}
    document = one_document(tmp_path, files, of="use.cc")
    assert document.text.startswith('#include "ui_form.h"\n')
    assert "config.h" not in document.text


def test_a_macro_for_the_header_of_a_library_stays_before_it(tmp_path):
    own = "#include <stdio.h>\n#define OTHER 1\n#include <stdlib.h>\n#define LONE 2\nextern FILE *out;\n"
    header = "#define LIB_WIDTH 8\n#define LIB_STATIC\n#define SIZE 3\n#include <lib/lib.h>\n" + own
    files = {"x.h": f"{header}struct X {{ lib_t t[SIZE]; }};\n", "x.c": '#include "x.h"\nstruct X x;\n',
             "use.c": '#include "x.h"\nextern struct X y;\n'}  # fmt: skip
    (document,) = documents_of(write_files(tmp_path, files), of="use.c")
    assert "#define LIB_WIDTH 8\n#define LIB_STATIC\n#define SIZE 3\n\n#include <lib/lib.h>" in document.text
    assert "OTHER" not in document.text
    assert "LONE" not in document.text


_SYSTEMS = "".join(
    f"#{'el' if n else ''}if defined(SYSTEM_{n})\ntypedef int part_{n}[{n + 1}];\n"
    f"typedef struct {{ part_{n} first_member_{n}, second_member_{n}; }} lock_t;\n"
    for n in range(20)
)
LOCKS = {
    "lock.h": f"#ifndef LOCK_H\n#define LOCK_H\n{_SYSTEMS}#else\ntypedef int lock_t;\n#endif\n#endif\n",
    "use.c": '#include "lock.h"\nint take(lock_t *lock) { return *lock; }\n',
}


def test_what_no_document_could_hold_has_the_branches_that_are_read_alone(tmp_path):
    (document,) = documents_of(write_files(tmp_path, LOCKS), budget=1_000, of="use.c")
    assert document.kind == "compilable"
    assert "typedef int lock_t;" in document.text
    assert "SYSTEM_3" not in document.text
    assert compile_errors(document.text, language="c") == ""


def test_a_header_amid_what_cannot_be_taken_apart_is_no_piece_of_it(tmp_path):
    entries = "".join(f"extern int t{n};\n" for n in range(99))
    cpp = '#ifdef __cplusplus\n}\n#endif\n#include <b.h>\n#ifdef __cplusplus\nextern "C" {\n#endif\n'
    branches = f"#if defined(A)\n#include <types.h>\n#elif defined(B)\n{cpp}#else\n#define PORT 1\n#endif\n"
    files = {
        "types.h": f"#ifndef TYPES_H\n#define TYPES_H\n{entries}#endif\n",
        "port.h": f"#ifndef PORT_H\n#define PORT_H\n{branches}#endif\n",
        "use.c": '#include "port.h"\nint use(void) { return PORT; }\n',
    }
    (document,) = documents_of(write_files(tmp_path, files), of="use.c")
    assert "extern int t3" not in document.text
    assert compile_errors(document.text, language="c") == ""


def test_nothing_is_lost_where_the_unit_is_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(
        documents,
        "closed_world_expansion",
        lambda each: Expander(each.index, each.own, closed_world=True).expand(["lock.h"]),
    )
    (document,) = documents_of(write_files(tmp_path, LOCKS), budget=1_000, of="use.c")
    assert document.kind == "chunk"
    assert "int take(lock_t *lock)" in document.text


def test_a_macro_of_a_class_brings_the_class_that_else_is_only_declared(tmp_path):
    files = {
        "big.h": "struct Big {\n" + "".join(f"  int data_{number:050};\n" for number in range(30)) + "};\n",
        "solver.h": "class Solver {\npublic:\n#define CHECKED(number) __attribute__ ((nonnull (number)))\n"
        "  void run (const char *name) CHECKED (2);\n};\n",
        "more.h": '#include "big.h"\n#include "solver.h"\nstruct More {\n  Big *big;\n  Solver *solver;\n'
        "  void go (const char *name) CHECKED (2);\n};\n",
        "use.cc": '#include "more.h"\nvoid use(More* more) { more->go("a"); }\n',
    }
    document = one_document(tmp_path, files, of="use.cc", budget=320)
    assert compile_errors(document.text) == ""
    assert "data_" not in document.text

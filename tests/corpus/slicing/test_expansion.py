"""Expansion as a preprocessor does it: conditions, files read more than once, computed names of headers."""

import time

import pytest

from tests.corpus.cpp import compile_errors, documents_of, in_order, needs_gxx, one_document, write_files

pytestmark = needs_gxx


def test_a_file_of_macro_calls_is_read_as_often_as_it_is_included(tmp_path):
    files = {
        "colors.def": "COLOR(red, 1)\nCOLOR(green, 2)\n#undef COLOR\n",
        "a.cc": 'enum Color {\n#define COLOR(name, value) name = value,\n#include "colors.def"\n};\n'
        "#define COLOR(name, value) int is_##name(Color color) { return color == value; }\n"
        '#include "colors.def"\nint both(Color color) { return is_red(color) || color == green; }\n',
    }
    document = one_document(tmp_path, files)
    assert compile_errors(document.text) == ""
    assert document.text.count("COLOR(red, 1)\nCOLOR(green, 2)\n#undef COLOR\n") == 2
    assert [tuple(source[:3]) for source in document.sources] == [("a.cc", 1, 7), ("colors.def", 1, 3)]


def test_a_header_that_is_read_again_for_its_implementation(tmp_path):
    """As xxhash.h and lz4frame.h are; its names are those of macros that paste a prefix to them."""
    files = {
        "hash.h": "#ifndef HASH_H\n#define HASH_H\n#ifdef PREFIX\n#define JOIN2(a, b) a##b\n"
        "#define JOIN(a, b) JOIN2(a, b)\n"
        "#define state_t JOIN(PREFIX, state_t)\n#define hash JOIN(PREFIX, hash)\n#endif\n"
        "typedef struct { int seed; } state_t;\nint hash(state_t* state);\n#endif\n"
        "#if (defined(INLINE_ALL) || defined(IMPLEMENTATION)) && !defined(HASH_C)\n#define HASH_C 1\n"
        "int hash(state_t* state) { return state->seed; }\nint unused(void) { return 1; }\n#endif\n",
        "use.c": '#include "hash.h"\n#define IMPLEMENTATION\n#include "hash.h"\n#include "hash.h"\n'
        "int use(void) {\n  state_t state = {1};\n  return hash(&state);\n}\n",
    }
    document = one_document(tmp_path, files, of="use.c")
    assert compile_errors(document.text, language="c") == ""
    in_order(document.text, "} state_t;", "int hash(state_t* state) {", "int use(void)")
    assert document.text.count("return state->seed;") == 1
    assert "unused" not in document.text


def test_a_piece_too_long_for_a_document_is_named_by_its_chunks(tmp_path):
    rows = "".join(f'ROW({number}, "the text of row {number}")\n' for number in range(100))
    files = {
        "rows.def": rows,
        "a.cc": '#define ROW(number, text) text,\nconst char* table[] = {\n#include "rows.def"\n};\n',
    }
    *_, last = documents_of(write_files(tmp_path, files), budget=600)
    assert (last.kind, last.files) == ("chunk", ("a.cc", "rows.def"))
    assert [tuple(source[:3]) for source in last.sources] == [("a.cc", 2, 4), ("rows.def", 1, 100)]


def test_pieces_and_conditions_within_an_initialiser(tmp_path):
    table = 'int table[] = {\n#if defined(SHORT)\n  1,\n#else\n  2,\n#endif\n#include "rows.inc"\n};\n'
    files = {
        "rows.inc": "  7,\n  8,\n",
        "a.h": "#pragma once\n" + table.replace("int table", "static int table"),
        "use.cc": '#include "a.h"\nint use() { return table[2]; }\n',
    }
    document = one_document(tmp_path, files, of="use.cc")
    assert compile_errors(document.text) == ""
    in_order(
        document.text, "static int table[] = {", "  1,\n#else\n  2,\n#endif\n  7,\n  8,\n};", "int use()"
    )


def test_the_name_of_a_header_in_a_macro(tmp_path):
    source = '#define NAME "impl.h"\n#define HEADER NAME\n#include HEADER\nint use() { return impl(); }\n'
    document = one_document(tmp_path, {"impl.h": "int impl();\n", "use.cc": source}, of="use.cc")
    assert compile_errors(document.text) == ""
    in_order(document.text, "int impl();", "int use()")


def test_has_include_is_answered_by_the_project(tmp_path):
    source = (
        '#if __has_include("extra.h")\n#include "extra.h"\n#endif\n'
        "#if __has_include(<optional>)\n#include <optional>\n#endif\nint use() { return extra(); }\n"
    )
    document = one_document(tmp_path, {"extra.h": "int extra();\n", "use.cc": source}, of="use.cc")
    assert compile_errors(document.text) == ""
    assert "extra.h" not in document.text
    assert "#if __has_include(<optional>)\n#include <optional>\n#endif\n" in document.text


def test_a_header_that_includes_itself_under_another_macro(tmp_path):
    source = (
        '#ifndef TYPE\n#define TYPE int\n#include "twice.h"\n#undef TYPE\n#define TYPE char\n'
        '#include "twice.h"\n#undef TYPE\n#else\n'
        "inline int size_of(TYPE value) { return sizeof(value); }\n#endif\n"
    )
    files = {"twice.h": source, "use.cc": '#include "twice.h"\nint use() { return size_of(1); }\n'}
    header = one_document(tmp_path, files, of="twice.h")
    assert header.text == source
    user = one_document(tmp_path, files, of="use.cc")
    assert user.text.count("int use()") == 1


def test_pragma_once_through_links_and_other_paths(tmp_path):
    files = {
        "lib/a.h": "#pragma once\nstruct A {};\n",
        "lib/b.h": '#pragma once\n#include "../lib/./a.h"\nstruct B { A a; };\n',
        "use.cc": '#include "lib/a.h"\n#include "lib/b.h"\n#include "include/a.h"\nA a;\nB b;\n',
    }
    (write_files(tmp_path, files) / "include").symlink_to("lib")
    document = one_document(tmp_path, {}, of="use.cc")
    in_order(document.text, "struct A {};", "struct B { A a; };", "A a;\nB b;")


def test_of_headers_that_a_build_chooses_from_one_is_taken(tmp_path):
    choice = (
        '#if defined(PORT_WINDOWS)\n#include "win.h"\n#elif defined(PORT_POSIX)\n#include "posix.h"\n#endif\n'
    )
    files = {
        "win.h": "typedef void* Handle;\n",
        "posix.h": "typedef int Handle;\n",
        "use.cc": f"{choice}Handle handle;\n",
    }
    text = one_document(tmp_path, files, of="use.cc").text
    assert text.count("typedef") == 1
    decided = {**files, "use.cc": f"#define PORT_POSIX 1\n{choice}Handle handle;\n"}
    assert "typedef int Handle;" in one_document(tmp_path, decided, of="use.cc").text


def test_headers_that_include_each_other(tmp_path):
    files = {
        "a.h": '#pragma once\n#include "b.h"\nstruct A { B* b; };\n',
        "b.h": '#pragma once\n#include "a.h"\nstruct A;\nstruct B { A* a; };\n',
        "use.cc": '#include "b.h"\nB b;\nA* a = b.a;\n',
    }
    document = one_document(tmp_path, files, of="use.cc")
    assert "struct B { A* a; };" in document.text


@pytest.mark.slow
def test_an_enumeration_of_a_million_names_takes_bounded_time(tmp_path):
    names = "".join(f"k{number},\n" for number in range(1_000_000))
    files = {
        "names.h": f"#pragma once\nenum Names {{\n{names}}};\n",
        "use.cc": '#include "names.h"\nNames n = k7;\n',
    }
    started = time.process_time()
    documents = documents_of(write_files(tmp_path, files), of="use.cc")
    assert time.process_time() - started < 60
    assert [document.kind for document in documents] == ["chunk"]


def test_a_type_behind_many_comments_takes_bounded_time(tmp_path):
    files = {
        "a.h": "/* one */ " * 60 + "\ntypedef int number;\n",
        "a.cc": '#include "a.h"\nnumber one = 1;\n',
    }
    assert "typedef int number;" in one_document(tmp_path, files, of="a.cc").text

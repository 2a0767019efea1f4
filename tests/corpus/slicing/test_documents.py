"""Contents of documents: a unit in the order of the compiler, less what nothing needs, within the budget."""

import re

import pytest

from cpplm.corpus.slicing.build_headers import configured
from tests.corpus.cpp import (
    TINYLIB,
    compile_errors,
    documents_of,
    in_order,
    needs_gxx,
    one_document,
    utf8_bytes,
    write_files,
)

GEOMETRY = {
    "point.h": "#pragma once\nstruct Point {\n  int x;\n  int y;\n};\nstruct Unused {};\n",
    "shape.h": '#pragma once\n#include "point.h"\n\nnamespace geo {\n\n'
    "struct Shape {\n  Point corner;\n};\n\nint area(const Shape& shape);\n\n}  // namespace geo\n",
    "shape.cc": '#include "shape.h"\n\n#include <cmath>\n\nnamespace geo {\n\n'
    "int area(const Shape& shape) { return shape.corner.x * shape.corner.y; }\n\n}  // namespace geo\n",
}


@needs_gxx
def test_every_document_of_the_example_compiles():
    documents = documents_of(TINYLIB)
    assert {document.kind for document in documents} == {"compilable"}
    for document in documents:
        language = "c" if document.files[-1].endswith(".c") else "c++"
        assert compile_errors(document.text, language=language) == "", document.files
        assert '#include "' not in document.text


def test_the_order_is_the_compiler_s_and_what_nothing_needs_is_deleted(tmp_path):
    document = one_document(tmp_path, GEOMETRY, of="shape.cc")
    assert document.files == ("shape.h", "shape.cc", "point.h")
    in_order(document.text, "struct Point {", "struct Shape {", "int area(const Shape& shape);",
             "#include <cmath>", "int area(const Shape& shape) {")  # fmt: skip
    assert "Unused" not in document.text
    assert "pragma" not in document.text
    assert compile_errors(document.text) == ""


def test_the_spacing_of_the_source_is_kept(tmp_path):
    source = "#include <map>\n#include <vector>\n\n// One.\nint one();\nint two();\n\n\n"
    source += "int three() {\n\n  return 3;\n}\n"
    assert one_document(tmp_path, {"a.cc": source}).text == source
    header = "// What it is.\n\n#ifndef A_H\n#define A_H\n#include <map>\n\nint a();\n\n#endif  // A_H\n"
    assert one_document(tmp_path / "guarded", {"a.h": header}).text == header
    once = "#pragma once\nint a();\n"
    assert one_document(tmp_path / "once", {"a.h": once}).text == once


def test_line_ends_and_other_alphabets_shift_nothing(tmp_path):
    source = (
        "// Größe 面積\r\nint a() {\r\n  return 1;\r\n}\r\n\r\n// é\r\nint b() {\r\n  return a();\r\n}\r\n"
    )
    document = one_document(tmp_path, {"a.cc": b"\xef\xbb\xbf" + source.encode()})
    assert document.text == source.replace("\r\n", "\n")


def test_the_heads_of_all_own_files_are_there_and_one_license(tmp_path):
    notice = "// Copyright 2020 The Authors. Licensed under MIT.\n\n"
    files = {
        "a.h": notice + "// What a is.\n\n#pragma once\nint a();\n",
        "a.cc": notice + '// How a is made.\n\n#include "a.h"\n\nint a() { return 1; }\n// The end.\n',
    }
    document = one_document(tmp_path, files)
    in_order(document.text, "Copyright", "How a is made", "What a is", "int a();", "The end")
    assert {(source.file, source.first) for source in document.sources} >= {("a.h", 3), ("a.cc", 1)}


def test_an_include_of_a_header_that_a_build_writes_is_dropped(tmp_path):
    source = '#include "config.h"\n#include "version.h"\n#include <zlib.h>\n#include "zlib.h"\nint a();\n'
    assert one_document(tmp_path, {"a.cc": source}).text == '#include <zlib.h>\n#include "zlib.h"\nint a();\n'


def test_a_template_of_a_configuration_is_filled_in(tmp_path):
    files = {
        "config.h.in": "#undef HAVE_UNISTD_H\n#undef HAVE_MAGIC\n#define PACKAGE_VERSION @VERSION@\n",
        "a.c": '#include "config.h"\n#ifdef HAVE_UNISTD_H\n#include <unistd.h>\n#endif\n'
        "#ifdef HAVE_MAGIC\nint magic(void);\n#endif\nint version(void) { return PACKAGE_VERSION; }\n",
    }
    document = one_document(tmp_path, files)
    assert document.files == ("a.c", "config.h.in")
    in_order(document.text, "#define HAVE_UNISTD_H 1", "#define PACKAGE_VERSION 0", "#ifdef HAVE_MAGIC")
    configured = {source.reason for source in document.sources if source.file == "config.h.in"}
    assert configured == {"configured, HAVE_UNISTD_H in a.c:4", "configured, PACKAGE_VERSION in a.c:8"}


@pytest.mark.parametrize(
    ("macro", "value"),
    [
        ("HAVE_DECL_STRCASECMP", "1"), ("EVENT__HAVE_STRUCT_ADDRINFO", "1"), ("FOO_SIZEOF_LONG", "8"),
        ("HAVE_UINT32_T", "1"), ("HAVE_STRNICMP", None), ("FOO_SIZEOF_BAR", None), ("SIZEOF_LIB_OFF_T", "8"),
    ],
)  # fmt: skip
def test_what_linux_has_is_defined_in_a_configuration(macro, value):
    expected = "" if value is None else f"#define {macro} {value}"
    assert configured(f"#undef {macro}\n".encode()).decode().strip() == expected


def test_placeholders_of_a_configuration():
    """Types have the width of their name; a line that is nothing but a placeholder is empty."""
    template = b"${DEFINES}\ntypedef ${INT8} a_int8_t;\ntypedef @USIZE16@ a_uint16_t;\ntypedef @N@ a_count;\n"
    expected = (
        b"\ntypedef __INT8_TYPE__ a_int8_t;\ntypedef __UINT16_TYPE__ a_uint16_t;\ntypedef long a_count;\n"
    )
    assert configured(template) == expected
    assert configured(b"namespace @A_NAMESPACE@ {") == b"namespace A_NAMESPACE {"
    assert configured(b"#define LIB_THREAD_LOCAL @TLS_SPECIFIER@\n").split() == [
        b"#define",
        b"LIB_THREAD_LOCAL",
    ]


def test_options_that_cmake_sets_by_default_are_defined(tmp_path):
    files = {
        "CMakeLists.txt": 'project(p)\noption(WITH_LOG "write a log" ON)\noption(WITH_UI "a window" OFF)\n',
        "config.h.in": "#cmakedefine WITH_LOG\n#cmakedefine WITH_UI\n",
        "a.c": '#include "config.h"\n#ifdef WITH_LOG\nint log_it(void);\n#endif\n#ifdef WITH_UI\n#endif\n',
    }
    document = one_document(tmp_path, files)
    assert "#define WITH_LOG 1\n" in document.text
    assert "#define WITH_UI" not in document.text


def test_own_conditions_are_kept_whole_and_borrowed_ones_decided(tmp_path):
    files = {
        "port.h": "#pragma once\n#ifdef _WIN32\ntypedef void* Handle;\n#else\ntypedef int Handle;\n#endif\n",
        "a.cc": '#include "port.h"\n#ifdef _WIN32\nint a(Handle h) { return h != 0; }\n#else\n'
        "int a(Handle h) { return h; }\n#endif\n",
    }
    document = one_document(tmp_path, files, of="a.cc")
    assert document.text.endswith(str(files["a.cc"]).partition("\n")[2])
    assert "typedef int Handle" in document.text
    assert "typedef void*" not in document.text


def test_a_macro_call_that_declares_is_found_by_its_arguments(tmp_path):
    files = {
        "list.h": "#pragma once\n#define LIST_OF(type, name) struct name { type head; }\n"
        "LIST_OF(int, Numbers);\nLIST_OF(char, Letters);\n",
        "a.cc": '#include "list.h"\nint first(const Numbers& numbers) { return numbers.head; }\n',
    }
    document = one_document(tmp_path, files, of="a.cc")
    assert compile_errors(document.text) == ""
    in_order(document.text, "#define LIST_OF", "LIST_OF(int, Numbers);", "int first(")
    assert "Letters" not in document.text


def test_classes_of_other_classes_are_not_there_for_their_name(tmp_path):
    """Each class of a library has its `Private`; that of another one is not meant."""
    classes = "".join(
        f"class C{n} {{\n  struct Private;\n  Private* d;\npublic:\n  int f() const;\n}};\n"
        f"struct C{n}::Private {{\n  int value{n};\n}};\n"
        for n in range(3)
    )
    files = {
        "c.h": "#pragma once\n" + classes,
        "use.cc": '#include "c.h"\nint C1::f() const { return d->value1; }\n',
    }
    document = one_document(tmp_path, files, of="use.cc")
    assert compile_errors(document.text) == ""
    assert "value1" in document.text
    assert "value2" not in document.text


def chain(count: int) -> str:
    """Functions of some 150 bytes, each calling the one before."""
    return "".join(
        f"int f{n}(int a) {{\n" + f"  a += {n};\n" * 10 + f"  return {f'f{n - 1}(a)' if n else 'a'};\n}}\n"
        for n in range(count)
    )


@needs_gxx
def test_a_unit_too_long_comes_in_parts_with_what_each_needs(tmp_path):
    head = "#include <string>\n#define TWICE(x) ((x) * 2)\nstruct Row { int cells; };\n"
    users = "".join(f"int g{n}(Row row) {{ return f{n}(TWICE(row.cells)); }}\n" for n in range(20))
    documents = documents_of(write_files(tmp_path, {"a.cc": head + chain(20) + users}), budget=2_000)
    assert len(documents) > 2
    assert {document.kind for document in documents} == {"compilable"}
    for document in documents:
        assert compile_errors(document.text) == "", document.text
    for number in range(20):  # what a part only borrows is declared
        assert sum(document.text.count(f"int f{number}(int a) {{") for document in documents) == 1
    assert sum(document.functions for document in documents) == 40


def test_borrowed_text_gets_shorter_as_the_budget_does(tmp_path):
    body = "  value += 1;\n" * 40
    header = (
        "#pragma once\n// A counter of something.\nclass Counter {\n public:\n"
        f"  int count(int value) {{\n{body}    return value;\n  }}\n  int unused(int a);\n  int total;\n}};\n"
    )
    user = '#include "counter.h"\nint use(Counter& counter) { return counter.count(1); }\n'
    folder = write_files(tmp_path, {"counter.h": header, "use.cc": user})
    whole, declared, skeleton = (
        documents_of(folder, budget=budget, of="use.cc")[0].text for budget in (49_152, 700, 600)
    )
    assert "// A counter" in whole and "value += 1" in whole
    for text in (declared, skeleton):
        assert "// A counter" not in text and "value += 1" not in text
        assert "int count(int value);" in text


def test_what_needs_too_much_is_a_chunk_with_the_includes_of_its_file(tmp_path):
    members = "".join(f"  int a_name_of_a_member_that_is_quite_long_{number};\n" for number in range(30))
    files = {
        "big.h": f"#pragma once\nstruct Big {{\n{members}}};\n",
        "use.cc": '#include <vector>\n#include "big.h"\nBig everything[2];\nint small() { return 1; }\n',
    }
    documents = documents_of(write_files(tmp_path, files), budget=600, of="use.cc")
    assert {document.kind for document in documents} == {"compilable", "chunk"}
    (chunk,) = [document for document in documents if document.kind == "chunk"]
    assert chunk.text == '#include <vector>\n#include "big.h"\nBig everything[2];\n'


def test_a_file_whose_brackets_do_not_add_up_is_kept_as_it_is(tmp_path):
    source = "int a() { return 1; }\n#if X\nvoid broken() {\nint b() { return 2; }\n"
    document = one_document(tmp_path, {"a.cc": source})
    assert (document.kind, document.text) == ("file", source)


def test_mode_file_keeps_files_apart_and_as_they_are(tmp_path):
    documents = documents_of(write_files(tmp_path, GEOMETRY), mode="file")
    assert {document.kind for document in documents} == {"file"}
    assert sorted(document.text for document in documents) == sorted(GEOMETRY.values())


def test_where_paths_are_made_up_no_include_is_followed_or_dropped(tmp_path):
    document = one_document(tmp_path, GEOMETRY, of="shape.cc", closed=False)
    in_order(
        document.text,
        '#include "point.h"',
        "struct Shape {",
        '#include "shape.h"',
        "int area(const Shape& shape) {",
    )


@pytest.mark.parametrize(("budget", "mode"), [(512, "compilable"), (2_000, "compilable"), (700, "file")])
def test_the_budget_is_never_exceeded_and_every_function_is_somewhere(tmp_path, budget, mode):
    functions = "".join(
        f"// {'é' * (i % 9)}\nint f{i}(int a) {{\n"
        + f"  a += {i};\n" * (i % 40)
        + f"  return {f'f{i - 1}(a)' if i else 'a'};\n}}\n"
        for i in range(60)
    )
    long_line = 'const char* kText = "' + "面" * 1_000 + '";\n'
    head = '#include <vector>\n#include "own.h"\nnamespace big {\nstruct S { int x; };\n'
    files = {"a.cc": f"{head}{functions}}}\n{long_line}", "own.h": "int own();\n"}
    documents = documents_of(write_files(tmp_path, files), budget=budget, mode=mode)
    assert all(document.size == utf8_bytes(document.text) <= budget for document in documents)
    text = "\n".join(document.text for document in documents)
    assert [i for i in range(60) if not re.search(rf"int f{i}\(int a\) {{", text)] == []
    assert text.count("面") == 1_000


def test_files_without_code_make_no_documents(tmp_path):
    files = {
        "only_license.h": "// Copyright 2020, all rights reserved\n",
        "only_comment.h": "// What is this?\n\n",
        "only_guard.h": "#ifndef G_H\n#define G_H\n#endif\n",
        "only_own.h": '#pragma once\n#include "only_own.inl"\n',
        "only_own.inl": "// Nothing yet.\n",
    }
    assert documents_of(write_files(tmp_path, files)) == []


def test_the_body_of_a_function_is_a_document_of_its_function_alone(tmp_path):
    body = "/* the same for all types */\n\n{\n  return x + 1;\n}\n"
    files = {"body.h": body, "use.cc": 'int next(int x)\n{\n#define T int\n#include "body.h"\n#undef T\n}\n'}
    (document,) = documents_of(write_files(tmp_path, files))
    assert "return x + 1;" in document.text
    assert document.files[0] == "use.cc"


def test_a_header_without_ending_leads_to_the_one_that_it_includes(tmp_path):
    files = {
        "include/lib/table": '// The class.\n#include "lib/table.hxx"\n',
        "include/lib/table.hxx": "#pragma once\nclass Table {};\n",
        "README": "# include this\nin your project\n",
        "a.cc": "#include <lib/table>\nTable table();\n",
    }
    document = one_document(tmp_path, files, of="a.cc")
    in_order(document.text, "class Table {};", "Table table();")


def test_what_build_files_say_stands_in_the_document(tmp_path):
    files = {
        "CMakeLists.txt": "configure_file(${SOURCE}/cmake/setup.h.in ${BINARY}/config.h)\n"
        'target_compile_definitions(a PRIVATE "DATA_DIR=\\"${DATA}\\"")\n',
        "cmake/setup.h.in": "#cmakedefine HAVE_TIMEGM\n#define LIMIT 7\n",
        "win32/config.h": "#define LIMIT 9\n#define WITH_DRAFTS\n",
        "src/b.h": "#if defined USE_KQUEUE\nint wait_q();\n#elif defined USE_EPOLL\nint wait_e();\n"
        "#else\n#error None\n#endif\n#ifdef WITH_DRAFTS\nint draft();\n#endif\n",
        "src/a.cc": '#include "config.h"\n#include "b.h"\n'
        "#ifndef HAVE_TIMEGM\nint timegm();\n#endif\n"
        "const char *f() { return DATA_DIR; }\nint g() { return LIMIT + draft() + wait_e(); }\n",
    }
    text = one_document(tmp_path, files, of="src/a.cc").text
    for line in ("LIMIT 7", 'DATA_DIR ""', "HAVE_TIMEGM 1"):
        assert f"#define {line}\n" in text
    assert "int wait_e();" in text and "wait_q" not in text
    assert "int draft();" in text


def test_namespace_of_a_library_that_the_project_adds_to_stays_open(tmp_path):
    files = {
        "a.h": "#include <boost/optional.hpp>\nnamespace app {\nusing namespace boost;\n"
        "typedef optional<int> Maybe;\n}\n",
        "a.cc": '#include "a.h"\nnamespace boost {\nint more();\n}\n'
        "app::Maybe f() { return app::Maybe(); }\n",
    }
    assert "using namespace boost;" in one_document(tmp_path, files, of="a.cc").text


@needs_gxx
def test_a_header_read_under_a_condition_is_read_again_where_it_is_included_in_any_case(tmp_path):
    files = {
        "mutex.h": "#pragma once\nstruct Mutex { int locked; };\n",
        "atomic.h": '#pragma once\n#if defined(USE_LOCKS) && LOCKS > 2\n#include "mutex.h"\n#endif\n'
        "struct Counter { int value; };\n",
        "pool.cc": '#include "atomic.h"\n#include "mutex.h"\nstruct Pool { Counter used; Mutex mutex; };\n'
        "int size(const Pool& pool) { return pool.used.value + pool.mutex.locked; }\n",
    }
    assert compile_errors(one_document(tmp_path, files, of="pool.cc").text) == ""


@needs_gxx
def test_shortened_classes_keep_what_their_remaining_members_use(tmp_path):
    unused = "".join(f"  int unused_{n}(int a, int b) const;\n" for n in range(40))
    files = {
        "node.h": "#pragma once\nstruct Base {\n  typedef int (*func_t)(int);\n" + unused + "};\n"
        "struct Node : Base {\n" + unused + "private:\n  int spare[4];\n  Base::func_t data;\n"
        "public:\n  int call() const { return data(1); }\n};\n",
        "use.cc": '#include "node.h"\nint use(const Node& node) { return node.call(); }\n',
    }
    text = one_document(tmp_path, files, budget=400, of="use.cc").text
    assert "unused_" not in text
    assert compile_errors(text) == ""


@needs_gxx
def test_a_class_template_with_two_heads_is_found_by_its_name(tmp_path):
    files = {
        "queue.h": "#pragma once\n#ifdef ALIGNED\ntemplate <typename T, int N, int A> class Queue\n#else\n"
        "template <typename T, int N> class Queue\n#endif\n{\npublic:\n  T items[N];\n};\n",
        "use.cc": '#include "queue.h"\nint first(const Queue<int, 2>& queue) { return queue.items[0]; }\n',
    }
    assert compile_errors(one_document(tmp_path, files, of="use.cc").text) == ""


@needs_gxx
@pytest.mark.parametrize(
    ("before", "node"),
    [
        ("using element_t = int;\n", "struct Node { element_t type; };\n"),
        ("namespace a { struct S {}; }\n", "namespace b { struct S : a::S {}; }\n"),
    ],
    ids=["aliases", "namespaces"],
)
def test_a_header_that_does_not_stand_alone_has_what_its_includer_reads_before(tmp_path, before, node):
    files = {
        "types.h": "#pragma once\n" + before,
        "node.h": "#pragma once\n" + node,
        "all.h": '#pragma once\n#include "types.h"\n#include "node.h"\n',
    }
    assert compile_errors(one_document(tmp_path, files, of="node.h").text) == ""


@needs_gxx
def test_a_header_is_read_behind_what_all_sources_include_first(tmp_path):
    files = {
        "stdafx.h": "#pragma once\nnamespace a { namespace b { typedef long number; }\nusing b::number; }\n",
        "node.h": "#pragma once\nnamespace c { typedef a::number number; }\nnamespace a { number f(); }\n",
    } | {f"{n}.cc": f'#include "stdafx.h"\n#include "node.h"\nint f{n};\n' for n in range(4)}
    assert compile_errors(one_document(tmp_path, files, of="node.h").text) == ""


@pytest.mark.parametrize("budget", [16_384, 480])
def test_what_a_function_returns_a_value_of_is_complete_where_it_is_called(tmp_path, budget):
    fields = "".join(f"  int field_{number};\n" for number in range(12))
    files = {
        "lib.h": f"typedef struct selector_t {{\n{fields}}} selector_t;\n"
        f"typedef struct other_t {{\n{fields}  int last;\n}} other_t;\n"
        "selector_t all(void);\nother_t *find(selector_t which);\n",
        "use.c": '#include "lib.h"\nint use(void) { return find(all()) != 0; }\n',
    }
    text = one_document(tmp_path, files, of="use.c", budget=budget).text
    assert compile_errors(text, language="c") == ""
    assert ("int last;" in text) == (budget > 480)  # a pointer to it is all that is used

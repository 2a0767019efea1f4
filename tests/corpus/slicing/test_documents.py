import re

import pytest

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


@pytest.mark.slow
@needs_gxx
def test_every_document_of_the_example_compiles():
    documents, functions = documents_of(TINYLIB)
    assert {document.kind for document in documents} == {"compilable"}
    for document in documents:
        language = "c" if document.files[-1].endswith(".c") else "c++"
        assert compile_errors(document.text, language=language) == "", document.files
        assert not re.search(r'#include "', document.text)
    assert functions == 37


def test_header_and_source_become_one_document_in_order():
    documents, _ = documents_of(TINYLIB)
    shape = next(d for d in documents if "src/shape.cc" in d.files)
    assert shape.files[:2] == ("include/tinylib/shape.h", "src/shape.cc")
    assert set(shape.files[2:]) == {"include/tinylib/config.h", "include/tinylib/report.h"}  # borrowed from
    assert '#include "tinylib/shape.h"' not in shape.text
    assert "#ifndef" not in shape.text
    in_order(
        shape.text,
        "class TINYLIB_API Shape",
        "class TINYLIB_API Circle : public Shape",
        "double Circle::area()",
    )
    in_order(shape.text, "double square_of(double value) {", "double disc_area(", "double Circle::area()")


def test_crlf_and_non_ascii_keep_every_function_whole(tmp_path):
    source = (
        "// Größe 面積\r\nint a() {\r\n  return 1;\r\n}\r\n\r\n// é\r\nint b() {\r\n  return a();\r\n}\r\n"
    )
    document = one_document(tmp_path, {"a.cc": b"\xef\xbb\xbf" + source.encode()})
    assert document.text == source.replace("\r\n", "\n")


@needs_gxx
def test_an_included_header_that_includes_the_unit_again(tmp_path):
    files: dict[str, str | bytes] = {
        "a.h": "#ifndef A_H\n#define A_H\nstruct A { int x; };\nint a();\n#endif\n",
        "b.h": '#ifndef B_H\n#define B_H\n#include "a.h"\ninline int b(A v) { return v.x; }\n#endif\n',
        "a.cc": '#include "a.h"\n#include "b.h"\nint a() { return b(A{1}); }\n',
    }
    documents, _ = documents_of(write_files(tmp_path, files))
    (merged,) = [d for d in documents if "a.cc" in d.files]
    assert compile_errors(merged.text) == ""
    in_order(merged.text, "struct A", "inline int b(A v)", "int a() {")


def test_a_file_that_does_not_add_up_is_kept_as_it_is(tmp_path):
    source = "int a() { return 1; }\n#if X\nvoid broken() {\nint b() { return 2; }\n"
    document = one_document(tmp_path, {"a.cc": source})
    assert (document.kind, document.text) == ("file", source)


def test_mode_file_keeps_order_and_guards(tmp_path):
    header = "#ifndef A_H\n#define A_H\nint b();\nstruct S {};\n#endif\n"
    documents, _ = documents_of(
        write_files(tmp_path, {"a.h": header, "a.cc": '#include "a.h"\nint b() { return 1; }\n'}),
        ordered=False,
    )
    assert [d.kind for d in documents] == ["file", "file"]
    assert header in [d.text for d in documents]


@pytest.mark.parametrize(("budget", "ordered"), [(512, True), (2_000, True), (700, False)])
def test_the_budget_is_never_exceeded_and_every_function_is_somewhere(tmp_path, budget, ordered):
    functions = "".join(
        f"// {'é' * (i % 9)}\nint f{i}(int a) {{\n"
        + f"  a += {i};\n" * (i % 40)
        + f"  return {f'f{i - 1}(a)' if i else 'a'};\n}}\n"
        for i in range(60)
    )
    long_line = 'const char* kText = "' + "面" * 1_000 + '";\n'
    head = '#include <vector>\n#include "own.h"\nnamespace big {\nstruct S { int x; };\n'
    source = f"{head}{functions}}}\n{long_line}"
    documents, count = documents_of(
        write_files(tmp_path, {"a.cc": source, "own.h": "int own();\n"}), budget=budget, ordered=ordered
    )
    assert count == 60
    assert all(utf8_bytes(d.text) <= budget and d.size == utf8_bytes(d.text) for d in documents)
    text = "\n".join(d.text for d in documents)
    for i in range(60):
        assert re.search(rf"int f{i}\(int a\) {{", text), i
    assert text.count("面") == 1_000
    if ordered:
        whole = [d for d in documents if d.kind == "compilable" and "f1(" in d.text]
        assert all("namespace big {" in d.text for d in whole)


@pytest.mark.parametrize("closed", [True, False])
def test_files_without_code_make_no_documents(tmp_path, closed):
    files = {
        "only_license.h": "// Copyright 2020, all rights reserved\n",
        "only_comment.h": "// What is this?\n\n",
        "only_guard.h": "#ifndef G_H\n#define G_H\n#endif\n",
        "only_own.h": '#pragma once\n#include "only_own.inl"\n',
        "only_own.inl": "// Nothing yet.\n",
    }
    assert documents_of(write_files(tmp_path, files), closed=closed) == ([], 0)
    assert documents_of(tmp_path, closed=closed, budget=600) == ([], 0)

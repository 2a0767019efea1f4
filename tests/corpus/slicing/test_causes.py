"""Causes of documents that did not compile, each of several projects: the smallest project that shows one."""

from typing import Any

import pytest

from tests.corpus.cpp import compile_errors, documents_of, needs_gxx, one_document, write_files

pytestmark = needs_gxx

_EVENT_CONFIG = "#define EV_size_t @EV_size_t@\n#cmakedefine EV_HAVE_STDINT_H\ntypedef @COUNT_T@ count_t;\n"
_NAMESPACES = (
    "#define PUSH PRAGMA(GCC diagnostic push)\n#define POP PRAGMA(GCC diagnostic pop)\n"
    "#define PRAGMA(...) _Pragma(#__VA_ARGS__)\n#define NAME lib\n"
    "#define NAMESPACE_BEGIN(name) namespace name { PUSH\n#define NAMESPACE_END(name) POP }\n"
)
_PROJECTS: dict[str, dict[str, str]] = {
    "what a macro stands for is declared behind it": {
        "a.h": "struct S { int x; };\n#ifdef DLL\n#define it that->\nextern S* that;\n"
        "#else\n#define it that.\nextern S that;\n#endif\n",
        "use.cc": '#include "a.h"\nint use() { return it x; }\n',
    },
    "config_h.in becomes config.h": {
        "configure.in": "AC_CONFIG_HEADER(config.h:config_h.in)\n",
        "config_h.in": "#undef SIZEOF_LONG\n",
        "use.cc": "#include <config.h>\nint use() { return SIZEOF_LONG; }\n",
    },
    "of two headers that a build chooses from, that of the #else": {
        "all.h.in": "@ALL@\n",
        "part.h": "int part();\n",
        "use.cc": '#ifdef ALL\n#include "all.h"\n#else\n#include "part.h"\n#endif\n'
        "int use() { return part(); }\n",
    },
    "a header for another system does not stand for that of the build": {
        "CMakeLists.txt": "configure_file(config.h.cmake ${DIR}/include/ev/config.h)\n",
        "config.h.cmake": _EVENT_CONFIG,
        "win32/ev/config.h": "#define EV_size_t SIZE_T\n",
        "use.cc": '#include "ev/config.h"\n#include <stddef.h>\n'
        "EV_size_t use(count_t count) { return count; }\n",
    },
    "macros with arguments open and close namespaces": {
        "a.h": _NAMESPACES + "NAMESPACE_BEGIN(NAME)\nNAMESPACE_BEGIN(inner)\nint f();\nint g();\n"
        "NAMESPACE_END(inner)\nNAMESPACE_END(NAME)\n",
        "use.cc": '#include "a.h"\nnamespace l = lib;\nint use() { return l::inner::f(); }\n',
    },
    "a source file that another one includes": {
        "trace.h": "#define TRACE(text)\n",
        "use.cc": "void use() { TRACE(1); }\n",
        "whole.cc": '#include "trace.h"\n#include "use.cc"\n',
    },
}


@pytest.mark.parametrize("files", _PROJECTS.values(), ids=_PROJECTS)
def test_a_project_compiles(tmp_path, files):
    document = one_document(tmp_path, files, of="use.cc")
    assert compile_errors(document.text) == ""


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
            + "".join(f"  int data_{number};\n" for number in range(200))
            + "  int last;\n};\n",
            "int use(S* s) { return s->last; }\n",
            "data_1;",
        ),
    ],
    ids=["enumerators", "data members of a large structure"],
)
def test_what_is_long_goes_where_nobody_names_it(tmp_path, header, own, gone):
    files = {"a.h": header, "use.cc": '#include "a.h"\n' + own}
    (document,) = documents_of(write_files(tmp_path, files), budget=900, of="use.cc")
    assert document.kind == "compilable"
    assert compile_errors(document.text) == ""
    assert gone not in document.text


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

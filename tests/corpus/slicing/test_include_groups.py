"""Includes and definitions in one `#if`, and macros that a group defines again."""

from tests.corpus.cpp import compile_errors, needs_gxx, one_document

pytestmark = needs_gxx


def _once(name: str, text: str) -> str:
    return f"#ifndef {name}\n#define {name}\n{text}#endif\n"


def test_an_include_behind_the_guard_of_its_header_goes_where_that_was_read(tmp_path):
    files = {
        "alloc.h": _once("ALLOC_H", "typedef struct home home_t;\n"),
        "tag.h": _once("TAG_H", '#ifndef ALLOC_H\n#include "alloc.h"\n#endif\nvoid add(home_t *home);\n'),
        "use.h": _once(
            "USE_H",
            '#ifndef TAG_H\n#include "tag.h"\n#endif\n#ifndef ALLOC_H\n#include "alloc.h"\n#endif\n'
            "static inline void use(home_t *home) { add(home); }\n",
        ),
    }
    text = one_document(tmp_path, files, of="use.h").text
    assert "#include" not in text
    assert not compile_errors(text)


def test_what_is_defined_before_an_include_in_one_group_holds_in_that(tmp_path):
    files = {
        "types.h": _once(
            "TYPES_H", "#ifndef OWNER\n#define OWNER struct owner\n#endif\ntypedef OWNER owner_t;\n"
        ),
        "stack.h": _once(
            "STACK_H", '#ifndef TYPES_H\n#define OWNER struct handle\n#include "types.h"\n#endif\n'
        ),
        "use.cc": '#include "stack.h"\nvoid use(owner_t *owner, struct handle *handle) { owner = handle; }\n',
    }
    assert not compile_errors(one_document(tmp_path, files, of="use.cc").text)


def test_a_macro_that_other_platforms_define_again_keeps_its_first_definition(tmp_path):
    files = {
        "config.h": "#define PUBLIC_FUNCTION\n\n"
        "#if defined(_WIN32) || defined(OF_ANOTHER)\n#undef PUBLIC_FUNCTION\n"
        "#define PUBLIC_FUNCTION __declspec(dllexport)\n#endif\n",
        "api.h": '#include "config.h"\nPUBLIC_FUNCTION int start(void);\nPUBLIC_FUNCTION int *stop(void);\n',
        "use.cc": '#include "api.h"\nint use() { return start() + *stop(); }\n',
    }
    text = one_document(tmp_path, files, of="use.cc").text
    assert text.startswith("#define PUBLIC_FUNCTION\n")
    assert not compile_errors(text)


def test_a_macro_right_beside_strings_is_a_name(tmp_path):
    files = {
        "config.h": '#define MOD_ZU "%zu"\n',
        "log.h": '#include <cstdio>\n#include "config.h"\n'
        '#define LOG(a, b) std::printf("size "MOD_ZU" of "MOD_ZU"\\n", a, b)\n',
        "use.cc": '#include "log.h"\nvoid use() { LOG(sizeof(int), sizeof(long)); }\n',
    }
    assert '#define MOD_ZU "%zu"' in one_document(tmp_path, files, of="use.cc").text


def test_a_macro_with_a_default_is_defined_where_a_header_demands_it_of_one_build(tmp_path):
    files = {
        "log.h": "#if !defined(WITH_LOG)\n#  error WITH_LOG must be defined\n#endif\n"
        "#if !defined(LOG_TO_STDIO)\n#  if WITH_LOG == 1\n#    error LOG_TO_STDIO must be defined\n"
        "#  else\n#    define LOG_TO_STDIO 0\n#  endif\n#endif\n"
        "inline int target() { return LOG_TO_STDIO; }\n",
        "use.cc": '#include "log.h"\nint use() { return target(); }\n',
    }
    document = one_document(tmp_path, files, of="use.cc")
    assert not compile_errors(document.text)
    assert "#define LOG_TO_STDIO 1\n" in document.text


def test_where_one_of_several_macros_has_to_be_defined_the_first_is(tmp_path):
    branches = "".join(
        f"#if {condition}\n#define HAS_ATOMICS 1\ntypedef struct {{ {type_} n; }} atomic;\n#endif\n"
        for condition, type_ in (
            ("defined(__sun)", "long"),
            ("WITH_BUILTINS", "int"),
            ("WITH_OTHERS", "char"),
        )
    )
    files = {
        "atomic.h": f"{branches}#if !defined(HAS_ATOMICS)\n#error no atomics\n#endif\n",
        "use.cc": '#include "atomic.h"\nint use(atomic *one) { return one->n; }\n',
    }
    text = one_document(tmp_path, files, of="use.cc").text
    assert "int n;" in text
    assert not compile_errors(text)

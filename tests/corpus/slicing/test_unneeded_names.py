"""Names that look like those of something else, which is not borrowed for them."""

import pytest

from tests.corpus.cpp import compile_errors, documents_of, one_document, write_files

_GUARDED = "#ifndef {name}_H\n#define {name}_H\n{text}#endif\n"

_PROJECTS: dict[str, dict[str, str]] = {
    "a parameter of a macro": {
        "all.h": "#define DECLARE(other) void declare_##other(void)\nint other(int n) { return n; }\n",
        "use.cc": '#include "all.h"\nDECLARE(one);\n',
    },
    "what macros would paste of a parameter": {
        "all.h": "#define PUBLIC(r) r\n#define EXTERN(r) extern PUBLIC(r)\nint Other_r(int n);\n",
        "other.c": "#define PUBLIC(r) Other_##r\n",
        "use.cc": '#include "all.h"\nEXTERN(int) value;\nint use() { return value; }\n',
    },
    "what there is for compilers without attributes": {
        "all.h": "typedef int Other;\n#ifdef LIB_PLAIN\n#define __attribute__(x) Other\n#endif\n",
        "use.cc": '#include "all.h"\nint use() __attribute__((unused));\n',
    },
    "a class of another class, in a body that the parser cannot read": {
        "other.h": "struct Other { class Inner; Inner *inner; };\n",
        "other.cc": '#include "other.h"\nclass Other::Inner {\n  APPLY(+=)\n  int n\n};\n',
        "own.h": "struct Own { class Inner; Inner *inner; };\n",
        "use.cc": '#include "own.h"\n#include "other.cc"\nOwn *use(Own *own) { return own; }\n',
    },
    "the parameters of what a macro declares": {
        "all.h": "#define FUNCTION(name, parameters) void name##_ parameters\n"
        "FUNCTION(first, (int *status, int n));\nFUNCTION(other, (int *status, char *text));\n",
        "use.cc": '#include "all.h"\nstatic int status;\nvoid use() { first_(&status, status); }\n',
    },
}  # fmt: skip


@pytest.mark.parametrize("files", _PROJECTS.values(), ids=_PROJECTS)
def test_it_is_not_what_has_that_name(tmp_path, files):
    text = one_document(tmp_path, files, of="use.cc").text
    assert compile_errors(text) == ""
    assert "int other(" not in text
    assert "Other" not in text
    assert "FUNCTION(other" not in text


def test_tests_of_one_suite_do_not_borrow_each_other(tmp_path):
    """`TEST` is a macro of another project, and its first argument no function."""
    bodies = "".join(
        f"TEST(Suite, test_{n}) {{\n" + "  EXPECT(1 + 1 == 2);\n" * 40 + "}\n\n" for n in range(9)
    )
    files = {"use.cc": "#include <gtest/gtest.h>\n\nstruct Suite {};\n\n" + bodies}
    documents = documents_of(write_files(tmp_path, files), budget=2_500)
    texts = [document.text for document in documents if document.kind == "compilable"]
    assert len(texts) > 2
    for n in range(9):
        assert sum(f"TEST(Suite, test_{n})" in text for text in texts) == 1


def test_a_configuration_that_each_header_reads_stands_there_once(tmp_path):
    """It has no guard, and an include in the `#if` around all of it."""
    config = (
        "#ifndef CONFIG_OF_BUILD\n#ifdef __MINGW32__\n#include <windows.h>\n#endif\n#define EXPORT\n#endif\n"
    )
    default = (
        '#ifdef HAVE_CONFIG\n#include "config.h"\n#endif\n#ifndef EXPORT\n#define EXPORT extern "C"\n#endif\n'
    )
    headers = {
        f"{name}.h": _GUARDED.format(name=name, text=f"{default}EXPORT int {name}(int);\n") for name in "ab"
    }
    use = '#include "a.h"\n#include "b.h"\nEXPORT int use() { return a(1) + b(2); }\n'
    text = one_document(tmp_path, {"config.h": config, **headers, "use.cc": use}, of="use.cc").text
    assert compile_errors(text) == ""
    assert text.count("#define EXPORT\n") == 1

import pytest

from cpplm.cpp.parser import grammar, is_c_project, language_of
from tests.corpus.parsed import only


@pytest.mark.parametrize(
    ("name", "project_is_c", "language"),
    [
        ("a/b.c", False, "c"),
        ("a/b.c", True, "c"),
        ("a/b.h", False, "c++"),
        ("a/b.h", True, "c"),
        ("a/b.C", True, "c++"),
        ("a/b.hpp", True, "c++"),
        ("a.c/b.cc", True, "c++"),
        ("vector", False, "c++"),
        ("KERNEL.CU", True, "c++"),
    ],
)
def test_language_by_name_and_project(name, project_is_c, language):
    assert language_of(name, project_is_c) == language


def test_a_project_is_c_when_most_of_its_sources_are():
    assert is_c_project(["src/a.c", "include/a.h"])
    assert is_c_project(["src/a.c", "src/b.c", "test/c.cpp", "a.h"])
    assert not is_c_project(["include/a.h"])  # a library of headers alone may be either
    assert not is_c_project(["src/a.c", "test/b.cpp", "a.h"])
    assert not is_c_project(["src/a.c", "src/b.C"])
    assert not is_c_project([])


@pytest.mark.parametrize(
    "source",
    [
        "int class(int new, char *this) { return new + *this; }",
        "int old(a, b) int a; char *b; { return a; }",
        "int template(int typename) { int private = typename; return namespace + private; }",
        "int f(void) { return _Generic(new, int: 1, default: 2); }",
        "DECLARE(const char *)\nversion(void);",
        "void g(char *const this[restrict static 4]) { this = new; throw(0); catch(this) + 1; }",
    ],
)
def test_c_that_is_no_cpp(source):
    assert not grammar("c").parse(source.encode()).has_error
    assert grammar("c++").parse(source.encode()).has_error


def test_cpp_keeps_its_own_grammar():
    source = b"template <class T> struct Box final : Base<T> { auto get() const -> T& { return *this; } };"
    assert not grammar("c++").parse(source).has_error
    assert grammar("c").parse(source).has_error


def test_a_file_that_ends_in_c_may_be_cxx_by_its_text():
    text = b"#include <stdio.h>\n\nclass Menu {\npublic:\n  int n;\n};\n"
    assert language_of("menu.c", True, text) == "c++"
    assert language_of("menu.c", True, b"#ifdef __cplusplus\n" + text + b"#endif\n") == "c"
    assert language_of("menu.c", True, b"int class_of(int n);\n") == "c"


@pytest.mark.parametrize("language", ["c", "c++"])
def test_conditions_and_functions_are_found_in_both(language):
    source = """int f(int value) {
        if (value > 1000000000) { return value; }
        while (value < 1000000001) { value += 1; }
        do { value += 2; } while (value < 1000000002);
        switch (value % 1000000003) { case 1: break; }
        return (value + 100000000000);
    }"""
    found = only(source, language)
    assert found.functions == 1
    assert found.texts(5) == [
        "(value > 1000000000)", "(value < 1000000001)", "(value < 1000000002)", "(value % 1000000003)",
    ]  # fmt: skip


def test_a_grammar_is_loaded_once():
    assert grammar("c") is grammar("c")
    assert grammar("c").parser is not grammar("c++").parser

"""Documented functions: which comments count, where a pair lies, how it is exported."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.cpp.doc_comments import MAX_BODY_BYTES, clean_comment, export_pairs, is_description, shift_pairs
from cpplm.cpp.parser import Language
from tests.corpus.parsed import only, parsed


def pairs(source: str, language: Language = "c++") -> list[tuple[str, str, str]]:
    """Comment, signature and body of every pair in a source."""
    found = []
    for piece in parsed(source.encode(), language):
        for pair in piece.pairs:
            parts = [piece.text[start:end].decode() for start, end in zip(pair[::2], pair[1::2], strict=True)]
            found.append((parts[0], parts[1], parts[2]))
    return found


def test_a_function_with_the_comment_before_it():
    source = """\
// größer: gives back
// what it was given
template <class T>
static T same(T größe) noexcept {
    return größe;  // 面積
}
"""
    assert pairs(source) == [
        (
            "// größer: gives back\n// what it was given",
            "template <class T>\nstatic T same(T größe) noexcept",
            "{\n    return größe;  // 面積\n}",
        )
    ]


def test_methods_and_macros_that_belong_to_the_signature():
    source = """\
#define API __attribute__((visibility("default")))
#define NOTHING
/* The size of everything. */
API int size() { return 1; }

class Box {
    int first;  // not about the function below
    int get() { return first; }
 public:  // nor is this one
    int twice() { return 2 * first; }
    /**
     * Makes it as large as told.
     */
    NOTHING void grow(int by) { first += by; }
    /// Compares two boxes by size.
    template <class T>
    bool operator<(const T& other) const { return first < other.first; }
};
"""
    assert pairs(source) == [
        ("/* The size of everything. */", "API int size()", "{ return 1; }"),
        ("/**\n     * Makes it as large as told.\n     */", "NOTHING void grow(int by)", "{ first += by; }"),
        (
            "/// Compares two boxes by size.",
            "template <class T>\n    bool operator<(const T& other) const",
            "{ return first < other.first; }",
        ),
    ]


def test_c_functions():
    source = "/* Adds two numbers up. */\nint class(int new, int this) { return new + this; }\n"
    assert [signature for _, signature, _ in pairs(source, "c")] == ["int class(int new, int this)"]


WANTED = "// Gives back one more.\nint f(int x) { return x + 1; }\n"


@pytest.mark.parametrize(
    "source",
    [
        WANTED.replace("// Gives", "// Earlier remarks stay out.\n\n// Gives"),
        WANTED.replace("// Gives", "/* Another comment. */\n// Gives"),
        WANTED.replace("// Gives", "// -----\n// Gives"),
        WANTED.replace("Gives back one more", "größe plus eins, mehr nicht"),
        WANTED.replace("Gives back one more", "返回更大的数"),
        WANTED.replace("Gives back one more.", "Say you call it:\n// f(1);\n// and it gives two."),
    ],
)
def test_comments_that_count(source):
    ((doc, signature, body),) = pairs(source)
    assert doc.startswith("//")
    assert "Earlier" not in doc
    assert "Another" not in doc
    assert (signature, body) == ("int f(int x)", "{ return x + 1; }")


@pytest.mark.parametrize(
    "source",
    [
        WANTED.replace("more.\n", "more.\n\n"),  # a blank line: perhaps about what follows as a whole
        WANTED.replace("more.\n", "more.\n#pragma GCC optimize(3)\n"),
        WANTED.replace("Gives back one more", "Copyright of nobody at all"),
        WANTED.replace("Gives back one more", "SPDX-License-Identifier: MIT and others"),
        WANTED.replace("Gives back one more.", "------------ - ------------"),
        WANTED.replace("Gives back one more.", "---- All the small functions ----"),
        WANTED.replace("Gives back one more", "One more"),
        WANTED.replace("Gives back one more.", "NOLINTNEXTLINE(all the checks there are)"),
        WANTED.replace("Gives back one more.", "int g(int x) {\n//   return x + 2;\n// }"),
        WANTED.replace("Gives back one more.", "#if 0 and more\n// old_call_of(it);\n// #endif"),
        WANTED.replace("{ return x + 1; }", "{ /* nothing to do */ }"),
        WANTED.replace("{ return x + 1; }", ";"),
        WANTED.replace("{ return x + 1; }", "{ " + "x += 1; " * MAX_BODY_BYTES + "}"),
        WANTED.replace("{ return x + 1; }", "{ return 1 2 @ 3; }"),
        WANTED.replace("// Gives", "int y;  // Gives"),
        "#define A(x)  // Gives back one more.\n" + WANTED.partition("\n")[2],
        "struct S {\n// Gives back one more.\nS() = default;\n// Takes all with it.\n~S() = delete;\n};\n",
    ],
)
def test_comments_that_do_not_count(source):
    assert pairs(source) == []


def test_an_if_group_that_begins_inside_and_ends_outside_is_no_pair():
    source = """\
struct S {
    // Does it the way of this machine.
#if FAST
    void f() { quick(); }
#endif
    // Says how it was done.
    int g() {
#if FAST
        return 1;
#else
        return 2;
#endif
    }
};
"""
    assert [signature for _, signature, _ in pairs(source)] == ["int g()"]


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("/** Gives it. */", "Gives it."),
        ("/**\n * Gives\n *   it.\n * @param x what\n **/", "Gives\n  it.\n@param x what"),
        ("///< \\brief Gives\n///   it.", "\\brief Gives\n  it."),
        ("//! Gives it.", "Gives it."),
        ("/*!\n   Gives\n     * this\n     * that\n*/", "Gives\n  * this\n  * that"),
        ("//////////\n// Gives it.\n//////////", "Gives it."),
        ("/***** Helpers *****/", "Helpers"),
        ("// ==== Part one ====\n// Gives it.", "Gives it."),
        ("// Gives\n//\n// it.", "Gives\n\nit."),
    ],
)
def test_markers_and_rules_are_stripped(comment, words):
    assert clean_comment(comment) == words


def test_code_is_told_from_prose_about_code():
    assert is_description(b"// Returns p->next; the list must not be empty.")
    assert is_description(b"// The word in use. E.g.\n//   RE re(x);\n//   re.pattern();")
    assert is_description(
        b"// Shows how it is done:\n// @code\n// a = f();\n// b = g();\n// c = h();\n// @endcode"
    )
    assert not is_description(b"// if (it == end) return 0;\n// else\n// return it->second;")
    assert not is_description(b"/*\nstatic void old_name(int a)\n{\n  call(a);\n}\n*/")
    assert not is_description(b"// " + b"very long words " * 1_000)


@given(st.text(max_size=300))
@settings(deadline=None)
def test_any_text_in_a_comment_is_read(text):
    line = "// " + text.replace("\n", " ").replace("\r", " ").replace("\\", " ")
    line = line.encode().rstrip().decode()
    is_description(line.encode())
    clean_comment("/*" + text.replace("*/", "") + "*/")
    body = "int f(int x) { return x + 1; }\n"
    found = pairs(f"{line}\n{body}")
    assert found in ([], [(line, "int f(int x)", "{ return x + 1; }")]) or "\x01" in text or "\x02" in text


def test_exported_pairs_come_once_with_their_provenance():
    piece = only("// größer: one more than\n// it was given\n" + WANTED.partition("\n")[2])
    flat = array("i", [offset for pair in piece.pairs for offset in pair]).tobytes()
    prefix = "// é\n\n"
    text = prefix + piece.text.decode() + "\n"
    row = {
        "text": text,
        "id": "1",
        "project": "p",
        "license": "MIT",
        "spans": b"",
        "docstrings": shift_pairs([(flat, len(prefix.encode()))]),
    }
    assert list(export_pairs([row, {**row, "id": "2"}])) == [
        {
            "docstring": "größer: one more than\nit was given",
            "signature": "int f(int x)",
            "body": "{ return x + 1; }",
            "id": "1",
            "project": "p",
            "license": "MIT",
        }
    ]
    assert list(export_pairs([{**row, "docstrings": []}])) == []

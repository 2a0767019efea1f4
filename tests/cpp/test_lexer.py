from hypothesis import given
from hypothesis import strategies as st

from cpplm.cpp.lexer import lex

SOURCE = b"""// #define NOT_ONE
#if A /* why */ && \\
    B
int a = 1'000; // it's
#else
const char* b = "#if { // \\" ";
#endif
auto r = R"x(
#include "no.h"
)" }")x";
# define F(x) \\
  do { x; } while (0) // said
char c = '"', d = '{';
"""


def test_directives_are_joined_and_free_of_comments():
    found = [(d.keyword, d.argument.split()) for d in lex(SOURCE).directives]
    assert found == [
        (b"if", [b"A", b"&&", b"B"]),
        (b"else", []),
        (b"endif", []),
        (b"define", b"F(x) do { x; } while (0)".split()),
    ]


def test_views_blank_strings_and_comments_but_keep_offsets():
    lexed = lex(SOURCE)
    assert len(lexed.names) == len(lexed.plain) == len(SOURCE)
    assert lexed.names.count(b"\n") == SOURCE.count(b"\n")
    assert lexed.names.count(b"{") == 0
    assert b"1'000" in lexed.names
    assert lexed.names.index(b"auto r") == SOURCE.index(b"auto r")
    assert b'R"x(' in lexed.plain
    assert b"no.h" not in lexed.names


@given(st.binary(max_size=300) | st.text("#\"'/*\\\n{}()ifend R0x;", max_size=120).map(str.encode))
def test_any_bytes_give_views_of_the_same_length(data):
    lexed = lex(data)
    assert len(lexed.names) == len(lexed.plain) == len(data)
    assert [i for i, b in enumerate(data) if b == 10] == [i for i, b in enumerate(lexed.names) if b == 10]


def test_include_guard_forms():
    assert lex(b"/* c */\n#ifndef A_H\n#define A_H 1\nint a;\n#endif // A_H\n").guard == b"A_H"
    assert lex(b"#pragma once\n#if !defined(A_H)\n#define A_H\nint a;\n#endif\n").guard == b"A_H"
    assert lex(b"#ifndef A_H\n#define A_H\n#endif\nint outside;\n").guard == b""
    assert lex(b"#ifndef A_H\n#define B_H\nint a;\n#endif\n").guard == b""
    assert lex(b"#ifndef A\n#define A 1\n#endif\n#ifdef B\n#undef B\n#endif\n").guard == b""
    assert lex(b"#define B\n#ifndef A\n#define A 1\n#endif\n").guard == b""
    assert lex(b"#define B\n#ifndef A_H\n#define A_H\nint a;\n#endif\n").guard == b"A_H"
    assert lex(b"#ifndef A_H\n#define A_H\nint a;\n#else\nint b;\n#endif\n").guard == b""

import pytest

from cpplm.cpp.lexer import lex
from cpplm.cpp.macros import MacroTable, macro_bodies
from cpplm.cpp.segmenter import segment_file
from cpplm.cpp.segments import Scope


def pieces(source: str, macros: str = "") -> list[str]:
    data = source.encode()
    result = segment_file(lex(data), MacroTable.from_bodies(macro_bodies(lex(macros.encode()).directives)))
    assert result.sound
    return [data[piece.start : piece.end].decode().strip() for piece in result.pieces]


@pytest.mark.parametrize(
    "items",
    [
        ["int a = 1;", "int f() { return 1; }", "struct S { int x; } s;", "int b[] = {1, 2};"],
        ["enum E { A, B } e = A;", "auto l = [] { return 1; };", "int c{1}, d{2};"],
        ["C::C() : a{1}, b(2) { f(); }", "int g() try { return 1; } catch (...) { return 2; }", "int z;"],
        ["template <class T> requires requires(T t) { t.x; } void f(T t) { t.x; }", "int a;"],
        ["template <class T> concept Q = requires(T t) { t.x; };", "int a;"],
        ["struct A : B<(1 > 0)> { int f() { return 1; } };", "int b;"],
        ["typedef struct { int a; } T;", "struct T f() { return {}; }", "int last;"],
        ["bool operator()(int a) { return a > 0; }", "int a;"],
        ['extern "C" int g(int);', "static_assert(sizeof(int) == 4, \"{\");"],
        ["template <> struct hash<A> { };", "extern template class X<int>;", "using N = A::B;"],
    ],
)  # fmt: skip
def test_items_end_where_they_end(items):
    for separator in ("\n", " ", "\n// { comment\n"):
        found = pieces(separator.join(items) + "\n")
        assert [piece.split("\n// {")[0] for piece in found] == items


def test_a_body_belongs_to_the_head_in_the_last_branch():
    function = "#ifdef A\nint *f(int n)\n#else\nint *g(int n);\nint *g(int n)\n#endif\n{\n  return 0;\n}"
    assert pieces(f"int a;\n{function}\nint b;\n") == ["int a;", function, "int b;"]


def test_comments_go_with_what_follows_or_what_they_trail():
    data = b"/* Copyright */\n\n// about a\nint a; // trailing a\n\n/// about f\nvoid f();\n"
    result = segment_file(lex(data), MacroTable())
    assert [piece.leading for piece in result.pieces] == [b"// about a\n", b"/// about f\n"]
    assert data[result.pieces[0].start : result.pieces[0].end] == b"int a; // trailing a"
    assert result.header_comment == b""  # a license is no text to learn from


def test_the_file_comment_is_kept_apart_from_the_license():
    data = b"// Copyright 2020\n\n// What this file is for.\n#include <a>\nint a;\n"
    assert segment_file(lex(data), MacroTable()).header_comment == b"// What this file is for."


def test_stacks_hold_scopes_and_conditions():
    data = b"""namespace a::b { namespace {
#if X
int x;
#elif Y
int y;
#else
int z;
#endif
}  // namespace
}
inline namespace v1 { int i; }
extern "C" { int c; }
"""
    result = segment_file(lex(data), MacroTable())
    assert result.sound
    stacks = [[f.key if isinstance(f, Scope) else f.lines for f in piece.stack] for piece in result.pieces]
    names = [b"namespace a::b {", b"namespace {"]
    assert stacks == [
        [*names, (b"#if X",)],
        [*names, (b"#if X", b"#elif Y")],
        [*names, (b"#if X", b"#elif Y", b"#else")],
        [b"inline namespace v1 {"],
        [b'extern "C" {'],
    ]
    assert isinstance(result.pieces[0].stack[1], Scope)
    assert result.pieces[0].stack[1].closer == b"}  // namespace"


def test_guarded_extern_c_is_a_scope():
    data = b'#ifdef __cplusplus\nextern "C" {\n#endif\nint f(void);\n#ifdef __cplusplus\n}\n#endif\nint g;\n'
    result = segment_file(lex(data), MacroTable())
    assert [len(piece.stack) for piece in result.pieces] == [1, 0]
    assert result.pieces[0].stack[0].closer == b"#ifdef __cplusplus\n}\n#endif"


def test_a_conditional_that_is_part_of_an_item_stays_in_it():
    sources = [
        "#if A\nvoid f(int a) {\n#else\nvoid f(long a) {\n#endif\n  g();\n}",
        "#if A\ntemplate <class T>\n#endif\nvoid f();",
        "#if A\nnamespace x {\nint a;\n#endif\n}",
        "int f(int x)\n#ifdef A\n{ return 1; }\n#else\n{ return 2; }\n#endif",
    ]
    for source in sources:
        assert pieces(f"int before;\n{source}\nint after;\n") == ["int before;", source, "int after;"]


def test_a_group_that_changes_its_own_condition_is_one_piece():
    group = "#ifdef A\n#undef A\nint a;\n#endif"
    assert pieces(f"int b;\n{group}\nint c;\n") == ["int b;", group, "int c;"]


def test_a_guard_around_a_part_of_a_file_is_taken_off():
    assert pieces("int b;\n#ifndef A\n#define A\nint a;\n#endif\nint c;\n") == [
        "int b;",
        "#define A",
        "int a;",
        "int c;",
    ]


@pytest.mark.parametrize(
    ("condition", "left"),
    [("(B || C) && !defined(A)", "#if (B || C)"), ("B || C && !defined(A)", ""), ("B && !defined(C)", "")],
)
def test_a_guard_beside_a_condition_leaves_the_condition(condition, left):
    data = f"#if {condition}\n#define A\nint a;\nint b;\n#endif\nint c;\n".encode()
    result = segment_file(lex(data), MacroTable())
    assert result.sound
    stack = result.pieces[0].stack
    assert [frame.opener.decode() for frame in stack] == ([left or f"#if {condition}"] if stack else [])
    assert len(result.pieces) == (2 if condition.startswith("B ||") else 4)


def test_statement_macros_without_semicolon():
    macros = "#define REGISTER(x) static int reg_##x = 0;\n"
    assert pieces("REGISTER(a)\nREGISTER(b) int c;\n", macros) == ["REGISTER(a)", "REGISTER(b)", "int c;"]
    assert pieces("Q_OBJECT_X(a)\nclass C { };\n") == ["Q_OBJECT_X(a)", "class C { };"]
    assert pieces("TEST(A, b) { f(); }\nTEST(A, c) { g(); }\n") == [
        "TEST(A, b) { f(); }",
        "TEST(A, c) { g(); }",
    ]


@pytest.mark.parametrize(
    "source",
    ["int f() {", "}", "namespace x {\n#if A\n}\nint a;\n#else\nint b;\n}\n#endif\n", "#else\nint a;\n"],
)
def test_what_does_not_add_up_is_not_taken_apart(source):
    assert not segment_file(lex(source.encode()), MacroTable()).sound


def test_parameters_declared_the_old_way_stay_with_their_function():
    source = b"""int first(a, b)
    int a;
    struct s *b;
{
    return a;
}
static void second(n, fn) int n; void (*fn)(int); { fn(n); }
int third(a);
int a;
void fourth(x) { }
"""
    lexed = lex(source)
    texts = [
        source[piece.start : piece.end].split(b"(")[0] for piece in segment_file(lexed, MacroTable()).pieces
    ]
    assert texts == [b"int first", b"static void second", b"int third", b"int a;", b"void fourth"]


@pytest.mark.parametrize(
    ("source", "sound"),
    [
        ("module;\n#include <vector>\nexport module a;\nint f();\n", False),
        ("export module a.b:part;\nint f();\n", False),
        ("// of b\nmodule b;\nint f();\n", False),
        ("// module b;\nint module;\nvoid f() {\n  module m;\n}\n", True),
        ("int f(int module) { return module; }\n", True),
    ],
)
def test_units_of_modules_are_not_taken_apart(source, sound):
    assert segment_file(lex(source.encode()), MacroTable()).sound == sound


@pytest.mark.parametrize("never", [b"#if 0", b"#ifndef __cplusplus"])
def test_what_is_never_read_closes_nothing(never: bytes) -> None:
    """Editors indent what stands between braces, so headers close for them what they open for C++."""
    data = (
        b'#ifdef __cplusplus\nextern "C" {\n%b\n}\n#endif\n#endif\nint a;\n#ifdef __cplusplus\n}\n#endif\n'
        % never
    )
    result = segment_file(lex(data), MacroTable())
    assert result.sound
    assert [data[piece.start : piece.end] for piece in result.pieces][-1:] == [b"int a;"]

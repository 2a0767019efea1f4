from cpplm.cpp.dead_branches import CLOSE, OPEN
from cpplm.cpp.lexer import lex
from cpplm.cpp.macros import MacroTable, macro_bodies, mask

MACROS = b"""
#define API __attribute__((visibility("default")))
#ifdef X
#define MAYBE
#else
#define MAYBE inline constexpr
#endif
#define NOEXCEPT_IF(c) noexcept(c)
#define BEGIN_LIB namespace lib { inline namespace v1 {
#define END_LIB } }
#ifdef VERSIONED
#define BEGIN_V namespace v2 {
#define END_V }
#else
#define BEGIN_V
#define END_V
#endif
#define BOTH BEGIN_V
#define REGISTER(x) static int reg_##x = 0;
#define VALUE 3
#define MIXED API MAYBE
"""


def table() -> MacroTable:
    return MacroTable.from_bodies(macro_bodies(lex(MACROS).directives))


def test_macros_are_classified_by_all_their_definitions():
    masks = table().masks
    expected = {
        b"API": "blank", b"MAYBE": "blank", b"MIXED": "blank", b"NOEXCEPT_IF": "blank_call",
        b"BEGIN_LIB": "open", b"END_LIB": "close", b"BEGIN_V": "open", b"END_V": "close", b"BOTH": "open",
        b"REGISTER": "statement",
    }  # fmt: skip
    assert {name: masks[name] for name in expected} == expected
    assert b"VALUE" not in masks


def test_a_long_body_is_no_specifier():
    body = b"#define BIG " + b"x + " * 200 + b"1\n"
    assert MacroTable.from_bodies(macro_bodies(lex(body).directives)).masks == {}


def test_masking_keeps_offsets_and_leaves_strings_comments_and_directives():
    source = b'// API here\n#define Q API\nAPI void f(const char* s = "API") NOEXCEPT_IF(sizeof(int) == 4);\n'
    code, plain = mask(lex(source), table())
    assert len(code) == len(plain) == len(source)
    assert b'"API"' in plain
    assert b"API" not in plain.replace(b'"API"', b"")
    assert b"NOEXCEPT_IF" not in code
    assert code.count(b"(") == code.count(b")") == 1
    assert code.index(b"void") == source.index(b"void")


def test_scope_macros_become_markers():
    code, plain = mask(lex(b"BEGIN_LIB int a; END_LIB\n"), table())
    assert code.startswith(OPEN)
    assert CLOSE in code
    assert OPEN not in plain


def test_of_branches_that_do_not_balance_one_by_one_a_single_one_is_read():
    source = b"#if A\nvoid f(int a) {\n#else\nvoid f(long a) {\n#endif\n}\n"
    code, _ = mask(lex(source), MacroTable())
    assert code.count(b"{") == 1
    assert b"int a" in code
    code, _ = mask(lex(source.replace(b"if A", b"ifdef _WIN32")), MacroTable())
    assert b"long a" in code


def test_a_macro_that_is_its_argument_is_taken_off_a_parameter_list():
    source = b"#define OF(args) args\nint f OF((int a, char *b));\nint g(OF(1), OF((1) + (2)));\n"
    lexed = lex(source)
    code, _ = mask(lexed, MacroTable.from_bodies(macro_bodies(lexed.directives)))
    lines = code.split(b"\n")
    assert lines[1].split() == b"int f (int a, char *b) ;".split()
    assert lines[2] == b"int g(OF(1), OF((1) + (2)));"


def test_what_opens_and_closes_structures_is_a_name_where_it_is_not_called():
    macros = b"#define B(x) struct x {\n#define E(x) } x;\n"
    table = MacroTable.from_bodies(macro_bodies(lex(macros).directives))
    source = b"template <class E> E first(E e);\nB(pair)\nint n;\nE(pair)\nE(\n"
    code, plain = mask(lex(source), table)
    assert len(code) == len(plain) == len(source)
    assert code.startswith(b"template <class E> E first(E e);")

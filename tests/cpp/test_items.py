import pytest

from cpplm.core.spans import SpanKind
from cpplm.cpp.doc_comments import shift_pairs
from cpplm.cpp.items import ItemKind, read_items
from cpplm.cpp.lexer import lex
from cpplm.cpp.macros import MacroTable, macro_bodies
from cpplm.cpp.syntax_spans import join_spans


def items(source: str):
    result = read_items(source.encode(), MacroTable())
    assert result.sound
    return result.items


@pytest.mark.parametrize(
    ("source", "kind", "names"),
    [
        ("#include <vector>", "INCLUDE", []),
        ("#define A 1", "MACRO", []),
        ("#pragma GCC system_header", "PRAGMA", []),
        ("using std::vector;", "USING", ["vector"]),
        ("using namespace std;", "USING", []),
        ("namespace fs = std::filesystem;", "USING", ["fs"]),
        ("class A;", "FORWARD", ["A"]),
        ("template <class T, class U> struct A;", "FORWARD", ["A"]),
        ("enum class E : int;", "FORWARD", ["E"]),
        ("namespace empty { /* yet */ }", "FORWARD", ["empty"]),
        ("namespace a { inline namespace b { } }", "FORWARD", ["a", "b"]),
        ("struct A : B { int x; };", "TYPE", ["A"]),
        ('typedef struct a { int x; OLD(number z, "y"); int y; } b, *c;', "TYPE", ["a", "b", "c"]),
        ("enum Color { kRed, kBlue };", "TYPE", ["Color", "kRed", "kBlue"]),
        ("template <> struct A<int> { };", "TYPE", ["A"]),
        ("typedef struct { int x; } T;", "TYPE", ["T"]),
        ("using A = int;", "ALIAS", ["A"]),
        ("typedef int (*callback)(int);", "ALIAS", ["callback"]),
        ("int a = 1, *b;", "VARIABLE", ["a", "b"]),
        ("int C::count = 0;", "VARIABLE", []),
        ("extern LIB_DECL lib_type a;", "VARIABLE", ["a"]),
        ("LIB_DECL extern struct lib a[2];", "VARIABLE", ["a"]),
        ("void f(int a = 1);", "PROTOTYPE", ["f"]),
        ("LIB_BEGIN_CDECL\n\ntypedef struct a *B;\nLIB_END_CDECL", "ALIAS", ["a", "B"]),
        ("_XFUNCPROTOBEGIN\nextern int a;\n_XFUNCPROTOEND", "VARIABLE", ["a"]),
        ("int& f();", "PROTOTYPE", ["f"]),
        ("int f() { return 1; }", "FUNCTION", ["f"]),
        ("bool operator==(A a, B b) { return true; }", "FUNCTION", ["operator=="]),
        ("template <class T> T Map_operator::get(T t) const { return t; }", "FUNCTION", []),
        ("int C::f() { return 1; }", "FUNCTION", []),
        ("template <class T> C<T>::~C() { }", "FUNCTION", []),
        ("C::operator bool() const { return true; }", "FUNCTION", []),
        ("template class A<int>;", "OTHER", []),
        ("extern template class A<int>;", "OTHER", []),
        ("static_assert(1, \"\");", "OTHER", []),
        ("DEFINE_flag(a, 1);", "CALL", []),
        ('extern "C" int g(int);', "PROTOTYPE", ["g"]),
    ],
)  # fmt: skip
def test_kind_and_declared_names(source, kind, names):
    (item,) = items(source + "\n")
    assert item.kind == ItemKind[kind]
    assert [name.decode() for name in item.names] == names


def test_a_call_with_an_operator_declares_what_its_macro_pastes():
    define = b"#define CHECK(name, op) template <class T> bool check_##name(T a, T b) { return a op b; }\n"
    table = MacroTable.from_bodies(macro_bodies(lex(define).directives))
    (call,) = read_items(b"CHECK(LE, <=)\n", table).items
    assert call.kind == ItemKind.CALL
    assert b"check_LE" in call.names


def test_a_macro_for_the_type_below_an_enumeration():
    table = MacroTable.from_bodies({b"LIB_BASE": {b"(", b"(: \x03"}})
    source = b"enum level LIB_BASE(unsigned char) { low, high };\nenum level LIB_BASE(void) { return low; }\n"
    level, function = read_items(source, table).items
    assert (level.kind, level.names) == (ItemKind.TYPE, (b"level", b"low", b"high"))
    assert (function.kind, function.names) == (ItemKind.FUNCTION, (b"LIB_BASE",))


def test_macros_of_glib():
    table = MacroTable.from_bodies({})
    log, define = read_items(
        b"void log(const char *text, ...) G_GNUC_PRINTF (1, 2);\n"
        b"G_DEFINE_TYPE (LibItem, lib_item, G_TYPE_OBJECT)\n",
        table,
        language="c",
    ).items
    assert (log.kind, log.names) == (ItemKind.PROTOTYPE, (b"log",))
    assert {b"LibItemClass", b"lib_item_init"} <= define.mentions & {*define.names}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("extern void stop (void) _X_NORETURN;", b"stop"),
        ("int *find(int n, char *text) LIB_PURE LIB_COLD;", b"find"),
        ("static LIST(int) ALL;", b"ALL"),
        ("static QUEUE(item, items) ALL;", b"ALL"),
    ],
)
def test_macros_behind_parameters_are_no_variables(source: str, name: bytes):
    (item,) = read_items(source.encode(), MacroTable.from_bodies({}), language="c").items
    assert item.names == (name,)


def test_of_many_branches_one_that_is_not_balanced_spoils_no_other():
    source = "#if A\nint a(void);\n#elif B\nstruct b {\n#elif C\nint c(void);\n#else\nint d(void);\n#endif\n"
    assert [item.names for item in items(source) if item.names] == [(b"a",), (b"c",), (b"d",)]


def test_out_of_class_members_have_a_qualifier():
    (item,) = items("template <class T> int ns::Box<T>::size(int a) const { return a; }\n")
    assert (item.qualifier, item.function_name) == (b"Box", b"size")


def test_functions_inside_classes_are_counted_and_lambdas_are_not():
    result = read_items(
        b"struct A { A() = default; int f() { auto l = [] { return 1; }; return l(); } int g(); ~A() {} };\n"
        b"int h() { return 1; }\nint i();\n",
        MacroTable(),
    )
    assert [item.functions for item in result.items] == [2, 1, 0]
    assert result.functions == 3


def test_a_construct_the_parser_cannot_read_spoils_no_neighbour():
    found = items("int a() { return 1; }\nvoid b() { x = 1 2 3 @ 4; }\nint c() { return 3; }\n")
    assert [item.function_name for item in found] == [b"a", b"b", b"c"]


def test_mentions_leave_out_comments_and_strings_but_not_conditions():
    (item,) = items('#if FEATURE\nint f() { /* hidden */ return g("text"); }\n#endif\n')
    assert {b"f", b"g", b"FEATURE"} <= item.mentions
    assert not item.mentions & {b"hidden", b"text"}


def test_c_is_read_as_c():
    source = "int class(int new) { return new; }\nint old(a) int a; { return a; }\nAPI(int) f(void);\n"
    result = read_items(source.encode(), MacroTable(), language="c")
    assert [item.kind.name for item in result.items] == ["FUNCTION", "FUNCTION", "PROTOTYPE"]
    assert [item.names for item in result.items] == [(b"class",), (b"old",), (b"f",)]
    assert result.error_bytes == 0


def test_spans_and_pairs_lie_in_the_text_of_their_item():
    source = (
        "// größer\n\n// Says how large it is.\nint f(int x) { return measure_it(x, 1234567890123456); }\n"
    )
    (item,) = items(source)
    found = join_spans([(item.spans, 0)]).tolist()
    assert [item.text[start:end] for start, end, kind in found if kind == SpanKind.ARGUMENTS] == [
        b"(x, 1234567890123456)"
    ]
    (pair,) = shift_pairs([(item.pairs, 0)])
    assert item.text[pair["doc_start"] : pair["doc_end"]] == b"// Says how large it is."


@pytest.mark.parametrize(
    ("head", "qualifier"), [("A::B", b"A"), ("A::B final : public C::D", b"A"), ("B : public C::D", b"")]
)
def test_class_of_another_class_that_the_parser_cannot_read(head, qualifier):
    (item,) = read_items(f"class {head} {{\n  APPLY(+=)\n  int n\n}};\n".encode(), MacroTable()).items
    assert (item.names, item.qualifier) == ((b"B",), qualifier)

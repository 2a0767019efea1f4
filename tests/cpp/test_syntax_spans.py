"""Every span lies on the exact text of what it names, whatever the source."""

import pytest
import tree_sitter
import tree_sitter_cpp
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.spans import MAX_BYTES, MIN_BYTES, SpanKind, pack_spans, unpack_spans
from cpplm.cpp.parser import grammar
from cpplm.cpp.syntax_spans import find_spans, join_spans
from tests.corpus.parsed import Parsed, only, parsed

SHAPE = {  # how a span of each kind starts and ends
    SpanKind.STATEMENT: ("", ";}"),
    SpanKind.BLOCK: ("{", "}"),
    SpanKind.BODY: ("{", "}"),
    SpanKind.FUNCTION: ("", "}"),
    SpanKind.ARGUMENTS: ("(", ")"),
    SpanKind.CONDITION: ("(", ")"),
}
SOURCE = """\
// größer: 面積 🙂
template <class T>
static T area(const T& größe, int times) {
    T total = größe.width() * größe.height();  // é
    for (int i = 0; i < times; ++i) {
        total += measure(größe, "面積 🙂", i + 1);
    }
    if (total > größe.limit_of_all()) return {};
    return total;
}
"""


def check_shape(piece: Parsed) -> None:
    for start, end, kind in piece.triples():
        text = piece.text[start:end].decode()
        opening, closing = SHAPE[SpanKind(kind)]
        assert MIN_BYTES <= end - start <= MAX_BYTES
        assert text == text.strip()
        assert text.startswith(opening)
        assert text[-1] in closing


def test_the_spans_of_a_function_by_their_bytes():
    piece = only(SOURCE)
    check_shape(piece)
    loop = '{\n        total += measure(größe, "面積 🙂", i + 1);\n    }'
    assert piece.texts(SpanKind.FUNCTION) == [piece.text.decode().partition("\n")[2]]
    assert piece.texts(SpanKind.BODY) == [piece.text[piece.text.index(b"{") :].decode()]
    assert piece.texts(SpanKind.BLOCK) == [loop]
    assert piece.texts(SpanKind.ARGUMENTS) == ['(größe, "面積 🙂", i + 1)']
    assert piece.texts(SpanKind.CONDITION) == ["(total > größe.limit_of_all())"]
    assert piece.texts(SpanKind.STATEMENT) == [
        "T total = größe.width() * größe.height();",
        f"for (int i = 0; i < times; ++i) {loop}",
        'total += measure(größe, "面積 🙂", i + 1);',
        "if (total > größe.limit_of_all()) return {};",
    ]


def test_methods_lambdas_handlers_and_local_types():
    piece = only(
        "struct Outer { Outer() : a(1) { prepare_everything(); } ~Outer() = default;\n"
        "template <class T> void\n"
        "f(T t) try { auto twice = [&](int x) { return x + x + x + x; }; twice(1); }\n"
        "catch (...) { handle_it(); }\n"
        "int unused_member_of_this_class; };\n"
    )
    check_shape(piece)
    assert piece.functions == 2  # the constructor and f: neither the lambda nor what has no body
    assert [text.split("(")[0] for text in piece.texts(SpanKind.FUNCTION)] == [
        "Outer",
        "template <class T> void\nf",
    ]
    assert piece.texts(SpanKind.BODY) == ["{ prepare_everything(); }"]
    assert "{ return x + x + x + x; }" in piece.texts(SpanKind.BLOCK)
    assert not any("unused_member" in text for text in piece.texts(SpanKind.STATEMENT))


def test_a_span_never_tears_an_if_group_apart():
    piece = only("""\
void f(int value) {
#if FAST
    if (is_quick_enough(value)) {
#else
    if (is_slow_but_right(value)) {
#endif
        do_the_work_with(value);
    }
    for (int turn = 0; turn < value; ++turn) {
#ifdef TRACE
        trace_this_turn_of(turn);
#endif
    }
    finish_all_the_work();
}
""")
    check_shape(piece)
    statements = piece.texts(SpanKind.STATEMENT)
    assert "do_the_work_with(value);" in statements
    assert "trace_this_turn_of(turn);" in statements
    assert [text.split("(")[0] for text in statements if "{" in text] == ["for "]
    assert len(piece.texts(SpanKind.FUNCTION)) == len(piece.texts(SpanKind.BODY)) == 1
    assert [text.count("#") for text in piece.texts(SpanKind.BLOCK)] == [2]


def test_masked_macros_stay_inside_their_span():
    piece = only(
        '#define EXPORT __attribute__((visibility("default")))\n'
        "struct S { EXPORT int f() { return compute_it_now(EXPORT 1); } };\n"
    )
    check_shape(piece)
    assert piece.texts(SpanKind.BODY) == ["{ return compute_it_now(EXPORT 1); }"]


def test_a_node_with_an_error_gives_no_span_and_its_neighbours_do():
    source = """\
void f() {
    good_statement_number(1);
    if (first_condition(x)) { bad = 1 2 3 @ 4; }
    good_statement_number(2);
}
"""
    piece = only(source)
    check_shape(piece)
    assert piece.texts(SpanKind.FUNCTION) == piece.texts(SpanKind.BODY) == piece.texts(SpanKind.BLOCK) == []
    assert piece.texts(SpanKind.STATEMENT) == ["good_statement_number(1);", "good_statement_number(2);"]
    assert piece.texts(SpanKind.CONDITION) == ["(first_condition(x))"]
    assert len(only(source.replace("1 2 3 @", "")).triples()) == 2 * len(piece.triples())


def test_too_short_and_too_long_are_left_out():
    assert only("int f() { return 1; }").triples() == [(0, 21, SpanKind.FUNCTION)]
    long = only("void f() { " + "call_of_a_function(1, 2, 3);\n" * 1_000 + "}")
    assert {kind for _, _, kind in long.triples()} == {SpanKind.STATEMENT}


WORDS = st.sampled_from(
    ["x", "größe", "value_of_it", "面積", "f<int>", "a.b->c", "i++", '"ü\\""', "'}'", '"){"', "1'000"]
)
EXPRESSION = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.builds("{} + {}".format, inner, inner),
        st.builds("call_it({}, {})".format, inner, inner),
        st.builds("[&](int y) {{ return {}; }}".format, inner),
        st.builds("Type{{{}}}".format, inner),
    ),
    max_leaves=6,
)
SIMPLE = st.one_of(
    st.builds("{};".format, EXPRESSION),
    st.builds("auto name = {};".format, EXPRESSION),
    st.builds("return {}; // }} größer\n".format, EXPRESSION),
    st.just("/* { */ break;"),
)
STATEMENT = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.builds("if ({}) {{\n{}\n}} else {{ {} }}".format, EXPRESSION, inner, inner),
        st.builds("while ({})\n{}".format, EXPRESSION, inner),
        st.builds("for (auto& e : {}) {{\n#if A\n{}\n#else\n{}\n#endif\n}}".format, EXPRESSION, inner, inner),
        st.builds("switch ({}) {{ case 1: {} break; default: {} }}".format, EXPRESSION, inner, inner),
        st.builds("try {{ {} }} catch (const E& e) {{ {} }}".format, inner, inner),
        st.builds("{{ {}\n{} }}".format, inner, inner),
    ),
    max_leaves=6,
)
FUNCTION = st.builds(
    "// é {}\n{}void {}({}) {{\n{}\n}}\n".format,
    WORDS,
    st.sampled_from(["", "template <class T>\n", "static inline "]),
    st.sampled_from(["f", "Größe::area", "operator()"]),
    st.sampled_from(["", "int a, const char* b"]),
    STATEMENT,
)
CLASS = st.builds("struct S : B<int> {{\n{}\nint x;\n{}}};\n".format, FUNCTION, FUNCTION)


@given(st.lists(st.one_of(FUNCTION, CLASS), min_size=1, max_size=3).map("\n".join))
@settings(max_examples=150, deadline=None)
def test_every_span_of_generated_code_lies_on_its_node(source):
    for piece in parsed(source.encode()):
        check_shape(piece)
        assert len(set(piece.triples())) == len(piece.triples())
        for start, end, kind in piece.triples():
            if kind != SpanKind.ARGUMENTS:
                conditionals = [
                    word for word in piece.text[start:end].split() if word in (b"#if", b"#else", b"#endif")
                ]
                assert (
                    conditionals.count(b"#if")
                    == conditionals.count(b"#endif")
                    >= conditionals.count(b"#else")
                )


@pytest.mark.slow
@given(st.lists(st.one_of(FUNCTION, CLASS), min_size=1, max_size=3).map("\n".join))
@settings(max_examples=60, deadline=None)
def test_one_walk_finds_as_many_functions_as_a_query(source):
    language = tree_sitter.Language(tree_sitter_cpp.language())
    query = tree_sitter.Query(language, "(function_definition body: (_)) @function")
    root = grammar("c++").parse(source.encode())
    wanted = tree_sitter.QueryCursor(query).captures(root).get("function", [])
    _, found = find_spans(root, grammar("c++"))
    assert sorted(f.node.start_byte for f in found) == sorted(node.start_byte for node in wanted)


@given(
    st.binary(max_size=400)
    | st.lists(st.sampled_from(list(b"{}();#<>\"'\n=:, \xc3\xa9\x01\x02ifstructtemplate")), max_size=300).map(
        bytes
    )
)
@settings(max_examples=200, deadline=None)
def test_garbage_is_no_reason_to_fail(data):
    for language in ("c", "c++"):
        rules = grammar(language)
        spans, functions = find_spans(rules.parse(data), rules, shift=5)
        table = join_spans([(spans, 0)])
        assert table[:, :2].size == 0 or 5 <= table[:, :2].min() < table[:, :2].max() <= len(data) + 5
        assert all(0 <= function.start < len(data) for function in functions)


def test_joining_shifts_every_piece_to_its_place():
    first, second = only(SOURCE), only("int g() { return 12345; }")
    document = b"namespace n {\n\n" + first.text + b"\n" + second.text + b"\n}\n"
    places = [document.index(piece.text) for piece in (first, second)]
    joined = join_spans([(second.spans, places[1]), (first.spans, places[0])])
    read = unpack_spans(pack_spans(joined)).tolist()
    assert len(read) == len(first.triples()) + len(second.triples())
    wanted = [piece.text[s:e] for piece in (first, second) for s, e, _ in piece.triples()]
    assert sorted(document[start:end] for start, end, _ in read) == sorted(wanted)
    assert [start for start, *_ in read] == sorted(start for start, *_ in read)
    assert pack_spans(join_spans([])) == b""

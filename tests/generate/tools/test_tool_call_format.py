"""What a model writes between the marks of a call, whatever that is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.generate.tools.tool_call_format import (
    KINDS,
    LONGEST,
    ToolCall,
    parse_call,
    render_call,
)

VALUES = st.text() | st.booleans() | st.integers(-(10**17), 10**17)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("search()", "search", ()),
        (' search ( "a b" ) ; ', "search", ("a b",)),
        ('read_file("src/a.h", 10, -2)', "read_file", ("src/a.h", 10, -2)),
        ("f(true, false, +7)", "f", (True, False, 7)),
        (r'f("a\n\t\"\\\/\x41\101\0é\ud83d\ude00\U0001F600\q")', "f", ('a\n\t"\\/AA\0é😀😀q',)),
        ('f("lone \\ud800")', "f", ("lone \N{REPLACEMENT CHARACTER}",)),
        ('f("two" " " R"(parts)" u8"!")', "f", ("two parts!",)),
        ('f("a, b", "c)")', "f", ("a, b", "c)")),
        ('compile(R"(int main() { return ")\\n"[0]; })")', "compile", ('int main() { return ")\\n"[0]; }',)),
        ('run(R"cpp(R"(x)")cpp", "in\n")', "run", ('R"(x)"', "in\n")),
        ('f("line\nbreak \\\nno break")', "f", ("line\nbreak no break",)),
        ('f(R"()", "")', "f", ("", "")),
    ],
)
def test_calls_are_read_as_cpp(text: str, name: str, arguments: tuple[object, ...]) -> None:
    assert parse_call("query_tool", text) == ToolCall("query_tool", text, name, arguments)


PROBLEMS = {
    "reads: name": ["", "search", "1f()", "a.b()", "\N{ARABIC-INDIC DIGIT ONE}()"],
    "not closed": ["f(", 'f("a"'],
    "no argument": [
        'f("a)', 'f(R"x(a)y")', 'f(,"a")', "f(x)", "f(truex)", "f(1x)", "f(9" + "9" * 18 + ")", "f('a')",
        "f(g(1))",
    ],
    "behind the last comma": ['f("a",)'],
    "comma is missing": ['f("a" 1)', "f(1 2)", "f(1.5)", 'f("a") + g("b")'],
    "no character": ['f("\\U00110000")'],
    "65,536 characters": ['f("' + "a" * LONGEST + '")'],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"), [(text, problem) for problem in PROBLEMS for text in PROBLEMS[problem]]
)
def test_what_is_no_call_says_why(text: str, problem: str) -> None:
    call = parse_call("query_tool", text)
    assert problem in call.problem
    assert (call.text, call.name, call.arguments) == (text, "", ())


@given(st.text('f(")R,\\ 1tru;xU\n', max_size=30) | st.text(max_size=50))
def test_any_text_is_a_call_or_has_a_problem(text: str) -> None:
    for kind in KINDS:
        call = parse_call(kind, text)
        assert bool(call.name) != bool(call.problem)


@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), st.lists(VALUES, max_size=4).map(tuple))
def test_what_is_rendered_is_read_back(name: str, arguments: tuple[str | int | bool, ...]) -> None:
    call = parse_call("query_tool", render_call(name, arguments))
    assert (call.name, call.arguments) == (name, arguments)
    assert [type(value) for value in call.arguments] == [type(value) for value in arguments]


@given(
    st.lists(st.sampled_from([')"', ')cpp"', ')cpp0"', "\\", '"', "\n", "R", "("]), max_size=9).map("".join)
)
def test_texts_that_look_like_the_end_of_a_raw_string(text: str) -> None:
    assert parse_call("query_tool", render_call("f", (text, text))).arguments == (text, text)


def test_long_calls_are_read_in_no_time() -> None:
    source = 'int x; // "quoted" \\ and )" more\n' * 1500
    assert parse_call("query_tool", render_call("compile", (source,))).arguments == (source,)
    for text in (
        'f("' + "\\" * 60000,
        'f(R"(' + ')"' * 20000,
        "f(" + '"a"' * 20000 + ")",
        'f(R"' * 15000 + ")",
    ):
        parse_call("query_tool", text)


def test_the_calculator_gets_what_stands_between_its_marks() -> None:
    assert parse_call("python", " 1 + 1 ") == ToolCall("python", " 1 + 1 ", "calculator", ("1 + 1",))

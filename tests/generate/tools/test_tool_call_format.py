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
    tool_tokens,
)
from cpplm.tokenizer.tokenizer import Tokenizer

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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "reads: name"),
        ("search", "reads: name"),
        ("1f()", "reads: name"),
        ("a.b()", "reads: name"),
        ("f(", "not closed"),
        ('f("a"', "not closed"),
        ('f("a)', "no argument"),
        ('f(R"x(a)y")', "no argument"),
        ('f("a",)', "behind the last comma"),
        ('f(,"a")', "no argument"),
        ('f("a" 1)', "comma is missing"),
        ("f(1 2)", "comma is missing"),
        ("f(x)", "no argument"),
        ("f(1.5)", "comma is missing"),
        ("f(truex)", "no argument"),
        ("f(1x)", "no argument"),
        ("f(9" + "9" * 18 + ")", "no argument"),
        ("f('a')", "no argument"),
        ('f("a") + g("b")', "comma is missing"),
        ('f("\\U00110000")', "no character"),
        ("f(g(1))", "no argument"),
        ("\N{ARABIC-INDIC DIGIT ONE}()", "reads: name"),
        ('f("' + "a" * LONGEST + '")', "65,536 characters"),
    ],
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


def test_marks(tokenizer: Tokenizer) -> None:
    found = tool_tokens(tokenizer, "query_tool")
    names = [
        tokenizer.decode([id_]) for id_ in (found.start, found.end, found.result_start, found.result_end)
    ]
    assert names == ["<QUERY_TOOL>", "<CODE_END>", "<TOOL_RESULT>", "<CODE_END>"]
    found = tool_tokens(tokenizer, "python")
    names = [
        tokenizer.decode([id_]) for id_ in (found.start, found.end, found.result_start, found.result_end)
    ]
    assert names == ["<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>"]

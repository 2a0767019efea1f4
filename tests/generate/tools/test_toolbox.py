"""Which tools there are, how they are called, and the limits of one answer."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.generate.settings import ToolLimits
from cpplm.generate.tools.tool_call_format import ToolCall, parse_call
from cpplm.generate.tools.toolbox import ToolBox
from tests.generate.talker import project

TOOLS = ("calculator", "search", "read_file", "compile", "run", "test")


@pytest.fixture(scope="module")
def box() -> Iterator[ToolBox]:
    with project() as root:
        yield ToolBox(root)


def asked(box: ToolBox, text: str) -> str:
    return box.call(parse_call("query_tool", text))


def limited(box: ToolBox, **limits: float) -> ToolBox:
    """The same tools with other limits."""
    other = ToolBox(None, ToolLimits(**limits))  # type: ignore[arg-type]
    other._tools = box._tools
    return other


def test_every_tool_answers(box: ToolBox) -> None:
    assert tuple(box._tools) == TOOLS
    box = box.fresh()
    assert box.call(parse_call("python", "2 + 2")) == "4"
    assert asked(box, 'calculator("2 + 2")') == "4"
    assert asked(box, 'search("area(")').startswith("shapes.h:1: int area(")
    assert asked(box, 'search("^int (a|b)", true, "shapes.h")').startswith("shapes.h:1: int area(")
    assert asked(box, 'read_file("main.cpp", 1, 1)') == "main.cpp, lines 1 to 1 of 1:\nint main() {}"
    assert asked(box, 'compile("int main() {}")') == "compiled"
    assert asked(box, 'run("#include <shapes.h>\\nint main() { return 2; }", "")') == "ended with exit code 2"
    assert asked(box, 'test("", "assert(1 + 1 == 2);")') == "passed\n1 of 1 assertions held"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            'serch("a")',
            "error: there is no tool 'serch', only calculator, search, read_file, compile, run, test",
        ),
        ("search()", 'error: call it like this: search("text")'),
        ("search(1)", "error: call it like this"),
        ('search("a", 1)', "error: call it like this"),
        ('search("a", true, "", 1)', "error: call it like this"),
        ('read_file("a", true)', "error: call it like this: read_file("),
        ('test("a")', "error: call it like this: test("),
        ('read_file("../a")', "error: '../a' leads out"),
        ('search("(", true)', "error: not a pattern"),
        ("calculator(1)", "error: call it like this"),
        ('calculator("1/0")', "error: division by zero"),
        ("hello", "error: a call reads: name"),
        ("", "error: a call reads"),
    ],
)
def test_wrong_calls_are_told_why(box: ToolBox, text: str, answer: str) -> None:
    assert asked(box.fresh(), text).startswith(answer)


def test_without_a_project_there_is_the_calculator() -> None:
    box = ToolBox()
    assert tuple(box._tools) == ("calculator",)
    assert box.call(parse_call("python", "6*7")) == "42"
    assert asked(box, 'search("a")') == "error: there is no tool 'search', only calculator"


@given(
    kind=st.sampled_from(["python", "query_tool"]),
    name=st.sampled_from([*TOOLS[:3], "other"]),
    arguments=st.lists(st.text(max_size=20) | st.booleans() | st.integers(), max_size=4).map(tuple),
)
def test_no_call_raises(box: ToolBox, kind: str, name: str, arguments: tuple[object, ...]) -> None:
    assert isinstance(box.fresh().call(ToolCall(kind, "", name, arguments)), str)  # type: ignore[arg-type]


def test_calls_are_counted(box: ToolBox) -> None:
    few = limited(box, tool_calls=2)
    answers = [few.call(parse_call("python", text)) for text in ("1", "nonsense", "3", "4")]
    assert answers[0] == "1"
    assert answers[1].startswith("error: cannot read")
    assert answers[2:] == ["error: 2 calls are all that an answer may have"] * 2
    assert few.fresh().call(parse_call("python", "5")) == "5"


def test_a_tool_that_hangs_is_cut_and_the_time_is_gone(box: ToolBox) -> None:
    brief = limited(box, tool_seconds=1.5)
    begin = time.monotonic()
    assert "was stopped: timeout" in asked(brief, 'run("int main() { for (;;) {} }")')
    assert time.monotonic() - begin < 8
    begin = time.monotonic()
    assert asked(brief, 'run("int main() {}")') == "error: the time for tools is used up"
    assert brief.call(parse_call("python", "1")) == "error: the time for tools is used up"
    assert time.monotonic() - begin < 1


def test_long_results_are_cut(box: ToolBox) -> None:
    short = limited(box, tool_characters=100)
    answer = asked(short, 'read_file("shapes.h")')
    assert len(answer) < 100
    answer = asked(
        short, 'run(R"(#include <cstdio>\nint main() { for (int i = 0; i < 5000; i++) puts("ab"); })")'
    )
    assert answer.startswith("ended with exit code 0\nab\nab")
    assert answer.endswith("\n[14,922 more characters]")
    assert len(asked(short, f'search("{"a" * 5000}")')) < 130
    assert len(asked(short, "x" * 5000)) < 130
    assert len(asked(short, f"{'x' * 5000}()")) < 130


def test_a_sandbox_that_fails_is_told(box: ToolBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = box.fresh()
    lost = "#!/bin/sh\nexit 1\n"
    program = tmp_path / "python"
    program.write_text(lost)
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))  # the launcher ends without a word
    assert asked(box, 'compile("int main() {}")').startswith("error: the tool failed: the launcher ended")
    assert asked(box, 'search("area")').startswith("shapes.h:1")


def test_what_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        ToolBox(tmp_path / "none")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tool_calls": -1}, "--tool_calls -1"),
        ({"tool_seconds": -0.5}, "--tool_seconds"),
        ({"tool_seconds": float("nan")}, "--tool_seconds"),
        ({"tool_seconds": float("inf")}, "--tool_seconds"),
        ({"tool_characters": 99}, "--tool_characters 99"),
    ],
)
def test_limits_that_make_no_sense(values: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ToolLimits(**values)  # type: ignore[arg-type]

"""What a call of a tool looks like in a model's text.

    <|python_start|>(1,200 + 34) * 5<|python_end|><|output_start|>6170<|output_end|>
    <QUERY_TOOL>read_file("src/shapes.h", 1, 40)<CODE_END><TOOL_RESULT>...<CODE_END>

Between the first kind of marks stands what is to be calculated, between the second a call as C++ writes it:
a name, and in brackets texts ("..." or R"(...)", neighbours are joined), whole numbers, true and false.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from itertools import chain, count
from typing import Literal

from cpplm.tokenizer.conversations import PARTS
from cpplm.tokenizer.tokenizer import Tokenizer

Kind = Literal["python", "query_tool"]
"""As in `cpplm.tokenizer.conversations.PARTS`, where the marks of each are."""
KINDS: tuple[Kind, ...] = ("python", "query_tool")
RESULTS: dict[Kind, str] = {"python": "python_output", "query_tool": "tool_result"}
"""The part that holds the answer to a call."""
CALCULATOR = "calculator"
LONGEST = 1 << 16
"""Characters of a call."""

ArgumentValue = str | int | bool
"""An argument."""

_RAW = r'(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s"]{0,16})\((?P<raw>.*?)\)(?P=delimiter)"'
_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*\(", re.ASCII)
_VALUE = re.compile(
    rf'\s*(?:{_RAW}|(?:u8|[uUL])?"(?P<text>(?:[^"\\]|\\.)*)"|(?P<number>[+-]?\d{{1,18}})(?!\w)'
    r"|(?P<word>true|false)(?!\w))\s*",
    re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""}


@dataclass(frozen=True)
class ToolCall:
    """A tool that a model asks for."""

    kind: Kind
    text: str
    """Text between the marks."""
    name: str = ""
    arguments: tuple[ArgumentValue, ...] = ()
    problem: str = ""
    """Why this is no call; name and arguments are empty then."""


@dataclass(frozen=True)
class ToolTokens:
    """Special tokens around a call and around its result."""

    start: int
    end: int
    result_start: int
    result_end: int


def tool_tokens(tokenizer: Tokenizer, kind: Kind) -> ToolTokens:
    """Those of one kind of call."""
    names = (*PARTS[kind][:2], *PARTS[RESULTS[kind]][:2])
    return ToolTokens(*(tokenizer.encode_special(name) for name in names if name is not None))


def parse_call(kind: Kind, text: str) -> ToolCall:
    """Read what a model wrote between the marks of a call; what is no call says why in `problem`."""
    if len(text) > LONGEST:
        return ToolCall(
            kind, text, problem=f"a call may have {LONGEST:,} characters, this one has {len(text):,}"
        )
    if kind == "python":
        return ToolCall(kind, text, CALCULATOR, (text.strip(),))
    try:
        name, arguments = _read(text)
    except ValueError as error:
        return ToolCall(kind, text, problem=str(error))
    return ToolCall(kind, text, name, arguments)


def render_call(name: str, arguments: tuple[ArgumentValue, ...]) -> str:
    """The text of a call, which `parse_call` reads as this name and these arguments."""
    return f"{name}({', '.join(map(_render, arguments))})"


def _read(text: str) -> tuple[str, tuple[ArgumentValue, ...]]:
    """Name and arguments of a call, or ValueError."""
    begin = _NAME.match(text)
    if begin is None:
        raise ValueError('a call reads: name("text", 1, true)')
    arguments: list[ArgumentValue] = []
    place, rest = begin.end(), text.rstrip().removesuffix(";").rstrip()
    if not rest.endswith(")"):
        raise ValueError("the call's bracket is not closed")
    end = len(rest) - 1
    while rest[place:end].strip():
        value, place = _value(text, place, end)
        arguments.append(value)
        if place < end:
            if text[place] != ",":
                raise ValueError(f"a comma is missing before {text[place : place + 20]!r}")
            place += 1
            if not text[place:end].strip():
                raise ValueError("an argument is missing behind the last comma")
    return begin[1], tuple(arguments)


def _value(text: str, place: int, end: int) -> tuple[ArgumentValue, int]:
    """One argument and where it ends; texts that follow each other are one."""
    texts: list[str] = []
    while match := _VALUE.match(text, place, end):
        if match["number"] is not None or match["word"] is not None:
            if texts:
                break
            value = match["word"] == "true" if match["word"] else int(match["number"])
            return value, match.end()
        raw = match["raw"]
        texts.append(_unescape(match["text"]) if raw is None else raw)
        place = match.end()
    if not texts:
        raise ValueError(
            f'no argument: {text[place:end].strip()[:20]!r}; write "text", R"(text)", 12 or true'
        )
    return "".join(texts), place


def _unescape(text: str) -> str:
    """A text without its escapes; pairs of \\u escapes beyond the 16-bit plane become one character."""

    def character(match: re.Match[str]) -> str:
        what = match[1]
        if what[0] in "xuU" and len(what) > 1:
            number = int(what[1:], 16)
            if number > sys.maxunicode:
                raise ValueError(f"there is no character {match[0]}")
            return chr(number)
        return chr(int(what, 8)) if what[0] in "01234567" else _ESCAPES.get(what, what)

    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _render(value: ArgumentValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if not re.search(r'["\\\n]', value):
        return f'"{value}"'
    delimiters = chain(("", "cpp"), (f"cpp{number}" for number in count()))
    delimiter = next(each for each in delimiters if f'){each}"' not in value)
    return f'R"{delimiter}({value}){delimiter}"'

"""Parameters declared between the parentheses and the body of a function, as C before 1989 has them."""

from __future__ import annotations

import re

from cpplm.cpp.lexer import IDENTIFIER

# `int f(a, b) int a; char *b; {`: C before 1989, and allowed until 2023.
_OLD_STYLE = re.compile(rb"[\w\s*]*\(\s*(\w+(?:\s*,\s*\w+)*)\s*\)\s*([A-Za-z_][^{}]*)\Z")
_WORD_NEXT = re.compile(rb"\s*[A-Za-z_]")
_PARAMETER = re.compile(rb"\s*[A-Za-z_]\w*(?:\s+|\s*\*)\s*(?:[\w*]|\(\s*\*)")


def declares_parameter(code: bytes, start: int, end: int) -> bool:
    """True if a semicolon ends the declaration of a parameter between the parentheses and the body."""
    listed = code.find(b")", start, end)
    if listed < 0 or not _WORD_NEXT.match(code, listed + 1, end):  # nearly always
        return False
    match = _OLD_STYLE.match(code, start, end)
    if not match:
        return False
    last = match.group(2).rpartition(b";")[2]
    named = set(IDENTIFIER.findall(match.group(1))).intersection(IDENTIFIER.findall(last)[1:])
    brace = code.find(b"{", end)
    return bool(
        named and _PARAMETER.match(last) and brace >= 0 and not code[end:brace].rpartition(b";")[2].strip()
    )

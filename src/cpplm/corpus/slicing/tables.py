"""Tables and enumerations that are too long for a document, in pieces that are declarations of their own."""

from __future__ import annotations

import re
from dataclasses import replace

from cpplm.cpp.items import Item, mentioned_in
from cpplm.cpp.lexer import lex

# What stands before the rows, from the first bracket on: `static const struct { int a, b; } pairs[] = {`
_LIST = re.compile(rb"(?:[^{}]*+\{[^{}]*+\})?[^{}]*=\s*+\{")
_ENUM = re.compile(rb"(?=[^{}();=]*+\{)[^{]*?\benum\b[^{]*+\{")
_STEP = re.compile(rb"[{}()\[\],]")


def table_pieces(item: Item, count: int) -> list[Item]:
    """About so many items, each with some of the rows between the outermost braces; none for other items."""
    lexed = lex(item.text)
    code = lexed.names
    before = _LIST.match(code) or _ENUM.match(code)
    if before is None or lexed.directives:
        return []
    start, end = before.end(), code.rfind(b"}")
    ends: list[int] = []
    depth = 0
    for match in _STEP.finditer(code, start, end):
        depth += (match.group() in b"{([") - (match.group() in b"})]")
        if depth < 0:  # the rows end before
            return []
        if (
            match.group() == b","
            and not depth
            and match.end() - start >= (end - start) * (len(ends) + 1) // count
        ):
            line_end = code.find(b"\n", match.end(), end)
            ends.append(match.end() if line_end < 0 or code[match.end() : line_end].strip() else line_end + 1)
    pieces: list[Item] = []
    for first, last in zip([start, *ends], [*ends, end], strict=True):
        if not item.text[first:last].strip():
            continue
        text = item.text[:start] + item.text[first:last] + item.text[end:]
        mentions = item.mentions - (mentioned_in(item.text) - mentioned_in(text))
        lines = [item.last_line - item.text.count(b"\n", place) for place in (first, last)]
        line = item.line if first == start else lines[0]
        last_line = item.last_line if last == end else lines[1]
        pieces.append(
            replace(item, text=text, mentions=mentions, line=line, last_line=last_line, spans=b"", pairs=b"")
        )
    return pieces
